"""The house in numbers: how far a query walks, how much code there is, and how it hangs together.

``python -m benchmarks.house [--root FOLDER]``. FOLDER is another checkout of skal, of an earlier state for
example; its numbers then stand before those of this one, so that before and after come from one command:
``git worktree add FOLDER ca073ec`` is the end of the redesign that the aims were set for.
``python -m benchmarks.house --walk "Margin, MLP"`` lists the functions that a call passes, in the order in which to
read them; ``--only NAME ...`` counts what these calls pass and leaves the other calls out.

Code lines are without docstrings, comments and blank lines; a module is a file, ``__init__.py`` too. The core is the
whole package but ``labelling``, ``bench``, ``checks``, and what only papers and examples need: ``semi_supervised``,
``diagnostics``, ``loss_prediction``, ``nets``, ``datasets``, ``callbacks``, and the comparators of the look-ahead. The
aims were set before audits, certificates, saved models, features of raw data, regression, several labels at once, teams
and a few strategies came: their modules and pages are counted apart; by how much they made others grow is not.
A cycle is a set of modules that import one another, directly or by way of others; imports in functions count, and so do
those for type checkers only. Participles are told by their endings, so that the list may be wrong in both directions. A
test uses private names if it, or a helper in its file, uses a name of skal with an underscore, or patches something.

What a call passes are the modules of skal and the functions in them that are called, and how often a call is in another
module than the call before it. The default start of ``fit`` is a query of its own, of features by ``MaxHerding``; a
random start leaves the loop and one query by ``Margin``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks._house_source import Package, count_tests, prose_words
from benchmarks._measure import markdown

HERE = Path(__file__).parents[1]
AIMS = {
    "modules of _core without later ones": "about 13",
    "modules of loop without later ones": "about 14",
    "modules in import cycles": "0",
    "code lines of the core without later modules": "at most 13,000",
    "module names that occur twice": "0",
    "functions named by a participle": "0",
    "test functions that use private names": "15 %",
    "words of prose in docs without later pages": "about 35,000",
    "Margin, LogisticRegression": "10 / 40",
    "Margin, MLP": "12 / 60",
    "NTKLookahead, CNN, squared loss": "28 / 200",
    "fit, one round, LogisticRegression": "30 / 180",
}
# where a number misses its aim: what is in the way, and why it stays
REASONS = {
    "modules of loop without later ones": (
        "Two were cut in two: the classifier, when the regressor came to share its loop, and the session, when answers "
        "of several people, audits and doubtful labels came to be read from it."
    ),
    "code lines of the core without later modules": (
        "The redesign went from 14,905 to 13,718 (commit ca073ec). Since then tasks, targets, teams and audits have "
        "made old modules grow, too. What is left to cut are shortcuts, without which queries take several times as "
        "long."
    ),
    "Margin, LogisticRegression": (
        "Seven functions more: three find the task, two ask whether the estimator is fitted, one whether it is a "
        "committee, and one whether all numbers are finite. Each serves a case that users have, and is asked once."
    ),
    "Margin, MLP": (
        "Besides, a network's criterion, device, double precision, form and values of outputs, and binary case are a "
        "function or two each; five keep a pass near the processor's cache, and three notice outputs that depend on "
        "chance or on the batch. Fewer functions would each answer several questions."
    ),
    "NTKLookahead, CNN, squared loss": "As for the MLP, twice: probabilities and tangents have passes of their own.",
    "fit, one round, LogisticRegression": (
        "The default start is a query of its own, which prepares tables; with a random start the aim is met."
    ),
}

read = lru_cache(Package)  # the package of a checkout
Tables = dict[str, dict[str, str]]  # title, name of a row, cell


@lru_cache
def run_queries(root: Path, names: tuple[str, ...] = ()) -> dict[str, Any]:
    """What :mod:`benchmarks._house_queries` prints, in a process that imports the checkout's skal and no other.

    Of the queries with these names; without names, of all.
    """
    script = Path(__file__).with_name("_house_queries.py")
    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, str(script), *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    if Path(found["home"]).resolve() != (root / "skal").resolve():
        raise RuntimeError(f"skal came from {found['home']} and not from {root}.")
    return found


def count(root: Path, names: tuple[str, ...] = ()) -> Tables:
    """All numbers of a checkout, or those of the queries with these names alone."""
    package, found = read(root), run_queries(root, names)
    n_tests, private = count_tests(root)
    cycles, (core, later), (words, later_words) = package.cycles(), package.core_lines(), prose_words(root)
    house = {"modules": str(len(package.sources))}
    for room in ("_core", "loop"):
        n_modules, n_later = package.count_modules(room)
        house |= {
            f"modules of {room}": str(n_modules),
            f"modules of {room} without later ones": str(n_modules - n_later),
        }
    house |= {
        "code lines": f"{sum(lines for _, lines in package.sizes.values()):,}",
        "code lines of the core": f"{core:,}",
        "code lines of the core without later modules": f"{core - later:,}",
        "modules in import cycles": str(sum(map(len, cycles))),
        "the largest cycle": str(max(map(len, cycles), default=0)),
        "module names that occur twice": str(len(package.double_names())),
        "functions named by a participle": str(len(package.participles())),
        "public functions and classes": str(found["public"]),
        "test functions": f"{n_tests:,}",
        "test functions that use private names": f"{private} ({private / max(1, n_tests):.0%})".replace("%", " %"),
        "words of prose in docs": f"{words:,}",
        "words of prose in docs without later pages": f"{words - later_words:,}",
    }
    walks = {name: " / ".join(f"{n:,}" for n in walk["counts"]) for name, walk in found["walks"].items()}
    sizes = {room: f"{modules} / {lines:,}" for room, (modules, lines) in sorted(package.sizes.items())}
    in_rooms = {room: [len(cycle) for cycle in package.cycles(room)] for room in package.sizes}
    return {
        "The house": house,
        "Modules / functions / switches that a call passes, with 200 samples": walks,
        "Modules / code lines": sizes,
        "Sizes of the import cycles within a package": {
            room: ", ".join(map(str, found)) for room, found in in_rooms.items() if found
        },
    }


def list_names(root: Path) -> str:
    """The names behind the numbers: cycles, double names, participles."""
    package = read(root)
    lists = {
        "Import cycles": [", ".join(cycle) for cycle in package.cycles()],
        "Module names that occur twice": [", ".join(package.double_names())],
        "Functions named by a participle": [", ".join(package.participles())],
    }
    return "\n".join(f"- {title}: {'; '.join(filter(None, found)) or 'none'}" for title, found in lists.items())


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.house", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--root", type=Path, metavar="FOLDER", help="another checkout, to stand before this one")
    names = {"metavar": "NAME", "nargs": "+", "default": []}
    parser.add_argument("--walk", **names, help="list the functions that a call passes, such as 'Margin, MLP'")
    parser.add_argument("--only", **names, help="leave the calls with other names out")
    args = parser.parse_args(argv)
    asked = tuple(args.walk or args.only)
    if asked:
        found = run_queries(HERE, asked)
        if unknown := [name for name in asked if name not in found["names"]]:
            parser.error(f"A call must be one of {'; '.join(found['names'])}. Got {unknown[0]!r}.")
    if args.walk:
        print("\n\n".join("\n".join(found["walks"][name]["functions"]) for name in args.walk))
        return 0
    roots = {"here": HERE} if args.root is None else {"before": args.root.resolve(), "here": HERE}
    if missing := [str(root) for root in roots.values() if not (root / "skal" / "__init__.py").exists()]:
        parser.error(f"{', '.join(missing)} is no checkout of skal: it has no folder skal with an __init__.py.")
    columns = {name: count(root, asked) for name, root in roots.items()}
    for title in columns["here"]:
        names = dict.fromkeys(name for tables in columns.values() for name in tables[title])
        aimed = any(name in AIMS for name in names)
        rows: list[list[object]] = [
            [name, *(tables[title].get(name, "–") for tables in columns.values()), *([AIMS.get(name, "")] * aimed)]
            for name in names
        ]
        print(f"\n### {title}\n\n{markdown(['', *columns, *(['aim'] * aimed)], rows)}")
        if reasons := [f"- {name}: {REASONS[name]}" for name in names if name in REASONS]:
            print("\nWhy some aims are missed:\n\n" + "\n".join(reasons))
    for name, root in roots.items():
        print(f"\n### Names, {name}\n\n{list_names(root)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
