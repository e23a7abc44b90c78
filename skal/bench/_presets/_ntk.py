"""NTK look-ahead (Mohamadi, Bae & Sutherland 2022; thesis 2023): MNIST, SVHN, CIFAR; the loss and the width.

From the papers: data sets, 1- and 2-block wide residual networks and ResNet-18, labels at the start and per query, the
size of the scored subset, squared loss with a OneCycle schedule, warm start, 6 seeds. Left open there, and chosen here:
number of queries, SGD with momentum, learning rate, epochs, minibatches, inputs, the baselines. ``mlmoc`` is the
papers' criterion; skal's default runs beside it.
"""

from __future__ import annotations

import re
from typing import Any

from skal.bench._protocol import Protocol

BASELINES = ("random", "entropy", "margin", "badge")
LABELS: dict[str, Any] = {"n_initial": 100, "batch": 20, "rounds": 10, "seeds": 6}
SGD: dict[str, Any] = {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "schedule": "one_cycle", "max_epochs": 50}
BASE = Protocol(
    data="mnist",
    inputs="standardized",
    net="wide_resnet",
    net_params={"depth": 10, "width": 10},
    strategies=(*BASELINES, "ntk_lookahead(criterion='mlmoc', subset=4000)", "ntk_lookahead(subset=4000)"),
    criterion="squared",
    stop_accuracy=None,
    **LABELS,
    **SGD,
    notes="Number of queries, optimiser, learning rate, epochs, minibatch size, scaling of the inputs and baselines "
    "are ours.",
)
SUBSET_6000 = {
    "strategies": (*BASELINES, "ntk_lookahead(criterion='mlmoc', subset=6000)", "ntk_lookahead(subset=6000)")
}
LARGER: dict[str, Any] = {**SUBSET_6000, "n_initial": 1000, "batch": 1000, "rounds": 5}
CIFAR = {**LARGER, "data": "cifar10", "net_params": {"depth": 16, "width": 10}}
LOSSES = ("squared", "cross_entropy")
WIDTHS = (1, 2, 5, 10)  # 64 to 640 channels at the end
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "ntk_mnist": {"": {}},
    "ntk_svhn": {"": {**LARGER, "data": "svhn"}},
    "ntk_cifar10": {
        "_wide_resnet": CIFAR,
        "_resnet18": {**CIFAR, "net": "resnet18", "net_params": {"stem": "cifar"}},
    },
    "ntk_cifar100": {"": {**CIFAR, "data": "cifar100", "n_initial": 10_000}},
    "ntk_loss": {f"_{loss}": {"criterion": loss, "strategies": BASELINES[:3]} for loss in LOSSES},
    "ntk_width": {f"_{width}": {"net_params": {"depth": 10, "width": width}} for width in WIDTHS},
}
SMALL = {"n_initial": 100, "rounds": 3, "seeds": 3, "n_pool": 2000, "n_test": 2000, "max_epochs": 20}


def scaled(protocol: Protocol) -> dict[str, Any]:
    """Three seeds, a pool of 2,000, a tenth of the labels where there are many, 1-block networks of small width."""
    widths = {1: 1, 2: 2, 5: 3, 10: 4} if protocol.name.startswith("ntk_width") else {10: 1}
    narrow = {"stem": "cifar", "width": 8}
    if protocol.net == "wide_resnet":
        narrow = {"depth": 10, "width": widths[protocol.net_params["width"]]}
    return {
        "strategies": tuple(re.sub(r"subset=\d+", "subset=500", spec) for spec in protocol.strategies),
        "net_params": narrow,
        "batch": 100 if protocol.n_initial > 100 else 20,
        **SMALL,
        "notes": "fewer labels, rounds, seeds and images, narrower networks",
    }
