"""The load test loses nothing in a few seconds either, and its process is killed at the end."""

from benchmarks.label_load import run


def test_a_short_load():
    found = run(rate=25, seconds=2, tabs=2)
    assert found["lost"] == 0
    assert found["answered"] > 0
