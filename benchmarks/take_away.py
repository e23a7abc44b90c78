"""Do models of the labelling page say the same elsewhere? Steps for environments that share nothing but a folder.

``nox -s models`` makes the environments and runs all steps. By hand, each in an environment of its own:

- ``python -I benchmarks/take_away.py label FOLDER`` (extras label, backbones, parquet): an automatic hand labels
  pictures, texts and a table on the page, over HTTP; the model's predictions are written down, and all labels exported
  to parquet.
- ``… datasets FOLDER`` (Hugging Face ``datasets``): reads these files.
- ``… load FOLDER`` (no extra): loads each model and compares its predictions. A model with a pre-trained network needs
  the extra backbones; without it, it must be refused by name.
- ``… old FOLDER`` (an older scikit-learn and skorch) saves models, and ``… warned FOLDER`` (newer ones) loads them,
  with a warning that must name both versions of both packages.

The file imports nothing else of this folder: ``-I`` hides the clone, so that what was installed is run.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
import warnings
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pandas as pd

import skal

N, LABELS, BATCH = 50, 20, 10
COMMAND = [sys.executable, "-I", "-c", "import sys; from skal.cli import main; sys.exit(main())"]
# what is labelled, and the arguments that make a model with or without a pre-trained network
PROJECTS = {
    "pictures": ("pictures", ["--model", "linear"]),
    "pictures, small network": ("pictures", ["--model", "network"]),
    "pictures, pre-trained network": ("pictures", ["--backbone", "images"]),
    "texts": ("texts.csv", ["--model", "linear"]),
    "texts, pre-trained network": ("texts.csv", ["--backbone", "texts"]),
    "table": ("table.csv", []),
}


def make_sources(folder: Path) -> dict[str, str]:
    """Pictures, texts and a table, and the label of every sample by its id."""
    from PIL import Image

    rng, truth = np.random.default_rng(0), {}
    (folder / "pictures").mkdir(parents=True)
    for i in range(N):
        pixels = rng.integers(0, 80, size=(40, 30, 3), dtype=np.uint8)
        pixels[:, :, 0 if i % 2 else 2] += 120
        Image.fromarray(pixels).save(folder / "pictures" / f"{i:02d}.png")
        truth[f"{i:02d}.png"] = "yes" if i % 2 else "no"
    words = ["good" if i % 3 else "awful" for i in range(N)]
    texts = pd.DataFrame(
        {"id": [f"t{i}" for i in range(N)], "text": [f"{word} film {i}" for i, word in enumerate(words)]}
    )
    texts.to_csv(folder / "texts.csv", index=False)
    truth |= {f"t{i}": "yes" if word == "good" else "no" for i, word in enumerate(words)}
    age = rng.normal(50, 15, N).round(2)
    table = pd.DataFrame(
        {
            "id": [f"r{i}" for i in range(N)],
            "age": age,
            "job": rng.choice(["nurse", "clerk", "smith, black"], N),
            "since": pd.date_range("2020", periods=N, freq="11D").strftime("%Y-%m-%d"),
            "smokes": rng.random(N) > 0.5,
        }
    )
    for name in ("age", "job", "since"):
        table[name] = table[name].astype(object).mask(rng.random(N) < 0.2)
    table.to_csv(folder / "table.csv", index=False)
    return truth | {f"r{i}": "yes" if value > 50 else "no" for i, value in enumerate(age)}


def project_of(folder: Path, name: str) -> Path:
    """Where the labels of a project are."""
    return folder / f"labelled {name}"


def samples_of(source: Path) -> Any:
    """What a user would pass to ``predict``: paths, texts or a data frame."""
    if source.is_dir():
        return [str(path) for path in sorted(source.iterdir())]
    table = pd.read_csv(source)
    return table["text"].tolist() if "text" in table else table.drop(columns="id")


def label(folder: Path) -> None:
    """Label every project by hand, an automatic one."""
    truth = make_sources(folder)
    for name, (source, more) in PROJECTS.items():
        out = project_of(folder, name)
        arguments = [str(folder / source), "--classes", "yes,no", "--out", str(out), "--query-size", str(BATCH), *more]
        process = subprocess.Popen([*COMMAND, "label", *arguments, "--no-browser"], stdout=subprocess.PIPE, text=True)
        try:
            words = label_page(process, truth)
        finally:
            process.kill()
            process.communicate()
        run("export", str(out), "--predictions", "--to", "parquet", "--out", str(out / "all.parquet"))
        run("predict", str(out), str(folder / source), "--out", str(out / "predictions.csv"))
        proba = skal.load_model(out).predict_proba(samples_of(folder / source))
        (out / "expected.json").write_text(json.dumps(proba.tolist()))  # every digit of every number
        predicted = pd.read_csv(out / "predictions.csv")["probability"].to_numpy()
        exported = pd.read_parquet(out / "all.parquet").set_index("id")["probability"].dropna()
        assert np.abs(predicted - proba.max(1)).max() <= 1e-6, f"skal predict says something else of {name}"
        assert set(exported) <= set(predicted), f"skal export says something else of {name}"
        print(f"{name}: {LABELS} of {N} labelled on the page, {words}; skal predict and skal export agree", flush=True)


def label_page(process: subprocess.Popen[str], truth: dict[str, str]) -> str:
    """Give labels over HTTP as a person would, and press "Finish"."""
    assert process.stdout is not None
    address = next(match[0] for line in process.stdout if (match := re.search(r"http://\S+", line)))

    def call(method: str, **given: Any) -> Any:
        data = json.dumps({"client": "hand"} | given).encode()
        request = Request(f"{address}api/{method}", data=data, headers={"Content-Type": "application/json"})
        with urlopen(request, timeout=600) as answer:
            return json.load(answer)

    def wait() -> Any:
        time.sleep(0.5)  # a training begins a moment after the label
        while (status := call("status"))["doing"] is not None:
            time.sleep(0.2)
        return status

    for number in range(LABELS):
        if number % BATCH == 0:
            wait()
        (item,) = call("next", n=1)["items"]
        call("answer", id=item["id"], label=truth[item["id"]])
    status = wait()
    assert status["error"] is None, status["error"]
    assert status["rounds"] > 0, "no model was trained"
    call("finish")
    process.wait(600)
    return str(status["model"])


def run(*arguments: str) -> None:
    """A command of skal, in this process."""
    from skal.cli import main

    assert main(arguments) == 0, arguments


def load(folder: Path) -> None:
    """Compare every model with what was written down where it was labelled."""
    print(f"{sys.prefix}: starlette {_or_none('starlette')}, sentence-transformers {_or_none('sentence-transformers')}")
    complete = find_spec("sentence_transformers") is not None
    for name, (source, _) in PROJECTS.items():
        model, samples = skal.load_model(project_of(folder, name)), samples_of(folder / source)
        expected = np.array(json.loads((project_of(folder, name) / "expected.json").read_text()))
        if "pre-trained" in name and not complete:
            said = refusal(model, samples)
            assert "pip install '.[backbones]'" in said, said
            print(f"{name}: refused by name: {said}")
            continue
        found = model.predict_proba(samples)
        classes = [*model.classes_[expected.argmax(1)]]
        assert np.array_equal(found, expected), f"{name}: differs by {np.abs(found - expected).max()}"
        assert model.predict(samples).tolist() == classes, name
        print(f"{name}: {len(found)} predictions equal, bit for bit")


def refusal(model: Any, samples: Any) -> str:
    """What a model says that cannot predict."""
    try:
        model.predict(samples)
    except skal.exceptions.SkalError as error:
        return str(error)
    return "nothing"


def read_datasets(folder: Path) -> None:
    """Read every parquet file with Hugging Face ``datasets``."""
    import datasets

    for name, (source, _) in PROJECTS.items():
        cache = str(folder / "datasets-cache")
        files = {"train": str(project_of(folder, name) / "all.parquet")}
        data = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=cache)
        assert len(data) == N
        assert sorted(map(str, set(data["source"]))) != ["model"]
        assert sum(each == "model" for each in data["source"]) == N - LABELS
        if source == "pictures":
            data = data.cast_column("image", datasets.Image())
            assert data[0]["image"].size == (30, 40)
        columns = [column for column in data.column_names if column not in ("round", "time", "annotator")]
        print(f"{name}: datasets {datasets.__version__} reads {len(data)} rows with {', '.join(columns)}")


OLD = ("linear", "network")


def make_loop(name: str) -> tuple[Any, np.ndarray]:
    """A fitted loop and its samples."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from skorch import NeuralNetClassifier
    from torch.nn import CrossEntropyLoss

    from skal.nets import MLP

    X = np.random.default_rng(0).normal(size=(N, 4)).astype(np.float32)
    net = NeuralNetClassifier(
        MLP,
        module__n_features=4,
        module__n_classes=2,
        criterion=CrossEntropyLoss,
        train_split=None,
        verbose=0,
        max_epochs=5,
    )
    estimator = make_pipeline(StandardScaler(), LogisticRegression() if name == "linear" else net)
    loop = skal.ActiveLearningClassifier(estimator, n_initial=30, n_rounds=0, random_state=0)
    return loop.fit(X, np.where(X[:, 0] > 0, "yes", "no")), X


def save_old(folder: Path) -> None:
    """Save models with whatever is installed."""
    for name in OLD:
        loop, X = make_loop(name)
        loop.save_model(folder / f"old {name}")
        (folder / f"old {name}.json").write_text(json.dumps([X.tolist(), loop.predict_proba(X).tolist()]))
        print(f"{name}: saved with scikit-learn {version('scikit-learn')} and skorch {version('skorch')}")


def expect_warning(folder: Path) -> None:
    """Load models that an older scikit-learn and skorch have saved."""
    for name in OLD:
        X, expected = (np.array(part) for part in json.loads((folder / f"old {name}.json").read_text()))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = skal.load_model(folder / f"old {name}")
        (said,) = [str(each.message) for each in caught if issubclass(each.category, skal.exceptions.SkalWarning)]
        for package in ("scikit-learn", "skorch"):
            then, now = model.card_["versions"][package], version(package)
            assert then != now, f"{package} {now} is not older"
            assert f"{package} {then} (installed: {now})" in said, said
        found = model.predict_proba(X.astype(np.float32))
        assert np.allclose(found, expected, atol=1e-6), name
        print(f"{name}: {said}\n  {len(found)} predictions, largest difference {np.abs(found - expected).max():.1g}")


def _or_none(package: str) -> str:
    try:
        return version(package)
    except ImportError:
        return "not installed"


STEPS = {"label": label, "datasets": read_datasets, "load": load, "old": save_old, "warned": expect_warning}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    STEPS[options.step](options.folder.resolve())


if __name__ == "__main__":
    main()
