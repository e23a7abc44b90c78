# SPDX-License-Identifier: BSD-3-Clause
"""NTK look-ahead (Mohamadi, Bae & Sutherland 2022; thesis 2023): MNIST, SVHN, CIFAR; the loss and the width.

The settings are those of ``_transcripts``, with the training of the authors' released configuration. Its loss is the
mean of the squares over samples *and* classes, 2/C of ``SquaredLoss``: a learning rate of 1.25 becomes 2.5/C here, and
a weight decay of 1e-4 becomes C/2 times as much; with SGD both are the same training. The papers leave open, and we
chose: inputs, the widths below 640, the learning rate of cross-entropy. There is no augmentation.
"""

from __future__ import annotations

import re
from typing import Any

from skal.bench._protocol import Protocol

BASELINES = ("random", "entropy", "margin", "badge", "learning_loss")
LABELS: dict[str, Any] = {"n_initial": 100, "query_size": 20, "n_rounds": 9, "seeds": 6}
SGD: dict[str, Any] = {
    "optimizer": "heavy_ball",
    "momentum": 0.9,
    "schedule": "one_cycle_momentum",
    "max_epochs": 200,
    "batch_size": 128,
}


def rates(n_classes: int, largest: float = 1.25) -> dict[str, Any]:
    """What the authors' learning rate and weight decay are for ``SquaredLoss``."""
    return {"lr": largest * 2 / n_classes, "weight_decay": 1e-4 * n_classes / 2}


ONE_BLOCK: dict[str, Any] = {"net": "wide_resnet", "net_params": {"depth": 10, "width": 40, "groups": 1}}
TWO_BLOCKS: dict[str, Any] = {"net": "wide_resnet", "net_params": {"depth": 10, "width": 20, "groups": 2}}
RESNET18: dict[str, Any] = {"net": "resnet18", "net_params": {"stem": "cifar"}}
BASE = Protocol(
    data="mnist",
    inputs="standardized",
    strategies=(*BASELINES, "ntk_lookahead(criterion='mlmoc', subset=4000)"),
    criterion="squared",
    stop_accuracy=None,
    **ONE_BLOCK,
    **LABELS,
    **SGD,
    **rates(10),
    notes="Optimiser, epochs and number of queries are those of the authors' configuration for CIFAR-10; the learning "
    "rate and weight decay are its, in terms of our loss. Scaling of the inputs is ours; nothing is augmented.",
)
THOUSANDS: dict[str, Any] = {
    "strategies": (*BASELINES, "ntk_lookahead(criterion='mlmoc', subset=6000)"),
    "n_initial": 1000,
    "query_size": 1000,
}
NETWORKS = {"_one_block": ONE_BLOCK, "_two_blocks": TWO_BLOCKS, "_resnet18": RESNET18}
LOSSES: dict[str, dict[str, Any]] = {
    "squared": {"criterion": "squared"},
    "cross_entropy": {"criterion": "cross_entropy", "lr": 0.1, "weight_decay": 1e-4},
}
PAIR = ("random", "ntk_lookahead(criterion='mlmoc', subset=4000)")
WIDTHS = (4, 8, 20, 40)  # 64 to 640 channels
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "ntk_mnist": {"": {}},
    "ntk_svhn": {suffix: {**THOUSANDS, "data": "svhn", **network} for suffix, network in NETWORKS.items()},
    "ntk_cifar10": {
        suffix: {**THOUSANDS, "data": "cifar10", **NETWORKS[suffix]} for suffix in ("_two_blocks", "_resnet18")
    },
    "ntk_cifar100": {"": {**THOUSANDS, **RESNET18, **rates(100), "data": "cifar100", "n_initial": 10_000}},
    "ntk_loss": {f"_{name}": {**loss, "strategies": PAIR} for name, loss in LOSSES.items()},
    "ntk_width": {
        f"_{16 * width}": {"net_params": {"depth": 10, "width": width, "groups": 1}, "strategies": PAIR}
        for width in WIDTHS
    },
}
SMALL: dict[str, Any] = {"n_initial": 100, "n_rounds": 3, "seeds": 10, "n_pool": 2000, "n_test": 2000}
# 100 labels are a single minibatch of 128, and few epochs then few steps: smaller ones train further at the same price
STEPS = {"max_epochs": 40, "batch_size": 16}


def scale_down(protocol: Protocol) -> dict[str, Any]:
    """Ten seeds, a pool of 2,000, a tenth of the labels where there are many, narrow networks."""
    narrow: dict[str, Any] = {"stem": "cifar", "width": 8}
    if protocol.net == "wide_resnet":
        widths = {4: 1, 8: 2, 20: 3, 40: 4} if protocol.name.startswith("ntk_width") else {20: 2, 40: 4}
        narrow = {**protocol.net_params, "width": widths[protocol.net_params["width"]]}
    return {
        "strategies": tuple(re.sub(r"subset=\d+", "subset=500", spec) for spec in protocol.strategies),
        "net_params": narrow,
        "query_size": 100 if protocol.n_initial > 100 else 20,
        **SMALL,
        **STEPS,
        "notes": "fewer labels, rounds, epochs and images, narrower networks, smaller minibatches",
    }
