"""Intervals against scipy's, the power law against a general least-squares fit, forecasts against the truth."""

import numpy as np
import pytest
from scipy.optimize import least_squares
from scipy.stats import binomtest

from skal.exceptions import InvalidParameterError
from skal.stopping import forecast_accuracy, wilson_interval
from skal.stopping._forecast import power_law


@pytest.mark.parametrize(("k", "n"), [(0, 1), (1, 1), (0, 30), (30, 30), (7, 13), (450, 500)])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_wilson(k, n, confidence):
    expected = binomtest(k, n).proportion_ci(confidence, method="wilson")
    np.testing.assert_allclose(wilson_interval(k, n, confidence), expected, atol=1e-12)


def test_wilson_refuses_more_correct_than_there_are():
    with pytest.raises(InvalidParameterError, match="n_correct"):
        wilson_interval(3, 2)


@pytest.mark.parametrize("seed", range(5))
def test_power_law_is_the_weighted_least_squares_fit(seed):
    rng = np.random.default_rng(seed)
    n = np.sort(rng.choice(np.arange(20, 400), 8, replace=False)).astype(float)
    scores = np.clip(
        rng.uniform(0.8, 0.99) - rng.uniform(0.5, 3) * n ** -rng.uniform(0.3, 1) + rng.normal(0, 0.01, 8), 0, 1
    )
    smooth = np.clip(scores, 0.02, 0.98)
    root = 1 / np.sqrt(smooth * (1 - smooth))

    def residuals(p):
        return root * (scores - (p[0] - p[1] * n ** -p[2]))

    fits = [
        least_squares(residuals, [0.9, 1.0, c], bounds=([0, 0, 0.05], [1, np.inf, 3.0])) for c in (0.1, 0.5, 1.0, 2.0)
    ]
    best = min(fits, key=lambda fit: fit.cost)
    at = np.array([500.0])
    ours = power_law(n, scores[None], at)[0, 0]
    # the exponent is one of a grid: the error may be a little larger, the curve is nearly the same
    assert ours == pytest.approx(np.clip(best.x[0] - best.x[1] * at[0] ** -best.x[2], 0, 1), abs=0.01)


def test_a_falling_curve_is_taken_for_a_flat_one_and_stays_in_range():
    n = np.array([10.0, 20.0, 30.0, 40.0])
    assert power_law(n, np.array([[0.8, 0.7, 0.6, 0.5]]), np.array([1000.0]))[0, 0] <= 0.7
    assert power_law(n, np.array([[0.2, 0.5, 0.8, 1.0]]), np.array([1e6]))[0, 0] <= 1


def test_less_than_now_is_explained():
    rising = np.arange(40) < np.array([[10], [20], [25], [30], [31]])
    assert "expect no gain" not in forecast_accuracy([20, 40, 60, 80, 100], rising).text
    assert "expect no gain" not in forecast_accuracy([20, 40, 60, 80], np.ones((4, 40), dtype=bool)).text
    lucky = np.arange(40) < np.array([[20], [20], [20], [20], [30]])
    found = forecast_accuracy([20, 40, 60, 80, 100], lucky)
    assert found.later < found.accuracy
    assert "the last model happens to lie above the fitted curve: expect no gain" in found.text


@pytest.mark.parametrize(("n_heldout", "words"), [(10, "10 more are needed"), (19, "1 more is needed")])
def test_few_labels_give_no_percentage_but_what_is_missing(n_heldout, words):
    found = forecast_accuracy([20, 40, 60, 80, 100], np.ones((5, n_heldout), dtype=bool), more=50)
    assert found.text == f"How good the model is can be said from 20 held-out labels on: {words}."
    assert "%" in forecast_accuracy([20, 40, 60, 80, 100], np.ones((5, 20), dtype=bool)).text


def test_no_forecast_from_too_little():
    correct = np.ones((3, 20), dtype=bool)
    found = forecast_accuracy([10, 20, 30], correct)
    assert found.accuracy == 1.0
    assert found.later is None
    assert "needs models with 4 different numbers" in found.text
    same = forecast_accuracy([10, 10, 10, 10, 20], np.ones((5, 20), dtype=bool))
    assert same.later is None
    nothing = forecast_accuracy([], np.empty((0, 0)))
    assert nothing.accuracy is None
    assert "no model" in nothing.text
    assert "held out" in forecast_accuracy([5, 6], np.empty((2, 0))).text


def test_a_table_of_another_shape_is_refused():
    with pytest.raises(InvalidParameterError, match="a row for each of the 3 models"):
        forecast_accuracy([1, 2, 3], np.ones((2, 5), dtype=bool))


def test_interval_covers_what_comes():
    """Of many simulated curves with known accuracy, nearly all later values lie in their interval."""
    n, later = np.arange(50, 400, 50), 500.0
    covered = now = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        a, b, c = rng.uniform(0.85, 0.97), rng.uniform(1, 3), rng.uniform(0.5, 0.9)
        truth = a - b * n**-c
        hardness = rng.random(150)  # the same sample is easy or hard for all models
        correct = hardness[None] < truth[:, None]
        found = forecast_accuracy(n, correct, more=int(later - n[-1]), random_state=seed)
        covered += found.later_low - 0.01 <= a - b * later**-c <= found.later_high + 0.01
        now += found.low <= truth[-1] <= found.high
    assert now >= 51  # 95 % of 60 is 57; fewer than 51 has a probability below 0.1 %
    assert covered >= 45


def test_words_say_what_is_not_covered():
    correct = np.arange(40)[None] < np.array([[20], [25], [28], [30], [31]])
    text = forecast_accuracy([20, 40, 60, 80, 100], correct, more=50).text
    assert "With 50 more labels" in text
    assert "power law" in text
    assert "differ from this pool" in text
    assert "40 random labels" in text
