"""ALBL against numbers worked out by hand, and its state from round to round."""

import json
import pickle

import numpy as np
import pytest
from scipy.stats import chisquare
from sklearn.naive_bayes import GaussianNB

from skal import ActiveLearner
from skal.base import QueryStrategy
from skal.exceptions import InvalidParameterError, InvalidTypeError
from skal.strategies import ALBL, BALD, CoreSet, Entropy, LeastConfidence, Margin, RandomSampling
from skal.strategies._albl import draw_batch, smallest_probability, update_weights

from ..support.learners import learner_of


class Listed(QueryStrategy):
    """Queries the first, or the last, samples of the pool."""

    needs_network = False
    reads_outputs = False

    def __init__(self, *, last=False):
        self.last = last

    def _select(self, context, n_instances):
        order = np.arange(context.n_pool)
        return (order[::-1] if self.last else order)[:n_instances], np.zeros(n_instances)


class Told:
    """A classifier that predicts the class that is written in the sample."""

    classes_ = np.array([0, 1])

    def predict_proba(self, X):
        return np.eye(2)[X[:, 0].astype(int)]


def told(X, y):
    return learner_of(Told(), np.asarray(X, float).reshape(-1, 1), np.array(y, int))


POOL = np.zeros((6, 1))


def arms():
    return [Listed(), Listed(last=True)]


# --- the bandit by hand -----------------------------------------------------------------------------------------------


def test_weights_follow_the_hand_computed_example():
    # K = 2, T = 100, δ = 0.1: p_min = √(ln 2 / 200) = 0.0588705
    assert smallest_probability(2, 100) == pytest.approx(0.0588705, abs=1e-7)
    strategy = ALBL(arms=arms(), horizon=100, random_state=0)
    learner = told([0], [0])
    indices, metrics = strategy.select(learner, POOL, 1)
    # round 1: weights ½ and ½, two different offers: each is drawn with q = ½
    assert metrics.tolist() == [0.5]
    np.testing.assert_allclose(strategy.weights_, [0.5, 0.5])
    winner = 0 if indices[0] == 0 else 1
    assert indices[0] == (0 if winner == 0 else 5)
    # it is predicted right: reward 1, r̂ = 1/½ = 2 for the winner, and the same v̂ for both:
    # w ∝ exp(0.0588705 / 2 · 2) = 1.0606379 against 1
    learner = told([0, 1], [0, 1])
    _, metrics = strategy.select(learner, POOL, 1)
    expected = np.array([0.4852868, 0.4852868])
    expected[winner] = 0.5147132
    np.testing.assert_allclose(strategy.weights_, expected, atol=1e-6)
    # round 2: p = (1 − 2 · 0.0588705) w + 0.0588705 = 0.5129810 and 0.4870190
    second = strategy.get_state()["pending"]["records"][0]
    winner_again = second["advice"][winner] == 1
    p = np.array([0.5129810, 0.4870190] if winner == 0 else [0.4870190, 0.5129810])
    chosen = winner if winner_again else 1 - winner
    assert metrics[0] == pytest.approx(p[chosen], abs=1e-6)
    np.testing.assert_allclose(second["variance"], 1 / p, rtol=1e-5)
    # the second is predicted wrong. Importance weights 2 and 1/p: reward 2 / (2 + 1/p);
    # bonus √(ln(2/0.1) / 200) = 0.1223873 times 1/p
    learner = told([0, 1, 0], [0, 1, 1])
    strategy.select(learner, POOL, 1)
    reward = 2 / (2 + 1 / p[chosen])
    exponent = 0.0588705 / 2 * (0.1223873 / p)
    exponent[chosen] += 0.0588705 / 2 * reward / p[chosen]
    by_hand = expected * np.exp(exponent)
    np.testing.assert_allclose(strategy.weights_, by_hand / by_hand.sum(), atol=1e-6)


def test_the_papers_reward_divides_by_pool_size_and_horizon():
    strategy = ALBL(arms=arms(), horizon=10, reward="paper", random_state=0)
    strategy.select(told([0], [0]), POOL, 1)
    winner = int(strategy.get_state()["pending"]["records"][0]["advice"][1])
    strategy.select(told([0, 1], [0, 1]), POOL, 1)
    # one sample right with importance 2, a pool of 6 and T = 10: reward 2/60, r̂ = 2/30
    ratio = np.exp(np.sqrt(np.log(2) / 20) / 2 * 2 / 30)
    assert strategy.weights_[winner] / strategy.weights_[1 - winner] == pytest.approx(ratio)


def test_arms_that_agree_share_reward_and_probability():
    record = draw_batch(np.array([0.3, 0.7]), [np.array([4]), np.array([4])], 0, 1, 0.1, np.random.default_rng(0))[1][0]
    assert record["probability"] == pytest.approx(1)
    assert record["advice"] == [1, 1]
    np.testing.assert_allclose(record["variance"], 1)
    np.testing.assert_allclose(update_weights(np.array([0.3, 0.7]), 0.5, record, 50, 0.1), [0.3, 0.7])


def test_uniform_arm_by_hand():
    # arms with probabilities ½ and ½; the first offers sample 2, the other spreads over 4 samples
    weights, lists = np.array([0.5, 0.5]), [np.array([2])]
    drawn = [draw_batch(weights, lists, 4, 1, 0.0, np.random.default_rng(seed)) for seed in range(1000)]
    counts = np.bincount([int(indices[0]) for indices, _ in drawn], minlength=4)
    q = np.array([0.125, 0.125, 0.625, 0.125])
    assert chisquare(counts, 1000 * q).pvalue > 1e-3
    for indices, (record,) in drawn[:50]:
        assert record["probability"] == pytest.approx(q[indices[0]])
        assert record["advice"] == [float(indices[0] == 2), 0.25]
        np.testing.assert_allclose(record["variance"], [1 / q[2], (0.25 / q).sum()])


def test_draws_follow_the_arms_probabilities():
    lists = [np.array([0]), np.array([1]), np.array([2])]
    generator = np.random.default_rng(0)
    picked = [draw_batch(np.array([0.6, 0.3, 0.1]), lists, 0, 1, 0.1, generator)[0][0] for _ in range(2000)]
    expected = 0.7 * np.array([0.6, 0.3, 0.1]) + 0.1
    assert chisquare(np.bincount(picked), 2000 * expected).pvalue > 1e-3


@pytest.mark.parametrize("n_uniform", [0, 8])
def test_batches_hold_no_sample_twice(n_uniform):
    lists = [np.arange(8), np.arange(8)[::-1], np.roll(np.arange(8), 3)]
    weights = np.full(len(lists) + bool(n_uniform), 0.2)
    for seed in range(20):
        picked, records = draw_batch(weights, lists, n_uniform, 8, 0.05, np.random.default_rng(seed))
        assert sorted(picked) == list(range(8))
        assert all(0 < record["probability"] <= 1 + 1e-12 for record in records)
        # the last sample is the only one left
        assert records[-1]["probability"] == pytest.approx(1)


def test_a_short_horizon_keeps_probabilities_in_bounds():
    assert smallest_probability(2, 1) == 0.5
    assert smallest_probability(1, 100) == 0


# --- rounds and state -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("good", [0, 1])
def test_the_arm_that_is_rewarded_gains_weight(good):
    weights, generator = np.array([0.5, 0.5]), np.random.default_rng(0)
    floor = smallest_probability(2, 200)
    for _ in range(200):
        (chosen,), (record,) = draw_batch(weights, [np.array([0]), np.array([1])], 0, 1, floor, generator)
        weights = update_weights(weights, float(chosen == good), record, 200, 0.1)
    assert weights[good] > 0.9


def test_a_batch_that_was_not_taught_is_forgotten():
    strategy = ALBL(arms=arms(), random_state=0)
    learner = told([0], [0])
    for _ in range(3):
        strategy.select(learner, POOL, 2)
    np.testing.assert_allclose(strategy.weights_, [0.5, 0.5])
    assert strategy.get_state()["queried"] == []
    assert strategy.n_rounds_ == 3


def test_an_integer_seed_draws_anew_in_every_round():
    strategy = ALBL(arms=arms(), random_state=0)
    learner = told([0], [0])
    first = [strategy.select(learner, POOL, 1)[0][0] for _ in range(30)]
    assert set(first) == {0, 5}


def run(strategy, learner, X, y, rounds, saved=None):
    """Some rounds of a loop; with ``saved``, state goes through JSON into a new object every time."""
    picks = []
    for _ in range(rounds):
        if saved is not None:
            strategy = ALBL(arms=[Entropy(), CoreSet()], random_state=0).set_state(json.loads(saved.get("state", "{}")))
        indices, _ = strategy.select(learner, X, 4)
        if saved is not None:
            saved["state"] = json.dumps(strategy.get_state())
        picks.append(X[indices].tolist())
        learner.teach(X[indices], y[indices], fit=False)
        X, y = np.delete(X, indices, axis=0), np.delete(y, indices)
    return picks, strategy


def test_a_restored_run_continues_as_if_nothing_had_happened(flat_learner, flat_data):
    X, y = flat_data

    def fresh():
        learner = ActiveLearner(flat_learner.estimator, Entropy())
        learner.X_training, learner.y_training = X[:15], y[:15]
        return learner

    straight, one = run(ALBL(arms=[Entropy(), CoreSet()], random_state=0), fresh(), X[15:], y[15:], 4)
    resumed, other = run(None, fresh(), X[15:], y[15:], 4, saved={})
    assert resumed == straight
    assert other.get_state() == one.get_state()
    assert len(one.get_state()["queried"]) == 12
    assert not np.allclose(one.weights_, 0.5)


def test_state_is_a_copy_and_can_be_cleared():
    strategy = ALBL(arms=arms(), random_state=0)
    assert strategy.get_state() == {}
    strategy.select(told([0], [0]), POOL, 1)
    state = strategy.get_state()
    state["pending"]["records"].clear()
    assert len(strategy.get_state()["pending"]["records"]) == 1
    assert strategy.set_state({}).get_state() == {}


def test_state_of_other_arms_is_refused():
    strategy = ALBL(arms=arms(), random_state=0)
    strategy.select(told([0], [0]), POOL, 1)
    state = strategy.get_state()
    with pytest.raises(InvalidParameterError, match=r"3 arms.*2 weights"):
        ALBL(arms=[*arms(), Listed()]).set_state(state)
    with pytest.raises(InvalidParameterError, match="get_state"):
        ALBL(arms=arms()).set_state({"weights": [1, 2]})
    strategy.set_params(uniform=True)
    with pytest.raises(InvalidParameterError, match="stay the same"):
        strategy.select(told([0], [0]), POOL, 1)


# --- arms -------------------------------------------------------------------------------------------------------------


def test_default_arms_are_least_confidence_and_coreset(flat_learner, flat_data):
    pool = flat_data[0][15:]
    offers = {int(arm(flat_learner, pool, 1)[0]) for arm in (LeastConfidence(), CoreSet())}
    assert {int(ALBL(random_state=seed)(flat_learner, pool, 1)[0]) for seed in range(20)} == offers


def test_what_the_arms_need_is_what_it_needs():
    plain = ALBL(arms=[Margin(), RandomSampling()])
    assert (plain.needs_network, plain.draws_from_pool, plain.reads_outputs) == (False, True, True)
    assert not ALBL().needs_network
    assert ALBL(arms=[Margin(), BALD()]).needs_network
    assert not ALBL().draws_from_pool
    assert ALBL(uniform=True).draws_from_pool


def test_runs_on_a_plain_classifier_with_any_labels():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    y = np.where(X[:, 0] > 0, "up", "down")
    strategy = ALBL(arms=[Margin(), Entropy()], uniform=True, horizon=20, random_state=0)
    learner = ActiveLearner(GaussianNB(), strategy, X_training=X[:10], y_training=y[:10])
    for _ in range(3):
        indices, samples = learner.query(X[10:], n_instances=3)
        learner.teach(samples, y[10:][indices])
    learner.query(X[10:], n_instances=3)
    assert len(strategy.get_state()["queried"]) == 9
    assert strategy.weights_.sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("arms", [], InvalidTypeError),
        ("arms", [Margin], InvalidTypeError),
        ("arms", Margin(), InvalidTypeError),
        ("uniform", 1, InvalidParameterError),
        ("horizon", 0, InvalidParameterError),
        ("delta", 0, InvalidParameterError),
        ("delta", 1.5, InvalidParameterError),
        ("reward", "accuracy", InvalidParameterError),
    ],
)
def test_bad_parameters(name, value, error, flat_learner, flat_data):
    with pytest.raises(error, match=name):
        ALBL(**{name: value})(flat_learner, flat_data[0], 1)


def test_a_pickled_learner_takes_the_bandit_along(flat_data):
    X, y = flat_data

    def loop(interrupted):
        learner = ActiveLearner(GaussianNB(), ALBL(arms=[Entropy(), Margin()], random_state=0), X[:15], y[:15])
        pool, labels, picks = X[15:], y[15:], []
        for _ in range(4):
            if interrupted:
                learner = pickle.loads(pickle.dumps(learner))
            indices, samples = learner.query(pool, n_instances=4)
            picks.append(samples.tolist())
            learner.teach(samples, labels[indices])
            pool, labels = np.delete(pool, indices, axis=0), np.delete(labels, indices)
        return picks, learner.query_strategy.get_state()

    assert loop(interrupted=True) == loop(interrupted=False)


def test_a_subset_is_drawn_anew_in_every_round(flat_data):
    X, y = flat_data
    strategy = ALBL(arms=[Entropy(), Margin()], subset=10, random_state=0)
    learner = ActiveLearner(GaussianNB(), strategy, X[:15], y[:15])
    rounds = [set(learner.query(X[15:], n_instances=10)[0].tolist()) for _ in range(3)]
    assert all(len(drawn) == 10 for drawn in rounds)
    assert len(set(map(frozenset, rounds))) == 3
