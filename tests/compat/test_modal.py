"""Tests of the bridge to modAL, on whichever release of modAL and scikit-learn is on the path."""

import importlib.metadata
import os
import sys
import warnings
from types import SimpleNamespace

import modAL.models
import numpy as np
import pytest
import sklearn
import sklearn.utils
import torch
from modAL.models import ActiveLearner as ModalActiveLearner
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skal
from skal.checks import check_called_once, check_convention
from skal.compat.modal import expects_metrics, patch_modal
from skal.exceptions import EmptyPoolError, InvalidParameterError, InvalidTypeError, NotFittedError
from skal.strategies import Entropy, RandomSampling, entropy, least_confidence, margin

MODAL = importlib.metadata.version("modAL-python")
NEW_MODAL = MODAL.startswith("0.4.2")


class Counting:
    """A strategy that counts its calls."""

    def __init__(self, strategy):
        self.strategy = strategy
        self.calls = 0

    def __call__(self, *args, **kwargs):
        self.calls += 1
        return self.strategy(*args, **kwargs)


def test_the_intended_releases_are_imported():
    """``make test-modal`` says which releases it puts on the path; without it they are those of the environment."""
    assert os.environ.get("SKAL_TEST_MODAL", "0.4.1") == MODAL
    assert sklearn.__version__ == importlib.metadata.version("scikit-learn")
    wanted = os.environ.get("SKAL_TEST_SKLEARN")
    if wanted is None:
        # modAL does not run by itself on 1.8, which needs Python 3.11
        newest = (1, 8) if sys.version_info >= (3, 11) else (1, 7)
        assert tuple(map(int, sklearn.__version__.split(".")[:2])) >= newest
    else:
        assert sklearn.__version__.startswith(f"{wanted}.")
    # the metadata and the code come from the same folder
    for module, package in ((modAL, "modAL-python"), (sklearn, "scikit-learn")):
        files = importlib.metadata.files(package)
        assert any(os.path.samefile(file.locate(), module.__file__) for file in files if file.name == "__init__.py")


def test_the_two_conventions_are_told_apart():
    assert expects_metrics(ModalActiveLearner(GaussianNB(), entropy)) is NEW_MODAL
    assert expects_metrics(skal.ActiveLearner(GaussianNB(), entropy)) is False
    assert expects_metrics(SimpleNamespace(estimator=None)) is False
    assert expects_metrics(None) is False

    class Mine(ModalActiveLearner):
        pass

    assert expects_metrics(Mine(GaussianNB(), entropy)) is NEW_MODAL


@pytest.fixture(params=["net", "classifier", "pipeline"])
def estimator(request, make_net):
    torch.manual_seed(0)
    return {
        "net": make_net,
        "classifier": GaussianNB,
        "pipeline": lambda: make_pipeline(StandardScaler(), make_net()),
    }[request.param]()


LOOP_STRATEGIES = [entropy, margin, least_confidence, Entropy(), RandomSampling(random_state=0)]


# functions and objects, each with one sample and with several
@pytest.mark.parametrize(
    ("strategy", "n_instances"), [*zip(LOOP_STRATEGIES, (1, 2, 5, 1, 2), strict=True), (Entropy(), 5)]
)
def test_a_loop_with_modals_learner(estimator, flat_data, strategy, n_instances):
    X, y = flat_data
    counting = Counting(strategy)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner = ModalActiveLearner(estimator=estimator, query_strategy=counting, X_training=X[:15], y_training=y[:15])
        indices, samples = learner.query(X[15:], n_instances=n_instances)
        assert counting.calls == 1
        assert indices.dtype == np.int64
        assert np.array_equal(indices, strategy(SimpleNamespace(estimator=estimator), X[15:], n_instances))
        assert np.array_equal(samples, X[15:][indices])
        learner.teach(samples, y[15:][indices])
        assert np.array_equal(learner.X_training, np.concatenate([X[:15], samples]))
        assert np.array_equal(learner.y_training, np.concatenate([y[:15], y[15:][indices]]))
        learner.query(X[15:], n_instances=n_instances)
        assert counting.calls == 2
        learner.teach(samples, y[15:][indices], only_new=True)
        learner.fit(X, y)
        assert learner.predict(X).shape == (60,)
        assert 0 <= learner.score(X, y) <= 1


@pytest.mark.parametrize("bootstrap", [True, False])
def test_modals_own_arguments_still_work(flat_data, bootstrap):
    X, y = flat_data
    learner = ModalActiveLearner(GaussianNB(), entropy, X[:30], y[:30], bootstrap_init=bootstrap)
    learner.teach(X[30:], y[30:], bootstrap=bootstrap)
    learner.fit(X, y, bootstrap=bootstrap)
    assert len(learner.query(X)[0]) == 1  # without n_instances


def test_modals_check_of_the_data_still_works(flat_data):
    X, y = flat_data
    spoilt = X.copy()
    spoilt[0] = np.nan
    learner = ModalActiveLearner(GaussianNB(), entropy, X, y)
    with pytest.raises(ValueError, match="NaN"):
        learner.teach(spoilt, y)
    with pytest.raises(ValueError, match="inconsistent"):
        learner.teach(X, y[:3])
    tolerant = ModalActiveLearner(GaussianNB(), entropy, force_all_finite=False)
    with pytest.raises(ValueError, match="GaussianNB does not accept missing values"):
        tolerant.teach(spoilt, y)  # refused by the estimator, no longer by modAL


@pytest.mark.parametrize("function", [entropy, margin, least_confidence])
@pytest.mark.parametrize("n_instances", [1, 2, 5])
def test_metrics_of_modals_learner(flat_data, function, n_instances):
    X, y = flat_data
    learner = ModalActiveLearner(GaussianNB(), function, X[:15], y[:15])
    if not NEW_MODAL:  # return_metrics came with 0.4.2: before, it is handed to the strategy, which says so
        with pytest.raises(InvalidParameterError, match="Got 'return_metrics' instead"):
            learner.query(X[15:], n_instances=n_instances, return_metrics=True)
        return
    indices, samples, metrics = learner.query(X[15:], n_instances=n_instances, return_metrics=True)
    assert np.array_equal(metrics, function.strategy().scores(learner, X[15:])[indices])
    assert len(samples) == n_instances


def test_what_the_other_convention_would_do(flat_data):
    """Each release mistreats the other's answer: so the tests above show that the convention is the right one."""
    X, y = flat_data
    if NEW_MODAL:  # a bare array of two indices is unpacked into one index and one "metric"
        learner = ModalActiveLearner(GaussianNB(), lambda *args, **kwargs: Entropy().select(*args, **kwargs)[0], X, y)
        assert np.shape(learner.query(X, n_instances=2)[0]) == ()
    else:  # a tuple is handed on as it is, with a warning
        learner = ModalActiveLearner(GaussianNB(), Entropy().select, X, y)
        with pytest.warns(DeprecationWarning, match="should no longer return"):
            learner.query(X, n_instances=2)


def test_errors_reach_the_user_through_modal(flat_data):
    X, y = flat_data
    learner = ModalActiveLearner(GaussianNB(), entropy, X, y)
    with pytest.raises(InvalidParameterError, match="n_instances"):
        learner.query(X, n_instances=0)
    with pytest.raises(InvalidTypeError, match="n_instances"):
        learner.query(X, n_instances=1.5)
    with pytest.raises(EmptyPoolError, match="X_pool"):
        learner.query(X[:0])
    with pytest.raises(InvalidParameterError, match="gamma"):
        learner.query(X, gamma=1)
    with pytest.raises(NotFittedError, match="must be fitted"):
        ModalActiveLearner(GaussianNB(), entropy).query(X)


@pytest.mark.parametrize("check", [check_convention, check_called_once])
@pytest.mark.parametrize("strategy", [Entropy(), RandomSampling()])
def test_conformance_on_this_release(check, strategy, learner, X_pool):
    check(strategy, learner, X_pool)


def test_modal_needs_the_patch(monkeypatch, flat_data):
    """Without it modAL fails, or warns, on every supported scikit-learn: so the tests above show that it works."""
    X, y = flat_data
    learner = ModalActiveLearner(GaussianNB(), entropy, X, y)
    for module in (modAL.models.base, modAL.models.learners):
        if hasattr(module, "check_X_y"):
            monkeypatch.setattr(module, "check_X_y", sklearn.utils.check_X_y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the oldest packages are tested with warnings as they are
        with pytest.raises((TypeError, FutureWarning), match="force_all_finite"):
            learner.teach(X, y)
    assert patch_modal() is True
    learner.teach(X, y)
    assert patch_modal() is False
