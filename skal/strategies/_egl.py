# SPDX-License-Identifier: BSD-3-Clause
"""Expected gradient length (Settles et al. 2008)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from skal.base import ScoreStrategy, query_function
from skal.context import QueryContext, TangentEngine
from skal.exceptions import UnsupportedLayerError
from skal.tangent._cotangents import Cotangent, LossCotangent
from skal.tangent._factors import Gradients
from skal.validation import Choice


class EGL(ScoreStrategy):
    """Query the samples whose label is expected to give the longest gradient.

    The score [1]_ is ``Σ_y p(y|x) ‖∇ ℓ(f(x), y)‖``, with ℓ the training loss and p the network's own prediction. The
    norm is taken before the expectation: the expected gradient of the cross-entropy is zero.

    Parameters
    ----------
    layers : {"all", "last"}, default="all"
        ``all`` differentiates all trainable parameters, with one backward pass over the pool for every class. ``last``
        takes those of the last layer, in closed form, with a forward pass alone.
    backend : {"auto", "structured", "backpack", "func"}, default="auto"
        For ``all``: how per-sample gradients are computed; see :mod:`skal.tangent`.
    subset : int or None, default=None
        Score only this many random samples of the pool.
    random_state : None, int, Generator or RandomState, default=None
        For the choice of the subset.

    See Also
    --------
    DynamicAL : Takes the predicted label for the true one, and counts the labelled samples' gradients too.
    BADGE : Spreads a batch over the gradients of the last layer.

    References
    ----------
    .. [1] Settles, Craven and Ray, "Multiple-Instance Active Learning", NIPS 2007.

    Examples
    --------
    >>> import torch
    >>> from skorch import NeuralNetClassifier
    >>> from skal import ActiveLearner
    >>> from skal.datasets import load
    >>> from skal.nets import MLP
    >>> from skal.strategies import EGL, egl
    >>> digits = load("digits")
    >>> net = NeuralNetClassifier(MLP(64, 10), criterion=torch.nn.CrossEntropyLoss, train_split=None, verbose=0)
    >>> learner = ActiveLearner(net, EGL(), X_training=digits.X_train[:50], y_training=digits.y_train[:50])
    >>> X_pool = digits.X_train[50:250]
    >>> indices, samples = learner.query(X_pool, n_instances=5)
    >>> samples.shape
    (5, 1, 8, 8)
    >>> bool((egl(learner, X_pool, 5) == indices).all())  # the same, as a function
    True
    """

    constraints: ClassVar = {
        "layers": Choice("all", "last"),
        "backend": Choice("auto", "structured", "backpack", "func"),
    }

    def __init__(
        self, *, layers: str = "all", backend: str = "auto", subset: int | None = None, random_state: Any = None
    ) -> None:
        self.layers = layers
        self.backend = backend
        self.subset = subset
        self.random_state = random_state

    def _score(self, context: QueryContext) -> np.ndarray:
        return (self._all(context) if self.layers == "all" else self._last(context)).cpu().numpy()

    def _engine(self, context: QueryContext) -> TangentEngine:
        return context.tangent_engine(self.backend, network=context.network)

    def _all(self, context: QueryContext) -> Tensor:
        engine = self._engine(context)

        def expected_length(gradients: Iterator[Gradients], n: int) -> Tensor:
            """(n,) norms of the gradients for every label, weighted with its probability."""
            norms = engine.all_norms(gradients, n, engine.n_classes).clamp_min(0).sqrt()
            return (engine.network.logits_to_proba(engine.logits().double()) * norms).sum(dim=1)

        labels: list[Cotangent] = [LossCotangent(engine.network.loss, label) for label in range(engine.n_classes)]
        # the gradients at the layers' outputs are kept for all labels, so that the inputs are looked at once
        size = engine.chunk_size(engine.n_classes * engine.activation_bytes)
        return engine.collect(context.pool, labels, expected_length, batch_size=size)

    def _last(self, context: QueryContext) -> Tensor:
        features, logits = context.embeddings()
        last = context.last_layer
        if not last.is_linear_end:
            raise UnsupportedLayerError(
                f"With layers='last' the network given to {type(self).__name__} must return what a linear last layer "
                f"gives. Got the layer {last.name!r}, a {type(last.layer).__name__} whose output is changed before it "
                "is returned. Use layers='all'."
            )
        logits = logits.double()
        lengths = context.logit_network.loss.lengths(logits)
        proba, bias = context.network.logits_to_proba(logits), getattr(last.layer, "bias", None)
        return last_layer_egl(proba, lengths, features, bias is not None and bias.requires_grad)


def last_layer_egl(proba: Tensor, lengths: Tensor, features: Tensor, bias: bool = True) -> Tensor:
    """``Σ_y p_y ‖q_y‖ · √(‖φ‖² + 1)``, the 1 for a bias, in float64.

    Parameters
    ----------
    proba : (N, C) tensor
    lengths : (N, C) tensor
        ``‖q_y‖``, of the loss's derivative with respect to the logits for every label.
    features : (N, d) tensor
    bias : bool

    Examples
    --------
    >>> import torch
    >>> lengths = torch.full((1, 2), 0.5**0.5)  # p = (½, ½): ‖p − e_y‖ = √½ for both
    >>> last_layer_egl(torch.full((1, 2), 0.5), lengths, torch.tensor([[1.0, 1.0, 1.0]]))
    tensor([1.4142], dtype=torch.float64)
    """
    inputs = features.double().square().sum(dim=1) + bias
    return (proba.double() * lengths).sum(dim=1) * inputs.sqrt()


egl = query_function(EGL, "egl", __name__)
