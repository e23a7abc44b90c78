"""Pools, learners and networks that a strategy must refuse."""

import numpy as np
import pytest
import torch

from skal.checks import (
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
from skal.exceptions import EmptyPoolError, NotFittedError
from skal.strategies import RandomSampling

from .strategies import Base, TakesOutputsForLogits


class AnswersEmptyPool(Base):
    def select(self, learner, X_pool, n_instances=1):
        try:
            return super().select(learner, X_pool, n_instances)
        except EmptyPoolError:
            return np.empty(0, dtype=np.int64), np.empty(0)


class ClipsInstances(Base):
    def select(self, learner, X_pool, n_instances=1):
        return super().select(learner, X_pool, min(max(n_instances, 1), len(X_pool)))


class MendsPool(Base):
    def select(self, learner, X_pool, n_instances=1):
        return super().select(learner, np.nan_to_num(X_pool, posinf=0, neginf=0), n_instances)


class FirstIfUnfitted(Base):
    def select(self, learner, X_pool, n_instances=1):
        try:
            return super().select(learner, X_pool, n_instances)
        except NotFittedError:
            return np.arange(n_instances), np.zeros(n_instances)


class NotUnlessNetwork(Base):
    needs_network = False

    def _score(self, context):
        context.require_network()
        return super()._score(context)


class TakesAnything(Base):
    def select(self, learner, X_pool, n_instances=1):
        return RandomSampling().select(learner, X_pool, n_instances)


class TouchesClassifier(Base):
    needs_network = False

    def _score(self, context):
        if not context.has_network:
            context.inner_estimator.var_smoothing = 0.2
        return super()._score(context)


class NeedsNoLabels(Base):
    needs_labels = True

    def select(self, learner, X_pool, n_instances=1):
        return RandomSampling().select(learner, X_pool, n_instances)


class NeedsLabelsSilently(Base):
    def _score(self, context):
        return super()._score(context) + len(context.labelled)


class AsTheyCome(Base):
    def _score(self, context):
        with torch.no_grad():
            return context.net.module_(torch.as_tensor(context.pool.X)).max(dim=1).values.numpy()


class PassesThePoolBy(Base):
    def _score(self, context):
        return context.net.predict_proba(context.pool.X).max(axis=1)


BROKEN = [
    (check_changing_samples, PassesThePoolBy, "random augmentation must raise ChangedSamplesError. Got the answer"),
    (check_mistakes, AsTheyCome, "A pool of too few columns must raise a SkalError. Got RuntimeError"),
    (check_empty_pool, AnswersEmptyPool, "must raise EmptyPoolError"),
    (check_n_instances, ClipsInstances, "must raise InvalidParameterError"),
    (check_nonfinite_pool, MendsPool, "must raise NonFiniteError"),
    (check_nonfinite_outputs, TakesOutputsForLogits, "must raise NonFiniteError"),
    (check_not_fitted, FirstIfUnfitted, "must raise NotFittedError"),
    (check_no_network, TakesAnything, "must raise NoNetworkError"),
    (check_no_network, NotUnlessNetwork, "must be a skorch net"),
    (check_no_network, TouchesClassifier, "classifier as it was"),
    (check_probabilities, TakesOutputsForLogits, "must raise OutputError"),
    (check_no_labels, NeedsNoLabels, "must raise NoLabelledDataError"),
    (check_no_labels, NeedsLabelsSilently, "needs labelled data"),
]


@pytest.mark.parametrize(("check", "strategy", "message"), BROKEN)
def test_check_catches(check, strategy, message, learner, X_pool):
    # a strategy that breaks down, rather than answering wrongly, shows its own error
    with pytest.raises(Exception, match=message):
        check(strategy(), learner, X_pool)
