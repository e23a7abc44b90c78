"""What a loop must know of an estimator: what is inside it, what data it is given, and what to keep of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from sklearn.pipeline import Pipeline
from sklearn.semi_supervised import LabelPropagation, LabelSpreading, SelfTrainingClassifier
from skorch import NeuralNet, NeuralNetBinaryClassifier
from skorch.history import History
from torch.utils.data import Dataset

from skal._core.containers import dataset_input, n_rows, take_rows
from skal.context import unwrap_estimator

__all__ = [
    "final_network",
    "fit_transformers",
    "generator_states",
    "is_warm_started",
    "load_network_state",
    "network_state",
    "prediction_input",
    "restore_generators",
    "seed_strategy",
    "training_data",
    "uses_unlabelled",
]


def _nested(estimator: Any) -> Iterator[Any]:
    """The estimator, and what is inside it: the last step of a Pipeline, the estimator of a wrapper."""
    while estimator is not None:
        yield estimator
        estimator = estimator.steps[-1][1] if isinstance(estimator, Pipeline) else getattr(estimator, "estimator", None)


def uses_unlabelled(estimator: Any) -> bool:
    """Whether the estimator learns from samples with the label −1.

    One of your own says so with the attribute ``uses_unlabelled = True``; scikit-learn's are known.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> uses_unlabelled(SelfTrainingClassifier(LogisticRegression())), uses_unlabelled(LogisticRegression())
    (True, False)
    """
    known = (LabelPropagation, LabelSpreading, SelfTrainingClassifier)
    return any(isinstance(part, known) or getattr(part, "uses_unlabelled", False) for part in _nested(estimator))


def final_network(estimator: Any) -> NeuralNet | None:
    """The net that ``estimator.fit`` trains in place: the estimator itself, or the last step of a Pipeline."""
    while isinstance(estimator, Pipeline):
        estimator = estimator.steps[-1][1]
    return estimator if isinstance(estimator, NeuralNet) else None


def is_warm_started(estimator: Any) -> bool:
    """Whether an estimator other than a network has a ``warm_start=True`` somewhere, so that fits depend on history."""
    params = estimator.get_params(deep=True) if hasattr(estimator, "get_params") else {}
    return final_network(estimator) is None and any(
        bool(value) for name, value in params.items() if name.split("__")[-1] == "warm_start"
    )


class _RelabelledDataset(Dataset):
    """Rows of a Dataset with other labels: skorch takes a Dataset's own and never looks at y."""

    def __init__(self, data: Dataset, rows: np.ndarray, codes: np.ndarray) -> None:
        self.data = data
        self.rows = rows
        self.y = torch.as_tensor(codes)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> Any:
        return dataset_input(self.data[int(self.rows[i])]), self.y[i]


def prediction_input(X: Any) -> Any:
    """Samples in a form that an estimator can predict on: skorch wants pairs, and torch memory that it may write to."""
    if isinstance(X, Dataset):
        return _RelabelledDataset(X, np.arange(n_rows(X)), np.zeros(n_rows(X), dtype=np.int64))
    return np.array(X) if isinstance(X, np.memmap) and not X.flags.writeable else X


def training_data(estimator: Any, X: Any, rows: np.ndarray, codes: np.ndarray) -> tuple[Any, np.ndarray]:
    """What to fit on: the labelled rows, or everything with −1 where there is no label if the estimator can use that.

    Parameters
    ----------
    estimator : classifier
    X : all samples
    rows : (n,) positions of the labelled samples
    codes : (n,) their labels as numbers
    """
    if uses_unlabelled(estimator):
        y = np.full(n_rows(X), -1, dtype=np.int64)
        y[rows] = codes
        return (_RelabelledDataset(X, np.arange(len(y)), y) if isinstance(X, Dataset) else prediction_input(X)), y
    # skorch leaves it to the user to give a binary cross-entropy the floats that it needs
    binary = isinstance(unwrap_estimator(estimator)[0], NeuralNetBinaryClassifier)
    y = codes.astype(np.float32) if binary else codes
    return (_RelabelledDataset(X, rows, y) if isinstance(X, Dataset) else take_rows(X, rows)), y


def fit_transformers(estimator: Any, X: Any, y: np.ndarray) -> Any:
    """Fit the steps before the last one of a Pipeline, as its ``fit`` does, and give what the last one gets."""
    while isinstance(estimator, Pipeline) and len(estimator.steps) > 1:
        before = estimator[:-1]
        X = before.fit_transform(X, y)
        estimator.steps[:-1] = before.steps  # a Pipeline with a cache fits copies
        estimator = estimator.steps[-1][1]
    return X


def _random_states(value: Any) -> Iterator[tuple[Any, Any]]:
    """(owner, value) of every ``random_state`` in an estimator, its parts, and lists of estimators."""
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from _random_states(part)
    elif hasattr(value, "get_params") and not isinstance(value, type):
        for name, part in sorted(value.get_params(deep=False).items()):
            if name == "random_state":
                yield value, part
            else:
                yield from _random_states(part)


def seed_strategy(strategy: Any, original: Any, seed: int, round: int) -> None:
    """Give each part of a strategy a seed for this round: from the integer that ``original`` has, or from ``seed``.

    With the integer itself a strategy would make the same draws in every round. Generators are left alone.
    """
    pairs = zip(_random_states(strategy), _random_states(original), strict=True)
    parts = [(owner, own) for (owner, _), (_, own) in pairs if own is None or isinstance(own, (int, np.integer))]
    for place, (owner, own) in enumerate(parts):
        entropy = [seed, place] if own is None else [int(own), round]
        owner.set_params(random_state=int(np.random.SeedSequence(entropy).generate_state(1)[0]))


def _generators(objects: tuple[Any, ...]) -> list[Any]:
    values = (value for part in objects for _, value in _random_states(part))
    return [value for value in values if isinstance(value, (np.random.Generator, np.random.RandomState))]


def generator_states(*objects: Any) -> list[Any]:
    """States of the generators that were given as ``random_state``, as JSON takes them."""
    return [
        g.bit_generator.state if isinstance(g, np.random.Generator) else g.get_state(legacy=False)
        for g in _generators(objects)
    ]


def restore_generators(states: list[Any], *objects: Any) -> None:
    """The reverse of :func:`generator_states`."""
    for generator, state in zip(_generators(objects), states, strict=True):
        if isinstance(generator, np.random.Generator):
            generator.bit_generator.state = state
        else:
            generator.set_state(state)


def network_state(net: NeuralNet) -> dict[str, Any]:
    """Modules and criteria with their buffers, optimizers, the net's history, and what ``net.get_state()`` adds."""
    return {
        "modules": {name: dict(getattr(net, f"{name}_").state_dict()) for name in net._modules + net._criteria},
        "optimizers": {name: getattr(net, f"{name}_").state_dict() for name in net._optimizers},
        "history": net.history.to_list() if hasattr(net.history, "to_list") else list(net.history),
        "classes": getattr(net, "classes_inferred_", None),
        "extra": net.get_state() if hasattr(net, "get_state") else None,
    }


def load_network_state(net: NeuralNet, state: dict[str, Any]) -> None:
    """Put the state into a net that has been initialised."""
    for name, values in (state["modules"] | state["optimizers"]).items():
        getattr(net, f"{name}_").load_state_dict(values)
    net.history = History(state["history"])
    if state["classes"] is not None:
        net.classes_inferred_ = state["classes"]
    if state["extra"] is not None:
        net.set_state(state["extra"])
