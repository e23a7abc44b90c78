"""What every tutorial starts from when the site is built: as strict as the tests, and untouched by the one before."""

import warnings
from contextlib import ExitStack
from typing import Any

import torch

_during = ExitStack()


def reset(gallery_conf: dict[str, Any], name: str, when: str) -> None:
    """Called by sphinx-gallery before and after each tutorial."""
    torch.set_num_threads(1)  # small networks gain nothing from more, and sums come out the same on every machine
    _during.close()
    if when == "before":
        _during.enter_context(warnings.catch_warnings())
        warnings.simplefilter("error")
