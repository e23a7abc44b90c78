"""Whole benchmarks, small ones: paired, repeatable, and the same however often they are interrupted."""

import json
import os
import signal
import time
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.preprocessing import normalize
from skorch import NeuralNetClassifier
from torch.utils.data import TensorDataset

from skal.base import QueryStrategy
from skal.bench import BenchmarkError, BenchmarkResult, Protocol, markdown_report, run_benchmark
from skal.bench._networks import make_net
from skal.bench._pools import Data
from skal.config import config_context, get_config
from skal.datasets import load
from skal.exceptions import InvalidParameterError, InvalidTypeError
from skal.nets import MLP
from skal.strategies import Entropy, MaxHerding, RandomSampling, TypiClust, margin
from skal.strategies._names import make_strategy

TINY = {
    "net": "mlp",
    "net_params": {"hidden": (16,)},
    "n_initial": 10,
    "query_size": 5,
    "n_rounds": 2,
    "seeds": 2,
    "n_pool": 80,
    "n_test": 60,
    "max_epochs": 5,
}


@pytest.fixture(scope="module")
def paired():
    """Strategies of every kind: those with a network of their own, too."""
    names = ["random", "entropy", "badge", "bald", "learning_loss", "albl"]
    return run_benchmark(names, **TINY)


def test_strategies_of_a_seed_have_the_same_start(paired):
    for seed in range(2):
        runs = {run.strategy: run for run in paired.runs if run.seed == seed}
        assert len({tuple(run.initial) for run in runs.values()}) == 1
        # the same weights, trained in the same way on the same labels; dropout and the ranking loss train differently
        assert len({runs[name].scores[0] for name in ("random", "entropy", "badge", "albl")}) == 1
    assert len({tuple(run.initial) for run in paired.runs}) == 2


def test_the_record_says_what_a_strategy_adds_to_the_network(paired):
    networks = {run.strategy: run.record["network"] for run in paired.runs}
    assert networks["bald"] == "mlp with dropout"
    assert networks["learning_loss"] == "mlp with loss prediction"
    assert networks["random"] == networks["badge"] == "mlp"


def test_queries_are_positions_in_the_training_set_and_never_repeat(paired):
    for run in paired.runs:
        asked = run.initial + [index for batch in run.queried for index in batch]
        assert len(set(asked)) == len(asked) == 20
        assert max(asked) < 1435
        assert [len(batch) for batch in run.queried] == [5, 5]
        assert run.n_labels == [10, 15, 20]


def test_the_pool_is_part_of_the_pairing(paired):
    """A pool of 80 out of 1,435: two strategies of a seed can only have so much in common if they share it."""
    for seed in range(2):
        asked = {i for run in paired.runs if run.seed == seed for batch in run.queried for i in batch}
        assert len(asked) <= 70


@pytest.mark.parametrize("net", ["mlp", "cnn", "convnet", "resnet18", "wide_resnet"])
@pytest.mark.parametrize("strategy", ["bald", "learning_loss"])
def test_another_network_starts_with_the_same_weights(net, strategy):
    params = {"resnet18": {"width": 4}, "wide_resnet": {"depth": 10, "width": 1}, "convnet": {"width": 4}}
    protocol = Protocol(net=net, net_params=params.get(net, {}), max_epochs=1)
    X, y = np.random.default_rng(0).normal(size=(4, 1, 8, 8)).astype("float32"), np.arange(4)
    weights = []
    for name in ("random", strategy):
        with torch.random.fork_rng():
            torch.manual_seed(3)
            estimator = make_net(protocol, (1, 8, 8), 10, make_strategy(name)).set_params(lr=0.0).fit(X, y)
        weights.append([p.detach() for p in estimator.module_.parameters()])
    plain, other = weights
    assert len(other) >= len(plain)
    for a, b in zip(plain, other[: len(plain)], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    if strategy == "bald":
        assert any(isinstance(m, torch.nn.Dropout) and m.p > 0 for m in estimator.module_.modules())


def test_copies_of_a_strategy_are_different_draws():
    names = {f"copy {k}": "random" for k in range(3)}
    result = run_benchmark({"random": "random"} | names, **TINY | {"seeds": 1})
    assert len({tuple(run.queried[0]) for run in result.runs}) == 4
    # from round to round as well
    positions = [np.searchsorted(sorted(run.queried[0]), run.queried[1]) for run in result.runs]
    assert len({tuple(p) for p in positions}) > 1


def test_results_do_not_depend_on_jobs_and_leave_global_generators_alone(paired):
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    threads = torch.get_num_threads()
    again = run_benchmark(["random", "badge"], n_jobs=2, **TINY)
    assert torch.equal(torch.get_rng_state(), before)
    assert (np.random.get_state()[1] == numpy_before).all()
    assert torch.get_num_threads() == threads
    expected = {(run.strategy, run.seed): (run.scores, run.queried) for run in paired.runs}
    for run in again.runs:
        assert (run.scores, run.queried) == expected[run.strategy, run.seed]


def test_folder_has_the_whole_record(tmp_path):
    result = run_benchmark(["random", "margin"], out=tmp_path, **TINY | {"seeds": 1})
    run = json.loads((tmp_path / "runs" / "margin.seed0.json").read_text())
    assert run["record"]["strategy"] == "Margin()"
    assert {"skal", "torch", "scikit-learn", "numpy", "python"} <= set(run["record"]["versions"])
    settings = json.loads((tmp_path / "settings.json").read_text())
    assert settings["protocol"]["max_epochs"] == 5
    assert settings["details"]["train_shape"] == [1435, 1, 8, 8]
    assert not (tmp_path / "checkpoints").exists()
    assert BenchmarkResult.load(tmp_path).runs == result.runs


def test_a_folder_grows_by_seeds_and_strategies_and_refuses_other_settings(tmp_path):
    first = run_benchmark(["random"], out=tmp_path, **TINY | {"seeds": 1})
    second = run_benchmark(["random", "margin"], out=tmp_path, **TINY)
    assert second.runs[0] == first.runs[0]  # timings too: it was not run again
    assert len(second.runs) == 4
    with pytest.raises(InvalidParameterError, match="max_epochs: 5 → 6"):
        run_benchmark(["random"], out=tmp_path, **TINY | {"max_epochs": 6})
    with pytest.raises(InvalidParameterError, match="Give it another name"):
        run_benchmark({"random": Entropy()}, out=tmp_path, **TINY)


def test_drafts_of_a_killed_process_are_removed(tmp_path):
    run_benchmark(["random"], out=tmp_path, **TINY | {"seeds": 1})
    drafts = [tmp_path / folder / ".random.seed0.json.1" for folder in ("runs", "timings")]
    for draft in drafts:
        draft.write_text("{")
    run_benchmark(["random"], out=tmp_path, **TINY | {"seeds": 1})
    assert not any(draft.exists() for draft in drafts)


class Slow(RandomSampling):
    """Leaves time to be killed in."""

    def _select(self, context, n_instances):
        time.sleep(0.03)
        return super()._select(context, n_instances)


def _contents(folder):
    files = [*(folder / "runs").iterdir(), folder / "results.csv", folder / "settings.json"]
    return {path.relative_to(folder): path.read_bytes() for path in files}


def test_killed_at_random_and_restarted_gives_the_same_files(tmp_path):
    strategies = {"random": Slow(), "badge": "badge", "learning_loss": "learning_loss"}
    run_benchmark(strategies, out=tmp_path / "whole", **TINY)
    rng, kills = np.random.default_rng(0), 0
    for attempt in range(100):
        child = os.fork()
        if child == 0:
            try:
                run_benchmark(strategies, out=tmp_path / "killed", **TINY)
                os._exit(0)
            finally:
                os._exit(1)
        time.sleep(rng.uniform(0.02, 0.1 + 0.05 * attempt))  # longer and longer, for machines of any speed
        os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        if not os.WIFSIGNALED(status):
            assert os.WEXITSTATUS(status) == 0
            break
        kills += 1
    else:
        pytest.fail("it never came to an end")
    assert kills > 0
    assert _contents(tmp_path / "killed") == _contents(tmp_path / "whole")


class Loud(RandomSampling):
    """Warns at every query."""

    def _select(self, context, n_instances):
        warnings.warn("mind the gap", UserWarning, stacklevel=2)
        return super()._select(context, n_instances)


def test_warnings_are_kept_and_not_raised_or_printed():
    result = run_benchmark({"random": "random", "loud": Loud()}, **TINY | {"seeds": 1})
    assert [run.warnings for run in result.runs] == [[], ["UserWarning: mind the gap"]]


class Broken(QueryStrategy):
    """Fails in the second round."""

    needs_network = False

    def __init__(self, fuse: int = 1) -> None:
        self.fuse = fuse

    def _select(self, context, n_instances):
        if context.n_labelled > 10:
            raise RuntimeError("out of luck")
        return np.arange(n_instances), np.zeros(n_instances)


def test_a_failing_strategy_does_not_take_the_others_with_it(tmp_path):
    with pytest.raises(BenchmarkError, match="2 of 4 runs failed") as caught:
        run_benchmark({"random": "random", "broken": Broken()}, out=tmp_path, **TINY)
    assert "out of luck" in str(caught.value)
    assert "broken, seed 1" in str(caught.value)
    loaded = BenchmarkResult.load(tmp_path)
    assert loaded.strategies == ["random"]
    assert loaded.n_missing == 2


def test_own_strategy_net_and_data(tmp_path):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(90, 4)).astype("float32"), rng.choice(["a", "b", "c"], size=90)
    data = SimpleNamespace(X_train=X[:60], y_train=y[:60], X_test=X[60:], y_test=y[60:], name="mine")
    net = NeuralNetClassifier(
        MLP,
        module__n_features=4,
        module__n_classes=3,
        module__hidden=(8,),
        criterion=torch.nn.CrossEntropyLoss,
        max_epochs=2,
        train_split=None,
        verbose=0,
    )
    dropout = clone(net).set_params(module__dropout=0.3)
    strategies = {"random": "random", "mine": Entropy(), "bald": ("bald", dropout)}
    labels = {"n_initial": 6, "query_size": 3, "n_rounds": 1, "seeds": 2}
    result = run_benchmark(strategies, data=data, net=net, inputs="unit", out=tmp_path, **labels)
    assert result.strategies == ["random", "mine", "bald"]
    assert result.protocol.data == "mine"
    assert result.protocol.net == "NeuralNetClassifier"
    # skorch keeps a set of names, which another process prints in another order: it would refuse to continue
    assert "('module__hidden', (8,))" in result.details["net_params"]
    assert "_params_to_validate" not in result.details["net_params"]


def test_reinitialisation_trains_from_scratch():
    """A learning rate of zero shows which weights a round starts from."""
    warm = run_benchmark(["random"], lr=0.0, **TINY | {"seeds": 1})
    cold = run_benchmark(["random"], lr=0.0, warm_start=False, **TINY | {"seeds": 1})
    assert len(set(warm.runs[0].scores)) == 1
    assert len(set(cold.runs[0].scores)) > 1
    assert warm.runs[0].scores[0] == cold.runs[0].scores[0]


def test_balanced_start_has_every_class_once():
    result = run_benchmark(["random"], initial="balanced", **TINY | {"n_rounds": 1})
    y = load("digits").y_train
    for run in result.runs:
        assert sorted(y[run.initial]) == list(range(10))


def test_zero_shot_lets_the_strategy_choose_the_first_labels():
    result = run_benchmark(["random", "coreset"], initial="zero_shot", **TINY | {"n_rounds": 0})
    assert [run.n_labels for run in result.runs] == [[10]] * 4
    assert len({tuple(run.initial) for run in result.runs}) == 4
    assert (result.times()["query"] > 0).all()


@pytest.mark.parametrize("initial", ["max_herding(features='input')", "auto"])
def test_a_strategy_chooses_the_first_labels_for_all(initial):
    result = run_benchmark(["random", "auto"], initial=initial, **TINY | {"n_rounds": 1})
    by_seed = {seed: {tuple(run.initial) for run in result.runs if run.seed == seed} for seed in (0, 1)}
    assert all(len(starts) == 1 for starts in by_seed.values())
    assert by_seed[0] != by_seed[1]


def test_initial_takes_a_strategy_as_an_object_too():
    settings = TINY | {"n_rounds": 0, "seeds": 1}
    for initial in (MaxHerding(features="input", evaluation=50, random_state=0), TypiClust(features="input"), margin):
        result = run_benchmark(["random"], initial=initial, **settings)
        named = run_benchmark(["random"], initial=result.protocol.initial, **settings)
        assert result.runs[0].initial == named.runs[0].initial
    assert run_benchmark(["random"], initial="balanced", **settings).protocol.initial == "balanced"
    for initial in (MaxHerding(features=lambda X: X), len, 3):
        with pytest.raises(InvalidTypeError, match="'initial' parameter of run_benchmark must be a name"):
            run_benchmark(["random"], initial=initial, **settings)


def test_a_classifier_that_is_no_network_has_a_coverage_start():
    digits = load("digits")
    flat = SimpleNamespace(**{k: v.reshape(len(v), -1) if "X" in k else v for k, v in digits.items() if k[1:2] == "_"})
    settings = TINY | {"n_rounds": 1, "seeds": 1}
    del settings["net"]
    result = run_benchmark(["auto"], data=flat, net=LogisticRegression(), initial="auto", **settings)
    assert "Recommended" in result.runs[0].record["strategy"]


def test_squared_loss_and_one_cycle():
    settings = {"criterion": "squared", "schedule": "one_cycle", "optimizer": "sgd", "lr": 0.1, "momentum": 0.9}
    result = run_benchmark(
        ["random", "entropy"], stop_accuracy=None, **settings, **TINY | {"seeds": 1, "max_epochs": 20}
    )
    assert max(result.runs[0].scores) > 0.3


def table(n=120, seed=0):
    """Features of three classes that can be told apart, with names as labels."""
    rng = np.random.default_rng(seed)
    y = rng.integers(3, size=n)
    return rng.normal(size=(n, 4)) + 2 * np.eye(3, 4)[y], np.array(["ant", "bee", "cat"])[y]


FEATURES = {"n_initial": 6, "query_size": 3, "n_rounds": 1, "seeds": 2, "max_epochs": 5}


def test_data_as_arrays_need_nothing_else():
    X, y = table()
    result = run_benchmark(["random", "margin"], data=(X, y), title="Insects", **FEATURES)
    assert (result.protocol.data, result.protocol.net, result.protocol.inputs) == ("data", "mlp", "standardized")
    assert result.details["train_shape"] == [96, 4]  # a fifth of each class is for testing
    assert result.details["n_test_samples"] == 24
    again = run_benchmark(["random", "margin"], data=(X.tolist(), y.tolist()), **FEATURES)
    assert [run.scores for run in again.runs] == [run.scores for run in result.runs]
    assert result.plot().get_title() == "Insects: mean over 2 seeds"
    assert "Insects" in markdown_report(result).splitlines()[0]
    assert r"\caption{Insects: test accuracy" in result.to_latex()
    assert r"\caption{data, mlp: test accuracy" in again.to_latex()


def test_four_arrays_and_the_path_of_a_file_are_the_same_data(tmp_path):
    X, y = table()
    codes = np.unique(y, return_inverse=True)[1]
    parts = (X[:90], codes[:90], X[90:], codes[90:])
    np.savez(tmp_path / "own.npz", **dict(zip(("X_train", "y_train", "X_test", "y_test"), parts, strict=True)))
    given = run_benchmark(["random"], data=parts, **FEATURES)
    for path in (tmp_path / "own.npz", str(tmp_path / "own.npz")):
        read = run_benchmark(["random"], data=path, **FEATURES)
        assert read.protocol.data == "own"
        assert [run.scores for run in read.runs] == [run.scores for run in given.runs]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((np.eye(4), [0, 1]), r"one label for each sample.*\(4, 4\) and \(2,\)"),
        ((np.arange(4), [0, 1, 0, 1]), "arrays of numbers"),
        ((np.array([["a"], ["b"]]), [0, 1]), "Turn texts or files into features"),
        ((np.eye(3), [0, 1, 2]), "a class of at least two samples"),
        ((1, 2, 3), "the path of an npz file"),
    ],
)
def test_arrays_that_are_no_data(data, message):
    with pytest.raises(InvalidParameterError, match=message):
        run_benchmark(["random"], data=data, **FEATURES)


def first_ones(learner, X_pool, n_instances=1):
    """A strategy as anybody writes it."""
    return np.arange(n_instances)


def drawn(learner, X_pool, n_instances=1):
    return np.random.permutation(len(X_pool))[:n_instances]


def test_plain_functions_are_strategies(tmp_path):
    strategies = ["random", first_ones, margin, drawn]
    result = run_benchmark(strategies, out=tmp_path, **TINY)
    assert result.strategies == ["random", "first_ones", "margin", "drawn"]
    runs = {(run.strategy, run.seed): run for run in result.runs}
    assert runs["first_ones", 0].record["strategy"].endswith("test_benchmark.first_ones")
    assert runs["margin", 0].record["strategy"] == "Margin()"
    # with two workers functions travel; what they draw depends on the seed alone
    again = run_benchmark({"random": "random", "drawn": drawn}, n_jobs=2, **TINY)
    assert {r.seed: r.queried for r in again.runs if r.strategy == "drawn"} == {
        s: runs["drawn", s].queried for s in (0, 1)
    }
    with pytest.raises(InvalidParameterError, match="must be the one whose runs are in the folder"):
        run_benchmark({"first_ones": drawn}, out=tmp_path, **TINY)


def test_classes_of_a_pool_can_be_imbalanced():
    y = np.repeat(np.arange(5), 200)
    data = Data(np.zeros((1000, 2), "float32"), y, np.zeros((5, 2), "float32"), np.arange(5), 5)
    protocol = Protocol(imbalance=100.0, n_initial=5, n_rounds=0)
    orders = set()
    for seed in range(8):
        pool = data.pool(protocol, seed)
        counts = np.bincount(pool.y, minlength=5)
        assert sorted(counts, reverse=True) == [200, 63, 20, 6, 2]  # a factor of √10 between neighbours
        assert len(set(pool.rows)) == len(pool.rows)
        orders.add(tuple(np.argsort(counts)))
    assert len(orders) > 1
    assert len(data.pool(protocol.with_settings(n_pool=100), 0).y) <= 100


def test_copies_are_exact_or_near():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(400, 3)).astype("float32"), rng.integers(4, size=400)
    pool = Data(X, y, X, y, 4).pool(Protocol(duplicates=0.05, n_initial=5, n_rounds=0), 0)
    originals, times = np.unique(pool.rows, return_counts=True)
    assert len(pool.rows) == 400
    assert len(originals) == 380  # twenty copies
    assert sorted(times)[-4:] == [6, 6, 6, 6]  # five of each of four
    np.testing.assert_array_equal(pool.y, y[pool.rows])
    moved = np.abs(pool.X - X[pool.rows]).max(axis=1) > 0
    assert moved.sum() == 10
    assert np.abs(pool.X - X[pool.rows]).max() < 0.6
    np.testing.assert_array_equal(X, np.random.default_rng(0).normal(size=(400, 3)).astype("float32"))


def test_balanced_accuracy_is_the_score():
    X, y = table(200)
    data = (X[:150], y[:150], X[150:], y[150:])
    settings = FEATURES | {"net": "logistic", "inputs": "normalized", "seeds": 1}
    plain, balanced = (
        run_benchmark(["random"], data=data, scoring=s, **settings) for s in ("accuracy", "balanced_accuracy")
    )
    (run,) = balanced.runs
    assert run.queried == plain.runs[0].queried
    model = LogisticRegression(max_iter=1000).fit(normalize(X[run.initial].astype("float32")), y[run.initial])
    predicted = model.predict(normalize(X[150:].astype("float32")))
    assert run.scores[0] == pytest.approx(balanced_accuracy_score(y[150:], predicted))
    assert plain.runs[0].scores[0] == pytest.approx((predicted == y[150:]).mean())
    assert "balanced accuracy" in markdown_report(balanced)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_rounds": 50}, r"at most 80, the size of the pool"),
        ({"query_size": 0}, "'query_size' parameter of Protocol must be an integer >= 1"),
        ({"net": "transformer"}, "one of 'mlp', 'cnn'"),
        ({"inputs": "raw"}, "'inputs' parameter"),
        ({"strategies": ["random", "luck"]}, "must be among .*albl.*badge.*Got 'luck'"),
        ({"strategies": ["random", "random"]}, "different strategies"),
        ({"strategies": ["margin(gamma=2)"]}, "parameters of margin must be among"),
        ({"data": SimpleNamespace(X_train=1)}, "X_train, y_train, X_test and y_test"),
        ({"imbalance": 0.5}, "'imbalance' parameter"),
        ({"scoring": "luck"}, "'scoring' parameter"),
        ({"data": table(), "net": "cnn"}, "'mlp', 'logistic' for features.*A sample has the shape"),
        ({"net": "logistic"}, "A sample has the shape"),
        ({"data": table(), "net": "logistic", "strategies": ["learning_loss"]}, "do without learning_loss"),
    ],
)
def test_bad_settings_are_refused_before_anything_runs(change, message, monkeypatch):
    monkeypatch.setattr("skal.bench._benchmark.run_task", lambda *_: pytest.fail("a run was started"))
    with pytest.raises(InvalidParameterError, match=message):
        run_benchmark(**TINY | {"strategies": ["random"]} | change)


def test_unknown_settings_and_objects_that_are_no_strategies():
    with pytest.raises(InvalidTypeError, match="Got epochs"):
        run_benchmark(["random"], epochs=3)
    for wrong in (3, Entropy):
        with pytest.raises(InvalidTypeError, match="QueryStrategy or functions"):
            run_benchmark({"mine": wrong}, **TINY)


@pytest.mark.parametrize("name", ["batch", "rounds", "start", "progress"])
def test_a_setting_has_one_name(name):
    with pytest.raises(InvalidTypeError, match=f"Got {name}"):
        run_benchmark(["random"], **{name: 1})


class Settings(RandomSampling):
    """Warns which settings a query has."""

    def _select(self, context, n_instances):
        warnings.warn(str(get_config()), UserWarning, stacklevel=2)
        return super()._select(context, n_instances)


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_runs_have_the_settings_of_the_caller_and_no_bars_of_their_own(n_jobs, capsys):
    with config_context(batch_size=7, max_memory="1GB", progress=True):
        result = run_benchmark({"random": Settings()}, n_jobs=n_jobs, **TINY)
    expected = {"batch_size": 7, "max_memory": "1GB", "n_jobs": None, "progress": False}
    assert {text for run in result.runs for text in run.warnings} == {f"UserWarning: {expected}"}
    bars = capsys.readouterr().err
    assert "2/2" in bars
    assert bars.count("\n") == 1


ROWS = np.arange(80.0).reshape(40, 2), np.arange(40) % 2


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"data": ([[1.0], [1.0, 2.0]], [0, 1])}, "data"),
        ({"data": (TensorDataset(torch.zeros(4, 2)), [0, 1, 0, 1])}, "data"),
        ({"data": (ROWS[0][:, :0], ROWS[1])}, "data"),
        ({"data": (np.where(ROWS[0] == 3, np.nan, ROWS[0]), ROWS[1])}, "data"),
        ({"data": (ROWS[0], [None] * 40)}, "data"),
        ({"data": (ROWS[0], [[0], [1, 2]] * 20)}, "data"),
        ({"data": (ROWS[0], np.zeros(40, dtype=int))}, "data"),
        ({"data": (*ROWS, ROWS[0][:, :1], ROWS[1])}, "data"),
        ({"net": 3}, "net"),
        ({"net": LogisticRegression}, "net"),
        ({"strategies": 3}, "strategies"),
        ({"out": 3}, "out"),
        ({"out": __file__}, "out"),
    ],
)
def test_what_no_benchmark_can_work_with_is_named(settings, name):
    given = {"strategies": ["random"], "data": ROWS, "net": "logistic", "n_rounds": 1, "seeds": 1} | settings
    with pytest.raises((InvalidTypeError, InvalidParameterError), match=f"'{name}' parameter of run_benchmark"):
        run_benchmark(**given)
