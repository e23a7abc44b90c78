"""Finding data sets, what is said when they are not there, and the digits."""

import gzip
import struct

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.utils import Bunch

from skal.datasets import available, load
from skal.exceptions import SkalError


def save_npz(path, seed=0):
    rng = np.random.default_rng(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    X = rng.integers(0, 256, (9, 4, 4), dtype=np.uint8)
    y = np.arange(9) % 3
    np.savez(path, X_train=X[:6], y_train=y[:6], X_test=X[6:], y_test=y[6:])
    return X


class TestDigits:
    def test_form(self):
        data = load("digits")
        assert isinstance(data, Bunch)
        assert data.X_train.dtype == data.X_test.dtype == np.float32
        assert data.y_train.dtype == data.y_test.dtype == np.int64
        assert data.X_train.shape[1:] == (1, 8, 8)
        assert data.X_train.min() == 0
        assert data.X_train.max() == 1
        assert data.target_names == list("0123456789")
        assert data.name == "digits"

    def test_split_is_the_documented_one(self):
        """The 2nd, 7th, 12th... image of each class is for testing, counted one by one here."""
        original = load_digits()
        seen = dict.fromkeys(range(10), 0)
        train, test = [], []
        for image, label in zip(original.images, original.target, strict=True):
            seen[label] += 1
            (test if seen[label] % 5 == 2 else train).append((image / 16, label))
        data = load("digits")
        for X, y, rows in ((data.X_train, data.y_train, train), (data.X_test, data.y_test, test)):
            np.testing.assert_array_equal(X[:, 0], np.array([image for image, _ in rows], dtype=np.float32))
            np.testing.assert_array_equal(y, [label for _, label in rows])

    def test_split_is_stratified(self):
        data = load("digits")
        train, test = np.bincount(data.y_train), np.bincount(data.y_test)
        np.testing.assert_allclose(test / (train + test), 0.2, atol=0.005)

    def test_needs_no_folder(self, tmp_path):
        assert len(load("digits", data_home=tmp_path / "nowhere").X_train) == 1435


class TestDataHome:
    def test_argument_comes_before_the_environment(self, tmp_path, monkeypatch):
        first, second = save_npz(tmp_path / "a" / "toy.npz", 0), save_npz(tmp_path / "b" / "toy.npz", 1)
        monkeypatch.setenv("SKAL_DATA_HOME", str(tmp_path / "b"))
        np.testing.assert_array_equal(load("toy").X_train[:, 0] * 255, second[:6])
        np.testing.assert_array_equal(load("toy", data_home=tmp_path / "a").X_train[:, 0] * 255, first[:6])
        np.testing.assert_array_equal(load("toy", str(tmp_path / "a")).X_train[:, 0] * 255, first[:6])

    def test_tilde_is_the_home_folder(self, tmp_path, monkeypatch):
        monkeypatch.setenv("HOME", str(tmp_path))
        save_npz(tmp_path / "data" / "toy.npz")
        assert len(load("toy", data_home="~/data").X_train) == 6

    def test_npz_in_a_folder_of_its_own(self, tmp_path):
        save_npz(tmp_path / "toy" / "toy.npz")
        data = load("toy", tmp_path)
        assert data.name == "toy"
        assert str(tmp_path / "toy" / "toy.npz") in data.DESCR

    @pytest.mark.parametrize("name", ["../toy", "a/b", "", "two words", ".hidden", "toy\n", 3, None])
    def test_a_name_is_not_a_path(self, tmp_path, name):
        save_npz(tmp_path / "toy.npz")
        with pytest.raises(ValueError, match=r"'name' parameter of load.*without folders.*Got .* instead"):
            load(name, tmp_path / "inner")


ALL = ("mnist", "fashion_mnist", "cifar10", "cifar100", "svhn", "caltech101")


class TestMissing:
    @pytest.mark.parametrize("name", ALL)
    def test_message_says_what_where_and_how(self, tmp_path, name):
        expected = {
            "mnist": ["train-images-idx3-ubyte[.gz]", "t10k-labels-idx1-ubyte[.gz]", "MNIST/raw", "yann.lecun.com"],
            "fashion_mnist": ["train-labels-idx1-ubyte[.gz]", "FashionMNIST/raw", "zalandoresearch"],
            "cifar10": ["data_batch_5", "test_batch.bin", "cifar-10-python.tar.gz", "cifar.html"],
            "cifar100": ["cifar-100-binary", "cifar-100-python.tar.gz", "cifar.html"],
            "svhn": ["train_32x32.mat", "test_32x32.mat", "housenumbers"],
            "caltech101": ["101_ObjectCategories", "data.caltech.edu"],
        }[name]
        with pytest.raises(FileNotFoundError) as caught:
            load(name, tmp_path)
        message = str(caught.value)
        for part in [*expected, f"{name}.npz", str(tmp_path), "data_home=", "SKAL_DATA_HOME"]:
            assert part in message

    def test_message_names_the_one_file_of_several(self, tmp_path):
        (tmp_path / "svhn").mkdir()
        (tmp_path / "svhn" / "train_32x32.mat").touch()
        with pytest.raises(FileNotFoundError, match=r"\(there, except test_32x32\.mat\)") as caught:
            load("svhn", tmp_path)
        assert str(caught.value).count("there, except") == 1

    @pytest.mark.parametrize("environment", [None, ""])
    def test_no_folder_given(self, monkeypatch, environment):
        if environment is not None:
            monkeypatch.setenv("SKAL_DATA_HOME", environment)
        with pytest.raises(FileNotFoundError, match="data_home is not given and SKAL_DATA_HOME is not set") as caught:
            load("cifar10")
        assert "there, except" not in str(caught.value)

    def test_folder_does_not_exist(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
            load("mnist", tmp_path / "nowhere")

    def test_unknown_name(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"toy\.npz(.|\n)*Known data sets: digits, mnist") as caught:
            load("toy", tmp_path)
        assert str(tmp_path) in str(caught.value)


class TestAvailable:
    def test_nothing_but_digits(self, tmp_path):
        assert available() == available(tmp_path) == available(tmp_path / "nowhere") == ["digits"]

    def test_lists_what_loads(self, tmp_path, monkeypatch):
        for name in ("zebra", "mnist", "apple", "digits"):
            save_npz(tmp_path / f"{name}.npz")
        save_npz(tmp_path / "nested" / "nested.npz")
        save_npz(tmp_path / "nested" / "elsewhere.npz")
        monkeypatch.setenv("SKAL_DATA_HOME", str(tmp_path))
        names = available()
        assert names == ["digits", "mnist", "apple", "nested", "zebra"]
        assert [load(name).name for name in names] == names

    def test_leaves_out_what_would_be_refused(self, tmp_path):
        np.savez(tmp_path / "other.npz", images=np.zeros(3))
        (tmp_path / "broken.npz").write_bytes(b"not an archive")
        (tmp_path / "train_32x32.mat").touch()
        assert available(tmp_path) == ["digits"]

    def test_tells_the_two_mnists_apart(self, tmp_path):
        labels = [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
        for split in ("train", "t10k"):
            (tmp_path / f"{split}-images-idx3-ubyte").write_bytes(struct.pack(">4I", 2051, 10, 1, 1) + bytes(10))
            with gzip.open(tmp_path / f"{split}-labels-idx1-ubyte.gz", "wb") as file:
                file.write(struct.pack(">2I", 2049, 10) + bytes(labels))
        assert available(tmp_path) == ["digits", "mnist"]


@pytest.mark.parametrize("value", [0, -1, 2.5, "64", True])
def test_image_size_must_be_a_positive_integer(tmp_path, value):
    with pytest.raises(SkalError, match="'image_size' parameter of load must be an integer >= 1"):
        load("caltech101", tmp_path, image_size=value)


@pytest.mark.parametrize("name", ["digits", "toy", "caltech101"])
def test_image_size_is_refused_where_it_does_nothing(tmp_path, name):
    save_npz(tmp_path / f"{name}.npz")
    with pytest.raises(ValueError, match=r"'image_size' parameter of load .*the image folders of 'caltech101' only"):
        load(name, tmp_path, image_size=32)
