"""The last layer, as a context finds it in any architecture: by hooks alone."""

import numpy as np
import pytest
import torch
from torch import nn

from skal import config_context
from skal.context import QueryContext
from skal.exceptions import OutputError, SampleOrderWarning, UnsupportedLayerError
from skal.nets import CNN, MLP, ConvNet, ResNet18, SquaredLoss

from ..support.learners import learner_of, net_of
from ..support.networks import ResidualBlock, TextTransformer, count_hooks
from ..support.unusual import AuxiliaryHead, LossInside, Plain, SortsItsBatch


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)  # defined first, called last
        self.stem = nn.Conv2d(1, 4, 3)
        self.blocks = nn.Sequential(ResidualBlock(4, 4, 1), ResidualBlock(4, 4, 1))
        self.pool = nn.AdaptiveAvgPool2d(1)

    def forward(self, x):
        return self.fc(torch.flatten(self.pool(self.blocks(self.stem(x))), 1))


class UnusedAfterHead(Residual):
    """Layers that come after the head in ``named_modules`` and are never called."""

    def __init__(self):
        super().__init__()
        self.auxiliary = nn.Linear(4, 7)
        self.more = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))


class RowsAsTokens(TextTransformer):
    """A transformer on images of 8 × 8 pixels."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(8, 8)

    def forward(self, x):
        return super().forward(x[:, 0])


class InPlaceAfterHead(MLP):
    """Overwrites what the head returned."""

    def forward(self, x):
        return super().forward(x).mul_(2.0)


class OverwritesFeatures(MLP):
    """Overwrites what the head received, after it has been used."""

    def forward(self, x):
        features = self.features(x)
        logits = self.fc(features)
        features.zero_()
        return logits


IMAGES = np.random.default_rng(0).normal(size=(9, 1, 8, 8)).astype(np.float32)
FOUND = [
    (lambda: MLP((1, 8, 8), 3, hidden=(16, 12)), "fc", 12),
    (lambda: CNN(1, 3, 8, dropout=0.5), "fc3", 84),
    (lambda: ConvNet(1, 3, width=6), "fc", 6),
    (lambda: ResNet18(in_channels=1, n_classes=3, width=4), "fc", 32),
    (Residual, "fc", 4),
    (UnusedAfterHead, "fc", 4),
    (RowsAsTokens, "head", 8),
    (lambda: OverwritesFeatures((1, 8, 8), 3, hidden=(16,)), "fc", 16),
    (lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)), "3", 5),
    (lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), "1", 64),
]


def context_of(module, X, criterion=nn.CrossEntropyLoss):
    """What a strategy sees of a net with this module, and of this pool."""
    return QueryContext(learner_of(net_of(module, criterion)), X)


def embed(context, batch_size):
    with config_context(batch_size=batch_size):
        return QueryContext(context.learner, context.pool.X).embeddings()


@pytest.mark.parametrize(("make", "name", "width"), FOUND)
def test_last_layer_is_found(make, name, width):
    torch.manual_seed(0)
    module = make()
    module.train()
    forward, hooks = type(module).forward, count_hooks(module)
    context = context_of(module, IMAGES)
    last = context.last_layer
    assert (last.name, last.width) == (name, width)
    assert last.layer is module.get_submodule(last.name)
    assert last.gives_logits

    features, logits = embed(context, 4)
    assert features.shape == (9, last.width)
    # the proof that these are the layer's inputs: it maps them to the network's output
    with torch.no_grad():
        rebuilt = last.layer(features)
        expected = module.eval()(torch.from_numpy(IMAGES))
    torch.testing.assert_close(rebuilt, logits)
    torch.testing.assert_close(logits, expected)
    assert count_hooks(module) == hooks
    assert type(module).forward is forward
    assert "forward" not in vars(module)


def test_the_users_hooks_stay():
    module = MLP(4, 3, hidden=(5,))
    calls = []
    module.fc.register_forward_hook(lambda *_: calls.append(1))
    embed(context_of(module, np.ones((3, 4), dtype=np.float32)), 2)
    assert count_hooks(module) == 1
    assert len(calls) == 5  # one pass to find it, two to see that samples stay in order, two batches


class ReversesItsBatch(Plain):
    """Works on the samples from the last to the first, and gives them back in order."""

    def forward(self, x):
        return super().forward(x.flip(0)).flip(0)


def test_one_order_is_enough_for_a_linear_layer_that_gives_the_outputs():
    torch.manual_seed(0)
    module = MLP(4, 3, hidden=(5,))
    calls = []
    module.fc.register_forward_hook(lambda *_: calls.append(1))
    X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    last = context_of(module, X).last_layer
    assert (last.name, last.width, last.gives_logits, last.in_order) == ("fc", 5, True, True)
    assert len(calls) == 2  # to find it, and to see that samples stay in order


class ShiftsItsBatch(Plain):
    def forward(self, x):
        return super().forward(x.roll(1, 0)).roll(-1, 0)


class SwapsHalves(Plain):
    def forward(self, x):
        half = len(x) // 2
        return super().forward(x.roll(half, 0)).roll(-half, 0)


class StaysSorted(Plain):
    """Outputs in another order than the samples, which no strategy can use."""

    def forward(self, x):
        return super().forward(x[x[:, 0].argsort()])


@pytest.mark.filterwarnings("ignore::skal.exceptions.UnsteadyOutputWarning")
@pytest.mark.parametrize("n", [1, 2, 3, 30])
@pytest.mark.parametrize("kind", [SortsItsBatch, ReversesItsBatch, ShiftsItsBatch, SwapsHalves, StaysSorted])
def test_samples_that_change_places_are_seen(kind, n):
    torch.manual_seed(0)
    X = np.random.default_rng(0).normal(size=(n, 5)).astype("float32")
    for some in (X[X[:, 0].argsort()], X[X[:, 0].argsort()[::-1]]):  # a sort of these leaves them as they are
        assert context_of(kind().eval(), some).last_layer.in_order == (n == 1)


@pytest.mark.parametrize("make", [lambda: MLP(4, 3, hidden=(5,)), Residual])
def test_hooks_are_removed_after_an_error(make):
    module = make()
    context = context_of(module, np.ones((3, 2), dtype=np.float32))  # one of a wrong shape
    before = count_hooks(module)
    with pytest.raises(RuntimeError, match=r"shape|dimension|size"):
        _ = context.last_layer
    assert count_hooks(module) == before


def test_hooks_are_removed_when_outputs_are_refused():
    module = nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1))
    context = context_of(module, np.ones((3, 4), dtype=np.float32))
    with pytest.raises(OutputError, match="must return logits"):
        embed(context, 2)
    assert count_hooks(module) == 0


@pytest.mark.parametrize(("end", "criterion"), [(nn.Softmax(-1), nn.NLLLoss), (nn.LogSoftmax(-1), nn.CrossEntropyLoss)])
def test_a_softmax_after_the_last_layer_is_seen_through(end, criterion):
    last = context_of(nn.Sequential(nn.Linear(4, 3), end), np.ones((2, 4), dtype=np.float32), criterion).last_layer
    assert last.name == "0"
    assert last.gives_logits


def test_a_softmax_before_the_squared_loss_has_a_derivative_of_its_own():
    module = nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1))
    X = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    assert not context_of(module, X, SquaredLoss).last_layer.gives_logits
    context = context_of(module, X, nn.NLLLoss)
    assert context.last_layer.gives_logits
    with torch.no_grad():
        module[0].weight.mul_(100)  # probabilities of which float32 cannot tell some from zero
        torch.testing.assert_close(embed(context, 2)[1], module[0](torch.as_tensor(X)))


@pytest.mark.parametrize("module", [InPlaceAfterHead(4, 3, hidden=(5,)), nn.Sequential(nn.Linear(4, 3), nn.Tanh())])
def test_what_changes_the_outputs_afterwards_is_noticed(module):
    assert not context_of(module, np.ones((2, 4), dtype=np.float32)).last_layer.gives_logits


def test_a_module_without_layers_is_refused():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.unused = nn.Linear(2, 2)

        def forward(self, x):
            return x[:, :2]

    with pytest.raises(UnsupportedLayerError, match=r"at least one layer .* Got Own, .* Use layers"):
        _ = context_of(Own(), np.ones((2, 4), dtype=np.float32)).last_layer


class CallsByName(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(input=torch.relu(self.body(x)))


def test_a_layer_that_is_called_by_the_name_of_its_argument_is_seen():
    module, X = CallsByName(), np.random.default_rng(0).normal(size=(7, 5)).astype("float32")
    context = context_of(module, X)
    last = context.last_layer
    assert (last.name, last.width, last.gives_logits) == ("head", 4, True)
    features, logits = embed(context, 3)
    expected = torch.relu(module.body(torch.as_tensor(X)))
    torch.testing.assert_close(features, expected.detach())
    torch.testing.assert_close(logits, module.head(expected).detach())


class ReturnsAList(CallsByName):
    def forward(self, x):
        return [super().forward(x)]


def test_outputs_that_are_no_tensor_are_refused_by_name():
    with pytest.raises(OutputError, match="Got list instead"):
        _ = context_of(ReturnsAList(), np.zeros((3, 5), dtype="float32")).last_layer


class HeadTwice(Plain):
    """The same head for the outputs, and then for features that were distorted."""

    def forward(self, x):
        features = self.features(x)
        logits = self.fc(features)
        return logits, self.fc(features.flip(1))


class FrozenBackbone(AuxiliaryHead):
    def forward(self, x):
        with torch.no_grad():
            features = self.features(x)
        logits = self.fc(features)
        return logits, self.auxiliary(features)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("kind", [AuxiliaryHead, LossInside, HeadTwice, FrozenBackbone])
def test_the_last_layer_is_the_one_that_makes_the_outputs(kind, frozen):
    torch.manual_seed(0)
    module = kind().requires_grad_(not frozen).eval()
    X = np.random.default_rng(0).normal(size=(9, 5)).astype("float32")
    context = context_of(module, X)
    last = context.last_layer
    assert (last.name, last.width, last.gives_logits, last.in_order) == ("fc", 16, True, True)
    features, logits = embed(context, 4)
    with torch.no_grad():
        torch.testing.assert_close(features, module.features(torch.as_tensor(X)))
        torch.testing.assert_close(module.fc(features), logits)
    assert all(p.grad is None for p in module.parameters())
    assert count_hooks(module) == 0


def test_outputs_of_another_shape_are_left_to_whoever_reads_them():
    module = nn.Sequential(nn.Linear(5, 1), nn.Flatten(0))  # one number per sample, without a second dimension
    last = context_of(module, np.random.default_rng(0).normal(size=(9, 5)).astype("float32")).last_layer
    assert (last.name, last.gives_logits, last.in_order) == ("0", False, True)


def test_of_outputs_without_a_graph_the_layer_that_is_called_last_is_taken():
    class NoGraph(MLP):
        @torch.no_grad()
        def forward(self, x):
            return super().forward(x)

    assert context_of(NoGraph(5, 3), np.ones((3, 5), dtype="float32")).last_layer.name == "fc"


def test_a_recurrent_layer_may_be_the_last_one():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.gru = nn.Embedding(7, 4), nn.GRU(4, 3, batch_first=True)

        def forward(self, tokens):
            return self.gru(self.embedding(tokens))[1][0]

    last = context_of(Recurrent(), np.arange(12).reshape(2, 6) % 7).last_layer
    assert (last.name, last.width, last.gives_logits) == ("gru", 24, False)


@pytest.mark.parametrize("in_order", [True, False])
def test_samples_are_embedded_one_by_one_if_a_network_reorders_them(in_order):
    torch.manual_seed(0)
    X = np.random.default_rng(0).normal(size=(20, 5)).astype("float32")
    if in_order:  # so are the first ones, and nothing seems wrong
        X[:6] = X[X[:6, 0].argsort()[::-1]]
    module = SortsItsBatch().eval()
    context = context_of(module, X)
    assert not context.last_layer.in_order
    assert context.last_layer.gives_logits
    with pytest.warns(SampleOrderWarning, match=r"'fc' does not receive .* one by one, .* Restore the order"):
        features, logits = embed(context, 7)
    with torch.no_grad():
        torch.testing.assert_close(features, module.features(torch.as_tensor(X)))
        torch.testing.assert_close(logits, module(torch.as_tensor(X)))
