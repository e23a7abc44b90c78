"""The sequential mode on MNIST: does it pass 94 % within one cycle and 96 % by the third?

A wide residual network of one group, trained as the authors' configuration says: SGD with momentum 0.9, one cycle up to
1.25 in terms of the mean over samples and classes, weight decay 1e-4, 200 epochs, batches of 128.
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
from benchmarks.papers.study import Study, mean_std
from skal.bench.papers._mohamadi2022 import rates
from skal.callbacks import FreshOptimizer, OneCycle
from skal.nets import SquaredLoss, WideResNet

METHODS = ("random", "batch, MLMOC", "sequential, MLMOC", "sequential")
# channels are 16 times the width; METHODS[::2] are Random and the paper's sequential mode
SIZES: dict[str, dict[str, Any]] = {
    "quick": {"width": 1, "epochs": 1, "seeds": 1, "cycles": 1, "methods": METHODS},
    "scaled": {"width": 2, "epochs": 200, "seeds": 5, "cycles": 3, "methods": METHODS[::2]},
    "full": {"width": 40, "epochs": 200, "seeds": 5, "cycles": 5, "methods": METHODS},
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
    net = authors_net(settings["width"], settings["epochs"])
    return lookahead_study.mnist_run(method, seed, settings["cycles"], size == "quick", net)


def _table(size: str, kept: Kept, folder: Path | None) -> str:
    settings = SIZES[size]
    rows: list[list[object]] = []
    for method in settings["methods"]:
        runs = []
        for seed in range(settings["seeds"]):
            run = partial(_run, method, seed, size)
            runs.append(kept(f"{method} {settings['width']} {settings['epochs']} {seed}", run))
        accuracy = 100 * np.array([run["accuracy"][: settings["cycles"] + 1] for run in runs])
        rows.append([method, *(mean_std(accuracy[:, k], 4) for k in range(accuracy.shape[1]))])
        if method.startswith("sequential"):
            linearised = 100 * np.array([run["linearised"] for run in runs])
            cells = (mean_std(linearised[:, k], 4) for k in range(linearised.shape[1]))
            rows.append([f"{method}, linearised network", "", *cells])
    rows.append(
        ["the paper, sequential", "", "94", "", "96", *[""] * (settings["cycles"] - 3)][: settings["cycles"] + 2]
    )
    header = ["method", *(f"cycle {k}, {100 + 20 * k} labels" for k in range(settings["cycles"] + 1))]
    what = (
        f"{16 * settings['width']} channels, {settings['epochs']} epochs, {settings['seeds']} seeds, accuracy in %:\n\n"
    )
    return what + markdown(header, rows)


STUDIES = (Study("claim", "NTK look-ahead: 94 % within one cycle, 96 % by the third, sequential, MNIST", _table),)
