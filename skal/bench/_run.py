# SPDX-License-Identifier: BSD-3-Clause
"""One run of the loop, of one strategy on one seed, and its record."""

from __future__ import annotations

import inspect
import platform
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any
from zlib import crc32

import numpy as np
import torch
from sklearn.base import clone
from sklearn.dummy import DummyClassifier
from sklearn.metrics import check_scoring
from skorch import NeuralNet

from skal._core.guard import preserve_rng
from skal._core.parallel import one_thread
from skal._version import __version__
from skal._vocabulary import SCORES
from skal.base import QueryStrategy
from skal.bench._networks import make_net, name_addition
from skal.bench._pools import Data
from skal.bench._protocol import Protocol
from skal.config import config_context
from skal.exceptions import InvalidParameterError
from skal.learners import ActiveLearner
from skal.loop import ActiveLearningClassifier, ActiveLearningRegressor
from skal.strategies._names import make_strategy


@dataclass(frozen=True)
class Run:
    """One strategy on one seed, as lists of plain numbers, with one entry per budget unless noted.

    Attributes
    ----------
    strategy : str
    seed : int
    n_labels : list of int
        The budgets.
    scores, train_scores : list of float
        Accuracies on the test set and on the labelled set, or the score that ``Protocol.scoring`` names.
    initial : list of int
        Positions of the first labels in the training set.
    queried : list of list of int
        Positions that each query chose; one entry per query.
    seconds_fit : list of float
    seconds_query : list of float
        One entry per query. A zero-shot choice of the first labels counts as one.
    warnings : list of str
        Warnings, each text once.
    record : dict
        How the run was made.

    Examples
    --------
    >>> from skal.bench import Run, run_benchmark
    >>> (run,) = run_benchmark(["random"], net="mlp", n_rounds=1, query_size=5, seeds=1, max_epochs=2, n_pool=100).runs
    >>> type(run) is Run
    True
    >>> run.n_labels, len(run.initial), [len(batch) for batch in run.queried]
    ([20, 25], 20, [5])
    """

    strategy: str
    seed: int
    n_labels: list[int]
    scores: list[float]
    train_scores: list[float]
    initial: list[int]
    queried: list[list[int]]
    seconds_fit: list[float]
    seconds_query: list[float]
    warnings: list[str]
    record: dict[str, Any]


@dataclass(frozen=True)
class Task:
    """A run to be made. ``net`` is None for the protocol's own; ``settings`` are those of :func:`skal.get_config`."""

    protocol: Protocol
    label: str
    seed: int
    strategy: Any
    net: Any
    checkpoint: Path | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """The settings of the run, with the versions that its outcome depends on."""
        addition = name_addition(self.strategy)
        network = f"{self.protocol.net} with {addition}" if addition else self.protocol.net
        packages = ("numpy", "scipy", "scikit-learn", "torch", "skorch")
        own = {"skal": __version__, "python": platform.python_version()}
        return {
            "strategy": describe(self.strategy),
            "network": network if self.net is None else "the user's",
            "versions": own | {name: version(name) for name in packages},
        }


def run_task(task: Task, data: Data) -> Run:
    """Make a run, or continue one that was interrupted.

    The seed alone determines the pool, the first labels and the initial weights; label and seed determine the
    strategy's random numbers. A run has one torch thread, so that sums do not depend on what runs beside it.
    """
    protocol = task.protocol
    defaults = {"horizon": protocol.query_size * max(1, protocol.n_rounds)}
    strategy = copy_for_run(task.strategy, task.label, task.seed, defaults)
    pool = data.pool(protocol, task.seed)
    X, initial = pool.X, pool.initial
    net = make_net(protocol, X.shape[1:], data.n_classes, strategy) if task.net is None else clone(task.net)
    seconds_query = []
    # hundreds of queries would print the same warning: each is kept once, for the report
    with config_context(**task.settings), one_thread(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # joblib hands large arrays to its workers as read-only memory maps; nobody writes to them
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        if protocol.initial not in ("random", "balanced"):
            start = perf_counter()
            by_itself = protocol.initial == "zero_shot"
            first = strategy if by_itself else copy_for_run(make_strategy(protocol.initial), "start", task.seed, {})
            initial = _choose_first(net, first, X, protocol.n_initial, task.seed)
            if by_itself:
                seconds_query.append(perf_counter() - start)
        own: dict[str, Any] = {"classes": np.arange(data.n_classes)} if protocol.task == "classification" else {}
        make_loop: Any = ActiveLearningRegressor if protocol.task == "regression" else ActiveLearningClassifier
        loop = make_loop(
            net,
            strategy,
            initial=initial,
            n_initial=len(initial),
            query_size=protocol.query_size,
            n_rounds=protocol.n_rounds,
            scoring=SCORES[protocol.task][protocol.scoring],
            reinitialize=not protocol.warm_start,
            checkpoint=task.checkpoint,
            random_state=task.seed,
            **own,
        )
        try:
            loop.fit(X, pool.y, eval_set=(data.X_test, data.y_test))
        except InvalidParameterError:
            if protocol.task != "classification" or len(set(pool.y[getattr(loop, "queried_", [])])) != 1:
                raise  # not because all labels of the run are of one class
        scores = _complete_scores(loop, pool.y, data, SCORES[protocol.task][protocol.scoring])
    history = {name: [entry[name] for entry in loop.history_] for name in loop.history_[0]}
    batches = [pool.rows[np.asarray(indices, dtype=np.int64)].tolist() for indices in history["indices"]]
    return Run(
        strategy=task.label,
        seed=task.seed,
        n_labels=list(map(int, history["n_labelled"])),
        scores=scores,
        train_scores=[np.nan if score is None else float(score) for score in history["train_score"]],
        initial=batches[0],
        queried=batches[1:],
        seconds_fit=list(map(float, history["seconds_fit"])),
        seconds_query=seconds_query + list(map(float, history["seconds_query"][1:])),
        warnings=sorted({f"{entry.category.__name__}: {entry.message}" for entry in caught}),
        record=task.record(),
    )


def _complete_scores(loop: Any, y: np.ndarray, data: Data, scoring: str | None) -> list[float]:
    """A score for every budget: of labels of one class, which train no model, that of always saying this class."""
    scores, untrained = [], 0
    for entry in loop.history_:
        if entry["eval_score"] is None:
            known = y[loop.queried_[: entry["n_labelled"]]]
            model = DummyClassifier(strategy="constant", constant=known[0]).fit(np.zeros((len(known), 1)), known)
            scores.append(float(check_scoring(model, scoring=scoring)(model, data.X_test, data.y_test)))
            untrained += 1
        else:
            scores.append(float(entry["eval_score"]))
    if untrained:
        warnings.warn(
            f"At {untrained} of {len(scores)} budgets all labels are of one class, which trains no model: the score "
            "there is that of always saying this class. Raise n_initial, or set initial='balanced'.",
            UserWarning,
            stacklevel=2,
        )
    return scores


def _choose_first(net: Any, strategy: Any, X: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Positions that a strategy chooses before there is any label, from a network with random weights."""
    with preserve_rng():
        torch.manual_seed(seed)
        untrained = clone(net).initialize() if isinstance(net, NeuralNet) else clone(net)
        np.random.seed(seed)  # what a plain function draws from
        chosen = strategy if not isinstance(strategy, QueryStrategy) else clone(strategy)
        indices: np.ndarray = ActiveLearner(untrained, chosen).query(X, n_instances=size)[0]
    return indices


def copy_for_run(strategy: Any, label: str, seed: int, defaults: Mapping[str, Any]) -> Any:
    """A copy of the strategy with its own random numbers, and with the run's defaults where it has none of its own.

    The numbers depend on the label too, so that one strategy under two names makes two draws. A plain function is
    returned as it is; the run seeds NumPy's and torch's generators for it.
    """
    if not isinstance(strategy, QueryStrategy):
        return strategy
    strategy = clone(strategy)
    params = strategy.get_params(deep=False)
    if "random_state" in params and params["random_state"] is None:
        # a generator, not an integer: the draws then differ from round to round
        strategy.set_params(random_state=np.random.default_rng([seed, crc32(label.encode())]))
    standard = inspect.signature(type(strategy)).parameters
    for name, value in defaults.items():
        if name in params and params[name] == standard[name].default:
            strategy.set_params(**{name: value})
    return strategy


def describe(strategy: Any) -> str:
    """The repr of a strategy without its generator, whose repr has an address that differs between processes."""
    if not isinstance(strategy, QueryStrategy):
        return f"{getattr(strategy, '__module__', '')}.{getattr(strategy, '__qualname__', type(strategy).__name__)}"
    strategy = clone(strategy)
    if "random_state" in strategy.get_params(deep=False):
        strategy.set_params(random_state=None)
    return repr(strategy)
