"""Rows of every container, how they reach another process, and rows that may be queried."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st
from modAL.uncertainty import margin_sampling
from sklearn.linear_model import LogisticRegression
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from skal import ActiveLearner, ActiveLearningClassifier, LinearizedLearner, config_context
from skal._core.containers import (
    all_finite,
    check_finite,
    concat_rows,
    dataset_input,
    dataset_target,
    is_lazy,
    n_rows,
    open_reference,
    reference_to,
    take_rows,
)
from skal.exceptions import InvalidParameterError, InvalidTypeError, NonFiniteError
from skal.strategies import BADGE, CoreSet, Margin, margin

from ..support.learners import learner_of
from ..support.on_disk import as_dask, as_hdf5, as_memmap, as_zarr

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


# --- on disk, and to another process ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [as_zarr, as_hdf5, as_dask], ids=lambda kind: kind.__name__)
def test_rows_in_any_order_and_twice(kind, images, tmp_path):
    X = images[0]
    lazy = kind(X, tmp_path)
    assert is_lazy(lazy)
    for rows in (np.array([5, 2, 5, 119, 0]), slice(3, 9), np.array([], dtype=int)):
        taken = take_rows(lazy, rows)
        assert type(taken) is np.ndarray
        assert np.array_equal(taken, X[rows])
    assert not is_lazy(X)


def test_views_of_a_memory_map_travel_by_reference(tmp_path):
    X = np.lib.format.open_memmap(tmp_path / "a.npy", "w+", np.float32, (20, 6))
    X[:] = np.arange(120).reshape(20, 6)
    for view in (X, X[3:], X[::2], X[4:16:3, 1:4], np.load(tmp_path / "a.npy", mmap_mode="r")[5:9]):
        reference = reference_to(view)
        assert np.array_equal(open_reference(reference), view)
        assert not open_reference(reference).flags.writeable
    assert reference_to(X[::-1]) is None  # read backwards: its rows are sent
    assert reference_to(X + 1) is None  # in memory
    (tmp_path / "a.npy").unlink()
    assert reference_to(X) is None


def test_a_map_whose_changes_stay_in_this_process_is_sent_as_rows(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((20, 6)))
    X = np.load(tmp_path / "a.npy", mmap_mode="c")
    X[3] = 7
    assert reference_to(X) is None


def test_dicts_travel_by_reference_if_all_of_them_can(images, tmp_path):
    X = as_memmap(images[0], tmp_path)
    both = open_reference(reference_to({"a": X, "b": X[:, :, 1:]}))
    assert np.array_equal(both["b"], images[0][:, :, 1:])
    assert reference_to({"a": X, "b": images[0]}) is None


# --- rows that may be queried ---------------------------------------------------------------------------------------

CHEAP = [Margin(), CoreSet(features="input"), BADGE(random_state=0)]


@pytest.mark.parametrize("strategy", CHEAP, ids=lambda strategy: type(strategy).__name__)
@given(seed=st.integers(0, 2**16), as_mask=st.booleans())
def test_the_answer_is_that_on_a_copy_of_the_rows(flat_learner, flat_data, strategy, seed, as_mask):
    X = flat_data[0][15:]
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.choice(len(X), size=rng.integers(5, len(X)), replace=False))
    candidates = np.isin(np.arange(len(X)), rows) if as_mask else rows
    expected, expected_metrics = strategy.select(flat_learner, X[rows], 4)
    indices, metrics = strategy.select(flat_learner, X, 4, candidates=candidates)
    np.testing.assert_array_equal(indices, rows[expected])
    np.testing.assert_allclose(metrics, expected_metrics)


@pytest.mark.parametrize("query_strategy", [margin, margin_sampling, lambda learner, X: 0])
def test_learners_take_them_for_any_function(flat_data, query_strategy):
    X, y = flat_data
    learner = ActiveLearner(LogisticRegression(), query_strategy, X_training=X[:15], y_training=y[:15])
    rows = np.arange(15, 60, 2)
    index, sample = learner.query(X, candidates=rows)
    expected, _ = learner.query(X[rows])
    np.testing.assert_array_equal(index, rows[expected])
    np.testing.assert_array_equal(sample, X[index])


def test_the_linearised_learner_takes_them(make_net, flat_data):
    X, y = flat_data
    learner = LinearizedLearner(make_net(), X_training=X[:15], y_training=y[:15])
    rows = np.arange(15, 60, 2)
    np.testing.assert_array_equal(learner.query(X, 3, candidates=rows)[0], rows[learner.query(X[rows], 3)[0]])


class ReadsAndNotes:
    """An array that is read when it is indexed, and counts the rows that are read."""

    def __init__(self, X):
        self.X, self.dtype, self.shape, self.ndim = X, X.dtype, X.shape, X.ndim
        self.read = []

    def __len__(self):
        return len(self.X)

    def __getitem__(self, rows):
        self.read.append(np.arange(len(self.X))[rows])
        return self.X[rows]


def test_no_other_row_of_a_pool_on_disk_is_read_nor_all_at_once(flat_learner, flat_data):
    pool, rows = ReadsAndNotes(flat_data[0]), np.arange(20, 60)
    with config_context(batch_size=8):
        Margin().select(flat_learner, pool, 3, candidates=rows)
    assert set(np.concatenate([np.atleast_1d(part) for part in pool.read]).tolist()) == set(rows.tolist())
    assert max(np.size(part) for part in pool.read) <= 8


def test_the_loop_does_not_copy_its_pool(make_net, flat_data):
    X, y = flat_data
    pool = ReadsAndNotes(X)
    settings = {"n_initial": 9, "initial": "random", "query_size": 3, "n_rounds": 2, "random_state": 0}
    with config_context(batch_size=8):
        loop = ActiveLearningClassifier(make_net(), Margin(), **settings).fit(pool, y)
        twin = ActiveLearningClassifier(make_net(), Margin(), **settings).fit(X, y)
    assert max(np.size(part) for part in pool.read) <= 15  # the labelled rows, and batches: never the pool
    np.testing.assert_array_equal(loop.queried_, twin.queried_)


@pytest.mark.parametrize(
    ("candidates", "error", "message"),
    [
        ([], InvalidTypeError, "flat array"),
        (np.array([], dtype=int), InvalidParameterError, "at least one"),
        ([3, 3], InvalidParameterError, "distinct"),
        ([-1], InvalidParameterError, r"0 … 59"),
        ([60], InvalidParameterError, r"0 … 59"),
        ([True, False], InvalidParameterError, "each of the 60 rows"),
        (np.zeros(60, dtype=bool), InvalidParameterError, "at least one"),
        ([0.5], InvalidTypeError, "integers or of truth values"),
        ([[0], [1]], InvalidTypeError, "flat"),
    ],
)
def test_wrong_ones_are_refused_by_name(flat_learner, flat_data, candidates, error, message):
    with pytest.raises(error, match=rf"'candidates' parameter of Margin must be.*{message}"):
        Margin().select(flat_learner, flat_data[0], candidates=candidates)


def test_more_than_there_are_is_refused(flat_learner, flat_data):
    with pytest.raises(InvalidParameterError, match="n_instances"):
        Margin().select(flat_learner, flat_data[0], 3, candidates=[4, 5])


def test_a_plain_object_is_a_learner_too(flat_data):
    X, y = flat_data
    learner = learner_of(LogisticRegression().fit(X, y), X, y)
    indices, _ = Margin().select(learner, X, candidates=[7])
    assert indices.tolist() == [7]
