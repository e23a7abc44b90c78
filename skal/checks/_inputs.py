# SPDX-License-Identifier: BSD-3-Clause
"""Checks that the answer depends on the samples and the network, not on how they come."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from joblib import parallel_config
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from skorch.dataset import Dataset as SkorchDataset
from torch import nn
from torch.utils.data import TensorDataset

from skal._core.guard import preserve_rng
from skal.checks._support import Softmaxed, TwoInputs, answer, copy_learner, expect_same, rewire, variant
from skal.config import config_context


def check_batch_size(strategy: Any, learner: Any, X_pool: Any) -> None:
    """The same answer for any size of the network passes."""
    expected = answer(strategy, learner, X_pool)
    for batch_size in (1, 7, len(X_pool), 10_000):
        with config_context(batch_size=batch_size):
            got = answer(strategy, learner, X_pool)
        expect_same(expected, got, f"batch_size={batch_size}")


def check_n_jobs(strategy: Any, learner: Any, X_pool: Any) -> None:
    """The same answer from any number of jobs."""
    # small batches, so that there is something to share; in threads, which need no starting
    with config_context(batch_size=4, n_jobs=1):
        expected = answer(strategy, learner, X_pool)
    with config_context(batch_size=4, n_jobs=2), parallel_config(backend="threading"):
        shared = answer(strategy, learner, X_pool)
    expect_same(expected, shared, "n_jobs=2")


def check_pool_order(strategy: Any, learner: Any, X_pool: Any) -> None:
    """A pool in another order gets the same answer, unless the strategy draws positions at random."""
    if strategy.draws_from_pool:
        return
    order = np.random.default_rng(5).permutation(len(X_pool))
    expected = answer(strategy, learner, X_pool)
    expected = expected[order] if hasattr(strategy, "scores") else np.argsort(order)[expected]
    expect_same(expected, answer(strategy, learner, X_pool[order]), "A reordered pool")


def check_train_mode(strategy: Any, learner: Any, X_pool: Any) -> None:
    """Dropout and batch norm do their evaluation work, in whatever mode the module was left."""
    expected = answer(strategy, learner, X_pool)
    for mode in (True, False):
        other = copy_learner(learner)
        other.estimator.module_.train(mode)
        expect_same(expected, answer(strategy, other, X_pool), f"module_.train({mode}) before the query")


def check_containers(strategy: Any, learner: Any, X_pool: Any) -> None:
    """Numpy array, torch tensor, memory map and Dataset hold the same samples."""
    X, y, pool = (torch.as_tensor(np.asarray(part)) for part in (learner.X_training, learner.y_training, X_pool))
    labelled, unlabelled = TensorDataset(X, y), TensorDataset(pool, torch.full((len(pool),), -1))
    with tempfile.TemporaryDirectory() as folder:
        for name, array in (("X.npy", learner.X_training), ("pool.npy", X_pool)):
            np.save(Path(folder, name), array)
        X_map, pool_map = (np.load(Path(folder, name), mmap_mode="r") for name in ("X.npy", "pool.npy"))
        cases = {
            "X as torch tensors": ({"X_training": X, "y_training": y}, pool),
            "X as memory maps": ({"X_training": X_map}, pool_map),
            "X as a Dataset of (x, y) with y_training": ({"X_training": labelled}, unlabelled),
            "X as a Dataset of (x, y)": ({"X_training": labelled, "y_training": None}, unlabelled),
            "X_pool as a Dataset of (x,)": ({}, TensorDataset(pool)),
        }
        expected = answer(strategy, learner, X_pool)
        for case, (changes, given) in cases.items():
            expect_same(expected, answer(strategy, variant(learner, **changes), given), case)
        del X_map, pool_map, cases, changes, given  # an open map keeps the folder from being removed on some systems


class _OwnDataset(SkorchDataset):
    """Lets the net's own loader read arrays."""


def check_loader(strategy: Any, learner: Any, X_pool: Any) -> None:
    """All samples arrive in their order, whatever the net's ``iterator_valid`` says."""
    with config_context(batch_size=16):
        expected = answer(strategy, learner, X_pool)
        for setting in ("shuffle", "drop_last"):
            other = copy_learner(learner)
            vars(other.estimator).update({"dataset": _OwnDataset, f"iterator_valid__{setting}": True})
            expect_same(expected, answer(strategy, other, X_pool), f"iterator_valid__{setting}=True")


def check_multi_input(strategy: Any, learner: Any, X_pool: Any) -> None:
    """A net with two inputs takes a dict of arrays or of tensors."""
    expected = answer(strategy, learner, X_pool)
    cut = X_pool.shape[-1] // 2

    def split(X: Any) -> dict[str, Any]:
        return {"first": X[..., :cut], "second": X[..., cut:]}

    net = rewire(learner.estimator, TwoInputs)
    converters: dict[str, Callable[[Any], Any]] = {"arrays": np.asarray, "tensors": torch.as_tensor}
    for name, convert in converters.items():
        other = variant(learner, estimator=net, X_training=split(convert(learner.X_training)))
        expect_same(expected, answer(strategy, other, split(convert(X_pool))), f"X as a dict of {name}")


def _half(X: Any) -> Any:
    return X / 2  # exact in floating point, so that the results must agree


def check_pipeline(strategy: Any, learner: Any, X_pool: Any) -> None:
    """A net at the end of a Pipeline sees what the steps before it make of X."""
    expected = answer(strategy, learner, X_pool)
    pipeline = Pipeline([("half", FunctionTransformer(_half)), ("skip", "passthrough"), ("net", learner.estimator)])
    other = variant(learner, estimator=pipeline, X_training=2 * learner.X_training)
    expect_same(expected, answer(strategy, other, 2 * X_pool), "A Pipeline around the net")


def check_search(strategy: Any, learner: Any, X_pool: Any) -> None:
    """A net inside a fitted GridSearchCV is the search's best estimator."""
    search = GridSearchCV(clone(learner.estimator), {"max_epochs": [1, 2]}, cv=KFold(2))
    with preserve_rng():
        search.fit(learner.X_training, learner.y_training)
    expected = answer(strategy, variant(learner, estimator=search.best_estimator_), X_pool)
    got = answer(strategy, variant(learner, estimator=search), X_pool)
    expect_same(expected, got, "A GridSearchCV around the net")


def check_nll_loss(strategy: Any, learner: Any, X_pool: Any) -> None:
    """A softmax with NLLLoss is the same network as logits with CrossEntropyLoss."""
    expected = answer(strategy, learner, X_pool)
    net = rewire(learner.estimator, Softmaxed, criterion=nn.NLLLoss)
    got = answer(strategy, variant(learner, estimator=net), X_pool)
    expect_same(expected, got, "A module that ends in a softmax, with NLLLoss,")
