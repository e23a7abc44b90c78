"""modAL's own tests, examples and notebooks: without skal, with skal imported, with skal's learner in modAL's place.

``python -m benchmarks.modal_suite FOLDER [--only tests|examples|notebooks] [--timeout SECONDS]``; FOLDER is a clone of
modAL's repository. The release of modAL is the one that Python finds: put another one on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

# what a process does before it runs anything of modAL's
WAYS = {
    "without skal": "",
    "with skal": "import skal",
    "with skal's learner": (
        "import skal, modAL.models.learners\n"
        "for module in (modAL, modAL.models, modAL.models.learners):\n"
        "    module.ActiveLearner = skal.ActiveLearner"
    ),
}
# the annotation np.float hides what else is wrong: one test module imports all of modAL
FLOAT = "import numpy\nnumpy.float = float"
PACKAGES = ("modAL-python", "numpy", "pandas", "scikit-learn", "scipy", "skorch", "torch", "matplotlib")
TESTS = "tests/core_tests.py"


def find(folder: Path) -> dict[str, list[Path]]:
    """The files to run, by kind; notebooks that an editor has put aside do not count."""
    hidden = {path for path in folder.rglob("*.ipynb") if any(p[0] == "." for p in path.relative_to(folder).parts)}
    return {
        "tests": [folder / TESTS] if (folder / TESTS).exists() else [],
        "examples": sorted((folder / "examples").glob("*.py")),
        "notebooks": sorted(set(folder.rglob("*.ipynb")) - hidden),
    }


def source(path: Path) -> str:
    """The code of a script, or of a notebook's cells without the lines that only IPython understands."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return text
    cells = ["".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    return "\n\n".join(
        "\n".join(line for line in cell.split("\n") if line[:1] not in ("%", "!", "?")) for cell in cells
    )


def missing(code: str) -> str:
    """The first package that the code imports and that cannot be imported here; modAL is not asked."""
    imports = [node for node in ast.walk(ast.parse(code)) if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {n.name for i in imports if isinstance(i, ast.Import) for n in i.names}
    names |= {i.module for i in imports if isinstance(i, ast.ImportFrom) and i.module and not i.level}
    for name in sorted({name.split(".")[0] for name in names} - {"modAL"}):
        try:
            importlib.import_module(name)
        except Exception:  # some packages fail in ways of their own
            return name
    return ""


def run_tests(path: Path) -> dict[str, Any]:
    """How many tests of a module pass, and what the others say."""
    sys.path.insert(0, str(path.parent))
    n_tests = sum(
        isinstance(node, ast.FunctionDef) and node.name.startswith("test") for node in ast.walk(ast.parse(source(path)))
    )
    try:
        module = importlib.import_module(path.stem)
    except Exception as error:
        return {"total": n_tests, "passed": 0, "failed": {path.name: _said(error)}}
    with open(os.devnull, "w") as nowhere:
        result = unittest.TextTestRunner(nowhere).run(unittest.defaultTestLoader.loadTestsFromModule(module))
    failed = {test.id(): trace.strip().splitlines()[-1] for test, trace in result.failures + result.errors}
    return {"total": result.testsRun, "passed": result.testsRun - len(failed), "failed": failed}


def run_script(path: Path) -> dict[str, Any]:
    """Whether a script or notebook runs to its end."""
    code = source(path)
    if lacking := missing(code):
        return {"lacks": lacking}
    _old_style_names()
    import numpy as np

    np.random.seed(0)
    try:
        exec(compile(code, str(path), "exec"), {"__name__": "__main__"})
    except Exception as error:
        return {"error": _said(error)}
    return {}


def _old_style_names() -> None:
    """matplotlib calls its seaborn styles by other names since 3.8; that is none of modAL's business."""
    from matplotlib import style

    for name in list(style.library):
        style.library.setdefault(name.replace("-v0_8", ""), style.library[name])


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def child(way: str, path: str) -> None:
    """One file in one way, in a process of its own; prints what came out as JSON."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        exec(way, {})
        file = Path(path)
        result = run_tests(file) if file.name == Path(TESTS).name else run_script(file)
    print(json.dumps(result))


def run(way: str, path: Path, timeout: float) -> dict[str, Any]:
    """What :func:`child` found."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.modal_suite", "--child", way, str(path.resolve())]
    here = str(Path(__file__).resolve().parents[1])
    python_path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"MPLBACKEND": "Agg", "PYTHONPATH": python_path}
    with tempfile.TemporaryDirectory() as folder:  # examples leave files behind
        try:
            done = subprocess.run(
                command, cwd=folder, env=environment, timeout=timeout, capture_output=True, text=True, check=False
            )
        except subprocess.TimeoutExpired:
            return {"error": f"not done after {timeout:.0f} s"}
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])


def count(results: dict[Path, dict[str, Any]]) -> tuple[int, int, list[str]]:
    """How many passed, out of how many that can be run here, and what the others say."""
    passed, total, said = 0, 0, []
    for path, result in results.items():
        if "total" in result:  # a module of tests
            passed, total = passed + result["passed"], total + result["total"]
            said += [f"{name}: {why}" for name, why in result["failed"].items()]
        elif "lacks" in result:
            said.append(f"{path.name}: not run, needs {result['lacks']}")
        else:
            passed, total = passed + ("error" not in result), total + 1
            said += [f"{path.name}: {result['error']}"] if "error" in result else []
    return passed, total, said


def main(argv: Sequence[str] | None = None) -> int:
    """Print the counts, and return 1 if something fails with skal."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.modal_suite", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="a clone of modAL's repository")
    parser.add_argument("--only", choices=["tests", "examples", "notebooks"], help="one kind of file")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for one file (default: 1800)")
    parser.add_argument("--child", nargs=2, metavar=("WAY", "PATH"), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        child(*args.child)
        return 0
    if args.folder is None:
        print("Nothing to run: name the folder of a clone of modAL's repository.")
        return 0
    kinds = {kind: paths for kind, paths in find(args.folder).items() if paths and args.only in (None, kind)}
    if not kinds:
        parser.error(f"{args.folder} holds no {TESTS}, no examples/*.py and no notebooks")
    print(", ".join(f"{name} {version(name)}" for name in PACKAGES), flush=True)
    print(f"\n| | {' | '.join(WAYS)} |\n|---|{'---|' * len(WAYS)}")
    rest, status = [], 0
    for kind, paths in kinds.items():
        cells = []
        for way, code in WAYS.items():
            passed, total, said = count({path: run(code, path, args.timeout) for path in paths})
            cells.append(f"{passed} of {total}")
            rest += [f"{kind} {way}: {line}" for line in said]
            status |= bool(code) and passed < total
        print(f"| {kind} | {' | '.join(cells)} |", flush=True)
    if "tests" in kinds:
        passed, total, said = count({path: run(FLOAT, path, args.timeout) for path in kinds["tests"]})
        rest += [f"tests without skal, np.float put back by hand: {line}" for line in said]
        print(f"\nTests without skal, with np.float put back by hand: {passed} of {total}.")
    print("\n".join(["", *rest]))
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
