"""Every tensor that skal makes is made on the network's device: read from the source, and run on a second device.

The device is one that the processor plays: its tensors have values and mix with nothing. So every strategy gives there
what it gives on the processor, to the last digit. Without double precision it plays Apple's devices.
"""

import ast
import gc
import pickle
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from skorch import NeuralNetClassifier
from torch import nn

import skal
from benchmarks._device_cases import CASES, N_PICKS, make_case, to_device
from benchmarks._second_device import DEVICE, SecondDevice, There
from benchmarks.devices import Transfers, growth, whole_crossings
from skal import LinearizedLearner, config_context
from skal.base import ScoreStrategy
from skal.checks import make_learner
from skal.diagnostics import kernel_report_of
from skal.exceptions import UnsupportedLayerError
from skal.features import Cache
from skal.nets import MLP
from skal.semi_supervised import FixMatchClassifier
from skal.strategies import BADGE, EGL, Margin, NTKLookahead, UHerding
from skal.tangent import gradient_scores, loss_gradient, tangent_features, tangent_kernel

from .support.learners import learner_of

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


def answer_on(device, name):
    strategy, learner, X_pool = make_case(CASES[name], device, N_POOL)
    answer = strategy.select(learner, X_pool, N_PICKS)
    assert {p.device.type for p in learner.estimator.module_.parameters()} == {device}
    return answer


@cache
def answer_of_the_processor(name):
    return answer_on("cpu", name)


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10)


@pytest.mark.parametrize("name", [name for name in CASES if name not in SLOW])
def test_strategies_answer_there_as_on_the_processor(name):
    with SecondDevice():
        assert_same(answer_on(DEVICE, name), answer_of_the_processor(name))


CROSS_ONCE = (
    *("Margin", "LearningLoss", "CoreSet", "BADGE", "ClusterMargin", "DropQuery", "BAIT", "MaxHerding", "UHerding"),
    *("TypiClust", "ProbCover", "ALBL", "BALD, joint", "EPIG", "EGL", "DynamicAL, greedy", "NTKLookahead"),
    *("NTKLookahead, rbf", "LCMD", "MaxDet", "NPC", "BADGE, numbers", "PredictiveStd", "auto, several labels"),
)


def crossings(name):
    """How often the bytes of each more sample of the pool go there; what does not grow with it is left out."""
    sample = make_case(CASES[name], "cpu", 1)[2][0].nbytes
    with SecondDevice():
        return growth(name, Transfers, DEVICE, (200, 240))["to device"] / sample


@pytest.mark.parametrize("name", CROSS_ONCE)
def test_the_pool_crosses_once(name):
    """Nothing of its size goes there twice, or comes back and goes there again."""
    assert 0.9 < crossings(name) < 2


@pytest.mark.parametrize("name", ["Margin", "CoreSet", "BADGE"])
def test_the_pool_crosses_once_with_little_memory(name):
    """So little that the features of all do not fit."""
    with SecondDevice():
        assert 0.9 < whole_crossings(name, DEVICE, 600, max_memory=300_000) < 2


def test_strategies_that_read_features_again_pass_the_pool_again_with_little_memory():
    with SecondDevice():
        assert whole_crossings("MaxHerding", DEVICE, 600, max_memory=None) < 2
        assert whole_crossings("MaxHerding", DEVICE, 600, max_memory=300_000) > 2


@pytest.mark.parametrize("name", ["UHerding, dynamics", "UHerding, frozen module", "NTKLookahead, exact"])
def test_later_passes_find_the_pool_there(name):
    """Predictions and gradients, two networks, or features, kernel and gradients."""
    assert 0.9 < crossings(name) < 1.2


def test_samples_that_do_not_fit_cross_for_every_pass():
    """An eighth of this bound holds a quarter of the pool."""
    with SecondDevice():
        assert whole_crossings("UHerding, frozen module", DEVICE, 600, max_memory=None) < 1.2
        assert 1.6 < whole_crossings("UHerding, frozen module", DEVICE, 600, max_memory=307_200) < 2


def lie_there(shape):
    """Whether any tensor of this shape lies on the device."""
    gc.collect()
    return any(type(thing) is There and thing.shape == shape for thing in gc.get_objects())


class Asks(ScoreStrategy):
    """Passes the pool, and calls a function with the context."""

    needs_network = True

    def __init__(self, look):
        self.look = look

    def _score(self, context):
        outputs = context.outputs()
        self.look(context)
        return outputs.double().cpu().numpy()[:, 0]


def test_nothing_stays_there_after_a_query():
    held = []

    def look(context):
        held.append((context, context.pool.take(range(3))))
        assert lie_there(X_pool.shape)

    def fail(context):
        look(context)
        raise ZeroDivisionError

    with SecondDevice():
        _, learner, X_pool = make_case(CASES["Margin"], DEVICE, N_POOL)
        Asks(look).select(learner, X_pool, 3)
        assert not lie_there(X_pool.shape)
        with pytest.raises(ZeroDivisionError) as error:
            Asks(fail).select(learner, X_pool, 3)
        assert not lie_there(X_pool.shape)
    assert len(held) == 2
    assert error.traceback


def test_the_processor_keeps_no_copy():
    def look(context):
        assert context.pool.there is None

    _, learner, X_pool = make_case(CASES["Margin"], "cpu", N_POOL)
    Asks(look).select(learner, X_pool, 3)


class Doubles(nn.Module):
    """A module that writes into its input, which may be a dict."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(5, 3)

    def forward(self, x, z=None):
        return self.last(x.mul_(2)) + (0 if z is None else z.add_(1))


@pytest.mark.parametrize("max_memory", [None, 8000, 400, 8])
@pytest.mark.parametrize("candidates", [None, np.random.default_rng(1).permutation(90)[:70]])
@pytest.mark.parametrize("kind", ["array", "floats of another length", "dict"])
def test_any_part_of_the_pool_arrives_as_it_is(kind, candidates, max_memory):
    """From passes over parts that overlap, in batches of any size, with room for all samples, some and none."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(100, 5)).astype(np.float64 if kind.startswith("floats") else np.float32)
    X = {"x": X, "z": generator.integers(9, size=(100, 3))} if kind == "dict" else X

    def rows(numbers):
        return {key: part[numbers] for key, part in X.items()} if kind == "dict" else X[numbers]

    def look(context):
        network, pool = context.network, context.pool
        numbers = 10 + (np.arange(90) if candidates is None else candidates)
        for _ in range(20):
            positions = generator.permutation(len(pool))[: generator.integers(1, len(pool))]
            batches = list(network.batches(pool.take(positions), int(generator.integers(1, 30))))
            parts = [batch if kind == "dict" else {"": batch} for batch in batches]
            wanted = rows(numbers[positions])
            for key, values in wanted.items() if kind == "dict" else [("", wanted)]:
                found = torch.cat([part[key] for part in parts]).cpu().numpy()
                np.testing.assert_array_equal(found, values.astype(found.dtype))
            for batch in batches:
                network.output(batch)

    net = NeuralNetClassifier(Doubles(), criterion=nn.CrossEntropyLoss, device=None, verbose=0).initialize()
    learner = learner_of(net, rows(np.arange(10)), np.arange(10) % 3)
    pool = rows(np.arange(10, 100))
    expected = Asks(lambda context: None).select(learner, pool, 3, candidates=candidates)
    with SecondDevice(), config_context(max_memory=max_memory):
        net.module_.to(DEVICE)
        assert_same(Asks(look).select(learner, pool, 3, candidates=candidates), expected)


def test_what_is_sent_to_workers_is_not_there():
    def look(context):
        assert context.pool.there is not None
        assert pickle.loads(pickle.dumps(context.pool)).there is None

    with SecondDevice():
        _, learner, X_pool = make_case(CASES["Margin"], DEVICE, N_POOL)
        Asks(look).select(learner, X_pool, 3)


class Sums(nn.Module):
    """A module that takes samples of any length."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(1, 3)

    def forward(self, x):
        return self.last(x.sum(1, keepdim=True))


def cut_zeros(X):
    """As long as the longest sample of the chunk."""
    return X[:, : np.flatnonzero(X.any(0))[-1] + 1]


def test_chunks_of_several_lengths_cross_for_every_pass():
    X, y = np.tri(50, dtype=np.float32), np.arange(50) % 3
    net = NeuralNetClassifier(Sums(), criterion=nn.CrossEntropyLoss, device=None, verbose=0).initialize()
    learner = learner_of(make_pipeline(FunctionTransformer(cut_zeros).fit(X), net), X[:10], y[:10])

    def answers():
        found = []
        for size in (7, 20):
            with config_context(batch_size=size):
                found += Asks(lambda context: context.network.all_outputs(context.pool, 3)).select(learner, X[10:], 3)
        return found

    expected = answers()
    with SecondDevice():
        net.module_.to(DEVICE)
        assert_same(answers(), expected)


def test_samples_before_the_pool_are_another_container():
    def look(context):
        both = context.pool.take(range(50, 55)).before(context.pool)
        found = torch.cat(list(context.network.batches(both, 16))).cpu().numpy()
        np.testing.assert_array_equal(found, np.concatenate([X_pool[50:55], X_pool]))

    with SecondDevice():
        _, learner, X_pool = make_case(CASES["Margin"], DEVICE, N_POOL)
        Asks(look).select(learner, X_pool, 3)


WITHOUT_DOUBLES = (
    *("Margin", "LearningLoss", "CoreSet", "BADGE", "DropQuery", "MaxHerding, laplace", "UHerding", "UHerding, forest"),
    *("ProbCover", "ALBL", "BALD, joint", "EGL", "DynamicAL, greedy", "NTKLookahead", "NTKLookahead, rbf", "MaxDet"),
    *("PredictiveStd, dropout", "NPC, greedy", "auto, numbers", "BAIT, several labels", "CoreSet, frozen module"),
)


@pytest.mark.parametrize("name", WITHOUT_DOUBLES)
def test_strategies_answer_for_a_device_without_double_precision(name):
    """A copy on the processor is asked, and the network stays where it is."""
    with SecondDevice(doubles=False):
        assert_same(answer_on(DEVICE, name), answer_of_the_processor(name))


def test_features_that_a_learner_keeps_for_a_device_without_double_precision():
    name = "UHerding, frozen module"
    with SecondDevice(doubles=False):
        strategy, learner, X_pool = make_case(CASES[name], DEVICE, N_POOL)
        learner.cache = Cache()
        for _ in range(2):  # computed, and taken from the cache
            assert_same(strategy.select(learner, X_pool, N_PICKS), answer_of_the_processor(name))


class Spread(nn.Module):
    """A body on one device, and a head on another."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.body(x).relu().to(self.head.weight.device))


@pytest.mark.parametrize("doubles", [True, False])
@pytest.mark.parametrize("part", ["body", "head"])
def test_a_module_on_two_devices(part, doubles):
    X, y = np.random.default_rng(0).normal(size=(30, 5)).astype(np.float32), np.arange(30) % 3

    def make_spread():
        torch.manual_seed(0)
        net = NeuralNetClassifier(Spread(), criterion=nn.CrossEntropyLoss, device=None, verbose=0).initialize()
        return learner_of(net, X[:10], y[:10])

    strategies = [Margin(), BADGE(random_state=0), UHerding(random_state=0)]
    expected = [strategy.select(make_spread(), X[10:], 3) for strategy in strategies]
    with SecondDevice(doubles):
        there = make_spread()
        there.estimator.module_.get_submodule(part).to(DEVICE)
        for strategy, answer in zip(strategies, expected, strict=True):
            assert_same(strategy.select(there, X[10:], 3), answer)
        if doubles:
            with pytest.raises(UnsupportedLayerError, match="must live on one device"):
                EGL().select(there, X[10:], 3)
        else:
            EGL().select(there, X[10:], 3)


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
    assert_same(found, expected)


def test_a_linearized_learner_answers_without_double_precision():
    learner, X_pool = make_learner()

    def answers(net):
        linearized = LinearizedLearner(net, NTKLookahead(random_state=0))
        linearized.X_training, linearized.y_training = learner.X_training, learner.y_training
        return linearized.query(X_pool, 3)[0], linearized.predict_proba(X_pool)

    expected = answers(learner.estimator)
    with SecondDevice(doubles=False):
        found = answers(to_device(learner.estimator, DEVICE))
    assert_same(found, expected)


def test_features_from_a_device_without_double_precision():
    learner, X_pool = make_learner()
    expected = UHerding(features=lambda X: torch.as_tensor(X).flatten(1), random_state=0).select(learner, X_pool, 3)
    with SecondDevice(doubles=False):
        there = UHerding(features=lambda X: torch.as_tensor(X).flatten(1).to(DEVICE), random_state=0)
        found = there.select(learner, X_pool, 3)
    assert_same(found, expected)


def test_labels_are_refined_for_a_device_without_double_precision():
    X, y = np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32), np.where(np.arange(60) < 20, 1, -1)
    y[:10] = 0

    def history_on(device):
        torch.manual_seed(0)
        settings = {"max_epochs": 2, "batch_size": 10, "iterations_per_epoch": 3, "verbose": 0, "threshold": 0.5}
        views = (lambda x: x, lambda x: x + 1)
        net = FixMatchClassifier(MLP(8, 2), darp="labels", darp_warmup=0.0, augment=views, device=device, **settings)
        return net.fit(X, y).history[:, ("train_loss", "unlabelled_loss", "darp_residual")]

    expected = history_on("cpu")
    with SecondDevice(doubles=False):
        np.testing.assert_allclose(history_on(DEVICE), expected, rtol=1e-6)


def test_the_device_refuses_what_a_gpu_refuses():
    with SecondDevice():
        there = torch.zeros(3, device=DEVICE)
        with pytest.raises(RuntimeError, match="two devices"):
            there + torch.zeros(3)
        assert (there + 1).tolist() == [1, 1, 1]
        assert there.double().dtype == torch.float64
    with SecondDevice(doubles=False), pytest.raises(TypeError, match="float64"):
        torch.zeros(3, device=DEVICE).double()
