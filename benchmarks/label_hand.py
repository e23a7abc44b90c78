"""How good is a model after a few labels on the page? An automatic hand labels over HTTP, as a person would.

``python -m benchmarks.label_hand hand [--seeds 3] [--kept FILE]`` starts ``skal label`` on 600 pictures of CIFAR-10 as
PNG files, and on 2,000 sentences of banking77 as a CSV file, with its defaults. The hand waits until the page says that
nothing goes on in the background, gives the right labels of the next 20 samples, and so on. The model that the page
keeps is judged on new pictures and sentences. The same as if the extra ``backbones`` were not installed.

``python -m benchmarks.label_hand agreement`` compares the features of both networks with stored ones, and
``python -m benchmarks.label_hand sizes`` sizes of pictures, with 180 random labels.

Data is read from ``$SKAL_DATA_HOME`` (cifar10_sub.npz, banking77.npz, cifar10_features.npz). With ``--kept``
every run that is done is a line of the file, and the same call goes on from there.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skal
from benchmarks._kept import Kept
from benchmarks._measure import markdown
from skal.features import RememberedFeatures, pretrained

CIFAR = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
BATCH = 20
CHOICE = 5000  # rows of CIFAR-10 that seeds draw from; with others the size of the pictures was chosen
N_TEST = 1000
CHECKPOINTS = (60, 140, 220)  # labels after which the model is judged
SETTINGS = {"CIFAR-10 pictures": 600, "banking77 sentences": 2000}
ARMS = {"default": True, "without the extra": False}
# the command, and the same where the extra ``backbones`` is not installed
PROGRAM = "import sys; from skal.cli import main; sys.exit(main())"
HIDE = "import sys; sys.modules.update(dict.fromkeys(['efficientnet_lite_pytorch', 'sentence_transformers'])); "


class Task:
    """Samples as files, their classes, and others to judge a model by."""

    def __init__(self, setting: str, n: int, seed: int, folder: Path) -> None:
        rng = np.random.default_rng(seed)
        if setting.startswith("CIFAR"):
            from PIL import Image

            with np.load(_data("cifar10_sub")) as data:
                X, y, X_test, y_test = (data[name] for name in ("X_train", "y_train", "X_test", "y_test"))
            rows = rng.permutation(CHOICE)[:n]
            self.source, self.classes = folder / "pictures", CIFAR
            self.source.mkdir()
            for place, row in enumerate(rows):
                Image.fromarray(X[row]).save(self.source / f"{place:04d}.png")
            self.truth = {f"{place:04d}.png": CIFAR[y[row]] for place, row in enumerate(rows)}
        else:
            with np.load(_data("banking77")) as data:
                names = ("texts_train", "y_train", "texts_test", "y_test", "class_names")
                X, y, X_test, y_test, classes = (data[name] for name in names)
            rows = rng.permutation(len(X))[:n]
            self.source, self.classes = folder / "sentences.csv", [str(name) for name in classes]
            ids = [f"{place:04d}" for place in range(n)]
            pd.DataFrame({"id": ids, "text": X[rows]}).to_csv(self.source, index=False)
            self.truth = {key: self.classes[y[row]] for key, row in zip(ids, rows, strict=True)}
        chosen = np.random.default_rng(0).permutation(len(X_test))[:N_TEST]
        self.X_test = X_test[chosen]
        self.y_test = np.array([self.classes[k] for k in y_test[chosen]])


def run(setting: str, arm: str, seed: int) -> dict[str, Any]:
    """Accuracy on new samples by the number of labels, what the page said, and how long features took."""
    n = SETTINGS[setting]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        task = Task(setting, n, seed, folder)
        out = folder / "labels"
        quoted = ",".join(f'"{each}"' for each in task.classes)
        program = [sys.executable, "-c", PROGRAM if ARMS[arm] else HIDE + PROGRAM]
        command = [*program, "label", str(task.source), "--classes", quoted, "--out", str(out)]
        start = time.monotonic()
        process = subprocess.Popen(
            [*command, "--no-browser"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        try:
            hand = Hand(process)
            model_words = hand.wait()["model"]
            seconds = time.monotonic() - start
            found: dict[str, Any] = {"model": model_words, "seconds until features": round(seconds, 1), "accuracy": {}}
            for labels in range(BATCH, max(CHECKPOINTS) + 1, BATCH):
                hand.label(task.truth, BATCH)
                status = hand.wait()
                if labels in CHECKPOINTS:
                    found["accuracy"][str(labels)] = judge(out / "model", task)
                    curve = status["curve"]  # empty as long as few labels are held out
                    found["page"] = [curve[-1]["score"] if curve else None, status["guessing"]["level"]]
            hand.call("finish")
            process.wait(120)
        finally:
            process.kill()
            process.communicate()
    return found


class Hand:
    """Labels over HTTP."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        found = next((match[0] for line in lines if (match := re.search(r"http://\S+", line))), None)
        if found is None:
            raise RuntimeError(f"skal label ended with {process.wait()}")
        self.address = found

    def call(self, method: str, **given: Any) -> Any:
        data = json.dumps({"client": "hand"} | given).encode()
        request = Request(f"{self.address}api/{method}", data=data, headers={"Content-Type": "application/json"})
        with urlopen(request, timeout=600) as answer:
            return json.load(answer)

    def label(self, truth: dict[str, str], n: int) -> None:
        """Answer the next samples, one by one."""
        for _ in range(n):
            (item,) = self.call("next", n=1)["items"]
            self.call("answer", id=item["id"], label=truth[item["id"]])

    def wait(self) -> Any:
        """Wait until nothing goes on in the background, and give the status."""
        time.sleep(0.3)  # a training begins a moment after the label
        while (status := self.call("status"))["doing"] is not None:
            time.sleep(0.2)
        if status["error"] is not None:
            raise RuntimeError(status["error"])
        return status


def judge(folder: Path, task: Task) -> float:
    """Accuracy of the model that the page has kept, on samples as a user has them."""
    model = skal.load_model(folder)
    features = model.features_
    if hasattr(features, "name"):  # a pre-trained network is run once on every new sample, for all models
        place = Path(tempfile.gettempdir()) / f"skal-label-hand-{features.name}"
        values = RememberedFeatures(features, folder=place).transform(task.X_test)
        said = model.classes_[model.estimator_.predict(values)]
    else:
        said = model.predict([*task.X_test])
    return float((np.asarray(said) == task.y_test).mean())


def hand(seeds: int, kept: Kept, chosen: Sequence[str]) -> None:
    """Print accuracies by the number of labels."""
    rows = []
    for setting in chosen:
        for arm in ARMS:
            results = [kept(f"{setting}, {arm}, {s}", lambda a=arm, s=s, e=setting: run(e, a, s)) for s in range(seeds)]
            scores = np.array([[100 * each["accuracy"][str(n)] for n in CHECKPOINTS] for each in results])
            words = results[0]["model"].removeprefix("a linear classifier on ").removeprefix("features of ")
            cells = [
                f"{mean:.1f} ({low:.1f} … {high:.1f})"
                for mean, low, high in zip(scores.mean(0), scores.min(0), scores.max(0), strict=True)
            ]
            guess = np.mean([100 * each["page"][1] for each in results])
            rows.append([setting, arm, words, *cells, f"{guess:.0f}"])
            print(rows[-1], file=sys.stderr)
    print(markdown(["samples", "arm", "model", *(f"{n} labels" for n in CHECKPOINTS), "guessing"], rows))


def agreement(n: int = 500) -> None:
    """Print how far features are from those that were stored."""
    rows = []
    for name, file, stored, size in (
        ("images", "cifar10_sub", "cifar10_features", 144),
        ("texts", "banking77", "banking77", None),
    ):
        with np.load(_data(file)) as data, np.load(_data(stored)) as known:
            samples = data["X_train" if name == "images" else "texts_train"][:n]
            expected = known["X_train"][:n].astype(np.float32)
        network = pretrained(name, size=size)
        found = network.transform(samples)
        cosine = (found * expected).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1)
        largest = float(np.abs(found - expected).max())
        rows.append([network.name, size or "", n, found.shape[1], f"{largest:.1g}", f"{cosine.min():.6f}"])
    print(markdown(["network", "pixels a side", "samples", "features", "largest difference", "smallest cosine"], rows))


def sizes(n_seeds: int = 10) -> None:
    """Print what the size of the pictures changes, on pictures that no seed of the hand draws."""
    with np.load(_data("cifar10_sub")) as data:
        X, y = data["X_train"][7000:8000], data["y_train"][7000:8000]
    rows = []
    for size in (96, 144, 224):
        features = pretrained("images", size=size).transform(X)
        scores = []
        for seed in range(n_seeds):
            order = np.random.default_rng(seed).permutation(len(X))
            labelled, others = order[:180], order[180:]
            model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
            scores.append(100 * model.fit(features[labelled], y[labelled]).score(features[others], y[others]))
        rows.append([size, f"{np.mean(scores):.1f} ± {np.std(scores, ddof=1):.1f}"])
    print(markdown(["pixels a side", "accuracy, %"], rows))


def _data(name: str) -> Path:
    return Path(os.environ.get("SKAL_DATA_HOME", "")) / f"{name}.npz"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.label_hand", description=__doc__.split("\n")[0])
    parser.add_argument("what", nargs="?", choices=("hand", "agreement", "sizes"), default="hand")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--samples", choices=list(SETTINGS), action="append", help="all of them by default")
    parser.add_argument("--kept", type=Path, default=None)
    options = parser.parse_args(arguments)
    missing = [name for name in ("cifar10_sub", "banking77", "cifar10_features") if not _data(name).exists()]
    if missing:
        print(f"{', '.join(missing)} is not in $SKAL_DATA_HOME", file=sys.stderr)
        return
    if options.what == "agreement":
        agreement()
    elif options.what == "sizes":
        sizes()
    else:
        hand(options.seeds, Kept(options.kept), options.samples or list(SETTINGS))


if __name__ == "__main__":
    main()
