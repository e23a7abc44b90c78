# SPDX-License-Identifier: BSD-3-Clause
"""Where double precision is: Apple's devices have none, so that queries there work on the processor."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn


def place_with_doubles(device: torch.device) -> torch.device:
    """The device, or the processor if it has no double precision, which is found by trying.

    Examples
    --------
    >>> place_with_doubles(torch.device("cpu"))
    device(type='cpu')
    """
    if device.type != "cpu":
        try:
            torch.zeros(1, dtype=torch.float64, device=device)
        except TypeError:  # what torch raises on "mps"
            return torch.device("cpu")
    return device


def with_doubles(net: Any) -> Any:
    """The same skorch net or module; of one whose device has no double precision, a copy on the processor.

    Scores are small differences of large numbers. The copy shares all settings, and the original is left alone.

    Examples
    --------
    >>> module = nn.Linear(2, 2)
    >>> with_doubles(module) is module
    True
    """
    module = net if isinstance(net, nn.Module) else getattr(net, "module_", None)
    if not isinstance(module, nn.Module):
        return net
    devices = {tensor.device for tensor in (*module.parameters(), *module.buffers())}
    if all(place_with_doubles(device) == device for device in devices):
        return net
    if module is net:
        return copy.deepcopy(getattr(net, "_orig_mod", net)).cpu()
    twin = object.__new__(type(net))
    twin.__dict__.update(net.__dict__)
    memo: dict[int, Any] = {}  # modules and criteria may refer to one another
    for name in [*net._modules, *net._criteria]:
        part = net.__dict__[f"{name}_"]
        twin.__dict__[f"{name}_"] = copy.deepcopy(getattr(part, "_orig_mod", part), memo).cpu()
    twin.__dict__["device"] = "cpu"
    return twin
