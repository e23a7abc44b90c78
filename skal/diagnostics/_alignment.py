# SPDX-License-Identifier: BSD-3-Clause
"""Alignment of a kernel with labels, the generalisation bound's leading term, and what training leaves of the labels.

Θ is a scalar (n, n) kernel and Y the (n, C) one-hot labels throughout.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from skal._core.network import Network
from skal._core.pool import Samples
from skal._core.precision import with_doubles
from skal.exceptions import InvalidParameterError
from skal.tangent import tangent_kernel
from skal.tangent._gradients import one_hot
from skal.validation import Integer, Real, as_finite_array


def alignment(K: Any, Y: Any) -> float:
    """``A = Tr[Yᵀ Θ Y]``: how much of the labels lies along the kernel's strong directions.

    Parameters
    ----------
    K : (n, n) array
        Kernel of the labelled samples.
    Y : (n, C) array
        Their labels, one-hot or centred.

    Returns
    -------
    float
        A; the larger, the faster training on these labels.

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
        Kernel of the labelled samples.
    Y : (n, C) array
        Their labels, one-hot or centred.
    ridge : float, default=0
        Added to the diagonal, relative to its mean.

    Returns
    -------
    float
        B. A singular kernel is refused.

    Examples
    --------
    >>> from skal.diagnostics import generalization_bound
    >>> generalization_bound([[2.0, 0.0], [0.0, 2.0]], [[1.0, 0.0], [0.0, 1.0]]).__round__(6)
    1.0
    """
    K = as_finite_array("generalization_bound", "K", K, ("n", "n"), remedy="Take it from tangent_kernel.")
    Y = as_finite_array("generalization_bound", "Y", Y, (len(K), "C"), remedy="Pass one row per sample.")
    Real(0).check("generalization_bound", "ridge", ridge)
    try:
        factor = cho_factor(K + ridge * K.diagonal().mean() * np.eye(len(K)))
    except LinAlgError:
        raise InvalidParameterError(
            "The K given to generalization_bound must be positive definite. Got a singular matrix instead, as from "
            "duplicate samples. Remove the duplicates, or pass a small ridge such as 1e-8."
        ) from None
    return float(np.sqrt(2 * np.sum(Y * cho_solve(factor, Y)) / len(K)))


def convergence(K: Any, Y: Any, lr: float, n_steps: int) -> float:
    """``Σ_k Σ_i (1 − ηλ_i)^{2t} (v_iᵀ Y_k)²``: the squared error that t steps of gradient descent leave.

    The convergence term of dynamicAL's Lemma 1: the square of ``‖Y − f_t(X)‖`` for a wide network with squared loss
    whose outputs start at zero; λ_i and v_i are the kernel's eigenvalues and eigenvectors. Theorem 1 bounds it by the
    alignment A: for ``η λ_max ≤ 1`` and ``t ≥ 1`` it lies between ``Tr[YᵀY] − 2tηA`` and ``Tr[YᵀY] − ηA``.

    Parameters
    ----------
    K : (n, n) array, symmetric
        Kernel of the labelled samples.
    Y : (n, C) array
        Their labels, one-hot or centred.
    lr : float
        Learning rate η of ``½‖f − Y‖²``, at most ``2 / λ_max``: above that training diverges.
    n_steps : int
        Steps, t.

    Returns
    -------
    float
        The squared error after ``n_steps`` steps, summed over samples and classes.

    Examples
    --------
    >>> from skal.diagnostics import convergence
    >>> K, Y = [[2.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]]
    >>> convergence(K, Y, lr=0.5, n_steps=0), convergence(K, Y, lr=0.5, n_steps=1)
    (2.0, 0.25)
    """
    K = as_finite_array("convergence", "K", K, ("n", "n"), remedy="Take it from tangent_kernel.")
    Y = as_finite_array("convergence", "Y", Y, (len(K), "C"), remedy="Pass one row per sample.")
    Real(0).check("convergence", "lr", lr)
    Integer(0).check("convergence", "n_steps", n_steps)
    eigenvalues, vectors = np.linalg.eigh(K)
    if lr * eigenvalues[-1] > 2 * (1 + 1e-9):
        expected = f"at most 2 / λ_max ({2 / eigenvalues[-1]:.3g}), or training diverges"
        raise InvalidParameterError.for_parameter("convergence", "lr", expected, lr, "Pass a smaller one.")
    left = (1 - lr * eigenvalues) ** (2 * int(n_steps))
    return float(left @ np.square(vectors.T @ Y).sum(axis=1))


def alignment_of(net: Any, X: Any, y: Any, *, kind: str = "pntk", **kernel_params: Any) -> float:
    """:func:`alignment` of a network's tangent kernel with integer labels.

    Parameters
    ----------
    net : fitted skorch net or nn.Module
        The network whose kernel is taken.
    X : array-like, tensor, Dataset or dict of arrays, n samples
        The labelled samples.
    y : (n,) int labels
        Their labels.
    kind : {"pntk", "logit", "trace"}, default="pntk"
        Which tangent kernel.
    **kernel_params
        As in :func:`skal.tangent.tangent_kernel`.

    Returns
    -------
    float
        A, with one-hot labels.

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
        The network whose kernel is taken.
    X : array-like, tensor, Dataset or dict of arrays, n samples
        The labelled samples.
    y : (n,) int labels
        Their labels.
    kind : {"pntk", "logit", "trace"}, default="pntk"
        Which tangent kernel.
    ridge : float, default=0
        Added to the diagonal, relative to its mean.
    **kernel_params
        As in :func:`skal.tangent.tangent_kernel`.

    Returns
    -------
    float
        B, with one-hot labels.

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


def convergence_of(
    net: Any, X: Any, y: Any, lr: float, n_steps: int, *, kind: str = "pntk", **kernel_params: Any
) -> float:
    """:func:`convergence` of a network's tangent kernel with integer labels.

    Parameters
    ----------
    net : fitted skorch net or nn.Module
        The network whose kernel is taken.
    X : array-like, tensor, Dataset or dict of arrays, n samples
        The labelled samples.
    y : (n,) int labels
        Their labels.
    lr : float
        Learning rate, at most ``2 / λ_max``.
    n_steps : int
        Steps of gradient descent.
    kind : {"pntk", "logit", "trace"}, default="pntk"
        Which tangent kernel.
    **kernel_params
        As in :func:`skal.tangent.tangent_kernel`.

    Returns
    -------
    float
        The squared error after ``n_steps`` steps, from outputs of zero to one-hot labels.

    Examples
    --------
    >>> import torch
    >>> from skal.diagnostics import convergence_of
    >>> net = torch.nn.Linear(2, 2, bias=False)
    >>> convergence_of(net, torch.eye(2), [0, 1], lr=0.5, n_steps=1).__round__(6)
    0.5
    """
    return convergence(tangent_kernel(net, X, kind=kind, **kernel_params), one_hot_targets(net, X, y), lr, n_steps)


def one_hot_targets(net: Any, X: Any, y: Any) -> np.ndarray:
    """(n, C) one-hot labels, with C from the network's output."""
    network, samples = Network(with_doubles(net)), Samples(X)
    return one_hot(y, len(samples), network.n_classes(samples), network).double().cpu().numpy()
