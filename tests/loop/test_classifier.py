"""``fit`` spends a budget, reads no label that it did not query, and is the same every time."""

import random

import numpy as np
import pandas as pd
import pytest
import torch
from modAL.uncertainty import entropy_sampling
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetBinaryClassifier, NeuralNetClassifier
from torch.utils.data import Dataset, TensorDataset

from skal import ActiveLearningClassifier, DynamicAL
from skal.callbacks import StopAtTrainAccuracy
from skal.config import config_context
from skal.exceptions import (
    AdjustedInputWarning,
    BudgetWarning,
    InvalidParameterError,
    InvalidQueryError,
    InvalidTypeError,
    NoLabelledDataError,
    NonFiniteError,
)
from skal.loop._progress import LoopState
from skal.nets import MLP
from skal.stopping import HoldOut
from skal.strategies import ALBL, NPC, CoreSet, Entropy, Margin, RandomSampling, margin

SCORES = (
    "round",
    "n_labelled",
    "indices",
    "declined",
    "metrics",
    "reason",
    "train_score",
    "seconds_fit",
    "seconds_query",
)


class Secret(np.ndarray):
    """Labels that notice which of them are read, and refuse to be read as a whole."""

    def __array_finalize__(self, parent):
        self.read = getattr(parent, "read", None)

    def __getitem__(self, rows):
        rows = np.asarray(rows)
        assert rows.ndim == 1
        assert rows.dtype.kind == "i"
        self.read.extend(rows.tolist())
        return np.array([np.ndarray.item(self, row) for row in rows])

    def __iter__(self):
        raise AssertionError("all labels are read")

    def __array__(self, *args, **kwargs):
        raise AssertionError("all labels are read")

    __array_function__ = __array__

    def __array_ufunc__(self, *args, **kwargs):
        raise AssertionError("all labels are read")


def secret(y):
    labels = np.array(y).view(Secret)
    labels.read = []
    return labels


class Raising:
    """Not even an array: one label at a time, and only those allowed."""

    def __init__(self, y, allowed):
        self.y, self.allowed = y, allowed

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        if self.allowed is not None and i not in self.allowed():
            raise AssertionError(f"label {i} was not queried")
        return self.y[i]


@pytest.mark.parametrize("strategy", [Margin(), DynamicAL(), CoreSet(), NPC(), ALBL()], ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("reinitialize", [False, True])
def test_only_queried_labels_are_read(strategy, reinitialize, make_loop, flat_data):
    X, y = flat_data
    labels = secret(y)
    loop = make_loop(strategy, reinitialize=reinitialize).fit(X, labels)
    assert len(loop.queried_) == 9 + 3 * 4
    assert sorted(set(labels.read)) == sorted(loop.queried_.tolist())
    assert len(labels.read) == len(loop.queried_)


def test_a_label_is_read_when_its_sample_is_asked_for(make_loop, flat_data):
    X, y = flat_data
    loop = make_loop()
    session = loop.start(X)
    labels = Raising(y, lambda: session.ask().tolist())
    for indices in session:
        session.tell([labels[i] for i in indices.tolist()])
    same = make_loop().fit(X, Raising(y, lambda: set(loop.queried_.tolist())))
    assert same.queried_.tolist() == loop.queried_.tolist()


def test_a_stratified_start_reads_all_labels(make_loop, flat_data):
    X, y = flat_data
    labels = secret(y)
    make_loop(initial="stratified").fit(X, labels)
    assert set(labels.read) == set(range(len(y)))


def test_history(make_loop, flat_data):
    X, y = flat_data
    loop = make_loop(Entropy()).fit(X, y)
    assert [tuple(row) for row in loop.history_] == [SCORES] * 4
    assert [row["round"] for row in loop.history_] == [0, 1, 2, 3]
    assert [row["n_labelled"] for row in loop.history_] == [9, 13, 17, 21]
    assert [index for row in loop.history_ for index in row["indices"]] == loop.queried_.tolist()
    assert loop.history_[0]["metrics"] is None
    assert all(len(row["metrics"]) == 4 for row in loop.history_[1:])
    assert all(row["seconds_fit"] > 0 and row["seconds_query"] > 0 for row in loop.history_)
    assert len(set(loop.queried_.tolist())) == 21
    assert loop.stop_reason_ == "budget"
    assert loop.history_[-1]["train_score"] == loop.score(X[loop.queried_], y[loop.queried_])


def test_the_strategy_sees_what_was_labelled(make_loop, flat_data):
    X, y = flat_data
    seen = []

    def strategy(learner, X_pool, n_instances):
        seen.append((learner.X_training, learner.y_training, X_pool))
        return np.arange(n_instances)

    loop = make_loop(strategy, n_rounds=2).fit(X, y)
    assert len(seen) == 2
    for n_labelled, (X_training, y_training, X_pool) in zip((9, 13), seen, strict=True):
        rows = loop.queried_[:n_labelled]
        np.testing.assert_array_equal(X_training, X[rows])
        np.testing.assert_array_equal(y_training, y[rows])
        np.testing.assert_array_equal(X_pool, np.delete(X, rows, axis=0))


def test_scores_are_of_the_round(make_loop, flat_data):
    X, y = flat_data
    expected = []
    loop = make_loop(callbacks=[lambda loop, row: expected.append(loop.score(X[:10], y[:10]))])
    loop.fit(X, y, eval_set=(X[:10], y[:10]))
    assert [row["eval_score"] for row in loop.history_] == expected
    f1 = make_loop(scoring="f1_macro").fit(X, y, eval_set=(X[:10], torch.from_numpy(y[:10])))
    assert f1.history_[-1]["eval_score"] != loop.history_[-1]["eval_score"]


@pytest.mark.parametrize(
    "strategy", [RandomSampling(), ALBL(arms=[RandomSampling(), Margin()])], ids=["random", "arms"]
)
def test_random_state_decides_and_nothing_else(strategy, make_loop, flat_data, same_run):
    X, y = flat_data
    first = make_loop(strategy).fit(X, y)
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    second = make_loop(strategy).fit(X, y)
    assert states == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    torch.manual_seed(1)
    np.random.seed(1)
    same_run(first, second)
    same_run(first, make_loop(strategy).fit(X, y))
    other = make_loop(strategy, random_state=1).fit(X, y)
    assert other.queried_.tolist() != first.queried_.tolist()


def test_a_generator_is_advanced(make_loop, flat_data):
    X, y = flat_data
    loop = make_loop(random_state=np.random.default_rng(0))
    assert loop.fit(X, y).queried_.tolist() != loop.fit(X, y).queried_.tolist()


def test_seeds_of_the_strategy(make_loop, flat_data):
    X, y = flat_data
    runs = [make_loop(RandomSampling(random_state=s), random_state=0).fit(X, y).queried_ for s in (0, 0, 1)]
    assert runs[0].tolist() == runs[1].tolist() != runs[2].tolist()
    assert runs[0][:9].tolist() == runs[2][:9].tolist()  # the start is the loop's
    # the same integer must not mean the same draws in every round: a pool of the same size would give the same places
    draws = []
    strategy = RandomSampling(random_state=5)
    loop = make_loop(strategy, callbacks=[lambda loop, row: draws.append(loop.query_strategy_.random_state)])
    loop.fit(X, y)
    assert len(set(draws[1:])) == 3
    assert strategy.random_state == 5


def test_networks_start_from_weights_that_the_strategy_does_not_change(make_loop, flat_data):
    X, y = flat_data
    loops = [make_loop(strategy, n_rounds=0).fit(X, y) for strategy in (Margin(), RandomSampling())]
    weights = [loop.estimator_.module_.state_dict() for loop in loops]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_warm_start_continues_and_reinitialize_does_not(make_loop, flat_data):
    X, y = flat_data
    epochs = {}
    for reinitialize in (False, True):
        loop = make_loop(reinitialize=reinitialize).fit(X, y)
        epochs[reinitialize] = len(loop.estimator_.history)
    assert epochs == {False: 4, True: 1}  # four trainings of one epoch


def test_reinitialized_network_is_one_trained_from_scratch(make_net, flat_data):
    """Against a plain loop: clone, seed, fit."""
    X, y = flat_data
    loop = ActiveLearningClassifier(
        make_net(), Margin(), n_initial=9, query_size=4, n_rounds=2, reinitialize=True, random_state=0
    ).fit(X, y)
    seed = int(np.random.default_rng(0).integers(2**63))
    with LoopState(seed=seed, round=2).use_seed("fit"):
        net = make_net().fit(X[loop.queried_], y[loop.queried_])
    for name, weight in net.module_.state_dict().items():
        assert torch.equal(weight, loop.estimator_.module_.state_dict()[name])


def test_a_module_that_is_an_instance_starts_from_its_own_weights(flat_data):
    X, y = flat_data
    module = MLP(5, 3, hidden=(8,))
    before = {name: weight.clone() for name, weight in module.state_dict().items()}
    net = NeuralNetClassifier(module, criterion=torch.nn.CrossEntropyLoss, max_epochs=0, train_split=None, verbose=0)
    loop = ActiveLearningClassifier(net, Margin(), n_initial=9, query_size=4, n_rounds=1, reinitialize=True)
    loop.fit(X, y)
    for weights in (module.state_dict(), loop.estimator_.module_.state_dict()):
        assert all(torch.equal(weights[name], before[name]) for name in before)


def test_callbacks_of_the_papers_protocol(make_loop, flat_data):
    X, y = flat_data
    loop = make_loop(net={"max_epochs": 200, "lr": 0.5, "callbacks": [StopAtTrainAccuracy(1.0)]}).fit(X, y)
    assert [row["train_score"] for row in loop.history_] == [1.0] * 4


def test_zero_shot(make_loop, flat_data):
    X, y = flat_data
    loop = make_loop(CoreSet(), n_initial=0, n_rounds=2).fit(X, y)
    assert [row["round"] for row in loop.history_] == [1, 2]
    assert len(loop.queried_) == 8
    with pytest.raises(InvalidParameterError, match=r"'n_initial'.*skorch net"):
        ActiveLearningClassifier(LogisticRegression(), n_initial=0, n_rounds=1).fit(X, y)


# the initial set


def test_given_initial_set(make_loop, flat_data):
    X, y = flat_data
    loop = make_loop(initial=[7, 3, 11]).fit(X, y)
    assert loop.queried_[:3].tolist() == [7, 3, 11]
    assert len(loop.queried_) == 3 + 12
    for bad in ([], [1, 1], [60], [-1], [0.5], [[1, 2]], "all"):
        with pytest.raises(InvalidParameterError, match="'initial'"):
            make_loop(initial=bad).fit(X, y)


def test_stratified_start_has_every_class(make_loop, flat_data):
    X, y = flat_data
    rare = np.where(np.arange(60) == 17, 2, y % 2)
    loop = make_loop(initial="stratified", n_initial=3, n_rounds=0).fit(X, rare)
    assert sorted(rare[loop.queried_]) == [0, 1, 2]
    with pytest.raises(InvalidParameterError, match="stratified start reads all labels"):
        make_loop(initial="stratified").start(X).ask()
    with pytest.raises(InvalidParameterError, match="stratified start reads all labels"):
        make_loop(initial="stratified").fit(X, oracle=lambda indices, samples: y[indices])


def test_a_stratified_start_without_labels(make_loop, flat_data):
    with pytest.raises(NoLabelledDataError, match="stratified start must hold labels"):
        make_loop(initial="stratified").fit(flat_data[0], [None] * 60)


# stopping


def test_budget_takes_the_place_of_n_rounds(make_loop, flat_data):
    X, y = flat_data
    loop = make_loop(budget=18).fit(X, y)
    assert [row["n_labelled"] for row in loop.history_] == [9, 13, 17, 18]
    assert loop.stop_reason_ == "budget"
    assert len(make_loop(budget=5).fit(X, y).queried_) == 5


def test_pool_exhausted(make_loop, flat_data):
    X, y = flat_data
    loop = make_loop(n_rounds=None, query_size=20).fit(X, y)
    assert sorted(loop.queried_) == list(range(60))
    assert loop.stop_reason_ == "pool exhausted"


@pytest.mark.parametrize("params", [{"n_rounds": 20}, {"budget": 61}, {"n_initial": 100}])
def test_budget_larger_than_the_pool_labels_everything_and_says_so(params, make_loop, flat_data):
    X, y = flat_data
    with pytest.warns(BudgetWarning, match="exceeds the 60 samples") as warned:
        loop = make_loop(query_size=20).set_params(**params).fit(X, y)
    assert warned[0].filename == __file__
    assert sorted(loop.queried_) == list(range(60))


def test_held_out_labels_are_not_shown_to_the_strategy(make_loop, flat_data):
    X, y = flat_data
    seen = []

    def strategy(learner, X_pool, n_instances):
        seen.append((learner.X_training, learner.y_training))
        return np.arange(n_instances)

    session = make_loop(strategy, stop=HoldOut(0.25), n_rounds=2).start(X)
    for indices in session:
        session.tell(y[indices])
    labels = session.labels()
    assert (labels["source"] == "held out").sum() == 4
    for n_labelled, (X_training, y_training) in zip((9, 13), seen, strict=True):
        told = labels[:n_labelled].query("source != 'held out'")
        np.testing.assert_array_equal(X_training, X[told["id"]])
        np.testing.assert_array_equal(y_training, told["label"])


def test_callback_stops(make_loop, flat_data):
    loop = make_loop(callbacks=[lambda loop, row: row["round"] == 1]).fit(*flat_data)
    assert (len(loop.history_), loop.stop_reason_) == (2, "callback")


def test_verbose_and_progress(make_loop, flat_data, capsys):
    with config_context(progress=True):
        make_loop(verbose=1).fit(*flat_data, eval_set=flat_data)
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].split() == [
        "round", "n_labelled", "train_score", "eval_score", "seconds_fit", "seconds_query"
    ]  # fmt: skip
    assert [line.split()[:2] for line in lines[2:]] == [["0", "9"], ["1", "13"], ["2", "17"], ["3", "21"]]
    assert len({len(line) for line in lines}) == 1
    assert "21/21" in err


# strategies and containers


def duplicates(learner, X_pool, n_instances):
    return np.zeros(n_instances, dtype=int)


def outside(learner, X_pool, n_instances):
    return np.arange(n_instances) + len(X_pool)


@pytest.mark.parametrize("strategy", [duplicates, outside], ids=lambda f: f.__name__)
def test_a_wrong_answer_is_named_and_the_state_kept(strategy, make_loop, flat_data):
    X, y = flat_data
    loop = make_loop(strategy)
    with pytest.raises(InvalidQueryError, match=strategy.__name__):
        loop.fit(X, y)
    assert len(loop.queried_) == 9
    assert loop.predict(X).shape == (60,)


@pytest.mark.parametrize(
    "strategy",
    [margin, entropy_sampling, lambda learner, X_pool, n_instances: np.arange(n_instances), Margin(subset=20)],
    ids=["function of skal", "function of modAL", "plain function", "object"],
)
def test_any_strategy(strategy, make_loop, flat_data):
    assert len(make_loop(strategy).fit(*flat_data).queried_) == 21


def test_metrics_that_are_no_numbers_are_left_out(make_loop, flat_data):
    loop = make_loop(lambda learner, X_pool, n_instances: (np.arange(n_instances), [object()] * n_instances))
    assert [row["metrics"] for row in loop.fit(*flat_data).history_] == [None] * 4


class Pairs(Dataset):
    def __init__(self, X, y):
        self.X, self.y = X, y

    def __len__(self):
        return len(self.X)

    def __getitem__(self, i):
        return self.X[i], int(self.y[i])


def as_memmap(X, tmp_path):
    np.save(tmp_path / "X.npy", X)
    return np.load(tmp_path / "X.npy", mmap_mode="r")


CONTAINERS = {
    "tensor": lambda X, y, tmp_path: (torch.from_numpy(X), torch.from_numpy(y)),
    "list of labels": lambda X, y, tmp_path: (X, y.tolist()),
    "memory map": lambda X, y, tmp_path: (as_memmap(X, tmp_path), y),
    "dict": lambda X, y, tmp_path: ({"x": X}, y),
    "Dataset with y": lambda X, y, tmp_path: (TensorDataset(torch.from_numpy(X)), y),
    "Dataset of pairs": lambda X, y, tmp_path: (Pairs(X, y), None),
    "Dataset of pairs with other labels": lambda X, y, tmp_path: (Pairs(X, 2 - y), y),
    "series": lambda X, y, tmp_path: (X, pd.Series(y, index=np.arange(60)[::-1])),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_containers(name, make_loop, flat_data, tmp_path):
    X, y = flat_data
    # what is recommended depends on what can be compared, so that the start is said here
    expected = make_loop(initial="random").fit(X, y)
    X_other, y_other = CONTAINERS[name](X, y, tmp_path)
    loop = make_loop(initial="random").fit(X_other, y_other)
    assert loop.queried_.tolist() == expected.queried_.tolist()
    np.testing.assert_array_equal(loop.predict(X_other), expected.predict(X))


def test_data_frames_keep_their_columns(flat_data):
    X, y = flat_data
    frame = pd.DataFrame(X, columns=list("abcde"))
    steps = make_pipeline(StandardScaler(), LogisticRegression())
    loop = ActiveLearningClassifier(steps, n_initial=9, query_size=4, n_rounds=2, random_state=0).fit(frame, y)
    assert loop.feature_names_in_.tolist() == list("abcde")
    assert loop.estimator_[0].feature_names_in_.tolist() == list("abcde")
    with pytest.raises(ValueError, match="feature names"):
        loop.predict(frame[list("edcba")])


def test_text_goes_to_a_vectorizer():
    from sklearn.feature_extraction.text import CountVectorizer

    texts = [f"{'good' if i % 2 else 'bad'} film number {i}" for i in range(40)]
    steps = make_pipeline(CountVectorizer(), LogisticRegression())
    loop = ActiveLearningClassifier(steps, n_initial=6, query_size=2, n_rounds=2, random_state=0)
    loop.fit(texts, ["yes" if i % 2 else "no" for i in range(40)])
    assert loop.predict(["a good film", "a bad film"]).tolist() == ["yes", "no"]


def test_binary_network(flat_data):
    X, y = flat_data
    net = NeuralNetBinaryClassifier(torch.nn.Linear, module__in_features=5, module__out_features=1, train_split=None)
    net.set_params(verbose=0, lr=0.5)
    labels = np.where(y == 1, "yes", "no")
    loop = ActiveLearningClassifier(net, n_initial=9, query_size=4, n_rounds=2, classes=["no", "yes"], random_state=0)
    assert loop.fit(X, labels).score(X, labels) > 0.7
    assert loop.predict_proba(X).shape == (60, 2)


# bad input


def test_bad_parameters(make_loop, flat_data):
    X, y = flat_data
    bad = {
        "n_initial": -1,
        "query_size": 0,
        "n_rounds": -1,
        "budget": 0,
        "initial": "all",
        "reinitialize": "yes",
        "random_state": -1,
        "query_strategy": 7,
        "verbose": "yes",
        "callbacks": print,
        "checkpoint": 7,
    }
    for name, value in bad.items():
        with pytest.raises((InvalidParameterError, InvalidTypeError), match=f"'{name}' parameter of ActiveLearning"):
            make_loop().set_params(**{name: value}).fit(X, y)


def test_more_bad_parameters(make_loop, flat_data, tmp_path):
    X, y = flat_data
    with pytest.raises(InvalidTypeError, match="'callbacks' parameter of ActiveLearning"):
        make_loop(callbacks=[print, "stop"]).fit(X, y)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InvalidParameterError, match=r"'checkpoint' parameter of ActiveLearning.* a file of that name"):
        make_loop(checkpoint=tmp_path / "file").fit(X, y)
    for eval_set in (X, (X,), {"X": X, "y": y}):
        with pytest.raises(InvalidTypeError, match="'eval_set' parameter of ActiveLearning"):
            make_loop().fit(X, y, eval_set=eval_set)
        with pytest.raises(InvalidTypeError, match="'eval_set' parameter of ActiveLearning"):
            make_loop().start(X, eval_set=eval_set)
    with pytest.raises(InvalidTypeError, match="'oracle' parameter of ActiveLearning"):
        make_loop().fit(X, oracle=y)
    with pytest.raises(InvalidTypeError, match="an oracle must return its labels"):
        make_loop().fit(X, oracle=lambda indices, samples: None)


def test_a_given_start_beyond_the_budget(make_loop, flat_data):
    X, y = flat_data
    with pytest.raises(InvalidParameterError, match=r"'initial' parameter .* at most 5 positions.*'budget'"):
        make_loop(initial=np.arange(6), budget=5).fit(X, y)
    assert make_loop(initial=np.arange(5), budget=5).fit(X, y).queried_.tolist() == list(range(5))


@pytest.mark.parametrize("nothing", [None, np.nan])
def test_everything_unlabelled(nothing, make_loop, flat_data):
    X, _ = flat_data
    with pytest.raises(NoLabelledDataError, match="at least one label"):
        make_loop().fit(X, np.full(60, nothing))


def test_minus_one_is_no_class_of_a_network(make_loop, flat_data):
    """With −1 everywhere a network has one class, and learns it; scikit-learn's classifiers need two."""
    X, _ = flat_data
    with pytest.raises(InvalidParameterError, match="one class only"):
        ActiveLearningClassifier(LogisticRegression(), n_rounds=1).fit(X, np.full(60, -1))


def test_one_class_only(make_loop, flat_data):
    X, _ = flat_data
    with pytest.raises(InvalidParameterError, match="one class only"):
        ActiveLearningClassifier(LogisticRegression(), n_initial=5, n_rounds=2).fit(X, np.zeros(60, dtype=int))
    loop = make_loop().fit(X, np.zeros(60, dtype=int))  # a network has outputs for the others
    assert set(loop.predict(X)) == {0}


def test_one_class_at_first(flat_data):
    """Rounds draw at random until there are two."""
    X, _ = flat_data
    y = np.arange(60) >= 30
    loop = ActiveLearningClassifier(
        LogisticRegression(), initial=np.arange(5), query_size=3, n_rounds=4, random_state=0
    ).fit(X, y)
    assert loop.history_[0]["train_score"] is None
    assert loop.history_[-1]["train_score"] is not None
    assert len(loop.queried_) == 17


def test_labels_that_are_missing_are_passed_over(make_loop, flat_data):
    X, y = flat_data
    some = np.where(np.arange(60) % 3 == 0, np.nan, y)
    loop = make_loop(n_rounds=None, query_size=10).fit(X, some)
    assert sorted(loop.queried_) == [i for i in range(60) if i % 3]
    assert [row["declined"] for row in loop.history_] == [[]] * len(loop.history_)  # no round is spent on them
    assert loop.stop_reason_ == "pool exhausted"


@pytest.mark.parametrize("unknown", [None, np.nan, "masked", "series"])
def test_mostly_unknown_labels_are_warned_of_and_cost_no_rounds(unknown, make_loop, flat_data):
    X, y = flat_data
    rows = np.arange(0, 60, 3)
    if unknown == "masked":
        some = np.ma.array(y, mask=~np.isin(np.arange(60), rows))
    else:
        some = np.array(
            [label if i % 3 == 0 else unknown if unknown != "series" else None for i, label in enumerate(y)]
        )
        some = pd.Series(some, dtype="Int64") if unknown == "series" else some
    with pytest.warns(AdjustedInputWarning, match=r"only 20 of 60 samples.*start\(X, y\)"):
        loop = make_loop(initial="random", n_initial=8, query_size=4, n_rounds=3).fit(X, some)
    assert [row["n_labelled"] for row in loop.history_] == [8, 12, 16, 20]
    assert sorted(loop.queried_) == rows.tolist()


def test_oracle(make_loop, flat_data):
    X, y = flat_data
    asked = []

    def oracle(indices, samples):
        asked.extend(indices.tolist())
        np.testing.assert_array_equal(samples, X[indices])
        return y[indices]

    loop = make_loop().fit(X, oracle=oracle)
    assert loop.queried_.tolist() == asked == make_loop().fit(X, y).queried_.tolist()


def test_oracle_that_raises(make_loop, flat_data, same_run):
    X, y = flat_data
    calls = []

    def oracle(indices, samples):
        calls.append(indices)
        if len(calls) == 3:
            raise ConnectionError("the expert has gone home")
        return y[indices]

    loop = make_loop()
    with pytest.raises(ConnectionError, match="gone home"):
        loop.fit(X, oracle=oracle)
    assert len(loop.queried_) == 13
    assert loop.predict(X).shape == (60,)
    loop.session_.run(oracle)
    assert calls[2].tolist() == calls[3].tolist()
    same_run(loop, make_loop().fit(X, y))


def test_oracle_that_never_answers(make_loop, flat_data):
    X, _ = flat_data
    with pytest.raises(NoLabelledDataError, match="oracle must label or decline"):
        make_loop(budget=30).fit(X, oracle=lambda indices, samples: {})


def test_bad_data(make_loop, flat_data):
    X, y = flat_data
    with pytest.raises(InvalidParameterError, match="one label for each of the 60"):
        make_loop().fit(X, y[:50])
    with pytest.raises(InvalidParameterError, match="requires y"):
        make_loop().fit(X)
    with pytest.raises(NotFittedError):
        make_loop().predict(X)
    with pytest.raises(InvalidParameterError, match="at least one sample"):
        make_loop().fit(torch.zeros(0, 5), [])
    holes = torch.from_numpy(np.where(np.arange(60)[:, None] == 59, np.nan, X))
    with pytest.raises(NonFiniteError, match="NaN"):
        make_loop(initial=[0, 1, 2, 3]).fit(holes, y)


def test_estimator_and_strategy_are_left_alone(make_loop, flat_data):
    X, y = flat_data
    strategy = ALBL(random_state=3)
    loop = make_loop(strategy).fit(X, y)
    assert not loop.estimator.initialized_
    assert loop.estimator.warm_start is False
    assert strategy.get_state() == {}
    assert loop.query_strategy_.get_state() != {}
