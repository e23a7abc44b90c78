# SPDX-License-Identifier: BSD-3-Clause
"""The strategy that we recommend: ``query_strategy="auto"``, and ``None``.

| the estimator works on | before the first training | afterwards |
|---|---|---|
| a table | MaxHerding; by distance for up to 10 labels, or several a sample | UHerding by leaves of a forest |
| embeddings, texts, sparse rows | MaxHerding | UHerding |
| rows of numbers, with a network | MaxHerding | UHerding on the rows |
| a network that is mostly frozen | MaxHerding | UHerding |
| a network that is trained | MaxHerding on the inputs | NTKLookahead; BADGE for large ones |
| other inputs, constant inputs | RandomSampling | Margin |
| trees that predict numbers, on a table | MaxHerding by distance | UHerding by their leaves |
| anything else that predicts numbers | MaxHerding by distance | LCMD |

The settings called development in ``benchmarks/evidence`` decided this; the others judge it. Inputs are prepared by
their kind, see :mod:`skal.features`, behind the steps of a Pipeline. A network without labels has no features yet, and
its hidden layer says less than rows of numbers do. Where labelled neighbours, nearest or in the leaves of a forest,
share their labels no more often than chance, and where look-ahead cannot work on a network, it is Margin.
"""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import numpy as np
import torch

from skal.base import ANY_TASK, QueryStrategy
from skal.context import QueryContext
from skal.exceptions import NoTargetWarning, SampleError, SkalError
from skal.strategies._leaves import shares_of_neighbours
from skal.strategies._names import make_strategy
from skal.validation import Target

# pixels of larger images say little, and their distances cost much
_MOST_INPUTS = 4096
# share of the parameters below the last layer that may be trained in a network whose features are those it came with
_MOSTLY_FROZEN = 0.5
# parameters that are trained: with more, look-ahead takes dozens of times as long as a pass over the pool
_MOST_TANGENTS = 1_000_000
# labels of a start on a table that distance is better for: it finds outliers, which is good for few labels only
_FEW_LABELS = 10
# labelled samples with another of their class, before neighbours can tell whether features say anything
_FEWEST_NEIGHBOURS = 20
_MOST_NEIGHBOURS = 2000


def recommend(context: QueryContext, n_instances: int) -> tuple[str, str]:
    """The strategy for a query of ``n_instances`` samples, by name and parameters, and why.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> from sklearn.linear_model import LogisticRegression
    >>> learner = SimpleNamespace(estimator=LogisticRegression(), X_training=None, y_training=None)
    >>> recommend(QueryContext(learner, np.eye(3)), 2)
    ("max_herding(features='prepared')", 'no labels yet, and the inputs are rows of length 1')
    """
    started = context.is_fitted and context.n_labelled > 0
    if not context.meaning.has_probabilities:
        return _for_numbers(context, started)
    if context.has_network:
        return _for_network(context, started)
    kind = None if context.preparation is None else context.preparation.kind
    if kind is None or _are_constant(context):
        reason = "nothing is known of such inputs" if kind is None else "the inputs are all alike"
        return ("margin", reason) if started else ("random", f"no labels yet, and {reason}")
    if kind != "table":
        return _herding(context, started, f"the inputs are {kind}", "prepared")
    if not started or len(np.unique(context.labels)) < 2:
        missing = "only one class is labelled" if started else "no labels yet"
        few, several = context.n_labelled + n_instances <= _FEW_LABELS, not context.meaning.is_exclusive
        parameters = "(features='prepared', normalize=False)" if few or several else "(features='prepared')"
        how = "distance for so few labels" if few else "distance for several labels" if several else "direction"
        return (
            f"max_herding{parameters}",
            f"{missing}, and the inputs are a table, whose columns are scaled and whose rows are compared by {how}",
        )
    if _say_nothing(context, "prepared", by_forest=True):
        return "margin", "the inputs are a table, but a forest on the labels tells them no better than chance"
    reason = "the inputs are a table, and a forest on the labels tells which rows are alike"
    return "uherding(features='prepared', kernel='forest')", reason


def _for_numbers(context: QueryContext, started: bool) -> tuple[str, str]:
    kind = None if context.preparation is None else context.preparation.kind
    if started and kind == "table" and not context.has_network and hasattr(context.inner_estimator, "apply"):
        return (
            "uherding(features='prepared', kernel='forest')",
            "numbers are predicted by trees, whose leaves are alike",
        )
    if started:
        what = "the gradients of the network" if context.has_network else "its members, or the inputs,"
        return "lcmd", f"numbers are predicted, and {what} tell which samples are alike"
    if kind is None or _are_constant(context):
        return "random", "no labels yet, and nothing is known of such inputs"
    return "max_herding(features='prepared', normalize=False)", f"no labels yet, and the inputs are a {kind}"


def _for_network(context: QueryContext, started: bool) -> tuple[str, str]:
    if context.is_fitted and _trained_share(context) < _MOSTLY_FROZEN:
        return _herding(context, started, "the layers below the last one are mostly frozen, and give features")
    is_row = _are_vectors(context)
    reason = None if started and not is_row else _why_no_features(context)
    if reason is None and (is_row or not started):
        # the hidden layer of a network has learnt nothing without labels, and less than the inputs say from a few
        what = "the inputs are rows of numbers" if is_row else "the network has learnt nothing"
        return _herding(context, started, what, "prepared")
    if not started:
        return "random", f"no labels yet, and {reason}"
    trained = "the network is trained" if reason is None else f"the network is trained, and {reason}"
    n_trained = sum(p.numel() for p in context.network.module.parameters() if p.requires_grad)
    if n_trained > _MOST_TANGENTS:
        return "badge", f"{trained}; look-ahead would take long with {n_trained:,} parameters"
    return "ntk_lookahead", f"{trained}; look-ahead is affordable with {n_trained:,} parameters"


def _herding(context: QueryContext, started: bool, source: str, features: str = "auto") -> tuple[str, str]:
    parameters = "" if features == "auto" else f"(features={features!r})"
    if not started:
        return f"max_herding{parameters}", f"no labels yet, and {source}"
    if _say_nothing(context, features):
        return "margin", f"{source}, but nearest labelled neighbours share their labels no more often than chance"
    return f"uherding{parameters}", source


def _say_nothing(context: QueryContext, features: str, *, by_forest: bool = False) -> bool:
    """True if labelled samples share the labels of their neighbours no more often than chance, error included.

    The neighbour is the one in the nearest direction, or all that end in the same leaves of a forest.
    """
    if not context.meaning.is_exclusive:  # nobody has looked at that
        return False
    rows = np.linspace(0, context.n_labelled - 1, min(context.n_labelled, _MOST_NEIGHBOURS)).astype(np.int64)
    _, codes, counts = np.unique(context.labels[rows], return_inverse=True, return_counts=True)
    asked = counts[codes] > 1
    n, m = len(codes), int(asked.sum())
    if m < _FEWEST_NEIGHBOURS:
        return False
    chance = ((counts[codes] - 1) / (n - 1))[asked].mean()
    values = context.features(features, context.labelled.take(rows)).double()
    if by_forest:
        shares = shares_of_neighbours(values, codes)[asked]
        return bool(shares.mean() <= chance + shares.std() / np.sqrt(m))
    values = torch.nn.functional.normalize(values, dim=1)
    nearest = (values @ values.T).fill_diagonal_(-torch.inf).argmax(1).cpu().numpy()
    hits = (codes[nearest] == codes)[asked].mean()
    return bool(hits <= chance + np.sqrt(chance * (1 - chance) / m))


def _are_constant(context: QueryContext) -> bool:
    """True if all samples of the pool have the same features; a look at some is enough for most pools."""
    few = context.features("prepared", context.pool.take(np.linspace(0, context.n_pool - 1, 64).astype(np.int64)))
    if context.n_pool == 1 or bool((few != few[:1]).any()):
        return False
    return bool((context.features("prepared") == few[:1]).all())


def _are_vectors(context: QueryContext) -> bool:
    """True if every input is a row of numbers, and no image or sequence."""
    return getattr(context.pool.read(0, 1), "ndim", 0) == 2


def _trained_share(context: QueryContext) -> float:
    """Share of the parameters below the last layer that are trained; 1 if there are none."""
    parameters = list(context.network.module.parameters())
    if all(p.requires_grad for p in parameters):
        return 1.0
    head = set(map(id, context.last_layer.layer.parameters()))
    sizes = [(p.numel(), p.requires_grad) for p in parameters if id(p) not in head]
    total = sum(size for size, _ in sizes)
    return sum(size for size, trained in sizes if trained) / total if total else 1.0


def _why_no_features(context: QueryContext) -> str | None:
    """Why comparing the inputs of a network would say nothing; None if it does."""
    first = None
    constant = True
    for start in range(0, context.n_pool, 4096):
        rows = context.pool.read(start, min(start + 4096, context.n_pool))
        rows = rows.cpu().numpy() if isinstance(rows, torch.Tensor) else rows
        array = np.asarray(rows) if isinstance(rows, np.ndarray) or hasattr(rows, "iloc") else None
        if array is None or array.dtype.kind not in "fiub" or array.ndim < 2:
            return "the inputs are no table of numbers"
        if array.dtype.kind != "f":
            return "whole numbers that a network takes may be names, such as those of words"
        if array[0].size > _MOST_INPUTS:
            return f"the inputs have more than {_MOST_INPUTS:,} numbers each"
        if not np.isfinite(array).all():
            return "the inputs have missing values"
        # features are compared by their directions
        array = array.reshape(len(array), -1).astype(np.float64)
        array /= np.maximum(np.linalg.norm(array, axis=1, keepdims=True), np.finfo(float).tiny)
        first = array[:1] if first is None else first
        constant = constant and np.allclose(array, first)
    return "the inputs all have one direction" if constant else None


class Recommended(QueryStrategy):
    """The recommended strategy, decided anew for every query: see the table above.

    Parameters
    ----------
    target : None, samples, or array-like of numbers, default=None
        The samples that the model will be used on, or a weight for each sample of the pool; see :class:`MaxHerding`.
        With one, UHerding takes the place of BADGE; Margin and RandomSampling cannot work for it, and a warning says
        so.
    subset : int or None, default=None
        How many samples, drawn at random, take part in a query. None: all of them.
    random_state : None, int, Generator or RandomState, default=None
        For the subset, and for strategies that draw.

    Attributes
    ----------
    strategy_ : QueryStrategy
        The one that answered the last query.
    reason_ : str
        Why it was this one.
    """

    tasks = ANY_TASK
    constraints: ClassVar = {"target": Target()}
    needs_fitted = needs_network = False

    def __init__(self, *, target: Any = None, subset: int | None = None, random_state: Any = None) -> None:
        self.target = target
        self.subset = subset
        self.random_state = random_state

    def _select(self, context: QueryContext, n_instances: int) -> tuple[np.ndarray, np.ndarray]:
        name, self.reason_ = recommend(context, n_instances)
        if self.target is not None and name == "badge":
            name = "uherding"
        try:
            return self._ask(name, context, n_instances)
        except SkalError as error:
            if name not in ("ntk_lookahead", "lcmd") or isinstance(error, SampleError):
                raise
            # gradients need more of a network than outputs do; what is wrong with the pool, Margin refuses, too
            self.reason_ = f"{'look-ahead' if name == 'ntk_lookahead' else 'LCMD'} cannot work on this network: {error}"
            return self._ask("random" if name == "lcmd" else "margin", context, n_instances)

    def _ask(self, name: str, context: QueryContext, n_instances: int) -> tuple[np.ndarray, np.ndarray]:
        self.strategy_ = make_strategy(name)
        own = {"random_state": self.random_state} | ({} if self.target is None else {"target": self.target})
        known = self.strategy_.get_params()
        self.strategy_.set_params(**{key: value for key, value in own.items() if key in known})
        if "target" in own and "target" not in known:
            warnings.warn(
                f"The recommended strategy is {type(self.strategy_).__name__}, which has no target: {self.reason_}. "
                "Name a strategy that has one, such as MaxHerding with features of your own.",
                NoTargetWarning,
                stacklevel=2,
            )
        # what it needs has been looked at: a random start is there before anything is fitted
        return self.strategy_._select(context.for_strategy(type(self.strategy_).__name__), n_instances)
