# SPDX-License-Identifier: BSD-3-Clause
"""Features of samples by a frozen network, a transformer or a function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.exceptions import NotFittedError as SklearnNotFittedError
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from skal._core.containers import as_tensor
from skal._core.guard import evaluating
from skal._core.memory import fill_rows
from skal._core.network import Network
from skal._core.pool import Samples
from skal._core.precision import place_with_doubles, with_doubles
from skal.config import get_config
from skal.exceptions import FeatureError, NotFittedError, shorten

_ROWS = 4096  # that are handed to a function of the user's at once


def compute_features(features: Any, samples: Samples, *, owner: str = "skal") -> Tensor:
    """Features of samples, by a transformer, a function, a frozen module, or the samples themselves.

    Parameters
    ----------
    features : transformer, callable, nn.Module or None
        What computes them. None takes the samples as they are, behind the transform that they bring.
    samples : Samples
        What they are computed for, n of them.
    owner : str
        Who works on the features, for messages.

    Returns
    -------
    (n, d) tensor
        Finite, of float32 or float64, where they were computed.

    Examples
    --------
    >>> from skal.context import Samples
    >>> from skal.features import compute_features
    >>> compute_features(lambda X: X[:, :1], Samples(np.eye(2)))
    tensor([[1.],
            [0.]], dtype=torch.float64)
    """
    return fill_rows(_blocks(features, samples, owner), len(samples))


def _blocks(features: Any, samples: Samples, owner: str) -> Iterator[Tensor]:
    width = None
    step = max(1, len(samples)) if features is None else _ROWS
    for start in range(0, len(samples), step):
        part = samples.take(range(start, min(start + step, len(samples))))
        block = check_finite_features(_as_matrix(_apply(features, part, owner), len(part), owner), owner, start)
        width = block.shape[1] if width is None else width
        if block.shape[1] != width:
            got = f"{width} columns at first, and {block.shape[1]} from sample {start} on"
            raise FeatureError.for_features(owner, "of one length for all samples", got)
        yield block


def _apply(features: Any, part: Samples, owner: str) -> Any:
    if isinstance(features, nn.Module):
        # a backbone sees samples as they are, whatever classifier comes after it
        return pass_module(features, replace(part, transform=None))
    if features is None:
        return next(replace(part, allow_nan=True).chunks(len(part), stacked=True))
    rows = part.read(0, len(part))
    try:
        return features.transform(rows) if hasattr(features, "transform") else features(rows)
    except AttributeError as error:
        if not _is_unfitted(features, error):
            raise
        raise NotFittedError(
            f"The transformer given to {owner} as features must be fitted. Got an unfitted "
            f"{type(features).__name__} instead. Fit it on the pool before the first query."
        ) from error


def pass_module(module: nn.Module, samples: Samples) -> Tensor:
    """(n, d) outputs of a frozen module, flattened, in eval mode and without gradient."""
    network, batch_size = Network(with_doubles(module)), get_config()["batch_size"]
    with evaluating(network.module), torch.no_grad():
        return torch.cat([network.output(batch).flatten(1) for batch in network.passes(samples, batch_size)])


def _is_unfitted(features: Any, error: AttributeError) -> bool:
    """True if the error says that features are not fitted; before scikit-learn 1.8 PCA only lacks an attribute."""
    if isinstance(error, SklearnNotFittedError):
        return True
    if not hasattr(features, "fit"):
        return False
    try:
        check_is_fitted(features)
    except SklearnNotFittedError:
        return True
    return False


def _as_matrix(values: Any, n: int, owner: str) -> Tensor:
    """Whatever holds numbers, row by row, as a floating-point tensor (n, d)."""
    if isinstance(values, Mapping):
        return torch.cat([_as_matrix(value, n, owner) for value in values.values()], dim=1)
    if sp.issparse(values):
        values = values.toarray()
    if not isinstance(values, Tensor):
        array = np.asarray(values)
        if array.dtype.kind not in "fiub":
            raise FeatureError.for_features(owner, "numbers", f"{shorten(values)} of dtype {array.dtype}")
        values = as_tensor(array)
    values = values.detach().to(place_with_doubles(values.device))
    if values.ndim == 0 or len(values) != n or values[:1].numel() == 0:
        got = f"shape {tuple(values.shape)}"
        raise FeatureError.for_features(owner, f"an array of {n} rows with at least one column", got)
    return at_least_float32(values.flatten(1) if values.ndim > 1 else values[:, None])


def at_least_float32(values: Tensor) -> Tensor:
    """The same numbers in a precision that can be computed with."""
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


def check_finite_features(values: Tensor, owner: str, start: int = 0) -> Tensor:
    """The features, if they are finite; ``start`` is the number of the first sample, for the message."""
    if bool(torch.isfinite(values.sum(1)).all()):  # a sum is finite only if all of its terms are
        return values
    bad = ~torch.isfinite(values).all(1)
    if bool(bad.any()):
        raise FeatureError.for_features(
            owner, "finite", f"NaN or infinity, first for sample {start + int(bad.nonzero()[0, 0])}"
        )
    return values
