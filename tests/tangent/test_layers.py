"""The layer rules, one by one."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

from skal.tangent import register_rule

from ..support.networks import randomise
from .checking import check_exact, check_sketch

SEQUENCE, LONG = (5, 4), (4, 11)
IMAGE, VOLUME = (4, 7, 6), (2, 4, 5, 3)
LAYERS = {
    "linear": (lambda: nn.Linear(5, 4), (5,)),
    "linear without bias": (lambda: nn.Linear(5, 4, bias=False), (5,)),
    "linear on sequences": (lambda: nn.Linear(4, 3), SEQUENCE),
    "linear on images": (lambda: nn.Linear(6, 3), (2, 3, 6)),
    "conv1d": (lambda: nn.Conv1d(4, 3, 3), LONG),
    "conv1d strided, dilated, padded": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2), LONG),
    "conv1d same": (lambda: nn.Conv1d(4, 3, 4, padding="same", dilation=3), LONG),
    "conv1d circular": (lambda: nn.Conv1d(4, 3, 3, padding=2, padding_mode="circular"), LONG),
    "conv2d": (lambda: nn.Conv2d(4, 3, 3), IMAGE),
    "conv2d wide": (lambda: nn.Conv2d(4, 40, 3, padding=1), (4, 3, 3)),
    "conv2d pointwise": (lambda: nn.Conv2d(4, 6, 1, groups=2), IMAGE),
    "conv2d pointwise strided": (lambda: nn.Conv2d(4, 6, 1, stride=(3, 2), bias=False), IMAGE),
    "conv2d uneven": (lambda: nn.Conv2d(4, 3, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2)), IMAGE),
    "conv2d grouped": (lambda: nn.Conv2d(4, 6, 3, padding=1, groups=2), IMAGE),
    "conv2d depthwise": (lambda: nn.Conv2d(4, 4, 3, padding=1, groups=4), IMAGE),
    "conv2d depthwise with multiplier": (lambda: nn.Conv2d(4, 8, 2, stride=2, groups=4, bias=False), IMAGE),
    "conv2d same": (lambda: nn.Conv2d(4, 3, (4, 3), padding="same"), IMAGE),
    "conv2d valid": (lambda: nn.Conv2d(4, 3, 3, padding="valid", stride=2), IMAGE),
    "conv2d reflect": (lambda: nn.Conv2d(4, 3, 3, padding=(2, 1), padding_mode="reflect"), IMAGE),
    "conv2d same reflect": (lambda: nn.Conv2d(4, 3, 4, padding="same", padding_mode="reflect"), IMAGE),
    "conv2d replicate": (lambda: nn.Conv2d(4, 3, 3, padding=1, stride=2, padding_mode="replicate"), IMAGE),
    "conv2d on the whole image": (lambda: nn.Conv2d(4, 3, (7, 6)), IMAGE),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2), VOLUME),
    "conv3d strided, padded, grouped": (lambda: nn.Conv3d(2, 4, (2, 3, 2), (1, 2, 1), (1, 0, 1), groups=2), VOLUME),
    "conv3d circular": (lambda: nn.Conv3d(2, 3, 3, padding=1, padding_mode="circular", dilation=(1, 2, 1)), VOLUME),
    "transposed": (lambda: nn.ConvTranspose2d(4, 3, 3), IMAGE),
    "transposed strided": (lambda: nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1, output_padding=1), IMAGE),
    "transposed grouped": (lambda: nn.ConvTranspose2d(4, 6, (2, 3), stride=(1, 2), groups=2, bias=False), IMAGE),
    "transposed dilated": (lambda: nn.ConvTranspose2d(4, 2, 3, 3, (2, 1), (2, 1), dilation=2), IMAGE),
    "batch norm 1d": (lambda: nn.BatchNorm1d(5), (5,)),
    "batch norm 1d on sequences": (lambda: nn.BatchNorm1d(5), SEQUENCE),
    "batch norm 2d": (lambda: nn.BatchNorm2d(4, eps=0.1), IMAGE),
    "batch norm 3d": (lambda: nn.BatchNorm3d(2), VOLUME),
    "layer norm": (lambda: nn.LayerNorm(4), SEQUENCE),
    "layer norm on vectors": (lambda: nn.LayerNorm(5, eps=0.1), (5,)),
    "layer norm without bias": (lambda: nn.LayerNorm(4, bias=False), SEQUENCE),
    "layer norm of several dims": (lambda: nn.LayerNorm((7, 6)), IMAGE),
    "layer norm of everything": (lambda: nn.LayerNorm(IMAGE), IMAGE),
    "group norm": (lambda: nn.GroupNorm(2, 4), IMAGE),
    "group norm on sequences": (lambda: nn.GroupNorm(5, 5, eps=0.1), SEQUENCE),
    "instance norm 1d": (lambda: nn.InstanceNorm1d(5, affine=True), SEQUENCE),
    "instance norm 2d": (lambda: nn.InstanceNorm2d(4, affine=True), IMAGE),
    "instance norm 2d tracking": (lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True), IMAGE),
    "instance norm 3d": (lambda: nn.InstanceNorm3d(2, affine=True, eps=0.1), VOLUME),
    "prelu": (lambda: nn.PReLU(), IMAGE),
    "prelu by channel": (lambda: nn.PReLU(4, init=0.1), IMAGE),
    "prelu by feature": (lambda: nn.PReLU(5), (5,)),
}
EMBEDDINGS = {
    "plain": {},
    "padding": {"padding_idx": 2},
    "last row is padding": {"padding_idx": -1},
    "sparse": {"sparse": True},
    "rescaling": {"max_norm": 0.8},
}


def with_head(layer, shape, n=4):
    """The layer, a nonlinearity and a head, in float64; inputs for it."""
    torch.manual_seed(1)
    X = torch.randn(n, *shape, dtype=torch.float64)
    layer = randomise(layer()).double()
    size = layer.eval()(X).flatten(1).shape[1]
    return nn.Sequential(layer, nn.Tanh(), nn.Flatten(), nn.Linear(size, 3)).double().train(), X


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@pytest.mark.parametrize("name", LAYERS)
def test_rule(name):
    module, X = with_head(*LAYERS[name])
    plan = check_exact(module, X)
    assert plan == {"structured": {key for key, _ in module.named_parameters()}}
    check_sketch(module, X)


@pytest.mark.parametrize("name", ["conv2d grouped", "conv2d wide", "transposed strided", "batch norm 2d", "prelu"])
def test_rule_with_channels_last(name):
    module, X = with_head(*LAYERS[name])
    module, X = module.to(memory_format=torch.channels_last), X.to(memory_format=torch.channels_last)
    assert X.is_contiguous(memory_format=torch.channels_last)
    assert set(check_exact(module, X)) == {"structured"}
    check_sketch(module, X)


@pytest.mark.parametrize("name", EMBEDDINGS)
def test_embedding(name):
    torch.manual_seed(0)
    X = torch.randint(0, 6, (5, 4))
    X[0], X[1, :2] = 2, 5  # one token four times, and the last row of the table
    embedding = nn.Embedding(6, 3, **EMBEDDINGS[name])
    module = nn.Sequential(embedding, nn.Linear(3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3)).double()
    before = embedding.weight.detach().clone()
    assert set(check_exact(module, X)) == {"structured"}
    torch.testing.assert_close(embedding.weight, before, rtol=0, atol=0)
    if name == "plain":
        check_sketch(module, X)


def test_embedding_scaled_by_frequency_is_left_to_another_backend():
    torch.manual_seed(0)
    X = torch.randint(0, 3, (4, 5))  # every token comes more than once
    embedding = nn.Embedding(3, 2, scale_grad_by_freq=True)
    module = nn.Sequential(embedding, nn.Tanh(), nn.Flatten(), nn.Linear(10, 3)).double()
    assert check_exact(module, X)["structured"] == {"3.weight", "3.bias"}


def test_images_of_tokens():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(6, 2), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3)).double()
    assert set(check_exact(module, torch.randint(0, 6, (4, 2, 3)))) == {"structured"}


@pytest.mark.parametrize("reparametrised", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_parametrised_weight(reparametrised):
    torch.manual_seed(0)
    hidden = reparametrised(nn.Linear(5, 4)).eval()
    module = nn.Sequential(hidden, nn.Tanh(), nn.Linear(4, 3)).double()
    plan = check_exact(module, torch.randn(4, 5, dtype=torch.float64))
    assert plan["structured"] == {"0.bias", "2.weight", "2.bias"}
    assert all(name.startswith("0.parametrizations") for name in plan["func"])


def test_subclasses_inherit_a_rule():
    class Mine(nn.Conv2d):
        pass

    torch.manual_seed(0)
    module = nn.Sequential(Mine(2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3)).double()
    assert set(check_exact(module, torch.randn(4, 2, 3, 3, dtype=torch.float64))) == {"structured"}


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("pads", "backend"), [((0, 1, 0, 1), "structured"), ((2, 0, 2, 0), "func")])
def test_a_convolution_that_pads_by_itself(pads, backend, stride):
    class Padded(nn.Conv2d):
        def forward(self, x):  # the first is what TensorFlow does, and networks that come from there
            return self._conv_forward(F.pad(x, pads), self.weight, self.bias)

    torch.manual_seed(0)
    module = nn.Sequential(Padded(4, 4, 2, stride=stride, groups=2), nn.Tanh(), nn.Flatten(), nn.LazyLinear(3))
    X = torch.randn(4, 4, 5, 5, dtype=torch.float64)
    module.double()(X)
    assert "0.weight" in check_exact(module, X)[backend]


def test_a_transposed_convolution_that_crops_by_itself_has_no_rule():
    class Cropped(nn.ConvTranspose2d):
        def forward(self, x):
            return super().forward(x)[..., 1:, 1:]

    torch.manual_seed(0)
    module = nn.Sequential(Cropped(2, 2, 2), nn.Tanh(), nn.Flatten(), nn.LazyLinear(3))
    X = torch.randn(4, 2, 3, 3, dtype=torch.float64)
    module.double()(X)
    assert check_exact(module, X) == {"structured": {"0.bias", "3.weight", "3.bias"}, "func": {"0.weight"}}


def test_a_users_rule_is_used():
    called = []

    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = nn.Parameter(torch.rand(5))

        def forward(self, x):
            return self.factor * x

    torch.manual_seed(0)
    module = nn.Sequential(Scale(), nn.Tanh(), nn.Linear(5, 3)).double()
    X = torch.randn(4, 5, dtype=torch.float64)
    assert check_exact(module, X)["func"] == {"0.factor"}

    @register_rule(Scale)
    def rule(layer, a, g):
        called.append(layer)
        return {"factor": a * g}

    assert set(check_exact(module, X)) == {"structured"}
    assert called
