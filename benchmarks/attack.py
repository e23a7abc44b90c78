"""Everything that users are likely to do wrong, on every strategy and entry point: what do they get to read?

``python -m benchmarks.attack [--only TEXT] [--show]``. A case is a bad pool, learner or set of labels, given to one
entry point. What comes of it is one of:

clear error
    A ``SkalError``.
clear warning
    An answer to a case that must be refused, with a warning that names what is wrong.
scikit-learn's
    An error that scikit-learn's own checks raise, from an estimator that is no network.
foreign traceback
    Any other error. ``--show`` prints each of them.
garbage
    An answer where none can be right: NaN, indices that are not distinct or not in the pool, or any answer to a case
    that must be refused.
answer
    Anything else.
"""

from __future__ import annotations

import argparse
import inspect
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

import skal.strategies
from benchmarks._attack_cases import (
    NOTHING_THERE,
    REFUSED,
    SILENT,
    fresh_learner,
    labels,
    learners,
    linear_learner,
    loss_predicting,
    pools,
)
from benchmarks._attack_datasets import changing_pools
from benchmarks._attack_entries import entry_cases
from benchmarks._measure import markdown
from skal import ActiveLearner, ActiveLearningClassifier, LinearizedLearner, NTKLookahead, config_context
from skal.base import QueryStrategy, ScoreStrategy
from skal.exceptions import SkalError, SkalWarning
from skal.tangent import gradient_scores, loss_gradient, tangent_features, tangent_kernel

KINDS = ("clear error", "clear warning", "scikit-learn's", "foreign traceback", "garbage", "answer")
Case = tuple[str, str, str, Callable[[], Any]]  # group, name, what must happen, call


def strategies() -> dict[str, QueryStrategy]:
    """Every strategy with settings that make it quick and that draw from a seed."""
    found = {}
    for name, cls in vars(skal.strategies).items():
        if isinstance(cls, type) and issubclass(cls, QueryStrategy):
            known = inspect.signature(cls).parameters
            settings = {"random_state": 0, "batch_size": 16, "n_passes": 3, "reference": "linearized"}
            found[name] = cls(**{key: value for key, value in settings.items() if key in known})
    return found


def cases() -> Iterator[Case]:
    """All of them."""
    learner, X = fresh_learner()
    predicting, linear = loss_predicting(learner), linear_learner(learner)
    for name, strategy in strategies().items():
        own = predicting if name == "LearningLoss" else learner
        for pool, (expected, bad) in pools(X).items():
            # what never looks at samples cannot notice what is inside them
            must = expected if strategy.reads_outputs else "may work"
            yield "pools", f"{name}: {pool}", must, lambda s=strategy, le=own, p=bad: s.select(le, p, 3)
            if isinstance(strategy, ScoreStrategy):
                yield "pools", f"{name}.scores: {pool}", must, lambda s=strategy, le=own, p=bad: s.scores(le, p)
        if not strategy.needs_network and name != "LearningLoss":
            for pool, (_, bad) in pools(X).items():
                must = REFUSED if strategy.reads_outputs and pool in NOTHING_THERE else "may work"
                call = lambda s=strategy, le=linear, p=bad: s.select(le, p, 3)  # noqa: E731
                yield "pools of linear models", f"{name}: {pool}", must, call
        for bytes_ in (1, 1000):
            call = lambda s=strategy, le=own, b=bytes_: bounded(s, le, X, b)  # noqa: E731
            yield "memory", f"{name}: max_memory={bytes_}", "may work", call
        mixed = type(own)(
            estimator=own.estimator, X_training=own.X_training.astype(np.float64), y_training=own.y_training
        )
        yield "pools", f"{name}: float64 labelled", "may work", lambda s=strategy, le=mixed: s.select(le, X, 3)
        yield (
            "pools",
            f"{name}: float64 pool, by input",
            "may work",
            lambda s=strategy, le=own: by_input(s).select(le, X.astype(np.float64), 3),
        )
        must = REFUSED if strategy.reads_outputs else "may work"
        for what, pool in changing_pools(X).items():
            yield "changing samples", f"{name}: {what}", must, lambda s=strategy, le=own, p=pool: s.select(le, p, 3)
            if isinstance(strategy, ScoreStrategy):
                again = changing_pools(X)[what]
                call = lambda s=strategy, le=own, p=again: s.scores(le, p)  # noqa: E731
                yield "changing samples", f"{name}.scores: {what}", must, call
        for what, (expected, make) in learners(learner).items():
            looks = strategy.reads_outputs and (strategy.needs_network or what in SILENT)
            must = expected if looks else "may work"
            yield "learners", f"{name}: {what}", must, lambda s=strategy, m=make: s.select(m(), X, 3)
        for what, y in labels(learner.y_training).items():
            bad = type(own)(estimator=own.estimator, X_training=own.X_training, y_training=y)
            yield "labels", f"{name}: {what}", "may work", lambda s=strategy, le=bad: s.select(le, X, 3)
    yield from other_entry_points(learner, X)
    yield from entry_cases(strategies(), learner, predicting, X)


def bounded(strategy: QueryStrategy, learner: Any, X: np.ndarray, n_bytes: int) -> Any:
    """A query within a bound on memory."""
    with config_context(max_memory=n_bytes):
        return strategy.select(learner, X, 3)


def by_input(strategy: QueryStrategy) -> QueryStrategy:
    """The same on the samples themselves, if it compares features."""
    known = strategy.get_params(deep=False)
    return type(strategy)(**(known | {"features": "input"})) if "features" in known else strategy


def other_entry_points(learner: Any, X: np.ndarray) -> Iterator[Case]:
    """The learners' and loops' ways in, and the tangent engine's."""
    net, y = learner.estimator, learner.y_training

    def taught(**changes: Any) -> Any:
        from sklearn.base import clone

        data = {"X_training": learner.X_training, "y_training": y} | changes
        return ActiveLearner(clone(net).set_params(max_epochs=1), "margin", **data)

    functions: dict[str, Callable[[Any], Any]] = {
        "tangent_kernel": lambda pool: tangent_kernel(net, pool),
        "tangent_features": lambda pool: tangent_features(net, pool, n_features=64),
        "gradient_scores": lambda pool: gradient_scores(net, pool, None),
        "loss_gradient": lambda pool: loss_gradient(net, pool, None),
        "ActiveLearner.query": lambda pool: ActiveLearner(net, "margin").query(pool, 3),
        "ActiveLearner.fit": lambda pool: taught(X_training=pool, y_training=np.arange(40) % 4) and None,
        "ActiveLearner.teach": lambda pool: taught().teach(pool, np.arange(40) % 4),
        "ActiveLearningClassifier.fit": lambda pool: (
            ActiveLearningClassifier(net, "margin", n_initial=8, n_rounds=1, query_size=4, random_state=0).fit(
                pool, np.arange(40) % 4
            )
            and None
        ),
    }
    for name, function in functions.items():
        for pool, (expected, bad) in pools(X).items():
            if name == "ActiveLearner.fit" and bad is None:
                continue  # a learner without labels
            yield "other entry points", f"{name}: {pool}", expected, lambda f=function, p=bad: f(p)
    queries: dict[str, Callable[[Any], Any]] = {
        "ActiveLearner.query": functions["ActiveLearner.query"],
        "LinearizedLearner.query": lambda pool: linearized(pool),
        "ActiveLearningClassifier.fit": functions["ActiveLearningClassifier.fit"],
    }

    def linearized(pool: Any) -> Any:
        strategy = NTKLookahead(reference="linearized", random_state=0)
        return LinearizedLearner(net, strategy, learner.X_training, y).query(pool, 3)

    for name, function in queries.items():
        for what, pool in changing_pools(X).items():
            yield "changing samples", f"{name}: {what}", REFUSED, lambda f=function, p=pool: f(p)
    for what, bad in labels(y).items():
        yield (
            "other entry points",
            f"ActiveLearner.fit: y {what}",
            REFUSED if "masked" in what else "may work",
            lambda b=bad: taught(y_training=b) and None,
        )
        yield (
            "other entry points",
            f"gradient_scores: y {what}",
            "may work",
            lambda b=bad: gradient_scores(net, learner.X_training, b),
        )
    for what, (_, make) in learners(learner).items():

        def refit(make: Callable[[], Any] = make) -> None:
            bad = make()
            ActiveLearner(getattr(bad, "estimator", bad), "margin", learner.X_training, y)

        yield "other entry points", f"ActiveLearner.fit: {what}", "may work", refit
    for what, strategy in {"class": skal.strategies.Margin, "unknown name": "marginn", "number": 3}.items():
        yield "other entry points", f"ActiveLearner: {what}", REFUSED, lambda s=strategy: ActiveLearner(net, s)
        yield (
            "other entry points",
            f"ActiveLearningClassifier: {what}",
            REFUSED,
            lambda s=strategy: ActiveLearningClassifier(net, s, n_initial=8).fit(X, np.arange(40) % 4),
        )


def outcome(must: str, call: Callable[[], Any]) -> tuple[str, BaseException | None]:
    """One of KINDS, and the error if there was one."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = call()
    except SkalError as error:
        return "clear error", error
    except Exception as error:
        packages = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
        own_checks = any(name.startswith("sklearn.utils.validation") or name == "sklearn.base" for name in packages)
        torch_is_in = any(name.startswith(("skorch", "torch")) for name in packages)
        return "scikit-learn's" if own_checks and not torch_is_in else "foreign traceback", error
    if is_garbage(result):
        return "garbage", None
    if must == REFUSED:
        named = any(issubclass(warning.category, SkalWarning) for warning in caught)
        return ("clear warning" if named else "garbage"), None
    return "answer", None


def is_garbage(result: Any) -> bool:
    """NaN, or indices that are not distinct positions of the pool."""
    parts = result if isinstance(result, tuple) else [result]
    for part in parts:
        array = np.asarray(part.detach()) if isinstance(part, torch.Tensor) else part
        if isinstance(array, np.ndarray) and array.dtype.kind == "f" and np.isnan(array).any():
            return True
    indices = parts[0]
    is_index = isinstance(indices, np.ndarray) and indices.dtype == np.int64 and isinstance(result, tuple)
    return is_index and (len(set(indices.tolist())) != len(indices) or indices.min() < 0 or indices.max() >= 80)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print how many cases came to what."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attack", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="only cases whose group or name contains this text")
    parser.add_argument("--show", action="store_true", help="print every foreign traceback and garbage")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    counts: dict[str, Counter] = {}
    for group, name, must, call in cases():
        if options.only not in f"{group}, {name}":
            continue
        kind, error = outcome(must, call)
        counts.setdefault(group, Counter())[kind] += 1
        if options.show and kind in ("foreign traceback", "garbage"):
            said = "" if error is None else f"{type(error).__name__}: {error}".splitlines()[0][:150]
            print(f"{kind}: {name}: {said}", flush=True)
    rows = [[group, sum(count.values()), *(count[kind] for kind in KINDS)] for group, count in counts.items()]
    total = sum(counts.values(), Counter())
    rows.append(["all", sum(total.values()), *(total[kind] for kind in KINDS)])
    print(markdown(["", "cases", *KINDS], rows))


if __name__ == "__main__":
    main()
