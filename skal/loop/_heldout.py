# SPDX-License-Identifier: BSD-3-Clause
"""Measurements beside the rounds: random labels that are held out, and how models change on a fixed random set.

A strategy chooses a biased sample, and what it leaves is biased too. So the samples of the audit are drawn before
anything is queried, and no strategy chooses among them; a share of every batch is taken from them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.metrics import cohen_kappa_score

from skal._core.containers import take_rows
from skal.audit import plan
from skal.loop._progress import LoopState
from skal.loop._rules import Rules
from skal.models._predictor import Predictor
from skal.stopping import Forecast, forecast_accuracy

SOURCE = "held out"
N_AUDIT = 500  # labels, for an interval of ±4 %
N_WATCHED = 1000


def draw(state: LoopState, rules: Rules) -> None:
    """Draw the audit and the watched samples, if they are needed and not drawn yet."""
    share, watches = rules.heldout_share, rules.watches
    if state.audit and not share:
        release(state)
    drawn = bool(state.watched) and bool(state.audit or not share)
    if drawn or state.audit_predictions or not (watches or share):
        return
    given = [] if isinstance(rules.initial, str) or callable(rules.initial) else np.asarray(rules.initial).tolist()
    asked = state.asked if state.phase == "answer" else []
    free = np.setdiff1d(rules.pool(state), [*state.audit, *given, *asked])
    if len(free) == 0:
        return
    order = free[plan(len(free), len(free), uniform=True, random_state=state.seed_for("audit", round=0))[0]].tolist()
    wanted = min(N_AUDIT, max(1, round(share * rules.n_samples))) if share else 0
    n_audit = max(0, wanted - len(state.audit))  # after a loss of the other files some are known from the journal
    state.audit = [*state.audit, *order[:n_audit]]
    state.chances |= {position: 1 / (len(free) - i) for i, position in enumerate(order[:n_audit])}
    state.watched = order[n_audit:][: max(1, N_WATCHED - len(state.audit))]
    state.watched_predictions = None


def release(state: LoopState) -> None:
    """Stop measuring: labels that were held out may be trained on."""
    state.audit, state.watched, state.audit_predictions, state.watched_predictions = [], [], [], None
    if state.fitted is not None:
        state.fitted = state.fitted | {"n_changes": -1}


def n_from_audit(state: LoopState, size: int, share: float) -> int:
    """The number of audit samples in a batch of ``size`` that keeps their share of all labels."""
    wanted = round(share * (len(state.labelled) + size)) - sum(state.heldout)
    return max(0, min(wanted, size, len(open_audit(state))))


def open_audit(state: LoopState) -> list[int]:
    """Samples of the audit that have not been labelled or declined, in their random order."""
    return [position for position in state.audit if position not in state.answers]


def mix(state: LoopState, chosen: np.ndarray, metrics: list[Any] | None, n_audit: int) -> tuple[np.ndarray, Any]:
    """A batch with samples of the audit at random places, so that an unfinished batch has its share of them."""
    drawn = np.array(open_audit(state)[:n_audit], dtype=np.int64)
    places = np.random.default_rng(state.seed_for("audit")).choice(len(chosen) + n_audit, n_audit, replace=False)
    is_drawn = np.isin(np.arange(len(chosen) + n_audit), places)
    batch = np.empty(len(is_drawn), dtype=np.int64)
    batch[is_drawn], batch[~is_drawn] = drawn, chosen
    if metrics is not None and len(metrics) == len(chosen) and n_audit:
        values = iter(metrics)
        metrics = [None if held else next(values) for held in is_drawn]
    return batch, metrics


def measure(state: LoopState, rules: Rules, predictor: Predictor | None) -> dict[str, Any]:
    """Columns of the history for the model that has just been trained; the state keeps what the next one needs."""
    if predictor is None or not (rules.watches or rules.heldout_share):
        return {}
    rows = np.array([*state.audit, *state.watched], dtype=np.int64)
    samples = take_rows(rules.X, rows)
    proba = predictor.predict_proba(samples) if hasattr(predictor.estimator, "predict_proba") else None
    names = predictor.names
    if proba is None:
        labels = predictor.predict(samples)
        codes = np.array([np.flatnonzero(names == label)[0] for label in labels], dtype=np.int64)
    else:
        codes = proba.argmax(axis=1)
    unseen = ~np.isin(rows, state.training_set()[0])
    row: dict[str, Any] = {"agreement": None, "uncertainty_mean": None, "uncertainty_max": None}
    before = state.watched_predictions
    if before is not None and unseen.any():
        row["agreement"] = agreement(
            np.asarray(before["names"], dtype=object)[np.asarray(before["codes"], dtype=np.int64)][unseen],
            np.asarray(names.tolist(), dtype=object)[codes][unseen],
        )
    if proba is not None and unseen.any():
        uncertainty = 1 - proba[unseen].max(axis=1)
        row |= {"uncertainty_mean": float(uncertainty.mean()), "uncertainty_max": float(uncertainty.max())}
    said = {"names": names.tolist(), "codes": codes.tolist()}
    state.watched_predictions = said
    n_audit = len(state.audit)
    if n_audit:
        of_audit = {"n_labelled": len(state.labelled), "names": said["names"], "codes": said["codes"][:n_audit]}
        state.audit_predictions = [*state.audit_predictions, of_audit]
        correct = correctness(state)[1]
        n_heldout = correct.shape[1]
        row |= {"heldout_score": float(correct[-1].mean()) if n_heldout else None, "n_heldout": n_heldout}
    return row


def agreement(first: np.ndarray, second: np.ndarray) -> float:
    """Cohen's kappa of two predictions; 1 if they are the same, also where there is one class only.

    Examples
    --------
    >>> agreement(np.array(["a", "a"]), np.array(["a", "a"])), agreement(np.array([0, 1]), np.array([1, 0]))
    (1.0, -1.0)
    """
    return 1.0 if (first == second).all() else float(cohen_kappa_score(first.astype(str), second.astype(str)))


def correctness(state: LoopState) -> tuple[np.ndarray, np.ndarray]:
    """(T,) labels of each model, and (T, H) whether each classifies each held-out sample of the audit correctly."""
    columns = [i for i, position in enumerate(state.audit) if state.answers.get(position) is not None]
    truth = [state.answers[state.audit[i]] for i in columns]
    table = [
        [said["names"][said["codes"][i]] == label for i, label in zip(columns, truth, strict=True)]
        for said in state.audit_predictions
    ]
    n_labelled = np.array([said["n_labelled"] for said in state.audit_predictions], dtype=np.int64)
    return n_labelled, np.array(table, dtype=bool).reshape(len(n_labelled), len(columns))


def forecast(state: LoopState, more: int) -> Forecast:
    """Accuracy of the last model and of one with more labels, from the held-out labels of now."""
    n_labelled, correct = correctness(state)
    return forecast_accuracy(n_labelled, correct, more)
