# SPDX-License-Identifier: BSD-3-Clause
"""Bridges to other packages."""
