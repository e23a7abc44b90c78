"""Which strategy to recommend for numbers, and for several labels at once: paired seeds.

``python -m benchmarks.evidence.tasks run [--data pol,protein] [--models mlp,forest] [--arms "lcmd;auto"] [--seeds 4]
[--out FOLDER]`` makes the runs that are missing, and ``python -m benchmarks.evidence.tasks report`` prints the tables.
Every run is a line of ``FOLDER/runs.jsonl``, so that a run that was stopped goes on. The data are read from
``$SKAL_DATA_HOME/regression`` and ``$SKAL_DATA_HOME/multilabel``: ``NAME.npz`` with X_train, y_train, X_test, y_test.

``pol`` and ``protein`` were named as development before the first run: they decided what ``"auto"`` is for a
regression. The others judge it. Every seed has a pool, and a random start of its own that all arms share; only ``auto``
chooses its start itself. Numbers are judged by the mean logarithm of the root mean squared error over the rounds after
the start (lower is better), several labels by the mean of micro F1 (higher is better).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import t as student
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetRegressor
from torch import nn

from benchmarks._measure import markdown
from benchmarks.evidence.runs import RESULTS
from skal import ActiveLearningClassifier, ActiveLearningRegressor

DEVELOPMENT = ["pol", "protein"]
JUDGING = ["kin40k", "bike", "elevators", "concrete"]
MULTILABEL = ["emotions", "scene", "yeast"]
ARMS = {
    "random": "random",
    "lcmd": "lcmd",
    "ntk_lookahead": "ntk_lookahead",
    "uherding": "uherding(features='prepared', normalize=False)",
    "uherding, forest": "uherding(features='prepared', kernel='forest')",
    "max_det": "max_det",
    "max_herding": "max_herding(features='prepared', normalize=False)",
    "predictive_std": "predictive_std",
    "margin": "margin",
    "badge": "badge",
    "auto": "auto",
}
# what has something to say about each task
ARMS_OF = {
    "regression": [arm for arm in ARMS if arm not in ("margin", "badge")],
    "multilabel": ["random", "margin", "badge", "uherding, forest", "auto"],
}
N_POOL, N_TEST = 1000, 1000
N_INITIAL, QUERY_SIZE, N_ROUNDS = 30, 30, 5


class Perceptron(nn.Module):
    """Two hidden layers of 64."""

    def __init__(self, n_inputs: int) -> None:
        super().__init__()
        sizes = [nn.Linear(n_inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)]
        self.layers = nn.Sequential(*sizes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, 1) numbers."""
        numbers: torch.Tensor = self.layers(x)
        return numbers


def make_model(name: str, task: str, n_inputs: int, seed: int) -> Any:
    """A regressor, or a classifier of several labels, for rows of numbers."""
    if task == "multilabel":
        if name == "forest":
            return RandomForestClassifier(100, random_state=seed)
        return make_pipeline(StandardScaler(), MultiOutputClassifier(LogisticRegression(max_iter=1000)))
    if name == "forest":
        return RandomForestRegressor(100, random_state=seed)
    net = NeuralNetRegressor(
        Perceptron,
        module__n_inputs=n_inputs,
        optimizer=torch.optim.Adam,
        lr=3e-3,
        max_epochs=150,
        batch_size=64,
        train_split=None,
        verbose=0,
    )
    return make_pipeline(StandardScaler(), net)


def run(data: str, model: str, arm: str, seed: int) -> list[float]:
    """After every round on the test set: the error in deviations of the test targets, or micro F1."""
    task = "multilabel" if data in MULTILABEL else "regression"
    with np.load(Path(os.environ["SKAL_DATA_HOME"]) / task / f"{data}.npz") as found:
        X, y, X_test, y_test = (found[name] for name in ("X_train", "y_train", "X_test", "y_test"))
    generator = np.random.default_rng(seed)
    rows = generator.permutation(len(X))[:N_POOL]
    start = generator.permutation(len(rows))[:N_INITIAL]
    loops: dict[str, Any] = {"regression": ActiveLearningRegressor, "multilabel": ActiveLearningClassifier}
    loop = loops[task](
        make_model(model, task, X.shape[1], seed),
        ARMS[arm],
        n_initial=N_INITIAL,
        initial="auto" if arm == "auto" else start,
        query_size=QUERY_SIZE,
        n_rounds=N_ROUNDS,
        reinitialize=True,
        scoring="neg_root_mean_squared_error" if task == "regression" else "f1_micro",
        random_state=seed,
    )
    loop.fit(X[rows], y[rows], eval_set=(X_test[:N_TEST], y_test[:N_TEST]))
    scores = [row["eval_score"] for row in loop.history_]
    return scores if task == "multilabel" else [-score / float(y_test[:N_TEST].std()) for score in scores]


def read(out: Path) -> dict[tuple[str, str, str, int], list[float]]:
    """The runs that are there."""
    path = out / "runs.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {(line["data"], line["model"], line["arm"], line["seed"]): line["scores"] for line in lines}


def compare(runs: dict[tuple[str, str, str, int], list[float]], data: Sequence[str], part: str) -> list[list[object]]:
    """The difference to Random of each arm, over the rounds after the start, as rows of a table."""
    rows: list[list[object]] = []
    numbers = data[0] not in MULTILABEL
    for model in ("mlp", "logistic", "forest"):
        for arm in ARMS:
            keys = [key for key in runs if key[0] in data and key[1:3] == (model, arm)]
            both = [(runs[key], runs.get((key[0], model, "random", key[3]))) for key in keys]
            pairs = [(a[1:], b[1:]) for a, b in both if b is not None]
            if not pairs or arm == "random":
                continue
            gains = [np.log(a).mean() - np.log(b).mean() if numbers else np.mean(a) - np.mean(b) for a, b in pairs]
            own = np.array(gains)
            half = student.ppf(0.975, len(own) - 1) * own.std(ddof=1) / np.sqrt(len(own)) if len(own) > 1 else np.nan
            better = int((own < 0).sum() if numbers else (own > 0).sum())
            error = "" if np.isnan(half) else f" ± {half:.3f}"
            rows.append([part, model, arm, f"{own.mean():+.3f}{error}", f"{better} / {len(own)}"])
    return rows


def report(out: Path) -> None:
    """Print the tables."""
    runs = read(out)
    numbers = compare(runs, DEVELOPMENT, "development") + compare(runs, JUDGING, "judging")
    print(markdown(["data", "model", "arm", "log RMSE against Random, 95 %", "better"], numbers))
    print()
    labels = compare(runs, MULTILABEL, "several labels")
    print(markdown(["data", "model", "arm", "micro F1 over Random, 95 %", "better"], labels))


def main(argv: Sequence[str] | None = None) -> int:
    """Run or report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evidence.tasks", description=__doc__)
    parser.add_argument("command", nargs="?", choices=["run", "report"], default="report")
    parser.add_argument("--data", default=",".join(DEVELOPMENT + JUDGING + MULTILABEL), metavar="A,B")
    parser.add_argument("--models", default="mlp,logistic,forest", metavar="A,B")
    parser.add_argument("--arms", default=";".join(ARMS), metavar="A;B")
    parser.add_argument("--seeds", type=int, default=20, metavar="N")
    parser.add_argument("--out", type=Path, default=RESULTS / "tasks", metavar="FOLDER")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    if args.command == "report":
        report(args.out)
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    for seed, data in product(range(args.seeds), args.data.split(",")):
        task = "multilabel" if data in MULTILABEL else "regression"
        models = [name for name in args.models.split(",") if name != ("mlp" if task == "multilabel" else "logistic")]
        for model, arm in product(models, [arm for arm in args.arms.split(";") if arm in ARMS_OF[task]]):
            if (data, model, arm, seed) not in read(args.out):
                line = {"data": data, "model": model, "arm": arm, "seed": seed, "scores": run(data, model, arm, seed)}
                with (args.out / "runs.jsonl").open("a") as file:
                    file.write(json.dumps(line) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
