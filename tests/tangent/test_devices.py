"""On a device of its own, the engine hands nothing to the host but its results and single numbers.

The device is torch's "meta": it computes shapes and no values, but every operation goes through the dispatcher with
its device, as on a GPU. Numbers that are read from it are taken to be 1, or True.
"""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from skal.context import Samples, TangentEngine
from skal.tangent import gradient_scores, loss_gradient, tangent_features, tangent_kernel
from skal.tangent._cotangents import LossCotangent
from skal.tangent._sketch import Sketch

N, C, K = 20, 3, 16


class Transfers(TorchDispatchMode):
    """Records how many elements each transfer from the device to the host has."""

    def __init__(self):
        super().__init__()
        self.to_host = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name == "_local_scalar_dense" and args[0].is_meta:
            self.to_host.append(1)
            return True if args[0].dtype == torch.bool else args[0].dtype.is_floating_point + 0
        if name == "_to_copy" and args[0].is_meta and torch.device(kwargs.get("device") or "meta").type == "cpu":
            self.to_host.append(args[0].numel())
            return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        if name == "copy_" and args[1].is_meta and not args[0].is_meta:
            self.to_host.append(args[1].numel())
            return args[0]
        if name == "_unique2" and args[0].is_meta:  # how many there are is a number that a GPU hands over too
            self.to_host.append(1)
            values = args[0].new_empty(args[0].numel())
            return values, values, values
        return func(*args, **kwargs)


def image_net():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 4, 3, groups=2),
        nn.GroupNorm(2, 4),
        nn.PReLU(),
        nn.Flatten(),
        nn.Linear(4 * 36, C),
    )


def text_net():
    return nn.Sequential(
        nn.Embedding(9, 4), nn.LayerNorm(4), nn.Linear(4, 4), nn.Tanh(), nn.Flatten(), nn.Linear(24, C)
    )


CASES = {"images": (image_net, lambda: torch.randn(N, 3, 8, 8)), "text": (text_net, lambda: torch.ones(N, 6).long())}


@pytest.fixture(params=CASES)
def case(request):
    factory, inputs = CASES[request.param]
    return factory().to("meta"), inputs()


def transfers(function, *args, **kwargs):
    """(sizes of the transfers of more than one number, how many single numbers), and the result."""
    with Transfers() as mode:
        result = function(*args, **kwargs)
    return [n for n in mode.to_host if n > 1], mode.to_host.count(1), result


@pytest.mark.parametrize("backend", ["auto", "func"])
def test_gradient_scores_hand_over_their_result_alone(case, backend):
    module, X = case
    direction = {name: torch.zeros_like(p) for name, p in module.named_parameters()}
    y = torch.zeros(N, dtype=torch.long)
    large, _, _ = transfers(gradient_scores, module, X, y, direction, backend=backend, batch_size=8)
    assert large == [N, N]


@pytest.mark.parametrize(
    ("kind", "size"), [("pntk", N * N), ("logit", N * N), ("trace", N * N), ("entk", (C * N) ** 2)]
)
def test_kernels_hand_over_their_result_alone(case, kind, size):
    large, _, _ = transfers(tangent_kernel, *case, kind=kind, batch_size=8)
    assert large == [size]


@pytest.mark.parametrize(("kind", "rows"), [("pntk", N), ("trace", N), ("entk", C * N)])
def test_sketches_hand_over_their_result_alone(case, kind, rows):
    large, _, _ = transfers(tangent_features, *case, kind=kind, n_features=K, batch_size=8)
    assert large == [rows * K]


def test_loss_gradient_stays_on_the_device(case):
    module, X = case
    large, _, gradient = transfers(loss_gradient, module, X, [0] * N, batch_size=8)
    assert large == []
    assert all(part.is_meta for part in gradient.values())


def test_a_chunk_more_costs_a_few_numbers_more(case):
    """What is read per chunk is whether its outputs and its two results are finite."""
    module, X = case
    transfers(gradient_scores, module, X, None)  # the comparison with autograd comes once
    counts = [transfers(gradient_scores, module, X, None, batch_size=size)[1] for size in (20, 10, 5)]
    assert counts[1] - counts[0] == 3
    assert counts[2] - counts[1] == 6


def test_the_inner_path_hands_over_nothing(case):
    module, X = case
    with Transfers() as mode:
        engine = TangentEngine(module, Samples(X))
        assert [name for name, _ in engine.plan] == ["structured"]
        sketch = Sketch(engine, K, 0)
        mode.to_host.clear()
        module.eval()
        gradients = next(engine.backends[0].gradients(X.to("meta"), None, [LossCotangent(engine.network.loss)]))
        for gradient in gradients.values():
            assert all(part.is_meta for part in gradient.scores(torch.zeros(gradient.size, device="meta")))
        assert sketch.project(gradients, N).is_meta
        assert mode.to_host == []
        assert all(g.kernel_form().gram(g.kernel_form()).is_meta for g in gradients.values())
        assert mode.to_host == [1] * isinstance(module[0], nn.Embedding)  # the number of different tokens


@pytest.mark.parametrize("leak", [lambda x: x.cpu(), lambda x: x.to("cpu"), lambda x: torch.zeros(x.shape).copy_(x)])
def test_a_leak_would_be_seen(case, leak, monkeypatch):
    from skal.tangent._structured import StructuredBackend

    forward = StructuredBackend._forward
    monkeypatch.setattr(
        StructuredBackend, "_forward", lambda self, batch: (leak(batch.float()), forward(self, batch))[1]
    )
    module, X = case
    large, _, _ = transfers(gradient_scores, module, X, None, batch_size=8)
    assert large != [N, N]
    assert max(large) > N
