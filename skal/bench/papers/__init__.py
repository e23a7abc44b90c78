# SPDX-License-Identifier: BSD-3-Clause
"""The papers' protocols by name, each with a variant under ``NAME_scaled`` that two cores can run.

``PRESETS`` has them all, each a tuple of :class:`skal.bench.Protocol`, for :func:`preset` and
``skal bench --preset NAME``.

The module of a paper has ``BASE``, a protocol; ``PRESETS``, the settings that differ from ``BASE``, by preset and by
the suffix of a protocol's name; and ``scale_down``, the settings of the smaller variant of a protocol. ``_transcripts``
transcribes the papers, and a test compares both.

>>> from skal.bench.papers import PRESETS
>>> "dynamic_al_table2" in PRESETS and "dynamic_al_table2_scaled" in PRESETS
True
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from skal.bench._protocol import Protocol
from skal.bench.papers import _kong2022, _mohamadi2022, _wang2022
from skal.validation import Choice

__all__ = ["PRESETS", "preset"]


def _make_presets() -> dict[str, tuple[Protocol, ...]]:
    found = {}
    for paper in (_wang2022, _mohamadi2022, _kong2022):
        for name, variants in paper.PRESETS.items():
            full = [paper.BASE.with_settings(name=name + suffix, **changed) for suffix, changed in variants.items()]
            found[name] = tuple(full)
            found[f"{name}_scaled"] = tuple(_scale_down(protocol, paper.scale_down(protocol)) for protocol in full)
    return found


def _scale_down(protocol: Protocol, settings: dict[str, Any]) -> Protocol:
    notes = f"{protocol.notes} Scaled down: {settings['notes']}."
    return protocol.with_settings(**settings | {"name": f"{protocol.name}_scaled", "notes": notes})


PRESETS: Mapping[str, tuple[Protocol, ...]] = MappingProxyType(_make_presets())


def preset(name: str) -> tuple[Protocol, ...]:
    """The protocols of a preset: one, or several where the paper compares settings.

    Parameters
    ----------
    name : str
        A key of ``PRESETS``.

    Returns
    -------
    tuple of Protocol
        One for each setting of the paper.

    Examples
    --------
    >>> from skal.bench.papers import preset
    >>> (protocol,) = preset("dynamic_al_table2")
    >>> protocol.data, protocol.net, protocol.n_initial, protocol.query_size, protocol.n_rounds, protocol.seeds
    ('cifar10', 'cnn', 500, 250, 9, 5)
    >>> [(p.n_rounds, p.query_size) for p in preset("dynamic_al_table1") if p.net == "cnn"]
    [(10, 100), (4, 250), (2, 500), (1, 1000)]
    """
    Choice(*PRESETS).check("skal.bench.papers", "preset", name)
    return PRESETS[name]
