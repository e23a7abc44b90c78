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
from benchmarks.papers.study import Study, halve_images, images, mean_std, paired_gap
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
    "scaled": {"data": "cifar10_sub", "n_pool": 1000, "initial": 100, "batches": (50, 100, 200), "rounds": 1,
               "budget": (200, (4, 2, 1)), "seeds": 10, "max_epochs": 20, "width": 16, "side": 4},
    "full": {"data": "cifar10", "n_pool": 50_000, "initial": 500, "batches": (250, 500, 1000), "rounds": 9,
             "budget": (1000, (10, 4, 2, 1)), "seeds": 5, "max_epochs": 200, "width": 64, "side": 8},
}  # fmt: skip
RIDGE = 1e-8  # relative: copies among the samples must not decide
HEADER = ["MMD", "B", "MMD / B", "∞: MMD", "∞: B", "∞: MMD / B"]


def run_rounds(size: str, n_rounds: int, batch: int, seed: int) -> list[dict[str, Any]]:
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
        module = copy.deepcopy(net.module_).double().eval()
        K = tangent_kernel(module, learner.X_training.astype(np.float64), batch_size=64, max_memory="500MB")
        found.append(_quantities("network", K, learner.y_training, n))
    small = learner.X_training.astype(np.float64)
    while small.shape[-1] > settings["side"]:
        small = halve_images(small)
    K = convolutional_kernel(small)  # does not depend on the weights: earlier rounds have its first rows
    for state in found:
        some = slice(state["n"])
        state |= _quantities("infinite", K[some, some], learner.y_training[some], n)
    return found


def _quantities(name: str, K: np.ndarray, y: np.ndarray, n_initial: int) -> dict[str, Any]:
    """In float64: the bound is a matter of the smallest eigenvalues."""
    bound = generalization_bound(K, np.eye(10)[y], ridge=RIDGE)
    return {"n": len(y), f"{name} mmd": mmd(K, np.arange(n_initial)), f"{name} bound": bound}


def _ratios(states: Sequence[dict[str, Any]], name: str) -> np.ndarray:
    return np.array([state[f"{name} mmd"] / state[f"{name} bound"] for state in states])


def _cells(states: Sequence[dict[str, Any]], first: Sequence[dict[str, Any]] | None = None) -> list[str]:
    """MMD, B and their quotient, and by how much the quotient differs from the first row's, by kernel."""
    cells = []
    for name in ("network", "infinite"):
        cells += [mean_std([state[f"{name} {what}"] for state in states]) for what in ("mmd", "bound")]
        cells.append(mean_std(_ratios(states, name)))
    for name in ("network", "infinite"):
        cells.append(paired_gap(_ratios(states, name) - _ratios(first, name), 4) if first else "")
    return cells


def _all_runs(size: str, kept: Kept) -> dict[int, list[list[dict[str, Any]]]]:
    """By batch, runs that are as long as any table needs them, all batches of a seed before the next."""
    settings = SIZES[size]
    budget, several = settings["budget"]
    longest = dict.fromkeys(settings["batches"], settings["rounds"])
    for n_rounds in several:
        longest[budget // n_rounds] = max(n_rounds, longest.get(budget // n_rounds, 0))
    runs: dict[int, list[list[dict[str, Any]]]] = {batch: [] for batch in longest}
    for seed in range(settings["seeds"]):
        for batch, n_rounds in longest.items():
            key = f"{n_rounds}x{batch} {seed}"
            runs[batch].append(kept(key, partial(run_rounds, size, n_rounds, batch, seed)))
    return runs


def _compared(other: str) -> list[str]:
    return [f"MMD / B − {other}", f"∞: MMD / B − {other}"]


def _tables(size: str, kept: Kept, folder: Path | None) -> str:
    """By round, the first rounds compared with that of the smallest batch; and at a budget, compared with one round.

    A batch has as many rounds as are stated, or more if the budget needs them.
    """
    settings, runs = SIZES[size], _all_runs(size, kept)
    rows: list[list[object]] = []
    for batch in settings["batches"]:
        for k in range(len(runs[batch][0])):
            states = [run[k] for run in runs[batch]]
            smallest = settings["batches"][0]
            first = [run[0] for run in runs[smallest]] if k == 0 and batch != smallest else None
            rows.append([batch, k + 1, states[0]["n"], *_cells(states, first)])
    compared = _compared("that of the first row")
    by_round = markdown(["b", "round", "labels", *HEADER, *compared], rows)
    budget, several = settings["budget"]
    at_once, rows = [run[0] for run in runs[budget]], []
    for n_rounds in several:
        states = [run[n_rounds - 1] for run in runs[budget // n_rounds]]
        first = at_once if n_rounds > 1 else None
        rows.append([f"{n_rounds} × {budget // n_rounds}", *_cells(states, first)])
    compared = _compared("that of one round")
    return f"{by_round}\n\n{markdown(['rounds × batch', *HEADER, *compared], rows)}"


STUDIES = (Study("mmd", "dynamicAL, Figures 1 and 9, Table 10: MMD and B by round, and at a constant budget", _tables),)
