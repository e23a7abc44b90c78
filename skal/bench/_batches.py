# SPDX-License-Identifier: BSD-3-Clause
"""Minibatches cut from arrays at once; skorch's own loader fetches them sample by sample."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader


class WholeBatches(DataLoader[Any]):
    """The same batches as a ``DataLoader``, in the same order from the same seed, for skorch's data sets of arrays.

    Examples
    --------
    >>> from skorch.dataset import Dataset
    >>> data = Dataset(np.arange(6.0).reshape(3, 2), np.arange(3))
    >>> [y.tolist() for X, y in WholeBatches(data, batch_size=2)]
    [[0, 1], [2]]
    """

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        X, y = (getattr(self.dataset, name, None) for name in "Xy")
        arrays = isinstance(X, np.ndarray) and (y is None or isinstance(y, np.ndarray))
        return self._cut(X, y) if arrays else super().__iter__()

    def _cut(self, X: Any, y: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        # a loader draws a seed for its workers, even without any; like its batches, this one's are on the host
        torch.empty((), dtype=torch.int64, device="cpu").random_()
        sampler: Any = self.batch_sampler
        for rows in sampler:
            labels = torch.zeros(len(rows), 1, device="cpu") if y is None else torch.from_numpy(y[rows])
            yield torch.from_numpy(X[rows]), labels
