"""Tests of skal._core.samples."""

import pickle

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from torch.utils.data import Dataset, TensorDataset

from skal.context import Samples
from skal.exceptions import InvalidTypeError, NonFiniteError
from skal.strategies import Margin
from tests.support.learners import learner_of

X = np.arange(20.0).reshape(10, 2)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.integers(1, 40))
def test_chunks_cover_the_rows_in_order(rows, size):
    rows = np.array(rows)
    chunks = list(Samples(X, rows=rows).chunks(size))
    assert np.array_equal(np.concatenate(chunks), X[rows])
    assert all(len(chunk) == size for chunk in chunks[:-1])
    assert 1 <= len(chunks[-1]) <= size


def test_no_rows_give_no_chunks():
    assert list(Samples(X[:0]).chunks(3)) == []
    assert len(Samples(X, rows=np.array([], dtype=int))) == 0


def test_a_part_of_a_part():
    part = Samples(X, name="X_pool").take(np.array([9, 5, 1])).take(np.array([2, 0]))
    assert np.array_equal(next(part.chunks(5)), X[[1, 9]])
    assert part.name == "X_pool"


def test_the_transform_sees_one_chunk_at_a_time():
    sizes = []

    def transform(chunk):
        sizes.append(len(chunk))
        return chunk + 1

    samples = Samples(X, transform=transform)
    assert sizes == []
    assert np.array_equal(np.concatenate(list(samples.chunks(4))), X + 1)
    assert sizes == [4, 4, 2]
    assert np.array_equal(next(samples.take(np.array([3])).chunks(10)), X[[3]] + 1)


def test_a_sparse_result_of_a_transform_becomes_dense():
    chunk = next(Samples(X, transform=sp.csr_matrix).chunks(4))
    assert isinstance(chunk, np.ndarray)


def test_sparse_samples_stay_sparse_without_one():
    assert sp.issparse(next(Samples(sp.csr_matrix(X)).chunks(4)))


def test_lists_of_numbers_become_arrays_and_texts_stay():
    assert isinstance(Samples(X.tolist()).X, np.ndarray)
    assert next(Samples(["a", "b", "c"]).chunks(2)) == ["a", "b"]


def test_a_dataset_cannot_be_transformed():
    with pytest.raises(InvalidTypeError, match=r"X_pool must be an array .* Got a TensorDataset instead\. Move"):
        Samples(TensorDataset(torch.zeros(3)), name="X_pool", transform=lambda X: X)


def test_nonfinite_rows_are_named_by_their_place_in_the_whole():
    spoilt = X.copy()
    spoilt[7, 0] = np.nan
    with pytest.raises(NonFiniteError, match=r"X_pool .* row 7\."):
        list(Samples(spoilt, name="X_pool").chunks(3))
    with pytest.raises(NonFiniteError, match=r"row 7\."):
        list(Samples(spoilt, rows=np.array([1, 2, 3, 7])).chunks(3))
    assert len(list(Samples(spoilt, rows=np.array([1, 2])).chunks(3))) == 1
    assert len(list(Samples(spoilt, allow_nan=True).chunks(3))) == 4


@pytest.mark.parametrize("part", [range(1, 3), np.array([2, 0])], ids=["range", "rows"])
def test_rows_keep_their_numbers_when_a_part_of_them_travels(part):
    samples = Samples(X, rows=np.array([5, 1, 7]))
    travelled = pickle.loads(pickle.dumps(samples))
    assert list(travelled.take(part).row_numbers(0, 2)) == list(samples.take(part).row_numbers(0, 2))


def test_nonfinite_results_of_the_transform_are_found():
    with pytest.raises(NonFiniteError, match="row 4"):
        list(Samples(X, transform=lambda chunk: np.where(chunk == 8, np.inf, chunk)).chunks(3))


class Watched(Dataset):
    read = 0

    def __len__(self):
        return 5

    def __getitem__(self, i):
        Watched.read += 1
        return torch.zeros(2)


def test_taking_chunks_of_a_dataset_reads_nothing():
    chunks = list(Samples(Watched()).chunks(2))
    assert [len(chunk) for chunk in chunks] == [2, 2, 1]
    assert Watched.read == 0


def test_missing_values_are_left_to_the_steps_of_a_column_transformer():
    """An imputer for a column takes them; without one the classifier refuses them in its own words."""
    X = pd.DataFrame({"a": [1.0, np.nan, 3.0, 4.0] * 5, "b": list("xyxy") * 5})
    y = np.arange(20) % 2
    encoder = (OneHotEncoder(), ["b"])
    imputed = make_pipeline(make_column_transformer((SimpleImputer(), ["a"]), encoder), LogisticRegression())
    indices, _ = Margin().select(learner_of(imputed.fit(X, y), X, y), X, 3)
    assert len(indices) == 3
    plain = make_pipeline(make_column_transformer(("passthrough", ["a"]), encoder), LogisticRegression())
    learner = learner_of(plain.fit(X.fillna(0), y), X.fillna(0), y)
    with pytest.raises(ValueError, match="NaN"):
        Margin().select(learner, X, 3)
