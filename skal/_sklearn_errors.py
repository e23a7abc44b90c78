# SPDX-License-Identifier: BSD-3-Clause
"""The errors of :mod:`skal.exceptions` that are also scikit-learn's own."""

from __future__ import annotations

from sklearn.exceptions import ConvergenceWarning as _SklearnConvergenceWarning
from sklearn.exceptions import NotFittedError as _SklearnNotFittedError

from skal.exceptions import SkalError, SkalWarning


class NotFittedError(SkalError, _SklearnNotFittedError):
    """The estimator has not been fitted (or, for a net, initialised) yet.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skal import ActiveLearner
    >>> from skal.strategies import margin
    >>> ActiveLearner(LogisticRegression(), margin).query([[0.0], [1.0]])
    Traceback (most recent call last):
        ...
    skal.exceptions.NotFittedError: The estimator that Margin works on must be fitted. ...
    """


class ConvergenceWarning(SkalWarning, _SklearnConvergenceWarning):
    """An iteration ended before it reached its tolerance.

    Examples
    --------
    >>> import warnings
    >>> from skal.semi_supervised import darp
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error")
    ...     darp([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]], max_iter=1)
    Traceback (most recent call last):
        ...
    skal.exceptions.ConvergenceWarning: darp did not reach tol=1e-07 in 1 steps: ...
    """


for _own in (NotFittedError, ConvergenceWarning):
    _own.__module__ = "skal.exceptions"  # where users find them
