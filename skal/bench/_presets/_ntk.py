"""NTK look-ahead (Mohamadi, Bae & Sutherland 2022; thesis 2023): MNIST, SVHN, CIFAR; the loss and the width.

From the papers: data sets, 1- and 2-block wide residual networks and ResNet-18, labels at the start and per query, the
size of the scored subset, squared loss with a OneCycle schedule, warm start, 6 seeds. Left open there, and chosen here:
number of queries, SGD with momentum, learning rate, epochs, minibatches, inputs, the baselines.
"""

from __future__ import annotations

from skal.bench._protocol import Protocol

__all__ = ["presets"]

NOTES = (
    "Number of queries, optimiser, learning rate, epochs, minibatch size, scaling of the inputs and baselines are ours."
)
BASE = Protocol(
    data="mnist",
    net="wide_resnet",
    net_params={"depth": 10, "width": 10},
    n_initial=100,
    batch=20,
    rounds=10,
    seeds=6,
    start="random",
    inputs="standardized",
    criterion="squared",
    optimizer="sgd",
    lr=0.1,
    momentum=0.9,
    weight_decay=0.0,
    schedule="one_cycle",
    batch_size=64,
    max_epochs=50,
    stop_accuracy=None,
    warm_start=True,
    notes=NOTES,
)
WIDTHS = (1, 2, 5, 10)  # 64 to 640 channels at the end


def _strategies(subset: int) -> tuple[str, ...]:
    return ("random", "entropy", "margin", "badge", f"ntk_lookahead(subset={subset})")


def presets() -> dict[str, tuple[Protocol, ...]]:
    """All of them, full and scaled."""
    mnist = BASE.with_settings(strategies=_strategies(4000))
    larger = BASE.with_settings(strategies=_strategies(6000), n_initial=1000, batch=1000, rounds=5)
    one_block, two_blocks = {"depth": 10, "width": 10}, {"depth": 16, "width": 10}
    resnet = larger.with_settings(data="cifar10", net="resnet18", net_params={"stem": "cifar"})
    few = {"strategies": ("random", "entropy", "margin")}
    full = {
        "ntk_mnist": [mnist],
        "ntk_svhn": [larger.with_settings(data="svhn", net_params=one_block)],
        "ntk_cifar10": [
            larger.with_settings(data="cifar10", net_params=two_blocks, name="ntk_cifar10_wide_resnet"),
            resnet.with_settings(name="ntk_cifar10_resnet18"),
        ],
        "ntk_cifar100": [larger.with_settings(data="cifar100", net_params=two_blocks, n_initial=10_000)],
        "ntk_loss": [
            mnist.with_settings(**few, criterion=criterion, name=f"ntk_loss_{criterion}")
            for criterion in ("squared", "cross_entropy")
        ],
        "ntk_width": [
            mnist.with_settings(net_params={"depth": 10, "width": width}, name=f"ntk_width_{width}") for width in WIDTHS
        ],
    }
    found = {}
    for name, protocols in full.items():
        named = [p if len(protocols) > 1 else p.with_settings(name=name) for p in protocols]
        found[name] = tuple(named)
        found[f"{name}_scaled"] = tuple(_scaled(protocol) for protocol in named)
    return found


def _scaled(protocol: Protocol) -> Protocol:
    """Three seeds, a pool of 2,000, a tenth of the labels where there are many, 1-block networks of small width."""
    many = protocol.n_initial > 100
    subset = "subset=500"
    if protocol.net == "resnet18":
        net_params = {"stem": "cifar", "width": 8}
    else:
        widths = {1: 1, 2: 2, 5: 3, 10: 4} if protocol.name.startswith("ntk_width") else {10: 1}
        net_params = {"depth": 10, "width": widths[protocol.net_params["width"]]}
    return protocol.with_settings(
        name=f"{protocol.name}_scaled",
        strategies=tuple(s.replace("subset=4000", subset).replace("subset=6000", subset) for s in protocol.strategies),
        net_params=net_params,
        n_initial=100,
        batch=100 if many else 20,
        rounds=3,
        seeds=3,
        n_pool=2000,
        n_test=2000,
        max_epochs=20,
        notes=f"{protocol.notes} Scaled down: fewer labels, rounds, seeds and images, narrower networks.",
    )
