# SPDX-License-Identifier: BSD-3-Clause
"""The rules of one run: checked at its start, fixed until its end."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.metrics import get_scorer_names
from sklearn.pipeline import Pipeline
from sklearn.semi_supervised import LabelPropagation, LabelSpreading, SelfTrainingClassifier
from skorch import NeuralNet

from skal._core.containers import count_masked, n_rows
from skal._core.estimators import unwrap_estimator
from skal._core.tasks import CLASSIFICATION, Task
from skal._vocabulary import STRATEGIES, names_a_strategy
from skal.base import as_strategy
from skal.exceptions import BudgetWarning, InvalidParameterError, InvalidTypeError
from skal.loop._progress import LoopState
from skal.models._net_training import final_network
from skal.stopping import Certified, StoppingCriterion, UncertaintyPlateau
from skal.strategies._names import named_strategy
from skal.validation import Choice, Integer, Seed

AUDIT_SHARE = 0.2  # share of the labels, unless a stopping criterion asks for another


@dataclass(eq=False)
class Rules:
    """The parameters of a run and its data; making one checks them.

    The fields are the parameters of :class:`~skal.loop.ActiveLearningClassifier`, and

    Attributes
    ----------
    owner : str
        Name of the classifier's class, for messages.
    X : all samples
    eval_set : tuple of X and y, or None
    reader : callable or None
        ``reader(indices, None)`` reads labels that are there already.
    ids : array-like or None
        By what the samples are known.
    given : array-like or None
        Labels from before the start, with gaps.
    askable : (n,) bool array or None
        Which samples ``reader`` has a label for.
    readonly : bool
        Write nothing to the checkpoint.
    target : samples, (n,) weights, or None
        What the strategies are to work for; handed on to them.
    task : {"classification", "regression", "multilabel"}
        What is learnt.
    n_samples : int
    initial_size : int
        Samples in round 0.
    network : bool
        Whether a network does the work.
    continues : bool
        Whether a training goes on from the last one, if it is not to start anew.
    no_label : int or None
        The number that stands for "no label", if there is one: the estimator learns from unlabelled samples.
    heldout_share : float
        Share of the labels that the stopping criterion wants drawn at random and held out.
    watches : bool
        Whether the stopping criterion looks at how models change.
    certified : Certified or None
        The criterion that audits the model.
    """

    owner: str
    X: Any
    eval_set: Any
    estimator: Any
    query_strategy: Any
    n_initial: int
    initial: Any
    query_size: int
    n_rounds: int | None
    budget: int | None
    scoring: Any
    classes: Any
    reinitialize: bool
    callbacks: Any
    checkpoint: Any
    verbose: int
    random_state: Any
    stop: Any
    hold_out: str
    reader: Callable[[np.ndarray, Any], Any] | None = None
    ids: Any = None
    given: Any = None
    askable: np.ndarray | None = None
    readonly: bool = False
    target: Any = None
    task: Task = CLASSIFICATION
    n_samples: int = field(init=False)
    initial_size: int = field(init=False)
    network: bool = field(init=False)
    continues: bool = field(init=False)
    no_label: int | None = field(init=False)
    heldout_share: float = field(init=False, default=0.0)
    watches: bool = field(init=False, default=False)
    certified: Certified | None = field(init=False, default=None)

    @classmethod
    def of(cls, classifier: BaseEstimator, X: Any, eval_set: Any, **data: Any) -> Rules:
        """The classifier's parameters as they are now."""
        owner, names = type(classifier).__name__, {field.name for field in fields(cls)}
        own = {name: value for name, value in classifier.get_params(deep=False).items() if name in names}
        own["query_strategy"] = named_strategy(owner, "query_strategy", own["query_strategy"])
        own["initial"] = _strategy_or_rule(owner, own["initial"])
        if data.get("target") is not None:
            own["query_strategy"] = _aim(owner, own["query_strategy"], data["target"])
            if callable(own["initial"]) and _takes_target(own["initial"]):
                own["initial"] = _aim(owner, own["initial"], data["target"])
        return cls(owner, X, eval_set, **({"classes": None} | own), **data)

    def __post_init__(self) -> None:
        owner = self.owner
        self.n_samples = n_rows(self.X)
        if self.eval_set is not None and not (isinstance(self.eval_set, (tuple, list)) and len(self.eval_set) == 2):
            remedy = "Pass eval_set=(X_test, y_test)."
            raise InvalidTypeError.for_parameter(owner, "eval_set", "a pair of X and y", self.eval_set, remedy)
        if self.eval_set is not None and (n_masked := count_masked(self.eval_set[1])):
            got, remedy = f"{n_masked} masked labels", "Leave these samples out."
            raise InvalidTypeError.for_parameter(owner, "eval_set", "labels for all of its samples", got, remedy)
        Integer(0).check(owner, "n_initial", self.n_initial)
        Integer(1).check(owner, "query_size", self.query_size)
        Integer(0, optional=True).check(owner, "n_rounds", self.n_rounds)
        Integer(1, optional=True).check(owner, "budget", self.budget)
        Choice(True, False).check(owner, "reinitialize", self.reinitialize)
        Integer(0).check(owner, "verbose", int(self.verbose) if isinstance(self.verbose, bool) else self.verbose)
        Seed().check(owner, "random_state", self.random_state)
        if isinstance(self.initial, str) or callable(self.initial):
            self.initial_size = self.n_initial
            if self.n_initial == 0 and not isinstance(self.estimator, NeuralNet):
                expected = "an integer >= 1 unless the estimator is a skorch net, which can query untrained"
                raise InvalidParameterError.for_parameter(owner, "n_initial", expected, 0, "Pass 1 or more.")
        else:
            self._check_positions()
            self.initial_size = len(self.initial)
        self.network = isinstance(unwrap_estimator(self.estimator)[0], NeuralNet)
        in_place = self.network and final_network(self.estimator) is not None
        warm_started = not in_place and _is_warm_started(self.estimator)
        self.continues = in_place or warm_started
        self.no_label = -1 if self.task == CLASSIFICATION and uses_unlabelled(self.estimator) else None
        if self.scoring is not None:
            self._check_scoring()
        if self.callbacks is not None:
            self._check_callbacks()
        if self.checkpoint is not None:
            self._check_checkpoint(warm_started)
        elif self.readonly:
            remedy = "Name the folder in 'checkpoint', or leave readonly out."
            raise InvalidParameterError.for_parameter("start", "readonly", "False without a checkpoint", True, remedy)
        Choice("random", "audit").check(owner, "hold_out", self.hold_out)
        for chooses in (self.query_strategy, self.initial):
            if (strategy := as_strategy(chooses)) is not None:
                strategy.check_task(self.task)  # now, and not when a person has labelled the first samples
        if self.stop is not None:
            self._check_stop()
            self.heldout_share = max(part.share for part in self.stop.parts())
            self.watches = any(part.watches for part in self.stop.parts())
            self.certified = next((part for part in self.stop.parts() if isinstance(part, Certified)), None)
        if self.hold_out == "audit":
            self.heldout_share = self.heldout_share or AUDIT_SHARE
        if self.task != CLASSIFICATION:
            self._check_other_task()

    @property
    def no_given_label(self) -> int | None:
        """The number that stands for "unknown" in labels from before the start, unless it is a class."""
        return None if self.classes is not None and -1 in np.asarray(self.classes).tolist() else -1

    @property
    def column_names(self) -> list[Any] | None:
        """The names of the columns of an indicator matrix, if they are known."""
        # an array of texts would lose zeros at their ends
        return self.classes.tolist() if hasattr(self.classes, "tolist") else self.classes and list(self.classes)

    def pool(self, state: LoopState) -> np.ndarray:
        """Positions that may still be asked for, in ascending order."""
        free = state.pool(self.n_samples)
        return free if self.askable is None else free[self.askable[free]]

    def plan_labels(self) -> int:
        """The number of labels at the end of a run that nothing stops earlier; warns if there are fewer samples."""
        if self.budget is None and self.n_rounds is None:
            return self.n_samples
        planned = self.budget if self.budget is not None else self.initial_size + (self.n_rounds or 0) * self.query_size
        if planned > self.n_samples:
            source = "n_initial + n_rounds * query_size = " if self.budget is None else "budget="
            warnings.warn(
                f"{source}{planned} exceeds the {self.n_samples} samples; all of them will be labelled. "
                "Use n_rounds=None without a budget to label everything without this warning.",
                BudgetWarning,
                stacklevel=6,  # the caller of fit or start
            )
        return min(planned, self.n_samples)

    def next_size(self, state: LoopState, n_pool: int) -> int:
        """The number of samples to ask for."""
        size = self.initial_size if state.round == 0 else self.query_size
        left = n_pool if self.budget is None else self.budget - len(state.labelled)
        return max(0, min(size, left, n_pool))

    def stop_reason(self, state: LoopState) -> str | None:
        """Why the loop ends after the last round of the history, or None; a budget replaces ``n_rounds``."""
        if self.budget is not None and len(state.labelled) >= self.budget:
            return "budget"
        if self.budget is None and self.n_rounds is not None and state.history[-1]["round"] >= self.n_rounds:
            return "budget"
        if self.stop is not None and (reason := self.stop.reason(state.history, len(state.labelled))) is not None:
            return f"stop: {reason}"
        return "pool exhausted" if len(self.pool(state)) == 0 else None

    def _check_other_task(self) -> None:
        """Refuse what counts how often a class is right, and what looks for classes."""
        if self.heldout_share or self.watches or self.certified is not None:
            name = "hold_out" if self.stop is None else "stop"
            expected = f"'random' with {self.task}" if name == "hold_out" else f"Budget or MaxTime with {self.task}"
            remedy = "The others count how often one class is right. Score with eval_set instead."
            raise InvalidParameterError.for_parameter(self.owner, name, expected, getattr(self, name), remedy)
        if isinstance(self.initial, str) and self.initial == "stratified":
            expected, remedy = f"'random', 'auto', positions or a strategy with {self.task}", "There are no classes."
            raise InvalidParameterError.for_parameter(self.owner, "initial", expected, self.initial, remedy)

    def _check_scoring(self) -> None:
        known = isinstance(self.scoring, str) and self.scoring in get_scorer_names()
        if not known and (isinstance(self.scoring, type) or not callable(self.scoring)):
            expected = "None, the name of a scorer of scikit-learn, or a callable scorer(estimator, X, y)"
            remedy = "See sklearn.metrics.get_scorer_names()."
            raise InvalidParameterError.for_parameter(self.owner, "scoring", expected, self.scoring, remedy)

    def _check_callbacks(self) -> None:
        if not isinstance(self.callbacks, (list, tuple)) or not all(map(callable, self.callbacks)):
            expected, remedy = "a list of callables or None", "Pass for example callbacks=[f] with f(classifier, row)."
            raise InvalidTypeError.for_parameter(self.owner, "callbacks", expected, self.callbacks, remedy)

    def _check_stop(self) -> None:
        if not isinstance(self.stop, StoppingCriterion):
            remedy = "Pass for example stop=StablePredictions() | Budget(500)."
            expected = "a criterion of skal.stopping, or None"
            raise InvalidTypeError.for_parameter(self.owner, "stop", expected, self.stop, remedy)
        self.stop.check_params()
        needs = [type(part).__name__ for part in self.stop.parts() if isinstance(part, (Certified, UncertaintyPlateau))]
        if needs and not hasattr(self.estimator, "predict_proba"):
            expected, remedy = f"a classifier with predict_proba for {needs[0]}", "Use StablePredictions."
            raise InvalidParameterError.for_parameter(self.owner, "estimator", expected, self.estimator, remedy)

    def _check_positions(self) -> None:
        array = np.asarray(self.initial)
        flat = array.ndim == 1 and array.size > 0 and array.dtype.kind in "iu"
        if not flat or array.min() < 0 or array.max() >= self.n_samples or len(np.unique(array)) != len(array):
            expected = f"'random', 'stratified', 'auto', a strategy, or distinct positions in 0 … {self.n_samples - 1}"
            remedy = "Pass a flat, non-empty array of integers without duplicates."
        elif self.budget is not None and len(array) > self.budget:
            expected = f"at most {self.budget} positions, as many as the 'budget'"
            remedy = f"Raise the budget to {len(array)} or more, or give fewer positions."
        else:
            return
        raise InvalidParameterError.for_parameter(self.owner, "initial", expected, array.tolist(), remedy)

    def _check_checkpoint(self, warm_started: bool) -> None:
        is_path = isinstance(self.checkpoint, (str, os.PathLike))
        if not is_path or not os.fspath(self.checkpoint) or Path(self.checkpoint).is_file():
            error = InvalidParameterError if is_path else InvalidTypeError
            is_file = is_path and os.fspath(self.checkpoint)
            remedy = "There is a file of that name: choose another." if is_file else "Name a folder."
            expected = "the path of a folder, or None"
            raise error.for_parameter(self.owner, "checkpoint", expected, self.checkpoint, remedy)
        if warm_started:
            raise InvalidParameterError(
                "With a checkpoint the estimator must be a skorch net, or one that starts anew whenever it is fitted. "
                "Got a warm_start=True outside a network. Set warm_start=False, or run without checkpoint."
            )


def uses_unlabelled(estimator: Any) -> bool:
    """True if the estimator learns from samples with the label −1.

    One of your own says so with the attribute ``uses_unlabelled = True``; scikit-learn's are known.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> uses_unlabelled(SelfTrainingClassifier(LogisticRegression())), uses_unlabelled(LogisticRegression())
    (True, False)
    """
    known = (LabelPropagation, LabelSpreading, SelfTrainingClassifier)
    while estimator is not None and not (isinstance(estimator, known) or getattr(estimator, "uses_unlabelled", False)):
        estimator = estimator.steps[-1][1] if isinstance(estimator, Pipeline) else getattr(estimator, "estimator", None)
    return estimator is not None


def _is_warm_started(estimator: Any) -> bool:
    """True if there is a ``warm_start=True`` somewhere, so that fits depend on history."""
    params = estimator.get_params(deep=True)
    return any(bool(value) for name, value in params.items() if name.split("__")[-1] == "warm_start")


def _takes_target(strategy: Any) -> bool:
    made = as_strategy(strategy)
    return made is not None and "target" in made.get_params()


def _aim(owner: str, strategy: Any, target: Any) -> Any:
    """A strategy of the same parameters that works for a target."""
    if not _takes_target(strategy):
        expected, remedy = "a strategy that takes a target", "Use 'auto', 'max_herding', 'uherding' or 'ntk_lookahead'."
        raise InvalidParameterError.for_parameter(owner, "query_strategy", expected, strategy, remedy)
    return clone(as_strategy(strategy)).set_params(target=target)


def _strategy_or_rule(owner: str, initial: Any) -> Any:
    """``initial`` with a strategy in place of its name; rules and positions as they are."""
    rules = ["random", "stratified"]
    if isinstance(initial, str) and initial not in rules:
        if not names_a_strategy(initial):
            Choice(*rules, *sorted(set(STRATEGIES) - set(rules))).check(owner, "initial", initial)
        return named_strategy(owner, "initial", initial)
    return named_strategy(owner, "initial", initial) if callable(initial) else initial
