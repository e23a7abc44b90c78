"""What ``skal label`` bears: fifty labels a second, a hundred thousand files, twelve scans at once.

``python -m benchmarks.label_load files`` measures the start, ``next`` and the first round on a folder of ``--files``
small images, beside the time of listing the folder; ``python -m benchmarks.label_load pictures`` asks for
``--pictures`` images of 88 megapixels at the same time, and gives the memory that this took.

``python -m benchmarks.label_load answers`` gives ``--answers`` answers over one project of ``--files`` files, one after
the other, ``--rate`` a second, and measures each.

``python -m benchmarks.label_load lost`` freezes and kills ``--times`` servers each, and measures in Chromium how long
it takes until the page says so.

``python -m benchmarks.label_load`` starts ``skal label`` on a pool of copies of digits, labels through its API at a
fixed rate, kills the process at the end, and compares every label that was answered with the file.
"""

from __future__ import annotations

import argparse
import json
import signal
import tempfile
import threading
import time
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from sklearn.datasets import load_digits

from benchmarks._label_command import Served
from benchmarks._label_files import large_pictures, many_answers, many_files

CLASSES = ",".join(map(str, range(10)))


class Tab(threading.Thread):
    """Labels at a rate until a moment, and remembers what was answered and how long it took."""

    def __init__(self, name: str, address: str, rate: float, end: float) -> None:
        super().__init__(name=name)
        self.url, self.interval, self.end = urlsplit(address), 1 / rate, end
        self.said: dict[str, str] = {}
        self.seconds: list[float] = []
        self.late = 0

    def run(self) -> None:
        connection = HTTPConnection("127.0.0.1", self.url.port, timeout=60)
        due = time.monotonic()
        items: list[dict] = []
        while (now := time.monotonic()) < self.end:
            if now < due:
                time.sleep(due - now)
            elif now > due + 1:
                self.late += 1
                due = now
            due += self.interval
            if not items:
                items = self.call(connection, "next", n=5)["items"]
            item = items.pop(0)
            label = str(int(item["id"].split("-")[1]) % 10)
            start = time.monotonic()
            self.call(connection, "answer", id=item["id"], label=label)
            self.seconds.append(time.monotonic() - start)
            self.said[item["id"]] = label
        connection.close()

    def call(self, connection: HTTPConnection, method: str, **given: object) -> dict:
        body = json.dumps({"client": self.name} | given)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", f"{self.url.path}api/{method}", body, headers)
        answer = connection.getresponse()
        data = json.loads(answer.read())
        if answer.status != 200:
            raise RuntimeError(data["error"])
        return data


def pool(path: Path, n: int) -> None:
    """An npz with ``n`` digits, a little noise on the copies."""
    digits = load_digits()
    rows = np.arange(n) % len(digits.images)
    noise = np.random.default_rng(0).uniform(0, 0.1, size=(n, 8, 8))
    np.savez(path, X=(digits.images[rows] / 16 + noise).astype(np.float32), ids=[f"digit-{i}" for i in range(n)])


def run(rate: float, seconds: float, tabs: int) -> dict[str, float]:
    """Label, kill, compare."""
    folder = Path(tempfile.mkdtemp())
    n_labels = int(rate * seconds)
    pool(folder / "digits.npz", 2 * n_labels + 200)
    served = Served(folder / "digits.npz", "--classes", CLASSES, "--out", folder / "out", "--model", "linear")
    end = time.monotonic() + seconds
    threads = [Tab(f"tab {k}", served.address, rate / tabs, end) for k in range(tabs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    served.kill()
    said = {key: label for thread in threads for key, label in thread.said.items()}
    lines = [json.loads(line) for line in (folder / "out" / "labels.jsonl").read_text().splitlines()]
    found = {line["id"]: line["label"] for line in lines}
    waits = np.sort(np.concatenate([thread.seconds for thread in threads]))
    return {
        "answered": len(said),
        "lost": sum(found.get(key) != label for key, label in said.items()),
        "per second": len(waits) / seconds,
        "median milliseconds": 1000 * float(np.median(waits)),
        "99 % below": 1000 * float(waits[int(0.99 * len(waits))]),
        "longest": 1000 * float(waits[-1]),
        "times a tab fell a second behind": sum(thread.late for thread in threads),
    }


def lost(times: int) -> dict[str, float]:
    """Seconds from the end of a server to the page's banner, in the median and at most."""
    from benchmarks._label_page import MISSING, WHY, Page

    if MISSING:
        raise SystemExit(WHY)
    work, found = Path(tempfile.mkdtemp()), {}
    page, rng = Page(work / "profile"), np.random.default_rng(0)
    for name, end in {"frozen": signal.SIGSTOP, "killed": signal.SIGKILL}.items():
        seconds = []
        for number in range(times):
            with Served("--demo", "--out", work / f"{name}-{number}") as served:
                page.open(served.address)
                time.sleep(3 + rng.uniform(0, 2))  # at any moment between two questions of the page
                served.process.send_signal(end)
                start = time.monotonic()
                page.wait_for(lambda: "does not answer" in page.text(".banner"))
                seconds.append(time.monotonic() - start)
        found |= {f"{name}: seconds in the median": float(np.median(seconds)), f"{name}: at most": max(seconds)}
    page.close()
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.label_load", description=__doc__.split("\n")[0])
    parser.add_argument("what", nargs="?", choices=["rate", "files", "answers", "pictures", "lost"], default="rate")
    parser.add_argument("--rate", type=float, default=50.0, help="labels a second")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--tabs", type=int, default=4)
    parser.add_argument("--files", type=int, help="100,000 for files, 20,000 for answers")
    parser.add_argument("--answers", type=int, default=5_000)
    parser.add_argument("--pictures", type=int, default=12)
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args(arguments)
    if options.what == "files":
        found = many_files(options.files or 100_000)
    elif options.what == "answers":
        found = many_answers(options.files or 20_000, options.answers, options.rate)
    elif options.what == "pictures":
        found = large_pictures(options.pictures)
    elif options.what == "lost":
        found = lost(options.times)
    else:
        found = run(options.rate, options.seconds, options.tabs)
    for name, value in found.items():
        print(f"{name}: {value:.0f}" if value >= 100 or value == int(value) else f"{name}: {value:.2f}")


if __name__ == "__main__":
    main()
