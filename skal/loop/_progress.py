# SPDX-License-Identifier: BSD-3-Clause
"""Where a loop stands: the labels, as the journal says, and how far the rounds have come."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch

from skal._core.guard import preserve_rng
from skal.exceptions import InvalidParameterError, shorten

_PURPOSES = ("start", "query", "fit", "plan", "score", "audit")


@dataclass
class LoopState:
    """Where a loop stands.

    A round goes through three phases: ``"ask"`` (choose samples), ``"answer"`` (wait for their labels), ``"train"``
    (fit on what has been labelled).

    All randomness of a round comes from the seed and the number of the round, so that a resumed run draws what the
    first one would have.

    Attributes
    ----------
    answers : dict from int to label or None
        By position, in the order in which they came; None is declined. The journal has the same by ids.
    n_changes : int
        How often a label has come, gone or changed: the journal's count.
    seed : int
    phase : {"ask", "answer", "train"}
    round : int
        The current round; 0 is the initial set.
    label_dtype : str or None
        numpy's name of the labels' type.
    asked : list of int
        This round's samples.
    metrics : list or None
        The strategy's numbers for the asked samples.
    seconds_query : float
    history : list of dict
    stop_reason : str or None
    start : str or None
        How the initial samples were chosen, and why so.
    reason : str or None
        How this round's samples were chosen, and why so.
    source : str
        How this round's samples were chosen, for the journal.
    names : list or None
        The labels that a network's outputs stand for, as of its last training.
    fitted : dict or None
        ``round``, ``n_labelled`` and ``n_changes`` of the last training.
    notes : list of str
        For the next row of the history.
    audit : list of int
        Positions drawn at random, which no strategy chooses: some are labelled in every round, and held out.
    watched : list of int
        More of a fixed random part of the pool, which every model predicts.
    audit_predictions : list of dict
        Each model's predictions of the audit: ``n_labelled``, ``names`` and ``codes``.
    watched_predictions : dict or None
        The last model's predictions of the audit and the watched samples: ``names`` and ``codes``.
    chances : dict from int to float
        Of samples that chance has drawn: how probable each draw was, given those before it.
    look : int
        Labels of the audit that is the next round, or the open one; 0 if it is none.
    audited : list of int
        Samples of the audits of the last model so far.
    before : list of int
        Samples that had been labelled or declined before they were drawn; the audit is about all others.
    n_audits : int
        Audits so far that might have granted a certificate.
    stages : list of int
        Labels of the last of them after each of its stages.
    errors : [float, float]
        Errors of models on the samples of the next round, and how many they had expected; old ones count less.
    final : dict or None
        ``certificate``, ``positions`` and ``labels``: what the model has labelled in the end.
    certificate : dict or None
        What this round says if it was an audit.
    report : dict or None
        What the audit said before its labels were trained on.
    elapsed : float
        Seconds until the end of the last round, without those in which no session was open.
    """

    seed: int
    answers: dict[int, Any] = field(default_factory=dict)
    n_changes: int = 0
    phase: str = "ask"
    round: int = 0
    label_dtype: str | None = None
    asked: list[int] = field(default_factory=list)
    metrics: list[Any] | None = None
    seconds_query: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)
    stop_reason: str | None = None
    start: str | None = None
    reason: str | None = None
    source: str = "initial"
    names: list[Any] | None = None
    fitted: dict[str, int] | None = None
    notes: list[str] = field(default_factory=list)
    audit: list[int] = field(default_factory=list)
    watched: list[int] = field(default_factory=list)
    audit_predictions: list[dict[str, Any]] = field(default_factory=list)
    watched_predictions: dict[str, Any] | None = None
    chances: dict[int, float] = field(default_factory=dict)
    look: int = 0
    audited: list[int] = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    n_audits: int = 0
    stages: list[int] = field(default_factory=list)
    errors: list[float] = field(default_factory=lambda: [0.0, 0.0])
    final: dict[str, Any] | None = None
    certificate: dict[str, Any] | None = None
    report: dict[str, Any] | None = None
    elapsed: float = 0.0

    @classmethod
    def rebuild(cls, seed: int, first: int, told: list[tuple[int, int | None, Any]]) -> LoopState:
        """The rounds that a journal tells of, without scores; the labels are yet to be put in.

        ``told`` has the round, the position (None if the sample is gone) and the label (None if it was declined).
        """
        state, n_labelled = cls(seed=seed), 0
        for round in sorted({round for round, _, _ in told}):
            here = [(index, label) for own, index, label in told if own == round and index is not None]
            labelled = [index for index, label in here if label is not None]
            n_labelled += len(labelled)
            row = {"round": round, "n_labelled": n_labelled, "indices": labelled}
            row |= {"declined": [index for index, label in here if label is None]}
            row |= {"metrics": None, "reason": None, "train_score": None, "seconds_fit": 0.0, "seconds_query": 0.0}
            state.history.append(row | {"note": "from labels.jsonl alone"})
        state.round = max([first - 1, *(row["round"] for row in state.history)]) + 1
        return state

    @property
    def labelled(self) -> list[int]:
        """Positions of the labelled samples, in the order in which they were labelled."""
        return [index for index, label in self.answers.items() if label is not None]

    @property
    def labels(self) -> list[Any]:
        """Their labels."""
        return [label for label in self.answers.values() if label is not None]

    @property
    def declined(self) -> list[int]:
        """Positions that nobody could label; they are not asked for again."""
        return [index for index, label in self.answers.items() if label is None]

    @property
    def heldout(self) -> list[bool]:
        """One flag for every label: True if it is kept from training."""
        held = set(self.audit)
        return [index in held for index in self.labelled]

    @property
    def stale(self) -> bool:
        """True if labels have changed since the last training."""
        return self.fitted is None or self.fitted["n_changes"] != self.n_changes

    def pool(self, n_samples: int) -> np.ndarray:
        """Positions that may still be asked for, in ascending order."""
        free = np.ones(n_samples, dtype=bool)
        free[list(self.answers)] = False
        return np.flatnonzero(free)

    def open_questions(self) -> np.ndarray:
        """Asked and not answered yet, in the order they were asked; none once the round is closed."""
        asked = self.asked if self.phase == "answer" else []
        return np.array([index for index in asked if index not in self.answers], dtype=np.int64)

    def check_answer(self, positions: list[Any], values: list[Any]) -> None:
        """Refuse answers to what was not asked."""
        unanswered = self.open_questions().tolist()
        if not unanswered and values:
            raise InvalidParameterError(
                f"The samples told must be among those asked for. Got {len(values)} labels while nothing is asked for. "
                "Call ask() first."
            )
        if len(positions) != len(values):
            raise InvalidParameterError(
                f"The labels must be one for each of the {len(positions)} samples. Got {len(values)} instead. "
                "Put None where there is no label, or name the samples with indices."
            )
        if set(positions) - set(unanswered) or len(set(positions)) != len(positions):
            raise InvalidParameterError(
                f"The samples told must be distinct and among those asked for ({shorten(unanswered)}). "
                f"Got {shorten(positions)} instead. Call ask() for the open ones."
            )

    def training_set(self, n_first: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Positions and labels of the samples to train on: not held out, among the first ``n_first`` or all."""
        held = set(self.audit)
        known = [(index, label) for index, label in self.answers.items() if label is not None][:n_first]
        pairs = [(index, label) for index, label in known if index not in held]
        rows = np.array([index for index, _ in pairs], dtype=np.int64)
        return rows, np.array([label for _, label in pairs], dtype=self.label_dtype)

    def seed_for(self, purpose: str, round: int | None = None) -> int:
        """A 32-bit seed of its own for one step of this round, or of another."""
        round = self.round if round is None else round
        return int(np.random.SeedSequence([self.seed, round, _PURPOSES.index(purpose)]).generate_state(1)[0])

    @contextmanager
    def use_seed(self, purpose: str, round: int | None = None) -> Iterator[None]:
        """Seed torch, numpy and ``random``, which networks and modAL draw from; outside they are as before."""
        seed = self.seed_for(purpose, round)
        with preserve_rng():
            torch.manual_seed(seed)
            np.random.seed(seed)
            random.seed(seed)
            yield

    def take(self, index: int, label: Any, kind: str) -> None:
        """Let one event change the answers; a corrected label keeps its place."""
        if index in self.answers and (label is None or self.answers[index] is None):
            del self.answers[index]
        if kind != "open":
            self.answers[index] = label

    def open_round(self, positions: np.ndarray, metrics: list[Any] | None, seconds: float, source: str) -> None:
        """Wait for the labels of these samples."""
        self.asked, self.metrics, self.seconds_query = positions.tolist(), metrics, seconds
        self.phase, self.source = "answer", source

    def end_round(self, row: dict[str, Any]) -> None:
        """Add a row to the history; the next round can ask."""
        self.history.append(row)
        self.asked, self.metrics, self.seconds_query = [], None, 0.0
        self.phase, self.round, self.notes, self.certificate = "ask", self.round + 1, [], None

    def describe_round(self) -> dict[str, Any]:
        """This round's samples for the history; metrics as they came if they are not one per sample."""
        labelled = [index for index in self.asked if self.answers.get(index) is not None]
        declined = [index for index in self.asked if index in self.answers and self.answers[index] is None]
        metrics = self.metrics
        if metrics is not None and len(metrics) == len(self.asked):
            by_index = dict(zip(self.asked, metrics, strict=True))
            metrics = [by_index[index] for index in labelled]
        row = {"round": self.round, "n_labelled": len(self.labelled), "indices": labelled, "declined": declined}
        row |= {"metrics": metrics, "reason": self.reason}
        if self.certificate is not None:
            row["certificate"] = self.certificate
        return row | ({"note": "; ".join(self.notes)} if self.notes else {})

    def to_cache(self) -> dict[str, Any]:
        """Everything but what the journal says."""
        content = asdict(replace(self, answers={}))
        return {name: value for name, value in content.items() if name not in ("answers", "n_changes")}

    def positions(self) -> list[int]:
        """Every sample that :meth:`to_cache` mentions."""
        rows = [index for row in self.history for index in row["indices"] + row["declined"]]
        final = [] if self.final is None else self.final["positions"]
        return sorted({*self.asked, *self.audit, *self.watched, *self.chances, *rows, *final})

    def move(self, new: Mapping[int, int]) -> None:
        """Go over to a pool in another order: ``new[old]`` is the place of a sample, missing if it is gone."""

        def at(positions: list[int]) -> list[int]:
            return [new[index] for index in positions if index in new]

        if self.metrics is not None and len(self.metrics) == len(self.asked):
            self.metrics = [self.metrics[i] for i, index in enumerate(self.asked) if index in new]
        said = self.watched_predictions
        self.watched_predictions = said and _keep_codes(said, self.audit + self.watched, new)
        self.audit_predictions = [_keep_codes(each, self.audit, new) for each in self.audit_predictions]
        self.history = [row | {name: at(row[name]) for name in ("indices", "declined")} for row in self.history]
        self.asked, self.audit, self.watched = at(self.asked), at(self.audit), at(self.watched)
        self.chances = {new[index]: chance for index, chance in self.chances.items() if index in new}
        if self.final is not None:
            pairs = zip(self.final["positions"], self.final["labels"], strict=True)
            there = [(new[index], label) for index, label in pairs if index in new]
            self.final = self.final | {"positions": [i for i, _ in there], "labels": [label for _, label in there]}
        self.look, self.audited, self.before = 0, [], []  # an audit of other samples is none
        if self.phase == "answer" and not self.asked:
            self.phase = "ask"


def _keep_codes(said: dict[str, Any], positions: list[int], new: Mapping[int, int]) -> dict[str, Any]:
    """Predictions of those samples that are still there."""
    codes = [code for position, code in zip(positions, said["codes"], strict=True) if position in new]
    return said | {"codes": codes}
