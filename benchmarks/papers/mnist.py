"""The NTK papers on MNIST: in batches and label after label (Figure 3a), with the criterion as printed and as released.

100 labels at random, then 20 a cycle from a random 4,000 of the pool. ``scaled`` has images of 14 × 14 pixels and the
CNN of ``benchmarks.lookahead_study``, which comes closest to the paper's level of the networks that two cores can bear;
``full`` has the authors' wide residual network and training: SGD with momentum 0.9, one cycle up to 1.25 in terms of
the mean over samples and classes, weight decay 1e-4, 200 epochs, batches of 128.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from skorch import NeuralNetClassifier

from benchmarks import lookahead_study
from benchmarks._kept import Kept
from benchmarks._measure import markdown
from benchmarks.papers.flips import flipped_predictions
from benchmarks.papers.study import Study, halve_images, mean_std, paired_gap
from skal.bench.papers._mohamadi2022 import rates
from skal.callbacks import FreshOptimizer, OneCycle
from skal.datasets import load
from skal.nets import SquaredLoss, WideResNet

FLIPS = "batch, flipped predictions"
METHODS = ("random", "batch, MLMOC", FLIPS, "sequential, MLMOC")
# without a width the network is the CNN, on halved images; channels of the other are 16 times the width
SIZES: dict[str, dict[str, Any]] = {
    "quick": {"width": 1, "epochs": 1, "seeds": 2, "cycles": 1},
    "scaled": {"width": None, "epochs": None, "seeds": 10, "cycles": 3},
    "full": {"width": 40, "epochs": 200, "seeds": 10, "cycles": 9},
}


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


def _run(method: str, seed: int, size: str) -> lookahead_study.Run:
    settings = SIZES[size]
    torch.manual_seed(seed)
    given: dict[str, Any] = {"strategy": partial(flipped_predictions, seed=seed) if method == FLIPS else None}
    if settings["width"] is not None:
        given["net"] = authors_net(settings["width"], settings["epochs"])
    else:
        given["data"] = data = load("mnist")
        data.X_train, data.X_test = halve_images(data.X_train), halve_images(data.X_test)
        given["net"] = lookahead_study.squared_loss_net(lookahead_study.small_cnn(14), lr=0.1, max_epochs=60)
    return lookahead_study.mnist_run(method, seed, settings["cycles"], size == "quick", **given)


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
        rows.append([method, *(mean_std(column, 4) for column in found.T), gap])
    linearised = 100 * np.array([run["linearised"] for run in runs["sequential, MLMOC"]])
    rows.append(["the same, linearised network", "", *(mean_std(column, 4) for column in linearised.T), ""])
    rows.append(["the paper, sequential", "", *("> 94", "", "96", *[""] * n_cycles)[:n_cycles], ""])
    header = ["method", *(f"{100 + 20 * k} labels" for k in range(n_cycles + 1)), "mean of all cycles − random"]
    gap = paired_gap(means["sequential, MLMOC"] - means["batch, MLMOC"])
    return f"{markdown(header, rows)}\n\nSequential − batch, MLMOC, mean of all cycles: {gap}."


STUDIES = (Study("mnist", "NTK look-ahead, Figure 3a; thesis, Figures 2.3 and A.1a: MNIST", _table),)
