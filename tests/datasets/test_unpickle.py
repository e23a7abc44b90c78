"""The reader of pickles runs nothing that a file names."""

import builtins
import os
import pickle
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skal.datasets._raw.unpickle import load_plain_pickle


class Call:
    """Pickles as a call of ``function(*arguments)``."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    ("function", "argument"),
    [
        (os.mkdir, "{}"),
        (builtins.eval, "__import__('os').mkdir('{}')"),
        (builtins.exec, "import os; os.mkdir('{}')"),
        (np.memmap, "{}"),
        (np.load, "{}"),
    ],
    ids=["os.mkdir", "eval", "exec", "numpy.memmap", "numpy.load"],
)
def test_no_call_is_made(tmp_path, function, argument, protocol):
    made = tmp_path / "made"
    content = pickle.dumps({b"data": Call(function, argument.format(made))}, protocol=protocol)
    with pytest.raises(ValueError, match=r"batch: .*unsafe pickle .*the file asks for \S+, which is not plain data"):
        load_plain_pickle(content, "batch")
    assert not made.exists()


def test_the_call_would_have_been_made_by_pickle(tmp_path):
    """Without this, the test above could pass for a harmless file."""
    made = tmp_path / "made"
    pickle.loads(pickle.dumps({b"data": Call(os.mkdir, str(made))}))
    assert made.is_dir()


@pytest.mark.parametrize(
    "name", ["ndarray.tofile", "ndarray.__class__", "f2py", "core", "_reconstruct", "load", "DataSource"]
)
def test_no_other_name_of_numpy(name):
    content = b"\x80\x04\x8c\x05numpy\x8c" + bytes([len(name)]) + name.encode() + b"\x93."
    with pytest.raises(ValueError, match="which is not plain data"):
        load_plain_pickle(content, "batch")


def test_extension_codes_are_refused():
    with pytest.raises(ValueError, match="unsafe pickle"):
        load_plain_pickle(b"\x80\x02\x82\x01.", "batch")


def test_persistent_ids_are_refused():
    with pytest.raises(ValueError, match="unsafe pickle"):
        load_plain_pickle(b"\x80\x02}U\x04dataU\x01xQs.", "batch")


def test_arrays_of_objects_are_refused():
    content = pickle.dumps({b"data": np.array([1, None], dtype=object)})
    with pytest.raises(ValueError, match=r"arrays must be numeric, got the type \|O8"):
        load_plain_pickle(content, "batch")


def test_array_without_content_is_refused():
    content = b"\x80\x02}U\x04datacnumpy\nndarray\n)Rs."
    with pytest.raises(ValueError, match="unsafe pickle"):
        load_plain_pickle(content, "batch")


def test_a_file_cannot_change_the_reader_for_the_next_one():
    """BUILD sets attributes on what a file was given: here the default arguments of a function."""
    spoil = b"\x80\x02c_codecs\nencode\nN}U\x0c__defaults__)s\x86b0}."
    assert load_plain_pickle(spoil.replace(b"U\x0c", b"X\x0c\0\0\0"), "batch") == {}
    assert load_plain_pickle(pickle.dumps({b"a": b"b"}, protocol=2), "batch") == {b"a": b"b"}


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("dtype", ["u1", "i2", "<i4", ">i4", "<i8", "<f4", ">f8", "?"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_numeric_arrays_are_read(protocol, dtype, order):
    array = np.asarray(np.arange(6).reshape(2, 3) * 40, dtype=dtype, order=order)
    loaded = load_plain_pickle(pickle.dumps({b"data": array}, protocol=protocol), "batch")[b"data"]
    np.testing.assert_array_equal(loaded, array)
    assert loaded.dtype == array.dtype


def test_an_array_of_the_wrong_length_is_refused():
    content = pickle.dumps({b"data": np.arange(6, dtype=np.uint8)}, protocol=2)
    assert content.count(b"K\x06\x85") == 1
    with pytest.raises(ValueError, match=r"an array of shape \(7,\) holds 6 values"):
        load_plain_pickle(content.replace(b"K\x06\x85", b"K\x07\x85"), "batch")


def test_a_length_beyond_the_file_is_refused():
    with pytest.raises(ValueError, match="truncated"):
        load_plain_pickle(b"\x80\x02}U\x04dataT" + struct.pack("<i", 2**31 - 1) + b"abc", "batch")


CONTENT = pickle.dumps({b"data": np.arange(20, dtype=np.uint8), b"labels": [1, 2], "s": ["x", 2.5]}, protocol=2)


@given(st.integers(0, len(CONTENT) - 1))
def test_any_truncation_is_refused(length):
    with pytest.raises(ValueError, match="batch: truncated"):
        load_plain_pickle(CONTENT[:length], "batch")


@given(st.integers(0, len(CONTENT) - 1), st.integers(1, 255))
def test_any_damaged_byte_gives_plain_data_or_a_value_error(position, change):
    damaged = bytearray(CONTENT)
    damaged[position] ^= change
    try:
        loaded = load_plain_pickle(bytes(damaged), "batch")
    except ValueError:
        return
    assert {type(value) for value in loaded.values()} <= {np.ndarray, list, bytes, str, int, float, bool, tuple}
