"""Thesis, chapter 3: the pseudo-NTK beside the empirical NTK, for four kinds of networks, at the start and in training.

Networks and training are the thesis's: a fully connected network of depth 3, a convolutional one of depth 8, ResNet-18
and WideResNet-16-k with two groups; SGD with momentum 0.9, weight decay 1e-4, batches of 128 and a constant learning
rate of 0.1, or 0.01 where that ends in NaN. ``scaled`` has narrower networks, fewer and smaller images and fewer seeds.
The loss is the squared loss, which the kernel regressions solve; the thesis does not name its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks._kept import Kept
from benchmarks._measure import markdown
from benchmarks.papers.study import Study, halve_images, images
from skal.diagnostics import kernel_report_of
from skal.nets import MLP, ConvNet, ResNet18, SquaredLoss, WideResNet
from skal.tangent import tangent_kernel

Shape = tuple[int, ...]
# (width, shape of an image) -> network. The widths are the thesis's: exact ones of the fully connected network, and
# factors of the others, of which 1 stands for 16 channels of the first layers
NETWORKS: dict[str, Callable[[float, Shape], nn.Module]] = {
    "FCN": lambda width, shape: MLP(shape, 10, hidden=(int(width),) * 2, init="he_normal"),
    "ConvNet": lambda width, shape: ConvNet(shape[0], 10, depth=8, width=int(16 * width)),
    "ResNet-18": lambda width, shape: ResNet18(stem="cifar", width=int(16 * width), in_channels=shape[0]),
    "WideResNet-16-k": lambda width, shape: WideResNet(16, int(width), in_channels=shape[0], groups=2),
}
# A.7.5: the fully connected network with other nonlinearities, and with truncated weights
VARIANTS: dict[str, Mapping[str, str]] = {
    "ReLU, normal": {"init": "he_normal"},
    "ReLU, truncated normal": {"init": "truncated_normal"},
    **{f"{name}, normal": {"activation": name, "init": "he_normal"} for name in ("leaky_relu", "elu", "gelu", "tanh")},
}
SIZES: dict[str, dict[str, Any]] = {
    "quick": {
        "data": "digits", "n": 5, "n_test": 8, "seeds": 1, "epochs": (0, 2), "fcn": (16,),
        "factors": (0.5,), "groups": (1,),
        "regression": {"n": 10, "n_test": 20, "seeds": 1, "epochs": (0, 2)},
    },
    "scaled": {
        "data": "cifar10_sub", "n": 10, "n_test": 50, "seeds": 2, "epochs": (0, 50, 100, 150, 200), "fcn": (32, 256),
        "factors": (0.25,), "groups": (1,),
        "regression": {"n": 300, "n_test": 500, "seeds": 2, "epochs": (0, 10, 20, 40)},
    },
    "full": {
        "data": "cifar10", "n": 1000, "n_test": 500, "seeds": 3, "epochs": (0, 50, 100, 150, 200),
        "fcn": (64, 256, 1024, 4096), "factors": (1, 4, 16), "groups": (1, 4, 16),
        "regression": {"n": 50_000, "n_test": 10_000, "seeds": 3, "epochs": (0, 50, 100, 150, 200)},
    },
}  # fmt: skip
KEYS = ("on_diagonal", "off_diagonal", "frobenius", "lambda_max", "lambda_min", "condition", "prediction_difference")
HEADER = ["sum on diagonal", "sum off diagonal", "Frobenius", "λ_max", "λ_min", "condition", "predictions"]
ACCURACIES = ("pntk_accuracy", "entk_accuracy")


def load_images(size: str, n: int, n_test: int, seed: int) -> tuple[np.ndarray, ...]:
    """Training images and labels, test images and labels; halved where the size is scaled."""
    data = images(SIZES[size]["data"], size, n, seed)
    X, X_test = (halve_images(x) if size == "scaled" else x for x in (data.X_train, data.X_test[:n_test]))
    return X, data.y_train, X_test, data.y_test[:n_test]


def train(module: nn.Module, X: np.ndarray, y: np.ndarray, epochs: tuple[int, ...], seed: int) -> Iterator[nn.Module]:
    """The network in eval mode after each of the numbers of epochs."""
    start = _copy_state(module)
    for lr in (0.1, 0.01):
        module.load_state_dict(start)
        states = {0: start}
        for epoch in _epochs(module, torch.as_tensor(X), torch.as_tensor(y), max(epochs), lr, seed):
            if epoch in epochs:
                states[epoch] = _copy_state(module)
        if all(bool(value.isfinite().all()) for value in states[max(epochs)].values()):
            break
    for epoch in epochs:
        module.load_state_dict(states[epoch])
        yield module.eval()


def _copy_state(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def _epochs(module: nn.Module, X: torch.Tensor, y: torch.Tensor, n_epochs: int, lr: float, seed: int) -> Iterator[int]:
    optimizer = torch.optim.SGD(module.parameters(), lr=lr, momentum=0.9, weight_decay=1e-4)
    criterion, generator = SquaredLoss(), torch.Generator().manual_seed(seed)
    for epoch in range(1, n_epochs + 1):
        module.train()
        for rows in torch.randperm(len(X), generator=generator).split(128):
            optimizer.zero_grad()
            criterion(module(X[rows]), y[rows]).backward()
            optimizer.step()
        yield epoch


def _reports(make: Callable[[Shape], nn.Module], size: str, seed: int) -> list[dict[str, float]]:
    """A report for every number of epochs, on the images that the network is trained on."""
    settings = SIZES[size]
    X, y, X_test, y_test = load_images(size, settings["n"], settings["n_test"], seed)
    torch.manual_seed(seed)
    found = []
    for module in train(make(X.shape[1:]), X, y, settings["epochs"], seed):
        in_float64 = module.double()
        data = X.astype(np.float64), y, X_test.astype(np.float64), y_test
        found.append(kernel_report_of(in_float64, *data, batch_size=32))
        module.float()
    return found


def _report_table(
    makers: dict[tuple[str, float], Callable[[Shape], nn.Module]], size: str, kept: Kept, keys: tuple[str, ...]
) -> str:
    settings = SIZES[size]
    rows: list[list[object]] = []
    for (name, width), make in makers.items():
        runs = [kept(f"{name} {width} {s}", partial(_reports, make, size, s)) for s in range(settings["seeds"])]
        for k, epoch in enumerate(settings["epochs"]):
            means = [float(np.mean([run[k][key] for run in runs])) for key in (*keys, *ACCURACIES)]
            rows.append([name, width, epoch, *(f"{value:.3g}" for value in means)])
    shown = [HEADER[KEYS.index(key)] for key in keys]
    return markdown(["network", "width", "epoch", *shown, "pNTK accuracy", "eNTK accuracy"], rows)


def _makers(size: str) -> dict[tuple[str, float], Callable[[Shape], nn.Module]]:
    settings = SIZES[size]
    kinds = ("fcn", "factors", "factors", "groups")
    widths = {name: settings[kind] for name, kind in zip(NETWORKS, kinds, strict=True)}
    return {(name, width): partial(NETWORKS[name], width) for name in NETWORKS for width in widths[name]}


def _approximation(size: str, kept: Kept, folder: Path | None) -> str:
    return _report_table(_makers(size), size, kept, KEYS)


def _make_variant(name: str, width: int, shape: Shape) -> nn.Module:
    return MLP(shape, 10, hidden=(width, width), **VARIANTS[name])


def _variants(size: str, kept: Kept, folder: Path | None) -> str:
    makers = {(name, width): partial(_make_variant, name, width) for width in SIZES[size]["fcn"] for name in VARIANTS}
    keys = ("on_diagonal", "off_diagonal", "frobenius", "lambda_max", "prediction_difference")
    return _report_table(makers, size, kept, keys)


def _regress(make: Callable[[Shape], nn.Module], size: str, seed: int) -> list[dict[str, float]]:
    """Test accuracy of the network, and of the kernel regression around it, for every number of epochs."""
    settings = SIZES[size]["regression"]
    X, y, X_test, y_test = load_images(size, settings["n"], settings["n_test"], seed)
    torch.manual_seed(seed)
    found = []
    for module in train(make(X.shape[1:]), X, y, settings["epochs"], seed):
        with torch.no_grad():
            f, f_test = (module(torch.as_tensor(x)).double().numpy() for x in (X, X_test))
        K, between = tangent_kernel(module, X, batch_size=64), tangent_kernel(module, X_test, X, batch_size=64)
        ridge = 1e-6 * K.diagonal().mean() * np.eye(len(K))
        predicted = f_test + between @ np.linalg.solve(K + ridge, np.eye(10)[y] - f)
        accuracies = [float((outputs.argmax(1) == y_test).mean()) for outputs in (f_test, predicted)]
        found.append(dict(zip(("network", "regression"), accuracies, strict=True)))
    return found


def _regression(size: str, kept: Kept, folder: Path | None) -> str:
    settings = SIZES[size]["regression"]
    rows: list[list[object]] = []
    for (name, width), make in _makers(size).items():
        runs = [kept(f"{name} {width} {s}", partial(_regress, make, size, s)) for s in range(settings["seeds"])]
        network, regression = (
            100 * np.mean([[state[key] for state in run] for run in runs], axis=0) for key in ("network", "regression")
        )
        for k, epoch in enumerate(settings["epochs"]):
            gaps = regression[k] - network[k], regression[k] - network[-1]
            cells = (f"{network[k]:.1f}", f"{regression[k]:.1f}", *(f"{gap:+.1f}" for gap in gaps))
            rows.append([name, width, epoch, *cells])
    header = ["network", "width", "epoch", "network, %", "pNTK regression, %", "− this network", "− final network"]
    return markdown(header, rows)


# Figure 3.1: data sets by the shape of an image and the number of classes
PAIRS = {"MNIST": ((1, 28, 28), 10), "CIFAR-10": ((3, 32, 32), 10), "CIFAR-100": ((3, 32, 32), 100)}


def _pair_seconds(shape: Shape, n_classes: int, depth: int) -> dict[str, float]:
    """Processor seconds of each kernel of one pair of samples; noise serves as well as images."""
    torch.manual_seed(0)
    module = WideResNet(depth, 1, in_channels=shape[0], n_classes=n_classes).eval()
    x, z = torch.randn(2, 1, *shape)
    found = {}
    for kind in ("pntk", "entk"):
        tangent_kernel(module, x, z, kind=kind)  # warm up
        start = time.process_time()
        tangent_kernel(module, x, z, kind=kind)
        found[kind] = time.process_time() - start
    return found


def _pair_times(size: str, kept: Kept, folder: Path | None) -> str:
    rows: list[list[object]] = []
    for name, (shape, n_classes) in list(PAIRS.items())[: 2 if size == "quick" else 3]:
        for depth in (10,) if size == "quick" else (10, 16, 28, 40):
            found = kept(f"{name} {depth}", partial(_pair_seconds, shape, n_classes, depth))
            rows.append([name, n_classes, depth, found["pntk"], found["entk"], found["entk"] / found["pntk"]])
    return markdown(["data", "classes", "depth", "pNTK, s", "eNTK, s", "times as long"], rows)


STUDIES = (
    Study("pair_times", "thesis, Figure 3.1: time for one pair of samples by data and depth", _pair_times),
    Study(
        "approximation", "thesis, Figures 3.2 to 3.8 and 3.13: pNTK against eNTK by network and epoch", _approximation
    ),
    Study("regression", "thesis, Figures 3.9 to 3.12, 3.14 and A.9: pNTK regression against the network", _regression),
    Study("nonlinearities", "thesis, A.7.5: other nonlinearities and truncated weights", _variants),
)
