# SPDX-License-Identifier: BSD-3-Clause
"""Features of a frozen network for what is labelled: computed once, in the background, and kept."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.pipeline import make_pipeline
from tqdm.auto import tqdm

from skal._core.cache import Cache
from skal._core.identity import digest_bytes
from skal.config import config_context, get_config
from skal.exceptions import FeatureError, InvalidParameterError, InvalidTypeError, SampleError, SkalError
from skal.features import ArrayFeatures, ArrayPictures, PixelFeatures, PretrainedFeatures, pretrained
from skal.features._own_file import FileFeatures, load_file
from skal.features._pictures import open_picture
from skal.features._zoo import find_network, kind_of
from skal.labelling._sources import ArraySource, ImageFolder, Source

_BATCH = 8  # a small one, so that the page can be ended soon
_KINDS = {"image": "images", "text": "texts"}
# called with the samples that are done, with all of them, and with an estimate of the seconds that are left
Progress = Callable[[int, int, float], None]


@dataclass(frozen=True)
class Backbone:
    """A frozen network for one source.

    Attributes
    ----------
    name : str
    identity : str
        Features are kept under it: it changes with the weights, or with the user's file.
    compute : callable
        From a list of images of pillow or texts, or an array of rows, to an (n, d) array.
    transformer : transformer
        The same from files, texts or rows.
    takes_tensors : bool
        Whether ``compute`` is given the small pictures, as a tensor.
    """

    name: str
    identity: str
    compute: Callable[[Any], Any]
    transformer: PretrainedFeatures | FileFeatures
    takes_tensors: bool = False


def at_hand(source: Source) -> str | None:
    """The network that is taken if nobody names one, None if none is installed or fits."""
    return find_network(_KINDS.get(source.kind, ""))


def load_backbone(text: Any, source: Source) -> Backbone:
    """Load what a user names: "images", "texts", a name of :func:`skal.features.pretrained`, or ``FILE.py:NAME``.

    ``NAME`` is an ``nn.Module``, a transformer, a function from samples to an (n, d) array, or a class or a function
    without arguments that makes one of these. A module is given a batch of tensors, pictures of ``--size`` pixels in
    [0, 1]; everything else a list of images of pillow, or of texts, or an array of rows.
    """
    if not isinstance(text, str):
        expected, remedy = "the name of a network, or FILE.py:NAME", "Pass for example 'images' or 'timm:resnet18'."
        raise InvalidTypeError.for_parameter("label", "backbone", expected, text, remedy)
    if text not in ("images", "texts") and kind_of(text) is None:
        return _own_backbone(text, source)
    transformer = pretrained(text)
    if kind_of(transformer.name) != _KINDS.get(source.kind):
        expected = f"a network for samples of kind {source.kind!r}"
        remedy = "Choose another backbone, or compute features yourself and pass --features."
        raise InvalidParameterError.for_parameter("label", "backbone", expected, text, remedy)
    identity = json.dumps(transformer.describe(), sort_keys=True)
    return Backbone(transformer.name, identity, transformer.transform, transformer)


def _own_backbone(text: str, source: Source) -> Backbone:
    features = load_file(text)
    is_module = features.is_module
    features.pictures = source.kind == "image" and not is_module
    return Backbone(text, f"{text} {features.digest}", features.apply, features, takes_tensors=is_module)


def saved_features(source: Source, backbone: Backbone) -> Any:
    """The transformer that a saved model needs, to make features from a user's samples."""
    if source.kind == "image" and not backbone.takes_tensors:
        reader: Any = ArrayPictures(source.shape) if isinstance(source, ArraySource) else None
    else:
        reader = as_model_input(source)
    return backbone.transformer if reader is None else make_pipeline(reader, backbone.transformer)


def as_model_input(source: Source, *, flatten: bool = False) -> Any:
    """A transformer that prepares files or arrays as the source does; None if a model takes them as they are."""
    if isinstance(source, ImageFolder):
        return PixelFeatures(source.size, flatten=flatten)
    return ArrayFeatures(source.shape, flatten=flatten) if isinstance(source, ArraySource) else None


def compute_features(
    source: Source, backbone: Backbone | None, cache: Path | None
) -> tuple[np.ndarray, Callable[[Progress], None]]:
    """An array of features that is empty at first, and the function that fills it.

    The network is tried on the first sample at once, so that one that cannot work is refused before anybody labels.

    Parameters
    ----------
    source : Source
        An image that cannot be read gets zeros, and is noted.
    backbone : Backbone or None
        None takes the pixels of the small pictures.
    cache : path or None
        What has been computed is kept there, under the network and the content of the samples: a run that was stopped
        goes on where it was.
    """
    n, identity = len(source), "pixels" if backbone is None else backbone.identity
    name = None if backbone is None else backbone.name
    is_kept = cache is not None and backbone is not None
    folder = cache / f"features-{digest_bytes(identity.encode()).hex()[:16]}" if is_kept and cache else None
    store = Cache("1TB", folder)
    show = get_config()["progress"]  # of whoever orders the work

    def compute(rows: list[int]) -> np.ndarray:
        keys = [digest_bytes(f"{source.ids[i]}\n{source.ids.digest(i)}".encode("utf-8", "surrogatepass")) for i in rows]
        return store.rows(identity, keys, lambda new: _features_of(source, backbone, [rows[i] for i in new]))

    X = np.zeros((n, compute([0]).shape[1]), dtype=np.float32)

    def fill(progress: Progress) -> None:
        start, before = time.monotonic(), store.n_computed
        with tqdm(total=n, desc=f"features: {name or 'pixels'}", unit="sample", disable=not show) as bar:
            for first in range(0, n, _BATCH):
                rows = list(range(first, min(first + _BATCH, n)))
                X[rows] = compute(rows)
                done, seconds = rows[-1] + 1, time.monotonic() - start
                progress(done, n, seconds / max(1, store.n_computed - before) * (n - done))
                bar.update(len(rows))

    return X, fill


def _features_of(source: Source, backbone: Backbone | None, rows: list[int]) -> np.ndarray:
    """(n, d) float32, zeros for images that cannot be read."""
    if backbone is None:
        small = source.samples()
        return np.stack([small[i].numpy().reshape(-1) for i in rows])
    good, samples = _read(source, rows, backbone)
    if not good:  # nobody will train on them; only the width counts
        from PIL import Image

        width = _apply(source, backbone, rows[:1], [Image.new("RGB", (224, 224))]).shape[1]
        return np.zeros((len(rows), width), dtype=np.float32)
    found = _apply(source, backbone, good, samples)
    result = np.zeros((len(rows), found.shape[1]), dtype=np.float32)
    result[[rows.index(i) for i in good]] = found
    return result


def _apply(source: Source, backbone: Backbone, rows: list[int], samples: Any) -> np.ndarray:
    names = source.ids[rows[0]] if len(rows) == 1 else f"{source.ids[rows[0]]} … {source.ids[rows[-1]]}"
    kept = "Labels, and features up to here, are kept."
    try:
        with config_context(progress=False):  # there is one bar for all samples
            found = np.asarray(backbone.compute(samples), dtype=np.float32)
    except Exception as error:  # whatever a network or a user's function raises
        said = str(error) if isinstance(error, SkalError) else f"{type(error).__name__}: {error}."
        raise FeatureError(
            f"The backbone {backbone.name} must accept the samples. Got an error for {names}: {said} {kept}"
        ) from error
    finite = bool(np.isfinite(found).all())
    if found.ndim != 2 or len(found) != len(rows) or not finite:
        raise FeatureError(
            f"The backbone {backbone.name} must give an array of {len(rows)} rows of finite numbers for {names}. Got "
            f"shape {found.shape}{'' if finite else ', with NaN or infinity'}. Return (n, d). {kept}"
        )
    return found


def _read(source: Source, rows: list[int], backbone: Backbone) -> tuple[list[int], Any]:
    """The rows that can be read, and what the backbone is given: upright images, texts, numbers or small tensors."""
    if backbone.takes_tensors:
        small = source.samples()  # black where they cannot be read
        return rows, torch.stack([torch.as_tensor(small[i], device="cpu") for i in rows])
    if source.kind == "text":
        return rows, [source.text(i) for i in rows]
    if source.kind == "numbers":
        return rows, source.samples()[rows]
    if source.kind == "table":
        return rows, source.originals(rows)
    images = {i: image for i in rows if (image := _open(source, i)) is not None}
    return list(images), list(images.values())


def _open(source: Source, position: int) -> Any:
    """An image, None if it cannot be read, which is noted."""
    if not isinstance(source, ImageFolder):
        from PIL import Image

        return Image.open(io.BytesIO(source.picture(position, None)[0])).convert("RGB")
    try:
        return open_picture(source.path(position))
    except SampleError as error:
        source.mark_unreadable(position, str(error))
        return None
