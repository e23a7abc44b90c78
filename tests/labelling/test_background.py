"""Labels and trainings at the same time: nothing blocks, nothing is lost, and no estimate is spoiled."""

import json
import threading

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from skal import ActiveLearningClassifier
from skal.exceptions import CheckpointError, InvalidParameterError
from skal.labelling._background import BackgroundRounds
from skal.stopping import HoldOut


class Gated(LogisticRegression):
    """Waits in ``fit`` until it is let go, and remembers what it was given."""

    started = threading.Event()
    go = threading.Event()

    def fit(self, X, y):
        Gated.started.set()
        assert Gated.go.wait(120)
        return super().fit(X, y)


class Failing(LogisticRegression):
    def fit(self, X, y):
        raise MemoryError("too large")


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    return X, np.where(X[:, 0] > 0, "yes", "no")


def make(folder, estimator=None, *, share=0.2, **params):
    settings = {"n_initial": 30, "query_size": 30, "n_rounds": None, "reinitialize": True, "random_state": 0} | params
    stop = HoldOut(share) if share else None
    return ActiveLearningClassifier(
        estimator or LogisticRegression(), "margin", classes=["no", "yes"], checkpoint=folder, stop=stop, **settings
    )


def start(folder, data, estimator=None, **params):
    ids = [f"s{i}" for i in range(len(data[0]))]
    return BackgroundRounds(make(folder, estimator, **params).start(data[0], ids=ids))


def answer(rounds, y, n):
    for position in rounds.questions()[:n]:
        rounds.record([(f"s{position}", str(y[position]))], source=rounds.session.state.source)


def journal(folder):
    lines = [json.loads(line) for line in (folder / "labels.jsonl").read_text().splitlines()]
    return {line["id"]: line["label"] for line in lines}


def test_labels_are_taken_while_a_training_runs(data, tmp_path):
    X, y = data
    Gated.go.set()
    rounds = start(tmp_path, data, Gated())
    rounds.step()
    answer(rounds, y, 20)
    Gated.go.clear()
    Gated.started.clear()
    thread = threading.Thread(target=rounds.step)
    thread.start()
    assert Gated.started.wait(120)
    left = rounds.questions()
    assert len(left) == 10  # the rest of the last query is there meanwhile
    answer(rounds, y, 4)
    key = f"s{left[0]}"
    other = "no" if y[left[0]] == "yes" else "yes"
    rounds.record([(key, other)])  # a correction of a label that the training does not know
    rounds.record([(f"s{left[1]}", None)], declined=True)
    assert thread.is_alive()
    expected = journal(tmp_path)
    assert expected[key] == other
    assert expected[f"s{left[1]}"] is None
    Gated.go.set()
    thread.join(120)
    state = rounds.session.state
    found = {f"s{i}": label for i, label in zip(state.labelled, state.labels, strict=True)}
    assert found == {name: label for name, label in expected.items() if label is not None}
    assert 24 <= len(rounds.questions()) <= 30  # without those that have been answered meanwhile
    assert not set(rounds.questions()) & {*state.labelled, *state.declined}
    assert len(state.history) == 1
    assert state.history[0]["n_labelled"] == 20
    assert state.stale  # somebody who opens the folder later trains first
    rounds.close()
    with make(tmp_path, LogisticRegression()).start(X, ids=[f"s{i}" for i in range(200)]) as session:
        again = session.labels().set_index("id")["label"].to_dict()
    assert again == found


def test_many_threads_and_a_worker_lose_nothing(data, tmp_path):
    y = data[1]
    rounds = start(tmp_path, data)
    rounds.step()
    done = threading.Event()
    errors = []

    def work():
        while not done.is_set():
            try:
                rounds.step()
            except Exception as error:
                errors.append(error)
                return

    def say(rows):
        for i in rows:
            rounds.record([(f"s{i}", str(y[i]))])
            if i % 7 == 0:
                rounds.record([(f"s{i}", None)], declined=i % 2 == 0)

    worker = threading.Thread(target=work)
    worker.start()
    threads = [threading.Thread(target=say, args=(range(k, 200, 4),)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    worker.join()
    assert not errors
    expected = {f"s{i}": str(y[i]) for i in range(200) if i % 7}
    assert rounds.session.labels().set_index("id")["label"].to_dict() == expected
    rounds.step()
    state = rounds.session.state
    assert dict(zip(state.labelled, state.labels, strict=True)) == {int(key[1:]): v for key, v in expected.items()}
    assert set(state.declined) == set(range(0, 200, 14))
    rounds.close()


def test_held_out_labels_are_never_trained_on_whenever_they_come(data, tmp_path):
    X, y = data
    seen = []

    class Spy(LogisticRegression):
        def fit(self, X, y):
            seen.append({tuple(row) for row in X})
            return super().fit(X, y)

    rounds = start(tmp_path, data, Spy())
    for i in range(40):  # before the first query has drawn the audit
        rounds.record([(f"s{i}", str(y[i]))])
    twin_thread = threading.Thread(target=rounds.step)
    twin_thread.start()
    for i in range(40, 80):
        rounds.record([(f"s{i}", str(y[i]))])
    twin_thread.join()
    for _ in range(3):
        answer(rounds, y, 15)
        rounds.step()
    state = rounds.session.state
    heldout = {i for i, flag in zip(state.labelled, state.heldout, strict=True) if flag}
    assert heldout
    assert heldout <= set(state.audit)
    assert not {tuple(X[i]) for i in heldout} & set().union(*seen)
    assert rounds.forecast(10).n_heldout == len(heldout)


def test_a_training_that_fails_is_told_and_labelling_goes_on(data, tmp_path):
    y = data[1]
    rounds = start(tmp_path, data, Failing())
    rounds.step()
    answer(rounds, y, 20)
    rounds.step()
    assert "MemoryError: too large" in rounds.error
    assert len(rounds.session.labels()) == 20
    assert len(rounds.questions()) == 30


def test_one_class_is_no_failure(data, tmp_path):
    rounds = start(tmp_path, data)
    rounds.step()
    answer(rounds, np.full(200, "no"), 10)
    rounds.step()
    assert rounds.error is None
    assert len(rounds.questions()) == 30


def test_classes_may_be_added_during_a_training(data, tmp_path):
    X, y = data
    Gated.go.set()
    rounds = start(tmp_path, data, Gated())
    rounds.step()
    answer(rounds, y, 20)
    with pytest.raises(InvalidParameterError, match="maybe"):
        rounds.record([("s0", "maybe")])
    Gated.go.clear()
    Gated.started.clear()
    thread = threading.Thread(target=rounds.step)
    thread.start()
    assert Gated.started.wait(120)
    rounds.add_classes(["no", "yes", "maybe"])
    rounds.record([("s0", "maybe")])
    Gated.go.set()
    thread.join(120)
    rounds.step()
    assert rounds.predictor.names.tolist() == ["maybe", "no", "yes"]
    rounds.close()
    loop = make(tmp_path, Gated()).set_params(classes=["no", "yes", "maybe"])
    with loop.start(X, ids=[f"s{i}" for i in range(200)]) as session:
        assert session.state.notes == []  # it is the folder of a session with these classes


def test_a_network_gets_an_output_for_a_new_class(images, tmp_path):
    from skal.labelling._models import small_network

    X, y = images
    loop = ActiveLearningClassifier(
        small_network(1, 8, 2),
        "margin",
        n_initial=20,
        query_size=20,
        n_rounds=None,
        classes=["0", "1"],
        reinitialize=True,
        checkpoint=tmp_path,
    )
    loop.set_params(estimator__max_epochs=2)
    rounds = BackgroundRounds(loop.start(X, ids=[str(i) for i in range(len(X))]))
    for i in [i for i in range(60) if y[i] < 2]:
        rounds.record([(str(i), str(y[i]))])
    rounds.step()
    assert rounds.predictor.predict_proba(X[:2]).shape == (2, 2)
    rounds.add_classes(["0", "1", "2"], small_network(1, 8, 3).set_params(max_epochs=2))
    assert rounds.predictor.predict_proba(X[:2]).shape == (2, 2)  # the old model until the next training
    for i in [i for i in range(60) if y[i] == 2]:
        rounds.record([(str(i), "2")])
    rounds.step()
    assert rounds.error is None
    assert rounds.predictor.predict_proba(X[:2]).shape == (2, 3)


def test_a_closed_session_takes_nothing_and_a_late_training_writes_nothing(data, tmp_path):
    X, y = data
    Gated.go.set()
    rounds = start(tmp_path, data, Gated())
    rounds.step()
    answer(rounds, y, 20)
    Gated.go.clear()
    Gated.started.clear()
    errors = []

    def step():
        try:
            rounds.step()
        except CheckpointError as error:
            errors.append(error)

    thread = threading.Thread(target=step)
    thread.start()
    assert Gated.started.wait(120)
    rounds.close()
    with pytest.raises(CheckpointError, match="closed"):
        rounds.record([("s0", "yes")])
    with make(tmp_path).start(X, ids=[f"s{i}" for i in range(200)]) as session:  # the lock is free
        Gated.go.set()
        thread.join(120)
        assert errors
        assert len(session.labels()) == 20
    rounds.close()


def test_an_unknown_id_is_refused(data, tmp_path):
    rounds = start(tmp_path, data)
    with pytest.raises(InvalidParameterError, match="nobody"):
        rounds.record([("nobody", "yes")])
