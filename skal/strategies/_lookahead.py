"""NTK look-ahead: query what would change the outputs most, without retraining (Mohamadi, Bae and Sutherland 2022)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from skal._core.cost import Passes
from skal._core.network import Network
from skal._core.outputs import check_distributions
from skal._core.samples import Samples
from skal._lookahead.blocks import BlockSource
from skal._lookahead.criteria import CRITERIA
from skal._lookahead.features import FeatureReader
from skal._lookahead.infinite import depth_of, flat_inputs, infinite_diagonal, infinite_kernel
from skal._lookahead.posterior import Outputs, Reading
from skal._lookahead.sequence import Sequence
from skal._lookahead.sources import FeatureSource, KernelSource, Source, pool_scores
from skal.base import ScoreStrategy, query_function, top
from skal.context import QueryContext
from skal.exceptions import CrossEntropyWarning, InvalidParameterError
from skal.nets import SquaredLoss
from skal.tangent._engine import DEFAULT_MEMORY, TangentEngine
from skal.tangent._gradients import one_hot
from skal.tangent._kernels import kernel_diagonal, kernel_matrix
from skal.validation import check_choice, check_integer, check_real, make_generator, parse_memory

__all__ = ["NTKLookahead", "ntk_lookahead"]

KERNELS = ["pntk", "logit", "entk"]
BY_KERNEL = ["linearized", "infinite", "gp"]
ONE_BY_ONE = ["direct", "one_step", "retrain"]
AUTO_FEATURES = 4096
AUTO_EVALUATION = 2000
_LOGIT_LOSSES = (nn.CrossEntropyLoss, nn.NLLLoss, nn.BCEWithLogitsLoss)


class NTKLookahead(ScoreStrategy):
    """Query the samples whose label would change the network's outputs most.

    The network is replaced by its linearisation in the parameters. Training that to convergence on one more sample has
    a closed form, from which every sample's score follows without training anything.

    Parameters
    ----------
    criterion : {"mlmoc", "emoc", "eer"}, default="mlmoc"
        ``mlmoc`` sums how far the outputs would move over the pool if the predicted label were the true one; ``emoc``
        is its expectation over the labels under the network's probabilities; ``eer`` is minus the entropy that the
        outputs are expected to be left with.
    kernel : {"pntk", "logit", "entk"}, default="pntk"
        The tangent kernel, see :func:`skal.tangent.tangent_kernel`. ``entk`` has a C × C block for every pair of
        samples: for small problems.
    retraining : {"linearized", "direct", "one_step", "retrain", "infinite", "gp"}, default="linearized"
        How the outputs after retraining are found. The others are what ``linearized`` is measured against: ``direct``
        solves the linearised problem for every sample and label anew; ``one_step`` takes one step of the optimiser;
        ``retrain`` trains a copy of the network as long as its ``fit`` would; ``infinite`` linearises with the kernel
        of an infinitely wide fully connected network of the same depth; ``gp`` is a Gaussian process with that kernel.
    reference : {"network", "linearized"}, default="network"
        Where change is measured from: the network's outputs, or those of its linearisation trained on the labels at
        hand. The two are the same for a network that fits its labels.
    batch : {"top", "greedy"}, default="top"
        ``top`` takes the highest scores. ``greedy`` takes one sample after the other, each as if those before had been
        labelled as predicted.
    n_features : "auto", int or None, default="auto"
        Length of the sketch that stands for the gradients of those layers that are not kept exactly; ``"auto"`` is
        4096. None computes the exact kernel between all samples.
    evaluation : "auto", int or None, default="auto"
        Number of random samples of the pool over which the change is summed, standing for all of it; ``"auto"`` is
        2000. None is the whole pool.
    ridge : float, default=1e-4
        Added to the kernel of the labelled samples' diagonal, as a part of its mean.
    backend : {"auto", "structured", "backpack", "func"}, default="auto"
        How per-sample gradients are computed; see :mod:`skal.tangent`.
    subset : int or None, default=None
        Score only this many random samples of the pool; the change is summed over those, too.
    batch_size : int, default=256
        Samples per network pass.
    max_memory : int, str or None, default=None
        Bound on the working memory, such as ``"2GB"``; None is 1 GB. A pool that does not fit is scored in parts.
    random_state : None, int, Generator or RandomState, default=None
        For the subset, the evaluation set and the sketch.
    n_jobs : int or None, default=None
        Workers that share the passes over the pool, as in scikit-learn: None is 1, or what ``joblib.parallel_config``
        says; -1 is all processors.
    verbose : int, default=0
        1 shows a progress bar over the parts of the pool.

    Warns
    -----
    CrossEntropyWarning
        If the network was trained with anything but squared loss and ``reference="network"``. The labels are then
        compared with the probabilities, not with the outputs, and change is measured as if
        ``reference="linearized"`` had been asked for.

    Notes
    -----
    A copy of a labelled sample would change nothing: it scores 0, and with ``eer`` no more than any other sample.

    Examples
    --------
    >>> import torch
    >>> from skorch import NeuralNetClassifier
    >>> from skal import ActiveLearner
    >>> from skal.datasets import load
    >>> from skal.nets import MLP, SquaredLoss
    >>> from skal.strategies import NTKLookahead, ntk_lookahead
    >>> digits = load("digits")
    >>> net = NeuralNetClassifier(MLP(64, 10), criterion=SquaredLoss, train_split=None, verbose=0)
    >>> strategy = NTKLookahead(random_state=0)
    >>> learner = ActiveLearner(net, strategy, X_training=digits.X_train[:50], y_training=digits.y_train[:50])
    >>> X_pool = digits.X_train[50:250]
    >>> indices, samples = learner.query(X_pool, n_instances=5)
    >>> samples.shape
    (5, 1, 8, 8)
    >>> bool((ntk_lookahead(learner, X_pool, 5, random_state=0) == indices).all())  # the same, as a function
    True
    """

    needs_labels = True

    def __init__(
        self,
        *,
        criterion: str = "mlmoc",
        kernel: str = "pntk",
        retraining: str = "linearized",
        reference: str = "network",
        batch: str = "top",
        n_features: int | str | None = "auto",
        evaluation: int | str | None = "auto",
        ridge: float = 1e-4,
        backend: str = "auto",
        subset: int | None = None,
        batch_size: int = 256,
        max_memory: int | str | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.criterion = criterion
        self.kernel = kernel
        self.retraining = retraining
        self.reference = reference
        self.batch = batch
        self.n_features = n_features
        self.evaluation = evaluation
        self.ridge = ridge
        self.backend = backend
        self.subset = subset
        self.batch_size = batch_size
        self.max_memory = max_memory
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    @property
    def draws_from_pool(self) -> bool:  # type: ignore[override]
        """Whether the evaluation set is a random part of the pool: if asked for; ``"auto"`` draws from larger ones."""
        return isinstance(self.evaluation, int)

    def _check_params(self) -> None:
        super()._check_params()
        owner = type(self).__name__
        check_choice(owner, "criterion", self.criterion, CRITERIA)
        check_choice(owner, "kernel", self.kernel, KERNELS)
        check_choice(owner, "retraining", self.retraining, BY_KERNEL + ONE_BY_ONE)
        check_choice(owner, "reference", self.reference, ["network", "linearized"])
        check_choice(owner, "batch", self.batch, ["top", "greedy"])
        check_choice(owner, "backend", self.backend, ["auto", "structured", "backpack", "func"])
        for name, value in (("n_features", self.n_features), ("evaluation", self.evaluation)):
            if not (isinstance(value, str) and value == "auto"):
                check_integer(owner, name, value, 1, optional=True, remedy="Pass an integer > 0, None or 'auto'.")
        check_real(owner, "ridge", self.ridge, 0, 1e6, remedy="Pass a number >= 0, such as 1e-4.")
        if self.batch == "greedy" and self.retraining in ONE_BY_ONE:
            expected = f"'top' with retraining={self.retraining!r}"
            remedy = "Greedy batches need a closed form: use retraining='linearized'."
            raise InvalidParameterError.for_parameter(owner, "batch", expected, self.batch, remedy)

    def _score(self, context: QueryContext) -> np.ndarray:
        generator = make_generator(type(self).__name__, self.random_state)
        evaluation = self._evaluation_rows(context.n_pool, generator)
        reading, reference = self._reading(context), self._settled_reference(context)
        if self.retraining in ONE_BY_ONE:
            from skal._lookahead.retraining import retrained_scores

            return retrained_scores(self, context, context.logit_network, reading, evaluation, reference=reference)
        e = len(evaluation)
        n_kept = min(context.n_pool, e + max(1, e // 4))  # a pool may also come in parts
        source = self._source(context, generator, n_kept)
        self._check_room(source, n_kept, e)
        scores = pool_scores(source, context.pool, evaluation, self.criterion, reference, reading.to_proba)
        return scores.cpu().numpy()

    def _select(self, context: QueryContext, n_instances: int) -> tuple[np.ndarray, np.ndarray]:
        if self.batch == "top":
            return super()._select(context, n_instances)
        return self._choose(context, self._lookahead(context), n_instances)

    def _choose(self, context: QueryContext, lookahead: Any, n_instances: int) -> tuple[np.ndarray, np.ndarray]:
        """The best of the free candidates, and their scores; for a greedy batch the look-ahead is used up."""
        reading, reference = self._reading(context), self._settled_reference(context)

        def scores() -> Tensor:
            return lookahead.scores(self.criterion, reference, to_proba=reading.to_proba)

        if self.batch == "top":
            free, values = lookahead.free.nonzero()[:, 0].cpu().numpy(), scores().cpu().numpy()
            chosen = top(values, n_instances)
            return free[chosen], values[chosen]
        picked: list[int] = []
        metrics: list[float] = []
        while True:
            gains = scores()
            best = int(gains.argmax())
            picked.append(int(lookahead.free.nonzero()[best, 0]))
            metrics.append(float(gains[best]))
            if len(picked) == n_instances:
                return np.array(picked), np.array(metrics)
            lookahead.condition(picked[-1], int(lookahead.outputs.labels[picked[-1]]))

    def _n_evaluation(self, n: int) -> int:
        size = AUTO_EVALUATION if self.evaluation == "auto" else self.evaluation
        return n if size is None else min(n, int(size))

    def _passes(self, context: QueryContext, n: int, n_instances: int) -> Passes:
        """One pass over all with features; with exact blocks each set once to be kept and once to be compared."""
        labelled = context.n_labelled
        if self.retraining in ONE_BY_ONE:  # trainings, not passes: one for each candidate and label
            return Passes(n, 0, labelled, 0)
        if self.retraining != "linearized":
            return Passes(n, 0, labelled, 0)
        if self.n_features is not None and self.kernel != "entk":
            return Passes(n, n, labelled, labelled)
        times = context.n_classes if self.kernel == "entk" else 1
        return Passes(4 * n, 3 * times * n, 4 * labelled, 3 * times * labelled)

    def _memory(self, context: QueryContext, n: int, n_instances: int) -> int:
        memory = parse_memory(type(self).__name__, "max_memory", self.max_memory) or DEFAULT_MEMORY
        e, labelled = self._n_evaluation(n), context.n_labelled
        if self.n_features is None or self.kernel == "entk" or self.retraining != "linearized":
            return 16 * n + min(memory, 8 * n * (2 * e + 3 * labelled))
        length = AUTO_FEATURES if self.n_features == "auto" else int(self.n_features)
        kept = n * (2 * length * context.network.dtype.itemsize + 8 * (2 * labelled + 4 * context.n_classes))
        return 16 * n + min(memory // 2, kept) + memory // 8

    def _probe_size(self, n: int) -> int:
        return self._n_evaluation(n) + 256

    def _evaluation_rows(self, n_pool: int, generator: np.random.Generator) -> np.ndarray:
        n = self._n_evaluation(n_pool)
        return np.arange(n_pool) if n == n_pool else np.sort(generator.choice(n_pool, size=n, replace=False))

    def _lookahead(self, context: QueryContext) -> Any:
        """The look-ahead for the whole pool, for many rounds of scores."""
        n = context.n_pool
        source, evaluation = self._whole(context)
        return source.lookahead(context.pool, np.arange(n), evaluation, None, keep=True)

    def _sequence(self, context: QueryContext) -> Sequence:
        """The same for labels that come one after the other."""
        source, evaluation = self._whole(context)
        return source.sequence(context.pool, evaluation)

    def _whole(self, context: QueryContext) -> tuple[Source, np.ndarray]:
        generator = make_generator(type(self).__name__, self.random_state)
        evaluation = self._evaluation_rows(context.n_pool, generator)
        source = self._source(context, generator, context.n_pool)
        self._check_room(source, context.n_pool, context.n_pool)
        return source, evaluation

    def _sample_context(self, learner: Any, X: Any) -> QueryContext:
        """A learner's samples, not necessarily a pool, and perhaps without labels."""
        self._check_params()
        context = QueryContext(learner, X, batch_size=self.batch_size, owner=type(self).__name__)
        context.require_network()
        return context

    def _check_room(self, source: Source, n_candidates: int, n_columns: int) -> None:
        """Refuse a memory bound that so many candidates do not fit into, with their covariance to so many others."""
        if source.room(n_columns) < n_candidates:
            expected = f"enough for {n_candidates} samples at a time (there is room for {source.room(n_columns)})"
            remedy = "Raise it, choose among fewer samples with subset, or lower evaluation or n_features."
            got = "1GB" if self.max_memory is None else self.max_memory
            raise InvalidParameterError.for_parameter(type(self).__name__, "max_memory", expected, got, remedy)

    def _reading(self, context: QueryContext) -> Reading:
        """How the network's outputs are to be understood: by its criterion."""
        network = context.logit_network
        squared_loss = isinstance(network.criterion, (SquaredLoss, nn.MSELoss))
        own = getattr(network.net, "predict_nonlinearity", "auto")
        if isinstance(network.criterion, _LOGIT_LOSSES) or (
            isinstance(network.criterion, SquaredLoss) and own == "auto"
        ):
            return Reading(squared_loss)
        return Reading(squared_loss, lambda f: _checked_proba(network, f))

    def _settled_reference(self, context: QueryContext) -> str:
        criterion = context.network.criterion
        if self.reference == "linearized" or isinstance(criterion, (SquaredLoss, nn.MSELoss)):
            return self.reference
        if self.retraining in ("gp", "one_step", "retrain"):  # real outputs, or none of the network's
            return self.reference
        warnings.warn(
            f"NTKLookahead assumes squared loss, but the network uses {type(criterion).__name__}. Labels are compared "
            "with probabilities, and change is measured from the linearised network. Train with "
            "skal.nets.SquaredLoss, or pass reference='linearized' to silence this warning.",
            CrossEntropyWarning,
            stacklevel=2,
        )
        return "linearized"

    def _source(self, context: QueryContext, generator: np.random.Generator, n_kept: int) -> Source:
        """What the look-ahead is computed from, the labelled samples read."""
        owner, network = type(self).__name__, context.logit_network
        memory = parse_memory(owner, "max_memory", self.max_memory) or DEFAULT_MEMORY
        targets = one_hot(context.class_labels, len(context.labelled), context.n_classes, network).double()
        reading = self._reading(context)
        epsilon = torch.finfo(network.dtype).eps

        def outputs(samples: Samples) -> Outputs:
            return reading.read(network.all_logits(samples, self.batch_size))

        if self.retraining != "linearized":
            kernel, diagonal = _infinite(network, self.batch_size)
            return KernelSource(
                kernel,
                diagonal,
                outputs,
                context.labelled,
                targets,
                ridge=self.ridge,
                epsilon=torch.finfo(torch.float64).eps,
                memory=memory,
                zero_mean=self.retraining == "gp",
            )
        engine = TangentEngine(
            network,
            context.pool,
            backend=self.backend,
            batch_size=self.batch_size,
            max_memory=max(1, memory // 4),
            owner=owner,
        )
        self._check_kernel(network)

        def exact(X: Samples, Z: Samples | None) -> Tensor:
            return kernel_matrix(engine, X, Z, self.kernel)

        if self.kernel == "entk":
            return BlockSource(
                exact, outputs, context.labelled, targets, ridge=self.ridge, epsilon=epsilon, memory=memory // 2
            )
        if self.n_features is None:
            return KernelSource(
                exact,
                lambda samples: kernel_diagonal(engine, samples, self.kernel),
                outputs,
                context.labelled,
                targets,
                ridge=self.ridge,
                epsilon=epsilon,
                memory=memory // 2,
            )
        n_features = AUTO_FEATURES if self.n_features == "auto" else int(self.n_features)
        seed = int(generator.integers(2**31))
        room = memory // 4 // n_kept  # as much again for a copy, the engine, and products of features

        def make_reader() -> FeatureReader:
            return FeatureReader(engine, context.labelled, self.kernel, n_features, self.ridge, seed, room)

        return FeatureSource(make_reader, reading, targets, epsilon=epsilon, memory=memory // 4)

    def _check_kernel(self, network: Network) -> None:
        if self.kernel == "logit" and isinstance(network.criterion, nn.BCEWithLogitsLoss):
            expected = "'pntk' or 'entk' for a network with one output"
            remedy = "The first of the two classes has the constant logit 0, which has no gradient."
            raise InvalidParameterError.for_parameter(type(self).__name__, "kernel", expected, self.kernel, remedy)


def _infinite(network: Network, batch_size: int) -> tuple[Callable, Callable]:
    depth = depth_of(network.module)

    def kernel(X: Samples, Z: Samples | None) -> Tensor:
        first = flat_inputs(network, X, batch_size)
        return infinite_kernel(first, first if Z is None else flat_inputs(network, Z, batch_size), depth)

    return kernel, lambda samples: infinite_diagonal(flat_inputs(network, samples, batch_size), depth)


def _checked_proba(network: Network, outputs: Tensor) -> Tensor:
    """(..., C) probabilities by the net's own nonlinearity, refused if they are none."""
    proba = network.to_proba(outputs.reshape(-1, outputs.shape[-1]))
    check_distributions(proba.cpu().numpy())
    return proba.reshape(outputs.shape)


ntk_lookahead = query_function(NTKLookahead, "ntk_lookahead", __name__)
