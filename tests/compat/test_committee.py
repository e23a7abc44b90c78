"""skal's strategies in modAL's Committee, and modAL's tools around skal's scores."""

import re
from functools import partial

import numpy as np
import pandas as pd
import pytest
from modAL.disagreement import consensus_entropy
from modAL.models import ActiveLearner as ModalActiveLearner
from modAL.models import Committee, CommitteeRegressor
from modAL.uncertainty import classifier_entropy, classifier_margin, classifier_uncertainty
from modAL.utils.combination import make_linear_combination, make_product, make_query_strategy
from modAL.utils.selection import multi_argmax
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LinearRegression
from sklearn.naive_bayes import GaussianNB

import skal
from skal import strategies
from skal.exceptions import InvalidTypeError, NoLabelledDataError, NoNetworkError, NotFittedError
from skal.strategies import ALBL, Entropy, LeastConfidence, Margin, RandomSampling, entropy, least_confidence, margin

LEARNERS = [ModalActiveLearner, skal.ActiveLearner]


@pytest.fixture(params=LEARNERS, ids=["modAL", "skal"])
def make_committee(request, flat_data):
    """A committee of three learners that know different samples."""
    X, y = flat_data

    def make(query_strategy, estimator=GaussianNB):
        learners = [request.param(estimator(), X_training=X[i : i + 15], y_training=y[i : i + 15]) for i in (0, 5, 10)]
        return Committee(learners, query_strategy)

    return make


# from the definitions, higher is queried earlier
SCORES = {
    "entropy": lambda proba: -(proba * np.log(proba)).sum(axis=1),
    "margin": lambda proba: np.sort(proba, axis=1)[:, -2] - np.sort(proba, axis=1)[:, -1],
    "least_confidence": lambda proba: -proba.max(axis=1),
}


@pytest.mark.parametrize("container", [np.asarray, pd.DataFrame])
@pytest.mark.parametrize(
    ("strategy", "name"),
    [
        (entropy, "entropy"),
        (margin, "margin"),
        (least_confidence, "least_confidence"),
        (Entropy(), "entropy"),
        (partial(margin, subset=100), "margin"),
    ],
)
def test_strategies_use_the_mean_of_the_probabilities(make_committee, flat_data, strategy, name, container):
    X, y = flat_data
    committee = make_committee(strategy)
    indices, samples = committee.query(container(X[25:]), n_instances=4)
    proba = np.mean([learner.predict_proba(X[25:]) for learner in committee], axis=0)
    assert indices.tolist() == np.argsort(-SCORES[name](proba), kind="stable")[:4].tolist()
    np.testing.assert_array_equal(samples, X[25:][indices])
    committee.teach(X[25:][indices], y[25:][indices])
    assert [len(learner.X_training) for learner in committee] == [19, 19, 19]
    assert len(committee.query(container(X[25:]), n_instances=2)[0]) == 2


def test_scores_and_costs_of_a_committee(make_committee, flat_data):
    X, _ = flat_data
    committee = make_committee(Entropy())
    np.testing.assert_allclose(Entropy().scores(committee, X), consensus_entropy(committee, X), atol=1e-6)
    np.testing.assert_allclose(entropy.scores(committee, X), consensus_entropy(committee, X), atol=1e-6)
    assert Entropy().cost(committee, X).passes.forward == 0
    assert len(set(RandomSampling(random_state=0).select(committee, X, 5)[0].tolist())) == 5
    with pytest.raises(NoLabelledDataError, match="calls ALBL must have one set of labelled samples"):
        ALBL(arms=[Margin(), RandomSampling()]).select(committee, X, 3)


ONLY_PROBABILITIES = {"RandomSampling", "LeastConfidence", "Margin", "Entropy", "BADGE", "DropQuery", "Falcun"}


@pytest.mark.parametrize("name", [n for n in strategies.__all__ if isinstance(getattr(strategies, n), type)])
def test_the_other_strategies_say_why_not(make_committee, flat_data, name):
    X, _ = flat_data
    strategy = getattr(strategies, name)()
    committee = make_committee(strategy)
    if name in ONLY_PROBABILITIES:
        assert len(set(committee.query(X, n_instances=2)[0].tolist())) == 2
        return
    if strategy.needs_network:
        error, why = NoNetworkError, f"{name} works on must be one skorch net. Got a Committee of 3 learners"
    else:
        error, why = NoLabelledDataError, "one set of labelled samples. Got a Committee instead"
    with pytest.raises(error, match=re.escape(why)) as caught:
        committee.query(X, n_instances=2)
    assert "Use a strategy that needs only predict_proba" in str(caught.value)


def test_a_committee_of_nets_is_asked_for_probabilities(make_committee, make_net, flat_data):
    X, _ = flat_data
    committee = make_committee(margin, make_net)
    assert len(committee.query(X, n_instances=3)[0]) == 3
    with pytest.raises(NoNetworkError, match="query with one of the learners"):
        strategies.egl(committee, X, 3)
    assert len(strategies.EGL().select(committee.learner_list[0], X, 3)[0]) == 3


def test_a_learner_whose_estimator_is_a_committee(make_committee, flat_data):
    X, _ = flat_data
    learner = skal.ActiveLearner(make_committee(None), margin)
    assert learner.query(X, 3)[0].tolist() == margin(SimpleCommittee(learner.estimator), X, 3).tolist()
    with pytest.raises(NoNetworkError, match="Got a Committee of 3 learners"):
        strategies.egl(learner, X)


class SimpleCommittee:
    """A plain learner around a committee."""

    X_training = y_training = None

    def __init__(self, estimator):
        self.estimator = estimator


@pytest.mark.parametrize("cls", LEARNERS)
def test_an_unfitted_committee_is_refused_by_name(cls, flat_data):
    X, y = flat_data
    committee = Committee([cls(GaussianNB()), cls(GaussianNB())], margin)
    for ask in (lambda: committee.query(X), lambda: margin(SimpleCommittee(committee), X)):
        with pytest.raises(NotFittedError, match=r"Margin works on must be fitted\. Got an unfitted Committee"):
            ask()
    committee.teach(X, y)
    assert len(committee.query(X)[0]) == 1


def test_a_committee_of_regressors_has_no_probabilities(flat_data):
    X, y = flat_data
    committee = CommitteeRegressor([ModalActiveLearner(LinearRegression(), X_training=X, y_training=y)], margin)
    with pytest.raises(InvalidTypeError, match=r"task of Margin must be classification.*Got regression"):
        committee.query(X)
    committee.query_strategy = strategies.random_sampling
    assert len(committee.query(X, n_instances=4)[0]) == 4


def test_an_object_that_is_no_learner_is_refused():
    with pytest.raises(InvalidTypeError, match=r"Got int instead\. Pass .* or a modAL Committee"):
        margin(3, np.ones((2, 2)))


def test_a_committee_that_takes_nan_may_be_given_nan(make_committee, flat_data):
    X = flat_data[0].copy()
    X[0, 0] = np.nan
    boosted = partial(HistGradientBoostingClassifier, max_iter=2, min_samples_leaf=2)
    assert len(make_committee(margin, boosted).query(X, n_instances=2)[0]) == 2
    with pytest.raises(ValueError, match="X_pool must be finite"):
        make_committee(margin).query(X)


# modAL's tools take utility measures: functions of a learner and a pool that give every sample a number


@pytest.fixture(params=[*LEARNERS, "committee"], ids=["modAL", "skal", "committee"])
def make_learner(request, flat_data):
    X, y = flat_data

    def make(query_strategy):
        if request.param != "committee":
            return request.param(LinearDiscriminantAnalysis(), query_strategy, X_training=X[:20], y_training=y[:20])
        learners = [
            ModalActiveLearner(LinearDiscriminantAnalysis(), X_training=X[i:20], y_training=y[i:20]) for i in (0, 6)
        ]
        return Committee(learners, query_strategy)

    return make


@pytest.mark.parametrize("measure", [Entropy().scores, entropy.scores], ids=["method", "function"])
def test_scores_are_a_utility_measure(make_learner, flat_data, measure):
    X, _ = flat_data
    for n_instances in (1, 3):
        selector = partial(multi_argmax, n_instances=n_instances)
        learner = make_learner(make_query_strategy(measure, selector))
        indices, samples = learner.query(X[20:])
        assert set(indices.tolist()) == set(entropy(learner_of(learner), X[20:], n_instances).tolist())
        np.testing.assert_array_equal(samples, X[20:][indices])


def learner_of(learner):
    """The learner as a plain object, so that strategies answer in bare indices."""
    return SimpleCommittee(getattr(learner, "estimator", learner))


def test_scores_combine_with_modals_measures(make_learner, flat_data):
    X, _ = flat_data
    total = make_linear_combination(entropy.scores, classifier_uncertainty, Margin().scores, weights=[0.5, 2.0, 0.1])
    product = make_product(least_confidence.scores, classifier_entropy, exponents=[2, 0.5])
    learner = make_learner(margin)
    expected = (
        0.5 * Entropy().scores(learner, X) + 2 * classifier_uncertainty(learner, X) + 0.1 * Margin().scores(learner, X)
    )
    np.testing.assert_allclose(total(learner, X), expected)
    expected = LeastConfidence().scores(learner, X) ** 2 * classifier_entropy(learner, X) ** 0.5
    np.testing.assert_allclose(product(learner, X), expected)
    learner.query_strategy = make_query_strategy(total, multi_argmax)
    assert learner.query(X)[0].tolist() == [int(np.argmax(total(learner, X)))]


def test_skals_margin_has_the_other_sign(make_learner, flat_data):
    """Higher is queried earlier, in all of skal's scores; modAL's margin is the other way round."""
    X, _ = flat_data
    learner = make_learner(margin)
    np.testing.assert_allclose(margin.scores(learner, X), -classifier_margin(learner, X), atol=1e-6)


def test_scores_of_a_function_take_its_parameters(make_learner, flat_data):
    X, _ = flat_data
    learner = make_learner(margin)
    scores = margin.scores(learner, X, subset=10, random_state=0)
    np.testing.assert_array_equal(scores, Margin(subset=10, random_state=0).scores(learner, X))
    assert np.isneginf(scores).sum() == 50
    assert not hasattr(strategies.badge, "scores")
