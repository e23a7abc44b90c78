"""Every tensor that skal makes is made on the network's device: read from the source, and run on fake tensors.

torch's fake tensors have a device and a shape, but no values, and refuse operations on two devices. Their device is
"meta": a build of torch without CUDA can neither slice nor differentiate fake tensors on "cuda". What is read from the
device is made up: floats are 1, integers 0, truths True.
"""

import ast
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

import skal
from skal._core.losses import loss_of
from skal._core.outputs import to_logits, to_proba
from skal._lookahead.variance import logit_variance, newton_importance
from skal.checks import make_learner
from skal.context import QueryContext, Samples
from skal.exceptions import NonFiniteError
from skal.nets import SquaredLoss
from skal.strategies import BALD, EGL, DynamicAL, NTKLookahead
from skal.strategies._badge import kmeans_plus_plus, nearest_masses
from skal.strategies._coreset import furthest_first
from skal.strategies._information import predictive_information
from skal.strategies._kmeans import nearest_centres
from skal.strategies._similarity import nearest_distances, similarity_to
from skal.tangent._kernels import kernel_diagonal, kernel_matrix

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


MODE = FakeTensorMode(allow_non_fake_inputs=True)


def made_up(tensor, force=False):
    """Values for an array of this shape; a square matrix is positive definite."""
    values = np.full(tuple(tensor.shape), 0.25)
    if tensor.ndim == 2:
        values += np.eye(*values.shape)
    return values


class Host(TorchDispatchMode):
    """What a program reads from a device without values."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, func.overloadpacket.__name__
        first = args[0] if args and isinstance(args[0], FakeTensor) else None
        if first is None:
            return func(*args, **kwargs)
        if name == "_local_scalar_dense":
            return True if first.dtype == torch.bool else first.dtype.is_floating_point + 0
        if name in ("equal", "allclose"):
            return True
        if name == "_to_copy" and torch.device(kwargs.get("device") or first.device).type == "cpu" != first.device.type:
            with _disable_current_modes():
                return torch.tensor(made_up(first), dtype=kwargs.get("dtype") or first.dtype)
        if name == "nonzero":  # as if all were
            return torch.zeros(first.numel(), first.ndim, dtype=torch.int64, device=first.device)
        if name == "index":
            places = [
                torch.zeros(len(x), dtype=torch.int64, device=x.device)
                if isinstance(x, Tensor) and x.dtype == torch.bool
                else x
                for x in args[1]
            ]
            return func(first, places)
        return func(*args, **kwargs)


def on_fake_device():
    """A learner whose network lives on the device, and a pool on the host."""
    learner, X_pool = make_learner()
    learner.estimator.set_params(criterion=SquaredLoss).initialize_criterion()
    with MODE:
        for layer in learner.estimator.module_.modules():
            for name, p in layer._parameters.items():
                layer._parameters[name] = nn.Parameter(torch.empty(p.shape, device="meta"))
            for name, buffer in layer._buffers.items():
                layer._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype, device="meta")
    return learner, X_pool


STRATEGIES = [
    BALD(random_state=0),
    BALD(batch="joint", random_state=0),
    EGL(),
    EGL(layers="last"),
    DynamicAL(),
    DynamicAL(batch="greedy"),
    NTKLookahead(criterion="mlmoc", batch="top", kernel="logit"),
    NTKLookahead(criterion="mlmoc", batch="top", retraining="direct"),
    *(
        NTKLookahead(criterion="mlmoc", kernel=kernel, n_features=n_features, batch=batch, evaluation=evaluation)
        for kernel, n_features in (("pntk", "auto"), ("pntk", 64), ("pntk", None), ("trace", None))
        for batch, evaluation in (("top", "auto"), ("greedy", "auto"), ("top", 20))
    ),
    *(NTKLookahead(criterion=criterion, batch="greedy") for criterion in ("emoc", "eer")),
    NTKLookahead(criterion="emoc", kernel="entk", batch="greedy"),
]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_strategies_stay_on_the_device(strategy, monkeypatch):
    monkeypatch.setattr(FakeTensor, "numpy", made_up)
    learner, X_pool = on_fake_device()
    # the last thing that is said of scores, which are made of made-up numbers
    with warnings.catch_warnings(), MODE, Host(), suppress(NonFiniteError):
        warnings.simplefilter("ignore")
        strategy.select(learner, X_pool, 3)


@pytest.mark.parametrize("kind", ["pntk", "trace", "entk"])
def test_kernels_stay_on_the_device(kind):
    """What NPC computes there; eigenvalues are found on the host."""
    learner, X_pool = on_fake_device()
    samples = Samples(X_pool)
    with MODE, Host():
        engine = QueryContext(learner, X_pool).engine
        assert kernel_matrix(engine, samples, None, kind).is_meta
        assert kernel_matrix(engine, samples.take(range(5)), samples, kind).is_meta
        assert kernel_diagonal(engine, samples, "pntk").is_meta


def test_fake_tensors_refuse_two_devices():
    with MODE, pytest.raises(RuntimeError, match="two devices"):
        torch.zeros(3, device="meta") + torch.zeros(3)


def _badge(points):
    kmeans_plus_plus(points, points, 1, np.random.default_rng(0))
    nearest_masses(points, points, np.array([0, 1]), points[:, 0])


def _coreset(points):
    furthest_first(points, iter([points[:2]]), 1)  # with the second pick it looks for a number that it never reads
    furthest_first(points, iter([]), 1)


def _coverage(points):
    for kernel in ("rbf", "laplace", "tophat", "cosine"):
        similarity_to(points, kernel, 1.0)(points)
    nearest_distances(points)


def _losses(logits):
    labels = torch.zeros(len(logits), dtype=torch.int64, device="meta")
    for criterion in (
        nn.CrossEntropyLoss(weight=torch.ones(4), label_smoothing=0.1),
        nn.CrossEntropyLoss(weight=torch.ones(4), ignore_index=2),
        nn.NLLLoss(weight=torch.ones(4)),
        SquaredLoss(),
    ):
        loss = loss_of(criterion.to("meta"))
        loss.gradient(logits, labels)
        loss.lengths(logits)


def _outputs(logits):
    """What Margin, Entropy, LeastConfidence and LearningLoss read of outputs on the device."""
    to_logits(logits, nn.CrossEntropyLoss())
    to_logits(torch.softmax(logits, 1), nn.NLLLoss())
    to_logits(logits[:, 0], nn.BCEWithLogitsLoss())
    to_proba(logits, None)


def _clusters(points):
    nearest_centres(points, points[:3])
    predictive_information(torch.softmax(points, 1).expand(2, 9, 4), torch.softmax(points, 1).expand(2, 9, 4))


def _variance(logits):
    newton_importance(torch.softmax(logits, 1), logit_variance(logits), 0.01, 1.0)


PURE = {
    "losses": _losses,
    "variance": _variance,
    "outputs": _outputs,
    "clusters and information": _clusters,
    "BADGE": _badge,
    "CoreSet": _coreset,
    "coverage": _coverage,
}


# a fake tensor has no data: the host's copies of it are read all the same
@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
@pytest.mark.parametrize("function", PURE.values(), ids=PURE.keys())
def test_pure_functions_of_what_depends_on_values_stay_on_the_device(function):
    """A choice by values cannot be made without any; what it is made with can be computed."""
    with MODE, Host():
        function(torch.zeros(9, 4, dtype=torch.float64, device="meta"))
