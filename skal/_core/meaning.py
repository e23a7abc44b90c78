# SPDX-License-Identifier: BSD-3-Clause
"""What follows from a task: what outputs mean, what is uncertain, and what a label leaves to be learnt.

This is the one place where that is decided; strategies and the look-ahead ask ``context.meaning``. Outputs f and
probabilities p are (n, C), with a column for each class, number or label.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from skal._core.losses import CrossEntropy, Loss, SeveralLabels
from skal._core.outputs import sum_of_others
from skal._core.tasks import CLASSIFICATION, MULTILABEL, REGRESSION


class Meaning(ABC):
    """The meaning of the outputs of one task.

    Attributes
    ----------
    is_exclusive : bool
        Whether a sample has one of the classes, and no other.
    has_probabilities : bool
        Whether outputs say how probable something is; otherwise they are numbers.
    kernel : str
        The scalar kernel of several outputs: "auto" is the pseudo-NTK.
    label_noise : float or None
        Variance of a label's noise, as a part of the prior variance; None where each strategy has its own.
    uncertainty : str
        Name of the strategy that says how uncertain a sample is.
    loss : Loss or None
        What an estimator without a criterion is taken to have been trained with; None where the prediction, taken for
        the label, leaves nothing to be learnt.
    """

    is_exclusive: ClassVar[bool] = False
    has_probabilities: ClassVar[bool] = True
    kernel: ClassVar[str] = "auto"
    label_noise: ClassVar[float | None] = None
    uncertainty: ClassVar[str] = "margin"
    loss: ClassVar[Loss | None] = None

    @abstractmethod
    def link(self, f: Tensor) -> Tensor:
        """(n, C) what labels are compared with: probabilities, or numbers as they are."""

    @abstractmethod
    def logits(self, p: Tensor) -> Tensor:
        """(n, C) logits of an estimator's answers, whose ``link`` gives these again."""

    def center(self, f: Tensor) -> Tensor:
        """(n, C) outputs less what changes no prediction."""
        return f

    def rivals(self, f: Tensor) -> Tensor:
        """(..., m) logits of answers that exclude one another."""
        return f

    @abstractmethod
    def variances(self, p: Tensor) -> Tensor:
        """(n, C) variance of a label, by the estimator itself."""

    def residual_variance(self, p: Tensor) -> Tensor | None:
        """(n,) expected squared residual that a label leaves; None where it is the same for all samples."""
        return self.variances(p).sum(1)

    def margins(self, p: Tensor) -> Tensor | None:
        """(n,) in [0, 1], how close the most probable answers are; None where nothing is probable."""
        return None


class Classes(Meaning):
    """One class each: ``p = softmax(f)``.

    Examples
    --------
    >>> p = torch.tensor([[0.5, 0.3, 0.2]])
    >>> round(float(Classes().residual_variance(p)), 2), round(float(Classes().margins(p)), 2)  # 1 − ‖p‖²
    (0.62, 0.8)
    """

    is_exclusive = True
    loss = CrossEntropy()

    def link(self, f: Tensor) -> Tensor:
        """Probabilities of the classes."""
        return torch.softmax(f, dim=1)

    def logits(self, p: Tensor) -> Tensor:
        """Logarithms, which have the same softmax."""
        return p.clamp_min(torch.finfo(p.dtype).tiny).log()

    def center(self, f: Tensor) -> Tensor:
        """Less the mean over the classes."""
        return f - f.mean(1, keepdim=True)

    def variances(self, p: Tensor) -> Tensor:
        """``p (1 − p)`` of each class."""
        return p * sum_of_others(p)

    def margins(self, p: Tensor) -> Tensor:
        """``1 − (p_(1) − p_(2))``."""
        top: Tensor = p.topk(2, dim=1).values
        return (1 - (top[:, 0] - top[:, 1])).clamp_min(0)


class Numbers(Meaning):
    """One or several numbers each, under squared loss: all samples count alike."""

    has_probabilities = False
    kernel = "trace"
    label_noise = 1e-4
    uncertainty = "predictive_std"

    def link(self, f: Tensor) -> Tensor:
        """The numbers."""
        return f

    def logits(self, p: Tensor) -> Tensor:
        """The numbers."""
        return p

    def variances(self, p: Tensor) -> Tensor:
        """One for each sample: targets share their kernel, and their noise."""
        return torch.ones_like(p[:, :1])

    def residual_variance(self, p: Tensor) -> None:
        """None: it is the same for all samples."""


class Labels(Meaning):
    """Several labels each, every one a question of its own: ``p = σ(f)``.

    Examples
    --------
    >>> p = torch.tensor([[0.5, 0.9]])
    >>> round(float(Labels().residual_variance(p)), 2), round(float(Labels().margins(p)), 2)
    (0.34, 0.6)
    """

    loss = SeveralLabels()

    def link(self, f: Tensor) -> Tensor:
        """Probabilities that a sample has each label."""
        return torch.sigmoid(f)

    def logits(self, p: Tensor) -> Tensor:
        """``log p − log (1 − p)``."""
        return torch.logit(p, eps=1e-12)

    def rivals(self, f: Tensor) -> Tensor:
        """(n, L, 2): a label's logit against that of not having it."""
        return torch.stack([torch.zeros_like(f), f], dim=-1)

    def variances(self, p: Tensor) -> Tensor:
        """``p (1 − p)`` of each label."""
        return p * (1 - p)

    def margins(self, p: Tensor) -> Tensor:
        """The mean of ``1 − |2p − 1|``."""
        return (1 - (2 * p - 1).abs()).mean(1)


MEANINGS: dict[str, Meaning] = {CLASSIFICATION: Classes(), REGRESSION: Numbers(), MULTILABEL: Labels()}
