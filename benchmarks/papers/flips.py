"""The look-ahead as the authors' released code counts it: how many predictions a candidate's label would change."""

from __future__ import annotations

from typing import Any

import numpy as np

from skal.tangent import tangent_features


def count_flips(
    L: np.ndarray,
    U: np.ndarray,
    E: np.ndarray,
    residuals: np.ndarray,
    f_U: np.ndarray,
    f_E: np.ndarray,
    ridge: float = 1e-4,
) -> np.ndarray:
    """(N,) how many predictions at e samples change when a candidate is labelled as predicted.

    L (n, k), U (N, k) and E (e, k) are tangent features of the labelled samples, the candidates and the samples where
    predictions are counted. residuals (n, C) are the labels, one-hot, minus the outputs; f_U (N, C), f_E (e, C) are
    outputs. The ridge is relative to the mean diagonal of the labelled samples' kernel.
    """
    K = L @ L.T
    rho = ridge * K.diagonal().mean()
    by_labels, by_evaluation = np.split(np.linalg.solve(K + rho * np.eye(len(L)), np.hstack([residuals, L @ E.T])),
                                        [residuals.shape[1]], axis=1)  # fmt: skip
    K_U = U @ L.T
    F_U, F_E = f_U + K_U @ by_labels, f_E + E @ L.T @ by_labels  # the linearised network, trained on the labels
    S = U @ E.T - K_U @ by_evaluation
    u = (U**2).sum(1) + rho - (K_U.T * np.linalg.solve(K + rho * np.eye(len(L)), K_U.T)).sum(0)
    residual = np.eye(f_U.shape[1])[f_U.argmax(1)] - F_U
    before = f_E.argmax(1)
    moved = ((F_E + s[:, None] * r).argmax(1) for s, r in zip(S / u[:, None], residual, strict=True))
    return np.array([(now != before).sum() for now in moved])


def flipped_predictions(
    learner: Any, X_pool: np.ndarray, n_instances: int, *, evaluation: int = 1000, seed: int = 0
) -> np.ndarray:
    """Query the samples that would change most predictions, equal counts in random order; for squared-loss networks."""
    net, rng = learner.estimator, np.random.default_rng([seed, len(learner.X_training)])
    L, U = (tangent_features(net, X).astype(np.float64) for X in (learner.X_training, X_pool))
    f_L, f_U = (np.asarray(net.forward(X)).astype(np.float64) for X in (learner.X_training, X_pool))
    residuals = np.eye(f_L.shape[1])[learner.y_training] - f_L
    rows = rng.permutation(len(U))[:evaluation]
    counts = count_flips(L, U, U[rows], residuals, f_U, f_U[rows])
    return np.lexsort((rng.random(len(U)), -counts))[:n_instances]
