# SPDX-License-Identifier: BSD-3-Clause
"""Features by something in a file of the user's own, named ``FILE.py:NAME``.

A saved model keeps the file's name and digest, never its folder or its content: what is run is a file that whoever
loads the model has, and names.
"""

from __future__ import annotations

import importlib.util
import inspect
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

from skal._core.pool import Samples
from skal.config import get_config
from skal.exceptions import CheckpointError, FeatureError, InvalidParameterError, SkalError
from skal.features._compute import pass_module
from skal.features._pictures import open_picture, read_picture
from skal.features._pixels import FixedTransformer

_BATCH = 32
_LOADED: dict[tuple[str, str], Any] = {}  # what files of this process have made, by name and digest


class FileFeatures(FixedTransformer):
    """What a module, a transformer or a function in a file makes of samples. :func:`load_file` makes one.

    Parameters
    ----------
    name : str
        The file's name, without its folder, and what is in it: "own.py:embed".
    digest : str
        sha256 of the file.
    pictures : bool, default=False
        Whether samples are pictures, which it gets as images of pillow; others it gets as they are.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from skal.features._own_file import load_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     text = "def count(texts): return [[len(text)] for text in texts]"
    ...     size = Path(folder, "own.py").write_text(text)
    ...     features = load_file(f"{folder}/own.py:count")
    >>> features.name, features.transform(["one", "three"]).tolist()
    ('own.py:count', [[3.0], [5.0]])
    """

    def __init__(self, name: str, digest: str, *, pictures: bool = False) -> None:
        self.name = name
        self.digest = digest
        self.pictures = pictures

    @property
    def takes(self) -> str:
        """The input of ``transform``, in words."""
        return "a list of pictures: paths, images of pillow, or arrays" if self.pictures else f"what {self.name} takes"

    @property
    def is_module(self) -> bool:
        """True if it is a network, which takes tensors."""
        return isinstance(self._load(), torch.nn.Module)

    def describe(self) -> dict[str, Any]:
        """Name and digest of the file.

        Returns
        -------
        dict
            As JSON can hold it.
        """
        return {"name": self.name, "digest": self.digest}

    def transform(self, X: Any) -> np.ndarray:
        """Features of samples.

        Parameters
        ----------
        X : n samples
            Pictures as paths, images of pillow or arrays; anything else as the file takes it.

        Returns
        -------
        (n, d) float32 array
            One row per sample.
        """
        step, parts = min(get_config()["batch_size"], _BATCH), []
        for start in range(0, len(X), step):
            rows: Any = X.iloc[start : start + step] if hasattr(X, "iloc") else X[start : start + step]
            n = len(rows)
            if self.pictures:
                rows = [_as_image(item, start + i) for i, item in enumerate(rows)]
            found = np.asarray(self.apply(rows), dtype=np.float32)
            if found.ndim != 2 or len(found) != n:
                raise FeatureError(
                    f"{self.name} must give an array of {n} rows. Got shape {found.shape}. Return (n, d)."
                )
            parts.append(found)
        return np.concatenate(parts)

    def apply(self, samples: Any) -> Any:
        """Features of one batch, in the form that the file takes.

        Parameters
        ----------
        samples : batch
            Images of pillow, texts, rows; an array or a tensor for a module.

        Returns
        -------
        (n, d) array
            Whatever the file gives.
        """
        made = self._load()
        if isinstance(made, torch.nn.Module):
            return pass_module(made, Samples(torch.as_tensor(samples, device="cpu"))).cpu()
        if isinstance(samples, np.ndarray) and samples.dtype.kind == "O":
            samples = samples.tolist()
        return made.transform(samples) if hasattr(made, "transform") else made(samples)

    def _load(self) -> Any:
        if (self.name, self.digest) not in _LOADED:
            raise SkalError(
                f"The features {self.name} must be loaded from their file. Got a process that has not. Load the model "
                f"with skal.load_model(path, trusted=['PATH/{self.name}'])."
            )
        return _LOADED[self.name, self.digest]


def load_file(text: str, *, pictures: bool = False) -> FileFeatures:
    """Run a file, and give what ``FILE.py:NAME`` names as features.

    ``NAME`` is an ``nn.Module``, a transformer, a function from samples to an (n, d) array, or a class or a function
    without arguments that makes one of these.
    """
    made = load_object(text, "backbone")
    if isinstance(made, type) or (_is_plain(made) and not _needs_arguments(made)):
        try:
            made = made()
        except Exception as error:
            raise _own_error(text, f"{type(error).__name__}: {error} from calling it") from error
    if not callable(made) and not hasattr(made, "transform"):
        raise _own_error(text, made)
    path, name = _split(text)
    found = FileFeatures(f"{path.name}:{name}", sha256(path.read_bytes()).hexdigest(), pictures=pictures)
    _LOADED[found.name, found.digest] = made
    return found


def load_trusted(features: FileFeatures, trusted: list[str]) -> None:
    """Run the file that a saved model names, from where the user says that it is, and only if it has not changed."""
    places = [text for text in trusted if ".py:" in text and _same_name(text, features.name)]
    if not places:
        raise CheckpointError(
            f"The features of this model come from {features.name}, a file of its author's own. Got no such file among "
            f"the trusted ones. If you have it and want it to run, say where it is: "
            f"skal.load_model(path, trusted=['PATH/{features.name}'])."
        )
    path = _split(places[0])[0]
    digest = sha256(path.read_bytes()).hexdigest() if path.is_file() else "no file"
    if digest != features.digest:
        raise CheckpointError(
            f"{path} must be as it was when the model was saved, with the sha256 {features.digest}. Got {digest}. "
            "Bring that file back, or train the model again."
        )
    load_file(places[0])


def load_object(text: str, name: str) -> Any:
    """Load the object that ``FILE.py:NAME`` names; this runs the file."""
    place, attribute = _split(text)
    if not text.rpartition(":")[0] or not place.is_file():
        expected, remedy = "FILE.py:NAME with a file that is there", "Check the path, and name the function after ':'."
        raise InvalidParameterError.for_parameter("label", name, expected, text, remedy)
    spec = importlib.util.spec_from_file_location(place.stem, place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        expected, got = f"FILE.py:NAME with a file that runs ({place})", f"{type(error).__name__}: {error}"
        remedy = f"Try python {place.name} by itself."
        raise InvalidParameterError.for_parameter("label", name, expected, got, remedy) from error
    if not hasattr(module, attribute):
        there = [key for key in vars(module) if not key.startswith("_")]
        raise InvalidParameterError.for_parameter("label", name, f"a name in {place}", attribute, f"It has {there}.")
    return getattr(module, attribute)


def _as_image(item: Any, position: int) -> Any:
    from PIL import Image

    is_path = isinstance(item, (str, Path))
    return open_picture(Path(item)) if is_path else Image.fromarray(read_picture(item, position))


def _split(text: str) -> tuple[Path, str]:
    path, _, name = text.rpartition(":")
    return Path(path), name


def _same_name(text: str, name: str) -> bool:
    path, attribute = _split(text)
    return f"{path.name}:{attribute}" == name


def _is_plain(made: Any) -> bool:
    """True for a plain function, and False for a network or a transformer that can be called, too."""
    return callable(made) and not isinstance(made, torch.nn.Module) and not hasattr(made, "transform")


def _needs_arguments(function: Any) -> bool:
    parameters = inspect.signature(function).parameters.values()
    named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(each.default is inspect.Parameter.empty and each.kind in named for each in parameters)


def _own_error(text: str, got: Any) -> InvalidParameterError:
    expected = f"a module, a transformer, or a function from samples to an (n, d) array, by its name ({text})"
    remedy = "See the guide's page on pre-trained networks."
    return InvalidParameterError.for_parameter("label", "backbone", expected, got, remedy)
