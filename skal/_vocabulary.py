# SPDX-License-Identifier: BSD-3-Clause
"""What users write, on the command line and as names of tasks or strategies: light, so that errors show at once."""

from __future__ import annotations

import argparse
import ast
import math
from typing import Any

from skal.exceptions import InvalidParameterError

_MOST_DIGITS = 12

Task = str
CLASSIFICATION, REGRESSION, MULTILABEL = "classification", "regression", "multilabel"
TASKS = (CLASSIFICATION, REGRESSION, MULTILABEL)

# the scores of each task, the first by default; of errors the negative is taken, so that more is better everywhere
SCORES: dict[str, dict[str, str | None]] = {
    CLASSIFICATION: {"accuracy": None, "balanced_accuracy": "balanced_accuracy"},
    REGRESSION: {"rmse": "neg_root_mean_squared_error", "mae": "neg_mean_absolute_error", "r2": "r2"},
    MULTILABEL: {"f1_micro": "f1_micro", "f1_macro": "f1_macro", "average_precision": "average_precision"},
}

# the networks of a benchmark, and the classes of skal.nets
NETS = {
    "mlp": "MLP",
    "cnn": "CNN",
    "convnet": "ConvNet",
    "vgg11": "VGG11",
    "resnet18": "ResNet18",
    "wide_resnet": "WideResNet",
}
# and, for each task, what scikit-learn has
OTHER_NETS = {CLASSIFICATION: ("logistic",), REGRESSION: ("linear", "forest"), MULTILABEL: ("logistic", "forest")}

# functions of skal.strategies and their classes
FUNCTIONS = {
    "badge": "BADGE",
    "bait": "BAIT",
    "bald": "BALD",
    "cluster_margin": "ClusterMargin",
    "coreset": "CoreSet",
    "drop_query": "DropQuery",
    "dynamic_al": "DynamicAL",
    "egl": "EGL",
    "entropy": "Entropy",
    "epig": "EPIG",
    "falcun": "Falcun",
    "lcmd": "LCMD",
    "learning_loss": "LearningLoss",
    "least_confidence": "LeastConfidence",
    "margin": "Margin",
    "max_det": "MaxDet",
    "max_herding": "MaxHerding",
    "npc": "NPC",
    "ntk_lookahead": "NTKLookahead",
    "predictive_std": "PredictiveStd",
    "prob_cover": "ProbCover",
    "random_sampling": "RandomSampling",
    "typiclust": "TypiClust",
    "uherding": "UHerding",
}
# all that skal.strategies exports; skal exports the same
EXPORTED = (*FUNCTIONS, *FUNCTIONS.values(), "ALBL")
# what a text may call a strategy: three names have no function
STRATEGIES = FUNCTIONS | {"random": "RandomSampling", "albl": "ALBL", "auto": "Recommended"}


def parse_strategy(spec: str) -> tuple[str, str, dict[str, Any]]:
    """The class that a text names, by its function or by itself; the name as it was written; and the parameters.

    Examples
    --------
    >>> parse_strategy("dynamic_al(gamma=inf, batch='top')")
    ('DynamicAL', 'dynamic_al', {'gamma': inf, 'batch': 'top'})
    >>> parse_strategy("MaxHerding")
    ('MaxHerding', 'MaxHerding', {})
    """
    try:
        tree = ast.parse(spec.strip(), mode="eval").body
        call = tree if isinstance(tree, ast.Call) else ast.Call(tree, [], [])
        if not isinstance(call.func, ast.Name) or call.args:
            raise ValueError
        name = call.func.id
        params = {keyword.arg: _value(keyword.value) for keyword in call.keywords if keyword.arg}
    except (SyntaxError, ValueError):
        raise InvalidParameterError(
            f"A strategy must be written as a name, or as name(parameter=value). Got {spec!r} instead. "
            "Write for example 'badge' or 'dynamic_al(gamma=0)'."
        ) from None
    if not names_a_strategy(name):
        from skal.validation import check_known  # with numpy, which importing skal does not load

        remedy = "Pass a strategy of your own as an object."
        check_known("name of a strategy", [name], sorted(STRATEGIES), remedy=remedy)
    return STRATEGIES.get(name, name), name, params


def names_a_strategy(spec: str) -> bool:
    """True if a text begins with the name of a strategy."""
    name = spec.split("(")[0].strip()
    return name in STRATEGIES or name in STRATEGIES.values()


def _value(node: ast.expr) -> Any:
    return math.inf if isinstance(node, ast.Name) and node.id == "inf" else ast.literal_eval(node)


class UsageError(Exception):
    """Arguments that do not fit together, which shows before anything is read."""


def parse_count(text: str) -> int:
    """The number in an option; a :class:`argparse.ArgumentTypeError` if it is not one from 1 on."""
    digits = text.lstrip("0") if text.isdecimal() else ""
    if not digits:
        raise argparse.ArgumentTypeError(f"must be an integer >= 1. Got {text[:40]!r} instead")
    if len(digits) > _MOST_DIGITS:  # Python itself stumbles over thousands of digits
        raise argparse.ArgumentTypeError(
            f"must be an integer of at most {_MOST_DIGITS} digits. Got {len(digits)} digits"
        )
    return int(digits)
