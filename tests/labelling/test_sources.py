"""What can be labelled, and a sentence for everything that cannot."""

import io
import json

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from skal.exceptions import InvalidParameterError, InvalidTypeError, SampleError
from skal.labelling import read_images
from skal.labelling._label import as_source
from skal.labelling._sources import ArraySource, ImageFolder, TextTable, known_labels, open_source


def test_images_are_found_below_the_folder_and_known_by_their_paths(image_folder):
    (image_folder / "notes.txt").write_text("no image")
    (image_folder / ".hidden.png").write_bytes(b"")
    source = open_source(image_folder)
    assert len(source) == 24
    assert source.ids[0] == "blue/00.jpg"
    assert source.ids == sorted(source.ids)
    assert source.folder_labels["red/01.png"] == "red"
    picture = source.samples()[0]
    assert picture.shape == (3, 32, 32)
    assert 0 <= picture.min() <= picture.max() <= 1


def test_small_pictures_are_what_read_images_gives(image_folder):
    source = ImageFolder(image_folder)
    paths = [source.path(i) for i in range(5)]
    expected = read_images(paths)
    np.testing.assert_allclose(np.stack([source.samples()[i].numpy() for i in range(5)]), expected, atol=1e-6)


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(SampleError, match=r"must hold images.*Got none"):
        open_source(tmp_path)


def test_a_missing_source_and_a_strange_file_are_refused(tmp_path):
    with pytest.raises(SampleError, match="not there"):
        open_source(tmp_path / "nothing")
    strange = tmp_path / "data.xlsx"
    strange.write_bytes(b"PK")
    with pytest.raises(SampleError, match=r"\.csv.*npz"):
        open_source(strange)


def test_a_corrupt_image_is_noted_and_black(image_folder):
    (image_folder / "broken.jpg").write_bytes(b"\xff\xd8\xff not really")
    source = ImageFolder(image_folder)
    position = source.ids.index("broken.jpg")
    assert not source.samples()[position].any()
    assert "broken.jpg must be an image" in source.unreadable()[position]
    with pytest.raises(SampleError, match=r"broken\.jpg"):
        source.picture(position, 100)


def test_a_folder_of_broken_images_alone_is_refused(tmp_path):
    folder = tmp_path / "pictures"
    (folder / "below").mkdir(parents=True)
    (folder / "a.png").write_bytes(b"\x89PNG no picture")
    (folder / "below" / "b.jpg").write_bytes(b"")
    said = (
        r"The folder .*pictures must hold images that can be read\. Got 2 files, none of which can; the first error: "
    )
    with pytest.raises(SampleError, match=said + r"a\.png must be an image.* Got UnidentifiedImageError"):
        as_source(folder, None, tmp_path / "out")
    open_source(folder)  # to export the labels of such a folder, it must still open


def test_one_image_that_can_be_read_is_enough_and_the_rest_is_not_read(tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.png").write_bytes(b"no picture")
    Image.new("RGB", (20, 20), "red").save(tmp_path / "3.png")
    (tmp_path / "4.png").write_bytes(b"no picture")
    source = as_source(tmp_path, None, None)
    assert list(source.unreadable()) == [0, 1, 2]


def test_a_truncated_image_is_noted(image_folder):
    path = image_folder / "red" / "01.png"
    path.write_bytes(path.read_bytes()[:200])
    source = ImageFolder(image_folder)
    position = source.ids.index("red/01.png")
    with pytest.raises(SampleError, match=r"01\.png"):
        source.picture(position, None)
    assert list(source.unreadable()) == [position]


def test_a_huge_image_is_shown_smaller_and_upright(tmp_path):
    image = Image.new("RGB", (900, 300), "white")
    exif = image.getexif()
    exif[0x0112] = 6  # a quarter turn
    image.save(tmp_path / "turned.jpg", exif=exif)
    data, kind = ImageFolder(tmp_path).picture(0, 120)
    assert kind == "image/png"
    assert Image.open(io.BytesIO(data)).size == (40, 120)


def test_a_tiff_is_shown_as_something_that_browsers_know(tmp_path):
    Image.new("L", (20, 20)).save(tmp_path / "a.tif")
    assert ImageFolder(tmp_path).picture(0, 1000)[1] == "image/png"


def test_decoded_pictures_are_kept_and_a_changed_file_is_read_again(image_folder, tmp_path):
    cache = tmp_path / "cache"
    source = ImageFolder(image_folder, cache=cache)
    before = [source.samples()[i].clone() for i in range(len(source))]
    source.samples().flush()
    Image.new("RGB", (40, 30), "green").save(image_folder / source.ids[3])
    again = ImageFolder(image_folder, cache=cache)
    again.small = None  # nothing else may be decoded
    assert all((again.samples()[i] == before[i]).all() for i in range(len(source)) if i != 3)
    changed = ImageFolder(image_folder, cache=cache)
    assert (changed.samples()[3] != before[3]).any()
    assert changed.ids.digest(3) != source.ids.digest(4)


def test_texts_by_column(tmp_path):
    path = tmp_path / "texts.csv"
    path.write_text('id,review\n7,"good, very"\n8,"bad\nand long"\n', encoding="utf-8")
    source = open_source(path, text="review")
    assert source.kind == "text"
    assert source.ids == ["7", "8"]
    assert source.text(1) == "bad\nand long"
    with pytest.raises(SampleError, match=r"must have the column 'text'.*review.*--text"):
        open_source(path)


def test_texts_of_jsonl_are_known_by_their_content(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in ["a", "b", "a"]))
    source = open_source(path)
    assert len(set(source.ids)) == 3
    assert source.ids[2] == f"{source.ids[0]}#2"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in ["b", "a"]))
    assert set(open_source(path).ids) < set(source.ids)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "id,text\n1,x\n1,y\n", "name every row once"),
        ("a.csv", "text\n", "at least one row"),
        ("a.csv", b"\xff\xfe\x00text", "CSV or JSONL"),
        ("a.jsonl", "{not json}\n", "CSV or JSONL"),
        ("a.npz", b"not a zip", "not an npz archive"),
    ],
)
def test_bad_tables_are_refused(name, content, message, tmp_path):
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(SampleError, match=message):
        open_source(path)


def test_arrays_of_an_npz(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, X=np.zeros((3, 8, 8), dtype=np.uint8), ids=["a", "b", "c"], y=[1, -1, 0])
    source = open_source(path)
    assert source.kind == "image"
    assert source.ids == ["a", "b", "c"]
    assert source.folder_labels == {"a": "1", "c": "0"}
    assert source.samples().shape == (3, 1, 8, 8)
    assert source.picture(0, None)[1] == "image/png"
    np.savez(path, a=np.zeros(3), b=np.zeros(3))
    with pytest.raises(SampleError, match="array X"):
        open_source(path)


def test_arrays_of_python():
    assert as_source(np.zeros((4, 3)), None, None).kind == "numbers"
    assert as_source(np.arange(48.0).reshape(4, 2, 2, 3), None, None).samples().shape == (4, 3, 2, 2)
    assert isinstance(as_source(["a", "b"], None, None), TextTable)
    assert as_source(pd.Series(["a", "b"], index=["x", "y"]), None, None).ids == ["x", "y"]
    twins = ArraySource(np.zeros((2, 3)))
    assert len(set(twins.ids)) == 2
    with pytest.raises(SampleError, match="distinct"):
        ArraySource(np.zeros((2, 3)), ids=["a", "a"])
    with pytest.raises(SampleError, match="finite"):
        ArraySource(np.full((2, 3), np.nan))
    with pytest.raises(SampleError, match="shape"):
        ArraySource(np.zeros(5))
    with pytest.raises(InvalidTypeError, match="an array"):
        as_source(object(), None, None)


def test_known_labels_by_path_or_name(tmp_path):
    path = tmp_path / "known.csv"
    ids = ["a/1.jpg", "b/2.jpg", "c/3.jpg"]
    path.write_text("file,class\na/1.jpg,cat\n2.jpg,dog\nc/3.jpg,\n")
    assert known_labels(path, ids) == {"a/1.jpg": "cat", "b/2.jpg": "dog"}
    path.write_text("file,class\n9.jpg,cat\n")
    with pytest.raises(SampleError, match=r"not there.*9\.jpg"):
        known_labels(path, ids)
    path.write_text("name,class\n1.jpg,cat\n")
    with pytest.raises(SampleError, match="column of ids"):
        known_labels(path, ids)


def test_two_files_of_one_name_need_their_folders(tmp_path):
    path = tmp_path / "known.csv"
    path.write_text("file,label\n1.jpg,cat\n")
    with pytest.raises(SampleError, match=r"2 files of that name.*a/1\.jpg.*Name the folder"):
        known_labels(path, ["a/1.jpg", "b/1.jpg"])


def test_pictures_without_pixels_are_refused(image_folder):
    with pytest.raises(InvalidParameterError, match="'size' parameter of label"):
        open_source(image_folder, size=0)


def test_an_array_that_is_larger_than_its_file_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", X=np.zeros((60, 8, 8)))
    content = (tmp_path / "a.npz").read_bytes().replace(b"(60, 8, 8)", b"(9999999,)")
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(SampleError, match="X cannot be read"):
        open_source(tmp_path / "a.npz")
