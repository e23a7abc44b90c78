"""Features that are computed once per project, not once per round."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from torch import nn
from torch.utils.data import Dataset

from skal._core.containers import take_rows
from skal._core.network import evaluating
from skal.exceptions import FeatureError, InvalidTypeError
from skal.validation import check_integer

__all__ = ["RememberedFeatures"]

_KEY_BYTES = 16


class RememberedFeatures(TransformerMixin, BaseEstimator):
    """Features of samples, remembered by the samples' content, in memory and if asked for on disk.

    Hand it to a strategy as ``features``. In every round the pool is another one, but its samples have been seen
    before, so that a fixed backbone is run on each of them once.

    Parameters
    ----------
    features : transformer, callable or nn.Module
        What computes them: a fitted transformer, a function ``X -> (n, d)``, or a frozen backbone. It must not change.
    folder : path or None, default=None
        Where to keep the features, beside the checkpoint of a loop for example. None keeps them in memory alone.
    batch_size : int, default=256
        Samples per pass of a backbone.

    Attributes
    ----------
    n_computed_ : int
        Samples whose features had to be computed by this object.

    Notes
    -----
    A clone is the same object, so that copies of a strategy share what they remember. In the folder ``keys.bin`` has
    one 16-byte hash per sample, ``features.bin`` the rows in the same order, and ``meta.json`` their width and type and
    what computed them: a folder of another backbone is refused.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skal import ActiveLearner
    >>> from skal.features import RememberedFeatures
    >>> from skal.strategies import MaxHerding
    >>> X = np.random.default_rng(0).normal(size=(100, 5))
    >>> features = RememberedFeatures(lambda X: X[:, :3])  # imagine something slow
    >>> learner = ActiveLearner(LogisticRegression(), MaxHerding(features=features))
    >>> for _ in range(3):
    ...     indices, samples = learner.query(X, n_instances=10)
    >>> features.n_computed_
    100
    """

    def __init__(self, features: Any, *, folder: Any = None, batch_size: int = 256) -> None:
        self.features = features
        self.folder = folder
        self.batch_size = batch_size

    def fit(self, X: Any = None, y: Any = None) -> RememberedFeatures:
        """Do nothing: what computes the features is fixed."""
        return self

    def __sklearn_is_fitted__(self) -> bool:
        """Whether ``transform`` may be called: always."""
        return True

    def __sklearn_clone__(self) -> RememberedFeatures:
        """The same object: memory that is copied is no memory."""
        return self

    def transform(self, X: Any) -> np.ndarray:
        """(n, d) features; only those of samples that are new are computed."""
        if not hasattr(self, "_rows"):
            self._open()
        keys = _row_keys(X)
        # of copies one is enough
        new = {key: i for i, key in reversed(list(enumerate(keys))) if key not in self._rows}
        rows = np.array(sorted(new.values()), dtype=np.int64)
        if len(rows):
            self._add([keys[i] for i in rows], self._computed(take_rows(X, rows), len(rows)))
        return self._values[[self._rows[key] for key in keys]]

    def _computed(self, X: Any, n: int) -> np.ndarray:
        check_integer(type(self).__name__, "batch_size", self.batch_size, 1)
        if isinstance(self.features, nn.Module):
            values: Any = torch.cat([self._passed(X, start, n) for start in range(0, n, self.batch_size)]).numpy()
        elif hasattr(self.features, "transform"):
            values = self.features.transform(X)
        else:
            values = self.features(X)
        values = np.asarray(values.detach().cpu() if isinstance(values, torch.Tensor) else values)
        width = self._values.shape[1] if len(self._values) else None
        if values.ndim != 2 or len(values) != n or width not in (None, values.shape[1]):
            raise FeatureError(
                f"The features that RememberedFeatures remembers must be an array of {n} rows with "
                f"{width or 'at least one'} columns. Got shape {values.shape} instead. Check what computes them."
            )
        return values

    def _passed(self, X: Any, start: int, n: int) -> torch.Tensor:
        rows = torch.as_tensor(np.asarray(take_rows(X, slice(start, min(start + self.batch_size, n)))))
        device = next((parameter.device for parameter in self.features.parameters()), rows.device)
        with evaluating(self.features), torch.no_grad():
            return self.features(rows.to(device)).flatten(1).cpu()

    def _open(self) -> None:
        self._rows: dict[bytes, int] = {}
        self._values = np.empty((0, 0))
        self.n_computed_ = 0
        if self.folder is None:
            return
        folder = Path(self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "meta.json").exists():
            return
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        if meta["source"] != _source(self.features):
            raise FeatureError(
                f"The features in {folder} must have been computed by {_source(self.features)}. Got those of "
                f"{meta['source']} instead. Choose another folder, or delete this one."
            )
        keys, values = (folder / "keys.bin").read_bytes(), np.fromfile(folder / "features.bin", dtype=meta["dtype"])
        # a run that was stopped while it wrote leaves half a row
        n = min(len(keys) // _KEY_BYTES, len(values) // meta["width"])
        self._values = values[: n * meta["width"]].reshape(n, meta["width"])
        self._rows = {keys[_KEY_BYTES * i : _KEY_BYTES * (i + 1)]: i for i in range(n)}
        for name, size in (("keys.bin", _KEY_BYTES), ("features.bin", meta["width"] * values.itemsize)):
            with (folder / name).open("r+b") as file:
                file.truncate(n * size)

    def _add(self, keys: list[bytes], values: np.ndarray) -> None:
        start = len(self._rows)
        self._rows |= {key: start + i for i, key in enumerate(keys)}
        self._values = np.concatenate([self._values, values]) if start else values
        self.n_computed_ += len(keys)
        if self.folder is None:
            return
        folder = Path(self.folder)
        if not start:
            meta = {"source": _source(self.features), "width": values.shape[1], "dtype": str(values.dtype)}
            (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
        for name, content in (
            ("features.bin", values.astype(self._values.dtype).tobytes()),
            ("keys.bin", b"".join(keys)),
        ):
            with (folder / name).open("ab") as file:
                file.write(content)


def _source(features: Any) -> str:
    """What computes features, as text that is the same in another process."""
    name = getattr(features, "__qualname__", type(features).__qualname__)
    if not isinstance(features, nn.Module):
        return name
    digest = blake2b(digest_size=8)
    for key, value in features.state_dict().items():
        digest.update(key.encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return f"{name} {digest.hexdigest()}"


def _row_keys(X: Any) -> list[bytes]:
    """A hash of every sample."""
    if isinstance(X, Mapping):
        parts = zip(*(_row_keys(value) for value in X.values()), strict=True)
        return [blake2b(b"".join(part), digest_size=_KEY_BYTES).digest() for part in parts]
    if isinstance(X, Dataset):
        expected, remedy = "an array, a tensor, a data frame, a list, or a dict of these", "Pass samples as an array."
        raise InvalidTypeError.for_parameter("RememberedFeatures", "X", expected, X, remedy)
    array = np.asarray(X.cpu() if isinstance(X, torch.Tensor) else X)
    if array.dtype.kind in "OU":
        rows: Any = (str(row if array.ndim == 1 else row.tolist()).encode() for row in array)
    else:
        rows = (row.tobytes() for row in np.ascontiguousarray(array))
    return [blake2b(row, digest_size=_KEY_BYTES).digest() for row in rows]
