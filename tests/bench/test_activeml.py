"""Strategies of scikit-activeml in the loop of skal."""

import numpy as np
import pytest

from skal.bench import run_benchmark

SETTINGS = {"inputs": "unit", "n_initial": 6, "query_size": 3, "n_rounds": 2, "seeds": 2, "max_epochs": 5}


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=120)
    return (rng.normal(size=(120, 4)) + 2 * np.eye(3, 4)[y]).astype("float32"), y


class LeastSure:
    """The protocol alone: what scikit-activeml's objects are asked, and that the answer means the pool's rows."""

    def __init__(self, random_state=None):
        self.random_state = random_state

    def __repr__(self):
        return "LeastSure()"

    def query(self, X, y, clf, fit_clf=True, candidates=None, batch_size=1):
        assert not fit_clf
        assert isinstance(self.random_state, int)
        assert np.isnan(y[candidates]).all()
        assert np.isfinite(np.delete(y, candidates)).all()
        return candidates[np.argsort(clf.predict_proba(X[candidates]).max(axis=1), kind="stable")[:batch_size]]


@pytest.mark.parametrize("net", ["logistic", "mlp"])
def test_the_same_picks_as_the_same_rule_of_skal(table, net):
    pytest.importorskip("skactiveml", reason="the model that its strategies are given is of its own class")
    strategies = {"theirs": LeastSure(), "ours": "least_confidence"}
    result = run_benchmark(strategies, data=table, net=net, **SETTINGS)
    runs = {(run.strategy, run.seed): run for run in result.runs}
    for seed in range(2):
        assert runs["theirs", seed].queried == runs["ours", seed].queried
    assert runs["theirs", 0].record["strategy"].endswith("LeastSure()")


def test_their_own_strategies(table):
    pool = pytest.importorskip("skactiveml.pool", reason="scikit-activeml is an extra")
    rivals = [pool.Badge(), pool.CoreSet(), pool.TypiClust(), pool.ProbCover(), pool.Falcun(), pool.Clue()]
    result = run_benchmark(["random", *rivals, pool.DropQuery()], data=table, net="logistic", **SETTINGS | {"seeds": 1})
    assert result.strategies[1] == "Badge()"
    assert len({tuple(run.queried[0]) for run in result.runs}) > 4
    for run in result.runs:
        asked = run.initial + [index for batch in run.queried for index in batch]
        assert len(set(asked)) == 12


def test_their_start_without_labels(table):
    pool = pytest.importorskip("skactiveml.pool", reason="scikit-activeml is an extra")
    strategies = {"typical": pool.TypiClust(), "unsure": pool.UncertaintySampling()}
    result = run_benchmark(strategies, data=table, net="logistic", initial="zero_shot", **SETTINGS)
    assert len({tuple(run.initial) for run in result.runs}) == 4
