"""Imports between the parts of skal go one way, from the command line down to the networks."""

import ast
import re
from pathlib import Path

import pytest

SKAL = Path(__file__).parents[1] / "skal"
# from the top down; a part imports from its own line and from those below it
LAYERS = [
    {"cli"},
    {"labelling", "bench"},
    {"loop", "semi_supervised", "checks"},
    {"learners"},
    {"strategies"},
    {"diagnostics", "loss_prediction", "_lookahead"},
    {"base", "context", "compat"},
    {"tangent", "callbacks"},
    {"_core", "reuse", "features"},
    {"nets", "datasets"},
    {"audit", "stopping"},
    {"validation"},
    {"exceptions", "_version"},
]
# what lies in skal/strategies and is no strategy: several of them use it
SHARED = {"_coverage", "_coverage_strategy", "_features", "_fisher", "_gains", "_kernel_source", "_kmeans", "_pairs"}
SHARED |= {"_measures", "_names", "_pool_features", "_similarity", "_temperature", "_two_level", "_typicality"}
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}
FILES = sorted(path for path in SKAL.rglob("*.py") if path != SKAL / "__init__.py")


def part_of(path):
    return path.relative_to(SKAL).with_suffix("").parts[0]


def imported(path):
    """The modules of skal that a file imports, as dotted names; ``import skal`` itself counts as ``skal``."""
    package = ["skal", *path.relative_to(SKAL).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            # `from skal import strategies` imports skal.strategies
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "skal" else [module]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] == "skal")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SKAL).as_posix())
def test_imports_go_down(path):
    part = part_of(path)
    assert part in LEVEL, f"{part} is new: give it a place in LAYERS"
    for name in imported(path):
        target = name.split(".")[1] if "." in name else "__init__"
        assert target in LEVEL, f"{path.name} imports {name}, which has no layer"
        assert LEVEL[target] >= LEVEL[part], f"{path.name} imports {name}, which lies above it"
        if part in {"nets", "datasets"}:
            known = {part, "validation", "exceptions"}
            assert target in known, f"{path.name} imports {name}: {part} must know nothing of the rest of skal"
        if part == "strategies" and path != SKAL / "strategies" / "__init__.py" and target == "strategies":
            own = path.relative_to(SKAL / "strategies").with_suffix("").parts[0]
            other = [*name.split("."), "all of them"][2]
            assert other in {own, *SHARED}, f"{path.name} imports {name}: strategies do not import one another"


def test_the_rule_can_fail(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "SKAL", tmp_path)
    (tmp_path / "nets").mkdir()
    bad = tmp_path / "nets" / "_bad.py"
    bad.write_text("from skal import cli\nimport skal.base\nfrom . import _cnn\nfrom ._mlp import MLP\nimport numpy\n")
    assert list(imported(bad)) == ["skal.cli", "skal.base", "skal.nets", "skal.nets._mlp"]
    with pytest.raises(AssertionError, match="lies above"):
        test_imports_go_down(bad)


def test_contributing_has_the_same_layers_and_a_line_for_every_part():
    text = (SKAL.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    block = text.split("## Layers")[1].split("```")[1].removeprefix("text\n")
    assert [set(line.split(", ")) for line in block.splitlines()] == LAYERS
    map_of_parts = text.split("## Layers")[0]
    for part in LEVEL.keys() - {"_version"}:
        assert re.search(rf"^\|.*`skal/{part}(/|\.py)`", map_of_parts, re.MULTILINE), f"{part} is not on the map"


def test_the_docstring_of_skal_names_every_room():
    named = set(re.findall(r"``skal\.(\w+)``", ast.get_docstring(ast.parse((SKAL / "__init__.py").read_text("utf-8")))))
    assert named == set(LEVEL) - {"_version"}
