# SPDX-License-Identifier: BSD-3-Clause
"""Networks of other packages: timm, torchvision and sentence-transformers, with imports that may fail."""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from skal.config import get_config
from skal.exceptions import InvalidParameterError, SkalError


@dataclass(frozen=True)
class Frozen:
    """A network that is loaded.

    Attributes
    ----------
    apply : callable
        From a list of (h, w, 3) bytes, or of texts, and the size of pictures, to an (n, d) array.
    digest : str
        sha256 of the weights: of their file where they come with a package, or else of their numbers.
    preprocessing : str
    """

    apply: Callable[[list[Any], int | None], np.ndarray]
    digest: str
    preprocessing: str


def load_sentences(name: str, device: str) -> Frozen:
    apply, model = sentence_encoder(name, device)
    return Frozen(apply, _digest_of(model), "that of sentence-transformers")


def sentence_encoder(name: str, device: str, *, local: bool = False) -> tuple[Callable[..., np.ndarray], Any]:
    with _hide_broken_torchvision():
        package = _import("sentence-transformers", "sentence_transformers")
        with _own_bars(shown=not local):  # a download takes long, a file does not
            model = package.SentenceTransformer(name, device=device, local_files_only=local)

    def apply(texts: list[str], size: int | None) -> np.ndarray:
        # half of a surrogate pair is no letter to a tokeniser
        clean = [text.encode("utf-8", "replace").decode() for text in texts]
        return np.asarray(model.encode(clean, batch_size=len(clean), show_progress_bar=False))

    return apply, model


def load_timm(name: str, device: str) -> Frozen:
    timm = _import("timm", "timm")
    model = timm.create_model(name, pretrained=True, num_classes=0)
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    return _from_module(model, transform, device, "that of timm")


def load_torchvision(name: str, device: str) -> Frozen:
    models = _import("torchvision", "torchvision").models
    weights = models.get_model_weights(name).DEFAULT
    model = models.get_model(name, weights=weights)
    layers = [place for place, part in model.named_modules() if isinstance(part, torch.nn.Linear)]
    if not layers:
        expected, remedy = "a network that ends in a linear layer", "Choose another one."
        raise InvalidParameterError.for_parameter("pretrained", "name", expected, f"torchvision:{name}", remedy)
    parent, _, place = layers[-1].rpartition(".")
    setattr(model.get_submodule(parent), place, torch.nn.Identity())  # what the class scores are made of
    return _from_module(model, weights.transforms(), device, "that of torchvision")


def _from_module(model: torch.nn.Module, transform: Any, device: str, preprocessing: str) -> Frozen:
    model = model.eval().requires_grad_(False).to(device)

    def apply(pictures: list[np.ndarray], size: int | None) -> np.ndarray:
        from PIL import Image

        batch = torch.stack([transform(Image.fromarray(picture)) for picture in pictures]).to(device)
        with torch.inference_mode():
            features: np.ndarray = model(batch).reshape(len(pictures), -1).cpu().numpy()
        return features

    return Frozen(apply, _digest_of(model), preprocessing)


def _digest_of(model: torch.nn.Module) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _import(kind: str, package: str) -> Any:
    """A package of networks; it may fail in any way if it does not fit the torch beside it."""
    try:
        return importlib.import_module(package)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name:
            raise SkalError(
                f"A network of {kind} needs the package {error.name}. Got an environment without it. "
                f"Run: pip install {error.name}"
            ) from error
        raise SkalError(
            f"A network of {kind} needs packages that fit together. Got {type(error).__name__} from importing "
            f"{kind}: {str(error).rstrip('.')}. Install the torchvision that belongs to your torch {torch.__version__}."
        ) from error


@contextmanager
def _hide_broken_torchvision() -> Iterator[None]:
    """Let transformers import where torchvision is installed, but of a build that does not fit torch.

    It looks for torchvision, imports what it finds, and does not need it for texts.
    """
    if find_spec("torchvision") is None or _imports("torchvision"):
        yield
        return
    for name in [name for name in sys.modules if name.startswith("torchvision.")]:
        del sys.modules[name]
    sys.modules["torchvision"] = None  # type: ignore[assignment]  # as if it were not installed
    try:
        yield
    finally:
        del sys.modules["torchvision"]  # whoever else imports it gets its own error


def _imports(package: str) -> bool:
    try:
        importlib.import_module(package)
    except Exception:
        return False
    return True


@contextmanager
def _own_bars(*, shown: bool) -> Iterator[None]:
    """Bars of transformers while it loads, if there is something to wait for or somebody wants bars."""
    logging: Any = importlib.import_module("transformers.utils.logging")
    before = logging.is_progress_bar_enabled()
    if not (shown or get_config()["progress"]):
        logging.disable_progress_bar()
    try:
        yield
    finally:
        if before:
            logging.enable_progress_bar()
