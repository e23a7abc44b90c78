"""What a strategy picked: classes, redundancy and outliers, each as one number for a run."""

from __future__ import annotations

import numpy as np
from sklearn.neighbors import NearestNeighbors

from skal.bench._pools import Data, Pool
from skal.bench._run import Run

_MOST = 400  # picks that are looked at, and
_CROWD = 1000  # samples of the pool that they are compared with
_NEIGHBOURS = 10


def describe_picks(data: Data, pool: Pool, run: Run) -> dict[str, float]:
    """Of what was queried after the start.

    Distances are Euclidean, between inputs as the classifier gets them.

    Returns
    -------
    dict
        - ``balance``: entropy of the labels, 1 if all classes have the same share;
        - ``distance``: mean distance to the nearest other labelled sample; small for redundant picks;
        - ``remoteness``: mean distance to the nearest ten of a thousand samples of the pool; large for outliers.
    """
    queried = np.array([row for batch in run.queried for row in batch], dtype=np.int64)
    if len(queried) == 0:
        return {}
    generator = np.random.default_rng(run.seed)
    looked_at = generator.permutation(len(queried))[:_MOST]
    labelled = np.concatenate([queried, np.asarray(run.initial, dtype=np.int64)])
    crowd = generator.choice(pool.rows, size=min(_CROWD, len(pool.rows)), replace=False)
    flat = data.X_train.reshape(len(data.X_train), -1)
    some = flat[queried[looked_at]]
    # the nearest of all labelled samples is the pick itself
    nearest = NearestNeighbors(n_neighbors=min(2, len(labelled))).fit(flat[labelled]).kneighbors(some)[0][:, -1]
    near = NearestNeighbors(n_neighbors=min(_NEIGHBOURS + 1, len(crowd))).fit(flat[crowd]).kneighbors(some)[0]
    # a pick may be one of the crowd: its distance of zero to itself is left out
    own = near[:, 0] <= 1e-6
    remoteness = np.where(own, near[:, 1:].mean(axis=1), near[:, :-1].mean(axis=1))
    return {
        "balance": round(entropy_share(data.y_train[queried], data.n_classes), 4),
        "distance": float(f"{nearest.mean():.4g}"),
        "remoteness": float(f"{remoteness.mean():.4g}"),
    }


def entropy_share(labels: np.ndarray, n_classes: int) -> float:
    """Entropy of the labels over that of equal shares.

    Examples
    --------
    >>> entropy_share(np.array([0, 0, 1, 1]), 2), entropy_share(np.array([1, 1]), 2)
    (1.0, 0.0)
    """
    shares = np.bincount(labels, minlength=n_classes) / len(labels)
    shares = shares[shares > 0]
    return float(abs(-(shares * np.log(shares)).sum()) / np.log(n_classes))
