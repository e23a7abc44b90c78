# SPDX-License-Identifier: BSD-3-Clause
"""A module in eval mode for a while, and where its parameters are."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from skal._core.generators import preserved_rng


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Eval mode, no autocast, no compiled code; then every submodule's flag and buffer, and the RNGs, as before."""
    flags = [(submodule, submodule.training) for submodule in module.modules()]
    buffers = {name: buffer.detach().clone() for name, buffer in module.named_buffers()}
    # embeddings with max_norm rescale their weights whenever they are called
    rescaled = [x.weight for x, _ in flags if isinstance(x, (nn.Embedding, nn.EmbeddingBag)) and x.max_norm]
    weights = [(weight, weight.detach().clone()) for weight in rescaled]
    device_type = device_of(module).type
    try:
        has_autocast = torch.amp.is_autocast_available(device_type)
        no_autocast = torch.autocast(device_type, enabled=False) if has_autocast else nullcontext()
        with preserved_rng(), _eagerly(), no_autocast:
            if any(flag for _, flag in flags):
                module.eval()
            yield
    finally:
        for submodule, flag in flags:
            if submodule.training is not flag:  # setting an attribute of a module takes a while
                submodule.training = flag
        with torch.no_grad():
            for name, buffer in module.named_buffers():
                if name in buffers and buffer.shape == buffers[name].shape:
                    buffer.copy_(buffers[name])
            for weight, before in weights:
                weight.copy_(before)


def not_compiled(module: nn.Module) -> nn.Module:
    """The module behind ``torch.compile``."""
    return getattr(module, "_orig_mod", module)


def _eagerly() -> AbstractContextManager[Any]:
    """Whatever was compiled runs as it is written: compiled code does not call hooks that came after it."""
    if "torch._dynamo" not in sys.modules or not hasattr(torch.compiler, "set_stance"):  # torch 2.6 has it
        return nullcontext()
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


def device_of(module: nn.Module) -> torch.device:
    tensor = next(chain(parameters_of(module), module.buffers()), None)
    return torch.device("cpu") if tensor is None else tensor.device


def parameters_of(module: nn.Module) -> Iterator[Tensor]:
    """The parameters in the module's order, tied ones each time; the first is found without a walk over all."""
    return (p for part in module.modules() for p in part._parameters.values() if p is not None)
