"""All of modAL on the installed packages, once skal is imported; on whichever releases are on the path."""

import importlib.metadata
import sys
import warnings
from functools import partial
from types import ModuleType, SimpleNamespace

import modAL
import modAL.expected_error
import modAL.models
import numpy as np
import pandas as pd
import pytest
import sklearn.utils
import torch
from modAL.acquisition import max_EI, max_PI, max_UCB
from modAL.batch import uncertainty_batch_sampling
from modAL.density import information_density
from modAL.disagreement import (
    consensus_entropy_sampling,
    max_disagreement_sampling,
    max_std_sampling,
    vote_entropy_sampling,
)
from modAL.expected_error import expected_error_reduction
from modAL.models import ActiveLearner, BayesianOptimizer, Committee, CommitteeRegressor
from modAL.multilabel import (
    SVM_binary_minimum,
    avg_confidence,
    avg_score,
    max_loss,
    max_score,
    mean_max_loss,
    min_confidence,
)
from modAL.uncertainty import entropy_sampling, margin_sampling, uncertainty_sampling
from modAL.utils import data as modal_data
from scipy import sparse as sp
from sklearn.base import clone
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import VotingClassifier
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from skorch import NeuralNetClassifier
from torch import nn

import skal
from skal.compat import _repairs
from skal.compat._repairs import REPAIRS, make_repairs

NEW_MODAL = importlib.metadata.version("modAL-python").startswith("0.4.2")

# labels of rows and columns: names; numbers that are positions of other rows; numbers that are no positions at all
FRAMES = {
    "names": lambda X: pd.DataFrame(X, columns=list("abcde")),
    "numbers": lambda X: pd.DataFrame(X, columns=[4, 3, 2, 1, 0], index=range(len(X))[::-1]),
    "shifted": lambda X: pd.DataFrame(X, columns=list("abcde"), index=range(500, 500 + len(X))),
}


@pytest.fixture(params=FRAMES.values(), ids=FRAMES)
def as_frame(request):
    return request.param


@pytest.fixture
def data(flat_data):
    """Labelled samples, a pool, and labels of both."""
    X, y = flat_data[0].astype(float), flat_data[1]
    return X[:20], y[:20], X[20:40], y[20:40]


def indices_of(learner, X_pool, n_instances=3):
    """What a learner queries, and a check that the samples are those rows."""
    indices, samples = learner.query(X_pool, n_instances=n_instances)
    assert isinstance(samples, pd.DataFrame) == isinstance(X_pool, pd.DataFrame)
    rows = X_pool.iloc[indices] if isinstance(X_pool, pd.DataFrame) else X_pool[indices]
    np.testing.assert_array_equal(samples, rows)
    return np.asarray(indices)


def classifier():
    return LinearDiscriminantAnalysis()


def scaled(output="default"):
    return make_pipeline(StandardScaler().set_output(transform=output), classifier())


ESTIMATORS = {
    "classifier": (classifier, False),
    "classifier, transformed": (classifier, True),
    "pipeline, transformed": (scaled, True),
    "pipeline of frames": (partial(scaled, "pandas"), False),
    "pipeline of frames, transformed": (partial(scaled, "pandas"), True),
    "voting, transformed": (
        lambda: VotingClassifier([("a", scaled("pandas")), ("b", scaled("pandas"))], voting="soft"),
        True,
    ),
}


STRATEGIES = [margin_sampling, entropy_sampling, uncertainty_batch_sampling]


@pytest.mark.parametrize(
    ("strategy", "name", "frame"),
    # each pair of the three once or oftener: what treats the samples does not know the strategy
    [
        (strategy, name, [*FRAMES][(i + j) % 3])
        for i, strategy in enumerate(STRATEGIES)
        for j, name in enumerate(ESTIMATORS)
    ],
)
def test_a_learner_treats_frames_as_arrays(data, strategy, name, frame):
    X, y, X_pool, y_pool = data
    estimator, on_transformed = ESTIMATORS[name]
    answers = []
    for convert in (np.asarray, FRAMES[frame]):
        learner = ActiveLearner(estimator(), strategy, convert(X), y, on_transformed=on_transformed)
        pool = convert(X_pool)
        first = indices_of(learner, pool)
        learner.teach(modal_data.retrieve_rows(pool, first), y_pool[first])
        answers.append((first.tolist(), indices_of(learner, pool).tolist()))
        assert type(learner.X_training) is type(pool)
        np.testing.assert_array_equal(learner.X_training, np.concatenate([X, X_pool[first]]))
    assert answers[0] == answers[1]


COMMITTEE_STRATEGIES = [
    vote_entropy_sampling,
    consensus_entropy_sampling,
    max_disagreement_sampling,
    uncertainty_sampling,
    uncertainty_batch_sampling,
]
MEMBERS = ["classifier", "classifier, transformed", "pipeline of frames", "pipeline of frames, transformed"]


@pytest.mark.parametrize(
    ("strategy", "name", "frame"),
    # each kind of frame with all members, and each strategy with all kinds of frames
    [
        (strategy, MEMBERS[(i + j) % 4], frame)
        for i, strategy in enumerate(COMMITTEE_STRATEGIES)
        for j, frame in enumerate(FRAMES)
    ],
)
def test_a_committee_treats_frames_as_arrays(data, strategy, name, frame):
    X, y, X_pool, y_pool = data
    estimator, on_transformed = ESTIMATORS[name]
    answers = []
    for convert in (np.asarray, FRAMES[frame]):
        learners = [ActiveLearner(estimator(), X_training=convert(X[i:]), y_training=y[i:]) for i in (0, 4, 8)]
        committee = Committee(learners, strategy, on_transformed=on_transformed)
        pool = convert(X_pool)
        first = indices_of(committee, pool)
        committee.teach(modal_data.retrieve_rows(pool, first), y_pool[first])
        answers.append((first.tolist(), indices_of(committee, pool).tolist(), committee.score(pool, y_pool)))
        assert [len(learner.X_training) for learner in committee] == [23, 19, 15]
        committee.rebag()
        committee.teach(pool, y_pool, bootstrap=True)
    assert answers[0] == answers[1]


def test_a_committee_of_regressors_treats_frames_as_arrays(data, as_frame):
    X, _, X_pool, _ = data
    answers = []
    for convert in (np.asarray, as_frame):
        learners = [ActiveLearner(LinearRegression(), X_training=convert(X[i:]), y_training=X[i:, 0]) for i in (0, 9)]
        committee = CommitteeRegressor(learners, max_std_sampling, on_transformed=True)
        pool = convert(X_pool)
        first = indices_of(committee, pool)
        committee.teach(modal_data.retrieve_rows(pool, first), X_pool[first, 0])
        answers.append((first.tolist(), committee.predict(pool)))
    assert answers[0][0] == answers[1][0]
    np.testing.assert_allclose(answers[0][1], answers[1][1])


@pytest.mark.parametrize("strategy", [max_EI, max_PI, max_UCB])
def test_an_optimizer_treats_frames_as_arrays(data, as_frame, strategy):
    X, _, X_pool, _ = data
    values, new_values = X[:, 0], X_pool[:, 0] + 5
    answers = []
    for convert in (np.asarray, as_frame):
        optimizer = BayesianOptimizer(
            GaussianProcessRegressor(optimizer=None), strategy, convert(X), values, on_transformed=True
        )
        np.testing.assert_array_equal(optimizer.get_max()[0], X[np.argmax(values)])
        pool = convert(X_pool)
        first = indices_of(optimizer, pool)
        optimizer.teach(modal_data.retrieve_rows(pool, first), new_values[first])
        best = first[np.argmax(new_values[first])]
        np.testing.assert_array_equal(optimizer.get_max()[0], X_pool[best])
        assert optimizer.get_max()[1] == new_values[best]
        answers.append((first.tolist(), indices_of(optimizer, pool).tolist()))
    assert answers[0] == answers[1]


class Recorder:
    """Remembers what it was fitted on."""

    def fit(self, X, y, **kwargs):
        self.X, self.y, self.kwargs = X, y, kwargs


BOOTSTRAPS = {
    "init": lambda X, y: ActiveLearner(Recorder(), X_training=X, y_training=y, bootstrap_init=True, weight=2),
    "fit": lambda X, y: ActiveLearner(Recorder()).fit(X, y, bootstrap=True, weight=2),
}


@pytest.mark.parametrize("make_y", [np.asarray, list, pd.Series, lambda y: pd.DataFrame({"y": y})])
@pytest.mark.parametrize("make", BOOTSTRAPS.values(), ids=BOOTSTRAPS)
def test_a_bootstrap_sample_of_a_frame(data, as_frame, make, make_y):
    X, _, X_pool, _ = data
    y = np.arange(len(X))
    learner = make(as_frame(X), make_y(y))
    drawn = np.ravel(learner.estimator.y)
    np.testing.assert_array_equal(learner.estimator.X, X[drawn])
    assert len(drawn) == len(X)
    assert len(set(drawn.tolist())) < len(X)
    assert learner.estimator.kwargs == {"weight": 2}
    learner.teach(as_frame(X_pool), make_y(y + len(X)), bootstrap=True, only_new=True)
    np.testing.assert_array_equal(learner.estimator.X, X_pool[np.ravel(learner.estimator.y) - len(X)])
    learner.teach(as_frame(X_pool), make_y(y), bootstrap=True)
    assert isinstance(learner.estimator.X, pd.DataFrame)


@pytest.mark.parametrize("make_y", [pd.Series, lambda y: pd.DataFrame({"y": y})])
def test_labels_of_pandas_are_added(data, as_frame, make_y):
    X, y, X_pool, y_pool = data
    learner = ActiveLearner(Recorder(), X_training=as_frame(X), y_training=make_y(y))
    learner.teach(as_frame(X_pool), make_y(y_pool))
    assert type(learner.y_training) is type(make_y(y))
    np.testing.assert_array_equal(np.ravel(learner.y_training), np.concatenate([y, y_pool]))


def expected_errors(learner, X_pool, loss):
    """Roy and McCallum's expected error after each sample of the pool, from the formula."""
    X, y = np.asarray(learner.X_training), np.asarray(learner.y_training)
    proba, errors = learner.estimator.predict_proba(X_pool), []
    for i in range(len(X_pool)):
        rest, error = np.delete(X_pool, i, axis=0), 0.0
        for c, label in enumerate(np.unique(y)):
            after = clone(learner.estimator).fit(np.vstack([X, X_pool[i]]), np.append(y, label)).predict_proba(rest)
            lost = 1 - after.max(axis=1) if loss == "binary" else -(after * np.log(after)).sum(axis=1)
            error += proba[i, c] * lost.sum()
        errors.append(error)
    return np.array(errors)


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
@pytest.mark.parametrize("loss", ["binary", "log"])
@pytest.mark.parametrize("convert", [np.asarray, sp.csr_matrix, *FRAMES.values()])
def test_expected_error_reduction(data, convert, loss):
    X, y, X_pool = *data[:2], data[2][:8]
    sparse_too = LogisticRegression(solver="newton-cg")
    learner = ActiveLearner(sparse_too, partial(expected_error_reduction, loss=loss), convert(X), y)
    dense = ActiveLearner(clone(sparse_too), X_training=X, y_training=y)
    expected = np.argsort(expected_errors(dense, X_pool, loss))[:3]
    indices, _ = learner.query(convert(X_pool), n_instances=3)
    assert set(indices.tolist()) == set(expected.tolist())


def test_expected_error_reduction_takes_its_arguments(data):
    X, y, X_pool, _ = data
    learner = ActiveLearner(classifier(), expected_error_reduction, X, y)
    assert len(learner.query(X_pool, p_subsample=0.5, random_tie_break=True)[0]) == 1
    with pytest.raises(AssertionError, match="p_subsample"):
        expected_error_reduction(learner, X_pool, p_subsample=1.5)
    assert modAL.expected_error.__spec__.origin == modAL.expected_error.__file__
    assert modAL.expected_error.__package__ == "modAL"


MULTILABEL = [max_loss, mean_max_loss, min_confidence, avg_confidence, max_score, avg_score, SVM_binary_minimum]


@pytest.mark.parametrize(
    ("strategy", "learner_class", "frame"),
    [
        (strategy, (ActiveLearner, skal.ActiveLearner)[(i + j) % 2], frame)
        for i, strategy in enumerate(MULTILABEL)
        for j, frame in enumerate(FRAMES)
    ],
)
def test_multilabel_strategies_in_a_learner(data, strategy, learner_class, frame):
    X, _, X_pool, _ = data
    as_frame = FRAMES[frame]
    y, y_pool = (X[:, :3] > 0.5).astype(int), (X_pool[:, :3] > 0.5).astype(int)

    class WithProbabilities(OneVsRestClassifier):
        def predict_proba(self, X):
            return 1 / (1 + np.exp(-self.decision_function(X)))

    estimator = WithProbabilities(LinearSVC(dual=False))
    learner = learner_class(estimator, strategy, as_frame(X), y)
    indices, samples = learner.query(as_frame(X_pool))
    direct = strategy(learner if strategy is SVM_binary_minimum else estimator, as_frame(X_pool))
    assert np.all(indices == (direct[0] if isinstance(direct, tuple) else direct))
    np.testing.assert_array_equal(np.ravel(samples), np.ravel(X_pool[indices]))
    rows = np.atleast_1d(indices)
    learner.teach(as_frame(X_pool).iloc[rows], y_pool[rows])
    assert len(learner.y_training) == 21


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_information_density_of_a_frame(data, as_frame, metric):
    X = data[0]
    np.testing.assert_allclose(information_density(as_frame(X), metric), information_density(X, metric))


class WithDropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))

    def forward(self, x):
        return self.layers(x)


@pytest.mark.skipif(not NEW_MODAL, reason="modAL.dropout came with 0.4.2")
@pytest.mark.parametrize(
    "name", ["mc_dropout_bald", "mc_dropout_mean_st", "mc_dropout_max_entropy", "mc_dropout_max_variationRatios"]
)
def test_dropout_strategies(flat_data, name):
    import modAL.dropout
    from modAL.models import DeepActiveLearner

    X, y = torch.from_numpy(flat_data[0]), torch.from_numpy(flat_data[1])
    net = NeuralNetClassifier(WithDropout, criterion=nn.CrossEntropyLoss, train_split=None, verbose=0, max_epochs=2)
    learner = DeepActiveLearner(net, getattr(modAL.dropout, name))
    learner.teach(X[:20], y[:20])
    indices, samples, metrics = learner.query(X[20:], n_instances=4, num_cycles=5, return_metrics=True)
    assert torch.equal(samples, X[20:][indices])
    assert len(metrics) == 4
    learner.teach(samples, y[20:][indices], warm_start=False)
    assert 0 <= learner.score(X, y) <= 1
    assert "DeepActiveLearner" in repr(learner)
    own = skal.ActiveLearner(clone(net), getattr(modAL.dropout, name), X[:20], y[:20])
    indices, samples = own.query(X[20:], n_instances=4, num_cycles=5)
    assert torch.equal(samples, X[20:][torch.from_numpy(indices)])


@pytest.mark.parametrize("cls", [ActiveLearner, BayesianOptimizer])
def test_learners_are_estimators(data, cls):
    X, y, *_ = data
    learner = cls(LinearRegression(), X_training=X, y_training=y)
    assert learner.get_params(deep=False)["bootstrap_init"] is False
    assert cls.__name__ in repr(learner)
    np.testing.assert_allclose(clone(learner).predict(X), learner.predict(X))


def undone(function):
    return getattr(function, "__wrapped__", function)


def repaired():
    """Every repair that has been made: where it is, its name, and the wrapper."""
    modules = [module for name, module in sys.modules.items() if name.split(".")[0] == "modAL"]
    places = [*modules, modAL.models.base.BaseLearner, ActiveLearner]
    return [
        (place, name, value)
        for place in places
        for name, value in vars(place).items()
        if hasattr(value, "_repaired_by_skal")
    ]


def test_every_function_is_repaired_where_it_is_needed():
    needed = {repair.name for repair in REPAIRS}
    if not NEW_MODAL:  # 0.4.1 takes the rows of a frame by position
        needed.remove("retrieve_rows")
    assert {name for _, name, _ in repaired()} == needed


def test_repairs_are_made_once():
    before = repaired()
    assert make_repairs() is False
    assert repaired() == before
    for _, _, wrapper in before:
        assert not hasattr(undone(wrapper), "_repaired_by_skal")


def test_repairs_leave_other_packages_alone():
    assert sklearn.utils.check_X_y.__module__ == "sklearn.utils.validation"
    assert not hasattr(np, "float")
    assert not hasattr(pd.DataFrame, "append")
    for place, name, wrapper in repaired():
        original = undone(wrapper)
        if original.__module__.startswith("modAL"):
            assert original.__name__ == name
        else:
            assert (place.__name__.split(".")[0], name) == ("modAL", "check_X_y")


@pytest.mark.parametrize("repair", REPAIRS, ids=lambda repair: repair.name)
def test_without_a_repair_the_function_fails_its_probe(monkeypatch, repair):
    """So that the tests above show that the repair is needed, and that it works."""
    made = [(place, wrapper) for place, name, wrapper in repaired() if name == repair.name]
    for place, wrapper in made:
        assert _repairs._runs(repair.works, wrapper)
        assert not _repairs._runs(repair.works, undone(wrapper))
        monkeypatch.setattr(place, repair.name, undone(wrapper))
    assert make_repairs() is bool(made)
    assert make_repairs() is False


def test_batch_strategies_find_a_bool_where_numpy_has_none(monkeypatch):
    """As in numpy 1.24 to 1.26; numpy itself stays as it is."""
    learner = ActiveLearner(GaussianNB(), X_training=np.array([[0.0], [4.0]]), y_training=np.array([0, 1]))
    X_pool = np.array([[1.0], [2.0], [2.1], [3.9]])
    expected = uncertainty_batch_sampling(learner, X_pool, 3)
    monkeypatch.setattr(modAL.batch, "np", np)
    with monkeypatch.context() as without:
        without.setattr(_repairs, "np", SimpleNamespace())
        assert _repairs._give_batch_a_bool() is True
        assert _repairs._give_batch_a_bool() is False
    assert modAL.batch.np is not np
    assert modAL.batch.np.bool is bool
    found = uncertainty_batch_sampling(learner, X_pool, 3)
    assert all(map(np.array_equal, found, expected)) if isinstance(found, tuple) else np.array_equal(found, expected)


def test_functions_that_work_are_left_alone(monkeypatch):
    def data_vstack(blocks):
        return pd.concat(blocks)

    def data_hstack(blocks):
        raise NotImplementedError

    module = ModuleType("modAL.of_the_future")
    module.data_vstack, module.data_hstack = data_vstack, data_hstack
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert make_repairs() is True
    assert module.data_vstack is data_vstack
    assert undone(module.data_hstack) is data_hstack


def test_repairs_draw_no_random_numbers(monkeypatch):
    for place, name, wrapper in repaired():
        monkeypatch.setattr(place, name, undone(wrapper))
    np.random.seed(0)
    expected = np.random.rand()
    np.random.seed(0)
    assert make_repairs() is True
    assert np.random.rand() == expected


@pytest.mark.parametrize("numpy_has_float", [False, True])
def test_expected_error_is_imported_as_it_is_where_that_works(monkeypatch, numpy_has_float):
    name = "modAL.expected_error"
    monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(modAL, "expected_error", None)
    if numpy_has_float:
        monkeypatch.setattr(np, "float", float, raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _repairs._import_expected_error() is not numpy_has_float
        assert _repairs._import_expected_error() is False
    assert sys.modules[name] is modAL.expected_error
    annotation = modAL.expected_error.expected_error_reduction.__annotations__["p_subsample"]
    assert annotation == (float if numpy_has_float else "np.float")


@pytest.mark.parametrize("name", ["force_all_finite", "ensure_all_finite"])
def test_both_names_of_the_renamed_parameter(name):
    checks = [wrapper for _, function, wrapper in repaired() if function == "check_X_y"]
    assert checks
    for check in checks:
        assert np.isnan(check(np.array([[np.nan], [1.0]]), [0, 1], **{name: False})[0][0, 0])
        with pytest.raises(ValueError, match="NaN"):
            check(np.array([[np.nan], [1.0]]), [0, 1], **{name: True})


def test_rows_of_a_frame_are_rows_by_position(data, as_frame):
    X = data[0]
    frame = as_frame(X)
    np.testing.assert_array_equal(modal_data.retrieve_rows(frame, 3), X[3])
    np.testing.assert_array_equal(modal_data.retrieve_rows(frame, [3, 1]), X[[3, 1]])
    np.testing.assert_array_equal(modal_data.drop_rows(frame, 3), np.delete(X, 3, axis=0))
    assert [position for position, _ in modal_data.enumerate_data(frame)] == list(range(20))
    row = next(iter(modal_data.enumerate_data(frame)))[1]
    added = modal_data.add_row(frame, row)
    np.testing.assert_array_equal(added, np.vstack([X, X[0]]))
    assert (added.dtypes == frame.dtypes).all()
    assert added.columns.equals(frame.columns)
    np.testing.assert_array_equal(modal_data.data_hstack((frame, frame)), np.hstack([X, X]))


def test_a_row_keeps_the_types_of_its_columns():
    frame = pd.DataFrame({"n": [1, 2], "x": [0.5, 1.5], "name": ["a", "b"]})
    row = frame.iloc[1]
    assert (modal_data.data_vstack([frame, row]).dtypes == frame.dtypes).all()


def test_what_is_no_frame_goes_to_modals_function():
    assert modal_data.data_vstack(([1], [2])) == [1, 2]
    assert sp.issparse(modal_data.data_vstack((sp.eye(2), sp.eye(2))))
    with pytest.raises(TypeError, match="not supported"):
        modal_data.data_vstack((1, 2))
    learner = SimpleNamespace(estimator=None)
    with pytest.raises(AttributeError):
        modAL.multilabel._SVM_loss(learner, np.ones((2, 2)))
