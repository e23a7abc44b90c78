"""A project that lasts: labels stay with their samples, whatever happens to the pool, the parameters or the process."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.utils.data import Dataset, Subset

from skal import ActiveLearningClassifier
from skal.exceptions import (
    ChangedSamplesError,
    CheckpointError,
    InvalidParameterError,
    MissingSamplesWarning,
    NetworkError,
    TrainingFailedWarning,
)
from skal.strategies import BADGE, Margin, RandomSampling

NAMES = np.array(["cow", "ant", "bee"])


@pytest.fixture
def start(make_loop, tmp_path):
    """Open the session of the folder: ``start(X, **start_params, loop={...})``."""

    def make(X, y=None, loop=None, **params):
        return make_loop(checkpoint=tmp_path, **(loop or {})).start(X, y, **params)

    return make


def lines(folder):
    return [json.loads(line) for line in (folder / "labels.jsonl").read_text().splitlines()]


def label_at(session):
    """The label of every labelled position."""
    return dict(zip(session.state.labelled, session.state.labels, strict=True))


# --- the journal


def test_every_label_is_a_line_before_tell_returns(start, flat_data, tmp_path):
    X, y = flat_data
    session = start(X)
    asked = session.ask()
    session.tell([NAMES[y[asked[0]]], None], asked[:2], end_round=False, annotator="Ada")
    first, second = lines(tmp_path)
    assert {**first, "time": None, "sum": None} == {
        "event": "label", "id": session.ids[asked[0]], "label": NAMES[y[asked[0]]], "round": 0, "time": None,
        "source": "initial", "annotator": "Ada", "sum": None,
    }  # fmt: skip
    assert (second["event"], second["label"]) == ("declined", None)
    session.relabel({session.ids[asked[0]]: "bee"})
    session.undecline([session.ids[asked[1]]])
    assert [line["event"] for line in lines(tmp_path)] == ["label", "declined", "label", "open"]


class Failing(nn.Module):
    """A network whose batch norm refuses a batch of one sample."""

    def __init__(self, n_features=5, n_classes=3, hidden=None):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(n_features, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, n_classes))

    def forward(self, x):
        return self.layers(x)


def test_a_training_that_raises_locks_nothing_in(make_loop, flat_data, tmp_path):
    X, y = flat_data

    def loop(**params):
        settings = {"n_initial": 17, "query_size": 4, "checkpoint": tmp_path} | params
        return make_loop(**settings).set_params(estimator__module=Failing, estimator__batch_size=8)

    session = loop().start(X)
    with pytest.raises(NetworkError, match="more than 1 value"):
        session.tell(y[session.ask()])
    assert len(lines(tmp_path)) == 17
    with pytest.warns(TrainingFailedWarning, match="17 labels failed"):
        asked = session.ask()
    assert len(asked) == 4
    assert "training failed" in session.state.history[-1]["note"]
    session.tell(y[asked])  # 21 labels: no batch of one sample
    assert session.classifier.predict(X).shape == (60,)
    session.close()
    # another process, in the phase of training, with another batch size
    other = tmp_path / "other"
    session = loop(checkpoint=other).start(X)
    with pytest.raises(NetworkError, match="more than 1 value"):
        session.tell(y[session.ask()])
    session.close()
    again = loop(checkpoint=other).set_params(estimator__batch_size=6).start(X)
    assert len(again.ask()) == 4
    assert again.classifier.score(X[again.classifier.queried_], y[again.classifier.queried_]) >= 0
    assert "changed: estimator__batch_size" in again.state.history[0]["note"]


def test_a_failed_training_leaves_the_network_as_it_was(make_loop, flat_data):
    X, y = flat_data
    loop = make_loop(n_initial=16, query_size=1, net={"max_epochs": 3})
    loop.set_params(estimator__module=Failing, estimator__batch_size=8)
    session = loop.start(X)
    session.tell(y[session.ask()])
    before = {name: value.clone() for name, value in loop.estimator_.module_.state_dict().items()}
    with pytest.raises(NetworkError, match="more than 1 value"):
        session.tell(y[session.ask()])
    after = loop.estimator_.module_.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert len(loop.queried_) == 17


def test_labels_go_out_as_csv_and_as_json(start, flat_data, tmp_path):
    X, y = flat_data
    session = start(X)
    asked = session.ask()
    annotator = 'Ü, "the second"'
    session.tell(NAMES[y[asked]], annotator=annotator)
    frame = session.labels()
    assert frame["label"].tolist() == NAMES[y[asked]].tolist()
    assert frame["id"].tolist() == [session.ids[i] for i in asked]
    session.to_csv(tmp_path / "labels.csv")
    session.to_json(tmp_path / "labels.json")
    rows = json.loads((tmp_path / "labels.json").read_text(encoding="utf-8"))
    assert rows == frame.astype(object).to_dict("records")
    again = pd.read_csv(tmp_path / "labels.csv")
    assert again["label"].tolist() == frame["label"].tolist()
    assert again["annotator"].tolist() == [annotator] * len(asked)


@pytest.mark.parametrize("kind", ["array", "dataset"])
def test_the_journal_alone_rebuilds_the_session(kind, start, flat_data, tmp_path):
    X, y = flat_data
    pool = X if kind == "array" else Files(X)
    session = start(pool)
    for _ in range(2):
        asked = session.ask()
        session.tell([None, *NAMES[y[asked[1:]]]])
    session.relabel({session.ids[session.state.labelled[0]]: "bee"})
    labels, declined, round = label_at(session), set(session.state.declined), session.state.round
    frame = session.labels()
    session.close()
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "lock").unlink()
    again = start(pool)
    assert label_at(again) == labels
    assert set(again.state.declined) == declined
    assert again.state.round == round
    pd.testing.assert_frame_equal(again.labels(), frame)
    asked = again.ask()  # trains on the labels first
    assert not set(asked) & ({*labels} | declined)
    assert again.classifier.predict(X).shape == (60,)
    again.run(lambda indices, samples: NAMES[y[indices]])


# --- identity


class Files(Dataset):
    """Samples that are read one by one, as from a folder."""

    def __init__(self, X, names=None, noise=0.0):
        self.X, self.noise, self.n_read = X, noise, 0
        if names is not None:
            self.ids = names

    def __len__(self):
        return len(self.X)

    def __getitem__(self, i):
        self.n_read += 1
        return torch.as_tensor(self.X[i]) + self.noise * torch.rand(()), 0


class WithMethod(Files):
    def __init__(self, X, names):
        super().__init__(X)
        self.names = names

    def ids(self):
        return self.names


FILES = np.array([f"{i:02d}.png" for i in range(60)])
POOLS = {
    "array": lambda X, rows: (X[rows], {}),
    "tensor": lambda X, rows: (torch.from_numpy(X[rows]), {}),
    "dict": lambda X, rows: ({"x": X[rows]}, {}),
    "dataset": lambda X, rows: (Files(X[rows]), {}),
    "given ids": lambda X, rows: (X[rows], {"ids": FILES[rows]}),
    "integer ids": lambda X, rows: (Files(X[rows]), {"ids": rows}),
    "dataset with ids": lambda X, rows: (Files(X[rows], FILES[rows]), {}),
    "dataset with a method": lambda X, rows: (WithMethod(X[rows], FILES[rows]), {}),
    "subset": lambda X, rows: (Subset(Files(X, FILES), rows.tolist()), {}),
    # a strategy that reads the pool refuses samples that change
    "random dataset with ids": lambda X, rows: (
        Files(X[rows], FILES[rows], noise=0.01),
        {"loop": {"strategy": RandomSampling(random_state=0), "initial": "random"}},
    ),
}


@pytest.mark.parametrize("changed", ["reversed", "one removed and one added", "grown"])
@pytest.mark.parametrize("kind", POOLS)
def test_labels_stay_with_their_samples(kind, changed, start, flat_data):
    """The label of a sample is a function of the sample here: it must be so after any change of the pool."""
    X, y = flat_data
    X = X.copy()
    X[7] = X[3]  # two copies
    y = y.copy()
    y[7] = y[3]
    make = POOLS[kind]
    before = np.arange(59)
    pool, params = make(X, before)
    session = start(pool, **params)
    session.tell(NAMES[y[before[session.ask()]]])
    asked = session.ask()
    session.tell([NAMES[y[asked[0]]], None], asked[:2], end_round=False)
    n_labels = len(session.labels())
    labelled = {*session.state.labelled, int(asked[0])}
    open_before = {int(i) for i in session.ask()}
    session.close()
    gone = min(labelled - {3, 7})
    after = {
        "reversed": before[::-1],
        "one removed and one added": np.array([59, *(i for i in before if i != gone)]),
        "grown": np.arange(60),
    }[changed]
    pool, params = make(X, after)
    if changed == "one removed and one added":
        with pytest.warns(MissingSamplesWarning, match="1 of 10 labelled samples are no longer in X"):
            again = start(pool, **params)
    else:
        again = start(pool, **params)
    at = {after[position]: label for position, label in label_at(again).items()}
    assert at == {i: NAMES[y[i]] for i in at}
    copies = {3, 7} if kind in ("array", "tensor", "dict", "dataset") else set()
    expected = labelled - ({gone} if changed == "one removed and one added" else set())
    assert set(at) - copies == expected - copies
    assert len(at) == len(expected)
    assert {int(after[i]) for i in again.ask()} - copies == open_before - copies
    assert len(again.labels()) == n_labels  # in the file still
    again.tell(NAMES[y[after[again.ask()]]])
    assert all(label == NAMES[y[after[i]]] for i, label in label_at(again).items())
    assert "the pool" in again.state.history[-1]["note"]
    again.close()
    if changed == "one removed and one added":  # it comes back
        back = np.arange(60)
        pool, params = make(X, back)
        third = start(pool, **params)
        assert label_at(third)[gone] == NAMES[y[gone]]


def test_a_frame_is_known_by_its_index(flat_data, tmp_path):
    X, y = flat_data
    frame = pd.DataFrame(X).rename(columns=str)
    loop = ActiveLearningClassifier(
        LogisticRegression(), Margin(), n_initial=9, n_rounds=3, checkpoint=tmp_path, random_state=0
    )
    with loop.start(frame) as session:
        session.tell(NAMES[y[session.ask()]])
    shuffled = frame.sample(frac=1, random_state=1)
    with loop.start(shuffled) as session:
        assert session.ids.tolist() == shuffled.index.tolist()
        assert all(label == NAMES[y[shuffled.index[i]]] for i, label in label_at(session).items())
    with pytest.raises(CheckpointError, match="other content for"):
        loop.start(shuffled.reset_index(drop=True))


def test_content_that_changed_under_an_id_is_refused_by_name(start, flat_data):
    X, y = flat_data
    with start(Files(X, FILES)) as session:
        asked = session.ask()
        session.tell(NAMES[y[asked]])
    changed = X.copy()
    changed[asked[2]] += 1
    with pytest.raises(CheckpointError, match=rf"other content for 1 labelled samples: \['{FILES[asked[2]]}'\]"):
        start(Files(changed, FILES))
    start(Files(X, FILES)).close()


def test_a_strategy_that_reads_the_pool_refuses_a_random_dataset(start, flat_data):
    X, y = flat_data
    with start(Files(X, FILES, noise=0.01), loop={"initial": "random"}) as session:
        session.tell(NAMES[y[session.ask()]])
        with pytest.raises(ChangedSamplesError, match=r"a Files whose row \d+ .* Switch off random augmentation"):
            session.ask()
        assert len(session.labels()) == 9


def test_a_dataset_that_is_random_needs_ids(start, flat_data):
    X, _ = flat_data
    with pytest.raises(InvalidParameterError, match=r"another sample each time.*ids"):
        start(Files(X, noise=1.0))


@pytest.mark.parametrize(("ids", "got"), [(["a", "a", *list(FILES[2:])], "'a'"), (FILES[:3], "3 ids")])
def test_ids_that_are_no_ids(ids, got, start, flat_data):
    with pytest.raises(InvalidParameterError, match=f"ids must be distinct.*Got .*{got}"):
        start(flat_data[0], ids=ids)


def test_the_cost_of_hashes_is_bounded(make_loop, tmp_path):
    X = np.random.default_rng(0).normal(size=(3000, 5)).astype(np.float32)
    data = Files(X)
    with make_loop(checkpoint=tmp_path, initial="random").start(data) as session:
        session.tell(np.arange(len(session.ask())) % 3)
    again = Files(X)
    with make_loop(checkpoint=tmp_path, initial="random").start(again):
        assert again.n_read <= 1000 + 3 * 9 + 32


# --- one writer


def test_a_second_writer_is_refused_by_name(start, flat_data, tmp_path):
    X, y = flat_data
    session = start(X)
    with pytest.raises(CheckpointError, match=rf"this process \(process {os.getpid()} on "):
        start(X)
    with start(X, readonly=True) as looking:
        for writing in (looking.ask, lambda: looking.add({looking.ids[0]: "cow"})):
            with pytest.raises(CheckpointError, match="readonly=True"):
                writing()
    session.tell(y[session.ask()])
    asked = session.ask()
    with start(X, readonly=True) as looking:
        assert len(looking.labels()) == 9
        assert looking.ask().tolist() == asked.tolist()  # open questions can be seen
        assert looking.classifier.predict(X).shape == (60,)
    del session  # an object that is gone holds nothing
    session = start(X)
    session.close()
    with pytest.raises(CheckpointError, match="closed"):
        session.add({session.ids[0]: 0})


HOLDER = """  # holds the lock as a session does, without its imports
import fcntl, json, os, socket, sys, time
lock = os.open(sys.argv[1] + "/lock", os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX)
os.write(lock, json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "since": "today"}).encode())
print("held", flush=True)
time.sleep(600)
"""


def test_a_lock_dies_with_its_process(start, flat_data, tmp_path):
    X, _ = flat_data
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(CheckpointError, match=rf"process {holder.pid} on .*readonly=True"):
        start(X)
    holder.kill()
    holder.communicate()
    start(X).close()


def test_a_holder_on_another_machine(start, flat_data, tmp_path):
    """Where a file system does not share locks, the holder's last sign of life counts."""
    X, _ = flat_data
    lock = tmp_path / "lock"
    lock.write_text(json.dumps({"host": "elsewhere", "pid": 1, "since": "today"}))
    with pytest.raises(CheckpointError, match="process 1 on elsewhere"):
        start(X)
    os.utime(lock, (0, 0))
    start(X).close()
    assert lock.read_text() == ""


# --- corrections and gifts


def test_relabel_add_decline_and_back(start, flat_data, tmp_path):
    X, y = flat_data
    session = start(X)
    asked = session.ask()
    session.tell(NAMES[y[asked]])
    ids, free = session.ids, [i for i in range(60) if i not in asked]
    session.relabel({ids[asked[0]]: "bee"})
    session.add({ids[free[0]]: "cow", ids[free[1]]: "ant"}, annotator="Bo")
    session.decline([ids[free[2]], ids[asked[1]]])
    expected = {i: NAMES[y[i]] for i in asked.tolist()} | {asked[0]: "bee", free[0]: "cow", free[1]: "ant"}
    del expected[asked[1]]
    assert label_at(session) == expected
    assert session.classifier.queried_.tolist() == session.state.labelled
    frame = session.labels()
    assert frame.columns.tolist() == ["id", "label", "round", "time", "annotator", "source"]
    assert dict(zip(frame["id"], frame["label"], strict=True)) == {ids[i]: label for i, label in expected.items()}
    assert frame["source"].tolist() == ["initial"] * 8 + ["added"] * 2
    assert frame["annotator"].tolist()[-1] == "Bo"
    session.close()
    session = start(X)
    assert label_at(session) == expected
    assert set(session.state.declined) == {free[2], asked[1]}
    n_trained = session.state.fitted["n_labelled"]
    assert not {free[2], asked[1]} & set(session.ask().tolist())
    assert (n_trained, session.state.fitted["n_labelled"]) == (9, 10)  # ask has trained on what was corrected
    session.undecline([ids[free[2]]])
    assert session.state.declined == [asked[1]]
    session.add({ids[asked[1]]: "ant"})
    assert session.state.declined == []
    for wrong in (
        lambda: session.relabel({ids[free[2]]: "cow"}),
        lambda: session.add({ids[asked[0]]: "cow"}),
        lambda: session.add({"nobody": "cow"}),
        lambda: session.undecline([ids[asked[0]]]),
        lambda: session.add({ids[free[3]]: None}),
        lambda: session.relabel({ids[asked[0]]: 3}),
    ):
        before = (tmp_path / "labels.jsonl").read_bytes()
        with pytest.raises((ValueError, TypeError)):
            wrong()
        assert (tmp_path / "labels.jsonl").read_bytes() == before


def test_an_open_question_can_be_answered_by_add_and_decline(start, flat_data):
    X, y = flat_data
    session = start(X)
    session.tell(NAMES[y[session.ask()]])
    asked = session.ask()
    session.add({session.ids[asked[0]]: "cow"}).decline([session.ids[asked[1]]])
    assert session.ask().tolist() == asked[2:].tolist()
    session.undecline([session.ids[asked[1]]])
    session.relabel({session.ids[asked[0]]: "ant"})
    assert session.ask().tolist() == asked[1:].tolist()
    session.tell([None] * 3)
    assert session.state.history[-1]["indices"] == [asked[0]]
    assert label_at(session)[int(asked[0])] == "ant"


@pytest.mark.parametrize("unknown", [None, np.nan, -1, "masked", "floats"])
def test_a_start_with_partial_labels(unknown, start, flat_data):
    X, y = flat_data
    known = np.arange(60) % 5 == 0
    if unknown == "masked":
        partial = np.ma.array(y, mask=~known)
    elif unknown == "floats":
        partial = np.where(known, y, np.nan)
    else:
        partial = [int(label) if there else unknown for label, there in zip(y, known, strict=True)]
    session = start(X, partial)
    assert label_at(session) == {i: y[i] for i in range(0, 60, 5)}
    assert set(session.labels()["source"]) == {"given"}
    assert session.labels()["label"].dtype.kind == "i"
    asked = session.ask()
    assert len(asked) == 4  # the strategy's: there is no need of initial samples
    assert not set(asked.tolist()) & set(range(0, 60, 5))
    session.relabel({session.ids[0]: int(y[0] + 1) % 3})
    session.close()
    with start(X, partial) as again:  # the same call goes on, and does not undo the correction
        assert label_at(again)[0] == (y[0] + 1) % 3
    other = np.where(known, (y + 2) % 3, -1)
    with pytest.raises(CheckpointError, match="must be those of"):
        start(X, other)


def test_a_label_from_before_the_start_for_a_declined_sample(start, flat_data):
    X, y = flat_data
    with start(X) as session:
        session.decline([session.ids[0]])
    with start(X, [int(y[0])] + [None] * 59) as session:
        assert (session.state.labelled, session.state.declined) == ([0], [])


def test_looking_at_a_session_that_is_to_be_trained(start, flat_data):
    X, y = flat_data
    start(X, y).close()
    with start(X, readonly=True) as looking, pytest.raises(CheckpointError, match="readonly=True"):
        looking.ask()


def test_gifts_count_and_can_finish_the_pool(make_loop, flat_data):
    X, y = flat_data
    loop = make_loop(budget=20, n_initial=9)
    session = loop.start(X)
    session.tell(y[session.ask()])
    free = [i for i in range(60) if i not in loop.queried_]
    session.add({i: int(y[i]) for i in free[:10]})
    assert len(session.ask()) == 1
    session.tell({}).add({free[10]: 0})
    assert loop.stop_reason_ == "budget"
    assert session.ask().tolist() == []


# --- a project may change

CHANGES = {
    "query_size": {"query_size": 5},
    "n_rounds": {"n_rounds": 5},
    "budget": {"budget": 24},
    "random_state": {"random_state": 1},
    "estimator__lr": {"estimator__lr": 0.2},
    "estimator__module__hidden": {"estimator__module__hidden": (7,)},
    "estimator": {"estimator": LogisticRegression()},
    "query_strategy": {"query_strategy": BADGE()},
    "classes": {"classes": ["aardvark", "ant", "bee", "cow"], "estimator__module__n_classes": 4},
    "reinitialize": {"reinitialize": True},
    "initial": {"initial": "random"},
}


@pytest.mark.parametrize("when", ["asked", "finished"])
@pytest.mark.parametrize("name", CHANGES)
def test_parameters_may_change(name, when, make_loop, flat_data, tmp_path):
    X, y = flat_data
    loop = make_loop(Margin(), checkpoint=tmp_path, n_rounds=2)
    with loop.start(X) as session:
        session.tell(NAMES[y[session.ask()]])
        asked = session.ask()
        if when == "finished":
            session.run(lambda indices, samples: NAMES[y[indices]])
    before = label_at(session)
    other = make_loop(Margin(), checkpoint=tmp_path, n_rounds=5 if when == "finished" else 2)
    other.set_params(**CHANGES[name])
    with other.start(X, eval_set=(X, NAMES[y])) as session:
        assert label_at(session) == before
        if when == "asked":
            assert session.ask().tolist() == asked.tolist()
        assert len(session.ask())
        session.tell(NAMES[y[session.ask()]])
        note = other.history_[len(before) // 4 - 1]["note"]
        assert name in note
        assert "eval_set" in note
        session.run(lambda indices, samples: NAMES[y[indices]])
    assert other.history_[-1]["eval_score"] is not None
    assert dict(zip(other.queried_.tolist(), session.state.labels, strict=True)) == {
        i: NAMES[y[i]] for i in other.queried_.tolist()
    }


def test_weights_that_still_fit_are_kept(make_loop, flat_data, tmp_path):
    X, y = flat_data
    first = make_loop(checkpoint=tmp_path, n_rounds=0, net={"max_epochs": 20}).fit(X, NAMES[y])
    params = [value.clone() for value in first.estimator_.module_.parameters()]
    second = make_loop(checkpoint=tmp_path, n_rounds=1, net={"max_epochs": 20, "lr": 0.001})
    with second.start(X):
        assert all(map(torch.equal, params, second.estimator_.module_.parameters()))
        assert second.estimator_.optimizer_.param_groups[0]["lr"] == 0.001
    third = make_loop(checkpoint=tmp_path, n_rounds=1, net={"max_epochs": 20}, classes=["ape", *NAMES])
    third.set_params(estimator__module__n_classes=4)
    with third.start(X) as session:
        body = list(session.engine.trainer.estimator.module_.parameters())
        assert all(map(torch.equal, params[:-2], body[:-2]))
        session.ask()
    assert third.classes_.tolist() == ["ant", "bee", "cow", "ape"]  # outputs keep their meaning
