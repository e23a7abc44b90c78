"""BALD: what the dropout masks disagree about (Houlsby et al. 2011; Gal et al. 2017), and BatchBALD (Kirsch 2019)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skal._core.cost import Passes
from skal._core.samples import Samples
from skal._core.sharding import filled
from skal.base import ScoreStrategy, query_function, top
from skal.context import QueryContext
from skal.strategies._bald._dropout import dropout_outputs
from skal.validation import check_choice, check_integer, make_generator, parse_memory

__all__ = ["BALD", "bald"]

_DEFAULT_MEMORY = 10**9
_BLOCK_BYTES = 2**26


class BALD(ScoreStrategy):
    """Query where the predictions of networks with different dropout masks disagree.

    The score is the mutual information between the label and the mask, ``H(mean_t p_t) − mean_t H(p_t)``, over
    ``n_passes`` forward passes in which dropout alone is on; batch norm stays on its running statistics. One mask per
    pass is shared by all samples, so that scores do not depend on how the pool is cut or ordered.

    Parameters
    ----------
    n_passes : int, default=20
        Forward passes, each with a mask of its own.
    batch : {"top", "joint"}, default="top"
        ``top`` takes the highest scores. ``joint`` is BatchBALD: it adds, one by one, the sample that raises the mutual
        information between all labels of the batch and the mask most, so that samples that say the same count once.
    n_samples : int, default=1024
        For ``joint``: joint labels of the batch are all enumerated while there are at most this many; beyond, so many
        of them are drawn.
    subset : int or None, default=None
        Score only this many random samples of the pool.
    batch_size : int, default=256
        Samples per network pass.
    max_memory : int, str or None, default=None
        Bound on the memory for the predictions that ``joint`` keeps, such as ``"2GB"``; None is 1 GB. Only as many
        samples with the highest scores take part as have room.
    random_state : None, int, Generator or RandomState, default=None
        For the masks, the drawn labels, and the choice of the subset.
    n_jobs : int or None, default=None
        Workers that share the passes over the pool, as in scikit-learn: None is 1, or what ``joblib.parallel_config``
        says; -1 is all processors.
    verbose : int, default=0
        1 shows a progress bar over the parts of the pool.

    Examples
    --------
    >>> import torch
    >>> from skorch import NeuralNetClassifier
    >>> from skal import ActiveLearner
    >>> from skal.datasets import load
    >>> from skal.nets import CNN
    >>> from skal.strategies import BALD, bald
    >>> digits = load("digits")
    >>> module = CNN(in_channels=1, image_size=8, dropout=0.25)
    >>> net = NeuralNetClassifier(module, criterion=torch.nn.CrossEntropyLoss, train_split=None, verbose=0)
    >>> strategy = BALD(n_passes=5, random_state=0)
    >>> learner = ActiveLearner(net, strategy, X_training=digits.X_train[:50], y_training=digits.y_train[:50])
    >>> X_pool = digits.X_train[50:250]
    >>> indices, samples = learner.query(X_pool, n_instances=5)
    >>> samples.shape
    (5, 1, 8, 8)
    >>> bool((bald(learner, X_pool, 5, n_passes=5, random_state=0) == indices).all())  # the same, as a function
    True
    """

    def __init__(
        self,
        *,
        n_passes: int = 20,
        batch: str = "top",
        n_samples: int = 1024,
        subset: int | None = None,
        batch_size: int = 256,
        max_memory: int | str | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_passes = n_passes
        self.batch = batch
        self.n_samples = n_samples
        self.subset = subset
        self.batch_size = batch_size
        self.max_memory = max_memory
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def _check_params(self) -> None:
        super()._check_params()
        owner = type(self).__name__
        check_integer(owner, "n_passes", self.n_passes, 2, remedy="Masks can only disagree if there are two.")
        check_choice(owner, "batch", self.batch, ["top", "joint"])
        check_integer(owner, "n_samples", self.n_samples, 1)

    def _score(self, context: QueryContext) -> np.ndarray:
        return self._information(context, self._seeds(self._generator()))

    def _generator(self) -> np.random.Generator:
        return make_generator(type(self).__name__, self.random_state)

    def _seeds(self, generator: np.random.Generator) -> list[int]:
        """One for each pass."""
        return [int(seed) for seed in generator.integers(2**31, size=self.n_passes)]

    def _information(self, context: QueryContext, seeds: list[int]) -> np.ndarray:
        """(N,) mutual informations; of the predictions only running sums are kept."""
        predictions, n_passes = self._predictions(context, seeds), self.n_passes

        def shard(part: Samples) -> Tensor:
            scores = []
            for passes in predictions(part):
                mean, noise = torch.zeros(()), torch.zeros(())
                for proba in passes:
                    mean = mean + proba / n_passes
                    noise = noise + entropy(proba) / n_passes
                scores.append(entropy(mean) - noise)
            return torch.cat(scores)

        return self._shared(context, shard).clamp_min(0).cpu().numpy()

    def _predictions(self, context: QueryContext, seeds: list[int]) -> Callable[[Samples], Iterator[Iterator[Tensor]]]:
        """A function of samples: for each chunk of them, the (n, C) probabilities of every pass."""
        owner, network, batch_size = type(self).__name__, context.network, self.batch_size

        def predictions(samples: Samples) -> Iterator[Iterator[Tensor]]:
            for outputs in dropout_outputs(network, samples, batch_size, seeds, owner):
                yield (network.to_proba(output).double() for output in outputs)

        return predictions

    def _shared(self, context: QueryContext, shard: Callable[[Samples], Tensor]) -> Tensor:
        network = context.network
        return filled(network.sharding.map(shard, context.pool, self.batch_size, network.device), context.n_pool)

    def _select(self, context: QueryContext, n_instances: int) -> tuple[np.ndarray, np.ndarray]:
        if self.batch == "top":
            return super()._select(context, n_instances)
        return self._joint(context, n_instances)

    def _passes(self, context: QueryContext, n: int, n_instances: int) -> Passes:
        again = min(n, self._room(context, n_instances)) if self.batch == "joint" else 0
        return Passes(forward=self.n_passes * (n if again in (0, n) else n + again))

    def _memory(self, context: QueryContext, n: int, n_instances: int) -> int:
        kept = min(n, self._room(context, n_instances)) if self.batch == "joint" else 0
        # two copies while their order changes; blocks of mixed predictions
        return 24 * n + 16 * kept * self.n_passes * context.n_classes + (4 * _BLOCK_BYTES if kept else 0)

    def _room(self, context: QueryContext, n_instances: int) -> int:
        """Samples whose predictions ``joint`` may keep."""
        memory = parse_memory(type(self).__name__, "max_memory", self.max_memory) or _DEFAULT_MEMORY
        return max(n_instances, memory // (8 * self.n_passes * context.n_classes))

    def _joint(self, context: QueryContext, n_instances: int) -> tuple[np.ndarray, np.ndarray]:
        generator = self._generator()
        seeds = self._seeds(generator)
        room = self._room(context, n_instances)
        candidates = np.arange(context.n_pool)
        if room < context.n_pool:
            candidates = np.sort(top(self._information(context, seeds), room))
            context = context.restrict(candidates)
        predictions = self._predictions(context, seeds)

        def shard(part: Samples) -> Tensor:
            return torch.cat([torch.stack(list(passes), dim=1) for passes in predictions(part)])

        proba = self._shared(context, shard).transpose(0, 1).contiguous()  # (T, N, C)
        indices, gains = joint_information(proba, n_instances, self.n_samples, generator)
        return candidates[indices], gains


def entropy(proba: Tensor) -> Tensor:
    """Entropies in nats over the last dimension, ``0 log 0 = 0``: (..., C) -> (...)."""
    return torch.special.entr(proba).sum(dim=-1)


def joint_information(
    proba: Tensor, n_instances: int, n_samples: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Greedy maximisation of the mutual information between a batch's labels and the mask.

    Adding x to the batch B gains ``I(y_x; mask | y_B) = E_{y_B} H(y_x | y_B) − mean_t H(p_t(x))``. Given labels of the
    batch, masks have the weights ``w_t ∝ Π_i p_t(y_i | x_i)``.

    Parameters
    ----------
    proba : (T, N, C) float64 tensor
        Predictions with each of T masks.
    n_instances : int
    n_samples : int
        How many joint labels of the batch to look at: all if there are no more, otherwise so many draws.
    generator : numpy Generator

    Returns
    -------
    picked : (n_instances,) array, in the order of choice
    gains : (n_instances,) array
        What each added. Exact sums of it never increase.
    """
    n_masks, n_pool, n_classes = proba.shape
    noise = entropy(proba).mean(dim=0)  # (N,)
    weights = proba.new_full((1, n_masks), 1 / n_masks)  # (M, T): weights of the masks given each joint label
    share = proba.new_ones(1)  # (M,): probabilities of the joint labels
    drawn: Tensor | None = None  # (M,): the mask from which each joint label is drawn
    taken = torch.zeros(n_pool, dtype=torch.bool, device=proba.device)
    picked: list[int] = []
    gains: list[float] = []
    while True:
        gain = _conditional_entropy(proba, weights, share) - noise
        best = int(gain.masked_fill(taken, -torch.inf).argmax())
        picked.append(best)
        gains.append(float(gain[best]))
        taken[best] = True
        if len(picked) == n_instances:
            return np.array(picked), np.array(gains)
        likelihood = proba[:, best]  # (T, C)
        if drawn is None and len(weights) * n_classes <= n_samples:
            joint = weights[:, None, :] * likelihood.T  # (M, C, T)
            total = joint.sum(dim=-1)
            share = (share[:, None] * total).flatten()
            weights = (joint / total.clamp_min(torch.finfo(total.dtype).tiny)[..., None]).flatten(0, 1)
            continue
        if drawn is None:  # too many to enumerate from here on: start again with draws
            # as often from one mask as from another
            order = np.resize(generator.permutation(n_masks), n_samples)
            drawn = torch.as_tensor(order, device=proba.device)
            share = proba.new_full((n_samples,), 1 / n_samples)
            weights = proba.new_full((n_samples, n_masks), 1 / n_masks)
            for earlier in picked[:-1]:
                weights = _reweighted(weights, proba[:, earlier], drawn, generator)
        weights = _reweighted(weights, likelihood, drawn, generator)


def _conditional_entropy(proba: Tensor, weights: Tensor, share: Tensor) -> Tensor:
    """``Σ_m share_m H(Σ_t weights_mt p_t(x))`` for every x: (T, N, C), (M, T), (M,) -> (N,), block by block."""
    n_masks, n_pool, n_classes = proba.shape
    step = max(1, _BLOCK_BYTES // (proba.element_size() * n_classes * len(share)))
    result = proba.new_empty(n_pool)
    for start in range(0, n_pool, step):
        block = proba[:, start : start + step]
        mixed = (weights @ block.reshape(n_masks, -1)).reshape(len(share), -1, n_classes)
        result[start : start + step] = share @ entropy(mixed)
    return result


def _reweighted(weights: Tensor, likelihood: Tensor, drawn: Tensor, generator: np.random.Generator) -> Tensor:
    """Draw a label of one more sample for every joint label, each from its mask, and update the masks' weights."""
    uniform = torch.as_tensor(generator.random(len(drawn)), dtype=likelihood.dtype).to(likelihood.device)
    cumulated = likelihood[drawn].cumsum(dim=1)
    label = (uniform[:, None] * cumulated[:, -1:] >= cumulated).sum(dim=1).clamp_max(likelihood.shape[1] - 1)
    weights = weights * likelihood[:, label].T
    return weights / weights.sum(dim=1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)


bald = query_function(BALD, "bald", __name__)
