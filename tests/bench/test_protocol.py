"""Strategies by name, and protocols as data."""

import json
from typing import ClassVar

import numpy as np
import pytest

from skal import strategies
from skal.base import QueryStrategy
from skal.bench import Protocol, run_benchmark
from skal.exceptions import InvalidParameterError, InvalidTypeError
from skal.strategies import ALBL, BADGE, NPC, DynamicAL, LeastConfidence, RandomSampling

from ..support.learners import strategy_named


def test_every_function_and_the_two_short_names_are_known():
    for name in [*(name for name in strategies.__all__ if name.islower()), "random", "albl"]:
        assert isinstance(strategy_named(name), QueryStrategy)


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
    made = strategy_named(spec)
    assert type(made) is type(expected)
    assert made.get_params() == expected.get_params()


@pytest.mark.parametrize(
    "spec", [" ", "badge(", "badge(5)", "badge(subset=len)", "a.b", "badge()()", "badge(subset=f(1))"]
)
def test_what_cannot_be_read(spec):
    with pytest.raises(InvalidParameterError, match=r"name\(parameter=value\)"):
        strategy_named(spec)


TINY = {
    "net": "mlp",
    "net_params": {"hidden": (8,)},
    "max_epochs": 1,
    "n_initial": 10,
    "query_size": 5,
    "n_rounds": 1,
    "n_pool": 60,
    "n_test": 30,
}


def test_the_draws_of_a_run_depend_on_seed_and_label_and_keep_what_the_user_set():
    fixed = RandomSampling(random_state=5)
    strategies = {"random": "random", "a": "random", "b": "random", "c": fixed, "d": fixed}
    found, again = (run_benchmark(strategies, seeds=2, **TINY) for _ in range(2))
    queried = {(run.strategy, run.seed): tuple(run.queried[0]) for run in found.runs}
    assert queried == {(run.strategy, run.seed): tuple(run.queried[0]) for run in again.runs}
    assert len({queried[name, seed] for name in "ab" for seed in (0, 1)}) == 4
    assert queried["c", 0] == queried["d", 0]


class Horizon(QueryStrategy):
    """Notes for how many queries it is made."""

    needs_network = reads_outputs = False
    seen: ClassVar[dict] = {}

    def __init__(self, name, horizon=None, random_state=None):
        self.name, self.horizon, self.random_state = name, horizon, random_state

    def _select(self, context, n_instances):
        self.seen[self.name] = self.horizon
        return np.arange(n_instances), np.zeros(n_instances)


def test_a_run_fills_in_defaults_only_and_is_described_without_an_address():
    strategies = {"random": "random", "a": Horizon("a"), "b": Horizon("b", horizon=7), "badge": BADGE(subset=30)}
    runs = run_benchmark(strategies, seeds=1, **TINY | {"n_rounds": 3}).runs
    assert Horizon.seen == {"a": 15, "b": 7}  # the labels that the run buys
    assert runs[-1].record["strategy"] == "BADGE(subset=30)"  # and no generator


def test_protocol_survives_json():
    protocol = Protocol(strategies=("random", "npc"), net_params={"depth": 10}, semi_supervised={"a": 1}, n_pool=5)
    assert Protocol.from_dict(json.loads(json.dumps(protocol.as_dict()))) == protocol


def test_unknown_setting_is_named():
    with pytest.raises(InvalidTypeError, match="Got epochs"):
        Protocol().with_settings(epochs=3)
