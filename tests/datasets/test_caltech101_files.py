"""Caltech101's folders of images."""

import sys

import numpy as np
import pytest
from PIL import Image

from skal.datasets import load

COLOURS = {"Faces": (200, 10, 30), "accordion": (20, 180, 40), "yin_yang": (0, 60, 250)}


def write(home, counts=None, folder="101_ObjectCategories"):
    """Images of one colour for each class, with their number in the last channel."""
    for name, count in (counts or {"Faces": 12, "accordion": 7, "yin_yang": 2}).items():
        target = home / folder / name
        target.mkdir(parents=True)
        for number in range(1, count + 1):
            colour = (*COLOURS.get(name, (9, 9, 9))[:2], 10 * number)
            Image.new("RGB", (30 + number, 20), colour).save(target / f"image_{number:04d}.jpg", quality=100)


def numbers(images):
    """The number of each image, read back from its last channel."""
    return np.round(images[:, 2].mean(axis=(1, 2)) * 255 / 10).astype(int).tolist()


@pytest.mark.parametrize("parent", ["", "caltech101", "caltech-101"])
def test_split_and_labels(tmp_path, parent):
    write(tmp_path / parent)
    write(tmp_path / parent, {"BACKGROUND_Google": 3, ".hidden": 3})
    data = load("caltech101", tmp_path)
    assert data.target_names == ["Faces", "accordion", "yin_yang"]
    # The 2nd, 7th and 12th image of each class are for testing.
    assert data.y_test.tolist() == [0, 0, 0, 1, 1, 2]
    assert numbers(data.X_test) == [2, 7, 12, 2, 7, 2]
    assert data.y_train.tolist() == [0] * 9 + [1] * 5 + [2]
    assert numbers(data.X_train) == [1, 3, 4, 5, 6, 8, 9, 10, 11, 1, 3, 4, 5, 6, 1]
    assert data.X_train.shape == (15, 3, 64, 64)
    assert data.X_train.dtype == np.float32
    assert data.y_train.dtype == np.int64
    expected = np.array([COLOURS[data.target_names[label]][:2] for label in data.y_train])
    np.testing.assert_allclose(data.X_train[:, :2].mean(axis=(2, 3)) * 255, expected, atol=3)


def test_image_size(tmp_path):
    write(tmp_path)
    assert load("caltech101", tmp_path, image_size=17).X_test.shape == (6, 3, 17, 17)


def test_images_are_stretched_not_cropped(tmp_path):
    folder = tmp_path / "101_ObjectCategories" / "flag"
    folder.mkdir(parents=True)
    stripes = np.zeros((10, 40, 3), dtype=np.uint8)
    stripes[:, :20] = 255
    for number in (1, 2):
        Image.fromarray(stripes).save(folder / f"image_000{number}.png")
    (image,) = load("caltech101", tmp_path, image_size=8).X_test
    np.testing.assert_allclose(image[:, :, :3], 1)
    np.testing.assert_allclose(image[:, :, 5:], 0)


def test_grey_images_become_three_channels(tmp_path):
    write(tmp_path)
    Image.new("L", (10, 10), 128).save(tmp_path / "101_ObjectCategories" / "yin_yang" / "image_0002.jpg")
    image = load("caltech101", tmp_path).X_test[-1]
    np.testing.assert_allclose(image * 255, 128, atol=1)


def test_other_files_are_left_out(tmp_path):
    write(tmp_path)
    for name in ("Thumbs.db", "._image_0001.jpg"):
        (tmp_path / "101_ObjectCategories" / "Faces" / name).write_bytes(b"no image")
    (tmp_path / "101_ObjectCategories" / "tmp").write_bytes(b"no folder")
    assert len(load("caltech101", tmp_path).y_train) == 15


@pytest.mark.parametrize("keep", [0, 20, -200])
def test_truncated_image(tmp_path, keep):
    write(tmp_path)
    path = tmp_path / "101_ObjectCategories" / "accordion" / "image_0003.jpg"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"accordion/image_0003\.jpg: truncated, or not an image"):
        load("caltech101", tmp_path)


def test_empty_folders(tmp_path):
    (tmp_path / "101_ObjectCategories").mkdir()
    with pytest.raises(ValueError, match="101_ObjectCategories: no class folders"):
        load("caltech101", tmp_path)
    write(tmp_path)
    (tmp_path / "101_ObjectCategories" / "beaver").mkdir()
    with pytest.raises(ValueError, match="beaver: no images"):
        load("caltech101", tmp_path)


def test_a_class_of_one_image_is_not_tested(tmp_path):
    write(tmp_path, {"Faces": 1, "accordion": 1})
    with pytest.raises(ValueError, match="101_ObjectCategories: the test split is empty"):
        load("caltech101", tmp_path)


def test_pillow_is_named_if_it_is_not_installed(tmp_path, monkeypatch):
    write(tmp_path)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"Pillow.*pip install '.\[images\]'"):
        load("caltech101", tmp_path)
