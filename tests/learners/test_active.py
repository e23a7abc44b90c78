"""Tests of skal.ActiveLearner. They run on every release of modAL and scikit-learn that is supported."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from modAL.batch import uncertainty_batch_sampling
from modAL.models import ActiveLearner as ModalActiveLearner
from modAL.multilabel import SVM_binary_minimum
from modAL.uncertainty import entropy_sampling, margin_sampling, uncertainty_sampling
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import GaussianNB, MultinomialNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from skorch import NeuralNetClassifier
from torch import nn
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from skal import ActiveLearner
from skal.exceptions import (
    InvalidParameterError,
    InvalidQueryError,
    InvalidTypeError,
    NetworkError,
    NonFiniteError,
    NotFittedError,
)
from skal.features import Cache
from skal.strategies import (
    CoreSet,
    Entropy,
    Margin,
    MaxHerding,
    UHerding,
    entropy,
    least_confidence,
    margin,
    random_sampling,
)


class Recorder(ClassifierMixin, BaseEstimator):
    """Remembers what it was fitted on."""

    def fit(self, X, y, **fit_kwargs):
        self.fits_ = [*getattr(self, "fits_", []), (X, y, fit_kwargs)]
        self.classes_ = np.unique(y)
        return self


def first_ones(learner, X_pool, n_instances=1):
    return np.arange(n_instances)


@pytest.fixture
def recorded():
    X, y = np.arange(8.0).reshape(4, 2), np.array([0, 1, 0, 1])
    return ActiveLearner(Recorder(), first_ones, X_training=X, y_training=y)


def test_is_modals_learner():
    assert issubclass(ActiveLearner, ModalActiveLearner)
    learner = ActiveLearner(GaussianNB())
    assert learner.X_training is None
    assert learner.y_training is None
    assert learner.query_strategy is uncertainty_sampling
    assert repr(learner).startswith("ActiveLearner(")


def test_init_fits_and_passes_arguments_on():
    X, y = np.ones((3, 2)), [0, 1, 1]
    learner = ActiveLearner(Recorder(), first_ones, X, y, sample_weight=[1, 2, 3])
    fitted_X, fitted_y, fit_kwargs = learner.estimator.fits_[0]
    assert fitted_X is X
    assert fitted_y is y
    assert fit_kwargs == {"sample_weight": [1, 2, 3]}


def test_teach_adds_and_fits_on_all(recorded):
    recorded.teach(np.array([[8.0, 9.0]]), np.array([1]), sample_weight=5)
    assert recorded.X_training.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert recorded.y_training.tolist() == [0, 1, 0, 1, 1]
    X, y, fit_kwargs = recorded.estimator.fits_[-1]
    assert (len(X), len(y), fit_kwargs) == (5, 5, {"sample_weight": 5})


def test_teach_without_fit_only_adds(recorded):
    recorded.teach(np.array([[8.0, 9.0]]), np.array([1]), fit=False)
    recorded.teach(np.array([[0.0, 0.0]]), np.array([0]), fit=False)
    assert len(recorded.estimator.fits_) == 1
    assert recorded.y_training.tolist() == [0, 1, 0, 1, 1, 0]
    recorded.teach(np.array([[1.0, 1.0]]), np.array([0]))
    assert len(recorded.estimator.fits_[-1][0]) == 7


def test_teach_only_new_fits_on_the_new_and_remembers_all(recorded):
    recorded.teach(np.array([[8.0, 9.0]]), np.array([1]), only_new=True)
    assert recorded.estimator.fits_[-1][0].tolist() == [[8, 9]]
    assert len(recorded.y_training) == 5


def test_bootstrap_draws_with_replacement(recorded):
    np.random.seed(0)
    X, y = np.arange(50.0).reshape(-1, 1), np.arange(50)
    for fit in (
        lambda: recorded.fit(X, y, bootstrap=True),
        lambda: recorded.teach(X, y, bootstrap=True, only_new=True),
    ):
        fit()
        drawn_X, drawn_y, _ = recorded.estimator.fits_[-1]
        assert drawn_X[:, 0].tolist() == drawn_y.tolist()
        assert len(drawn_y) == 50
        assert len(set(drawn_y.tolist())) < 50
    learner = ActiveLearner(Recorder(), first_ones, X, y, bootstrap_init=True)
    assert len(set(learner.estimator.fits_[0][1].tolist())) < 50
    assert learner.y_training.tolist() == y.tolist()


def test_fit_forgets(recorded):
    assert recorded.fit(np.ones((2, 2)), np.array([0, 1])) is recorded
    assert recorded.y_training.tolist() == [0, 1]


def test_the_first_teach_starts_the_labelled_set():
    learner = ActiveLearner(Recorder(), first_ones)
    learner.teach(np.ones((2, 2)), [0, 1])
    assert learner.y_training == [0, 1]
    assert len(learner.estimator.fits_) == 1


def test_predictions_and_score_are_the_estimators(flat_data):
    X, y = flat_data
    learner = ActiveLearner(GaussianNB(), entropy, X, y)
    estimator = GaussianNB().fit(X, y)
    assert np.array_equal(learner.predict(X), estimator.predict(X))
    assert np.array_equal(learner.predict_proba(X), estimator.predict_proba(X))
    assert learner.score(X, y) == estimator.score(X, y)


@pytest.mark.parametrize("n_instances", [1, 2, 5, 60])
@pytest.mark.parametrize("strategy", [entropy, margin, least_confidence, random_sampling, Entropy()])
def test_query_returns_indices_and_rows(flat_data, strategy, n_instances):
    X, y = flat_data
    learner = ActiveLearner(GaussianNB(), strategy, X, y)
    indices, samples = learner.query(X, n_instances=n_instances)
    assert indices.dtype == np.int64
    assert len(set(indices.tolist())) == n_instances
    assert np.array_equal(samples, X[indices])


def test_metrics_are_returned_on_request(flat_data):
    X, y = flat_data
    learner = ActiveLearner(GaussianNB(), lambda *a, **k: Entropy().select(*a, **k), X, y)
    indices, samples, metrics = learner.query(X, 3, return_metrics=True)
    np.testing.assert_allclose(metrics, Entropy().scores(learner, X)[indices])
    assert len(samples) == 3
    assert len(learner.query(X, 3)) == 2


@pytest.mark.parametrize("strategy", [entropy, Entropy(), partial(entropy, random_state=0)])
def test_skals_strategies_give_their_metrics(flat_data, strategy):
    X, y = flat_data
    learner = ActiveLearner(GaussianNB(), strategy, X, y)
    indices, _, metrics = learner.query(X, 3, return_metrics=True)
    np.testing.assert_allclose(metrics, Entropy().scores(learner, X)[indices])
    # asked directly, or after a query that failed, they answer in indices again
    with pytest.raises(InvalidParameterError, match="n_instances"):
        learner.query(X, 0, return_metrics=True)
    assert isinstance(strategy(learner, X, 3), np.ndarray)


def test_a_strategy_without_metrics_gives_none(recorded):
    assert recorded.query(np.ones((4, 2)), 2, return_metrics=True)[2] is None


def test_arguments_reach_the_strategy(flat_data):
    X, y = flat_data
    learner = ActiveLearner(GaussianNB(), random_sampling, X, y)
    first, second = (learner.query(X, 5, random_state=3)[0] for _ in range(2))
    assert np.array_equal(first, second)
    with pytest.raises(InvalidParameterError, match="gamma"):
        learner.query(X, 5, gamma=3)


@pytest.mark.parametrize(
    ("modals", "skals"),
    [(uncertainty_sampling, least_confidence), (margin_sampling, margin), (entropy_sampling, entropy)],
)
@pytest.mark.parametrize("n_instances", [1, 2, 5])
@pytest.mark.parametrize("use_net", [True, False])
def test_modals_own_strategies_choose_as_skals(flat_data, make_net, modals, skals, n_instances, use_net):
    X, y = flat_data
    calls = []

    def counting(*args, **kwargs):
        calls.append(1)
        return modals(*args, **kwargs)

    torch.manual_seed(0)
    learner = ActiveLearner(make_net() if use_net else GaussianNB(), counting, X[:20], y[:20])
    indices, samples = learner.query(X[20:], n_instances=n_instances)
    assert len(calls) == 1
    assert np.array_equal(samples, X[20:][indices])
    expected = skals(learner, X[20:], n_instances)
    assert set(indices.tolist()) == set(expected.tolist())


@pytest.mark.parametrize("n_instances", [1, 2, 5])
def test_modals_batch_strategy(flat_data, make_net, n_instances):
    X, y = flat_data
    for estimator in (GaussianNB(), make_net()):
        learner = ActiveLearner(estimator, uncertainty_batch_sampling, X[:20], y[:20])
        indices, samples = learner.query(X[20:], n_instances=n_instances)
        assert len(set(indices.tolist())) == n_instances
        assert np.array_equal(samples, X[20:][indices])
        learner.teach(samples, y[20:][indices])


def test_without_n_instances_a_foreign_function_decides(flat_data):
    """As in modAL: its own default, or that of a partial; skal's strategies give one sample."""
    X, y = flat_data

    def numbers(query_strategy, **given):
        learner = ActiveLearner(GaussianNB(), query_strategy, X[:20], y[:20])
        return len(learner.query(X[20:], **given)[0])

    assert numbers(uncertainty_batch_sampling) == 20
    assert numbers(partial(uncertainty_batch_sampling, n_instances=3)) == 3
    assert numbers(partial(uncertainty_batch_sampling, n_instances=3), n_instances=2) == 2
    assert numbers(uncertainty_sampling) == numbers(first_ones) == numbers(margin) == numbers(Entropy()) == 1
    assert numbers(partial(margin, n_instances=3)) == numbers(partial(Entropy(), n_instances=3)) == 3
    assert numbers(partial(margin, n_instances=3, subset=30), n_instances=2) == 2
    indices = ActiveLearner(GaussianNB(), partial(margin, n_instances=3), X, y).query(X, return_metrics=True)
    np.testing.assert_array_equal(indices[2], margin.scores(ActiveLearner(GaussianNB(), margin, X, y), X)[indices[0]])


class OldForm:
    """A strategy in modAL's first form: a function of learner and pool, with keyword arguments of its own."""

    def __init__(self, answer):
        self.answer = answer
        self.calls = []

    def __call__(self, classifier, X, threshold=0.5):
        self.calls.append(threshold)
        return self.answer


POOL = np.arange(8.0).reshape(4, 2)


def test_the_old_form_is_called_without_n_instances(recorded):
    recorded.query_strategy = strategy = OldForm(np.array([2]))
    for given in ({}, {"n_instances": 1}, {"threshold": 0.9}, {"n_instances": 1, "threshold": 0.9}):
        indices, samples = recorded.query(POOL, **given)
        assert indices.tolist() == [2]
        assert samples.tolist() == [[4, 5]]
    assert strategy.calls == [0.5, 0.5, 0.9, 0.9]


def test_the_old_form_is_asked_for_one_sample_only(recorded):
    recorded.query_strategy = strategy = OldForm(np.array([2]))
    with pytest.raises(InvalidParameterError, match=r"'n_instances' parameter of OldForm must be 1, since .* Got 3"):
        recorded.query(POOL, 3)
    recorded.query_strategy = partial(lambda classifier, X: 0)
    with pytest.raises(InvalidParameterError, match="parameter of <lambda> must be 1"):
        recorded.query(POOL, n_instances=2)
    assert not strategy.calls


@pytest.mark.parametrize("answer", [[3, 1], np.array([1, 1, 0]), (np.array([3, 1]), POOL[[3, 1]])])
def test_the_old_form_chooses_how_many(recorded, answer):
    """What it chooses is handed on, with duplicates, as modAL does."""
    recorded.query_strategy = OldForm(answer)
    chosen = np.asarray(answer[0] if isinstance(answer, tuple) else answer)
    indices, samples = recorded.query(POOL)
    assert indices.tolist() == chosen.tolist()
    assert samples.tolist() == POOL[chosen].tolist()


def answers_of(cls, answer, X_pool, **given):
    return cls(Recorder(), OldForm(answer)).query(X_pool, **given)


@pytest.mark.parametrize(
    "X_pool", [POOL, pd.DataFrame(POOL, columns=["a", "b"], index=range(7, 11)), sp.csr_matrix(POOL), POOL.tolist()]
)
def test_one_number_of_the_old_form_is_handed_on_as_by_modal(X_pool):
    for answer in (2, np.int64(2), np.array(2)):
        expected = answers_of(ModalActiveLearner, answer, X_pool)
        indices, samples = answers_of(ActiveLearner, answer, X_pool)
        assert (indices, indices.dtype, np.ndim(indices)) == (2, np.int64, 0)
        assert type(samples) is type(expected[1])
        as_arrays = [np.asarray(part.todense() if sp.issparse(part) else part) for part in (samples, expected[1])]
        np.testing.assert_array_equal(*as_arrays)
        # whoever says how many wants that many rows
        indices, samples = answers_of(ActiveLearner, answer, X_pool, n_instances=1)
        assert indices.tolist() == [2]
        assert np.shape(samples) == (1, 2)


def test_one_number_of_the_old_form_in_other_pools():
    assert torch.equal(answers_of(ActiveLearner, 2, torch.from_numpy(POOL))[1], torch.from_numpy(POOL[2]))
    dataset = TensorDataset(torch.from_numpy(POOL))
    _, samples = answers_of(ActiveLearner, torch.tensor(2), dataset)
    assert len(samples) == 1
    assert torch.equal(samples[0][0], torch.from_numpy(POOL[2]))


@pytest.mark.parametrize("answer", [7, [0, 9], [-1], 0.5, "first", np.array([], dtype=int)])
def test_the_old_form_is_checked_too(recorded, answer):
    recorded.query_strategy = OldForm(answer)
    with pytest.raises(InvalidQueryError, match="query strategy OldForm must return"):
        recorded.query(POOL)


def test_modals_strategies_of_the_old_form():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3))
    y = (X > 0).astype(int)
    learner = ActiveLearner(OneVsRestClassifier(LinearSVC(dual=False)), SVM_binary_minimum, X[:20], y[:20])
    closest = np.argmin(np.abs(learner.estimator.decision_function(X[20:])).min(axis=1))
    index, sample = learner.query(X[20:])
    assert index == closest
    assert sample.tolist() == X[20 + index].tolist()
    learner.teach(sample[None], y[20 + index][None])
    assert learner.y_training.shape == (21, 3)
    with pytest.raises(InvalidParameterError, match="SVM_binary_minimum"):
        learner.query(X[20:], n_instances=2)


def test_a_function_that_does_not_say_what_it_takes(recorded):
    class Opaque:
        __signature__ = "none"

        def __call__(self, classifier, X, n_instances=1):
            return np.arange(n_instances)

    recorded.query_strategy = Opaque()
    assert recorded.query(POOL)[0].tolist() == [0]
    assert recorded.query(POOL, 2)[0].tolist() == [0, 1]


def test_fit_teach_and_score_take_what_modals_take(flat_data):
    X, y = flat_data
    weights = np.linspace(0.5, 1.5, 60)
    learners = [cls(GaussianNB(), X_training=X[:30], y_training=y[:30]) for cls in (ModalActiveLearner, ActiveLearner)]
    scores = []
    for learner in learners:
        learner.teach(X=X[30:], y=y[30:], bootstrap=False, only_new=False, sample_weight=weights)
        learner.fit(X=X, y=y, bootstrap=False, sample_weight=weights)
        scores.append(learner.score(X, y, sample_weight=weights))
        learner.teach(X, y, only_new=True, sample_weight=weights)
        assert learner.predict(X).shape == (60,)
    assert scores[0] == scores[1]
    several = ActiveLearner(KNeighborsClassifier(1), X_training=X[:3, 0, None], y_training=np.eye(3, dtype=int))
    several.teach(X[3:5, 0, None], [[1, 0, 0], [0, 1, 0]])
    assert len(several.y_training) == 5
    flat = ActiveLearner(Recorder(), X_training=np.array(["a", "b"]), y_training=[0, 1])
    flat.teach(["c"], [1])
    assert flat.X_training.tolist() == ["a", "b", "c"]


def as_memory_map(X, tmp_path):
    np.save(tmp_path / "X.npy", X)
    return np.load(tmp_path / "X.npy", mmap_mode="r")


POOLS = {
    "array": lambda X, _: X,
    "tensor": lambda X, _: torch.from_numpy(X),
    "memory map": as_memory_map,
    "dataset": lambda X, _: TensorDataset(torch.from_numpy(X), torch.arange(len(X)) % 3),
}


@pytest.mark.parametrize("make_pool", POOLS.values(), ids=POOLS)
def test_a_loop_on_every_kind_of_pool(make_pool, flat_data, make_net, tmp_path):
    X, y = flat_data
    for name in ("start", "pool"):
        (tmp_path / name).mkdir()
    X_start, X_pool = make_pool(X[:15], tmp_path / "start"), make_pool(X[15:], tmp_path / "pool")
    torch.manual_seed(0)
    is_dataset = isinstance(X_pool, TensorDataset)
    learner = ActiveLearner(make_net(), entropy, X_start, None if is_dataset else y[:15])
    expected = entropy(learner, X[15:], 4)
    indices, samples = learner.query(X_pool, 4)
    assert indices.tolist() == expected.tolist()
    new_y = y[15:][indices]
    learner.teach(samples, None if is_dataset else new_y)
    kinds = {"dataset": ConcatDataset, "tensor": torch.Tensor}
    kind = next((cls for name, cls in kinds.items() if make_pool is POOLS[name]), np.ndarray)
    assert isinstance(learner.X_training, kind)
    assert len(learner.X_training) == 19
    if is_dataset:
        assert isinstance(samples, Subset)
    else:
        assert np.array_equal(np.asarray(samples), X[15:][indices])
        assert learner.y_training.tolist() == [*y[:15], *new_y]
    assert len(learner.query(X_pool, 2)[0]) == 2


def test_a_loop_on_a_data_frame(flat_data, make_net):
    X, y = flat_data
    frame, labels = pd.DataFrame(X, columns=list("abcde"), index=range(100, 160)), pd.Series(y, index=range(100, 160))
    for estimator in (GaussianNB(), make_pipeline(StandardScaler(), make_net())):
        learner = ActiveLearner(estimator, margin, frame[:15], labels[:15].to_numpy())
        indices, samples = learner.query(frame[15:], 3)
        assert isinstance(samples, pd.DataFrame)
        assert samples.index.tolist() == (115 + indices).tolist()
        learner.teach(samples, labels.to_numpy()[15:][indices])
        assert learner.X_training.shape == (18, 5)
        assert learner.X_training.columns.tolist() == list("abcde")


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(2, 3), nn.Linear(3, 3)

    def forward(self, left, right):
        return self.left(left) + self.right(right)


def test_a_loop_on_dicts(flat_data):
    X, y = flat_data
    inputs = {"left": X[:, :2], "right": X[:, 2:]}
    start, pool = ({key: part[rows] for key, part in inputs.items()} for rows in (slice(15), slice(15, 60)))
    net = NeuralNetClassifier(TwoInputs, criterion=nn.CrossEntropyLoss, train_split=None, verbose=0, max_epochs=2)
    learner = ActiveLearner(net, entropy, start, y[:15])
    indices, samples = learner.query(pool, 3)
    assert set(samples) == {"left", "right"}
    assert np.array_equal(samples["right"], X[15:][indices][:, 2:])
    learner.teach(samples, y[15:][indices])
    assert learner.X_training["left"].shape == (18, 2)
    with pytest.raises(InvalidTypeError, match=r"inputs \['left', 'right'\]"):
        learner.teach({"left": X[:1, :2]}, y[:1])


def test_a_loop_on_sparse_matrices():
    X, y = sp.csr_matrix(np.eye(12)), np.arange(12) % 2
    learner = ActiveLearner(MultinomialNB(), entropy, X[:6], y[:6])
    indices, samples = learner.query(X[6:], 2)
    learner.teach(samples, y[6:][indices])
    assert learner.X_training.shape == (8, 12)


def test_lists_stay_lists():
    learner = ActiveLearner(KNeighborsClassifier(1), entropy, [[0.0], [1.0]], ["a", "b"])
    indices, samples = learner.query([[0.2], [0.5]], 1)
    learner.teach(samples, ["a"])
    assert len(learner.X_training) == 3
    assert learner.y_training == ["a", "b", "a"]
    assert indices.shape == (1,)


@pytest.mark.parametrize("y", [[0], [0, 1, 2]])
def test_every_sample_needs_a_label(recorded, y):
    with pytest.raises(InvalidParameterError, match=r"each of the 2 samples\. Got \d labels instead"):
        recorded.teach(np.ones((2, 2)), y)
    assert len(recorded.y_training) == 4


def test_labels_cannot_be_left_out(recorded):
    with pytest.raises(InvalidTypeError, match=r"y of the labelled samples must be given\. Got None"):
        recorded.teach(np.ones((2, 2)), None)


def test_labels_stay_where_they_began():
    dataset = TensorDataset(torch.ones(3, 2), torch.tensor([0, 1, 0]))
    learner = ActiveLearner(Recorder(), first_ones)
    learner.estimator.fit = lambda X, y: None
    learner.fit(dataset, None)
    with pytest.raises(InvalidTypeError, match=r"y given to teach must be None"):
        learner.teach(dataset, [0, 1, 0])
    learner.teach(dataset, None)
    assert len(learner.X_training) == 6


def test_nothing_new_is_refused(recorded):
    with pytest.raises(InvalidParameterError, match=r"at least one sample\. Got none\. Skip teach"):
        recorded.teach(np.empty((0, 2)), [])


def test_nonfinite_samples_are_refused_unless_allowed(recorded):
    X = np.array([[0.0, np.nan]])
    with pytest.raises(NonFiniteError, match=r"X must be finite.*row 0"):
        recorded.teach(X, [0])
    learner = ActiveLearner(Recorder(), first_ones, X, [0], force_all_finite=False)
    learner.teach(X, [1])
    assert len(learner.y_training) == 2


def test_samples_of_another_shape_are_refused_and_nothing_is_added(recorded):
    with pytest.raises(
        InvalidParameterError, match=r"shape of those taught so far \(\(4, 2\)\)\. Got \(1, 3\) instead"
    ):
        recorded.teach(np.ones((1, 3)), [0])
    assert recorded.X_training.shape == (4, 2)
    assert len(recorded.y_training) == 4


def test_a_strategy_must_be_callable():
    words = r"'query_strategy' parameter of ActiveLearner must be callable, or the name of a strategy\. Got 3"
    with pytest.raises(InvalidTypeError, match=words):
        ActiveLearner(GaussianNB(), 3)
    with pytest.raises(InvalidTypeError, match=r"must be a strategy, not a class\..*Make an object of it: Margin\(\)"):
        ActiveLearner(GaussianNB(), Margin)
    with pytest.raises(InvalidParameterError, match=r"must be among .*, margin, .* Got 'marginn' instead"):
        ActiveLearner(GaussianNB(), "marginn")


def test_a_strategy_may_be_named():
    X, y = np.random.default_rng(0).normal(size=(30, 2)), np.arange(30) % 2
    by_name, by_object = (ActiveLearner(GaussianNB(), one, X[:9], y[:9]) for one in ("margin", Margin()))
    assert by_name.query(X[9:], 5)[0].tolist() == by_object.query(X[9:], 5)[0].tolist()
    assert repr(ActiveLearner(GaussianNB(), "dynamic_al(gamma=0)").query_strategy) == "DynamicAL(gamma=0)"


@pytest.mark.parametrize("strategy", ["auto", None])
def test_the_recommended_strategy_depends_on_estimator_and_labels(strategy):
    X, y = np.random.default_rng(0).normal(size=(30, 2)), np.arange(30) % 2
    learner = ActiveLearner(GaussianNB(), strategy)
    expected = MaxHerding(features="prepared", normalize=False)(learner, X, 5)
    assert learner.query(X, 5)[0].tolist() == expected.tolist()
    learner.teach(X[:9], y[:9])
    expected = UHerding(features="prepared", kernel="forest")(learner, X[9:], 5)
    assert learner.query(X[9:], 5)[0].tolist() == expected.tolist()
    reason = "the inputs are a table, and a forest on the labels tells which rows are alike"
    assert learner.query_strategy.reason_ == reason


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([0, 0], "2 distinct indices"),
        ([0], "2 distinct indices"),
        ([0, 4], "indices in 0 … 3"),
        ([0, -1], "indices in 0 … 3"),
        ([0.0, 1.0], "integer indices"),
        ([[0, 1]], "flat array"),
        ([True, False], "integer indices"),
        ("ab", "integer indices"),
    ],
)
def test_indices_that_cannot_be_used_are_refused(recorded, answer, message):
    def made_up(learner, X_pool, n_instances):
        return answer

    recorded.query_strategy = made_up
    with pytest.raises(InvalidQueryError, match=message) as caught:
        recorded.query(np.ones((4, 2)), 2)
    assert "made_up" in str(caught.value)


@pytest.mark.parametrize(
    "answer", [np.array([3, 1], dtype=np.int32), torch.tensor([3, 1]), [3, 1], (np.array([3, 1]), None)]
)
def test_indices_in_any_form_become_int64(recorded, answer):
    recorded.query_strategy = lambda learner, X_pool, n_instances: answer
    indices, _ = recorded.query(np.ones((4, 2)), 2)
    assert indices.dtype == np.int64
    assert indices.tolist() == [3, 1]


def test_a_single_index_becomes_an_array(recorded):
    recorded.query_strategy = lambda learner, X_pool, n_instances: np.int64(2)
    indices, samples = recorded.query(np.arange(8.0).reshape(4, 2))
    assert indices.tolist() == [2]
    assert samples.tolist() == [[4, 5]]


def test_errors_of_the_strategy_reach_the_user(flat_data):
    X, _ = flat_data
    learner = ActiveLearner(GaussianNB(), entropy)
    with pytest.raises(NotFittedError, match="Entropy works on"):
        learner.query(X)
    with pytest.raises(ZeroDivisionError):
        ActiveLearner(GaussianNB(), lambda *a, **k: 1 / 0).query(X)


@pytest.mark.parametrize("fit", [True, False])
@pytest.mark.parametrize("wrong", [3, -1, 3_000_000_000])
def test_labels_without_an_output_are_not_stored(wrong, fit, make_net, flat_data):
    X, y = flat_data
    learner = ActiveLearner(make_net(max_epochs=1), margin, X_training=X[:9], y_training=y[:9])
    with pytest.raises(InvalidParameterError, match=rf"0 … 2\. Got \[{wrong}\]"):
        learner.teach(X[9:11], np.array([0, wrong]), fit=fit)
    assert len(learner.X_training) == len(learner.y_training) == 9
    learner.teach(X[9:11], y[9:11], fit=fit)
    assert len(learner.y_training) == 11


def test_labels_that_cannot_be_trained_on_are_taken_back(make_net, flat_data):
    """The first training of a network, before which nobody knows its outputs, and a classifier that refuses."""
    X, y = flat_data
    learner = ActiveLearner(make_net(max_epochs=1), margin)
    with pytest.raises(NetworkError, match="must be 0 … 2"):
        learner.teach(X[:3], np.array([0, 1, 7]))
    assert learner.X_training is None
    learner.teach(X[:9], y[:9])
    assert learner.predict(X).shape == (60,)
    other = ActiveLearner(GaussianNB(), margin, X_training=X[:9], y_training=y[:9])
    with pytest.raises(ValueError, match="sample_weight"):
        other.teach(X[9:12], y[9:12], sample_weight=np.ones(3))
    assert len(other.y_training) == 9
    other.teach(X[9:12], y[9:12])
    assert len(other.y_training) == 12


def test_n_instances_has_no_other_name(flat_data):
    X, y = flat_data
    learner = ActiveLearner(GaussianNB(), margin, X_training=X[:9], y_training=y[:9])
    with pytest.raises(InvalidParameterError, match="Got 'query_size' instead"):
        learner.query(X, query_size=4)


def test_a_cache_keeps_features_from_query_to_query(flat_data):
    X, y = flat_data
    learner = ActiveLearner(GaussianNB(), CoreSet(features=lambda X: X**2), X_training=X[:9], y_training=y[:9])
    assert learner.cache is None
    expected = learner.query(X, 4)[0]
    learner.cache = Cache()
    for _ in range(2):
        np.testing.assert_array_equal(learner.query(X, 4)[0], expected)
    assert learner.cache.n_computed == 60
    assert ActiveLearner(GaussianNB()).cache is None
