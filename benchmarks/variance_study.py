"""Does the look-ahead save labels, and what does each of its rules pick? Cross-entropy networks, paired seeds.

``python -m benchmarks.variance_study digits|mnist [--seeds S] [--results FOLDER] [--out FOLDER] [--quick]``; both
without an argument. Runs are kept in the results folder, one file each, and are not repeated. MNIST is read by
``skal.datasets.load``.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from skorch import NeuralNetClassifier
from torch import nn

from benchmarks._measure import markdown
from skal import ActiveLearner
from skal._core.guard import preserve_rng
from skal.datasets import load
from skal.nets import CNN
from skal.strategies import BADGE, Margin, NTKLookahead, RandomSampling
from skal.tangent import tangent_kernel

# name -> (first labels, labels per round, rounds, candidates of a round, epochs)
STUDIES: dict[str, tuple[int, int, int, int | None, int]] = {
    "digits": (20, 20, 5, None, 60),
    "mnist": (100, 50, 4, 4000, 60),
}
SEEDS = 10


def make_strategies(seed: int) -> dict[str, Any]:
    """All rules, with everything that is drawn at random from the seed."""
    return {
        "random": RandomSampling(random_state=seed),
        "margin": Margin(),
        "badge": BADGE(random_state=seed),
        "mlmoc, top": NTKLookahead(criterion="mlmoc", reference="linearized", random_state=seed),
        "mlmoc, greedy, ridge 1": NTKLookahead(
            criterion="mlmoc", reference="linearized", batch="greedy", ridge=1.0, random_state=seed
        ),
        "variance": NTKLookahead(random_state=seed),
    }


def make_net(image_size: int, epochs: int) -> NeuralNetClassifier:
    """A small CNN, cross-entropy, Adam, trained anew from the same weights every round."""
    return NeuralNetClassifier(
        CNN,
        module__in_channels=1,
        module__n_classes=10,
        module__image_size=image_size,
        criterion=nn.CrossEntropyLoss,
        optimizer=torch.optim.Adam,
        lr=3e-3,
        batch_size=16,
        max_epochs=epochs,
        iterator_train__shuffle=True,
        train_split=None,
        verbose=0,
    )


def anatomy(net: NeuralNetClassifier, X: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """What a batch is like: effective number of classes, how alike its samples are, and the share misclassified.

    The effective number is the exponential of the entropy of the true labels. Samples are compared by the cosine of
    their gradients (pseudo-NTK); the mean over the batch of the largest with another of its samples is given.
    """
    shares = np.bincount(y, minlength=10) / len(y)
    shares = shares[shares > 0]
    K = tangent_kernel(net, X)
    lengths = np.sqrt(K.diagonal())
    cosines = K / np.outer(lengths, lengths)
    np.fill_diagonal(cosines, -1)
    return {
        "classes": float(np.exp(-(shares * np.log(shares)).sum())),
        "redundancy": float(cosines.max(axis=1).mean()),
        "misclassified": float((net.predict(X) != y).mean()),
    }


def run(study: str, method: str, seed: int, quick: bool) -> dict[str, Any]:
    """Test accuracy after every round, and the anatomy of every batch; the first labels are the same for all rules."""
    data = load("digits" if quick else study)
    n, b, rounds, n_candidates, epochs = STUDIES[study]
    rounds, epochs = (1, 2) if quick else (rounds, epochs)
    order = np.random.default_rng(seed).permutation(len(data.X_train))[: 300 if quick else None]
    X, y = data.X_train[order], data.y_train[order]
    labelled = list(range(n))
    strategy, rng = make_strategies(seed)[method], np.random.default_rng([seed, 1])
    accuracies, batches = [], []
    for number in range(rounds + 1):
        torch.manual_seed(seed)
        net = make_net(X.shape[-1], epochs)
        learner = ActiveLearner(net, strategy, X_training=X[labelled], y_training=y[labelled])
        accuracies.append(float(learner.score(data.X_test, data.y_test)))
        if number == rounds:
            break
        left = np.setdiff1d(np.arange(len(X)), labelled)
        rows = left if n_candidates is None or quick else np.sort(rng.permutation(left)[:n_candidates])
        rows = rows[learner.query(X[rows], n_instances=b)[0]]
        with preserve_rng():
            batches.append(anatomy(net, X[rows], y[rows]))
        labelled += rows.tolist()
    print(f"{study}, {method}, seed {seed}: {np.mean(accuracies[1:]):.4f}", file=sys.stderr, flush=True)
    return {"accuracy": accuracies, "batches": batches}


def kept_run(study: str, method: str, seed: int, results: Path | None, quick: bool) -> dict[str, Any]:
    """The same, read from the folder if it is there already."""
    if results is None:
        return run(study, method, seed, quick)
    path = results / f"{study}-{method.replace(', ', '-').replace(' ', '_')}-{seed}.json"
    if not path.exists():
        results.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(run(study, method, seed, quick)))
    return json.loads(path.read_text())


def tables(study: str, n_seeds: int, results: Path | None, out: Path | None, quick: bool) -> str:
    """Accuracies and paired differences, then the anatomy of the batches, over the seeds that all rules have run."""
    methods = list(make_strategies(0))
    runs = {(m, s): kept_run(study, m, s, results, quick) for s in range(n_seeds) for m in methods}
    means = {m: np.array([100 * np.mean(runs[m, s]["accuracy"][1:]) for s in range(n_seeds)]) for m in methods}
    rows: list[list[object]] = []
    parts: dict[str, dict[str, float]] = {}
    for m in methods:
        last = np.array([100 * runs[m, s]["accuracy"][-1] for s in range(n_seeds)])
        batches = [batch for s in range(n_seeds) for batch in runs[m, s]["batches"]]
        parts[m] = {name: float(np.mean([batch[name] for batch in batches])) for name in batches[0]}
        picked = [f"{parts[m]['classes']:.1f}", f"{parts[m]['redundancy']:.2f}", f"{parts[m]['misclassified']:.0%}"]
        rows.append([m, f"{means[m].mean():.1f}", _gap(means[m], means["random"]), f"{last.mean():.1f}", *picked])
    header = ["rule", "mean accuracy, %", "difference to random", "last round"]
    header += ["effective classes", "redundancy", "misclassified"]
    text = (
        f"{n_seeds} seeds; differences are mean ± standard deviation, and seeds above:\n\n{markdown(header, rows)}\n\n"
    )
    others = [m for m in methods if m not in ("random", "variance")]
    pairs: list[list[object]] = [[f"variance − {m}", _gap(means["variance"], means[m])] for m in others]
    if out is not None:
        _plot(parts, out / f"lookahead_picks_{study}.png")
    return text + markdown(["paired difference of mean accuracy", "points"], pairs)


def _gap(mine: np.ndarray, others: np.ndarray) -> str:
    gaps = mine - others
    spread = gaps.std(ddof=1) if len(gaps) > 1 else 0.0
    return "" if mine is others else f"{gaps.mean():+.1f} ± {spread:.1f} ({(gaps > 0).sum()}/{len(gaps)})"


def _plot(parts: dict[str, dict[str, float]], path: Path) -> None:
    figure = Figure(figsize=(8, 2.6), layout="constrained")
    titles = {
        "classes": "effective classes",
        "redundancy": "largest cosine in the batch",
        "misclassified": "share misclassified",
    }
    panels = figure.subplots(1, 3, sharey=True)
    for axes, (name, title) in zip(panels, titles.items(), strict=True):
        colours = ["tab:orange" if method == "variance" else "tab:blue" for method in parts]
        axes.barh(list(parts), [values[name] for values in parts.values()], color=colours)
        axes.set_title(title, fontsize=9)
    panels[0].invert_yaxis()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables that are asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.variance_study", description=__doc__)
    parser.add_argument("what", nargs="*", metavar="STUDY", help="digits, mnist; default: both")
    parser.add_argument("--seeds", type=int, help="default: 10")
    parser.add_argument("--results", type=Path, help="folder in which runs are kept")
    parser.add_argument("--out", type=Path, help="folder for the figures")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    args = parser.parse_args(argv)
    if unknown := sorted(set(args.what) - set(STUDIES)):
        parser.error(f"unknown study {', '.join(unknown)}. Choose from: {', '.join(STUDIES)}")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", UserWarning)
    for name in args.what or STUDIES:
        seeds = args.seeds or (1 if args.quick else SEEDS)
        print(f"\n### {name}\n\n{tables(name, seeds, args.results, args.out, args.quick)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
