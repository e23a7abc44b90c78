# SPDX-License-Identifier: BSD-3-Clause
"""NPC (Kong et al. 2022): active semi-supervised learning with FixMatch and DARP, as ``_transcripts`` transcribes it.

Zero-shot is a query from random weights, single-shot one query from the first model, of BADGE and NPC alone. The
table's columns are 40 and 60 labels for both, and its caption has Q = 30 and 50. With ten labels first that is
single-shot. Zero-shot has no labels first, so that its one query has 40 or 60 here; the paper may have queried 30 or 50
beside ten labels that the query did not use. FixMatch's settings come from its paper. The number of training steps is
open in the paper, and our choice here. The paper's first model is the median of five trials; ours is a single one.
"""

from __future__ import annotations

from typing import Any

from skal.bench._protocol import Protocol

LOSS: dict[str, Any] = {"flip": True, "threshold": 0.95, "lambda_u": 1.0, "mu": 7, "batch_size": 64}
SGD = {"lr": 0.03, "optimizer__momentum": 0.9, "optimizer__nesterov": True, "optimizer__weight_decay": 5e-4}
SCHEDULE = {"cosine": True, "ema_decay": 0.999, "iterations_per_epoch": 500}
DARP = {"darp": "uniform", "darp_every": 10, "darp_warmup": 0.4, "darp_alpha": 2.0}
LABELS: dict[str, Any] = {"n_initial": 10, "query_size": 20, "n_rounds": 3, "seeds": 3, "initial": "balanced"}
TRAINING: dict[str, Any] = {"max_epochs": 500, "warm_start": False, "stop_accuracy": None}
BASE = Protocol(
    data="cifar10",
    inputs="unit",  # augmentations work on pixels in [0, 1]
    net="wide_resnet",
    net_params={"depth": 28, "width": 2},
    # the paper's margin is that of logits, and its kernel the last layer's; plain npc is the whole network's
    strategies=("random", "margin(on='logits')", "albl", "badge", "npc(kernel='last_layer')"),
    semi_supervised=LOSS | SGD | SCHEDULE | DARP,
    **LABELS,
    **TRAINING,
    notes="The number of training steps is ours; the first model is not the median of five.",
)
PAIR: dict[str, Any] = {"strategies": ("badge", "npc(kernel='last_layer')")}
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "npc_cifar10": {"": {}},
    "npc_cifar100": {"": {"data": "cifar100", "n_initial": 100, "query_size": 200, "n_rounds": 4}},
    "npc_zero_shot": {f"_{n}": {**PAIR, "n_initial": n, "n_rounds": 0, "initial": "zero_shot"} for n in (40, 60)},
    "npc_single_shot": {f"_{n}": {**PAIR, "query_size": n - 10, "n_rounds": 1} for n in (40, 60)},
}
SMALL: dict[str, Any] = {"seeds": 10, "max_epochs": 20, "n_pool": 2000, "n_test": 2000}


def scale_down(protocol: Protocol) -> dict[str, Any]:
    """Ten seeds, WRN-10-1, few training steps, a pool of 2,000."""
    # a short training needs a shorter memory of the average
    short = {"batch_size": 16, "iterations_per_epoch": 20, "ema_decay": 0.99}
    return {
        "net_params": {"depth": 10, "width": 1},
        "semi_supervised": {**(protocol.semi_supervised or {}), **short},
        **SMALL,
        "notes": "fewer images and training steps, a smaller network",
    }
