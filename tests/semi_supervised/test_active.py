"""The active semi-supervised protocol: FixMatch in the loop."""

import numpy as np
import pytest

from skal import ActiveLearningClassifier
from skal.nets import MLP
from skal.semi_supervised import FixMatchClassifier
from skal.strategies import NPC, Margin


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    truth = np.arange(120) % 3
    return (rng.normal(size=(120, 4)) + 4 * np.eye(3, 4)[truth]).astype(np.float32), truth


class Watched(FixMatchClassifier):
    """Keeps what it was fitted on, in a list that all clones share."""

    seen: list = []  # noqa: RUF012

    def fit(self, X, y=None, **params):
        self.seen.append((len(X), np.asarray(y).copy()))
        return super().fit(X, y, **params)


def make(cls=FixMatchClassifier):
    module = {"module__n_features": 4, "module__n_classes": 3, "module__hidden": (8,)}
    return cls(MLP, **module, augment="tabular", batch_size=8, max_epochs=2, lr=0.1, darp="uniform", verbose=0)


def test_the_loop_trains_on_the_whole_pool_from_scratch_each_round(data):
    X, y = data
    Watched.seen.clear()
    loop = ActiveLearningClassifier(
        make(Watched), Margin(), initial="stratified", n_initial=3, query_size=4, n_rounds=2, reinitialize=True,
        random_state=0,
    )  # fmt: skip
    loop.fit(X, y)
    assert [n for n, _ in Watched.seen] == [120] * 3
    assert [int((labels >= 0).sum()) for _, labels in Watched.seen] == [3, 7, 11]
    for _, labels in Watched.seen:
        np.testing.assert_array_equal(labels[labels >= 0], y[labels >= 0])
    assert isinstance(loop.estimator_, FixMatchClassifier)
    assert loop.score(X, y) > 0.6


def test_the_loop_is_reproducible(data):
    X, y = data
    runs = []
    for _ in range(2):
        loop = ActiveLearningClassifier(
            make(), Margin(), n_initial=6, query_size=3, n_rounds=1, reinitialize=True, random_state=3
        )
        runs.append(loop.fit(X, y))
    np.testing.assert_array_equal(runs[0].queried_, runs[1].queried_)
    np.testing.assert_array_equal(runs[0].predict_proba(X), runs[1].predict_proba(X))


def test_zero_shot_and_single_shot(data):
    X, y = data
    zero = ActiveLearningClassifier(
        make(), NPC(n_candidates=20), n_initial=0, query_size=9, n_rounds=1, reinitialize=True, random_state=0
    ).fit(X, y)
    assert [row["n_labelled"] for row in zero.history_] == [9]
    single = ActiveLearningClassifier(
        make(), NPC(n_candidates=20), initial=[0, 1, 2], query_size=9, n_rounds=1, reinitialize=True, random_state=0
    ).fit(X, y)
    assert [row["n_labelled"] for row in single.history_] == [3, 12]
