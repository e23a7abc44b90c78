# SPDX-License-Identifier: BSD-3-Clause
"""From files to labels and a model: a page in the browser, a cell in a notebook, and what carries labels in and out.

:func:`label` opens the page; ``skal label`` does the same from the command line.
"""

from skal.labelling._exchange import export_labels, import_labels
from skal.labelling._label import label
from skal.labelling._project import Labelled

__all__ = ["Labelled", "export_labels", "import_labels", "label"]
