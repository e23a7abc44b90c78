"""The papers' protocols by name, each with a variant scaled down to two cores under ``NAME_scaled``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from skal.bench._presets import _dynamic_al, _npc, _ntk
from skal.bench._protocol import Protocol
from skal.exceptions import InvalidParameterError

__all__ = ["PRESETS", "preset"]


def _all_presets() -> dict[str, tuple[Protocol, ...]]:
    found = {}
    for paper in (_dynamic_al, _ntk, _npc):
        for name, protocols in paper.protocols().items():
            # several have names of their own
            named = protocols if len(protocols) > 1 else [protocols[0].with_settings(name=name)]
            found[name] = tuple(named)
            found[f"{name}_scaled"] = tuple(_scaled_down(protocol, paper.scaled(protocol)) for protocol in named)
    return found


def _scaled_down(protocol: Protocol, settings: dict[str, Any]) -> Protocol:
    settings |= {"name": f"{protocol.name}_scaled", "notes": f"{protocol.notes} Scaled down: {settings['notes']}."}
    return protocol.with_settings(**settings)


PRESETS: Mapping[str, tuple[Protocol, ...]] = MappingProxyType(_all_presets())


def preset(name: str) -> tuple[Protocol, ...]:
    """The protocols behind a preset's name: one, or several where the paper compares settings.

    Parameters
    ----------
    name : str
        One of ``skal.bench.PRESETS``.

    Examples
    --------
    >>> from skal.bench import preset
    >>> (protocol,) = preset("dynamic_al_table2")
    >>> protocol.data, protocol.net, protocol.n_initial, protocol.batch, protocol.rounds, protocol.seeds
    ('cifar10', 'cnn', 500, 250, 10, 5)
    >>> [(p.rounds, p.batch) for p in preset("dynamic_al_table1")]
    [(10, 100), (4, 250), (2, 500), (1, 1000)]
    """
    if name not in PRESETS:
        expected = f"one of {', '.join(PRESETS)}"
        raise InvalidParameterError.for_parameter("skal.bench", "preset", expected, name, "Choose one of these.")
    return PRESETS[name]
