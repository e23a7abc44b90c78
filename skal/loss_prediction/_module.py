# SPDX-License-Identifier: BSD-3-Clause
"""A module that predicts its own loss beside its outputs (Yoo & Kweon 2019)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from skal._core.guard import evaluating
from skal._core.network import Network
from skal.exceptions import InvalidParameterError, UnsupportedLayerError

_CHANNELS_FIRST = (nn.Conv1d, nn.BatchNorm1d, nn.GroupNorm, nn.MaxPool1d, nn.AvgPool1d)


def ranking_loss(predicted: Tensor, losses: Tensor, margin: float = 1.0) -> Tensor:
    """Mean of ``max(0, margin − sign(l_i − l_j) (l̂_i − l̂_j))`` over pairs: first and last, second and last but one.

    The middle one of an odd number is left out, pairs of equal losses count as zero, and so does a lack of pairs.

    Parameters
    ----------
    predicted : (n,) tensor
        What the module says of each loss, l̂.
    losses : (n,) tensor
        The losses l; no gradient flows into them.
    margin : float, default=1.0
        By how much the predictions of a pair should differ.

    Returns
    -------
    tensor
        One number.

    Examples
    --------
    >>> ranking_loss(torch.tensor([0.0, 9.0, 0.5]), torch.tensor([2.0, 1.0, 1.0]))  # the first should be larger
    tensor(1.5000)
    """
    n_pairs = len(losses) // 2
    if n_pairs == 0:
        return predicted.sum() * 0
    order = torch.sign(losses - losses.flip(0))[:n_pairs].detach()
    gap = (predicted - predicted.flip(0))[:n_pairs]
    return (torch.relu(margin - order * gap) * order.abs()).mean()


class LossPredictingModule(nn.Module):
    """A module, and beside it a small network that predicts the loss from the outputs of some of its layers.

    Each output is averaged over positions, goes through a linear layer and a ReLU, and all of them together through one
    more linear layer. In training mode ``forward`` returns the module's output and the predicted losses; in eval mode
    the module's output alone.

    Parameters
    ----------
    backbone : nn.Module
        The module of the task; its ``forward`` stays as it is.
    layers : sequence of str
        Names in ``backbone.named_modules()``.
    widths : sequence of int
        Channels, or features, of each layer's output.
    hidden : int, default=128
        Features that each layer's output is mapped to.

    Examples
    --------
    >>> import torch
    >>> from skal.loss_prediction import LossPredictingModule
    >>> from skal.nets import MLP
    >>> names = [name for name, layer in MLP(4, 3).named_modules() if isinstance(layer, torch.nn.Linear)]
    >>> module = LossPredictingModule(MLP(4, 3, hidden=(16, 8)), names[:2], widths=[16, 8])
    >>> logits, losses = module(torch.zeros(5, 4))
    >>> logits.shape, losses.shape
    (torch.Size([5, 3]), torch.Size([5]))
    >>> module.eval()(torch.zeros(5, 4)).shape  # the logits alone
    torch.Size([5, 3])
    """

    def __init__(self, backbone: nn.Module, layers: Sequence[str], widths: Sequence[int], hidden: int = 128) -> None:
        super().__init__()
        self.backbone = backbone
        self.layers = list(layers)
        self.inner = nn.ModuleList(nn.Linear(width, hidden) for width in widths)
        self.outer = nn.Linear(hidden * len(self.layers), 1)
        self.detached = False  # whether the predicted losses leave the backbone untrained

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The backbone's output, with the predicted losses in training mode."""
        if not self.training:
            return self.backbone(*args, **kwargs)
        with self.collecting_features() as features:
            output = self.backbone(*args, **kwargs)
            return (output[0] if isinstance(output, tuple) else output), self.predict_losses(features)

    def collecting_features(self) -> AbstractContextManager[dict[str, Tensor]]:
        """Collect the layers' outputs inside the block, averaged over positions, by the layers' names.

        Returns
        -------
        context manager
            Of a dict that fills with (n, width) tensors.
        """
        return _collecting(self.backbone, self.layers)

    def predict_losses(self, features: dict[str, Tensor]) -> Tensor:
        """Predict losses from the outputs that :meth:`collecting_features` collected.

        Parameters
        ----------
        features : dict of (n, width) tensors
            By the layers' names.

        Returns
        -------
        (n,) tensor
            Larger where the loss is.
        """
        parts = []
        for name, linear in zip(self.layers, self.inner, strict=True):
            x = features[name]
            parts.append(torch.relu(linear(x.detach() if self.detached else x)))
        losses: Tensor = self.outer(torch.cat(parts, dim=1))[:, 0]
        return losses


@contextmanager
def _collecting(module: nn.Module, names: Sequence[str]) -> Iterator[dict[str, Tensor]]:
    known = dict(module.named_modules())
    found: dict[str, Tensor] = {}
    with ExitStack() as stack:
        for name in names:
            if name not in known:
                raise InvalidParameterError(
                    f"The 'layers' parameter of LossPredictionClassifier must name layers of the module. Got {name!r}. "
                    f"Choose from module.named_modules(): {', '.join(list(known)[1:9])}, …"
                )

            def record(layer: nn.Module, args: tuple[Any, ...], output: Any, name: str = name) -> None:
                output = output[0] if isinstance(output, tuple) else output
                if isinstance(output, Tensor) and output.is_floating_point() and output.ndim > 1:
                    found[name] = _average_positions(output, isinstance(layer, _CHANNELS_FIRST))

            stack.callback(known[name].register_forward_hook(record).remove)
        yield found


def _average_positions(x: Tensor, channels_first: bool) -> Tensor:
    """Global average pooling: images (n, c, ...) and tokens (n, t, c) to (n, c)."""
    if x.ndim == 3 and not channels_first:
        return x.mean(dim=1)
    return x.flatten(2).mean(dim=2) if x.ndim > 2 else x


def find_layers(module: nn.Module, batch: Any, wanted: Sequence[str] | None) -> tuple[list[str], list[int]]:
    """The layers to predict losses from, and their widths, as a forward pass of a batch shows them.

    These are the layers wanted; None is up to four convolutions and linear layers, evenly spread, without the last.
    """
    kinds = (nn.modules.conv._ConvNd, nn.Linear)
    names = [n for n, layer in module.named_modules() if isinstance(layer, kinds)] if wanted is None else list(wanted)
    with evaluating(module), torch.no_grad(), _collecting(module, names) as found:
        Network(module).output(batch)
    if wanted is None:
        used = list(found)  # in the order of their calls
        used = used[:-1] or used
        names = [used[round(i)] for i in torch.linspace(0, len(used) - 1, min(4, len(used)), device="cpu").tolist()]
    missing = [name for name in names if name not in found]
    if missing or not names:
        raise UnsupportedLayerError(
            f"Each of the layers of LossPredictionClassifier must return a tensor of one row per sample. Got {missing} "
            "which the module's forward does not call, or no layers at all. Name others in layers."
        )
    return names, [found[name].shape[1] for name in names]
