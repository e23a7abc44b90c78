"""Pictures of the labelling page for the documentation, at three widths.

``python -m benchmarks.label_pictures FOLDER`` draws scikit-learn's digits as slanting scans, labels some of them on the
page, in Chromium, with a hand that errs now and then and is no faster than a person, and writes PNG files. The sample
that is shown last is one that is like most of its class, so that readers can tell what it is.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from sklearn.datasets import load_digits

from skal.labelling._models import choose_model
from skal.labelling._project import Project
from skal.labelling._server import LabelServer
from skal.labelling._sources import open_source

if TYPE_CHECKING:  # pillow and selenium are not for every benchmark
    from benchmarks._label_page import Page

CLASSES = [str(k) for k in range(10)]
DIGITS = load_digits()
TURN, NOISE, ERRORS = 14, 0.06, 0.04  # degrees, share of the ink's darkness, share of the labels
SETTLED = """
scrollTo(0, 0);
const shown = [...document.images].filter((image) => image.offsetParent !== null);
return scrollY === 0 && shown.every((image) => image.complete && image.naturalWidth > 0);
"""
SIZES = {"desktop": (1180, 860), "tablet": (780, 1000), "phone": (390, 800)}


def write_digits(folder: Path, n: int = 600, size: int = 160) -> None:
    """``n`` digits in ink on paper, each turned a little; a name says nothing of the class."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for i in range(n):
        image = Image.fromarray(np.float32(np.pad(DIGITS.images[i] / 16, 1)))
        image = image.resize((size, size), Image.Resampling.BICUBIC)
        turned = np.asarray(image.rotate(float(rng.normal(0, TURN)), Image.Resampling.BICUBIC))
        ink = np.clip(3.5 * (turned - 0.5) + 0.5, 0, 1)
        grey = np.clip(0.93 - 0.78 * ink + rng.normal(0, NOISE, size=ink.shape), 0, 1)
        Image.fromarray(np.uint8(255 * grey)).save(folder / f"scan-{i:03d}.png")


def number(key: str) -> int:
    """Which of the digits a picture shows."""
    return int(key.removesuffix(".png")[-3:])


def truth(key: str) -> int:
    """The class of a picture."""
    return int(DIGITS.target[number(key)])


def find_typical(folder: Path) -> set[str]:
    """Pictures that are clearly nearer to the mean of their class than to that of any other."""
    from PIL import Image

    keys = sorted(path.name for path in folder.iterdir())
    pixels = np.array([np.asarray(Image.open(folder / key).resize((20, 20))) for key in keys], dtype=float)
    classes = np.array([truth(key) for key in keys])
    means = np.array([pixels[classes == k].mean(0) for k in range(10)])
    far = np.linalg.norm(pixels[:, None] - means, axis=(2, 3))
    own = far[np.arange(len(keys)), classes]
    far[np.arange(len(keys)), classes] = np.inf
    return {key for key, clear in zip(keys, own < 0.8 * far.min(1), strict=True) if clear}


def shoot(page: Page, out: Path, name: str, width: int, height: int) -> None:
    """One picture, with a palette so that it stays small."""
    from PIL import Image

    page.resize(width, height)
    time.sleep(0.6)
    page.wait_for(lambda: page.run(SETTLED))
    path = out / f"label_{name}.png"
    page.driver.save_screenshot(str(path))
    with Image.open(path) as image:
        small = image.convert("RGB").quantize(128)
    small.save(path, optimize=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.label_pictures", description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path, nargs="?", default=Path("skal-label-pictures"))
    parser.add_argument("--labels", type=int, default=260)
    parser.add_argument("--per-minute", type=float, default=32.0)
    options = parser.parse_args(arguments)
    from benchmarks._label_page import MISSING, WHY, Page

    if MISSING:
        print(WHY, file=sys.stderr)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp())
    (work / "scans").mkdir()
    write_digits(work / "scans")
    typical = find_typical(work / "scans")
    source, rng = open_source(work / "scans", cache=work / "out"), np.random.default_rng(0)
    with Project(source, CLASSES, choose_model(source, model="linear"), work / "out", query_size=40) as project:
        server = LabelServer(project)
        thread = server.start()
        page = Page(work / "profile")
        page.open(server.address)
        for _ in range(options.labels):
            time.sleep(60 / options.per_minute * rng.uniform(0.6, 1.4))
            wrong = int(rng.integers(1, 10)) if rng.random() < ERRORS else 0
            page.label(str((truth(page.current()) + wrong) % 10))
        while page.current() not in typical:
            page.label(str(truth(page.current())))
        project.worker.wait_until_idle(120)
        page.wait_for(lambda: project.worker.doubts)
        page.driver.refresh()
        page.wait_for(page.current)  # a sample stays after a reload
        for name, size in SIZES.items():
            shoot(page, options.out, name, *size)
        page.resize(*SIZES["desktop"])
        page.click("[data-option=grid]")
        page.wait_for(lambda: len(page.find(".cell")) == 12)
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
