"""A run that is interrupted goes on as if nothing had happened, and only in its own folder."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch.callbacks import Callback

from skal import ActiveLearningClassifier
from skal.callbacks import FreshOptimizer
from skal.exceptions import CheckpointError, InvalidParameterError
from skal.loop._fingerprint import describe, fingerprint_data
from skal.loop._folder import CheckpointFolder
from skal.loss_prediction import LossPredictionClassifier
from skal.nets import MLP
from skal.strategies import ALBL, BADGE, LearningLoss, Margin, RandomSampling, margin


class Killed(BaseException):
    """Stands for the end of the process."""


def stop_after(round):
    def callback(loop, row):
        if row["round"] == round:
            raise Killed

    return callback


def interrupted(loop, X, y, folder, rounds=(0, 2)):
    """Fit in a folder; before the save of each of these rounds the process ends, and a new one goes on."""
    for round in rounds:
        with pytest.raises(Killed):
            clone(loop).set_params(checkpoint=folder, callbacks=[stop_after(round)]).fit(X, y)
    return clone(loop).set_params(checkpoint=folder).fit(X, y)


ADAM = {"optimizer": torch.optim.Adam, "lr": 0.01, "batch_size": 8}
LOOPS = {
    "warm start with momentum": lambda make: make(net=ADAM),
    "fresh optimizer": lambda make: make(net=ADAM | {"callbacks": [FreshOptimizer()]}),
    "from scratch": lambda make: make(net=ADAM, reinitialize=True),
    "bandit": lambda make: make(ALBL(uniform=True), net=ADAM),
    "strategy with a generator": lambda make: make(RandomSampling(random_state=np.random.default_rng(1))),
    "strategy with a RandomState": lambda make: make(RandomSampling(random_state=np.random.RandomState(1))),
    "draws": lambda make: make(BADGE()),
    "held-out labels": lambda make: make(target_score=1.1, validation_fraction=0.3),
    "zero shot": lambda make: make(BADGE(), net=ADAM, n_initial=0, n_rounds=4),
    "stratified": lambda make: make(initial="stratified"),
}


@pytest.mark.parametrize("name", LOOPS)
def test_resumed_equals_uninterrupted(name, make_loop, flat_data, tmp_path, same_run):
    X, y = flat_data
    loop = LOOPS[name](make_loop)
    resumed = interrupted(loop, X, y, tmp_path, rounds=(1, 2) if name == "zero shot" else (0, 2))
    whole = clone(loop).fit(X, y)
    same_run(resumed, whole)
    if name == "bandit":
        assert resumed.query_strategy_.get_state() == whole.query_strategy_.get_state()


@pytest.mark.parametrize(
    "estimator",
    [
        LogisticRegression(),
        RandomForestClassifier(5),
        make_pipeline(StandardScaler(), LogisticRegression()),
    ],
    ids=["linear", "forest", "pipeline"],
)
def test_other_estimators_are_fitted_again(estimator, flat_data, tmp_path, same_run):
    X, y = flat_data
    loop = ActiveLearningClassifier(estimator, Margin(), n_initial=9, query_size=4, n_rounds=3, random_state=0)
    resumed, whole = interrupted(loop, X, y, tmp_path), clone(loop).fit(X, y)
    same_run(resumed, whole)
    np.testing.assert_array_equal(resumed.predict_proba(X), whole.predict_proba(X))


def test_network_at_the_end_of_a_pipeline(make_net, flat_data, tmp_path, same_run):
    X, y = flat_data
    # a randomised step: it must be fitted again with the draws of its round
    steps = make_pipeline(
        StandardScaler(), PCA(3, svd_solver="randomized"), make_net(n_features=3, max_epochs=1, **ADAM)
    )
    loop = ActiveLearningClassifier(steps, Margin(), n_initial=9, query_size=4, n_rounds=3, random_state=0)
    resumed, whole = interrupted(loop, X, y, tmp_path), clone(loop).fit(X, y)
    same_run(resumed, whole)
    np.testing.assert_array_equal(resumed.predict_proba(X), whole.predict_proba(X))


@pytest.mark.parametrize("scaled", [False, True], ids=["alone", "in a pipeline"])
def test_a_network_that_must_see_samples_to_know_its_size(scaled, flat_data, tmp_path, same_run):
    X, y = flat_data
    settings = ADAM | {"criterion": torch.nn.CrossEntropyLoss, "max_epochs": 2, "train_split": None, "verbose": 0}
    net = LossPredictionClassifier(MLP, module__n_features=X.shape[1], module__n_classes=3, **settings)
    estimator = make_pipeline(StandardScaler(), net) if scaled else net
    loop = ActiveLearningClassifier(estimator, LearningLoss(), n_initial=9, query_size=4, n_rounds=3, random_state=0)
    resumed, whole = interrupted(loop, X, y, tmp_path), clone(loop).fit(X, y)
    same_run(resumed, whole)
    np.testing.assert_array_equal(resumed.predict_proba(X), whole.predict_proba(X))


def test_finished_run_is_read_back(make_loop, flat_data, tmp_path, same_run):
    X, y = flat_data
    first = make_loop(checkpoint=tmp_path).fit(X, y)
    second = make_loop(checkpoint=tmp_path, callbacks=[stop_after(0)]).fit(X, y)  # nothing is left to run
    same_run(first, second)
    assert [row["seconds_fit"] for row in first.history_] == [row["seconds_fit"] for row in second.history_]


def test_without_random_state_the_seed_is_in_the_folder(make_loop, flat_data, tmp_path, same_run):
    X, y = flat_data
    with pytest.raises(Killed):
        make_loop(random_state=None, checkpoint=tmp_path, callbacks=[stop_after(1)]).fit(X, y)
    first = make_loop(random_state=None, checkpoint=tmp_path).fit(X, y)
    same_run(first, make_loop(random_state=None, checkpoint=tmp_path).fit(X, y))


def test_no_pickle_in_the_folder(make_loop, flat_data, tmp_path):
    make_loop(ALBL(), net=ADAM, checkpoint=tmp_path).fit(*flat_data)
    names = sorted(path.name.split("-")[-1] for path in tmp_path.iterdir())
    others = ["ids.json", "labels.jsonl", "lock"]
    assert names == sorted(["manifest.json", "network.json", "network.safetensors", "state.json", *others])
    for path in tmp_path.glob("*.json"):
        json.loads(path.read_text())


def test_the_format(make_loop, flat_data, tmp_path):
    """Folders of this format are out there: a change of it needs a new number, and a way to read the old one."""
    make_loop(checkpoint=tmp_path, n_rounds=1).fit(*flat_data)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["format"] == 3
    assert set(manifest) == {"format", "skal", "number", "files", "digest"}
    content, network = CheckpointFolder(tmp_path).load()
    assert set(content) == {"fingerprint", "state", "ids", "n_samples", "journal", "strategy", "generators"}
    assert set(content["fingerprint"]) == {"data", "eval_set", "parameters"}
    assert content["state"]["fitted"] == {"round": 1, "n_labelled": 13}
    assert set(content["state"]) == {
        "seed", "phase", "round", "labelled", "labels", "heldout", "label_dtype", "declined",
        "asked", "told", "metrics", "seconds_query", "history", "stop_reason", "start",
        "source", "names", "fitted", "stale", "notes",
        "audit", "watched", "audit_predictions", "watched_predictions", "elapsed",
    }  # fmt: skip
    assert set(network) == {"modules", "optimizers", "history", "classes", "extra"}
    assert set(network["modules"]) == {"module", "criterion"}


def test_a_folder_without_stopping_criteria_goes_on(make_loop, flat_data, tmp_path, same_run, monkeypatch):
    """Format 2: neither the state nor the parameters knew of them."""
    loop = make_loop(margin, checkpoint=tmp_path, callbacks=[stop_after(1)])
    with pytest.raises(Killed):
        loop.fit(*flat_data)
    folder = CheckpointFolder(tmp_path)
    content, _ = folder.load()
    del content["fingerprint"]["parameters"]["stop"]
    for name in ("audit", "watched", "audit_predictions", "watched_predictions", "elapsed"):
        del content["state"][name]
    with monkeypatch.context() as patch:
        patch.setattr("skal.loop._folder._FORMAT", 2)
        folder.save(content)
    assert json.loads((tmp_path / "manifest.json").read_text())["format"] == 2
    same_run(clone(loop).set_params(callbacks=None).fit(*flat_data), make_loop(margin).fit(*flat_data))


def test_parts_of_skal_may_move(make_loop, flat_data, tmp_path, same_run):
    """Checkpoints used to say where in skal a strategy lies, and to hash the code of its function."""
    loop = make_loop(margin, checkpoint=tmp_path, callbacks=[stop_after(1)])
    with pytest.raises(Killed):
        loop.fit(*flat_data)
    folder = CheckpointFolder(tmp_path)
    content, _ = folder.load()
    parameters = content["fingerprint"]["parameters"]
    assert parameters["query_strategy"] == "skal.margin"
    parameters["query_strategy"] = "skal.strategies._elsewhere.margin 0123456789abcdef"
    parameters["estimator__module"] = "skal.networks.MLP"
    folder.save(content)
    same_run(clone(loop).set_params(callbacks=None).fit(*flat_data), make_loop(margin).fit(*flat_data))


@pytest.mark.parametrize("initial", ["auto", "random"])
def test_checkpoints_from_when_the_default_start_was_random_go_on(initial, flat_data, tmp_path):
    X, y = flat_data
    settings = {"n_initial": 8, "query_size": 4, "n_rounds": 3, "random_state": 0}
    before = ActiveLearningClassifier(LogisticRegression(), initial="random", **settings)
    with pytest.raises(Killed):
        clone(before).set_params(checkpoint=tmp_path, callbacks=[stop_after(1)]).fit(X, y)
    folder = CheckpointFolder(tmp_path)
    content, _ = folder.load()
    del content["state"]["start"]
    folder.save(content)
    after = ActiveLearningClassifier(LogisticRegression(), initial=initial, **settings, checkpoint=tmp_path).fit(X, y)
    assert after.queried_.tolist() == before.fit(X, y).queried_.tolist()
    assert not any("note" in row for row in after.history_)


PARTS = ["manifest.json", "state.json", "network.json", "network.safetensors"]
DAMAGES = [(part, damage) for part in PARTS for damage in ("truncate", "flip", "delete")]


@pytest.mark.parametrize(("part", "damage"), DAMAGES)
def test_damage_is_refused(part, damage, make_loop, flat_data, tmp_path):
    make_loop(checkpoint=tmp_path).fit(*flat_data)
    (path,) = tmp_path.glob(f"*{part}")
    data = bytearray(path.read_bytes())
    if damage == "truncate":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "flip":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    else:
        path.unlink()
    with pytest.raises(CheckpointError, match=rf"damaged file .*{part}.*every file in it but labels"):
        make_loop(checkpoint=tmp_path).fit(*flat_data)


def test_a_first_save_that_broke_off_is_no_damage(tmp_path, monkeypatch):
    """However often it is tried again: as long as there is no manifest there is no state to lose."""

    def dying(*args):
        raise Killed

    checkpoint = CheckpointFolder(tmp_path)
    monkeypatch.setattr(os, "replace", dying)
    for _ in range(2):
        with pytest.raises(Killed):
            checkpoint.save({"x": 1}, {"w": torch.ones(2)})
    monkeypatch.undo()
    assert len(list(tmp_path.iterdir())) == 4
    fresh = CheckpointFolder(tmp_path)
    assert fresh.load() is None
    fresh.save({"x": 2})
    assert CheckpointFolder(tmp_path).load() == ({"x": 2}, None)


def test_a_manifest_cannot_name_other_files(tmp_path):
    """Its digest is no secret: even a forged one reads nothing outside the folder."""
    CheckpointFolder(tmp_path / "a").save({"x": 1})
    manifest = json.loads((tmp_path / "a" / "manifest.json").read_text())
    del manifest["digest"]
    manifest["files"]["state.json"]["name"] = "../secret.json"
    manifest["digest"] = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    (tmp_path / "a" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="damaged file manifest"):
        CheckpointFolder(tmp_path / "a").load()


def test_what_does_not_bear_on_the_result_may_change(make_loop, flat_data, tmp_path, capsys):
    make_loop(checkpoint=tmp_path, n_rounds=1).fit(*flat_data)
    make_loop(checkpoint=tmp_path, n_rounds=1, verbose=1, callbacks=[print], net={"verbose": 1}).fit(*flat_data)


def test_other_data_are_refused(make_loop, flat_data, tmp_path):
    X, y = flat_data
    loop = make_loop(checkpoint=tmp_path).fit(X, y)
    for other in (X + 1, X.astype("float64"), sp.csr_matrix(X)):
        with pytest.raises(CheckpointError, match=r"none of its 21 labelled samples"):
            make_loop(checkpoint=tmp_path).start(other)
    labels = y.copy()
    labels[loop.queried_[3]] = (labels[loop.queried_[3]] + 1) % 3
    with pytest.raises(CheckpointError, match="same labels"):
        make_loop(checkpoint=tmp_path).fit(X, labels)


def test_sparse_data(flat_data, tmp_path, same_run):
    X, y = flat_data
    loop = ActiveLearningClassifier(LogisticRegression(), n_initial=9, n_rounds=1, checkpoint=tmp_path, random_state=0)
    first = clone(loop).fit(sp.csr_matrix(X), y)
    same_run(first, clone(loop).fit(sp.csr_matrix(X), y))
    with pytest.raises(CheckpointError, match="none of its 19 labelled samples"):
        loop.fit(sp.csr_matrix(X + 1), y)


def test_another_format_is_refused(tmp_path):
    CheckpointFolder(tmp_path).save({"x": 1})
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps(manifest | {"format": 4}))
    with pytest.raises(CheckpointError, match=r"must be of format 1 to 3\. Got 4 instead"):
        CheckpointFolder(tmp_path).load()


def test_what_json_cannot_hold_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"numbers, strings and tensors alone\. Got a set"):
        CheckpointFolder(tmp_path).save({"x": {1, 2}})


def test_files_of_others_are_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    checkpoint = CheckpointFolder(tmp_path)
    for number in range(3):
        checkpoint.save({"number": number}, {"w": torch.full((2,), number)})
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 5


def test_warm_start_outside_a_network_is_refused(flat_data, tmp_path):
    loop = ActiveLearningClassifier(LogisticRegression(warm_start=True), n_rounds=1, checkpoint=tmp_path)
    with pytest.raises(InvalidParameterError, match="warm_start"):
        loop.fit(*flat_data)


def test_a_save_that_breaks_off_anywhere_leaves_a_whole_state(tmp_path, monkeypatch):
    """The process ends before the k-th operation on the disk, for every k."""
    real = {name: getattr(os, name) for name in ("fsync", "replace", "unlink")}
    finished, k = False, 0
    while not finished:
        folder = tmp_path / str(k)
        CheckpointFolder(folder).save({"number": 1}, {"w": torch.ones(2)})
        checkpoint = CheckpointFolder(folder)
        checkpoint.load()
        calls = iter(range(k + 1))

        def dying(name, calls=calls):
            def operation(*args, **kwargs):
                if next(calls, None) is None:
                    raise Killed
                return real[name](*args, **kwargs)

            return operation

        for name in real:
            monkeypatch.setattr(os, name, dying(name))
        try:
            checkpoint.save({"number": 2}, {"w": torch.zeros(2)})
            finished = True
        except Killed:
            pass
        monkeypatch.undo()
        state, network = CheckpointFolder(folder).load()
        assert (state["number"], network["w"].tolist()) in [(1, [1.0, 1.0]), (2, [0.0, 0.0])]
        resumed = CheckpointFolder(folder)
        resumed.load()
        resumed.save({"number": 3})
        assert CheckpointFolder(folder).load()[0] == {"number": 3}
        assert len(list(folder.iterdir())) == 4  # leftovers are gone
        k += 1
    assert k > 5


def test_killed_twenty_times():
    """SIGKILL at random moments; see the script."""
    script = Path(__file__).with_name("kill_and_resume.py")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "equal after 25 kills" in done.stdout


def test_large_data_are_known_by_a_sample():
    X = np.zeros((3000, 4))
    before = fingerprint_data(X, max_bytes=1000)
    X[-1] = 1
    assert before["sampled"]
    assert fingerprint_data(X, max_bytes=1000) != before


def test_descriptions_do_not_depend_on_addresses():
    for value in (FreshOptimizer(), torch.nn.Linear(1, 1).float(), lambda x: x + 1, Margin().select, print):
        assert "0x" not in describe(value)
    assert describe(lambda x: x + 1) != describe(lambda x: x + 2)
    assert describe(torch.relu) != describe(torch.tanh)


def test_frames_and_series(flat_data, tmp_path, same_run):
    X, y = flat_data
    steps = make_pipeline(StandardScaler(), LogisticRegression())
    loop = ActiveLearningClassifier(steps, n_initial=9, query_size=4, n_rounds=2, checkpoint=tmp_path, random_state=0)
    frame, series = pd.DataFrame(X).rename(columns=str), pd.Series(y).map({0: "a", 1: "b", 2: "c"})
    first = clone(loop).fit(frame, series, eval_set=(frame, series))
    same_run(first, clone(loop).fit(frame, series, eval_set=(frame, series)))
    with pytest.raises(CheckpointError, match="other content for 17 labelled samples"):
        loop.fit(frame + 1, series, eval_set=(frame, series))


class PressCtrlC(Callback):
    """Sends SIGINT to this process in the middle of the second round's training."""

    armed = True

    def on_batch_end(self, net, training=False, **kwargs):
        if type(self).armed and len(net.history) == 3:
            type(self).armed = False
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def python_handles_sigint():
    """As at a terminal: a process in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("python_handles_sigint")
def test_ctrl_c_during_a_training_breaks_off_and_resumes(make_loop, flat_data, tmp_path, same_run):
    X, y = flat_data
    whole = make_loop(net={"max_epochs": 2}).fit(X, y)
    PressCtrlC.armed = True
    loop = make_loop(net={"max_epochs": 2, "callbacks": [PressCtrlC()]}, checkpoint=tmp_path)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        loop.fit(X, y)
    assert signal.getsignal(signal.SIGINT) is handler
    assert len(loop.history_) == 1
    same_run(clone(loop).fit(X, y), whole)
