"""Every tensor that skal makes is made on the network's device: read from the source, and run on a second device.

The device is one that the processor plays: its tensors have values and mix with nothing. So every strategy gives there
what it gives on the processor, to the last digit. Without double precision it plays Apple's devices.
"""

import ast
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

import skal
from benchmarks._device_cases import CASES, N_PICKS, make_case, to_device
from benchmarks.devices import Transfers, growth
from skal import LinearizedLearner
from skal.checks import make_learner
from skal.diagnostics import kernel_report_of
from skal.strategies import BADGE, EGL, NPC, DynamicAL, Margin, NTKLookahead, UHerding
from skal.tangent import gradient_scores, loss_gradient, tangent_features, tangent_kernel

from .support.learners import learner_of
from .support.second_device import DEVICE, SecondDevice

SOURCE = Path(skal.__file__).parent
# layers are made on the CPU and moved by skorch, data sets are files, and checks make pools on the host
ELSEWHERE = {"nets", "datasets", "checks"}
FACTORIES = {
    *("arange", "as_tensor", "empty", "eye", "full", "linspace", "ones", "rand", "randint", "randn", "randperm"),
    *("tensor", "zeros"),
}


def factory_calls_without_device(source):
    """Line numbers of calls such as ``torch.zeros(n)`` that name no device and whose result is not moved at once."""
    tree = ast.parse(source)
    moved = set()
    for node in ast.walk(tree):
        # torch.as_tensor(x).double().to(device, dtype): all that the last call stands on is moved
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "to":
            inner = node.func.value
            while isinstance(inner, (ast.Call, ast.Attribute)):
                moved.add(id(inner))
                inner = inner.func if isinstance(inner, ast.Call) else inner.value
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "torch"
        and node.func.attr in FACTORIES
        and not any(keyword.arg == "device" for keyword in node.keywords)
        and id(node) not in moved
    ]


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(SOURCE.rglob("*.py")) if path.relative_to(SOURCE).parts[0] not in ELSEWHERE],
    ids=lambda path: path.relative_to(SOURCE).as_posix(),
)
def test_factory_calls_name_the_device(path):
    assert factory_calls_without_device(path.read_text(encoding="utf-8")) == []


def test_the_reader_of_the_source_sees_what_it_should():
    assert factory_calls_without_device("a = torch.zeros(3)\nb = torch.eye(2, dtype=x)") == [1, 2]
    assert factory_calls_without_device("a = torch.zeros(3, device=d)\nb = torch.as_tensor(x).cos().to(d)") == []


N_POOL = 60
SLOW = {"NTKLookahead, emoc, entk"}  # which takes as long as ten others
# how often the pool crosses where it does so more than once: for predictions and for gradients, for each of two
# networks, and in products of parts of the pool with parts of the pool; leaves of a forest go there beside the samples
CROSSINGS = {"UHerding, dynamics": 2, "UHerding, frozen module": 2, "NTKLookahead, exact": 3}


@cache
def answer_of_the_processor(name):
    strategy, learner, X_pool = make_case(CASES[name], "cpu", N_POOL)
    return strategy.select(learner, X_pool, N_PICKS)


def answer_there(name, **device):
    with SecondDevice(**device):
        strategy, learner, X_pool = make_case(CASES[name], DEVICE, N_POOL)
        answer = strategy.select(learner, X_pool, N_PICKS)
        assert {p.device.type for p in learner.estimator.module_.parameters()} == {DEVICE}
    return answer


@pytest.mark.parametrize("name", [name for name in CASES if name not in SLOW])
def test_strategies_answer_there_as_on_the_processor(name):
    for found, expected in zip(answer_there(name), answer_of_the_processor(name), strict=True):
        np.testing.assert_array_equal(found, expected)


WITHOUT_DOUBLES = (
    *("Margin", "LearningLoss", "CoreSet", "BADGE", "DropQuery", "MaxHerding, laplace", "UHerding", "UHerding, forest"),
    *("ProbCover", "ALBL", "BALD, joint", "EGL", "DynamicAL, greedy", "NTKLookahead", "NTKLookahead, rbf", "MaxDet"),
    *("PredictiveStd, dropout", "NPC, greedy", "auto, numbers", "BAIT, several labels", "CoreSet, frozen module"),
)


@pytest.mark.parametrize("name", WITHOUT_DOUBLES)
def test_strategies_answer_for_a_device_without_double_precision(name):
    """A copy on the processor is asked, and the network stays where it is."""
    for found, expected in zip(answer_there(name, doubles=False), answer_of_the_processor(name), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_functions_of_a_module_work_without_double_precision():
    learner, X_pool = make_learner()
    module, X, labels = learner.estimator.module_, X_pool[:10], [0] * 10

    def answers(module):
        return [
            tangent_kernel(module, X),
            tangent_features(module, X, n_features=16),
            *gradient_scores(module, X, labels),
            *loss_gradient(module, X, labels).values(),
            *kernel_report_of(module, X).values(),
        ]

    expected = answers(module)
    with SecondDevice(doubles=False):
        found = answers(to_device(learner.estimator, DEVICE).module_)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_linearized_learner_answers_without_double_precision():
    learner, X_pool = make_learner()

    def answers(net):
        linearized = LinearizedLearner(net, NTKLookahead(random_state=0))
        linearized.X_training, linearized.y_training = learner.X_training, learner.y_training
        return linearized.query(X_pool, 3)[0], linearized.predict_proba(X_pool)

    expected = answers(learner.estimator)
    with SecondDevice(doubles=False):
        found = answers(to_device(learner.estimator, DEVICE))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_features_from_a_device_without_double_precision():
    learner, X_pool = make_learner()
    expected = UHerding(features=lambda X: torch.as_tensor(X).flatten(1), random_state=0).select(learner, X_pool, 3)
    with SecondDevice(doubles=False):
        there = UHerding(features=lambda X: torch.as_tensor(X).flatten(1).to(DEVICE), random_state=0)
        found = there.select(learner, X_pool, 3)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("bound", [None, 10**7])
@pytest.mark.parametrize("name", [name for name in CASES if name not in SLOW])
def test_the_pool_crosses_once(name, bound):
    """Nothing of the pool's size goes there twice, or comes back and goes there again; the exceptions are named."""
    with SecondDevice(), skal.config_context(max_memory=bound):
        crossed = growth(name, Transfers, DEVICE, (40, 60))["to device"]
    sample = make_case(CASES[name], "cpu", 1)[2][0].nbytes
    assert crossed < CROSSINGS.get(name, 1) * sample + 0.7 * sample


def test_the_device_refuses_what_a_gpu_refuses():
    with SecondDevice():
        there = torch.zeros(3, device=DEVICE)
        with pytest.raises(RuntimeError, match="two devices"):
            there + torch.zeros(3)
        assert (there + 1).tolist() == [1, 1, 1]
        assert there.double().dtype == torch.float64
    with SecondDevice(doubles=False), pytest.raises(TypeError, match="float64"):
        torch.zeros(3, device=DEVICE).double()
