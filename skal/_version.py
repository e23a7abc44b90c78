# SPDX-License-Identifier: BSD-3-Clause
"""The version, in a file of its own so that packaging can read it without importing skal."""

__version__ = "0.1.0"
