# SPDX-License-Identifier: BSD-3-Clause
"""The state of one ``fit`` of FixMatch, from its first iteration to its last."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset

from skal._core.containers import check_finite
from skal._core.guard import device_of
from skal._core.network import Network
from skal._core.pool import Samples
from skal._core.precision import place_with_doubles
from skal.exceptions import InvalidParameterError, NoUnlabelledDataWarning
from skal.semi_supervised._augment import make_pair
from skal.semi_supervised._pseudo_labels import EpochStatistics, RefinedLabels, class_shares
from skal.semi_supervised._rows import check_column_names, check_labels, labelled_rows


class Training:
    """The checked data, the sizes of batches and epochs, the learning rates and the pseudo-labels.

    Parameters
    ----------
    net : FixMatchClassifier
        Initialised.
    X, y, y_true
        As in ``FixMatchClassifier.fit``.
    epochs : int

    Attributes
    ----------
    labels : (n,) array
        −1 for unlabelled.
    labelled : array
        The rows that have a label.
    has_unlabelled : bool
        Whether there are others.
    batch_size : int
        Of labelled samples.
    n_per_epoch, n_total, n_done : int
        Iterations.
    unlabelled_batches : iterator
    unlabelled_batch : object
        The one of this iteration, None if there is none.
    """

    def __init__(self, net: Any, X: Any, y: Any, y_true: Any, epochs: int) -> None:
        owner = type(net).__name__
        if not isinstance(X, Dataset):
            check_column_names(owner, X)
            check_finite(X, "X")
        self.X = X
        self.labels = check_labels(owner, X, y)
        self.labelled = labelled_rows(owner, self.labels)
        self.has_unlabelled = len(self.labelled) < len(self.labels)
        truth = None if y_true is None else torch.as_tensor(check_labels(owner, X, y_true, "y_true"), device="cpu")
        self.n_classes = Network(net).n_classes(Samples(X, name="X"))
        if self.labels.max() >= self.n_classes:
            expected = f"integers 0 … {self.n_classes - 1}, as the module has {self.n_classes} outputs"
            remedy = "Encode labels as 0 … C−1, or give the module more outputs."
            raise InvalidParameterError.for_parameter(owner, "y", expected, int(self.labels.max()), remedy)
        self.weak, self.strong = make_pair(owner, net.augment)
        shares = class_shares(owner, net.darp, self.labels, self.n_classes)

        size = net.get_params_for("iterator_train").get("batch_size", net.batch_size)
        self.batch_size = len(self.labelled) if size == -1 else int(size)
        per_iteration = net.mu * self.batch_size
        if not self.has_unlabelled:
            per_iteration = self.batch_size
            warnings.warn(
                f"The y given to {owner} has no unlabelled samples (−1), so this is plain supervised training. "
                "Pass the whole pool in X, with −1 in y for the samples without a label.",
                NoUnlabelledDataWarning,
                stacklevel=3,
            )
        self.n_per_epoch = net.iterations_per_epoch or math.ceil(len(self.labels) / per_iteration)
        self.n_total, self.n_done = self.n_per_epoch * epochs, 0
        self.unlabelled_batches: Iterator[Any] = iter(())
        self.unlabelled_batch: Any = None

        self.statistics = EpochStatistics(self.n_classes, truth, net.device)
        self.refined_labels: RefinedLabels | None = None
        if shares is not None:
            warmup = round(net.darp_warmup * self.n_total)
            shares = shares.to(place_with_doubles(device_of(net.module_)))
            self.refined_labels = RefinedLabels(
                len(self.labels), shares, warmup=warmup, every=net.darp_every, alpha=net.darp_alpha
            )
        self.groups = net.optimizer_.param_groups
        self.lrs = [group["lr"] for group in self.groups]

    def scale_learning_rates(self, factor: float) -> None:
        """Multiply the learning rates of the training's start by this factor."""
        for group, lr in zip(self.groups, self.lrs, strict=False):
            group["lr"] = lr * factor
