"""The loop of a regressor: everything that scikit-learn offers, sessions, checkpoints, and bad input in words."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor
from sklearn.linear_model import GammaRegressor, LogisticRegression, PoissonRegressor, Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVR
from sklearn.utils.estimator_checks import parametrize_with_checks
from skorch import NeuralNetClassifier, NeuralNetRegressor
from torch.utils.data import TensorDataset

from skal import ActiveLearningClassifier, ActiveLearningRegressor
from skal.exceptions import InvalidParameterError, InvalidTypeError, NonFiniteError
from skal.stopping import Budget, StablePredictions
from skal.strategies import LCMD, MaxDet, margin

from ..support.regressors import Numbers, make_targets

X, Y = make_targets(80, 2, dtype=np.float32)
y = 1e6 + 1e5 * Y[:, 0].astype(np.float64)  # far from what a network gives at first

# check: why a loop cannot pass it
EXCUSED = {"check_dtype_object": "rows that are not queried are not read by the estimator"}
OWN_CHECKS = parametrize_with_checks(
    [ActiveLearningRegressor(Ridge(), n_initial=10, query_size=10, n_rounds=1, random_state=0)],
    expected_failed_checks=lambda estimator: EXCUSED,
)


@pytest.mark.filterwarnings("ignore::skal.exceptions.BudgetWarning")  # some of the checks have six samples
@pytest.mark.parametrize(OWN_CHECKS.args[0], list(OWN_CHECKS.args[1]), **OWN_CHECKS.kwargs)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


def make_net(n_outputs=1, flat=False, **params):
    params = {"max_epochs": 20, "lr": 0.05, "train_split": None, "verbose": 0} | params
    return NeuralNetRegressor(Numbers, module__n_outputs=n_outputs, module__flat=flat, **params)


def make_loop(estimator=None, strategy="lcmd", **params):
    params = {"n_initial": 12, "query_size": 6, "n_rounds": 2, "initial": "random", "random_state": 0} | params
    return ActiveLearningRegressor(make_net() if estimator is None else estimator, strategy, **params)


@pytest.mark.parametrize(
    ("estimator", "targets"),
    [
        (make_net(), y),
        (make_net(), y[:, None]),
        (make_net(flat=True), y),
        (make_net(2), Y),
        (make_pipeline(StandardScaler(), make_net()), y),
        (RandomForestRegressor(10, random_state=0), y),
        (RandomForestRegressor(10, random_state=0), Y),
        (TransformedTargetRegressor(Ridge(), transformer=StandardScaler()), y),
    ],
    ids=[
        "net",
        "net, a column",
        "net without a dimension",
        "net, two",
        "pipeline",
        "forest",
        "forest, two",
        "transformed",
    ],
)
@pytest.mark.parametrize("strategy", ["auto", "lcmd"])
def test_any_regressor(estimator, targets, strategy):
    loop = make_loop(estimator, strategy, initial="auto").fit(X, targets, eval_set=(X, targets))
    assert len(np.unique(loop.queried_)) == 24
    assert [row["n_labelled"] for row in loop.history_] == [12, 18, 24]
    assert loop.predict(X).shape == targets.shape
    assert loop.score(X, targets) == pytest.approx(loop.history_[-1]["eval_score"])
    assert loop.score(X, targets) > 0  # better than the mean, a million away from zero


def test_a_network_is_trained_on_scaled_numbers():
    net = make_pipeline(StandardScaler(), make_net(max_epochs=60))
    loop = make_loop(net).fit(X, y)
    labels = y[loop.queried_]
    inner = loop.estimator_.predict(X[loop.queried_])
    assert loop.predict(X[loop.queried_]) == pytest.approx(inner[:, 0] * labels.std() + labels.mean())
    assert np.abs(inner).max() < 10


@pytest.mark.parametrize(
    "estimator",
    [
        TransformedTargetRegressor(Ridge(), func=np.log, inverse_func=np.exp),
        PoissonRegressor(),
        make_pipeline(StandardScaler(), GammaRegressor()),
        RandomForestRegressor(5, criterion="poisson", random_state=0),
        GridSearchCV(PoissonRegressor(), {"alpha": [0.1, 1.0]}, cv=2),
        Ridge(alpha=0.5),
    ],
    ids=["log of y", "Poisson", "Gamma in a pipeline", "Poisson forest", "search", "Ridge"],
)
def test_other_regressors_get_the_numbers_as_they_are(estimator):
    """They may need them positive: the model is that of a fit without a loop."""
    positive = np.exp(X[:, 0].astype(np.float64)) + 0.1
    loop = make_loop(estimator, "auto").fit(X, positive)
    alone = clone(estimator)
    alone.set_params(**{name: value for name, value in loop.estimator_.get_params().items() if "random_state" in name})
    alone.fit(X[loop.queried_], positive[loop.queried_])
    assert loop.predict(X) == pytest.approx(alone.predict(X))
    assert loop.estimator_.predict(X) == pytest.approx(loop.predict(X))


@pytest.mark.parametrize("strategy", ["auto", "lcmd", "max_det", "predictive_std", "ntk_lookahead", "uherding", "bait"])
@pytest.mark.parametrize("make", [make_net, lambda: RandomForestRegressor(10, random_state=0)], ids=["net", "forest"])
def test_the_answer_does_not_depend_on_units(make, strategy):
    """By a power of two nothing is rounded."""
    first, second = (make_loop(make(), strategy).fit(X, targets) for targets in (Y[:, 0], 1024 * Y[:, 0]))
    assert first.queried_.tolist() == second.queried_.tolist()
    assert second.predict(X) == pytest.approx(1024 * first.predict(X), rel=1e-6)


def test_only_queried_labels_matter():
    loop = make_loop().fit(X, y)
    other = y.copy()
    other[np.setdiff1d(np.arange(len(y)), loop.queried_)] += 1e5
    assert make_loop().fit(X, other).queried_.tolist() == loop.queried_.tolist()


def test_cross_validation_and_search():
    loop = make_loop(Ridge(), MaxDet(), n_rounds=1)
    scores = cross_val_score(loop, X, y, cv=2, scoring="neg_root_mean_squared_error", error_score="raise")
    assert scores.shape == (2,)
    assert (scores < 0).all()
    grid = {"query_strategy__noise": [1e-4, 1e-2], "estimator__alpha": [0.1, 10.0]}
    search = GridSearchCV(loop, grid, cv=2, error_score="raise").fit(X, y)
    assert set(search.best_params_) == set(grid)
    assert make_pipeline(StandardScaler(), loop).fit(X, y).predict(X).shape == y.shape
    transformed = TransformedTargetRegressor(loop, func=np.log, inverse_func=np.exp).fit(X, y)
    assert transformed.predict(X).shape == y.shape


def test_any_scoring_is_in_the_history():
    loop = make_loop(Ridge(), scoring="neg_mean_absolute_error").fit(X, y, eval_set=(X, y))
    assert loop.history_[-1]["eval_score"] == pytest.approx(-np.abs(loop.predict(X) - y).mean())


@pytest.mark.parametrize("targets", [y, Y], ids=["one", "two"])
def test_a_checkpoint_goes_on_where_it_was(tmp_path, targets):
    net = make_net(targets.reshape(len(X), -1).shape[1])
    make_loop(net, n_rounds=1, checkpoint=tmp_path).fit(X, targets)
    resumed = make_loop(net, n_rounds=3, checkpoint=tmp_path).fit(X, targets)
    at_once = make_loop(net, n_rounds=3).fit(X, targets)
    assert resumed.queried_.tolist() == at_once.queried_.tolist()
    assert (resumed.predict(X) == at_once.predict(X)).all()
    shutil.rmtree(tmp_path / "cache")  # the labels are in the journal
    session = make_loop(net, n_rounds=4, checkpoint=tmp_path).start(X)
    assert len(session.labels()) == 30
    assert len(session.ask()) == 6
    session.close()
    first = json.loads((tmp_path / "labels.jsonl").read_text().splitlines()[0])
    assert np.asarray(first["label"]) == pytest.approx(targets[at_once.queried_[0]])


def test_a_session_is_told_numbers():
    loop = make_loop(Ridge(), n_initial=6, query_size=3)
    with loop.start(X, ids=[f"s{i}" for i in range(len(X))]) as session:
        indices = session.ask()
        session.tell([float(y[i]) if k else None for k, i in enumerate(indices)])  # the first cannot be said
        assert session.state.declined == [indices[0]]
        session.relabel({f"s{indices[1]}": 5.0})
        assert session.labels()["label"].iloc[0] == 5.0
        session.tell(y[session.ask()])
        held = session.labels()["label"]
        assert f"numbers: from {held.min():g} to {held.max():g}, last" in repr(session)
        with pytest.raises(InvalidParameterError, match="Got the task regression"):
            session.audit()
    assert len(loop.queried_) == 8


def test_partial_targets_are_taken_at_the_start():
    known = y.copy()
    known[10:] = np.nan
    session = make_loop(Ridge()).start(X, known)
    assert len(session.labels()) == 10
    assert set(session.ask()).isdisjoint(range(10))


def test_datasets_and_data_frames():
    data = TensorDataset(torch.as_tensor(X), torch.as_tensor(Y[:, :1]))
    assert make_loop().fit(data).predict(data).shape == (80, 1)
    frame = pd.DataFrame(X, columns=list("abcd"))
    loop = make_loop(Ridge()).fit(frame, pd.Series(y))
    assert loop.feature_names_in_.tolist() == list("abcd")


@pytest.mark.parametrize(
    ("targets", "error", "text"),
    [
        (np.where(np.arange(80) == 3, np.nan, y), NonFiniteError, "contains NaN. Got 1 such"),
        (np.where(np.arange(80) == 3, np.inf, y), NonFiniteError, "contains infinity"),
        (np.full(80, 2.5), InvalidParameterError, r"must vary\. Got 2\.5 for all 80 samples"),
        (np.zeros((80, 2, 2)), InvalidParameterError, r"Got shape \(80, 2, 2\)"),
        (np.array(["a", "b"] * 40), InvalidParameterError, "must be numbers"),
        (y[:-1], InvalidParameterError, "one label for each of the 80 samples"),
        (1e300 * y, InvalidParameterError, r"up to 1e\+150\. Got 1.*e\+306\. Pass y in a larger unit"),
        ([[1.0, 2.0]] * 79 + [[1.0]], InvalidParameterError, r"as many numbers .* Got the shapes \[\(1,\), \(2,\)\]"),
        ([1.0] * 79 + [[1.0, 2.0]], InvalidParameterError, r"as many numbers .* Got the shapes \[\(\), \(2,\)\]"),
    ],
    ids=["nan", "inf", "constant", "shape", "text", "too few", "huge", "ragged", "rows among numbers"],
)
def test_bad_targets_are_named(targets, error, text):
    with pytest.raises(error, match=text):
        make_loop(Ridge()).fit(X, targets)


def test_a_regressor_of_one_number_says_so():
    for estimator in (GradientBoostingRegressor(), make_pipeline(StandardScaler(), SVR())):
        with pytest.raises(InvalidParameterError, match=r"must learn 2 labels .* Wrap it in .*MultiOutputRegressor"):
            make_loop(estimator).fit(X, Y)


def test_numbers_of_another_count_than_the_network_has_outputs():
    for n_outputs, targets in ((3, Y), (2, y), (1, Y)):
        with pytest.raises(InvalidParameterError, match=rf"must predict \d numbers .* Got {n_outputs} outputs"):
            make_loop(make_net(n_outputs)).fit(X, targets)


def test_a_row_of_another_length_is_refused_before_it_is_kept():
    session = make_loop(RandomForestRegressor(5, random_state=0), n_initial=3).start(X)
    with pytest.raises(InvalidParameterError, match="as many numbers for one sample as for another"):
        session.tell([[1.0, 2.0], [1.0, 2.0], [1.0]])
    assert len(session.labels()) == 0


def test_classifiers_and_regressors_are_told_apart():
    for wrong in (LogisticRegression(), NeuralNetClassifier(Numbers)):
        with pytest.raises(InvalidTypeError, match=r"'estimator' .* must be a regressor.*ActiveLearningClassifier"):
            make_loop(wrong).fit(X, y)
    for wrong in (Ridge(), make_net()):
        with pytest.raises(InvalidTypeError, match=r"'estimator' .* must be a classifier.*ActiveLearningRegressor"):
            ActiveLearningClassifier(wrong).fit(X, y)


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"initial": "stratified"}, "'initial' .* with regression"),
        ({"stop": StablePredictions()}, "'stop' .* Budget or MaxTime with regression"),
        ({"hold_out": "audit"}, "'hold_out' .* 'random' with regression"),
        ({"strategy": "margin"}, "task of Margin must be classification"),
        ({"initial": margin}, "task of Margin must be classification"),
    ],
    ids=["stratified", "stop", "audit", "margin", "margin at first"],
)
def test_what_is_for_classes_is_refused_before_anybody_labels(params, text):
    with pytest.raises((InvalidParameterError, InvalidTypeError), match=text):
        make_loop(Ridge(), **params).start(X)


def test_a_budget_may_stop_it():
    loop = make_loop(Ridge(), LCMD(), n_rounds=None, stop=Budget(20)).fit(X, y)
    assert loop.stop_reason_.startswith("stop: ")
    assert len(loop.queried_) == 24
