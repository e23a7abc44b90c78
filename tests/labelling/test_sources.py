"""What can be labelled, and a sentence for everything that cannot."""

import io
import json
import os
import re
import threading
import time
from contextlib import contextmanager, redirect_stdout

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import skal
from skal.cli import main
from skal.exceptions import CheckpointError, InvalidTypeError, SampleError
from skal.features import PixelFeatures
from skal.labelling import export_labels, import_labels
from skal.labelling._label import as_source
from skal.labelling._sources import ImageFolder, open_source

from ..support.small_disk import files_up_to
from .conftest import Client, label_page, wait_for_training, work


@contextmanager
def label_command(capsys, *arguments):
    """A client of ``skal label``, in a thread of this process."""
    codes, said = [], io.StringIO()
    command = ["label", "--model", "linear", *map(str, arguments), "--no-browser"]
    thread = threading.Thread(target=lambda: codes.append(main(command)))
    with redirect_stdout(said):  # capsys empties what it reads, and loses what is printed at that moment
        thread.start()
        while not (address := re.search(r"http://\S+\n", said.getvalue())):
            assert thread.is_alive(), capsys.readouterr().err
            time.sleep(0.01)
    client = Client(address[0].strip())
    try:
        yield client
    finally:
        client.call("finish")
        thread.join(120)
    assert codes == [0]


def test_images_are_found_below_the_folder_and_known_by_their_paths(image_folder, tmp_path, capsys):
    (image_folder / "notes.txt").write_text("no image")
    (image_folder / ".hidden.png").write_bytes(b"")
    ids = ids_of(image_folder, tmp_path / "out")
    assert len(ids) == 24
    assert {"blue/00.jpg", "red/01.png"} < set(ids)
    settings = ["--labels", "folders", "--out", tmp_path / "labelled"]
    with label_command(capsys, image_folder, *settings) as client:
        assert client.call("status")["labelled"] == 24
        labelled = {item["id"]: item["label"] for item in client.call("gallery", limit=100)["items"]}
    assert labelled == {key: key.split("/")[0] for key in ids}


def test_small_pictures_are_what_pixel_features_gives(image_folder):
    source = ImageFolder(image_folder)
    paths = [source.path(i) for i in range(5)]
    expected = PixelFeatures().transform(paths)
    np.testing.assert_allclose(np.stack([source.samples()[i].numpy() for i in range(5)]), expected, atol=1e-6)


def refuse(words, X, tmp_path, error=SampleError, **settings):
    with pytest.raises(error, match=words), label_page(X, ["a", "b"], tmp_path / "out", **settings):
        pass


def picture(client, key, size):
    """Status, media type and content of a picture, or what is said in its place."""
    status, headers, data = client.request("GET", f"{client.root}picture?id={key}&size={size}")
    return status, headers["content-type"], data


def ids_of(X, folder, **settings):
    """What the samples are known by, in any order."""
    with label_page(X, ["a", "b"], folder, **settings) as client:
        return {item["id"]: item for item in client.call("next", n=100)["items"]}


def test_an_empty_folder_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    refuse(r"must hold images.*Got none", tmp_path / "empty", tmp_path)


def test_a_missing_source_and_a_strange_file_are_refused(tmp_path):
    refuse("not there", tmp_path / "nothing", tmp_path)
    strange = tmp_path / "data.xlsx"
    strange.write_bytes(b"PK")
    refuse(r"\.csv.*npz", strange, tmp_path)


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


def test_a_truncated_image_is_noted(image_folder, tmp_path):
    path = image_folder / "red" / "01.png"
    path.write_bytes(path.read_bytes()[:200])
    with label_page(image_folder, ["red", "blue"], tmp_path / "out") as client:
        status, _, said = picture(client, "red/01.png", "")
        assert status == 404
        assert b"01.png" in said
        assert client.call("status")["unreadable"] == ["red/01.png"]
    assert client.result.unreadable == ["red/01.png"]


def test_a_huge_image_is_shown_smaller_and_upright(tmp_path):
    image = Image.new("RGB", (900, 300), "white")
    exif = image.getexif()
    exif[0x0112] = 6  # a quarter turn
    image.save(tmp_path / "turned.jpg", exif=exif)
    with label_page(tmp_path, ["a", "b"], tmp_path / "out") as client:
        status, kind, data = picture(client, "turned.jpg", 120)
    assert (status, kind) == (200, "image/png")
    assert Image.open(io.BytesIO(data)).size == (40, 120)


def test_a_tiff_is_shown_as_something_that_browsers_know(tmp_path):
    Image.new("L", (20, 20)).save(tmp_path / "a.tif")
    with label_page(tmp_path, ["a", "b"], tmp_path / "out") as client:
        assert picture(client, "a.tif", 1000)[:2] == (200, "image/png")


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


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="room cannot be taken in advance there")
def test_small_pictures_take_their_room_at_the_start(tmp_path):
    """They are mapped into memory: where there is no room for a page of them later, the process would end."""
    for i in range(40):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{i}.png")
    said = r"Small copies .* Got an error of the disk: File too large\. Make room"
    with files_up_to(50_000), pytest.raises(CheckpointError, match=said):
        ImageFolder(tmp_path, cache=tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
    ImageFolder(tmp_path, cache=tmp_path / "out")
    (kept,) = (tmp_path / "out").iterdir()
    assert 512 * kept.stat().st_blocks >= kept.stat().st_size > 40 * 3 * 32 * 32


def test_copies_are_the_same_to_the_last_byte(tmp_path):
    """Scans of one size on an empty ground begin and end alike: a label of one is none of the others."""
    for place in (None, (90, 200), (90, 500), (610, 500)):
        scan = Image.new("RGB", (700, 700))
        if place is not None:
            scan.putpixel(place, (255, 0, 0))
        scan.save(tmp_path / f"{place}.bmp")
    (tmp_path / "again.bmp").write_bytes((tmp_path / "(90, 500).bmp").read_bytes())
    source = ImageFolder(tmp_path)
    assert len({source.ids.digest(position) for position in range(5)}) == 1
    assert [{source.ids[i] for i in group} for group in source.copies()] == [{"(90, 500).bmp", "again.bmp"}]


def test_texts_by_column(tmp_path, capsys):
    path = tmp_path / "texts.csv"
    path.write_text('id,review\n7,"good, very"\n8,"bad\nand long"\n', encoding="utf-8")
    with label_command(capsys, path, "--text", "review", "--classes", "a,b", "--out", tmp_path / "labels") as client:
        assert client.call("status")["kind"] == "text"
        shown = {item["id"]: item["text"] for item in client.call("next", n=5)["items"]}
    assert shown == {"7": "good, very", "8": "bad\nand long"}
    assert {key: item["text"] for key, item in ids_of(path, tmp_path / "alone").items()} == shown  # the only one
    assert main(["label", str(path), "--text", "body", "--classes", "a,b", "--out", str(tmp_path / "no")]) == 1
    assert re.search(r"must have the column 'body'.*review.*--text", capsys.readouterr().err)


def test_texts_of_jsonl_are_known_by_their_content(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in ["one", "two", "one"]))
    ids = ids_of(path, tmp_path / "first")
    assert sorted((item["text"], item.get("copies", 1)) for item in ids.values()) == [("one", 2), ("two", 1)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in ["two", "one"]))
    again = ids_of(path, tmp_path / "second")
    assert set(again) == {key.removesuffix("#2") for key in ids}  # the second copy may have been asked for


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
    refuse(message, path, tmp_path)


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


def test_arrays_of_python(tmp_path):
    with label_page(np.zeros((4, 3)), ["a", "b"], tmp_path / "rows") as client:
        status = client.call("status")
        assert (status["kind"], status["samples"]) == ("numbers", 4)
        (item,) = client.call("next", n=9)["items"]  # of copies one is asked for
        assert item["copies"] == 4
    pictures = np.random.default_rng(0).random((4, 2, 2, 3))
    with label_page(pictures, ["a", "b"], tmp_path / "pictures") as client:
        assert client.call("status")["kind"] == "image"
        shown = picture(client, client.call("next", n=1)["items"][0]["id"], "")
        assert shown[:2] == (200, "image/png")
        assert Image.open(io.BytesIO(shown[2])).size == (2, 2)  # the colours come last
    texts = pd.Series(["one", "two"], index=["x", "y"])
    assert {key: item["text"] for key, item in ids_of(texts, tmp_path / "texts").items()} == {"x": "one", "y": "two"}
    refuse("distinct", np.zeros((2, 3)), tmp_path, ids=["a", "a"])
    refuse("finite", np.full((2, 3), np.nan), tmp_path)
    refuse("shape", np.zeros(5), tmp_path)
    refuse("an array", object(), tmp_path, error=InvalidTypeError)


@pytest.fixture
def three(tmp_path):
    """A project on three pictures in three folders."""
    for name in ("a/1.jpg", "b/2.jpg", "c/3.jpg"):
        (tmp_path / "pictures" / name).parent.mkdir(parents=True)
        Image.new("RGB", (20, 20), "red").save(tmp_path / "pictures" / name)
    with label_page(tmp_path / "pictures", ["cat", "dog"], tmp_path / "out"):
        pass
    return tmp_path / "out"


def test_labels_by_path_or_name(three, tmp_path):
    path = tmp_path / "known.csv"
    path.write_text("file,class\n9.jpg,cat\n")
    with pytest.raises(SampleError, match=r"not there.*9\.jpg"):
        import_labels(three, path)
    path.write_text("name,class\n1.jpg,cat\n")
    with pytest.raises(SampleError, match="column of ids"):
        import_labels(three, path)
    path.write_text("file,class\na/1.jpg,cat\n2.jpg,dog\nc/3.jpg,\n")
    import_labels(three, path)
    frame = pd.read_csv(io.StringIO(export_labels(three)))
    assert dict(zip(frame["id"], frame["label"], strict=True)) == {"a/1.jpg": "cat", "b/2.jpg": "dog"}


def test_two_files_of_one_name_need_their_folders(tmp_path):
    for name in ("a/1.jpg", "b/1.jpg"):
        (tmp_path / "pictures" / name).parent.mkdir(parents=True)
        Image.new("RGB", (20, 20), "red").save(tmp_path / "pictures" / name)
    with label_page(tmp_path / "pictures", ["cat", "dog"], tmp_path / "out"):
        pass
    (tmp_path / "known.csv").write_text("file,label\n1.jpg,cat\n")
    with pytest.raises(SampleError, match=r"2 files of that name.*a/1\.jpg.*Name the folder"):
        import_labels(tmp_path / "out", tmp_path / "known.csv")


def test_pictures_without_pixels_are_refused(image_folder, tmp_path, capsys):
    command = ["label", str(image_folder), "--classes", "red,blue", "--out", str(tmp_path / "out"), "--size", "0"]
    assert main([*command, "--no-browser"]) == 1
    assert "'--size' parameter of skal label" in capsys.readouterr().err


def test_an_array_that_is_larger_than_its_file_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", X=np.zeros((60, 8, 8)))
    content = (tmp_path / "a.npz").read_bytes().replace(b"(60, 8, 8)", b"(9999999,)")
    (tmp_path / "a.npz").write_bytes(content)
    refuse("X cannot be read", tmp_path / "a.npz", tmp_path)


PEOPLE = "id,age,job,since,label\n1,31,nurse,2020-05-01,yes\n2,,smith,2021-01-31,\n3,55.5,NA,,no\n"


def test_a_file_with_several_columns_is_a_table(tmp_path, capsys):
    path = tmp_path / "people.csv"
    path.write_text(PEOPLE)
    out = tmp_path / "out"
    with label_command(capsys, path, "--out", out) as client:
        status = client.call("status")
        assert (status["kind"], status["labelled"]) == ("table", 2)
        assert status["note"].startswith("The model does not see job: nearly every row")
        (item,) = client.call("next", n=5)["items"]
    assert (item["id"], item["text"]) == ("2", "age: missing, job: smith, since: 2021-01-31")
    assert item["cells"] == [["age", ""], ["job", "smith"], ["since", "2021-01-31"]]
    assert [each["name"] for each in status["classes"]] == ["no", "yes"]
    path.write_text(re.sub(r"\n(\d),", r"\n\1,9,", PEOPLE.replace("id,age", "id,height,age")))
    with label_command(capsys, path, "--out", out) as client:  # a column that is new changes no sample
        assert client.call("gallery")["items"][0]["cells"][0][0] == "age"


def test_columns_are_chosen(tmp_path, capsys):
    path = tmp_path / "people.csv"
    path.write_text(PEOPLE)
    command = [path, "--classes", "a,b", "--out", tmp_path / "out"]
    with label_command(capsys, *command, "--columns", "since,label") as client:
        cells = {item["id"]: item["cells"] for item in client.call("next", n=5)["items"]}
    assert cells["1"] == [["since", "2020-05-01"], ["label", "yes"]]  # named, so no label
    for given, words in (
        (["--columns", "age,weight"], r"must have the columns \['weight'\].*Got the columns .*--columns A,B"),
        (["--text", "body"], "must have the column 'body'"),
    ):
        assert main(["label", *map(str, command), *given]) == 1
        assert re.search(words, capsys.readouterr().err)
    with pytest.raises(SystemExit):
        main(["label", *map(str, command), "--text", "job", "--columns", "age"])
    assert "not allowed with" in capsys.readouterr().err
    path.write_text("id,age,job\n1,2,a\n1,3,b\n")
    refuse("name every row once", path, tmp_path)
    path.write_text("id,age,job\n")
    refuse("at least one row", path, tmp_path)


def test_data_frames_are_tables(tmp_path):
    frame = pd.DataFrame(
        {
            "age": [31, np.nan, 40.5],
            "day": pd.to_datetime(["2020-05-01", None, "2021-01-31"]),
            "smokes": pd.array([True, None, False], dtype="boolean"),
            "kind": pd.Categorical(["a", "b", "a"]),
        },
        index=["x", "y", "z"],
    )
    shown = {key: item["cells"] for key, item in ids_of(frame, tmp_path / "index").items()}
    assert shown == {
        "x": [["age", "31"], ["day", "2020-05-01"], ["smokes", "True"], ["kind", "a"]],
        "y": [["age", ""], ["day", ""], ["smokes", ""], ["kind", "b"]],
        "z": [["age", "40.5"], ["day", "2021-01-31"], ["smokes", "False"], ["kind", "a"]],
    }
    named = frame.assign(id=["p", "q", "r"], label=["a", None, "b"])
    with label_page(named, ["a", "b"], tmp_path / "named") as client:
        assert {item["id"]: item["label"] for item in client.call("gallery")["items"]} == {"p": "a", "r": "b"}
    refuse("at least one row", frame.iloc[:0], tmp_path)
    refuse("each another one", pd.concat([frame, frame], axis=1), tmp_path)
    refuse("names are texts", frame.rename(columns={"age": 7}), tmp_path)


def test_rows_of_jsonl_have_types(tmp_path):
    path = tmp_path / "people.jsonl"
    rows = [{"id": 1, "age": 3, "tags": ["x"], "ok": True}, {"id": 2, "age": None, "ok": False}, {"id": 3, "age": 4.5}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = open_source(path)
    assert source.samples()["age"].dtype.kind == "f"
    assert source.fields(0) == {"age": 3.0, "tags": '["x"]', "ok": True}
    assert source.fields(1) == {"age": None, "tags": None, "ok": False}
    assert source.fields(2) == {"age": 4.5, "tags": None, "ok": None}


def test_a_model_of_ones_own_gets_the_data_frame(tmp_path):
    frame = pd.DataFrame({"age": np.arange(40.0), "job": ["nurse", "smith"] * 20})
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    columns = make_column_transformer((numbers, ["age"]), (OneHotEncoder(), ["job"]))
    own = make_pipeline(columns, LogisticRegression())
    with label_page(frame, ["old", "young"], tmp_path / "out", model=own, query_size=5, share=0) as client:
        work(client, 20, lambda item: "old" if float(dict(item["cells"])["age"]) > 20 else "young")
        wait_for_training(client)
    model = skal.load_model(tmp_path / "out")
    assert model.card_["takes"] == "a data frame with the columns age, job"
    assert model.predict(frame.iloc[[0, 39]]).tolist() == ["young", "old"]
