"""What the label of a sample, or the labels of a batch, would tell about the dropout mask."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from skal._core.memory import rows_within

BLOCK_BYTES = 2**26


def entropy(proba: Tensor) -> Tensor:
    """Entropies in nats over the last dimension, ``0 log 0 = 0``: (..., C) -> (...)."""
    return torch.special.entr(proba).sum(dim=-1)


def mutual_information(passes: Iterator[Tensor]) -> Tensor:
    """``H(mean_t p_t) − mean_t H(p_t)`` from the probabilities (n, C) of every pass: (n,). Only sums are kept."""
    first = next(passes)
    total, noise, n_passes = first.clone(), entropy(first), 1
    for proba in passes:
        total += proba
        noise += entropy(proba)
        n_passes += 1
    return entropy(total / n_passes) - noise / n_passes


def predictive_information(proba: Tensor, targets: Tensor, block_bytes: int = BLOCK_BYTES) -> Tensor:
    """Mean over targets of the mutual information between a sample's label and the target's: (n,).

    Given the mask the two are independent, so that ``p(y, y*) = mean_t p_t(y) p_t(y*)``.

    Parameters
    ----------
    proba : (T, n, C) float64 tensor
        Predictions with each of T masks.
    targets : (T, M, C) float64 tensor
    block_bytes : int
        For the joint probabilities that are made at once.
    """
    n_masks, n_targets, n_classes = targets.shape
    others = targets.reshape(n_masks, -1) / n_masks  # (T, M C)
    of_target = entropy(targets.mean(dim=0)).mean()
    step = rows_within(block_bytes, 16 * n_targets * n_classes**2)
    joint = torch.cat(
        [entropy((part.permute(1, 2, 0) @ others).flatten(1)) / n_targets for part in proba.split(step, dim=1)]
    )
    return entropy(proba.mean(dim=0)) + of_target - joint


def joint_information(
    proba: Tensor,
    n_instances: int,
    n_samples: int,
    generator: np.random.Generator,
    block_bytes: int = BLOCK_BYTES,
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
    step = rows_within(block_bytes, proba.element_size() * n_masks * n_classes)
    noise = torch.cat([entropy(part).mean(dim=0) for part in proba.split(step, dim=1)])  # (N,)
    weights = proba.new_full((1, n_masks), 1 / n_masks)  # (M, T): weights of the masks given each joint label
    share = proba.new_ones(1)  # (M,): probabilities of the joint labels
    drawn: Tensor | None = None  # (M,): the mask from which each joint label is drawn
    taken = torch.zeros(n_pool, dtype=torch.bool, device=proba.device)
    picked: list[int] = []
    gains: list[float] = []
    while True:
        gain = _conditional_entropy(proba, weights, share, block_bytes) - noise
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


def _conditional_entropy(proba: Tensor, weights: Tensor, share: Tensor, block_bytes: int) -> Tensor:
    """``Σ_m share_m H(Σ_t weights_mt p_t(x))`` for every x: (T, N, C), (M, T), (M,) -> (N,), block by block."""
    n_masks, n_pool, n_classes = proba.shape
    step = rows_within(block_bytes, proba.element_size() * n_classes * len(share))
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
