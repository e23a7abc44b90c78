"""Strategies by name, and protocols as data."""

import json

import numpy as np
import pytest

from skal import strategies
from skal.base import QueryStrategy
from skal.bench import Protocol
from skal.bench._run import copy_for_run, describe
from skal.exceptions import InvalidParameterError, InvalidTypeError
from skal.strategies import ALBL, BADGE, NPC, DynamicAL, LeastConfidence, RandomSampling
from skal.strategies._names import make_strategy


def test_every_function_and_the_two_short_names_are_known():
    for name in [*(name for name in strategies.__all__ if name.islower()), "random", "albl"]:
        assert isinstance(make_strategy(name), QueryStrategy)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("random", RandomSampling()),
        ("least_confidence", LeastConfidence()),
        ("albl", ALBL()),
        ("dynamic_al(gamma=inf)", DynamicAL(gamma=float("inf"))),
        (" npc(search='greedy', n_candidates=9) ", NPC(search="greedy", n_candidates=9)),
        ("badge(subset=None)", BADGE()),
    ],
)
def test_names_with_parameters(spec, expected):
    made = make_strategy(spec)
    assert type(made) is type(expected)
    assert made.get_params() == expected.get_params()


@pytest.mark.parametrize(
    "spec", ["", "badge(", "badge(5)", "badge(subset=len)", "a.b", "badge()()", "badge(subset=f(1))"]
)
def test_what_cannot_be_read(spec):
    with pytest.raises(InvalidParameterError, match=r"name\(parameter=value\)"):
        make_strategy(spec)


def test_the_copy_for_a_run_depends_on_seed_and_label_and_keeps_what_the_user_set():
    draws = {
        (label, seed): copy_for_run(RandomSampling(), label, seed, {}).random_state.integers(2**60)
        for label in ("a", "b")
        for seed in (0, 1)
    }
    assert len(set(draws.values())) == 4
    assert copy_for_run(RandomSampling(), "a", 1, {}).random_state.integers(2**60) == draws["a", 1]
    assert copy_for_run(RandomSampling(random_state=5), "a", 0, {}).random_state == 5


def test_the_copy_for_a_run_fills_in_defaults_only():
    assert copy_for_run(ALBL(), "albl", 0, {"horizon": 60}).horizon == 60
    assert copy_for_run(ALBL(horizon=7), "albl", 0, {"horizon": 60}).horizon == 7


def test_description_has_no_address():
    strategy = copy_for_run(BADGE(subset=3), "badge", 0, {})
    assert isinstance(strategy.random_state, np.random.Generator)
    assert describe(strategy) == "BADGE(subset=3)"


def test_protocol_survives_json():
    protocol = Protocol(strategies=("random", "npc"), net_params={"depth": 10}, semi_supervised={"a": 1}, n_pool=5)
    assert Protocol.from_dict(json.loads(json.dumps(protocol.as_dict()))) == protocol


def test_unknown_setting_is_named():
    with pytest.raises(InvalidTypeError, match="Got epochs"):
        Protocol().with_settings(epochs=3)
