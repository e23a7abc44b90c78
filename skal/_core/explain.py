# SPDX-License-Identifier: BSD-3-Clause
"""What users usually did wrong when torch or skorch raises, in words that help; the original error is the cause."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from skorch import NeuralNetBinaryClassifier, NeuralNetRegressor
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from skal._core.estimators import unwrap_estimator
from skal._core.memory import is_out_of_memory
from skal.exceptions import InvalidTypeError, NetworkError, SkalError, shorten

# where an error that samples or labels cause comes from; a callback's or a scheduler's own goes its way
_ABOUT_DATA = ("torch.nn", "torch.utils.data", "skorch.dataset", "skorch.utils", "skorch.classifier")


def describe(batch: Any) -> str:
    """An input in a few words: its shape and type."""
    if isinstance(batch, Mapping):
        return "{" + ", ".join(f"{key!r}: {describe(value)}" for key, value in batch.items()) + "}"
    if isinstance(batch, (Tensor, np.ndarray)):
        return f"shape {tuple(batch.shape)} and dtype {str(batch.dtype).removeprefix('torch.')}"
    return f"type {type(batch).__name__}"


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0].rstrip('.')}"


def _remedy(module: nn.Module, X: Any) -> str:
    """What to do about an input that a module does not take."""
    weights = next((p for p in module.parameters() if p.is_floating_point()), None)
    dtypes = {str(x.dtype).removeprefix("torch.") for x in tree_leaves(X) if isinstance(x, (Tensor, np.ndarray))}
    wanted = "float32" if weights is None else str(weights.dtype).removeprefix("torch.")
    if isinstance(X, Mapping) or hasattr(X, "iloc"):
        return (
            "The inputs of a dict, and the columns of a data frame, go to forward under their names: rename them, or "
            f"pass an array, for example X.to_numpy(dtype={wanted!r})."
        )
    if dtypes and dtypes != {wanted}:
        return (
            f"The network's weights are {wanted}: convert the samples, for example with X.astype({wanted!r}); and pass "
            "them in the shape that the network was trained on."
        )
    return "Pass samples in the shape that the network was trained on, or correct its forward."


def explain_pass(error: Exception, module: nn.Module, batch: Any) -> NetworkError | None:
    """What a forward pass stumbled over, explained by its input; None if the error is already clear."""
    if isinstance(error, (SkalError, Warning)) or is_out_of_memory(error):
        return None
    return NetworkError(
        f"The network must accept the samples. Got {_said(error)} for an input of {describe(batch)}. "
        f"{_remedy(module, batch)}"
    )


@contextmanager
def explain_training(estimator: Any, X: Any, y: Any) -> Iterator[None]:
    """Around a fit: what a network stumbles over is explained by its samples, labels and criterion.

    Parameters
    ----------
    estimator : classifier
        Errors of those without a network are their own.
    X, y : what it is fitted on
    """
    if isinstance(estimator, type) or not hasattr(estimator, "fit"):
        got = f"the class {estimator.__name__}" if isinstance(estimator, type) else type(estimator).__name__
        raise InvalidTypeError(
            f"The estimator must be a classifier with fit. Got {got} instead. Pass an object, not a class; wrap a "
            "torch module in skorch.NeuralNetClassifier."
        )
    _refuse_several_labels(estimator, y)
    try:
        yield
    except Exception as error:
        net, _ = unwrap_estimator(estimator)
        if isinstance(error, (SkalError, Warning)) or is_out_of_memory(error) or not hasattr(net, "criterion"):
            raise
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        in_callback = any(frame.f_code.co_name == "notify" for frame in frames)
        if in_callback or not any(frame.f_globals.get("__name__", "").startswith(_ABOUT_DATA) for frame in frames):
            raise
        raise NetworkError(
            f"The network must be trainable on its samples and labels. Got {_said(error)}. {_advice(net, X, y)}"
        ) from error


def _refuse_several_labels(estimator: Any, y: Any) -> None:
    """Cross-entropy takes rows of numbers for probabilities of the classes, whatever they are."""
    net, _ = unwrap_estimator(estimator)
    if getattr(y, "ndim", 1) != 2 or not issubclass(_criterion(net), nn.CrossEntropyLoss):
        return
    sums = y.sum(1)
    if y.shape[1] > 1 and not np.allclose(sums.detach().cpu() if isinstance(sums, Tensor) else sums, 1, atol=1e-3):
        raise NetworkError(
            f"The labels must be one class per sample. Got rows of {y.shape[1]} numbers that do not sum to 1: samples "
            "with several labels at once are not supported. Pass one integer each, or train one network per label."
        )


def _criterion(net: Any) -> type:
    criterion = getattr(net, "criterion", None)
    return criterion if isinstance(criterion, type) else type(criterion)


def _advice(net: Any, X: Any, y: Any) -> str:
    """What to change about labels, criterion or samples, in the order in which they are usually wrong."""
    criterion = _criterion(net)
    if isinstance(net, NeuralNetRegressor):
        return "Regression is not supported: sort the targets into bins, and use skorch.NeuralNetClassifier."
    binary = isinstance(net, NeuralNetBinaryClassifier)
    try:
        labels = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    except Exception:  # ragged, or not in memory
        return f"The labels must be one integer per sample, 0 … C−1; they are {shorten(y)}."
    if issubclass(criterion, (nn.BCEWithLogitsLoss, nn.BCELoss)) and not binary:
        return (
            f"{criterion.__name__} is for skorch.NeuralNetBinaryClassifier, with labels 0 and 1 in float32; use that, "
            "or criterion=torch.nn.CrossEntropyLoss. Samples with several labels at once are not supported."
        )
    if labels.ndim > 1:
        return (
            f"The labels have the shape {labels.shape}: samples with several labels at once are not supported. Pass "
            "one integer per sample (y.argmax(1) of one-hot rows), or train one network per label."
        )
    if y is not None and not binary:
        outputs = _n_outputs(net)
        numbers = labels.dtype.kind in "iub" and labels.size > 0
        if not numbers:
            return f"The labels are {shorten(labels)}: encode them as integers with sklearn.preprocessing.LabelEncoder."
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or (outputs is not None and high >= outputs):
            return (
                f"The labels run from {low} to {high}, and must be 0 … {'C−1' if outputs is None else outputs - 1}, "
                "the numbers of the network's outputs: encode them with sklearn.preprocessing.LabelEncoder, or give "
                "the last layer more outputs."
            )
    return f"The samples have {describe(X)}. {_remedy(getattr(net, 'module_', nn.Identity()), X)}"


def _n_outputs(net: Any) -> int | None:
    """Of the last layer that says so, which is nearly always the one that makes the outputs."""
    module = getattr(net, "module_", nn.Identity())
    sizes = [layer.out_features for layer in module.modules() if hasattr(layer, "out_features")]
    return int(sizes[-1]) if sizes and isinstance(sizes[-1], int) else None
