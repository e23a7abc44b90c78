# SPDX-License-Identifier: BSD-3-Clause
"""Conformance checks for query strategies.

Every strategy of skal passes them, and a strategy written elsewhere can run them too::

    from skal.checks import check_strategy

    check_strategy(MyStrategy())

Each check is a function ``check(strategy, learner, X_pool)`` that raises :class:`CheckFailure`, with a message that
says what was found, and leaves the learner as it was. ``CHECKS`` lists them, for ``pytest.mark.parametrize``. What a
check expects depends on what the strategy says about itself: see the attributes of :class:`skal.base.QueryStrategy`.

>>> from skal.checks import CHECKS
>>> [check.__name__ for check in CHECKS][:2]
['check_score_shape', 'check_called_once']
"""

from __future__ import annotations

from inspect import cleandoc
from typing import Any

from skal.checks._answers import (
    check_called_once,
    check_convention,
    check_duplicates,
    check_function,
    check_indices,
    check_one_class,
    check_score_shape,
    check_scores,
    check_subset,
)
from skal.checks._errors import (
    check_changing_samples,
    check_empty_pool,
    check_mistakes,
    check_n_instances,
    check_no_labels,
    check_no_network,
    check_nonfinite_outputs,
    check_nonfinite_pool,
    check_not_fitted,
    check_probabilities,
)
from skal.checks._inputs import (
    check_batch_size,
    check_containers,
    check_loader,
    check_multi_input,
    check_n_jobs,
    check_nll_loss,
    check_pipeline,
    check_pool_order,
    check_search,
    check_train_mode,
)
from skal.checks._parameters import (
    check_init,
    check_invalid_parameters,
    check_parameters,
    check_pickle,
    check_seed,
)
from skal.checks._state import check_drawing_dataset, check_interrupt, check_untouched
from skal.checks._support import CheckFailure, expect, make_learner

# ruff: noqa: F401 (every check that is imported above is one of the list)
CHECKS = [thing for name, thing in list(globals().items()) if name.startswith("check_")]
CHECKS.sort(key=lambda check: check is not check_score_shape)  # without it the others say less

__all__ = ["CHECKS", "CheckFailure", "check_strategy", "make_learner", *(check.__name__ for check in CHECKS)]

# the checks differ in what they look at, and their docstrings in a line
_REST = """

Parameters
----------
strategy : QueryStrategy
    An object; copies of it are asked.
learner : object with ``estimator``, ``X_training`` and ``y_training``
    Who asks: :func:`make_learner` has one.
X_pool : array
    The samples to choose from.

Raises
------
CheckFailure
    If the strategy does not behave.

Examples
--------
>>> from skal.checks import {name}, make_learner
>>> from skal.strategies import Margin
>>> {name}(Margin(), *make_learner())
"""
for _check in CHECKS:
    if "Parameters" not in (_check.__doc__ or "Parameters"):  # imported again, or without docstrings
        # some Pythons cut the indentation of docstrings, others do not
        _check.__doc__ = cleandoc(_check.__doc__) + _REST.format(name=_check.__name__)


def check_strategy(strategy: Any, learner: Any = None, X_pool: Any = None) -> None:
    """Run all checks on a strategy.

    Parameters
    ----------
    strategy : QueryStrategy
        Cloned before it is used.
    learner : object with ``estimator``, ``X_training``, ``y_training``, optional
        The estimator must be a fitted ``NeuralNetClassifier`` with ``CrossEntropyLoss`` and ``X_training`` a numpy
        array with at least two labelled samples. By default the one of :func:`make_learner`.
    X_pool : numpy array, optional
        At least 12 different samples. Given with the learner, or not at all.

    Raises
    ------
    CheckFailure
        Names every check that failed and what each of them found.

    Examples
    --------
    >>> from skal.checks import check_strategy
    >>> from skal.strategies import Margin
    >>> check_strategy(Margin())
    """
    both = "learner and X_pool must be given both or neither. Got only one of them. Pass the other too."
    expect((learner is None) == (X_pool is None), both)
    if learner is None:
        learner, X_pool = make_learner()
    failures = []
    for check in CHECKS:
        try:
            check(strategy, learner, X_pool)
        except Exception as error:
            failures.append((check.__name__, error))
            if check is check_score_shape:
                break
    if failures:
        lines = [f"{name}: {type(error).__name__}: {error}" for name, error in failures]
        raise CheckFailure(
            f"{strategy!r} fails {len(failures)} of {len(CHECKS)} checks:\n" + "\n".join(lines)
        ) from failures[0][1]
