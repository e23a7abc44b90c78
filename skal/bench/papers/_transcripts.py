# SPDX-License-Identifier: BSD-3-Clause
"""What the papers say: a literal transcription of their settings, preset by preset, in the papers' own terms.

Only a test, which compares every preset with it, and a table of the documentation read it. A preset has one entry for
each of its protocols. ``NOT_STATED`` stands for facts that we did not find in a paper. Facts that only the authors'
released code states stand under ``code``; where both speak, the paper is followed.
"""

from __future__ import annotations

from typing import Any, Final

NOT_STATED: Final = "not stated"

DYNAMIC_AL: dict[str, Any] = {
    "loss": "cross-entropy",
    "learning rate": 1e-3,
    "schedule": "constant",
    "training ends": "training accuracy 0.99",
    "between rounds": "warm start",
    "runs": 5,
    "M": 500,
    "minibatch": NOT_STATED,
    "inputs": NOT_STATED,
    "most epochs": NOT_STATED,
    "code": {"optimiser": "Adam"},
}
SEVEN = ["Random", "Coreset", "Conf", "Marg", "Entropy", "ALBL", "BADGE", "dynamicAL"]  # section 5.1 and E.1
SIX = ["Random", "Coreset", "Conf", "Marg", "Entropy", "ALBL", "dynamicAL"]  # Tables 8 and 9 are without BADGE
CNN = {"data": "CIFAR-10", "network": "CNN"}  # of PyTorch's tutorial
RESNET = {"data": "CIFAR-10", "network": "ResNet-18"}  # PyTorch's own
VGG = {"data": "SVHN", "network": "VGG-11"}  # PyTorch's own
CALTECH = {"data": "Caltech101", "network": "ResNet-18"}
TEN = {"rounds": "0 to 9"}
REINITIALISED = {**TEN, "between rounds": "re-initialised", "strategies": ["Random", "Coreset", "dynamicAL"]}

NTK: dict[str, Any] = {
    "loss": "squared",
    "schedule": "one cycle",
    "between rounds": "warm start",
    "runs": 6,
    "strategies": ["Random", "Entropy", "Margin", "BADGE", "LL4AL", "NTK"],
    "criterion": "MLMOC",
    "rounds": NOT_STATED,
    "inputs": NOT_STATED,
    # of the released configuration, for CIFAR-10 and ResNet-18; the loss is the mean over samples and classes
    "code": {
        "optimiser": "SGD",
        "momentum": 0.9,
        "nesterov": False,
        "weight decay": 1e-4,
        "largest learning rate": 1.25,
        "epochs": 200,
        "minibatch": 128,
        "cycles": 10,
    },
}
ONE_BLOCK = {"network": "WideResNet, 1 block", "channels": 640}
TWO_BLOCKS = {"network": "WideResNet, 2 blocks", "channels": 640}
RESNET18 = {"network": "ResNet-18"}
MNIST = {"data": "MNIST", "M": 100, "b": 20, "subset": 4000}
THOUSANDS = {"M": 1000, "b": 1000, "subset": 6000}

NPC: dict[str, Any] = {
    "network": "WRN-28-2",
    "training": "FixMatch and DARP",
    "between rounds": "from scratch",
    "runs": 3,
    "strategies": ["Passive", "Margin on logits", "ALBL", "BADGE", "NPC"],
    "kernel": "the last layer's, every class block replaced by its trace",
    "first labels": "one per class",
    "training steps": NOT_STATED,
    "inputs": NOT_STATED,
}

TABLE_3: dict[str, Any] = {"data": "CIFAR-10", "strategies": ["BADGE", "NPC"]}

PAPERS: dict[str, list[dict[str, Any]]] = {
    # a budget of 1,000; rows are R × b, columns data and networks
    "dynamic_al_table1": [
        {**DYNAMIC_AL, **setting, "R": rounds, "b": batch, "strategies": ["dynamicAL"]}
        for setting in (CNN, RESNET, VGG, CALTECH)
        for rounds, batch in ((10, 100), (4, 250), (2, 500), (1, 1000))
    ],
    "dynamic_al_table2": [{**DYNAMIC_AL, **CNN, **TEN, "b": 250, "strategies": SEVEN}],
    "dynamic_al_table3": [{**DYNAMIC_AL, **CNN, **TEN, "b": 500, "strategies": SEVEN}],
    "dynamic_al_table4": [{**DYNAMIC_AL, **RESNET, **TEN, "b": 500, "strategies": SEVEN}],
    "dynamic_al_table5": [{**DYNAMIC_AL, **RESNET, **TEN, "b": 1000, "strategies": SEVEN}],
    "dynamic_al_table6": [{**DYNAMIC_AL, **VGG, **TEN, "b": 500, "strategies": SEVEN}],
    "dynamic_al_table7": [{**DYNAMIC_AL, **VGG, **TEN, "b": 1000, "strategies": SEVEN}],
    "dynamic_al_table8": [{**DYNAMIC_AL, **CALTECH, **TEN, "b": 500, "strategies": SIX}],
    "dynamic_al_table9": [{**DYNAMIC_AL, **CALTECH, "rounds": "0 to 4", "b": 1000, "strategies": SIX}],
    "dynamic_al_table11": [{**DYNAMIC_AL, **RESNET, **REINITIALISED, "b": 500}],
    "dynamic_al_table12": [{**DYNAMIC_AL, **VGG, **REINITIALISED, "b": 500}],
    # Figure 10, E.6: "r=15" with b = 500, "8677 images in total", "at the last round, we run out of all images in the
    # pool"; section 5.1 has a fifth of every class for testing
    "dynamic_al_figure10": [
        {
            **DYNAMIC_AL,
            **CALTECH,
            "rounds until no image is left": 15,
            "images": 8677,
            "share for testing": 0.2,
            "b": 500,
            "strategies": NOT_STATED,
        }
    ],
    # Figure 5
    "dynamic_al_gamma": [
        {
            **DYNAMIC_AL,
            "data": NOT_STATED,
            "network": NOT_STATED,
            "b": NOT_STATED,
            "rounds": NOT_STATED,
            "strategies": ["dynamicAL, γ = 0", "dynamicAL, γ = 1", "dynamicAL, γ = 2", "dynamicAL, γ = ∞"],
        }
    ],
    "ntk_mnist": [{**NTK, **MNIST, **ONE_BLOCK}],
    "ntk_svhn": [{**NTK, **THOUSANDS, "data": "SVHN", **network} for network in (ONE_BLOCK, TWO_BLOCKS, RESNET18)],
    "ntk_cifar10": [{**NTK, **THOUSANDS, "data": "CIFAR-10", **network} for network in (TWO_BLOCKS, RESNET18)],
    "ntk_cifar100": [{**NTK, **THOUSANDS, "data": "CIFAR-100", "M": 10_000, **RESNET18}],
    "ntk_loss": [
        {**NTK, **MNIST, **ONE_BLOCK, "loss": loss, "strategies": ["Random", "NTK"]}
        for loss in ("squared", "cross-entropy")
    ],
    # Figure 3b: improvements over random; 640 is the largest
    "ntk_width": [
        {**NTK, **MNIST, **ONE_BLOCK, "channels": channels, "strategies": ["Random", "NTK"]}
        for channels in (NOT_STATED,) * 3 + (640,)
    ],
    "npc_cifar10": [{**NPC, "data": "CIFAR-10", "M": 10, "b": 20, "labels in the table": [30, 50, 70]}],
    "npc_cifar100": [{**NPC, "data": "CIFAR-100", "M": 100, "b": 200, "labels in the table": [300, 500, 700, 900]}],
    # Table 3; its caption has Q = 30 and 50 for both, and zero-shot has no labels before the query
    "npc_zero_shot": [
        {**NPC, **TABLE_3, "first labels": "by the strategy", "labels in the table": [n]} for n in (40, 60)
    ],
    "npc_single_shot": [{**NPC, **TABLE_3, "M": 10, "b": n - 10, "labels in the table": [n]} for n in (40, 60)],
}
