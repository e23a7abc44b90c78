"""Lower precision is used when it is asked for, and never because of where the caller stands."""

import numpy as np
import pytest
import torch

from skal.exceptions import InvalidParameterError
from skal.nets import CNN
from skal.tangent import gradient_scores, loss_gradient, tangent_features, tangent_kernel


@pytest.fixture
def problem():
    torch.manual_seed(0)
    return CNN(in_channels=1, image_size=8).eval(), torch.rand(6, 1, 8, 8), torch.arange(6)


def results(net, X, y, **params):
    norms, dots = gradient_scores(net, X, y, loss_gradient(net, X, y), **params)
    return [norms, dots, tangent_kernel(net, X, **params), tangent_features(net, X, n_features=64, **params)]


def test_a_surrounding_autocast_changes_nothing(problem):
    plain = results(*problem)
    with torch.autocast("cpu", torch.float16):
        assert problem[0](problem[1]).dtype == torch.float16  # the context does what it says
        inside = results(*problem)
    for before, after in zip(plain, inside, strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("backend", ["structured", "func"])
def test_it_takes_effect_when_asked_for(problem, backend):
    plain = results(*problem, backend=backend)
    short = results(*problem, backend=backend, autocast=torch.float16)
    for exact, rough in zip(plain, short, strict=True):
        assert exact.dtype == rough.dtype
        error = np.linalg.norm(exact - rough) / np.linalg.norm(exact)
        assert 1e-6 < error < 0.05


def test_only_shorter_floats_can_be_asked_for(problem):
    with pytest.raises(InvalidParameterError, match="'autocast' parameter of tangent_kernel must be one of None"):
        tangent_kernel(*problem[:2], autocast=torch.float64)
