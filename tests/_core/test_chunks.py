"""Tests of skal._core.chunks: batches are cut on a processor, and nothing but their size changes."""

import gc
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from skorch import NeuralNetClassifier
from torch import nn

from skal._core import chunks
from skal._core.chunks import near_cache
from skal._core.last_layer import embeddings, find_last_layer
from skal.context import Network, Samples
from skal.strategies import BADGE, CoreSet, Margin


class Wide(nn.Module):
    """Its convolution gives 256 kB for each sample: sixteen of them are 4 MB."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(1, 64, 3, padding=1)
        self.norm = nn.BatchNorm2d(64)
        self.dropout = nn.Dropout()
        self.head = nn.Linear(64, 3)
        self.sizes = []

    def forward(self, x):
        self.sizes.append(len(x))
        return self.head(self.dropout(self.norm(self.convolution(x)).amax((2, 3))))


@pytest.fixture
def module():
    torch.manual_seed(0)
    return Wide()


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def images(n):
    return np.random.default_rng(0).normal(size=(n, 1, 32, 32)).astype(np.float32)


def test_large_tensors_make_small_parts(module):
    network = Network(module)
    network.all_outputs(Samples(images(200)), 100)
    # two samples are looked at once; 100 are seven parts of 15 and less
    assert module.sizes == [2, *([15] * 6 + [10]) * 2]
    network.all_outputs(Samples(images(100)), 100)
    assert module.sizes[15:] == [15] * 6 + [10]


def test_parts_grow_with_the_threads(module):
    torch.set_num_threads(2)
    list(Network(module).passes(Samples(images(100)), 100))
    assert [len(x) for x in Network(module).passes(Samples(images(100)), 100)] == [25] * 4


def test_few_samples_are_not_cut_and_not_looked_at(module):
    Network(module).all_outputs(Samples(images(64)), 64)
    assert module.sizes == [64]


def test_small_tensors_stay_together():
    batches = Network(nn.Linear(4, 3)).passes(Samples(np.ones((700, 4), dtype=np.float32)), 256)
    assert [len(x) for x in batches] == [256, 256, 188]


def test_samples_of_another_shape_are_looked_at_again(module):
    network = Network(module)
    list(near_cache(network, iter([torch.zeros(100, 1, 32, 32), torch.zeros(100, 1, 8, 8)])))
    assert module.sizes == [2, 2]
    small = near_cache(network, iter([torch.zeros(100, 1, 8, 8), torch.zeros(100, 1, 32, 32)]))
    assert [len(x) for x in small] == [100, *[15] * 6, 10]


def test_dicts_are_cut_in_all_entries():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(1, 100_000)

        def forward(self, a, b):
            return self.layer(a)[:, :2] + b

    batch = {"a": torch.arange(90.0)[:, None], "b": torch.arange(90.0)[:, None]}
    parts = list(near_cache(Network(Two()), iter([batch])))
    assert [len(part["a"]) for part in parts] == [15] * 6
    assert all(torch.equal(part["a"], part["b"]) for part in parts)
    assert torch.equal(torch.cat([part["b"] for part in parts]), batch["b"])


def test_what_torch_fuses_is_seen():
    layer = nn.TransformerEncoderLayer(16, 2, 4096, batch_first=True)
    network = Network(nn.TransformerEncoder(layer, 1, enable_nested_tensor=False))
    largest = chunks._largest_tensor(network, torch.zeros(100, 8, 16))
    assert largest == 8 * 4096 * 4  # of the layer inside, not of the encoder's output
    assert torch.backends.mha.get_fastpath_enabled()


def test_attention_makes_three_tensors_at_once():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

        def forward(self, x):
            return self.attention(x, x, x, need_weights=False)[0].mean(1)

    assert chunks._largest_tensor(Network(Attention()), torch.zeros(100, 8, 16)) == 3 * 8 * 16 * 4


def test_the_look_leaves_the_module_as_it_was(module):
    module.train()
    mean, state = module.norm.running_mean.clone(), torch.get_rng_state()
    next(Network(module).passes(Samples(images(100)), 100))
    assert module.training
    assert torch.equal(module.norm.running_mean, mean)
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(layer._forward_hooks for layer in module.modules())


def test_a_module_that_writes_into_its_input_does_not_change_the_samples(module):
    class Writes(Wide):
        def forward(self, x):
            x -= 1
            return super().forward(x)

    X = images(200)
    writing = Writes()
    writing.load_state_dict(module.state_dict())
    outputs = Network(writing).all_outputs(Samples(X), 100)
    assert np.array_equal(X, images(200))
    torch.testing.assert_close(outputs, Network(module).all_outputs(Samples(X - 1), 100))


def test_modules_are_forgotten():
    known = len(chunks._KNOWN)
    network = Network(Wide())
    next(network.passes(Samples(images(100)), 100))
    assert len(chunks._KNOWN) == known + 1
    del network
    gc.collect()
    assert len(chunks._KNOWN) == known


def test_outputs_and_embeddings_do_not_depend_on_the_parts(module):
    network, samples = Network(module), Samples(images(150))
    module.double()
    module.eval()
    with torch.no_grad():
        truth = module(torch.from_numpy(samples.X).double())
    for batch_size in (150, 100, 30):
        torch.testing.assert_close(network.all_outputs(samples, batch_size), truth)
        features, logits = embeddings(network, samples, batch_size, find_last_layer(network, samples))
        torch.testing.assert_close(logits, truth)
        torch.testing.assert_close(network.module.head(features).detach(), truth)


@pytest.mark.parametrize("strategy", [Margin(), CoreSet(), BADGE(random_state=0)], ids=repr)
def test_strategies_query_the_same_whatever_the_parts(strategy, module, monkeypatch):
    net = NeuralNetClassifier(module.double(), criterion=nn.CrossEntropyLoss, train_split=None, verbose=0).initialize()
    X = images(220).astype(np.float64)
    learner = SimpleNamespace(estimator=net, X_training=X[200:], y_training=np.arange(20) % 3)
    cut = strategy(learner, X[:200], 10)
    assert max(module.sizes) <= 64  # the labelled samples, and what is looked at, are few
    monkeypatch.setattr(chunks, "_FEW", 10_000)
    assert np.array_equal(strategy(learner, X[:200], 10), cut)
    assert max(module.sizes) == 200
