# SPDX-License-Identifier: BSD-3-Clause
"""From files to labels and a model: a page in the browser, a cell in a notebook, and what carries labels in and out.

:func:`label` opens the page; ``skal label`` does the same from the command line.
"""

from skal.labelling._ending import Labelled
from skal.labelling._exchange import export_final, export_labels, import_labels
from skal.labelling._label import label

__all__ = ["Labelled", "export_final", "export_labels", "import_labels", "label"]
