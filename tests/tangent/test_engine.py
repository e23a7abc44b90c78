"""How the engine runs: it leaves the module as it was, stays within its memory, and goes on when memory runs out."""

import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

from skal.context import Samples, TangentEngine
from skal.exceptions import NetworkError
from skal.tangent import gradient_scores, loss_gradient, tangent_features, tangent_kernel

from ..support.networks import build, unsupported

PUBLIC = {
    "scores": lambda module, X, **kw: gradient_scores(module, X, None, **kw)[0],
    "kernel": lambda module, X, **kw: tangent_kernel(module, X, kind="trace", **kw),
    "last": lambda module, X, **kw: tangent_kernel(module, X, layers="last", **kw),
    "features": lambda module, X, **kw: tangent_features(module, X, n_features=16, **kw),
    "exact": lambda module, X, **kw: tangent_features(module, X, n_features=None, **kw),
    "gradient": lambda module, X, **kw: loss_gradient(module, X, None, batch_size=kw.get("batch_size", 256)),
}


def state(module):
    """Everything that a call must leave as it was, in a form that compares bit by bit."""
    return {
        "parameters": {name: (id(p), p.detach().numpy().tobytes()) for name, p in module.named_parameters()},
        "requires_grad": {name: p.requires_grad for name, p in module.named_parameters()},
        "grad": {name: None if p.grad is None else p.grad.numpy().tobytes() for name, p in module.named_parameters()},
        "buffers": {name: (id(b), b.numpy().tobytes()) for name, b in module.named_buffers()},
        "flags": [layer.training for layer in module.modules()],
        "attributes": [sorted(vars(layer)) for layer in module.modules()],
        "hooks": [
            [len(hooks) for key, hooks in sorted(vars(layer).items()) if key.endswith("_hooks")]
            for layer in module.modules()
        ],
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": repr(np.random.get_state()),
        "python": random.getstate(),
        "grad mode": torch.is_grad_enabled(),
    }


def prepared(name):
    """A module in a mixed state: some layers in eval mode, gradients on some parameters."""
    module, X, y = build(name)
    for number, layer in enumerate(module.modules()):
        layer.training = number % 3 != 1
    first, *_ = module.parameters()
    first.grad = torch.randn_like(first)
    return module, X, y


@pytest.mark.parametrize("function", PUBLIC)
@pytest.mark.parametrize("backend", ["auto", "func", "backpack"])
@pytest.mark.parametrize("name", ["vgg", "torchvision_style", "transformer_encoder", "text_gru"])
def test_the_module_is_left_as_it_was(name, backend, function):
    backend = "auto" if unsupported(backend, name) else backend
    module, X, _ = prepared(name)
    before = state(module)
    PUBLIC[function](module, X, backend=backend, batch_size=2)
    assert state(module) == before


class Failing(nn.Module):
    """Raises, or returns NaN, once it sees a marked sample."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.register_buffer("calls", torch.zeros(()))
        self.body = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(), nn.Linear(5, 3))

    def forward(self, x):
        self.calls += 1
        if self.how == "raise" and x.max() > 10:
            raise ZeroDivisionError("marked")
        return self.body(x * torch.where(x > 10, torch.nan, 1.0))


@pytest.mark.parametrize("marked", [0, 6])
@pytest.mark.parametrize("how", ["raise", "nan"])
@pytest.mark.parametrize("function", PUBLIC)
def test_the_module_is_left_as_it_was_when_something_fails(function, how, marked):
    torch.manual_seed(0)
    module, X = Failing(how), torch.randn(8, 4)
    X[marked] = 11
    module.body[1].eval()
    before = state(module)
    with pytest.raises((NetworkError, ValueError)):
        PUBLIC[function](module, X, batch_size=3)
    assert state(module) == before
    error = None
    try:
        PUBLIC[function](module, X, batch_size=3)
    except (NetworkError, ValueError) as caught:
        error = caught  # keeps the frames alive, as a notebook does
        assert state(module) == before
    assert error is not None


def test_nothing_leaks_between_two_chunks():
    """Whoever takes the chunks one by one, and stops in the middle, finds the module as it was."""
    module, X, _ = prepared("vgg")
    engine = TangentEngine(module, Samples(X), batch_size=2)
    before = state(module)
    with torch.no_grad():
        chunks = engine.run(Samples(X), [lambda logits, target: logits], lambda gradients, n: next(gradients) and n)
        assert next(chunks) == 2
        assert not torch.is_grad_enabled()
        assert state(module) | {"grad mode": True} == before
    del chunks
    assert state(module) == before


@given(batch_size=st.integers(1, 9), n=st.integers(1, 9), name=st.sampled_from(["torchvision_style", "text_attention"]))
def test_scores_for_any_batch_size_and_order(batch_size, n, name):
    module, X, y = build(name, n=9)
    direction = loss_gradient(module, X, y)
    expected = gradient_scores(module, X, y, direction)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(n))[:n]
    result = gradient_scores(module, X[order], y[order], direction, batch_size=batch_size)
    for mine, theirs in zip(result, expected, strict=True):
        np.testing.assert_allclose(mine, theirs[order], rtol=1e-9, atol=1e-12)


def test_memory_bounds_the_chunks():
    module, X, _ = build("tutorial_cnn", n=6)
    engine = TangentEngine(module, Samples(X), max_memory=1)
    assert engine.batch_size == 1
    large = TangentEngine(module, Samples(X), max_memory="1GB", batch_size=64)
    assert large.batch_size == 64
    assert large.sample_bytes < TangentEngine(module, Samples(X), backend="func").sample_bytes
    half = TangentEngine(module, Samples(X), max_memory=10 * large.sample_bytes)
    assert half.batch_size == 10
    small, whole = (gradient_scores(module, X, None, max_memory=bound)[0] for bound in (1, "1GB"))
    np.testing.assert_allclose(small, whole, rtol=1e-10)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you tried"),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 80 bytes"),
        RuntimeError("could not create a primitive"),  # oneDNN
    ],
)
def test_a_chunk_that_does_not_fit_is_halved(error):
    module, X, _ = build("mlp", n=11)
    engine = TangentEngine(module, Samples(X), batch_size=11)
    seen = []

    def reduce(gradients, n):
        seen.append(n)
        if n > 2:
            raise error
        return next(gradients)[engine.names[0]].dense()

    target = torch.linspace(0, 1, 33, dtype=torch.float64).reshape(11, 3)
    halved = torch.cat(list(engine.run(Samples(X), [lambda f, t: f + t], reduce, target=target)))
    assert seen == [11, 6, 3, 2, 1, 3, 2, 1, 5, 3, 2, 1, 2]
    assert engine.batch_size == 2
    seen.clear()
    again = torch.cat(list(engine.run(Samples(X), [lambda f, t: f + t], reduce, target=target)))
    assert seen == [2, 2, 2, 2, 2, 1]
    torch.testing.assert_close(halved, again)


@pytest.mark.parametrize("error", [RuntimeError("something else"), ValueError("memory")])
def test_other_errors_are_raised(error):
    module, X, _ = build("mlp")

    def reduce(gradients, n):
        raise error

    with pytest.raises(type(error), match=str(error)):
        list(TangentEngine(module, Samples(X)).run(Samples(X), [lambda f, t: f], reduce))


def test_one_sample_that_does_not_fit_is_an_error():
    module, X, _ = build("mlp")

    def reduce(gradients, n):
        raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        list(TangentEngine(module, Samples(X)).run(Samples(X), [lambda f, t: f], reduce))


def test_datasets_and_arrays():
    module, X, y = build("tutorial_cnn", n=7)
    expected = gradient_scores(module, X, y)[0]
    np.testing.assert_allclose(gradient_scores(module, TensorDataset(X, y), y, batch_size=3)[0], expected, rtol=1e-10)
    np.testing.assert_allclose(gradient_scores(module, X.numpy(), y.numpy())[0], expected, rtol=1e-10)


SCRIPT = """
import os, resource, sys, numpy as np, torch
from torch import nn
from skal.context import Samples, TangentEngine
from skal.tangent import gradient_scores
torch.manual_seed(0)
torch.set_num_threads(1)
module = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
                       nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3))

def run_short_of_memory():
    X, seen = torch.randn(256, 3, 32, 32), []
    expected = gradient_scores(module, X, None, batch_size=4)[0]
    rows = TangentEngine(module, Samples(X), max_memory="100GB").batch_size
    with open("/proc/self/status") as file:
        size = next(int(line.split()[1]) for line in file if line.startswith("VmSize")) * 1024
    resource.setrlimit(resource.RLIMIT_AS, (size + 16 * 2**20, resource.RLIM_INFINITY))
    module.register_forward_pre_hook(lambda layer, args: seen.append(len(args[0])))
    result = gradient_scores(module, X, None, batch_size=256, max_memory="100GB")[0]
    print(max(seen) == rows > seen[-1], np.allclose(result, expected, rtol=1e-4), flush=True)

if sys.platform.startswith("linux"):  # in a copy of this process, which has its own limit
    child = os.fork()
    if child == 0:
        run_short_of_memory()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
X = torch.randn(640, 3, 32, 32)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
gradient_scores(module, X[:128], None, batch_size=64)
before = peak()
gradient_scores(module, X, None, batch_size=64)
after = peak()
print(before, after, 64 * TangentEngine(module, Samples(X)).sample_bytes)
"""


@pytest.fixture(scope="module")
def printed():
    """The lines of a process that has nothing else in its memory."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limit on address space is Linux's")
def test_a_real_shortage_of_memory(printed):
    halved, same = printed[0].split()
    assert (halved, same) == ("True", "True")


def test_more_samples_take_no_more_memory(printed):
    before, after, chunk = map(int, printed[-1].split())
    assert chunk > 15e6
    assert after - before < chunk / 2  # eight more chunks
