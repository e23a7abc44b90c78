"""NTK look-ahead in active learning: its variants on digits with significance tests, and the paper's MNIST protocol.

``python -m benchmarks.lookahead_study digits|mnist [--seeds S] [--cycles K] [--results FOLDER] [--out FOLDER]``; both
without an argument. Runs are kept in the results folder, one file each, and are not repeated.
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
from matplotlib.figure import Figure
from scipy.stats import friedmanchisquare, rankdata, ttest_rel
from skorch import NeuralNetClassifier
from torch import nn

from benchmarks._measure import markdown
from skal import ActiveLearner, LinearizedLearner
from skal.callbacks import FreshOptimizer, OneCycle
from skal.datasets import load
from skal.nets import MLP, SquaredLoss
from skal.strategies import Entropy, NTKLookahead, RandomSampling

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


def small_cnn(side: int = 28) -> nn.Sequential:
    """Two convolutions and two linear layers for square grey images: 421,642 parameters for 28 × 28 pixels."""
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * (side // 4) ** 2, 128), nn.ReLU(), nn.Linear(128, 10)),
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


# --- ways to look ahead, on digits ------------------------------------------------------------------------------------

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


def digits_run(name: str, seed: int, n_rounds: int, quick: bool = False) -> Run:
    """Accuracy after every round of queries."""
    data = load("digits")
    order = np.random.default_rng(seed).permutation(len(data.X_train))
    X, y = data.X_train[order], data.y_train[order]
    torch.manual_seed(seed)
    net = squared_loss_net(MLP(64, 10, hidden=(128, 128)), lr=0.1, max_epochs=2 if quick else 150)
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


def digits_tables(n_seeds: int, n_rounds: int, results: Path | None, quick: bool = False) -> str:
    """Mean accuracy by number of labels, the Friedman test over seeds, and paired t-tests."""
    curves = {}
    for name in ("random", *LOOK_AHEADS):
        runs = []
        for seed in range(n_seeds):
            run = partial(digits_run, name, seed, n_rounds, quick)
            runs.append(kept(results, f"digits-{_file_name(name)}-{n_rounds}-{seed}", run)["accuracy"])
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


# --- the paper's protocol on MNIST ------------------------------------------------------------------------------------

METHODS = ("random", "entropy", "batch, MLMOC", "sequential, MLMOC", "batch", "sequential")
N_POOL = 4000


def _mnist_strategy(method: str, seed: int, evaluation: int | None) -> Any:
    if method == "random":
        return RandomSampling(random_state=seed)
    if method == "entropy":
        return Entropy()
    criterion = "mlmoc" if method.endswith("MLMOC") else "variance"
    return NTKLookahead(criterion=criterion, evaluation=evaluation, random_state=seed)


def mnist_run(method: str, seed: int, n_cycles: int, quick: bool = False, **given: Any) -> Run:
    """100 labels, then 20 a cycle from a random 4,000 of the pool; accuracy on the whole test set.

    ``sequential`` keeps, besides the accuracy after SGD, that of the linearised network after the cycle's labels.
    What is given of ``data``, ``net`` and ``strategy`` takes the place of the study's own.
    """
    data = given.get("data") or load("digits" if quick else "mnist")
    n_initial, n_query, n_pool = (20, 3, 60) if quick else (100, 20, N_POOL)
    order = np.random.default_rng(seed).permutation(len(data.X_train))
    X, y = data.X_train[order], data.y_train[order]
    torch.manual_seed(seed)
    net = given.get("net")
    if net is None:
        module = MLP(64, 10, hidden=(32,)) if quick else small_cnn()
        net = squared_loss_net(module, lr=0.1, max_epochs=3 if quick else 60)
    strategy = given.get("strategy") or _mnist_strategy(method, seed, None if quick else 1000)
    one_by_one = method.startswith("sequential")
    make = LinearizedLearner if one_by_one else ActiveLearner
    learner = make(net, strategy, X[:n_initial], y[:n_initial])
    X, y = X[n_initial:], y[n_initial:]
    # the network's own accuracy, whatever the learner predicts with
    accuracies = [float(net.score(data.X_test, data.y_test))]
    linearised = []
    rng = np.random.default_rng([seed, 1])  # the same pools for every method, as long as they are not labelled
    for _ in range(n_cycles):
        rows = rng.permutation(len(X))[:n_pool]
        pool, hidden = X[rows], y[rows]
        if one_by_one:
            left = np.arange(len(pool))
            for _ in range(n_query):
                indices, samples = learner.query(pool[left])
                learner.teach(samples, hidden[left[indices]])
                left = np.delete(left, indices)
            taken = np.setdiff1d(np.arange(len(pool)), left)
            linearised.append(float(learner.score(data.X_test, data.y_test)))
            learner.retrain()
        else:
            taken, samples = learner.query(pool, n_instances=n_query)
            learner.teach(samples, hidden[taken])
        accuracies.append(float(net.score(data.X_test, data.y_test)))
        X, y = np.delete(X, rows[taken], axis=0), np.delete(y, rows[taken])
        print(f"{method}, seed {seed}: {accuracies[-1]:.4f}", file=sys.stderr, flush=True)
    return {"accuracy": accuracies, "linearised": linearised}


def mnist_tables(n_seeds: int, n_cycles: int, results: Path | None, out: Path | None, quick: bool = False) -> str:
    """Accuracy by cycle for every method, and a figure."""
    try:
        load("digits" if quick else "mnist")
    except FileNotFoundError:
        return "mnist was not found. Set SKAL_DATA_HOME to the folder with mnist.npz."
    runs: dict[str, list[Run]] = {method: [] for method in METHODS}
    for seed in range(n_seeds):
        for method in METHODS:
            run = partial(mnist_run, method, seed, n_cycles, quick)
            runs[method].append(kept(results, f"mnist-{_file_name(method)}-{n_cycles}-{seed}", run))
    curves = {method: np.array([run["accuracy"] for run in some]) for method, some in runs.items()}
    shown = sorted({0, 1, 2, 3, n_cycles // 2, n_cycles} & set(range(n_cycles + 1)))
    rows: list[list[object]] = []
    for method, accuracy in curves.items():
        rows.append([method, *(_mean_std(accuracy[:, k]) for k in shown)])
    for method in ("sequential, MLMOC", "sequential"):
        linearised = np.array([run["linearised"] for run in runs[method]])
        rows.append([f"{method}, linearised network", "", *(_mean_std(linearised[:, k - 1]) for k in shown[1:])])
    if out is not None:
        _plot_mnist(curves, out / "lookahead_mnist.png")
    header = ["method", *(f"cycle {k}, {100 + 20 * k} labels" for k in shown)]
    text = f"{n_seeds} seeds, accuracy in % ± standard deviation:\n\n{markdown(header, rows)}\n\n"
    means = {method: 100 * accuracy[:, 1:].mean(axis=1) for method, accuracy in curves.items()}  # one number a seed
    gaps: list[list[object]] = []
    for one in METHODS[2:]:
        for other in METHODS[: METHODS.index(one)]:
            difference = means[one] - means[other]
            spread = difference.std(ddof=1) if n_seeds > 1 else 0.0
            above = f"{(difference > 0).sum()} of {n_seeds}"
            gaps.append([f"{one} − {other}", f"{difference.mean():+.2f} ± {spread:.2f}", above])
    return text + markdown(["difference of the mean over all cycles", "points", "seeds above"], gaps)


def _file_name(name: str) -> str:
    return name.replace(", ", "-").replace(" ", "_")


def _mean_std(values: np.ndarray) -> str:
    spread = values.std(ddof=1) if len(values) > 1 else 0.0
    return f"{100 * values.mean():.2f} ± {100 * spread:.2f}"


def _plot_mnist(curves: dict[str, np.ndarray], path: Path) -> None:
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    for method, accuracy in curves.items():
        labels = 100 + 20 * np.arange(accuracy.shape[1])
        line = axes.plot(labels, 100 * accuracy.mean(axis=0), "o-", markersize=3, label=method)[0]
        axes.plot(labels, 100 * accuracy.T, color=line.get_color(), alpha=0.3, linewidth=0.7)
    axes.set(xlabel="labels", ylabel="test accuracy in %")
    for level in (94, 96):
        axes.axhline(level, color="k", linestyle=":", linewidth=0.8)
    axes.set_title("MNIST, 422k-parameter CNN, squared loss; thin lines are single seeds", fontsize=8)
    axes.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables that are asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lookahead_study", description=__doc__)
    parser.add_argument("what", nargs="*", metavar="STUDY", help="digits, mnist; default: both")
    parser.add_argument("--seeds", type=int, help="default: 10 for digits, 5 for mnist")
    parser.add_argument("--cycles", type=int, help="default: 8 for digits, 5 for mnist")
    parser.add_argument("--results", type=Path, help="folder in which runs are kept")
    parser.add_argument("--out", type=Path, help="folder for the figure")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    args = parser.parse_args(argv)
    seeds, cycles = (args.seeds or 2, args.cycles or 2) if args.quick else (args.seeds, args.cycles)
    studies: dict[str, Callable[[], str]] = {
        "digits": lambda: digits_tables(seeds or 10, cycles or 8, args.results, args.quick),
        "mnist": lambda: mnist_tables(seeds or 5, cycles or 5, args.results, args.out, args.quick),
    }
    if unknown := sorted(set(args.what) - set(studies)):
        parser.error(f"unknown study {', '.join(unknown)}. Choose from: {', '.join(studies)}")
    torch.set_num_threads(1)
    for name in args.what or studies:
        print(f"\n### {name}\n\n{studies[name]()}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
