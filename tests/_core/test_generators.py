"""States of the shared generators are put back, whatever was drawn."""

import random

import numpy as np
import pytest
import torch

from skal._core import generators
from skal._core.generators import GeneratorStates


def draw():
    return random.random(), random.gauss(0, 1), np.random.rand(), torch.rand(1).item()


@pytest.mark.parametrize("warm_up", [0, 1, 2])
@pytest.mark.parametrize("disturb", [np.random.rand, np.random.randn, lambda: np.random.randn(3), lambda: None])
def test_what_is_drawn_afterwards_is_what_would_have_been(warm_up, disturb):
    """Normal numbers are made in pairs, of which half may be left."""
    np.random.seed(0)
    np.random.randn(warm_up)
    start = np.random.get_state()
    expected = np.random.randn(3).tolist()
    for _ in range(2):  # the second time the state is known
        np.random.set_state(start)
        before = GeneratorStates()
        disturb()
        draw()
        before.restore()
        before.restore()
        assert np.random.randn(3).tolist() == expected


def test_all_generators():
    before = GeneratorStates()
    first = draw()
    before.restore()
    assert draw() == first


def test_another_generator_in_numpys_place():
    own = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(0))
    try:
        before = GeneratorStates()
        first = np.random.rand()
        before.restore()
        assert np.random.rand() == first
    finally:
        np.random.set_bit_generator(own)


@pytest.mark.parametrize("readable", [True, False])
@pytest.mark.parametrize("warm_up", [0, 1, 2])
@pytest.mark.parametrize("disturb", [random.random, lambda: random.gauss(0, 1), lambda: random.seed(1), lambda: None])
def test_pythons_own_numbers_go_on_as_if_nothing_had_happened(monkeypatch, readable, warm_up, disturb):
    """With the bytes of the state read where they lie, and on a Python where they are not found."""
    if not readable:
        monkeypatch.setattr(generators, "_python_bytes", None)
    random.seed(0)
    for _ in range(warm_up):
        random.gauss(0, 1)
    start = random.getstate()
    expected = [random.gauss(0, 1) for _ in range(3)], random.random()
    for _ in range(2):  # the second time the state is known
        random.setstate(start)
        before = GeneratorStates()
        disturb()
        before.restore()
        before.restore()
        assert ([random.gauss(0, 1) for _ in range(3)], random.random()) == expected


def test_the_bytes_of_pythons_state_are_found():
    """They say as much as the state, so that it need not be asked for."""
    before = generators._raw_python_state()
    assert before is not None
    start = random.getstate()
    for _ in range(1000):  # beyond the 624 numbers that are made at once
        random.random()
        assert generators._raw_python_state() != before
    random.setstate(start)
    assert generators._raw_python_state() == before


def test_only_a_plain_generator_is_read_by_its_bytes():
    assert generators._bytes_of(None) is None
    assert generators._bytes_of(random.SystemRandom()) is None
