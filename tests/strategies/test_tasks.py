"""What every strategy keeps, for numbers and for several labels as for classes: see skal.checks."""

import pytest

from skal import checks, strategies

from .test_multilabel import ABLE as FOR_LABELS
from .test_multilabel import X as X_LABELS
from .test_multilabel import learner_for as labels_learner
from .test_regression import ABLE as FOR_NUMBERS
from .test_regression import X as X_NUMBERS
from .test_regression import learner_for as numbers_learner

CHECKS = [
    checks.check_batch_size,
    checks.check_pool_order,
    checks.check_train_mode,
    checks.check_duplicates,
    checks.check_seed,
    checks.check_untouched,
]
LEARNERS = {
    "numbers": lambda: (numbers_learner("two outputs"), X_NUMBERS[12:]),
    "several labels": lambda: (labels_learner("net"), X_LABELS[20:]),
}
CASES = [(kind, name) for kind in LEARNERS for name in (FOR_LABELS if "labels" in kind else FOR_NUMBERS)]


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_invariances(kind, name):
    learner, X_pool = LEARNERS[kind]()
    for check in CHECKS:
        check(getattr(strategies, name)(), learner, X_pool)
