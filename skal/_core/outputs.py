# SPDX-License-Identifier: BSD-3-Clause
"""What a network's outputs mean: logits, probabilities, numbers, or one number for two classes.

The criterion says which of them they are, and the task where that is not enough. This is the one place where that is
decided.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from skal._core.estimators import check_distributions
from skal._core.tasks import CLASSIFICATION, MULTILABEL, REGRESSION, Task, refuse_task
from skal.exceptions import NonFiniteError, OutputError, UnsteadyOutputWarning, shorten
from skal.nets import SquaredLoss


def criterion_of(net: Any) -> nn.Module | None:
    """The fitted criterion of a skorch net, without what ``torch.compile`` wraps around it; None for a bare module."""
    criterion = getattr(net, "criterion_", None)
    return getattr(criterion, "_orig_mod", criterion)


def first_output(output: Any) -> Any:
    """The outputs that are meant for a loss, among all that a module returns.

    An object with an attribute ``logits`` (as of Hugging Face's models) or a dict with that key gives those; a tuple
    its first entry, and a dict of a single entry that one.

    Examples
    --------
    >>> first_output({"loss": torch.tensor(0.5), "logits": torch.tensor([[1.0, 2.0]])})
    tensor([[1., 2.]])
    """
    if isinstance(output, Tensor):
        return output
    if getattr(output, "logits", None) is not None:
        return output.logits
    if isinstance(output, Mapping):
        return output.get("logits", next(iter(output.values())) if len(output) == 1 else output)
    return output[0] if isinstance(output, tuple) else output


def is_binary(criterion: nn.Module | None) -> bool:
    """True if one output z stands for two classes."""
    return isinstance(criterion, nn.BCEWithLogitsLoss)


def is_squared_loss(criterion: nn.Module | None) -> bool:
    """True if the outputs are compared with one-hot labels as they are."""
    return isinstance(criterion, SquaredLoss)


def compares_outputs(criterion: nn.Module | None) -> bool:
    """True if labels are compared with the outputs themselves, by skal's squared loss or torch's."""
    return is_squared_loss(criterion) or isinstance(criterion, nn.MSELoss)


# with these skorch, or skal in its place, makes probabilities by a softmax
_BEHIND_SOFTMAX = (nn.CrossEntropyLoss, SquaredLoss)


def needs_softmax(net: Any) -> bool:
    """True if skorch's ``predict_proba`` gives the outputs of a squared-loss net as they are.

    skorch knows no nonlinearity for :class:`skal.nets.SquaredLoss`: such nets get a softmax, unless the user set
    ``predict_nonlinearity``.
    """
    return is_squared_loss(criterion_of(net)) and getattr(net, "predict_nonlinearity", None) == "auto"


def read_output(output: Any, criterion: nn.Module | None, batch: Any, task: Task = CLASSIFICATION) -> Any:
    """The outputs that are meant for a loss, one row per sample of the batch; refused if there are more or fewer rows.

    One number per sample, which modules for two classes or one target return as (n,) or (n, 1), is always (n, 1).
    """
    if not isinstance(output, Tensor):
        output = first_output(output)
        if not isinstance(output, Tensor):
            return output
    if output.ndim == 1 and (criterion is None or task == REGRESSION or is_binary(criterion)):
        output = output.unsqueeze(1)
    if output.ndim and isinstance(batch, Tensor) and output.shape[0] == batch.shape[0]:
        return output
    inputs = [x for x in tree_leaves(batch) if isinstance(x, Tensor) and x.ndim]
    if inputs and (output.ndim == 0 or output.shape[0] not in {len(x) for x in inputs}):
        shapes = ", ".join(str(tuple(x.shape)) for x in inputs)
        raise OutputError(
            f"The module must return one row of outputs for each of the {len(inputs[0])} samples of a batch. Got shape "
            f"{tuple(output.shape)} for an input of shape {shapes}. Keep the first dimension as it is."
        )
    return output


def to_logits(output: Tensor, criterion: nn.Module | None, task: Task = CLASSIFICATION) -> Tensor:
    """(n, C) logits of a module's output, following the criterion as skorch does.

    With ``NLLLoss`` the module returns probabilities, and skorch takes ``log(p + eps)``; with ``BCEWithLogitsLoss`` it
    returns one number z, and the two classes have the logits (0, z). Numbers, and logits of several labels, stay.

    Examples
    --------
    >>> to_logits(torch.tensor([[2.0]]), nn.BCEWithLogitsLoss())
    tensor([[0., 2.]])
    """
    output = output if output.dtype.itemsize >= 4 else output.float()
    if task != CLASSIFICATION:
        return output
    if isinstance(criterion, nn.NLLLoss):
        return torch.log(output + torch.finfo(output.dtype).eps)
    if is_binary(criterion):
        z = output.reshape(output.shape[0], 1)
        return torch.cat([torch.zeros_like(z), z], dim=1)
    return output


def to_proba(output: Tensor, net: Any, task: Task = CLASSIFICATION) -> Tensor:
    """(n, C) class probabilities of a module's output, as the net's ``predict_proba`` gives them.

    Of several labels at once (n, L, 2): that a sample has not, or has, each of them.
    """
    precise = output if output.dtype.itemsize >= 4 else output.float()
    if task == MULTILABEL:
        return torch.stack([torch.sigmoid(-precise), torch.sigmoid(precise)], dim=-1)
    if task == REGRESSION:
        raise refuse_task("what needs class probabilities", task, [CLASSIFICATION, MULTILABEL])
    criterion = criterion_of(net)
    if net is None or (net.predict_nonlinearity == "auto" and isinstance(criterion, _BEHIND_SOFTMAX)):
        return torch.softmax(precise, dim=-1)
    if is_binary(criterion):
        precise = precise.reshape(precise.shape[0])  # skorch stacks two columns of (n,)
    proba: Tensor = net._get_predict_nonlinearity()(precise)
    if output.dtype.itemsize < 4:  # a softmax in half precision is off by its rounding
        total = proba.sum(dim=-1, keepdim=True)
        proba = torch.where((total - 1).abs() <= torch.finfo(output.dtype).eps, proba / total, proba)
    return proba


def probabilities_of_logits(net: Any) -> Callable[[Tensor], Tensor] | None:
    """The function from logits (..., C) to class probabilities, by the net's own nonlinearity; None for a softmax.

    Probabilities that are no distributions are refused.
    """
    if isinstance(criterion_of(net), (nn.CrossEntropyLoss, nn.NLLLoss, nn.BCEWithLogitsLoss)) or needs_softmax(net):
        return None

    def read(logits: Tensor) -> Tensor:
        proba = to_proba(logits.reshape(-1, logits.shape[-1]), net)
        check_distributions(proba.cpu().numpy())
        return proba.reshape(logits.shape)

    return read


def check_form(output: Any, criterion: nn.Module | None, task: Task = CLASSIFICATION) -> None:
    """Refuse outputs that are no numbers, or not (n, C)."""
    binary = is_binary(criterion) and task == CLASSIFICATION
    # without a criterion outputs may be anything; of several labels there may be one
    fewest = 2 if criterion is not None and task == CLASSIFICATION else 1
    if not isinstance(output, Tensor) or (not binary and (output.ndim != 2 or output.shape[1] < fewest)):
        got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        one, all_ = ("class", "n_classes") if fewest == 2 else ("number", "n_outputs")
        raise OutputError(
            f"The module must return one tensor of shape (n_samples, {all_} >= {fewest}). Got {got} instead. "
            f"Give the last layer one output per {one} and return a tensor."
        )
    if not output.is_floating_point():
        check_floating(output)
    if isinstance(criterion, nn.BCELoss) and task != REGRESSION:
        raise OutputError(
            "The criterion must say which of the outputs is the right one. Got BCELoss, which does not. Use "
            "skorch.NeuralNetBinaryClassifier with BCEWithLogitsLoss for two classes, CrossEntropyLoss for more."
        )
    if binary and output.numel() != output.shape[0]:
        raise OutputError(
            f"With criterion {type(criterion).__name__} the module must return one number per sample, for two classes. "
            f"Got outputs of shape {tuple(output.shape)} instead. For several classes use CrossEntropyLoss, for two "
            "skorch.NeuralNetBinaryClassifier; for several labels at once teach it an indicator matrix of all of them."
        )


def check_values(output: Tensor, criterion: nn.Module | None, task: Task = CLASSIFICATION) -> None:
    """Refuse outputs of the right form that are not finite, or not what the criterion expects."""
    low, high = (value.item() for value in torch.aminmax(output.detach())) if output.numel() else (0.0, 0.0)
    if not (isfinite(low) and isfinite(high)):
        raise NonFiniteError(
            "The network's outputs must be finite. Got NaN or infinity instead. Training has probably diverged: "
            "lower the learning rate, clip the gradients, or scale the inputs, and fit again."
        )
    if criterion is None or is_binary(criterion) or is_squared_loss(criterion) or task != CLASSIFICATION:
        return
    tolerance = max(1e-4, torch.finfo(output.dtype).eps)  # of half precision
    distributions = low >= 0 and high <= 1 + tolerance
    if distributions:  # seldom: logits are hardly ever all between 0 and 1
        rows = output.detach().sum(dim=1, dtype=torch.promote_types(output.dtype, torch.float32))
        distributions = bool(((rows - 1).abs() < tolerance).all())
    if isinstance(criterion, nn.NLLLoss) and not distributions:
        raise OutputError(
            "With criterion NLLLoss the module must return probabilities (skorch takes their logarithm). "
            f"Got rows such as {shorten(output[0].tolist())} instead. End the module in a softmax, or return "
            "logits and use criterion=torch.nn.CrossEntropyLoss."
        )
    if not isinstance(criterion, nn.NLLLoss) and distributions:
        raise OutputError(
            f"With criterion {type(criterion).__name__} the module must return logits. Got probabilities (rows in "
            f"[0, 1] that sum to 1, such as {shorten(output[0].tolist())}) instead. Remove the softmax at the end of "
            "the module, or use criterion=torch.nn.NLLLoss."
        )


def check_floating(output: Any) -> None:
    """Refuse outputs that are no real numbers."""
    if isinstance(output, Tensor) and not output.is_floating_point():
        raise OutputError(
            "The module must return floating-point numbers, one per class. Got "
            f"{str(output.dtype).removeprefix('torch.')} instead. Return the last layer's outputs, not their argmax."
        )


def are_alike(one: Tensor, other: Tensor, whole: Tensor, epsilon: float) -> bool:
    """True if two tensors are the same up to rounding, measured by the size of the whole that they are parts of.

    Kernels that round rows by where they stand are off by a few units, rows of other samples by much more.

    Examples
    --------
    >>> x = torch.tensor([1.0, 2.0])
    >>> are_alike(x, x + 1e-6, x, 1e-7), are_alike(x, x + 0.1, x, 1e-7)
    (True, False)
    """
    return bool((one.double() - other.double()).norm() <= epsilon**0.5 * whole.double().norm())


_BY_BATCH = (
    "The network's outputs for a sample depend on the other samples of its batch, in eval mode, so that scores depend "
    "on batch_size and on the order of the pool. Look for a batch norm without running statistics or in training mode, "
    "a mean or softmax over the first dimension, padding that is not masked, or a recurrent layer without batch_first."
)
_BY_CHANCE = (
    "The network's outputs for a sample change from pass to pass, in eval mode, so that scores are partly chance. Look "
    "for dropout that is always on (F.dropout without training=self.training), noise that forward draws, or a state "
    "that it keeps."
)


def check_steady(one: Tensor, other: Tensor, epsilon: float, repeat: Callable[[], Tensor]) -> None:
    """Warn if outputs of the same samples from two passes are not the same up to rounding.

    Parameters
    ----------
    one, other : (k, ...) tensors
        What is not finite is refused when it is read.
    epsilon : float
        Of the coarsest type that took part.
    repeat : callable
        Passes one and the same batch whenever it is called: tells chance from the rest of a batch.
    """
    if are_alike(one, other, one, epsilon) or not bool((one + other).isfinite().all()):
        return
    by_chance = not are_alike(first := repeat(), repeat(), first, epsilon)
    warnings.warn(_BY_CHANCE if by_chance else _BY_BATCH, UnsteadyOutputWarning, stacklevel=2)


def sum_of_others(x: Tensor) -> Tensor:
    """``Σ_{c'≠c} x_c'`` along the last dimension, for x ≥ 0: (..., C) -> (..., C).

    The largest entry is never subtracted from a sum that it makes up, so that the sums keep their digits.

    Examples
    --------
    >>> sum_of_others(torch.tensor([1.0, 1e-10, 2e-10]))  # 1 − p would be zero
    tensor([3.0000e-10, 1.0000e+00, 1.0000e+00])
    """
    largest = torch.arange(x.shape[-1], device=x.device) == x.argmax(dim=-1, keepdim=True)
    rest = x.masked_fill(largest, 0).sum(dim=-1, keepdim=True)
    return torch.where(largest, rest, rest + x.amax(dim=-1, keepdim=True) - x)
