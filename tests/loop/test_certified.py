"""The end of a project: audits that may grant a certificate, the final data set, and labels held out for it."""

import json
import shutil

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from skal import ActiveLearningClassifier
from skal.exceptions import CheckpointError, InvalidParameterError, NoLabelledDataError
from skal.stopping import Budget, Certified, HoldOut

N = 800


@pytest.fixture(scope="module")
def data():
    """Two classes that a line separates, but for one sample in a hundred."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 3))
    y = (X[:, 0] + X[:, 1] > 0) ^ (rng.random(N) < 0.01)
    return X, np.where(y, "yes", "no")


class Told(ClassifierMixin, BaseEstimator):
    """Predicts what the first column says, and is sure of it; counts its trainings."""

    n_fits = 0

    def fit(self, X, y):
        Told.n_fits += 1
        self.classes_ = np.unique(y)
        return self

    def predict_proba(self, X):
        proba = np.full((len(X), 2), 0.001)
        proba[np.arange(len(X)), X[:, 0].astype(int)] = 0.999
        return proba

    def predict(self, X):
        return X[:, 0].astype(int)


def wrong_in(share, n=N, seed=0):
    """Samples that tell the label, but for a share of them."""
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=n)
    said = np.where(rng.permutation(n) < share * n, 1 - y, y)
    return np.column_stack([said, np.arange(n)]).astype(float), y


def make(estimator=None, **params):
    settings = {"initial": "random", "n_initial": 20, "query_size": 20, "n_rounds": None, "random_state": 0}
    settings["stop"] = Certified()
    return ActiveLearningClassifier(estimator or LogisticRegression(), "margin", **(settings | params))


def certificates(loop):
    return [row["certificate"] for row in loop.history_ if "certificate" in row]


def journal(folder):
    return [json.loads(line) for line in (folder / "labels.jsonl").read_text().splitlines()]


def test_a_certified_data_set_has_few_errors_and_says_who_labelled_what(data):
    X, y = data
    loop = make()
    session = loop.start(X, ids=[f"s{i}" for i in range(N)])
    session.run(lambda indices, _: y[indices])
    assert loop.stop_reason_.startswith("stop: certified, 95 % sure: at most 5 % wrong")
    final = session.final()
    assert final.labels["id"].tolist() == [f"s{i}" for i in range(N)]
    people = final.labels["by"] == "people"
    assert np.flatnonzero(people).tolist() == sorted(loop.queried_)
    assert (final.labels["label"][people] == y[people]).all()
    assert (final.labels["by"][~people] == "model").all()
    assert (final.labels["label"] != y).mean() <= 0.05
    told = json.loads(final.to_json())
    assert told["counts"] == {"people": int(people.sum()), "model": int((~people).sum()), "open": 0}
    assert told["certificate"]["n_accepted"] == told["counts"]["model"]
    assert told["certificate"]["n_labelled"] + told["certificate"]["n_audited"] == told["counts"]["people"]
    assert {"error_bound", "method", "seed", "max_error", "confidence"} <= told["certificate"].keys()
    assert [row["id"] for row in told["labels"]] == final.labels["id"].tolist()
    assert (session.labels()["source"] == "audit").sum() == told["certificate"]["n_audited"]


def test_the_chances_to_be_wrong_sum_to_what_is_allowed():
    stop = Certified(confidence=0.9)
    spent = sum(stop.alpha(audit, stage) for audit in range(1, 5000) for stage in range(3))
    assert 0.0999 < spent < 0.1


@pytest.mark.parametrize("seed", range(5))
def test_a_model_with_more_errors_gets_no_certificate(seed):
    X, y = wrong_in(0.12, seed=seed)
    loop = make(Told(), random_state=seed, budget=500)
    session = loop.start(X)
    session.run(lambda indices, _: y[indices])
    assert certificates(loop)
    assert not any(found["granted"] for found in certificates(loop))
    assert session.final().certificate is None
    assert set(session.final().labels["by"]) == {"people", None}


def test_an_audit_goes_on_in_stages_with_the_same_model():
    """Sizes are fixed before the draws; a later stage has the samples of the earlier ones, and nothing is trained."""
    for seed in range(20):  # most audits need one stage, or more than there are
        X, y = wrong_in(0.1, n=4000, seed=seed)
        loop = make(Told(), random_state=seed, budget=600, stop=Certified(0.2))
        session, fits = loop.start(X), []
        while len(indices := session.ask()):
            session.tell(y[indices])
            fits.append(Told.n_fits)
        found = [row for row in loop.history_ if row.get("certificate", {}).get("stage") == 2]
        if found:
            break
    second = found[0]
    first = loop.history_[second["round"] - 1]
    assert (first["certificate"]["stage"], first["certificate"]["granted"]) == (1, False)
    assert first["certificate"]["audit"] == second["certificate"]["audit"]
    assert second["certificate"]["n_audited"] == 2 * first["certificate"]["n_audited"]
    assert not set(first["indices"]) & set(second["indices"])
    assert fits[first["round"]] == fits[first["round"] - 1]


def test_an_audit_draws_from_all_samples_that_are_left():
    """Also from those that the model is sure of: chance alone chooses, and says how probable each was."""
    X, y = wrong_in(0.0)
    session = make(Told()).start(X)
    session.tell(y[session.ask()])
    left = np.setdiff1d(np.arange(N), session.state.labelled)
    asked = session.ask()
    assert session.state.source == "audit"
    assert set(asked) <= set(left)
    again = make(Told(), random_state=1).start(X)
    again.tell(y[again.ask()])
    assert set(again.ask()) != set(asked)


def test_declined_samples_of_an_audit_count_as_errors():
    X, y = wrong_in(0.0)
    loop = make(Told(), budget=600)
    session = loop.start(X)
    session.tell(y[session.ask()])
    indices = session.ask()
    answers = [None if i < 10 else label for i, label in enumerate(y[indices])]
    session.tell(answers)
    (found,) = certificates(loop)
    assert not found["granted"]


def test_an_audit_without_all_answers_grants_nothing():
    X, y = wrong_in(0.0)
    loop = make(Told())
    session = loop.start(X)
    session.tell(y[session.ask()])
    indices = session.ask()
    session.tell(y[indices[:-1]], indices=indices[:-1])
    assert certificates(loop) == [{"granted": False, "audit": 1, "missing": 1, "max_error": 0.05}]
    session.run(lambda indices, _: y[indices])
    assert certificates(loop)[-1]["granted"]
    assert certificates(loop)[-1]["audit"] == 2


def test_samples_may_be_left_for_people():
    X, y = wrong_in(0.0)
    X[:200, 0] = 1 - y[:200]  # these are wrong, and the model knows that they are hard

    class Unsure(Told):
        def predict_proba(self, X):
            proba = super().predict_proba(X)
            hard = X[:, 1] < 200
            proba[hard] = 0.45
            proba[hard, X[hard, 0].astype(int)] = 0.55
            return proba

    loop = make(Unsure(), stop=Certified(n_left=200))
    session = loop.start(X)
    session.run(lambda indices, _: y[indices])
    final = session.final()
    by = final.labels["by"].to_numpy()
    left = np.flatnonzero(final.labels["by"].isna())
    assert 0 < len(left) == final.certificate["n_left"] <= 200
    assert set(left) <= set(range(200))
    assert (final.labels["label"].to_numpy()[by == "model"] == y[by == "model"]).mean() > 0.95


def test_a_session_goes_on_in_the_middle_of_an_audit(data, tmp_path):
    X, y = data
    whole = make()
    whole.fit(X, y)
    loop = make(checkpoint=tmp_path)
    with loop.start(X) as session:
        while True:
            indices = session.ask()
            if session.state.source == "audit":
                break
            session.tell(y[indices])
        session.tell(y[indices[:5]], indices=indices[:5], end_round=False)
    loop = make(checkpoint=tmp_path)
    with loop.start(X) as session:
        session.run(lambda indices, _: y[indices])
        final = session.final()
    assert loop.queried_.tolist() == whole.queried_.tolist()
    assert certificates(loop) == certificates(whole)
    drawn = [event for event in journal(tmp_path) if event["source"] == "audit"]
    rows = [row for row in whole.history_ if "certificate" in row]
    expected = {len(row["indices"]) / (N - row["n_labelled"] + len(row["indices"])) for row in rows}
    assert {event["chance"] for event in drawn} == expected
    shutil.rmtree(tmp_path / "cache")
    with make(checkpoint=tmp_path).start(X) as session:
        kept = session.final()
    assert kept.certificate == final.certificate
    assert kept.labels.equals(final.labels)


def test_an_audit_of_another_model_is_none(data, tmp_path):
    X, y = data
    with make(checkpoint=tmp_path).start(X) as session:
        while session.state.source != "audit":
            session.tell(y[session.ask()])
            session.ask()
    loop = make(LogisticRegression(C=0.1), checkpoint=tmp_path)
    with loop.start(X) as session:
        session.tell(y[session.ask()])
    assert certificates(loop) == []


def test_audit_labels_are_held_out_until_the_end(data, tmp_path):
    X, y = data
    loop = make(n_rounds=6, stop=None, hold_out="audit", checkpoint=tmp_path)
    with loop.start(X) as session:
        sizes = []
        while len(indices := session.ask()):
            session.tell(y[indices])
            sizes.append((sum(session.state.heldout), len(loop.learner_.y_training)))
            if not session.done:
                report = session.audit()
                assert report.accuracy.n_labels == sizes[-1][0]
                assert report.accuracy.low <= report.accuracy.estimate <= report.accuracy.high
                assert report.n_model + report.n_people == N - len(loop.queried_)
        assert sizes == [(4, 16), (8, 32), (12, 48), (16, 64), (20, 80), (24, 96), (0, 140)]
        assert session.audit().accuracy.n_labels == 28
        assert loop.history_[-1]["n_heldout"] == 28
        assert (session.labels()["source"] == "held out").sum() == 28
    held = [event for event in journal(tmp_path) if event["source"] == "held out"]
    assert [1 / event["chance"] for event in held] == pytest.approx(range(N, N - 28, -1))


def test_the_audit_survives_the_loss_of_the_cache(data, tmp_path):
    X, y = data
    params = {"stop": None, "hold_out": "audit", "checkpoint": tmp_path}
    with make(**params).start(X) as session:
        for _ in range(4):
            session.tell(y[session.ask()])
        held, chances = np.flatnonzero(session.state.heldout), session.state.chances
    shutil.rmtree(tmp_path / "cache")
    with make(**params).start(X) as session:
        assert np.flatnonzero(session.state.heldout).tolist() == held.tolist()
        assert session.state.chances.items() <= chances.items()
        assert len(session.state.chances) == len(held)


def test_a_certificate_that_could_not_be_written_is_written_later(tmp_path):
    X, y = wrong_in(0.0)
    session = make(Told(), checkpoint=tmp_path).start(X)
    (tmp_path / "final.json.new").mkdir()
    with pytest.raises(CheckpointError, match=r"certificate must be written to .*final\.json.*All labels are written"):
        session.run(lambda indices, _: y[indices])
    assert len(session.labels()) == len(journal(tmp_path))
    (tmp_path / "final.json.new").rmdir()
    session.run(lambda indices, _: y[indices])
    told = json.loads((tmp_path / "final.json").read_text())
    assert told["certificate"] == session.final().certificate is not None
    assert len(told["labels"]) == (session.final().labels["by"] == "model").sum()


def test_a_stopping_criterion_says_how_much_is_held_out(data):
    X, y = data
    loop = make(stop=HoldOut(0.5) | Budget(100), hold_out="audit")
    session = loop.start(X)
    session.run(lambda indices, _: y[indices])
    assert (session.labels()["source"] == "held out").sum() == 50
    assert len(loop.learner_.y_training) == 100


def test_what_is_refused(data):
    X, y = data
    for name, value in {"max_error": 0, "confidence": 1, "n_left": -1, "n_audit": 3}.items():
        with pytest.raises(InvalidParameterError, match=f"'{name}' parameter of Certified"):
            make(stop=Certified(**{name: value})).fit(X, y)
    with pytest.raises(InvalidParameterError, match="predict_proba for Certified"):
        make(LinearSVC()).fit(X, y)
    with pytest.raises(InvalidParameterError, match="'hold_out' parameter of ActiveLearningClassifier"):
        make(hold_out="some").fit(X, y)
    with pytest.raises(NoLabelledDataError, match="labels that were held out"):
        make().start(X).audit()
