"""Which strategy to recommend for a classifier on frozen features: paired seeds, mean accuracy over all rounds.

``python -m benchmarks.frozen_features [--data banking77,cifar10_features,digits] [--seeds 5] --out FOLDER``

Every run is a line of ``FOLDER/runs.jsonl``, so that a run that was stopped goes on. ``digits`` is always there; the
others are read from ``$SKAL_DATA_HOME``. Features are scaled to length 1, and the classifier is a logistic regression
with little regularisation, as such features need it. Every seed has a pool and a random start of its own, which all
strategies share; those that need no labels may choose the start, too.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import normalize

from benchmarks._measure import markdown
from skal import ActiveLearningClassifier, datasets

# how the first samples are chosen, and the others
STRATEGIES = {
    "random": ("random", "random"),
    "margin": ("random", "margin"),
    "margin after max_herding": ("max_herding", "margin"),
    "coreset": ("coreset", "coreset"),
    "badge after max_herding": ("max_herding", "badge"),
    "typiclust": ("typiclust", "typiclust"),
    "prob_cover": ("prob_cover", "prob_cover"),
    "max_herding": ("max_herding", "max_herding"),
    "uherding after max_herding": ("max_herding", "uherding"),
    "ntk_lookahead after max_herding": ("max_herding", "ntk_lookahead"),
}
# labels at first, per round, and rounds
BUDGETS = {"banking77": (77, 77, 6), "cifar10_features": (20, 20, 8), "digits": (20, 20, 8)}
MOST = 3000  # samples of a pool


def run(data: str, strategy: str, seed: int) -> list[float]:
    """Accuracy on the test set after every round."""
    found = datasets.load(data)
    rows = np.random.default_rng(seed).permutation(len(found.X_train))[:MOST]
    X, X_test = (normalize(np.asarray(part).reshape(len(part), -1)) for part in (found.X_train, found.X_test))
    n_initial, query_size, n_rounds = BUDGETS[data]
    start, query_strategy = STRATEGIES[strategy]
    loop = ActiveLearningClassifier(
        LogisticRegression(C=100, max_iter=1000),
        query_strategy,
        initial=start,
        n_initial=n_initial,
        query_size=query_size,
        n_rounds=n_rounds,
        random_state=seed,
    )
    loop.fit(X[rows], found.y_train[rows], eval_set=(X_test, found.y_test))
    return [float(row["eval_score"]) for row in loop.history_]


def table(runs: dict[tuple[str, str, int], float], data: str) -> str:
    """Difference to Random and to Margin in points, over the seeds that both have."""

    def differences(strategy: str, baseline: str) -> str:
        pairs = [(runs[data, strategy, s], runs[data, baseline, s]) for d, n, s in runs if (d, n) == (data, strategy)]
        gaps = 100 * np.array([ours - theirs for ours, theirs in pairs])
        spread = f" ± {gaps.std(ddof=1):.1f}" if len(gaps) > 1 else ""
        return f"{gaps.mean():+.1f}{spread} ({(gaps > 0).sum()}/{len(gaps)})"

    rows: list[list[object]] = []
    for strategy in STRATEGIES:
        scores = [score for (d, name, _), score in runs.items() if (d, name) == (data, strategy)]
        if scores:
            pairs = [
                differences(strategy, baseline) if strategy != baseline else "" for baseline in ("random", "margin")
            ]
            rows.append([strategy, f"{100 * np.mean(scores):.1f}", *pairs])
    return markdown([data, "mean accuracy, %", "− random (seeds won)", "− margin (seeds won)"], rows)


def _read(path: Path) -> dict[tuple[str, str, int], float]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    entries: list[dict[str, Any]] = [json.loads(line) for line in lines]
    return {(e["data"], e["strategy"], e["seed"]): float(np.mean(e["accuracy"])) for e in entries}


def main(argv: Sequence[str] | None = None) -> int:
    """Make the runs that are not there yet, and print a table for each data set."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.frozen_features", description=__doc__)
    parser.add_argument("--data", default="digits", help="names, separated by commas: " + ", ".join(BUDGETS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", required=True, type=Path)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "runs.jsonl"
    names = args.data.split(",")
    for seed in range(args.seeds):  # seed by seed: what is there is paired
        for data in names:
            for strategy in STRATEGIES:
                if (data, strategy, seed) not in _read(path):
                    entry = {"data": data, "strategy": strategy, "seed": seed, "accuracy": run(data, strategy, seed)}
                    with path.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(entry) + "\n")
    for data in names:
        print(f"\n{table(_read(path), data)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
