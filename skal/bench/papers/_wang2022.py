# SPDX-License-Identifier: BSD-3-Clause
"""dynamicAL (Wang et al. 2022): its tables and the γ study, as ``_transcripts`` transcribes them.

The paper leaves open, and we chose: minibatches of 64, inputs in [−1, 1], the cap on epochs. The defaults of
:class:`Protocol` are this training.
"""

from __future__ import annotations

from typing import Any

from skal.bench._protocol import Protocol

BASELINES = ("random", "coreset", "least_confidence", "margin", "entropy", "albl", "badge")
NOTES = "Minibatch size, scaling of the inputs and cap on the epochs are ours."
LABELS: dict[str, Any] = {"n_initial": 500, "query_size": 250, "n_rounds": 9, "seeds": 5}
BASE = Protocol(data="cifar10", net="cnn", strategies=(*BASELINES, "dynamic_al"), notes=NOTES, **LABELS)
RESNET: dict[str, Any] = {"net": "resnet18", "net_params": {"stem": "imagenet"}}
SVHN: dict[str, Any] = {
    "data": "svhn",
    "net": "vgg11",
    "net_params": {"batch_norm": False},
    "notes": f"{NOTES} VGG-11's classifier is 512 wide: PyTorch's 4096 is meant for images of 224 pixels.",
}
CALTECH = {**RESNET, "data": "caltech101", "data_params": {"image_size": 224}}
WITHOUT_BADGE = {**CALTECH, "strategies": (*BASELINES[:-1], "dynamic_al")}
REINITIALIZED: dict[str, Any] = {"warm_start": False, "strategies": ("random", "coreset", "dynamic_al")}
TABLES: dict[str, dict[str, Any]] = {
    "table2": {"query_size": 250},
    "table3": {"query_size": 500},
    "table4": {**RESNET, "query_size": 500},
    "table5": {**RESNET, "query_size": 1000},
    "table6": {**SVHN, "query_size": 500},
    "table7": {**SVHN, "query_size": 1000},
    "table8": {**WITHOUT_BADGE, "query_size": 500},
    "table9": {**WITHOUT_BADGE, "query_size": 1000, "n_rounds": 4},
    "table11": {**RESNET, **REINITIALIZED, "query_size": 500},
    "table12": {**SVHN, **REINITIALIZED, "query_size": 500},
    # E.6 has 15 rounds of 500 from 8,677 images: 8,000 with the first labels, and a fifth is for testing, which leaves
    # 6,942 to train with. They hold 12 whole rounds; the paper does not say how it has 15
    "figure10": {**WITHOUT_BADGE, "query_size": 500, "n_rounds": 12},
    "gamma": {
        "strategies": tuple(f"dynamic_al(gamma={gamma})" for gamma in (0, 1, 2, "inf")),
        "reference": "dynamic_al(gamma=2)",
        "notes": f"{NOTES} So are data, network and labels: the paper's Figure 5 may have others.",
    },
}
# table 1 is about dynamicAL alone: a budget of 1,000 in batches of four sizes, in four settings
SETTINGS: dict[str, dict[str, Any]] = {"cnn": {}, "resnet18": RESNET, "svhn": SVHN, "caltech101": CALTECH}
BATCHES: dict[str, dict[str, Any]] = {
    f"_{name}_{n_rounds}x{query_size}": {
        **setting,
        "strategies": ("dynamic_al",),
        "n_rounds": n_rounds,
        "query_size": query_size,
    }
    for name, setting in SETTINGS.items()
    for n_rounds, query_size in ((10, 100), (4, 250), (2, 500), (1, 1000))
}
PRESETS = {"dynamic_al_table1": BATCHES} | {f"dynamic_al_{name}": {"": changed} for name, changed in TABLES.items()}
SMALL = {"n_initial": 100, "seeds": 10, "n_pool": 5000, "n_test": 2000, "max_epochs": 100}


def scale_down(protocol: Protocol) -> dict[str, Any]:
    """A fifth of the labels, ten seeds, a pool of 5,000 and networks an eighth as wide."""
    narrow: dict[str, Any] = {"resnet18": {"stem": "cifar", "width": 8}, "vgg11": {"hidden": (128,)}}
    budget = protocol.name.startswith("dynamic_al_table1_")  # the table compares this
    return {
        "net_params": {**protocol.net_params, **narrow.get(protocol.net, {})},
        "data_params": {"image_size": 32} if protocol.data == "caltech101" else protocol.data_params,
        "query_size": protocol.query_size // 5,
        "n_rounds": protocol.n_rounds if budget else min(protocol.n_rounds, 4),
        **SMALL,
        "notes": "fewer labels, rounds and images, narrower networks",
    }
