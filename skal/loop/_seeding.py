"""Randomness that depends on the seed and the round alone, so that a resumed run draws what the first one would have.

Networks are trained with torch's global generator, modAL's functions draw from numpy's. Both are seeded for the length
of a step and given their states back afterwards.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from skal._core.network import preserved_rng

__all__ = ["generator_states", "restore_generators", "seed_for", "seed_strategy", "seeded"]

_PURPOSES = ("start", "query", "fit", "holdout", "score")


def seed_for(seed: int, round: int, purpose: str) -> int:
    """A 32-bit seed of its own for one step of one round."""
    return int(np.random.SeedSequence([seed, round, _PURPOSES.index(purpose)]).generate_state(1)[0])


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch, numpy and ``random`` inside; outside they are as before."""
    with preserved_rng():
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        yield


def _random_states(value: Any) -> Iterator[tuple[Any, Any]]:
    """(owner, value) of every ``random_state`` in an estimator, its parts, and lists of estimators."""
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from _random_states(part)
    elif hasattr(value, "get_params") and not isinstance(value, type):
        for name, part in sorted(value.get_params(deep=False).items()):
            if name == "random_state":
                yield value, part
            else:
                yield from _random_states(part)


def seed_strategy(strategy: Any, original: Any, seed: int, round: int) -> None:
    """Give each part of a strategy a seed for this round: from the integer that ``original`` has, or the loop's seed.

    With the integer itself a strategy would make the same draws in every round. Generators are left alone.
    """
    pairs = zip(_random_states(strategy), _random_states(original), strict=True)
    parts = [(owner, own) for (owner, _), (_, own) in pairs if own is None or isinstance(own, (int, np.integer))]
    for place, (owner, own) in enumerate(parts):
        entropy = [seed_for(seed, round, "query"), place] if own is None else [int(own), round]
        owner.set_params(random_state=int(np.random.SeedSequence(entropy).generate_state(1)[0]))


def _generators(objects: tuple[Any, ...]) -> list[Any]:
    values = (value for part in objects for _, value in _random_states(part))
    return [value for value in values if isinstance(value, (np.random.Generator, np.random.RandomState))]


def generator_states(*objects: Any) -> list[Any]:
    """States of the generators that were given as ``random_state``, as JSON takes them."""
    return [
        g.bit_generator.state if isinstance(g, np.random.Generator) else g.get_state(legacy=False)
        for g in _generators(objects)
    ]


def restore_generators(states: list[Any], *objects: Any) -> None:
    """The reverse of :func:`generator_states`."""
    for generator, state in zip(_generators(objects), states, strict=True):
        if isinstance(generator, np.random.Generator):
            generator.bit_generator.state = state
        else:
            generator.set_state(state)
