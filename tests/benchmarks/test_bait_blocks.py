"""The whole Fisher information beside BAIT's blocks."""

import numpy as np

from benchmarks.bait_blocks import compare, effects, inverse_of, roots


def test_effects_are_differences_of_the_objective():
    rng = np.random.default_rng(0)
    features, proba = rng.normal(size=(6, 3)), rng.dirichlet(np.ones(4), size=6)
    V = roots(features, proba)
    for v, p, phi in zip(V, proba, features, strict=True):
        np.testing.assert_allclose(v @ v.T, np.kron(np.diag(p) - np.outer(p, p), np.outer(phi, phi)), atol=1e-12)
    F = np.einsum("nir,njr->ij", V, V) / 6
    before = np.trace(inverse_of(V[:3]) @ F)
    for row, gain in enumerate(effects(inverse_of(V[:3]), F, V, 1)):
        after = np.trace(inverse_of(np.concatenate([V[:3], V[row : row + 1]])) @ F)
        np.testing.assert_allclose(gain, before - after, rtol=1e-9)
    for row, rise in enumerate(effects(inverse_of(V[:3]), F, V[:3], -1)):
        np.testing.assert_allclose(rise, np.trace(inverse_of(np.delete(V[:3], row, axis=0)) @ F) - before, rtol=1e-9)


def test_blocks_cost_little():
    common, gap, gap_of_random = compare(4, 20)
    assert common >= 5
    assert abs(gap) < 0.02 < gap_of_random
