# SPDX-License-Identifier: BSD-3-Clause
"""Active learning inside Label Studio: its annotations are answers, and our choice is the order of its tasks."""
