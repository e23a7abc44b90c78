"""What the checks share: a small learner, variants of it, and comparisons with a message."""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from skorch import NeuralNetClassifier
from torch import Tensor, nn

from skal._core.network import preserved_rng
from skal.exceptions import SkalError
from skal.reuse import feature_reuse

__all__ = ["CheckFailure", "Outcome", "expect", "expect_close", "expect_error", "expect_valid", "fresh", "make_learner"]

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
    skal.checks._support.CheckFailure: For the pool the indices must be distinct. Got [0, 0]: remember what has ...
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
        return self.head(self.dropout(self.relu2(self.hidden(torch.flatten(x, 1)))))


def make_learner(random_state: int = 0) -> tuple[SimpleNamespace, np.ndarray]:
    """A learner on four classes of the digits, 16 labels, and a pool of 40 others.

    Parameters
    ----------
    random_state : int, default=0
        For the samples and the training.

    Returns
    -------
    learner : plain object with ``estimator`` (a fitted skorch net), ``X_training`` and ``y_training``
    X_pool : (40, 1, 8, 8) float32 array

    Examples
    --------
    >>> learner, X_pool = make_learner()
    >>> learner.X_training.shape, X_pool.shape
    ((16, 1, 8, 8), (40, 1, 8, 8))
    """
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
    with preserved_rng():
        torch.manual_seed(random_state)
        net.fit(X[labelled], y[labelled])
    return SimpleNamespace(estimator=net, X_training=X[labelled], y_training=y[labelled]), X[unlabelled]


def variant(learner: Any, **changes: Any) -> SimpleNamespace:
    """A plain learner with other attributes."""
    attributes = {name: getattr(learner, name) for name in ("estimator", "X_training", "y_training")}
    return SimpleNamespace(**(attributes | changes))


def copied(learner: Any) -> SimpleNamespace:
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
        return self.inner(*args, **kwargs)


class TwoInputs(Softmaxed):
    """Another module, whose input comes in two parts."""

    def forward(self, first: Tensor, second: Tensor) -> Tensor:  # type: ignore[override]
        """(n, C) logits."""
        return self.inner(torch.cat([first, second], dim=-1))


def rewired(net: Any, wrapper: type[nn.Module], **params: Any) -> Any:
    """An initialised net whose module is the given one's, wrapped; parameters such as the criterion may differ too."""
    with preserved_rng():
        inner = deepcopy(net.module_)
        return clone(net).set_params(module=wrapper, module__inner=inner, **params).initialize()


def fresh(strategy: Any, **params: Any) -> Any:
    """A clone that scores the whole pool, with a fixed ``random_state``, and the given parameters."""
    known = strategy.get_params(deep=False)
    defaults = {name: value for name, value in {"subset": None, "random_state": 0}.items() if name in known}
    return clone(strategy).set_params(**(defaults | params))


def expect(condition: Any, message: str) -> None:
    """Raise CheckFailure unless the condition holds."""
    if not condition:
        raise CheckFailure(message)


def expect_valid(indices: Any, metrics: Any, n_instances: int, n_pool: int, case: str = "the pool") -> None:
    """An answer must be distinct int64 positions in the pool, with one metric each."""
    expect(isinstance(indices, np.ndarray), f"For {case} the indices must be an array. Got {type(indices).__name__}.")
    expect(indices.dtype == np.int64, f"For {case} the indices must be int64. Got {indices.dtype}.")
    expect(
        indices.shape == (n_instances,),
        f"For {case} and n_instances={n_instances} the indices must have the shape ({n_instances},). "
        f"Got {indices.shape}.",
    )
    expect(
        indices.min() >= 0 and indices.max() < n_pool,
        f"For {case} the indices must lie in 0 … {n_pool - 1}. Got {indices.tolist()}.",
    )
    expect(
        len(np.unique(indices)) == n_instances,
        f"For {case} the indices must be distinct. Got {indices.tolist()}: remember what has been chosen.",
    )
    expect(
        np.shape(metrics)[:1] == (n_instances,),
        f"For {case} there must be one metric for each of the {n_instances} samples. Got shape {np.shape(metrics)}.",
    )


@dataclass(frozen=True)
class Outcome:
    """What a strategy answers: the scores of all samples or, without scores, a batch and its metrics."""

    scores: np.ndarray | None
    indices: np.ndarray
    metrics: np.ndarray

    @classmethod
    def of(cls, strategy: Any, learner: Any, X_pool: Any, n_instances: int = 5) -> Outcome:
        """Ask the strategy, and let it compute everything anew."""
        with feature_reuse(None):
            if hasattr(strategy, "scores"):
                return cls(strategy.scores(learner, X_pool), np.empty(0), np.empty(0))
            return cls(None, *strategy.select(learner, X_pool, n_instances))

    def reordered(self, order: np.ndarray) -> Outcome:
        """What the answer must be for the pool ``X_pool[order]``."""
        if self.scores is not None:
            return Outcome(self.scores[order], self.indices, self.metrics)
        return Outcome(None, np.argsort(order)[self.indices], self.metrics)


def expect_close(expected: Outcome, got: Outcome, what: str) -> None:
    """Two answers must be the same up to rounding."""
    if expected.scores is None:
        expect(
            np.array_equal(expected.indices, got.indices),
            f"{what} must give the same batch. Got {got.indices.tolist()} instead of {expected.indices.tolist()}.",
        )
        return
    assert got.scores is not None
    expect(
        expected.scores.shape == got.scores.shape,
        f"{what} must give scores of the shape {expected.scores.shape}. Got {got.scores.shape}.",
    )
    scale = np.abs(expected.scores[np.isfinite(expected.scores)]).max(initial=0)
    close = np.isclose(got.scores, expected.scores, rtol=_RTOL, atol=_ATOL * scale)
    if not close.all():
        row = int(np.flatnonzero(~close)[0])
        raise CheckFailure(
            f"{what} must give the same scores up to rounding. {(~close).sum()} of {len(close)} differ, for example "
            f"{got.scores[row]:.6g} instead of {expected.scores[row]:.6g} for sample {row}."
        )


def expect_error(
    call: Callable[[], Any], error: type[Exception] | tuple[type[Exception], ...], case: str, *parts: str
) -> None:
    """The call must raise a SkalError of this type whose text has the parts, an expectation, a value and a remedy."""
    names = " or ".join(kind.__name__ for kind in (error if isinstance(error, tuple) else (error,)))
    try:
        result = call()
    except error as caught:
        expect(isinstance(caught, SkalError), f"{case} must raise a SkalError. Got {type(caught).__name__}: {caught}")
        missing = [part for part in parts if part not in str(caught)]
        expect(not missing, f"{case}: the message must name {missing}. Got {str(caught)!r}.")
        expect(
            re.search(r"\bmust\b.*\bGot\b.*\. \S", str(caught), re.DOTALL),
            f"{case}: the message must say what must be, what it got and, last, what to do. Got {str(caught)!r}.",
        )
    except Exception as caught:
        raise CheckFailure(f"{case} must raise {names}. Got {type(caught).__name__}: {caught}") from caught
    else:
        raise CheckFailure(f"{case} must raise {names}. Got the answer {result!r} instead.")
