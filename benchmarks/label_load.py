"""Fifty labels a second for a minute, from several tabs, while a model is trained: is one lost?

``python -m benchmarks.label_load`` starts ``skal label`` on a pool of copies of digits, labels through its API at a
fixed rate, kills the process at the end, and compares every label that was answered with the file.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from sklearn.datasets import load_digits

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
    code = "import sys; from skal.cli import main; sys.exit(main())"
    arguments = ["label", folder / "digits.npz", "--classes", CLASSES, "--out", folder / "out", "--model", "linear"]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments), "--no-browser"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    address = next(match[0] for line in process.stdout if (match := re.search(r"http://\S+", line)))
    end = time.monotonic() + seconds
    threads = [Tab(f"tab {k}", address, rate / tabs, end) for k in range(tabs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
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


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.label_load", description=__doc__.split("\n")[0])
    parser.add_argument("--rate", type=float, default=50.0, help="labels a second")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--tabs", type=int, default=4)
    options = parser.parse_args(arguments)
    for name, value in run(options.rate, options.seconds, options.tabs).items():
        print(f"{name}: {value:.0f}" if name != "per second" else f"{name}: {value:.1f}")


if __name__ == "__main__":
    main()
