"""The memory benchmark on a small pool, and forecasts that keep the bound."""

import sys

import pytest

from benchmarks import memory
from skal.exceptions import InvalidParameterError
from skal.validation import parse_memory

BOUNDED = ["BADGE", "CoreSet", "BALD joint", "DynamicAL greedy, sketched", "NPC greedy", "NPC random"]
BOUNDED += ["MaxHerding", "MaxHerding laplace", "UHerding", "TypiClust", "ProbCover", "BAIT", "ALBL"]


@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.parametrize("bound", ["4MB", "20MB"])
def test_forecasts_keep_the_bound(name, bound):
    learner, X = memory.make_learner(20_000, width=64)
    strategy, n_bytes = memory.CASES[name](bound), parse_memory("test", "max_memory", bound)

    def forecast():
        return strategy._memory(strategy.prepare(learner, X), len(X), 20)

    if (name, bound) == ("BAIT", "4MB"):  # a bound that is too small is refused
        with pytest.raises(InvalidParameterError, match=r"at least \d+ bytes"):
            forecast()
    else:
        assert forecast() <= 1.2 * n_bytes


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_table(capsys):
    memory.main(["--pool", "300", "--bounds", "20MB", "--only", "CoreSet"])
    assert "| CoreSet | 20MB |" in capsys.readouterr().out
