"""The memory benchmark on a small pool, and peaks that keep their bounds."""

import sys

import pytest

from benchmarks import memory
from skal import config_context


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.filterwarnings("ignore::skal.exceptions.SkalWarning")
@pytest.mark.parametrize(
    ("name", "bound", "n"), [("ALBL", "20MB", 20_000), ("BADGE", "20MB", 20_000), ("BALD joint", "200MB", 50_000)]
)
def test_peaks_keep_the_bound_and_the_forecast(name, bound, n):
    """The rows that took most beyond their bounds, as long as products of large matrices left their work space."""
    learner, X = memory.make_learner(n)
    strategy = memory.CASES[name]
    with config_context(max_memory=bound):
        forecast = strategy.cost(learner, X, 20).memory
    used = int(memory.peak(strategy, bound, learner, X, 20))
    assert memory.beyond(used, bound, forecast) <= memory.ALLOWED


def test_what_counts_as_beyond():
    assert memory.beyond(30_000_000, "20MB", 50_000_000) == 6_000_000
    assert memory.beyond(30_000_000, "20MB", 10_000_000) == 18_000_000


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_table(capsys):
    memory.main(["--pool", "300", "--bounds", "20MB", "--only", "CoreSet"])
    assert "| CoreSet | 20MB |" in capsys.readouterr().out
