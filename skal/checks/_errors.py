# SPDX-License-Identifier: BSD-3-Clause
"""Checks that what cannot work is refused, with an error that says what to do."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import Pipeline
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from skal.checks._state import expect_unchanged, snapshot
from skal.checks._support import (
    CheckFailure,
    Softmaxed,
    Unchanged,
    copy_learner,
    expect,
    expect_batch,
    expect_error,
    fresh,
    rewire,
    variant,
)
from skal.exceptions import (
    ChangedSamplesError,
    EmptyPoolError,
    InvalidParameterError,
    InvalidTypeError,
    NoLabelledDataError,
    NoNetworkError,
    NonFiniteError,
    NotFittedError,
    OutputError,
    SkalError,
)


def check_empty_pool(strategy: Any, learner: Any, X_pool: Any) -> None:
    """Nothing to choose from, in any container."""
    none = X_pool[:0]
    pools: list[Any] = [none, torch.as_tensor(none), TensorDataset(torch.as_tensor(none)), {"x": none}, []]
    for pool in pools:
        case = f"An empty pool ({type(pool).__name__})"
        expect_error(EmptyPoolError, case, ["X_pool"], fresh(strategy), learner, pool, 1)


def check_n_instances(strategy: Any, learner: Any, X_pool: Any) -> None:
    """``n_instances`` must be an integer from 1 to the size of the pool."""
    values: dict[type[Exception], Sequence[Any]] = {
        InvalidParameterError: (0, -1, len(X_pool) + 1),
        InvalidTypeError: (1.5, "3", None, True),
    }
    for error, wrong in values.items():
        for value in wrong:
            parts = ("n_instances", repr(value), type(strategy).__name__)
            expect_error(error, f"n_instances={value!r}", parts, fresh(strategy), learner, X_pool, value)
    expect_batch(strategy, learner, X_pool, np.int32(2), "a numpy integer as n_instances")  # type: ignore[arg-type]


def check_nonfinite_pool(strategy: Any, learner: Any, X_pool: Any) -> None:
    """NaN or infinity among the samples, with the row where it stands."""
    row = len(X_pool) - 2
    for value in (np.nan, np.inf, -np.inf):
        spoilt = X_pool.copy()
        spoilt[row].flat[0] = value
        tensor = torch.as_tensor(spoilt)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "pool.npy")
            np.save(path, spoilt)
            pools = {"array": spoilt, "tensor": tensor}
            if strategy.reads_outputs:  # others never read what may not fit in memory
                pools |= {"memory map": np.load(path, mmap_mode="r"), "Dataset": TensorDataset(tensor)}
            for name, pool in pools.items():
                case, parts = f"{value} in a pool ({name})", ("X_pool", f"row {row}")
                expect_error(NonFiniteError, case, parts, fresh(strategy), learner, pool, 1)
            del pool, pools  # an open map keeps the folder from being removed on some systems
    if strategy.needs_labels:
        labelled = learner.X_training.copy()
        labelled[1].flat[0] = np.nan
        case, other = "NaN among the labelled samples", variant(learner, X_training=labelled)
        expect_error(NonFiniteError, case, ("X_training", "row 1"), fresh(strategy), other, X_pool, 1)


def check_nonfinite_outputs(strategy: Any, learner: Any, X_pool: Any) -> None:
    """A network that has diverged; it is left as it was, all the same."""
    diverged = copy_learner(learner)
    *_, parameter = diverged.estimator.module_.parameters()
    with torch.no_grad():
        parameter.fill_(np.nan)
    diverged.estimator.module_.train()
    if not strategy.reads_outputs:
        expect_batch(strategy, diverged, X_pool, 1, "a network that has diverged")
        return
    before = snapshot(diverged)
    expect_error(NonFiniteError, "NaN in the network's outputs", ["outputs"], fresh(strategy), diverged, X_pool, 1)
    expect_unchanged(before, snapshot(diverged), "A query that raises")


class _Augmented(Dataset[Any]):
    """Pairs (x, y) with a little noise, another one whenever they are read."""

    def __init__(self, X: Any) -> None:
        self.X = X

    def __len__(self) -> int:
        return len(self.X)

    def __getitem__(self, row: int) -> Any:
        return torch.as_tensor(self.X[row]) + 0.01 * torch.rand(1), -1


class _Reordered(_Augmented):
    """Samples that are turned round whenever the first of them is read."""

    turned = False

    def __getitem__(self, row: int) -> Any:
        self.turned = self.turned != (row == 0)
        return torch.as_tensor(self.X[len(self.X) - 1 - row if self.turned else row]), -1


def check_changing_samples(strategy: Any, learner: Any, X_pool: Any) -> None:
    """A Dataset that gives other samples when it is read again; nothing is changed by that, no generator either."""
    cases = {"A Dataset with random augmentation": _Augmented, "A Dataset that is reordered": _Reordered}
    for case, dataset in cases.items():
        if strategy.reads_outputs:
            before, parts = snapshot(learner), ("X_pool", "row", "augmentation")
            expect_error(ChangedSamplesError, case, parts, fresh(strategy), learner, dataset(X_pool), 1)
            expect_unchanged(before, snapshot(learner), case)
        else:
            expect_batch(strategy, learner, dataset(X_pool), 1, case)


class _OneRowLess(Unchanged):
    """Another module, without the outputs of the first sample."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """(n - 1, C) logits."""
        outputs: Tensor = self.inner(*args, **kwargs)[1:]
        return outputs


def check_mistakes(strategy: Any, learner: Any, X_pool: Any) -> None:
    """Common mistakes that cannot work get an error of skal, never one of torch or numpy alone."""
    flat = X_pool.reshape(len(X_pool), -1)
    pools = {
        "too few columns": flat[:, :1],
        "integers": (100 * X_pool).astype(np.int64),
        "one dimension": flat[:, 0],
        "rows of two lengths": [row[: 1 + number % 2].tolist() for number, row in enumerate(flat)],
        "paths": [f"{number}.png" for number in range(len(X_pool))],
    }
    cases = {f"A pool of {name}": (learner, pool) for name, pool in pools.items()}
    shortened = variant(learner, estimator=rewire(learner.estimator, _OneRowLess))
    cases["A module that returns one row less"] = (shortened, X_pool)
    for case, (other, pool) in cases.items():
        try:
            fresh(strategy).select(other, pool, 1)
        except SkalError:
            continue
        except Exception as error:
            raise CheckFailure(f"{case} must raise a SkalError. Got {type(error).__name__}: {error}") from error
        expect(
            other is learner or not strategy.reads_outputs, f"{case} must be refused. Got an answer: count the outputs."
        )


def check_not_fitted(strategy: Any, learner: Any, X_pool: Any) -> None:
    """An estimator that has not been fitted, alone and in a Pipeline."""
    unfitted = clone(learner.estimator)
    refused = [unfitted, Pipeline([("net", unfitted)])]
    if strategy.needs_fitted:
        refused.append(GaussianNB())
    else:  # works on the inputs, where they are all there is
        expect_batch(strategy, variant(learner, estimator=GaussianNB()), X_pool, 5, "an unfitted GaussianNB")
    for estimator in refused:
        name, other = type(estimator).__name__, variant(learner, estimator=estimator)
        parts = ("estimator", "fit", name)
        expect_error(NotFittedError, f"An unfitted {name}", parts, fresh(strategy), other, X_pool, 1)


def check_no_network(strategy: Any, learner: Any, X_pool: Any) -> None:
    """An estimator without a torch module: refused by those that need one, used by the others."""
    flat = learner.X_training.reshape(len(learner.X_training), -1)
    classifier = GaussianNB(var_smoothing=0.1).fit(flat, learner.y_training)
    other = variant(learner, estimator=classifier, X_training=flat)
    pool = X_pool.reshape(len(X_pool), -1)
    if strategy.needs_network:
        case, parts = "An estimator without a torch module", ("estimator", "GaussianNB")
        expect_error(NoNetworkError, case, parts, fresh(strategy), other, pool, 1)
        return
    before = pickle.dumps(classifier)
    for estimator in (classifier, Pipeline([("classifier", classifier)])):
        case = f"a {type(estimator).__name__} without a network"
        expect_batch(strategy, variant(other, estimator=estimator), pool, 5, case)
    expect(pickle.dumps(classifier) == before, "A query must leave a scikit-learn classifier as it was.")


def check_probabilities(strategy: Any, learner: Any, X_pool: Any) -> None:
    """A module that ends in a softmax where the criterion expects logits, and the reverse."""
    mistaken = {
        "Probabilities with CrossEntropyLoss": rewire(learner.estimator, Softmaxed),
        "Logits with NLLLoss": rewire(learner.estimator, Unchanged, criterion=nn.NLLLoss),
    }
    for case, net in mistaken.items():
        other = variant(learner, estimator=net)
        if strategy.reads_outputs:
            parts = ("module", "criterion", "softmax")
            expect_error(OutputError, case, parts, fresh(strategy), other, X_pool, 1)
        else:
            expect_batch(strategy, other, X_pool, 1, case)


def check_no_labels(strategy: Any, learner: Any, X_pool: Any) -> None:
    """A learner without labelled samples: refused by those that need some, used by the others."""
    nothing = variant(learner, X_training=None, y_training=None)
    empty = variant(learner, X_training=learner.X_training[:0], y_training=np.asarray(learner.y_training)[:0])
    for case, other in {"No labelled data": nothing, "An empty labelled set": empty}.items():
        if strategy.needs_labels:
            expect_error(NoLabelledDataError, case, ["X_training"], fresh(strategy), other, X_pool, 1)
        else:
            expect_batch(strategy, other, X_pool, 5, case)
