# SPDX-License-Identifier: BSD-3-Clause
"""Maximum mean discrepancy between the initial labelled set and the current one, which contains it."""

from __future__ import annotations

from typing import Any

import numpy as np

from skal.exceptions import InvalidParameterError
from skal.tangent import tangent_kernel
from skal.validation import as_finite_array


def mmd_squared(K: Any, initial: Any) -> float:
    """Estimate of MMD² between the initial set S0 (m samples) and the current set S ⊇ S0 (n samples).

    ``a/(m² − m) + b/(n² − n) − 2c/(m(n − 1))`` with a and b the sums over pairs of different samples in S0 and in S,
    and c the sum over pairs of one from each that are not the same sample. Unbiased when queried and initial samples
    come from one distribution; otherwise the bias is O(1/n). It can be negative.

    Parameters
    ----------
    K : (n, n) array
        Kernel of the current set.
    initial : (m,) int array
        Positions of the initial samples in it, m >= 2.

    Returns
    -------
    float
        The estimate, which may be negative.

    Examples
    --------
    >>> import numpy as np
    >>> from skal.diagnostics import mmd_squared
    >>> x = np.array([0.0, 2.0, 1.0])
    >>> mmd_squared(np.outer(x, x), [0, 1]).__round__(6)  # a = 0, b = 4, c = 2
    -0.333333
    """
    K = as_finite_array("mmd", "K", K, ("n", "n"), remedy="Take it from tangent_kernel.")
    initial = np.asarray(initial)
    n, m = len(K), initial.size
    distinct = initial.ndim == 1 and initial.dtype.kind in "iu" and m >= 2 and len(np.unique(initial)) == m
    if not distinct or initial.min() < 0 or initial.max() >= n:
        expected = f"at least two distinct positions in 0 … {n - 1}"
        remedy = "Pass the row numbers of the initial samples in K."
        raise InvalidParameterError.for_parameter("mmd", "initial", expected, initial, remedy)
    diagonal = K.diagonal()
    within_initial = K[np.ix_(initial, initial)].sum() - diagonal[initial].sum()
    within_current = K.sum() - diagonal.sum()
    between = K[initial].sum() - diagonal[initial].sum()
    return float(within_initial / (m * m - m) + within_current / (n * n - n) - 2 * between / (m * (n - 1)))


def mmd(K: Any, initial: Any) -> float:
    """``√max(0, MMD²)``; see :func:`mmd_squared`.

    Parameters
    ----------
    K : (n, n) array
        Kernel of the current set.
    initial : (m,) int array
        Positions of the initial samples in it, m >= 2.

    Returns
    -------
    float
        0 where the two sets look the same.

    Examples
    --------
    >>> import numpy as np
    >>> from skal.diagnostics import mmd
    >>> mmd(np.ones((4, 4)), [0, 1])
    0.0
    """
    return float(np.sqrt(max(0.0, mmd_squared(K, initial))))


def mmd_of(net: Any, X: Any, initial: Any, *, kind: str = "pntk", **kernel_params: Any) -> float:
    """:func:`mmd` under a network's tangent kernel.

    Parameters
    ----------
    net : fitted skorch net or nn.Module
        The network whose kernel is taken.
    X : array-like, tensor, Dataset or dict of arrays, n samples
        The current labelled set.
    initial : (m,) int array
        Positions of the initial samples in it, m >= 2.
    kind : {"pntk", "logit", "trace"}, default="pntk"
        Which tangent kernel.
    **kernel_params
        As in :func:`skal.tangent.tangent_kernel`.

    Returns
    -------
    float
        0 where the two sets look the same to the network.

    Examples
    --------
    >>> import torch
    >>> from skal.diagnostics import mmd_of
    >>> mmd_of(torch.nn.Linear(1, 2, bias=False), torch.ones(5, 1), [0, 1, 2])
    0.0
    """
    return mmd(tangent_kernel(net, X, kind=kind, **kernel_params), initial)
