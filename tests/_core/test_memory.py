"""Tests of skal._core.memory: room for many rows."""

import pytest
import torch

from skal._core.memory import new_rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bfloat16, torch.bool])
@pytest.mark.parametrize("n", [3, 1_100_000])
def test_room_is_like_the_tensor_however_large(dtype, n):
    like = torch.zeros(2, 2, dtype=dtype)
    rows = new_rows(n, like)
    assert (rows.shape, rows.dtype, rows.device) == ((n, 2), dtype, like.device)
    rows[-1] = 1
    assert rows[-1].tolist() == [1, 1]


def test_no_row_of_an_empty_tensor_is_needed():
    assert new_rows(4, torch.empty(0, 3)).shape == (4, 3)
    assert new_rows(0, torch.empty(2, 3)).shape == (0, 3)
