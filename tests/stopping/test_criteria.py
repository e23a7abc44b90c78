"""Criteria decide from a history alone, and can be combined."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression, RidgeClassifier

from skal import ActiveLearningClassifier
from skal.exceptions import InvalidParameterError, InvalidTypeError
from skal.stopping import (
    AllOf,
    AnyOf,
    Budget,
    HoldOut,
    MaxTime,
    StablePredictions,
    TargetScore,
    UncertaintyPlateau,
)


def rows(**columns):
    length = len(next(iter(columns.values())))
    return [{"n_labelled": 10 * (i + 1)} | {name: values[i] for name, values in columns.items()} for i in range(length)]


def first_stop(criterion, history):
    """The round after which a criterion would have stopped, None if none."""
    stops = [i for i in range(len(history)) if criterion.reason(history[: i + 1], history[i]["n_labelled"])]
    return stops[0] if stops else None


def test_budget_counts_labels_that_came_after_the_last_round():
    assert Budget(25).reason(rows(x=[0, 0]), 24) is None
    assert "25 labels" in Budget(25).reason(rows(x=[0, 0]), 25)


def test_time():
    assert first_stop(MaxTime(60), rows(elapsed=[10.0, 59.9, 60.0, 80.0])) == 2
    assert first_stop(MaxTime(60), rows(x=[1, 2])) is None


def test_stable_predictions_need_a_whole_window_above_the_threshold():
    kappa = [None, 0.5, 0.995, 0.992, 0.98, 0.999, 0.999, 0.999]
    means = [np.mean(kappa[i - 2 : i + 1]) if i >= 3 else 0 for i in range(8)]
    expected = next(i for i, mean in enumerate(means) if mean > 0.99)
    assert first_stop(StablePredictions(), rows(agreement=kappa)) == expected
    assert first_stop(StablePredictions(window=1), rows(agreement=kappa)) == 2
    assert first_stop(StablePredictions(window=9), rows(agreement=kappa)) is None


def test_uncertainty_by_threshold_or_plateau():
    falling = [0.5, 0.4, 0.3, 0.2, 0.195, 0.194, 0.193, 0.1]
    history = rows(uncertainty_mean=falling, uncertainty_max=[0.9] * 8)
    assert first_stop(UncertaintyPlateau(threshold=0.3), history) == 2
    assert first_stop(UncertaintyPlateau(window=3), history) == 6
    assert first_stop(UncertaintyPlateau(statistic="max", window=3), history) == 3
    assert first_stop(UncertaintyPlateau(window=3, tolerance=0.0), rows(uncertainty_mean=falling)) is None


def test_target_score_waits_for_enough_labels_and_confidence():
    history = rows(heldout_score=[1.0, 0.9, 0.95, 0.99], n_heldout=[5, 30, 60, 400])
    assert first_stop(TargetScore(0.9), history) == 1
    assert first_stop(TargetScore(0.9, n_min=5), history) == 0
    assert first_stop(TargetScore(0.9, confidence=0.95), history) == 3


def test_combinations():
    history = rows(elapsed=[1.0, 2.0, 3.0, 4.0])
    assert first_stop(Budget(20) | MaxTime(3), history) == 1
    assert first_stop(Budget(20) & MaxTime(3), history) == 2
    both = (Budget(20) & MaxTime(3)).reason(history[:3], 30)
    assert both == f"{Budget(20).reason(history[:3], 30)} and {MaxTime(3).reason(history[:3], 30)}"
    nested = (Budget(20) | MaxTime(100)) & (MaxTime(4) | Budget(100))
    assert first_stop(nested, history) == 3
    assert repr(nested) == (
        "(Budget(n_labels=20) | MaxTime(seconds=100)) & (MaxTime(seconds=4) | Budget(n_labels=100))"
    )
    assert isinstance(Budget(1) | Budget(2) | Budget(3), AnyOf)
    assert len((Budget(1) | Budget(2) | Budget(3)).criteria) == 3
    assert isinstance(clone(nested), AllOf)
    assert repr(clone(nested)) == repr(nested)


def test_what_is_combined_must_be_a_criterion():
    with pytest.raises(InvalidTypeError, match="stopping criteria"):
        Budget(5) | 7


@pytest.mark.parametrize(
    ("stop", "message"),
    [
        (Budget(0), "n_labels"),
        (Budget(10) | MaxTime(-1), "seconds"),
        (TargetScore(1.5), "score"),
        (TargetScore(0.9, share=0), "share"),
        (TargetScore(0.9, confidence=2), "confidence"),
        (HoldOut(0), "share"),
        (StablePredictions(threshold=2), "threshold"),
        (StablePredictions(window=0), "window"),
        (UncertaintyPlateau(statistic="median"), "statistic"),
        (AnyOf([]), "criteria"),
        (0.9, "stop"),
        (Budget, "stop"),
    ],
)
def test_bad_criteria_are_refused_at_the_start(stop, message):
    X = np.eye(4)
    with pytest.raises((InvalidParameterError, InvalidTypeError), match=message):
        ActiveLearningClassifier(LogisticRegression(), n_initial=2, stop=stop).start(X)


def test_uncertainty_needs_probabilities():
    with pytest.raises(InvalidParameterError, match="predict_proba"):
        ActiveLearningClassifier(RidgeClassifier(), "random_sampling", stop=UncertaintyPlateau()).start(np.eye(4))
