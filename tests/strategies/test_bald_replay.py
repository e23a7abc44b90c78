"""Passes that begin at the first dropout layer against whole ones, and that what comes before runs once."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from skal.context import Network, Samples
from skal.strategies import BALD, _dropout
from skal.strategies._dropout import dropout_outputs
from skal.strategies._replay import Replay

from ..support.learners import learner_of, net_of
from ..support.networks import ResidualBlock, TextTransformer

SEEDS = [3, 1, 4]


class Base(nn.Module):
    """Convolution, then what a subclass does with it."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.rest(self.conv(x)).mean((2, 3)))


class Plain(Base):
    def rest(self, x):
        return self.drop(x)


class ReluInPlace(Base):
    def rest(self, x):
        x = torch.relu_(x)
        x.add_(1)
        return self.drop(x) + x


class OverwritesAfterwards(Base):
    def rest(self, x):
        x += self.drop(x)
        return x


class OverwritesUnseen(Base):
    def rest(self, x):
        dropped = self.drop(x)
        x.data.add_(dropped)  # no version counter sees this
        return x


class Inference(Base):
    def rest(self, x):
        with torch.inference_mode():
            y = x * 2
        return self.drop(y.clone())


class LooksAtValues(Base):
    def rest(self, x):
        n = int((x > 0).sum())
        lengths = (x.flatten(1) > 0).sum(1).tolist()
        return self.drop(x * n / max(lengths))


class AsManyAsItLikes(Base):
    """What it does before dropout depends on how often it has been called."""

    calls = 0

    def rest(self, x):
        self.calls += 1
        for _ in range(self.calls % 2):
            x = x.exp().log()
        return self.drop(x)


class AtTheInput(Base):
    def forward(self, x):
        return super().forward(self.drop(x))

    def rest(self, x):
        return x


class Residual(Base):
    def __init__(self):
        super().__init__()
        self.block = ResidualBlock(4, 8, 2)
        self.head = nn.Linear(8, 3)

    def rest(self, x):
        return self.drop(self.block(x))


IMAGES = np.random.default_rng(0).normal(size=(11, 3, 6, 6)).astype(np.float32)
TOKENS = np.random.default_rng(0).integers(11, size=(11, 6))
NETWORKS = [
    Plain,
    ReluInPlace,
    OverwritesAfterwards,
    OverwritesUnseen,
    Inference,
    LooksAtValues,
    AtTheInput,
    Residual,
    lambda: TextTransformer(dropout=0.3),
    lambda: TextTransformer(dropout=0.3, batch_first=False),
]


def samples_for(module):
    return TOKENS if isinstance(module, TextTransformer) else IMAGES


@pytest.mark.parametrize("build", NETWORKS)
def test_passes_are_those_of_the_whole_network(build, monkeypatch):
    torch.manual_seed(0)
    network = Network(build())
    X = samples_for(network.module)
    outputs = torch.cat(list(dropout_outputs(network, Samples(X), 4, SEEDS, "test")), dim=1)
    monkeypatch.setattr(_dropout, "replay_bytes", lambda run, n_runs: None)
    whole = torch.cat(list(dropout_outputs(network, Samples(X), 4, SEEDS, "test")), dim=1)
    assert torch.equal(outputs, whole)
    assert not torch.equal(outputs[0], outputs[1])


def test_a_network_that_never_does_the_same_twice():
    torch.manual_seed(0)
    network = Network(AsManyAsItLikes())
    outputs = torch.cat(list(dropout_outputs(network, Samples(IMAGES), 4, SEEDS, "test")), dim=1)
    plain = Plain()
    plain.load_state_dict(network.module.state_dict())
    expected = torch.cat(list(dropout_outputs(Network(plain), Samples(IMAGES), 4, SEEDS, "test")), dim=1)
    torch.testing.assert_close(outputs, expected)


class Convolutions(TorchDispatchMode):
    """Counts the samples that are really convolved."""

    def __init__(self):
        super().__init__()
        self.n = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.convolution.default:
            self.n += args[0].shape[0]
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("build", "times"), [(Plain, 1), (ReluInPlace, 1), (OverwritesAfterwards, 3), (AtTheInput, 3)])
def test_what_comes_before_dropout_runs_once(build, times):
    network = Network(build())
    with Convolutions() as few:
        next(dropout_outputs(network, Samples(IMAGES[:2]), 4, SEEDS, "test"))
    with Convolutions() as many:
        list(dropout_outputs(network, Samples(np.concatenate([IMAGES[:2], IMAGES])), 4, SEEDS, "test"))
    assert many.n - few.n == 11 * times


def test_chunks_keep_to_the_memory_for_what_is_repeated(monkeypatch):
    network = Network(Plain())
    sizes = []
    run = Replay.run

    def noting(self, function):
        result = run(self, function)
        sizes.append((self.n_bytes, result.shape[0]))
        return result

    monkeypatch.setattr(Replay, "run", noting)
    kept = 4 * 4 * 16  # of a sample: what the convolution returns
    outputs = dropout_outputs(network, Samples(IMAGES), 256, SEEDS, "test", memory=3 * kept)
    assert [chunk.shape[1] for chunk in outputs] == [3, 3, 3, 2]
    assert max(n_bytes for n_bytes, _ in sizes) == 3 * kept


def test_scores_through_the_strategy(monkeypatch):
    torch.manual_seed(0)
    learner = learner_of(net_of(ReluInPlace()))
    expected = BALD(random_state=0).scores(learner, IMAGES)
    monkeypatch.setattr(_dropout, "replay_bytes", lambda run, n_runs: None)
    np.testing.assert_array_equal(BALD(random_state=0).scores(learner, IMAGES), expected)
