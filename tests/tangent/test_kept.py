"""Gradients that are kept against autograd, sample by sample, and norms for all cotangents at once."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from skal.context import Samples, TangentEngine
from skal.strategies import EGL
from skal.tangent import _factors
from skal.tangent._cotangents import LossCotangent, kernel_cotangents, one_logit
from skal.tangent._factors import Dense, Outer, Product, Rows, all_squared_norms, pieces
from skal.tangent._kept import _Store, join, keep_gradients, kept_bytes
from skal.tangent._kernels import kernel_matrix

from ..support import oracle
from ..support.learners import learner_of, net_of
from ..support.networks import build
from .checking import check_exact

NAMES = ["mlp", "tutorial_cnn", "text_attention", "transformer_encoder", "text_gru"]


def engine_for(name, n=7, **params):
    module, X, _ = build(name, n)
    samples = Samples(X)
    return TangentEngine(module, samples, **params), samples


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["pntk", "trace"])
@pytest.mark.parametrize("batch_size", [2, 256])
def test_inner_products_are_the_kernel(name, kind, batch_size):
    engine, samples = engine_for(name, batch_size=batch_size)
    kept = keep_gradients(engine, samples, kernel_cotangents(kind, engine.n_classes))
    K = kernel_matrix(engine, samples, None, kind).numpy()
    np.testing.assert_allclose(kept.gram(kept), K, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(kept.squares(), K.diagonal(), rtol=1e-9)
    rows = [5, 0, 3]
    part = kept.take(rows)
    np.testing.assert_allclose(part.gram(part), K[np.ix_(rows, rows)], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(kept.with_some(rows), K[:, rows], rtol=1e-9, atol=1e-12)


def test_chunks_in_which_a_parameter_has_no_influence_or_another_form():
    torch.manual_seed(0)
    product, dense = Product(torch.randn(2, 3), torch.randn(2, 2)), Dense(torch.randn(3, 6))
    joined = join([(2, product), (4, None), (3, dense)])
    expected = torch.cat([product.dense(), torch.zeros(4, 6), dense.gradients])
    torch.testing.assert_close(joined.dense(), expected)


def test_sequences_that_are_longer_in_one_chunk_than_in_another():
    torch.manual_seed(0)
    parts = [Rows(torch.randint(4, (2, t)), torch.randn(2, t, 3), 4) for t in (2, 5)]
    joined = join([(2, part) for part in parts])
    torch.testing.assert_close(joined.dense(), torch.cat([part.dense() for part in parts]))


def test_bytes_are_those_of_what_is_kept():
    module = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    samples = Samples(torch.randn(9, 5).double())
    engine = TangentEngine(module, samples)
    assert kept_bytes(engine, samples, [one_logit(0)]) == 8 * ((5 + 4) + 4 + (4 + 3) + 3)


def test_a_product_is_what_it_stands_for():
    torch.manual_seed(0)
    product, other = (Product(torch.randn(4, 3).double(), torch.randn(4, 2).double()) for _ in range(2))
    dense = Dense(torch.stack([torch.outer(g, a) for g, a in zip(product.g, product.a, strict=True)]))
    torch.testing.assert_close(product.dense(), dense.gradients)
    direction = torch.randn(2, 3).double()
    for mine, theirs in zip(product.scores(direction), dense.scores(direction), strict=True):
        torch.testing.assert_close(mine, theirs)
    torch.testing.assert_close(product.lengths(), dense.gradients.norm(dim=1))
    for second in (other, Dense(other.dense())):
        torch.testing.assert_close(product.gram(second), dense.gram(second))
        torch.testing.assert_close(product.products(second), dense.gram(second))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "positions", "words"), [(4, 5, 6), (1, 1, 1), (3, 4, 1), (300, 40, 2), (5, 3, 100)])
def test_rows_of_a_table_have_the_products_of_their_tables(n, positions, words, dtype):
    torch.manual_seed(0)
    rows, others = (
        Rows(torch.randint(words, (m, positions)), torch.randn(m, positions, 3, dtype=dtype), words) for m in (n, 4)
    )
    tolerances = {} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(rows.products(others), rows.dense() @ others.dense().T, **tolerances)
    torch.testing.assert_close(
        rows.products(Dense(others.dense())).to(dtype), rows.dense() @ others.dense().T, **tolerances
    )


def test_a_word_that_is_everywhere_is_met_piece_by_piece(monkeypatch):
    torch.manual_seed(0)
    rows, others = (Rows(torch.zeros(m, 50, dtype=torch.int64), torch.randn(m, 50, 3).double(), 7) for m in (20, 4))
    expected = rows.dense() @ others.dense().T
    sizes = []

    def small_pieces(n, entries):
        sizes.append(n)
        return pieces(n, entries, piece_bytes=10_000)

    monkeypatch.setattr(_factors, "pieces", small_pieces)
    torch.testing.assert_close(rows.products(others), expected)
    # the samples, six at a time, and their meetings with the others' words
    assert sizes == [20, *(6 * 50 * 4,) * 3, 2 * 50 * 4]


@pytest.mark.parametrize("name", NAMES)
def test_norms_for_all_labels_at_once_are_those_of_each(name):
    module, X, _ = build(name, 7)
    expected = np.zeros(7)
    proba = torch.softmax(torch.as_tensor(oracle.logits(module, X)), dim=1).numpy()
    for label in range(3):
        gradients = oracle.loss_gradients(module, X, [label] * 7)
        expected += proba[:, label] * np.linalg.norm(gradients, axis=1)
    np.testing.assert_allclose(EGL().scores(learner_of(net_of(module)), X), expected, rtol=1e-8)


@pytest.mark.parametrize(("positions", "n_in", "n_out"), [(1, 5, 3), (2, 30, 20), (50, 4, 3)])
@pytest.mark.parametrize("groups", [1, 2])
def test_both_ways_to_all_norms(positions, n_in, n_out, groups):
    """Few positions: by their Gram matrices; many: written out."""
    torch.manual_seed(0)
    a = torch.randn(6, groups, n_in, positions).double()
    gradients = [
        Outer(
            torch.randn(6, groups, n_out, positions).double(),
            lambda rows: a[rows],
            n_in,
            lambda direction, rows: None,
            inputs=a,
        )
        for _ in range(4)
    ]
    expected = torch.stack([torch.matmul(g.g, a.transpose(-1, -2)).square().sum((1, 2, 3)) for g in gradients])
    torch.testing.assert_close(all_squared_norms(gradients), expected)
    other = Outer(gradients[0].g, gradients[0].columns, n_in, gradients[0].apply, inputs=a.clone())
    torch.testing.assert_close(all_squared_norms([gradients[0], other])[1], expected[0])


class Attending(nn.Module):
    def __init__(self, batch_first=True, need_weights=False, cross=False, add_bias_kv=False):
        super().__init__()
        self.batch_first, self.need_weights, self.cross = batch_first, need_weights, cross
        self.attention = nn.MultiheadAttention(8, 2, batch_first=batch_first, add_bias_kv=add_bias_kv)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = x if self.batch_first else x.transpose(0, 1)
        other = x.flip(-1) if self.cross else x
        y = self.attention(x, other, other, need_weights=self.need_weights)[0]
        return self.head((y if self.batch_first else y.transpose(0, 1)).mean(1))


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("n_tokens", [3, 5])
def test_the_projections_of_attention_have_a_rule(batch_first, need_weights, n_tokens):
    torch.manual_seed(0)
    module = Attending(batch_first, need_weights).double()
    X = torch.randn(5, n_tokens, 8).double()
    linear = torch.nn.functional.linear
    assert set(check_exact(module, X, backend="structured")) == {"structured"}
    assert torch.nn.functional.linear is linear


@pytest.mark.parametrize("params", [{"cross": True}, {"add_bias_kv": True}])
def test_what_attention_does_otherwise_is_left_to_others(params):
    torch.manual_seed(0)
    module = Attending(**params).double()
    X = torch.randn(4, 3, 8).double()
    assert "func" in check_exact(module, X)


ENGINE = SimpleNamespace(precision=torch.float32, device=torch.device("cpu"))


def test_chunks_of_one_form_are_written_into_one_tensor_and_others_follow():
    parts = [torch.rand(2, 3), torch.rand(1, 3), torch.rand(2, 5), torch.rand(1, 3)]
    store = _Store(6, ENGINE)
    for x in parts:
        (found,) = store.add(iter([{"weight": Dense(x)}]), len(x))
        assert torch.equal(found, x)  # what the engine looks at
    begun, *others = store.parts()
    assert begun.n == 3
    assert torch.equal(begun.gradients[0]["weight"].dense(), torch.cat(parts[:2]))
    assert [kept.n for kept in others] == [2, 1]
    for kept, part in zip(others, parts[2:], strict=True):
        assert torch.equal(kept.gradients[0]["weight"].dense(), part)


def outer(n, n_in, n_out, positions, groups=1):
    a, g = torch.randn(n, groups, n_in, positions), torch.randn(n, groups, n_out, positions)
    return Outer(g, lambda rows: a[rows], n_in, lambda direction, rows: None)


@pytest.mark.parametrize("groups", [1, 2])
def test_gradients_that_are_written_out_are_written_where_they_stay(groups):
    torch.manual_seed(0)
    chunks = [[outer(n, 5, 3, 4, groups), outer(n, 2, 3, 4, groups)] for n in (2, 3)]
    store = _Store(5, ENGINE)
    for pair in chunks:
        store.add(iter([{"weight": gradient} for gradient in pair]), pair[0].n)
    (kept,) = store.parts()
    assert kept.n == 5
    for number, found in enumerate(kept.gradients):
        assert isinstance(found["weight"], Dense)
        torch.testing.assert_close(found["weight"].dense(), torch.cat([pair[number].dense() for pair in chunks]))


def test_a_chunk_of_which_only_the_second_cotangent_has_another_form_stays_as_it_was():
    torch.manual_seed(0)
    chunks = [[outer(2, 5, 3, 4), outer(2, 5, 3, 4)], [outer(2, 5, 3, 4), outer(2, 6, 3, 4)]] * 2
    store = _Store(8, ENGINE)
    for pair in chunks:
        store.add(iter([{"weight": gradient} for gradient in pair]), 2)
    begun, *others = store.parts()
    assert begun.n == 2
    for kept, pair in zip(others, chunks[1:], strict=True):
        for found, gradient in zip(kept.gradients, pair, strict=True):
            torch.testing.assert_close(found["weight"].dense(), gradient.dense())


def test_a_chunk_that_fails_may_come_again():
    def failing(n):
        yield {"weight": outer(n, 5, 3, 4)}
        raise MemoryError

    torch.manual_seed(0)
    first, last = outer(2, 5, 3, 4), outer(1, 5, 3, 4)
    store = _Store(3, ENGINE)
    with pytest.raises(MemoryError):
        store.add(failing(3), 3)
    store.add(iter([{"weight": first}]), 2)
    with pytest.raises(MemoryError):
        store.add(failing(1), 1)
    store.add(iter([{"weight": last}]), 1)
    (kept,) = store.parts()
    torch.testing.assert_close(kept.gradients[0]["weight"].dense(), torch.cat([first.dense(), last.dense()]))


def test_a_slice_of_kept_gradients_copies_nothing():
    engine, samples = engine_for("mlp")
    kept = keep_gradients(engine, samples, kernel_cotangents("pntk", engine.n_classes))
    part = kept.take(slice(2, 5))
    assert part.n == 3
    np.testing.assert_array_equal(part.squares(), kept.squares()[2:5])
    for name, gradient in part.gradients[0].items():
        for mine, whole in zip(gradient.tensors(), kept.gradients[0][name].tensors(), strict=True):
            assert mine.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()


class Sentences(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.norm, self.head = nn.Embedding(7, 8), nn.GroupNorm(2, 6), nn.Linear(8, 3)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, tokens):
        return self.head(self.encoder(self.norm(self.words(tokens))).mean(1))


def test_norms_for_all_labels_use_each_gradient_as_it_comes():
    """Embeddings, normalisations and layers at several positions: what their inputs contribute is kept."""
    torch.manual_seed(0)
    module = Sentences().double()
    tokens = torch.randint(7, (5, 6))
    samples = Samples(tokens)
    engine = TangentEngine(module, samples, backend="structured")
    labels = [LossCotangent(engine.network.loss, label) for label in range(3)]
    waiting = []

    def reduce(gradients, n):
        found = list(gradients)
        waiting.extend(name for name, g in found[0].items() if g.inputs is not None and g.from_inputs(3) is None)
        return engine.all_norms(iter(found), n, 3)

    together = engine.collect(samples, labels, reduce)
    assert not waiting
    for label in range(3):
        gradients = oracle.loss_gradients(module, tokens, [label] * 5)
        assert oracle.relative_error(together[:, label].numpy(), (gradients**2).sum(1)) < 1e-8
