"""The reader of pickles, with which CIFAR's batches come, runs nothing that a file names."""

import builtins
import os
import pickle
import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skal.datasets import load

PIXELS = np.random.default_rng(0).integers(256, size=(3, 3072), dtype=np.uint8)
BATCH = {b"data": PIXELS, b"fine_labels": [1, 2, 0]}


def load_batch(content):
    """CIFAR-100 with this training batch."""
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "cifar-100-python"
        folder.mkdir()
        (folder / "train").write_bytes(content)
        (folder / "test").write_bytes(pickle.dumps(BATCH))
        return load("cifar100", home)


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
    content = pickle.dumps(BATCH | {b"data": Call(function, argument.format(made))}, protocol=protocol)
    with pytest.raises(ValueError, match=r"train: .*unsafe pickle .*the file asks for \S+, which is not plain data"):
        load_batch(content)
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
        load_batch(content)


def test_extension_codes_are_refused():
    with pytest.raises(ValueError, match="unsafe pickle"):
        load_batch(b"\x80\x02\x82\x01.")


def test_persistent_ids_are_refused():
    with pytest.raises(ValueError, match="unsafe pickle"):
        load_batch(b"\x80\x02}U\x04dataU\x01xQs.")


def test_arrays_of_objects_are_refused():
    content = pickle.dumps({b"data": np.array([1, None], dtype=object)})
    with pytest.raises(ValueError, match=r"arrays must be numeric, got the type \|O8"):
        load_batch(content)


def test_array_without_content_is_refused():
    content = b"\x80\x02}U\x04datacnumpy\nndarray\n)Rs."
    with pytest.raises(ValueError, match="unsafe pickle"):
        load_batch(content)


def test_a_file_cannot_change_the_reader_for_the_next_one():
    """BUILD sets attributes on what a file was given: here the default arguments of a function."""
    spoil = b"\x80\x02c_codecs\nencode\nN}U\x0c__defaults__)s\x86b0}."
    with pytest.raises(ValueError, match="must hold 'data' and 'fine_labels'"):  # it was read, and is empty
        load_batch(spoil.replace(b"U\x0c", b"X\x0c\0\0\0"))
    found = load_batch(pickle.dumps(BATCH | {b"a": b"b"}, protocol=2))  # bytes, which that function makes
    assert found.y_train.tolist() == [1, 2, 0]


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("dtype", ["u1", "i2", "<i4", ">i4", "<i8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_numeric_arrays_are_read(protocol, dtype, order):
    labels = np.array([1, 40, 99], dtype=dtype)
    batch = {b"data": np.asarray(PIXELS, order=order), b"fine_labels": labels}
    found = load_batch(pickle.dumps(batch, protocol=protocol))
    np.testing.assert_array_equal(found.y_train, labels)
    np.testing.assert_array_equal(found.X_train.reshape(3, -1), (PIXELS / 255).astype(np.float32))


@pytest.mark.parametrize("dtype", ["<f4", ">f8", "?"])
def test_the_types_of_arrays_are_read(dtype):
    content = pickle.dumps(BATCH | {b"data": PIXELS.astype(dtype)})
    with pytest.raises(ValueError, match=f"Got {np.dtype(dtype)}"):
        load_batch(content)


def test_an_array_of_the_wrong_length_is_refused():
    content = pickle.dumps(BATCH | {b"data": np.arange(6, dtype=np.uint8)}, protocol=2)
    assert content.count(b"K\x06\x85") == 1
    with pytest.raises(ValueError, match=r"an array of shape \(7,\) holds 6 values"):
        load_batch(content.replace(b"K\x06\x85", b"K\x07\x85"))


def test_a_length_beyond_the_file_is_refused():
    with pytest.raises(ValueError, match="truncated"):
        load_batch(b"\x80\x02}U\x04dataT" + struct.pack("<i", 2**31 - 1) + b"abc")


CONTENT = pickle.dumps(BATCH | {b"more": [1, 2], "s": ["x", 2.5]}, protocol=4)
FIRST = CONTENT.index(PIXELS.tobytes())
# not only among the pixels, which are nearly all of it
PLACES = st.one_of(
    st.integers(0, FIRST - 1), st.integers(FIRST + PIXELS.size, len(CONTENT) - 1), st.integers(FIRST, 5000)
)


@given(PLACES)
def test_any_truncation_is_refused(length):
    with pytest.raises(ValueError, match="train: truncated"):
        load_batch(CONTENT[:length])


@given(PLACES, st.integers(1, 255))
def test_any_damaged_byte_gives_plain_data_or_a_value_error(position, change):
    damaged = bytearray(CONTENT)
    damaged[position] ^= change
    try:
        found = load_batch(bytes(damaged))
    except ValueError:
        return
    assert found.X_train.dtype == np.float32
    assert found.y_train.dtype == np.int64
    assert 0 <= found.X_train.min() <= found.X_train.max() <= 1
