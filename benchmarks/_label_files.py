"""A folder of very many files, and one of very large ones: what they cost ``skal label``."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from PIL import Image

from benchmarks._label_command import Served
from skal.labelling._models import choose_model
from skal.labelling._project import Project
from skal.labelling._server import LabelServer
from skal.labelling._sources import open_source

COLOURS = ["red", "green", "blue"]


def make_many(folder: Path, n: int) -> None:
    """So many small JPEG files of three colours, a thousand in every sub-folder."""
    rng, contents = np.random.default_rng(0), []
    for i in range(99):
        pixels = rng.integers(0, 80, size=(64, 64, 3), dtype=np.uint8)
        pixels[:, :, i % 3] += 150
        target = io.BytesIO()
        Image.fromarray(pixels).save(target, "JPEG")
        contents.append(target.getvalue())
    for i in range(n):
        place = folder / f"{i // 1000:03d}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{i:06d}.jpg").write_bytes(contents[i % 99] + i.to_bytes(4, "big"))  # no copies


def colour_of(key: str) -> str:
    """The label of a file."""
    return COLOURS[int(key.split("/")[1][:6]) % 99 % 3]


def many_answers(n_files: int, n_answers: int, rate: float) -> dict[str, float]:
    """Answer in one project of many files, at most ``rate`` times a second, while the model is trained."""
    folder = Path(tempfile.mkdtemp())
    make_many(folder / "pictures", n_files)
    times: list[float] = []
    arguments = ["--classes", ",".join(COLOURS), "--out", folder / "out", "--model", "linear"]
    with Served(folder / "pictures", *arguments) as served:
        items: list[dict] = []
        begin = time.perf_counter()
        while len(times) < n_answers:
            time.sleep(max(0.0, begin + len(times) / rate - time.perf_counter()))
            items = items or served.call("next", client="one", n=7)["items"]
            key = items.pop(0)["id"]
            start = time.perf_counter()
            served.call("answer", client="one", id=key, label=colour_of(key))
            times.append(time.perf_counter() - start)
        status = served.call("status")
    shutil.rmtree(folder)
    ordered = sorted(times)
    return {
        "files": n_files,
        "answers": len(times),
        "labelled": status["labelled"],
        "trainings meanwhile": status["rounds"],
        "median milliseconds": 1000 * median(times),
        "99 % below": 1000 * ordered[int(0.99 * len(ordered))],
        "longest": 1000 * ordered[-1],
    }


def seconds(work: Any) -> float:
    """How long some work takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure_start(pictures: Path, repeats: int = 5) -> tuple[float, float]:
    """Seconds of listing the folder, and of everything until the page could be opened; by turns, medians."""

    def list_files() -> None:
        sorted(os.path.join(place, name) for place, _, names in os.walk(pictures) for name in names)

    def start() -> float:
        folder = Path(tempfile.mkdtemp())
        begin = time.perf_counter()
        source = open_source(pictures, cache=folder)
        source.check_readable()
        project = Project(source, COLOURS, choose_model(source, model="network"), folder)
        server = LabelServer(project)
        taken = time.perf_counter() - begin
        server._socket.close()
        project.rounds.close()
        shutil.rmtree(folder)
        return taken

    start()  # whatever is imported then
    pairs = [(seconds(list_files), start()) for _ in range(repeats)]
    return median(first for first, _ in pairs), median(second for _, second in pairs)


def many_files(n: int) -> dict[str, float]:
    """Start, ``next`` before, during and after the first round, and the round itself."""
    folder = Path(tempfile.mkdtemp())
    pictures = folder / "pictures"
    make_many(pictures, n)
    listing, start = measure_start(pictures)
    arguments = [pictures, "--classes", ",".join(COLOURS), "--out", folder / "out", "--model", "network"]
    waits: list[float] = []
    with Served(*arguments) as served:
        for _ in range(20):
            begin = time.perf_counter()
            items = served.call("next", client="me", n=7)["items"]
            waits.append(time.perf_counter() - begin)
            served.call("answer", client="me", id=items[0]["id"], label=colour_of(items[0]["id"]))
        begin = time.perf_counter()
        while served.call("status")["rounds"] == 0 and time.perf_counter() - begin < 1800:
            before = time.perf_counter()
            served.call("next", client="me", n=7)
            waits.append(time.perf_counter() - before)
            time.sleep(0.05)
        rounds = served.call("status")["rounds"]
        first_round = time.perf_counter() - begin
    shutil.rmtree(folder)
    return {
        "files": n,
        "seconds to list the folder": listing,
        "seconds to start": start,
        "ratio": start / listing,
        "first rounds that finished": rounds,
        "seconds of the first round": first_round,
        "median milliseconds of next": 1000 * median(waits),
        "longest milliseconds of next": 1000 * max(waits),
    }


def large_pictures(n: int, size: tuple[int, int] = (11_000, 8_000)) -> dict[str, float]:
    """Ask for several large pictures of each format at the same time, and see how much memory that takes."""
    folder = Path(tempfile.mkdtemp())
    (folder / "pictures").mkdir()
    ramp = np.linspace(0, 255, size[0], dtype=np.uint8)
    image = Image.fromarray(np.broadcast_to(ramp[None, :, None], (size[1], size[0], 3)).copy())
    found: dict[str, float] = {"pictures": n, "megapixels each": size[0] * size[1] / 1e6}
    for ending in ("jpg", "png"):
        first = folder / "pictures" / f"0.{ending}"
        image.save(first)
        for i in range(1, n):
            shutil.copy(first, folder / "pictures" / f"{i}.{ending}")
    del image
    Image.new("RGB", (20, 20)).save(folder / "pictures" / "a.png")
    with Served(folder / "pictures", "--classes", "a,b", "--out", folder / "out", "--model", "linear") as served:
        found["megabytes before"] = served.peak_memory()
        for ending in ("jpg", "png"):
            names = [f"{i}.{ending}" for i in range(n)]
            with ThreadPoolExecutor(n) as all_at_once:
                begin = time.perf_counter()
                statuses = list(all_at_once.map(lambda name: served.picture(name, 1024), names))
            found[f"seconds, {ending}"] = time.perf_counter() - begin
            found[f"shown, {ending}"] = statuses.count(200)
            found[f"megabytes at most, {ending}"] = served.peak_memory()
    shutil.rmtree(folder)
    return found
