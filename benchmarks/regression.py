"""Which strategy to recommend for numbers: paired seeds, mean logarithm of the error over all rounds.

``python -m benchmarks.regression run [--data pol,protein] [--models mlp,forest] [--arms lcmd,uherding] [--seeds 4]
--out FOLDER`` makes the runs that are missing, and ``python -m benchmarks.regression report --out FOLDER`` prints the
tables. Every run is a line of ``FOLDER/runs.jsonl``, so that a run that was stopped goes on. The data are read from
``$SKAL_DATA_HOME/regression``: ``NAME.npz`` with X_train, y_train, X_test and y_test.

``pol`` and ``protein`` were named as development before the first run: they decided what ``"auto"`` is for a
regression. The others judge it. Every seed has a pool, and a random start of its own that all arms share; only ``auto``
chooses its start itself.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import t as student
from sklearn.ensemble import RandomForestRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetRegressor
from torch import nn

from benchmarks._measure import markdown
from skal import ActiveLearningRegressor

DEVELOPMENT = ["pol", "protein"]
JUDGING = ["kin40k", "bike", "elevators", "concrete"]
ARMS = {
    "random": "random",
    "lcmd": "lcmd",
    "ntk_lookahead": "ntk_lookahead",
    "uherding": "uherding(features='prepared', normalize=False)",
    "uherding, forest": "uherding(features='prepared', kernel='forest')",
    "max_det": "max_det",
    "max_herding": "max_herding(features='prepared', normalize=False)",
    "predictive_std": "predictive_std",
    "auto": "auto",
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


def make_model(name: str, n_inputs: int, seed: int) -> Any:
    """A regressor for rows of numbers."""
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
    """Root mean squared error on the test set after every round, in deviations of the test targets."""
    with np.load(Path(os.environ["SKAL_DATA_HOME"]) / "regression" / f"{data}.npz") as found:
        X, y, X_test, y_test = (found[name] for name in ("X_train", "y_train", "X_test", "y_test"))
    generator = np.random.default_rng(seed)
    rows = generator.permutation(len(X))[:N_POOL]
    start = generator.permutation(len(rows))[:N_INITIAL]
    loop = ActiveLearningRegressor(
        make_model(model, X.shape[1], seed),
        ARMS[arm],
        n_initial=N_INITIAL,
        initial="auto" if arm == "auto" else start,
        query_size=QUERY_SIZE,
        n_rounds=N_ROUNDS,
        reinitialize=True,
        scoring="neg_root_mean_squared_error",
        random_state=seed,
    )
    loop.fit(X[rows], y[rows], eval_set=(X_test[:N_TEST], y_test[:N_TEST]))
    return [-row["eval_score"] / float(y_test[:N_TEST].std()) for row in loop.history_]


def read(out: Path) -> dict[tuple[str, str, str, int], list[float]]:
    """The runs that are there."""
    path = out / "runs.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {(line["data"], line["model"], line["arm"], line["seed"]): line["rmse"] for line in lines}


def report(out: Path, data: Sequence[str], title: str) -> None:
    """Print the difference to Random of each arm: mean logarithm of the error over the rounds after the start."""
    runs = read(out)
    names = [arm for arm in ARMS if any(key[2] == arm for key in runs)]
    rows: list[list[object]] = []
    for model in ("mlp", "forest"):
        for arm in names:
            keys = [key for key in runs if key[0] in data and key[1:3] == (model, arm)]
            both = [(key, (key[0], model, "random", key[3])) for key in keys]
            pairs = [(runs[own], runs[other]) for own, other in both if other in runs]
            if not pairs or arm == "random":
                continue
            own = np.array([np.log(a[1:]).mean() - np.log(b[1:]).mean() for a, b in pairs])
            half = student.ppf(0.975, len(own) - 1) * own.std(ddof=1) / np.sqrt(len(own)) if len(own) > 1 else np.nan
            rows.append([model, arm, f"{own.mean():+.3f} ± {half:.3f}", f"{int((own < 0).sum())} / {len(own)}"])
    print(f"\n### {title}: {', '.join(data)}\n")
    print(markdown(["model", "arm", "log RMSE against random, 95 %", "better"], rows))


def main(argv: Sequence[str] | None = None) -> int:
    """Run or report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.regression", description=__doc__)
    parser.add_argument("command", nargs="?", choices=["run", "report"], default="report")
    parser.add_argument("--data", default=",".join(DEVELOPMENT + JUDGING), metavar="A,B")
    parser.add_argument("--models", default="mlp,forest", metavar="A,B")
    parser.add_argument("--arms", default=";".join(ARMS), metavar="A;B")
    parser.add_argument("--seeds", type=int, default=20, metavar="N")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/regression"), metavar="FOLDER")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    data = args.data.split(",")
    if args.command == "report":
        for title, names in (("Development", DEVELOPMENT), ("Judging", JUDGING)):
            report(args.out, [name for name in names if name in data], title)
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    wanted = [
        (name, model, arm, seed)
        for seed in range(args.seeds)
        for name in data
        for model in args.models.split(",")
        for arm in args.arms.split(";")
    ]
    for key in wanted:
        if key not in read(args.out):
            line = dict(zip(("data", "model", "arm", "seed"), key, strict=True)) | {"rmse": run(*key)}
            with (args.out / "runs.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
