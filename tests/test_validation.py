"""Tests of skal.validation."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skal.exceptions import InvalidParameterError, InvalidTypeError
from skal.validation import (
    Choice,
    Integer,
    Real,
    Seed,
    as_finite_array,
    as_list,
    as_path,
    check_n_jobs,
    make_generator,
    parse_memory,
)


@pytest.mark.parametrize("value", [1, 7, np.int8(3), np.uint64(9)])
def test_integers_pass(value):
    Integer(1).check("Owner", "count", value)


@pytest.mark.parametrize("value", [0, -1, np.int64(-5)])
def test_small_integers_are_refused(value):
    with pytest.raises(InvalidParameterError, match=r"'count' parameter of Owner must be an integer >= 1\. Got"):
        Integer(1).check("Owner", "count", value)


@pytest.mark.parametrize("value", [1.0, "1", None, True, np.True_, np.nan, [1]])
def test_other_types_are_not_integers(value):
    with pytest.raises(InvalidTypeError, match="must be an integer >= 1"):
        Integer(1).check("Owner", "count", value)


def test_integers_that_would_run_for_ever_are_refused_with_the_limit():
    Integer(1).check("Owner", "k", 10**12)
    Integer(1, None).check("Owner", "k", 10**30)
    Integer(1, 7, optional=True).check("Owner", "k", 7)
    with pytest.raises(
        InvalidParameterError, match=r"'k' parameter of Owner must be an integer from 1 to 1,000,000,000"
    ):
        Integer(1, remedy="Pass more.").check("Owner", "k", 10**30)
    with pytest.raises(InvalidParameterError, match=r"from 1 to 7\. Got 8 instead\. Pass an integer of at most 7\.$"):
        Integer(1, 7, optional=True, remedy="Pass more.").check("Owner", "k", 8)
    with pytest.raises(InvalidParameterError, match="too large to be shown"):
        Integer(1).check("Owner", "k", 10**9999)


@pytest.mark.parametrize("value", [4097, 10**30, -(10**30)])
def test_more_jobs_than_can_be_started_are_refused(value):
    check_n_jobs("Owner", 4096)
    with pytest.raises(InvalidParameterError, match=r"'n_jobs' parameter of Owner .* from 1 to 4,096.* Use -1 for all"):
        check_n_jobs("Owner", value)


def test_none_passes_where_it_is_optional():
    Integer(1, optional=True).check("Owner", "count", None)
    with pytest.raises(InvalidParameterError, match="or None"):
        Integer(1, optional=True).check("Owner", "count", 0)


def test_the_remedy_can_be_given():
    with pytest.raises(InvalidParameterError, match=r"Ask for more\.$"):
        Integer(1, remedy="Ask for more.").check("Owner", "count", 0)


@pytest.mark.parametrize("value", [0, 0.5, 1, np.float32(0.25), Fraction(1, 3)])
def test_numbers_within_the_bounds_pass(value):
    Real(0, 1).check("Owner", "rate", value)


@pytest.mark.parametrize("value", [-1e-9, 1.1, np.nan, np.inf, -np.inf])
def test_numbers_outside_are_refused(value):
    with pytest.raises(InvalidParameterError, match=r"a number in \[0, 1\]"):
        Real(0, 1).check("Owner", "rate", value)


@pytest.mark.parametrize("value", ["0.5", None, False, 1j, np.zeros(1)])
def test_other_types_are_not_numbers(value):
    with pytest.raises(InvalidTypeError, match=r"a number in \[0, 1\]"):
        Real(0, 1).check("Owner", "rate", value)


def test_without_bounds_everything_but_nan_passes():
    Real().check("Owner", "rate", np.inf)
    with pytest.raises(InvalidParameterError, match="Got nan"):
        Real().check("Owner", "rate", np.nan)


def test_choices():
    Choice("a", "b").check("Owner", "kind", "a")
    Choice("a", None).check("Owner", "kind", None)
    Choice("a", "b").check("Owner", "kind", np.str_("a"))
    Choice(True, False).check("Owner", "kind", np.True_)
    for value in ("c", None, 1, ["a"], np.array(["a", "b"])):
        with pytest.raises(InvalidParameterError, match="one of 'a', 'b'"):
            Choice("a", "b").check("Owner", "kind", value)


def test_true_is_not_one_among_choices():
    with pytest.raises(InvalidParameterError, match="Got True"):
        Choice(1, 2).check("Owner", "kind", True)


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        (None, None),
        (1024, 1024),
        (np.int64(7), 7),
        ("7", 7),
        ("2GB", 2 * 10**9),
        ("2 gib", 2 * 2**30),
        ("1.5kB", 1500),
        (" 512MiB ", 512 * 2**20),
        ("1TB", 10**12),
    ],
)
def test_memory(text, n_bytes):
    assert parse_memory("Owner", "max_memory", text) == n_bytes


@pytest.mark.parametrize("value", ["", "GB", "2XB", "-1GB", "1e9", "2GB 1MB", 0, -5, "0.1B", "0GB"])
def test_memory_values_that_mean_nothing(value):
    with pytest.raises(InvalidParameterError, match="'max_memory' parameter of Owner"):
        parse_memory("Owner", "max_memory", value)


@pytest.mark.parametrize("value", [1.5, True, b"2GB", object()])
def test_memory_types_that_mean_nothing(value):
    with pytest.raises(InvalidTypeError, match="such as '2GB'"):
        parse_memory("Owner", "max_memory", value)


@given(st.integers(0, 2**64 - 1))
def test_an_integer_seed_reproduces(seed):
    first, second = (make_generator("Owner", seed).random(3) for _ in range(2))
    assert np.array_equal(first, second)


def test_none_draws_fresh_and_leaves_numpy_alone():
    before = np.random.get_state()[1].copy()
    assert make_generator("Owner", None).random() != make_generator("Owner", None).random()
    assert np.array_equal(np.random.get_state()[1], before)


@pytest.mark.parametrize("make", [np.random.RandomState, np.random.default_rng])
def test_generators_are_advanced_and_reproduce(make):
    generator = make(0)
    draws = [make_generator("Owner", generator).random() for _ in range(2)]
    assert draws[0] != draws[1]
    again = make(0)
    assert draws == [make_generator("Owner", again).random() for _ in range(2)]


@pytest.mark.parametrize(
    ("value", "error"),
    [(-1, InvalidParameterError), (0.5, InvalidTypeError), (True, InvalidTypeError), ("a", InvalidTypeError)],
)
def test_seeds_that_mean_nothing(value, error):
    for check in (Seed().check, lambda owner, name, value: make_generator(owner, value)):
        with pytest.raises(error, match="'random_state' parameter of Owner"):
            check("Owner", "random_state", value)


def test_numbers_below_an_excluded_maximum_or_none_pass():
    Real(0, 1, below_maximum=True).check("Owner", "rate", 0.999)
    Real(0, 1, optional=True).check("Owner", "rate", None)
    with pytest.raises(InvalidParameterError, match=r"a number in \[0, 1\)\. Got 1"):
        Real(0, 1, below_maximum=True).check("Owner", "rate", 1)
    with pytest.raises(InvalidParameterError, match=r"a number in \[0, 1\] or None"):
        Real(0, 1, optional=True).check("Owner", "rate", 2)


@pytest.mark.parametrize("value", [None, 1, -1, np.int64(-2)])
def test_numbers_of_jobs_pass(value):
    check_n_jobs("Owner", value)


@pytest.mark.parametrize(
    ("value", "error"), [(0, InvalidParameterError), (True, InvalidTypeError), (2.0, InvalidTypeError)]
)
def test_numbers_of_jobs_that_mean_nothing(value, error):
    with pytest.raises(error, match=r"'n_jobs' parameter of Owner.*-1 is all processors"):
        check_n_jobs("Owner", value)


@pytest.mark.parametrize(
    ("value", "shape", "expected"),
    [
        ([[1, 2], [3, 4]], ("n", "n"), (2, 2)),
        ([1, 2, 3], ("n", "C"), (3, 1)),
        ([1, 2, 3], ("P",), (3,)),
        (np.ones((4, 3), dtype="float32"), (4, "C"), (4, 3)),
    ],
)
def test_arrays_of_the_expected_shape_become_float64(value, shape, expected):
    array = as_finite_array("Owner", "K", value, shape)
    assert array.dtype == np.float64
    assert array.shape == expected


@pytest.mark.parametrize(
    ("value", "shape", "got"),
    [
        (np.ones((2, 3)), ("n", "n"), r"shape \(2, 3\)"),
        (np.ones((2, 3)), (2, 4), r"shape \(2, 3\)"),
        (np.ones((2, 3, 1)), ("n", "C"), r"shape \(2, 3, 1\)"),
        (np.ones((0, 0)), ("n", "n"), r"shape \(0, 0\)"),
        (1.0, ("n", "C"), r"shape \(\)"),
        ([[1.0, np.nan]], (1, "C"), "NaN or infinity"),
        ([[1, 2], [3]], ("n", "C"), r"\[\[1, 2\], \[3\]\]"),
        ("kernel", ("n", "n"), "'kernel'"),
    ],
)
def test_other_arrays_are_refused(value, shape, got):
    with pytest.raises(InvalidParameterError, match=rf"'K' parameter of Owner must be finite numbers.* Got .*{got}"):
        as_finite_array("Owner", "K", value, shape)


@pytest.mark.parametrize("value", ["text", b"bytes", 3, None, list])
def test_what_has_no_entries_is_no_list(value):
    with pytest.raises(InvalidTypeError, match="'ids' parameter of label must be a list of ids"):
        as_list("label", "ids", value, expected="a list of ids", remedy="Pass one each.")


def test_paths_that_cannot_be_written(tmp_path):
    assert as_path("to_csv", "path", str(tmp_path / "x.csv")) == tmp_path / "x.csv"
    for value in (None, 3, ""):
        with pytest.raises(InvalidTypeError, match="path of a file"):
            as_path("to_csv", "path", value)
    for value in (tmp_path, tmp_path / "none" / "x.csv"):
        with pytest.raises(InvalidParameterError, match="in a folder that is there"):
            as_path("to_csv", "path", value)
