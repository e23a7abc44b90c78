# SPDX-License-Identifier: BSD-3-Clause
"""How far the pseudo-NTK is from the empirical NTK that it stands for."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg import solve

from skal._core.network import Network
from skal._core.pool import Samples
from skal._core.precision import with_doubles
from skal.diagnostics._alignment import one_hot_targets
from skal.exceptions import InvalidParameterError
from skal.tangent import tangent_kernel
from skal.validation import Real, as_finite_array


def kernel_report(
    pntk: Any,
    entk: Any,
    *,
    targets: Any = None,
    pntk_test: Any = None,
    entk_test: Any = None,
    y_test: Any = None,
    outputs: Any = None,
    outputs_test: Any = None,
    ridge: float = 1e-6,
) -> dict[str, float]:
    """Compare the pseudo-NTK K, taken as ``K ⊗ I_C``, with the empirical NTK.

    The two kernel regressions are those of the linearised network,
    ``f(x) + Θ(x, X) (Θ(X, X) + ρI)⁻¹ (Y − f(X))``, with either kernel [1]_.

    Parameters
    ----------
    pntk : (n, n) array
        The pseudo-NTK of the training samples.
    entk : (nC, nC) array
        The empirical NTK, as ``tangent_kernel(kind="entk")`` arranges it.
    targets : (n, C) array, optional
        One-hot labels: with them, and the next two, the two kernel regressions are compared too.
    pntk_test, entk_test : (m, n) and (mC, nC) arrays, optional
        The kernels between test and training samples.
    y_test : (m,) int array, optional
        Labels to score the regressions with.
    outputs, outputs_test : (n, C) and (m, C) arrays, optional
        The network's outputs f, the prior mean of the regressions, at training and test samples; None is zero.
    ridge : float, default=1e-6
        Of the regressions, relative to the mean diagonal.

    Returns
    -------
    dict of float
        Relative differences ``frobenius``, ``lambda_max``, ``lambda_min``, ``condition``; ``on_diagonal`` and
        ``off_diagonal``, the sums of the magnitudes of the entries on and off the diagonal of the empirical NTK's
        C × C blocks, averaged over all pairs of samples: the pseudo-NTK sets the second to zero;
        ``prediction_difference`` (relative, Frobenius), ``pntk_accuracy`` and ``entk_accuracy`` if asked for.

    References
    ----------
    .. [1] Mohamadi, "Neural Tangent Kernels: Approximations and Applications", master's thesis, UBC 2023,
       Equations 3.4 and 3.5.

    Examples
    --------
    >>> import numpy as np
    >>> from skal.diagnostics import kernel_report
    >>> K = np.array([[2.0, 1.0], [1.0, 2.0]])
    >>> report = kernel_report(K, np.kron(K, np.eye(3)))
    >>> report["frobenius"], report["on_diagonal"], report["off_diagonal"]  # three classes, entries of 1.5 on average
    (0.0, 4.5, 0.0)
    """
    K = as_finite_array("kernel_report", "pntk", pntk, ("n", "n"), remedy="Take it from tangent_kernel.")
    Theta = as_finite_array("kernel_report", "entk", entk, ("nC", "nC"), remedy="Take it from tangent_kernel.")
    Real(0).check("kernel_report", "ridge", ridge)
    n = len(K)
    if not Theta.any():
        remedy = "Check that the network's outputs depend on trainable parameters."
        raise InvalidParameterError.for_parameter("kernel_report", "entk", "not zero throughout", 0, remedy)
    if len(Theta) % n:
        expected, got = f"a matrix of n·C rows for the pntk's n = {n}", len(Theta)
        remedy = "Take both from tangent_kernel on the same samples."
        raise InvalidParameterError.for_parameter("kernel_report", "entk", expected, got, remedy)
    C = len(Theta) // n
    blocks = Theta.reshape(n, C, n, C)
    on_diagonal = float(np.abs(np.einsum("icjc->ijc", blocks)).sum())
    difference = float(np.linalg.norm(Theta - np.kron(K, np.eye(C))))
    own, full = np.linalg.eigvalsh(K), np.linalg.eigvalsh(Theta)
    report = {
        "frobenius": difference / float(np.linalg.norm(Theta)),
        "lambda_max": _relative(own[-1], full[-1]),
        "lambda_min": _relative(own[0], full[0]),
        "condition": _relative(_condition(own), _condition(full)),
        "on_diagonal": on_diagonal / n**2,
        "off_diagonal": (float(np.abs(Theta).sum()) - on_diagonal) / n**2,
    }
    if targets is not None:
        remedy = "The regressions need pntk_test and entk_test, from tangent_kernel(net, X_test, X)."
        Y = as_finite_array("kernel_report", "targets", targets, (n, C), remedy="Pass one-hot labels.")
        between = as_finite_array("kernel_report", "pntk_test", pntk_test, ("m", n), remedy=remedy)
        start, start_test = np.zeros((n, C)), np.zeros((len(between), C))
        if outputs is not None or outputs_test is not None:
            both = "Pass outputs and outputs_test, or neither."
            start = as_finite_array("kernel_report", "outputs", outputs, (n, C), remedy=both)
            start_test = as_finite_array("kernel_report", "outputs_test", outputs_test, start_test.shape, remedy=both)
        residuals = Y - start
        by_pntk = start_test + between @ _regression(K, residuals, ridge)
        between = as_finite_array("kernel_report", "entk_test", entk_test, (len(between) * C, n * C), remedy=remedy)
        by_entk = start_test + (between @ _regression(Theta, residuals.reshape(-1), ridge)).reshape(-1, C)
        report["prediction_difference"] = float(np.linalg.norm(by_pntk - by_entk) / np.linalg.norm(by_entk))
        if y_test is not None:
            report["pntk_accuracy"] = float(np.mean(by_pntk.argmax(1) == np.asarray(y_test)))
            report["entk_accuracy"] = float(np.mean(by_entk.argmax(1) == np.asarray(y_test)))
    return {name: float(value) for name, value in report.items()}


def _relative(value: float, reference: float) -> float:
    """Infinite where something is compared with nothing."""
    if value == reference:
        return 0.0
    return abs(value - reference) / abs(reference) if reference and np.isfinite(reference) else np.inf


def _condition(eigenvalues: np.ndarray) -> float:
    return eigenvalues[-1] / eigenvalues[0] if eigenvalues[0] else np.inf


def _regression(K: np.ndarray, Y: np.ndarray, ridge: float) -> np.ndarray:
    solution: np.ndarray = solve(K + ridge * K.diagonal().mean() * np.eye(len(K)), Y, assume_a="pos")
    return solution


def kernel_report_of(
    net: Any,
    X: Any,
    y: Any = None,
    X_test: Any = None,
    y_test: Any = None,
    *,
    ridge: float = 1e-6,
    **kernel_params: Any,
) -> dict[str, float]:
    """:func:`kernel_report` of a network on samples; test data adds the two kernel regressions around its outputs.

    Parameters
    ----------
    net : fitted skorch net or nn.Module
        The network whose kernels are compared.
    X : array-like, tensor, Dataset or dict of arrays, n samples
        Training samples.
    y : (n,) int labels, optional
        Labels, which the kernel regressions need.
    X_test, y_test : optional
        Test samples, and their labels.
    ridge : float, default=1e-6
        As in :func:`kernel_report`.
    **kernel_params
        As in :func:`skal.tangent.tangent_kernel`, without ``kind``.

    Returns
    -------
    dict of float
        As of :func:`kernel_report`.

    Examples
    --------
    >>> import torch
    >>> from skal.diagnostics import kernel_report_of
    >>> report = kernel_report_of(torch.nn.Linear(2, 3), torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    >>> round(report["frobenius"], 6)  # of one linear layer the two kernels are the same
    0.0
    """
    kernels = {kind: tangent_kernel(net, X, kind=kind, **kernel_params) for kind in ("pntk", "entk")}
    if y is None or X_test is None:
        return kernel_report(kernels["pntk"], kernels["entk"])
    test = {kind: tangent_kernel(net, X_test, X, kind=kind, **kernel_params) for kind in ("pntk", "entk")}
    network, batch_size = Network(with_doubles(net)), kernel_params.get("batch_size", 256)
    f, f_test = (network.all_logits(Samples(x), batch_size).double().cpu().numpy() for x in (X, X_test))
    return kernel_report(
        kernels["pntk"],
        kernels["entk"],
        targets=one_hot_targets(net, X, y),
        pntk_test=test["pntk"],
        entk_test=test["entk"],
        y_test=y_test,
        outputs=f,
        outputs_test=f_test,
        ridge=ridge,
    )
