"""What users do wrong with parameters, loops, sessions, stopping, benchmarks, labelling and the command line."""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

import skal
import skal.stopping
from benchmarks._attack_cases import MAY_WORK, REFUSED, labels, pools
from skal import ActiveLearningClassifier
from skal.base import QueryStrategy
from skal.bench import run_benchmark
from skal.cli import main
from skal.exceptions import SkalError
from skal.stopping import Budget

Case = tuple[str, str, str, Callable[[], Any]]  # group, name, what must happen, call
SECONDS = 60  # longer is an endless loop, or a server that should not have been started

VALUES: dict[str, Any] = {
    "None": None,
    "True": True,
    "-1": -1,
    "0": 0,
    "1.5": 1.5,
    "10**30": 10**30,
    "NaN": float("nan"),
    "infinity": float("inf"),
    "1e308": 1e308,
    "a text": "no such thing",
    "bytes": b"1",
    "empty text": "",
    "list": [],
    "dict": {},
    "array": np.array([1.0, 2.0]),
    "class": Budget,
    "object": object(),
}
# so many passes take for ever, and so many workers never start
_NO_LIMIT = {("n_passes", "10**30"), ("n_jobs", "10**30"), ("n_instances", "10**30")}


class RefusedCommand(SkalError):
    """A command that ended with a message and an exit status."""


def within(call: Callable[[], Any]) -> Callable[[], Any]:
    """The same, ended by a TimeoutError if it takes too long."""

    def ended(number: int, frame: Any) -> None:
        raise TimeoutError(f"more than {SECONDS} s")

    def timed() -> Any:
        before = signal.signal(signal.SIGALRM, ended)
        signal.alarm(SECONDS)
        try:
            return call()
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)

    return timed


def entry_cases(strategies: dict[str, QueryStrategy], learner: Any, predicting: Any, X: np.ndarray) -> Iterator[Case]:
    """All of them; files are made in a folder that is deleted."""
    with tempfile.TemporaryDirectory() as folder:
        for group, found in {
            "parameters": parameters(strategies, learner, predicting, X),
            "loops": loops(X),
            "sessions": sessions(X, Path(folder)),
            "stopping": stopping(),
            "benchmarks": benchmarks(X, Path(folder)),
            "labelling": labelling(X, Path(folder)),
            "command line": commands(X, Path(folder)),
        }.items():
            for name, must, call in found:
                yield group, name, must, within(call)


Named = Iterator[tuple[str, str, Callable[[], Any]]]


def parameters(strategies: dict[str, QueryStrategy], learner: Any, predicting: Any, X: np.ndarray) -> Named:
    """Every parameter of every strategy with every value; and those of a query."""
    for name, strategy in strategies.items():
        own = predicting if name == "LearningLoss" else learner
        for parameter in inspect.signature(type(strategy)).parameters:
            for what, value in VALUES.items():
                if (parameter, what) not in _NO_LIMIT:

                    def query(s: Any = strategy, p: str = parameter, v: Any = value, le: Any = own) -> Any:
                        settings = s.get_params(deep=False) | {p: v}
                        return type(s)(**settings).select(le, X, 3)

                    yield f"{name}({parameter}={what})", MAY_WORK, query
        for what, value in VALUES.items():
            must = MAY_WORK if what == "1.5" else REFUSED
            yield f"{name}: n_instances={what}", must, lambda s=strategy, le=own, v=value: s.select(le, X, v)


def loops(X: np.ndarray) -> Named:
    """Parameters of the classifier that runs the loop."""
    flat, y = X.reshape(len(X), -1), np.arange(len(X)) % 4
    given = {"n_initial": 8, "n_rounds": 1, "query_size": 4, "random_state": 0}

    def fitted(**changes: Any) -> None:
        estimator = changes.pop("estimator", LogisticRegression(max_iter=20))
        ActiveLearningClassifier(estimator, **(given | changes)).fit(flat, y)

    for parameter in inspect.signature(ActiveLearningClassifier).parameters:
        for what, value in VALUES.items():
            if parameter != "checkpoint" or what not in ("a text", "bytes"):  # which are names of folders
                yield (
                    f"ActiveLearningClassifier({parameter}={what})",
                    MAY_WORK,
                    lambda p=parameter, v=value: fitted(**{p: v}),
                )
    for what, bad in labels(np.arange(40) % 4).items():
        loop = ActiveLearningClassifier(LogisticRegression(max_iter=20), **given)
        yield f"ActiveLearningClassifier.fit: y {what}", MAY_WORK, lambda lo=loop, b=bad: lo.fit(flat, b) and None
        yield f"ActiveLearningClassifier.start: y {what}", MAY_WORK, lambda lo=loop, b=bad: lo.start(flat, b) and None
    for what, value in VALUES.items():
        for parameter in ("ids", "eval_set"):
            loop = ActiveLearningClassifier(LogisticRegression(), **given)
            yield (
                f"start({parameter}={what})",
                MAY_WORK,
                lambda lo=loop, p=parameter, v=value: lo.start(flat, **{p: v}) and None,
            )


def sessions(X: np.ndarray, folder: Path) -> Named:
    """Everything that a session can be told, in a folder and without one."""
    flat = X.reshape(len(X), -1)
    session = ActiveLearningClassifier(
        LogisticRegression(max_iter=20), n_initial=8, n_rounds=3, query_size=4, random_state=0
    ).start(flat, ids=[f"sample {i}" for i in range(len(flat))])
    session.tell([int(i) % 4 for i in session.ask()])
    answers = {
        "too few": [0],
        "too many": [0] * 99,
        "two dimensions": np.zeros((4, 4)),
        "unknown id": {"no such sample": 0},
        "position as id": {3: 0},
        "unhashable": {"sample 3": [0]},
        "nested": {"sample 3": {"a": 0}},
        "endless": (i for i in iter(int, 1)) if False else iter([0]),
        "words": ["a", "b", "c", "d"],
        "objects": [object()] * 4,
        "dates": np.zeros(4, dtype="datetime64[s]"),
        "NaN": [float("nan")] * 4,
        "classes": [int, str, float, list],
        **VALUES,
    }
    for method in ("tell", "relabel", "add", "decline", "undecline", "show", "to_csv", "to_json", "forecast"):
        for what, value in answers.items():
            if method in ("to_csv", "to_json") and isinstance(value, (str, bytes)):
                continue  # which name a file
            yield (
                f"LabellingSession.{method}({what})",
                MAY_WORK,
                lambda m=method, v=value: getattr(session, m)(v) and None,
            )
    for method in ("to_csv", "to_json"):
        for what, path in {"folder": folder, "no folder": folder / "none" / "x"}.items():
            yield f"LabellingSession.{method}({what})", MAY_WORK, lambda m=method, p=path: getattr(session, m)(p)
    for what, indices in VALUES.items():
        yield f"LabellingSession.tell(indices={what})", MAY_WORK, lambda i=indices: session.tell([0, 1], i) and None


def stopping() -> Named:
    """Parameters of the criteria, and what they are combined with."""
    history = [{"n_labelled": 10 * i, "agreement": 0.9, "heldout_score": 0.5, "n_heldout": 9} for i in range(5)]
    for name in skal.stopping.__all__:
        cls = getattr(skal.stopping, name)
        if not (isinstance(cls, type) and issubclass(cls, skal.stopping.StoppingCriterion)) or inspect.isabstract(cls):
            continue
        for parameter in inspect.signature(cls).parameters:
            required = {p.name: 1 for p in inspect.signature(cls).parameters.values() if p.default is p.empty}
            for what, value in VALUES.items():

                def asked(c: Any = cls, given: dict = required | {parameter: value}) -> Any:
                    criterion = c(**given)
                    criterion.check_params()
                    return criterion.reason(history, 40) and None

                yield f"{name}({parameter}={what})", MAY_WORK, asked
    for what, value in VALUES.items():
        yield f"Budget | {what}", REFUSED, lambda v=value: Budget(3) | v
        yield f"Budget & {what}", REFUSED, lambda v=value: Budget(3) & v


def benchmarks(X: np.ndarray, folder: Path) -> Named:
    """``run_benchmark`` with data of one's own, and settings."""
    flat, y = X.reshape(len(X), -1), np.arange(len(X)) % 4
    small: dict[str, Any] = {"net": "logistic", "rounds": 1, "seeds": 1, "n_initial": 8, "batch": 4, "max_epochs": 2}

    def run(**changes: Any) -> None:
        run_benchmark(changes.pop("strategies", ["random"]), **({"data": (flat, y)} | small | changes))

    for what, (must, bad) in pools(X).items():
        must = REFUSED if must == REFUSED and what not in _NUMBERS else MAY_WORK
        yield f"run_benchmark(data=({what}, y))", must, lambda b=bad: run(data=(b, y))
    for what, bad in labels(y).items():
        yield f"run_benchmark(data=(X, {what}))", MAY_WORK, lambda b=bad: run(data=(flat, b))
    for parameter in ("data", "net", "strategies", "out", "n_jobs", "title", "rounds", "seeds", "batch", "n_initial"):
        for what, value in VALUES.items():
            if (parameter, what) not in _NO_LIMIT and not (parameter == "out" and isinstance(value, (str, bytes))):
                yield f"run_benchmark({parameter}={what})", MAY_WORK, lambda p=parameter, v=value: run(**{p: v})
    for name, settings in {
        "no such setting": {"roundz": 3},
        "three arrays": {"data": (flat, y, flat)},
        "test of other columns": {"data": (flat, y, flat[:, :3], y)},
        "test of other classes": {"data": (flat, y, flat, y + 10)},
        "test without samples": {"data": (flat, y, flat[:0], y[:0])},
        "one class": {"data": (flat, np.zeros(len(y), dtype=int))},
        "rounds=10**9": {"rounds": 10**9},
        "a strategy that raises": {"strategies": {"mine": lambda learner, pool, n_instances: 1 / 0}},
        "a strategy that returns None": {"strategies": {"mine": lambda learner, pool, n_instances: None}},
        "a strategy that returns copies": {"strategies": {"mine": lambda learner, pool, n_instances: [0, 0, 0, 0]}},
        "a strategy of another signature": {"strategies": {"mine": lambda: None}},
        "net without predict_proba": {"net": object()},
        "out is a file": {"out": _file(folder / "taken", "text")},
    }.items():
        yield f"run_benchmark: {name}", REFUSED, lambda s=settings: run(**s)


# pools that a network for images refuses, and that are rows of numbers all the same
_NUMBERS = {
    "flat",
    "too few columns",
    "too many columns",
    "three channels",
    "transposed",
    "no columns",
    "one dimension more",
}


def _file(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def labelling(X: np.ndarray, folder: Path) -> Named:
    """``skal.label`` and what a page may ask; a page that is opened is left at once."""
    from urllib.request import Request, urlopen

    def leave(address: str) -> None:
        urlopen(Request(address + "api/finish", data=b"{}", headers={"Content-Type": "application/json"})).close()

    numbers = iter(range(10**6))

    def labelled(X: Any = X[:6], classes: Any = ("a", "b"), **changes: Any) -> None:
        given = {"folder": folder / f"label {next(numbers)}", "browser": leave, "notebook": False, "model": "linear"}
        skal.label(X, classes, **(given | changes))

    for what, (_, bad) in pools(X).items():
        yield f"label({what})", MAY_WORK, lambda b=bad: labelled(b)
    for what, value in {"empty folder": folder, "no file": folder / "none.csv", "empty list": []}.items():
        yield f"label({what})", REFUSED, lambda v=value: labelled(v)
    for parameter in (
        "classes",
        "y",
        "ids",
        "model",
        "features",
        "backbone",
        "strategy",
        "batch",
        "share",
        "stop",
        "port",
    ):
        for what, value in VALUES.items():
            yield f"label({parameter}={what})", MAY_WORK, lambda p=parameter, v=value: labelled(**{p: v})
    yield "label(classes='ab')", MAY_WORK, lambda: labelled(classes="ab")
    yield "label(classes twice)", MAY_WORK, lambda: labelled(classes=["a", "a"])
    yield "label(y of another class)", REFUSED, lambda: labelled(y=["a", "z", None, None, None, None])


def commands(X: np.ndarray, folder: Path) -> Named:
    """Arguments of the command line."""
    table = _file(folder / "texts.csv", "id,text\n1,one\n2,two\n3,three\n")
    damaged = _file(folder / "damaged.npz", b"PK\x03\x04 not really")
    words = _file(folder / "words.npz", b"just words")
    np.savez(folder / "strange.npz", a=np.zeros(3))
    np.savez(folder / "objects.npz", X_train=np.array([{}, []], dtype=object), y_train=[0, 1], X_test=[0], y_test=[0])
    png = _file(folder / "images" / "x.png", b"\x89PNG no picture")
    project = folder / "project"
    _file(project / "labels.jsonl", "{ not JSON\n")
    _file(project / "settings.json", "[]")
    bad = _file(folder / "bad.json", json.dumps([{"annotations": 3}]))
    python = _file(folder / "model.py", "def make():\n    return 1 / 0\n")
    out, files = ["--out", str(folder / "out")], str(folder)
    given: dict[str, list[str]] = {
        "no such command": ["frobnicate"],
        "bench without a data set": ["bench", "--data", "none", *out],
        "bench --jobs 0": ["bench", "--jobs", "0", *out],
        "bench --jobs x": ["bench", "--jobs", "x", *out],
        "bench --data ../x": ["bench", "--data", "../x", *out],
        "bench --data no file": ["bench", "--data", f"{files}/none.npz", *out],
        "bench --data damaged": ["bench", "--data", str(damaged), *out],
        "bench --data words": ["bench", "--data", str(words), *out],
        "bench --data other arrays": ["bench", "--data", f"{files}/strange.npz", *out],
        "bench --data objects": ["bench", "--data", f"{files}/objects.npz", *out],
        "bench --data folder": ["bench", "--data", files, *out],
        "bench --data null byte": ["bench", "--data", "a\0b", *out],
        "bench --data-home no folder": ["bench", "--data", "mnist", "--data-home", f"{files}/none", *out],
        "bench --net": ["bench", "--net", "none", *out],
        "bench --strategies": ["bench", "--strategies", "none", *out],
        "bench --strategies empty": ["bench", "--strategies", "", *out],
        "bench --strategies open": ["bench", "--strategies", "margin(", *out],
        "bench --strategies code": ["bench", "--strategies", "margin(subset=__import__('os'))", *out],
        "bench --strategies unknown parameter": ["bench", "--strategies", "margin(x=1)", *out],
        "bench --rounds 0": ["bench", "--rounds", "0", *out],
        "bench --rounds 10**9": ["bench", "--rounds", "1000000000", *out],
        "bench --seeds 10**30": ["bench", "--seeds", "1" + "0" * 30, *out],
        "bench --preset": ["bench", "--preset", "none", *out],
        "bench --out is a file": ["bench", "--out", str(table)],
        "report without a folder": ["report", f"{files}/none"],
        "report of a file": ["report", str(table)],
        "report of an empty folder": ["report", files],
        "report of another folder": ["report", str(project)],
        "label without a source": ["label"],
        "label no file": ["label", f"{files}/none"],
        "label empty file": ["label", str(_file(folder / "empty.csv", "")), "--classes", "a,b", *out],
        "label not UTF-8": [
            "label",
            str(_file(folder / "latin.csv", b"id,text\n1,\xff\xfe\n")),
            "--classes",
            "a,b",
            *out,
        ],
        "label a table without texts": ["label", str(_file(folder / "t.csv", "a,b\n1,2\n")), "--classes", "a", *out],
        "label --text": ["label", str(table), "--text", "none", "--classes", "a,b", *out],
        "label no classes": ["label", str(table), *out],
        "label empty classes": ["label", str(table), "--classes", ",", *out],
        "label one class": ["label", str(table), "--classes", "", *out],
        "label --batch 0": ["label", str(table), "--classes", "a,b", "--batch", "0", *out],
        "label --hold-out 2": ["label", str(table), "--classes", "a,b", "--hold-out", "2", *out],
        "label --hold-out nan": ["label", str(table), "--classes", "a,b", "--hold-out", "nan", *out],
        "label --port": ["label", str(table), "--classes", "a,b", "--port", "99999", *out],
        "label --size 0": ["label", str(png.parent), "--classes", "a,b", "--size", "0", *out],
        "label broken pictures": ["label", str(png.parent), "--classes", "a,b", *out],
        "label --model no file": ["label", str(table), "--classes", "a,b", "--model", "none.py:make", *out],
        "label --model no function": ["label", str(table), "--classes", "a,b", "--model", f"{python}:none", *out],
        "label --model raises": ["label", str(table), "--classes", "a,b", "--model", f"{python}:make", *out],
        "label --features": ["label", str(table), "--classes", "a,b", "--features", f"{files}/none.npy", *out],
        "label --features strange": [
            "label",
            str(table),
            "--classes",
            "a,b",
            "--features",
            f"{files}/strange.npz",
            *out,
        ],
        "label --backbone": ["label", str(table), "--classes", "a,b", "--backbone", "none:none", *out],
        "label --strategy": ["label", str(table), "--classes", "a,b", "--strategy", "none", *out],
        "label --labels no file": ["label", str(table), "--classes", "a,b", "--labels", f"{files}/none.csv", *out],
        "label --labels strangers": [
            *("label", str(table), "--classes", "a,b", "--labels"),
            *(str(_file(folder / "known.csv", "id,label\n1,z\n")), *out),
        ],
        "label damaged npz": ["label", str(damaged), "--classes", "a,b", *out],
        "label --out is a file": ["label", str(table), "--classes", "a,b", "--out", str(words)],
        "label --out of another project": ["label", str(table), "--classes", "a,b", "--out", str(project)],
        "export no folder": ["export", f"{files}/none"],
        "export damaged": ["export", str(project)],
        "export --to": ["export", str(project), "--to", "xml"],
        "export of a file": ["export", str(table)],
        "import no folder": ["import", f"{files}/none", str(bad)],
        "import no file": ["import", str(project), f"{files}/none.json"],
        "import bad JSON": ["import", str(project), str(bad)],
        "import pictures": ["import", str(project), str(png)],
        "import into damaged": ["import", str(project), str(table)],
    }
    for name, arguments in given.items():
        yield f"skal {name}", REFUSED, lambda a=arguments: _command(a)


def _command(arguments: list[str]) -> None:
    """A command that ends with a message; its own errors are not caught here."""
    if arguments[0] == "label":
        arguments = [*arguments, "--no-browser"]
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            status: Any = main(arguments)
        except SystemExit as error:
            status = error.code
    if status and said.getvalue().strip():
        raise RefusedCommand(said.getvalue())
