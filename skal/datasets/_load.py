# SPDX-License-Identifier: BSD-3-Clause
"""Find a data set and read it; list the data sets that are there."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from skal.datasets._layout import DataSet, Layout, find_home, locate, missing_message
from skal.datasets._npz import check_npz, npz_layouts, read_npz
from skal.datasets._splits import DIGITS, Arrays, Split, check_arrays, every_fifth
from skal.exceptions import InvalidParameterError
from skal.validation import Integer

if TYPE_CHECKING:
    from sklearn.utils import Bunch

_DIGITS_DESCRIPTION = "8x8 handwritten digits of scikit-learn; the 2nd, 7th, 12th... image of each class is for testing"
_NAME = re.compile(r"\w[\w.-]*")


def load(name: str, data_home: str | os.PathLike[str] | None = None, *, image_size: int | None = None) -> Bunch:
    """Load a data set of images or of features.

    Parameters
    ----------
    name : str
        ``"digits"``, which comes with scikit-learn; ``"mnist"``, ``"fashion_mnist"``, ``"cifar10"``,
        ``"cifar100"``, ``"svhn"`` or ``"caltech101"``, from the files in which they are distributed or from
        ``NAME.npz``; any other name from ``NAME.npz``, or from the path of such a file, with the arrays ``X_train``,
        ``y_train``, ``X_test`` and ``y_test``. Images in it are uint8, or floating point in [0, 1], of shape (N, H, W),
        (N, H, W, C) or (N, C, H, W) with C 1 or 3; features are numbers of shape (N, D). Optional are strings:
        ``class_names`` (or ``target_names``), and ``texts_train`` and ``texts_test``, what the features were made of.
    data_home : path, optional
        Folder of the files; the environment variable ``SKAL_DATA_HOME`` if not given.
    image_size : int, optional
        Side of the images of ``"caltech101"``, which come in many sizes and are stretched to squares; 64 if not given.
        At 224 the set takes 5 GB. Other data sets have one size and do not take it.

    Returns
    -------
    sklearn.utils.Bunch
        - ``X_train``, ``X_test``: images, float32 (N, C, H, W) in [0, 1]; features, float32 (N, D), as they are;
        - ``y_train``, ``y_test``: labels, int64 (N,) in 0..C-1;
        - ``target_names``, also as ``class_names``: list of class names, in the order of the labels;
        - ``texts_train``, ``texts_test``: lists of strings, where the file has them;
        - ``name``, and ``DESCR``, a line that says what was read and from where.

    Raises
    ------
    FileNotFoundError
        If the files are not there. The message lists them, the folders, and where to get them.
    ValueError
        If a file is truncated, damaged or holds something else.

    Notes
    -----
    The test split is the distributed one. ``digits`` and ``caltech101`` have none: there the 2nd, 7th, 12th... image
    of each class, in the order of the data or of the file names, is for testing. Of Caltech101 the folder
    ``BACKGROUND_Google`` is left out. The labels of CIFAR-100 are the 100 fine ones. Pickled files are read without
    running any code that they name.

    Examples
    --------
    >>> from skal.datasets import load
    >>> digits = load("digits")
    >>> digits.X_train.shape, digits.X_test.shape
    ((1435, 1, 8, 8), (362, 1, 8, 8))
    """
    Integer(1, 10**4, optional=True).check("load", "image_size", image_size)
    layout, paths, description = find(name, data_home)
    if image_size is not None and not layout.resizes:
        expected = f"None for {name!r}: it is for the image folders of 'caltech101' only"
        remedy = "Leave it out: these images have one size already."
        raise InvalidParameterError.for_parameter("load", "image_size", expected, image_size, remedy)
    layout.check(paths)
    arrays = layout.read(paths, **({} if image_size is None else {"image_size": int(image_size)}))
    return _bunch(Path(name).stem if name.endswith(".npz") else name, arrays, description)


def find(name: str, data_home: str | os.PathLike[str] | None = None) -> tuple[Layout, list[Path], str]:
    """Find a data set: its layout, the paths of its files, and a line that says what was found; nothing is read."""
    path = Path(name) if isinstance(name, str) and name.endswith(".npz") else None
    if path is not None and path.is_file():
        return Layout("", (), read_npz, check_npz), [path], f"{path.stem}, read from {path}"
    if path is not None and path.parent != Path():
        raise FileNotFoundError(f"There is no file {path}. Pass the path of an npz file, or a data set's name.")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        remedy = f"Use 'digits', {', '.join(map(repr, _catalogue()))} or the name of an npz file in data_home."
        expected = "the name of a data set, without folders or spaces"
        raise InvalidParameterError.for_parameter("load", "name", expected, name, remedy)
    return _find(name, find_home(data_home))


def _catalogue() -> dict[str, DataSet]:
    """The papers' data sets. Their readers are not needed for digits, nor for a file given by its path."""
    from skal.datasets._raw import KNOWN

    return KNOWN


def _bunch(name: str, arrays: Arrays, description: str) -> Bunch:
    from sklearn.utils import Bunch  # a second, for those who read

    check_arrays(arrays)
    train, test, target_names, texts = arrays
    data = {"X_train": train.X, "y_train": train.y, "X_test": test.X, "y_test": test.y, **texts}
    names = {"target_names": list(target_names), "class_names": list(target_names)}
    return Bunch(**data, **names, name=name, DESCR=description)


def _find(name: str, home: Path | None) -> tuple[Layout, list[Path], str]:
    """Its layout in the folder, the paths of its files, and a line that says what was found."""
    if name == "digits":
        return Layout("", (), _read_digits), [], _DIGITS_DESCRIPTION
    known = _catalogue().get(name)
    layouts = known.layouts if known else npz_layouts(name)
    located = locate(layouts, home)
    if located is None:
        message = missing_message(name, home, layouts, known.url if known else None)
        raise FileNotFoundError(message if known else f"{message}\nKnown data sets: digits, {', '.join(_catalogue())}.")
    layout, paths = located
    where = paths[0] if len(paths) == 1 else paths[0].parent
    return layout, paths, f"{known.description if known else name}, read from {where}"


def available(data_home: str | os.PathLike[str] | None = None) -> list[str]:
    """List the data sets that `load` would find.

    Files are looked for, and only their outside is examined: a damaged one may still be listed.

    Parameters
    ----------
    data_home : path, optional
        Folder of the files; the environment variable ``SKAL_DATA_HOME`` if not given.

    Returns
    -------
    list of str
        ``"digits"``, then the known data sets, then the names of other npz files, sorted.

    Examples
    --------
    >>> from skal.datasets import available
    >>> available(data_home="a-folder-that-does-not-exist")
    ['digits']
    """
    home = find_home(data_home)
    if home is None or not home.is_dir():
        return ["digits"]
    known = [name for name, data_set in _catalogue().items() if _would_load(data_set.layouts, home)]
    # Also NAME/NAME.npz, which load finds as well.
    stems = {path.stem for path in (*home.glob("*.npz"), *home.glob("*/*.npz"))} - {"digits", *_catalogue()}
    others = [stem for stem in sorted(stems) if _NAME.fullmatch(stem) and _would_load(npz_layouts(stem), home)]
    return ["digits", *known, *others]


def _would_load(layouts: Sequence[Layout], home: Path) -> bool:
    located = locate(layouts, home)
    try:
        if located is not None:
            located[0].check(located[1])
    except ValueError:
        return False
    return located is not None


def _read_digits(paths: Sequence[Path]) -> Arrays:
    """scikit-learn's 1,797 digits (N, 1, 8, 8), which need no files."""
    from sklearn.datasets import load_digits  # imports readers of many formats

    bunch = load_digits()
    # Pixels count the dark points of a 4x4 cell, so that the largest value is 16.
    images = (bunch.images[:, np.newaxis] / 16).astype(np.float32)
    labels = bunch.target.astype(np.int64)
    chosen = every_fifth(labels)
    train, test = (Split(images[mask], labels[mask], "digits") for mask in (~chosen, chosen))
    return Arrays(train, test, DIGITS)
