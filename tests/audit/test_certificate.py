"""Certificates against a slow version, and broken no more often than they say."""

import json

import numpy as np
import pytest
from scipy.stats import hypergeom

from skal.audit import certify, plan

from .projects import make_pool, spoil


def slow(p, y, at, max_error, confidence, n_labelled):
    """Accepted samples by the definition: thresholds one by one, all counts of errors one by one."""
    conf, wrong, n = p.max(1), p.argmax(1) != y, len(p)
    accepted = np.zeros(n, dtype=bool)
    sizes = [int(np.ceil(n * j / 200)) for j in range(1, 201)]
    for t in sorted({np.sort(conf)[::-1][size - 1] for size in sizes}, reverse=True):
        above = conf >= t
        k, x = above[at].sum(), (above & wrong)[at].sum()
        counts = np.arange(x, above.sum() - k + x + 1)
        most = counts[hypergeom.cdf(x, above.sum(), counts, k) > 1 - confidence].max()
        if most > max_error * (n + n_labelled):
            break
        accepted = above.copy()
    accepted[at] = False
    return accepted


@pytest.mark.parametrize("seed", range(3))
def test_certificate_is_the_definition(seed):
    p, y = make_pool(np.random.default_rng(seed), n=400)
    at, chance = plan(p, 80, uniform=True, random_state=seed)
    found = certify(p, at, y[at], chance, 0.1, 0.9, n_labelled=50)
    np.testing.assert_array_equal(found.accepted, slow(p, y, at, 0.1, 0.9, 50))
    assert found.n_left == 400 - 80 - found.accepted.sum()
    assert found.error_bound <= 0.1
    assert not found.accepted[at].any()


@pytest.mark.parametrize("name", ["calibrated", "overconfident", "subgroup"])
@pytest.mark.parametrize("m", [50, 200])
def test_certificates_are_seldom_broken(name, m):
    rng, broken = np.random.default_rng(0), 0
    for _ in range(60):
        p, y = make_pool(rng, n=1000, strength=5, power=4 if name == "overconfident" else 1)
        if name == "subgroup":
            p, y = spoil(p, y, np.arange(60))
        at, chance = plan(p, m, uniform=True, random_state=rng)
        found = certify(p, at, y[at], chance)
        broken += (p.argmax(1) != y)[found.accepted].sum() > 0.05 * 1000
    assert broken <= 6  # 3 are expected at most, and two standard errors more


def test_labels_by_people_make_room_for_errors_of_the_model():
    p, y = make_pool(np.random.default_rng(0))
    at, chance = plan(p, 200, uniform=True, random_state=0)
    few, many = (certify(p, at, y[at], chance, n_labelled=n) for n in (0, 1500))
    assert many.accepted.sum() > few.accepted.sum()
    assert many.n_left < few.n_left


def test_json_has_counts_bound_method_and_seed():
    p, y = make_pool(np.random.default_rng(0))
    at, chance = plan(p, 200, uniform=True, random_state=7)
    found = certify(p, at, y[at], chance, seed=7)
    text = json.loads(found.to_json())
    assert text["seed"] == 7
    assert text["n_accepted"] + text["n_left"] + text["n_audited"] == text["n_samples"] == 1500
    assert text["error_bound"] == found.error_bound
    assert "fixed sequence" in text["method"]
    assert "at most 5 % wrong, 95 % sure" in str(found)


def test_nothing_is_accepted_where_nothing_can_be_shown():
    p, y = make_pool(np.random.default_rng(0), strength=0.0)
    at, chance = plan(p, 20, uniform=True, random_state=0)
    found = certify(p, at, y[at], chance)
    assert not found.accepted.any()
    assert found.n_left == len(p) - 20
    assert json.loads(found.to_json())["threshold"] is None
