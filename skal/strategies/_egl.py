# SPDX-License-Identifier: BSD-3-Clause
"""Expected gradient length (Settles et al. 2008)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor

from skal._core.cost import Passes
from skal._core.outputs import logits_to_proba
from skal.base import ScoreStrategy, query_function
from skal.context import QueryContext
from skal.exceptions import UnsupportedLayerError
from skal.tangent._cotangents import Cotangent, LossCotangent
from skal.tangent._factors import Gradients
from skal.tangent._tangent_engine import TangentEngine
from skal.validation import check_choice


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
    batch_size : int, default=256
        Samples per network pass, at most.
    max_memory : int, str or None, default=None
        For ``all``: bound on the working memory, such as ``"2GB"``; None is 1 GB.
    random_state : None, int, Generator or RandomState, default=None
        For the choice of the subset.
    n_jobs : int or None, default=None
        Workers that share the passes over the pool, as in scikit-learn: None is 1, or what ``joblib.parallel_config``
        says; -1 is all processors.
    progress : bool, default=False
        Show a bar over the parts of the pool.

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

    def __init__(
        self,
        *,
        layers: str = "all",
        backend: str = "auto",
        subset: int | None = None,
        batch_size: int = 256,
        max_memory: int | str | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
        progress: bool = False,
    ) -> None:
        self.layers = layers
        self.backend = backend
        self.subset = subset
        self.batch_size = batch_size
        self.max_memory = max_memory
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.progress = progress

    def _check_params(self) -> None:
        super()._check_params()
        check_choice(type(self).__name__, "layers", self.layers, ["all", "last"])
        check_choice(type(self).__name__, "backend", self.backend, ["auto", "structured", "backpack", "func"])

    def _score(self, context: QueryContext) -> np.ndarray:
        return (self._all(context) if self.layers == "all" else self._last(context)).cpu().numpy()

    def _passes(self, context: QueryContext, n: int, n_instances: int) -> Passes:
        if self.layers == "last":
            return Passes(forward=n)
        return Passes(forward=n, backward=context.n_classes * n)

    def _memory(self, context: QueryContext, n: int, n_instances: int) -> int:
        if self.layers == "last":
            return n * (context.n_classes * 32 + context.last_layer.width * 12)
        engine = self._engine(context)
        kept = engine.n_classes * engine.activation_bytes
        return 24 * n + min(engine.memory, engine.chunk_size(kept) * (engine.sample_bytes + kept))

    def _engine(self, context: QueryContext) -> TangentEngine:
        return context.engine(self.backend, network=context.network)

    def _all(self, context: QueryContext) -> Tensor:
        engine = self._engine(context)

        def expected_length(gradients: Iterator[Gradients], n: int) -> Tensor:
            """(n,) norms of the gradients for every label, weighted with its probability."""
            norms = engine.all_norms(gradients, n, engine.n_classes).clamp_min(0).sqrt()
            return (logits_to_proba(engine.logits().double(), engine.network.net) * norms).sum(dim=1)

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
        proba, bias = logits_to_proba(logits, context.net), getattr(last.layer, "bias", None)
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
