"""Rows within a bound, room for many rows, and errors that mean too little memory."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from skal._core.memory import is_out_of_memory
from skal.context import fill_rows, product_rows, rows_within
from skal.exceptions import OutputError


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bfloat16, torch.bool])
@pytest.mark.parametrize("n", [3, 1_100_000])
def test_room_is_like_the_parts_however_large(dtype, n):
    parts = [torch.zeros(n - 1, 2, dtype=dtype), torch.ones(1, 2, dtype=dtype)]
    rows = fill_rows(iter(parts), n)
    assert (rows.shape, rows.dtype, rows.device) == ((n, 2), dtype, parts[0].device)
    assert torch.equal(rows, torch.cat(parts))


def test_no_row_of_an_empty_tensor_is_needed():
    parts = [torch.empty(0, 3), torch.ones(2, 3), torch.zeros(2, 3)]
    assert torch.equal(fill_rows(iter(parts), 4), torch.cat(parts))
    assert fill_rows(iter([torch.empty(0, 3)]), 0).shape == (0, 3)


@given(st.integers(0, 10**6), st.integers(1, 10**4), st.integers(0, 3))
def test_rows_within_is_the_largest_number_that_fits(n_bytes, row_bytes, at_least):
    rows = rows_within(n_bytes, row_bytes, at_least)
    assert rows >= at_least
    assert rows == at_least or rows * row_bytes <= n_bytes < (rows + 1) * row_bytes


def test_wide_rows_are_multiplied_a_few_at_a_time():
    assert product_rows(torch.zeros(10, 2**21)) == 1
    assert product_rows(torch.zeros(10, 4)) * 16 == 2**20


@pytest.mark.parametrize("parts", [[2, 2], [2, 3], [], [6]])
def test_nothing_is_returned_from_uninitialised_memory(parts):
    n = 3 if parts == [2, 2] else 5
    if sum(parts) == n:
        assert len(fill_rows(iter([torch.zeros(k) for k in parts]), n)) == n
        return
    with pytest.raises(OutputError, match=f"each of the {n} samples"):
        fill_rows(iter([torch.zeros(k) for k in parts]), n)


def test_parts_are_closed_when_a_part_cannot_be_used():
    closed = []

    def parts():
        try:
            yield torch.zeros(2, 1)
            yield torch.zeros(2, 3)
        finally:
            closed.append(True)

    with pytest.raises(OutputError) as caught:  # the error's traceback keeps the generator alive
        fill_rows(parts(), 4)
    assert closed
    assert caught


@pytest.mark.parametrize(
    ("error", "means_it"),
    [
        (MemoryError(), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate"), True),
        (RuntimeError("could not create a primitive"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
    ],
)
def test_errors_that_mean_too_little_memory(error, means_it):
    assert is_out_of_memory(error) == means_it
