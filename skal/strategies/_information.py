# SPDX-License-Identifier: BSD-3-Clause
"""What the label of a sample, or the labels of a batch, would tell about the dropout mask."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from skal.context import product_rows, rows_within

BLOCK_BYTES = 2**23
CACHE_BYTES = 2**20  # bytes of pairs of labels that are worked on at once
_GROUPS = 32  # groups of joint labels, for bounds of gains
_FIRST_LOOK = 16  # samples whose gains are computed at first
_SLACK = 1e-9  # for the rounding of bounds, in nats


def entropy(proba: Tensor) -> Tensor:
    """Entropies in nats over the last dimension, ``0 log 0 = 0``: (..., C) -> (...)."""
    entropies: Tensor = torch.special.entr(proba).sum(dim=-1)
    return entropies


def mutual_information(proba: Tensor) -> Tensor:
    """``H(mean_t p_t) − mean_t H(p_t)`` from the probabilities of every pass: (T, n, C) -> (n,)."""
    return entropy(proba.mean(dim=0)) - entropy(proba).mean(dim=0)


def predictive_information(
    proba: Tensor, targets: Tensor, dtype: torch.dtype = torch.float64, block_bytes: int = CACHE_BYTES
) -> Tensor:
    """Mean over targets of the mutual information between a sample's label and the target's: (n,).

    Given the mask the two are independent, so that ``p(y, y*) = mean_t p_t(y) p_t(y*)``. With the relative deviations
    ``q_t = p_t / p − 1``, whose mean is 0, ``p(y, y*) = p(y) p(y*) (1 + s)`` where ``s = mean_t q_t(y) q_t(y*)``. The
    information is ``Σ p(y) p(y*) ((1 + s) log(1 + s) − s)``: its terms are not negative and do not cancel, so that
    single precision does for networks that work in it, whose probabilities do not quite sum to 1 either.

    Parameters
    ----------
    proba : (T, n, C) float64 tensor
        Predictions with each of T masks.
    targets : (T, M, C) float64 tensor
    dtype : torch.dtype
        Of what is computed for all pairs of labels.
    block_bytes : int
        For pairs of labels that are worked on at once, near the processor.
    """
    n_masks, n_targets, n_classes = targets.shape
    others, other_weights = _deviations(targets)
    own, weights = _deviations(proba)
    others, own = (others.flatten(1) / n_masks).to(dtype), own.flatten(1).T.to(dtype)  # (T, M C), (n C, T)
    lowest = -1 + torch.finfo(dtype).eps  # s, of labels that exclude each other
    of_label, other_weights = own.new_empty(len(own)), other_weights.flatten().to(dtype)
    step = rows_within(block_bytes, 2 * own.element_size() * others.shape[1])
    for start in range(0, len(own), step):
        s = (own[start : start + step] @ others).clamp_min_(lowest)
        terms = s.log1p()
        terms.addcmul_(s, terms).sub_(s)
        of_label[start : start + step] = terms @ other_weights
    return (of_label.reshape(-1, n_classes).double() * weights).sum(1) / n_targets


def _deviations(proba: Tensor) -> tuple[Tensor, Tensor]:
    """Relative deviations of predictions from their mean over masks, and that mean: (T, n, C), (n, C)."""
    mean = proba.mean(dim=0)
    return (proba - mean) / mean.clamp_min(torch.finfo(mean.dtype).tiny), mean


def joint_information(
    proba: Tensor, n_instances: int, n_samples: int, generator: np.random.Generator, block_bytes: int = BLOCK_BYTES
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
        How many joint labels of the batch to look at: all if there are no more, otherwise this many draws.
    generator : numpy Generator
    block_bytes : int
        For the predictions that are mixed at once.

    Returns
    -------
    picked : (n_instances,) array, in the order of choice
    gains : (n_instances,) array
        What each added. Exact sums of it never increase.
    """
    n_masks, n_pool, n_classes = proba.shape
    rows = proba.permute(1, 2, 0)  # (N, C, T)
    step = rows_within(block_bytes, 2 * proba.element_size() * n_masks * n_classes)
    noise = torch.cat([torch.special.entr(part).sum(dim=1).mean(dim=1) for part in rows.split(step)])  # (N,)
    weights = proba.new_full((1, n_masks), 1 / n_masks)  # (M, T): weights of the masks given each joint label
    share = proba.new_ones(1)  # (M,): probabilities of the joint labels
    drawn: Tensor | None = None  # (M,): the mask from which each joint label is drawn
    taken = torch.zeros(n_pool, dtype=torch.bool, device=proba.device)
    picked: list[int] = []
    gains: list[float] = []
    while True:
        best, gain = _largest_gain(rows, noise, taken, weights, share, block_bytes)
        picked.append(best)
        gains.append(gain)
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
                weights = _reweight(weights, proba[:, earlier], drawn, generator)
        weights = _reweight(weights, likelihood, drawn, generator)


def _largest_gain(
    rows: Tensor, noise: Tensor, taken: Tensor, weights: Tensor, share: Tensor, block_bytes: int
) -> tuple[int, float]:
    """The sample with the largest gain, and that gain, without computing those that cannot be the largest.

    Entropy is concave. So where joint labels whose weights are alike are replaced by one with their mean weights, the
    conditional entropy can only grow: that is a bound of every gain, at a fraction of the cost. Samples are looked at
    from the largest bound down, until the largest gain is above the next bound.

    Parameters
    ----------
    rows : (N, C, T) tensor
        Predictions with each of T masks.
    noise : (N,) tensor
        Mean entropy of each sample's predictions.
    taken : (N,) bool tensor
    weights : (M, T) tensor
    share : (M,) tensor
    block_bytes : int
    """
    few_weights, few_share = group_labels(weights, share)
    bounds = (_conditional_entropy(rows, few_weights, few_share, block_bytes) - noise).masked_fill(taken, -torch.inf)
    if len(few_share) == len(share):  # nothing was replaced
        best = int(bounds.argmax())
        return best, float(bounds[best])
    values, order = bounds.sort(descending=True, stable=True)
    best, gain, start, size = -1, -float("inf"), 0, _FIRST_LOOK
    n_left = int((~taken).sum())
    while start < n_left and float(values[start]) >= gain - _SLACK:
        some = order[start : min(start + size, n_left)]
        gains = _conditional_entropy(rows, weights, share, block_bytes, some) - noise[some]
        for position in (gains == gains.max()).nonzero()[:, 0].tolist():
            # of equal ones the first in the pool
            if (float(gains[position]), -int(some[position])) > (gain, -best):
                best, gain = int(some[position]), float(gains[position])
        start, size = start + size, 4 * size
    return best, gain


def group_labels(weights: Tensor, share: Tensor, n_groups: int = _GROUPS) -> tuple[Tensor, Tensor]:
    """Joint labels with similar weights put together: (M, T), (M,) -> (G, T) mean weights, (G,) shares, G ≤ M.

    Each group has a centre, the joint label furthest from all centres before it in Hellinger distance, and holds those
    that are nearest to it.

    Examples
    --------
    >>> weights = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    >>> group_labels(weights, torch.full((3,), 1 / 3), 2)[1]
    tensor([0.3333, 0.6667])
    """
    if len(share) <= n_groups:
        return weights, share
    roots = weights.sqrt()
    nearest = torch.full_like(share, torch.inf)
    group = torch.zeros_like(share, dtype=torch.int64)
    centre = 0
    for number in range(n_groups):
        distance = 1 - roots @ roots[centre]
        closer = distance < nearest
        group[closer] = number
        nearest = torch.where(closer, distance, nearest)
        centre = int(nearest.argmax())
    total = share.new_zeros(n_groups).index_add_(0, group, share)
    sums = weights.new_zeros(n_groups, weights.shape[1]).index_add_(0, group, share[:, None] * weights)
    return sums / total.clamp_min(torch.finfo(total.dtype).tiny)[:, None], total


def _conditional_entropy(
    rows: Tensor, weights: Tensor, share: Tensor, block_bytes: int, some: Tensor | None = None
) -> Tensor:
    """``Σ_m share_m H(Σ_t weights_mt p_t(x))`` for every x, or for some: (N, C, T), (M, T), (M,) -> (N,), in blocks."""
    n_classes, n_masks = rows.shape[1:]
    n = len(rows) if some is None else len(some)
    step = min(rows_within(block_bytes, rows.element_size() * n_classes * len(share)), product_rows(rows))
    result = rows.new_empty(n)
    for start in range(0, n, step):
        part = slice(start, start + step)
        mixed = rows[part if some is None else some[part]].reshape(-1, n_masks) @ weights.T  # (n C, M)
        result[part] = (torch.special.entr(mixed, out=mixed) @ share).reshape(-1, n_classes).sum(dim=1)
    return result


def _reweight(weights: Tensor, likelihood: Tensor, drawn: Tensor, generator: np.random.Generator) -> Tensor:
    """Draw a label of one more sample for every joint label, each from its mask, and update the masks' weights."""
    uniform = torch.as_tensor(generator.random(len(drawn)), dtype=likelihood.dtype).to(likelihood.device)
    cumulated = likelihood[drawn].cumsum(dim=1)
    label = (uniform[:, None] * cumulated[:, -1:] >= cumulated).sum(dim=1).clamp_max(likelihood.shape[1] - 1)
    weights = weights * likelihood[:, label].T
    return weights / weights.sum(dim=1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)
