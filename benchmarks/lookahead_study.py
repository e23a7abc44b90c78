"""Variants of NTK look-ahead in active learning on digits, with significance tests.

``python -m benchmarks.lookahead_study digits [--width W] [--seeds S] [--cycles K] [--results FOLDER]``. Runs are
kept in the results folder, one file each, and are not repeated. The paper's protocol on MNIST is in
``benchmarks.papers``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import friedmanchisquare, rankdata, ttest_rel
from skorch import NeuralNetClassifier
from torch import nn

from benchmarks._measure import markdown
from skal import ActiveLearner
from skal.callbacks import FreshOptimizer, OneCycle
from skal.datasets import load
from skal.nets import MLP, SquaredLoss
from skal.strategies import NTKLookahead, RandomSampling

# accuracy on the test set after every cycle, and what else a run wants to remember
Run = dict[str, Any]


def squared_loss_net(module: nn.Module, *, lr: float, max_epochs: int) -> NeuralNetClassifier:
    """Squared loss, warm start, one learning rate cycle a round: the papers' protocol."""
    return NeuralNetClassifier(
        module,
        criterion=SquaredLoss,
        optimizer=torch.optim.SGD,
        optimizer__momentum=0.9,
        lr=lr,
        batch_size=32,
        max_epochs=max_epochs,
        iterator_train__shuffle=True,
        callbacks=[FreshOptimizer(), OneCycle(cycle_momentum=True)],
        warm_start=True,
        train_split=None,
        verbose=0,
    )


def kept(folder: Path | None, name: str, run: Callable[[], Run]) -> Run:
    """The result of a run, read from the folder if it is there already."""
    path = None if folder is None else folder / f"{name}.json"
    if path is not None and path.exists():
        return json.loads(path.read_text())
    result = run()
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result))
    return result


# name -> (criterion, retraining)
MLMOC = {
    "linearised network": ("mlmoc", "linearized"),
    "one step of SGD": ("mlmoc", "one_step"),
    "infinite width": ("mlmoc", "infinite"),
    "Gaussian process": ("mlmoc", "gp"),
}
VARIANCE = {
    "variance": ("variance", "linearized"),
    "variance, infinite width": ("variance", "infinite"),
}
LOOK_AHEADS = {**MLMOC, **VARIANCE}
N_INITIAL, N_QUERY, N_CANDIDATES = 20, 10, 200
WIDTH = 128  # of the network's two hidden layers


def digits_run(name: str, seed: int, n_rounds: int, quick: bool = False, width: int = WIDTH) -> Run:
    """Accuracy after every round of queries."""
    data = load("digits")
    order = np.random.default_rng(seed).permutation(len(data.X_train))
    X, y = data.X_train[order], data.y_train[order]
    torch.manual_seed(seed)
    net = squared_loss_net(MLP(64, 10, hidden=(width, width)), lr=0.1, max_epochs=2 if quick else 150)
    if name == "random":
        strategy: Any = RandomSampling(random_state=seed)
    else:
        (criterion, retraining), subset = LOOK_AHEADS[name], N_QUERY if quick else N_CANDIDATES
        strategy = NTKLookahead(
            criterion=criterion, retraining=retraining, subset=subset, evaluation=None, n_features=None
        )
    learner = ActiveLearner(net, strategy, X[:N_INITIAL], y[:N_INITIAL])
    X, y = X[N_INITIAL:], y[N_INITIAL:]
    accuracies = [learner.score(data.X_test, data.y_test)]
    for number in range(n_rounds):
        if name != "random":
            strategy.set_params(random_state=1000 * seed + number)
        indices, samples = learner.query(X, n_instances=N_QUERY)
        learner.teach(samples, y[indices])
        X, y = np.delete(X, indices, axis=0), np.delete(y, indices)
        accuracies.append(learner.score(data.X_test, data.y_test))
    return {"accuracy": accuracies}


def digits_tables(n_seeds: int, n_rounds: int, results: Path | None, quick: bool = False, width: int = WIDTH) -> str:
    """Mean accuracy by number of labels, the Friedman test over seeds, and paired t-tests."""
    curves, suffix = {}, "" if width == WIDTH else f"-{width}"
    for name in ("random", *LOOK_AHEADS):
        runs = []
        for seed in range(n_seeds):
            run = partial(digits_run, name, seed, n_rounds, quick, width)
            runs.append(kept(results, f"digits-{_file_name(name)}-{n_rounds}-{seed}{suffix}", run)["accuracy"])
        curves[name] = np.array(runs)
    labels = N_INITIAL + N_QUERY * np.arange(n_rounds + 1)
    shown = np.unique(np.linspace(1, n_rounds, 4).astype(int))
    means = {name: runs[:, 1:].mean(axis=1) for name, runs in curves.items()}  # one number a seed
    ranks = rankdata([-means[name] for name in LOOK_AHEADS], axis=0).mean(axis=1)
    rows: list[list[object]] = []
    for name, runs in curves.items():
        cells = [f"{100 * runs[:, k].mean():.2f} ± {100 * runs[:, k].std(ddof=1):.2f}" for k in shown]
        rank = f"{ranks[list(LOOK_AHEADS).index(name)]:.2f}" if name in LOOK_AHEADS else ""
        rows.append([name, *cells, f"{100 * means[name].mean():.2f}", rank])
    header = ["look-ahead", *(f"{labels[k]} labels" for k in shown), "mean of all rounds", "mean rank"]
    text = f"MLMOC, and variance where it is named; {n_seeds} seeds, accuracy in % ± standard deviation:\n\n"
    text += f"{markdown(header, rows)}\n\n"
    for what, names in (("the four with MLMOC", MLMOC), ("all six", LOOK_AHEADS)):
        test = friedmanchisquare(*(means[name] for name in names))
        text += f"Friedman test of {what}, a seed's mean over its rounds being one observation: "
        text += f"χ² = {test.statistic:.2f}, p = {test.pvalue:.2g}.\n\n"
    return text + _paired_tests(means)


def _paired_tests(means: dict[str, np.ndarray]) -> str:
    pairs = [*combinations(MLMOC, 2), *(("variance", name) for name in LOOK_AHEADS if name != "variance")]
    pairs += [(name, "random") for name in LOOK_AHEADS]
    p_values = [float(ttest_rel(means[a], means[b]).pvalue) for a, b in pairs]
    rows: list[list[object]] = []
    for (a, b), p, adjusted in zip(pairs, p_values, holm(p_values), strict=True):
        difference = 100 * (means[a] - means[b])
        rows.append(
            [f"{a} − {b}", f"{difference.mean():+.2f}", f"{(difference > 0).sum()}", f"{p:.2g}", f"{adjusted:.2g}"]
        )
    return markdown(["paired t-test", "difference in points", "seeds above", "p", "p, Holm"], rows)


def holm(p_values: Sequence[float]) -> np.ndarray:
    """Holm's correction: each p times the number of hypotheses not yet rejected, never decreasing.

    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values)
    scaled = np.asarray(p_values)[order] * (len(p_values) - np.arange(len(p_values)))
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(1, np.maximum.accumulate(scaled))
    return adjusted


def _file_name(name: str) -> str:
    return name.replace(", ", "-").replace(" ", "_")


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lookahead_study", description=__doc__)
    parser.add_argument("what", nargs="?", choices=["digits"], default="digits", help="the data: digits")
    parser.add_argument("--seeds", type=int, help="default: 10")
    parser.add_argument("--cycles", type=int, help="default: 8")
    parser.add_argument("--width", type=int, default=WIDTH, help=f"units of a hidden layer (default: {WIDTH})")
    parser.add_argument("--results", type=Path, help="folder in which runs are kept")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    args = parser.parse_args(argv)
    seeds, cycles = (args.seeds or 2, args.cycles or 2) if args.quick else (args.seeds or 10, args.cycles or 8)
    torch.set_num_threads(1)
    print(digits_tables(seeds, cycles, args.results, args.quick, args.width), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
