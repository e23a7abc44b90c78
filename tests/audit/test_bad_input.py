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
    labels_left,
    mean_score,
    plan,
    plan_sequence,
)
from skal.exceptions import BiasedAuditWarning, InvalidParameterError, SkalError

from .projects import make_pool

P, Y = make_pool(np.random.default_rng(0), n=500)
AT, CHANCE = plan(P, 60, random_state=0)
UNIFORM = plan(P, 60, uniform=True, random_state=0)
CONFIDENT = np.argsort(-P.max(1))
MIXED = CONFIDENT[4::8][:60]  # as confident as all samples are, and yet chosen


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


OTHER = make_pool(np.random.default_rng(1), n=500)[0]  # what another model says of the samples


@pytest.mark.parametrize("proba", [P, OTHER], ids=["same model", "another model"])
@pytest.mark.parametrize("uniform", [False, True])
@pytest.mark.parametrize(
    "kept",
    [np.r_[1:40], np.r_[0:20, 21:40], np.r_[0:38, 39], np.r_[0:10, 30:40], np.r_[1, 0, 2:40], np.r_[0:40][::-1]],
    ids=["first", "middle", "last but one", "many", "two exchanged", "reversed"],
)
def test_a_sequence_is_whole_and_has_an_order(kept, uniform, proba):
    at, chance = plan_sequence(P, 40, uniform=uniform, random_state=0)
    accuracy_sequence(proba, at, Y[at], chance)
    with pytest.raises(InvalidParameterError, match="all samples that plan_sequence drew, in the order"):
        accuracy_sequence(proba, at[kept], Y[at[kept]], chance[kept])


def test_a_sequence_may_stop_at_any_draw_and_go_on_with_another_model():
    first, chances = plan_sequence(OTHER, 20, random_state=0)
    more, others = plan_sequence(P, 20, drawn=first, random_state=1)
    at, chance = np.append(first, more), np.append(chances, others)
    for m in (1, 19, 20, 21, 40):
        accuracy_sequence(P, at[:m], Y[at[:m]], chance[:m])
    without = np.r_[0:5, 6:40]
    with pytest.raises(InvalidParameterError, match="in the order"):
        accuracy_sequence(P, at[without], Y[at[without]], chance[without])


@pytest.mark.parametrize("kept", [np.r_[1:60], np.r_[0:59]], ids=["first", "last"])
def test_dropped_samples_of_another_models_plan_are_noticed(kept):
    accuracy(OTHER, AT, Y[AT], CHANCE)
    with pytest.raises(InvalidParameterError, match="all samples that plan drew"):
        accuracy(OTHER, AT[kept], Y[AT[kept]], CHANCE[kept])


@pytest.mark.parametrize("at", [replaced(AT, np.setdiff1d(np.arange(500), AT)[0]), AT[:1]], ids=["exchanged", "sure"])
def test_samples_that_were_not_drawn_are_warned_about(at):
    chance = CHANCE if len(at) == 60 else np.ones(1)
    with pytest.warns(BiasedAuditWarning, match="Nothing shows that chance drew"):
        accuracy(OTHER, at, Y[at], chance)


def test_all_samples_need_no_chance():
    at, chance = plan(P, 500, random_state=0)
    assert accuracy(P, at, Y[at], chance).low == accuracy(P, at, Y[at], chance).high
    at, chance = plan_sequence(P, 500, random_state=0)
    accuracy_sequence(P, at, Y[at], chance)


def test_a_plan_may_be_sorted_and_written_to_a_file():
    order = np.argsort(AT)
    text = ",".join(map(str, CHANCE[order].tolist()))
    accuracy(OTHER, AT[order], Y[AT[order]], np.array(text.split(","), dtype=float))


@pytest.mark.parametrize("chance", [np.roll(CHANCE, 1), CHANCE.astype(np.float32), CHANCE.round(6)])
def test_probabilities_that_are_not_those_of_the_plan_are_warned_about(chance):
    with pytest.warns(BiasedAuditWarning, match="Nothing shows that chance drew the 60 samples given to accuracy"):
        accuracy(OTHER, AT, Y[AT], chance)


@pytest.mark.parametrize(
    "call",
    [
        lambda at, chance: accuracy(P, at, Y[at], chance),
        lambda at, chance: certify(P, at, Y[at], chance),
        lambda at, chance: labels_left(P, at, Y[at], chance, [50]),
        lambda at, chance: errors(Y, at, Y[at], chance),
        lambda at, chance: mean_score(500, at, np.ones(60), chance),
    ],
    ids=["accuracy", "certify", "labels_left", "errors", "mean_score"],
)
@pytest.mark.parametrize("chosen", [np.arange(60), CONFIDENT[:60], MIXED], ids=["first", "most confident", "mixed"])
def test_samples_that_no_plan_drew_are_warned_about(call, chosen):
    with pytest.warns(BiasedAuditWarning, match="are no audit") as caught:
        call(chosen, np.full(60, 0.12))
    assert caught[0].filename == __file__


def test_a_random_sample_of_ones_own_is_an_audit_for_who_says_so():
    """Whoever says that still hears of samples that cannot be one."""
    at, chance = np.random.default_rng(0).choice(500, 60, replace=False), np.full(60, 60 / 500)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "Nothing shows that chance drew")
        assert accuracy(P, at, Y[at], chance).n_labels == 60
        assert certify(P, at, Y[at], chance).n_left >= 0
        with pytest.raises(BiasedAuditWarning, match="more confident than"):
            certify(P, CONFIDENT[:60], Y[CONFIDENT[:60]], chance)


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
