"""MNIST and Fashion-MNIST in their own format."""

import gzip
import struct

import numpy as np
import pytest

from skal.datasets import load

RNG = np.random.default_rng(0)
IMAGES = {
    "train": RNG.integers(0, 256, (12, 28, 28), dtype=np.uint8),
    "t10k": RNG.integers(0, 256, (5, 28, 28), dtype=np.uint8),
}
LABELS = {"train": RNG.integers(0, 10, 12, dtype=np.uint8), "t10k": RNG.integers(0, 10, 5, dtype=np.uint8)}
MNIST_START = [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
FASHION_START = [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]


def idx(array):
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write(folder, suffix="", labels=None):
    """The four files as they are distributed, all gzipped if ``suffix`` says so."""
    folder.mkdir(parents=True, exist_ok=True)
    opener = gzip.open if suffix == ".gz" else open
    for split in ("train", "t10k"):
        with opener(folder / f"{split}-images-idx3-ubyte{suffix}", "wb") as file:
            file.write(idx(IMAGES[split]))
        with opener(folder / f"{split}-labels-idx1-ubyte{suffix}", "wb") as file:
            file.write(idx((labels or LABELS)[split]))


def check(data):
    for X, y, split in ((data.X_train, data.y_train, "train"), (data.X_test, data.y_test, "t10k")):
        np.testing.assert_array_equal(X, (IMAGES[split][:, None] / 255).astype(np.float32))
        np.testing.assert_array_equal(y, LABELS[split])
        assert X.dtype == np.float32
        assert y.dtype == np.int64


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("mnist", ""),
        ("mnist", "mnist"),
        ("mnist", "MNIST/raw"),
        ("fashion_mnist", ""),
        ("fashion_mnist", "fashion_mnist"),
        ("fashion_mnist", "FashionMNIST/raw"),
    ],
)
def test_conventional_folders(tmp_path, name, folder, suffix):
    write(tmp_path / folder, suffix)
    data = load(name, tmp_path)
    check(data)
    assert data.target_names[9] == ("9" if name == "mnist" else "Ankle boot")


def test_names_with_a_dot_and_plain_beside_compressed(tmp_path):
    write(tmp_path, ".gz")
    (tmp_path / "train-images-idx3-ubyte.gz").unlink()
    (tmp_path / "train-images.idx3-ubyte").write_bytes(idx(IMAGES["train"]))
    check(load("mnist", tmp_path))


@pytest.mark.parametrize(
    ("name", "start"), [("mnist", FASHION_START), ("fashion_mnist", MNIST_START)], ids=["mnist", "fashion"]
)
def test_the_other_data_set_under_the_same_names_is_refused(tmp_path, name, start):
    labels = {"train": np.array([*start, 0, 0], dtype=np.uint8), "t10k": LABELS["t10k"]}
    write(tmp_path, labels=labels)
    with pytest.raises(ValueError, match=r"train-labels-idx1-ubyte: .*labels of the other one.*folder of its own"):
        load(name, tmp_path)


def test_the_data_sets_own_folder_comes_before_data_home(tmp_path):
    labels = {"train": np.array([*MNIST_START, 0, 0], dtype=np.uint8), "t10k": LABELS["t10k"]}
    write(tmp_path, labels=labels)
    write(tmp_path / "FashionMNIST/raw")
    check(load("fashion_mnist", tmp_path))
    np.testing.assert_array_equal(load("mnist", tmp_path).y_train[:10], MNIST_START)


GOOD = idx(IMAGES["train"])
DAMAGED = {
    "truncated values": (GOOD[:-1], "announces 9408 bytes .*but 9407 follow"),
    "truncated header": (GOOD[:10], "truncated within its header of 16 bytes"),
    "empty": (b"", "wrong magic number: expected 00000803.*got an empty file"),
    "trailing bytes": (GOOD + b"\0", "announces 9408 bytes .*but 9409 follow"),
    "labels in the place of images": (idx(LABELS["train"]), "wrong magic number: expected 00000803.*got 00000801"),
    "int32 values": (b"\0\0\x0c\x03" + GOOD[4:], "wrong magic number.*got 00000c03"),
    "absurd length": (GOOD[:4] + b"\xff" * 12 + GOOD[16:], "announces"),
    "fewer images than labels": (idx(IMAGES["train"][:11]), "train split has 11 samples but 12 labels"),
    "another image size": (idx(IMAGES["train"][:, :20]), "one shape"),
}


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(("content", "message"), DAMAGED.values(), ids=DAMAGED)
def test_damage_is_named(tmp_path, content, message, suffix):
    write(tmp_path, suffix)
    path = tmp_path / f"train-images-idx3-ubyte{suffix}"
    path.write_bytes(gzip.compress(content) if suffix else content)
    file = "t10k-images" if message == "one shape" else "train-images"
    with pytest.raises(ValueError, match=rf"{file}-idx3-ubyte{suffix}.*: .*{message}"):
        load("mnist", tmp_path)


@pytest.mark.parametrize("keep", [5, 100, -1, -4])
def test_truncated_gzip(tmp_path, keep):
    write(tmp_path, ".gz")
    path = tmp_path / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"t10k-images-idx3-ubyte\.gz: damaged or truncated gzip"):
        load("mnist", tmp_path)


@pytest.mark.parametrize("position", [0, 2, 500, -6])
def test_damaged_gzip(tmp_path, position):
    write(tmp_path, ".gz")
    path = tmp_path / "train-images-idx3-ubyte.gz"
    content = bytearray(path.read_bytes())
    content[position] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte\.gz: damaged or truncated gzip"):
        load("mnist", tmp_path)


def test_label_out_of_range(tmp_path):
    labels = {"train": LABELS["train"], "t10k": np.full(5, 10, dtype=np.uint8)}
    write(tmp_path, labels=labels)
    with pytest.raises(
        ValueError, match=r"t10k-labels-idx1-ubyte: the labels of the test split must .*0\.\.9\. Got .* 10"
    ):
        load("mnist", tmp_path)
