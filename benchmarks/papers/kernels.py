"""Thesis, chapter 3: the pseudo-NTK beside the empirical NTK for four kinds of networks, and with growing data.

Of the figures' exact settings we know the quantities and the kinds of networks; data, widths and training are ours.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks._kept import Kept
from benchmarks._measure import markdown
from benchmarks.papers.study import Study, images
from skal.diagnostics import kernel_report_of
from skal.nets import MLP, ConvNet, ResNet18, SquaredLoss, WideResNet
from skal.tangent import tangent_kernel

# width -> network for images of one channel; the widths are those of the last layer
NETWORKS: dict[str, Callable[[int, int], nn.Module]] = {
    "MLP": lambda width, side: MLP(side**2, 10, hidden=(width, width)),
    "ConvNet": lambda width, side: ConvNet(in_channels=1, n_classes=10, depth=3, width=width),
    "ResNet-18": lambda width, side: ResNet18(stem="cifar", width=width // 8, in_channels=1),
    "WideResNet": lambda width, side: WideResNet(10, width // 16, in_channels=1, groups=1),
}
SIZES: dict[str, dict[str, Any]] = {
    "quick": {"data": "digits", "n": 5, "n_test": 8, "widths": (16, 32), "seeds": 1, "steps": 2, "grows": (4, 8)},
    "scaled": {"data": "digits", "n": 20, "n_test": 50, "widths": (16, 64), "seeds": 2, "steps": 100,
               "grows": (10, 20, 40, 80)},
    "full": {"data": "mnist", "n": 1000, "n_test": 1000, "widths": (16, 64, 256, 1024), "seeds": 3, "steps": 1000,
             "grows": (100, 300, 1000, 3000)},
}  # fmt: skip
KEYS = ("frobenius", "lambda_max", "lambda_min", "condition", "prediction_difference")
ACCURACIES = ("pntk_accuracy", "entk_accuracy")


def make_network(kind: str, width: int, side: int, seed: int) -> nn.Module:
    """In float64 and eval mode; batch norm has its initial statistics until the network is trained."""
    torch.manual_seed(seed)
    return NETWORKS[kind](width, side).double().eval()


def train(module: nn.Module, X: np.ndarray, y: np.ndarray, n_steps: int) -> nn.Module:
    """Full-batch Adam on the squared loss; batch norm learns its statistics on the way."""
    optimizer, criterion = torch.optim.Adam(module.parameters(), lr=1e-3), SquaredLoss()
    inputs, labels = torch.as_tensor(X).double(), torch.as_tensor(y)
    module.train()
    for _ in range(n_steps):
        optimizer.zero_grad()
        criterion(module(inputs), labels).backward()
        optimizer.step()
    return module.eval()


def _reports(kind: str, width: int, seed: int, size: str) -> dict[str, dict[str, float]]:
    settings = SIZES[size]
    data = images(settings["data"], size, settings["n"], seed)
    X, y, X_test = (
        data[name].astype(np.float64) if name[0] == "X" else data[name] for name in ("X_train", "y_train", "X_test")
    )
    X_test, y_test = X_test[: settings["n_test"]], data.y_test[: settings["n_test"]]
    module = make_network(kind, width, X.shape[-1], seed)
    before = kernel_report_of(module, X, y, X_test, y_test, batch_size=32)
    after = kernel_report_of(train(module, X, y, settings["steps"]), X, y, X_test, y_test, batch_size=32)
    return {"at the start": before, "trained": after}


def _approximation(size: str, kept: Kept, folder: Path | None) -> str:
    """Figures 3.2 to 3.8: relative differences by width, before and after training; means over seeds."""
    settings = SIZES[size]
    rows: list[list[object]] = []
    for kind in NETWORKS:
        for width in settings["widths"]:
            run = [
                kept(f"{kind} {width} {s}", partial(_reports, kind, width, s, size)) for s in range(settings["seeds"])
            ]
            for state in ("at the start", "trained"):
                means = [float(np.mean([found[state][key] for found in run])) for key in (*KEYS, *ACCURACIES)]
                rows.append([kind, width, state, *(f"{value:.3f}" for value in means)])
    header = ["network", "width", "weights", "Frobenius", "λ_max", "λ_min", "condition", "predictions"]
    return markdown([*header, "pNTK accuracy", "eNTK accuracy"], rows)


def _spectrum(kind: str, size: str) -> dict[str, list[float]]:
    settings = SIZES[size]
    data = images(settings["data"], size, settings["n"], 0)
    X, width = data.X_train.astype(np.float64), settings["widths"][-1]
    module = make_network(kind, width, X.shape[-1], 0)
    shares = (1.0, 0.9, 0.75, 0.5, 0.25, 0.0)
    found = {}
    for name in ("pntk", "entk"):
        values = np.linalg.eigvalsh(tangent_kernel(module, X, kind=name, batch_size=32))
        found[name] = np.quantile(values / values[-1], shares).tolist()
    return found


def _spectra(size: str, kept: Kept, folder: Path | None) -> str:
    rows: list[list[object]] = []
    for kind in NETWORKS:
        for name, values in kept(kind, partial(_spectrum, kind, size)).items():
            rows.append([kind, name, *(f"{value:.2g}" for value in values)])
    shares = ["largest", "90 %", "75 %", "median", "25 %", "smallest"]
    return "Eigenvalues at the start, relative to the largest:\n\n" + markdown(["network", "kernel", *shares], rows)


def _grown(kind: str, n: int, size: str) -> dict[str, float]:
    settings = SIZES[size]
    data = images(settings["data"], size, n, 0)
    X, X_test = data.X_train.astype(np.float64), data.X_test[: settings["n_test"]].astype(np.float64)
    module = make_network(kind, settings["widths"][-1], X.shape[-1], 0)
    found: dict[str, float] = {}
    for name in ("pntk", "entk"):
        start = time.process_time()
        K = tangent_kernel(module, X, kind=name, batch_size=32)
        found[f"{name}_seconds"], found[f"{name}_bytes"] = time.process_time() - start, float(K.nbytes)
    report = kernel_report_of(module, X, data.y_train, X_test, data.y_test[: settings["n_test"]], batch_size=32)
    return found | {key: report[key] for key in ACCURACIES}


def _growing(size: str, kept: Kept, folder: Path | None) -> str:
    """Figures 3.9 to 3.15: accuracy of the regressions, processor seconds and bytes of the kernel of n samples."""
    rows: list[list[object]] = []
    for kind in NETWORKS:
        for n in SIZES[size]["grows"]:
            found = kept(f"{kind} {n}", partial(_grown, kind, n, size))
            cells = [f"{found[key]:.3f}" for key in ACCURACIES]
            cells += [
                f"{found[f'{name}_seconds']:.3g} s, {found[f'{name}_bytes'] / 1e6:.3g} MB" for name in ("pntk", "entk")
            ]
            rows.append([kind, n, *cells, found["entk_seconds"] / max(1e-9, found["pntk_seconds"])])
    header = ["network", "n", "pNTK accuracy", "eNTK accuracy", "pNTK, kernel", "eNTK, kernel", "times as long"]
    return markdown(header, rows)


STUDIES = (
    Study("approximation", "thesis, Figures 3.2 to 3.8: pNTK against eNTK by network and width", _approximation),
    Study("spectra", "thesis, Figures 3.9 to 3.15: spectra", _spectra),
    Study("growing", "thesis, Figures 3.9 to 3.15: regression, time and memory with growing data", _growing),
)
