"""Thesis, chapter 3: the pseudo-NTK beside the empirical NTK, for four kinds of networks, at the start and in training.

Networks and training are the thesis's: a fully connected network of depth 3, a convolutional one of depth 8, ResNet-18
and WideResNet-16-k with two groups; SGD with momentum 0.9, weight decay 1e-4, batches of 128 and a constant learning
rate of 0.1, or 0.01 where that ends in NaN. ``scaled`` has narrower networks, fewer and smaller images and fewer seeds.
The loss is the squared loss, which the kernel regressions solve, as the mean over samples and classes; the thesis does
not name its own. Summed over the classes, a rate of 0.1 ends fully connected networks without ever giving NaN.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks._kept import Kept
from benchmarks._measure import markdown
from benchmarks.papers.study import Study, halve_images, images, mean_std, paired_gap
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
        "nonlinearities": {"n": 5, "n_test": 8, "seeds": 2, "epochs": (0, 2), "fcn": (16,)},
    },
    "scaled": {
        "data": "cifar10_sub", "n": 20, "n_test": 50, "seeds": 3, "epochs": (0, 50, 100, 150, 200),
        "fcn": (32, 64, 128, 256), "factors": (0.25,), "groups": (1,),
        "regression": {"n": 200, "n_test": 500, "seeds": 3, "epochs": (0, 50, 100)},
        "nonlinearities": {"n": 100, "n_test": 100, "seeds": 10, "epochs": (0, 50, 100, 150, 200), "fcn": (64,)},
    },
    "full": {
        "data": "cifar10", "n": 1000, "n_test": 500, "seeds": 3, "epochs": (0, 50, 100, 150, 200),
        "fcn": (64, 256, 1024, 4096), "factors": (1, 4, 16), "groups": (1, 4, 16),
        "regression": {"n": 50_000, "n_test": 10_000, "seeds": 3, "epochs": (0, 50, 100, 150, 200)},
        "nonlinearities": {
            "n": 1000, "n_test": 500, "seeds": 3, "epochs": (0, 50, 100, 150, 200), "fcn": (64, 256, 1024, 4096),
        },
    },
}  # fmt: skip
KEYS = ("on_diagonal", "off_diagonal", "frobenius", "lambda_max", "lambda_min", "condition", "prediction_difference")
HEADER = ["sum on diagonal", "sum off diagonal", "Frobenius", "λ_max", "λ_min", "condition", "predictions"]
ACCURACIES = ("pntk_accuracy", "entk_accuracy")


@lru_cache(maxsize=1)
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
            outputs = module(X[rows])
            (2 / outputs.shape[1] * criterion(outputs, y[rows])).backward()  # the mean over classes, too
            optimizer.step()
        yield epoch


def _reports(
    make: Callable[[Shape], nn.Module], size: str, settings: dict[str, Any], seed: int
) -> list[dict[str, float]]:
    """A report for every number of epochs, on the images that the network is trained on."""
    X, y, X_test, y_test = load_images(size, settings["n"], settings["n_test"], seed)
    torch.manual_seed(seed)
    found = []
    for module in train(make(X.shape[1:]), X, y, settings["epochs"], seed):
        in_float64 = module.double()
        data = X.astype(np.float64), y, X_test.astype(np.float64), y_test
        found.append(kernel_report_of(in_float64, *data, batch_size=128))
        module.float()
    return found


Makers = dict[tuple[str, float], Callable[[Shape], nn.Module]]


def _all_reports(
    makers: Makers, size: str, settings: dict[str, Any], kept: Kept
) -> dict[tuple[str, float], list[list[dict[str, float]]]]:
    """The runs of every network, all networks of a seed before the next."""
    runs: dict[tuple[str, float], list[list[dict[str, float]]]] = {network: [] for network in makers}
    for seed in range(settings["seeds"]):
        for (name, width), make in makers.items():
            key = f"{name} {width} {seed}"
            runs[name, width].append(kept(key, partial(_reports, make, size, settings, seed)))
    return runs


def _makers(size: str) -> Makers:
    settings = SIZES[size]
    kinds = ("fcn", "factors", "factors", "groups")
    widths = {name: settings[kind] for name, kind in zip(NETWORKS, kinds, strict=True)}
    return {(name, width): partial(NETWORKS[name], width) for name in NETWORKS for width in widths[name]}


def _approximation(size: str, kept: Kept, folder: Path | None) -> str:
    settings = SIZES[size]
    rows: list[list[object]] = []
    for (name, width), runs in _all_reports(_makers(size), size, settings, kept).items():
        for k, epoch in enumerate(settings["epochs"]):
            means = [float(np.mean([run[k][key] for run in runs])) for key in (*KEYS, *ACCURACIES)]
            rows.append([name, width, epoch, *(f"{value:.3g}" for value in means)])
    return markdown(["network", "width", "epoch", *HEADER, "pNTK accuracy", "eNTK accuracy"], rows)


def _make_variant(name: str, width: int, shape: Shape) -> nn.Module:
    return MLP(shape, 10, hidden=(width, width), **VARIANTS[name])


def _variants(size: str, kept: Kept, folder: Path | None) -> str:
    """What the figures of A.7.5 show, and by how much the two relative differences differ from those of ReLU."""
    settings = SIZES[size]["nonlinearities"]
    found = {}
    for width in settings["fcn"]:  # all seeds of a width before the next
        makers: Makers = {(name, width): partial(_make_variant, name, width) for name in VARIANTS}
        found |= _all_reports(makers, size, settings, kept)
    keys = ("on_diagonal", "off_diagonal", "frobenius", "lambda_max", "prediction_difference")
    first = next(iter(VARIANTS))
    values, gaps = [], []
    for (name, width), runs in found.items():
        for k, epoch in enumerate(settings["epochs"]):
            by_key = {key: [run[k][key] for run in runs] for key in (*keys, *ACCURACIES)}
            values.append([name, width, epoch, *(mean_std(by_key[key]) for key in (*keys, *ACCURACIES))])
            if name != first:
                own = {key: [run[k][key] for run in found[first, width]] for key in by_key}
                compared = [paired_gap(np.subtract(by_key[key], own[key]), 2) for key in ("frobenius", "lambda_max")]
                gaps.append([name, width, epoch, *compared])
    shown = [HEADER[KEYS.index(key)] for key in keys]
    table = markdown(["network", "width", "epoch", *shown, "pNTK accuracy", "eNTK accuracy"], values)
    header = ["network", "width", "epoch", f"Frobenius − that of {first}", f"λ_max − that of {first}"]
    return f"{table}\n\n{markdown(header, gaps)}"


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


# Figure 3.1: data sets by the shape of an image and the number of classes. The thesis says "ResNet depths" and neither
# which ones nor how wide: here they are WideResNets of factor 1, residual networks of 16, 32 and 64 channels
PAIRS = {"MNIST": ((1, 28, 28), 10), "CIFAR-10": ((3, 32, 32), 10), "CIFAR-100": ((3, 32, 32), 100)}
DEPTHS = {"quick": (10,), "scaled": (10, 16), "full": (10, 16, 28, 40)}
REPEATS = {"quick": 1, "scaled": 10, "full": 10}
LONGEST = 1.0  # the median of so many, or of those that begin within so many seconds


def _pair_seconds(shape: Shape, n_classes: int, depth: int, repeats: int) -> dict[str, float]:
    """Processor seconds of each kernel of one pair of samples; noise serves as well as images."""
    torch.manual_seed(0)
    module = WideResNet(depth, 1, in_channels=shape[0], n_classes=n_classes).eval()
    x, z = torch.randn(2, 1, *shape)
    found = {}
    for kind in ("pntk", "entk"):
        tangent_kernel(module, x, z, kind=kind)  # warm up
        seconds: list[float] = []
        while len(seconds) < repeats and sum(seconds) < LONGEST:
            start = time.process_time()
            tangent_kernel(module, x, z, kind=kind)
            seconds.append(time.process_time() - start)
        found[kind] = float(np.median(seconds))
    return found


def _pair_times(size: str, kept: Kept, folder: Path | None) -> str:
    rows: list[list[object]] = []
    for name, (shape, n_classes) in list(PAIRS.items())[: 3 if size == "full" else 2]:
        for depth in DEPTHS[size]:
            found = kept(f"{name} {depth}", partial(_pair_seconds, shape, n_classes, depth, REPEATS[size]))
            times = f"{found['entk'] / found['pntk']:.1f}"
            rows.append([name, n_classes, depth, f"{found['pntk']:.3f}", f"{found['entk']:.3f}", times])
    return markdown(["data", "classes", "depth", "pNTK, s", "eNTK, s", "times as long"], rows)


STUDIES = (
    Study("pair_times", "thesis, Figure 3.1: time for one pair of samples by data and depth", _pair_times),
    Study(
        "approximation", "thesis, Figures 3.2 to 3.8 and 3.13: pNTK against eNTK by network and epoch", _approximation
    ),
    Study("regression", "thesis, Figures 3.9 to 3.12, 3.14 and A.9: pNTK regression against the network", _regression),
    Study("nonlinearities", "thesis, A.7.5: other nonlinearities and truncated weights", _variants),
)
