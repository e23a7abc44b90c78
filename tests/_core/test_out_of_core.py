"""Pools on disk: memory maps, zarr, HDF5, Dask arrays and Datasets, in one process and in two."""

import dask.array
import h5py
import numpy as np
import pytest
import torch
import zarr
from joblib import parallel_config
from skal._core.shipping import opened, reference_to
from torch.utils.data import Dataset

from skal import ActiveLearner
from skal._core.containers import is_lazy, take_rows
from skal.context import Samples
from skal.exceptions import InvalidParameterError
from skal.strategies import BADGE, DynamicAL, Entropy


class Files(Dataset):
    """One file for each sample."""

    def __init__(self, folder, n):
        self.folder, self.n = folder, n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return torch.from_numpy(np.load(self.folder / f"{index}.npy")), 0


def as_memmap(X, folder):
    np.save(folder / "pool.npy", X)
    return np.load(folder / "pool.npy", mmap_mode="r")


def as_zarr(X, folder):
    kind = {"shape": X.shape, "chunks": (16, *X.shape[1:]), "dtype": X.dtype}
    array = zarr.open_array(str(folder / "pool.zarr"), mode="w", **kind)  # in releases 2 and 3
    array[:] = X
    return array


def as_hdf5(X, folder):
    with h5py.File(folder / "pool.h5", "w") as file:
        file.create_dataset("images", data=X, chunks=(16, *X.shape[1:]))
    return h5py.File(folder / "pool.h5", "r")["images"]


def as_dask(X, folder):
    return dask.array.from_array(as_memmap(X, folder), chunks=(16, *X.shape[1:]))


def as_dataset(X, folder):
    for index, x in enumerate(X):
        np.save(folder / f"{index}.npy", x)
    return Files(folder, len(X))


KINDS = [as_memmap, as_zarr, as_hdf5, as_dask, as_dataset]
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


@kinds
@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.parametrize("strategy", [Entropy(subset=60), BADGE(), DynamicAL()], ids=repr)
def test_the_same_answer_as_from_an_array(kind, n_jobs, strategy, image_learner, images, tmp_path):
    X = images[0][20:]
    expected = strategy.set_params(batch_size=8, random_state=0, n_jobs=1)(image_learner, X, 5)
    with parallel_config(backend="threading"):  # processes: below
        indices = strategy.set_params(n_jobs=n_jobs)(image_learner, kind(X, tmp_path), 5)
    assert indices.tolist() == expected.tolist()


@kinds
def test_dask_workers_read_them_too(kind, image_learner, images, tmp_path, on_dask):
    X = images[0][20:]
    expected = Entropy(batch_size=8, n_jobs=1).scores(image_learner, X)
    assert np.array_equal(Entropy(batch_size=8).scores(image_learner, kind(X, tmp_path)), expected)


@pytest.mark.parametrize("kind", [as_zarr, as_hdf5, as_dask], ids=lambda kind: kind.__name__)
def test_rows_in_any_order_and_twice(kind, images, tmp_path):
    X = images[0]
    lazy = kind(X, tmp_path)
    assert is_lazy(lazy)
    for rows in (np.array([5, 2, 5, 119, 0]), slice(3, 9), np.array([], dtype=int)):
        taken = take_rows(lazy, rows)
        assert type(taken) is np.ndarray
        assert np.array_equal(taken, X[rows])
    assert not is_lazy(X)


class Watched:
    """An array that only says how many of its rows were read at once."""

    def __init__(self, X):
        self.X, self.shape, self.dtype, self.largest = X, X.shape, X.dtype, 0

    def __getitem__(self, rows):
        part = self.X[rows]
        self.largest = max(self.largest, len(part))
        return part


@pytest.mark.parametrize("strategy", [Entropy(), BADGE(), DynamicAL()], ids=repr)
def test_only_a_chunk_is_read_at_a_time(strategy, image_learner, images):
    pool = Watched(images[0])
    strategy.set_params(batch_size=8, random_state=0)(image_learner, pool, 3)
    assert pool.largest == 8


def test_views_of_a_memory_map_travel_by_reference(tmp_path):
    X = np.lib.format.open_memmap(tmp_path / "a.npy", "w+", np.float32, (20, 6))
    X[:] = np.arange(120).reshape(20, 6)
    for view in (X, X[3:], X[::2], X[4:16:3, 1:4], np.load(tmp_path / "a.npy", mmap_mode="r")[5:9]):
        reference = reference_to(view)
        assert np.array_equal(opened(reference), view)
        assert not opened(reference).flags.writeable
    assert reference_to(X[::-1]) is None  # read backwards: its rows are sent
    assert reference_to(X + 1) is None  # in memory
    (tmp_path / "a.npy").unlink()
    assert reference_to(X) is None


def test_a_map_whose_changes_stay_in_this_process_is_sent_as_rows(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((20, 6)))
    X = np.load(tmp_path / "a.npy", mmap_mode="c")
    X[3] = 7
    assert reference_to(X) is None


def test_dicts_travel_by_reference_if_all_of_them_can(images, tmp_path):
    X = as_memmap(images[0], tmp_path)
    both = opened(reference_to({"a": X, "b": X[:, :, 1:]}))
    assert np.array_equal(both["b"], images[0][:, :, 1:])
    assert reference_to({"a": X, "b": images[0]}) is None


def test_an_hdf5_file_open_for_writing_is_refused(image_learner, images, tmp_path):
    with h5py.File(tmp_path / "pool.h5", "w") as file:
        pool = file.create_dataset("images", data=images[0])
        with pytest.raises(InvalidParameterError, match=r"mode.*'r'"):
            Entropy(batch_size=8, n_jobs=2)(image_learner, pool)


def test_a_pickled_part_takes_only_its_rows_along():
    import pickle

    X = torch.zeros(10_000, 10)
    for X in (torch.zeros(10_000, 10), np.zeros((10_000, 10))):
        part = Samples(X, name="X_pool").take(np.array([9_000, 3]))
        assert len(pickle.dumps(part)) < 2_000
        restored = pickle.loads(pickle.dumps(part))
        assert list(restored.row_numbers(0, 2)) == [9_000, 3]
        assert len(restored) == 2


def test_a_learner_queries_and_teaches_from_disk(image_learner, images, tmp_path):
    X, y = images
    pool = as_zarr(X[20:], tmp_path)
    learner = ActiveLearner(image_learner.estimator, Entropy(batch_size=8), X_training=X[:20], y_training=y[:20])
    indices, samples = learner.query(pool, n_instances=4)
    assert np.array_equal(samples, X[20:][indices])
    learner.teach(samples, y[20:][indices], fit=False)
    assert len(learner.y_training) == 24
