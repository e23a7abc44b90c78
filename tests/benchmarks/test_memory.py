"""The memory benchmark on a small pool, and forecasts that keep the bound."""

import sys

import pytest

from benchmarks import memory
from skal.validation import parse_memory

BOUNDED = ["BADGE", "CoreSet", "BALD joint", "DynamicAL greedy, sketched", "NPC greedy", "NPC random"]


@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.parametrize("bound", ["4MB", "20MB"])
def test_forecasts_keep_the_bound(name, bound):
    learner, X = memory.make_learner(20_000, width=64)
    strategy = memory.CASES[name](bound)
    forecast = strategy._memory(strategy.prepare(learner, X), len(X), 20)
    assert forecast <= 1.2 * parse_memory("test", "max_memory", bound)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_table(capsys):
    memory.main(["--pool", "300", "--bounds", "20MB", "--only", "CoreSet"])
    assert "| CoreSet | 20MB |" in capsys.readouterr().out
