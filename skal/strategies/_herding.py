# SPDX-License-Identifier: BSD-3-Clause
"""Herding: cover the pool with labelled samples (Bae, Noh and Sutherland 2024; Bae, Oliveira and Sutherland 2025)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from skal.base import ScoreStrategy, query_function
from skal.context import QueryContext
from skal.exceptions import InvalidTypeError
from skal.strategies._coverage_strategy import CoverageStrategy
from skal.strategies._names import named_strategy
from skal.strategies._pool_features import PoolFeatures
from skal.strategies._probabilities import UNCERTAINTIES, fit_temperature, temper
from skal.strategies._similarity import half_median_distance, labelled_radius
from skal.validation import Real

_FOR_MEDIAN = 2000  # samples whose distances are looked at


class MaxHerding(CoverageStrategy):
    """Query the samples that cover the pool best, whatever the model thinks of it.

    The coverage of a sample is its largest similarity to a labelled one. Samples are chosen one after the other, each
    raising the pool's coverage most. It needs no labels, no trained model and no network: use it for the first batch,
    and for few labels on features that mean something, such as embeddings of a pre-trained network.

    Parameters
    ----------
    kernel : {"rbf", "laplace", "tophat", "cosine", "tangent", "forest"}, default="rbf"
        Similarity of two samples: ``exp(−‖φ − φ'‖²/σ²)``, ``exp(−‖φ − φ'‖/σ)``, whether the distance is at most σ, the
        cosine (0 if negative), the network's tangent kernel, normalised, or the share of trees in which both end in the
        same leaf. Those are the estimator's own trees if it is a forest or boosted; otherwise a random forest of 100
        trees is fitted on the labels so far.
    radius : "auto", "minimum" or float, default="auto"
        The kernel's σ. ``auto`` is 1 for features of length 1, and half the median distance of the pool's samples for
        others; ``minimum`` is the smallest distance between two labelled samples.
    features : str, transformer, callable or nn.Module, default="auto"
        What φ is. ``auto`` is the input of a network's last layer, and the input itself for any other classifier.
        ``prepared`` is the input by its kind: columns of a table scaled or encoded, texts and sparse rows by a
        truncated decomposition, see :mod:`skal.features`. Other names are ``input``, ``last_layer`` and ``tangent``. A
        transformer must be fitted; a callable gets samples and returns an (n, d) array; a module is a frozen backbone.
    normalize : bool, default=True
        Whether φ is scaled to length 1, so that directions are compared. False compares distances.
    target : None, samples, or array-like of numbers, default=None
        What is to be covered, if it is not the pool: the samples that the model will be used on, as an array, a data
        frame or whatever the pool is; or flat numbers, a weight >= 0 for each sample of the pool. It is the pool that
        is chosen from in any case.
    evaluation : "auto", int or None, default="auto"
        Number of random samples of the pool, or of the target, over which coverage is summed. ``auto`` is all of up to
        20,000, and 5,000 of more; None is all.
    subset : int or None, default=None
        Choose among this many random samples of the pool.
    random_state : None, int, Generator or RandomState, default=None
        For the subset and the evaluation samples.

    See Also
    --------
    UHerding : Weighs the coverage by the model's uncertainty.
    CoreSet : Covers the sample that is furthest away first, outliers included.

    Notes
    -----
    The metrics are the gains in coverage. Gains are evaluated lazily, which gives the same choice as evaluating all of
    them. Copies of labelled or queried samples are queried only when nothing else is left.

    References
    ----------
    W. Bae, J. Noh and D. J. Sutherland (2024). Generalized coverage for more robust low-budget active learning. ECCV.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skal import ActiveLearner
    >>> from skal.datasets import load
    >>> from skal.strategies import MaxHerding, max_herding
    >>> digits = load("digits")
    >>> X_pool = digits.X_train.reshape(-1, 64)
    >>> learner = ActiveLearner(LogisticRegression(max_iter=1000), MaxHerding())  # no labels yet
    >>> indices, samples = learner.query(X_pool, n_instances=10)
    >>> samples.shape
    (10, 64)
    >>> bool((max_herding(learner, X_pool, 10) == indices).all())  # the same, as a function
    True
    """

    needs_fitted = False  # where features come from the estimator, they ask for it

    def __init__(
        self,
        *,
        kernel: str = "rbf",
        radius: float | str = "auto",
        features: Any = "auto",
        normalize: bool = True,
        target: Any = None,
        evaluation: int | str | None = "auto",
        subset: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.kernel = kernel
        self.radius = radius
        self.features = features
        self.normalize = normalize
        self.target = target
        self.evaluation = evaluation
        self.subset = subset
        self.random_state = random_state

    def _radius(self, context: QueryContext, read: PoolFeatures, labelled: Tensor) -> float:
        if not isinstance(self.radius, str):
            return float(self.radius)
        if self.radius == "minimum":
            return labelled_radius(labelled, "minimum")
        if self.normalize:
            return 1.0
        rows = self._evaluation_rows(context.n_pool, min(context.n_pool, _FOR_MEDIAN))
        return half_median_distance(read.gather(np.asarray(rows)))


class UHerding(CoverageStrategy):
    """Query the samples that cover best what the model is uncertain about.

    The coverage of a sample, its largest similarity to a labelled one, is weighed by the model's uncertainty. With few
    labels this is close to covering the whole pool; as labels grow, the radius shrinks and it becomes uncertainty
    sampling without copies.

    Parameters
    ----------
    uncertainty : {"auto", "margin", "entropy", "least_confidence", "dynamics"} or score strategy, default="auto"
        What the samples are weighed by; ``margin`` is one minus the gap between the two largest
        probabilities, ``dynamics`` the score of :class:`DynamicAL`. A score strategy, or the name of one, weighs
        samples by its scores, counted from the smallest; :class:`PredictiveStd` by the deviations themselves. ``auto``
        is that for a regression, and ``margin`` otherwise.
    kernel : {"rbf", "laplace", "tophat", "cosine", "tangent", "forest"}, default="rbf"
        See :class:`MaxHerding`.
    radius : "auto", "minimum" or float, default="auto"
        The kernel's σ. ``auto`` is the median distance of the labelled samples to their nearest labelled neighbours,
        ``minimum`` the smallest (the paper's); copies are left out. Without two different labelled samples it is 1.
    temperature : "auto" or float, default="auto"
        By which the logits are divided before the uncertainty is read. ``auto`` makes cross-validated predictions on
        the labelled samples as well calibrated as possible (smallest expected calibration error), with at least five
        labels of each class, for classifiers that are no networks and for networks that are frozen up to the last
        layer; otherwise it is 1. It does not concern the scores of a strategy.
    features : str, transformer, callable or nn.Module, default="auto"
        What similarity is measured on; see :class:`MaxHerding`.
    normalize : bool, default=True
        Whether features are scaled to length 1.
    target : None, samples, or array-like of numbers, default=None
        What is to be covered, if it is not the pool, weighed by how uncertain the model is there; see
        :class:`MaxHerding`.
    evaluation : "auto", int or None, default="auto"
        Number of random samples over which coverage is summed; see :class:`MaxHerding`.
    subset : int or None, default=None
        Choose among this many random samples of the pool.
    random_state : None, int, Generator or RandomState, default=None
        For the subset and the evaluation samples.

    See Also
    --------
    MaxHerding : Coverage alone, without a model.
    Margin : Uncertainty alone.

    Notes
    -----
    The metrics are the gains in weighed coverage. Copies of labelled or queried samples are queried only when nothing
    else is left.

    References
    ----------
    W. Bae, G. L. Oliveira and D. J. Sutherland (2025). Uncertainty herding: one active learning method for all label
    budgets. ICLR.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skal import ActiveLearner
    >>> from skal.datasets import load
    >>> from skal.strategies import UHerding, uherding
    >>> digits = load("digits")
    >>> X, y = digits.X_train.reshape(-1, 64), digits.y_train
    >>> learner = ActiveLearner(LogisticRegression(max_iter=1000), UHerding(), X_training=X[:20], y_training=y[:20])
    >>> indices, samples = learner.query(X[20:], n_instances=10)
    >>> samples.shape
    (10, 64)
    >>> bool((uherding(learner, X[20:], 10) == indices).all())  # the same, as a function
    True
    """

    constraints: ClassVar = {
        "temperature": Real(1e-6, 1e6, words=("auto",), remedy="Pass a number > 0, or 'auto'."),
    }

    def __init__(
        self,
        *,
        uncertainty: Any = "auto",
        kernel: str = "rbf",
        radius: float | str = "auto",
        temperature: float | str = "auto",
        features: Any = "auto",
        normalize: bool = True,
        target: Any = None,
        evaluation: int | str | None = "auto",
        subset: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.uncertainty = uncertainty
        self.kernel = kernel
        self.radius = radius
        self.temperature = temperature
        self.features = features
        self.normalize = normalize
        self.target = target
        self.evaluation = evaluation
        self.subset = subset
        self.random_state = random_state

    def _radius(self, context: QueryContext, read: PoolFeatures, labelled: Tensor) -> float:
        return labelled_radius(labelled, self.radius) if isinstance(self.radius, str) else float(self.radius)

    @property
    def _scoring(self) -> ScoreStrategy | None:
        """The strategy whose scores are the weights; None where the probabilities alone say it."""
        given = self.uncertainty
        if isinstance(given, str):
            if given == "auto" or given in UNCERTAINTIES:
                return None
            given = "dynamic_al" if given == "dynamics" else given
        strategy = named_strategy(type(self).__name__, "uncertainty", given)
        if not isinstance(strategy, ScoreStrategy):
            expected = f"auto, one of {', '.join(UNCERTAINTIES)}, dynamics, or a strategy with scores"
            remedy = "Pass for example 'margin', 'dynamics' or skal.strategies.EGL()."
            raise InvalidTypeError.for_parameter(type(self).__name__, "uncertainty", expected, self.uncertainty, remedy)
        return strategy

    @property
    def needs_network(self) -> bool:  # type: ignore[override]
        """True if the scores do."""
        return self._scoring is not None and self._scoring.needs_network

    @property
    def needs_labels(self) -> bool:  # type: ignore[override]
        """True if the scores do."""
        return super().needs_labels or (self._scoring is not None and self._scoring.needs_labels)

    def check_params(self) -> None:
        """Refuse parameters that are not what was declared, and weights that are no scores."""
        super().check_params()
        _ = self._scoring

    def _weights(self, context: QueryContext) -> np.ndarray:
        strategy, name = self._scoring, self.uncertainty
        if name == "auto":
            name = context.meaning.uncertainty
            if name not in UNCERTAINTIES:
                strategy = named_strategy(type(self).__name__, "uncertainty", name)
        if strategy is not None:
            scores = strategy.score_as_part(context)
            nothing = 0.0 if strategy.zero_is_certain else scores[np.isfinite(scores)].min()
            weights: np.ndarray = np.clip(scores - nothing, 0, None)
            return weights if weights.any() else np.ones_like(weights)
        temperature = fit_temperature(context) if self.temperature == "auto" else float(self.temperature)
        proba = temper(context.predict_proba(), temperature)
        uncertainty: np.ndarray = np.clip(UNCERTAINTIES[name](proba), 0, None)
        return uncertainty

    def _evaluation_bytes(self, context: QueryContext, read: PoolFeatures) -> int:
        # outputs, probabilities, their logarithms and what is made of them
        return super()._evaluation_bytes(context, read) + 40 * context.n_classes


max_herding = query_function(MaxHerding, "max_herding", __name__)
uherding = query_function(UHerding, "uherding", __name__)
