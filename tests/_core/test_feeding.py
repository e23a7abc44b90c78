"""All rows arrive, in their order, whatever the net's iterator says; and batches are cut on a processor."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from skorch import NeuralNetClassifier
from skorch.dataset import Dataset as SkorchDataset
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset

import skal.strategies
from skal import config_context
from skal.base import QueryStrategy
from skal.checks import make_learner
from skal.context import Network, QueryContext, Samples
from skal.exceptions import SampleError
from skal.strategies import BADGE, BALD, CoreSet, Margin

from ..support.learners import learner_of, net_of
from ..support.networks import count_hooks


class OwnDataset(SkorchDataset):
    """As of a user who prepares samples."""


class Shuffling(DataLoader):
    """Shuffles whatever it is told."""

    def __init__(self, dataset, **settings):
        super().__init__(dataset, shuffle=True, **settings)


def backwards(dataset, batch_size):
    """An iterator that is no DataLoader, and reads from the end."""
    for start in range(0, len(dataset), batch_size):
        rows = [len(dataset) - 1 - row for row in range(start, min(start + batch_size, len(dataset)))]
        yield torch.stack([torch.as_tensor(dataset[row][0]) for row in rows]), torch.zeros(len(rows))


def told(**settings):
    learner, X_pool = make_learner()
    vars(learner.estimator).update(dataset=OwnDataset, **settings)
    return learner, X_pool


@pytest.fixture(autouse=True)
def small_batches():
    with config_context(batch_size=16):
        yield


SETTINGS = {
    "drop_last": {"iterator_valid__drop_last": True},
    "shuffle": {"iterator_valid__shuffle": True},
    "sampler": {"iterator_valid__sampler": RandomSampler(range(40))},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("container", [np.asarray, lambda X: TensorDataset(torch.as_tensor(X))], ids=["array", "set"])
@pytest.mark.parametrize("strategy", [Margin(), CoreSet(), BALD(random_state=0)], ids=repr)
def test_settings_that_reorder_do_not_count(strategy, container, settings):
    expected = strategy.select(*make_learner(), 5)[0]
    learner, X_pool = told(**settings)
    assert np.array_equal(strategy.select(learner, container(X_pool), 5)[0], expected)


@pytest.mark.parametrize("iterator", [Shuffling, backwards])
def test_iterators_that_reorder_are_refused(iterator):
    learner, X_pool = told(iterator_valid=iterator)
    with pytest.raises(SampleError, match=r"X_pool must be read in their order.*Use torch"):
        Margin().scores(learner, X_pool)


@pytest.mark.parametrize("n", [0, 5, 39])
def test_an_iterator_that_leaves_rows_out_is_refused(n):
    def some(dataset, batch_size):
        whole = DataLoader(dataset, batch_size=batch_size)
        yield from [batch for _, batch in zip(range(n // batch_size), whole, strict=False)]

    learner, X_pool = told(iterator_valid=some)
    with pytest.raises(SampleError, match="All 40 samples of X_pool must arrive"):
        Margin().scores(learner, X_pool)


def test_a_collate_function_that_loses_a_sample_is_refused():
    learner, X_pool = told(
        iterator_valid__collate_fn=lambda items: torch.as_tensor(np.stack([x for x, _ in items[1:]]))
    )
    with pytest.raises(SampleError, match="another size than 16 after 0"):
        Margin().scores(learner, X_pool)


class Shrinking(Dataset):
    """Loses a sample whenever its length is asked for often enough."""

    def __init__(self, X):
        self.X, self.read = X, 0

    def __len__(self):
        return len(self.X) - (self.read > 3)

    def __getitem__(self, row):
        self.read += 1
        return self.X[row]


@pytest.mark.filterwarnings("ignore::skal.exceptions.CrossEntropyWarning")
@pytest.mark.parametrize("name", skal.strategies.__all__)
def test_a_dataset_that_shrinks_is_refused(name):
    cls = getattr(skal.strategies, name)
    if not isinstance(cls, type) or not issubclass(cls, QueryStrategy) or name in ("RandomSampling", "LearningLoss"):
        return  # the first reads no sample, the other needs a network of its own
    learner, X_pool = make_learner()
    with (
        config_context(batch_size=8),
        pytest.raises(SampleError, match=r"must keep its samples during a query. Got a Shrinking of 40"),
    ):
        cls().select(learner, Shrinking(X_pool), 3)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sample_that_cannot_be_read_is_named(workers):
    class Files(TensorDataset):
        def __getitem__(self, row):
            if row == 23:
                raise OSError("truncated file")
            return super().__getitem__(row)

    learner, X_pool = make_learner()
    vars(learner.estimator).update(iterator_valid__num_workers=workers)
    with pytest.raises(SampleError, match="OSError in row 23: truncated file") as caught:
        Margin().scores(learner, Files(torch.as_tensor(X_pool)))
    assert workers or isinstance(caught.value.__cause__, OSError)


# --- parts near the cache -------------------------------------------------------------------------------------------


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


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def images(n):
    return np.random.default_rng(0).normal(size=(n, 1, 32, 32)).astype(np.float32)


def test_large_tensors_make_small_parts(module, one_thread):
    network = Network(module)
    network.all_outputs(Samples(images(200)), 100)
    # two samples are looked at once, and four passed again; 100 are seven parts of 15 and less
    assert module.sizes == [2, 15, 4, *[15] * 5, 10, *[15] * 6, 10]
    network.all_outputs(Samples(images(100)), 100)
    assert module.sizes[16:] == [15] * 6 + [10]


def test_parts_grow_with_the_threads(module, one_thread):
    torch.set_num_threads(2)
    list(Network(module).passes(Samples(images(100)), 100))
    assert [len(x) for x in Network(module).passes(Samples(images(100)), 100)] == [25] * 4


def test_few_samples_are_not_cut_and_not_looked_at(module):
    Network(module).all_outputs(Samples(images(64)), 64)
    assert module.sizes == [64, 4]  # the second pass is to see whether outputs stay the same


def test_small_tensors_stay_together():
    batches = Network(nn.Linear(4, 3)).passes(Samples(np.ones((700, 4), dtype=np.float32)), 256)
    assert [len(x) for x in batches] == [256, 256, 188]


def test_dicts_are_cut_in_all_entries(one_thread):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(1, 100_000)

        def forward(self, a, b):
            return self.layer(a)[:, :2] + b

    batch = {"a": torch.arange(90.0)[:, None], "b": torch.arange(90.0)[:, None]}
    parts = list(Network(Two()).passes(Samples(batch), 90))
    assert [len(part["a"]) for part in parts] == [15] * 6
    assert all(torch.equal(part["a"], part["b"]) for part in parts)
    assert torch.equal(torch.cat([part["b"] for part in parts]), batch["b"])


def parts_of(module, shape, n=100):
    return [len(x) for x in Network(module).passes(Samples(np.zeros((n, *shape), dtype=np.float32)), n)]


def test_what_torch_fuses_is_seen(one_thread):
    layer = nn.TransformerEncoderLayer(16, 2, 8192, batch_first=True)  # 256 kB for a sample, inside the layer
    assert max(parts_of(nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), (8, 16))) <= 16
    assert torch.backends.mha.get_fastpath_enabled()


def test_attention_makes_three_tensors_at_once(one_thread):
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(256, 2, batch_first=True)

        def forward(self, x):
            return self.attention(x, x, x, need_weights=False)[0].mean(1)

    assert parts_of(Attention(), (86, 256), 70) == [14] * 5  # 3 × 88 kB for a sample: fifteen of them are 4 MB


def test_the_look_leaves_the_module_as_it_was(module):
    module.train()
    mean, state = module.norm.running_mean.clone(), torch.get_rng_state()
    next(Network(module).passes(Samples(images(100)), 100))
    assert module.training
    assert torch.equal(module.norm.running_mean, mean)
    assert torch.equal(torch.get_rng_state(), state)
    assert count_hooks(module) == 0


def test_outputs_and_embeddings_do_not_depend_on_the_parts(module, one_thread):
    module.double()
    network, samples = Network(module), Samples(images(80))
    module.eval()
    with torch.no_grad():
        truth = module(torch.from_numpy(samples.X).double())
    for batch_size in (80, 30):
        torch.testing.assert_close(network.all_outputs(samples, batch_size), truth)
        with config_context(batch_size=batch_size):
            features, logits = QueryContext(learner_of(net_of(module)), samples.X).embeddings()
        torch.testing.assert_close(logits, truth)
        torch.testing.assert_close(network.module.head(features).detach(), truth)


@pytest.mark.parametrize("strategy", [Margin(), CoreSet(), BADGE(random_state=0)], ids=repr)
def test_strategies_query_the_same_whatever_the_parts(strategy, module, one_thread):
    net = NeuralNetClassifier(module.double(), criterion=nn.CrossEntropyLoss, train_split=None, verbose=0).initialize()
    X = images(220).astype(np.float64)
    learner = SimpleNamespace(estimator=net, X_training=X[200:], y_training=np.arange(20) % 3)
    with config_context(batch_size=200):
        cut = strategy(learner, X[:200], 10)
    assert max(module.sizes) <= 64  # the labelled samples, and what is looked at, are few
    with config_context(batch_size=10):
        assert np.array_equal(strategy(learner, X[:200], 10), cut)
