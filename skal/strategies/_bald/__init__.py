# SPDX-License-Identifier: BSD-3-Clause
"""BALD and EPIG, and what only they need."""

from skal.strategies._bald._epig import EPIG, epig
from skal.strategies._bald._strategy import BALD, bald

__all__ = ["BALD", "EPIG", "bald", "epig"]
