"""The API reference: every public object is documented, with an example that is run."""

import dataclasses
import doctest
import functools
import importlib
import inspect
import pkgutil
import re
import sys
from pathlib import Path

import pytest

import skal
import skal.strategies

ROOT = Path(__file__).parents[1]
INDEX = ROOT / "docs" / "api" / "index.md"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "docs/index.md")),
    *sorted((ROOT / "docs" / "guide").glob("*.md")),
    *sorted((ROOT / "docs" / "evidence").glob("*.md")),
    *sorted((ROOT / "docs" / "tutorials").glob("*.py")),
]
MODULES = re.findall(r"^   (skal[\w.]*)$", INDEX.read_text(encoding="utf-8"), re.MULTILINE)
# without an underscore, and yet not for users: no page may tell them to import from here. What skal itself exports of
# skal.learners and skal.learners._linearized is on skal's page
INTERNAL = {"skal.compat"}


def public_objects():
    """``(module, name)`` of every public object, each once."""
    seen, found = set(), []
    for module in MODULES:
        for name in importlib.import_module(module).__all__:
            key = id(getattr(importlib.import_module(module), name))
            if key not in seen:
                seen.add(key)
                found.append((module, name))
    return found


def public_members(cls):
    """Name and docstring of every method and property of a class that skal defines and a user may call."""
    for base in cls.__mro__:
        if base.__module__.split(".")[0] != "skal" or base.__name__.startswith("_"):
            continue
        for name, member in vars(base).items():
            if not name.startswith("_") and (inspect.isroutine(member) or hasattr(type(member), "__get__")):
                yield f"{base.__name__}.{name}", member.__doc__


def sections(doc):
    """The parts of a numpydoc docstring by title, what comes before the first under ``""``."""
    lines = [line.rstrip() for line in inspect.cleandoc(doc).split("\n")]
    parts, title, skip = {"": []}, "", False
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if skip:  # the dashes under a title
            skip = False
        elif line.strip() and following == "-" * len(line):
            title, skip = line, True
            parts[title] = []
        else:
            parts[title].append(line)
    return {title: "\n".join(lines).strip("\n") for title, lines in parts.items()}


def documented_names(section):
    """Names of the entries of a Parameters section; one entry may have several."""
    entries = [line.split(" : ")[0] for line in section.split("\n") if line and not line.startswith(" ")]
    return [name.strip() for entry in entries for name in entry.split(",")]


def signature_names(obj):
    """Parameters of a function, or of a class, as numpydoc writes them."""
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return [stars.get(p.kind, "") + name for name, p in inspect.signature(obj).parameters.items()]


def shortcomings(obj, name, module_doc=""):
    """What is missing in the documentation of a public object, as a list of texts: empty if all is well.

    A constant has no docstring of its own: its module's must name it and show it.
    """
    constant = not (inspect.isclass(obj) or inspect.isroutine(obj))
    doc = module_doc if constant else obj.__doc__
    if not doc:
        return ["no docstring"]
    found = []
    parts = sections(doc)
    if not re.match(r"\S[^\n]*(\n\n|\n*$)", parts[""]):
        found.append("the docstring does not start with a summary in one line")
    examples = doctest.DocTestParser().get_examples(doc if constant else parts.get("Examples", ""))
    if not any(re.search(rf"\b{name}\b", example.source + example.want) for example in examples):
        found.append(f"no example in which {name} is used")
    if constant:
        return found if f"``{name}``" in doc else [*found, f"the module's docstring does not say what {name} is"]
    if not (inspect.isclass(obj) and issubclass(obj, BaseException)):
        titles = ["Parameters"]
        if dataclasses.is_dataclass(obj) or hasattr(obj, "_fields"):  # a record that users read, and rarely make
            titles.append("Attributes")
        documented = next((documented_names(parts[title]) for title in titles if title in parts), [])
        if sorted(documented) != sorted(signature_names(obj)):
            found.append(f"the parameters are {signature_names(obj)}, those documented {documented}")
    if inspect.isclass(obj):
        found += [f"{member} has no docstring" for member, text in public_members(obj) if not text]
    return found


@functools.cache
def collected_examples(module):
    """Names of the objects whose examples ``pytest --doctest-modules`` finds in a module, and runs."""
    module = sys.modules[module]
    return {test.name for test in doctest.DocTestFinder().find(module, module.__name__) if test.examples}


OBJECTS = public_objects()


@pytest.mark.parametrize(("module", "name"), OBJECTS, ids=[".".join(pair) for pair in OBJECTS])
def test_public_object_is_documented(module, name):
    module = importlib.import_module(module)
    assert shortcomings(getattr(module, name), name, module.__doc__) == []


@pytest.mark.parametrize(("module", "name"), OBJECTS, ids=[".".join(pair) for pair in OBJECTS])
def test_example_is_run(module, name):
    obj = getattr(importlib.import_module(module), name)
    home = getattr(obj, "__module__", module)  # a constant is shown in the docstring of the module that exports it
    expected = f"{home}.{obj.__qualname__}" if hasattr(obj, "__qualname__") else module
    assert expected in collected_examples(home)


def test_pytest_runs_the_examples_of_the_package(pytestconfig):
    assert pytestconfig.getoption("doctestmodules")
    assert "skal" in pytestconfig.getini("testpaths")


def test_index_lists_every_public_module():
    modules = {"skal", *(found.name for found in pkgutil.walk_packages(skal.__path__, "skal."))}
    public = {module for module in modules if not any(part.startswith("_") for part in module.split("."))}
    assert len(MODULES) == len(set(MODULES))
    assert set(MODULES) == public - INTERNAL
    assert public >= INTERNAL


@pytest.mark.parametrize("name", MODULES)
def test_module_says_what_is_public(name):
    module = importlib.import_module(name)
    assert module.__doc__
    assert len(module.__all__) == len(set(module.__all__))
    assert all(hasattr(module, exported) for exported in module.__all__)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_imports_from_internal_modules(page):
    imported = re.findall(r"(?:from|import) (skal[\w.]*)", page.read_text(encoding="utf-8"))
    assert not INTERNAL & set(imported)


def bare(x, y=1):
    pass


def silent(x, y=1):
    """Add two numbers.

    Parameters
    ----------
    x, y : float
    """


def good(x, *rest, y=1):
    """Add numbers.

    Parameters
    ----------
    x : float
        A number.
    *rest, y : float
        More of them.

    Examples
    --------
    >>> good(1)
    1
    """
    return x + sum(rest)


class Undocumented:
    """A class.

    Examples
    --------
    >>> made = Undocumented()
    """

    __module__ = "skal.somewhere"

    def method(self):
        pass

    @property
    def state(self):
        pass


class Record:
    """What came out."""

    _fields = ()


@pytest.mark.parametrize(
    ("obj", "name", "module_doc", "expected"),
    [
        (bare, "bare", "", ["no docstring"]),
        (silent, "silent", "", ["no example in which silent is used"]),
        (good, "good", "", []),
        (good, "other", "", ["no example in which other is used"]),
        (Undocumented, "Undocumented", "", [f"Undocumented.{name} has no docstring" for name in ("method", "state")]),
        (Record, "Record", "", ["no example in which Record is used"]),
        (KeyError, "KeyError", "", ["no example in which KeyError is used"]),
        ([1], "LIST", "A module.\n\n``LIST`` has one entry.\n\n>>> len(LIST)\n1", []),
        ([1], "LIST", "A module.\n\n>>> len(LIST)\n1", ["the module's docstring does not say what LIST is"]),
        ([1], "LIST", "A module with ``LIST``.", ["no example in which LIST is used"]),
    ],
)
def test_what_is_missing_is_found(obj, name, module_doc, expected):
    assert shortcomings(obj, name, module_doc) == expected


@pytest.mark.parametrize(
    ("documented", "complaint"),
    [
        ("x : float\ny : float\n    Two numbers.", None),
        ("x, y : float", None),
        ("x : float", "those documented ['x']"),
        ("x : float\nz : float", "those documented ['x', 'z']"),
    ],
)
def test_parameters_must_be_those_of_the_signature(documented, complaint):
    def add(x, y):
        pass

    add.__doc__ = f"Add.\n\nParameters\n----------\n{documented}\n\nExamples\n--------\n>>> add(1, 2)\n3\n"
    found = shortcomings(add, "add")
    assert found == [] if complaint is None else complaint in found[0]


def test_summary_must_fit_in_one_line():
    def add():
        """Add things up, in a sentence
        that goes on.

        Examples
        --------
        >>> add()
        """

    assert shortcomings(add, "add") == ["the docstring does not start with a summary in one line"]


def test_function_without_example_is_not_counted_as_run():
    assert f"{__name__}.good" in collected_examples(__name__)
    assert f"{__name__}.silent" not in collected_examples(__name__)


@pytest.mark.parametrize("name", skal.strategies.__all__)
def test_strategies_name_their_relatives_and_their_papers(name):
    doc = getattr(skal.strategies, name).__doc__
    assert "See Also\n" in doc
    assert "References\n" in doc or name.lower().replace("_", "") == "randomsampling"
