"""Per-sample gradients in factored form answer as the written-out ones do."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from skal.tangent._factors import PIECE_BYTES, Dense, Outer, Rows, Total, gram_matrix, pieces

SIZES = st.integers(1, 5)


def outer(n, groups, n_out, n_in, positions, seed=0):
    """An Outer of random factors and its gradients by einsum."""
    generator = torch.Generator().manual_seed(seed)
    g = torch.randn(n, groups, n_out, positions, generator=generator, dtype=torch.float64)
    a = torch.randn(n, groups, n_in, positions, generator=generator, dtype=torch.float64)

    def apply(direction, rows):
        return torch.einsum("coi,ncit->ncot", direction.reshape(groups, n_out, n_in), a[rows])

    return Outer(g, lambda rows: a[rows], n_in, apply), torch.einsum("ncot,ncit->ncoi", g, a).flatten(1)


def rows(n, positions, width, n_rows, seed=0):
    """Rows of random factors and its gradients, entry by entry."""
    generator = torch.Generator().manual_seed(seed)
    index = torch.randint(0, n_rows, (n, positions), generator=generator)
    g = torch.randn(n, positions, width, generator=generator, dtype=torch.float64)
    truth = torch.zeros(n, n_rows, width, dtype=torch.float64)
    for i in range(n):
        for t in range(positions):
            truth[i, index[i, t]] += g[i, t]
    return Rows(index, g, n_rows), truth.flatten(1)


def check(gradient, truth, piece_bytes=PIECE_BYTES):
    assert (gradient.n, gradient.size) == truth.shape
    direction = torch.linspace(-1, 1, gradient.size, dtype=torch.float64)
    for norms, dots in (gradient.scores(None, piece_bytes), gradient.scores(direction, piece_bytes)):
        np.testing.assert_allclose(norms, truth.square().sum(1), rtol=1e-10)
        if dots is not None:
            np.testing.assert_allclose(dots, truth @ direction, rtol=1e-9, atol=1e-10)
    assert gradient.scores()[1] is None
    np.testing.assert_allclose(gradient.dense(), truth, rtol=1e-10)
    blocks = torch.cat(gradient.blocks(), dim=1)  # in any order of the columns
    np.testing.assert_allclose(blocks @ blocks.T, truth @ truth.T, rtol=1e-9, atol=1e-10)
    assert blocks.shape == truth.shape
    part = slice(0, max(1, gradient.n // 2))
    np.testing.assert_allclose(gradient.dense(part), truth[part], rtol=1e-10)
    for form in (gradient, gradient.kernel_form()):
        np.testing.assert_allclose(form.gram(gradient.kernel_form()), truth @ truth.T, rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(form.gram(Dense(truth)), truth @ truth.T, rtol=1e-9, atol=1e-10)


@given(n=SIZES, groups=st.integers(1, 3), n_out=SIZES, n_in=SIZES, positions=st.sampled_from([1, 2, 30, 200]))
def test_outer(n, groups, n_out, n_in, positions):
    check(*outer(n, groups, n_out, n_in, positions))


@pytest.mark.parametrize(("n_out", "n_in", "positions", "by_gram"), [(30, 30, 3, True), (2, 2, 100, False)])
@pytest.mark.parametrize("groups", [1, 2])
def test_outer_both_ways(n_out, n_in, positions, by_gram, groups):
    gradient, truth = outer(5, groups, n_out, n_in, positions)
    assert gradient._gram_is_cheaper(True) == gradient._gram_is_cheaper(False) == by_gram
    check(gradient, truth, piece_bytes=1000)  # one sample at a time


@given(n=SIZES, positions=SIZES, width=SIZES, n_rows=SIZES)
def test_rows(n, positions, width, n_rows):
    check(*rows(n, positions, width, n_rows))


def test_rows_without_a_token_in_common():
    first = Rows(torch.tensor([[0, 1]]), torch.ones(1, 2, 2), 6)
    second = Rows(torch.tensor([[4, 5], [1, 5]]), torch.ones(2, 2, 2), 6)
    assert first.gram(second).tolist() == [[0.0, 2.0]]
    assert second.gram(first).tolist() == [[0.0], [2.0]]


def test_total():
    (first, first_truth), (second, second_truth) = outer(4, 1, 6, 3, 5), rows(4, 3, 3, 6)
    check(Total([first, second]), first_truth + second_truth)
    np.testing.assert_allclose(first.dense(), first_truth, rtol=1e-12)  # the parts stay what they are


@pytest.mark.parametrize("shape", [(4,), (4, 3), (4, 2, 3)])
def test_dense(shape):
    gradients = torch.randn(shape, dtype=torch.float64)
    check(Dense(gradients), gradients.reshape(4, -1))


def test_gram_of_float32_is_summed_in_float64():
    values = torch.tensor([[2.0**13, 1.0, -(2.0**13)] * 8])  # squares of 2²⁶ swallow the ones in float32
    for products in (Dense(values).gram(Dense(values)), gram_matrix(values, values, columns=7)):
        assert products.item() == 16 * 2**26 + 8
        assert products.dtype == torch.float64


def test_pieces_cover_all_samples():
    found = list(pieces(7, 6, piece_bytes=4 * 2 * 6))
    assert [(piece.start, piece.stop) for piece in found] == [(0, 2), (2, 4), (4, 6), (6, 7)]
    assert len(list(pieces(7, 10**9))) == 7
