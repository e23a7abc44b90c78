# SPDX-License-Identifier: BSD-3-Clause
"""BADGE: diverse batches of large gradients (Ash et al. 2020)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from skal.base import query_function
from skal.context import Loss, QueryContext, product_rows, rows_within
from skal.exceptions import UnsupportedLayerError
from skal.strategies._two_level import Choose, Chosen, TwoLevelStrategy
from skal.validation import is_auto, make_generator

# a squared distance below this share of the squared norms is the rounding of float32 embeddings, and counts as zero
_ROUNDING = 1e-12
# chosen samples after which all distances are brought up to date, proposals that are made at once, rows of a block
_REFRESH = 16
_PROPOSALS = 16
_BLOCK = 2**14
_BLOCK_BYTES = 2**25
_CACHE_BYTES = 2**19  # bytes of distances on a processor, which stay in its cache until they are read again


class BADGE(TwoLevelStrategy):
    """Query a batch of samples whose loss gradients are large and unlike each other.

    A sample's embedding is the gradient of the training loss in the last layer's weights, its predicted label taken for
    the true one: ``q ⊗ φ`` with q the derivative with respect to the logits, ``σ(f) − e_ŷ`` for the cross-entropy, and
    φ the last layer's input. With other features of the samples q is that of the cross-entropy. The first choice has
    the largest gradient; the others are drawn by k-means++, with probabilities proportional to the squared distance to
    the nearest one chosen. With several labels at once q is ``p − [p > ½]``. The predicted number of a regression
    leaves no residual: there q is 1, and φ by default the sketched gradient of the outputs.

    Parameters
    ----------
    features : {"auto", "input", "last_layer", "tangent"}, transformer, callable or nn.Module, default="auto"
        φ. ``auto`` is the input of a network's last layer (for a regression ``tangent``), and the input itself for any
        other estimator. A transformer must be fitted; a callable gets samples and returns an (n, d) array; a module is
        a frozen backbone.
    subset : int or None, default=None
        Choose among this many random samples of the pool.
    random_state : None, int, Generator or RandomState, default=None
        For the draws, and the choice of the subset.

    Warns
    -----
    TwoLevelWarning
        If ``max_memory`` makes a choice in two stages necessary.

    See Also
    --------
    CoreSet : Diversity alone.
    DynamicAL : Gradients of all layers.

    Notes
    -----
    Distances come from the two factors, ``‖q⊗φ − q'⊗φ'‖² = ‖q‖²‖φ‖² + ‖q'‖²‖φ'‖² − 2 (q·q')(φ·φ')``: memory grows with
    N (C + d), not N C d. A sample is never drawn twice; when all the others coincide with chosen ones, the draw is
    uniform among them. The metrics are the squared distances at the time of choice, for the first one its squared norm.

    References
    ----------
    J. T. Ash, C. Zhang, A. Krishnamurthy, J. Langford and A. Agarwal (2020). Deep batch active learning by diverse,
    uncertain gradient lower bounds. ICLR.

    Examples
    --------
    >>> import torch
    >>> from skorch import NeuralNetClassifier
    >>> from skal import ActiveLearner
    >>> from skal.datasets import load
    >>> from skal.nets import MLP
    >>> from skal.strategies import BADGE, badge
    >>> digits = load("digits")
    >>> net = NeuralNetClassifier(MLP(64, 10), criterion=torch.nn.CrossEntropyLoss, train_split=None, verbose=0)
    >>> strategy = BADGE(random_state=0)
    >>> learner = ActiveLearner(net, strategy, X_training=digits.X_train[:50], y_training=digits.y_train[:50])
    >>> X_pool = digits.X_train[50:250]
    >>> indices, samples = learner.query(X_pool, n_instances=5)
    >>> samples.shape
    (5, 1, 8, 8)
    >>> bool((badge(learner, X_pool, 5, random_state=0) == indices).all())  # the same, as a function
    True
    """

    draws_from_pool = True

    def _sample_bytes(self, context: QueryContext) -> int:
        """Both factors as they come, and in float64."""
        return (context.feature_width(self._spec(context)) + context.n_classes) * 12 + 32

    def _reserved_bytes(self, context: QueryContext) -> int:
        """Distances that are computed at once."""
        return min(_BLOCK_BYTES, context.memory // 8)

    def _chooser(self, context: QueryContext) -> Choose:
        block_bytes = self._reserved_bytes(context)
        loss = context.meaning.loss
        if self._in_last_layer(context):
            self._check_last_layer(context)
            loss = context.logit_network.loss
        generator = make_generator(context.owner, self.random_state)

        def choose(some: np.ndarray | range, n: int, masses: np.ndarray | None) -> Chosen:
            q, phi = self._factors(context.restrict(some), loss)
            if masses is None:
                return *kmeans_plus_plus(q, phi, n, generator, block=_block(block_bytes, _REFRESH)), None
            mass = torch.as_tensor(masses).to(phi)
            picked, squares = kmeans_plus_plus(q, phi, n, generator, mass, block=_block(block_bytes, _REFRESH))
            return picked, squares, nearest_masses(q, phi, picked, mass, _block(block_bytes, n))

        return choose

    def _spec(self, context: QueryContext) -> Any:
        """The kind of φ: gradients for a network that predicts numbers, otherwise the user's choice."""
        by_gradients = context.has_network and context.meaning.loss is None
        return "tangent" if by_gradients and is_auto(self.features) else self.features

    def _in_last_layer(self, context: QueryContext) -> bool:
        by_name = context.has_network and isinstance(self.features, str) and self.features in ("auto", "last_layer")
        return by_name and context.meaning.loss is not None

    def _factors(self, context: QueryContext, loss: Loss | None) -> tuple[Tensor, Tensor]:
        """q (n, C) and φ (n, d), with any estimator; without a residual nothing has to be predicted."""
        if loss is None:
            features = context.features(self._spec(context))
            return torch.ones_like(features[:, :1], dtype=torch.float64), features.double()
        if self._in_last_layer(context):
            features, logits = context.embeddings()
        else:
            features = context.features(self._spec(context))
            logits = context.meaning.logits(torch.as_tensor(context.answers(), device=features.device))
        logits = logits.double()
        return loss.gradient(logits, loss.predict(logits)), features.double()

    def _check_last_layer(self, context: QueryContext) -> None:
        last, owner = context.last_layer, type(self).__name__
        if not last.is_linear_end:
            # an output that cannot be used at all is the first thing to say
            size = context.batch_size
            context.network.all_outputs(context.pool.take(range(min(context.n_pool, size))), size)
            raise UnsupportedLayerError(
                f"For {owner} the network's output must be that of a linear last layer, whose gradient it writes as "
                f"(loss derivative) ⊗ input. Got the layer {last.name!r}, a {type(last.layer).__name__} whose output "
                "is changed before it is returned. Let forward return what the last Linear gives, or use CoreSet."
            )


def kmeans_plus_plus(
    q: Tensor,
    phi: Tensor,
    n_instances: int,
    generator: np.random.Generator,
    mass: Tensor | None = None,
    *,
    refresh: int = _REFRESH,
    n_proposals: int = _PROPOSALS,
    block: int = _BLOCK,
) -> tuple[np.ndarray, np.ndarray]:
    """D² sampling of the rows of ``q ⊗ φ``, which are never written out.

    Squared distances to the nearest chosen row can only shrink, so that old ones are bounds. A row is proposed with a
    probability proportional to its bound and accepted with the probability distance / bound: that is a draw by the
    distances themselves. Several are proposed at once and looked at one after the other, each with the distances that
    the ones before have left. All bounds are brought up to date now and then, for many chosen rows at once.

    Parameters
    ----------
    q : (N, C) tensor
    phi : (N, d) tensor
    n_instances : int
    generator : numpy Generator
    mass : (N,) tensor, optional
        How often each row counts; None is once.
    refresh : int
        All bounds are brought up to date once this many rows have been chosen that they do not take into account.
    n_proposals : int
        How many rows are proposed at once.
    block : int
        How many bounds are brought up to date at once.

    Returns
    -------
    picked : (n_instances,) array, distinct, in the order of choice
    squares : (n_instances,) array
        Squared distances to the nearest one chosen before; for the first, which has the largest norm, its squared norm.

    Examples
    --------
    >>> q, phi = torch.ones(3, 1).double(), torch.tensor([[1.0], [4.0], [4.0]]).double()
    >>> kmeans_plus_plus(q, phi, 3, np.random.default_rng(0))
    (array([1, 0, 2]), array([16.,  9.,  0.]))
    """
    rows = _OuterProducts(q, phi)
    bound = torch.full_like(rows.norms, torch.inf)
    free = torch.ones_like(bound)
    first = int(rows.norms.argmax())
    picked, squares = [first], [float(rows.norms[first])]
    known = seen = 0  # how many of the chosen all bounds take into account, and how many have none any more
    while len(picked) < n_instances:
        bound[picked[seen:]] = free[picked[seen:]] = 0
        seen = len(picked)
        if known == 0 or len(picked) - known >= refresh:
            known = _refresh(bound, rows, picked, known, block)
        accepted = _propose(bound, free, mass, rows, picked[known:], generator.random((2, n_proposals)))
        if not accepted:
            known = _refresh(bound, rows, picked, known, block)
            accepted = _propose(bound, free, mass, rows, [], generator.random((2, n_proposals)))
        assert accepted  # bounds that are up to date are always accepted
        for best, square in accepted[: n_instances - len(picked)]:
            picked.append(best)
            squares.append(square)
    return np.array(picked), np.array(squares)


def _block(n_bytes: int, n_chosen: int) -> int:
    """The number of rows whose distances are computed at once, in four arrays of float64."""
    return min(_BLOCK, rows_within(n_bytes, 32 * n_chosen))


def nearest_masses(q: Tensor, phi: Tensor, picked: np.ndarray, mass: Tensor, block: int = _BLOCK) -> np.ndarray:
    """The mass that is nearest to each chosen row of ``q ⊗ φ``: an (m,) array that sums to the whole mass."""
    rows, total = _OuterProducts(q, phi), torch.zeros(len(picked), dtype=mass.dtype, device=mass.device)
    block = min(block, product_rows(phi))
    for start in range(0, len(q), block):
        part = slice(start, start + block)
        total.index_add_(0, rows.squares(part, picked.tolist()).argmin(dim=1), mass[part])
    return total.double().cpu().numpy()


class _OuterProducts:
    """The rows ``q ⊗ φ``, known by their factors."""

    def __init__(self, q: Tensor, phi: Tensor) -> None:
        self.q, self.phi = q, phi
        self.norms = (torch.linalg.vector_norm(q, dim=1) * torch.linalg.vector_norm(phi, dim=1)).square()

    def squares(self, rows: Any, others: list[int]) -> Tensor:
        """Squared distances between some rows and others: (n, m)."""
        theirs = torch.as_tensor(others, device=self.q.device)
        scale = self.norms[rows].unsqueeze(1) + self.norms[theirs]
        inner = self.q[rows] @ self.q[theirs].T
        squares = torch.addcmul(scale, inner, self.phi[rows] @ self.phi[theirs].T, value=-2)
        return squares.masked_fill_(squares <= _ROUNDING * scale, 0)

    def nearest(self, rows: slice, others: list[int]) -> Tensor:
        """Squared distances of some rows to the nearest of the others: (n,)."""
        q, phi, own = self.q, self.phi, self.norms[rows]
        # few rows by many columns: so products and minima run over what lies side by side
        products = (q[others] @ q[rows].T).mul_(phi[others] @ phi[rows].T)
        # a row's own norm does not change which of the others is nearest
        squares = torch.add(self.norms[others, None], products, alpha=-2).amin(dim=0).add_(own)
        # where two rows coincide both have the same norm
        return squares.masked_fill_(squares <= 2 * _ROUNDING * own, 0)


def _refresh(bound: Tensor, rows: _OuterProducts, picked: list[int], known: int, block: int) -> int:
    """Bring all bounds up to date, in place; returns how many of the chosen they now take into account."""
    if known < len(picked):
        block = min(block, product_rows(rows.phi))
        block = min(block, rows_within(_CACHE_BYTES, 8 * (len(picked) - known))) if bound.is_cpu else block
        for start in range(0, len(bound), block):
            part = slice(start, start + block)
            bound[part] = torch.minimum(bound[part], rows.nearest(part, picked[known:]))
    return len(picked)


def _propose(
    bound: Tensor, free: Tensor, mass: Tensor | None, rows: _OuterProducts, unknown: list[int], uniform: np.ndarray
) -> list[tuple[int, float]]:
    """Proposals from (2, s) numbers in [0, 1): those that are accepted, with their squared distances when they were."""
    draws, chances = uniform
    draws = torch.as_tensor(draws, dtype=bound.dtype).to(bound.device)
    index = _draw(bound if mass is None else mass * bound, draws)
    coincide = index is None  # with chosen ones, all that are left and count: by how often they count, or uniformly
    if index is None and mass is not None:
        index = _draw(mass * free, draws)
    if index is None:
        index = _draw(free, draws)
    assert index is not None  # there are free rows as long as somebody asks
    proposed = index.tolist()
    at_draw = bound[index]
    distances = rows.squares(index, [*unknown, *proposed])  # (s, unknown + s)
    nearest = torch.minimum(at_draw, distances[:, : len(unknown)].amin(dim=1)) if unknown else at_draw
    table = torch.cat([at_draw[:, None], nearest[:, None], distances[:, len(unknown) :]], dim=1).tolist()
    accepted: dict[int, float] = {}
    places: list[int] = []  # their places among the proposals
    for place, (row, chance, (bounded, square, *others)) in enumerate(zip(proposed, chances, table, strict=True)):
        square = min([square, *(others[other] for other in places)])
        if row not in accepted and (coincide or chance * bounded < square):
            accepted[row] = square
            places.append(place)
    return list(accepted.items())


def _draw(weights: Tensor, draws: Tensor) -> Tensor | None:
    """Indices with probabilities proportional to their weights, from numbers in [0, 1); never one of weight zero.

    None if all weights are zero.
    """
    cumulated = weights.cumsum(dim=0)
    index = torch.searchsorted(cumulated, draws * cumulated[-1], right=True).clamp_max_(len(weights) - 1)
    drawn = weights[index] > 0
    if bool(drawn.all()):
        return index
    # rounding may land beyond the last weight that is not zero
    return torch.where(drawn, index, weights.argmax()) if bool(cumulated[-1] > 0) else None


badge = query_function(BADGE, "badge", __name__)
