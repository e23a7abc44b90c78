"""What users do wrong with ``skal.label`` and on the command line; and values that no parameter takes."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import skal
from benchmarks._attack_cases import MAY_WORK, REFUSED, pools
from skal.cli import main
from skal.exceptions import SkalError
from skal.stopping import Budget

Named = Iterator[tuple[str, str, Callable[[], Any]]]  # name, what must happen, call

VALUES: dict[str, Any] = {
    "None": None,
    "True": True,
    "-1": -1,
    "0": 0,
    "10**30": 10**30,
    "NaN": float("nan"),
    "infinity": float("inf"),
    "1e308": 1e308,
    "a text": "no such thing",
    "list": [],
    "array": np.array([1.0, 2.0]),
    "class": Budget,
    "object": object(),
}


class RefusedCommandError(SkalError):
    """A command that ended with a message and an exit status."""


def made_file(path: Path, text: str | bytes) -> Path:
    """A file with this content."""
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
    broken = made_file(folder / "broken" / "x.png", b"\x89PNG no picture").parent
    made_file(broken / "y.jpg", b"")
    empty = folder / "empty"
    empty.mkdir()
    for what, value in {
        "empty folder": empty,
        "no file": folder / "none.csv",
        "empty list": [],
        "broken pictures": broken,
    }.items():
        yield f"label({what})", REFUSED, lambda v=value: labelled(v)
    for parameter in (
        "classes",
        "y",
        "ids",
        "model",
        "features",
        "backbone",
        "strategy",
        "query_size",
        "share",
        "stop",
        "port",
    ):
        for what, value in VALUES.items():
            yield f"label({parameter}={what})", MAY_WORK, lambda p=parameter, v=value: labelled(**{p: v})
    yield "label(classes='ab')", MAY_WORK, lambda: labelled(classes="ab")
    yield "label(classes twice)", MAY_WORK, lambda: labelled(classes=["a", "a"])
    yield "label(y of another class)", MAY_WORK, lambda: labelled(y=["a", "z", None, None, None, None])


def commands(X: np.ndarray, folder: Path) -> Named:
    """Arguments of the command line."""
    table = made_file(folder / "texts.csv", "id,text\n1,one\n2,two\n3,three\n")
    damaged = made_file(folder / "damaged.npz", b"PK\x03\x04 not really")
    words = made_file(folder / "words.npz", b"just words")
    np.savez(folder / "strange.npz", a=np.zeros(3))
    np.savez(folder / "objects.npz", X_train=np.array([{}, []], dtype=object), y_train=[0, 1], X_test=[0], y_test=[0])
    png = made_file(folder / "images" / "x.png", b"\x89PNG no picture")
    project = folder / "project"
    made_file(project / "labels.jsonl", 2 * "{ not JSON\n")  # the last line alone would be a torn write
    made_file(project / "settings.json", "[]")
    bad = made_file(folder / "bad.json", json.dumps([{"annotations": 3}]))
    python = made_file(folder / "model.py", "def make():\n    return 1 / 0\n")
    latin = made_file(folder / "latin.csv", b"id,text\n1,\xff\xfe\n")
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
        "bench --n-rounds 0": ["bench", "--n-rounds", "0", *out],
        "bench --n-rounds 10**9": ["bench", "--n-rounds", "1000000000", *out],
        "bench --seeds 10**30": ["bench", "--seeds", "1" + "0" * 30, *out],
        "bench --preset": ["bench", "--preset", "none", *out],
        "bench --out is a file": ["bench", "--out", str(table)],
        "report without a folder": ["report", f"{files}/none"],
        "report of a file": ["report", str(table)],
        "report of an empty folder": ["report", files],
        "report of another folder": ["report", str(project)],
        "label without a source": ["label"],
        "label no file": ["label", f"{files}/none"],
        "label empty file": ["label", str(made_file(folder / "empty.csv", "")), "--classes", "a,b", *out],
        "label not UTF-8": [
            "label",
            str(latin),
            "--classes",
            "a,b",
            *out,
        ],
        "label a table without rows": [
            "label",
            str(made_file(folder / "t.csv", "a,b\n")),
            "--classes",
            "a",
            *out,
        ],
        "label --text": ["label", str(table), "--text", "none", "--classes", "a,b", *out],
        "label no classes": ["label", str(table), *out],
        "label empty classes": ["label", str(table), "--classes", ",", *out],
        "label one class": ["label", str(table), "--classes", "", *out],
        "label --query-size 0": ["label", str(table), "--classes", "a,b", "--query-size", "0", *out],
        "label --hold-out 2": ["label", str(table), "--classes", "a,b", "--hold-out", "2", *out],
        "label --hold-out nan": ["label", str(table), "--classes", "a,b", "--hold-out", "nan", *out],
        "label --port": ["label", str(table), "--classes", "a,b", "--port", "99999", *out],
        "label of broken pictures": ["label", str(png.parent), "--classes", "a,b", *out],
        "label --size 0": ["label", str(png.parent), "--classes", "a,b", "--size", "0", *out],
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
            *(str(made_file(folder / "known.csv", "id,label\n1,z\n")), *out),
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
        yield f"skal {name}", REFUSED, lambda a=arguments: ended(a)


def ended(arguments: list[str]) -> None:
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
        raise RefusedCommandError(said.getvalue())
