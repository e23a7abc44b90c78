"""States of the shared generators are put back, whatever was drawn."""

import random

import numpy as np
import pytest
import torch

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
