"""What BAIT gives away by leaving out the Fisher information between classes.

``python -m benchmarks.bait_blocks``. A softmax's information about the last layer is one matrix of Cd × Cd; BAIT keeps
its C blocks of d × d on the diagonal. Here both choose ten samples on digits, on 16 principal components, so that the
whole matrix fits. The objective of both batches is ``tr(M⁻¹ F)`` with the whole matrix; a gap is relative to the batch
that was chosen with it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import numpy as np
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression

from benchmarks._measure import markdown
from skal import ActiveLearner
from skal.datasets import load
from skal.strategies import BAIT

N_POOL, N_COLUMNS, BATCH, RIDGE = 500, 16, 10, 1.0
N_LABELLED, SEEDS = (20, 50), range(10)


def roots(features: np.ndarray, proba: np.ndarray) -> np.ndarray:
    """V with ``V Vᵀ`` the information of each sample, ``(diag p − p pᵀ) ⊗ φ φᵀ``: (n, d), (n, C) -> (n, Cd, C)."""
    p = np.sqrt(proba)
    halves = np.eye(p.shape[1]) * p[:, :, None] - proba[:, :, None] * p[:, None, :]  # its square is diag p − p pᵀ
    return np.einsum("ncr,nd->ncdr", halves, features).reshape(len(p), -1, p.shape[1])


def inverse_of(V: np.ndarray) -> np.ndarray:
    """``(λI + Σ V Vᵀ)⁻¹``."""
    return np.linalg.inv(RIDGE * np.eye(V.shape[1]) + np.einsum("nir,njr->ij", V, V))


def effects(P: np.ndarray, F: np.ndarray, V: np.ndarray, sign: int) -> np.ndarray:
    """By how much ``tr(M⁻¹ F)`` falls with each sample (1), or rises without it (−1): (n,)."""
    PV = P @ V
    inner = np.eye(V.shape[2]) + sign * np.einsum("nir,nis->nrs", V, PV)
    return np.trace(np.linalg.solve(inner, np.einsum("nir,ij,njs->nrs", PV, F, PV, optimize=True)), axis1=1, axis2=2)


def choose(V: np.ndarray, labelled: np.ndarray, F: np.ndarray) -> list[int]:
    """Twice as many as asked for, one after the other, and half of them given back, with the whole matrix."""
    picked: list[int] = []
    for _ in range(2 * BATCH):
        gains = effects(inverse_of(np.concatenate([labelled, V[picked]])), F, V, 1)
        gains[picked] = -np.inf
        picked.append(int(gains.argmax()))
    while len(picked) > BATCH:
        rises = effects(inverse_of(np.concatenate([labelled, V[picked]])), F, V[picked], -1)
        picked.pop(int(rises.argmin()))
    return picked


def compare(seed: int, n_labelled: int) -> tuple[int, float, float]:
    """Picks in common, and the gaps of BAIT's batch and of a random one."""
    data = load("digits")
    X = PCA(N_COLUMNS, random_state=0).fit_transform(data.X_train.reshape(len(data.X_train), -1))
    order = np.random.default_rng(seed).permutation(len(X))
    labelled, pool = order[:n_labelled], order[n_labelled : n_labelled + N_POOL]
    model = LogisticRegression(max_iter=1000).fit(X[labelled], data.y_train[labelled])
    learner = ActiveLearner(model, BAIT(ridge=RIDGE), X_training=X[labelled], y_training=data.y_train[labelled])
    ours = learner.query(X[pool], n_instances=BATCH)[0]

    scale = np.sqrt(np.mean(X[pool] ** 2))
    layer = np.hstack([X / scale, np.ones((len(X), 1))])
    V, V_labelled = (roots(layer[rows], model.predict_proba(X[rows])) for rows in (pool, labelled))
    F = np.einsum("nir,njr->ij", V, V) / len(pool)
    whole = choose(V, V_labelled, F)

    def objective(batch: object) -> float:
        return float(np.trace(inverse_of(np.concatenate([V_labelled, V[np.asarray(batch)]])) @ F))

    best = objective(whole)
    common = len(set(ours.tolist()) & set(whole))
    return common, objective(ours) / best - 1, objective(np.arange(BATCH)) / best - 1


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    argparse.ArgumentParser(prog="python -m benchmarks.bait_blocks").parse_args(argv)
    rows: list[list[object]] = []
    for n_labelled in N_LABELLED:
        common, gaps, random_gaps = (
            np.array(column) for column in zip(*(compare(s, n_labelled) for s in SEEDS), strict=True)
        )
        cells = [f"{100 * gaps.mean():.1f}", f"{100 * gaps.min():.1f} to {100 * gaps.max():.1f}"]
        rows.append([n_labelled, f"{common.min()} to {common.max()}", *cells, f"{100 * random_gaps.mean():.0f}"])
    gaps_of = ["mean gap of BAIT, %", "its range", "mean gap of random picks, %"]
    print(markdown(["labels", f"picks in common, of {BATCH}", *gaps_of], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
