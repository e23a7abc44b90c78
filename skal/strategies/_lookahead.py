# SPDX-License-Identifier: BSD-3-Clause
"""NTK look-ahead: query what would change the outputs most, without retraining (Mohamadi, Bae and Sutherland 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from skal._lookahead.criteria import CRITERIA
from skal._lookahead.query import greedy_batch, pool_scores
from skal._lookahead.request import ONE_BY_ONE, Settings
from skal.base import ANY_TASK, ScoreStrategy, query_function
from skal.context import QueryContext
from skal.exceptions import InvalidParameterError
from skal.strategies._kernel_source import KERNELS, FeatureKernelSource
from skal.strategies._linear_posterior import settle_features
from skal.tangent._layers import LayersConstraint
from skal.tangent._sketch import MOST_FEATURES
from skal.validation import Choice, Features, Integer, Real, Target, is_auto

_TANGENT_KERNELS = ["pntk", "logit", "trace", "entk"]
_NUMBER = "Pass an integer > 0, None or 'auto'."


class NTKLookahead(ScoreStrategy):
    """Query the samples whose labels would tell most about the network's outputs, without training it.

    The network is replaced by its linearisation in the parameters. Training that to convergence on one more sample has
    a closed form [1]_, from which every sample's score follows without training anything.

    Parameters
    ----------
    criterion : {"variance", "mlmoc", "emoc", "eer"}, default="variance"
        ``variance`` is by how much a label is expected to reduce the variance of the outputs over the pool, weighed by
        where the network is unsure; no label is guessed. The others are the paper's: ``mlmoc`` sums how far the outputs
        would move over the pool if the predicted label were the true one; ``emoc`` is its expectation over the labels
        under the network's probabilities; ``eer`` is minus the entropy that the outputs are expected to be left with.
    kernel : {"auto", "pntk", "logit", "trace", "entk", "rbf", "laplace", "linear", "forest"}, default="auto"
        The tangent kernel, see :func:`skal.tangent.tangent_kernel`; with ``variance`` also a kernel on features, for
        any classifier. ``auto`` is the tangent kernel for a network that is trained, and ``rbf`` where it is frozen up
        to its last layer, where ``features`` are given, and where the classifier is no network. The tangent kernel is
        then ``pntk``, or ``trace`` where the outputs sum to a constant and the pseudo-NTK vanishes. ``trace`` is always
        exact. ``entk`` has a C × C block for every pair of samples: for small problems.
    layers : {"all", "last", "last_blocks", "adapters"} or callable, default="all"
        Which trained parameters the tangent kernel is of; see :func:`skal.tangent.tangent_kernel`. ``last_blocks`` is
        for large networks that are fine-tuned, ``adapters`` for those with LoRA and the like.
    features : {"auto", "input", "last_layer", "tangent"}, transformer, callable or nn.Module, default="auto"
        What the kernels ``rbf`` (``exp(−‖φ − φ'‖²/σ²)``), ``laplace`` (``exp(−‖φ − φ'‖/σ)``) and ``linear`` compare,
        scaled to length 1; as in :class:`MaxHerding`. ``tangent`` are sketched gradients.
    radius : "auto" or float, default="auto"
        The kernel's σ. ``auto`` is the median distance of the labelled samples to their nearest labelled neighbours.
    retraining : {"linearized", "direct", "one_step", "retrain", "infinite", "gp"}, default="linearized"
        How the outputs after retraining are found. The others are what ``linearized`` is measured against: ``direct``
        solves the linearised problem for every sample and label anew; ``one_step`` takes one step of the optimiser;
        ``retrain`` trains a copy of the network as long as its ``fit`` would; ``infinite`` linearises with the kernel
        of an infinitely wide fully connected network of the same depth; ``gp`` is a Gaussian process with that kernel.
    reference : {"network", "linearized"}, default="network"
        Where change is measured from: the network's outputs, or those of its linearisation trained on the labels at
        hand. The two are the same for a network that fits its labels.
    batch : {"auto", "top", "greedy"}, default="auto"
        ``top`` takes the highest scores. ``greedy`` takes one sample after the other, each as if those before had been
        labelled (as predicted, for the criteria that need a label). ``auto`` is ``greedy`` for ``variance`` and ``top``
        for the others, as in the paper.
    n_features : "auto", int or None, default="auto"
        Length of the sketch that stands for the gradients of those layers that are not kept exactly; ``"auto"`` keeps
        up to 4096 numbers as they are, and sketches more of them to 1024 (4096 for the paper's criteria). None computes
        the exact kernel between all samples.
    evaluation : "auto", int or None, default="auto"
        Number of random samples of the pool over which the change is summed, standing for all of it; ``"auto"`` is
        2000. None is the whole pool.
    target : None, samples, or array-like of numbers, default=None
        Where the variance is to be reduced, if not over the pool: the samples that the model will be used on, or flat
        numbers, a weight >= 0 for each sample of the pool; see :class:`MaxHerding`. ``evaluation`` counts these. Only
        for ``variance``.
    ridge : float or "auto", default="auto"
        Added to the kernel of the labelled samples' diagonal, as a part of its mean. ``auto`` is 1e-2 for ``variance``
        (0.1 with a kernel on features, 1e-4 for a regression) and 1e-4 for the others.
    backend : {"auto", "structured", "backpack", "func"}, default="auto"
        How per-sample gradients are computed; see :mod:`skal.tangent`.
    subset : int or None, default=None
        Score only this many random samples of the pool; the change is summed over those, too.
    random_state : None, int, Generator or RandomState, default=None
        For the subset, the evaluation set and the sketch.

    Warns
    -----
    CrossEntropyWarning
        With ``mlmoc``, ``emoc`` and ``eer``, if the network was trained with anything but squared loss and
        ``reference="network"``. The labels are then compared with the probabilities, not with the outputs, and change
        is measured as if ``reference="linearized"`` had been asked for.

    See Also
    --------
    skal.LinearizedLearner : Label after label with the linearised network, without training in between.
    DynamicAL : The first step of training instead of its end.
    skal.tangent.tangent_kernel : The kernel by itself.

    Notes
    -----
    A copy of a labelled sample would change nothing: it scores 0, and with ``eer`` no more than any other sample. The
    metrics of a greedy batch are the scores at the time of each pick; :meth:`scores` gives those of the first one.

    A regression has the criterion ``variance`` alone: ``Σ_z S(z, x)² / (s² + S(x, x))``, with the trace kernel for
    several targets. Where the regressor is no network, the kernel is by default the covariance of the predictions of an
    ensemble's members, or linear in the prepared inputs.

    References
    ----------
    .. [1] Mohamadi, Bae and Sutherland, "Making Look-Ahead Active Learning Strategies Feasible with Neural Tangent
       Kernels", NeurIPS 2022.

    Examples
    --------
    >>> import torch
    >>> from skorch import NeuralNetClassifier
    >>> from skal import ActiveLearner
    >>> from skal.datasets import load
    >>> from skal.nets import MLP
    >>> from skal.strategies import NTKLookahead, ntk_lookahead
    >>> digits = load("digits")
    >>> net = NeuralNetClassifier(MLP(64, 10), criterion=torch.nn.CrossEntropyLoss, train_split=None, verbose=0)
    >>> strategy = NTKLookahead(random_state=0)
    >>> learner = ActiveLearner(net, strategy, X_training=digits.X_train[:50], y_training=digits.y_train[:50])
    >>> X_pool = digits.X_train[50:250]
    >>> indices, samples = learner.query(X_pool, n_instances=5)
    >>> samples.shape
    (5, 1, 8, 8)
    >>> bool((ntk_lookahead(learner, X_pool, 5, random_state=0) == indices).all())  # the same, as a function
    True

    With any other classifier, or with frozen features, the kernel is ``rbf`` on the features:

    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = digits.X_train.reshape(-1, 64), digits.y_train
    >>> learner = ActiveLearner(LogisticRegression(max_iter=1000), strategy, X_training=X[:50], y_training=y[:50])
    >>> learner.query(X[50:250], n_instances=5)[1].shape
    (5, 64)
    """

    constraints: ClassVar = {
        "criterion": Choice("variance", *CRITERIA),
        "kernel": Choice("auto", *_TANGENT_KERNELS, *KERNELS),
        "retraining": Choice("linearized", "infinite", "gp", *ONE_BY_ONE),
        "reference": Choice("network", "linearized"),
        "batch": Choice("auto", "top", "greedy"),
        "backend": Choice("auto", "structured", "backpack", "func"),
        "layers": LayersConstraint(),
        "features": Features(),
        "n_features": Integer(1, MOST_FEATURES, optional=True, words=("auto",), remedy=_NUMBER),
        "evaluation": Integer(1, MOST_FEATURES, optional=True, words=("auto",), remedy=_NUMBER),
        "radius": Real(1e-12, 1e12, words=("auto",), remedy="Pass a number > 0, or 'auto'."),
        "target": Target(),
        "ridge": Real(0, 1e6, words=("auto",), remedy="Pass a number >= 0, such as 1e-2, or 'auto'."),
    }
    needs_labels = True

    @property
    def tasks(self) -> Sequence[str]:  # type: ignore[override]
        """Variances need no guess at a label; the other criteria guess a class."""
        return ANY_TASK if self.criterion == "variance" else ("classification",)

    def __init__(
        self,
        *,
        criterion: str = "variance",
        kernel: str = "auto",
        layers: Any = "all",
        features: Any = "auto",
        radius: float | str = "auto",
        retraining: str = "linearized",
        reference: str = "network",
        batch: str = "auto",
        n_features: int | str | None = "auto",
        evaluation: int | str | None = "auto",
        target: Any = None,
        ridge: float | str = "auto",
        backend: str = "auto",
        subset: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.criterion = criterion
        self.kernel = kernel
        self.layers = layers
        self.features = features
        self.radius = radius
        self.retraining = retraining
        self.reference = reference
        self.batch = batch
        self.n_features = n_features
        self.evaluation = evaluation
        self.target = target
        self.ridge = ridge
        self.backend = backend
        self.subset = subset
        self.random_state = random_state

    @property
    def scores_first_pick(self) -> bool:  # type: ignore[override]
        """True if a batch is greedy."""
        return Settings.of(self).batch == "greedy"

    @property
    def draws_from_pool(self) -> bool:  # type: ignore[override]
        """True if the evaluation set is drawn at random from the pool; ``"auto"`` does so for large pools."""
        return isinstance(self.evaluation, int)

    def check_params(self) -> None:
        """Kernels on features go with ``variance``, and tangent kernels have no features; variances need a kernel."""
        super().check_params()
        on_features, has_features = self.kernel in KERNELS, not is_auto(self.features)
        variance, closed = self.criterion == "variance", self.retraining not in ONE_BY_ONE
        given = f"kernel={self.kernel!r}" if variance else f"criterion={self.criterion!r}"
        retraining = f"retraining={self.retraining!r}"
        refused = ""
        if on_features and not variance:
            refused, expected, remedy = "kernel", f"a tangent kernel with {given}", "Use 'auto' or 'pntk'."
        elif has_features and (self.kernel in _TANGENT_KERNELS or not variance):
            refused, expected = "features", f"'auto' with {given}"
            remedy = "Use kernel='rbf', 'laplace' or 'linear' with criterion='variance'."
        elif self.retraining != "linearized" and (has_features or on_features):
            refused, expected = "retraining", "'linearized' with a kernel on features"
            remedy = "Leave it at its default."
        elif variance and self.retraining not in ("linearized", "infinite"):
            refused, expected = "criterion", f"'mlmoc', 'emoc' or 'eer' with {retraining}"
            remedy = "Variances need a kernel: use retraining='linearized', or name another criterion."
        elif self._picks_layers and (has_features or on_features or self.retraining != "linearized"):
            refused, expected = "layers", "'all' with a kernel on features or another retraining"
            remedy = "Only tangent kernels are of chosen layers."
        elif self.target is not None and not variance:
            refused, expected, remedy = "target", f"None with {given}", "Use criterion='variance', the default."
        elif self.batch == "greedy" and not closed:
            refused, expected = "batch", f"'top' with {retraining}"
            remedy = "Greedy batches need a closed form: use retraining='linearized'."
        if refused:
            got = getattr(self, refused)
            raise InvalidParameterError.for_parameter(type(self).__name__, refused, expected, got, remedy)

    @property
    def needs_network(self) -> bool:  # type: ignore[override]
        """True if a tangent kernel is asked for."""
        tangent = self.kernel in _TANGENT_KERNELS or self._picks_layers
        return self.criterion != "variance" or tangent or self.retraining != "linearized"

    @property
    def _picks_layers(self) -> bool:
        return not (isinstance(self.layers, str) and self.layers == "all")

    def _feature_kernel(self, context: QueryContext) -> str | None:
        """The kernel on features that this query uses; None for a tangent kernel."""
        if self.needs_network or self.kernel in KERNELS:
            return None if self.needs_network else self.kernel
        given = not is_auto(self.features)
        if given or not context.has_network:
            return "rbf"
        frozen = any(not parameter.requires_grad for parameter in context.network.module.parameters())
        return "rbf" if frozen and context.only_head_is_trained else None

    def _feature_source(self, context: QueryContext) -> FeatureKernelSource | None:
        """The source of posteriors for a kernel on features."""
        kernel = self._feature_kernel(context)
        if kernel is None:
            return None
        ridge = (context.meaning.label_noise or 0.1) if isinstance(self.ridge, str) else float(self.ridge)
        if ridge == 0:
            remedy = "Labels of a kernel on features have some noise: pass a number > 0, such as 0.1."
            raise InvalidParameterError.for_parameter(context.owner, "ridge", "larger than 0", self.ridge, remedy)
        if not context.meaning.has_probabilities and self.kernel == "auto" and is_auto(self.features):
            # of a black box that predicts numbers: the covariance of its members, or a linear model of its inputs
            features = settle_features(context, self.features)
            return FeatureKernelSource(context, "linear", features, self.radius, ridge, normalize=False)
        return FeatureKernelSource(context, kernel, self.features, self.radius, ridge)

    def _score(self, context: QueryContext) -> np.ndarray:
        return pool_scores(context, Settings.of(self, context.meaning.label_noise), self._feature_source(context))

    def _select(self, context: QueryContext, n_instances: int) -> tuple[np.ndarray, np.ndarray]:
        settings = Settings.of(self, context.meaning.label_noise)
        if settings.batch == "top":
            return super()._select(context, n_instances)
        return greedy_batch(context, settings, n_instances, self._feature_source(context))


ntk_lookahead = query_function(NTKLookahead, "ntk_lookahead", __name__)
