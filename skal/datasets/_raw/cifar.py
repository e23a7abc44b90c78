# SPDX-License-Identifier: BSD-3-Clause
"""CIFAR-10 and CIFAR-100, in the Python and the binary version, from folders or from the downloaded archives.

Python batches are pickled dicts with rows of 3,072 values, the red, the green and the blue plane of a 32x32 image.
Binary batches are records of label bytes (CIFAR-10: one, CIFAR-100: coarse, then fine) and those 3,072 values.
"""

import gzip
import tarfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from skal.datasets._layout import Layout
from skal.datasets._raw.unpickle import load_plain_pickle
from skal.datasets._splits import MAX_UNPACKED, Arrays, Split, check_split, scale_images, to_labels

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR100 = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
    flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man
    maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree
    plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper
    snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train
    trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
CIFAR100 = tuple(_CIFAR100.split())

_N_VALUES = 3 * 32 * 32

_Batch = tuple[NDArray[np.uint8], NDArray[np.int64]]  # rows of values (N, 3072) and labels (N,)
_Parser = Callable[[bytes, str], _Batch]  # from a file's bytes and its name


def _parse_python(label_key: str, content: bytes, source: str) -> _Batch:
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


def _parse_binary(n_label_bytes: int, content: bytes, source: str) -> _Batch:
    record = n_label_bytes + _N_VALUES
    if not content or len(content) % record:
        raise ValueError(
            f"{source}: a CIFAR binary file is a series of records of {record} bytes. Got {len(content)} bytes "
            f"instead: truncated or not the file its name says. Get it again."
        )
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, record)
    return records[:, n_label_bytes:], to_labels(records[:, n_label_bytes - 1], source)


@dataclass(frozen=True)
class _Version:
    """One of the four archives: its name, its folder, its files (the last for testing), and the parser of a file."""

    archive: str
    folder: str
    files: tuple[str, ...]
    parse: _Parser


_BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
_SPLITS = ("train", "test")
_BINARY_BATCHES, _BINARY_SPLITS = (tuple(f"{name}.bin" for name in names) for names in (_BATCHES, _SPLITS))
_VERSIONS = {
    "cifar10": (
        _Version("cifar-10-python.tar.gz", "cifar-10-batches-py", _BATCHES, partial(_parse_python, "labels")),
        _Version("cifar-10-binary.tar.gz", "cifar-10-batches-bin", _BINARY_BATCHES, partial(_parse_binary, 1)),
    ),
    "cifar100": (
        _Version("cifar-100-python.tar.gz", "cifar-100-python", _SPLITS, partial(_parse_python, "fine_labels")),
        _Version("cifar-100-binary.tar.gz", "cifar-100-binary", _BINARY_SPLITS, partial(_parse_binary, 2)),
    ),
}


def cifar_layouts(name: str, target_names: tuple[str, ...]) -> tuple[Layout, ...]:
    """Folders first, which are quicker to read, then archives; in data_home or in a folder of the set's name."""
    folders, archives = [], []
    for parent in ("", f"{name}/"):
        for version in _VERSIONS[name]:
            read = partial(_read, version=version, target_names=target_names)
            folders.append(Layout(parent + version.folder, tuple((file,) for file in version.files), read))
            archives.append(Layout(parent, ((version.archive,),), read))
    return (*folders, *archives)


def _read(paths: Sequence[Path], version: _Version, target_names: tuple[str, ...]) -> Arrays:
    """Join the batches, of which the last is the test split; a single path is the archive of all of them."""
    source = str(paths[0] if len(paths) == 1 else paths[0].parent)
    if len(paths) == 1:
        contents = _read_members(paths[0], [f"{version.folder}/{file}" for file in version.files])
    else:
        contents = {str(path): path.read_bytes() for path in paths}
    batches: list[_Batch] = []
    for name in list(contents):
        # Taken out of the dict, so that a batch's pickle is freed once it is read.
        values, labels = version.parse(contents.pop(name), name)
        check_split(values, labels, len(target_names), name, "batch")
        batches.append((values, labels))
    test = batches.pop()
    values, labels = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    del batches
    return Arrays(_split(values, labels, source), _split(*test, source), target_names)


def _split(values: NDArray[np.uint8], labels: NDArray[np.int64], source: str) -> Split:
    return Split(scale_images(values.reshape(-1, 3, 32, 32), source), labels, source)


def _read_members(path: Path, names: Sequence[str]) -> dict[str, bytes]:
    """Return the named members' contents, in that order, by archive and name: read in one pass, nothing is unpacked."""
    contents: dict[str, bytes] = {}
    try:
        with gzip.open(path) as stream:
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for member in archive:
                    # "./folder/file" and "folder/file" are the same member.
                    name = str(PurePosixPath(member.name))
                    file = archive.extractfile(member) if name in names and member.isfile() else None
                    if file is not None:
                        contents[name] = file.read(MAX_UNPACKED + 1)
                        if len(contents[name]) > MAX_UNPACKED:
                            raise tarfile.TarError(f"{name} has more than {MAX_UNPACKED:,} bytes unpacked")
            # Only at the end of the stream does gzip compare the checksum; tar stops before.
            while stream.read(1 << 20):
                pass
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: damaged or truncated archive ({error}). Get the file again.") from error
    missing = [name for name in names if name not in contents]
    if missing:
        raise ValueError(f"{path}: the archive lacks {', '.join(missing)}. Get the file again.")
    return {f"{path}, {name}": contents.pop(name) for name in names}
