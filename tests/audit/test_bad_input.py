"""What is no audit is refused, or warned about, in words."""

import warnings

import numpy as np
import pytest

from skal.audit import (
    accuracy,
    accuracy_by_class,
    accuracy_sequence,
    balanced_accuracy,
    certify,
    errors,
    mean_score,
    plan,
    plan_sequence,
)
from skal.exceptions import BiasedAuditWarning, InvalidParameterError, SkalError

from .projects import make_pool

P, Y = make_pool(np.random.default_rng(0), n=500)
AT, CHANCE = plan(P, 60, random_state=0)
UNIFORM = plan(P, 60, uniform=True, random_state=0)


def replaced(array, value):
    array = np.array(array)
    array[3] = value
    return array


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"proba": P[:, 0]}, "proba"),
        ({"proba": P * 2}, "proba"),
        ({"proba": np.where(P[5, 0] == P, np.nan, P)}, "proba"),
        ({"positions": replaced(AT, AT[0])}, "positions"),
        ({"positions": replaced(AT, 500)}, "positions"),
        ({"positions": replaced(AT, -1)}, "positions"),
        ({"positions": AT + 0.5}, "positions"),
        ({"labels": Y[AT][:-2]}, "labels"),
        ({"labels": replaced(Y[AT], -1)}, "labels"),
        ({"labels": replaced(Y[AT], 3)}, "labels"),
        ({"labels": replaced(Y[AT].astype(float), np.nan)}, "labels"),
        ({"labels": Y[AT].astype(str)}, "labels"),
        ({"probabilities": CHANCE[:-1]}, "probabilities"),
        ({"probabilities": replaced(CHANCE, 0)}, "probabilities"),
        ({"probabilities": replaced(CHANCE, 1.1)}, "probabilities"),
        ({"confidence": 1.0}, "confidence"),
    ],
)
def test_each_parameter_is_named(change, name):
    arguments = {"proba": P, "positions": AT, "labels": Y[AT], "probabilities": CHANCE} | change
    with pytest.raises(SkalError, match=f"'{name}' parameter of accuracy must be") as caught:
        accuracy(**arguments)
    assert "Got " in str(caught.value)


@pytest.mark.parametrize("drawn", [(AT, CHANCE), UNIFORM], ids=["weighted", "uniform"])
def test_dropped_samples_are_noticed(drawn):
    at, chance = drawn[0][:50], drawn[1][:50]
    with pytest.raises(InvalidParameterError, match="which has 60 samples by its probabilities"):
        accuracy(P, at, Y[at], chance)


@pytest.mark.parametrize("function", [accuracy, accuracy_by_class, balanced_accuracy])
def test_probabilities_of_other_positions_are_noticed(function):
    shuffled = np.random.default_rng(0).permutation(60)
    others = plan(P, 60, random_state=1)[1]
    for chance in (CHANCE[shuffled], others):
        with pytest.raises(InvalidParameterError, match="in the same order"):
            function(P, AT, Y[AT], chance)


@pytest.mark.parametrize("uniform", [False, True])
def test_a_sequence_has_an_order(uniform):
    at, chance = plan_sequence(P, 40, uniform=uniform, random_state=0)
    accuracy_sequence(P, at, Y[at], chance)
    shuffled = np.random.default_rng(0).permutation(40)
    with pytest.raises(InvalidParameterError, match="another order"):
        accuracy_sequence(P, at[shuffled], Y[at[shuffled]], chance[shuffled])


@pytest.mark.parametrize("kept", [slice(1, None), np.r_[0:20, 21:40]], ids=["first", "middle"])
def test_samples_dropped_from_a_uniform_sequence_are_noticed(kept):
    at, chance = plan_sequence(500, 40, uniform=True, random_state=0)
    with pytest.raises(InvalidParameterError, match="some of them"):
        accuracy_sequence(P, at[kept], Y[at[kept]], chance[kept])


def test_a_certificate_needs_a_uniform_audit():
    with pytest.raises(InvalidParameterError, match="uniform=True"):
        certify(P, AT, Y[AT], CHANCE)


@pytest.mark.parametrize("function", [accuracy, certify])
@pytest.mark.parametrize("order", [1, -1], ids=["least confident", "most confident"])
def test_samples_that_a_strategy_chose_are_no_audit(function, order):
    queried = np.argsort(order * P.max(1))[:60]
    with pytest.warns(BiasedAuditWarning, match="samples that a strategy queried") as caught:
        function(P, queried, Y[queried], np.full(60, 0.12))
    assert caught[0].filename == __file__


def test_audits_that_were_drawn_give_no_warning():
    rng = np.random.default_rng(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for m in [20, 60] * 20:
            for uniform in (False, True):
                at, chance = plan(P, m, uniform=uniform, random_state=rng)
                accuracy(P, at, Y[at], chance)


def test_what_cannot_be_drawn():
    with pytest.raises(InvalidParameterError, match="n_labels"):
        plan(P, 501)
    with pytest.raises(InvalidParameterError, match="uniform=True"):
        plan(500, 20)
    with pytest.raises(InvalidParameterError, match="n_labels"):
        plan_sequence(P, 441, drawn=AT)
    with pytest.raises(InvalidParameterError, match="between 0 and 1"):
        plan(np.array([0.5, 1.2]), 1)


def test_scores_outside_their_bounds():
    with pytest.raises(InvalidParameterError, match="between 0 and 1"):
        mean_score(500, UNIFORM[0], np.full(60, 2.0), UNIFORM[1])
    with pytest.raises(InvalidParameterError, match="scores"):
        errors(Y, *[UNIFORM[0], Y[UNIFORM[0]], UNIFORM[1]], scores=[0.5, 0.6])
