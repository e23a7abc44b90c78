"""FixMatch against supervised training, what DARP adds, query strategies under semi-supervised learning, DARP's speed.

``python -m benchmarks.semi_supervised speed|supervised|darp|active|shots [--out FILE] [--quick]``; all of them without
an argument. Every finished training is a line of FILE: a run that was stopped goes on from there. MNIST must be in
``$SKAL_DATA_HOME``.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks._kept import Kept
from benchmarks._measure import markdown
from skal import ActiveLearningClassifier
from skal.datasets import load
from skal.exceptions import NoUnlabelledDataWarning
from skal.semi_supervised import FixMatchClassifier, StrongImage, WeakImage, solve_darp
from skal.strategies import ALBL, BADGE, NPC, Margin, RandomSampling

N_POOL, N_TEST, N_CLASSES = 4000, 4000, 10
# an imbalanced labelled set: labels of each class, shuffled over the classes by the seed
IMBALANCED = (12, 8, 6, 4, 3, 2, 2, 1, 1, 1)


class SmallNet(nn.Sequential):
    """3×3 convolutions (16, 32, 32 channels, the first two with stride 2), batch norm, ReLU, and a linear layer."""

    def __init__(self, side: int) -> None:
        layers: list[nn.Module] = []
        for channels, width, stride in [(1, 16, 2), (16, 32, 2), (32, 32, 1)]:
            layers += [nn.Conv2d(channels, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
            side = -(-side // stride)
        super().__init__(*layers, nn.Flatten(), nn.Linear(32 * side * side, N_CLASSES))


class Study:
    """The data, the training, and what has been measured before.

    Parameters
    ----------
    out : Path or None
        The file of finished trainings.
    quick : bool
        A few digits and iterations, to see that it runs.
    """

    def __init__(self, out: Path | None, quick: bool) -> None:
        self.quick, self._kept = quick, Kept(out)

    @cached_property
    def data(self) -> Any:
        """The first images of the training and test sets."""
        data = load("digits" if self.quick else "mnist")
        n_pool, n_test = (120, 50) if self.quick else (N_POOL, N_TEST)
        data.X_train, data.y_train = _shrunk(data.X_train[:n_pool]), data.y_train[:n_pool]
        data.X_test, data.y_test = _shrunk(data.X_test[:n_test]), data.y_test[:n_test]
        return data

    def net(self, seed: int | None, **params: Any) -> FixMatchClassifier:
        """FixMatch as all studies train it."""
        settings: dict[str, Any] = {
            "module__side": self.data.X_train.shape[-1],
            "augment": (WeakImage(), StrongImage(cutout=0.3, fill=0.0)),
            "batch_size": 4 if self.quick else 16,
            "max_epochs": 1 if self.quick else 10,
            "iterations_per_epoch": 3 if self.quick else 60,
            "ema_decay": 0.99,
            "verbose": 0,
            "random_state": seed,
        }
        return FixMatchClassifier(SmallNet, **(settings | params))

    def measured(self, key: str, measure: Callable[[], Any]) -> Any:
        """What ``measure`` gives, now or in an earlier run."""
        return self._kept(f"{key}{' quick' if self.quick else ''}", measure)

    def chosen(self, counts: Sequence[int], seed: int) -> np.ndarray:
        """Rows of so many random samples of each class."""
        rng = np.random.default_rng(seed)
        rows = [rng.permutation(np.flatnonzero(self.data.y_train == c))[:count] for c, count in enumerate(counts)]
        return np.concatenate(rows)

    def accuracy(self, kind: str, rows: np.ndarray, seed: int) -> float:
        """Test accuracy, in per cent, of training on these labels alone, or with the pool as well."""
        darp = "uniform" if kind == "FixMatch + DARP" else None
        net = self.net(seed, darp=darp)
        if kind == "supervised":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NoUnlabelledDataWarning)
                net.fit(self.data.X_train[rows], self.data.y_train[rows])
        else:
            labels = np.full(len(self.data.y_train), -1)
            labels[rows] = self.data.y_train[rows]
            net.fit(self.data.X_train, labels)
        return 100 * net.score(self.data.X_test, self.data.y_test)


def _shrunk(X: np.ndarray) -> np.ndarray:
    """Images of 28×28 as means of 2×2 pixels: a quarter of the work."""
    return X if X.shape[-1] < 28 else X.reshape(len(X), 1, 14, 2, 14, 2).mean(axis=(3, 5))


def _mean(values: Sequence[float]) -> str:
    return f"{np.mean(values):.1f} ± {np.std(values, ddof=1) if len(values) > 1 else 0:.1f}"


def speed_table(study: Study) -> str:
    """Processor seconds of DARP's solver, one thread, on tables of random logits."""
    rows: list[list[object]] = []
    sizes = [(200, 5)] if study.quick else [(5_000, 10), (50_000, 10), (50_000, 100)]
    for n_samples, n_classes in sizes:
        logits = np.random.default_rng(0).normal(size=(n_samples, n_classes))
        skew = np.geomspace(1, 0.01, n_classes)
        labels = np.minimum(np.random.default_rng(0).geometric(0.3, n_samples) - 1, n_classes - 1)
        cases: dict[str, tuple[Any, Any]] = {
            "soft labels, equal classes": (torch.softmax(torch.as_tensor(logits), 1), None),
            "sure labels, 100 times as many in one class as in another": (
                torch.softmax(torch.as_tensor(5 * logits), 1),
                skew,
            ),
            "zeros and ones, equal classes": (torch.eye(n_classes, dtype=torch.float64)[labels], None),
        }
        for name, (proba, target) in cases.items():
            start = time.process_time()
            _, report = solve_darp(proba, target)
            seconds = time.process_time() - start
            residual = f"{report.column_residual:.0e}"
            rows.append([f"{n_samples:,} × {n_classes}", name, seconds, report.n_iterations, residual])
    return markdown(["table", "case", "processor seconds", "steps", "column residual"], rows)


def supervised_table(study: Study) -> str:
    """The same labels with and without the pool: means over 3 seeds."""
    kinds = ["supervised", "FixMatch"]
    rows: list[list[object]] = []
    for per_class in [1, 2, 5][: 1 if study.quick else 3]:
        cells: dict[str, list[float]] = {kind: [] for kind in kinds}
        for seed in range(3):
            chosen = study.chosen([per_class] * N_CLASSES, seed)
            for kind in kinds:
                key = f"labels {per_class} {kind} {seed}"
                cells[kind].append(study.measured(key, lambda k=kind, c=chosen, s=seed: study.accuracy(k, c, s)))
        gain = min(np.subtract(cells["FixMatch"], cells["supervised"]))
        rows.append([N_CLASSES * per_class, *map(_mean, cells.values()), f"{gain:+.1f}"])
    return markdown(["labels", *kinds, "smallest gain of FixMatch"], rows)


def darp_table(study: Study) -> str:
    """An imbalanced labelled set and a balanced pool, with and without DARP: 5 seeds, one by one."""
    rows: list[list[object]] = []
    for seed in range(2 if study.quick else 5):
        counts = np.random.default_rng(100 + seed).permutation(IMBALANCED)
        chosen = study.chosen(counts, seed)
        row = []
        for kind in ("supervised", "FixMatch", "FixMatch + DARP"):
            key = f"imbalanced {kind} {seed}"
            row.append(study.measured(key, lambda k=kind, c=chosen, s=seed: study.accuracy(k, c, s)))
        rows.append([seed, *(f"{value:.1f}" for value in row), f"{row[2] - row[1]:+.1f}"])
    values = np.array([[float(cell) for cell in row[1:]] for row in rows])
    rows.append(["mean ± std", *(_mean(column) for column in values.T)])
    return markdown(["seed", "supervised", "FixMatch", "FixMatch + DARP", "DARP adds"], rows)


STRATEGIES: dict[str, Callable[[], Any]] = {
    "Random (passive)": RandomSampling,
    "Margin": Margin,
    "ALBL": lambda: ALBL(horizon=60),
    "BADGE": BADGE,
    "NPC": NPC,
}
PAPER = {
    "Random (passive)": (78.1, 91.8, 91.0),
    "Margin": (87.4, 90.9, 90.9),
    "ALBL": (80.6, 89.6, 94.5),
    "BADGE": (80.6, 86.4, 80.3),
    "NPC": (85.1, 94.6, 94.9),
}
SHOTS = {  # the paper's: zero-shot with 40 and 60 labels, single-shot with as many
    "BADGE": (92.1, 94.4, 86.7, 70.3),
    "NPC": (93.1, 93.2, 92.3, 93.8),
}


def _loop(study: Study, name: str, trial: int, initial: Any, size: int, n_rounds: int) -> list[float]:
    """Test accuracies, in per cent, after each round that had labels to train on."""
    start = {"n_initial": 0} if initial is None else {"initial": initial}
    loop = ActiveLearningClassifier(
        study.net(None, darp="uniform"), STRATEGIES[name](), query_size=size, n_rounds=n_rounds, reinitialize=True,
        classes=np.arange(N_CLASSES), random_state=trial, **start,
    )  # fmt: skip
    loop.fit(study.data.X_train, study.data.y_train, eval_set=(study.data.X_test, study.data.y_test))
    return [100 * row["eval_score"] for row in loop.history_ if row["n_labelled"]]


def active_table(study: Study) -> str:
    """One label per class, then 20 a round, each round trained from scratch with FixMatch and DARP: 3 trials."""
    n_trials, size, n_rounds = (1, 5, 1) if study.quick else (3, 20, 3)
    rows: list[list[object]] = []
    for name in STRATEGIES:
        scores = []
        for trial in range(n_trials):
            initial = study.chosen([1] * N_CLASSES, trial)
            key = f"active {name} {trial}"
            args = (study, name, trial, initial, size, n_rounds)
            scores.append(study.measured(key, lambda args=args: _loop(*args)))
        rows.append([name, *map(_mean, np.transpose(scores)), " / ".join(map(str, PAPER[name]))])
    labels = [f"{N_CLASSES + size * r} labels" for r in range(n_rounds + 1)]
    return markdown(["strategy", *labels, "paper, CIFAR-10, 30 / 50 / 70"], rows)


def _shot_settings(study: Study) -> Iterator[tuple[str, bool, int]]:
    """What is run, whether without any label at first, and how many labels there are in the end."""
    for shot in ("zero-shot", "single-shot"):
        for n_labels in (15,) if study.quick else (40, 60):
            yield f"{shot}, {n_labels} labels", shot == "zero-shot", n_labels


def shots_table(study: Study) -> str:
    """One query: by the initial weights without any label, or by a network that has seen one label per class."""
    rows: list[list[object]] = []
    for name in ("Random (passive)", "BADGE", "NPC"):
        cells = []
        for label, is_zero, n_labels in _shot_settings(study):
            scores = []
            for trial in range(1 if study.quick else 3):
                initial = None if is_zero else study.chosen([1] * N_CLASSES, trial)
                args = (study, name, trial, initial, n_labels - (0 if is_zero else N_CLASSES), 1)
                scores.append(study.measured(f"{label} {name} {trial}", lambda args=args: _loop(*args)[-1]))
            cells.append(_mean(scores))
        rows.append([name, *cells, " / ".join(map(str, SHOTS.get(name, ["not given"])))])
    return markdown(["strategy", *(label for label, *_ in _shot_settings(study)), "paper, CIFAR-10"], rows)


TABLES = {
    "speed": speed_table,
    "supervised": supervised_table,
    "darp": darp_table,
    "active": active_table,
    "shots": shots_table,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables that are asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.semi_supervised", description=__doc__)
    parser.add_argument("what", nargs="*", metavar="TABLE", help=f"{', '.join(TABLES)}; default: all")
    parser.add_argument("--out", type=Path, help="file of finished trainings, to go on after an interruption")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    args = parser.parse_args(argv)
    if unknown := sorted(set(args.what) - set(TABLES)):
        parser.error(f"unknown table {', '.join(unknown)}. Choose from: {', '.join(TABLES)}")
    torch.set_num_threads(1)
    study = Study(args.out, args.quick)
    for name in args.what or TABLES:
        print(f"\n### {name}\n\n{TABLES[name](study)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
