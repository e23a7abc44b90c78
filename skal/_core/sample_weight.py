# SPDX-License-Identifier: BSD-3-Clause
"""Weights of samples: used where an estimator knows them, refused by name where they would be lost."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from skorch import NeuralNet

from skal.exceptions import InvalidTypeError

NAME = "sample_weight"


def check_net_takes_weights(net: Any, fit_params: Mapping[str, Any]) -> None:
    """Refuse ``sample_weight`` for a skorch net whose module does not take it: skorch would hand it to ``forward``.

    Parameters
    ----------
    net : classifier
        Any that is not a skorch net answers for itself.
    fit_params : dict
        What ``fit`` was given.

    Examples
    --------
    >>> from skorch import NeuralNetClassifier
    >>> from skal._core.sample_weight import check_net_takes_weights
    >>> from skal.nets import MLP
    >>> check_net_takes_weights(NeuralNetClassifier(MLP), {"sample_weight": [1.0, 2.0]})
    Traceback (most recent call last):
    ...
    skal.exceptions.InvalidTypeError: The fit parameters of NeuralNetClassifier must not have sample_weight: ...
    """
    if fit_params.get(NAME) is None or not isinstance(net, NeuralNet):
        return
    forward = getattr(net.module, "forward", net.module)
    if NAME not in inspect.signature(forward).parameters:
        raise InvalidTypeError(
            f"The fit parameters of {type(net).__name__} must not have {NAME}: its loss does not use it. Got "
            "weights. Weigh the classes with criterion__weight, or draw samples by their weights with "
            "iterator_train__sampler=torch.utils.data.WeightedRandomSampler(...)."
        )


def refuse(owner: str, unknown: Mapping[str, Any]) -> None:
    """Refuse what the ``fit`` of a loop has no use for, weights in words of their own.

    Parameters
    ----------
    owner : str
        The class.
    unknown : dict
        Keywords that ``fit`` does not know.
    """
    if unknown.get(NAME) is not None:
        raise InvalidTypeError(
            f"The fit of {owner} must not be given {NAME}: it chooses the samples that it trains on. Got weights. "
            "Weigh the classes in the estimator (class_weight, criterion__weight), or use ActiveLearner, whose "
            f"teach hands {NAME} on."
        )
    others = sorted(set(unknown) - {NAME})
    if others:
        raise InvalidTypeError(
            f"The fit of {owner} must be given X, y, oracle and eval_set alone. Got {', '.join(others)} too. Set "
            "parameters of the estimator with set_params(estimator__name=value)."
        )
