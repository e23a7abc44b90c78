"""The numbers of the house: counted right on small examples, and printed for this checkout."""

import re

import pytest

from benchmarks import house
from benchmarks._house_source import Package, code_lines, count_tests, prose_words

SOURCE = '''"""Docstring
of two lines."""

import os  # a comment does not make a second line


def f(x):
    """Docstring."""
    # comment
    text = """a text
    of two lines"""
    return text
'''

FILES = {
    "skal/__init__.py": "",
    "skal/base.py": "def made(): ...\ndef is_fitted(): ...\ndef check_known(): ...\ndef embed(): ...\n",
    "skal/_core/__init__.py": "",
    "skal/_core/a.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from skal._core.b import B\n",
    "skal/_core/b.py": "def f():\n    from skal._core import c\n",
    "skal/_core/c.py": "from . import a\n",
    "skal/_core/_base.py": "from skal import base\n\nclass K:\n    @property\n    def labelled(self): ...\n",
    "skal/bench/__init__.py": "x = 1\ny = 2\n",
    "skal/audit/__init__.py": "x = 1\n",
    "tests/test_x.py": """
from skal._core.a import hidden

def helper():
    return hidden

def test_public(): ...
def test_by_import(): hidden
def test_by_helper(): helper()
def test_by_attribute(net): net._secret, net._asdict()
def test_named_tuple(net): net._replace(a=1)
def test_patch(monkeypatch): monkeypatch.setattr(os, "name", "none")
def test_environment(monkeypatch): monkeypatch.setenv("A", "b")
def test_handed_on(monkeypatch): Disk(monkeypatch)
def test_notebook(plot): plot._repr_png_(), os._exit(1)
def test_text(): "skal._core._x"

class TestK:
    def test_own(self): self._x
""",
    "docs/guide/audit.md": "one more\n",
    "docs/a.md": "two words\n\n```python\nno prose at all\n```\n| a | table |\nthree more words\n",
}


@pytest.fixture
def root(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_code_lines():
    assert code_lines(SOURCE) == 5


def test_cycles_count_imports_for_types_and_in_functions(root):
    package = Package(root)
    assert package.cycles() == package.cycles("_core") == [["skal._core.a", "skal._core.b", "skal._core.c"]]
    assert package.cycles("(top)") == []


def test_names_and_sizes(root):
    package = Package(root)
    assert package.double_names() == ["base"]
    assert package.participles() == ["skal.base.made"]
    assert package.sizes["_core"] == (5, 10)
    assert package.sizes["bench"] == (1, 2)
    assert package.core_lines() == (15, 1)  # without bench; an audit came later
    assert package.count_modules("audit") == (1, 1)
    assert package.count_modules("_core") == (5, 0)


def test_tests_and_prose(root):
    assert count_tests(root) == (11, 6)
    assert prose_words(root) == (7, 2)  # the page on audits came later


ASKED = ("Margin, LogisticRegression", "Margin, MLP")  # the same in all tests: they share a process


def test_prints_all_tables(capsys):
    assert house.main(["--only", *ASKED]) == 0
    out = capsys.readouterr().out
    assert out.count("\n### ") == 5
    walks = re.findall(r"^\| ([\w, ]+) \| (\d+) / (\d+) / ([\d,]+) \|", out, re.MULTILINE)
    others = set(house.run_queries(house.HERE, ASKED)["names"]) - set(ASKED)
    assert len(others) == 8
    assert [name for name in house.AIMS if f"| {name} |" not in out and name not in others] == []
    assert [name for name, *_ in walks] == list(ASKED)
    for _, modules, functions, switches in walks:
        assert 5 < int(modules) < int(functions)
        assert int(switches.replace(",", "")) >= int(modules) - 1


def test_the_rules_that_need_no_judgement_are_kept():
    package = house.read(house.HERE)
    assert package.cycles() == []  # imports in functions and for type checkers count
    assert package.double_names() == []
    assert package.participles() == []


def test_lists_the_functions_of_a_call(capsys):
    assert house.main(["--walk", *ASKED]) == 0
    first, *others = capsys.readouterr().out.split("\n\n")[0].splitlines()
    assert re.fullmatch(r"learners/_active\.py:\d+ (ActiveLearner\.)?query", first)
    assert any(re.fullmatch(r"strategies/_uncertainty\.py:\d+ (Margin\.)?_score", line) for line in others)


def test_guards_are_not_on_the_path_of_other_cases():
    """No network's guards for a scikit-learn classifier, no Dataset's for arrays, no shards in one process."""
    walks = house.run_queries(house.HERE, ASKED)["walks"]
    passed = {name: {line.split(":")[0] for line in walk["functions"]} for name, walk in walks.items()}
    elsewhere = {f"_core/{name}.py" for name in ("cache", "feeding", "last_layer", "parallel")}
    of_networks = {f"_core/{name}.py" for name in ("losses", "network", "outputs")}
    assert not passed["Margin, LogisticRegression"] & (elsewhere | of_networks)
    assert not passed["Margin, MLP"] & elsewhere
    assert {"_core/network.py", "_core/outputs.py"} <= passed["Margin, MLP"]


def test_a_folder_without_skal_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        house.main(["--root", str(tmp_path)])
    assert "no checkout of skal" in capsys.readouterr().err
