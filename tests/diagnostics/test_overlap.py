"""Overlap of what strategies queried."""

import numpy as np
import pytest

from skal.diagnostics import query_overlap
from skal.exceptions import InvalidParameterError, InvalidTypeError


def test_union_over_trials_by_hand():
    table = query_overlap({"a": [np.array([1, 2]), np.array([2, 3])], "b": [[3, 4], [5, 6]], "c": [[7]]})
    # a = {1, 2, 3}, b = {3, 4, 5, 6}: one of six
    np.testing.assert_allclose(table, [[1, 1 / 6, 0], [1 / 6, 1, 0], [0, 0, 1]])
    assert table.index.tolist() == table.columns.tolist() == ["a", "b", "c"]


def test_a_single_array_is_one_trial():
    np.testing.assert_allclose(query_overlap({"a": np.array([1, 2]), "b": [2, 3]}).loc["a", "b"], 1 / 3)


def test_random_sets_overlap_as_documented():
    rng = np.random.default_rng(0)
    draws = {name: [rng.choice(1000, size, replace=False)] for name, size in (("a", 300), ("b", 500))}
    expected = 0.3 * 0.5 / (0.3 + 0.5 - 0.15)
    np.testing.assert_allclose(query_overlap(draws).loc["a", "b"], expected, atol=0.03)


def test_nothing_queried_has_no_overlap():
    table = query_overlap({"a": [], "b": [[]], "c": [[1]]})
    assert np.isnan(table.loc["a", "b"])
    assert table.loc["a", "c"] == 0


def test_no_strategy():
    assert query_overlap({}).shape == (0, 0)


@pytest.mark.parametrize("bad", [[[0.5]], [[-1]], [[[1, 2]]], [["one"]]])
def test_indices_must_be_positions(bad):
    with pytest.raises(InvalidParameterError, match="integers >= 0"):
        query_overlap({"a": bad})


def test_a_mapping_is_needed():
    with pytest.raises(InvalidTypeError, match="mapping"):
        query_overlap([[1, 2], [2, 3]])
