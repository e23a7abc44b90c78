"""Files that call themselves pictures: nothing runs, nothing waits, and little is in memory at once."""

import io
import os
import struct
import threading
import zlib
from pathlib import Path

import pytest
from PIL import Image

import skal
from skal.exceptions import SampleError
from skal.features import PixelFeatures
from skal.features._image_files import Room
from skal.labelling._label import as_source
from skal.labelling._sources import ImageFolder

from .conftest import label_page

POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\n%%EndComments\n0 0 20 20 rectfill\nshowpage\n%%EOF\n"


def within_seconds(work, seconds=600):
    """What some work gives, unless it waits for ever."""
    found = []
    thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "it waits"
    return found[0]


def test_postscript_under_another_name_starts_no_program(tmp_path, monkeypatch):
    pictures, programs = tmp_path / "pictures", tmp_path / "programs"
    pictures.mkdir()
    programs.mkdir()
    (programs / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    (programs / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    (pictures / "a.png").write_bytes(POSTSCRIPT)
    Image.new("RGB", (20, 20), "red").save(pictures / "b.png")
    with label_page(pictures, ["a", "b"], tmp_path / "out") as client:
        status, _, said = client.request("GET", f"{client.root}picture?id=a.png&size=100")
    assert status == 404
    assert b"a.png must be an image that can be read" in said
    with pytest.raises(SampleError, match=r"a\.png must be an image"):
        PixelFeatures().transform([pictures / "a.png"])
    assert not (tmp_path / "started").exists()
    with Image.open(pictures / "a.png") as image:  # pillow itself would start it
        image.load = None
        assert image.format == "EPS"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
def test_a_pipe_is_no_picture_and_nobody_waits_for_it(image_folder, tmp_path):
    os.mkfifo(image_folder / "a.png")
    (image_folder / "zero.png").symlink_to("/dev/zero")
    (image_folder / "gone.png").symlink_to(tmp_path / "nothing")
    source = within_seconds(lambda: as_source(image_folder, None, tmp_path / "out"))
    for name, why in {"a.png": "no regular file", "zero.png": "no regular file", "gone.png": "No such file"}.items():
        position = source.ids.index(name)
        with pytest.raises(SampleError, match=f"{name} must be an image that can be read.*{why}"):
            source.picture(position, 100)
        assert within_seconds(lambda position=position: source.ids.digest(position)) is None
        assert not within_seconds(lambda position=position: source.samples()[position]).any()
    assert len(source.unreadable()) == 3


def test_a_large_scan_is_shown_reduced(tmp_path):
    """Pillow itself warns of more than 89 megapixels."""
    before = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = None
    Image.new("L", (9_600, 9_600), 200).save(tmp_path / "scan.jpg")
    Image.MAX_IMAGE_PIXELS = before
    source = ImageFolder(tmp_path)
    data, kind = source.picture(0, 1024)
    assert kind == "image/jpeg"
    assert Image.open(io.BytesIO(data)).size == (1024, 1024)
    whole = Image.open(io.BytesIO(source.picture(0, None)[0]))
    assert whole.size == (8192, 8192)
    assert abs(source.samples()[0].mean() - 200 / 255) < 0.02
    assert source.unreadable() == {}
    assert before == Image.MAX_IMAGE_PIXELS


def test_the_limit_is_named(tmp_path):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 30_000, 20_000, 8, 2, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(100)))
    (tmp_path / "bomb.png").write_bytes(content)
    with pytest.raises(SampleError, match=r"bomb\.png must be an image of at most 400,000,000 pixels. Got 30,000 × 20"):
        PixelFeatures().transform([tmp_path / "bomb.png"])


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "1", "RGBA", "LA", "CMYK"])
@pytest.mark.parametrize("turn", [None, 3, 6, 8])
def test_pictures_of_every_kind_stand_upright(mode, turn, tmp_path):
    """Black above and white below, whatever the file says of its orientation."""
    image = Image.new("RGB", (600, 300), "white")
    image.paste("black", (0, 0, 600, 150))
    lying = image.rotate({None: 0, 3: 180, 6: 90, 8: 270}[turn], expand=True).convert(mode)
    exif = lying.getexif()
    if turn is not None:
        exif[0x0112] = turn
    for ending in ["tif"] + ["png"] * (mode != "CMYK") + ["jpg"] * (mode in ("RGB", "L", "CMYK")):
        path = tmp_path / f"a.{ending}"
        lying.save(path, exif=exif)
        pixels = PixelFeatures(16).transform([path])[0]
        assert pixels[:, :6].max() < 0.1, (ending, mode)
        assert pixels[:, -6:].min() > 0.9, (ending, mode)
        shown = Image.open(io.BytesIO(ImageFolder(tmp_path).picture(0, 100)[0]))
        assert shown.size == (100, 50), (ending, mode)
        path.unlink()


def test_never_more_pixels_at_once_than_there_is_room_for():
    room, now, most, lock = Room(10), [0], [0], threading.Lock()

    def work(size):
        for _ in range(30):
            with room.take(size):
                with lock:
                    now[0] += min(size, 10)
                    most[0] = max(most[0], now[0])
                with lock:
                    now[0] -= min(size, 10)

    threads = [threading.Thread(target=work, args=(size,)) for size in (1, 3, 4, 7, 10, 25)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    assert not any(thread.is_alive() for thread in threads)
    assert 0 < most[0] <= 10


def test_a_name_that_is_not_utf_8_is_named(image_folder, tmp_path):
    with open(os.fsencode(image_folder) + b"/red/\xff\xfe.png", "wb"):
        pass
    with pytest.raises(SampleError, match=r"must be UTF-8. Got \[b'red/\\xff\\xfe\.png'\]. Rename") as caught:
        skal.label(image_folder, ["a", "b"], folder=tmp_path / "out", browser=False)
    assert str(caught.value).encode()
    os.unlink(os.fsencode(image_folder) + b"/red/\xff\xfe.png")
    place = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    image_folder.rename(place)  # the folder itself may be called so
    with label_page(place, ["a", "b"], tmp_path / "out") as client:
        assert client.call("status")["samples"] == 24
