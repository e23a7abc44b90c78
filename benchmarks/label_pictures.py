"""Pictures of the labelling page for the documentation, at three widths.

``python -m benchmarks.label_pictures FOLDER`` cuts scikit-learn's two photographs into pieces, labels some of them on
the page, in Chromium, and writes PNG files.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from sklearn.datasets import load_sample_images

from skal.labelling._models import choose_model
from skal.labelling._project import Project
from skal.labelling._server import LabelServer
from skal.labelling._sources import open_source

if TYPE_CHECKING:  # pillow and selenium are not for every benchmark
    from benchmarks._label_page import Page

CLASSES = ["temple", "flower"]
SIZES = {"desktop": (1180, 860), "tablet": (780, 1000), "phone": (390, 800)}


def cut(folder: Path, n: int = 150, size: int = 140) -> None:
    """``n`` pieces of each photograph; their names do not tell which."""
    from PIL import Image

    rng = np.random.default_rng(0)
    photos = load_sample_images().images
    order = rng.permutation(2 * n)
    for i in range(2 * n):
        photo = photos[i % 2]
        top, left = (rng.integers(0, length - size) for length in photo.shape[:2])
        name = f"photo-{order[i]:03d}-{i % 2}.jpg"
        Image.fromarray(photo[top : top + size, left : left + size]).save(folder / name, quality=90)


def truth(key: str) -> str:
    """The class of a piece."""
    return CLASSES[int(key[-5])]


def shoot(page: Page, out: Path, name: str, width: int, height: int) -> None:
    """One picture, with a palette so that it stays small."""
    from PIL import Image

    page.resize(width, height)
    time.sleep(0.6)
    path = out / f"label_{name}.png"
    page.driver.save_screenshot(str(path))
    with Image.open(path) as image:
        small = image.convert("RGB").quantize(128)
    small.save(path, optimize=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.label_pictures", description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path, nargs="?", default=Path("skal-label-pictures"))
    parser.add_argument("--labels", type=int, default=130)
    options = parser.parse_args(arguments)
    from benchmarks._label_page import MISSING, WHY, Page

    if MISSING:
        print(WHY, file=sys.stderr)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp())
    (work / "photos").mkdir()
    cut(work / "photos")
    source = open_source(work / "photos", cache=work / "out")
    with Project(source, CLASSES, choose_model(source), work / "out", query_size=20) as project:
        server = LabelServer(project)
        thread = server.start()
        page = Page(work / "profile")
        page.open(server.address)
        for _ in range(options.labels):
            page.label(str(1 + CLASSES.index(truth(page.current()))))
        project.worker.wait_until_idle(120)
        page.driver.refresh()
        page.wait_for(page.current)
        for name, size in SIZES.items():
            shoot(page, options.out, name, *size)
        page.resize(*SIZES["desktop"])
        page.click("[data-option=grid]")
        page.wait_for(lambda: page.find(".cell"))
        shoot(page, options.out, "grid", *SIZES["desktop"])
        page.click('.tab[data-view="gallery"]')
        page.run(
            "const o = document.querySelector('.bar select'); o.value = 'doubtful'; "
            "o.dispatchEvent(new Event('change'))"
        )
        page.wait_for(lambda: page.find(".card"))
        shoot(page, options.out, "gallery", *SIZES["desktop"])
        page.close()
        server.stop()
        thread.join(20)
        print(project.rounds.forecast(100).text)


if __name__ == "__main__":
    main()
