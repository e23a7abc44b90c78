"""Every strategy × every check."""

import inspect

import pytest
import torch

import skal.strategies
from skal.base import QueryStrategy
from skal.checks import CHECKS
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
    "BALD": [{}, {"n_passes": 3}],
    "EGL": [{}, {"layers": "last"}],
    "Margin": [{}, {"on": "logits"}],
    "NTKLookahead": [
        {},
        {"kernel": "rbf"},
        {"criterion": "eer", "kernel": "logit", "n_features": None, "reference": "linearized"},
    ],
    "NPC": [{}, {"search": "greedy"}, {"kernel": "logit", "n_features": 512, "n_candidates": 20}],
}
STRATEGIES = [cls(**params) for cls in CLASSES for params in CASES.get(cls.__name__, [{}])]


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


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_strategy(strategy, check, learner_for, X_pool):
    check(strategy, learner_for(type(strategy)), X_pool)


def test_every_case_belongs_to_a_strategy():
    assert set(CASES) <= {cls.__name__ for cls in CLASSES}


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
