# SPDX-License-Identifier: BSD-3-Clause
"""From files to labels and a model: a page in the browser, a cell in a notebook, and what carries labels in and out.

:func:`label` opens the page; ``skal label`` does the same from the command line.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skal.labelling._ending import Labelled
    from skal.labelling._exchange import export_final, export_labels, import_labels
    from skal.labelling._label import label

__all__ = ["Labelled", "export_final", "export_labels", "import_labels", "label"]

# imported when they are first used: the command line prints its help without torch
_HOMES = {"Labelled": "_ending", "label": "_label"}
_HOMES |= dict.fromkeys(("export_final", "export_labels", "import_labels"), "_exchange")


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
