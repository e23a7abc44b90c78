"""Every strategy × every check."""

import inspect

import pytest
import torch

import skal.strategies
from skal.base import QueryStrategy
from skal.checks import (
    CHECKS,
    check_batch_size,
    check_duplicates,
    check_indices,
    check_n_jobs,
    check_nonfinite_outputs,
    check_one_class,
    check_pool_order,
    check_score_shape,
    check_scores,
    check_seed,
    check_untouched,
)
from skal.loss_prediction import LossPredictionClassifier

from ..support.learners import learner_of

# the checks' network is trained with cross-entropy, which NTKLookahead names
pytestmark = pytest.mark.filterwarnings("ignore::skal.exceptions.CrossEntropyWarning")

EXPORTED = [getattr(skal.strategies, name) for name in skal.strategies.__all__]
CLASSES = [thing for thing in EXPORTED if inspect.isclass(thing)]
FUNCTIONS = [thing for thing in EXPORTED if not inspect.isclass(thing)]

# Parameters to check a strategy with, where the defaults alone are not enough: more than one case, or arguments that it
# cannot do without. A strategy that is not listed is checked as ``Class()``.
CASES: dict[str, list[dict]] = {
    "ALBL": [{}, {"uniform": True, "reward": "paper"}],
    "BALD": [{"n_passes": 3}],
    "EPIG": [{"n_passes": 3}],
    "EGL": [{}, {"layers": "last"}],
    "Margin": [{}, {"on": "logits"}],
    "NTKLookahead": [
        {},
        {"kernel": "rbf"},
        {"criterion": "eer", "kernel": "logit", "n_features": None, "reference": "linearized"},
    ],
    "NPC": [{"n_candidates": 20}, {"search": "greedy"}, {"kernel": "logit", "n_features": 512, "n_candidates": 8}],
}
STRATEGIES = [[cls(**params) for params in CASES.get(cls.__name__, [{}])] for cls in CLASSES]
# how samples, networks and errors come does not depend on a strategy's parameters: its first case shows it
FOR_EVERY_CASE = [
    check_score_shape,
    check_scores,
    check_indices,
    check_duplicates,
    check_one_class,
    check_batch_size,
    check_n_jobs,
    check_pool_order,
    check_seed,
    check_nonfinite_outputs,
    check_untouched,
]
PAIRS = [
    pytest.param(strategy, check, id=f"{strategy!r}-{check.__name__}")
    for first, *others in STRATEGIES
    for strategy in (first, *others)
    for check in CHECKS
    if check in FOR_EVERY_CASE or strategy is first
]


@pytest.fixture(scope="module")
def learner_for(learner_and_pool):
    """The learner to check a strategy with: the plain one, or one that predicts its own loss."""
    learner = learner_and_pool[0]
    params = learner.estimator.get_params(deep=False)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = LossPredictionClassifier(**params).fit(learner.X_training, learner.y_training)
    predicts_loss = learner_of(net, learner.X_training, learner.y_training)
    return lambda cls: predicts_loss if cls is skal.strategies.LearningLoss else learner


@pytest.mark.parametrize(("strategy", "check"), PAIRS)
def test_strategy(strategy, check, learner_for, X_pool):
    check(strategy, learner_for(type(strategy)), X_pool[:16])  # few samples: the checks ask one by one, too


def test_every_check_runs_on_every_strategy():
    assert set(CASES) <= {cls.__name__ for cls in CLASSES}
    assert {(type(strategy), check) for strategy, check in (pair.values for pair in PAIRS)} == {
        (cls, check) for cls in CLASSES for check in CHECKS
    }


def test_every_strategy_is_a_class_and_all_but_the_stateful_ones_a_function():
    assert all(issubclass(cls, QueryStrategy) for cls in CLASSES)
    with_function = {function.strategy for function in FUNCTIONS}
    assert with_function == {cls for cls in CLASSES if cls.__name__ != "ALBL"}


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_exported_function_is_its_class(function, learner_for, X_pool):
    learner = learner_for(function.strategy)
    own = inspect.signature(function.strategy).parameters
    params = {"random_state": 0} if "random_state" in own else {}
    expected = function.strategy(**params)(learner, X_pool, 4)
    assert function(learner, X_pool, 4, **params).tolist() == expected.tolist()
    names = ["learner", "X_pool", "n_instances", *own]
    assert list(inspect.signature(function).parameters) == names
    assert function.__name__ in skal.strategies.__all__
