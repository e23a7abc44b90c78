# SPDX-License-Identifier: BSD-3-Clause
"""Rows for FixMatch: labels of which some are missing, and batches of labelled and unlabelled rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler, Subset

from skal._core.containers import all_finite, check_finite, dataset_input, dataset_target, n_rows, take_rows
from skal.exceptions import InvalidParameterError, InvalidTypeError, NoLabelledDataError, NonFiniteError


def check_labels(owner: str, X: Any, y: Any, name: str = "y") -> np.ndarray:
    """(n,) int64 labels, −1 for unlabelled; a Dataset of pairs brings its own where y is None."""
    n_samples = n_rows(X, "X")
    if y is None and isinstance(X, Dataset):
        y = [int(dataset_target(X[row])) for row in range(n_samples)]
    expected = f"{n_samples} integers 0 … C−1, one for each sample, with −1 for unlabelled ones"
    remedy = "Encode labels with sklearn.preprocessing.LabelEncoder and put −1 where there is none."
    labels = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    if labels.dtype.kind not in "iu":
        raise InvalidTypeError.for_parameter(owner, name, expected, y, remedy)
    if labels.shape != (n_samples,):
        raise InvalidParameterError.for_parameter(owner, name, expected, f"shape {labels.shape}", remedy)
    if labels.min(initial=-1) < -1:
        raise InvalidParameterError.for_parameter(owner, name, expected, int(labels.min()), remedy)
    return labels.astype(np.int64)


def labelled_rows(owner: str, labels: np.ndarray) -> np.ndarray:
    """The rows with a label; an error if there is none."""
    rows = np.flatnonzero(labels >= 0)
    if not len(rows):
        raise NoLabelledDataError(
            f"The y given to {owner} must hold labels for some samples. All labels are −1 (unlabelled). "
            "Label a few samples, best of every class; for folds use StratifiedKFold."
        )
    return rows


def check_column_names(owner: str, X: Any) -> None:
    """Refuse a DataFrame whose columns cannot be passed to the module by name, as skorch does."""
    names = [name for name in getattr(X, "columns", ()) if not isinstance(name, str)]
    if names:
        expected = "an array, or a DataFrame whose column names are those of the module's inputs"
        remedy = "Pass X.to_numpy(), here and to predict, if the columns are the features of one input."
        raise InvalidTypeError.for_parameter(owner, "X", expected, f"columns {names}", remedy)


def check_batch(X: Any, dataset: Any, rows: Iterable[int]) -> None:
    """Refuse NaN and infinity in a batch drawn from these rows of a Dataset, and say which row has them."""
    if all_finite(X):
        return
    for row in rows:
        check_finite([dataset_input(dataset[row])], "X", [row])
    raise NonFiniteError(  # the items differ from one reading to the next, or are finite until they are collated
        "X must be finite. Got NaN or infinity in a batch of labelled samples. Check the Dataset and its collate_fn."
    )


class Permutations(Sampler[int]):
    """Positions 0 … n−1 in random order, again and again, every time in another: ``total`` of them, or without end.

    Fewer samples than a batch holds are thereby repeated until it is full.
    """

    def __init__(self, n: int, total: int | None = None) -> None:
        self.n = n
        self.total = total

    def __iter__(self) -> Iterator[int]:
        positions = (position for _ in count() for position in torch.randperm(self.n, device="cpu").tolist())
        for number, position in enumerate(positions):
            if number == self.total:
                return
            yield position

    def __len__(self) -> int:
        # len() refuses None: an endless sampler has no length
        return self.total  # type: ignore[return-value]


class PairedInputs(Dataset[Any]):
    """The inputs of a Dataset, each with a value of its own (a label, a row number) instead of the Dataset's."""

    def __init__(self, dataset: Any, values: Tensor) -> None:
        self.dataset = dataset
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, row: int) -> tuple[Any, Tensor]:
        return dataset_input(self.dataset[row]), self.values[row]


class BatchwiseRows(Dataset[Any]):
    """Rows of arrays or tensors, read a whole batch at a time; a loader must collate with :func:`keep_batch`."""

    def __init__(self, X: Any, values: Tensor, rows: Tensor) -> None:
        self.X = X
        self.values = values
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitems__(self, positions: list[int]) -> tuple[Any, Tensor]:
        rows = self.rows[positions]
        return take_rows(self.X, rows.numpy()), self.values[rows]


def keep_batch(batch: Any) -> Any:
    """The collate function of batches that are batches already."""
    return batch


def is_sliceable(X: Any) -> bool:
    """True for arrays, tensors and dicts of them: rows can be taken many at a time."""
    parts = X.values() if isinstance(X, Mapping) else [X]
    return all(isinstance(part, (np.ndarray, Tensor)) for part in parts)


def rows_in(dataset: Any) -> Tensor | None:
    """The rows of a :class:`PairedInputs` that a Subset (of a Subset …) of it holds; None for another Dataset."""
    if isinstance(dataset, PairedInputs):
        return torch.arange(len(dataset), device="cpu")
    if isinstance(dataset, Subset):
        inner = rows_in(dataset.dataset)
        return (
            None
            if inner is None
            else inner[torch.as_tensor(np.asarray(dataset.indices), dtype=torch.long, device="cpu")]
        )
    return None
