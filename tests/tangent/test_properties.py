"""Random small networks: whatever layers follow one another, the engine agrees with autograd."""

from itertools import pairwise

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ..support.networks import randomise
from .checking import check_exact, check_sketch


class Residual(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, x):
        y = self.body(x)
        y += x
        return y


@st.composite
def image_layers(draw, channels):
    """One layer for (n, channels, h, w), h and w from 3 on, and its number of output channels."""
    kind = draw(
        st.sampled_from(["conv", "transposed", "batch norm", "group norm", "prelu", "relu", "pool", "residual"])
    )
    if kind == "conv":
        groups = draw(st.sampled_from([g for g in (1, 2, channels) if channels % g == 0]))
        out, kernel = groups * draw(st.integers(1, 3)), draw(st.integers(1, 3))
        settings = {"stride": draw(st.integers(1, 2)), "padding": draw(st.integers(kernel // 2, 2)), "groups": groups}
        settings |= {"dilation": draw(st.integers(1, 2)) if kernel < 3 else 1, "bias": draw(st.booleans())}
        return [nn.Conv2d(channels, out, kernel, **settings)], out
    if kind == "transposed":
        out = draw(st.integers(1, 3))
        return [nn.ConvTranspose2d(channels, out, draw(st.integers(1, 3)), stride=draw(st.integers(1, 2)))], out
    if kind == "residual":
        body = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels))
        return [Residual(body), nn.ReLU(inplace=True)], channels
    plain = {
        "batch norm": lambda: nn.BatchNorm2d(channels),
        "group norm": lambda: nn.GroupNorm(channels, channels),
        "prelu": lambda: nn.PReLU(draw(st.sampled_from([1, channels]))),
        "relu": lambda: nn.ReLU(inplace=True),
        "pool": lambda: nn.AvgPool2d(2, stride=1, padding=1),
    }
    # smooth in between, so that no kink is met in one backend's rounding and not in the other's
    return [nn.Softplus(), plain[kind]()], channels


@st.composite
def image_networks(draw):
    torch.manual_seed(draw(st.integers(0, 1000)))
    channels = draw(st.integers(1, 3))
    size, n = draw(st.integers(4, 7)), draw(st.integers(1, 4))
    X = torch.randn(n, channels, size, size, dtype=torch.float64)
    layers = [nn.Conv2d(channels, channels, 1)]
    for _ in range(draw(st.integers(1, 4))):
        more, channels = draw(image_layers(channels))
        layers += more
    layers += [nn.AdaptiveAvgPool2d(draw(st.integers(1, 2))), nn.Flatten()]
    body = nn.Sequential(*layers)
    randomise(body)
    width = body.double().eval()(X).shape[1]
    return nn.Sequential(body, nn.Linear(width, draw(st.integers(2, 4)))).double(), X


@st.composite
def flat_networks(draw):
    torch.manual_seed(draw(st.integers(0, 1000)))
    widths = draw(st.lists(st.integers(2, 6), min_size=2, max_size=4))
    shape = draw(st.lists(st.integers(1, 3), max_size=2))  # sequences, images of vectors
    X = torch.randn(draw(st.integers(1, 5)), *shape, widths[0], dtype=torch.float64)
    layers = []
    for n_in, n_out in pairwise(widths):
        layers += [nn.Linear(n_in, n_out, bias=draw(st.booleans())), nn.Tanh()]
        if draw(st.booleans()):
            layers.append(nn.LayerNorm(n_out))
    body = randomise(nn.Sequential(*layers, nn.Flatten())).double()
    module = nn.Sequential(body, nn.Linear(body(X).shape[1], draw(st.integers(2, 4)))).double()
    frozen = draw(st.sets(st.sampled_from([name for name, _ in module.named_parameters()]), max_size=2))
    for name in frozen:
        module.get_parameter(name).requires_grad_(False)
    module[1].weight.requires_grad_(True)
    return module, X


@settings(max_examples=20)
@given(case=image_networks(), batch_size=st.integers(1, 5))
def test_image_networks(case, batch_size):
    module, X = case
    assert set(check_exact(module, X, batch_size=batch_size, tolerance=1e-7)) == {"structured"}
    check_sketch(module, X, k=17)


@settings(max_examples=20)
@given(case=flat_networks(), batch_size=st.integers(1, 5))
def test_flat_networks(case, batch_size):
    module, X = case
    assert set(check_exact(module, X, batch_size=batch_size, tolerance=1e-7)) == {"structured"}
    check_sketch(module, X, k=13)
