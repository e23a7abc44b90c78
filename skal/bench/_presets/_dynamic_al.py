"""dynamicAL (Wang et al. 2022): its tables and the γ study.

From the paper: data sets, networks, M = 500, b, R, 5 runs, lr 1e-3 (Adam in the authors' code), warm start, training to
a train accuracy of 0.99. Left open there, and chosen here: minibatches of 64, inputs in [−1, 1], the cap on epochs.
"""

from __future__ import annotations

from typing import Any

from skal.bench._protocol import Protocol

__all__ = ["presets"]

# seven baselines
STRATEGIES = (
    "random",
    "coreset",
    "least_confidence",
    "margin",
    "entropy",
    "learning_loss",
    "badge",
    "dynamic_al",
)
NOTES = "Minibatch size, scaling of the inputs, cap on the epochs and choice of the seven baselines are ours."
BASE = Protocol(
    data="cifar10",
    net="cnn",
    strategies=STRATEGIES,
    n_initial=500,
    batch=250,
    rounds=10,
    seeds=5,
    start="random",
    inputs="signed",
    criterion="cross_entropy",
    optimizer="adam",
    lr=1e-3,
    schedule="constant",
    batch_size=64,
    max_epochs=200,
    stop_accuracy=0.99,
    warm_start=True,
    notes=NOTES,
)
CNN = {"data": "cifar10", "net": "cnn"}
RESNET = {"data": "cifar10", "net": "resnet18", "net_params": {"stem": "imagenet"}}
SVHN = {"data": "svhn", "net": "vgg11", "net_params": {"batch_norm": False}}
CALTECH = {
    "data": "caltech101",
    "data_params": {"image_size": 224},
    "net": "resnet18",
    "net_params": {"stem": "imagenet"},
    "n_pool": None,
}
SMALL_CLASSIFIER = f"{NOTES} VGG-11's classifier is 512 wide: PyTorch's 4096 is meant for images of 224 pixels."
GUESSED = f"{NOTES} Which data and batches the paper re-initialises on is our reading: those of Tables {{}}."

# table: settings; several where the table compares them
TABLES: dict[str, list[dict[str, Any]]] = {
    "table1": [{**CNN, "rounds": r, "batch": b} for r, b in ((10, 100), (4, 250), (2, 500), (1, 1000))],
    "table2": [{**CNN, "batch": 250}],
    "table3": [{**CNN, "batch": 500}],
    "table4": [{**RESNET, "batch": 500}],
    "table5": [{**RESNET, "batch": 1000}],
    "table6": [{**SVHN, "batch": 500, "notes": SMALL_CLASSIFIER}],
    "table7": [{**SVHN, "batch": 1000, "notes": SMALL_CLASSIFIER}],
    "table8": [{**CALTECH, "batch": 500}],
    "table9": [{**CALTECH, "batch": 1000, "rounds": 4}],
    "table11": [{**RESNET, "batch": 500, "warm_start": False, "notes": GUESSED.format("4 and 5")}],
    "table12": [{**RESNET, "batch": 1000, "warm_start": False, "notes": GUESSED.format("4 and 5")}],
    "gamma": [
        {
            **CNN,
            "strategies": (
                "random",
                "dynamic_al(gamma=0)",
                "dynamic_al(gamma=1)",
                "dynamic_al(gamma=2)",
                "dynamic_al(gamma=inf)",
            ),
        }
    ],
}
# table 1 is about dynamicAL alone
TABLES["table1"] = [{**settings, "strategies": ("random", "dynamic_al")} for settings in TABLES["table1"]]


def presets() -> dict[str, tuple[Protocol, ...]]:
    """All of them, full and scaled."""
    found = {}
    for table, variants in TABLES.items():
        name = f"dynamic_al_{table}"
        several = len(variants) > 1
        full = [
            BASE.with_settings(**settings, name=f"{name}_{settings['rounds']}x{settings['batch']}" if several else name)
            for settings in variants
        ]
        found[name] = tuple(full)
        found[f"{name}_scaled"] = tuple(_scaled(protocol) for protocol in full)
    return found


def _scaled(protocol: Protocol) -> Protocol:
    """A fifth of the labels, three seeds, a pool of 5,000 and networks an eighth as wide."""
    net_params = dict(protocol.net_params)
    if protocol.net == "resnet18":
        net_params |= {"stem": "cifar", "width": 8}
    if protocol.net == "vgg11":
        net_params |= {"hidden": (128,)}
    return protocol.with_settings(
        name=f"{protocol.name}_scaled",
        net_params=net_params,
        data_params={"image_size": 32} if protocol.data == "caltech101" else protocol.data_params,
        n_initial=100,
        batch=protocol.batch // 5,
        rounds=min(protocol.rounds, 4),
        seeds=3,
        n_pool=5000,
        n_test=2000,
        max_epochs=100,
        notes=f"{protocol.notes} Scaled down: fewer labels, rounds, seeds and images, narrower networks.",
    )
