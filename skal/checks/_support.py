# SPDX-License-Identifier: BSD-3-Clause
"""What the checks share: a small learner, variants of it, and comparisons with a message."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.utils._param_validation import InvalidParameterError as SklearnInvalidParameterError
from skorch import NeuralNetClassifier
from torch import Tensor, nn

from skal._core.guard import preserve_rng
from skal.exceptions import SkalError

# scores agree "up to rounding": of float32 passes, amplified by what a strategy does with them
_RTOL, _ATOL = 1e-3, 1e-4


class CheckFailure(AssertionError):  # noqa: N818 (an assertion that failed, as pytest shows it)
    """A strategy does not do what every strategy must do.

    Examples
    --------
    >>> import numpy as np
    >>> from skal.base import QueryStrategy
    >>> from skal.checks import check_indices, make_learner
    >>> class AlwaysTheFirst(QueryStrategy):
    ...     def _select(self, context, n_instances):
    ...         return np.zeros(n_instances, dtype=int), np.zeros(n_instances)
    >>> check_indices(AlwaysTheFirst(), *make_learner())
    Traceback (most recent call last):
        ...
    skal.checks._support.CheckFailure: For the pool the indices must be distinct. Got [0 0]: remember ...
    """


class SmallNet(nn.Module):
    """Convolution, batch norm, pooling, dropout, two linear layers: about 700 parameters, for 8 × 8 images."""

    def __init__(self, n_classes: int = 4) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, kernel_size=3)
        self.norm = nn.BatchNorm2d(4)
        self.relu1 = nn.ReLU()
        self.pool = nn.MaxPool2d(2)
        self.hidden = nn.Linear(36, 16)
        self.relu2 = nn.ReLU()
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(16, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """(n, n_classes) logits of (n, 1, 8, 8) images."""
        x = self.pool(self.relu1(self.norm(self.conv(x))))
        logits: Tensor = self.head(self.dropout(self.relu2(self.hidden(torch.flatten(x, 1)))))
        return logits


def make_learner(random_state: int = 0) -> tuple[SimpleNamespace, np.ndarray]:
    """A learner on four classes of the digits, 16 labels, and a pool of 40 others.

    Parameters
    ----------
    random_state : int, default=0
        For the samples and the training.

    Returns
    -------
    learner : types.SimpleNamespace
        With ``estimator`` (a fitted skorch net), ``X_training`` and ``y_training``.
    X_pool : (40, 1, 8, 8) float32 array
        Images in [0, 1].

    Examples
    --------
    >>> learner, X_pool = make_learner()
    >>> learner.X_training.shape, X_pool.shape
    ((16, 1, 8, 8), (40, 1, 8, 8))
    """
    net, X, y, pool = deepcopy(_fit_learner(random_state))
    return SimpleNamespace(estimator=net, X_training=X, y_training=y), pool


@lru_cache(maxsize=4)  # checks and their examples ask for the same one again and again
def _fit_learner(random_state: int) -> tuple[NeuralNetClassifier, np.ndarray, np.ndarray, np.ndarray]:
    """The fitted net, labelled samples and their labels, and the pool: of all callers, so copy it."""
    X, y = load_digits(n_class=4, return_X_y=True)
    rows = np.random.default_rng(random_state).permutation(len(y))
    labelled = np.concatenate([rows[y[rows] == label][:4] for label in range(4)])
    unlabelled = np.setdiff1d(rows, labelled, assume_unique=True)[:40]
    X = (X / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    net = NeuralNetClassifier(
        SmallNet,
        criterion=nn.CrossEntropyLoss,
        optimizer__momentum=0.9,
        lr=0.05,
        batch_size=8,
        max_epochs=15,
        train_split=None,
        verbose=0,
    )
    with preserve_rng():
        torch.manual_seed(random_state)
        net.fit(X[labelled], y[labelled])
    return net, X[labelled], y[labelled], X[unlabelled]


def variant(learner: Any, **changes: Any) -> SimpleNamespace:
    """A plain learner with other attributes."""
    attributes = {name: getattr(learner, name) for name in ("estimator", "X_training", "y_training")}
    return SimpleNamespace(**(attributes | changes))


def copy_learner(learner: Any) -> SimpleNamespace:
    """A learner that can be spoilt."""
    return variant(learner, **{name: deepcopy(getattr(learner, name)) for name in vars(variant(learner))})


class Softmaxed(nn.Module):
    """Another module, and a softmax. Takes and ignores the arguments that the net has for that module."""

    def __init__(self, inner: nn.Module, **ignored: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """(n, C) probabilities."""
        return torch.softmax(self.inner(*args, **kwargs), dim=-1)


class Unchanged(Softmaxed):
    """Another module, as it is."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """(n, C) logits."""
        outputs: Tensor = self.inner(*args, **kwargs)
        return outputs


class TwoInputs(Softmaxed):
    """Another module, whose input comes in two parts."""

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """(n, C) logits."""
        outputs: Tensor = self.inner(torch.cat([first, second], dim=-1))
        return outputs


def rewire(net: Any, wrapper: type[nn.Module], **params: Any) -> Any:
    """An initialised net whose module is the given one's, wrapped; parameters such as the criterion may differ too."""
    with preserve_rng():
        inner = deepcopy(net.module_)
        return clone(net).set_params(module=wrapper, module__inner=inner, **params).initialize()


def fresh(strategy: Any, **params: Any) -> Any:
    """A clone that scores the whole pool, with a fixed ``random_state``, and the given parameters."""
    known = strategy.get_params(deep=False)
    defaults = {name: value for name, value in {"subset": None, "random_state": 0}.items() if name in known}
    return clone(strategy).set_params(**(defaults | params))


def answer(strategy: Any, learner: Any, X_pool: Any, **params: Any) -> np.ndarray:
    """The scores of all samples or, from a strategy without scores, the indices of a batch of five: computed anew."""
    strategy = fresh(strategy, **params)
    if hasattr(strategy, "scores"):
        scores: np.ndarray = strategy.scores(learner, X_pool)
        return scores
    indices: np.ndarray = strategy.select(learner, X_pool, 5)[0]
    return indices


def expect(condition: Any, message: str) -> None:
    """Raise CheckFailure unless the condition holds."""
    if not condition:
        raise CheckFailure(message)


def expect_batch(
    strategy: Any, learner: Any, X_pool: Any, n_instances: int, case: str = "the pool", **params: Any
) -> tuple[np.ndarray, np.ndarray]:
    """The batch of a fresh clone; it must be distinct int64 positions in the pool, with one metric each."""
    indices, metrics = fresh(strategy, **params).select(learner, X_pool, n_instances)
    n_pool = len(X_pool)
    must = f"For {case} the indices must"
    expect(isinstance(indices, np.ndarray), f"{must} be an array. Got {type(indices).__name__}.")
    expect(indices.dtype == np.int64, f"{must} be int64. Got {indices.dtype}.")
    expect(indices.shape == (n_instances,), f"{must} have the shape ({n_instances},). Got {indices.shape}.")
    expect(indices.min() >= 0 and indices.max() < n_pool, f"{must} lie in 0 … {n_pool - 1}. Got {indices}.")
    expect(len(np.unique(indices)) == n_instances, f"{must} be distinct. Got {indices}: remember what was chosen.")
    shape = np.shape(metrics)
    expect(shape[:1] == (n_instances,), f"For {case} there must be one metric for each sample. Got shape {shape}.")
    return indices, metrics


def expect_same(expected: np.ndarray, got: np.ndarray, what: str) -> None:
    """Two answers must be the same batch, or the same scores up to rounding."""
    if expected.dtype.kind == "i":
        expect(np.array_equal(expected, got), f"{what} must give the same batch. Got {got} instead of {expected}.")
        return
    expect(got.shape == expected.shape, f"{what} must give scores of the shape {expected.shape}. Got {got.shape}.")
    scale = np.abs(expected[np.isfinite(expected)]).max(initial=0)
    different = np.flatnonzero(~np.isclose(got, expected, rtol=_RTOL, atol=_ATOL * scale))
    if len(different):
        row = different[0]
        raise CheckFailure(
            f"{what} must give the same scores up to rounding. {len(different)} of {len(got)} differ, for example "
            f"{got[row]:.6g} instead of {expected[row]:.6g} for sample {row}."
        )


def expect_error(
    error: type[Exception] | tuple[type[Exception], ...],
    case: str,
    parts: Sequence[str],
    call: Callable[..., Any],
    *args: Any,
) -> None:
    """The call must raise this error, and the error must say what is wrong and what to do.

    skal's own errors name these parts, an expectation, a value and a remedy. scikit-learn's InvalidParameterError,
    which ``_validate_params`` raises, names the parameter, what it must be, and what it got.
    """
    names = " or ".join(kind.__name__ for kind in (error if isinstance(error, tuple) else (error,)))
    try:
        result = call(*args)
    except error as caught:
        text = str(caught)
        missing = [part for part in parts if part not in text]
        expect(not missing, f"{case}: the message must name {missing}. Got {text!r}.")
        if isinstance(caught, SklearnInvalidParameterError):
            return
        expect(isinstance(caught, SkalError), f"{case} must raise a SkalError. Got {type(caught).__name__}: {text}")
        expect(
            re.search(r"\bmust\b.*\bGot\b.*\. \S", text, re.DOTALL),
            f"{case}: the message must say what must be, what it got and, last, what to do. Got {text!r}.",
        )
    except Exception as caught:
        raise CheckFailure(f"{case} must raise {names}. Got {type(caught).__name__}: {caught}") from caught
    else:
        raise CheckFailure(f"{case} must raise {names}. Got the answer {result!r} instead.")
