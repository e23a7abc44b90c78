# SPDX-License-Identifier: BSD-3-Clause
"""Label after label without training: the learner of NTK look-ahead's sequential mode."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.metrics import accuracy_score

from skal._core.containers import n_rows, take_rows
from skal._core.identity import Weights, are_same_weights, weights_of
from skal._core.outputs import compares_outputs
from skal._core.pool import candidate_rows
from skal._core.tasks import CLASSIFICATION, find_task, refuse_task
from skal._lookahead.posterior import Outputs, Posterior, read_outputs
from skal._lookahead.query import check_room, choose, make_source, settle_reference
from skal._lookahead.request import Settings
from skal._lookahead.sequential import LabelSteps, stopped_residuals
from skal._lookahead.sources import TangentSource
from skal._lookahead.variance import VarianceGains, logit_variance, newton_importance
from skal.base import top
from skal.context import QueryContext
from skal.exceptions import InvalidParameterError, InvalidTypeError
from skal.learners._active import ActiveLearner
from skal.strategies import NTKLookahead
from skal.strategies._names import make_strategy
from skal.validation import Integer, Real, make_generator


class LinearizedLearner(ActiveLearner):
    """A learner that adds labels to the tangent kernel instead of training the network.

    ``teach`` appends a row and a column to the kernel of the labelled samples. Queries, predictions and scores are
    those of the linearised network, trained to convergence on all labels. Only the first query on a pool passes it
    through the network; the pool may shrink between queries. :meth:`retrain` trains the network itself.

    Parameters
    ----------
    estimator : skorch net, or a Pipeline or search object that ends in one
        Trained by ``fit``, ``retrain`` and the first ``teach`` alone.
    query_strategy : NTKLookahead, ntk_lookahead or str, optional
        With ``retraining="linearized"``. A string is its name, with parameters or without:
        ``"ntk_lookahead(criterion='mlmoc')"``. None and ``"auto"`` are ``NTKLookahead()``.
    X_training, y_training : optional
        Labelled samples to train the network on at once.
    retrain_every : int or None, default=None
        Train the network by itself after this many new labels; None never does.
    bootstrap_init, on_transformed, force_all_finite : bool
        As in :class:`skal.ActiveLearner`.
    training_time : float or None, default=None
        For how long the linearised network that predicts is trained: the learning rate times the number of steps of
        gradient descent on ``½ Σ ‖f − y‖²``, from the network's own outputs. None trains to convergence, with the
        strategy's ridge. For squared loss only. Queries always look ahead to convergence.
    **fit_kwargs
        Passed to the estimator's ``fit``.

    Notes
    -----
    After the first query on a pool, a further ``teach`` and ``query`` take three passes over the matrix of candidates ×
    evaluation samples, and none through the network. They equal a query from scratch with all labels, up to
    rounding; where the strategy sketches gradients, up to the sketch's error for labels since the first query.

    With cross-entropy and ``criterion="variance"`` a label moves the outputs by the exact update of the linearised
    network for one more sample, found by a Newton iteration in as many unknowns as there are classes.

    Teaching samples that were not in the pool, or querying a pool with samples that were not in the first one, starts
    again: the next query reads its pool anew.

    Examples
    --------
    >>> import numpy as np
    >>> from skorch import NeuralNetClassifier
    >>> from skal import LinearizedLearner
    >>> from skal.datasets import load
    >>> from skal.nets import MLP, SquaredLoss
    >>> digits = load("digits")
    >>> net = NeuralNetClassifier(MLP(64, 10), criterion=SquaredLoss, train_split=None, verbose=0)
    >>> learner = LinearizedLearner(net, X_training=digits.X_train[:50], y_training=digits.y_train[:50])
    >>> X_pool, y_pool = digits.X_train[50:250], digits.y_train[50:250]
    >>> for _ in range(3):
    ...     indices, samples = learner.query(X_pool)
    ...     learner.teach(samples, y_pool[indices])
    ...     X_pool, y_pool = np.delete(X_pool, indices, axis=0), np.delete(y_pool, indices)
    >>> len(learner.y_training), learner.predict(digits.X_test[:5]).shape
    (53, (5,))
    """

    query_strategy: NTKLookahead

    def __init__(
        self,
        estimator: Any,
        query_strategy: NTKLookahead | Callable[..., Any] | None = None,
        X_training: Any = None,
        y_training: Any = None,
        retrain_every: int | None = None,
        bootstrap_init: bool = False,
        on_transformed: bool = False,
        force_all_finite: bool = True,
        training_time: float | None = None,
        **fit_kwargs: Any,
    ) -> None:
        Integer(1, optional=True).check("LinearizedLearner", "retrain_every", retrain_every)
        remedy = "Pass None to train to convergence."
        Real(0, 1e300, optional=True, remedy=remedy).check("LinearizedLearner", "training_time", training_time)
        if (task := find_task(estimator)) != CLASSIFICATION:
            raise refuse_task("LinearizedLearner", task, [CLASSIFICATION])
        self.retrain_every = retrain_every
        self.training_time = training_time
        self._known_pool: _KnownPool | None = None
        # the source of predictions, and the state it was made in
        self._source: tuple[_State, TangentSource] | None = None
        self._n_untrained = 0
        self._tau: float | None = None  # the variance of a logit that queries use, from the first pool
        settings = (bootstrap_init, on_transformed, force_all_finite)
        super().__init__(estimator, _check_strategy(query_strategy), X_training, y_training, *settings, **fit_kwargs)

    def query(  # type: ignore[override]
        self,
        X_pool: Any,
        n_instances: int = 1,
        return_metrics: bool = False,
        candidates: Any = None,
    ) -> tuple[Any, ...]:
        """Ask which samples of the pool to label; as in :class:`skal.ActiveLearner`."""
        strategy = self.query_strategy
        context, settings = strategy.prepare(self, X_pool), Settings.of(strategy)
        allowed = None if candidates is None else candidate_rows(type(self).__name__, candidates, context.n_pool)
        context = context if allowed is None else context.restrict(allowed)
        strategy.check_n_instances(n_instances, context.n_pool)
        with context.query():
            pool, positions = self._recognise(context, n_instances)
            posterior = pool.blocks.posterior()
            rows = np.flatnonzero(positions >= 0)
            known = positions[rows]
            posterior.free[:] = False
            posterior.free[torch.as_tensor(known, device=posterior.free.device)] = True
            if settings.criterion == "variance":
                outputs = read_outputs(context.logit_network, posterior.linearized)
                chosen, metrics = _choose_by_variance(posterior, settings, outputs, pool.tau, int(n_instances))
            else:
                chosen, metrics = choose(posterior, settings, settle_reference(context, settings), int(n_instances))
        order = np.argsort(known)
        indices = rows[order[np.searchsorted(known, chosen, sorter=order)]].astype(np.int64)
        indices = indices if allowed is None else allowed[indices]
        samples = take_rows(X_pool, indices)
        return (indices, samples, metrics) if return_metrics else (indices, samples)

    def _recognise(self, context: QueryContext, n_instances: int) -> tuple[_KnownPool, np.ndarray]:
        """The pool's rows as candidates that are known already; all of it is read where that is not possible."""
        state = _State.of(context, self.query_strategy)
        keys = context.pool.keys()
        known = self._known_pool
        positions = known.positions(keys) if known is not None and known.follow(state) else None
        if known is None or positions is None or (positions >= 0).sum() < n_instances:
            self._known_pool = known = None  # before there are two of them
            n_trained = context.n_labelled - self._n_untrained
            self._known_pool = known = _KnownPool(context, state, self.query_strategy, keys, n_trained, self._tau)
            self._tau = known.tau
            positions = known.positions(keys)
        assert positions is not None
        return known, positions

    def _fit(self, X: Any, y: Any, bootstrap: bool, fit_kwargs: dict[str, Any]) -> ActiveLearner:
        self._known_pool = self._source = self._tau = None
        self._n_untrained = 0
        return super()._fit(X, y, bootstrap, fit_kwargs)

    def teach(
        self, X: Any, y: Any, bootstrap: bool = False, only_new: bool = False, fit: bool = True, **fit_kwargs: Any
    ) -> None:
        """Add labelled samples to the kernel; the network is trained only where ``retrain_every`` says so.

        The first labels of a learner that has none are trained on. With ``fit=False`` nothing is trained at all.
        ``bootstrap`` and ``only_new`` must be False: the linearised network is trained on all labels.
        """
        for name, value in (("bootstrap", bootstrap), ("only_new", only_new)):
            if value:
                remedy = "Use ActiveLearner to train on a part of the samples."
                raise InvalidParameterError.for_parameter("LinearizedLearner", name, "False", value, remedy)
        first = self.X_training is None
        with self._as_before_if_it_fails():
            self._add_training_data(X, y)
            self._n_untrained += n_rows(X, "X")
            due = self.retrain_every is not None and self._n_untrained >= self.retrain_every
            if fit and (first or due):
                self.retrain(**fit_kwargs)

    def retrain(self, **fit_kwargs: Any) -> LinearizedLearner:
        """Train the network on all labels, and start again from there.

        Parameters
        ----------
        **fit_kwargs
            Passed to the estimator's ``fit``.

        Returns
        -------
        LinearizedLearner
            Itself.
        """
        self._fit_to_known(**fit_kwargs)
        return self

    def _outputs(self, X: Any) -> Outputs:
        """Outputs of the linearised network for any samples."""
        strategy = self.query_strategy
        if self.X_training is None:
            context = QueryContext(self, X, owner=type(strategy).__name__)
            context.require_network()
            return read_outputs(context.logit_network, context.logits())
        context = strategy.prepare(self, X)
        with context.query():
            state = _State.of(context, strategy)
            if self._source is None or not (state.follows(self._source[0]) and self._source[0].follows(state)):
                self._source = state, self._new_source(context)
            source = self._source[1]
            return read_outputs(context.logit_network, source.predict(context.pool))

    def _new_source(self, context: QueryContext) -> TangentSource:
        settings = Settings.of(self.query_strategy)
        source = make_source(context, settings, np.random.default_rng(0), 1)
        if self.training_time is not None:
            if not compares_outputs(context.network.criterion):
                expected, remedy = "None for a network with this loss", "Train it with skal.nets.SquaredLoss."
                got = f"{self.training_time} with {type(context.network.criterion).__name__}"
                raise InvalidParameterError.for_parameter(type(self).__name__, "training_time", expected, got, remedy)
            source.residuals = stopped_residuals(source.solver, source.residuals, self.training_time)
            return source
        steps = _label_steps(context, settings, source, context.n_labelled - self._n_untrained)
        if steps is not None:
            source.residuals = steps.residuals(source.solver)
        return source

    def predict_proba(self, X: Any, **predict_kwargs: Any) -> np.ndarray:
        """(n, C) class probabilities of the linearised network."""
        return self._outputs(X).proba.cpu().numpy()

    def predict(self, X: Any, **predict_kwargs: Any) -> np.ndarray:
        """(n,) labels with the largest output of the linearised network."""
        return self._outputs(X).labels.cpu().numpy()

    def score(self, X: Any, y: Any, **score_kwargs: Any) -> float:
        """Accuracy of :meth:`predict`."""
        return float(accuracy_score(y, self.predict(X), **score_kwargs))


class _State(NamedTuple):
    """The network's weights, the labelled set and the parameters, to see what has changed since."""

    weights: Weights
    rows: list[tuple[Hashable, int]]  # keys of the labelled samples, and their labels
    params: dict[str, Any]

    @classmethod
    def of(cls, context: QueryContext, strategy: NTKLookahead) -> _State:
        """The state of a learner as it is now."""
        rows = list(zip(context.labelled.keys(), context.class_labels.tolist(), strict=True))
        return cls(weights_of(context.network.module), rows, strategy.get_params(deep=False))

    def follows(self, other: _State) -> bool:
        """True if this state differs from the other one by added labels alone."""
        same = are_same_weights(self.weights, other.weights) and self.params == other.params
        return same and self.rows[: len(other.rows)] == other.rows


class _KnownPool:
    """A pool that has been read: keys of its rows, and the kernels between them and all labels."""

    def __init__(
        self,
        context: QueryContext,
        state: _State,
        strategy: NTKLookahead,
        keys: list[Hashable],
        n_trained: int,
        tau: float | None,
    ) -> None:
        self.state, self.X = state, context.pool.X  # kept alive: keys may be its address
        settings, (rows, part) = Settings.of(strategy), strategy.subset_of(context)
        generator = make_generator(part.owner, settings.random_state)
        evaluation = settings.evaluation_rows(part, generator)
        source = make_source(part, settings, generator, part.n_pool)
        check_room(part, source, lambda source: source.room(part.n_pool), part.n_pool)
        self.blocks = source.blocks(part.pool, evaluation)
        self.tau = logit_variance(self.blocks.outputs.logits) if tau is None else tau
        self.blocks.steps = _label_steps(part, settings, source, n_trained)
        self._places: dict[Hashable, list[int]] = defaultdict(list)  # copies have several; −1 is outside the subset
        place = np.full(context.n_pool, -1)
        place[rows] = np.arange(len(rows))
        for row in np.argsort(place < 0, kind="stable"):
            self._places[keys[row]].append(int(place[row]))

    def positions(self, keys: list[Hashable]) -> np.ndarray | None:
        """The positions of these rows among the candidates, −1 outside the subset; None if some rows are new."""
        left = {key: iter(places) for key, places in self._places.items()}
        positions = [next(left.get(key, iter(())), None) for key in keys]
        return None if None in positions else np.array(positions, dtype=np.int64)

    def follow(self, state: _State) -> bool:
        """Add the labels that are new; False if that cannot be done without reading anything."""
        new = state.rows[len(self.state.rows) :]
        places = [max(self._places.get(key, [-1])) for key, _ in new]
        if not state.follows(self.state) or -1 in places:
            return False
        for place, (_, label) in zip(places, new, strict=True):
            self.blocks.append(place, label)
        self.state = state
        return True


def _label_steps(context: QueryContext, settings: Settings, source: TangentSource, n_trained: int) -> LabelSteps | None:
    """The change of the outputs by labels that the network was not trained on; None if the residuals are enough."""
    if settings.criterion != "variance" or compares_outputs(context.network.criterion):
        return None
    f = source.labelled_logits
    return LabelSteps(f, torch.as_tensor(context.class_labels, device=f.device), n_trained)


def _choose_by_variance(
    posterior: Posterior, settings: Settings, outputs: Outputs, tau: float, n_instances: int
) -> tuple[np.ndarray, np.ndarray]:
    """The best of the free candidates, and their scores, with the outputs as they are now."""
    importance = newton_importance(outputs.beliefs, tau, posterior.rho, posterior.scale)
    gains = VarianceGains(posterior, importance)
    if settings.batch == "greedy":
        chosen, scores = gains.choose(n_instances)
        return chosen.cpu().numpy(), scores.cpu().numpy()
    ranked = gains.scores().masked_fill_(~posterior.free, -torch.inf).cpu().numpy()
    best = top(ranked, n_instances)
    return best, ranked[best]


def _check_strategy(given: Any) -> NTKLookahead:
    """The NTKLookahead that was given or named; other strategies are refused."""
    if given is None or getattr(given, "strategy", None) is NTKLookahead:
        given = "ntk_lookahead"
    strategy = make_strategy("ntk_lookahead" if given == "auto" else given) if isinstance(given, str) else given
    owner, name = "LinearizedLearner", "query_strategy"
    if not isinstance(strategy, NTKLookahead):
        remedy = "Other strategies work with skal.ActiveLearner."
        raise InvalidTypeError.for_parameter(owner, name, "an NTKLookahead", strategy, remedy)
    if (
        strategy.kernel in ("rbf", "laplace", "linear")
        or not isinstance(strategy.features, str)
        or strategy.features != "auto"
    ):
        expected = "an NTKLookahead with a tangent kernel"
        remedy = "Kernels on features have no linearised network to predict with; use skal.ActiveLearner."
        raise InvalidParameterError.for_parameter(owner, name, expected, strategy, remedy)
    if strategy.target is not None:
        expected, remedy = "an NTKLookahead without a target", "Use skal.ActiveLearner with one."
        raise InvalidParameterError.for_parameter(owner, name, expected, strategy, remedy)
    if strategy.retraining != "linearized":
        expected = "an NTKLookahead with retraining='linearized'"
        remedy = "The others have no linearised network to predict with; use skal.ActiveLearner."
        raise InvalidParameterError.for_parameter(owner, name, expected, strategy, remedy)
    return strategy
