# SPDX-License-Identifier: BSD-3-Clause
"""What is installed, what is missing, and the command that helps: ``skal doctor``."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires

import torch

from skal._version import __version__
from skal.exceptions import SkalError, how_to_install
from skal.features._zoo import BUNDLES, check_files
from skal.models._card import installed_version

NAME = "skal-learn"
_FOR_DEVELOPERS = {"dev", "docs", "bench"}


def examine() -> Iterator[str]:
    """Lines about this environment.

    Examples
    --------
    >>> next(iter(examine())).split()[0]
    'skal'
    """
    yield f"skal {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    needed = requirements()
    if needed is None:
        yield f"packages: unknown, because {NAME} is not installed here. In the clone: pip install --editable ."
        return
    yield "packages: " + ", ".join(
        f"{package} {installed_version(package) or 'is missing'}" for package in needed.pop("")
    )
    yield f"device: {describe_device()}"
    yield "pre-trained networks:"
    for name, bundle in BUNDLES.items():
        yield f"  {bundle.kind:<10}{describe_network(name)}"
    yield "extras:"
    for extra, packages in needed.items():
        missing = [package for package in packages if installed_version(package) is None]
        said = f"{', '.join(missing)} missing. {how_to_install(extra)}" if missing else "complete"
        yield f"  {extra:<12}{said}"


def requirements() -> dict[str, list[str]] | None:
    """Packages that each extra needs, those that everybody needs under ""; None if skal is not installed."""
    try:
        lines = requires(NAME) or []
    except PackageNotFoundError:
        return None
    found: dict[str, list[str]] = {"": []}
    for line in lines:
        package = re.match(r"[\w.-]+", line)
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        assert package is not None
        if extra is None or extra[1] not in _FOR_DEVELOPERS:
            found.setdefault("" if extra is None else extra[1], []).append(package[0])
    return found


def describe_device() -> str:
    """The device that networks are computed on."""
    if torch.cuda.is_available():
        return f"cuda ({torch.cuda.get_device_name()})"
    if torch.backends.mps.is_available():
        return "cpu; a net on mps is trained there, and asked as a copy on the processor: mps has no double precision"
    return f"cpu ({os.cpu_count()} cores, {torch.get_num_threads()} threads for torch)"


def describe_network(name: str) -> str:
    """Say whether a network is installed with the weights that were tested."""
    try:
        check_files(name)
    except SkalError as error:
        return f"{name} is not at hand. {error}"
    return f"{name} is at hand"
