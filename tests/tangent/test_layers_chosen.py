"""Tangents of chosen parameters against autograd's gradients of exactly these."""

from functools import partial

import numpy as np
import pytest
import torch
from skorch import NeuralNetClassifier
from torch import nn

from skal.exceptions import InvalidParameterError, InvalidTypeError
from skal.nets import MLP, ResNet18
from skal.strategies import NTKLookahead
from skal.tangent import tangent_features, tangent_kernel

from ..support.learners import learner_of, net_of


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.second(torch.tanh(self.first(x)))


class Blocks(nn.Module):
    """A table of embeddings, three blocks over the positions, and a linear layer on their mean."""

    def __init__(self, width=4, n_classes=3):
        super().__init__()
        self.head = nn.Linear(width, n_classes)  # before what it stands on
        self.embedding = nn.Embedding(20, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(3))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


class LowRank(nn.Module):
    """A linear layer that stays as it is, and a product of two thin ones that is trained, as in LoRA."""

    def __init__(self, layer, rank=2):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))


@pytest.fixture
def network():
    torch.manual_seed(0)
    return Blocks().double()


@pytest.fixture
def adapted(network):
    network.requires_grad_(False)
    for block in network.blocks:
        block.first = LowRank(block.first)
    network.head.requires_grad_(True)
    return network.double()


TOKENS = np.random.default_rng(0).integers(0, 20, size=(9, 5))


def gradients(module, X, wanted):
    """(n, P) gradients of the sum of the outputs over √C, of the wanted parameters alone."""
    chosen = [p for name, p in module.named_parameters() if p.requires_grad and wanted(name)]
    rows = []
    for x in torch.as_tensor(X):
        out = module(x[None])
        found = torch.autograd.grad(out.sum() / out.shape[1] ** 0.5, chosen, allow_unused=True)
        rows.append(
            torch.cat(
                [
                    torch.zeros_like(p).flatten() if g is None else g.flatten()
                    for g, p in zip(found, chosen, strict=True)
                ]
            )
        )
    return torch.stack(rows).numpy()


WANTED = {
    "last_blocks": lambda name: name.startswith(("blocks.2.", "norm.", "head.")),
    "last": lambda name: name.startswith("head."),
    "all": lambda name: True,
}


@pytest.mark.parametrize("layers", list(WANTED))
def test_kernels_are_of_the_chosen_parameters_alone(network, layers):
    J = gradients(network, TOKENS, WANTED[layers])
    np.testing.assert_allclose(tangent_kernel(network, TOKENS, layers=layers), J @ J.T, rtol=1e-9, atol=1e-12)
    features = tangent_features(network, TOKENS, layers=layers, n_features=None)
    assert features.shape == J.shape
    np.testing.assert_allclose(features @ features.T, J @ J.T, rtol=1e-9, atol=1e-12)


def test_a_function_chooses_by_name_and_parameter(network):
    J = gradients(network, TOKENS, lambda name: name.endswith("first.weight"))
    found = tangent_kernel(network, TOKENS, layers=lambda name, p: name.endswith("first.weight") and p.ndim == 2)
    np.testing.assert_allclose(found, J @ J.T, rtol=1e-9, atol=1e-12)


def test_adapters_are_what_is_trained_in_a_network_that_is_mostly_frozen(adapted):
    trained = {name for name, p in adapted.named_parameters() if p.requires_grad}
    assert {name.split(".")[-2] for name in trained} == {"down", "up", "head"}
    J = gradients(adapted, TOKENS, lambda name: True)
    np.testing.assert_allclose(tangent_kernel(adapted, TOKENS, layers="adapters"), J @ J.T, rtol=1e-9, atol=1e-12)
    last = gradients(adapted, TOKENS, lambda name: name.startswith(("blocks.2.", "head.")))
    found = tangent_kernel(adapted, TOKENS, layers="last_blocks")
    np.testing.assert_allclose(found, last @ last.T, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("module", "shape", "wanted"),
    [
        (partial(ResNet18, n_classes=3, in_channels=1, width=2), (1, 8, 8), ("layer4.1.", "fc.")),
        (partial(MLP, 5, 3, hidden=(7, 6)), (5,), ("features.4.", "fc.")),  # no blocks: two layers
    ],
)
def test_last_blocks_of_networks_of_other_kinds(module, shape, wanted):
    torch.manual_seed(0)
    network = module().double().eval()
    X = np.random.default_rng(0).normal(size=(4, *shape))
    J = gradients(network, X, lambda name: name.startswith(wanted))
    assert 0 < J.shape[1] < sum(p.numel() for p in network.parameters())
    assert tangent_features(network, X, layers="last_blocks", n_features=None).shape == J.shape
    np.testing.assert_allclose(tangent_kernel(network, X, layers="last_blocks"), J @ J.T, rtol=1e-8)


@pytest.mark.parametrize(
    ("layers", "error", "message"),
    [
        ("first", InvalidParameterError, "'layers' parameter of .* 'last_blocks', 'adapters'"),
        (3, InvalidTypeError, "'layers' parameter of .* or a function of a parameter's name"),
        ("adapters", InvalidParameterError, "mostly frozen. Got .*one that trains"),
        (lambda name, p: False, InvalidParameterError, "true for some trained parameter.*head.weight"),
    ],
)
def test_what_chooses_nothing_is_named(network, layers, error, message):
    with pytest.raises(error, match=f"(?s){message}"):
        tangent_kernel(network, TOKENS, layers=layers)
    learner = learner_of(net_of(network), TOKENS[:4], np.arange(4) % 3)
    with pytest.raises(error, match=f"(?s){message}"):
        NTKLookahead(layers=layers).select(learner, TOKENS[4:], 1)


@pytest.mark.parametrize("layers", ["last_blocks", "all"])
@pytest.mark.parametrize("n_features", [None, "auto"])
def test_look_ahead_is_by_the_chosen_parameters(network, layers, n_features):
    learner = learner_of(net_of(network), TOKENS[:4], np.arange(4) % 3)
    J = gradients(network, TOKENS, WANTED[layers])
    K = J @ J.T
    K /= K[:4, :4].diagonal().mean()
    S = K[4:, 4:] - K[4:, :4] @ np.linalg.inv(K[:4, :4] + 1e-2 * np.eye(4)) @ K[:4, 4:]
    with torch.no_grad():
        z = network(torch.as_tensor(TOKENS[4:])).numpy()
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    g, tau = 1 - np.square(p).sum(1), np.square(z - z.mean(1, keepdims=True)).mean()
    expected = g * (np.square(S) @ g) / (1 + tau * g * S.diagonal())
    found = NTKLookahead(layers=layers, n_features=n_features).scores(learner, TOKENS[4:])
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_layers_mean_a_tangent_kernel_even_where_all_but_the_head_is_frozen(network):
    network.requires_grad_(False)
    network.head.requires_grad_(True)
    learner = learner_of(net_of(network), TOKENS[:4], np.arange(4) % 3)
    chosen, linear = (NTKLookahead(layers=x).scores(learner, TOKENS[4:]) for x in ("adapters", "last"))
    np.testing.assert_allclose(chosen, linear)
    assert not np.allclose(chosen, NTKLookahead().scores(learner, TOKENS[4:]))  # an rbf kernel on features
    with pytest.raises(
        InvalidParameterError, match="'layers' parameter of NTKLookahead must be 'all' with a kernel on"
    ):
        NTKLookahead(layers="last", kernel="rbf").select(learner, TOKENS[4:], 1)


def test_a_net_in_training_is_left_as_it_was(adapted):
    net = NeuralNetClassifier(adapted, criterion=nn.CrossEntropyLoss, train_split=None, verbose=0, max_epochs=1)
    net.fit(TOKENS, np.arange(9) % 3)
    before = {name: value.clone() for name, value in net.module_.state_dict().items()}
    NTKLookahead(layers="adapters").select(learner_of(net, TOKENS[:4], np.arange(4) % 3), TOKENS[4:], 2)
    assert all(torch.equal(value, before[name]) for name, value in net.module_.state_dict().items())
    assert {name for name, p in net.module_.named_parameters() if p.requires_grad} == {
        name for name, p in adapted.named_parameters() if p.requires_grad
    }
