# SPDX-License-Identifier: BSD-3-Clause
"""The end of a project: which samples the model may label, what is promised for that, and who has labelled what.

An audit for a certificate is drawn by chance from all samples that are left, after the model that it
judges has been trained. So the certificate holds whatever the model has learnt from, and whatever a strategy has
chosen; how often the loop looks is paid for by :meth:`skal.stopping.Certified.alpha`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from skal._core.containers import take_rows
from skal._files.json_text import format_json
from skal.audit import certify, plan
from skal.audit._checksum import add_checksum
from skal.loop._labels import encode
from skal.loop._progress import LoopState
from skal.loop._rules import Rules
from skal.models._predictor import Predictor

_KEPT = 0.7  # of the errors that were counted before, in every round


@dataclass(frozen=True)
class FinalLabels:
    """A data set that people and a model have labelled.

    Attributes
    ----------
    labels : pandas.DataFrame
        One row for every sample: ``id``, ``label`` (None where nobody has labelled it), ``by`` ("people", "model" or
        None) and ``annotator``, where people have given a name.
    certificate : dict or None
        The promise: ``max_error``, ``confidence``, ``error_bound``, counts, ``method`` and ``seed``; None if none was
        granted.

    Examples
    --------
    >>> from skal.loop import FinalLabels
    >>> rows = [(7, "cat", "people", "Ada"), (8, "dog", "model", None), (9, None, None, None)]
    >>> FinalLabels.of(rows, certificate=None).to_json()[:69]
    '{"certificate": null, "counts": {"people": 1, "model": 1, "open": 1},'
    """

    labels: pd.DataFrame
    certificate: dict[str, Any] | None

    @classmethod
    def of(cls, rows: list[tuple[Any, ...]], certificate: dict[str, Any] | None) -> FinalLabels:
        """Make one from rows of id, label, by and annotator."""
        return cls(pd.DataFrame(rows, columns=["id", "label", "by", "annotator"], dtype=object), certificate)

    def to_json(self) -> str:
        """The certificate, counts, and who labelled what, as one JSON object.

        Returns
        -------
        str
            With ``certificate``, ``counts`` and ``labels``; ``open`` samples, which nobody has labelled, are counted
            only.
        """
        done = self.labels[self.labels["by"].notna()]
        counts = {by: int((done["by"] == by).sum()) for by in ("people", "model")}
        counts["open"] = len(self.labels) - len(done)
        if self.certificate is not None:  # rows may be those with a label alone
            whole = self.certificate["n_samples"] + self.certificate["n_labelled"]
            counts["open"] = max(counts["open"], whole - len(done))
        rows = done.astype(object).where(done.notna(), None).to_dict("records")
        return format_json({"certificate": self.certificate, "counts": counts, "labels": rows})


def plan_audit(state: LoopState, rules: Rules, predictor: Predictor | None) -> None:
    """Let the next round be an audit, if one could grant the certificate that the stopping criterion waits for.

    The sizes of its stages are fixed before anything is drawn: whether to go on may depend on what a stage has found.
    """
    criterion, pool = rules.certified, rules.pool(state)
    state.audited = []
    n, n_classes = len(pool), 0 if predictor is None else len(predictor.names)
    if criterion is None or predictor is None or n_classes < 2 or state.final is not None or n == 0:
        return
    guesses = np.sort(1 - predictor.predict_proba(take_rows(rules.X, pool)).max(axis=1))
    found, expected = state.errors
    held = [index for index in state.audit if state.answers.get(index) is not None]
    if held and not state.n_audits:  # drawn by chance, too
        found, expected = _compare(state, rules, predictor, held)
    share = min(1.0, guesses[: max(0, n - criterion.n_left)].sum() / n * (found + 1) / (expected + 1))
    sizes = criterion.audit_sizes(share, n, len(state.labelled), state.n_audits + 1)
    if sizes and _is_affordable(sizes[0], state, rules):
        begin_audit(state, sizes)


def begin_audit(state: LoopState, sizes: list[int]) -> None:
    """Let the next round be an audit of the present model; ``sizes`` are the numbers of labels after its stages."""
    state.n_audits, state.stages, state.look, state.audited = state.n_audits + 1, sizes, sizes[0], []


def _is_affordable(size: int, state: LoopState, rules: Rules) -> bool:
    return rules.budget is None or size <= rules.budget - len(state.labelled)


def count_errors(state: LoopState, rules: Rules, predictor: Predictor) -> None:
    """Compare what the last model says of a round's samples with their labels: is it too sure of itself?

    What an audit has found counts alone, because other rounds are chosen by a strategy.
    """
    rows = [index for index in state.asked if state.answers.get(index) is not None]
    if rows and (state.look or not state.n_audits):
        kept = 0.0 if state.look and not state.audited else _KEPT
        new = _compare(state, rules, predictor, rows)
        state.errors = [kept * before + now for before, now in zip(state.errors, new, strict=True)]


def _compare(state: LoopState, rules: Rules, predictor: Predictor, rows: list[int]) -> tuple[float, float]:
    """Errors of the model on labelled samples, and how many it expects."""
    proba = predictor.predict_proba(take_rows(rules.X, np.array(rows)))
    labels = np.array([state.answers[index] for index in rows], dtype=state.label_dtype)
    n_wrong = (proba.argmax(axis=1) != encode(labels, predictor.names)).sum()
    return float(n_wrong), float((1 - proba.max(axis=1)).sum())


def draw_audit(state: LoopState, rules: Rules) -> np.ndarray:
    """Positions in X of an audit, which chance alone chooses."""
    pool = rules.pool(state)
    if not state.audited:
        state.before = sorted(state.answers)
    rows, _ = plan(len(pool), min(state.look, len(pool)), uniform=True, random_state=state.seed_for("plan"))
    positions = pool[rows]
    state.chances |= dict.fromkeys(positions.tolist(), len(rows) / len(pool))
    return positions


def judge_audit(state: LoopState, rules: Rules, predictor: Predictor) -> dict[str, Any]:
    """The certificate of a round that was an audit, for the history; ``granted`` says whether it is good enough.

    A sample that was declined, or has a label that the model does not know, counts as one on which it is wrong. An
    audit of which samples are missing grants nothing, nor does one with labels that were added between its stages.
    """
    criterion = rules.certified
    assert criterion is not None
    state.look, state.audited = 0, [*state.audited, *state.asked]
    audited = np.array(state.audited, dtype=np.int64)
    audit, missing = state.n_audits, [index for index in state.audited if index not in state.answers]
    added = set(state.answers).difference(state.before, state.audited)
    if missing or len(audited) not in state.stages or (added and len(audited) > state.stages[0]):
        return {"granted": False, "audit": audit, "missing": len(missing), "max_error": criterion.max_error}
    stage = state.stages.index(len(audited))
    # all that were left when it was drawn, whatever people have added since: that may depend on what it found
    rest = np.setdiff1d(rules.pool(replace(state, answers={})), state.before)
    proba = predictor.predict_proba(take_rows(rules.X, rest)).astype(np.float64)
    at = np.searchsorted(rest, audited)
    said = proba.argmax(axis=1)
    labels = [state.answers[index] for index in state.audited]
    known = np.array([label is not None for label in labels])
    truth = np.full(len(labels), -1, dtype=np.int64)
    truth[known] = encode(
        np.array([label for label in labels if label is not None], dtype=state.label_dtype), predictor.names
    )
    wrong = truth != said[at]
    n_labelled = sum(state.answers.get(index) is not None for index in state.before)
    alpha = criterion.alpha(audit, stage, len(state.stages))
    found = certify(
        proba,
        at,
        np.where(wrong, (said[at] + 1) % proba.shape[1], said[at]),
        add_checksum(at, np.full(len(at), len(at) / len(rest)), len(rest)),  # chance drew them, stage by stage
        criterion.max_error,
        1 - alpha,
        n_labelled,
        seed=state.seed_for("plan"),
    )
    method = f"{found.method}; stage {stage + 1} of audit {audit}, which may be wrong with probability {alpha:.3g}"
    found = replace(found, confidence=criterion.confidence, method=method)
    certificate: dict[str, Any] = json.loads(found.to_json()) | {"audit": audit, "stage": stage + 1}
    trivial = found.accepted.sum() <= criterion.max_error * (len(rest) + n_labelled)  # even if all of them are wrong
    granted = found.n_left <= criterion.n_left and (found.n_left == 0 or not trivial)
    if granted:
        accepted = found.accepted & ~np.isin(rest, list(state.answers))
        state.final = {
            "certificate": certificate,
            "positions": rest[accepted].tolist(),
            "labels": predictor.names[said[accepted]].tolist(),
        }
    elif stage + 1 < len(state.stages) and state.stages[stage + 1] > len(at):
        confidences = proba.max(axis=1)
        cut = np.sort(confidences)[min(criterion.n_left, len(rest) - 1)]
        share = float(((wrong & (confidences[at] >= cut)).sum() + 1) / (len(at) + 1))
        later = list(enumerate(state.stages))[stage + 1 :]
        likely = any(criterion.passes(share, size, len(rest), n_labelled, audit, k) for k, size in later)
        size = state.stages[stage + 1] - len(at)
        state.look = size if likely and _is_affordable(size, state, rules) else 0
    return certificate | {"granted": granted}


def combine_labels(state: LoopState, ids: list[Any], annotators: dict[Any, str | None]) -> FinalLabels:
    """Combine the labels of people and of the model; a label by people is never replaced."""
    final = state.final or {"certificate": None, "positions": [], "labels": []}
    by_model = dict(zip(final["positions"], final["labels"], strict=True))
    people = dict(zip(state.labelled, state.labels, strict=True))
    rows = []
    for position, key in enumerate(ids):
        by = "people" if position in people else "model" if position in by_model else None
        annotator = annotators.get(key) if by == "people" else None
        rows.append((key, people.get(position, by_model.get(position)), by, annotator))
    return FinalLabels.of(rows, final["certificate"])
