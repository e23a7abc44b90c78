"""A run that is interrupted goes on as if nothing had happened, and only in its own folder."""

import hashlib
import json
import os
import signal

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
from skal.exceptions import CheckpointError, InvalidParameterError, SkalWarning
from skal.loss_prediction import LossPredictionClassifier
from skal.nets import MLP
from skal.stopping import HoldOut
from skal.strategies import ALBL, BADGE, LearningLoss, Margin, RandomSampling

from ..support.processes import READY
from . import kill_and_resume


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
    "held-out labels": lambda make: make(stop=HoldOut(0.3)),
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


def files(folder):
    """Names in a checkpoint folder, without the digest in the network's."""
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return {name.split("-")[0] for name in found}


def test_the_folder(make_loop, flat_data, tmp_path):
    """Labels, a lock, and a cache without pickle; files of others are left alone."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "notes.txt").write_text("mine")
    make_loop(ALBL(), net=ADAM, checkpoint=tmp_path).fit(*flat_data)
    assert files(tmp_path) == {"labels.jsonl", "lock", "cache/state.json", "cache/network", "cache/notes.txt"}
    assert len(list((tmp_path / "cache").iterdir())) == 3
    json.loads((tmp_path / "cache" / "state.json").read_bytes())
    assert "label" not in json.loads((tmp_path / "cache" / "state.json").read_bytes())["content"]["state"]["progress"]


@pytest.mark.parametrize("damage", ["truncate", "flip", "delete", "format", "name"])
@pytest.mark.parametrize("part", ["state.json", "network-*.safetensors"])
def test_a_damaged_cache_costs_time_and_no_label(part, damage, make_loop, flat_data, tmp_path):
    first = make_loop(checkpoint=tmp_path).fit(*flat_data)
    (path,) = (tmp_path / "cache").glob(part)
    data = bytearray(path.read_bytes())
    if damage == "delete":
        path.unlink()
        if part == "state.json":  # then there is no cache at all
            with make_loop(checkpoint=tmp_path).start(flat_data[0]) as session:
                assert session.state.labelled == first.queried_.tolist()
            return
    elif damage == "truncate":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "flip":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    elif part == "state.json":  # forged, with a good checksum
        text = (bytes(data[data.index(b'"content": ') + 11 : -1])).decode()
        text = (
            text.replace('"format": 1', '"format": 9')
            if damage == "format"
            else text.replace("network-", "../network-")
        )
        digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        path.write_text(f'{{"sum": "{digest}", "content": {text}}}')
    else:
        path.rename(path.with_name("network-" + "0" * 32 + ".safetensors"))
    with pytest.warns(SkalWarning, match="cache in .* cannot be used.*No label is lost"):
        session = make_loop(checkpoint=tmp_path).start(flat_data[0])
    assert session.state.labelled == first.queried_.tolist()
    session.close()


def test_a_link_in_the_cache_is_not_followed(make_loop, flat_data, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    cache = tmp_path / "run" / "cache"
    cache.mkdir(parents=True)
    for name in ("state.json", "state.json.new"):
        (cache / name).symlink_to(victim)
    with pytest.warns(SkalWarning, match="cannot be used"):
        make_loop(checkpoint=tmp_path / "run", n_rounds=1).fit(*flat_data)
    assert victim.read_text() == "mine"


def test_a_state_that_json_cannot_hold_is_refused(make_loop, flat_data, tmp_path):
    class Odd(RandomSampling):
        def get_state(self):
            return {1, 2}

        def set_state(self, state):
            pass

    with pytest.raises(CheckpointError, match=r"numbers, strings and tensors alone\. Got a set"):
        make_loop(Odd(), checkpoint=tmp_path).fit(*flat_data)


CHANGED = {
    "lambda": (lambda X: X + 1, lambda X: X + 2),
    "builtin": (torch.relu, torch.tanh),
    "callback": ([FreshOptimizer()], []),
}


@pytest.mark.parametrize("kind", CHANGED)
def test_parameters_are_compared_by_their_content(kind, make_loop, flat_data, tmp_path):
    first, second = CHANGED[kind]

    def notes(value):
        net = {"callbacks": value} if kind == "callback" else {"nonlinearity": value}
        name = "callbacks" if kind == "callback" else "predict_nonlinearity"
        loop = make_loop(checkpoint=tmp_path, n_rounds=0, net={} if kind != "callback" else net)
        if kind != "callback":
            loop.set_params(**{f"estimator__{name}": value})
        with loop.start(flat_data[0]) as session:
            session.ask()
            return session.state.notes

    assert notes(first) == []
    assert notes(first) == []
    assert len(notes(second)) == 1


def test_what_does_not_bear_on_the_result_may_change(make_loop, flat_data, tmp_path, capsys):
    make_loop(checkpoint=tmp_path, n_rounds=1).fit(*flat_data)
    loop = make_loop(checkpoint=tmp_path, n_rounds=1, verbose=1, callbacks=[print], net={"verbose": 1})
    with loop.start(flat_data[0]) as session:
        assert session.state.notes == []


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


def test_warm_start_outside_a_network_is_refused(flat_data, tmp_path):
    loop = ActiveLearningClassifier(LogisticRegression(warm_start=True), n_rounds=1, checkpoint=tmp_path)
    with pytest.raises(InvalidParameterError, match="warm_start"):
        loop.fit(*flat_data)


def test_killed_twelve_times():
    """SIGKILL at random moments; see the script."""
    process = READY.Process(target=kill_and_resume.main)
    process.start()
    process.join(240)
    assert process.exitcode == 0


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
