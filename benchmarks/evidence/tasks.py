"""Which strategy to recommend for numbers, and for several labels at once: paired seeds.

``python -m benchmarks.evidence.tasks run [--data pol,protein] [--models mlp,forest] [--sizes few,many]
[--arms "lcmd;auto"] [--seeds 4] [--out FOLDER]`` makes the runs that are missing, and
``python -m benchmarks.evidence.tasks report`` prints the tables. Every run is a line of ``FOLDER/runs.jsonl``, so that
a run that was stopped goes on. The data are read from ``$SKAL_DATA_HOME/regression`` and
``$SKAL_DATA_HOME/multilabel``: ``NAME.npz`` with X_train, y_train, X_test, y_test.

``pol`` and ``protein``, and for several labels ``emotions``, are development: they decide what ``"auto"`` is. The
others judge it. Every seed has a pool, and a random start of its own that all arms share; only ``auto`` chooses its
start itself. Numbers are judged by the mean logarithm of the root mean squared error over the rounds after the start
(lower is better), several labels by the mean of micro F1 (higher is better).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, f1_score
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetRegressor
from torch import nn

from benchmarks._measure import markdown
from benchmarks.evidence.centres import KMeansStart
from benchmarks.evidence.made import NUMBERS, PROPERTIES, label_by_properties, read_numbers
from benchmarks.evidence.others import activeml_committee, activeml_greedy, activeml_trees, bmdal_lcmd
from benchmarks.evidence.runs import RESULTS
from skal import ActiveLearningClassifier, ActiveLearningRegressor
from skal.bench._statistics import ALPHA, holm, paired_difference

DEVELOPMENT = ["pol", "protein"]
JUDGING = ["kin40k", "bike", "elevators", "concrete"]
MULTILABEL_DEVELOPMENT = ["emotions"]
MULTILABEL_JUDGING = ["scene", "yeast"]
MULTILABEL = MULTILABEL_DEVELOPMENT + MULTILABEL_JUDGING
ARMS: dict[str, Any] = {
    "random": "random",
    "auto": "auto",
    "lcmd": "lcmd",
    "ntk_lookahead": "ntk_lookahead",
    "uherding": "uherding(features='prepared', normalize=False)",
    "uherding, forest": "uherding(features='prepared', kernel='forest')",
    "max_det": "max_det",
    "max_herding": "max_herding(features='prepared', normalize=False)",
    "predictive_std": "predictive_std",
    "margin": "margin",
    "badge": "badge",
    "bmdal_reg lcmd": bmdal_lcmd,
    "scikit-activeml greedy": activeml_greedy,
    "scikit-activeml trees": activeml_trees,
    "scikit-activeml committee": activeml_committee,
}
# other starts than the default's, and the arms of :mod:`benchmarks.evidence.starts` that have them
STARTS: dict[str, Any] = {
    "distance": "max_herding(features='prepared', normalize=False)",
    "direction": "max_herding(features='prepared')",
    "k-means": KMeansStart(),
}
STARTED = {
    f"{query}, start by {start}": (ARMS[query], STARTS[start])
    for query, start in product(("lcmd", "uherding, forest"), STARTS)
}
# what has something to say about each task and model
ARMS_OF = {
    "mlp": [arm for arm in ARMS if arm not in ("margin", "badge", "scikit-activeml committee")],
    "forest": [arm for arm in ARMS if arm not in ("margin", "badge", "bmdal_reg lcmd")],
    "multilabel": ["random", "auto", "margin", "badge", "ntk_lookahead", "uherding, forest", "max_herding"],
}


class Size(NamedTuple):
    """How many samples there are to choose from, and how many labels are asked for."""

    n_pool: int
    n_initial: int
    query_size: int
    n_rounds: int


SIZES = {"few": Size(1000, 30, 50, 3), "many": Size(3000, 200, 150, 3)}
N_TEST = 1000

Key = tuple[str, str, str, str, int]  # data, model, size, arm, seed


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


class QuickRegressor(NeuralNetRegressor):
    """Trains in batches of tensors: skorch's own loop spends most of its time around so small a network."""

    def fit_loop(self, X: np.ndarray, y: np.ndarray, epochs: int | None = None, **fit_params: Any) -> QuickRegressor:
        """``max_epochs`` passes over the samples, in an order of its own each."""
        inputs, targets = torch.as_tensor(X), torch.as_tensor(y)
        self.module_.train()
        for _ in range(self.max_epochs if epochs is None else epochs):
            for rows in torch.randperm(len(inputs)).split(self.batch_size):
                self.optimizer_.zero_grad()
                self.criterion_(self.module_(inputs[rows]), targets[rows]).backward()
                self.optimizer_.step()
        return self


def make_model(name: str, task: str, n_inputs: int, seed: int) -> Any:
    """A regressor, or a classifier of several labels, for rows of numbers."""
    if task == "multilabel":
        if name == "forest":
            return RandomForestClassifier(100, random_state=seed)
        return make_pipeline(StandardScaler(), MultiOutputClassifier(LogisticRegression(max_iter=1000)))
    if name == "forest":
        return RandomForestRegressor(100, random_state=seed)
    net = QuickRegressor(
        Perceptron, module__n_inputs=n_inputs, optimizer=torch.optim.Adam, lr=5e-3, max_epochs=150, batch_size=128
    )
    net.set_params(optimizer__fused=True, train_split=None, callbacks="disable", verbose=0)
    return make_pipeline(StandardScaler(), net)


def has_several_labels(data: str) -> bool:
    """Whether a sample of a data set may have several labels."""
    return data in MULTILABEL or data in PROPERTIES


def read_data(data: str, task: str) -> list[np.ndarray]:
    """Samples and targets to learn from, and to test on."""
    if data in PROPERTIES:
        return label_by_properties(data)
    if data in NUMBERS:
        return read_numbers(data)
    with np.load(Path(os.environ["SKAL_DATA_HOME"]) / task / f"{data}.npz") as found:
        return [found[name] for name in ("X_train", "y_train", "X_test", "y_test")]


def run(data: str, model: str, size: str, arm: str, seed: int) -> dict[str, list[float]]:
    """After every round on the test set: the error in deviations of the test targets, or micro F1 and other scores."""
    task, sizes = "multilabel" if has_several_labels(data) else "regression", SIZES[size]
    X, y, X_test, y_test = read_data(data, task)
    generator = np.random.default_rng(seed)
    rows = generator.permutation(len(X))[: sizes.n_pool]
    start = generator.permutation(len(rows))[: sizes.n_initial]
    X_test, y_test = X_test[:N_TEST], y_test[:N_TEST]
    others: dict[str, list[float]] = {} if task == "regression" else {"macro": [], "precision": []}

    def look(loop: Any, row: dict[str, Any]) -> None:
        """Other scores of several labels; labels that no test sample has say nothing."""
        there = y_test.any(axis=0)
        others["macro"].append(float(f1_score(y_test[:, there], loop.predict(X_test)[:, there], average="macro")))
        answers = loop.predict_proba(X_test)[:, there]
        others["precision"].append(float(average_precision_score(y_test[:, there], answers, average="macro")))

    loops: dict[str, Any] = {"regression": ActiveLearningRegressor, "multilabel": ActiveLearningClassifier}
    strategy, initial = STARTED[arm] if arm in STARTED else (ARMS[arm], "auto" if arm == "auto" else start)
    loop = loops[task](
        make_model(model, task, X.shape[1], seed),
        strategy,
        n_initial=sizes.n_initial,
        initial=initial,
        query_size=sizes.query_size,
        n_rounds=sizes.n_rounds,
        reinitialize=True,
        scoring="neg_root_mean_squared_error" if task == "regression" else "f1_micro",
        callbacks=[look] if others else None,
        random_state=seed,
    )
    loop.fit(X[rows], y[rows], eval_set=(X_test, y_test))
    scores = [row["eval_score"] for row in loop.history_]
    return {"scores": scores if others else [-score / float(y_test.std()) for score in scores]} | others


def read(out: Path, score: str = "scores") -> dict[Key, list[float]]:
    """The runs that are there, by one of their scores."""
    path = out / "runs.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    names = ("data", "model", "size", "arm", "seed")
    return {tuple(line[name] for name in names): line[score] for line in lines if score in line}


def gains(runs: dict[Key, list[float]], data: str, model: str, size: str, arm: str, other: str) -> np.ndarray:
    """What an arm gains over another on each seed that both have, over the rounds after the start; more is better.

    Of numbers it is the fall of the mean logarithm of the error, of several labels the rise of micro F1.
    """

    def worth(key: Key) -> float:
        scores = np.array(runs[key][1:])
        return float(scores.mean() if has_several_labels(data) else -np.log(scores).mean())

    pairs = [
        ((*setting, arm, seed), (*setting, other, seed)) for setting in [(data, model, size)] for seed in range(99)
    ]
    return np.array([worth(a) - worth(b) for a, b in pairs if a in runs and b in runs])


def find_settings(runs: dict[Key, list[float]], data: Sequence[str]) -> list[tuple[str, str, str]]:
    """Data, model and size of what has been run, in order."""
    there = {key[:3] for key in runs}
    return [setting for setting in product(data, ("mlp", "logistic", "forest"), SIZES) if setting in there]


def compare(runs: dict[Key, list[float]], data: Sequence[str], other: str = "random") -> list[list[object]]:
    """Each arm against another over all settings of a model and a size, as rows of a table."""
    rows: list[list[object]] = []
    settings = find_settings(runs, data)
    for model, size in product(("mlp", "logistic", "forest"), SIZES):
        for arm in ARMS:
            parts = [gains(runs, *setting, arm, other) for setting in settings if setting[1:] == (model, size)]
            own = np.concatenate(parts) if parts else np.empty(0)
            if len(own) and arm != other:
                found = paired_difference(own, np.zeros(len(own)))
                error = "" if np.isnan(found.low) else f" ± {found.mean - found.low:.3f}"
                rows.append([model, size, arm, f"{found.mean:+.3f}{error}", f"{(own > 0).sum()} / {len(own)}"])
    return rows


def judge(runs: dict[Key, list[float]], data: Sequence[str], arm: str, other: str) -> list[list[object]]:
    """One arm against another, setting by setting, with p-values by Holm over all of them."""
    found = [(setting, gains(runs, *setting, arm, other)) for setting in find_settings(runs, data)]
    found = [(setting, own) for setting, own in found if len(own) > 1]
    tests = [paired_difference(own, np.zeros(len(own))) for _, own in found]
    adjusted = holm(np.array([test.p for test in tests]))
    rows: list[list[object]] = []
    for (setting, own), test, p in zip(found, tests, adjusted, strict=True):
        said = "level" if not p < ALPHA else "better" if test.mean > 0 else "worse"
        gain, better = f"{test.mean:+.3f} ± {test.mean - test.low:.3f}", f"{(own > 0).sum()} / {len(own)}"
        rows.append([*setting, gain, better, f"{p:.3f}", said])
    return rows


def pool_gains(runs: dict[Key, list[float]], data: Sequence[str], arm: str, other: str) -> np.ndarray:
    """What an arm gains over another, of all settings together."""
    parts = [gains(runs, *setting, arm, other) for setting in find_settings(runs, data)]
    return np.concatenate(parts) if parts else np.empty(0)


def count_outcomes(runs: dict[Key, list[float]], data: Sequence[str], task: str) -> list[list[object]]:
    """The default against every other arm that has been run beside it: all pairs together, and setting by setting."""
    rows: list[list[object]] = []
    for other in (name for name in ARMS if name != "auto"):
        settings, own = judge(runs, data, "auto", other), pool_gains(runs, data, "auto", other)
        if settings:
            found = paired_difference(own, np.zeros(len(own)))
            said = [str(row[-1]) for row in settings]
            counts = [said.count(word) for word in ("better", "level", "worse")]
            gain = f"{found.mean:+.3f} ± {found.mean - found.low:.3f}"
            rows.append([task, other, gain, f"{(own > 0).sum()} / {len(own)}", len(settings), *counts])
    return rows


def compare_scores(out: Path, data: Sequence[str]) -> list[list[object]]:
    """Arms with several labels over Random, by three scores side by side."""
    scores = [read(out, name) for name in ("scores", "macro", "precision")]  # some runs have the first alone
    by_score = [compare({key: found[key] for key in scores[1]}, data) for found in scores]
    known = [{tuple(row[:3]): row[3:] for row in rows} for rows in by_score]
    return [[*key, *(str(rows[key][0]) for rows in known), known[1][key][1]] for key in known[0]]


def report(out: Path) -> None:
    """Print the tables."""
    runs = read(out)
    for several in (False, True):
        development, judging = (MULTILABEL_DEVELOPMENT, MULTILABEL_JUDGING) if several else (DEVELOPMENT, JUDGING)
        parts = [(f"{name} (development)", [name]) for name in development] + [("judging", judging)]
        rows = [[part, *row] for part, names in parts for row in compare(runs, names)]
        what = "gain in micro F1" if several else "gain in log RMSE"
        print(markdown(["data", "model", "labels", "arm", f"{what} over Random, 95 %", "better"], rows), end="\n\n")
    header = ["model", "labels", "arm", "micro F1 over Random", "macro F1", "average precision", "better in macro F1"]
    print(markdown(header, compare_scores(out, MULTILABEL_JUDGING)), end="\n\n")
    for names, other in ((JUDGING, "random"), (JUDGING, "bmdal_reg lcmd"), (MULTILABEL_JUDGING, "random")):
        rows = judge(runs, names, "auto", other)
        if rows:
            header = ["data", "model", "labels", f"gain of auto over {other}, 95 %", "better", "p by Holm", "so it is"]
            print(markdown(header, rows), end="\n\n")
    counts = [*count_outcomes(runs, JUDGING, "numbers"), *count_outcomes(runs, MULTILABEL_JUDGING, "several labels")]
    header = ["task", "auto against", "gain in all, 95 %", "better in", "settings", "better", "level", "worse"]
    print(markdown(header, counts))


def make_missing(keys: Sequence[Key], out: Path) -> None:
    """Make the runs that are not there."""
    out.mkdir(parents=True, exist_ok=True)
    for key in keys:
        if key not in read(out):  # other processes may add to it
            line: dict[str, Any] = dict(zip(("data", "model", "size", "arm", "seed"), key, strict=True))
            start = time.perf_counter()
            line |= run(*key)
            line |= {"seconds": round(time.perf_counter() - start, 1)}
            with (out / "runs.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run or report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evidence.tasks", description=__doc__)
    parser.add_argument("command", nargs="?", choices=["run", "report"], default="report")
    parser.add_argument("--data", default=",".join(DEVELOPMENT + JUDGING + MULTILABEL), metavar="A,B")
    parser.add_argument("--models", default="mlp,logistic,forest", metavar="A,B")
    parser.add_argument("--sizes", default=",".join(SIZES), metavar="A,B")
    parser.add_argument("--arms", default=";".join(ARMS), metavar="A;B")
    parser.add_argument("--seeds", type=int, default=20, metavar="N")
    parser.add_argument("--out", type=Path, default=RESULTS / "tasks", metavar="FOLDER")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    if args.command == "report":
        report(args.out)
        return 0
    keys: list[Key] = []
    for seed, size, data in product(range(args.seeds), args.sizes.split(","), args.data.split(",")):
        several = has_several_labels(data)
        models = [name for name in args.models.split(",") if name != ("mlp" if several else "logistic")]
        for model, arm in product(models, args.arms.split(";")):
            if arm in ARMS_OF["multilabel" if several else model]:
                keys.append((data, model, size, arm, seed))
    make_missing(keys, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
