"""SVHN in its own format."""

import numpy as np
import pytest
from scipy.io import savemat

from skal.datasets import load

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (32, 32, 3, 12), dtype=np.uint8)
LABELS = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 1], dtype=np.uint8)[:, None]


def write(folder, train=None, test=None):
    folder.mkdir(parents=True, exist_ok=True)
    savemat(folder / "train_32x32.mat", train or {"X": IMAGES, "y": LABELS}, do_compression=True)
    savemat(folder / "test_32x32.mat", test or {"X": IMAGES[..., 8:], "y": LABELS[8:]}, do_compression=True)


@pytest.mark.parametrize("folder", ["", "svhn", "SVHN"])
def test_read_back(tmp_path, folder):
    write(tmp_path / folder)
    data = load("svhn", tmp_path)
    assert data.X_train.shape == (12, 3, 32, 32)
    assert data.X_test.shape == (4, 3, 32, 32)
    assert data.X_train.dtype == np.float32
    assert data.X_train.flags.c_contiguous
    for sample, channel, row, column in [(0, 0, 0, 0), (7, 2, 3, 30), (11, 1, 31, 4)]:
        expected = np.float32(IMAGES[row, column, channel, sample] / 255)
        assert data.X_train[sample, channel, row, column] == expected
    np.testing.assert_array_equal(data.X_test, data.X_train[8:])


def test_label_10_is_the_digit_0(tmp_path):
    write(tmp_path)
    data = load("svhn", tmp_path)
    assert data.y_train.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 1]
    assert data.y_test.tolist() == [9, 0, 0, 1]
    assert data.y_train.dtype == np.int64


def test_a_single_image(tmp_path):
    write(tmp_path, test={"X": IMAGES[..., :1], "y": LABELS[:1]})
    data = load("svhn", tmp_path)
    np.testing.assert_array_equal(data.X_test, data.X_train[:1])


BAD = {
    "no y": ({"X": IMAGES}, "must hold X and y. y missing"),
    "no X": ({"y": LABELS}, "must hold X and y. X missing"),
    "axes in another order": (
        {"X": IMAGES.transpose(3, 0, 1, 2), "y": LABELS},
        r"shape \(H, W, 3, N\)\. Got uint8 \(12",
    ),
    "floats": ({"X": IMAGES / 255, "y": LABELS}, r"must be uint8.*Got float64"),
    "label 0": ({"X": IMAGES, "y": LABELS - 1}, r"lie in 1\.\.10.*Got values from 0 to 9"),
    "label 11": ({"X": IMAGES, "y": LABELS + 1}, r"lie in 1\.\.10.*Got values from 2 to 11"),
    "fractions": ({"X": IMAGES, "y": LABELS / 2}, "labels must be integers"),
    "lengths": ({"X": IMAGES, "y": LABELS[:9]}, "12 samples but 9 labels"),
}


@pytest.mark.parametrize(("content", "message"), BAD.values(), ids=BAD)
def test_what_is_wrong_is_named(tmp_path, content, message):
    write(tmp_path, train=content)
    with pytest.raises(ValueError, match=rf"train_32x32\.mat: .*{message}"):
        load("svhn", tmp_path)


@pytest.mark.parametrize("keep", [0, 50, 128, 140, 5000, -1])
def test_truncated(tmp_path, keep):
    write(tmp_path)
    path = tmp_path / "test_32x32.mat"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"test_32x32\.mat: "):
        load("svhn", tmp_path)


@pytest.mark.parametrize("content", [b"<html>not found</html>", b"\x89HDF\r\n\x1a\n" + bytes(600)])
def test_another_format(tmp_path, content):
    write(tmp_path)
    (tmp_path / "train_32x32.mat").write_bytes(content)
    with pytest.raises(ValueError, match=r"train_32x32\.mat: truncated, or not a MATLAB 5 file"):
        load("svhn", tmp_path)
