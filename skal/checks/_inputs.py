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
from torch import nn
from torch.utils.data import TensorDataset

from skal._core.network import preserved_rng
from skal.checks._support import Outcome, Softmaxed, TwoInputs, copied, expect_close, fresh, rewired, variant


def check_batch_size(strategy: Any, learner: Any, X_pool: Any) -> None:
    """The same answer for any size of the network passes."""
    if "batch_size" not in strategy.get_params(deep=False):
        return
    expected = Outcome.of(fresh(strategy), learner, X_pool)
    for batch_size in (1, 7, len(X_pool), 10_000):
        got = Outcome.of(fresh(strategy, batch_size=batch_size), learner, X_pool)
        expect_close(expected, got, f"batch_size={batch_size}")


def check_n_jobs(strategy: Any, learner: Any, X_pool: Any) -> None:
    """The same answer from any number of jobs."""
    if "n_jobs" not in strategy.get_params(deep=False):
        return
    # small batches, so that there is something to share; in threads, which need no starting
    small = {"batch_size": 4} if "batch_size" in strategy.get_params(deep=False) else {}
    expected = Outcome.of(fresh(strategy, n_jobs=1, **small), learner, X_pool)
    with parallel_config(backend="threading"):
        shared = Outcome.of(fresh(strategy, n_jobs=2, **small), learner, X_pool)
    expect_close(expected, shared, "n_jobs=2")


def check_pool_order(strategy: Any, learner: Any, X_pool: Any) -> None:
    """A pool in another order gets the same answer, unless the strategy draws positions at random."""
    if strategy.draws_from_pool:
        return
    order = np.random.default_rng(5).permutation(len(X_pool))
    expected = Outcome.of(fresh(strategy), learner, X_pool).reordered(order)
    expect_close(expected, Outcome.of(fresh(strategy), learner, X_pool[order]), "A reordered pool")


def check_train_mode(strategy: Any, learner: Any, X_pool: Any) -> None:
    """Dropout and batch norm do their evaluation work, in whatever mode the module was left."""
    expected = Outcome.of(fresh(strategy), learner, X_pool)
    for mode in (True, False):
        other = copied(learner)
        other.estimator.module_.train(mode)
        expect_close(expected, Outcome.of(fresh(strategy), other, X_pool), f"module_.train({mode}) before the query")


def check_containers(strategy: Any, learner: Any, X_pool: Any) -> None:
    """numpy array, torch tensor, memory map and Dataset hold the same samples."""
    expected = Outcome.of(fresh(strategy), learner, X_pool)
    X, y = learner.X_training, np.asarray(learner.y_training)
    tensors = torch.as_tensor(X), torch.as_tensor(y)
    pool_tensor = torch.as_tensor(X_pool)
    unknown = torch.full((len(X_pool),), -1)
    with tempfile.TemporaryDirectory() as folder:
        maps = []
        for name, array in (("labelled.npy", X), ("pool.npy", X_pool)):
            path = Path(folder, name)
            np.save(path, array)
            maps.append(np.load(path, mmap_mode="r"))
        cases = {
            "torch tensors": (variant(learner, X_training=tensors[0], y_training=tensors[1]), pool_tensor),
            "memory maps": (variant(learner, X_training=maps[0]), maps[1]),
            "a Dataset of (x, y) with y_training": (variant(learner, X_training=TensorDataset(*tensors)), None),
            "a Dataset of (x, y)": (variant(learner, X_training=TensorDataset(*tensors), y_training=None), None),
        }
        for name, (other, pool) in cases.items():
            if pool is None:
                pool = TensorDataset(pool_tensor, unknown)
            expect_close(expected, Outcome.of(fresh(strategy), other, pool), f"X as {name}")
        del maps, cases, other, pool  # an open map keeps the folder from being removed on some systems
    expect_close(
        expected, Outcome.of(fresh(strategy), learner, TensorDataset(pool_tensor)), "X_pool as a Dataset of (x,)"
    )


def check_multi_input(strategy: Any, learner: Any, X_pool: Any) -> None:
    """A net with two inputs takes a dict of arrays or of tensors."""
    expected = Outcome.of(fresh(strategy), learner, X_pool)
    cut = X_pool.shape[-1] // 2

    def split(X: Any) -> dict[str, Any]:
        return {"first": X[..., :cut], "second": X[..., cut:]}

    net = rewired(learner.estimator, TwoInputs)
    converters: dict[str, Callable[[Any], Any]] = {"arrays": np.asarray, "tensors": torch.as_tensor}
    for name, convert in converters.items():
        other = variant(learner, estimator=net, X_training=split(convert(learner.X_training)))
        expect_close(expected, Outcome.of(fresh(strategy), other, split(convert(X_pool))), f"X as a dict of {name}")


def _half(X: Any) -> Any:
    return X / 2  # exact in floating point, so that the results must agree


def check_pipeline(strategy: Any, learner: Any, X_pool: Any) -> None:
    """A net at the end of a Pipeline sees what the steps before it make of X."""
    expected = Outcome.of(fresh(strategy), learner, X_pool)
    pipeline = Pipeline([("half", FunctionTransformer(_half)), ("skip", "passthrough"), ("net", learner.estimator)])
    other = variant(learner, estimator=pipeline, X_training=2 * learner.X_training)
    expect_close(expected, Outcome.of(fresh(strategy), other, 2 * X_pool), "A Pipeline around the net")


def check_search(strategy: Any, learner: Any, X_pool: Any) -> None:
    """A net inside a fitted GridSearchCV is the search's best estimator."""
    search = GridSearchCV(clone(learner.estimator), {"max_epochs": [1, 2]}, cv=KFold(2))
    with preserved_rng():
        search.fit(learner.X_training, learner.y_training)
    expected = Outcome.of(fresh(strategy), variant(learner, estimator=search.best_estimator_), X_pool)
    got = Outcome.of(fresh(strategy), variant(learner, estimator=search), X_pool)
    expect_close(expected, got, "A GridSearchCV around the net")


def check_nll_loss(strategy: Any, learner: Any, X_pool: Any) -> None:
    """A softmax with NLLLoss is the same network as logits with CrossEntropyLoss."""
    expected = Outcome.of(fresh(strategy), learner, X_pool)
    net = rewired(learner.estimator, Softmaxed, criterion=nn.NLLLoss)
    got = Outcome.of(fresh(strategy), variant(learner, estimator=net), X_pool)
    expect_close(expected, got, "A module that ends in a softmax, with NLLLoss,")
