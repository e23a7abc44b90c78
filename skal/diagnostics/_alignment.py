"""Alignment of a kernel with labels, and the generalisation bound's leading term.

Θ is a scalar (n, n) kernel and Y the (n, C) one-hot labels throughout.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from skal._core.network import Network
from skal._core.samples import Samples
from skal.exceptions import InvalidParameterError
from skal.tangent import tangent_kernel
from skal.tangent._gradients import one_hot
from skal.validation import as_finite_array, check_real


def alignment(K: Any, Y: Any) -> float:
    """``A = Tr[Yᵀ Θ Y]``: how much of the labels lies along the kernel's strong directions.

    Parameters
    ----------
    K : (n, n) array
    Y : (n, C) array

    Examples
    --------
    >>> from skal.diagnostics import alignment
    >>> alignment([[2.0, 1.0], [1.0, 2.0]], [[1.0, 0.0], [0.0, 1.0]])
    4.0
    """
    K = as_finite_array("alignment", "K", K, ("n", "n"), remedy="Take it from tangent_kernel.")
    Y = as_finite_array("alignment", "Y", Y, (len(K), "C"), remedy="Pass one row per sample.")
    return float(np.einsum("ic,ij,jc->", Y, K, Y, optimize=True))


def generalization_bound(K: Any, Y: Any, *, ridge: float = 0.0) -> float:
    """``B = √(2 Tr[Yᵀ Θ⁻¹ Y] / n)``: the leading term of the bound for a wide network trained on these labels.

    Parameters
    ----------
    K : (n, n) array, positive definite
    Y : (n, C) array
    ridge : float, default=0
        Added to the diagonal, relative to its mean.

    Examples
    --------
    >>> from skal.diagnostics import generalization_bound
    >>> generalization_bound([[2.0, 0.0], [0.0, 2.0]], [[1.0, 0.0], [0.0, 1.0]]).__round__(6)
    1.0
    """
    K = as_finite_array("generalization_bound", "K", K, ("n", "n"), remedy="Take it from tangent_kernel.")
    Y = as_finite_array("generalization_bound", "Y", Y, (len(K), "C"), remedy="Pass one row per sample.")
    check_real("generalization_bound", "ridge", ridge, 0)
    try:
        factor = cho_factor(K + ridge * K.diagonal().mean() * np.eye(len(K)))
    except LinAlgError:
        raise InvalidParameterError(
            "The K given to generalization_bound must be positive definite. Got a singular matrix instead, as from "
            "duplicate samples. Remove the duplicates, or pass a small ridge such as 1e-8."
        ) from None
    return float(np.sqrt(2 * np.sum(Y * cho_solve(factor, Y)) / len(K)))


def alignment_of(net: Any, X: Any, y: Any, *, kind: str = "pntk", **kernel_params: Any) -> float:
    """:func:`alignment` of a network's tangent kernel with integer labels.

    Parameters
    ----------
    net : fitted skorch net or nn.Module
    X : array-like, tensor, Dataset or dict of arrays, n samples
    y : (n,) integer labels
    kind, **kernel_params
        As in :func:`skal.tangent.tangent_kernel`.

    Examples
    --------
    >>> import torch
    >>> from skal.diagnostics import alignment_of
    >>> alignment_of(torch.nn.Linear(1, 2, bias=False), torch.tensor([[1.0], [3.0]]), [0, 1]).__round__(4)
    10.0
    """
    return alignment(tangent_kernel(net, X, kind=kind, **kernel_params), one_hot_targets(net, X, y))


def generalization_bound_of(
    net: Any, X: Any, y: Any, *, kind: str = "pntk", ridge: float = 0.0, **kernel_params: Any
) -> float:
    """:func:`generalization_bound` of a network's tangent kernel with integer labels.

    Parameters
    ----------
    net : fitted skorch net or nn.Module
    X : array-like, tensor, Dataset or dict of arrays, n samples
    y : (n,) integer labels
    ridge : float, default=0
        As in :func:`generalization_bound`.
    kind, **kernel_params
        As in :func:`skal.tangent.tangent_kernel`.

    Examples
    --------
    >>> import torch
    >>> from skal.diagnostics import generalization_bound_of
    >>> net = torch.nn.Linear(2, 2, bias=False)
    >>> generalization_bound_of(net, torch.tensor([[2.0, 0.0], [0.0, 2.0]]), [0, 1]).__round__(6)
    0.707107
    """
    return generalization_bound(
        tangent_kernel(net, X, kind=kind, **kernel_params), one_hot_targets(net, X, y), ridge=ridge
    )


def one_hot_targets(net: Any, X: Any, y: Any) -> np.ndarray:
    """(n, C) one-hot labels, with C from the network's output."""
    network, samples = Network(net), Samples(X)
    return one_hot(y, len(samples), network.n_classes(samples), network).double().cpu().numpy()
