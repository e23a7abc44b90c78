"""Inside feature_reuse, features of an unchanged network are computed once, and anew after anything has changed."""

import copy
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from skorch import NeuralNetClassifier
from torch import nn
from torch.utils.data import TensorDataset

from skal.context import Network, Samples, TangentEngine
from skal.exceptions import InvalidParameterError
from skal.nets import SquaredLoss
from skal.reuse import feature_reuse, reused
from skal.strategies import ALBL, BADGE, CoreSet, DynamicAL, Entropy, Margin, NTKLookahead

from .support.learners import learner_of


@pytest.fixture(autouse=True)
def _reuse():
    with feature_reuse():
        yield


@pytest.fixture
def own_learner(image_learner):
    """One that may be changed."""
    return learner_of(copy.deepcopy(image_learner.estimator), image_learner.X_training.copy(), image_learner.y_training)


@pytest.fixture
def total(monkeypatch):
    """Samples that go through a network, in a list of one number. A hook would make another module of it.

    The two by which the size of its tensors is found, once for a module, do not count.
    """
    count, output = [0], Network.output

    def counted(self, batch, parameters=None):
        count[0] += len(batch) if len(batch) > 2 else 0
        return output(self, batch, parameters)

    monkeypatch.setattr(Network, "output", counted)
    return count


@pytest.mark.parametrize(
    ("first", "second", "again"),
    [(Entropy(), Margin(), 0), (Entropy(), Entropy(subset=50, random_state=0), 50), (BADGE(), CoreSet(), 20)],
    ids=["outputs", "another part of the pool", "embeddings, but for the labelled ones"],
)
def test_the_second_strategy_of_a_round_makes_no_pass(first, second, again, own_learner, images, total):
    X = images[0]
    with feature_reuse(None):
        expected = second.select(own_learner, X, 5)
    first(own_learner, X, 5)
    before = total[0]
    answer = second.select(own_learner, X, 5)
    # a few samples, to find the last layer and the number of classes, and to see that samples stay in order
    assert again <= total[0] - before <= again + 20
    assert np.array_equal(answer[0], expected[0])
    assert np.array_equal(answer[1], expected[1])


@pytest.fixture
def gradient_samples(monkeypatch):
    """Samples whose gradients are computed, in a list of one number."""
    count, chunks = [0], TangentEngine._chunks

    def counted(self, samples, *args, **kwargs):
        count[0] += len(samples)
        return chunks(self, samples, *args, **kwargs)

    monkeypatch.setattr(TangentEngine, "_chunks", counted)
    return count


LOOKAHEAD = {"criterion": "mlmoc", "random_state": 0, "n_features": 64}


@pytest.mark.parametrize(
    ("first", "second", "again"),
    [
        (DynamicAL(), DynamicAL(gamma=math.inf), 0),
        (DynamicAL(gamma=1), DynamicAL(batch="greedy", random_state=0, n_features=32), 120),  # sketches for the batch
        # the labelled samples, one to see the form of gradients, eight to see that the kernel does not vanish
        (NTKLookahead(**LOOKAHEAD), NTKLookahead(**(LOOKAHEAD | {"criterion": "emoc"})), 29),
        (NTKLookahead(**LOOKAHEAD), NTKLookahead(batch="greedy", **LOOKAHEAD), 29),
        (NTKLookahead(**LOOKAHEAD), NTKLookahead(**(LOOKAHEAD | {"random_state": 1})), 149),  # another sketch
    ],
    ids=["another gamma", "greedy", "another criterion", "greedy look-ahead", "another sketch"],
)
def test_gradients_of_a_round_are_computed_once(
    first, second, again, image_learner, squared_learner, images, gradient_samples
):
    learner = squared_learner if isinstance(first, NTKLookahead) else image_learner
    with feature_reuse(None):
        expected = second.select(learner, images[0], 5)
    first.select(learner, images[0], 5)
    before = gradient_samples[0]
    answer = second.select(learner, images[0], 5)
    assert gradient_samples[0] - before == again
    assert np.array_equal(answer[0], expected[0])
    assert np.array_equal(answer[1], expected[1])


@pytest.mark.parametrize("strategy", [DynamicAL(), NTKLookahead(**LOOKAHEAD)], ids=["dynamicAL", "look-ahead"])
@pytest.mark.parametrize("what", ["a label", "a labelled sample", "a weight", "the pool"])
def test_gradients_are_computed_anew_after_a_change(strategy, what, image_learner, squared_learner, images):
    learner = squared_learner if isinstance(strategy, NTKLookahead) else image_learner
    learner, X = SimpleNamespace(**copy.deepcopy(vars(learner))), images[0].copy()
    stale = strategy.scores(learner, X)
    if what == "a label":
        learner.y_training = (learner.y_training + 1) % 3
    elif what == "a labelled sample":
        learner.X_training[0] += 1
    elif what == "a weight":
        with torch.no_grad():
            next(learner.estimator.module_.parameters()).add_(0.1)
    else:
        X[7] += 1
    answer = strategy.scores(learner, X)
    with feature_reuse(None):
        expected = strategy.scores(learner, X)
    assert np.array_equal(answer, expected)
    assert not np.array_equal(answer, stale)


def test_another_reading_of_the_outputs_is_another_result():
    """The same module as one of probabilities, and as one whose outputs are taken as they are."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), nn.Softmax(1))
    X = np.random.default_rng(0).normal(size=(30, 4)).astype("float32")

    def scores(criterion):
        net = NeuralNetClassifier(module, criterion=criterion, verbose=0).initialize()
        learner = learner_of(net, X[:5], np.arange(5) % 3)
        return NTKLookahead(reference="linearized", random_state=0).scores(learner, X[5:])

    with feature_reuse(None):
        expected = scores(SquaredLoss)
    assert not np.array_equal(scores(nn.NLLLoss), expected)
    assert np.array_equal(scores(SquaredLoss), expected)


def test_the_boundary_between_pool_and_labelled_samples_is_a_part_of_the_key(image_learner, images):
    network = Network(image_learner.estimator)
    X = np.tile(images[0], (26, 1, 1, 1))[: 3 * 1024]  # chunks of 1024 rows are looked at at once
    sizes = []
    for n in (2048, 1024):
        pool, labelled = Samples(X[:n]), Samples(X[n:])
        result = reused(network, pool, "size", lambda n=n: torch.zeros(n), also=(labelled,))
        sizes.append(len(result))
    assert sizes == [2048, 1024]


def test_look_ahead_features_that_would_break_its_bound_are_not_kept(squared_learner, images, gradient_samples):
    for max_memory, again in (("1500KB", True), (None, False)):
        strategy = NTKLookahead(max_memory=max_memory, batch_size=8, **LOOKAHEAD)
        strategy.scores(squared_learner, images[0])
        before = gradient_samples[0]
        strategy.scores(squared_learner, images[0])
        assert (gradient_samples[0] - before >= len(images[0])) is again


def change_weight(learner, X):
    with torch.no_grad():
        learner.estimator.module_.fc3.weight[0, 0] += 1
    return X


def change_buffer(learner, X):
    learner.estimator.module_.norm.running_mean += 1
    return X


def change_attribute(learner, X):
    learner.estimator.module_.temperature = 2.0
    return X


def change_pool(learner, X):
    X[-1] += 1
    return X


def change_order(learner, X):
    return X[np.arange(len(X))[::-1].copy()]


class Tempered(nn.Module):
    """A network that depends on a buffer and on a plain number."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(64)
        self.fc3 = nn.Linear(64, 3)
        self.temperature = 1.0

    def forward(self, x):
        return self.fc3(self.norm(x.flatten(1))) * self.temperature


@pytest.mark.parametrize(
    "change", [change_weight, change_buffer, change_attribute, change_pool, change_order], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("as_tensor", [False, True])
def test_nothing_outdated_is_returned(change, as_tensor, own_learner, images):
    torch.manual_seed(0)
    own_learner.estimator = NeuralNetClassifier(Tempered(), criterion=nn.CrossEntropyLoss, verbose=0).initialize()
    own_learner.estimator.module_.train(False)
    X = torch.as_tensor(images[0].copy()) if as_tensor else images[0].copy()
    stale = Entropy().scores(own_learner, X)
    X = change(own_learner, X)
    answer = Entropy().scores(own_learner, X)
    with feature_reuse(None):
        expected = Entropy().scores(own_learner, X)
    assert np.array_equal(answer, expected)
    assert not np.array_equal(answer, stale)


def test_a_changed_preprocessing_is_noticed(own_learner, images):
    scaler = StandardScaler(with_std=False)
    flat = images[0].reshape(120, -1)
    back = FunctionTransformer(_as_images)
    net = own_learner.estimator
    own_learner.estimator = Pipeline([("scale", scaler.fit(flat)), ("images", back), ("net", net)])
    own_learner.X_training = flat[:20]
    stale = Entropy().scores(own_learner, flat)
    scaler.mean_ += 1
    answer = Entropy().scores(own_learner, flat)
    with feature_reuse(None):
        expected = Entropy().scores(own_learner, flat)
    assert np.array_equal(answer, expected)
    assert not np.array_equal(answer, stale)


def _as_images(X):
    return X.reshape(-1, 1, 8, 8).astype(np.float32)


def test_what_is_given_away_may_be_written_into(own_learner, images):
    from skal.context import QueryContext

    context = QueryContext(own_learner, images[0])
    first = context.embeddings()
    expected = first[0].clone()
    for _ in range(2):
        features, logits = context.embeddings()
        assert torch.equal(features, expected)
        features.zero_()
        logits.zero_()


def test_datasets_are_read_each_time(own_learner, images, total):
    dataset = TensorDataset(torch.as_tensor(images[0]), torch.zeros(120))
    for times in (1, 2):
        Entropy().scores(own_learner, dataset)
        assert total[0] == 120 * times


def test_the_bound_holds_and_the_switch_turns_it_off(own_learner, images, total):
    X = images[0]
    size = 120 * 3 * 4  # outputs in float32
    before = 0

    def passes(part):
        nonlocal before
        Entropy().scores(own_learner, part)
        before, new = total[0], total[0] - before
        return new

    with feature_reuse(2 * size):
        assert [passes(part) for part in (X, X[::-1], X, X[1:])] == [120, 120, 0, 119]
        assert [passes(part) for part in (X, X[1:], X[::-1])] == [0, 0, 120]  # what was used longest ago is gone
        with feature_reuse(0):
            assert passes(X) == 120
        assert passes(X[1:]) == 0
    with feature_reuse(2 * size):
        assert passes(X) == 120  # a block of its own
    with pytest.raises(InvalidParameterError, match="max_memory"), feature_reuse("lots"):
        pass


def test_without_the_block_nothing_is_looked_at_and_nothing_kept(own_learner, images, total, monkeypatch):
    def looked_at(*args):
        raise AssertionError("hashed")

    monkeypatch.setattr("skal.reuse.sha1", looked_at)
    with feature_reuse(None):
        for times in (1, 2):
            Entropy().scores(own_learner, images[0])
            assert total[0] == 120 * times


def test_the_arms_of_one_query_share_their_passes(own_learner, images, total):
    with feature_reuse(None):
        ALBL(arms=[Entropy(), Margin()], random_state=0).select(own_learner, images[0], 5)
        assert total[0] == 120
        ALBL(arms=[Entropy(), Margin(subset=50)], random_state=0).select(own_learner, images[0], 5)
        assert total[0] == 120 + 170
