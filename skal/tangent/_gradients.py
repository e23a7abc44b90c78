"""Loss gradients: their norms, their inner products with a direction, their sum."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from skal._core.network import Network, evaluating
from skal._core.samples import Samples
from skal.exceptions import InvalidParameterError, shorten
from skal.tangent._cotangents import Cotangent, cross_entropy, pull_back, squared_error
from skal.tangent._engine import TangentEngine, checked_logits, checked_parameters
from skal.tangent._factors import Gradients
from skal.validation import check_choice

__all__ = ["gradient_scores", "loss_gradient"]

_LOSSES: dict[str, Cotangent] = {"cross_entropy": cross_entropy, "squared_error": squared_error}


def gradient_scores(
    net: Any,
    X: Any,
    y: Any,
    direction: dict[str, Tensor] | None = None,
    *,
    loss: str = "cross_entropy",
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
    y : (n,) integer labels, or None
        None takes the network's own predictions, found in the same pass.
    direction : dict of tensors shaped like the parameters, optional
        For example from :func:`loss_gradient`. Parameters that it leaves out count as zero.
    loss : {"cross_entropy", "squared_error"}, default="cross_entropy"
        Of the logits; not averaged. ``squared_error`` is ``½‖f − onehot(y)‖²``.
    backend : {"auto", "structured", "func", "backpack"}, default="auto"
    batch_size : int, default=256
    max_memory : int, str or None
        Bound on the working memory, such as ``"2GB"``; None is 1 GB.
    autocast : torch.dtype or None, default=None
        ``torch.bfloat16`` or ``torch.float16`` runs the network's passes in that precision; None never does.

    Returns
    -------
    squared_norms : (n,) float64 array
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
    engine = TangentEngine(
        net,
        samples,
        backend=backend,
        batch_size=batch_size,
        max_memory=max_memory,
        autocast=autocast,
        owner="gradient_scores",
    )
    norms, dots = loss_scores(engine, samples, y, direction, loss)
    return norms.cpu().numpy(), dots.cpu().numpy()


def loss_scores(
    engine: TangentEngine,
    samples: Samples,
    y: Any = None,
    direction: dict[str, Tensor] | None = None,
    loss: str = "cross_entropy",
) -> tuple[Tensor, Tensor]:
    """:func:`gradient_scores` on an engine that is there already: two (n,) float64 tensors on its device."""
    check_choice("gradient_scores", "loss", loss, list(_LOSSES))
    direction = _checked_direction(direction or {}, engine)
    target = None if y is None else one_hot(y, len(samples), engine.n_classes, engine.network)

    def reduce(gradients: Iterator[Gradients], n: int) -> tuple[Tensor, Tensor]:
        return engine.scores(next(gradients), n, direction)

    return engine.collect(samples, [_LOSSES[loss]], reduce, target=target)


def loss_gradient(net: Any, X: Any, y: Any, *, loss: str = "cross_entropy", batch_size: int = 256) -> dict[str, Tensor]:
    """Gradient of the loss summed (not averaged) over a set.

    Parameters
    ----------
    net, X, y, loss, batch_size
        As in :func:`gradient_scores`.

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
    check_choice("loss_gradient", "loss", loss, list(_LOSSES))
    network = net if isinstance(net, Network) else Network(net)
    samples = X if isinstance(X, Samples) else Samples(X)
    parameters = checked_parameters(network, samples, "loss_gradient")
    # float64: the sum over many chunks is compared with single gradients
    totals = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in parameters.items()}
    target, first = None, 0
    with evaluating(network.module), torch.enable_grad():
        for batch in network.batches(samples, batch_size):
            logits = checked_logits(network, batch)
            n = tree_leaves(batch)[0].shape[0]
            if y is not None and target is None:
                target = one_hot(y, len(samples), logits.shape[1], network)
            v = _LOSSES[loss](logits.detach(), None if target is None else target[first : first + n])
            first += n
            for name, gradient in zip(parameters, pull_back(v, logits, list(parameters.values())), strict=True):
                if gradient is not None:
                    totals[name] += gradient
    return {name: total.to(parameters[name].dtype) for name, total in totals.items()}


def one_hot(y: Any, n_samples: int, n_classes: int, network: Network) -> Tensor:
    """(n,) labels 0 … C−1 as an (n, C) tensor on the network's device."""
    labels = y.cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    good = labels.shape == (n_samples,) and labels.dtype.kind in "iub"
    if not good or labels.min() < 0 or labels.max() >= n_classes:
        raise InvalidParameterError(
            f"The labels y must be {n_samples} integers in 0 … {n_classes - 1}, one per sample. "
            f"Got {shorten(labels)} instead. Encode them, for example with sklearn.preprocessing.LabelEncoder."
        )
    index = torch.as_tensor(labels.astype(np.int64), device=network.device)
    return torch.nn.functional.one_hot(index, n_classes).to(network.dtype)


def _checked_direction(direction: dict[str, Tensor], engine: TangentEngine) -> dict[str, Tensor]:
    parameters = engine.network.trainable()
    checked = {}
    for name, value in direction.items():
        value = torch.as_tensor(value)
        if name not in parameters or value.shape != parameters[name].shape:
            shape = tuple(parameters[name].shape) if name in parameters else "no trainable parameter of that name"
            raise InvalidParameterError(
                f"The direction must be a dict of tensors shaped like the parameters ({name!r}: {shape}). Got a tensor "
                f"of shape {tuple(value.shape)} for {name!r}. Take it from loss_gradient, or from named_parameters()."
            )
        checked[name] = value.to(parameters[name])
    return checked
