"""Per-sample gradients by BackPACK's ``BatchGrad``."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from skal.exceptions import UnsupportedLayerError
from skal.network import Network
from skal.tangent._cotangents import Cotangent
from skal.tangent._factors import Dense, PerSampleGradient

__all__ = ["BackpackBackend"]


class BackpackBackend:
    """BackPACK on a copy of the module: it leaves hooks behind, and the user's module must stay as it is."""

    def __init__(self, network: Network, names: set[str]) -> None:
        from backpack import extend

        self.network = copy.copy(network)
        module = copy.deepcopy(network.module)
        for layer in module.modules():
            if getattr(layer, "inplace", False):
                layer.inplace = False  # BackPACK's backward hooks do not survive in-place operations
        self.network.module = extend(module)
        self.parameters = {name: p for name, p in self.network.trainable().items() if name in names}

    def gradients(
        self, batch: Any, target: Tensor | None, cotangents: list[Cotangent]
    ) -> Iterator[dict[str, PerSampleGradient]]:
        """For each cotangent the per-sample gradients by parameter; a parameter without influence is left out."""
        from backpack import backpack
        from backpack.extensions import BatchGrad

        for cotangent in cotangents:
            logits = self.network.logits(batch)
            v = cotangent(logits.detach(), target)
            with backpack(BatchGrad()):
                (logits * v).sum().backward()
            found: dict[str, PerSampleGradient] = {}
            for name, p in self.parameters.items():
                if hasattr(p, "grad_batch"):
                    found[name] = Dense(p.grad_batch)
                    del p.grad_batch
                elif p.grad is not None:
                    raise UnsupportedLayerError(
                        f"BackPACK must know every layer. Got no per-sample gradient for the parameter {name!r}. "
                        "Use backend='structured', 'func' or 'auto'."
                    )
                p.grad = None
            yield found
