# SPDX-License-Identifier: BSD-3-Clause
"""Texts of files that come back as they went: JSON, and tables for spreadsheets."""
