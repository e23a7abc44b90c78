"""dynamicAL's Figure 1 and Table 10: how far queries move the labelled set (MMD), beside the bound's term B.

Networks are trained as the paper trains them (Adam 1e-3, warm start, to a training accuracy of 0.99), and both
quantities are those of the pseudo-NTK of the network after the round's training, in float64. The paper's Figure 9 is
in the same part of it; what it shows we have not found. ``second`` gives the same two curves for another network.
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
from benchmarks.papers.study import Study, images, mean_std
from skal import ActiveLearner
from skal.callbacks import FreshOptimizer, StopAtTrainAccuracy
from skal.diagnostics import generalization_bound, mmd
from skal.nets import CNN, ConvNet
from skal.strategies import DynamicAL
from skal.tangent import tangent_kernel

# data, pool, labels at the start, and the seeds
SIZES: dict[str, dict[str, Any]] = {
    "quick": {"data": "digits", "n_pool": 120, "initial": 20, "budget": 20, "seeds": 1, "max_epochs": 2},
    "scaled": {"data": "mnist", "n_pool": 1000, "initial": 100, "budget": 200, "seeds": 2, "max_epochs": 60},
    "full": {"data": "cifar10", "n_pool": 50_000, "initial": 500, "budget": 1000, "seeds": 5, "max_epochs": 200},
}
RIDGE = 1e-8  # relative: copies among the samples must not decide


def make_module(name: str, X: np.ndarray) -> nn.Module:
    """The tutorial's CNN, or three convolutions with global average pooling."""
    if name == "cnn":
        return CNN(in_channels=X.shape[1], n_classes=10, image_size=X.shape[2])
    return ConvNet(in_channels=X.shape[1], n_classes=10, depth=3, width=32)


def rounds(network: str, size: str, n_rounds: int, batch: int, seed: int) -> list[dict[str, float]]:
    """MMD and B after every round of dynamicAL's queries, the first training included."""
    settings = SIZES[size]
    data, n = images(settings["data"], size, settings["n_pool"], seed), settings["initial"]
    X, y = data.X_train, data.y_train
    torch.manual_seed(seed)
    net = NeuralNetClassifier(
        make_module(network, X),
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
    found = [_quantities(net, learner, n)]
    X, y = X[n:], y[n:]
    for _ in range(n_rounds):
        indices, samples = learner.query(X, n_instances=batch)
        learner.teach(samples, y[indices])
        X, y = np.delete(X, indices, axis=0), np.delete(y, indices)
        found.append(_quantities(net, learner, n))
    return found


def _quantities(net: Any, learner: Any, n_initial: int) -> dict[str, float]:
    """In float64: the bound is a matter of the smallest eigenvalues."""
    module, X = copy.deepcopy(net.module_).double().eval(), learner.X_training.astype(np.float64)
    K = tangent_kernel(module, X, batch_size=64, max_memory="500MB")
    B = generalization_bound(K, np.eye(10)[learner.y_training], ridge=RIDGE)
    scale = float(K.diagonal().mean())
    return {"n": len(X), "mmd": mmd(K, np.arange(n_initial)), "bound": B, "scale": scale}


def _curves(network: str, size: str, kept: Kept, folder: Path | None) -> str:
    settings = SIZES[size]
    n_rounds, batch = (2, 5) if size == "quick" else (9, 250 if size == "full" else 50)
    runs = []
    for seed in range(settings["seeds"]):
        run = partial(rounds, network, size, n_rounds, batch, seed)
        runs.append(kept(f"{network} {n_rounds}x{batch} {seed}", run))
    rows: list[list[object]] = []
    for number, states in enumerate(zip(*runs, strict=True)):
        rows.append([number, states[0]["n"], *_cells(states)])
    what = f"{settings['data']}, {network}, {settings['seeds']} seeds:\n\n"
    return what + markdown(["round", "labels", *HEADER], rows)


HEADER = ["MMD", "B", "MMD / B", "MMD / B, kernel of mean diagonal 1"]


def _cells(states: Sequence[dict[str, float]]) -> list[str]:
    """MMD grows with the root of the kernel's scale and B falls with it: their ratio depends on the scale."""
    ratios = [state["mmd"] / state["bound"] for state in states]
    relative = [ratio / state["scale"] for ratio, state in zip(ratios, states, strict=True)]
    return [*(mean_std([s[name] for s in states]) for name in ("mmd", "bound")), mean_std(ratios), mean_std(relative)]


def _constant_budget(size: str, kept: Kept, folder: Path | None) -> str:
    """The same budget in 1, 2, 4 and 10 rounds; the paper's Table 10 has about 0.005."""
    settings = SIZES[size]
    rows: list[list[object]] = []
    for n_rounds in (1, 2) if size == "quick" else (1, 2, 4, 10):
        batch, last = settings["budget"] // n_rounds, []
        for seed in range(settings["seeds"]):
            run = partial(rounds, "cnn", size, n_rounds, batch, seed)
            last.append(kept(f"cnn {n_rounds}x{batch} {seed}", run)[-1])
        rows.append([f"{n_rounds} × {batch}", *_cells(last)])
    what = f"{settings['data']}, cnn, {settings['initial']} labels at the start, {settings['seeds']} seeds:\n\n"
    return what + markdown(["rounds × batch", *HEADER], rows)


STUDIES = (
    Study("mmd", "dynamicAL, Figure 1: MMD and B over the rounds", partial(_curves, "cnn")),
    Study("mmd_second", "dynamicAL, Figure 1's curves for a second network", partial(_curves, "convnet")),
    Study("mmd_budget", "dynamicAL, Table 10: MMD / B at a constant budget", _constant_budget),
)
