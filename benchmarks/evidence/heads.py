"""Semi-supervised heads on frozen features: does the unlabelled rest help where labels are few?

``python -m benchmarks.evidence.heads run`` makes what is missing, and ``report`` prints the table of
``docs/evidence/yours.md``. The heads are those of scikit-learn with its defaults, chosen before the first run:
self-training around the logistic regression, and label spreading over the seven nearest neighbours. All of a seed have
the same pool of 1,000, labels drawn at random from it, and 1,000 samples to test on.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from functools import lru_cache
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy.stats import t as student
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import normalize
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier
from tqdm import tqdm

from benchmarks._kept import Kept
from benchmarks._measure import markdown
from benchmarks.evidence.runs import RESULTS
from skal.bench._verdict import points
from skal.datasets import load

N_POOL, N_TEST, SEEDS = 1000, 1000, 10
# labels for each data set: about one for a class, and several
SIZES: MappingProxyType[str, tuple[int, int]] = MappingProxyType(
    {"cifar10_features": (20, 100), "banking77": (154, 385)}
)
HEADS = ("logistic regression", "self-training", "label spreading")


@lru_cache(maxsize=1)
def _read(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    found = load(name)
    X, X_test = (normalize(np.float32(part)) for part in (found.X_train, found.X_test))
    return X, np.asarray(found.y_train, dtype=int), X_test[:N_TEST], np.asarray(found.y_test[:N_TEST], dtype=int)


def accuracy(data: str, n_labels: int, head: str, seed: int) -> float:
    """On the test samples, after training on labels drawn at random and, but for logistic regression, on the rest."""
    X, y, X_test, y_test = _read(data)
    generator = np.random.default_rng(seed)
    rows = generator.choice(len(X), size=min(N_POOL, len(X)), replace=False)
    pool, known = X[rows], generator.choice(len(rows), size=n_labels, replace=False)
    plain = LogisticRegression(C=100, max_iter=1000)
    if head == "logistic regression":
        return float(plain.fit(pool[known], y[rows][known]).score(X_test, y_test))
    partial = np.full(len(rows), -1)
    partial[known] = y[rows][known]
    spreading = LabelSpreading(kernel="knn")
    model: Any = spreading if head == "label spreading" else SelfTrainingClassifier(plain)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rows far from every label have no shares of classes
        return float(model.fit(pool, partial).score(X_test, y_test))


def _key(data: str, n_labels: int, head: str, seed: int) -> str:
    return f"{data}, {n_labels} labels, {head}, seed {seed}"


def _cells() -> list[tuple[str, int]]:
    return [(data, n_labels) for data, sizes in SIZES.items() for n_labels in sizes]


def run(kept: Kept, seeds: int) -> None:
    """Make what is missing; it may be stopped at any time."""
    for (data, n_labels), seed, head in tqdm(list(product(_cells(), range(seeds), HEADS)), file=sys.stderr):
        kept(_key(data, n_labels, head, seed), lambda cell=(data, n_labels, head, seed): accuracy(*cell))


def report(kept: Kept) -> str:
    """Accuracy of the logistic regression, and what the other heads gain with their 95 % intervals."""
    rows: list[list[object]] = []
    for data, n_labels in _cells():
        found = [
            [kept[_key(data, n_labels, head, seed)] for head in HEADS]
            for seed in range(SEEDS)
            if all(_key(data, n_labels, head, seed) in kept for head in HEADS)
        ]
        if len(found) < SEEDS:
            rows.append([data, n_labels, len(found), *["not run"] * len(HEADS)])
            continue
        scores = np.array(found)
        gains = scores[:, 1:] - scores[:, :1]
        half = student.ppf(0.975, len(gains) - 1) * gains.std(axis=0, ddof=1) / np.sqrt(len(gains))
        cells = [f"{points(gain)} ± {100 * error:.1f}" for gain, error in zip(gains.mean(axis=0), half, strict=True)]
        rows.append([data, n_labels, len(found), f"{100 * scores[:, 0].mean():.1f}", *cells])
    return markdown(["features", "labels", "seeds", f"{HEADS[0]}, %", *HEADS[1:]], rows)


def main(argv: list[str] | None = None) -> int:
    """Run, or print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evidence.heads", description=__doc__)
    parser.add_argument("command", choices=["run", "report"])
    parser.add_argument("--seeds", type=int, default=SEEDS, metavar="N")
    parser.add_argument("--kept", type=Path, default=RESULTS / "heads" / "heads.jsonl", metavar="FILE")
    args = parser.parse_args(argv)
    kept = Kept(args.kept)
    if args.command == "report":
        print(report(kept))
    else:
        run(kept, args.seeds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
