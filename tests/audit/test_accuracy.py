"""Estimates against the formula, and intervals that hold as often as they say, whatever the model is worth."""

import numpy as np
import pytest
from scipy.stats import binomtest

from skal.audit import accuracy, accuracy_by_class, balanced_accuracy, mean_score, plan

from .projects import make_pool, spoil


def test_estimate_is_the_difference_estimator():
    p, y = make_pool(np.random.default_rng(0))
    at, chance = plan(p, 100, random_state=0)
    g = np.clip(1 - p.max(1), 0.02, 0.98)
    wrong = p.argmax(1) != y
    expected = 1 - (g.mean() + ((wrong[at] - g[at]) / chance).sum() / len(p))
    found = accuracy(p, at, y[at], chance)
    assert found.estimate == pytest.approx(expected)
    assert found.method == "likelihood"
    assert found.n_labels == 100


def test_a_small_uniform_audit_is_exact():
    p, y = make_pool(np.random.default_rng(0), n=20_000)
    at, chance = plan(p, 30, uniform=True, random_state=0)
    found = accuracy(p, at, y[at], chance)
    right = int((p.argmax(1)[at] == y[at]).sum())
    reference = binomtest(right, 30).proportion_ci(0.95)  # with replacement, nearly the same in a large pool
    assert (found.estimate, found.method) == (right / 30, "exact")
    np.testing.assert_allclose([found.low, found.high], [reference.low, reference.high], atol=2e-3)


def test_when_everything_is_audited_nothing_is_left_open():
    p, y = make_pool(np.random.default_rng(0), n=80)
    at, chance = plan(p, 80, random_state=0)
    found = accuracy(p, at, y[at], chance)
    true = (p.argmax(1) == y).mean()
    np.testing.assert_allclose([found.low, found.estimate, found.high], true)


def coverage(pool, m, n_audits, *, uniform=False, measure=accuracy, truth=None):
    p, y = pool
    true = (p.argmax(1) == y).mean() if truth is None else truth
    rng, held = np.random.default_rng(0), 0
    for _ in range(n_audits):
        at, chance = plan(p, m, uniform=uniform, random_state=rng)
        found = measure(p, at, y[at], chance)
        held += found.low <= true <= found.high
    return held / n_audits


POOLS = {
    "calibrated": lambda rng: make_pool(rng),
    "overconfident": lambda rng: make_pool(rng, power=4),
    "rare errors": lambda rng: make_pool(rng, strength=60, power=3),
    "subgroup": lambda rng: spoil(*make_pool(rng, strength=8), np.arange(60)),
}


@pytest.mark.parametrize("uniform", [False, True])
@pytest.mark.parametrize("m", [20, 60, 200])
@pytest.mark.parametrize("name", POOLS)
def test_intervals_hold(name, m, uniform):
    pool = POOLS[name](np.random.default_rng(0))
    assert coverage(pool, m, 60, uniform=uniform) >= 0.89  # 0.95 less two standard errors


def test_labels_stay_valid_when_the_model_changes():
    rng = np.random.default_rng(0)
    old, y = make_pool(rng)
    new = np.eye(3)[y] * 0.5 + old * 0.5
    true, held = (new.argmax(1) == y).mean(), 0
    for m in [30, 100] * 50:
        at, chance = plan(old, m, random_state=rng)
        found = accuracy(new, at, y[at], chance)
        held += found.low <= true <= found.high
    assert held >= 90


def test_classes():
    pool = make_pool(np.random.default_rng(0))
    p, y = pool
    true = [(p.argmax(1) == y)[y == c].mean() for c in range(3)]
    rng, held = np.random.default_rng(0), np.zeros(3)
    for _ in range(25):
        at, chance = plan(p, 100, random_state=rng)
        found = accuracy_by_class(p, at, y[at], chance)
        held += [one.low <= truth <= one.high for one, truth in zip(found, true, strict=True)]
    assert held.min() >= 22
    for m in (30, 100):
        assert coverage(pool, m, 30, measure=balanced_accuracy, truth=np.mean(true)) >= 0.88
    at, chance = plan(p, len(p), random_state=0)
    exact = accuracy_by_class(p, at, y[at], chance)
    np.testing.assert_allclose([one.estimate for one in exact], true, atol=2e-4)


def test_a_class_without_labels_says_nothing_but_zero_to_one():
    p, y = make_pool(np.random.default_rng(0), n_classes=4, n=400)
    keep = y != 3
    p, y = p[keep], y[keep]
    at, chance = plan(p, 60, random_state=0)
    assert balanced_accuracy(p, at, y[at], chance).method == "union"
    last = accuracy_by_class(p, at, y[at], chance)[3]
    assert last.n_labels == 0
    assert last.high - last.low > 0.5


def test_mean_of_any_score():
    rng = np.random.default_rng(0)
    score = 10 * rng.random(2000) - 5
    guess = score + rng.normal(0, 0.3, 2000)
    held, narrow, wide = 0, [], []
    for _ in range(60):
        at, chance = plan(2000, 200, uniform=True, random_state=rng)
        found = mean_score(guess, at, score[at], chance, bounds=(-5, 5))
        plain = mean_score(2000, at, score[at], chance, bounds=(-5, 5))
        held += sum(int(one.low <= score.mean() <= one.high) for one in (found, plain))
        narrow.append(found.high - found.low)
        wide.append(plain.high - plain.low)
    assert held >= 108
    assert np.mean(narrow) < np.mean(wide)
