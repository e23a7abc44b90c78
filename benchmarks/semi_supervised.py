"""FixMatch against supervised training, what DARP adds, query strategies under semi-supervised learning, DARP's speed.

``python -m benchmarks.semi_supervised TABLE [--out FILE] [--quick]``, with speed, supervised, darp, active, overlap,
zero_shot or single_shot; all of them without an argument. Every finished training is a line of FILE: a run that was
stopped goes on from there. MNIST must be in ``$SKAL_DATA_HOME``.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks._kept import Kept
from benchmarks._measure import markdown
from benchmarks.papers.study import halve_images, paired_gap
from skal import ActiveLearningClassifier
from skal.datasets import load
from skal.diagnostics import query_overlap
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
        """Rows of random samples, a given number of each class."""
        rng = np.random.default_rng(seed)
        rows = [rng.permutation(np.flatnonzero(self.data.y_train == c))[:count] for c, count in enumerate(counts)]
        return np.concatenate(rows)

    @property
    def short(self) -> dict[str, int]:
        """What comparisons of strategies change, which train a hundred networks: 200 iterations instead of 600."""
        return {} if self.quick else {"iterations_per_epoch": 20}

    @cached_property
    def first_labels(self) -> tuple[int, np.ndarray]:
        """Seed and rows of the first model, one label per class: the median of five by accuracy, as in NPC's paper."""
        draws = [self.chosen([1] * N_CLASSES, seed) for seed in range(N_FIRST)]
        accuracies = [
            self.measured(
                f"first {seed}", lambda s=seed, rows=rows: self.accuracy("FixMatch + DARP", rows, s, **self.short)
            )
            for seed, rows in enumerate(draws)
        ]
        median = int(np.argsort(accuracies)[N_FIRST // 2])
        return median, draws[median]

    @cached_property
    def first_model(self) -> FixMatchClassifier:
        """The network of the median first labels."""
        seed, rows = self.first_labels
        return self._train("FixMatch + DARP", rows, seed, **self.short)

    def accuracy(self, kind: str, rows: np.ndarray, seed: int, **params: Any) -> float:
        """Test accuracy, in per cent, of training on these labels alone, or with the pool as well."""
        return 100 * self._train(kind, rows, seed, **params).score(self.data.X_test, self.data.y_test)

    def _train(self, kind: str, rows: np.ndarray, seed: int, **params: Any) -> FixMatchClassifier:
        darp = "uniform" if kind == "FixMatch + DARP" else None
        net = self.net(seed, darp=darp, **params)
        if kind == "supervised":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NoUnlabelledDataWarning)
                net.fit(self.data.X_train[rows], self.data.y_train[rows])
        else:
            labels = np.full(len(self.data.y_train), -1)
            labels[rows] = self.data.y_train[rows]
            net.fit(self.data.X_train, labels)
        return net


def _shrunk(X: np.ndarray) -> np.ndarray:
    """MNIST's images halved; digits as they are."""
    return X if X.shape[-1] < 28 else halve_images(X)


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


# the paper's NPC has the last layer's kernel; the whole network's is a step on the cause of differences
STRATEGIES: dict[str, Callable[[int], Any]] = {
    "Random (passive)": lambda seed: RandomSampling(random_state=seed),
    "Margin": lambda seed: Margin(on="logits"),
    "ALBL": lambda seed: ALBL(horizon=60, random_state=seed),
    "BADGE": lambda seed: BADGE(random_state=seed),
    "NPC, last layer": lambda seed: NPC(kernel="last_layer", random_state=seed),
    "NPC, whole network": lambda seed: NPC(random_state=seed),
}
N_TRIALS, N_FIRST = 10, 5


def _rounds(study: Study, name: str, trial: int) -> dict[str, Any]:
    """Test accuracies, in per cent, and what was queried, round after round, from the median first labels."""
    size, n_rounds = (5, 1) if study.quick else (20, 3)
    loop = ActiveLearningClassifier(
        study.net(None, darp="uniform", **study.short),
        STRATEGIES[name](trial),
        query_size=size,
        n_rounds=n_rounds,
        reinitialize=True,
        classes=np.arange(N_CLASSES),
        initial=study.first_labels[1],
        random_state=trial,
    )
    loop.fit(study.data.X_train, study.data.y_train, eval_set=(study.data.X_test, study.data.y_test))
    scores = [100 * row["eval_score"] for row in loop.history_]
    return {"scores": scores, "queried": [row["indices"] for row in loop.history_[1:]]}


def _all_rounds(study: Study) -> dict[str, list[dict[str, Any]]]:
    """The runs of every strategy, all strategies of a trial before the next."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in STRATEGIES}
    for trial in range(1 if study.quick else N_TRIALS):
        for name in STRATEGIES:
            args = (study, name, trial)
            runs[name].append(study.measured(f"active {name} {trial}", lambda args=args: _rounds(*args)))
    return runs


def active_table(study: Study) -> str:
    """One label per class, then 20 a round, each round trained from scratch with FixMatch and DARP."""
    rows: list[list[object]] = []
    for name, runs in _all_rounds(study).items():
        rows.append([name, *map(_mean, np.transpose([run["scores"] for run in runs]))])
    size, n_rounds = (5, 1) if study.quick else (20, 3)
    return markdown(["strategy", *(f"{N_CLASSES + size * r} labels" for r in range(n_rounds + 1))], rows)


def overlap_table(study: Study) -> str:
    """The paper's Figure 1: intersection over union of the labels that two strategies acquired, at each label count."""
    runs = _all_rounds(study)
    n_rounds = len(next(iter(runs.values()))[0]["queried"])
    by_round = []
    for k in range(1, n_rounds + 1):
        queried = {name: [np.concatenate(run["queried"][:k]) for run in found] for name, found in runs.items()}
        by_round.append(query_overlap(queried))
    rows: list[list[object]] = []
    for one, other in combinations(runs, 2):
        rows.append([f"{one}; {other}", *(f"{100 * table.loc[one, other]:.1f}" for table in by_round)])
    size = 5 if study.quick else 20
    labels = [f"{N_CLASSES + size * k} labels" for k in range(1, n_rounds + 1)]
    return markdown(["strategies, IoU in %", *labels], rows)


def _shot(study: Study, name: str, trial: int, first: bool, n_labels: int) -> dict[str, Any]:
    """Test accuracy of training on one query's labels, chosen by the median first model or by initial weights."""
    X, y, strategy = study.data.X_train, study.data.y_train, STRATEGIES[name](trial)
    if first:
        rows, net = study.first_labels[1], study.first_model
        learner = SimpleNamespace(estimator=net, X_training=X[rows], y_training=y[rows])
    else:
        rows, net = np.array([], dtype=int), study.net(trial).initialize()
        learner = SimpleNamespace(estimator=net, X_training=None, y_training=None)
    left = np.setdiff1d(np.arange(len(X)), rows)
    rows = np.concatenate([rows, left[strategy.select(learner, X[left], n_labels - len(rows))[0]]])
    return {"score": study.accuracy("FixMatch + DARP", rows, trial, **study.short), "queried": rows.tolist()}


def _shots_table(study: Study, first: bool) -> str:
    names = [name for name in STRATEGIES if name not in ("Margin", "ALBL")]
    n_trials, n_labels = (2, 15) if study.quick else (N_TRIALS, 40)
    scores: dict[str, list[float]] = {name: [] for name in names}
    for trial in range(n_trials):
        for name in names:
            key = f"{'single' if first else 'zero'}-shot {n_labels} {name} {trial}"
            args = (study, name, trial, first, n_labels)
            scores[name].append(study.measured(key, lambda args=args: _shot(*args))["score"])
    rows: list[list[object]] = []
    for name, found in scores.items():
        compared = [np.subtract(found, scores[other]) for other in ("Random (passive)", "BADGE")]
        gaps = [paired_gap(gap) if gap.any() else "" for gap in compared]
        rows.append([name, _mean(found), *gaps])
    return markdown(["strategy", f"{n_labels} labels", "− Random", "− BADGE"], rows)


def zero_shot_table(study: Study) -> str:
    """One query by the initial weights, without any label."""
    return _shots_table(study, first=False)


def single_shot_table(study: Study) -> str:
    """One query by a network that has seen one label per class."""
    return _shots_table(study, first=True)


TABLES = {
    "speed": speed_table,
    "supervised": supervised_table,
    "darp": darp_table,
    "active": active_table,
    "overlap": overlap_table,
    "zero_shot": zero_shot_table,
    "single_shot": single_shot_table,
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
