# SPDX-License-Identifier: BSD-3-Clause
"""MaxDet: one most uncertain sample after the other, each as if those before had been labelled."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from skal.base import ANY_TASK, QueryStrategy, query_function
from skal.context import QueryContext, copy_groups
from skal.strategies._linear_posterior import CONSTRAINTS, NOISE, LinearPosterior, read_candidates
from skal.validation import Real


class MaxDet(QueryStrategy):
    """Query the sample whose prediction is least certain, one after the other.

    The variance is that of a linear model on features, such as a network that is linearised in its parameters, given
    the labelled samples and those chosen before. The batch makes the determinant of its kernel large, greedily: its
    labels tell most about the model, though not where the pool needs it.

    Parameters
    ----------
    noise : float, default=1e-4
        Variance of a label's noise, as a part of the pool's mean variance before any label.
    features : {"auto", "input", "prepared", "last_layer", "tangent"}, transformer, callable or module, default="auto"
        See :class:`LCMD`.
    n_features : "auto", int or None, default="auto"
        See :class:`LCMD`.
    subset : int or None, default=None
        Choose among this many random samples of the pool.
    random_state : None, int, Generator or RandomState, default=None
        For the subset, and for the samples that take part where memory does not hold all.

    See Also
    --------
    PredictiveStd : The same uncertainty, without a thought for the rest of the batch.
    NTKLookahead : The sample that leaves the pool least uncertain.

    Notes
    -----
    The metrics are the variances at the time of choice. Copies of labelled or chosen samples come last.

    References
    ----------
    D. Holzmüller, V. Zaverkin, J. Kästner and I. Steinwart (2023). A framework and benchmark for deep batch active
    learning for regression. JMLR 24.

    Examples
    --------
    >>> from sklearn.datasets import make_regression
    >>> from sklearn.linear_model import Ridge
    >>> from skal import ActiveLearner
    >>> from skal.strategies import MaxDet, max_det
    >>> X, y = make_regression(n_samples=200, n_features=5, random_state=0)
    >>> learner = ActiveLearner(Ridge(), MaxDet(), X_training=X[:3], y_training=y[:3])
    >>> indices, samples = learner.query(X[3:], n_instances=4)
    >>> samples.shape
    (4, 5)
    >>> bool((max_det(learner, X[3:], 4) == indices).all())  # the same, as a function
    True
    """

    constraints: ClassVar = CONSTRAINTS | {"noise": Real(1e-12, 1e12, remedy="Pass a number > 0, such as 1e-4.")}
    tasks = ANY_TASK
    needs_network = False

    def __init__(
        self,
        *,
        noise: float = NOISE,
        features: Any = "auto",
        n_features: int | str | None = "auto",
        subset: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.noise = noise
        self.features = features
        self.n_features = n_features
        self.subset = subset
        self.random_state = random_state

    def _select(self, context: QueryContext, n_instances: int) -> tuple[np.ndarray, np.ndarray]:
        rows, phi, labelled = read_candidates(self, context, n_instances)
        known = context.labelled.digests() if context.n_labelled else []
        groups = copy_groups(context.pool.take(rows).digests(), known)
        picked, variances = most_uncertain(
            phi, labelled, self.noise, n_instances, torch.as_tensor(groups, device=phi.device)
        )
        return rows[picked], variances


def most_uncertain(
    phi: Tensor, labelled: Tensor, noise: float, n_instances: int, groups: Tensor
) -> tuple[np.ndarray, np.ndarray]:
    """Greedy maximisation of the determinant: a Cholesky factorisation with pivots.

    Parameters
    ----------
    phi, labelled : (N, d), (n, d) tensors
        Features, in float64.
    noise : float
        s².
    n_instances : int
    groups : (N,) int tensor
        Equal for copies, −1 for copies of labelled samples.

    Returns
    -------
    picked : (n_instances,) array, distinct, in the order of choice
    variances : (n_instances,) array
        S(x, x) when they were chosen.

    Examples
    --------
    >>> phi = torch.tensor([[2.0, 0.0], [1.9, 0.1], [0.0, 1.0]]).double()
    >>> most_uncertain(phi, phi[:0], 1e-4, 2, torch.arange(3))[0]
    array([0, 2])
    """
    posterior = LinearPosterior(labelled, noise)
    psi, W = posterior.split(phi)
    variances = posterior.variances(phi)
    taken = torch.empty(len(phi), n_instances, dtype=phi.dtype, device=phi.device)
    free, fresh = torch.ones(len(phi), dtype=torch.bool, device=phi.device), groups >= 0
    picked: list[int] = []
    metrics: list[float] = []
    for place in range(n_instances):
        open_ = free & fresh if bool((free & fresh).any()) else free
        best = int(variances.masked_fill(~open_, -torch.inf).argmax())
        picked.append(best)
        metrics.append(float(variances[best]))
        column = psi @ psi[best] - W @ W[best] - taken[:, :place] @ taken[best, :place]
        taken[:, place] = column / (variances[best] + noise).sqrt()
        variances = (variances - taken[:, place].square()).clamp_min_(0)
        free[best] = False
        fresh = fresh & (groups != groups[best])
    return np.array(picked), np.array(metrics)


max_det = query_function(MaxDet, "max_det", __name__)
