"""The labelling cell in a real JupyterLab: are the labels those that were given?

``python -m benchmarks.label_notebook`` starts JupyterLab on this machine, runs a notebook with ``skal.label`` in
headless Chromium, labels digits in the cell by keyboard, and compares every label with the file. It needs
``pip install jupyterlab`` and the extra ``notebook``.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from sklearn.datasets import load_digits

from skal.labelling import export_labels

if TYPE_CHECKING:  # selenium is not for every benchmark
    from benchmarks._label_page import Page

CELLS = [
    "import skal\n"
    "from sklearn.datasets import load_digits\n"
    "images = load_digits().images / 16\n"
    "ids = [f'digit-{i:04d}' for i in range(len(images))]\n"
    "found = skal.label(images, [str(i) for i in range(10)], ids=ids, folder='labels', model='linear')\n"
    "found",
    "print(len(found.result().labels), 'labels')",
]
OPTIONS = [
    "--no-browser",
    "--allow-root",
    "--ServerApp.ip=127.0.0.1",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    "--LabApp.news_url=",
]


@contextmanager
def lab(folder: Path) -> Iterator[str]:
    """JupyterLab for the notebooks of a folder, with settings of its own; gives the address of ``label.ipynb``."""
    cells = [
        {"cell_type": "code", "id": f"c{i}", "metadata": {}, "source": text, "outputs": [], "execution_count": None}
        for i, text in enumerate(CELLS)
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    book = {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "label.ipynb").write_text(json.dumps(book))
    places = {f"JUPYTER_{name}_DIR": str(folder / f".{name.lower()}") for name in ("CONFIG", "DATA", "RUNTIME")}
    command = [sys.executable, "-m", "jupyterlab", *OPTIONS]
    with open(folder / "log.txt", "w") as log:
        process = subprocess.Popen(command, cwd=folder, env=os.environ | places, stdout=log, stderr=log)
    try:
        yield _address(process, folder / ".runtime")
    finally:
        process.terminate()
        process.wait(60)


def _address(process: subprocess.Popen, runtime: Path, patience: float = 120.0) -> str:
    """What the server writes down about itself as soon as it listens."""
    end = time.monotonic() + patience
    while time.monotonic() < end and process.poll() is None:
        for path in runtime.glob("jpserver-*.json"):
            found = json.loads(path.read_text() or "{}")
            if found:
                return f"{found['url']}lab/tree/label.ipynb?token={found['token']}"
        time.sleep(0.2)
    raise RuntimeError("JupyterLab did not start")


def run_cell(page: Page, place: int) -> None:
    """Run a cell of the notebook that is open."""
    from selenium.webdriver import ActionChains, Keys

    page.click(".jp-Notebook .jp-Cell .cm-content", place)
    ActionChains(page.driver).key_down(Keys.SHIFT).send_keys(Keys.ENTER).key_up(Keys.SHIFT).perform()


def run(page: Page, folder: Path, n: int = 30) -> tuple[dict[str, str], dict[str, str], str]:
    """Label digits in the cell; what was said, what the file holds, and what the second cell prints."""
    from benchmarks._label_page import Keys

    target = load_digits().target
    with lab(folder) as address:
        page.driver.get(address)
        page.wait_for(lambda: "| Idle" in page.text("#jp-main-statusbar"))  # what runs before that may be lost
        run_cell(page, 0)
        page.wait_for(lambda: page.run("return document.querySelector('.sample img')?.naturalWidth") == 8)
        page.run("document.querySelector('.skal').focus()")
        said = {}
        for _ in range(n):
            label = str(target[int(page.current()[-4:])])
            said[page.label(label)] = label
        wrong = page.label("1")
        page.press(Keys.BACKSPACE)  # undo belongs to the page, not to the notebook
        page.wait_for(lambda: page.current() == wrong)
        page.label(" ")
        run_cell(page, 1)
        printed = page.wait_for(lambda: page.text(".jp-Cell ~ .jp-Cell .jp-OutputArea-output"))
        page.driver.get("about:blank")
    rows = csv.DictReader(io.StringIO(export_labels(folder / "labels")))
    return said, {row["id"]: row["label"] for row in rows}, printed.strip()


def missing() -> str:
    """Why it cannot run here; empty if it can."""
    from benchmarks._label_page import MISSING, WHY

    wanted = [name for name in ("jupyterlab", "ipykernel", "anywidget") if find_spec(name) is None]
    return WHY if MISSING else f"no {' and no '.join(wanted)}: pip install jupyterlab anywidget" if wanted else ""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.label_notebook", description=__doc__.split("\n")[0])
    parser.add_argument("--labels", type=int, default=30)
    parser.add_argument("--screenshot", type=Path, metavar="FILE.png")
    options = parser.parse_args(arguments)
    from benchmarks._label_page import Page

    if why := missing():
        print(why, file=sys.stderr)
        return
    work = Path(tempfile.mkdtemp())
    page = Page(work / "profile")
    try:
        said, found, printed = run(page, work / "book", options.labels)
    finally:
        if options.screenshot:
            page.driver.save_screenshot(str(options.screenshot))
        page.close()
    same = sum(found.get(key) == label for key, label in said.items())
    print(f"{len(said)} labels given in the cell, {len(found)} in the file, {same} the same; the notebook: {printed}")


if __name__ == "__main__":
    main()
