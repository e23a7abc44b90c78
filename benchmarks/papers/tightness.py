"""Thesis, appendix A.9: how much of the bounds A.46, A.57 and A.67 is used, by the width of the network.

The network is that of the thesis's Setting B: dense layers without biases, ReLU, weights N(0, 1 / inputs). Its tangent
kernels come from the recursion A.20, with the derivatives of the nonlinearity, which the thesis bounds by 1. The
constants of the bounds are the smallest ones with which their conditions hold: C_1 n bounds the diagonal of the last
hidden layer's kernel and C_2 √n the rest of it. μ'_s is 0, the mean of a difference of variables with equal means.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks._kept import Kept
from benchmarks._measure import markdown
from benchmarks.papers.kernels import load_images
from benchmarks.papers.study import Study

N_OUTPUTS, DEPTH, DELTA = 10, 3, 0.05  # and the probability with which a bound may fail
WIDTHS = {"quick": (8, 16), "scaled": (32, 64, 128, 256, 512, 1024), "full": (32, 128, 512, 2048, 8192)}
N_TRAIN, N_SEEDS = {"quick": 3, "scaled": 5, "full": 10}, {"quick": 1, "scaled": 3, "full": 3}


def make_weights(n_inputs: int, width: int, seed: int) -> list[np.ndarray]:
    """Of DEPTH layers, from the inputs to the outputs."""
    rng, sizes = np.random.default_rng(seed), (n_inputs, *[width] * (DEPTH - 1), N_OUTPUTS)
    return [rng.normal(size=(b, a)) / np.sqrt(a) for a, b in pairwise(sizes)]


def kernels(weights: list[np.ndarray], x: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The tangent kernels of the last hidden layer (n, n) and of the outputs (O, O), for one pair of samples."""
    first = weights[0] @ x, weights[0] @ z
    slopes = [(h > 0).astype(float) for h in first]
    theta, f = np.diag(x @ z * slopes[0] * slopes[1]), [np.maximum(h, 0) for h in first]
    hidden = theta
    for W in weights[1:]:
        hidden, h = theta, [W @ a for a in f]
        is_last = W is weights[-1]
        slopes = [np.ones(len(W)) if is_last else (a > 0).astype(float) for a in h]
        V = [slope[:, None] * W for slope in slopes]
        theta = V[0] @ theta @ V[1].T + np.diag(f[0] @ f[1] * slopes[0] * slopes[1])
        f = h if is_last else [np.maximum(a, 0) for a in h]
    return hidden, theta


def measure(weights: list[np.ndarray], X: np.ndarray, x: np.ndarray, Y: np.ndarray) -> dict[str, float]:
    """Left sides of A.46, A.57 and A.67 over their right sides; the first two at the pair that comes closest."""
    n, N = len(weights[-1][0]), len(X)
    thetas, C_1, C_2 = np.empty((N + 1, N, N_OUTPUTS, N_OUTPUTS)), 0.0, 0.0
    for i, j in np.ndindex(N + 1, N):
        hidden, thetas[i, j] = kernels(weights, [*X, x][i], X[j])
        C_1 = max(C_1, np.abs(hidden.diagonal()).max() / n)
        C_2 = max(C_2, np.abs(hidden - np.diag(hidden.diagonal())).max() / np.sqrt(n))
    pntk = thetas.sum((2, 3)) / N_OUTPUTS
    apart = thetas - pntk[..., None, None] * np.eye(N_OUTPUTS)
    log, log_n = np.log(4 * N_OUTPUTS**2 / DELTA), np.log(4 * N_OUTPUTS**2 * n**2 / DELTA)
    larger = max(np.sqrt(log), np.sqrt(2) * log)
    scale = 4 * N_OUTPUTS * (C_1 + C_2)
    eigenvalues = np.linalg.eigvalsh((thetas + thetas.swapaxes(2, 3)) / 2)[..., -1]  # Θ(x, z) need not be symmetric
    full = thetas[:N].transpose(0, 2, 1, 3).reshape(N * N_OUTPUTS, N * N_OUTPUTS) / n
    K, between = pntk[:N] / n, thetas[N].transpose(1, 0, 2).reshape(N_OUTPUTS, N * N_OUTPUTS) / n
    smallest = min(np.linalg.eigvalsh(full)[0], np.linalg.eigvalsh(K)[0])
    h = between @ np.linalg.solve(full, Y.reshape(-1))
    h_pntk = pntk[N] / n @ np.linalg.solve(K, Y)
    bound = scale * N / (smallest * np.sqrt(n)) * larger * np.linalg.norm(Y)
    bound *= 1 + N / smallest * np.linalg.norm(between, 2)
    return {
        "A.46": float(np.linalg.norm(apart, axis=(2, 3)).max() / (scale * np.sqrt(n) * max(2 * log_n**0.5, 4 * log_n))),
        "A.57": float(np.abs(eigenvalues - pntk).max() / (scale * np.sqrt(n) * larger)),
        "A.67": float(np.linalg.norm(h_pntk - h) / bound),
    }


def _measure(width: int, size: str, seed: int) -> dict[str, float]:
    X, y, X_test, _ = load_images(size, N_TRAIN[size], 1, seed)
    X, x = (images.reshape(len(images), -1).astype(float) for images in (X, X_test))
    return measure(make_weights(X.shape[1], width, seed), X, x[0], np.eye(N_OUTPUTS)[y])


def _table(size: str, kept: Kept, folder: Path | None) -> str:
    rows: list[list[object]] = []
    for width in WIDTHS[size]:
        runs = [kept(f"{width} {seed}", partial(_measure, width, size, seed)) for seed in range(N_SEEDS[size])]
        rows.append([width, *(f"{np.mean([run[key] for run in runs]):.2g}" for key in ("A.46", "A.57", "A.67"))])
    return markdown(["width", "A.46, ‖Θ − Θ̂ ⊗ I‖", "A.57, λ_max", "A.67, kernel regression"], rows)


STUDIES = (Study("tightness", "thesis, A.9: measured over bound, by width", _table),)
