# SPDX-License-Identifier: BSD-3-Clause
"""Pictures from files: of known formats, from regular files, and never too many pixels in memory at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from skal._files.whole import open_regular
from skal.exceptions import SampleError, SkalError, how_to_install

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")  # pillow knows others, and runs programs for some of them
LARGEST = 400_000_000  # pixels of one picture; as colours they take 1.6 GB
_AT_ONCE = 100_000_000  # pixels that are decoded at the same time, unless one picture has more
_LARGE = 10_000_000
_GAP = 3.0  # a picture is made smaller in one quick step to this multiple, and then with care
_ORIENTATION = 0x0112


class Room:
    """A number of pixels that may be in memory at once.

    Parameters
    ----------
    size : int

    Examples
    --------
    >>> room = Room(10)
    >>> with room.take(4), room.take(6):
    ...     pass
    """

    def __init__(self, size: int) -> None:
        self.size = self._free = size
        self._changed = threading.Condition()

    @contextmanager
    def take(self, size: int) -> Iterator[None]:
        """Wait until there is room; what is larger than all of it gets all of it."""
        size = min(size, self.size)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= size)
            self._free -= size
        try:
            yield
        finally:
            with self._changed:
                self._free += size
                self._changed.notify_all()


_ROOM = Room(_AT_ONCE)
_HEADERS = threading.Lock()


@contextmanager
def open_header(path: Path) -> Iterator[Any]:
    """Pillow's image before it is decoded; SampleError for whatever goes wrong with it, also later."""
    try:
        from PIL import Image
    except ImportError as error:
        raise SkalError(f"Images need pillow. Got an installation without it. {how_to_install('images')}") from error

    try:
        with open_regular(path) as file:
            with _HEADERS:  # pillow's own bound is lower, and one for the whole process
                before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
                try:
                    image = Image.open(file, formats=FORMATS)
                finally:
                    Image.MAX_IMAGE_PIXELS = before
            if image.width * image.height > LARGEST:
                raise SampleError(
                    f"{path.name} must be an image of at most {LARGEST:,} pixels. Got {image.width:,} × "
                    f"{image.height:,}. Make it smaller, or cut it into parts."
                )
            yield image
    except SkalError:
        raise
    except Exception as error:  # pillow raises what its decoders raise
        raise SampleError(
            f"{path.name} must be an image that can be read. Got {type(error).__name__}: {error}. "
            "Repair or remove the file."
        ) from error


def open_image(path: Path, size: int | None = None, *, square: bool = False) -> Any:
    """An image upright and in RGB; SampleError if it cannot be read.

    Parameters
    ----------
    path : path
    size : int or None, default=None
        Largest side in pixels. A large JPEG is then never decoded in full.
    square : bool, default=False
        Both sides have exactly ``size`` pixels, which may distort the picture.

    Returns
    -------
    PIL.Image.Image
    """
    with open_header(path) as image, _ROOM.take(image.width * image.height):
        if image.width * image.height <= _LARGE:
            return _decode(image, size, square)
        # memory that a thread has freed stays with it, and the server has many: this one ends, and the next inherits
        with ThreadPoolExecutor(1) as apart:
            return apart.submit(_decode, image, size, square).result()


def _decode(image: Any, size: int | None, square: bool) -> Any:
    from PIL import ImageOps

    if size is not None:
        image.draft(None, (int(_GAP * size), int(_GAP * size)))
    image.load()
    turn = image.getexif().get(_ORIENTATION)
    small = image if image.mode in ("RGB", "L") else image.convert("RGB")
    if size is not None and square:
        small = small.resize((size, size), reducing_gap=_GAP)
    elif size is not None:
        small.thumbnail((size, size), reducing_gap=_GAP)
    if turn is not None:
        small.getexif()[_ORIENTATION] = turn  # not every kind of image passes it on
        small = ImageOps.exif_transpose(small)
    return small.convert("RGB")
