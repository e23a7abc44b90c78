# SPDX-License-Identifier: BSD-3-Clause
"""FixMatch (Sohn et al. 2020) as a skorch classifier, with DARP (Kim et al. 2020) as an option."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import torch
from skorch.callbacks import PrintLog
from skorch.dataset import Dataset as SkorchDataset
from skorch.dataset import unpack_data
from skorch.utils import to_tensor
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset

from skal._core.containers import check_finite
from skal._core.estimators import check_net_takes_weights
from skal._core.guard import preserve_rng
from skal._core.network import Network
from skal.semi_supervised._averaging import AveragingClassifier, without_decay_of_vectors
from skal.semi_supervised._pseudo_labels import pseudo_label_loss
from skal.semi_supervised._rows import (
    BatchwiseRows,
    PairedInputs,
    Permutations,
    check_batch,
    check_labels,
    is_sliceable,
    keep_batch,
    labelled_rows,
    rows_in,
)
from skal.semi_supervised._training import Training
from skal.validation import (
    Choice,
    Constrained,
    Constraint,
    Integer,
    Real,
    Seed,
    make_generator,
)


class FixMatchClassifier(Constrained, AveragingClassifier):
    """A skorch classifier that learns from unlabelled samples too: ``fit(X, y)`` with ``y == -1`` for them.

    Every iteration takes a batch of labelled samples, weakly augmented, and ``mu`` times as many from all samples.
    Where the network is sure of a weakly augmented sample, its prediction is the label of the strongly augmented one.
    Predictions come from an exponential moving average of the parameters, which ``module_`` holds after ``fit``.

    Parameters
    ----------
    module : nn.Module class or instance
        Returns logits.
    *args
        As in ``skorch.NeuralNetClassifier``.
    criterion : torch criterion class, default=CrossEntropyLoss
        Of the labelled samples.
    optimizer : torch optimiser class, default=SGD
        SGD has Nesterov's momentum 0.9 by default. Weight decay, 5e-4 by default, spares biases and normalisation
        layers, whatever the optimiser.
    lr : float, default=0.03
        Learning rate.
    batch_size : int, default=64
        Labelled samples per iteration.
    train_split : callable or None, default=None
        As in skorch; by default nothing is held out.
    augment : "image" or "tabular" or (weak, strong), default="image"
        The two augmentations: callables from a batch on the network's device to a batch. ``"image"`` shifts (it does
        not mirror) and distorts images in [0, 1], see :class:`WeakImage` and :class:`StrongImage`; ``"tabular"`` adds
        noise to rows of numbers, see :class:`WeakJitter` and :class:`StrongJitter`.
    threshold : float, default=0.95
        Probability from which the network counts as sure.
    mu : int, default=7
        Size of the unlabelled batches, in labelled ones. Labelled samples take part in them.
    lambda_u : float, default=1.0
        Weight of the unlabelled loss.
    ema_decay : float, default=0.999
        Decay of the moving average; smaller in the first steps. 0 is no averaging.
    cosine : bool, default=True
        Whether the learning rate falls as ``cos(7πt / 16T)`` over the T iterations of a fit. False leaves it to you,
        and to callbacks such as skorch's ``LRScheduler``.
    iterations_per_epoch : int or None, default=None
        None is one pass over all samples in the unlabelled batches. ``max_epochs`` times this is T.
    darp : None or "uniform" or "labels" or (C,) array, default=None
        Refine the pseudo-labels so that classes have these shares: equal, as among the labels (one added to each
        class), or given. See :func:`darp`.
    darp_every : int, default=10
        Iterations between refinements.
    darp_warmup : float, default=0.4
        Share of the training before the first one.
    darp_alpha : float or None, default=2.0
        See :func:`darp`.
    random_state : int, RandomState, Generator or None, default=None
        Seeds everything that ``fit`` draws (initial weights, batches, augmentation, dropout) and leaves the global
        generators alone. None uses torch's global generator, as skorch does.
    **kwargs
        As in ``skorch.NeuralNetClassifier``.

    Attributes
    ----------
    module_ : nn.Module
        With the averaged parameters after ``fit``. ``partial_fit`` continues from the trained ones.
    history : skorch History
        Per epoch also ``labelled_loss``, ``unlabelled_loss``, ``mask_rate`` (share of samples that were sure enough),
        ``pseudo_distribution`` (their classes' shares), ``pseudo_accuracy`` (if ``fit`` was given ``y_true``) and
        ``darp_residual`` (if ``darp`` is on: the largest relative deviation of a class from its share).

    Examples
    --------
    >>> import numpy as np
    >>> from skal.datasets import load
    >>> from skal.nets import MLP
    >>> from skal.semi_supervised import FixMatchClassifier
    >>> digits = load("digits")
    >>> y = np.full(len(digits.y_train), -1)
    >>> y[:50] = digits.y_train[:50]
    >>> net = FixMatchClassifier(MLP, module__n_features=64, max_epochs=2, verbose=0, random_state=0)
    >>> net.fit(digits.X_train, y).predict(digits.X_test[:3]).shape
    (3,)
    """

    constraints: ClassVar[dict[str, Constraint]] = {
        "threshold": Real(0, 1),
        "mu": Integer(1, 10**6),
        "lambda_u": Real(0),
        "ema_decay": Real(0, 1),
        "cosine": Choice(True, False, remedy="Pass False to leave the learning rate to callbacks."),
        "iterations_per_epoch": Integer(1, 10**8, optional=True),
        "darp_every": Integer(1),
        "darp_warmup": Real(0, 1),
        "darp_alpha": Real(1, optional=True, remedy="Pass None to keep all entries."),
        "random_state": Seed(),
    }
    uses_unlabelled = True

    _is_seeded = False
    _training: Any = None  # a Training, while there is one

    def __init__(
        self,
        module: Any,
        *args: Any,
        criterion: Any = nn.CrossEntropyLoss,
        optimizer: Any = torch.optim.SGD,
        lr: float = 0.03,
        batch_size: int = 64,
        train_split: Any = None,
        augment: Any = "image",
        threshold: float = 0.95,
        mu: int = 7,
        lambda_u: float = 1.0,
        ema_decay: float = 0.999,
        cosine: bool = True,
        iterations_per_epoch: int | None = None,
        darp: Any = None,
        darp_every: int = 10,
        darp_warmup: float = 0.4,
        darp_alpha: float | None = 2.0,
        random_state: Any = None,
        **kwargs: Any,
    ) -> None:
        self.augment = augment
        self.threshold = threshold
        self.mu = mu
        self.lambda_u = lambda_u
        self.ema_decay = ema_decay
        self.cosine = cosine
        self.iterations_per_epoch = iterations_per_epoch
        self.darp = darp
        self.darp_every = darp_every
        self.darp_warmup = darp_warmup
        self.darp_alpha = darp_alpha
        self.random_state = random_state
        named = {"criterion": criterion, "optimizer": optimizer, "lr": lr, "batch_size": batch_size}
        super().__init__(module, *args, train_split=train_split, **named, **kwargs)

    def fit(self, X: Any, y: Any = None, y_true: Any = None, **fit_params: Any) -> FixMatchClassifier:
        """Initialise (unless ``warm_start``) and train.

        Parameters
        ----------
        X : array, tensor, dict of them, or Dataset
            All samples, labelled or not.
        y : (n,) integers or None, default=None
            Labels, −1 for unlabelled; None if a Dataset of pairs brings them.
        y_true : (n,) integers or None, default=None
            All labels, for ``pseudo_accuracy`` in the history and for nothing else; −1 where unknown.
        **fit_params
            As in skorch.
        """
        check_net_takes_weights(self, fit_params)
        with self._seed():
            fitted: FixMatchClassifier = super().fit(X, y, y_true=y_true, **fit_params)
            return fitted

    def partial_fit(
        self, X: Any, y: Any = None, classes: Any = None, y_true: Any = None, **fit_params: Any
    ) -> FixMatchClassifier:
        """Continue training, after initialising if that has not been done; see :meth:`fit`."""
        check_net_takes_weights(self, fit_params)
        with self._seed():
            fitted: FixMatchClassifier = super().partial_fit(X, y, classes, y_true=y_true, **fit_params)
            return fitted

    @contextmanager
    def _seed(self) -> Iterator[None]:
        if self.random_state is None or self._is_seeded:
            yield
            return
        seed = int(make_generator(type(self).__name__, self.random_state).integers(2**63))
        self._is_seeded = True
        try:
            with preserve_rng():
                torch.manual_seed(seed)
                np.random.seed(seed % 2**32)  # module and callbacks may draw from it
                yield
        finally:
            self._is_seeded = False

    def fit_loop(
        self, X: Any, y: Any = None, epochs: int | None = None, y_true: Any = None, **fit_params: Any
    ) -> FixMatchClassifier:
        """Train for this many epochs; see :meth:`fit`."""
        self.check_params()
        run = self._training = Training(self, X, y, y_true, self.max_epochs if epochs is None else epochs)
        self.classes_inferred_ = np.arange(run.n_classes)
        try:
            fitted: FixMatchClassifier = super().fit_loop(X, y, epochs, **fit_params)
            return fitted
        finally:
            run.scale_learning_rates(1.0)
            self._training = None

    def check_data(self, X: Any, y: Any = None) -> None:
        """Nothing: :meth:`fit_loop` has checked more by then than skorch does here.

        Parameters
        ----------
        X, y : object
            Not looked at.
        """

    def check_params(self) -> None:
        """Refuse parameters that are not what was declared, and batches of no samples."""
        super().check_params()
        settings = self.get_params_for("iterator_train")
        name = "iterator_train__batch_size" if "batch_size" in settings else "batch_size"
        size = settings.get("batch_size", self.batch_size)
        if size != -1:
            remedy = "Pass -1 for batches of all labelled samples."
            Integer(1, remedy=remedy).check(type(self).__name__, name, size)

    def get_split_datasets(self, X: Any, y: Any = None, **fit_params: Any) -> tuple[Any, Any]:
        """The labelled samples for training, and the part that ``train_split`` sets aside for validation."""
        run = self._training
        paired = PairedInputs(self.get_dataset(X), torch.as_tensor(run.labels, device="cpu"))
        labelled: Dataset[Any] = Subset(paired, run.labelled.tolist())
        if not self.train_split:
            return labelled, None
        parts: tuple[Any, Any] = self.train_split(labelled, run.labels[run.labelled], **fit_params)
        return parts

    def get_iterator(self, dataset: Any, training: bool = False) -> Any:
        """Batches; for training as many as an epoch has iterations."""
        if not training:
            return super().get_iterator(dataset, training=False)
        run = self._training
        if run.has_unlabelled:
            numbers = torch.arange(len(run.labels), device="cpu")
            everything = PairedInputs(self.get_dataset(run.X), numbers)
            run.unlabelled_batches = iter(self._loader(everything, numbers, self.mu * run.batch_size, None))
        return self._loader(dataset, torch.as_tensor(run.labels, device="cpu"), run.batch_size, run.n_per_epoch)

    def _loader(self, dataset: Any, values: Tensor, size: int, n_batches: int | None) -> Any:
        settings = self.get_params_for("iterator_train")
        for name in ("batch_size", "shuffle", "sampler", "drop_last"):
            settings.pop(name, None)
        rows = rows_in(dataset)
        plain = self.dataset is SkorchDataset and "collate_fn" not in settings and is_sliceable(self._training.X)
        if plain and rows is not None:
            dataset, settings["collate_fn"] = BatchwiseRows(self._training.X, values, rows), keep_batch
        sampler = Permutations(len(dataset), None if n_batches is None else n_batches * size)
        return self.iterator_train(dataset, batch_size=size, sampler=sampler, **settings)

    def train_step(self, batch: Any, **fit_params: Any) -> dict[str, Any]:
        """One step of the schedule and of the optimiser, and of the average."""
        run = self._training
        if self.cosine:
            run.scale_learning_rates(math.cos(7 * math.pi * run.n_done / (16 * run.n_total)))
        run.unlabelled_batch = next(run.unlabelled_batches, None)
        step = super().train_step(batch, **fit_params)
        run.n_done += 1
        return step

    def train_step_single(self, batch: Any, **fit_params: Any) -> dict[str, Any]:
        """The loss of a labelled batch and of the unlabelled one drawn with it, and its gradient."""
        self._set_training(True)
        run, network = self._training, Network(self)
        Xi, yi = unpack_data(batch)
        if isinstance(run.X, Dataset):
            check_batch(Xi, run.X, run.labelled)
        inputs = run.weak(to_tensor(Xi, device=self.device))
        if run.unlabelled_batch is not None:
            Xu, rows = run.unlabelled_batch
            if isinstance(run.X, Dataset):
                check_finite(Xu, "X", rows.numpy())
            Xu, rows = to_tensor(Xu, device=self.device), rows.to(self.device)
            with torch.no_grad():
                proba = network.to_proba(_first_output(self.infer(run.weak(Xu), **fit_params)))
                if run.refined_labels is not None:
                    proba = run.refined_labels(rows, proba, run.n_done)
            inputs = _join(inputs, run.strong(Xu))
        output = _first_output(self.infer(inputs, **fit_params))
        y_pred = output[: len(yi)]
        loss = self.get_loss(y_pred, yi, X=Xi, training=True)
        run.statistics.add_labelled(loss)
        if run.unlabelled_batch is not None:
            logits = network.to_logits(output[len(yi) :])
            unlabelled_loss, kept, labels = pseudo_label_loss(logits, proba, self.threshold)
            run.statistics.add_unlabelled(unlabelled_loss, kept, labels, rows)
            loss = loss + self.lambda_u * unlabelled_loss
        loss.backward()
        return {"loss": loss, "y_pred": y_pred}

    @property
    def _default_callbacks(self) -> list[tuple[str, Any]]:
        callbacks = [(name, callback) for name, callback in super()._default_callbacks if name != "print_log"]
        return [*callbacks, ("print_log", PrintLog(keys_ignored="pseudo_distribution"))]

    def on_epoch_end(self, net: Any, dataset_train: Any = None, dataset_valid: Any = None, **kwargs: Any) -> None:
        """Write statistics of the epoch's pseudo-labels into the history."""
        super().on_epoch_end(net, dataset_train=dataset_train, dataset_valid=dataset_valid, **kwargs)
        run = self._training
        for name, value in run.statistics.summary().items():
            self.history.record(name, value)
        if run.refined_labels is not None:
            self.history.record("darp_residual", run.refined_labels.residual)

    def get_params_for_optimizer(self, prefix: str, named_parameters: Any) -> tuple[Any, dict[str, Any]]:
        """As in skorch, with FixMatch's defaults, and no weight decay on biases and normalisation layers."""
        named = [(name, p) for name, p in named_parameters if p.requires_grad]
        args, kwargs = super().get_params_for_optimizer(prefix, iter(named))
        if prefix != "optimizer":
            return args, kwargs
        if self.optimizer is torch.optim.SGD:
            kwargs = {"momentum": 0.9, "nesterov": True, "weight_decay": 5e-4} | kwargs
            kwargs["nesterov"] = kwargs["nesterov"] and kwargs["momentum"] > 0
        return (without_decay_of_vectors(args[0]),), kwargs

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy on the labelled samples; samples with −1, as in a fold of a search, do not count."""
        labels = check_labels(type(self).__name__, X, y)
        rows = labelled_rows(f"the score of {type(self).__name__}", labels)
        right = self.predict(X)[rows] == labels[rows]
        return float(np.average(right, weights=None if sample_weight is None else np.asarray(sample_weight)[rows]))


def _first_output(output: Any) -> Tensor:
    logits: Tensor = output[0] if isinstance(output, tuple) else output
    return logits


def _join(first: Any, second: Any) -> Any:
    if isinstance(first, Mapping):
        return {key: _join(first[key], second[key]) for key in first}
    if isinstance(first, (tuple, list)):
        return type(first)(map(_join, first, second))
    return torch.cat([first, second])
