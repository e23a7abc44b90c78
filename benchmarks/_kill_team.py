"""Three automatic hands label one project at once, while its server is killed again and again."""

from __future__ import annotations

import json
import random
import tempfile
import threading
import time
from collections import Counter, defaultdict
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from sklearn.datasets import load_digits

from benchmarks._label_command import Served

PEOPLE = {"ann": 0.98, "ben": 0.9, "eve": 0.75}  # how often each is right
CLASSES = [str(k) for k in range(10)]


class Hand(threading.Thread):
    """One person: answers, corrects, takes back and cannot say, and remembers what was asked and confirmed."""

    def __init__(self, name: str, address: str, n_answers: int, seed: int) -> None:
        super().__init__(name=name)
        self.url, self.n_answers, self.rng = urlsplit(address), n_answers, random.Random(f"{name} {seed}")
        self.confirmed: dict[str, str | None] = {}  # what holds of this person's answers
        self.tried: dict[str, set[str | None]] = defaultdict(set)  # what may hold besides, of an answer without a reply
        self.counts: Counter[str] = Counter()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while self.counts["confirmed"] < self.n_answers:
                try:
                    self.work()
                except (OSError, HTTPException, ValueError):
                    self.counts["without a reply"] += 1
                    time.sleep(0.2)
        except BaseException as error:  # for the main thread
            self.error = error

    def work(self) -> None:
        items = self.call("next", n=1)["items"]
        if not items:
            raise RuntimeError("nothing is left to label")
        key = items[0]["id"]
        self.say(key, self.label(key), "answered")
        what = self.rng.random()
        if what < 0.03:
            self.say(key, self.label(key), "corrected")
        elif what < 0.05:
            self.tried[key].update([None, *self.confirmed.values()])
            found = self.call("undo")["item"]
            if found is not None:
                self.confirmed.pop(found["id"], None)
                self.tried.pop(key, None)
                self.counts["taken back"] += 1

    def label(self, key: str) -> str | None:
        """What this person takes a digit for; None is "cannot say"."""
        true = int(key.split("-")[2])
        if self.rng.random() < 0.02:
            return None
        return str(true if self.rng.random() < PEOPLE[self.name] else (true + self.rng.randint(1, 9)) % 10)

    def say(self, key: str, label: str | None, what: str) -> None:
        self.tried[key].add(label)
        self.call("answer", id=key, label=label, declined=label is None)
        self.confirmed[key] = label
        self.tried[key] = set()
        self.counts["confirmed"] += 1
        self.counts[what] += 1

    def call(self, method: str, **given: object) -> dict:
        connection = HTTPConnection("127.0.0.1", self.url.port, timeout=30)
        try:
            body = json.dumps({"client": f"{self.counts['confirmed'] // 50}"} | given)  # a new tab now and then
            connection.request("POST", f"{self.url.path}api/{method}", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            data = json.loads(answer.read())
        finally:
            connection.close()
        if answer.status != 200:
            raise RuntimeError(data["error"])
        return data


def read_answers(folder: Path) -> dict[str, dict[str, str | None]]:
    """An independent reading of the journal: what each person has said last, by id."""
    said: dict[str, dict[str, str | None]] = defaultdict(dict)
    for line in (folder / "labels.jsonl").read_bytes().split(b"\n")[:-1]:
        event = json.loads(line)
        if event["event"] == "answer":
            said[event["annotator"]][event["id"]] = event["label"]
        elif event["event"] == "withdrawn":
            said[event["annotator"]].pop(event["id"], None)
    return said


def run_team(n_answers: int, pause: float, seed: int = 0) -> dict[str, float]:
    """Label and kill, until everybody has that number of confirmed answers; gives counts, or raises."""
    rng, work = random.Random(seed), Path(tempfile.mkdtemp())
    digits = load_digits()
    n = int(3 * n_answers * 1.2)
    rows = np.arange(n) % len(digits.images)
    noise = np.random.default_rng(seed).uniform(0, 0.2, size=(n, 8, 8))
    ids = [f"digit-{i}-{digits.target[row]}" for i, row in enumerate(rows)]
    np.savez(work / "digits.npz", X=(digits.images[rows] / 16 + noise).astype(np.float32), ids=ids)
    arguments = [work / "digits.npz", "--classes", ",".join(CLASSES), "--out", work / "out", "--model", "linear"]
    arguments += ["--team", ",".join(PEOPLE), "--overlap", "0.1"]
    served = Served(*arguments)
    people = json.loads((work / "out" / "access.json").read_text())["people"]
    hands = [Hand(name, f"http://127.0.0.1:{served.url.port}/{people[name]}/", n_answers, seed) for name in PEOPLE]
    began, kills = time.monotonic(), 0
    for hand in hands:
        hand.start()
    while any(hand.is_alive() for hand in hands):
        time.sleep(pause * rng.uniform(0.3, 1.7))
        served.kill()
        kills += 1
        address, served = served.address, Served(*arguments)
        if served.address != address:
            raise AssertionError(f"the page moved from {address} to {served.address}")
    served.kill()
    for hand in hands:
        hand.join()
        if hand.error is not None:
            raise hand.error
    said = read_answers(work / "out")
    for hand in hands:
        found = said[hand.name]
        for key in found.keys() | hand.confirmed.keys():
            allowed = {hand.confirmed.get(key, "no answer"), *hand.tried.get(key, ())}
            if found.get(key, "no answer") not in allowed and not (key not in found and hand.tried.get(key)):
                raise AssertionError(f"{hand.name} and {key}: {found.get(key)!r}, and it may be {allowed}")
    totals = sum((hand.counts for hand in hands), Counter())
    twice = Counter(key for each in said.values() for key in each)
    return {
        "confirmed answers": totals["confirmed"],
        "corrected": totals["corrected"],
        "taken back": totals["taken back"],
        "requests without a reply": totals["without a reply"],
        "kills": kills,
        "samples with one answer": sum(count == 1 for count in twice.values()),
        "samples with two answers": sum(count == 2 for count in twice.values()),
        "samples with three answers": sum(count == 3 for count in twice.values()),
        "seconds": time.monotonic() - began,
    }
