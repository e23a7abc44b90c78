"""dynamicAL's Figures 1 and 9 and Table 10: how far queries move the labelled set (MMD), beside the bound's term B.

The network of Figure 1, three convolutions with global average pooling, is trained as the paper trains networks (Adam
1e-3, warm start, to a training accuracy of 0.99 or a cap on the epochs) and queried by dynamicAL. MMD and B are those
of the labelled set after each query, in float64: under the pseudo-NTK of the network trained on it, and under the
tangent kernel of the same network of infinite width, which is what the theory is about.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from skorch import NeuralNetClassifier
from torch import nn

from benchmarks._kept import Kept
from benchmarks._measure import markdown
from benchmarks.papers.convolutional import convolutional_kernel
from benchmarks.papers.study import Study, halve_images, images, mean_std
from skal import ActiveLearner
from skal.callbacks import FreshOptimizer, StopAtTrainAccuracy
from skal.diagnostics import generalization_bound, mmd
from skal.nets import ConvNet
from skal.strategies import DynamicAL
from skal.tangent import tangent_kernel

# width: of the network's convolutions. The infinite kernel works on images of ``side`` pixels
SIZES: dict[str, dict[str, Any]] = {
    "quick": {"data": "digits", "n_pool": 120, "initial": 20, "batches": (5, 10), "rounds": 2, "budget": (10, (1, 2)),
              "seeds": 1, "max_epochs": 2, "width": 4, "side": 4},
    "scaled": {"data": "cifar10_sub", "n_pool": 1000, "initial": 100, "batches": (50, 100, 200), "rounds": 3,
               "budget": (200, (2, 1)), "seeds": 2, "max_epochs": 20, "width": 16, "side": 4},
    "full": {"data": "cifar10", "n_pool": 50_000, "initial": 500, "batches": (250, 500, 1000), "rounds": 9,
             "budget": (1000, (10, 4, 2, 1)), "seeds": 5, "max_epochs": 200, "width": 64, "side": 8},
}  # fmt: skip
RIDGE = 1e-8  # relative: copies among the samples must not decide
HEADER = ["MMD", "B", "MMD / B", "infinite width: MMD", "B", "MMD / B"]


def run_rounds(size: str, n_rounds: int, batch: int, seed: int) -> list[dict[str, float]]:
    """MMD and B after every round of dynamicAL's queries."""
    settings = SIZES[size]
    data, n = images(settings["data"], size, settings["n_pool"], seed), settings["initial"]
    X, y = (halve_images(data.X_train) if size == "scaled" else data.X_train), data.y_train
    torch.manual_seed(seed)
    net = NeuralNetClassifier(
        ConvNet(in_channels=X.shape[1], n_classes=10, depth=3, width=settings["width"]),
        criterion=nn.CrossEntropyLoss,
        optimizer=torch.optim.Adam,
        lr=1e-3,
        batch_size=64,
        max_epochs=settings["max_epochs"],
        iterator_train__shuffle=True,
        callbacks=[FreshOptimizer(), StopAtTrainAccuracy(0.99)],
        warm_start=True,
        train_split=None,
        verbose=0,
    )
    learner = ActiveLearner(net, DynamicAL(), X[:n], y[:n])
    X, y, found = X[n:], y[n:], []
    for _ in range(n_rounds):
        indices, samples = learner.query(X, n_instances=batch)
        learner.teach(samples, y[indices])
        X, y = np.delete(X, indices, axis=0), np.delete(y, indices)
        found.append(_quantities(net, learner, n, settings["side"]))
    return found


def _quantities(net: Any, learner: Any, n_initial: int, side: int) -> dict[str, float]:
    """In float64: the bound is a matter of the smallest eigenvalues."""
    module, X = copy.deepcopy(net.module_).double().eval(), learner.X_training.astype(np.float64)
    kernels = {"network": tangent_kernel(module, X, batch_size=64, max_memory="500MB")}
    while X.shape[-1] > side:
        X = halve_images(X)
    kernels["infinite"] = convolutional_kernel(X)
    found: dict[str, float] = {"n": len(X)}
    for name, K in kernels.items():
        found[f"{name} mmd"] = mmd(K, np.arange(n_initial))
        found[f"{name} bound"] = generalization_bound(K, np.eye(10)[learner.y_training], ridge=RIDGE)
    return found


def _cells(states: Sequence[dict[str, float]]) -> list[str]:
    cells = []
    for name in ("network", "infinite"):
        mmds, bounds = ([state[f"{name} {what}"] for state in states] for what in ("mmd", "bound"))
        cells += [mean_std(mmds), mean_std(bounds), mean_std(np.divide(mmds, bounds))]
    return cells


def _runs(size: str, kept: Kept, n_rounds: int, batch: int) -> list[list[dict[str, float]]]:
    """The first rounds of runs that are as long as any table needs them."""
    settings = SIZES[size]
    budget, several = settings["budget"]
    needed = [settings["rounds"]] * (batch in settings["batches"]) + [k for k in several if k * batch == budget]
    longest, seeds = max(needed), range(settings["seeds"])
    return [
        kept(f"{longest}x{batch} {seed}", partial(run_rounds, size, longest, batch, seed))[:n_rounds] for seed in seeds
    ]


def _tables(size: str, kept: Kept, folder: Path | None) -> str:
    settings = SIZES[size]
    rows: list[list[object]] = []
    for batch in settings["batches"]:
        runs = _runs(size, kept, settings["rounds"], batch)
        for number, states in enumerate(zip(*runs, strict=True), start=1):
            rows.append([batch, number, states[0]["n"], *_cells(states)])
    by_round = markdown(["b", "round", "labels", *HEADER], rows)
    budget, several = settings["budget"]
    rows = []
    for n_rounds in several:
        last = [run[-1] for run in _runs(size, kept, n_rounds, budget // n_rounds)]
        rows.append([f"{n_rounds} × {budget // n_rounds}", *_cells(last)])
    return f"{by_round}\n\n{markdown(['rounds × batch', *HEADER], rows)}"


STUDIES = (Study("mmd", "dynamicAL, Figures 1 and 9, Table 10: MMD and B by round, and at a constant budget", _tables),)
