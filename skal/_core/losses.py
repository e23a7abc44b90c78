# SPDX-License-Identifier: BSD-3-Clause
"""What a network is trained with: the loss of one sample, and its derivative with respect to the logits.

n samples, C classes. Losses are not averaged. The criterion says which loss it is, and this is the one place where that
is decided; :mod:`skal._core.outputs` says what logits are.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from skal._core.outputs import is_binary, sum_of_others
from skal._core.tasks import CLASSIFICATION, MULTILABEL, REGRESSION, Task
from skal.exceptions import InvalidParameterError
from skal.nets import SquaredLoss


def _is_label(labels: Tensor, like: Tensor) -> Tensor:
    """(n,) labels -> (n, C): whether a class is the label."""
    return torch.arange(like.shape[-1], device=like.device) == labels.unsqueeze(-1)


class Loss(ABC):
    """The loss of one sample as a function of its logits and its label.

    Examples
    --------
    >>> from skal.context import CrossEntropy, Loss
    >>> isinstance(CrossEntropy(), Loss)
    True
    """

    ignore_index: int | None = None  # a label that costs nothing

    def gradient(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Derivatives of each sample's loss with respect to its logits, row by row, also under ``vmap``.

        Parameters
        ----------
        logits : (n, C) tensor
            Before any softmax.
        labels : (n,) tensor
            Class numbers.

        Returns
        -------
        (n, C) tensor
            In the type of the logits.
        """
        precise = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
        return self._gradient(precise, labels).to(logits.dtype)

    @abstractmethod
    def _gradient(self, f: Tensor, labels: Tensor) -> Tensor: ...

    def predict(self, logits: Tensor) -> Tensor:
        """The labels that the logits stand for.

        Parameters
        ----------
        logits : (n, C) tensor
            Before any softmax.

        Returns
        -------
        (n,) tensor, (n, L) for several labels at once
            As :meth:`gradient` takes them.
        """
        return logits.argmax(dim=-1)

    def lengths(self, logits: Tensor) -> Tensor:
        """Length of the gradient for every label.

        Parameters
        ----------
        logits : (n, C) tensor
            Before any softmax.

        Returns
        -------
        (n, C) tensor
            One column per label.
        """
        n, C = logits.shape
        labels = torch.arange(C, device=logits.device)
        gradients = (self.gradient(logits, label.expand(n)) for label in labels)
        return torch.stack([torch.linalg.vector_norm(gradient, dim=1) for gradient in gradients], dim=1)


@dataclass(frozen=True, eq=False)
class CrossEntropy(Loss):
    """``−Σ_c a_c log σ(f)_c``, with ``a = (1 − ε) w_y e_y + (ε / C) w`` for class weights w and smoothing ε.

    The derivative ``(Σ a) σ(f) − a`` is a difference of numbers that training makes equal. It is written as
    ``p Σ_{others} a − a Σ_{others} p``. Without smoothing one of the two terms is zero, and what is left is ``w_y``
    times p, with ``−Σ_{others} p`` in the label's place.

    Parameters
    ----------
    weight : (C,) tensor, optional
        Of the classes; w above.
    smoothing : float
        As of ``torch.nn.CrossEntropyLoss``; ε above.
    ignore_index : int, optional
        A label that costs nothing.
    epsilon : float
        Of skorch's ``−log(p + ε)`` for NLLLoss, which multiplies the derivative by ``p_y / (p_y + ε)``.

    Examples
    --------
    >>> from skal.context import CrossEntropy
    >>> CrossEntropy().gradient(torch.zeros(1, 2), torch.tensor([0]))
    tensor([[-0.5000,  0.5000]])
    """

    weight: Tensor | None = None
    smoothing: float = 0.0
    ignore_index: int | None = None
    epsilon: float = 0.0

    def _gradient(self, f: Tensor, labels: Tensor) -> Tensor:
        p = torch.softmax(f, dim=-1)
        if not self.smoothing and not self.epsilon and self.weight is None:
            # any class will do for an ignored label: its derivative is set to zero below
            known = labels if self.ignore_index is None else labels.masked_fill(labels == self.ignore_index, 0)
            label = known.unsqueeze(-1)
            others = p.scatter(-1, label, 0)
            gradient = others.scatter(-1, label, -others.sum(dim=-1, keepdim=True))
            return self._zero_ignored_rows(gradient, labels)
        own = _is_label(labels, f)
        if self.smoothing:
            w = torch.ones_like(f) if self.weight is None else self.weight.to(f).expand_as(f)
            a = w * ((1 - self.smoothing) * own.to(f.dtype) + self.smoothing / f.shape[-1])
            gradient = p * sum_of_others(a) - a * sum_of_others(p)
        else:
            others = p.masked_fill(own, 0)
            gradient = torch.where(own, -others.sum(dim=-1, keepdim=True), others)
            if self.weight is not None:
                gradient = gradient * (own * self.weight.to(f)).sum(dim=-1, keepdim=True)
        if self.epsilon:
            p_y = (p * own).sum(dim=-1, keepdim=True)
            gradient = gradient * (p_y / (p_y + self.epsilon))
        return self._zero_ignored_rows(gradient, labels)

    def _zero_ignored_rows(self, gradient: Tensor, labels: Tensor) -> Tensor:
        return gradient if self.ignore_index is None else gradient * (labels != self.ignore_index).unsqueeze(-1)

    def lengths(self, logits: Tensor) -> Tensor:
        """Length of the gradient for every label; without smoothing ``w_y √((Σ_{others} p)² + Σ_{others} p²)``.

        Parameters
        ----------
        logits : (n, C) tensor
            Before any softmax.

        Returns
        -------
        (n, C) tensor
            One column per label.
        """
        if self.smoothing:
            return super().lengths(logits)
        p = torch.softmax(logits, dim=-1)
        lengths = (sum_of_others(p).square() + sum_of_others(p.square())).sqrt()
        if self.epsilon:
            lengths = lengths * (p / (p + self.epsilon))
        if self.weight is not None:
            lengths = lengths * self.weight.to(p)
        ignored = torch.arange(p.shape[-1], device=p.device) == (-1 if self.ignore_index is None else self.ignore_index)
        return lengths.masked_fill(ignored, 0)


@dataclass(frozen=True, eq=False)
class Binary(Loss):
    """``−w [q y log σ(z) + (1 − y) log σ(−z)]`` of logits (0, z), of which the first is no output of the network.

    Parameters
    ----------
    pos_weight : (1,) tensor, optional
        q.
    weight : (1,) tensor, optional
        w.
    """

    pos_weight: Tensor | None = None
    weight: Tensor | None = None

    def _gradient(self, f: Tensor, labels: Tensor) -> Tensor:
        z = f[..., 1]
        positive = -torch.sigmoid(-z) if self.pos_weight is None else -torch.sigmoid(-z) * _number(self.pos_weight, f)
        g = torch.where(labels == 1, positive, torch.sigmoid(z))
        g = g if self.weight is None else g * _number(self.weight, f)
        return torch.stack([torch.zeros_like(g), g], dim=-1)


def _number(value: Tensor, like: Tensor) -> Tensor:
    return value.to(like).reshape(())


@dataclass(frozen=True, eq=False)
class SquaredError(Loss):
    """``(scale / 2) ‖f − e_y‖²``."""

    scale: float = 1.0

    def _gradient(self, f: Tensor, labels: Tensor) -> Tensor:
        return self.scale * (f - _is_label(labels, f).to(f.dtype))


@dataclass(frozen=True, eq=False)
class SeveralLabels(Loss):
    """``−Σ_l w_l [q_l y_l log σ(f_l) + (1 − y_l) log σ(−f_l)]``: every label is a question of its own.

    Parameters
    ----------
    pos_weight, weight : (L,) or (1,) tensor, optional
        As of ``torch.nn.BCEWithLogitsLoss``; q and w above.

    Examples
    --------
    >>> from skal.context import SeveralLabels
    >>> SeveralLabels().gradient(torch.zeros(1, 2), torch.tensor([[1, 0]]))
    tensor([[-0.5000,  0.5000]])
    """

    pos_weight: Tensor | None = None
    weight: Tensor | None = None

    def _gradient(self, f: Tensor, labels: Tensor) -> Tensor:
        positive = -torch.sigmoid(-f)
        if self.pos_weight is not None:
            positive = positive * self.pos_weight.to(f)
        gradient = torch.where(labels > 0, positive, torch.sigmoid(f))
        return gradient if self.weight is None else gradient * self.weight.to(f)

    def predict(self, logits: Tensor) -> Tensor:
        """Each label that is more likely than not.

        Parameters
        ----------
        logits : (n, L) tensor
            One for each label.

        Returns
        -------
        (n, L) tensor
            0 and 1.
        """
        return (logits > 0).to(logits.dtype)


@dataclass(frozen=True, eq=False)
class SquaredDistance(Loss):
    """``(scale / 2) ‖f − y‖²`` of numbers; whatever the criterion is, near its minimum it is one of these."""

    scale: float = 1.0

    def _gradient(self, f: Tensor, labels: Tensor) -> Tensor:
        return self.scale * (f - labels.to(f).reshape(f.shape))

    def predict(self, logits: Tensor) -> Tensor:
        """The outputs themselves.

        Parameters
        ----------
        logits : (n, k) tensor
            The network's outputs.

        Returns
        -------
        (n, k) tensor
            The same.
        """
        return logits


class OwnLoss(Loss):
    """A criterion without a closed form, differentiated by autograd with ``reduction="none"``.

    Parameters
    ----------
    criterion : nn.Module with ``reduction``
    read : callable
        From logits to what the criterion gets.
    float_labels : bool
        Whether the criterion takes labels as floating-point numbers.
    """

    def __init__(self, criterion: nn.Module, read: Callable[[Tensor], Tensor], float_labels: bool = False) -> None:
        self.criterion = copy.deepcopy(criterion)  # the user's own stays as it is
        for part in self.criterion.modules():
            if isinstance(getattr(part, "reduction", None), str):
                part.reduction = "none"  # type: ignore[assignment]
        self.read, self.float_labels = read, float_labels
        self.ignore_index = getattr(criterion, "ignore_index", None)
        self._checked = False

    def _losses(self, f: Tensor, labels: Tensor) -> Tensor:
        """(n,) losses, what the criterion gives for one sample added up."""
        losses = self.criterion(self.read(f), labels.to(f.dtype) if self.float_labels else labels)
        if not isinstance(losses, Tensor) or losses.shape[:1] != f.shape[:1]:
            got = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise _unusable(self.criterion, f"{got} for {f.shape[0]} samples")
        return losses.flatten(1).sum(dim=1) if losses.ndim > 1 else losses

    def _check(self, f: Tensor) -> None:
        """See whether there is one loss per sample that depends on that sample alone."""
        probe = torch.arange(2 * f.shape[-1], dtype=f.dtype, device=f.device).cos().reshape(2, -1)
        labels = torch.arange(2, device=f.device)
        try:
            together = self._losses(probe, labels)
            apart = torch.cat([self._losses(probe[i : i + 1], labels[i : i + 1]) for i in range(2)])
        except InvalidParameterError:
            raise
        except Exception as error:
            raise _unusable(self.criterion, f"{type(error).__name__}: {error}") from error
        if not torch.allclose(together, apart, rtol=1e-3, atol=1e-5):
            raise _unusable(self.criterion, "losses that change with the other samples of a batch")

    def _gradient(self, f: Tensor, labels: Tensor) -> Tensor:
        self.criterion.to(f.dtype)
        if not self._checked:
            self._check(f)
            self._checked = True

        def total(f: Tensor) -> Tensor:
            return self._losses(f, labels).sum()

        with torch.enable_grad():
            try:
                gradient: Tensor = torch.func.grad(total)(f)  # the one that works inside vmap
                return gradient
            except RuntimeError:  # a Function of the user's own may know nothing but autograd
                f = f.detach().requires_grad_()
                return torch.autograd.grad(total(f), f)[0]


def _unusable(criterion: nn.Module, got: str) -> InvalidParameterError:
    return InvalidParameterError(
        f"The criterion {type(criterion).__name__} must give one loss per sample, of outputs (n, C) and labels (n,), "
        f"when its reduction is 'none'. Got {got}. Write it like torch.nn.CrossEntropyLoss, with the parameter "
        "reduction, or use a strategy that needs no loss, such as Margin or CoreSet."
    )


def loss_of(criterion: Any, task: Task = CLASSIFICATION, *, behind_softmax: torch.dtype | None = None) -> Loss:
    """The loss of a fitted criterion; the cross-entropy if there is none.

    Parameters
    ----------
    criterion : nn.Module or None
    task : {"classification", "regression", "multilabel"}
    behind_softmax : torch.dtype, optional
        With NLLLoss: the logits are those behind the softmax that the module of this type ends in, not the logarithms
        ``log(p + ε)`` that the criterion gets.

    Examples
    --------
    >>> loss = loss_of(nn.CrossEntropyLoss(weight=torch.tensor([1.0, 4.0])))
    >>> loss.gradient(torch.zeros(2, 2), torch.tensor([0, 1]))
    tensor([[-0.5000,  0.5000],
            [ 2.0000, -2.0000]])
    """
    if criterion is None:
        return CrossEntropy()
    if task == REGRESSION:
        return SquaredDistance(2.0)
    if task == MULTILABEL:
        return SeveralLabels(getattr(criterion, "pos_weight", None), getattr(criterion, "weight", None))
    if _is(criterion, nn.CrossEntropyLoss):
        return CrossEntropy(criterion.weight, criterion.label_smoothing, criterion.ignore_index)
    epsilon = 0.0 if behind_softmax is None else torch.finfo(behind_softmax).eps
    if _is(criterion, nn.NLLLoss):
        # of log-probabilities −w_y e_y is the same derivative: their own average under p does not change
        return CrossEntropy(criterion.weight, 0.0, criterion.ignore_index, epsilon)
    if _is(criterion, SquaredLoss):
        return SquaredError()
    if _is(criterion, nn.MSELoss):
        return SquaredError(2.0)
    if _is(criterion, nn.BCEWithLogitsLoss):
        for name in ("weight", "pos_weight"):
            value = getattr(criterion, name)
            if value is not None and value.numel() != 1:
                raise InvalidParameterError.for_parameter(
                    "BCEWithLogitsLoss", name, "one number", f"{value.numel()} numbers", "Give both classes' share."
                )
        return Binary(criterion.pos_weight, criterion.weight)
    if not isinstance(getattr(criterion, "reduction", None), str):
        raise _unusable(criterion, "a criterion without reduction")
    if is_binary(criterion):
        return OwnLoss(criterion, _second_logit, float_labels=True)
    if isinstance(criterion, nn.NLLLoss) and behind_softmax is not None:
        return OwnLoss(criterion, lambda f: torch.log(torch.softmax(f, dim=-1) + epsilon))
    return OwnLoss(criterion, _as_they_are)


def _is(criterion: Any, kind: type) -> bool:
    """True if a criterion computes what this class does; a subclass may have a ``forward`` of its own."""
    return isinstance(criterion, kind) and type(criterion).forward is kind.forward  # type: ignore[attr-defined]


def is_cross_entropy(criterion: nn.Module) -> bool:
    """True if a criterion takes the softmax itself, so that a constant added to all logits makes no difference."""
    return _is(criterion, nn.CrossEntropyLoss)


def _second_logit(f: Tensor) -> Tensor:
    return f[..., 1]


def _as_they_are(f: Tensor) -> Tensor:
    return f
