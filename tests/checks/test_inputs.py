"""The same samples and the same network in other forms."""

import numpy as np
import pytest
from skorch import NeuralNet

from skal.checks import (
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
from skal.config import get_config

from .strategies import Base, ByPosition, FarthestFirst, TakesOutputsForLogits, outputs_as_found


class PerBatch(Base):
    def _score(self, context):
        return super()._score(context) + np.arange(context.n_pool) // context.batch_size


class PerJob(FarthestFirst):
    def _select(self, context, n_instances):
        indices, metrics = super()._select(context, n_instances)
        return (indices[::-1], metrics) if get_config()["n_jobs"] == 2 else (indices, metrics)


class AsFound(Base):
    def _score(self, context):
        return outputs_as_found(context).max(dim=1).values.numpy()


class OnlyArrays(Base):
    def _score(self, context):
        X = context.pool.X
        return super()._score(context) if isinstance(X, np.ndarray) else np.zeros(context.n_pool)


class OnlyBareNet(Base):
    def _score(self, context):
        bare = isinstance(context.estimator, NeuralNet)
        return super()._score(context) if bare else np.zeros(context.n_pool)


class IgnoresSteps(Base):
    def _score(self, context):
        return -(context.net.predict_proba(context.pool.X) ** 2).sum(axis=1)


BROKEN = [
    (check_batch_size, PerBatch, "batch_size=1 must give the same scores"),
    (check_n_jobs, PerJob, "n_jobs=2 must give the same batch"),
    (check_pool_order, ByPosition, "reordered pool must give the same scores"),
    (check_train_mode, AsFound, "before the query must give the same scores"),
    (check_loader, IgnoresSteps, "iterator_valid__shuffle=True must give the same scores"),
    (check_containers, OnlyArrays, "X as torch tensors must give the same scores"),
    (check_multi_input, OnlyArrays, "X as a dict of arrays must give the same scores"),
    (check_pipeline, OnlyBareNet, "Pipeline around the net must"),
    (check_pipeline, IgnoresSteps, "Pipeline around the net must"),
    (check_search, OnlyBareNet, "GridSearchCV around the net must"),
    (check_nll_loss, TakesOutputsForLogits, "with NLLLoss, must give the same scores"),
]


@pytest.mark.parametrize(("check", "strategy", "message"), BROKEN)
def test_check_catches(check, strategy, message, learner, X_pool):
    # a strategy that breaks down, rather than answering wrongly, shows its own error
    with pytest.raises(Exception, match=message):
        check(strategy(), learner, X_pool)
