"""How many labels to a target: the line is found again, and what cannot be said is not."""

import numpy as np
import pytest

from skal.exceptions import InvalidParameterError
from skal.stopping import forecast_labels

N = np.array([40, 80, 120, 160, 200])


def table(accuracy, n_heldout=400):
    """Held-out samples of rising difficulty: a model is right on the easiest share of them."""
    return (np.arange(n_heldout) + 0.5) / n_heldout < np.asarray(accuracy)[:, None]


@pytest.mark.parametrize("target", [0.92, 0.95])
def test_a_line_of_logits_is_continued(target):
    """logit = log(n / 20) reaches the target at 20 × target / (1 − target) labels."""
    found = forecast_labels(N, table(N / (N + 20), n_heldout=20_000), target)
    assert found.more == pytest.approx(20 * target / (1 - target) - 200, rel=0.02)
    assert found.low <= found.more <= found.high


def test_a_target_that_is_reached_needs_no_labels():
    found = forecast_labels(N, table(N / (N + 20)), 0.8)
    assert (found.more, found.low) == (0, 0)


def test_a_flat_curve_has_no_end():
    found = forecast_labels(N, table(np.full(5, 0.7)), 0.9)
    assert found.more == found.high == np.inf
    assert "no end in sight" in found.text


def test_few_held_out_labels_say_little():
    wide, narrow = (forecast_labels(N, table(N / (N + 20), n), 0.95) for n in (30, 3000))
    assert wide.high - wide.low > 3 * (narrow.high - narrow.low)
    assert "95 % accuracy" in narrow.text


def test_too_few_models_or_labels():
    for n, correct in (
        (N[:3], table(N[:3] / 300)),
        (N, np.ones((5, 1), dtype=bool)),
        ([], np.ones((0, 4), dtype=bool)),
    ):
        found = forecast_labels(n, correct, 0.9)
        assert found.more is found.low is found.high is None
        assert "it needs models with 4 different numbers of labels" in found.text


def test_what_is_refused():
    with pytest.raises(InvalidParameterError, match="'target' parameter of forecast_labels"):
        forecast_labels(N, table(N / 300), 1.5)
    with pytest.raises(InvalidParameterError, match="'correct' parameter of forecast_labels"):
        forecast_labels(N, table(N / 300)[:2], 0.9)
