"""Networks that learn to predict their own loss (Yoo & Kweon 2019)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from skorch import NeuralNetClassifier
from skorch.dataset import unpack_data
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from skal._core.network import Network, evaluating
from skal.exceptions import InvalidParameterError, UnsupportedLayerError
from skal.validation import check_integer, check_real

__all__ = ["LossPredictingModule", "LossPredictionClassifier", "ranking_loss"]

_CHANNELS_FIRST = (nn.Conv1d, nn.BatchNorm1d, nn.GroupNorm, nn.MaxPool1d, nn.AvgPool1d)


def ranking_loss(predicted: Tensor, losses: Tensor, margin: float = 1.0) -> Tensor:
    """Mean of ``max(0, margin − sign(l_i − l_j) (l̂_i − l̂_j))`` over pairs: first and last, second and last but one, …

    The middle one of an odd number is left out, pairs of equal losses count as zero, and so does a lack of pairs.

    Parameters
    ----------
    predicted : (n,) tensor
        l̂
    losses : (n,) tensor
        l; no gradient flows into it.
    margin : float, default=1.0

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
    layers : sequence of str
        Names in ``backbone.named_modules()``.
    widths : sequence of int
        Channels, or features, of what each of them returns.
    hidden : int, default=128

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
        self.cut = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The backbone's output, with the predicted losses in training mode."""
        if not self.training:
            return self.backbone(*args, **kwargs)
        with self.watched() as features:
            output = self.backbone(*args, **kwargs)
            return (output[0] if isinstance(output, tuple) else output), self.predicted(features)

    @contextmanager
    def watched(self) -> Iterator[dict[str, Tensor]]:
        """Collect what the layers return, averaged over positions, by the layers' names."""
        found: dict[str, Tensor] = {}
        with _watching(self.backbone, self.layers, found):
            yield found

    def predicted(self, features: dict[str, Tensor]) -> Tensor:
        """(n,) predicted losses from what :meth:`watched` collected."""
        parts = []
        for name, linear in zip(self.layers, self.inner, strict=True):
            x = features[name]
            parts.append(torch.relu(linear(x.detach() if self.cut else x)))
        return self.outer(torch.cat(parts, dim=1))[:, 0]


@contextmanager
def _watching(module: nn.Module, names: Sequence[str], found: dict[str, Tensor]) -> Iterator[None]:
    known = dict(module.named_modules())
    with ExitStack() as stack:
        for name in names:
            if name not in known:
                raise InvalidParameterError(
                    f"The 'layers' parameter of LossPredictionClassifier must name layers of the module. Got {name!r}. "
                    f"Choose from module.named_modules(): {', '.join(list(known)[1:9])}, …"
                )

            def record(layer: nn.Module, args: tuple, output: Any, name: str = name) -> None:
                output = output[0] if isinstance(output, tuple) else output
                if isinstance(output, Tensor) and output.is_floating_point() and output.ndim > 1:
                    found[name] = _averaged(output, isinstance(layer, _CHANNELS_FIRST))

            stack.callback(known[name].register_forward_hook(record).remove)
        yield


def _averaged(x: Tensor, channels_first: bool) -> Tensor:
    """Global average pooling: images (n, c, ...) and tokens (n, t, c) to (n, c)."""
    if x.ndim == 3 and not channels_first:
        return x.mean(dim=1)
    return x.flatten(2).mean(dim=2) if x.ndim > 2 else x


class LossPredictionClassifier(NeuralNetClassifier):
    """A skorch classifier that learns, beside its task, to rank samples by their loss.

    The module that is given becomes the ``backbone`` of a :class:`LossPredictingModule`; its ``forward`` stays as it
    is. :class:`skal.strategies.LearningLoss` queries by the predicted losses.

    Parameters
    ----------
    module, *args, **kwargs
        As in ``skorch.NeuralNetClassifier``. The criterion needs a ``reduction`` attribute, as torch's have.
    layers : list of str or None, default=None
        The layers whose outputs the loss is predicted from, by their names in ``module.named_modules()``. None takes up
        to four convolutional or linear layers, evenly spread, without the last.
    hidden : int, default=128
        Features that each of them is mapped to.
    loss_weight : float, default=1.0
        Of the ranking loss, beside the criterion.
    margin : float, default=1.0
        By how much the predicted losses of a pair should differ.
    cut_after : int or None or "auto", default="auto"
        After so many epochs the ranking loss no longer reaches the backbone. ``auto`` is 60 % of ``max_epochs``, the
        paper's 120 of 200; None is never.
    widths : list of int or None, default=None
        Channels of the layers' outputs. None looks at the data, which only ``fit`` and ``partial_fit`` have: set
        it, and ``layers``, to initialise the net without data, for ``load_params``.

    Examples
    --------
    >>> import torch
    >>> from skal.datasets import load
    >>> from skal.nets import CNN
    >>> digits = load("digits")
    >>> module = CNN(in_channels=1, image_size=8)
    >>> net = LossPredictionClassifier(module, criterion=torch.nn.CrossEntropyLoss, train_split=None, verbose=0)
    >>> net.fit(digits.X_train[:50], digits.y_train[:50]).module_.layers
    ['conv1', 'conv2', 'fc1', 'fc2']
    """

    def __init__(
        self,
        module: Any,
        *args: Any,
        layers: Any = None,
        hidden: int = 128,
        loss_weight: float = 1.0,
        margin: float = 1.0,
        cut_after: int | str | None = "auto",
        widths: Any = None,
        **kwargs: Any,
    ) -> None:
        self.layers = layers
        self.hidden = hidden
        self.loss_weight = loss_weight
        self.margin = margin
        self.cut_after = cut_after
        self.widths = widths
        super().__init__(module, *args, **kwargs)

    def fit(self, X: Any, y: Any, **fit_params: Any) -> LossPredictionClassifier:
        """Initialise and train, or train on with ``warm_start``."""
        with self._example(X, y):
            return super().fit(X, y, **fit_params)

    def partial_fit(self, X: Any, y: Any = None, classes: Any = None, **fit_params: Any) -> LossPredictionClassifier:
        """Train on, after initialising if that has not been done."""
        with self._example(X, y):
            return super().partial_fit(X, y, classes, **fit_params)

    def initialize_for(self, X: Any, y: Any = None) -> LossPredictionClassifier:
        """Initialise without training, with samples to see the layers' widths from."""
        with self._example(X, y):
            return self.initialize()

    @contextmanager
    def _example(self, X: Any, y: Any) -> Iterator[None]:
        """Keep a way to two samples at hand, for :meth:`initialize_module` to look at the module with."""
        if hasattr(self, "_data"):
            yield
            return
        self._data = (X, y)
        try:
            yield
        finally:
            del self._data

    def initialize_module(self) -> LossPredictionClassifier:
        """Make the module, and put the loss prediction beside it."""
        owner = type(self).__name__
        check_integer(owner, "hidden", self.hidden, 1)
        check_real(owner, "loss_weight", self.loss_weight, 0)
        check_real(owner, "margin", self.margin, 0)
        if self.cut_after != "auto":
            check_integer(owner, "cut_after", self.cut_after, 0, optional=True)
        super().initialize_module()
        module: nn.Module = self.module_  # type: ignore[has-type]
        if any(isinstance(part, LossPredictingModule) for part in module.modules()):
            return self
        layers, widths = self.layers, self.widths
        if layers is None or widths is None:
            layers, widths = self._look(module)
        self.module_ = LossPredictingModule(module, layers, widths, self.hidden)
        return self

    def _look(self, module: nn.Module) -> tuple[list[str], list[int]]:
        if not hasattr(self, "_data"):
            raise InvalidParameterError(
                f"The 'widths' and 'layers' parameters of {type(self).__name__} must be given when it is initialised "
                "without data. Got None instead. Call fit, or set both of them, for example from net.module_.layers."
            )
        iterator = self.get_iterator(self.get_dataset(*self._data), training=False)
        batch = tree_map(lambda x: x[:2] if isinstance(x, Tensor) else x, unpack_data(next(iter(iterator)))[0])
        with evaluating(module), torch.no_grad():
            return _find_layers(module, batch, self.layers)

    def on_epoch_begin(self, net: Any, dataset_train: Any = None, dataset_valid: Any = None, **kwargs: Any) -> None:
        """Cut the gradient to the backbone when it is time."""
        super().on_epoch_begin(net, dataset_train=dataset_train, dataset_valid=dataset_valid, **kwargs)
        limit: Any = round(0.6 * self.max_epochs) if self.cut_after == "auto" else self.cut_after
        done = len(self.history) - 1 - self._epochs_before
        for part in self.module_.modules():
            if isinstance(part, LossPredictingModule):
                part.cut = limit is not None and done >= limit

    def on_train_begin(self, net: Any, X: Any = None, y: Any = None, **kwargs: Any) -> None:
        """Count epochs from here."""
        super().on_train_begin(net, X=X, y=y, **kwargs)
        self._epochs_before = len(self.history)

    def get_loss(self, y_pred: Any, y_true: Any, X: Any = None, training: bool = False) -> Tensor:
        """The criterion, and while training the ranking loss too."""
        if not (training and isinstance(y_pred, tuple)):
            return super().get_loss(y_pred, y_true, X=X, training=training)
        output, predicted = y_pred
        task = super().get_loss(output, y_true, X=X, training=training)
        losses = self._sample_losses(output.detach(), y_true)
        return task + self.loss_weight * ranking_loss(predicted, losses, self.margin)

    def _sample_losses(self, output: Tensor, y_true: Any) -> Tensor:
        criterion: Any = getattr(self.criterion_, "_orig_mod", self.criterion_)
        if not hasattr(criterion, "reduction"):
            raise InvalidParameterError(
                f"The criterion of {type(self).__name__} must have a 'reduction' attribute that can be 'none', to give "
                f"one loss per sample. Got {type(criterion).__name__}, which has none. Use torch.nn.CrossEntropyLoss."
            )
        before, criterion.reduction = criterion.reduction, "none"
        try:
            with torch.no_grad():
                return super().get_loss(output, y_true).reshape(len(output), -1).mean(dim=1)
        finally:
            criterion.reduction = before


def _find_layers(module: nn.Module, batch: Any, wanted: Sequence[str] | None) -> tuple[list[str], list[int]]:
    """The layers to watch and their widths: those asked for, or up to four, evenly spread, without the last."""
    called: list[str] = []
    found: dict[str, Tensor] = {}
    convolutions = (nn.modules.conv._ConvNd, nn.Linear)
    names = [n for n, layer in module.named_modules() if isinstance(layer, convolutions)] if wanted is None else wanted
    with ExitStack() as stack:
        stack.enter_context(_watching(module, names, found))
        for name in names:
            hook = module.get_submodule(name).register_forward_hook(lambda *_, name=name: called.append(name))
            stack.callback(hook.remove)
        Network(module).output(batch)
    if wanted is not None:
        chosen = list(wanted)
    else:
        used = [name for name in dict.fromkeys(called) if name in found]
        used = used[:-1] or used
        chosen = [used[round(i)] for i in torch.linspace(0, len(used) - 1, min(4, len(used))).tolist()] if used else []
    missing = [name for name in chosen if name not in found]
    if missing or not chosen:
        raise UnsupportedLayerError(
            f"Each of the layers of LossPredictionClassifier must return a tensor of one row per sample. Got {missing} "
            "which the module's forward does not call, or no layers at all. Name others in layers."
        )
    return chosen, [found[name].shape[1] for name in chosen]
