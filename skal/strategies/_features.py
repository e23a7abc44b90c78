# SPDX-License-Identifier: BSD-3-Clause
"""Features of samples, for strategies that work on embeddings: of the network, the input, or the user's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.exceptions import NotFittedError as SklearnNotFittedError
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn
from torch.utils.data import Dataset

from skal._core.batches import as_tensor
from skal._core.containers import dataset_input
from skal._core.content import content_digest
from skal._core.copies import origin
from skal._core.estimators import chained
from skal._core.evaluation import evaluating
from skal._core.feature_store import FeatureStore, current_memory, sample_keys
from skal._core.network import Network
from skal._core.samples import Samples
from skal._core.sharding import filled
from skal.context import QueryContext
from skal.exceptions import FeatureError, InvalidTypeError, NotFittedError, shorten
from skal.features import RememberedFeatures
from skal.tangent._kernels import settle_kernel
from skal.tangent._sketch import feature_matrix

_NAMES = ["auto", "input", "last_layer", "tangent"]
_TANGENT_FEATURES = 4096
_ROWS = 4096  # that are handed to a function of the user's at once
_REMEMBERED_BYTES = 10**9  # of features that a loop keeps from round to round, where there is no bound on memory


@dataclass(frozen=True)
class _Settled:
    """Features that have been looked at for this query, and what a loop remembers of them."""

    features: Any
    store: FeatureStore | None = None


def check_features(owner: str, features: Any) -> None:
    """Refuse what cannot give features."""
    known = features in _NAMES if isinstance(features, str) else not isinstance(features, type)
    if not known or not (isinstance(features, str) or callable(features) or hasattr(features, "transform")):
        expected = f"one of {', '.join(map(repr, _NAMES))}, a fitted transformer, a function of X or an nn.Module"
        remedy = "Pass for example a fitted sklearn.decomposition.PCA, or a frozen backbone."
        raise InvalidTypeError.for_parameter(owner, "features", expected, features, remedy)


def come_from_estimator(features: Any) -> bool:
    """Whether the features may be those of the learner's own network."""
    return isinstance(features, str) and features != "input"


def feature_width(context: QueryContext, features: Any) -> int:
    """Number of features d, from one sample at most."""
    if _resolved(context, features) == "last_layer":
        return context.last_layer.width
    return features_of(context.restrict(range(1)), features).shape[1]


def settled(context: QueryContext, features: Any) -> Any:
    """The same features for one query: what computes them is looked at once, and what a loop remembers is found.

    Parameters
    ----------
    context : QueryContext
    features
        See :func:`features_of`.
    """
    if isinstance(features, _Settled):
        return features
    features = _resolved(context, features)
    if isinstance(features, RememberedFeatures):
        return _Settled(features.looked_at())
    memory = current_memory.get()
    source = None if memory is None else _source(context, features)
    if memory is None or source is None:
        return _Settled(features)
    stored = _Settled(features, memory.store(source))
    width = features_of(context, stored, context.pool.take(range(1))).shape[1]
    room = _REMEMBERED_BYTES if context.memory_bound is None else context.memory_bound // 8
    return stored if context.n_pool * width * 8 <= room else _Settled(features)


def _source(context: QueryContext, features: Any) -> str | None:
    """What computes features that do not change from round to round; None if they may, or if it cannot be told."""
    if not isinstance(features, str):
        return content_digest(features)
    if features != "last_layer":
        return None
    if not only_head_is_trained(context):
        return None
    head = tuple(context.last_layer.layer.parameters())
    # the layers below are fixed, unless training moves their buffers
    return content_digest([context.network.module, context.transformers], without=head)


def only_head_is_trained(context: QueryContext) -> bool:
    """Whether the network is frozen up to its last layer."""
    head = set(map(id, context.last_layer.layer.parameters()))
    return all(id(p) in head for p in context.network.module.parameters() if p.requires_grad)


def _resolved(context: QueryContext, features: Any) -> Any:
    if isinstance(features, str) and features == "auto":
        features = "last_layer" if context.has_network else "input"
    if isinstance(features, str) and features != "input":
        context.require_network()
        context.require_fitted()
    return features


def features_of(context: QueryContext, features: Any, samples: Samples | None = None) -> Tensor:
    """(n, d) features of the pool, or of other samples, checked, on the device they were computed on.

    Parameters
    ----------
    context : QueryContext
    features : {"auto", "input", "last_layer", "tangent"}, transformer, callable or nn.Module
        ``auto`` is the input of a network's last layer, and the input itself for any other classifier.
    samples : Samples, optional
        None is the pool.
    """
    settled_features = settled(context, features)
    features = settled_features.features
    if isinstance(features, str) and features != "input" and settled_features.store is None:
        if features == "last_layer":
            return _finite(context, _float32_at_least(context.embeddings(samples)[0]))
        pool = context.pool if samples is None else samples
        engine = context.engine(memory=context.memory // 4)
        kind = settle_kernel(engine, context.pool, "auto", context.owner)
        return _finite(context, feature_matrix(engine, pool, kind, _TANGENT_FEATURES, 0))
    samples = context.pool if samples is None else samples
    return filled(_blocks(context, settled_features, samples), len(samples))


def _blocks(context: QueryContext, features: _Settled, samples: Samples) -> Iterator[Tensor]:
    width = None
    step = max(1, len(samples)) if isinstance(features.features, str) else _ROWS
    for start in range(0, len(samples), step):
        part = samples.take(range(start, min(start + step, len(samples))))
        block = _matrix(context, _of_part(context, features, part), len(part))
        width = block.shape[1] if width is None else width
        if block.shape[1] != width:
            got = f"{width} columns at first, and {block.shape[1]} from sample {start} on"
            raise wrong_features(context, "of one length for all samples", got)
        yield _finite(context, block, start)


def _of_part(context: QueryContext, settled_features: _Settled, part: Samples) -> Any:
    """Features of a few samples; only what nobody remembers is computed."""
    features, store = settled_features.features, settled_features.store
    if store is None:
        return _computed(context, features, part)

    def compute(rows: np.ndarray) -> np.ndarray:
        values = _matrix(context, _computed(context, features, part.take(rows)), len(rows))
        store.device = values.device
        return values.cpu().numpy()

    if isinstance(part.X, Dataset):  # its samples are known by where they stand
        keys: list[Any] = [origin(part.X, int(row)) for row in part.rows]
    else:
        keys = sample_keys(part.read(0, len(part)))
    return torch.from_numpy(store.rows(keys, compute)).to(store.device)


def _computed(context: QueryContext, features: Any, part: Samples) -> Any:
    """Features of a few samples, as the user's function or the samples themselves have them."""
    if isinstance(features, str) and features == "last_layer":
        return context.embeddings(part)[0]
    if isinstance(features, nn.Module):
        part = copy(part)
        part.transform = None  # a backbone sees samples as they are, whatever classifier comes after it
        return torch.cat(list(_outputs(Network(features), part, context.batch_size)))
    if isinstance(features, str):
        rows = part.read(0, len(part))
        transform = chained(context.transformers) if context.is_fitted else None
        return rows if transform is None else transform(rows)
    try:
        rows = part.read(0, len(part))
        return features.transform(rows) if hasattr(features, "transform") else features(rows)
    except AttributeError as error:
        if not _is_unfitted(features, error):
            raise
        raise NotFittedError(
            f"The transformer given to {context.owner} as features must be fitted. Got an unfitted "
            f"{type(features).__name__} instead. Fit it on the pool before the first query."
        ) from error


def _is_unfitted(features: Any, error: AttributeError) -> bool:
    """Whether this error means it: before scikit-learn 1.8 PCA looks for its components first, and just lacks them."""
    if isinstance(error, SklearnNotFittedError):
        return True
    if not hasattr(features, "fit"):
        return False
    try:
        check_is_fitted(features)
    except SklearnNotFittedError:
        return True
    return False


def _outputs(network: Network, part: Samples, batch_size: int) -> Iterator[Tensor]:
    with evaluating(network.module), torch.no_grad():
        for batch in network.passes(part, batch_size):
            yield network.output(batch).flatten(1)


def _matrix(context: QueryContext, values: Any, n: int) -> Tensor:
    """Whatever holds numbers, row by row, as a floating-point tensor (n, d)."""
    if isinstance(values, Mapping):
        return torch.cat([_matrix(context, value, n) for value in values.values()], dim=1)
    if isinstance(values, Dataset):
        values = torch.stack([torch.as_tensor(dataset_input(values[i]), device="cpu") for i in range(n)])
    if sp.issparse(values):
        values = values.toarray()
    if not isinstance(values, Tensor):
        array = np.asarray(values)
        if array.dtype.kind not in "fiub":
            raise wrong_features(context, "numbers", f"{shorten(values)} of dtype {array.dtype}")
        values = as_tensor(array)
    values = values.detach()
    if values.ndim == 0 or len(values) != n or values[:1].numel() == 0:
        raise wrong_features(context, f"an array of {n} rows with at least one column", f"shape {tuple(values.shape)}")
    values = values.flatten(1) if values.ndim > 1 else values[:, None]
    return _float32_at_least(values)


def _float32_at_least(values: Tensor) -> Tensor:
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


def _finite(context: QueryContext, values: Tensor, start: int = 0) -> Tensor:
    if bool(torch.isfinite(values.sum(1)).all()):  # a sum is finite only if all of its terms are, and is soon made
        return values
    bad = ~torch.isfinite(values).all(1)
    if bool(bad.any()):
        raise wrong_features(context, "finite", f"NaN or infinity, first for sample {start + int(bad.nonzero()[0, 0])}")
    return values


def wrong_features(context: QueryContext, expected: str, got: str) -> FeatureError:
    return FeatureError(
        f"The features that {context.owner} works on must be {expected}. Got {got} instead. Pass other features="
        ": a fitted transformer, a function X -> (n, d), or a frozen nn.Module."
    )
