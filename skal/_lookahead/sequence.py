"""Labels that come one after the other: the kernel grows by a row and a column, and nothing is read again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from skal._lookahead.posterior import Outputs

__all__ = ["Sequence"]


class Sequence:
    """Kernels between labelled samples and candidates, as labels are added.

    A look-ahead is made from them anew for each query: the ridge is relative to the labelled samples' kernel, so that
    another label changes it. That takes one product of a (candidates × labels) and a (labels × evaluation) matrix.

    Parameters
    ----------
    K_LL : (nB, nB), K_LC : (nB, NB) float64 tensors
        B is 1, or the number of classes for a matrix kernel.
    column : callable, int -> (NB, B) tensor
        Kernel between all candidates and one of them.
    residuals : (n, c) float64 tensor
    outputs : Outputs
        Of the candidates.
    build : callable, (K_LL, K_LC, residuals) -> look-ahead
    """

    def __init__(
        self,
        K_LL: Tensor,
        K_LC: Tensor,
        column: Callable[[int], Tensor],
        residuals: Tensor,
        outputs: Outputs,
        build: Callable[[Tensor, Tensor, Tensor], Any],
    ) -> None:
        self.K_LL, self.K_LC, self.residuals, self.outputs = K_LL, K_LC, residuals, outputs
        self._column, self._build = column, build

    def append(self, j: int, label: int) -> None:
        """Candidate j has got this label; it stays a candidate until somebody takes it away."""
        column = self._column(j)  # (NB, B)
        B = column.shape[1]
        own = slice(j * B, (j + 1) * B)
        side = self.K_LC[:, own]  # (nB, B)
        corner = column[own]
        self.K_LL = torch.cat([torch.cat([self.K_LL, side], dim=1), torch.cat([side.T, corner], dim=1)])
        self.K_LC = torch.cat([self.K_LC, column.T])
        residual = -self.outputs.link[j]
        residual[label] += 1
        self.residuals = torch.cat([self.residuals, residual[None]])

    def lookahead(self) -> Any:
        """What one more label would do now. To be used up: conditioning it changes nothing here."""
        return self._build(self.K_LL, self.K_LC, self.residuals)
