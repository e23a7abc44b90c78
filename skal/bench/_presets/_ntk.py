"""NTK look-ahead (Mohamadi, Bae & Sutherland 2022; thesis 2023): MNIST, SVHN, CIFAR; the loss and the width.

From the papers: data sets, 1- and 2-block wide residual networks and ResNet-18, labels at the start and per query, the
size of the scored subset, squared loss with a OneCycle schedule, warm start, 6 seeds. Left open there, and chosen here:
number of queries, SGD with momentum, learning rate, epochs, minibatches, inputs, the baselines.
"""

from __future__ import annotations

from typing import Any

from skal.bench._protocol import Protocol

__all__ = ["protocols", "scaled"]

BASELINES = ("random", "entropy", "margin", "badge")
MNIST = Protocol(
    data="mnist",
    net="wide_resnet",
    net_params={"depth": 10, "width": 10},
    strategies=(*BASELINES, "ntk_lookahead(subset=4000)"),
    n_initial=100,
    batch=20,
    rounds=10,
    seeds=6,
    inputs="standardized",
    criterion="squared",
    optimizer="sgd",
    lr=0.1,
    momentum=0.9,
    schedule="one_cycle",
    max_epochs=50,
    stop_accuracy=None,
    notes="Number of queries, optimiser, learning rate, epochs, minibatch size, scaling of the inputs and baselines "
    "are ours.",
)
WIDTHS = (1, 2, 5, 10)  # 64 to 640 channels at the end


def protocols() -> dict[str, list[Protocol]]:
    """All of them by name."""
    larger = MNIST.with_settings(
        strategies=(*BASELINES, "ntk_lookahead(subset=6000)"), n_initial=1000, batch=1000, rounds=5
    )
    cifar = larger.with_settings(data="cifar10", net_params={"depth": 16, "width": 10})
    return {
        "ntk_mnist": [MNIST],
        "ntk_svhn": [larger.with_settings(data="svhn")],
        "ntk_cifar10": [
            cifar.with_settings(name="ntk_cifar10_wide_resnet"),
            cifar.with_settings(name="ntk_cifar10_resnet18", net="resnet18", net_params={"stem": "cifar"}),
        ],
        "ntk_cifar100": [cifar.with_settings(data="cifar100", n_initial=10_000)],
        "ntk_loss": [
            MNIST.with_settings(name=f"ntk_loss_{criterion}", criterion=criterion, strategies=BASELINES[:3])
            for criterion in ("squared", "cross_entropy")
        ],
        "ntk_width": [
            MNIST.with_settings(name=f"ntk_width_{width}", net_params={"depth": 10, "width": width}) for width in WIDTHS
        ],
    }


def scaled(protocol: Protocol) -> dict[str, Any]:
    """Three seeds, a pool of 2,000, a tenth of the labels where there are many, 1-block networks of small width."""
    if protocol.net == "resnet18":
        net_params = {"stem": "cifar", "width": 8}
    else:
        widths = {1: 1, 2: 2, 5: 3, 10: 4} if protocol.name.startswith("ntk_width") else {10: 1}
        net_params = {"depth": 10, "width": widths[protocol.net_params["width"]]}
    specs = (
        spec.replace("subset=4000", "subset=500").replace("subset=6000", "subset=500") for spec in protocol.strategies
    )
    return {
        "strategies": tuple(specs),
        "net_params": net_params,
        "n_initial": 100,
        "batch": 100 if protocol.n_initial > 100 else 20,
        "rounds": 3,
        "seeds": 3,
        "n_pool": 2000,
        "n_test": 2000,
        "max_epochs": 20,
        "notes": "fewer labels, rounds, seeds and images, narrower networks",
    }
