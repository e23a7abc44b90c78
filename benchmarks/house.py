"""The house in numbers: what is public, how far a query walks, how much code there is, who reads whose private names.

``python -m benchmarks.house [--root FOLDER] [--accesses] [--quick]``. FOLDER is another checkout of skal, of an earlier
state for example; its numbers then stand beside those of this one, so that before and after come from one command.

Modules at the top are the public modules directly in ``skal/``. What a query passes are the modules of skal and the
functions in them that are called, and how often a call is in another module than the call before it. Code lines are
without docstrings, comments and blank lines.

An access to another class's underscore names is an attribute ``x._name``, or ``getattr(x, "_name")`` and the like,
where ``x`` is not ``self``, ``cls``, ``super()`` or ``type(self)``. Names do not count that the accessing class defines
itself (as a method, a class attribute or an attribute of ``self``: then ``x`` is taken for another instance), nor,
outside of classes, those that the module defines. Names with two underscores do not count, nor do the five that every
named tuple has: they are documented, and have an underscore only to stay out of the way of field names. A name that no
module of skal defines is another package's.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks._measure import markdown

HERE = Path(__file__).parents[1]
# the look-ahead, wherever it lies
LOOKAHEAD = (
    "_lookahead/*.py",
    "strategies/_lookahead*.py",
    "learners/_linearized*.py",
    "linearized.py",
    "retraining.py",
    "tangent/_lookahead*.py",
    "tangent/_direct.py",
    "tangent/_infinite.py",
)
LAYOUT_TOKENS = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
NAMED_TUPLE = {"_asdict", "_replace", "_make", "_fields", "_field_defaults"}


def top_modules(skal: Path) -> list[str]:
    """Names of the public modules directly in the package."""
    return sorted(path.stem for path in skal.glob("*.py") if not path.stem.startswith("_"))


def code_lines(source: str) -> int:
    """Lines with code: no docstring, no comment, not blank."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT_TOKENS:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and (
            ast.get_docstring(node, clean=False) is not None
        ):
            first = node.body[0]
            lines.difference_update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(lines)


def code_by_part(skal: Path) -> Counter[str]:
    """Code lines of each package and top module."""
    found: Counter[str] = Counter()
    for path in skal.rglob("*.py"):
        found[path.relative_to(skal).parts[0]] += code_lines(path.read_text(encoding="utf-8"))
    return found


def lookahead(skal: Path) -> tuple[int, int]:
    """Files and lines, all of them, of the look-ahead."""
    files = {path for pattern in LOOKAHEAD for path in skal.glob(pattern)}
    return len(files), sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)


def foreign_accesses(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of every access to another class's underscore names, as the module's docstring defines them."""
    nodes: list[tuple[ast.AST, set[str]]] = [(tree, defined(tree))]
    for node, own in nodes:
        inside = defined(node) if isinstance(node, ast.ClassDef) else own
        nodes += ((child, inside) for child in ast.iter_child_nodes(node))
        if isinstance(node, ast.Attribute):
            value, name = node.value, node.attr
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in {"getattr", "hasattr", "setattr", "delattr"}
            and isinstance(node.args[1], ast.Constant)
        ):
            value, name = node.args[0], node.args[1].value
        else:
            continue
        private = name.startswith("_") and not name.startswith("__")
        if private and name not in own | NAMED_TUPLE and not _is_self(value):
            yield node.lineno, name


def defined(tree: ast.AST) -> set[str]:
    """Names of functions, classes, variables and attributes of ``self`` that a tree defines."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
            found.add(node.attr)
    return found


def _is_self(node: ast.expr) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id == "super" or (node.func.id == "type" and all(map(_is_self, node.args)))
    return isinstance(node, ast.Name) and node.id in {"self", "cls"}


def accesses(skal: Path) -> tuple[list[str], list[str]]:
    """Accesses to underscore names of skal's own classes and of other packages', as ``file:line name``."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(skal.rglob("*.py"))}
    known = set().union(*map(defined, trees.values()))
    own, others = [], []
    for path, tree in trees.items():
        for line, name in sorted(foreign_accesses(tree)):
            (own if name in known else others).append(f"{path.relative_to(skal.parent).as_posix()}:{line} {name}")
    return own, others


def queries(root: Path, repeats: int) -> dict[str, Any]:
    """What :mod:`benchmarks._house_queries` prints, in a process that imports the checkout's skal and no other."""
    script = Path(__file__).with_name("_house_queries.py")
    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, str(script), str(repeats)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    if Path(found["home"]).resolve() != (root / "skal").resolve():
        raise RuntimeError(f"skal came from {found['home']} and not from {root}.")
    return found


def numbers(root: Path, repeats: int) -> dict[str, dict[str, str]]:
    """Title of a table: name of a row: cell."""
    skal = root / "skal"
    lines, found = code_by_part(skal), queries(root, repeats)
    files, total = lookahead(skal)
    own, others = accesses(skal)
    house = {
        "modules at the top": str(len(top_modules(skal))),
        "code lines": f"{sum(lines.values()):,}",
        "look-ahead, files": str(files),
        "look-ahead, lines in all": f"{total:,}",
        "accesses to another class's underscore names": str(len(own)),
        "the same, of classes of other packages": str(len(others)),
    }
    walks = {name: " / ".join(map(str, counts)) for name, counts in found["walks"].items()}
    arms = {"default": "by default", "reuse": "inside feature_reuse()"}
    times = {
        f"{net}, {words}": f"{ratios[arm]:.2f}" for net, ratios in found["times"].items() for arm, words in arms.items()
    }
    return {
        "The house": house,
        "Modules / functions / switches that a query passes, with 200 samples": walks,
        "CPU time of a first query, as a ratio to one without any reuse": times,
        "Code lines": {part: f"{count:,}" for part, count in sorted(lines.items())},
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.house", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--root", type=Path, metavar="FOLDER", help="another checkout, to stand beside this one")
    parser.add_argument("--accesses", action="store_true", help="list the accesses to underscore names and stop")
    parser.add_argument("--quick", action="store_true", help="time each query once, to see that it runs")
    args = parser.parse_args(argv)
    roots = {"here": HERE} if args.root is None else {"other": args.root.resolve(), "here": HERE}
    if missing := [str(root) for root in roots.values() if not (root / "skal" / "__init__.py").exists()]:
        parser.error(f"{', '.join(missing)} is no checkout of skal: it has no folder skal with an __init__.py.")
    if args.accesses:
        own, others = accesses(next(iter(roots.values())) / "skal")
        print("\n".join(["Of classes of skal:", *own, "", "Of other packages:", *others]))
        return 0
    columns = {name: numbers(root, 1 if args.quick else 25) for name, root in roots.items()}
    for title in columns["here"]:
        names = dict.fromkeys(name for tables in columns.values() for name in tables[title])
        rows: list[list[object]] = [
            [name, *(tables[title].get(name, "–") for tables in columns.values())] for name in names
        ]
        print(f"\n### {title}\n\n{markdown(['', *columns], rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
