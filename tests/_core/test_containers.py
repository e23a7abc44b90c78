"""Tests of skal._core.containers: rows of every container."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from skal._core.containers import (
    all_finite,
    check_finite,
    concat_rows,
    dataset_input,
    dataset_target,
    n_rows,
    take_rows,
)
from skal.exceptions import InvalidTypeError, NonFiniteError

ROWS = np.arange(12.0).reshape(6, 2)


class Squares(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, i):
        return np.float32(i**2), i


def memory_map(tmp_path):
    np.save(tmp_path / "rows.npy", ROWS)
    return np.load(tmp_path / "rows.npy", mmap_mode="r")


CONTAINERS = {
    "array": lambda tmp_path: ROWS.copy(),
    "memory map": memory_map,
    "tensor": lambda tmp_path: torch.from_numpy(ROWS.copy()),
    "frame": lambda tmp_path: pd.DataFrame(ROWS, index=list("uvwxyz")),
    "csr": lambda tmp_path: sp.csr_matrix(ROWS),
    "coo": lambda tmp_path: sp.coo_matrix(ROWS),
    "list": lambda tmp_path: ROWS.tolist(),
    "dict": lambda tmp_path: {"a": ROWS.copy(), "b": torch.from_numpy(ROWS.copy())},
    "dataset": lambda tmp_path: TensorDataset(torch.from_numpy(ROWS.copy())),
}


def values(X):
    """The rows as one array."""
    if isinstance(X, dict):
        assert np.array_equal(values(X["a"]), values(X["b"]))
        return values(X["a"])
    if isinstance(X, Dataset):
        return np.array([X[i][0].numpy() for i in range(len(X))]).reshape(len(X), 2)
    if sp.issparse(X):
        return X.toarray()
    return np.asarray(X).reshape(-1, 2)


@pytest.fixture(params=CONTAINERS)
def container(request, tmp_path):
    return CONTAINERS[request.param](tmp_path)


def test_rows_are_counted(container):
    assert n_rows(container) == 6


@pytest.mark.parametrize(
    "rows", [slice(1, 4), slice(None), np.array([5, 0, 0]), np.array([2]), np.array([-1])], ids=str
)
def test_rows_are_taken_in_order(container, rows):
    taken = take_rows(container, rows)
    assert np.array_equal(values(taken), ROWS[rows])
    assert n_rows(taken) == len(ROWS[rows])


def test_no_rows_can_be_taken(container):
    assert n_rows(take_rows(container, slice(0, 0))) == 0
    assert n_rows(take_rows(container, np.array([], dtype=int))) == 0


def test_rows_keep_their_type(container):
    taken = take_rows(container, np.array([1, 2]))
    if isinstance(container, Dataset):
        assert isinstance(taken, Subset)
    elif sp.issparse(container):
        assert sp.issparse(taken)
    elif isinstance(container, np.memmap):
        assert isinstance(taken, np.ndarray)
    else:
        assert isinstance(taken, type(container))


def test_rows_are_joined(container):
    joined = concat_rows(container, take_rows(container, np.array([0, 3])))
    assert np.array_equal(values(joined), np.vstack([ROWS, ROWS[[0, 3]]]))


@given(st.lists(st.integers(0, 5), max_size=12), st.integers(0, 6))
def test_taking_and_joining_agree_with_numpy(rows, cut):
    rows = np.array(rows, dtype=int)
    for make in CONTAINERS.values():
        if make is memory_map:
            continue
        X = make(None)
        assert np.array_equal(values(take_rows(X, rows)), ROWS[rows])
        assert np.array_equal(values(concat_rows(take_rows(X, slice(0, cut)), take_rows(X, slice(cut, 6)))), ROWS)


def test_joining_follows_the_first_type():
    tensor = torch.zeros(2, 2, dtype=torch.float32)
    joined = concat_rows(tensor, ROWS)
    assert isinstance(joined, torch.Tensor)
    assert joined.dtype == torch.float32
    assert isinstance(concat_rows(ROWS, tensor), np.ndarray)
    assert concat_rows([1, 2], np.array([3])) == [1, 2, 3]
    assert concat_rows(pd.Series([1, 2]), pd.Series([3])).tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"a": ROWS}, ROWS),
        ({"a": ROWS}, {"b": ROWS}),
        (TensorDataset(torch.zeros(2)), ROWS),
    ],
)
def test_what_cannot_be_joined_is_refused(first, second):
    with pytest.raises(InvalidTypeError, match=r"must be .*Got .*instead\. Pass"):
        concat_rows(first, second)


@pytest.mark.parametrize("X", [np.float64(3), torch.tensor(1.0)])
def test_a_scalar_has_no_rows(X):
    with pytest.raises(InvalidTypeError, match="must hold rows"):
        n_rows(X)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


@pytest.mark.parametrize("X", [3, (i for i in range(3)), Stream(), None])
def test_what_has_no_length_is_refused(X):
    with pytest.raises(InvalidTypeError, match=r"X_pool must be .* with a length\. Got \w+ instead\. Convert"):
        n_rows(X, "X_pool")


@pytest.mark.parametrize("X", [{}, {"a": ROWS, "b": ROWS[:2]}])
def test_dicts_must_agree_on_the_length(X):
    with pytest.raises(InvalidTypeError, match="all of the same length"):
        n_rows(X)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("make", [make for name, make in CONTAINERS.items() if name not in ("memory map", "dataset")])
def test_nonfinite_values_are_found(make, bad):
    X = make(None)
    assert all_finite(X)
    check_finite(X, "X")
    spoilt = ROWS.copy()
    spoilt[4, 1] = bad
    X = {
        "ndarray": lambda: spoilt,
        "Tensor": lambda: torch.from_numpy(spoilt),
        "DataFrame": lambda: pd.DataFrame(spoilt),
        "csr_matrix": lambda: sp.csr_matrix(spoilt),
        "coo_matrix": lambda: sp.coo_matrix(spoilt),
        "list": lambda: spoilt.tolist(),
        "dict": lambda: {"a": ROWS, "b": torch.from_numpy(spoilt)},
    }[type(X).__name__]()
    assert not all_finite(X)
    with pytest.raises(NonFiniteError, match=r"X_pool must be finite\. Got NaN or infinity, first in row 4\. Impute"):
        check_finite(X, "X_pool")
    with pytest.raises(NonFiniteError, match="row 14"):
        check_finite(X, "X_pool", rows=range(10, 20))


def test_nonfinite_values_are_found_behind_the_first_chunk():
    assert all_finite(ROWS, block_bytes=16)
    spoilt = ROWS.copy()
    spoilt[5, 0] = np.nan
    assert not all_finite(spoilt, block_bytes=16)


@pytest.mark.parametrize(
    "X",
    [
        np.array(["a", None], dtype=object),
        np.array([1, 2]),
        torch.tensor([1, 2]),
        ["text", "more"],
        pd.DataFrame({"text": ["a", None], "number": [1.0, 2.0]}),
        np.empty((0, 3)),
        np.float64(1.0),
        None,
    ],
)
def test_what_is_not_a_number_is_finite(X):
    assert all_finite(X)


def test_scalars_can_be_nonfinite():
    assert not all_finite(np.float64("nan"))
    assert not all_finite(np.array(np.inf))
    assert not all_finite((1.0, float("nan")))


def test_dataset_items():
    assert dataset_input(("x", "y")) == "x"
    assert dataset_input(["x"]) == "x"
    assert dataset_input("x") == "x"
    assert dataset_target(Squares()[3]) == 3
    for item in ("x", ("x",), torch.zeros(2)):
        with pytest.raises(InvalidTypeError, match=r"must yield \(x, y\) pairs"):
            dataset_target(item)
