"""How many samples are left for people, and how that number falls with more labels."""

import numpy as np
import pytest
from scipy.stats import hypergeom

from skal.audit import certify, labels_left, plan
from skal.exceptions import InvalidParameterError

from .projects import make_pool


def pool(seed=0, power=1.0):
    return make_pool(np.random.default_rng(seed), strength=6.0, power=power)


def slow(p, at, y, size, allowed, alpha):
    """The definition, one threshold and one count at a time."""
    confidences, n = p.max(1), len(p)
    wrong = p.argmax(1)[at] != y[at]
    ordered, best = np.sort(confidences)[::-1], n - size
    for step in range(1, 201):
        above = confidences >= ordered[int(np.ceil(n * step / 200)) - 1]
        total = int(above.sum())
        drawn = min(round(size * total / n), total)
        seen = round(drawn * (wrong & above[at]).sum() / max(1, above[at].sum()))
        worst = max(k for k in range(total + 1) if hypergeom.cdf(seen, total, k, drawn) > alpha)
        if worst > allowed:
            break
        best = n - size - (total - drawn)
    return best


@pytest.mark.parametrize("size", [60, 240])
def test_forecast_is_the_definition(size):
    rng = np.random.default_rng(1)
    p = rng.dirichlet([0.1, 0.1, 0.1], size=400)
    y = (rng.random((400, 1)) > p.cumsum(1)).sum(1)
    at, chance = plan(p, 80, uniform=True, random_state=0)
    found = labels_left(p, at, y[at], chance, [size], max_error=0.06, n_labelled=30)
    assert found.tolist() == [slow(p, at, y, size, 0.06 * 430, 0.05)]


@pytest.mark.parametrize("power", [0.5, 1, 3])
def test_for_its_own_size_it_is_about_the_certificate(power):
    p, y = pool(power=power)
    at, chance = plan(p, 200, uniform=True, random_state=3)
    left = labels_left(p, at, y[at], chance, [200])[0]
    # expected and real numbers of audited samples above a threshold differ by chance
    assert abs(left - certify(p, at, y[at], chance).n_left) < 0.15 * len(p)


def test_it_falls_with_more_labels_and_tells_what_another_audit_leaves():
    forecasts, real = [], []
    for seed in range(12):
        p, y = pool(seed=seed)
        at, chance = plan(p, 150, uniform=True, random_state=seed)
        forecasts.append(labels_left(p, at, y[at], chance, [50, 100, 400]))
        at, chance = plan(p, 400, uniform=True, random_state=100 + seed)
        real.append(certify(p, at, y[at], chance).n_left)
    means = np.mean(forecasts, axis=0)
    assert means[0] > means[1] > means[2]
    assert abs(means[2] - np.mean(real)) < 0.07 * len(p)


def test_what_is_refused():
    p, y = pool()
    at, chance = plan(p, 50, uniform=True, random_state=0)
    for sizes in ([0], [len(p) + 1], [[5]], [1.5]):
        with pytest.raises(InvalidParameterError, match="'sizes' parameter of labels_left"):
            labels_left(p, at, y[at], chance, sizes)
    with pytest.raises(InvalidParameterError, match="'max_error' parameter of labels_left"):
        labels_left(p, at, y[at], chance, [50], max_error=2)
