"""Pools that lie on disk: memory maps, zarr, HDF5, Dask arrays and Datasets."""

import dask.array
import h5py
import numpy as np
import pytest
import torch
import zarr
from torch.utils.data import Dataset


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
