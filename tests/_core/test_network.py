"""A module as a map to logits, left as it was found."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from skorch import NeuralNet, NeuralNetBinaryClassifier, NeuralNetClassifier
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from skal import config_context
from skal.context import Network, Samples
from skal.exceptions import InvalidTypeError, NoNetworkError, NonFiniteError, NotFittedError
from skal.nets import MLP
from skal.strategies import BADGE, EGL, DynamicAL, Margin, NTKLookahead

X = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)


def linear(n_in=4, n_out=3):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(n_in, n_out)


def all_logits(network, X, batch_size=5, **kwargs):
    return network.all_logits(Samples(X, **kwargs), batch_size)


def test_a_bare_module_gives_logits():
    module = linear()
    expected = X.astype(float) @ module.weight.detach().double().numpy().T + module.bias.detach().double().numpy()
    logits = all_logits(Network(module), X)
    assert not logits.requires_grad
    np.testing.assert_allclose(logits.numpy(), expected, rtol=1e-5, atol=1e-6)


@given(st.integers(1, 20))
def test_any_batch_size_gives_the_same(batch_size):
    network = Network(linear())
    np.testing.assert_allclose(all_logits(network, X, batch_size), all_logits(network, X, 12), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [None, np.arange(149, -1, -1), range(7, 150)], ids=["all", "in an order", "a range"])
@pytest.mark.parametrize("kind", ["float32", "float64", "fortran", "backwards", "readonly", "tensor", "double"])
def test_more_batches_than_are_read_at_once(kind, rows):
    pool = np.random.default_rng(0).normal(size=(150, 4)).astype(np.float32)
    makes = {
        "float64": lambda: pool.astype(np.float64),
        "fortran": lambda: np.asfortranarray(pool),
        "backwards": lambda: pool[::-1].copy()[::-1],
        "readonly": lambda: np.frombuffer(pool.tobytes(), np.float32).reshape(pool.shape),
        "tensor": lambda: torch.from_numpy(pool),
        "double": lambda: torch.from_numpy(pool).double(),
    }
    module = linear()
    samples = Samples(makes.get(kind, lambda: pool)(), rows=rows)
    expected = pool[list(samples.rows)] @ module.weight.detach().numpy().T + module.bias.detach().numpy()
    batches = list(Network(module).batches(samples, 2))
    assert all(batch.dtype == torch.float32 and len(batch) <= 2 for batch in batches)
    np.testing.assert_allclose(Network(module).all_logits(samples, 2).numpy(), expected, rtol=1e-5, atol=1e-6)


class Rows(Dataset):
    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        return X[i], i % 3


def as_memory_map(tmp_path):
    np.save(tmp_path / "X.npy", X)
    return np.load(tmp_path / "X.npy", mmap_mode="r")


CONTAINERS = {
    "float64": lambda _: X.astype(np.float64),
    "tensor": lambda _: torch.from_numpy(X),
    "float64 tensor": lambda _: torch.from_numpy(X).double(),
    "list": lambda _: X.tolist(),
    "memory map": as_memory_map,
    "read-only": lambda _: np.broadcast_to(X, X.shape),
    "reversed view": lambda _: X[::-1].copy()[::-1],
    "Dataset": lambda _: Rows(),
    "TensorDataset": lambda _: TensorDataset(torch.from_numpy(X)),
}


@pytest.mark.parametrize("make", CONTAINERS.values(), ids=CONTAINERS)
@pytest.mark.parametrize("skorch_net", [True, False])
def test_containers_give_the_same(make, skorch_net, tmp_path):
    network = Network(linear())
    expected = all_logits(network, X)
    if skorch_net:
        net = NeuralNetClassifier(linear(), criterion=nn.CrossEntropyLoss).initialize()
        network = Network(net)
    np.testing.assert_allclose(all_logits(network, make(tmp_path)), expected, rtol=1e-6, atol=1e-6)
    rows = np.array([7, 1, 1, 4])
    np.testing.assert_allclose(all_logits(network, make(tmp_path), 3, rows=rows), expected[rows], rtol=1e-6, atol=1e-6)


def test_frames_reach_a_bare_module():
    np.testing.assert_allclose(all_logits(Network(linear()), pd.DataFrame(X)), all_logits(Network(linear()), X))


def test_integers_stay_integers():
    embedding = nn.Sequential(nn.Embedding(5, 3), nn.Flatten())
    tokens = np.array([[0], [4], [2]])
    assert torch.equal(all_logits(Network(embedding), tokens), embedding[0].weight[[0, 4, 2]].detach())


def test_text_is_refused():
    with pytest.raises(InvalidTypeError, match=r"must be numbers\. Got an array of dtype .* instead\. Encode"):
        all_logits(Network(linear()), np.array([["a"] * 4]))


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = linear(2), linear(2)

    def forward(self, left, right):
        return self.left(left) - self.right(right)


def test_dicts_are_keyword_arguments():
    module = TwoInputs()
    inputs = {"right": X[:, :2], "left": torch.from_numpy(X[:, 2:])}
    expected = module(torch.from_numpy(X[:, 2:]), torch.from_numpy(X[:, :2])).detach()
    for net in (module, NeuralNetClassifier(module, criterion=nn.CrossEntropyLoss).initialize()):
        np.testing.assert_allclose(all_logits(Network(net), inputs), expected, rtol=1e-5, atol=1e-6)


def test_the_first_of_several_outputs_counts():
    class WithAuxiliary(nn.Linear):
        def forward(self, x):
            return super().forward(x), torch.zeros(1)

    assert all_logits(Network(WithAuxiliary(4, 3)), X).shape == (12, 3)


def test_a_net_with_its_own_collate_function_is_respected():
    def doubled(items):
        inputs, targets = zip(*items, strict=True)
        return 2 * torch.as_tensor(np.stack(inputs)), torch.as_tensor(targets)

    settings = {"criterion": nn.CrossEntropyLoss, "iterator_valid__collate_fn": doubled}
    net = NeuralNetClassifier(linear(), **settings).initialize()
    expected = all_logits(Network(linear()), 2 * X)
    np.testing.assert_allclose(all_logits(Network(net), X), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(net.forward(X), expected, rtol=1e-5, atol=1e-6)


def test_other_parameters_can_be_put_in():
    network = Network(linear())
    zeros = {name: torch.zeros_like(p) for name, p in network.trainable().items()}
    assert network.logits(torch.ones(2, 4), zeros).abs().max() == 0
    assert network.logits(torch.ones(2, 4)).abs().max() > 0


def test_trainable_parameters_leave_out_frozen_and_count_tied_ones_once():
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    module[1].weight = module[0].weight
    module[2].weight.requires_grad_(False)
    assert list(Network(module).trainable()) == ["0.weight", "0.bias", "1.bias", "2.bias"]


def test_dtype_and_device_are_the_parameters():
    network = Network(linear().double())
    assert network.dtype == torch.float64
    assert network.device.type == "cpu"
    assert all_logits(network, X).dtype == torch.float64
    assert Network(nn.ReLU()).dtype == torch.float32


def test_what_is_not_a_network_is_refused():
    with pytest.raises(NoNetworkError, match=r"Got LogisticRegression instead\. Wrap"):
        Network(LogisticRegression())
    with pytest.raises(NotFittedError, match=r"Got an unfitted NeuralNet instead\. Call fit"):
        Network(NeuralNet(MLP, criterion=nn.MSELoss))


@pytest.mark.parametrize("row", [0, 5, 11])
def test_outputs_that_are_not_finite_in_any_batch_are_refused(row):
    class Diverged(nn.Module):
        def forward(self, x):
            return torch.where(x[:, :1] == row, torch.inf, x)

    numbers = np.tile(np.arange(12, dtype=np.float32)[:, None], 2)
    with pytest.raises(NonFiniteError, match="outputs must be finite"):
        Network(Diverged()).all_outputs(Samples(numbers), 4)


def test_nonfinite_items_of_a_dataset_are_named_by_their_place():
    spoilt = X.copy()
    spoilt[9, 0] = np.nan
    dataset = TensorDataset(torch.from_numpy(spoilt))
    net = NeuralNetClassifier(linear(), criterion=nn.CrossEntropyLoss).initialize()
    for network in (Network(net), Network(linear())):
        with pytest.raises(NonFiniteError, match=r"X .* row 9\."):
            all_logits(network, dataset, 4)
        with pytest.raises(NonFiniteError, match=r"row 9\."):
            all_logits(network, dataset, 2, rows=np.array([0, 1, 9]))


def test_the_number_of_classes_comes_from_the_output():
    assert Network(linear(4, 7)).n_classes(Samples(X)) == 7
    assert Network(NeuralNetBinaryClassifier(linear(4, 1)).initialize()).n_classes(Samples(X)) == 2


class Writes(nn.Module):
    """Writes into its input, as a preprocessing step in ``forward`` may do."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        x -= 1
        return self.layer(torch.relu_(x))


@pytest.mark.parametrize("mode", [nullcontext, torch.inference_mode], ids=["plain", "inference"])
@pytest.mark.parametrize("container", ["array", "tensor", "dict"])
def test_a_module_that_writes_into_its_input_does_not_change_the_samples(container, mode):
    X = np.random.default_rng(0).normal(size=(23, 4)).astype(np.float32)
    holders = {"array": X.copy(), "tensor": torch.tensor(X), "dict": {"x": X.copy()}}
    torch.manual_seed(0)
    module = Writes()
    with mode():
        found = Network(module).all_outputs(Samples(holders[container]), 5)
    kept = holders["dict"]["x"] if container == "dict" else holders[container]
    np.testing.assert_array_equal(np.asarray(kept), X)
    expected = module.layer(torch.relu(torch.from_numpy(X) - 1)).detach()
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-6)


@pytest.mark.parametrize("strategy", [Margin(), BADGE(random_state=0), DynamicAL(), NTKLookahead(), EGL()])
def test_queries_of_such_a_module_leave_the_pool_as_it_was(strategy):
    X = np.random.default_rng(0).normal(size=(23, 4)).astype(np.float32)
    net = NeuralNetClassifier(Writes, criterion=nn.CrossEntropyLoss, train_split=None, verbose=0).initialize()
    pool, labelled = X.copy(), X[:6].copy()
    with config_context(batch_size=5):
        strategy.select(SimpleNamespace(estimator=net, X_training=labelled, y_training=np.arange(6) % 3), pool, 3)
    np.testing.assert_array_equal(pool, X)
    np.testing.assert_array_equal(labelled, X[:6])
