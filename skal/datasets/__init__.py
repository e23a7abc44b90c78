# SPDX-License-Identifier: BSD-3-Clause
"""Image data sets, read from the files in which they are distributed.

Nothing is downloaded: ``digits`` comes with scikit-learn, the others are read from the folder ``data_home``.
"""

from skal.datasets._load import available, load

__all__ = ["available", "load"]
