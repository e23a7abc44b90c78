"""What every strategy keeps, for numbers and for several labels as for classes: see skal.checks."""

import pytest

from skal import checks, strategies

from .test_multilabel import ABLE as FOR_LABELS
from .test_multilabel import X as X_LABELS
from .test_multilabel import learner_for as labels_learner
from .test_regression import ABLE as FOR_NUMBERS
from .test_regression import X as X_NUMBERS
from .test_regression import learner_for as numbers_learner

# what is about classes, and why
LEFT_OUT = {
    "check_nll_loss": "a softmax at the end is of one class each",
    "check_no_network": "it fits a logistic regression",
    "check_one_class": "it gives every sample the same class",
    "check_probabilities": "cross-entropy is of one class each",
    "check_search": "it searches with labels as they are: a loss of several labels wants them as floats",
}
CHECKS = [check for check in checks.CHECKS if check.__name__ not in LEFT_OUT]
LEARNERS = {
    "numbers": lambda: (numbers_learner("two outputs"), X_NUMBERS[12:]),
    "several labels": lambda: (labels_learner("net"), X_LABELS[20:]),
}
CASES = [(kind, name) for kind in LEARNERS for name in (FOR_LABELS if "labels" in kind else FOR_NUMBERS)]


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_the_checks(kind, name):
    learner, X_pool = LEARNERS[kind]()
    for check in CHECKS:
        check(getattr(strategies, name)(), learner, X_pool)
