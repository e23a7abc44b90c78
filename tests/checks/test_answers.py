"""What a strategy answers: indices, scores, subset, conventions."""

import numpy as np
import pytest

from skal.checks import (
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
from skal.strategies import Entropy

from .strategies import Base, ByPosition, FarthestFirst


class RepeatedIndices(Base):
    def _select(self, context, n_instances):
        return np.zeros(n_instances, dtype=np.int64), np.zeros(n_instances)


class PositionsFromEnd(Base):
    def _select(self, context, n_instances):
        return -1 - np.arange(n_instances), np.zeros(n_instances)


class NoMetrics(Base):
    def _select(self, context, n_instances):
        return np.arange(n_instances), None


class WorstFirst(Base):
    def _select(self, context, n_instances):
        indices, metrics = super()._select(context, n_instances)
        return indices[::-1], metrics[::-1]


class LowestScores(Base):
    def _select(self, context, n_instances):
        indices, metrics = super()._select(context, context.n_pool)
        return indices[-n_instances:], metrics[-n_instances:]


class Float32Scores(Base):
    def scores(self, learner, X_pool):
        return super().scores(learner, X_pool).astype(np.float32)


class ForgetsSubset(Entropy):
    def scores(self, learner, X_pool):
        return Entropy().scores(learner, X_pool)


class SameSubset(Entropy):
    def select(self, learner, X_pool, n_instances=1):
        return Entropy(subset=self.subset, random_state=0).select(learner, X_pool, n_instances)

    def scores(self, learner, X_pool):
        return Entropy(subset=self.subset, random_state=0).scores(learner, X_pool)


class ForgetsChoices(FarthestFirst):
    def _mask(self, distances, chosen):
        pass


class CountsSeenClasses(Base):
    needs_labels = True

    def _score(self, context):
        n_classes = len(np.unique(context.labels))
        ordered = np.sort(context.predict_proba()[:, :n_classes], axis=1)
        return ordered[:, -2] - ordered[:, -1]


class AlwaysTuple(Base):
    def __call__(self, learner, X_pool, n_instances=1):
        return self.select(learner, X_pool, n_instances)


class AsksAgain(Base):
    asking = False

    def __call__(self, learner, X_pool, n_instances=1):
        if hasattr(learner, "query") and not AsksAgain.asking:
            AsksAgain.asking = True
            try:
                learner.query(X_pool, n_instances=n_instances)
            finally:
                AsksAgain.asking = False
        return super().__call__(learner, X_pool, n_instances)


class Restless(Base):
    queries = 0

    def _score(self, context):
        Restless.queries += 1
        return np.roll(np.arange(context.n_pool, dtype=float), Restless.queries)


class TwoColumns(Base):
    def _score(self, context):
        return np.stack([super()._score(context)] * 2, axis=1)


BROKEN = [
    (check_score_shape, TwoColumns, r"array of shape \(40,\). Got shape \(40, 2\)"),
    (check_indices, RepeatedIndices, "must be distinct"),
    (check_indices, PositionsFromEnd, "must lie in 0 … 39"),
    (check_indices, NoMetrics, "one metric for each"),
    (check_scores, WorstFirst, "best first"),
    (check_scores, LowestScores, "largest scores"),
    (check_scores, Float32Scores, "float64"),
    (check_subset, ForgetsSubset, "score -inf"),
    (check_subset, SameSubset, "another subset"),
    (check_duplicates, ForgetsChoices, "must be distinct"),
    (check_duplicates, ByPosition, "second copy"),
    (check_one_class, CountsSeenClasses, "index -2 is out of bounds"),
    (check_convention, AlwaysTuple, "must get an index array"),
    (check_called_once, AsksAgain, "Got 2 calls"),
    (check_function, Restless, "as the class does"),
]


@pytest.mark.parametrize(("check", "strategy", "message"), BROKEN)
def test_check_catches(check, strategy, message, learner, X_pool):
    # a strategy that breaks down, rather than answering wrongly, shows its own error
    with pytest.raises(Exception, match=message):
        check(strategy(), learner, X_pool)
