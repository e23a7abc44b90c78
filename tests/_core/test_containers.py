"""Rows of every container, how they reach another process, and rows that may be queried."""

import pickle

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st
from modAL.uncertainty import margin_sampling
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from skal import ActiveLearner, ActiveLearningClassifier, LinearizedLearner, config_context
from skal.context import Network, QueryContext, Samples
from skal.exceptions import InvalidParameterError, InvalidTypeError, NonFiniteError
from skal.strategies import BADGE, CoreSet, Margin, margin

from ..support.learners import learner_of, net_of
from ..support.on_disk import as_dask, as_hdf5, as_memmap, as_zarr

ROWS = np.arange(12.0).reshape(6, 2)


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


def take(X, rows):
    """The given rows, a range or an array, as a strategy reads them."""
    return Samples(X, rows=rows).read(0, len(rows))


def join(first, second):
    """Samples as a learner holds them that was taught the first, and then the second."""
    learner = ActiveLearner(LogisticRegression())
    for part in (first, second):
        learner.teach(part, np.zeros(len(Samples(part))), fit=False)
    return learner.X_training


def test_rows_are_counted(container):
    assert len(Samples(container)) == 6


@pytest.mark.parametrize("rows", [range(1, 4), range(6), np.array([5, 0, 0]), np.array([2]), np.array([-1])], ids=str)
def test_rows_are_taken_in_order(container, rows):
    taken = take(container, rows)
    assert np.array_equal(values(taken), ROWS[rows])
    assert len(Samples(taken)) == len(ROWS[rows])


def test_no_rows_can_be_taken(container):
    assert len(Samples(take(container, range(0)))) == 0
    assert len(Samples(take(container, np.array([], dtype=int)))) == 0


def test_rows_keep_their_type(container):
    taken = take(container, np.array([1, 2]))
    if isinstance(container, Dataset):
        assert isinstance(taken, Subset)
    elif sp.issparse(container):
        assert sp.issparse(taken)
    elif isinstance(container, (np.memmap, list)):
        assert isinstance(taken, np.ndarray)
    else:
        assert isinstance(taken, type(container))
    assert take(["a", "b", "c"], np.array([2, 0])) == ["c", "a"]


def test_rows_are_joined(container):
    joined = join(container, take(container, np.array([0, 3])))
    assert np.array_equal(values(joined), np.vstack([ROWS, ROWS[[0, 3]]]))


@given(st.lists(st.integers(0, 5), max_size=12), st.integers(1, 5))
def test_taking_and_joining_agree_with_numpy(rows, cut):
    rows = np.array(rows, dtype=int)
    for make in CONTAINERS.values():
        if make is memory_map:
            continue
        X = make(None)
        assert np.array_equal(values(take(X, rows)), ROWS[rows])
        assert np.array_equal(values(join(take(X, range(cut)), take(X, range(cut, 6)))), ROWS)


def test_joining_follows_the_first_type():
    tensor = torch.zeros(2, 2, dtype=torch.float32)
    joined = join(tensor, ROWS)
    assert isinstance(joined, torch.Tensor)
    assert joined.dtype == torch.float32
    assert isinstance(join(ROWS, tensor), np.ndarray)
    assert join([1, 2], np.array([3])) == [1, 2, 3]
    assert join(pd.Series([1, 2]), pd.Series([3])).tolist() == [1, 2, 3]


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
        join(first, second)


@pytest.mark.parametrize("X", [np.float64(3), torch.tensor(1.0)])
def test_a_scalar_has_no_rows(X):
    with pytest.raises(InvalidTypeError, match="must hold rows"):
        Samples(X)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


@pytest.mark.parametrize("X", [3, (i for i in range(3)), Stream(), None])
def test_what_has_no_length_is_refused(X):
    with pytest.raises(InvalidTypeError, match=r"X_pool must be .* with a length\. Got \w+ instead\. Convert"):
        Samples(X, name="X_pool")


@pytest.mark.parametrize("X", [{}, {"a": ROWS, "b": ROWS[:2]}])
def test_dicts_must_agree_on_the_length(X):
    with pytest.raises(InvalidTypeError, match="all of the same length"):
        Samples(X)


def read_all(X, **settings):
    """All rows in one piece, checked as a strategy gets them."""
    return next(Samples(X, **settings).chunks(2**31))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("make", [make for name, make in CONTAINERS.items() if name not in ("memory map", "dataset")])
def test_nonfinite_values_are_found(make, bad):
    X = make(None)
    assert np.array_equal(values(read_all(X)), ROWS)
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
    with pytest.raises(NonFiniteError, match=r"X_pool must be finite\. Got NaN or infinity, first in row 4\. Impute"):
        read_all(X, name="X_pool")
    with pytest.raises(NonFiniteError, match="row 14"):
        read_all(X, name="X_pool", numbers=range(10, 16))


def test_nonfinite_values_are_found_in_what_is_looked_at_in_parts():
    X = np.zeros((9, 2**20))  # 72 MB, of which 64 are looked at at once
    assert len(read_all(X)) == 9
    X[8, 5] = np.nan
    with pytest.raises(NonFiniteError, match="row 8"):
        read_all(X)


@pytest.mark.parametrize(
    "X",
    [
        np.array(["a", None], dtype=object),
        np.array([1, 2]),
        torch.tensor([1, 2]),
        ["text", "more"],
        pd.DataFrame({"text": ["a", None], "number": [1.0, 2.0]}),
    ],
)
def test_what_is_not_a_number_is_finite(X):
    assert len(read_all(X)) == 2


@pytest.mark.parametrize("sample", [np.float64("nan"), np.array(np.inf), (1.0, float("nan"))], ids=str)
def test_one_number_can_be_nonfinite(sample):
    with pytest.raises(NonFiniteError, match="row 1"):
        ActiveLearner(LogisticRegression()).teach([0.0, sample], [0, 1], fit=False)


class Items(Dataset):
    """Each row of an array as an item of a certain form."""

    def __init__(self, form):
        self.form = form

    def __len__(self):
        return len(ROWS)

    def __getitem__(self, row):
        return self.form(torch.as_tensor(ROWS[row], dtype=torch.float32), row)


@pytest.mark.parametrize("form", [lambda x, y: (x, y), lambda x, y: [x], lambda x, y: (x,), lambda x, y: x])
def test_inputs_of_a_datasets_items(form):
    network = Network(net_of(nn.Linear(2, 3)))
    expected = network.all_outputs(Samples(ROWS.astype(np.float32)), 4)
    torch.testing.assert_close(network.all_outputs(Samples(Items(form)), 4), expected)


def test_labels_of_a_datasets_items():
    def labels(form):
        return QueryContext(learner_of(LogisticRegression(), Items(form)), ROWS).labels

    assert labels(lambda x, y: (x, y)).tolist() == [0, 1, 2, 3, 4, 5]
    for form in (lambda x, y: x, lambda x, y: (x,), lambda x, y: "x"):
        with pytest.raises(InvalidTypeError, match=r"must yield \(x, y\) pairs"):
            labels(form)


# --- on disk, and to another process ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [as_zarr, as_hdf5, as_dask], ids=lambda kind: kind.__name__)
def test_rows_in_any_order_and_twice(kind, images, tmp_path):
    X = images[0]
    lazy = kind(X, tmp_path)
    for rows in (np.array([5, 2, 5, 119, 0]), range(3, 9), np.array([], dtype=int)):
        taken = take(lazy, rows)
        assert type(taken) is np.ndarray
        assert np.array_equal(taken, X[rows])


def travel(X):
    """The container as another process has it, and whether it was sent rows."""
    sent = pickle.dumps(Samples(X))
    return pickle.loads(sent).X, len(sent) > 8000


def test_views_of_a_memory_map_travel_by_reference(tmp_path):
    X = np.lib.format.open_memmap(tmp_path / "a.npy", "w+", np.float32, (200, 60))
    X[:] = np.arange(12_000).reshape(200, 60)
    for view in (X, X[3:], X[::2], X[4:180:3, 1:44], np.load(tmp_path / "a.npy", mmap_mode="r")[5:90]):
        there, by_rows = travel(view)
        assert not by_rows
        assert np.array_equal(there, view)
        assert not there.flags.writeable
    for view in (X[::-1], X + 1):  # read backwards; in memory
        there, by_rows = travel(view)
        assert by_rows
        assert np.array_equal(there, view)
    (tmp_path / "a.npy").unlink()
    there, by_rows = travel(X)
    assert by_rows
    assert np.array_equal(there, X)


def test_a_map_whose_changes_stay_in_this_process_is_sent_as_rows(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((200, 6)))
    X = np.load(tmp_path / "a.npy", mmap_mode="c")
    X[3] = 7
    there, by_rows = travel(X)
    assert by_rows
    assert there[3].tolist() == [7] * 6


def test_dicts_travel_by_reference_if_all_of_them_can(images, tmp_path):
    X = as_memmap(images[0], tmp_path)
    both, by_rows = travel({"a": X, "b": X[:, :, 1:]})
    assert not by_rows
    assert np.array_equal(both["b"], images[0][:, :, 1:])
    both, by_rows = travel({"a": X, "b": images[0]})
    assert by_rows
    assert np.array_equal(both["a"], images[0])


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
