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
@pytest.mark.filterwarnings("ignore::skal.exceptions.SkalWarning")
@pytest.mark.parametrize(
    ("name", "bound", "n"), [("ALBL", "20MB", 20_000), ("BADGE", "20MB", 20_000), ("BALD joint", "200MB", 50_000)]
)
def test_peaks_keep_the_bound_and_the_forecast(name, bound, n):
    """The rows that took most beyond their bounds, as long as products of large matrices left their work space."""
    learner, X = memory.make_learner(n)
    make = memory.CASES[name]
    forecast = make(bound)._memory(make(bound).prepare(learner, X), n, 20)
    used = int(memory.peak(make, bound, learner, X, 20))
    assert memory.beyond(used, bound, forecast) <= memory.ALLOWED


def test_what_counts_as_beyond():
    assert memory.beyond(30_000_000, "20MB", 50_000_000) == 6_000_000
    assert memory.beyond(30_000_000, "20MB", 10_000_000) == 18_000_000


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_table(capsys):
    memory.main(["--pool", "300", "--bounds", "20MB", "--only", "CoreSet"])
    assert "| CoreSet | 20MB |" in capsys.readouterr().out
