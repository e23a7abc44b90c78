# SPDX-License-Identifier: BSD-3-Clause
"""Labels that may be wrong: what models say of them that were trained without them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd

from skal._core.containers import take_rows
from skal.loop._fitting import Trainer
from skal.loop._progress import LoopState

N_FOLDS = 5


def stratified_folds(codes: np.ndarray, n_folds: int, rng: np.random.Generator) -> np.ndarray:
    """(n,) the fold of each sample: every class is spread over the folds as evenly as it goes.

    Examples
    --------
    >>> folds = stratified_folds(np.array([0, 0, 1, 1, 1, 1]), 2, np.random.default_rng(0))
    >>> np.bincount(folds).tolist(), np.bincount(folds[2:]).tolist()
    ([3, 3], [2, 2])
    """
    order = np.lexsort((rng.permutation(len(codes)), codes))
    folds = np.empty(len(codes), dtype=np.int64)
    folds[order] = np.arange(len(codes)) % n_folds
    return folds


def find_issues(proba: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """(n,) which labels confident learning (Northcutt et al., 2021) takes for wrong.

    A class is confident of a sample if its probability is at least the mean that it has where it is the label. The most
    probable confident class should be the label.

    Parameters
    ----------
    proba : (n, C) array
        Of models that were trained without the sample.
    codes : (n,) int array
        The labels.

    Examples
    --------
    >>> proba = np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.95, 0.05]])
    >>> find_issues(proba, np.array([0, 0, 1, 1])).tolist()
    [False, False, False, True]
    """
    n_classes = proba.shape[1]
    counts = np.bincount(codes, minlength=n_classes)
    own = np.bincount(codes, weights=proba[np.arange(len(codes)), codes], minlength=n_classes)
    thresholds = np.where(counts > 0, own / np.maximum(counts, 1), np.inf)
    confident = np.where(proba >= thresholds - 1e-6, proba, -1.0)
    found: np.ndarray = (confident.max(axis=1) >= 0) & (confident.argmax(axis=1) != codes)
    return found


def predict_out_of_fold(
    trainer: Trainer,
    state: LoopState,
    n_folds: int = N_FOLDS,
    goes_on: Callable[[], bool] = lambda: True,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
    """Predict each label with a model that was trained on the other folds.

    Parameters
    ----------
    trainer : Trainer
        Left as it is.
    state : LoopState
        Labels that are held out take part, too.
    n_folds : int, default=5
    goes_on : callable, default=always
        Asked before every fold; False ends the work, without a result.

    Returns
    -------
    rows, codes : (n,) int arrays
        Positions, and labels as numbers of columns.
    proba : (n, C) array
    names : (C,) array
        Or None if there are too few labels to train without a fold.
    """
    known = [(position, label) for position, label in state.answers.items() if label is not None]
    rows = np.array([position for position, _ in known], dtype=np.int64)
    names, codes = np.unique(np.array([label for _, label in known], dtype=state.label_dtype), return_inverse=True)
    if len(rows) < 2 * n_folds or len(names) < 2:
        return None
    folds = stratified_folds(codes, n_folds, np.random.default_rng(state.seed_for("score", round=0)))
    proba = np.zeros((len(rows), len(names)))
    for fold in range(n_folds):
        if not goes_on():
            return None
        without = replace(state, answers={p: label for (p, label), f in zip(known, folds, strict=True) if f != fold})
        without.audit, without.fitted = [], None
        model = trainer.copy()
        model.estimator = None
        if not model.can_fit(without):
            return None
        model.fit(without)
        here = np.flatnonzero(folds == fold)
        said = model.predictor.predict_proba(take_rows(trainer.rules.X, rows[here]))
        columns = pd.Index(model.predictor.names).get_indexer(names)
        proba[np.ix_(here, np.flatnonzero(columns >= 0))] = said[:, columns[columns >= 0]]
    return rows, codes.astype(np.int64), proba, names
