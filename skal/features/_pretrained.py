# SPDX-License-Identifier: BSD-3-Clause
"""Features of a network that others have trained, as a transformer of scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from tqdm.auto import tqdm

from skal.config import get_config
from skal.exceptions import FeatureError, InvalidParameterError, InvalidTypeError, SampleError, SkalError, shorten
from skal.features._packages import Frozen
from skal.features._pictures import read_picture
from skal.features._zoo import BUNDLES, EXTRA, PREFIXES, find_network, kind_of, load_network
from skal.validation import Integer

_BATCH = 32  # at most: larger ones are slower on a processor, and take gigabytes


class PretrainedFeatures(TransformerMixin, BaseEstimator):
    """What a frozen, pre-trained network makes of pictures or texts. Use :func:`pretrained` to make one.

    Parameters
    ----------
    name : str
        "efficientnet-lite0", "all-minilm-l6-v2", or a name such as "timm:NAME".
    size : int or None, default=None
        Pixels a side that "efficientnet-lite0" sees. None is 224; smaller is faster. Other networks have their own.
    device : str or None, default=None
        Where to compute, such as "cpu" or "cuda:1". None is "cuda" where there is one, or else "cpu".

    Notes
    -----
    The network is loaded when it is needed first, once in a process, and is not part of the pickle. Weights that come
    with a package are compared with the digest that we have tested.

    Examples
    --------
    >>> from skal.features import PretrainedFeatures
    >>> PretrainedFeatures("efficientnet-lite0", size=144)
    PretrainedFeatures(name='efficientnet-lite0', size=144)
    """

    def __init__(self, name: str, *, size: int | None = None, device: str | None = None) -> None:
        self.name = name
        self.size = size
        self.device = device

    def fit(self, X: Any, y: Any = None) -> PretrainedFeatures:
        """Check the parameters and the samples; nothing is learnt.

        Parameters
        ----------
        X : samples
            As for ``transform``.
        y : object, optional
            Not looked at.

        Returns
        -------
        PretrainedFeatures
            Itself.
        """
        self._check(X)
        return self

    @property
    def takes(self) -> str:
        """The input of ``transform``, in words."""
        texts, pictures = (
            "a list of texts",
            "a list of image files, images of pillow or arrays, or an array of pictures",
        )
        return texts if kind_of(self.name) == "texts" else pictures

    def __sklearn_is_fitted__(self) -> bool:
        """True if ``transform`` may be called: always."""
        return True

    def __sklearn_tags__(self) -> Any:
        """Pictures and texts are no tables."""
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.input_tags.two_d_array = False
        tags.input_tags.string = kind_of(self.name) == "texts"
        return tags

    def transform(self, X: Any) -> np.ndarray:
        """Features of samples.

        Parameters
        ----------
        X : n samples
            Pictures: an array or tensor (n, c, h, w), (n, h, w, c) or (n, h, w), of bytes or of floats in [0, 1]; or a
            list of paths, images of pillow, or arrays of different sizes. Texts: a list or array of str.

        Returns
        -------
        (n, d) float32 array
            One row per sample.
        """
        samples = self._check(X)
        network, kind = self._load(), kind_of(self.name)
        step = min(get_config()["batch_size"], _BATCH)
        rows = []
        with tqdm(total=len(samples), desc=self.name, unit="sample", disable=not get_config()["progress"]) as bar:
            for start in range(0, len(samples), step):
                part: Any = samples[start : start + step]
                if kind == "images":
                    part = [read_picture(item, start + i) for i, item in enumerate(part)]
                rows.append(self._apply(network, part, start))
                bar.update(len(part))
        return np.concatenate(rows)

    def describe(self) -> dict[str, Any]:
        """A description of the features that JSON can hold: equal descriptions give equal features.

        Returns
        -------
        dict
            ``name``, ``kind`` ("images" or "texts"), ``size`` of pictures (None if it is the network's own),
            ``digest`` (sha256 of the weights) and ``preprocessing``.
        """
        self._check_parameters()
        bundle = BUNDLES.get(self.name)
        if bundle is None:
            network = self._load()
            size, digest, preprocessing = None, network.digest, network.preprocessing
        else:
            size, digest = self.size or bundle.size, next(iter(bundle.files.values()))
            preprocessing = bundle.preprocessing
        return {
            "name": self.name,
            "kind": kind_of(self.name),
            "size": size,
            "digest": digest,
            "preprocessing": preprocessing,
        }

    def _load(self) -> Frozen:
        device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        return load_network(self.name, str(device))

    def _apply(self, network: Frozen, part: list[Any], start: int) -> np.ndarray:
        try:
            found = np.asarray(network.apply(part, self.size), dtype=np.float32)
        except Exception as error:
            raise FeatureError(
                f"The network {self.name} must accept the samples. Got {type(error).__name__}: {error} for samples "
                f"{start} to {start + len(part) - 1}. If memory is short, set a smaller batch_size with "
                "skal.set_config, or another device."
            ) from error
        if found.shape[:1] != (len(part),) or found.ndim != 2 or not np.isfinite(found).all():
            raise FeatureError(
                f"The network {self.name} must give a row of finite numbers for each of {len(part)} samples. Got shape "
                f"{found.shape}{'' if found.ndim != 2 else ' with NaN or infinity'} for samples {start} to "
                f"{start + len(part) - 1}. Choose another network."
            )
        return found

    def _check(self, X: Any) -> Any:
        """The samples as something that can be cut into slices, one entry for each."""
        self._check_parameters()
        kind = kind_of(self.name)
        if isinstance(X, (str, bytes)) or not hasattr(X, "__len__"):
            expected = "a list or an array with an entry for each sample"
            raise InvalidTypeError.for_parameter("transform", "X", expected, X, "Put a single sample into a list.")
        samples = X if isinstance(X, (np.ndarray, torch.Tensor)) and X.ndim > 1 else list(X)
        if len(samples) == 0:
            raise SampleError("There must be at least one sample. Got none. Check the file or the folder.")
        if kind == "texts":
            samples = list(samples)
            strange = next((i for i, text in enumerate(samples) if not isinstance(text, str)), None)
            if strange is not None:
                raise SampleError(
                    f"Sample {strange} must be a text. Got {shorten(samples[strange])} of type "
                    f"{type(samples[strange]).__name__}. Remove it, or put a text in its place."
                )
        return samples

    def _check_parameters(self) -> None:
        check_name(self.name)
        remedy = "Leave it None for the network's own size."
        Integer(32, 2048, optional=True, remedy=remedy).check("pretrained", "size", self.size)
        if self.size is not None and self.name != "efficientnet-lite0":
            expected = "None with a network that has a size of its own"
            raise InvalidParameterError.for_parameter("pretrained", "size", expected, self.size, remedy)
        try:
            torch.device(self.device or "cpu")
        except (RuntimeError, TypeError) as error:
            expected, remedy = "a device of torch", "Pass for example 'cpu' or 'cuda', or None."
            raise InvalidParameterError.for_parameter("pretrained", "device", expected, self.device, remedy) from error


def check_name(name: Any) -> None:
    """Refuse what names no network."""
    if isinstance(name, str) and kind_of(name) is not None:
        return
    known = [*map(repr, BUNDLES), *(f"'{prefix}:NAME'" for prefix in PREFIXES)]
    expected = f"'images', 'texts', {', '.join(known[:-1])} or {known[-1]}"
    error = InvalidParameterError if isinstance(name, str) else InvalidTypeError
    raise error.for_parameter("pretrained", "name", expected, name, "Check the name.")


def pretrained(name: str, *, size: int | None = None, device: str | None = None) -> PretrainedFeatures:
    """A transformer from pictures or texts to the features of a pre-trained network.

    Parameters
    ----------
    name : {"images", "texts"} or str
        "images" and "texts" take the network whose weights the extra ``backbones`` brings along: nothing is downloaded.
        They are "efficientnet-lite0" (17 MB, ImageNet) and "all-minilm-l6-v2" (84 MB, sentences). Others are
        "timm:NAME", "torchvision:NAME" and "sentence-transformers:NAME", where their packages are installed and their
        weights can be downloaded or are at hand.
    size : int or None, default=None
        Pixels a side that "efficientnet-lite0" sees. None is 224; smaller is faster.
    device : str or None, default=None
        Where to compute. None is "cuda" where there is one, or else "cpu".

    Returns
    -------
    PretrainedFeatures
        A transformer of scikit-learn that needs no fitting; its ``name`` says which network it is.

    Examples
    --------
    >>> import numpy as np
    >>> from skal.features import pretrained
    >>> features = pretrained("images")
    >>> features
    PretrainedFeatures(name='efficientnet-lite0')
    >>> features.transform(np.zeros((2, 32, 32, 3), dtype=np.uint8)).shape
    (2, 1280)
    """
    if isinstance(name, str) and name in ("images", "texts"):
        found = find_network(name)
        if found is None:
            raise SkalError(
                f"pretrained({name!r}) needs a network for {name} with its weights. Got an environment without one. "
                f"{EXTRA}"
            )
        name = found
    check_name(name)
    return PretrainedFeatures(name, size=size, device=device)
