# SPDX-License-Identifier: BSD-3-Clause
"""The one door: all that a strategy sees of the learner that calls it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from joblib import effective_n_jobs
from sklearn.exceptions import NotFittedError as SklearnNotFittedError
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted
from skorch import NeuralNet
from torch.utils.data import Dataset

from skal._core.cache import Cache
from skal._core.containers import check_finite, dataset_target, is_lazy, n_rows
from skal._core.estimators import (
    allows_nan,
    chain_transformers,
    check_distributions,
    find_probabilities,
    is_committee,
    unwrap_estimator,
)
from skal._core.feeding import Watch
from skal._core.guard import device_of, evaluating, one_query
from skal._core.identity import copy_groups, data_digest, object_digest
from skal._core.last_layer import LastLayer, LastOutput, embeddings, find_last_layer
from skal._core.losses import CrossEntropy, Loss, SeveralLabels
from skal._core.meaning import MEANINGS, Meaning
from skal._core.memory import DEFAULT_MEMORY, Result, fill_rows, product_rows, rows_within
from skal._core.network import Network
from skal._core.outputs import is_binary
from skal._core.parallel import Sharding
from skal._core.pool import Samples
from skal._core.precision import place_with_doubles, with_doubles
from skal._core.tasks import (
    CLASSIFICATION,
    MULTILABEL,
    REGRESSION,
    class_positions,
    find_task,
    predict_numbers,
    read_labels,
    refuse_task,
)
from skal.config import get_config
from skal.exceptions import (
    EmptyPoolError,
    InvalidParameterError,
    InvalidTypeError,
    NoLabelledDataError,
    NoNetworkError,
    NotFittedError,
    OutputError,
)
from skal.features import RememberedFeatures, compute_features
from skal.features._compute import at_least_float32, check_finite_features
from skal.features._prepare import Preparation, prepare
from skal.tangent._kernels import settle_kernel
from skal.tangent._layers import Layers
from skal.tangent._sketch import feature_matrix
from skal.tangent._tangent_engine import TangentEngine
from skal.validation import parse_memory, target_weights

__all__ = [
    "Aim",
    "CrossEntropy",
    "LastLayer",
    "Loss",
    "Network",
    "QueryContext",
    "Samples",
    "SeveralLabels",
    "TangentEngine",
    "copy_groups",
    "evaluating",
    "fill_rows",
    "product_rows",
    "rows_within",
]

_TANGENT_FEATURES = 4096


class Aim(NamedTuple):
    """The samples that a query is for: those of the pool, some of them, or others.

    Parameters
    ----------
    part : QueryContext
        With these n samples in the pool's place.
    weights : (n,) array
        How much each of them counts, all larger than 0.
    rows : (n,) int array, range or None
        Where they stand in the pool; None if they are not of it.

    Examples
    --------
    >>> from skal.checks import make_learner
    >>> from skal.context import QueryContext
    >>> context = QueryContext(*make_learner())
    >>> aim = context.aim([2.0, 0.0, 0.5] + 37 * [0.0])  # an Aim, by weights
    >>> aim.rows, aim.weights, aim.part.n_pool
    (array([0, 2]), array([2. , 0.5]), 2)
    >>> context.aim(context.pool.X[:5]).rows is None  # samples of their own
    True
    """

    part: QueryContext
    weights: np.ndarray
    rows: np.ndarray | range | None


class QueryContext:
    """The estimator and its network, the labelled set and the pool, as one query needs them.

    Everything costly (number of classes, last layer) is found when first asked for, once.

    Parameters
    ----------
    learner : object with ``estimator``, ``X_training`` and ``y_training``, or a modAL ``Committee``
        The learner that calls the strategy. Its ``cache``, if it has one, keeps features and outputs for later queries.
    X_pool : array-like, tensor, memory map, Dataset, or dict of arrays
        The samples to choose from.
    owner : str
        The strategy's name, for messages.

    Attributes
    ----------
    pool : Samples
        The pool, transformed by the steps before the network.
    transformers : list
        Those steps.
    has_network : bool
        Whether the estimator is a skorch net, or ends in one.
    batch_size : int
        Samples per network pass, at most: a setting, see :func:`skal.set_config`.
    memory_bound : int or None
        The setting ``max_memory`` in bytes; None if there is no bound.

    Examples
    --------
    >>> from skal.checks import make_learner
    >>> from skal.context import QueryContext
    >>> context = QueryContext(*make_learner())  # a strategy's _score or _select gets one
    >>> context.n_pool, context.n_labelled, context.n_classes
    (40, 16, 4)
    >>> context.predict_proba().shape
    (40, 4)
    >>> context.features().shape  # here the inputs of the last layer
    torch.Size([40, 16])
    """

    def __init__(self, learner: Any, X_pool: Any, *, owner: str = "QueryStrategy") -> None:
        if type(getattr(type(learner), "learner_", None)) is property:  # a fitted loop stands for its learner
            learner = learner.learner_
        if hasattr(learner, "estimator"):
            self.estimator = learner.estimator
        elif is_committee(learner):
            self.estimator = learner  # a committee is a classifier: its probabilities are the mean over its learners
        else:
            raise InvalidTypeError(
                f"The learner that calls {owner} must have the attributes estimator, X_training and y_training. "
                f"Got {type(learner).__name__} instead. Pass a modAL or skal ActiveLearner, or a modAL Committee."
            )
        self.learner, self.owner = learner, owner
        if isinstance(self.estimator, type):
            raise NoNetworkError(
                f"The estimator that {owner} works on must be an object, not a class. Got the class "
                f"{self.estimator.__name__} instead. Make one of it, and fit it."
            )
        settings = get_config()
        self.batch_size: int = settings["batch_size"]
        self.max_memory = settings["max_memory"]
        self.memory_bound = None if self.max_memory is None else parse_memory(owner, "max_memory", self.max_memory)
        is_shared = settings["progress"] or effective_n_jobs(settings["n_jobs"]) > 1
        self.sharding = Sharding(settings["n_jobs"], settings["progress"], owner) if is_shared else None
        self.cache: Cache | None = getattr(learner, "cache", None)
        self._shared: dict[Any, Any] | None = None  # results that the arms of one query share
        self._passed: dict[str, torch.Tensor] = {}  # outputs and logits of the pool, once a pass has given them
        self._digests: dict[int, str | None] = {}  # digests of transformers by identity: nothing changes in a query
        self._watches: list[Watch] = []  # over the Datasets of this query
        if n_rows(X_pool, "X_pool") == 0:
            raise EmptyPoolError(
                f"The X_pool given to {owner} must hold at least one sample. Got an empty pool instead. "
                "Stop the loop when everything is labelled, or pass more data."
            )
        self.inner_estimator, self.transformers = unwrap_estimator(self.estimator)
        self.has_network = isinstance(self.inner_estimator, NeuralNet)
        self.pool = self._samples(X_pool, "X_pool")

    @cached_property
    def task(self) -> str:
        """The kind of labels: ``"classification"``, ``"regression"`` or ``"multilabel"``."""
        # a loop knows its labels before the learner has any
        told = getattr(self.learner, "task", None)  # which may mean something else in a learner of the user's
        if isinstance(told, str) and told in MEANINGS:
            return told
        return find_task(self.estimator, getattr(self.learner, "y_training", None))

    @property
    def meaning(self) -> Meaning:
        """The consequences of the task: what outputs mean, what is uncertain, what a label leaves to be learnt."""
        return MEANINGS[self.task]

    @cached_property
    def is_fitted(self) -> bool:
        """True if the estimator can predict."""
        try:
            if self.has_network:
                _ = self.network
            elif isinstance(self.estimator, Pipeline):
                check_is_fitted(self.estimator.steps[-1][1])
            elif is_committee(self.estimator):
                # classes_ is None until all its learners are fitted; one of regressors has none
                if getattr(self.estimator, "classes_", ()) is None:
                    raise SklearnNotFittedError
            elif hasattr(self.estimator, "fit"):
                check_is_fitted(self.estimator)
        except SklearnNotFittedError:
            return False
        except (AttributeError, TypeError):  # it follows scikit-learn's conventions in part: predicting will tell
            return True
        return True

    def require_fitted(self) -> None:
        """Raise :class:`~skal.exceptions.NotFittedError` unless the estimator can predict."""
        if not (self.has_network or hasattr(self.estimator, "predict") or hasattr(self.estimator, "predict_proba")):
            raise NoNetworkError(
                f"The estimator that {self.owner} works on must be a classifier: a skorch net, or an object with "
                f"predict_proba. Got {type(self.estimator).__name__} instead. Wrap a torch module in "
                "skorch.NeuralNetClassifier, and fit it."
            )
        if not self.is_fitted:
            raise NotFittedError(
                f"The estimator that {self.owner} works on must be fitted. Got an unfitted "
                f"{type(self.estimator).__name__} instead. Give the learner X_training and y_training, or call fit or "
                "teach before query."
            )

    def _samples(self, X: Any, name: str) -> Samples:
        """Samples, checked for NaN once: here if they are in memory, otherwise when they are read."""
        in_memory = type(X) is np.ndarray or not (isinstance(X, (Dataset, np.memmap)) or is_lazy(X))
        transform = chain_transformers(self.transformers) if self.has_network and self.transformers else None
        allow_nan = transform is None and (in_memory or self._takes_nan())
        samples = Samples(X, name=name, transform=transform, allow_nan=allow_nan)
        if in_memory:
            check_finite(samples.X, name, unless=self._takes_nan)
        return samples

    @contextmanager
    def query(self) -> Iterator[None]:
        """Run one query at a time in this block, and restore all state afterwards.

        Datasets that give other samples when they are read again are refused. Samples that passes move to another
        device than the processor stay there meanwhile.

        Yields
        ------
        None
            For the query.
        """
        module = getattr(self.inner_estimator, "module_", None) if self.has_network else None
        with one_query(module), ExitStack() as stack:
            # inside ALBL the outer strategy watches, and keeps
            if isinstance(self.pool.X, Dataset) and self.pool.watch is None:
                self._watches.append(self.pool.start_watch())
            if module is not None and device_of(module).type != "cpu" and self.pool.there is None:
                stack.enter_context(self.pool.keep_there(self.memory // 8))
            yield
            for watch in self._watches:
                watch.end()

    def _takes_nan(self) -> bool:
        """True if the first step that gets the raw samples says that it takes NaN."""
        first = self.transformers[0] if self.transformers else self.inner_estimator
        return not isinstance(first, NeuralNet) and allows_nan(first)

    def require_network(self) -> None:
        """Raise :class:`~skal.exceptions.NoNetworkError` unless the estimator ends in a skorch net."""
        _ = self.net

    def require_labels(self) -> None:
        """Raise :class:`~skal.exceptions.NoLabelledDataError` unless there are labelled samples, each with a label."""
        _ = self.labels

    def restrict(self, rows: np.ndarray | range) -> QueryContext:
        """The same query on a part of the pool.

        Parameters
        ----------
        rows : int array or range
            Positions in the pool.

        Returns
        -------
        QueryContext
            Whose positions count within this part.
        """
        if isinstance(rows, range) and rows == range(self.n_pool):
            return self
        part = copy(self)
        part.pool, part._shared, part._passed = self.pool.take(rows), None, {}
        return part

    def aim(self, target: Any = None) -> Aim:
        """The samples that a strategy is to work for, while it chooses from the pool.

        Parameters
        ----------
        target : None, samples, or (n,) array-like of numbers
            None is the pool. Samples are like those of the pool, in the same kind of container. Flat numbers are
            weights >= 0 of all rows of X_pool, of which those that can be chosen from count; if all of these have the
            weight 0, they count alike.

        Returns
        -------
        Aim
            Its samples with their weights.
        """
        n, weights = self.n_pool, target_weights(target)
        if target is None:
            return Aim(self, np.ones(n), range(n))
        if weights is None:
            return self._aim_at(target)
        n_all = n_rows(self.pool.X)
        if len(weights) != n_all:
            expected = f"samples, or a weight for each of the {n_all} rows of X_pool"
            remedy = (
                "In a loop of your own, pass the same X_pool in every round, and candidates for what is left of it."
            )
            raise InvalidParameterError.for_parameter(self.owner, "target", expected, f"{len(weights)} weights", remedy)
        weights = weights[np.asarray(self.pool.rows)]
        rows = np.flatnonzero(weights)
        return Aim(self.restrict(rows), weights[rows], rows) if len(rows) else self.aim()

    def _aim_at(self, X: Any) -> Aim:
        if n_rows(X, "target") == 0:
            remedy = "Pass the samples that the model will be used on, or None for the pool itself."
            raise InvalidParameterError.for_parameter(self.owner, "target", "at least one sample", "none", remedy)
        samples = self._samples(X, "target")
        form, of_pool = (_form(part.read(0, 1)) for part in (samples, self.pool))
        if form is not None and of_pool is not None and form != of_pool:
            remedy = "Prepare these samples as those of the pool, with the same columns in the same order."
            expected = f"samples like those of the pool, of {of_pool}"
            raise InvalidParameterError.for_parameter(self.owner, "target", expected, form, remedy)
        if isinstance(samples.X, Dataset):
            self._watches.append(samples.start_watch())
        part = copy(self)
        part.pool, part._shared, part._passed = samples, None, {}
        return Aim(part, np.ones(len(samples)), None)

    def for_arms(self) -> QueryContext:
        """The same query for several strategies, which share what they compute on the whole pool.

        Returns
        -------
        QueryContext
            To be handed to each of them.
        """
        common = copy(self)
        common._shared = {}
        return common

    def for_strategy(self, owner: str) -> QueryContext:
        """The same query for another strategy.

        Parameters
        ----------
        owner : str
            The strategy's name, for messages.

        Returns
        -------
        QueryContext
            On the same pool, sharing what has been found out about it.
        """
        other = copy(self)
        other.owner = owner
        return other

    def remember(self, what: Any, compute: Callable[[], Result], also: Sequence[Any] = ()) -> Result:
        """``compute()``, or its result from another arm of this query or from the learner's cache.

        Parameters
        ----------
        what : tuple
            What is computed from network and pool, with all parameters that it depends on.
        compute : callable
            Returns tensors, or tuples of them, which nobody may change.
        also : sequence of Samples and arrays
            What else the result depends on.

        Returns
        -------
        tensor, or tuple of tensors
            What ``compute`` gave.
        """
        if self._shared is not None and what in self._shared:
            known: Result = self._shared[what]
            return known
        key = None if self.cache is None else self._key(what, [self.pool, *also])
        result = compute() if self.cache is None or key is None else self.cache.result(key, compute)
        if self._shared is not None:
            self._shared[what] = result
        return result

    def _key(self, what: Any, also: Sequence[Any]) -> str | None:
        """A digest of all that a result depends on; None if code that is not skal's reads the samples."""
        network = self.network
        samples = [other for other in also if isinstance(other, Samples)]
        if not all(network.reads_arrays(part) and _in_memory(part.X) for part in samples):
            return None
        model = object_digest([network.module, network.criterion, self.transformers, str(network.device)])
        arrays = [other for other in also if not isinstance(other, Samples)]
        data = data_digest([*(part.read(0, len(part)) for part in samples), *arrays])
        return None if model is None else f"{what!r} {model} {data}"

    @property
    def memory(self) -> int:
        """Bytes to work with: the bound, or 1 GB if there is none."""
        return DEFAULT_MEMORY if self.memory_bound is None else self.memory_bound

    @cached_property
    def engine(self) -> TangentEngine:
        """Per-sample gradients of the network's logits with respect to all trainable parameters."""
        return self.tangent_engine()

    def tangent_engine(
        self,
        backend: str = "auto",
        *,
        network: Network | None = None,
        layers: Layers = "all",
        memory: int | None = None,
    ) -> TangentEngine:
        """Per-sample gradients of the network, computed as told.

        Parameters
        ----------
        backend : {"auto", "structured", "func", "backpack"}, default="auto"
            How gradients are computed.
        network : Network, optional
            By default :attr:`logit_network`.
        layers : {"all", "last", "last_blocks", "adapters"} or callable, default="all"
            Which trainable parameters; see :func:`skal.tangent.tangent_kernel`.
        memory : int, optional
            Bound in bytes; by default :attr:`memory`.

        Returns
        -------
        TangentEngine
            For the pool and for any other samples.
        """
        return TangentEngine(
            network or self.logit_network,
            self.pool,
            backend=backend,
            layers=layers,
            batch_size=self.batch_size,
            max_memory=max(1, self.memory if memory is None else memory),
            owner=self.owner,
        )

    @property
    def n_pool(self) -> int:
        """Number of samples in the pool."""
        return len(self.pool)

    @cached_property
    def net(self) -> NeuralNet:
        """The skorch net; a copy on the processor if its device has no double precision."""
        if is_committee(self.inner_estimator):
            raise NoNetworkError(
                f"The estimator that {self.owner} works on must be one skorch net. "
                f"Got a {type(self.inner_estimator).__name__} of {len(self.inner_estimator)} learners instead. "
                "Use a strategy that needs only predict_proba (margin, entropy), or query with one of the learners."
            )
        if not self.has_network:
            raise NoNetworkError(
                f"The estimator that {self.owner} works on must be a skorch net, or a Pipeline or search object that "
                f"ends in one. Got {type(self.inner_estimator).__name__} instead. Wrap a torch module in "
                "skorch.NeuralNetClassifier, or use a strategy that needs only predict_proba (margin, entropy)."
            )
        return with_doubles(self.inner_estimator)

    @cached_property
    def network(self) -> Network:
        """The net's module, with its inputs and outputs understood."""
        return Network(self.net, self.sharding, self.task)

    @property
    def device(self) -> torch.device:
        """The network's device."""
        return self.network.device

    @cached_property
    def n_classes(self) -> int:
        """Number of classes, labels or targets, by the outputs: few labels may not show every class."""
        if self.has_network:
            return self.network.n_classes(self.pool)
        return int(self.answers(self.pool.take(range(1))).shape[1])

    @cached_property
    def last_layer(self) -> LastLayer:
        """The last parameterised layer, found by hooks."""
        return find_last_layer(self.network, self.pool)

    @cached_property
    def logit_network(self) -> Network:
        """The network with the logits behind a softmax, if its module ends in one.

        A softmax and NLLLoss leave only log-probabilities, which have another Jacobian than the logits behind them.
        """
        if isinstance(self.network.criterion, torch.nn.NLLLoss) and self.last_layer.gives_logits:
            return LastOutput(self.net, self.last_layer, self.sharding)
        return self.network

    def outputs(self, samples: Samples | None = None) -> torch.Tensor:
        """Outputs of the network for the pool, or for other samples.

        Parameters
        ----------
        samples : Samples, optional
            By default the pool.

        Returns
        -------
        (n, ...) tensor
            On the network's device, checked; of the pool from the pass that gave the embeddings, if there was one.
        """
        if samples is not None and samples is not self.pool:
            return self.network.all_outputs(samples, self.batch_size)
        if "outputs" not in self._passed:
            what = ("outputs", self.batch_size)
            self._passed["outputs"] = self.remember(what, lambda: self.network.all_outputs(self.pool, self.batch_size))
        return self._passed["outputs"]

    def logits(self, samples: Samples | None = None) -> torch.Tensor:
        """Outputs before any softmax, of the pool or other samples.

        Parameters
        ----------
        samples : Samples, optional
            By default the pool.

        Returns
        -------
        (n, C) tensor
            On the network's device; of the pool from the pass that gave the embeddings, if there was one.
        """
        samples, network = self.pool if samples is None else samples, self.logit_network
        if samples is self.pool and "logits" in self._passed:
            return self._passed["logits"]
        if network is self.network:
            return network.to_logits(self.outputs(samples))
        return network.all_logits(samples, self.batch_size)

    def embeddings(self, samples: Samples | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs of the last layer, and logits, of the pool or other samples.

        Parameters
        ----------
        samples : Samples, optional
            By default the pool.

        Returns
        -------
        embeddings : (n, d) tensor
            On the network's device.
        logits : (n, C) tensor
            Of the same pass.
        """
        if samples is not None and samples is not self.pool:
            return embeddings(self.network, samples, self.batch_size, self.last_layer)[:2]
        what = ("embeddings", self.batch_size, self.last_layer.name)
        found = self.remember(what, lambda: embeddings(self.network, self.pool, self.batch_size, self.last_layer))
        self._passed |= {"logits": found[1], "outputs": found[2]}  # for all that share them
        return found[:2]

    def features(self, spec: Any = "auto", samples: Samples | None = None) -> torch.Tensor:
        """Features of the pool, or of other samples.

        Parameters
        ----------
        spec : {"auto", "input", "prepared", "last_layer", "tangent"}, transformer, callable or nn.Module
            ``"auto"`` is the input of the layer that makes a network's outputs, and ``"input"`` for any other
            classifier: numbers as they come to it. ``"prepared"`` is the input treated by its kind, see
            :attr:`preparation`; strings and the like are prepared by ``"auto"`` too. ``"tangent"`` is a sketch of the
            gradients of the outputs.
        samples : Samples, optional
            By default the pool.

        Returns
        -------
        (n, d) tensor
            Finite, in float32 or float64, on the device where they were computed.
        """
        if isinstance(spec, str) and spec == "auto":
            spec = "last_layer" if self.has_network else "input" if self._has_numbers() else "prepared"
        if isinstance(spec, str) and spec == "prepared":
            spec = self.preparation or "input"
        of = self.pool if samples is None else samples
        if isinstance(spec, str) and spec != "input":
            self.require_network()
            self.require_fitted()
        source = None if self.cache is None else self._source(spec)
        if self.cache is not None and source is not None:
            # another process has the Dataset somewhere else: there only the content tells
            keys = of.keys() if self.cache.folder is None else of.digests()
            rows = self.cache.rows(source, keys, lambda rows: self._compute(spec, of.take(rows)).cpu().numpy())
            module = self.network.module if isinstance(spec, str) else spec
            device = place_with_doubles(device_of(module)) if isinstance(module, torch.nn.Module) else "cpu"
            return torch.from_numpy(np.ascontiguousarray(rows)).to(device)
        return self._compute(spec, of)

    @cached_property
    def preparation(self) -> Preparation | None:
        """A transformer of raw samples, fitted on the pool without labels; None if samples are used as they are.

        Columns of a table by their kind, texts and sparse rows by a truncated decomposition, behind the steps before
        the classifier. See :mod:`skal.features`.
        """
        return prepare(self.pool.X, self.transformers, fitted=self.is_fitted)

    def _has_numbers(self) -> bool:
        """True if the input of the classifier is numbers, or made to be by steps that are fitted."""
        X = self.pool.X
        dtypes = getattr(X, "dtypes", None)
        kinds = list(dtypes) if isinstance(dtypes, Iterable) else [getattr(X, "dtype", None)]
        numbers = all(getattr(dtype, "kind", "f") in "fiub" for dtype in kinds)
        return (bool(self.transformers) and self.is_fitted) or (numbers and not isinstance(X, list))

    def feature_width(self, spec: Any = "auto") -> int:
        """Number of features d, from one sample at most.

        Parameters
        ----------
        spec : object, default="auto"
            See :meth:`features`.

        Returns
        -------
        int
            Columns of what :meth:`features` returns.
        """
        if isinstance(spec, str) and spec in ("auto", "last_layer") and self.has_network:
            return self.last_layer.width
        return self.features(spec, self.pool.take(range(1))).shape[1]

    def _compute(self, spec: Any, samples: Samples) -> torch.Tensor:
        if not isinstance(spec, str):
            return compute_features(spec, samples, owner=self.owner)
        if spec == "input":
            transform = chain_transformers(self.transformers) if self.transformers and self.is_fitted else None
            return compute_features(None, replace(samples, transform=transform), owner=self.owner)
        if spec == "last_layer":
            return check_finite_features(at_least_float32(self.embeddings(samples)[0]), self.owner)
        return self.tangent_features(samples, _TANGENT_FEATURES)

    def tangent_features(
        self, samples: Samples, n_features: int, most_exact: int = 0, random_state: int = 0
    ) -> torch.Tensor:
        """Gradients of the network's outputs, sketched.

        Parameters
        ----------
        samples : Samples
            Of which.
        n_features : int
            Length of the sketch.
        most_exact : int, default=0
            Gradients of up to this many numbers are written out as they are.
        random_state : int, default=0
            Of the sketch.

        Returns
        -------
        (n, d) tensor
            Whose inner products are, or estimate, the pseudo-NTK, and of numbers the trace kernel.
        """
        engine, kind = self._sketching
        length = sum(engine.sizes.values()) * (engine.n_classes if kind == "trace" else 1)
        found = feature_matrix(engine, samples, kind, None if length <= most_exact else n_features, random_state)
        return check_finite_features(found, self.owner)

    @cached_property
    def _sketching(self) -> tuple[TangentEngine, str]:
        """The engine for sketched gradients, and the kernel that they belong to."""
        engine = self.tangent_engine(memory=self.memory // 4)
        return engine, settle_kernel(engine, self.pool, self.meaning.kernel, self.owner)

    def _source(self, spec: Any) -> str | None:
        """A digest of what computes features that stay the same from round to round; None if they may change.

        None, too, if the features of the pool would take more than an eighth of the bound on memory.
        """
        if isinstance(spec, RememberedFeatures) or spec in ("input", "tangent"):
            return None
        if isinstance(spec, Preparation) and not spec.is_slow:  # recognising the samples would take longer
            return None
        if id(spec) not in self._digests:
            is_fixed = not isinstance(spec, str) or self.only_head_is_trained
            self._digests[id(spec)] = self._digest(spec) if is_fixed and self._has_room(spec) else None
        return self._digests[id(spec)]

    def _digest(self, spec: Any) -> str | None:
        if not isinstance(spec, str):
            return object_digest(spec)
        head = tuple(self.last_layer.layer.parameters())
        # the layers below are fixed, unless training moves their buffers
        return object_digest([self.network.module, self.transformers], without=head)

    def _has_room(self, spec: Any) -> bool:
        if self.memory_bound is None:
            return True
        width = self._compute(spec, self.pool.take(range(1))).shape[1]
        return 8 * self.n_pool * width <= self.memory_bound // 8

    @cached_property
    def only_head_is_trained(self) -> bool:
        """True if the network is frozen up to its last layer."""
        head = set(map(id, self.last_layer.layer.parameters()))
        return all(id(p) in head for p in self.network.module.parameters() if p.requires_grad)

    @property
    def n_labelled(self) -> int:
        """Number of labelled samples; 0 before the first."""
        if is_committee(self.learner):
            raise NoLabelledDataError(
                f"The learner that calls {self.owner} must have one set of labelled samples. "
                f"Got a {type(self.learner).__name__} instead, whose learners each have their own. "
                "Use a strategy that needs only predict_proba (margin, entropy), or query with one of the learners."
            )
        X = getattr(self.learner, "X_training", None)
        return 0 if X is None else n_rows(X, "X_training")

    @cached_property
    def labelled(self) -> Samples:
        """The labelled samples, transformed like the pool."""
        if self.n_labelled == 0:
            raise NoLabelledDataError(
                f"{self.owner} needs labelled data: the learner's X_training must hold at least one sample. "
                "Got none instead. Teach the learner a few labels first, or use random_sampling for the first batch."
            )
        samples = self._samples(self.learner.X_training, "X_training")
        if isinstance(samples.X, Dataset):
            self._watches.append(samples.start_watch())
        return samples

    @cached_property
    def labels(self) -> np.ndarray:
        """Labels of the labelled samples, as the learner holds them."""
        y = getattr(self.learner, "y_training", None)
        if y is None and isinstance(self.labelled.X, Dataset):
            y = [dataset_target(self.labelled.X[i]) for i in range(len(self.labelled))]
        return read_labels(y, len(self.labelled), self.task)

    @cached_property
    def class_labels(self) -> np.ndarray:
        """Labels of the network's outputs 0 … C−1, or the loss's ``ignore_index``, as ``int64`` targets: (n,) array."""
        if self.task != CLASSIFICATION:
            raise refuse_task(self.owner, self.task, [CLASSIFICATION], "It differentiates the loss of a class.")
        criterion = self.network.criterion
        ignored = getattr(criterion, "ignore_index", None)
        return class_positions(self.owner, self.labels, self.n_classes, is_binary(criterion), ignored)

    def predict(self, samples: Samples | None = None) -> np.ndarray:
        """Numbers that a regressor predicts for the pool, or for other samples.

        Parameters
        ----------
        samples : Samples, optional
            By default the pool.

        Returns
        -------
        (n, k) float64 array
            One column for each target.
        """
        of = self.pool if samples is None else samples
        if self.has_network:
            return self.outputs(samples).double().cpu().numpy()
        predict = partial(predict_numbers, self.estimator)
        return np.concatenate([predict(x) for x in of.chunks(max(self.batch_size, 4096), stacked=True)])

    def answers(self, samples: Samples | None = None) -> np.ndarray:
        """The estimator's predictions for the pool, or for other samples, whatever the task.

        Parameters
        ----------
        samples : Samples, optional
            By default the pool.

        Returns
        -------
        (n, C) float64 array
            Probabilities of classes, or of having each of several labels; or numbers.
        """
        if not self.meaning.has_probabilities:
            return self.predict(samples)
        proba = self.predict_proba(samples)
        return proba if proba.ndim == 2 else proba[..., 1]

    def predict_proba(self, samples: Samples | None = None) -> np.ndarray:
        """Class probabilities of the pool, or of other samples.

        Parameters
        ----------
        samples : Samples, optional
            By default the pool.

        Returns
        -------
        (n, C) float64 array; (n, L, 2) of several labels at once
            Checked to be distributions. Of a classifier without ``predict_proba``, the logistic function of its
            decision function.
        """
        if self.task == REGRESSION:
            raise refuse_task(self.owner, self.task, [CLASSIFICATION, MULTILABEL], "It needs class probabilities.")
        if self.has_network:
            network = self.network
            with torch.no_grad():
                proba = network.to_proba(self.outputs(samples)).double().cpu().numpy()
        else:
            # scikit-learn's classifiers bring no batch size of their own: bound the memory, spare the overhead
            predict, size = find_probabilities(self.estimator, self.owner, self.task), max(self.batch_size, 4096)

            def shard(part: Samples) -> np.ndarray:
                return np.concatenate([predict(x) for x in part.chunks(size, stacked=True)])

            of = self.pool if samples is None else samples
            if self.sharding is None or len(of) <= size:
                proba = shard(of)
            else:
                proba = np.concatenate(list(self.sharding.map(shard, of, size)))
            if len(proba) != len(of):
                raise OutputError(
                    f"The estimator's predict_proba must give one row for each of the {len(of)} samples. Got "
                    f"{len(proba)} instead. Use a classifier, and steps before it, that keep all rows."
                )
        check_distributions(proba)
        return proba


def _form(rows: Any) -> str | None:
    """The names of columns, or the shape, that all rows share; None if there is none."""
    if isinstance(rows, Mapping):
        return ", ".join(f"{key}: {_form(value)}" for key, value in sorted(rows.items()))
    if hasattr(rows, "columns"):
        return f"columns {', '.join(map(str, rows.columns))}"
    return f"shape {tuple(rows.shape[1:])}" if hasattr(rows, "shape") else None


def _in_memory(X: Any) -> bool:
    """True if samples are cheap to hash: a large memory map would be read from the disk twice."""
    if isinstance(X, Mapping):
        return all(map(_in_memory, X.values()))
    if isinstance(X, torch.Tensor):
        return X.device.type == "cpu" and X.layout == torch.strided
    return isinstance(X, np.ndarray) and not X.dtype.hasobject and not (isinstance(X, np.memmap) and X.nbytes > 2**30)
