# SPDX-License-Identifier: BSD-3-Clause
"""Checks of a strategy as a scikit-learn estimator."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.base import clone

from skal._core.guard import preserve_rng
from skal.checks._support import CheckFailure, expect, expect_error, expect_same, fresh

# values that no strategy can use, for the parameters that strategies share
_BAD_VALUES: dict[str, tuple[Any, ...]] = {
    "subset": (0, -1, 1.5),
    "random_state": (-1, 0.5, "seed"),
}


def check_parameters(strategy: Any, learner: Any, X_pool: Any) -> None:
    """``get_params``, ``set_params``, ``clone`` and ``repr`` work as scikit-learn has them."""
    params = strategy.get_params(deep=False)
    twin = clone(strategy)
    expect(type(twin) is type(strategy), f"clone must give a {type(strategy).__name__}. Got {type(twin).__name__}.")
    expect(set(twin.get_params(deep=False)) == set(params), "clone must keep the names of the parameters.")
    expect(repr(twin) == repr(strategy), f"clone must keep the parameters. Got {twin!r} instead of {strategy!r}.")
    expect(repr(strategy).startswith(f"{type(strategy).__name__}("), f"repr must name the class. Got {strategy!r}.")
    for name in params:
        marker = object()
        expect(twin.set_params(**{name: marker}) is twin, "set_params must return the strategy itself.")
        expect(
            twin.get_params(deep=False)[name] is marker and getattr(twin, name) is marker,
            f"set_params({name}=value) must store the value in the attribute {name!r}, where get_params finds it.",
        )
        expect(f"{name}=<object" in repr(twin), f"repr must show parameters that are set. Got {twin!r}.")
        twin = clone(strategy)


def check_init(strategy: Any, learner: Any, X_pool: Any) -> None:
    """``__init__`` stores every parameter as it comes, checks nothing and sets nothing else."""
    cls = type(strategy)
    markers = {name: object() for name in strategy.get_params(deep=False)}
    try:
        made = cls(**markers)
    except Exception as error:
        raise CheckFailure(
            f"{cls.__name__}.__init__ must only assign its parameters; check them when they are used. "
            f"Got {type(error).__name__}: {error}"
        ) from error
    for name, marker in markers.items():
        expect(getattr(made, name, None) is marker, f"__init__ must store {name!r} as it comes, under that name.")
    extra = set(vars(made)) - set(markers)
    expect(not extra, f"__init__ must set nothing but its parameters. Got {sorted(extra)} too.")


def check_invalid_parameters(strategy: Any, learner: Any, X_pool: Any) -> None:
    """A parameter that cannot be used raises when it is used, by name."""
    for name in strategy.get_params(deep=False):
        for value in (*_BAD_VALUES.get(name, ()), object()):
            spoilt = clone(strategy).set_params(**{name: value})
            for ask in [spoilt, *([spoilt.scores] if hasattr(strategy, "scores") else [])]:
                expect_error((ValueError, TypeError), f"{name}={value!r}", [name], ask, learner, X_pool)


def check_pickle(strategy: Any, learner: Any, X_pool: Any) -> None:
    """A strategy that has been pickled answers as before."""
    restored = pickle.loads(pickle.dumps(fresh(strategy)))
    for before, after in zip(
        fresh(strategy).select(learner, X_pool, 5), restored.select(learner, X_pool, 5), strict=True
    ):
        expect_same(before, after, "Pickling")


def check_seed(strategy: Any, learner: Any, X_pool: Any) -> None:
    """The same answer from the same ``random_state``, whatever the global generators say."""
    makers: list[Callable[[], Any]] = [lambda: 0, lambda: 3]
    makers += [lambda: np.random.RandomState(0), lambda: np.random.default_rng(0)]
    seeded = "random_state" in strategy.get_params(deep=False)
    for make in makers if seeded else makers[:1]:
        answers = []
        for seed in (1, 2):
            # a generator is advanced by a query: each of the two needs its own
            params = {"random_state": make()} if seeded else {}
            with preserve_rng():
                random.seed(seed)
                np.random.seed(seed)
                torch.manual_seed(seed)
                answers.append(fresh(strategy, **params).select(learner, X_pool, 5))
        (indices, metrics), (indices2, metrics2) = answers
        expect(
            np.array_equal(indices, indices2) and np.array_equal(metrics, metrics2),
            f"Two queries with {params or 'the same parameters'} must give the same answer. Got {indices} and "
            f"{indices2}: draw random numbers from random_state alone.",
        )
