"""npz data sets: the forms of images and labels that are taken, and those that are refused."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skal.datasets import load

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (8, 3, 5, 6), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 0, 1, 2, 0, 1], dtype=np.uint8)


def arrays(images=IMAGES, labels=LABELS, **others):
    stored = {"X_train": images[:5], "y_train": labels[:5], "X_test": images[5:], "y_test": labels[5:], **others}
    return {key: value for key, value in stored.items() if value is not None}


def load_toy(folder, **stored):
    np.savez_compressed(folder / "toy.npz", **stored)
    return load("toy", folder)


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (IMAGES, IMAGES),
        (IMAGES.transpose(0, 2, 3, 1), IMAGES),
        (IMAGES[:, 0], IMAGES[:, :1]),
        (IMAGES[:, :1], IMAGES[:, :1]),
        (IMAGES[:, 0, :, :, None], IMAGES[:, :1]),
    ],
    ids=["NCHW", "NHWC", "NHW", "N1HW", "NHW1"],
)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_images_come_in_one_form(tmp_path, stored, expected, dtype):
    scaled = (expected / 255).astype(np.float32)
    data = load_toy(tmp_path, **arrays(stored if dtype == np.uint8 else (stored / 255).astype(dtype)))
    np.testing.assert_array_equal(data.X_train, scaled[:5])
    np.testing.assert_array_equal(data.X_test, scaled[5:])
    assert data.X_train.dtype == np.float32
    assert data.X_train.flags.c_contiguous
    assert data.y_train.dtype == np.int64
    np.testing.assert_array_equal(data.y_test, LABELS[5:])
    assert data.target_names == ["0", "1", "2"]


def test_all_levels_lie_in_the_unit_interval(tmp_path):
    levels = np.arange(256, dtype=np.uint8).reshape(8, 4, 8)
    data = load_toy(tmp_path, **arrays(levels))
    values = np.concatenate([data.X_train, data.X_test]).ravel()
    assert values[0] == 0
    assert values[-1] == 1
    np.testing.assert_array_equal(np.round(values * 255), np.arange(256))


def test_labels_in_a_column(tmp_path):
    data = load_toy(tmp_path, **arrays(labels=LABELS[:, None].astype(np.int16)))
    np.testing.assert_array_equal(data.y_train, LABELS[:5])


@pytest.mark.parametrize("key", ["target_names", "class_names"])
def test_class_names_in_the_file(tmp_path, key):
    data = load_toy(tmp_path, **arrays(**{key: np.array(["cat", "dog", "cow", "none of these"])}))
    assert data.target_names == data.class_names == ["cat", "dog", "cow", "none of these"]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.uint8, np.int64])
def test_features_are_left_as_they_are(tmp_path, dtype):
    features = (RNG.normal(size=(8, 7)) * 9).astype(dtype)
    data = load_toy(tmp_path, **arrays(features))
    assert data.X_train.dtype == data.X_test.dtype == np.float32
    np.testing.assert_array_equal(data.X_train, features[:5].astype(np.float32))
    np.testing.assert_array_equal(data.X_test, features[5:].astype(np.float32))
    assert data.X_train.flags.c_contiguous
    assert "texts_train" not in data


def test_texts_come_with_their_features(tmp_path):
    texts = {"texts_train": np.array(["a", "bc", "", "ü", "e"]), "texts_test": np.array(["x", "y", "z"])}
    data = load_toy(tmp_path, **arrays(np.ones((8, 2), np.float16), **texts))
    assert data.texts_train == ["a", "bc", "", "ü", "e"]
    assert data.texts_test == ["x", "y", "z"]


def test_known_names_have_their_classes(tmp_path):
    np.savez(tmp_path / "cifar10.npz", **arrays())
    assert load("cifar10", tmp_path).target_names[:3] == ["airplane", "automobile", "bird"]


@pytest.mark.parametrize("key", ["X_train", "y_train", "X_test", "y_test"])
def test_missing_array(tmp_path, key):
    with pytest.raises(ValueError, match=rf"toy\.npz.*{key} missing; it holds"):
        load_toy(tmp_path, **arrays(**{key: None}))


@pytest.mark.parametrize("key", ["X_train", "y_test", "target_names"])
def test_objects_are_refused(tmp_path, key):
    with pytest.raises(ValueError, match=rf"toy\.npz: the array {key} cannot be read.*[Oo]bject"):
        load_toy(tmp_path, **arrays(**{key: np.array([print, 2, None], dtype=object)}))


BAD = {
    "shape of one axis": (arrays(IMAGES[:, 0, 0, 0]), r"X_train: images must have the shape .*Got \(5,\)"),
    "features of truth": (arrays(IMAGES.reshape(8, -1) > 9), r"X_train: features must be numbers\. Got bool"),
    "infinite features": (arrays(np.full((8, 2), np.inf)), r"X_train: features must be finite.*in 5 samples"),
    "feature counts": (arrays(X_train=np.ones((5, 2)), X_test=np.ones((3, 4))), r"one shape\. Got \(2,\) and \(4,\)"),
    "too few texts": (arrays(texts_test=np.array(["a", "b"])), r"texts_test: texts must be an array of 3 strings"),
    "texts that are none": (arrays(texts_train=np.arange(5)), r"texts_train: texts must be .*Got int64"),
    "two channels": (arrays(IMAGES[:, :2]), r"exactly one axis C of length 1 or 3\. Got \(5, 2, 5, 6\)"),
    "either axis could be channels": (arrays(IMAGES[:, :, :, :3]), r"exactly one axis C.*Got \(5, 3, 5, 3\)"),
    "int64 images": (arrays(IMAGES.astype(np.int64)), r"X_train: images must be uint8.*Got int64.*Store"),
    "bool images": (arrays(IMAGES > 100), r"Got bool"),
    "floats to 255": (arrays(IMAGES.astype(np.float32)), r"must lie in \[0, 1\]\. Got values from .* Scale"),
    "negative floats": (arrays(-(IMAGES / 255)), r"must lie in \[0, 1\]"),
    "NaN": (arrays(np.where(IMAGES > 250, np.nan, 0.5)), r"must lie in \[0, 1\]\. Got values from nan"),
    "float labels": (arrays(labels=LABELS / 2), r"y_train: labels must be integers.*float64"),
    "one-hot labels": (arrays(labels=np.eye(3, dtype=int)[LABELS]), r"shape \(5, 3\)"),
    "labels from 1": (arrays(labels=LABELS + 1), r"labels must be 0\.\.C-1.*Got 1, 2, 3 instead\. Renumber"),
    "negative labels": (arrays(labels=LABELS.astype(int) - 1), r"Got -1, 0, 1 instead"),
    "label beyond the names": (
        arrays(target_names=np.array(["a", "b"])),
        r"must lie in 0\.\.1\. Got values from 0 to 2",
    ),
    "train lengths": (arrays(y_train=LABELS[:4]), r"train split has 5 samples but 4 labels"),
    "test lengths": (arrays(X_test=IMAGES[:2]), r"test split has 2 samples but 3 labels"),
    "empty": (arrays(X_test=IMAGES[:0], y_test=LABELS[:0]), r"test split is empty"),
    "image sizes": (arrays(X_test=IMAGES[5:, :, :4]), r"one shape\. Got \(3, 5, 6\) and \(3, 4, 6\)"),
}


@pytest.mark.parametrize(("stored", "message"), BAD.values(), ids=BAD)
def test_what_is_wrong_is_named(tmp_path, stored, message):
    with pytest.raises(ValueError, match=rf"toy\.npz.*{message}"):
        load_toy(tmp_path, **stored)


def test_label_beyond_a_known_data_set(tmp_path):
    np.savez(tmp_path / "mnist.npz", **arrays(labels=LABELS * 5))
    with pytest.raises(ValueError, match=r"mnist\.npz: the labels of the train split .*0\.\.9\. Got .* 0 to 10"):
        load("mnist", tmp_path)


def test_a_lone_array_is_no_archive(tmp_path):
    with (tmp_path / "toy.npz").open("wb") as file:
        np.save(file, IMAGES)
    with pytest.raises(ValueError, match=r"toy\.npz: truncated, or not an npz archive"):
        load("toy", tmp_path)


def content():
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays())
    return buffer.getvalue()


CONTENT = content()


@given(st.integers(0, len(CONTENT) - 1))
def test_any_truncation_is_refused(tmp_path_factory, length):
    path = tmp_path_factory.mktemp("npz") / "toy.npz"
    path.write_bytes(CONTENT[:length])
    with pytest.raises(ValueError, match=r"toy\.npz.*Get the file again"):
        load("toy", path.parent)


# The first byte of the archive, a byte of the data, and the flag that says that a file is encrypted.
@pytest.mark.parametrize("position", [0, 200, CONTENT.index(b"PK\x01\x02") + 8])
def test_a_damaged_byte_is_refused(tmp_path, position):
    damaged = bytearray(CONTENT)
    damaged[position] ^= 1
    (tmp_path / "toy.npz").write_bytes(damaged)
    with pytest.raises(ValueError, match=r"toy\.npz: the array X_train cannot be read"):
        load("toy", tmp_path)
