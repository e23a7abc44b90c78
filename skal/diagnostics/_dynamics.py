# SPDX-License-Identifier: BSD-3-Clause
"""Training dynamics: how fast the loss falls at this moment, and what a batch of labels would add.

With residuals ``d = σ(f) − Y`` (cross-entropy) or ``f − Y`` (squared error) and the tangent kernel, the loss
of gradient flow falls at the rate ``G(S) = Σ_ij d_iᵀ Θ_ij d_j = ‖Σ_S g‖²``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from skal.tangent import gradient_scores, loss_gradient
from skal.validation import as_finite_array


def training_dynamics(K: Any, residuals: Any) -> float:
    """``G = Σ_ij d_iᵀ Θ_ij d_j``.

    Parameters
    ----------
    K : (n, n) or (nC, nC) array
        A scalar kernel, the same for every class, or all blocks as ``tangent_kernel(kind="entk")`` arranges them.
    residuals : (n, C) array
        ``σ(f) − Y`` for cross-entropy, ``f − Y`` for squared error (``G_MSE = Tr[(f − Y)ᵀ Θ (f − Y)]``).

    Returns
    -------
    float
        G, the squared norm of the summed loss gradient.

    Examples
    --------
    >>> from skal.diagnostics import training_dynamics
    >>> training_dynamics([[2.0, 1.0], [1.0, 2.0]], [[1.0, -1.0], [1.0, -1.0]])
    12.0
    """
    K = as_finite_array("training_dynamics", "K", K, ("n", "n"), remedy="Take it from tangent_kernel.")
    if np.ndim(residuals) == 2 and np.shape(residuals)[0] != len(K) and np.size(residuals) == len(K):
        residuals = np.reshape(residuals, -1)
    d = as_finite_array("training_dynamics", "residuals", residuals, (len(K), "C"), remedy="Pass one row per sample.")
    return float(np.einsum("ic,ij,jc->", d, K, d, optimize=True))


def training_dynamics_of(net: Any, X: Any, y: Any, *, loss: str = "auto", batch_size: int = 256) -> float:
    """``G(S) = ‖Σ_S g‖²`` of a network on labelled data: one forward and one backward pass.

    Parameters
    ----------
    net : fitted skorch net or nn.Module
        The network.
    X : array-like, tensor, Dataset or dict of arrays, n samples
        The labelled samples.
    y : (n,) int labels
        Their labels.
    loss : str, default="auto"
        As in :func:`skal.tangent.loss_gradient`. ``"squared_error"`` is ``G_MSE`` with the full kernel, which is also
        what a net trained with :class:`skal.nets.SquaredLoss` gets.
    batch_size : int, default=256
        Samples per network pass, at most.

    Returns
    -------
    float
        G of the set.

    Examples
    --------
    >>> import torch
    >>> from skal.diagnostics import training_dynamics_of
    >>> net = torch.nn.Linear(2, 2, bias=False)
    >>> _ = torch.nn.init.zeros_(net.weight)
    >>> training_dynamics_of(net, torch.tensor([[1.0, 0.0], [0.0, 2.0]]), [0, 1])
    2.5
    """
    return _inner(gradient := loss_gradient(net, X, y, loss=loss, batch_size=batch_size), gradient)


def approximation_ratio(gradients: Any, labelled_gradient: Any) -> float:
    """``R(Q|S) = Σ_Q Δ(x) / Δ(Q|S)``: what dynamicAL's separate scores add up to, over what the batch is worth.

    With ``Δ(x) = ‖g‖² + 2 g·g_S`` and ``Δ(Q|S) = ‖Σ_Q g‖² + 2 g_S·Σ_Q g``.

    Parameters
    ----------
    gradients : (q, P) array
        Loss gradients of the queried samples.
    labelled_gradient : (P,) array
        Summed gradient of the labelled set.

    Returns
    -------
    float
        R: 1 where the gradients of the batch do not interact.

    Examples
    --------
    >>> from skal.diagnostics import approximation_ratio
    >>> approximation_ratio([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0])  # orthogonal gradients do not interact
    1.0
    >>> approximation_ratio([[1.0, 0.0], [1.0, 0.0]], [0.0, 0.0])  # equal ones do
    0.5
    """
    owner, remedy = "approximation_ratio", "Take both from the same network and parameters."
    g_S = as_finite_array(owner, "labelled_gradient", labelled_gradient, ("P",), remedy=remedy)
    g_Q = as_finite_array(owner, "gradients", gradients, ("q", len(g_S)), remedy=remedy)
    total = g_Q.sum(0)
    return _ratio((g_Q**2).sum() + 2 * total @ g_S, total @ total + 2 * total @ g_S)


def approximation_ratio_of(
    net: Any, X_query: Any, y_query: Any, X_labelled: Any, y_labelled: Any, *, batch_size: int = 256
) -> float:
    """:func:`approximation_ratio` of a network, without writing a gradient out.

    Parameters
    ----------
    net : fitted skorch net or nn.Module
        The network that was queried with.
    X_query, y_query : the queried samples and their labels
        ``y_query=None`` takes the network's predictions, as dynamicAL does.
    X_labelled, y_labelled : the labelled set
        Samples, and their labels.
    batch_size : int, default=256
        Samples per network pass, at most.

    Returns
    -------
    float
        R: 1 where the gradients of the batch do not interact.

    Examples
    --------
    >>> import torch
    >>> from skal.diagnostics import approximation_ratio_of
    >>> net = torch.nn.Linear(2, 2, bias=False)
    >>> _ = torch.nn.init.zeros_(net.weight)
    >>> Q, S = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    >>> round(approximation_ratio_of(net, Q, [0, 0], S, [0]), 6)
    0.5
    """
    g_S = loss_gradient(net, X_labelled, y_labelled, batch_size=batch_size)
    g_Q = loss_gradient(net, X_query, y_query, batch_size=batch_size)
    norms, dots = gradient_scores(net, X_query, y_query, g_S, batch_size=batch_size)
    return _ratio(norms.sum() + 2 * dots.sum(), _inner(g_Q, g_Q) + 2 * _inner(g_Q, g_S))


def _ratio(separate: float, joint: float) -> float:
    """Not a number where the batch changes nothing at all."""
    return float(separate / joint) if joint != 0 else float("nan")


def _inner(first: dict[str, Tensor], second: dict[str, Tensor]) -> float:
    return float(sum(torch.sum(first[name].double() * second[name].double()) for name in first))
