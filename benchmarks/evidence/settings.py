"""What is run, declared before anything is: settings, arms, seeds, and what the recommendation is judged on.

Every data set has two budgets. *few* starts with about one label per class and buys as many again in each round; *many*
starts with about ten times as many. Sizes of pools, rounds and networks were chosen by the time that a run takes, never
by its scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from skal.bench import Protocol


@dataclass(frozen=True)
class Arm:
    """A strategy as it takes part; ``initial`` chooses the first labels instead of a random draw."""

    strategy: str
    initial: str | None = None


@dataclass(frozen=True)
class Setting:
    """Data, classifier and budget.

    Attributes
    ----------
    protocol : Protocol
    seeds : int
        For every arm that is not in ``fewer``.
    held_out : bool
        Whether the recommendation is judged on it; the other settings are those that its rule was made on.
    fewer : mapping of str to int
        Seeds of arms that cost too much for all of them; 0 leaves the arm out.
    rows : bool
        Whether images are given as rows of numbers, which says nothing about neighbouring pixels.
    """

    protocol: Protocol
    seeds: int
    held_out: bool
    fewer: Mapping[str, int] = field(default_factory=dict)
    rows: bool = False

    @property
    def name(self) -> str:
        """As files and tables call it."""
        return self.protocol.name

    def n_seeds(self, arm: str) -> int:
        """How many seeds an arm has here."""
        return self.fewer.get(arm, self.seeds)


# features="input": an untrained network has no features that mean anything
COVERAGE_START = "max_herding(features='input')"
ARMS: Mapping[str, Arm] = MappingProxyType(
    {name: Arm(name) for name in ("random", "margin", "least_confidence", "entropy", "auto", "badge", "coreset")}
    | {name: Arm(name) for name in ("max_herding", "uherding", "typiclust", "prob_cover", "falcun", "drop_query")}
    | {"cluster_margin": Arm("cluster_margin"), "uherding dynamics": Arm("uherding(uncertainty='dynamics')")}
    | {name: Arm(name) for name in ("bait", "bald", "epig", "egl", "learning_loss", "albl", "dynamic_al")}
    | {"dynamic_al greedy": Arm("dynamic_al(batch='greedy')"), "dynamic_al γ=0": Arm("dynamic_al(gamma=0)")}
    | {"ntk_lookahead": Arm("ntk_lookahead"), "npc": Arm("npc(n_candidates=100)")}
    | {"npc greedy": Arm("npc(search='greedy')")}
    | {f"{name}, coverage start": Arm(name, COVERAGE_START) for name in ("random", "margin", "uherding")}
    | {"auto, own start": Arm("auto", "auto")}
)
# for numbers: see ``tasks``
NOT_FOR_CLASSES = ("lcmd", "max_det", "predictive_std")
DEFAULT, REFERENCE, SECOND = "auto", "random", "margin"

# frozen features: the classifier that most people put on them, weakly regularised as features of length 1 need it
LINEAR: dict[str, Any] = {"net": "logistic", "net_params": {"C": 100.0}, "inputs": "normalized"}
MLP: dict[str, Any] = {"net": "mlp", "net_params": {"hidden": (128,)}, "inputs": "standardized"}
# wide features are separated after two steps, long before the network is trained: a fixed number of epochs instead
FEATURES_MLP: dict[str, Any] = {**MLP, "stop_accuracy": None, "max_epochs": 30}
# networks from scratch: dynamicAL's training, which is that of Protocol: Adam 1e-3, warm start, to 0.99 on the labels
CNN: dict[str, Any] = {"net": "cnn", "inputs": "signed"}

# labels at the start, per round, and rounds
FEW_10, MANY_10 = (10, 10, 8), (100, 100, 4)
# logistic regression has no hidden layers to predict losses from
NO_HIDDEN_LAYER = {"learning_loss": 0}
# EPIG's information between pairs of labels has 77 times 77 entries: twenty seconds a run where others take one.
# BAIT has matrices of d times d, and one for each class: minutes a run with 77 classes or with 1,280 features
MANY_CLASSES = {"epig": 5, "bait": 0}
WIDE_FEATURES = {"bait": 0}
# NPC's greedy search takes minutes for a batch of 250 and more
LARGE_BATCHES = {"npc greedy": 0}


def _settings(
    name: str,
    base: dict[str, Any],
    *,
    few: tuple[int, int, int],
    many: tuple[int, int, int],
    seeds: int,
    held_out: bool,
    fewer: Mapping[str, int] = MappingProxyType({}),
    rows: bool = False,
) -> list[Setting]:
    found = []
    for budget, (n_initial, query_size, n_rounds) in (("few", few), ("many", many)):
        labels: dict[str, Any] = {"n_initial": n_initial, "query_size": query_size, "n_rounds": n_rounds}
        protocol = Protocol(name=f"{name}_{budget}", strategies=tuple(ARMS), **base, **labels)
        found.append(
            Setting(protocol, seeds, held_out, {**fewer, **(LARGE_BATCHES if query_size >= 250 else {})}, rows)
        )
    return found


_ALL = [
    # development: what the recommendation's rule was made on
    *_settings(
        "cifar10_features_linear",
        {"data": "cifar10_features", "n_pool": 3000, **LINEAR},
        few=FEW_10,
        many=MANY_10,
        seeds=20,
        held_out=False,
        fewer={**NO_HIDDEN_LAYER, **WIDE_FEATURES},
    ),
    *_settings(
        "banking77_linear",
        {"data": "banking77", "n_pool": 4000, **LINEAR},
        few=(77, 77, 4),
        many=(385, 385, 3),
        seeds=20,
        held_out=False,
        fewer={**NO_HIDDEN_LAYER, **MANY_CLASSES},
    ),
    *_settings("digits_cnn", {"data": "digits", **CNN}, few=FEW_10, many=(50, 50, 5), seeds=20, held_out=False),
    *_settings("digits_mlp", {"data": "digits", **MLP}, few=FEW_10, many=(50, 50, 5), seeds=20, held_out=False),
    # added after five seeds of the first held-out setting: no other development setting has a network on rows
    *_settings(
        "digits_rows_mlp", {"data": "digits", **MLP}, few=FEW_10, many=(50, 50, 5), seeds=20, held_out=False, rows=True
    ),
    # held out
    *_settings(
        "cifar10_features_mlp",
        {"data": "cifar10_features", "n_pool": 3000, **FEATURES_MLP},
        few=FEW_10,
        many=MANY_10,
        seeds=20,
        held_out=True,
        fewer=WIDE_FEATURES,
    ),
    *_settings(
        "banking77_mlp",
        {"data": "banking77", "n_pool": 4000, **FEATURES_MLP},
        few=(77, 77, 4),
        many=(385, 385, 3),
        seeds=20,
        held_out=True,
        fewer=MANY_CLASSES,
    ),
    *_settings(
        "letter_mlp",
        {"data": "letter", "n_pool": 4000, **MLP},
        few=(26, 26, 6),
        many=(260, 260, 4),
        seeds=20,
        held_out=True,
    ),
    *_settings(
        "mnist_cnn",
        {"data": "mnist", "n_pool": 4000, "n_test": 4000, **CNN},
        few=FEW_10,
        many=MANY_10,
        seeds=10,
        held_out=True,
    ),
    *_settings(
        "cifar10_cnn",
        {"data": "cifar10_sub", **CNN},
        few=FEW_10,
        many=(500, 250, 4),
        seeds=5,
        held_out=True,
    ),
    # a class has up to a hundred times as many samples as another; the score is the mean over classes
    *_settings(
        "imbalanced_linear",
        {"data": "cifar10_features", "imbalance": 100.0, "scoring": "balanced_accuracy", **LINEAR},
        few=FEW_10,
        many=MANY_10,
        seeds=20,
        held_out=True,
        fewer={**NO_HIDDEN_LAYER, **WIDE_FEATURES},
    ),
    # one sample in twenty is a copy, half of these with a little noise
    *_settings(
        "duplicates_linear",
        {"data": "banking77", "n_pool": 4000, "duplicates": 0.05, **LINEAR},
        few=(77, 77, 4),
        many=(385, 385, 3),
        seeds=20,
        held_out=True,
        fewer={**NO_HIDDEN_LAYER, **MANY_CLASSES},
    ),
]
SETTINGS: Mapping[str, Setting] = MappingProxyType({setting.name: setting for setting in _ALL})
