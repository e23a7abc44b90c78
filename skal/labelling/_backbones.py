# SPDX-License-Identifier: BSD-3-Clause
"""Features of a frozen network, computed once, in the background, and kept."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from skal._core.cache import Cache
from skal._core.identity import digest_bytes
from skal.exceptions import InvalidParameterError, SkalError
from skal.features._image_files import open_image
from skal.labelling._sources import ImageFolder, Source

_BATCH = 32
_PACKAGES = {"timm": "timm", "torchvision": "torchvision", "sentence-transformers": "sentence_transformers"}


class Backbone:
    """A frozen network as a function from samples to features.

    Parameters
    ----------
    name : str
    features : callable
        From a list of images (of pillow) or texts to an (n, d) array.
    kind : {"image", "text"}
    """

    def __init__(self, name: str, features: Callable[[list[Any]], np.ndarray], kind: str) -> None:
        self.name, self.features, self.kind = name, features, kind


def load_backbone(text: str) -> Backbone:
    """What ``timm:NAME``, ``torchvision:NAME``, ``sentence-transformers:NAME`` or ``FILE.py:NAME`` names.

    A function of your own returns a callable from a list of images or texts to an (n, d) array; its attribute
    ``kind`` says "text" if it takes texts.
    """
    kind, _, name = text.partition(":")
    if kind not in _PACKAGES:
        made = load_object(text, "backbone")()
        return Backbone(text, made, getattr(made, "kind", "image"))
    try:
        return {"timm": _timm, "torchvision": _torchvision, "sentence-transformers": _sentences}[kind](name)
    except SkalError:
        raise
    except Exception as error:  # a name that there is not, weights that are not at hand
        expected = f"a model of {kind} whose weights are at hand"
        remedy = f"Check the name, or download the weights first ({type(error).__name__}: {error})."
        raise InvalidParameterError.for_parameter("label", "backbone", expected, text, remedy) from error


def _import(kind: str) -> Any:
    """The package of a kind of backbone; what it raises when it does not fit the torch beside it is its own affair."""
    try:
        return importlib.import_module(_PACKAGES[kind])
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name:
            raise SkalError(
                f"A backbone of {kind} needs the package {error.name}. Got an environment without it. "
                f"Run: pip install {error.name}"
            ) from error
        raise SkalError(
            f"A backbone of {kind} needs packages that fit together. Got {type(error).__name__} from importing "
            f"{kind}: {str(error).rstrip('.')}. Install the torchvision that belongs to your torch {torch.__version__}."
        ) from error


def _timm(name: str) -> Backbone:
    timm = _import("timm")
    model = timm.create_model(name, pretrained=True, num_classes=0).eval()
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    return Backbone(f"timm:{name}", lambda images: _apply(model, [transform(image) for image in images]), "image")


def _torchvision(name: str) -> Backbone:
    models = _import("torchvision").models
    weights = models.get_model_weights(name).DEFAULT
    model = models.get_model(name, weights=weights).eval()
    layers = [place for place, part in model.named_modules() if isinstance(part, torch.nn.Linear)]
    if not layers:
        expected, remedy = "a network that ends in a linear layer", "Choose another one."
        raise InvalidParameterError.for_parameter("label", "backbone", expected, f"torchvision:{name}", remedy)
    parent, _, place = layers[-1].rpartition(".")
    setattr(model.get_submodule(parent), place, torch.nn.Identity())  # what the class scores are made of
    transform = weights.transforms()
    return Backbone(
        f"torchvision:{name}", lambda images: _apply(model, [transform(image) for image in images]), "image"
    )


def _sentences(name: str) -> Backbone:
    model = _import("sentence-transformers").SentenceTransformer(name)
    return Backbone(f"sentence-transformers:{name}", lambda texts: np.asarray(model.encode(texts)), "text")


def _apply(model: torch.nn.Module, tensors: list[torch.Tensor]) -> np.ndarray:
    with torch.no_grad():
        features: np.ndarray = model(torch.stack(tensors)).reshape(len(tensors), -1).cpu().numpy()
        return features


def compute_features(
    source: Source, name: str | None, cache: Path | None
) -> tuple[np.ndarray, Callable[[Callable[[int, int], None]], None]]:
    """An array of features that is empty at first, and the function that fills it.

    Parameters
    ----------
    source : Source
        An image that cannot be read gets zeros, and is noted.
    name : str or None
        Of the backbone, which is loaded only if there is something to compute; None takes the pixels of the small
        pictures.
    cache : path or None
        What has been computed is kept there, under the names of the backbone and the samples: a run that was stopped
        goes on where it was.
    """
    n, keys = len(source), [digest_bytes(key.encode()) for key in source.ids]
    folder = None if cache is None or name is None else cache / f"features-{digest_bytes(name.encode()).hex()[:16]}"
    store, what = Cache("1TB", folder), name or "pixels"
    backbone = _Loader(source, name)

    def compute(rows: list[int]) -> np.ndarray:
        return store.rows(
            what, [keys[i] for i in rows], lambda new: _features_of(source, backbone(), [rows[i] for i in new])
        )

    X = np.zeros((n, compute([0]).shape[1]), dtype=np.float32)

    def fill(progress: Callable[[int, int], None]) -> None:
        for start in range(0, n, _BATCH):
            rows = list(range(start, min(start + _BATCH, n)))
            X[rows] = compute(rows)
            progress(rows[-1] + 1, n)

    return X, fill


class _Loader:
    """The backbone that a user named, loaded when something must be computed."""

    def __init__(self, source: Source, name: str | None) -> None:
        self._source, self._name = source, name
        self._backbone: Backbone | None = None

    def __call__(self) -> Backbone | None:
        if self._name is not None and self._backbone is None:
            backbone = load_backbone(self._name)
            if backbone.kind != self._source.kind:
                expected = f"a network for samples of kind {self._source.kind!r}"
                remedy = "Choose another backbone, or compute features yourself and pass --features."
                raise InvalidParameterError.for_parameter("label", "backbone", expected, backbone.name, remedy)
            self._backbone = backbone
        return self._backbone


def _features_of(source: Source, backbone: Backbone | None, rows: list[int]) -> np.ndarray:
    if backbone is None:
        small = source.samples()
        return np.stack([small[i].numpy().reshape(-1) for i in rows])
    if not isinstance(source, ImageFolder):
        return np.asarray(backbone.features([_sample(source, i) for i in rows]), dtype=np.float32)
    images, good = [], []
    for i in rows:
        try:
            images.append(open_image(source.path(i)))
            good.append(i)
        except SkalError as error:
            source.mark_unreadable(i, str(error))
    if not images:  # its width is all that matters then
        from PIL import Image

        return np.zeros((len(rows), np.asarray(backbone.features([Image.new("RGB", (224, 224))])).shape[1]))
    found = np.asarray(backbone.features(images), dtype=np.float32)
    result = np.zeros((len(rows), found.shape[1]), dtype=np.float32)
    result[[rows.index(i) for i in good]] = found
    return result


def _sample(source: Source, position: int) -> Any:
    if source.kind == "text":
        return source.text(position)
    import io

    from PIL import Image

    return Image.open(io.BytesIO(source.picture(position, None)[0])).convert("RGB")


def load_object(text: str, name: str) -> Any:
    """What ``FILE.py:NAME`` names; the file is run."""
    path, _, attribute = text.rpartition(":")
    place = Path(path)
    if not path or not place.is_file():
        expected, remedy = "FILE.py:NAME with a file that is there", "Check the path, and name the function after ':'."
        raise InvalidParameterError.for_parameter("label", name, expected, text, remedy)
    spec = importlib.util.spec_from_file_location(place.stem, place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        expected, got = f"FILE.py:NAME with a file that runs ({path})", f"{type(error).__name__}: {error}"
        remedy = f"Try python {place.name} by itself."
        raise InvalidParameterError.for_parameter("label", name, expected, got, remedy) from error
    if not hasattr(module, attribute):
        there = [key for key in vars(module) if not key.startswith("_")]
        raise InvalidParameterError.for_parameter("label", name, f"a name in {path}", attribute, f"It has {there}.")
    return getattr(module, attribute)
