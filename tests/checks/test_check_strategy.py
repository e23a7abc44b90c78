"""The list of checks, and ``check_strategy``, which runs them all."""

import numpy as np
import pytest

import skal.checks
from skal.checks import (
    CHECKS,
    CheckFailure,
    check_drawing_dataset,
    check_interrupt,
    check_strategy,
    check_untouched,
    make_learner,
)
from skal.checks._state import snapshot
from skal.strategies import Entropy

from .strategies import ByPosition, FarthestFirst, RandomBatch
from .test_answers import BROKEN as ANSWERS
from .test_errors import BROKEN as ERRORS
from .test_inputs import BROKEN as INPUTS
from .test_parameters import BROKEN as PARAMETERS


def test_every_check_is_exported():
    written = {name for name in dir(skal.checks) if name.startswith("check_")} - {"check_strategy"}
    assert {check.__name__ for check in CHECKS} == written
    assert written <= set(skal.checks.__all__)
    assert all(check.__doc__ for check in CHECKS)


def test_every_check_has_a_broken_strategy():
    caught = {check for check, _, _ in ANSWERS + ERRORS + INPUTS + PARAMETERS}
    assert caught | {check_drawing_dataset, check_interrupt, check_untouched} == set(CHECKS)


@pytest.mark.parametrize("strategy", [FarthestFirst(), RandomBatch()], ids=repr)
def test_good_strategies_from_elsewhere_pass(strategy):
    check_strategy(strategy)


def test_the_learner_can_be_ones_own(flat_learner, flat_data):
    check_strategy(Entropy(), flat_learner, flat_data[0][15:])


def test_check_strategy_names_every_failing_check():
    with pytest.raises(CheckFailure, match=r"fails \d of \d+ checks") as caught:
        check_strategy(ByPosition())
    failed = {line.split(":")[0] for line in str(caught.value).splitlines()[1:]}
    assert failed == {"check_pool_order", "check_duplicates"}


def test_check_strategy_takes_learner_and_pool_together(learner, X_pool):
    with pytest.raises(CheckFailure, match="both or neither"):
        check_strategy(Entropy(), learner)
    with pytest.raises(CheckFailure, match="both or neither"):
        check_strategy(Entropy(), X_pool=X_pool)


def test_checks_leave_the_learner_as_it_was():
    learner, X_pool = make_learner()
    before, pool = snapshot(learner), X_pool.copy()
    check_strategy(Entropy(), learner, X_pool)
    after = snapshot(learner)
    assert [name for name in before if before[name] != after[name]] == []
    assert np.array_equal(X_pool, pool)


def test_a_wrong_shape_is_the_first_thing_said():
    class TwoColumns(Entropy):
        def _score(self, context):
            return np.stack([super()._score(context)] * 2, axis=1)

    with pytest.raises(CheckFailure, match=r"fails 1 of \d+ checks:\ncheck_score_shape: .*Got shape \(40, 2\)"):
        check_strategy(TwoColumns())
