"""Intervals that may be looked at after every label: against the martingale itself, and by their coverage."""

import numpy as np
import pytest

from skal.audit import accuracy_sequence, plan_sequence
from skal.audit._bounds import BETS

from .projects import make_pool


def test_limits_are_where_the_martingale_reaches_its_bound():
    p, y = make_pool(np.random.default_rng(0), n=200)
    at, chance = plan_sequence(p, 70, random_state=0)
    found = accuracy_sequence(p, at, y[at], chance)
    g = np.clip(1 - p.max(1), 0.02, 0.98)
    u = np.sqrt(g * (1 - g))
    q = 0.2 / 200 + 0.8 * u / u.sum()
    thought = 1 - g
    end = (-thought / (200 * q)).min()
    lows = []
    for mean in np.linspace(0, 1, 1001):  # of the accuracy
        wealth, drawn = np.zeros(len(BETS)), 0.0
        for t in range(70):
            off = (p[at[t]].argmax() == y[at[t]]) - thought[at[t]]
            fair = mean - thought.mean() - drawn / 200 - end
            wealth += np.log1p(BETS * ((off / (200 * chance[t]) - end) / fair - 1)) if fair > 0 else np.inf
            drawn += off
            if np.log(np.mean(np.exp(wealth))) >= np.log(40):
                lows.append((mean, t))
                break
    seen = (p.argmax(1) == y)[at].cumsum() / 200
    latest = [max((mean for mean, when in lows if when <= t), default=0.0) for t in range(70)]
    np.testing.assert_allclose(found.low, np.maximum(latest, seen), atol=1e-9)
    assert len(set(latest)) > 30


@pytest.mark.parametrize("uniform", [False, True])
@pytest.mark.parametrize("power", [1, 4])
def test_all_intervals_hold_at_once(uniform, power):
    rng, held = np.random.default_rng(0), 0
    p, y = make_pool(rng, n=1000, power=power)
    true = (p.argmax(1) == y).mean()
    for _ in range(15):
        at, chance = plan_sequence(p, 80, uniform=uniform, random_state=rng)
        found = accuracy_sequence(p, at, y[at], chance)
        held += bool(((found.low <= true) & (true <= found.high)).all())
    assert held >= 13


def test_an_audit_goes_on_with_another_model():
    rng, held = np.random.default_rng(0), 0
    old, y = make_pool(rng, n=1000)
    new = 0.6 * old + 0.4 * np.eye(3)[y]
    for _ in range(8):
        first, before = plan_sequence(old, 40, random_state=rng)
        second, after = plan_sequence(new, 40, drawn=first, random_state=rng)
        at, chance = np.concatenate([first, second]), np.concatenate([before, after])
        found = accuracy_sequence(new, at, y[at], chance)
        held += bool(((found.low <= (new.argmax(1) == y).mean()) & (found.high >= (new.argmax(1) == y).mean())).all())
    assert held >= 7


def test_intervals_never_grow_and_do_not_look_ahead():
    p, y = make_pool(np.random.default_rng(0), n=500)
    at, chance = plan_sequence(p, 60, random_state=0)
    long = accuracy_sequence(p, at, y[at], chance)
    short = accuracy_sequence(p, at[:40], y[at[:40]], chance[:40])
    np.testing.assert_allclose(long.low[:40], short.low)
    np.testing.assert_allclose(long.high[:40], short.high)
    assert (np.diff(long.low) >= 0).all()
    assert (np.diff(long.high) <= 0).all()
