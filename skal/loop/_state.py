"""What a loop knows between two steps: everything that a resumed run needs, in types that JSON has."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from skal._core.network import preserved_rng

_PURPOSES = ("start", "query", "fit", "holdout", "score")


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

    def last_training(self) -> dict[str, int] | None:
        """``round`` and ``n_labelled`` of the last row of the history that was trained for, None if there is none."""
        trained = (row for row in reversed(self.history) if row["indices"] and row["train_score"] is not None)
        return next(({name: row[name] for name in ("round", "n_labelled")} for row in trained), None)

    def seed_for(self, purpose: str, round: int | None = None) -> int:
        """A 32-bit seed of its own for one step of this round, or of another."""
        round = self.round if round is None else round
        return int(np.random.SeedSequence([self.seed, round, _PURPOSES.index(purpose)]).generate_state(1)[0])

    @contextmanager
    def seeded(self, purpose: str, round: int | None = None) -> Iterator[None]:
        """Seed torch, numpy and ``random``, which networks and modAL draw from; outside they are as before."""
        seed = self.seed_for(purpose, round)
        with preserved_rng():
            torch.manual_seed(seed)
            np.random.seed(seed)
            random.seed(seed)
            yield

    def open_round(self, positions: np.ndarray, metrics: list[Any] | None, seconds: float) -> None:
        """Wait for the labels of these samples."""
        self.asked, self.told, self.metrics, self.seconds_query = positions.tolist(), [], metrics, seconds
        self.phase = "answer"

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
        return replace(
            self,
            told=told,
            labelled=self.labelled + [index for index, _ in new],
            labels=labels,
            heldout=self.heldout + [i in drawn for i in range(len(new))],
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
        return row | {"metrics": metrics}

    def end_round(self, row: dict[str, Any]) -> None:
        """Add a row to the history; the next round can ask."""
        self.history.append(row)
        self.asked, self.told, self.metrics, self.seconds_query = [], [], None, 0.0
        self.phase, self.round = "ask", self.round + 1
