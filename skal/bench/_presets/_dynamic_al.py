"""dynamicAL (Wang et al. 2022): its tables and the γ study.

From the paper: data sets, networks, M = 500, b, R, 5 runs, lr 1e-3 (Adam in the authors' code), warm start, training to
a train accuracy of 0.99. Left open there, and chosen here: minibatches of 64, inputs in [−1, 1], the cap on epochs.
The defaults of :class:`Protocol` are this training.
"""

from __future__ import annotations

from typing import Any

from skal.bench._protocol import Protocol

BASELINES = ("coreset", "least_confidence", "margin", "entropy", "learning_loss", "badge")
NOTES = "Minibatch size, scaling of the inputs, cap on the epochs and choice of the seven baselines are ours."
LABELS: dict[str, Any] = {"n_initial": 500, "batch": 250, "rounds": 10, "seeds": 5}
BASE = Protocol(data="cifar10", net="cnn", strategies=("random", *BASELINES, "dynamic_al"), notes=NOTES, **LABELS)
RESNET: dict[str, Any] = {"net": "resnet18", "net_params": {"stem": "imagenet"}}
SVHN: dict[str, Any] = {
    "data": "svhn",
    "net": "vgg11",
    "net_params": {"batch_norm": False},
    "notes": f"{NOTES} VGG-11's classifier is 512 wide: PyTorch's 4096 is meant for images of 224 pixels.",
}
CALTECH = {**RESNET, "data": "caltech101", "data_params": {"image_size": 224}}
REINITIALIZED = {
    **RESNET,
    "warm_start": False,
    "notes": f"{NOTES} Which data and batches the paper re-initialises on is our reading: those of Tables 4 and 5.",
}
TABLES: dict[str, dict[str, Any]] = {
    "table2": {"batch": 250},
    "table3": {"batch": 500},
    "table4": {**RESNET, "batch": 500},
    "table5": {**RESNET, "batch": 1000},
    "table6": {**SVHN, "batch": 500},
    "table7": {**SVHN, "batch": 1000},
    "table8": {**CALTECH, "batch": 500},
    "table9": {**CALTECH, "batch": 1000, "rounds": 4},
    "table11": {**REINITIALIZED, "batch": 500},
    "table12": {**REINITIALIZED, "batch": 1000},
    "gamma": {"strategies": ("random", *(f"dynamic_al(gamma={gamma})" for gamma in (0, 1, 2, "inf")))},
}
# table 1 is about dynamicAL alone, and compares several batches
BATCHES: dict[str, dict[str, Any]] = {
    f"_{rounds}x{batch}": {"strategies": ("random", "dynamic_al"), "rounds": rounds, "batch": batch}
    for rounds, batch in ((10, 100), (4, 250), (2, 500), (1, 1000))
}
PRESETS = {"dynamic_al_table1": BATCHES} | {f"dynamic_al_{name}": {"": changed} for name, changed in TABLES.items()}
SMALL = {"n_initial": 100, "seeds": 3, "n_pool": 5000, "n_test": 2000, "max_epochs": 100}


def scaled(protocol: Protocol) -> dict[str, Any]:
    """A fifth of the labels, three seeds, a pool of 5,000 and networks an eighth as wide."""
    narrow: dict[str, Any] = {"resnet18": {"stem": "cifar", "width": 8}, "vgg11": {"hidden": (128,)}}
    return {
        "net_params": {**protocol.net_params, **narrow.get(protocol.net, {})},
        "data_params": {"image_size": 32} if protocol.data == "caltech101" else protocol.data_params,
        "batch": protocol.batch // 5,
        "rounds": min(protocol.rounds, 4),
        **SMALL,
        "notes": "fewer labels, rounds, seeds and images, narrower networks",
    }
