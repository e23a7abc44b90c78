"""How much memory a network pass takes, and whether an error means that there was too little."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from skal.network import Network

__all__ = ["activation_bytes", "is_out_of_memory"]


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a smaller chunk may help."""
    text = str(error).lower()
    return (
        isinstance(error, (torch.OutOfMemoryError, MemoryError))
        or "can't allocate memory" in text
        or "not enough memory" in text
        or "out of memory" in text
    )


def activation_bytes(network: Network, sample: Any) -> int:
    """Bytes that autograd keeps for one sample's backward pass, parameters and buffers not counted."""
    own = {t.untyped_storage().data_ptr() for t in (*network.module.parameters(), *network.module.buffers())}
    seen: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        logits = network.logits(sample)  # alive until counted: its graph keeps the tensors, so no address comes twice
    del logits
    return sum(seen.values())
