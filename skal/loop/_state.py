# SPDX-License-Identifier: BSD-3-Clause
"""What a loop knows between two steps: everything that a resumed run needs, in types that JSON has."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from skal._core.guard import preserve_rng

_PURPOSES = ("start", "query", "fit", "holdout", "score", "audit")


@dataclass
class LoopState:
    """Where a loop stands.

    A round goes through three phases: ``"ask"`` (choose samples), ``"answer"`` (wait for their labels), ``"train"``
    (fit on what has been labelled).

    All randomness of a round comes from the seed and the number of the round, so that a resumed run draws what the
    first one would have.

    Attributes
    ----------
    seed : int
    phase : {"ask", "answer", "train"}
    round : int
        The current round; 0 is the initial set.
    labelled, labels, heldout : list
        Positions in X in the order they were labelled, their labels, and whether each is kept for validation.
    label_dtype : str or None
        numpy's name of the labels' type.
    declined : list of int
        Positions that nobody could label; they are not asked for again.
    asked : list of int
        This round's samples.
    told : list of [int, label or None]
        This round's answers so far; None is declined.
    metrics : list or None
        What the strategy said about the asked samples.
    seconds_query : float
    history : list of dict
    stop_reason : str or None
    start : str or None
        How the initial samples were chosen, and why so.
    source : str
        How this round's samples were chosen, for the journal of labels.
    names : list or None
        The labels that a network's outputs stand for, as of its last training.
    fitted : dict or None
        ``round`` and ``n_labelled`` of the last training.
    stale : bool
        Whether labels have changed since the last training, other than by a round's answers.
    notes : list of str
        For the next row of the history.
    audit : list of int
        Positions drawn at random, which no strategy chooses: some are labelled in every round, and held out.
    watched : list of int
        More of a fixed random part of the pool, which every model predicts.
    audit_predictions : list of dict
        What each model said of the audit: ``n_labelled``, ``names`` and ``codes``.
    watched_predictions : dict or None
        What the last model said of the audit and the watched samples: ``names`` and ``codes``.
    elapsed : float
        Seconds until the end of the last round, without those in which no session was open.
    """

    seed: int
    phase: str = "ask"
    round: int = 0
    labelled: list[int] = field(default_factory=list)
    labels: list[Any] = field(default_factory=list)
    heldout: list[bool] = field(default_factory=list)
    label_dtype: str | None = None
    declined: list[int] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    told: list[list[Any]] = field(default_factory=list)
    metrics: list[Any] | None = None
    seconds_query: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)
    stop_reason: str | None = None
    start: str | None = None
    source: str = "initial"
    names: list[Any] | None = None
    fitted: dict[str, int] | None = None
    stale: bool = False
    notes: list[str] = field(default_factory=list)
    audit: list[int] = field(default_factory=list)
    watched: list[int] = field(default_factory=list)
    audit_predictions: list[dict[str, Any]] = field(default_factory=list)
    watched_predictions: dict[str, Any] | None = None
    elapsed: float = 0.0

    def pool(self, n_samples: int) -> np.ndarray:
        """Positions that may still be asked for, in ascending order."""
        free = np.ones(n_samples, dtype=bool)
        free[self.labelled + self.declined] = False
        return np.flatnonzero(free)

    def unanswered(self) -> np.ndarray:
        """Asked and not answered yet, in the order they were asked; none once the round is closed."""
        answered = {index for index, _ in self.told}
        asked = self.asked if self.phase == "answer" else []
        return np.array([index for index in asked if index not in answered], dtype=np.int64)

    def label_array(self) -> np.ndarray:
        """The labels in their own type."""
        return np.array(self.labels, dtype=self.label_dtype)

    def labelled_set(self, *, heldout: bool, n_first: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Positions and labels of the samples that are (not) held out, among the first ``n_first`` or all."""
        rows = np.flatnonzero(np.array(self.heldout[:n_first], dtype=bool) == heldout)
        return np.array(self.labelled, dtype=np.int64)[rows], self.label_array()[rows]

    def seed_for(self, purpose: str, round: int | None = None) -> int:
        """A 32-bit seed of its own for one step of this round, or of another."""
        round = self.round if round is None else round
        return int(np.random.SeedSequence([self.seed, round, _PURPOSES.index(purpose)]).generate_state(1)[0])

    @contextmanager
    def seeded(self, purpose: str, round: int | None = None) -> Iterator[None]:
        """Seed torch, numpy and ``random``, which networks and modAL draw from; outside they are as before."""
        seed = self.seed_for(purpose, round)
        with preserve_rng():
            torch.manual_seed(seed)
            np.random.seed(seed)
            random.seed(seed)
            yield

    def open_round(self, positions: np.ndarray, metrics: list[Any] | None, seconds: float, source: str) -> None:
        """Wait for the labels of these samples."""
        self.asked, self.told, self.metrics, self.seconds_query = positions.tolist(), [], metrics, seconds
        self.phase, self.source = "answer", source

    def with_answers(self, answers: Iterable[tuple[int, Any, bool]]) -> LoopState:
        """A copy in which these samples have these labels, or are declined, or neither.

        What was asked for and is open becomes an answer of this round; everything else is a correction, and the
        estimator must be trained anew. What is so already changes nothing.
        """
        told, declined = dict(self.told), dict.fromkeys(self.declined)
        asked = set(self.asked) if self.phase == "answer" else set()
        corrections = []
        for index, label, is_declined in answers:
            if index in asked and (label is not None or is_declined):
                told[index] = label
                declined.pop(index, None)  # it may have been declined before it was asked for
            else:
                corrections.append((index, label, is_declined))
                if self.phase == "answer":
                    told.pop(index, None)
                elif index in told:  # of the round that is being trained on
                    told[index] = label
                declined.pop(index, None)
                if is_declined:
                    declined[index] = None
        state = replace(self, told=[list(answer) for answer in told.items()], declined=list(declined))
        return state._corrected(corrections) if corrections else state

    def _corrected(self, corrections: list[tuple[int, Any, bool]]) -> LoopState:
        """A copy with other labels; lists are copied rather than gone through: there may be many labels."""
        labelled, labels, heldout = list(self.labelled), list(self.labels), list(self.heldout)
        places, audit, changed = dict(zip(labelled, range(len(labelled)), strict=True)), set(self.audit), False
        gone = set()
        for index, label, _ in corrections:
            place = places.get(index)
            if label is None:
                changed |= place is not None and place not in gone
                gone |= set() if place is None else {place}
            elif place is None:
                places[index], changed = len(labelled), True
                labelled.append(index)
                labels.append(label)
                heldout.append(index in audit)
            else:
                changed |= labels[place] != label or place in gone
                labels[place] = label
                gone -= {place}
        kept = [place for place in range(len(labelled)) if place not in gone] if gone else None
        return replace(
            self,
            labelled=labelled if kept is None else [labelled[place] for place in kept],
            labels=labels if kept is None else [labels[place] for place in kept],
            heldout=heldout if kept is None else [heldout[place] for place in kept],
            stale=self.stale or changed,
        )

    def at_positions(self, new: Mapping[int, int]) -> LoopState:
        """A copy for a pool in another order: ``new[old]`` is the place of a sample, missing if it is gone."""

        def moved(positions: list[int]) -> list[int]:
            return [new[index] for index in positions if index in new]

        kept = [i for i, index in enumerate(self.labelled) if index in new]
        metrics = self.metrics
        if metrics is not None and len(metrics) == len(self.asked):
            metrics = [metrics[i] for i, index in enumerate(self.asked) if index in new]
        said = self.watched_predictions
        history = [row | {name: moved(row[name]) for name in ("indices", "declined")} for row in self.history]
        state = replace(
            self,
            labelled=moved(self.labelled),
            labels=[self.labels[i] for i in kept],
            heldout=[self.heldout[i] for i in kept],
            declined=moved(self.declined),
            asked=moved(self.asked),
            told=[[new[index], value] for index, value in self.told if index in new],
            metrics=metrics,
            history=history,
            audit=moved(self.audit),
            watched=moved(self.watched),
            audit_predictions=[_kept_codes(each, self.audit, new) for each in self.audit_predictions],
            watched_predictions=said and _kept_codes(said, self.audit + self.watched, new),
        )
        if state.phase == "answer" and not state.asked:
            state.phase = "ask"
        return state

    def positions(self) -> list[int]:
        """Every sample that is mentioned."""
        rows = [index for row in self.history for index in row["indices"] + row["declined"]]
        return sorted({*self.labelled, *self.declined, *self.asked, *self.audit, *self.watched, *rows})

    def with_answers_as_labels(self, validation_fraction: float) -> LoopState:
        """A copy in which this round's answers are labels, in the order in which they were asked.

        ``validation_fraction`` of all labels are held out; a sample that is held out once is never trained on.
        """
        place = {index: i for i, index in enumerate(self.asked)}
        told = sorted(self.told, key=lambda answer: place[answer[0]])
        new = [(index, value) for index, value in told if value is not None]
        labels = self.labels + [value for _, value in new]
        n_missing = max(0, int(validation_fraction * len(labels)) - sum(self.heldout))
        drawn = set(np.random.default_rng(self.seed_for("holdout")).permutation(len(new))[:n_missing].tolist())
        audit = set(self.audit)
        return replace(
            self,
            told=told,
            labelled=self.labelled + [index for index, _ in new],
            labels=labels,
            heldout=self.heldout + [i in drawn or index in audit for i, (index, _) in enumerate(new)],
            declined=self.declined + [index for index, value in told if value is None],
            phase="train",
        )

    def describe_round(self) -> dict[str, Any]:
        """What the history says of this round's samples; metrics as they came if they are not one per sample."""
        labelled = [index for index, value in self.told if value is not None]
        metrics = self.metrics
        if metrics is not None and len(metrics) == len(self.asked):
            by_index = dict(zip(self.asked, metrics, strict=True))
            metrics = [by_index[index] for index in labelled]
        declined = [index for index, value in self.told if value is None]
        row = {"round": self.round, "n_labelled": len(self.labelled), "indices": labelled, "declined": declined}
        row |= {"metrics": metrics}
        return row | {"note": "; ".join(self.notes)} if self.notes else row

    def end_round(self, row: dict[str, Any]) -> None:
        """Add a row to the history; the next round can ask."""
        self.history.append(row)
        self.asked, self.told, self.metrics, self.seconds_query = [], [], None, 0.0
        self.phase, self.round, self.notes = "ask", self.round + 1, []


def _kept_codes(said: dict[str, Any], positions: list[int], new: Mapping[int, int]) -> dict[str, Any]:
    """Predictions of those samples that are still there."""
    codes = [code for position, code in zip(positions, said["codes"], strict=True) if position in new]
    return said | {"codes": codes}
