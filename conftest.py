"""While pytest imports and collects, nothing becomes garbage: the collector would look through it all in vain."""

import gc
from collections.abc import Generator

import pytest

gc.disable()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()  # what has been collected stays to the end
        gc.enable()
