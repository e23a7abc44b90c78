# SPDX-License-Identifier: BSD-3-Clause
"""Loss gradients: their norms, their inner products with a direction, their sum."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from skorch import NeuralNet
from torch import Tensor
from torch.utils._pytree import tree_leaves

from skal._core.guard import evaluating
from skal._core.losses import CrossEntropy, Loss, SquaredError
from skal._core.network import Network
from skal._core.pool import Samples
from skal._core.precision import with_doubles
from skal._core.tasks import find_task
from skal.exceptions import InvalidParameterError, shorten
from skal.tangent._cotangents import LossCotangent, pull_back
from skal.tangent._factors import Gradients
from skal.tangent._tangent_engine import TangentEngine, check_parameters, open_engine
from skal.validation import Choice

_LOSSES: dict[str, Loss] = {"cross_entropy": CrossEntropy(), "squared_error": SquaredError()}


def gradient_scores(
    net: Any,
    X: Any,
    y: Any,
    direction: dict[str, Tensor] | None = None,
    *,
    loss: str = "auto",
    backend: str = "auto",
    batch_size: int = 256,
    max_memory: int | str | None = None,
    autocast: torch.dtype | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Squared norms of the per-sample loss gradients, and their inner products with a direction.

    One forward and one backward pass over X; no per-sample gradient outlives its layer and chunk.

    Parameters
    ----------
    net : fitted skorch net or nn.Module
        A module is taken to return logits.
    X : array-like, tensor, Dataset or dict of arrays
        The samples.
    y : (n,) int labels, or None
        None takes the network's own predictions, found in the same pass. The criterion's ``ignore_index`` is allowed,
        and gives no gradient.
    direction : dict of tensors shaped like the parameters, optional
        For example from :func:`loss_gradient`. Parameters that it leaves out count as zero.
    loss : {"auto", "cross_entropy", "squared_error"}, default="auto"
        Not averaged. ``auto`` is the loss that the net is trained with: its criterion, with class weights, label
        smoothing, ``ignore_index`` and ``pos_weight``; for a module the cross-entropy. The others are the plain
        cross-entropy of the logits, and ``½‖f − onehot(y)‖²``, whatever the criterion.
    backend : {"auto", "structured", "func", "backpack"}, default="auto"
        How gradients are computed; ``auto`` takes layer rules where there are some.
    batch_size : int, default=256
        Samples per network pass, at most.
    max_memory : int, str or None
        Bound on the working memory, such as ``"2GB"``; None is 1 GB.
    autocast : torch.dtype or None, default=None
        ``torch.bfloat16`` or ``torch.float16`` runs the network's passes in that precision; None never does.

    Returns
    -------
    squared_norms : (n,) float64 array
        Over all trainable parameters.
    dots : (n,) float64 array
        Zeros without a direction.

    Examples
    --------
    >>> import torch
    >>> net = torch.nn.Linear(2, 2, bias=False)
    >>> _ = torch.nn.init.zeros_(net.weight)
    >>> norms, dots = gradient_scores(net, torch.tensor([[1.0, 0.0], [0.0, 2.0]]), [0, 1])
    >>> norms.round(6)  # ‖a‖²‖σ(f) − e_y‖² with σ(f) = (½, ½)
    array([0.5, 2. ])
    """
    samples = Samples(X)
    engine = open_engine(
        "gradient_scores", _network_of(net, y), samples, "all", backend, batch_size, max_memory, autocast
    )
    norms, dots = loss_scores(engine, samples, y, direction, loss)
    return norms.cpu().numpy(), dots.cpu().numpy()


def loss_scores(
    engine: TangentEngine,
    samples: Samples,
    y: Any = None,
    direction: dict[str, Tensor] | None = None,
    loss: str = "auto",
) -> tuple[Tensor, Tensor]:
    """:func:`gradient_scores` on an engine that is there already: two (n,) float64 tensors on its device."""
    own_loss = _loss("gradient_scores", loss, engine.network)
    direction = _checked_direction(direction or {}, engine)
    target = None if y is None else class_indices(y, len(samples), engine.n_classes, engine.network, own_loss)

    def reduce(gradients: Iterator[Gradients], n: int) -> tuple[Tensor, Tensor]:
        return engine.scores(next(gradients), n, direction)

    return engine.collect(samples, [LossCotangent(own_loss)], reduce, target=target)


def loss_gradient(net: Any, X: Any, y: Any, *, loss: str = "auto", batch_size: int = 256) -> dict[str, Tensor]:
    """Gradient of the loss summed (not averaged) over a set.

    Parameters
    ----------
    net : fitted skorch net or nn.Module
        A module is taken to return logits.
    X : array-like, tensor, Dataset or dict of arrays, n samples
        The set.
    y : (n,) int labels, or None
        None takes the network's own predictions.
    loss : {"auto", "cross_entropy", "squared_error"}, default="auto"
        As in :func:`gradient_scores`.
    batch_size : int, default=256
        Samples per network pass, at most.

    Returns
    -------
    dict of tensors
        One per trainable parameter, of its shape, type and device.

    Examples
    --------
    >>> import torch
    >>> net = torch.nn.Linear(2, 2, bias=False)
    >>> _ = torch.nn.init.zeros_(net.weight)
    >>> loss_gradient(net, torch.tensor([[1.0, 0.0], [0.0, 2.0]]), [0, 1])
    {'weight': tensor([[-0.5000,  1.0000],
            [ 0.5000, -1.0000]])}
    """
    network = _network_of(net, y)
    own_loss = _loss("loss_gradient", loss, network)
    cotangent = LossCotangent(own_loss)
    samples = X if isinstance(X, Samples) else Samples(X)
    parameters = check_parameters(network, samples, "loss_gradient")
    # float64: the sum over many chunks is compared with single gradients
    totals = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in parameters.items()}
    target, first = None, 0
    with evaluating(network.module), torch.enable_grad():
        for batch in network.batches(samples, batch_size):
            logits = network.check_logits(batch)
            n = tree_leaves(batch)[0].shape[0]
            if y is not None and target is None:
                target = class_indices(y, len(samples), logits.shape[1], network, own_loss)
            v = cotangent(logits.detach(), None if target is None else target[first : first + n])
            first += n
            for name, gradient in zip(parameters, pull_back(v, logits, list(parameters.values())), strict=True):
                if gradient is not None:
                    totals[name] += gradient
    return {name: total.to(parameters[name].dtype) for name, total in totals.items()}


def _network_of(net: Any, y: Any) -> Network:
    """A network for labels that are classes: one output with a binary loss is a question with two answers."""
    if isinstance(net, Network):
        return net
    return Network(with_doubles(net), task=find_task(net, y) if isinstance(net, NeuralNet) and y is not None else None)


def _loss(owner: str, loss: str, network: Network) -> Loss:
    Choice("auto", *_LOSSES).check(owner, "loss", loss)
    return network.loss if loss == "auto" else _LOSSES[loss]


def class_indices(y: Any, n_samples: int, n_classes: int, network: Network, loss: Loss | None = None) -> Tensor:
    """(n,) labels 0 … C−1, or the label that a loss ignores, as a tensor on the network's device."""
    try:
        labels = y.cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    except (ValueError, NotImplementedError):  # ragged, or without values
        labels = np.empty(())
    good = labels.shape == (n_samples,) and labels.dtype.kind in "iub"
    counted = labels if not good or loss is None or loss.ignore_index is None else labels[labels != loss.ignore_index]
    if not good or (counted.size and (counted.min() < 0 or counted.max() >= n_classes)):
        raise InvalidParameterError(
            f"The labels y must be {n_samples} integers in 0 … {n_classes - 1}, one per sample. "
            f"Got {shorten(labels)} instead. Encode them, for example with sklearn.preprocessing.LabelEncoder."
        )
    return torch.as_tensor(labels.astype(np.int64), device=network.device)


def one_hot(y: Any, n_samples: int, n_classes: int, network: Network) -> Tensor:
    """(n,) labels 0 … C−1 as an (n, C) tensor on the network's device."""
    index = class_indices(y, n_samples, n_classes, network)
    return torch.nn.functional.one_hot(index, n_classes).to(network.dtype)


def _checked_direction(direction: dict[str, Tensor], engine: TangentEngine) -> dict[str, Tensor]:
    parameters = engine.network.trainable()
    checked = {}
    for name, value in direction.items():
        value = torch.as_tensor(value, device=engine.device)
        if name not in parameters or value.shape != parameters[name].shape:
            shape = tuple(parameters[name].shape) if name in parameters else "no trainable parameter of that name"
            raise InvalidParameterError(
                f"The direction must be a dict of tensors shaped like the parameters ({name!r}: {shape}). Got a tensor "
                f"of shape {tuple(value.shape)} for {name!r}. Take it from loss_gradient, or from named_parameters()."
            )
        checked[name] = value.to(parameters[name])
    return checked
