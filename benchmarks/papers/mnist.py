"""The NTK papers on MNIST: in batches and label after label (Figure 3a), with the criterion as printed and as released.

100 labels at random, then 20 a cycle from a random 4,000 of the pool. ``scaled`` has images of 14 × 14 pixels and a CNN
of 93,962 parameters, which two cores can bear, and a second table with a wider one; ``full`` has the authors' wide
residual network and training: SGD with momentum 0.9, one cycle up to 1.25 in terms of the mean over samples and
classes, weight decay 1e-4, 200 epochs, batches of 128.
"""

from __future__ import annotations

from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.utils import Bunch
from skorch import NeuralNetClassifier
from torch import nn

from benchmarks._kept import Kept
from benchmarks._measure import markdown
from benchmarks.lookahead_study import Run, squared_loss_net
from benchmarks.papers.flips import flipped_predictions
from benchmarks.papers.study import Study, halve_images, mean_std, paired_gap
from skal import ActiveLearner, LinearizedLearner
from skal.bench.papers._mohamadi2022 import rates
from skal.callbacks import FreshOptimizer, OneCycle
from skal.datasets import load
from skal.nets import SquaredLoss, WideResNet
from skal.strategies import NTKLookahead, RandomSampling

FLIPS, DEFAULT = "batch, flipped predictions", "batch"  # the default criterion, the variance
BATCH, SEQUENTIAL = "batch, MLMOC", "sequential, MLMOC"
METHODS = ("random", BATCH, FLIPS, SEQUENTIAL, DEFAULT)
# without a width the network is the CNN, on halved images; channels of the other are 16 times the width
SIZES: dict[str, dict[str, Any]] = {
    "quick": {"width": 1, "epochs": 1, "seeds": 2, "cycles": 1},
    "scaled": {"width": None, "epochs": None, "seeds": 10, "cycles": 3},
    "full": {"width": 40, "epochs": 200, "seeds": 10, "cycles": 9},
}
# a step on the cause of what one label at a time does not gain: a network that many times as wide, in fewer cycles.
# Its linearised network is scored on a part of the test images, after the last cycle alone: gradients there are dear
STEP: dict[str, dict[str, Any]] = {
    "quick": {"factor": 2, "width": 2, "cycles": 1},
    "scaled": {"factor": 4, "cycles": 2},
}
PART = slice(None, None, 5)


def authors_net(width: int, epochs: int) -> NeuralNetClassifier:
    """The network and its training."""
    settings = rates(10)
    return NeuralNetClassifier(
        WideResNet(10, width, in_channels=1, groups=1),
        criterion=SquaredLoss,
        optimizer=torch.optim.SGD,
        optimizer__momentum=0.9,
        optimizer__weight_decay=settings["weight_decay"],
        lr=settings["lr"],
        batch_size=128,
        max_epochs=epochs,
        iterator_train__shuffle=True,
        callbacks=[FreshOptimizer(), OneCycle(cycle_momentum=True)],
        warm_start=True,
        train_split=None,
        verbose=0,
    )


@lru_cache(maxsize=1)
def _halved_mnist() -> Bunch:
    data = load("mnist")
    data.X_train, data.X_test = halve_images(data.X_train), halve_images(data.X_test)
    return data


def small_cnn(factor: int = 1) -> nn.Sequential:
    """Two convolutions and two linear layers for grey images of 14 × 14 pixels, all as many times as wide."""
    first, second, hidden = 32 * factor, 64 * factor, 128 * factor
    return nn.Sequential(
        *(nn.Conv2d(1, first, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(first, second, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(second * 9, hidden), nn.ReLU(), nn.Linear(hidden, 10)),
    )


def _make_strategy(method: str, seed: int, evaluation: int | None) -> Any:
    if method == "random":
        return RandomSampling(random_state=seed)
    if method == FLIPS:
        return partial(flipped_predictions, seed=seed)
    criterion = "mlmoc" if method.endswith("MLMOC") else "variance"
    return NTKLookahead(criterion=criterion, evaluation=evaluation, random_state=seed)


def _run(method: str, seed: int, size: str, step: bool = False) -> Run:
    """Accuracy of the network on the whole test set after every cycle, and of the linearised one that sequential has.

    The linearised network predicts after the cycle's labels, before the network itself is trained on them. In the step
    there is a part of the test set, on which both are scored after the last cycle.
    """
    settings, quick = SIZES[size] | (STEP[size] if step else {}), size == "quick"
    data = load("digits") if quick else load("mnist") if settings["width"] else _halved_mnist()
    n_initial, n_query, n_pool = (20, 3, 60) if quick else (100, 20, 4000)
    order = np.random.default_rng(seed).permutation(len(data.X_train))
    X, y = data.X_train[order], data.y_train[order]
    torch.manual_seed(seed)
    if settings["width"] is not None:
        net = authors_net(settings["width"], settings["epochs"])
    else:
        net = squared_loss_net(small_cnn(settings.get("factor", 1)), lr=0.1, max_epochs=60)
    torch.manual_seed(seed)
    one_by_one = method.startswith("sequential")
    make = LinearizedLearner if one_by_one else ActiveLearner
    learner = make(net, _make_strategy(method, seed, None if quick else 1000), X[:n_initial], y[:n_initial])
    X, y = X[n_initial:], y[n_initial:]
    accuracies, linearised = [float(net.score(data.X_test, data.y_test))], []
    part = data.X_test[PART], data.y_test[PART]
    rng = np.random.default_rng([seed, 1])  # the same pools for every method, as long as they are not labelled
    for cycle in range(settings["cycles"]):
        rows = rng.permutation(len(X))[:n_pool]
        pool, hidden = X[rows], y[rows]
        if one_by_one:
            left = np.arange(len(pool))
            for _ in range(n_query):
                indices, samples = learner.query(pool[left])
                learner.teach(samples, hidden[left[indices]])
                left = np.delete(left, indices)
            taken = np.setdiff1d(np.arange(len(pool)), left)
            if not step:
                linearised.append(float(learner.score(data.X_test, data.y_test)))
            elif cycle == settings["cycles"] - 1:
                linearised.append(float(learner.score(*part)))
            learner.retrain()
        else:
            taken, samples = learner.query(pool, n_instances=n_query)
            learner.teach(samples, hidden[taken])
        accuracies.append(float(net.score(data.X_test, data.y_test)))
        X, y = np.delete(X, rows[taken], axis=0), np.delete(y, rows[taken])
    found = {"accuracy": accuracies, "linearised": linearised}
    return found | ({"part": float(net.score(*part))} if step else {})


def _table(size: str, kept: Kept, folder: Path | None) -> str:
    settings = SIZES[size]
    n_cycles, seeds = settings["cycles"], range(settings["seeds"])
    runs: dict[str, list[Any]] = {method: [] for method in METHODS}
    for seed in seeds:  # all methods of a seed before the next: what was stopped has whole pairs
        for method in METHODS:
            runs[method].append(kept(f"{method} {settings['width']} {seed}", partial(_run, method, seed, size)))
    accuracy = {method: 100 * np.array([run["accuracy"] for run in found]) for method, found in runs.items()}
    means = {method: found[:, 1:].mean(axis=1) for method, found in accuracy.items()}
    rows: list[list[object]] = []
    for method, found in accuracy.items():
        gap = "" if method == "random" else paired_gap(means[method] - means["random"])
        name = "batch, the default" if method == DEFAULT else method
        rows.append([name, *(mean_std(column, 4) for column in found.T), gap])
    linearised = 100 * np.array([run["linearised"] for run in runs[SEQUENTIAL]])
    rows.append(["sequential, MLMOC, linearised network", "", *(mean_std(column, 4) for column in linearised.T), ""])
    rows.append(["the paper, sequential", "", *("> 94", "", "96", *[""] * n_cycles)[:n_cycles], ""])
    header = ["method", *(f"{100 + 20 * k} labels" for k in range(n_cycles + 1)), "mean of all cycles − random"]
    gap = paired_gap(means[SEQUENTIAL] - means[BATCH])
    text = f"{markdown(header, rows)}\n\nSequential − batch, MLMOC, mean of all cycles: {gap}."
    return f"{text}\n\n{_wider(size, kept, runs)}" if size in STEP else text


def _wider(size: str, kept: Kept, runs: dict[str, list[Any]]) -> str:
    """MLMOC in batches and one at a time by a wider network, beside the same cycles of the runs of the first table."""
    factor, n_cycles = STEP[size]["factor"], STEP[size]["cycles"]
    wide: dict[str, list[Any]] = {BATCH: [], SEQUENTIAL: []}
    for seed in range(SIZES[size]["seeds"]):
        for method in wide:
            wide[method].append(kept(f"{method}, {factor} times {seed}", partial(_run, method, seed, size, step=True)))
    rows: list[list[object]] = []
    gaps = []
    for name, found in (("as above", runs), (f"{factor} times as wide", wide)):
        accuracy = {x: 100 * np.array([run["accuracy"][: n_cycles + 1] for run in found[x]]) for x in wide}
        gaps.append((accuracy[SEQUENTIAL] - accuracy[BATCH])[:, 1:].mean(axis=1))
        trained = [run.get("part", run["accuracy"][n_cycles]) for run in found[SEQUENTIAL]]
        linearised = [run["linearised"][-1 if "part" in run else n_cycles - 1] for run in found[SEQUENTIAL]]
        cells = {
            BATCH: ["", ""],
            SEQUENTIAL: [paired_gap(gaps[-1]), paired_gap(100 * np.subtract(linearised, trained))],
        }
        rows += [[name, method, *(mean_std(x, 4) for x in accuracy[method].T), *cells[method]] for method in wide]
    header = ["network", "method", *(f"{100 + 20 * k} labels" for k in range(n_cycles + 1))]
    header += ["mean of these cycles − batch", "linearised network − trained one, last cycle"]
    return f"{markdown(header, rows)}\n\nSequential − batch, wider − as above: {paired_gap(gaps[1] - gaps[0])}."


STUDIES = (Study("mnist", "NTK look-ahead, Figure 3a; thesis, Figures 2.3 and A.1a: MNIST", _table),)
