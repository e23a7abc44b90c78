"""CIFAR-10 and CIFAR-100, in the Python and the binary version, from folders or from the downloaded archives.

Python batches are pickled dicts with rows of 3,072 values, the red, the green and the blue plane of a 32x32 image.
Binary batches are records of label bytes (CIFAR-10: one, CIFAR-100: coarse, then fine) and those 3,072 values.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ._arrays import Arrays, check_arrays, scale_images, to_labels
from ._layout import Layout
from ._tar import read_members
from ._unpickle import load_plain_pickle

__all__ = ["CIFAR10_VERSIONS", "CIFAR100_VERSIONS", "CifarVersion", "cifar_layouts"]

_N_VALUES = 3 * 32 * 32

# Rows of values (N, 3072) and labels (N,) of one batch, from its bytes and its name.
_Parser = Callable[[bytes, str], tuple[NDArray[np.uint8], NDArray[np.int64]]]


def _parse_python(content: bytes, source: str, label_key: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    batch = load_plain_pickle(content, source)
    # The keys are bytes in the original files of Python 2, text in files saved again with Python 3.
    values = batch.get(b"data", batch.get("data"))
    labels = batch.get(label_key.encode(), batch.get(label_key))
    if values is None or labels is None:
        raise ValueError(
            f"{source}: a CIFAR batch must hold 'data' and '{label_key}'. Got {sorted(map(str, batch))} instead. "
            f"Get the file again."
        )
    if not isinstance(values, np.ndarray) or values.dtype != np.uint8 or values.shape[1:] != (_N_VALUES,):
        found = f"{values.dtype} {values.shape}" if isinstance(values, np.ndarray) else type(values).__name__
        raise ValueError(f"{source}: 'data' must be uint8 (N, {_N_VALUES}). Got {found} instead. Get the file again.")
    return values, to_labels(labels, source)


def _parse_binary(content: bytes, source: str, n_label_bytes: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    record = n_label_bytes + _N_VALUES
    if not content or len(content) % record:
        raise ValueError(
            f"{source}: a CIFAR binary file is a series of records of {record} bytes. Got {len(content)} bytes "
            f"instead: truncated or not the file its name says. Get it again."
        )
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, record)
    return records[:, n_label_bytes:], to_labels(records[:, n_label_bytes - 1], source)


@dataclass(frozen=True)
class CifarVersion:
    """One of the four archives: what it is called, its folder and files, and how a file is read."""

    archive: str
    folder: str
    train: tuple[str, ...]
    test: str
    parse: _Parser


_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))

CIFAR10_VERSIONS = (
    CifarVersion(
        "cifar-10-python.tar.gz",
        "cifar-10-batches-py",
        _BATCHES,
        "test_batch",
        partial(_parse_python, label_key="labels"),
    ),
    CifarVersion(
        "cifar-10-binary.tar.gz",
        "cifar-10-batches-bin",
        tuple(f"{batch}.bin" for batch in _BATCHES),
        "test_batch.bin",
        partial(_parse_binary, n_label_bytes=1),
    ),
)

CIFAR100_VERSIONS = (
    CifarVersion(
        "cifar-100-python.tar.gz",
        "cifar-100-python",
        ("train",),
        "test",
        partial(_parse_python, label_key="fine_labels"),
    ),
    CifarVersion(
        "cifar-100-binary.tar.gz",
        "cifar-100-binary",
        ("train.bin",),
        "test.bin",
        partial(_parse_binary, n_label_bytes=2),
    ),
)


def cifar_layouts(name: str, versions: Sequence[CifarVersion], target_names: tuple[str, ...]) -> tuple[Layout, ...]:
    """Folders first, which are quicker to read, then archives; in data_home or in a folder of the set's name."""
    folders, archives = [], []
    for parent in ("", f"{name}/"):
        for version in versions:
            read = partial(_read_folder, version=version, target_names=target_names)
            files = tuple((file,) for file in (*version.train, version.test))
            folders.append(Layout(parent + version.folder, files, read))
            read = partial(_read_archive, version=version, target_names=target_names)
            archives.append(Layout(parent, ((version.archive,),), read))
    return (*folders, *archives)


def _read_folder(paths: Sequence[Path], version: CifarVersion, target_names: tuple[str, ...]) -> Arrays:
    contents = {str(path): path.read_bytes() for path in paths}
    return _read(contents, str(paths[0].parent), version.parse, target_names)


def _read_archive(paths: Sequence[Path], version: CifarVersion, target_names: tuple[str, ...]) -> Arrays:
    (path,) = paths
    members = [f"{version.folder}/{file}" for file in (*version.train, version.test)]
    found = read_members(path, members)
    contents = {f"{path}, {member}": found.pop(member) for member in members}
    return _read(contents, str(path), version.parse, target_names)


def _read(contents: dict[str, bytes], source: str, parse: _Parser, target_names: tuple[str, ...]) -> Arrays:
    """Join the batches, of which the last is the test split."""
    batches: list[tuple[NDArray[np.uint8], NDArray[np.int64]]] = []
    for name in list(contents):
        # Taken out of the dict, so that a batch's pickle is freed once it is read.
        values, labels = parse(contents.pop(name), name)
        if len(values) != len(labels):
            raise ValueError(f"{name}: {len(values)} images but {len(labels)} labels. Get the file again.")
        if len(labels) and not 0 <= labels.min() <= labels.max() < len(target_names):
            raise ValueError(
                f"{name}: labels must lie in 0..{len(target_names) - 1}. Got values from {labels.min()} to "
                f"{labels.max()} instead. Get the file again."
            )
        batches.append((values, labels))
    X_train, y_train = (np.concatenate(parts) for parts in zip(*batches[:-1], strict=True))
    X_test, y_test = batches[-1]
    del batches
    arrays = Arrays(_to_images(X_train), y_train, _to_images(X_test), y_test, target_names)
    return check_arrays(arrays, source, source)


def _to_images(values: NDArray[np.uint8]) -> NDArray[np.float32]:
    return scale_images(values.reshape(-1, 3, 32, 32), "CIFAR")
