"""What can be counted in the files of a checkout without running it: the part of :mod:`benchmarks.house` that reads."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

# everything else is the core: labelling, measuring and checking are not, nor is what only papers and examples need
NOT_CORE = re.compile(
    r"skal\.((labelling|bench|checks|semi_supervised|diagnostics|loss_prediction|nets|datasets)\b.*"
    r"|callbacks|_lookahead\._?comparators)"
)
# parts of the core that came after its aim was set: what they do is not in the number that the aim was made for
LATER = re.compile(
    r"skal\.(audit\b.*|features\._(?!compute|remembered).*|models\._(allowed|card|persist|saved_model)"
    r"|models\._row_predictors|_doctor|_core\.(tasks|meaning|precision|device_copy)"
    r"|loop\._(active_regressor|audit_report|consensus|doubtful|final|row_labels)"
    r"|stopping\._(certified|labels_needed)|tangent\._layers"
    r"|strategies\._(cluster_margin|leaves|lcmd|linear_posterior|max_det|predictive_std))"
)
# and pages on what came later
LATER_PAGES = re.compile(
    r"guide/(audit|features|gpu|label_studio|models|pretrained|tasks)\.md|evidence/(raw|regression|yours)\.md"
)
_LAYOUT = {getattr(tokenize, name) for name in ("COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENDMARKER")}
_PARTICIPLE = re.compile(
    r"\w{2,}(ed|en)|made|kept|found|told|held|built|sent|shown|drawn|done|lost|known|grown|taught|brought|gone|spent"
)
_ALONE = {"said", "left"}  # behind another word they are nouns, as in say_time_left
_OTHER_WORDS = re.compile(r"seed|need|feed|embed|exceed|speed|open|shorten|flatten|token|between|squared|whiten")
# is_fitted asks, n_labelled counts, check_known orders
_FIRST_WORDS = re.compile(
    r"(is|sklearn_is|has|was|can|uses|only|n|add|check|count|draw|expect|fit|load|raise|refuse|require|set|settle|write)_"
)
# three are what asyncio calls, and one makes a pre-trained transformer
_GIVEN = {"connection_made", "connection_lost", "data_received", "pretrained"}
# these four are every named tuple's, one is os._exit, and notebooks ask any object for _repr_html_
_PRIVATE = re.compile(r"_(?!_|asdict$|replace$|fields$|make$|exit$|repr_\w+_$)")
# what the environment of a program is, as users set it
_SURROUNDINGS = {"setenv", "delenv", "chdir", "syspath_prepend"}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(source: str) -> int:
    """Lines with code: no docstring, no comment, not blank."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, *_FUNCTIONS)) and ast.get_docstring(node, clean=False):
            first = node.body[0]
            lines.difference_update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(lines)


class Package:
    """The modules of ``root/skal`` by their dotted names, as source and as syntax trees."""

    def __init__(self, root: Path) -> None:
        self.sources: dict[str, str] = {}
        self.packages: set[str] = set()
        for path in sorted((root / "skal").rglob("*.py")):
            name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
            self.sources[name] = path.read_text(encoding="utf-8")
            self.packages |= {name} if path.name == "__init__.py" else set()
        self.trees = {name: ast.parse(source) for name, source in self.sources.items()}

    def room(self, module: str) -> str:
        """The package directly in skal that a module belongs to; modules at the top have none."""
        top = module.split(".")[:2]
        return top[1] if len(top) == 2 and ".".join(top) in self.packages else "(top)"

    @cached_property
    def lines(self) -> dict[str, int]:
        """Code lines by module."""
        return {name: code_lines(source) for name, source in self.sources.items()}

    @cached_property
    def sizes(self) -> dict[str, tuple[int, int]]:
        """Modules, ``__init__.py`` among them, and code lines by room."""
        found: dict[str, tuple[int, int]] = {}
        for name, own in self.lines.items():
            modules, lines = found.get(self.room(name), (0, 0))
            found[self.room(name)] = (modules + 1, lines + own)
        return found

    def core_lines(self) -> tuple[int, int]:
        """Code lines of the core, and how many of them are in modules of ``LATER``."""
        own = {name: lines for name, lines in self.lines.items() if not NOT_CORE.fullmatch(name)}
        return sum(own.values()), sum(lines for name, lines in own.items() if LATER.fullmatch(name))

    def count_modules(self, room: str) -> tuple[int, int]:
        """Modules of a room, and how many of them are of ``LATER``."""
        own = [name for name in self.sources if self.room(name) == room]
        return len(own), sum(bool(LATER.fullmatch(name)) for name in own)

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """The modules that each module imports anywhere: at its top, in functions, and for type checkers only."""
        return {name: set(self._imports_of(name)) - {name} for name in self.sources}

    def _imports_of(self, module: str) -> Iterator[str]:
        package = module.split(".") if module in self.packages else module.split(".")[:-1]
        for node in ast.walk(self.trees[module]):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names if alias.name in self.sources)
            elif isinstance(node, ast.ImportFrom):
                above = package[: len(package) - node.level + 1] if node.level else []
                source = ".".join([*above, *([node.module] if node.module else [])])
                for alias in node.names:
                    target = f"{source}.{alias.name}" if f"{source}.{alias.name}" in self.sources else source
                    yield from [target] if target in self.sources else []

    def cycles(self, room: str | None = None) -> list[list[str]]:
        """Sets of modules that import one another, directly or by way of others; within a room if it is named."""
        names = {name for name in self.sources if room is None or self.room(name) == room}
        reach = {name: set[str]() for name in names}
        for name in names:
            left = [name]
            while left:
                new = self.imports[left.pop()] & names - reach[name]
                reach[name] |= new
                left += new
        groups = {frozenset(other for other in reach[name] if name in reach[other]) for name in names}
        return sorted((sorted(group) for group in groups if len(group) > 1), key=len, reverse=True)

    def double_names(self) -> list[str]:
        """Base names, without a leading underscore, of more than one module."""
        names = Counter(name.split(".")[-1].removeprefix("_") for name in self.sources if name not in self.packages)
        return sorted(name for name, count in names.items() if count > 1)

    @cached_property
    def functions(self) -> list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        """All functions, each behind the name of its module."""
        walks = ((name, node) for name, tree in self.trees.items() for node in ast.walk(tree))
        return [(name, node) for name, node in walks if isinstance(node, _FUNCTIONS)]

    def participles(self) -> list[str]:
        """Functions whose last word ends like a participle; no properties, no predicates."""
        return [
            f"{module}.{node.name}"
            for module, node in self.functions
            if _is_participle(node.name.strip("_"))
            and not any("property" in ast.unparse(mark) for mark in node.decorator_list)
        ]


def _is_participle(name: str) -> bool:
    last = name.split("_")[-1]
    allowed = name in _GIVEN or _OTHER_WORDS.fullmatch(last) or _FIRST_WORDS.match(name)
    return name in _ALONE or (bool(_PARTICIPLE.fullmatch(last)) and not allowed)


def count_tests(root: Path) -> tuple[int, int]:
    """Test functions in all, and those that use private names of skal or patch something by ``monkeypatch``.

    Private is a name with an underscore that is imported from skal, an attribute with one of anything but ``self``, a
    text such as ``"skal.bench._run"``, and a helper or fixture of the same file that uses any of these. To set a
    variable of the environment, the working folder or the path of imports is no patch: users set them, too.
    """
    total = private = 0
    for path in sorted((root / "tests").rglob("test_*.py")):
        nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
        own = [node for node in nodes if isinstance(node, _FUNCTIONS)]
        names = _private_imports(nodes) | {"monkeypatch"}
        for _ in range(3):  # a helper of a helper
            names |= {node.name for node in own if not node.name.startswith("test") and _uses(node, names)}
        cases = [node for node in own if node.name.startswith("test")]
        total += len(cases)
        private += sum(_uses(node, names) for node in cases)
    return total, private


def _private_imports(nodes: Iterable[ast.AST]) -> set[str]:
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    own = [node for node in imports if (node.module or "").split(".")[0] == "skal"]
    return {a.asname or a.name for node in own for a in node.names if "._" in f"{node.module}.{a.name}"}


def _uses(function: ast.FunctionDef | ast.AsyncFunctionDef, names: set[str]) -> bool:
    nodes = [*ast.walk(function)]
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    harmless = {id(node.value) for node in attributes if node.attr in _SURROUNDINGS}
    return any(
        (isinstance(node, ast.arg) and node.arg in names - {"monkeypatch"})
        or (isinstance(node, ast.Name) and node.id in names and id(node) not in harmless)
        or (isinstance(node, ast.Constant) and re.match(r"skal\..*\._", str(node.value)))
        or (isinstance(node, ast.Attribute) and _PRIVATE.match(node.attr) and not _is_own(node.value))
        for node in nodes
    )


def _is_own(value: ast.expr) -> bool:
    return ast.unparse(value) in ("self", "super()")


def prose_words(root: Path) -> tuple[int, int]:
    """Words in the Markdown files of docs, without code blocks and tables; and those on pages of ``LATER_PAGES``."""
    total = later = 0
    for path in sorted((root / "docs").rglob("*.md")):
        text = re.sub(r"^( *)(`{3,}|~{3,}).*?^\1\2`*$", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
        own = sum(len(line.split()) for line in text.splitlines() if not line.lstrip().startswith("|"))
        total += own
        later += own * bool(LATER_PAGES.fullmatch(path.relative_to(root / "docs").as_posix()))
    return total, later
