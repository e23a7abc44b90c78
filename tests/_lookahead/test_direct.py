"""The augmented system, solved for every candidate and label."""

import numpy as np
import torch
from sklearn.linear_model import Ridge

from skal._lookahead.direct import solve_directly


def test_the_solution_is_ridge_regression_on_the_gradients():
    rng = np.random.default_rng(0)
    features, evaluation = rng.normal(size=(6, 9)), rng.normal(size=(4, 9))
    residuals, f_E, ridge = rng.normal(size=(6, 3)), rng.normal(size=(4, 3)), 0.3
    expected = f_E + Ridge(alpha=ridge, fit_intercept=False).fit(features, residuals).predict(evaluation)
    K, K_E, r, f = map(torch.as_tensor, (features @ features.T, evaluation @ features.T, residuals, f_E))
    np.testing.assert_allclose(solve_directly(K, K_E, r, f, ridge).numpy(), expected, rtol=1e-10)
    # a matrix kernel whose outputs do not interact is the same problem
    eye = torch.eye(3, dtype=K.dtype)
    matrix = solve_directly(torch.kron(K, eye), torch.kron(K_E, eye), r, f, ridge)
    np.testing.assert_allclose(matrix.numpy(), expected, rtol=1e-10)
