"""What users do wrong with parameters, loops, sessions, stopping criteria and benchmarks."""

from __future__ import annotations

import inspect
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.naive_bayes import GaussianNB

import skal.stopping
from benchmarks._attack_cases import MAY_WORK, REFUSED, labels, pools
from benchmarks._attack_commands import VALUES, Named, commands, labelling, made_file
from benchmarks._attack_counts import COUNTS, counts
from skal import ActiveLearningClassifier
from skal.base import QueryStrategy
from skal.bench import run_benchmark
from skal.stopping import Budget

Case = tuple[str, str, str, Callable[[], Any]]  # group, name, what must happen, call
SECONDS = 90  # longer is an endless loop, or a server that should not have been started


class TooLongError(Exception):
    """No TimeoutError: that is an OSError, which a command turns into a message."""


def within(call: Callable[[], Any]) -> Callable[[], Any]:
    """The same, ended by a TooLongError if it takes too long."""

    def ended(number: int, frame: Any) -> None:
        raise TooLongError(f"more than {SECONDS} s")

    def timed() -> Any:
        before = signal.signal(signal.SIGALRM, ended)
        signal.alarm(SECONDS)
        try:
            return call()
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)

    return timed


def entry_cases(strategies: dict[str, QueryStrategy], learner: Any, predicting: Any, X: np.ndarray) -> Iterator[Case]:
    """All of them; files are made in a folder that is deleted."""
    with tempfile.TemporaryDirectory() as folder:
        for group, found in {
            "parameters": parameters(strategies, learner, predicting, X),
            "loops": loops(X),
            "sessions": sessions(X, Path(folder)),
            "stopping": stopping(),
            "benchmarks": benchmarks(X, Path(folder)),
            "labelling": labelling(X, Path(folder)),
            "counts": counts(learner, X, Path(folder)),
            "command line": commands(X, Path(folder)),
        }.items():
            for name, must, call in found:
                yield group, name, must, within(call)


def parameters(strategies: dict[str, QueryStrategy], learner: Any, predicting: Any, X: np.ndarray) -> Named:
    """Every parameter of every strategy with every value; and those of a query."""
    for name, strategy in strategies.items():
        own = predicting if name == "LearningLoss" else learner
        for parameter in inspect.signature(type(strategy)).parameters:
            for what, value in VALUES.items():
                must = REFUSED if what == "10**30" and parameter in COUNTS else MAY_WORK

                def query(s: Any = strategy, p: str = parameter, v: Any = value, le: Any = own) -> Any:
                    settings = s.get_params(deep=False) | {p: v}
                    return type(s)(**settings).select(le, X, 3)

                yield f"{name}({parameter}={what})", must, query
        for what, value in VALUES.items():
            yield f"{name}: n_instances={what}", REFUSED, lambda s=strategy, le=own, v=value: s.select(le, X, v)


def loops(X: np.ndarray) -> Named:
    """Parameters of the classifier that runs the loop."""
    flat, y = X.reshape(len(X), -1), np.arange(len(X)) % 4
    given = {"n_initial": 8, "n_rounds": 1, "query_size": 4, "random_state": 0}

    def fitted(**changes: Any) -> None:
        estimator = changes.pop("estimator", GaussianNB())
        ActiveLearningClassifier(estimator, **(given | changes)).fit(flat, y)

    for parameter in inspect.signature(ActiveLearningClassifier).parameters:
        for what, value in VALUES.items():
            if parameter != "checkpoint" or what != "a text":  # which names a folder
                yield (
                    f"ActiveLearningClassifier({parameter}={what})",
                    MAY_WORK,
                    lambda p=parameter, v=value: fitted(**{p: v}),
                )
    for what, bad in labels(np.arange(40) % 4).items():
        loop = ActiveLearningClassifier(GaussianNB(), **given)
        yield f"ActiveLearningClassifier.fit: y {what}", MAY_WORK, lambda lo=loop, b=bad: lo.fit(flat, b) and None
        yield f"ActiveLearningClassifier.start: y {what}", MAY_WORK, lambda lo=loop, b=bad: lo.start(flat, b) and None
    for what, value in VALUES.items():
        for parameter in ("ids", "eval_set"):
            loop = ActiveLearningClassifier(GaussianNB(), **given)
            yield (
                f"start({parameter}={what})",
                MAY_WORK,
                lambda lo=loop, p=parameter, v=value: lo.start(flat, **{p: v}) and None,
            )


def sessions(X: np.ndarray, folder: Path) -> Named:
    """Everything that a session can be told, in a folder and without one."""
    flat = X.reshape(len(X), -1)
    session = ActiveLearningClassifier(GaussianNB(), n_initial=8, n_rounds=3, query_size=4, random_state=0).start(
        flat, ids=[f"sample {i}" for i in range(len(flat))]
    )
    session.tell([int(i) % 4 for i in session.ask()])
    answers = {
        "too few": [0],
        "too many": [0] * 99,
        "two dimensions": np.zeros((4, 4)),
        "unknown id": {"no such sample": 0},
        "position as id": {3: 0},
        "unhashable": {"sample 3": [0]},
        "nested": {"sample 3": {"a": 0}},
        "iterator": iter([0]),
        "words": ["a", "b", "c", "d"],
        "objects": [object()] * 4,
        "dates": np.zeros(4, dtype="datetime64[s]"),
        "NaN": [float("nan")] * 4,
        "classes": [int, str, float, list],
        **VALUES,
    }
    for method in ("tell", "relabel", "add", "decline", "undecline", "show", "to_csv", "to_json", "forecast"):
        for what, value in answers.items():
            if method in ("to_csv", "to_json") and isinstance(value, str):
                continue  # which names a file
            yield (
                f"LabellingSession.{method}({what})",
                MAY_WORK,
                lambda m=method, v=value: getattr(session, m)(v) and None,
            )
    for method in ("to_csv", "to_json"):
        for what, path in {"folder": folder, "no folder": folder / "none" / "x"}.items():
            yield f"LabellingSession.{method}({what})", MAY_WORK, lambda m=method, p=path: getattr(session, m)(p)
    for what, indices in VALUES.items():
        yield f"LabellingSession.tell(indices={what})", MAY_WORK, lambda i=indices: session.tell([0, 1], i) and None


def stopping() -> Named:
    """Parameters of the criteria, and what they are combined with."""
    history = [{"n_labelled": 10 * i, "agreement": 0.9, "heldout_score": 0.5, "n_heldout": 9} for i in range(5)]
    for name in skal.stopping.__all__:
        cls = getattr(skal.stopping, name)
        if not (isinstance(cls, type) and issubclass(cls, skal.stopping.StoppingCriterion)) or inspect.isabstract(cls):
            continue
        for parameter in inspect.signature(cls).parameters:
            required = {p.name: 1 for p in inspect.signature(cls).parameters.values() if p.default is p.empty}
            for what, value in VALUES.items():

                def asked(c: Any = cls, given: dict = required | {parameter: value}) -> Any:
                    criterion = c(**given)
                    criterion.check_params()
                    return criterion.reason(history, 40) and None

                yield f"{name}({parameter}={what})", MAY_WORK, asked
    for what, value in VALUES.items():
        yield f"Budget | {what}", REFUSED, lambda v=value: Budget(3) | v
        yield f"Budget & {what}", REFUSED, lambda v=value: Budget(3) & v


def benchmarks(X: np.ndarray, folder: Path) -> Named:
    """``run_benchmark`` with data of one's own, and settings."""
    flat, y = X.reshape(len(X), -1), np.arange(len(X)) % 4
    small: dict[str, Any] = {"net": "logistic", "n_rounds": 1, "seeds": 1, "n_initial": 8, "query_size": 4}
    small["max_epochs"] = 2

    def run(**changes: Any) -> None:
        run_benchmark(changes.pop("strategies", ["random"]), **({"data": (flat, y)} | small | changes))

    for what, (must, bad) in pools(X).items():
        must = REFUSED if must == REFUSED and what not in _NUMBERS else MAY_WORK
        yield f"run_benchmark(data=({what}, y))", must, lambda b=bad: run(data=(b, y))
    for what, bad in labels(y).items():
        yield f"run_benchmark(data=(X, {what}))", MAY_WORK, lambda b=bad: run(data=(flat, b))
    for parameter in (
        "data",
        "net",
        "strategies",
        "out",
        "n_jobs",
        "title",
        "n_rounds",
        "seeds",
        "query_size",
        "n_initial",
    ):
        for what, value in VALUES.items():
            if not (parameter == "out" and isinstance(value, str)):
                yield f"run_benchmark({parameter}={what})", MAY_WORK, lambda p=parameter, v=value: run(**{p: v})
    for name, settings in {
        "no such setting": {"roundz": 3},
        "three arrays": {"data": (flat, y, flat)},
        "test of other columns": {"data": (flat, y, flat[:, :3], y)},
        "test without samples": {"data": (flat, y, flat[:0], y[:0])},
        "one class": {"data": (flat, np.zeros(len(y), dtype=int))},
        "n_rounds=10**9": {"n_rounds": 10**9},
        "a strategy that raises": {"strategies": {"mine": lambda learner, pool, n_instances: 1 / 0}},
        "a strategy that returns None": {"strategies": {"mine": lambda learner, pool, n_instances: None}},
        "a strategy that returns copies": {"strategies": {"mine": lambda learner, pool, n_instances: [0, 0, 0, 0]}},
        "a strategy of another signature": {"strategies": {"mine": lambda: None}},
        "net without predict_proba": {"net": object()},
        "out is a file": {"out": made_file(folder / "taken", "text")},
    }.items():
        yield f"run_benchmark: {name}", REFUSED, lambda s=settings: run(**s)


# pools that a network for images refuses, and that are rows of numbers all the same
_NUMBERS = {
    "flat",
    "too few columns",
    "too many columns",
    "three channels",
    "transposed",
    "no columns",
    "one dimension more",
}
