# SPDX-License-Identifier: BSD-3-Clause
"""What the rest of skal stands on: networks, samples, memory, workers. Not meant to be imported by users."""
