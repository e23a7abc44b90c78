# SPDX-License-Identifier: BSD-3-Clause
"""The softmax over a few classes, in the direction in which a processor computes it several times faster."""

from __future__ import annotations

import torch
from torch import Tensor

# torch takes the numbers of a row one by one where there are fewer than these
_FEW_CLASSES = 16
_MANY_ROWS = 32


def softmax(logits: Tensor) -> Tensor:
    """(..., C) -> (..., C) probabilities, along the last dimension.

    Of many rows with few classes each, whole columns are computed at a time: the answer is then laid out by columns.

    Examples
    --------
    >>> softmax(torch.zeros(2, 4))
    tensor([[0.2500, 0.2500, 0.2500, 0.2500],
            [0.2500, 0.2500, 0.2500, 0.2500]])
    """
    if logits.ndim == 2 and logits.shape[1] < _FEW_CLASSES and logits.shape[0] > _MANY_ROWS and logits.is_cpu:
        return torch.softmax(logits.T, dim=0).T
    return torch.softmax(logits, dim=-1)
