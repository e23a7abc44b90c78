# SPDX-License-Identifier: BSD-3-Clause
"""The papers' protocols by name, each with a variant scaled down to two cores under ``NAME_scaled``.

The module of a paper has ``BASE``, a protocol; ``PRESETS``, which has, for each preset and each suffix of a name in it,
the settings that differ from ``BASE``; and ``scaled``, the settings of the smaller variant of a protocol. What the
papers say is transcribed in ``_papers``; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from skal.bench._presets import _dynamic_al, _npc, _ntk
from skal.bench._protocol import Protocol
from skal.validation import check_choice


def _all_presets() -> dict[str, tuple[Protocol, ...]]:
    found = {}
    for paper in (_dynamic_al, _ntk, _npc):
        for name, variants in paper.PRESETS.items():
            full = [paper.BASE.with_settings(name=name + suffix, **changed) for suffix, changed in variants.items()]
            found[name] = tuple(full)
            found[f"{name}_scaled"] = tuple(_scaled_down(protocol, paper.scaled(protocol)) for protocol in full)
    return found


def _scaled_down(protocol: Protocol, settings: dict[str, Any]) -> Protocol:
    notes = f"{protocol.notes} Scaled down: {settings['notes']}."
    return protocol.with_settings(**settings | {"name": f"{protocol.name}_scaled", "notes": notes})


PRESETS: Mapping[str, tuple[Protocol, ...]] = MappingProxyType(_all_presets())


def preset(name: str) -> tuple[Protocol, ...]:
    """The protocols behind a preset's name: one, or several where the paper compares settings.

    Parameters
    ----------
    name : str
        One of ``skal.bench.PRESETS``.

    Returns
    -------
    tuple of Protocol
        One for each setting of the paper.

    Examples
    --------
    >>> from skal.bench import preset
    >>> (protocol,) = preset("dynamic_al_table2")
    >>> protocol.data, protocol.net, protocol.n_initial, protocol.batch, protocol.rounds, protocol.seeds
    ('cifar10', 'cnn', 500, 250, 9, 5)
    >>> [(p.rounds, p.batch) for p in preset("dynamic_al_table1") if p.net == "cnn"]
    [(10, 100), (4, 250), (2, 500), (1, 1000)]
    """
    check_choice("skal.bench", "preset", name, list(PRESETS))
    return PRESETS[name]
