"""The sketch: unbiased, as exact as it promises, and the same projection everywhere."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from skal.context import Samples, TangentEngine
from skal.nets import MLP
from skal.tangent import tangent_features, tangent_kernel
from skal.tangent._sketch import Sketch, fold, signed_fold

from ..support.networks import NETWORKS, build, unsupported


def sketched_kernels(module, X, k, seeds, kind="pntk"):
    """(seeds, n, n) Gram matrices of sketches."""
    features = [tangent_features(module, X, kind=kind, n_features=k, random_state=seed) for seed in seeds]
    return np.stack([f @ f.T for f in features])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "pntk") for name in ("mlp", "tutorial_cnn", "text_attention", "vision_transformer")),
        *((name, kind) for name in ("mlp", "text_attention") for kind in ("trace", "entk")),
    ],
)
def test_unbiased(name, kind):
    module, X, _ = build(name, n=3)
    n_seeds = 48
    estimates = sketched_kernels(module, X, 64, range(n_seeds), kind)
    error = estimates.mean(0) - tangent_kernel(module, X, kind=kind)
    standard_error = estimates.std(0, ddof=1) / np.sqrt(n_seeds)
    assert (np.abs(error) < 5 * standard_error + 1e-12).all()
    assert (standard_error > 0).any()


def test_error_falls_with_the_square_root_of_the_length():
    torch.manual_seed(0)
    module, X = MLP(32, 3, hidden=(160, 96)), torch.randn(6, 32)
    K = tangent_kernel(module, X)
    lengths = 2 ** np.arange(6, 13)
    errors = [
        np.sqrt(np.square(sketched_kernels(module, X, int(k), range(24)) - K).mean()) / np.linalg.norm(K)
        for k in lengths
    ]
    exponent, _ = np.polyfit(np.log(lengths), np.log(errors), 1)
    assert -0.6 < exponent < -0.4


def test_relative_error_is_what_independent_signs_would_give():
    """Variance of an inner product by a random sign hash: about (‖x‖²‖y‖² + (x·y)²) / k."""
    module, X, _ = build("tutorial_cnn", n=4)
    k = 128
    K = tangent_kernel(module, X)
    observed = sketched_kernels(module, X, k, range(200)).var(0)
    expected = (np.outer(np.diag(K), np.diag(K)) + K**2) / k
    assert 0.3 < (observed / expected).mean() < 2


@pytest.mark.parametrize("name", NETWORKS)
def test_all_backends_project_alike(name):
    module, X, _ = build(name, n=4)
    expected = tangent_features(module, X, n_features=50)
    assert expected.shape == (4, 50)
    for backend in ("structured", "func", "backpack"):
        if not unsupported(backend, name):
            features = tangent_features(module, X, n_features=50, backend=backend)
            np.testing.assert_allclose(features, expected, atol=1e-9 * np.abs(expected).max())


def test_reproducible_and_seeded():
    module, X, _ = build("tutorial_cnn", n=4)
    first = tangent_features(module, X, n_features=32, random_state=3)
    np.testing.assert_array_equal(first, tangent_features(module, X, n_features=32, random_state=3))
    assert np.abs(first - tangent_features(module, X, n_features=32, random_state=4)).max() > 0.01
    np.testing.assert_array_equal(
        tangent_features(module, X, n_features=32), tangent_features(module, X, n_features=32, random_state=0)
    )


def test_features_of_two_sets_can_be_compared():
    module, X, _ = build("tutorial_cnn", n=6)
    together = tangent_features(module, X, n_features=40)
    apart = np.concatenate(
        [tangent_features(module, X[:2], n_features=40), tangent_features(module, X[2:], n_features=40)]
    )
    np.testing.assert_allclose(apart, together, atol=1e-10)


@given(batch_size=st.integers(1, 8), k=st.integers(1, 70), kind=st.sampled_from(["pntk", "logit", "trace", "entk"]))
def test_batch_size_makes_no_difference(batch_size, k, kind):
    module, X, _ = build("text_attention", n=7)
    expected = tangent_features(module, X, n_features=k, kind=kind)
    assert expected.shape == (7 * (3 if kind == "entk" else 1), k)
    features = tangent_features(module, X, n_features=k, kind=kind, batch_size=batch_size)
    np.testing.assert_allclose(features, expected, atol=1e-9)


@given(
    shape=st.lists(st.integers(1, 7), min_size=0, max_size=3),
    k=st.integers(1, 40),
    seed=st.integers(0, 10),
)
def test_every_entry_has_one_sign_and_one_bucket(shape, k, seed):
    """The projection of unit vectors is the matrix itself: one ±1 in each column."""

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(shape, dtype=torch.float64))

        def forward(self, x):
            return torch.stack([(self.weight.reshape(-1) * x).sum(1)] * 2, dim=1) / 2**0.5

    module = Own()
    size = module.weight.numel()
    R = tangent_features(module, torch.eye(size, dtype=torch.float64), n_features=k, random_state=seed)
    np.testing.assert_allclose(np.sort(np.abs(R), axis=1)[:, -1], 1, atol=1e-12)
    np.testing.assert_allclose(np.abs(R).sum(1), 1, atol=1e-12)


def test_strong_rows_do_not_pile_up():
    """Entries of one input feature, or of one output feature, spread over the buckets."""
    torch.manual_seed(0)
    for n_in, n_out, k in [(64, 64, 64), (96, 32, 64), (128, 256, 128)]:
        module = nn.Linear(n_in, n_out, bias=False)
        signs = Sketch(TangentEngine(module, Samples(torch.randn(2, n_in))), k, 0).signs["weight"]
        buckets = (np.arange(n_out)[:, None] * signs.stride + np.arange(n_in) + signs.offset) % k
        for lines in (buckets, buckets.T):
            counts = np.stack([np.bincount(line, minlength=k) for line in lines])
            assert counts.max() <= -(-lines.shape[1] // k)


@pytest.mark.parametrize("layers", ["all", "last"])
def test_last_layer(layers):
    module, X, _ = build("tutorial_cnn", n=5)
    K = tangent_kernel(module, X, layers=layers)
    features = tangent_features(module, X, layers=layers, n_features=None)
    np.testing.assert_allclose(features @ features.T, K, rtol=1e-10)
    sketched = tangent_features(module, X, layers=layers, n_features=20_000)
    np.testing.assert_allclose(sketched @ sketched.T, K, atol=0.1 * np.abs(K).max())


def test_type_is_the_networks():
    for dtype, expected in [(torch.float32, np.float32), (torch.float64, np.float64)]:
        module, X, _ = build("mlp", dtype=dtype)
        assert tangent_features(module, X, n_features=8).dtype == expected
        assert tangent_features(module, X, n_features=None).dtype == expected


@given(widths=st.lists(st.integers(0, 9), min_size=1, max_size=5), k=st.integers(1, 7), seed=st.integers(0, 99))
def test_blocks_are_folded_like_one_matrix(widths, k, seed):
    generator = torch.Generator().manual_seed(seed)
    blocks = [torch.randn(3, width, generator=generator, dtype=torch.float64) for width in widths]
    signs = torch.randint(0, 2, (sum(widths),), generator=generator).double() * 2 - 1
    expected = fold(torch.cat(blocks, dim=1) * signs, k)
    torch.testing.assert_close(signed_fold(blocks, signs, k), expected)
