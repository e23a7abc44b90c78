"""Tests of skal._core.loading: all rows arrive, in their order, whatever the net's iterator says."""

import numpy as np
import pytest
import torch
from skorch.dataset import Dataset as SkorchDataset
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset

import skal.strategies
from skal._core.samples import Samples
from skal._core.sharding import filled
from skal.base import QueryStrategy
from skal.checks import make_learner
from skal.exceptions import OutputError, SampleError
from skal.strategies import BALD, CoreSet, Margin


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


SETTINGS = {
    "drop_last": {"iterator_valid__drop_last": True},
    "shuffle": {"iterator_valid__shuffle": True},
    "sampler": {"iterator_valid__sampler": RandomSampler(range(40))},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("container", [np.asarray, lambda X: TensorDataset(torch.as_tensor(X))], ids=["array", "set"])
@pytest.mark.parametrize("strategy", [Margin(batch_size=16), CoreSet(batch_size=16), BALD(batch_size=16)], ids=repr)
def test_settings_that_reorder_do_not_count(strategy, container, settings):
    strategy.set_params(random_state=0) if "random_state" in strategy.get_params() else None
    expected = strategy.select(*make_learner(), 5)[0]
    learner, X_pool = told(**settings)
    assert np.array_equal(strategy.select(learner, container(X_pool), 5)[0], expected)


@pytest.mark.parametrize("iterator", [Shuffling, backwards])
def test_iterators_that_reorder_are_refused(iterator):
    learner, X_pool = told(iterator_valid=iterator)
    with pytest.raises(SampleError, match=r"X_pool must be read in their order.*Use torch"):
        Margin(batch_size=16).scores(learner, X_pool)


@pytest.mark.parametrize("n", [0, 5, 39])
def test_an_iterator_that_leaves_rows_out_is_refused(n):
    def some(dataset, batch_size):
        whole = DataLoader(dataset, batch_size=batch_size)
        yield from [batch for _, batch in zip(range(n // batch_size), whole, strict=False)]

    learner, X_pool = told(iterator_valid=some)
    with pytest.raises(SampleError, match="All 40 samples of X_pool must arrive"):
        Margin(batch_size=16).scores(learner, X_pool)


def test_a_collate_function_that_loses_a_sample_is_refused():
    learner, X_pool = told(
        iterator_valid__collate_fn=lambda items: torch.as_tensor(np.stack([x for x, _ in items[1:]]))
    )
    with pytest.raises(SampleError, match="another size than 16 after 0"):
        Margin(batch_size=16).scores(learner, X_pool)


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
    strategy = cls(batch_size=8) if "batch_size" in cls().get_params() else cls()
    with pytest.raises(SampleError, match=r"must keep its samples during a query. Got a Shrinking of 40"):
        strategy.select(learner, Shrinking(X_pool), 3)


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
        Margin(batch_size=16).scores(learner, Files(torch.as_tensor(X_pool)))
    assert workers or isinstance(caught.value.__cause__, OSError)


def test_a_step_that_drops_rows_is_refused():
    with pytest.raises(SampleError, match=r"one row for each row of X_pool. Got 3 rows for 4"):
        list(Samples(np.zeros((8, 2)), name="X_pool", transform=lambda X: X[1:]).chunks(4))


@pytest.mark.parametrize("parts", [[2, 2], [2, 3], [], [6]])
def test_nothing_is_returned_from_uninitialised_memory(parts):
    n = 3 if parts == [2, 2] else 5
    if sum(parts) == n:
        assert len(filled(iter([torch.zeros(k) for k in parts]), n)) == n
        return
    with pytest.raises(OutputError, match=f"each of the {n} samples"):
        filled(iter([torch.zeros(k) for k in parts]), n)


def test_parts_are_closed_when_a_part_cannot_be_used():
    closed = []

    def parts():
        try:
            yield torch.zeros(2, 1)
            yield torch.zeros(2, 3)
        finally:
            closed.append(True)

    with pytest.raises(OutputError) as caught:  # the error's traceback keeps the generator alive
        filled(parts(), 4)
    assert closed
    assert caught
