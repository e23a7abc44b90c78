"""What networks do with their layers: everything is exact, and the layer rules do what they can."""

import pytest
import torch
import torch.nn.functional as F
from skorch import NeuralNetClassifier
from torch import nn
from torch.utils.checkpoint import checkpoint

from skal._core.network import Network
from skal.exceptions import UnsupportedLayerError
from skal.tangent import gradient_scores
from skal.tangent._structured import StructuredBackend

from ..support import oracle
from .checking import check_exact, plan_of

TOKENS = torch.tensor([[1, 2, 3], [3, 3, 0], [4, 1, 1], [2, 0, 5]])


class Tied(nn.Module):
    """Language-model style: the embedding is the output layer too."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(6, 4)
        self.hidden = nn.Linear(4, 4)
        self.out = nn.Linear(4, 6, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, tokens):
        return self.out(torch.tanh(self.hidden(self.embedding(tokens))).mean(1))


class Twice(nn.Module):
    def __init__(self, pool):
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)
        self.norm = nn.GroupNorm(1, 2)
        self.pool = nn.AvgPool2d(2) if pool else nn.Identity()
        self.head = nn.Linear(2, 3)

    def forward(self, x):
        x = torch.tanh(self.norm(self.conv(x)))
        x = self.norm(self.conv(self.pool(x)))
        return self.head(x.mean((2, 3)))


class Direct(nn.Module):
    """Parameters used in forward: a scale, a matrix, and the weight of a layer that is also called."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.matrix = nn.Parameter(torch.randn(4, 4))
        self.layer = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = torch.tanh(self.layer(x) @ self.matrix * self.scale)
        return self.head(F.linear(x, self.layer.weight))


class Doubling(nn.Linear):
    """Not what its base class computes."""

    def forward(self, x):
        return super().forward(x) * 2 + self.bias


class Frames(nn.Module):
    """A layer that sees the steps of all sequences as a batch of their own."""

    def __init__(self, time_first):
        super().__init__()
        self.time_first = time_first
        self.step, self.norm, self.head = nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x):
        n, steps, _ = x.shape
        x = x.transpose(0, 1) if self.time_first else x
        x = torch.tanh(self.step(x.reshape(n * steps, 3))).reshape(*x.shape[:2], 4)
        x = x.transpose(0, 1) if self.time_first else x
        return self.head(self.norm(x).mean(1))


class FrozenBackbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x):
        with torch.no_grad():
            x = torch.tanh(self.backbone(x))
        return self.head(x)


class Rows(nn.Module):
    """Applies one of two layers to each sample, whichever the sample asks for."""

    def __init__(self):
        super().__init__()
        self.positive, self.negative, self.head = nn.Linear(4, 5), nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x):
        hidden = x.new_zeros(len(x), 5)
        chosen = x[:, 0] > 0
        for layer, rows in ((self.positive, chosen), (self.negative, ~chosen)):
            if rows.any():
                hidden[rows] = layer(x[rows])
        return self.head(torch.tanh(hidden))


class Steps(nn.Module):
    """As many steps as the input asks for: forward cannot be traced."""

    def __init__(self):
        super().__init__()
        self.layer, self.spare, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        for _ in range(1 + int(x.abs().max() > 0)):
            x = torch.tanh(self.layer(x))
        return self.head(x)


class Several(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        f = self.layer(x)
        return f, torch.tanh(f)


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(checkpoint(lambda x: torch.tanh(self.layer(x)), x, use_reentrant=False))


class Keywords(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(input=torch.tanh(self.layer(input=x)))


def doubling():
    return nn.Sequential(Doubling(4, 4), nn.Tanh(), nn.Linear(4, 3))


def lstm():
    class LSTM(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.lstm(x)[1][0][-1])

    return LSTM()


# module, shape of a sample (None: tokens), and what is not left to the layer rules
CASES = {
    "tied weights": (Tied, None, {}),
    "layer called twice": (lambda: Twice(False), (2, 6, 6), {}),
    "layer called at two sizes": (lambda: Twice(True), (2, 6, 6), {}),
    "direct parameters": (Direct, (4,), {"func": {"scale", "matrix", "layer.weight"}}),
    "other forward": (doubling, (4,), {"func": {"0.weight", "0.bias"}}),
    "frames": (lambda: Frames(False), (5, 3), {"func": {"step.weight", "step.bias"}}),
    "time first": (lambda: Frames(True), (5, 3), {"func": {"step.weight", "step.bias"}}),
    "as many frames as samples": (lambda: Frames(True), (3, 3), {"func": {"step.weight", "step.bias"}}),
    "backbone without gradient": (FrozenBackbone, (4,), {}),
    "unused layer, steps by the data": (Steps, (4,), {}),
    "several outputs": (Several, (4,), {}),
    "checkpointing": (Checkpointed, (4,), {}),
    "keywords": (Keywords, (4,), {}),
    "recurrent": (lstm, (5, 3), {"loop": {f"lstm.{w}_{x}_l0" for w in ("weight", "bias") for x in ("ih", "hh")}}),
}


def make(name, n=5):
    torch.manual_seed(0)
    factory, shape, _ = CASES[name]
    module = factory().double()
    return module, TOKENS if shape is None else torch.randn(n, *shape, dtype=torch.float64)


@pytest.mark.parametrize("name", CASES)
def test_exact(name):
    module, X = make(name)
    others = CASES[name][2]
    plan = check_exact(module, X)
    assert {backend: covered for backend, covered in plan.items() if backend != "structured"} == others
    assert not plan["structured"] & set().union(*others.values())


@pytest.mark.parametrize("name", CASES)
def test_exact_for_any_batch_size(name):
    module, X = make(name)
    check_exact(module, X, batch_size=2)


@pytest.mark.parametrize("n", [4, 40])
def test_layers_for_part_of_the_samples(n):
    module = Rows().double()
    torch.manual_seed(0)
    check_exact(module, torch.randn(n, 4, dtype=torch.float64))


@pytest.mark.parametrize("signs", [(1, -1), (-1, 1)])
def test_a_layer_that_only_later_samples_use(signs):
    """The samples that the plan is checked on do not use one of the layers at all."""
    torch.manual_seed(0)
    first, later = (torch.randn(6, 4, dtype=torch.float64).abs() * sign for sign in signs)
    X = torch.cat([first, later, first])
    for batch_size in (6, 4, 256):
        module = Rows().double()
        assert set(plan_of(module, X)) == {"structured"}
        assert set(check_exact(module, X, batch_size=batch_size)) == {"loop"}
    with pytest.raises(
        UnsupportedLayerError, match=r"'(negative|positive).bias' must take part in every sample's output"
    ):
        gradient_scores(Rows().double(), X, None, backend="structured", batch_size=6)


@pytest.mark.parametrize("frozen", [["0.weight"], ["0.weight", "0.bias"], ["2.bias"], ["2.weight", "2.bias"]])
def test_frozen_parameters(frozen):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    for name in frozen:
        module.get_parameter(name).requires_grad_(False)
    plan = check_exact(module, torch.randn(4, 4, dtype=torch.float64))
    assert plan == {"structured": {name for name, p in module.named_parameters() if p.requires_grad}}


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.image, self.head = nn.Embedding(6, 4), nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, tokens, picture):
        return self.head(torch.tanh(self.words(tokens).mean(1) * self.image(picture)))


def test_several_inputs():
    torch.manual_seed(0)
    net = NeuralNetClassifier(TwoInputs, criterion=nn.CrossEntropyLoss).initialize()
    net.module_.double()
    X = {"tokens": TOKENS.numpy(), "picture": torch.randn(4, 5, dtype=torch.float64).numpy()}
    gradients = oracle.loss_gradients(net.module_, oracle.as_double(X), [0, 1, 2, 0])
    norms, _ = gradient_scores(net, X, [0, 1, 2, 0])
    assert oracle.relative_error(norms, (gradients**2).sum(1)) < 1e-8
    assert set(plan_of(net, X)) == {"structured"}


def test_hooks_that_change_an_output():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    module[0].register_forward_hook(lambda layer, args, output: output * 3)
    plan = check_exact(module, torch.randn(4, 4, dtype=torch.float64))
    assert plan == {"structured": {"2.weight", "2.bias"}, "func": {"0.weight", "0.bias"}}


def test_functions_of_torch_are_left_as_they_were():
    torch.manual_seed(0)
    module = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).eval()
    network = Network(nn.Sequential(module, nn.Flatten(), nn.Linear(24, 3)))
    own, X = F.linear, torch.randn(5, 3, 8)
    logits, _ = StructuredBackend(network, set(network.trainable()))._forward(X)
    assert F.linear is own
    torch.testing.assert_close(logits, network.logits(X))


class OneAttention(nn.Module):
    def __init__(self, mask=False, need_weights=False, batch_first=True, bias=True):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=batch_first, bias=bias)
        self.head, self.mask, self.need_weights = nn.Linear(8, 3), mask, need_weights

    def forward(self, x):
        x = x if self.attention.batch_first else x.transpose(0, 1)
        mask = torch.ones(5, 5, dtype=torch.bool).triu(1) if self.mask else None
        x, _ = self.attention(x, x, x, attn_mask=mask, need_weights=self.need_weights)
        return self.head(x.mean(1 if self.attention.batch_first else 0))


@pytest.mark.parametrize("n", [4, 5])
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"mask": True}, {"need_weights": True}])
@pytest.mark.parametrize("batch_first", [True, False])
def test_attention_of_every_form(n, options, batch_first):
    torch.manual_seed(0)
    module = OneAttention(**options, batch_first=batch_first).double().eval()
    X = torch.randn(n, 5, 8, dtype=torch.float64)
    assert set(check_exact(module, X)) == {"structured"}
