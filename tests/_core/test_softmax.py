"""The softmax in both directions against its formula in float64."""

import numpy as np
import pytest
import torch

from skal._core.outputs import to_proba
from skal._core.softmax import softmax


def by_formula(logits):
    powers = np.exp(logits.double().numpy() - logits.double().numpy().max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 3), (33, 2), (500, 10), (500, 15), (500, 16), (40, 100), (3, 50, 4), (5,)])
def test_is_the_formula(shape, dtype):
    logits = 30 * torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    found = softmax(logits)
    assert found.shape == logits.shape
    assert found.dtype == dtype
    np.testing.assert_allclose(found.numpy(), by_formula(logits), rtol=200 * torch.finfo(dtype).eps, atol=1e-37)


def test_large_logits_do_not_overflow():
    logits = torch.tensor([[1e4, 0.0, -1e4]]).repeat(100, 1)
    assert torch.equal(softmax(logits), torch.tensor([[1.0, 0.0, 0.0]]).repeat(100, 1))


def test_own_nonlinearity_of_a_net_is_kept():
    """Only the softmax that skorch itself takes is replaced."""

    class Net:
        criterion_ = torch.nn.CrossEntropyLoss()
        predict_nonlinearity = None

        def _get_predict_nonlinearity(self):
            return lambda output: torch.softmax(output / 2, dim=-1)

    logits = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    np.testing.assert_allclose(to_proba(logits, Net()).numpy(), by_formula(logits / 2), rtol=1e-5)
