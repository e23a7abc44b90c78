"""Stopping criteria in the loop: what is held out is random, never trained on, and survives everything."""

import shutil
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import cohen_kappa_score
from sklearn.model_selection import GridSearchCV

from skal import ActiveLearningClassifier
from skal.stopping import Budget, HoldOut, MaxTime, StablePredictions, TargetScore, UncertaintyPlateau


class Spy(LogisticRegression):
    """Remembers what it was trained on, and predicted."""

    seen: ClassVar[list] = []

    def fit(self, X, y):
        Spy.seen.append(X[:, 0].tolist())
        return super().fit(X, y)


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4))
    X[:, 0] = np.arange(300) / 300
    return X, (X[:, 1] + X[:, 2] > 0).astype(int)


def make(stop, estimator=None, **params):
    settings = {"n_initial": 20, "query_size": 10, "n_rounds": 8, "random_state": 0} | params
    return ActiveLearningClassifier(estimator or LogisticRegression(), "margin", stop=stop, **settings)


def test_held_out_labels_are_a_share_and_never_trained_on(data):
    X, y = data
    Spy.seen.clear()
    loop = make(TargetScore(1.0, share=0.2, n_min=1000), Spy())
    session = loop.start(X)
    session.run(lambda indices, _: y[indices])
    state = session.state
    held = [index for index, flag in zip(state.labelled, state.heldout, strict=True) if flag]
    assert len(held) == round(0.2 * len(state.labelled)) == 20
    trained = {round(300 * value) for fit in Spy.seen for value in fit}
    assert not trained & set(held)
    assert trained == set(state.labelled) - set(held)
    frame = session.labels()
    assert (frame["source"] == "held out").sum() == 20
    assert [row["n_heldout"] for row in loop.history_] == [4, 6, 8, 10, 12, 14, 16, 18, 20]


def test_the_audit_is_drawn_before_anything_is_queried(data):
    """So it is a random sample of all of the pool: with another strategy it is the same."""
    X, y = data
    drawn = []
    for strategy in ("margin", "random_sampling"):
        session = make(HoldOut()).set_params(query_strategy=strategy).start(X)
        session.run(lambda indices, _: y[indices])
        drawn.append([i for i, flag in zip(session.state.labelled, session.state.heldout, strict=True) if flag])
    assert drawn[0] == drawn[1]


def test_columns_of_the_history_are_what_they_say(data):
    X, y = data
    loop = make(StablePredictions() | UncertaintyPlateau(window=100) | MaxTime(1e9), n_rounds=3)
    models = []
    session = loop.set_params(callbacks=[lambda clf, row: models.append(clf.estimator_)]).start(X)
    session.run(lambda indices, _: y[indices])
    state = session.state
    labelled = [index for row in loop.history_[:3] for index in row["indices"]]
    unseen = [i for i in [*state.audit, *state.watched] if i not in labelled]
    row = loop.history_[2]
    first, second = (model.predict(X[unseen]) for model in models[1:3])
    assert row["agreement"] == pytest.approx(cohen_kappa_score(first, second))
    uncertainty = 1 - models[2].predict_proba(X[unseen]).max(axis=1)
    assert row["uncertainty_mean"] == pytest.approx(uncertainty.mean())
    assert row["uncertainty_max"] == pytest.approx(uncertainty.max())
    assert loop.history_[0]["agreement"] is None
    elapsed = [row["elapsed"] for row in loop.history_]
    assert elapsed == sorted(elapsed)
    assert "heldout_score" not in row


def test_the_loop_stops_when_the_criterion_says_so(data):
    X, y = data
    loop = make(StablePredictions(0.95, window=2), n_rounds=None).fit(X, y)
    last = [row["agreement"] for row in loop.history_[-2:]]
    assert np.mean(last) > 0.95
    assert loop.stop_reason_.startswith("stop: mean kappa")
    assert len(loop.queried_) < 300
    assert len(make(Budget(35)).fit(X, y).queried_) >= 35
    assert make(Budget(35)).fit(X, y).history_[-1]["n_labelled"] == 40  # a round is not cut


def test_forecast_of_a_session(data):
    X, y = data
    session = make(HoldOut(0.3), n_rounds=12).start(X)
    assert session.forecast().accuracy is None
    session.run(lambda indices, _: y[indices])
    found = session.forecast(50)
    state, model = session.state, session.classifier
    held = [i for i, flag in zip(state.labelled, state.heldout, strict=True) if flag]
    assert found.n_heldout == len(held)
    assert found.accuracy == pytest.approx((model.predict(X[held]) == y[held]).mean())
    assert found.later is not None
    assert found.low <= found.accuracy <= found.high
    plain = make(None).start(X)
    plain.run(lambda indices, _: y[indices])
    assert "not known" in plain.forecast().text


def comparable(history):
    return [{k: v for k, v in row.items() if not k.startswith("seconds") and k != "elapsed"} for row in history]


def test_resumed_run_is_the_same(data, tmp_path):
    X, y = data
    stop = StablePredictions(0.999, window=3) | TargetScore(0.999) | Budget(90)
    whole = make(stop, n_rounds=None).fit(X, y)

    def fail(indices, _):
        fail.calls += 1
        if fail.calls % 2 == 0:
            raise ConnectionError
        return y[indices]

    fail.calls = 0
    for _ in range(40):
        loop = make(stop, n_rounds=None, checkpoint=tmp_path)
        try:
            loop.fit(X, oracle=fail)
            break
        except ConnectionError:
            loop.session_.close()
    assert loop.queried_.tolist() == whole.queried_.tolist()
    assert comparable(loop.history_) == comparable(whole.history_)
    assert loop.stop_reason_ == whole.stop_reason_


def test_held_out_labels_stay_so_in_another_order_and_from_the_labels_alone(data, tmp_path):
    X, y = data
    frame = pd.DataFrame(X, index=[f"s{i}" for i in range(300)])
    with make(HoldOut(), n_rounds=None, checkpoint=tmp_path).start(frame) as session:
        for _ in range(5):
            session.tell(y[session.ask()])
        held = {session.ids[i] for i, f in zip(session.state.labelled, session.state.heldout, strict=True) if f}
        before, labelled = session.forecast(), session.state.labelled
    order = np.union1d(np.random.default_rng(1).permutation(300)[:250], labelled)[::-1]
    with make(HoldOut(), n_rounds=None, checkpoint=tmp_path).start(frame.iloc[order]) as session:
        state = session.state
        assert {session.ids[i] for i, f in zip(state.labelled, state.heldout, strict=True) if f} == held
        assert session.forecast().accuracy == before.accuracy
        assert all(len(said["codes"]) == len(state.audit) for said in state.audit_predictions)
    shutil.rmtree(tmp_path / "cache")
    with make(HoldOut(), n_rounds=None, checkpoint=tmp_path).start(frame) as session:
        state = session.state
        assert {session.ids[i] for i, f in zip(state.labelled, state.heldout, strict=True) if f} == held
        n = len(held)
        session.tell(y[session.ask()])
        state = session.state
        assert sum(state.heldout) == n + 2
        assert session.forecast().n_heldout == n + 2


def test_what_is_held_out_follows_the_criterion_of_a_later_start(data, tmp_path):
    X, y = data
    n_heldout = []
    for stop in (StablePredictions(), HoldOut(0.2), None, HoldOut(0.2)):
        with make(stop, n_rounds=None, checkpoint=tmp_path).start(X) as session:
            for _ in range(3):
                session.tell(y[session.ask()])
            n_heldout.append(sum(session.state.heldout))
            if stop is None:
                assert set(session.classifier.learner_.X_training[:, 0]) == set(X[session.state.labelled, 0])
    assert n_heldout[0] == n_heldout[2] == 0
    assert n_heldout[1] > 0
    assert n_heldout[3] > 0


def test_a_given_start_is_as_it_was_given(data):
    X, y = data
    session = make(HoldOut(0.2), initial=[5, 3, 8], n_rounds=2).start(X)
    assert session.ask().tolist() == [5, 3, 8]
    session.run(lambda indices, _: y[indices])
    assert not {5, 3, 8} & set(session.state.audit)
    assert sum(session.state.heldout) == round(0.2 * len(session.state.labelled))


def test_a_criterion_can_be_searched(data):
    X, y = data
    search = GridSearchCV(make(Budget(40)), {"stop__n_labels": [30, 60]}, cv=2).fit(X, y)
    assert search.best_params_["stop__n_labels"] in (30, 60)


def test_a_tiny_pool_is_labelled_to_the_end():
    X = np.arange(12.0).reshape(-1, 1)
    loop = make(HoldOut(0.5), n_initial=2, query_size=1, n_rounds=None)
    session = loop.start(X)
    session.run(lambda indices, _: indices % 2)
    assert sorted(loop.queried_) == list(range(12))
    assert loop.stop_reason_ == "pool exhausted"
