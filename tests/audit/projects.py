"""Pools with known labels, for audits of them."""

import numpy as np


def make_pool(rng, n=1500, n_classes=3, strength=3.0, power=1.0):
    """Probabilities and labels; a power above 1 makes the model overconfident."""
    logits = strength * rng.standard_normal((n, n_classes))
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    y = (rng.random((n, 1)) > p.cumsum(1)).sum(1).clip(max=n_classes - 1)
    p = p**power
    return p / p.sum(1, keepdims=True), y


def spoil(p, y, rows):
    """The same pool with some rows confidently wrong."""
    p = p.copy()
    p[rows] = 0.005
    p[rows, (y[rows] + 1) % p.shape[1]] = 1 - 0.005 * (p.shape[1] - 1)
    return p, y
