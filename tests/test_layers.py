"""Imports between the parts of skal go one way, from the command line down to the networks, and never in a circle."""

import ast
import re
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SKAL = Path(__file__).parents[1] / "skal"
# from the top down; a part imports from its own line and from those below it
LAYERS = [
    {"cli"},
    {"labelling", "bench", "_doctor"},
    {"loop", "semi_supervised", "checks"},
    {"learners", "models"},
    {"strategies"},
    {"diagnostics", "loss_prediction", "_lookahead", "audit", "stopping"},
    {"base"},
    {"context", "compat", "_cost"},
    {"tangent", "features", "callbacks"},
    {"_core"},
    {"nets", "datasets", "config"},
    {"validation", "_files", "_vocabulary"},
    {"exceptions", "_sklearn_errors", "_version"},
]
# what lies in skal/strategies and is no strategy: several of them use it
SHARED = {"_candidates", "_coverage", "_coverage_strategy", "_dropout", "_gains", "_information", "_kernel_source"}
SHARED |= {
    "_kmeans",
    "_leaves",
    "_linear_posterior",
    "_names",
    "_pool_features",
    "_probabilities",
    "_replay",
    "_similarity",
    "_spectral",
    "_two_level",
}
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}
FILES = sorted(path for path in SKAL.rglob("*.py") if path != SKAL / "__init__.py")


PARTS = {path.relative_to(SKAL).with_suffix("").parts[0] for path in FILES}


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
        assert part != "strategies" or target != "_core", f"{path.name} imports {name}: they see a context alone"
        if part == "strategies" and path != SKAL / "strategies" / "__init__.py" and target == "strategies":
            own = path.relative_to(SKAL / "strategies").with_suffix("").parts[0]
            other = [*name.split("."), "all of them"][2]
            assert other in {own, *SHARED}, f"{path.name} imports {name}: strategies do not import one another"


@pytest.mark.parametrize("path", sorted((SKAL / "strategies").rglob("*.py")), ids=lambda path: path.name)
def test_strategies_do_not_import_the_core(path):
    """What a strategy of skal's uses, anybody's can use, but for names, helpers and mathematics of gradients."""
    hidden = {name for name in imported(path) if "._" in name}
    known = ("skal.strategies.", "skal.tangent.", "skal._lookahead", "skal._vocabulary")
    assert {name for name in hidden if not name.startswith(known)} == set()


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
    for part in PARTS - {"_version"}:
        assert re.search(rf"^\|.*`skal/{part}(/|\.py)`", map_of_parts, re.MULTILINE), f"{part} is not on the map"


def test_the_docstring_of_skal_names_every_room():
    named = set(re.findall(r"``skal\.(\w+)``", ast.get_docstring(ast.parse((SKAL / "__init__.py").read_text("utf-8")))))
    assert named == PARTS - {"_version"}


def module_name(path):
    return ".".join(["skal", *path.relative_to(SKAL).with_suffix("").parts]).removesuffix(".__init__")


def needed(path, modules):
    """The modules that must be there before this one: imports for types count, those inside functions do not."""
    nodes = list(ast.parse(path.read_text(encoding="utf-8")).body)
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in modules else node.module for name in inside]
        else:
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                nodes.extend(ast.iter_child_nodes(node))
            continue
        yield from (name for name in names if name in modules)


def cycle(graph):
    """Modules that import one another in a circle; empty if there are none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_no_module_imports_itself_in_a_circle():
    modules = {module_name(path): path for path in FILES}
    graph = {name: set(needed(path, modules)) - {name} for name, path in modules.items()}
    rooms = defaultdict(dict)
    for name, others in graph.items():
        rooms[name.split(".")[1]][name] = others
    # first room by room, so that every room with a circle is named
    assert {room: found for room, part in rooms.items() if (found := cycle(part))} == {}
    assert cycle(graph) == []


def test_no_two_modules_have_the_same_base_name():
    places = defaultdict(list)
    for path in FILES:
        if path.name != "__init__.py":
            places[path.stem.lstrip("_")].append(path.relative_to(SKAL).as_posix())
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}
