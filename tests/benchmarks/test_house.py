"""The numbers of the house: counted right on small examples, and printed for this checkout."""

import ast
import re

import pytest

from benchmarks import house

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

PRIVATE = """
def _helper(x):
    return x._helper, x._elsewhere


class A:
    _known = 1

    def __init__(self):
        self._mine = 1

    def read(self, other):
        super()._base(), type(self)._base, self._base
        other._known, other._mine, other.__dict__, other.public, other._asdict()
        other._helper
        return getattr(other, "_by_text"), getattr(self, "_by_text"), getattr(other, "public"), other.a._b
"""


def test_code_lines():
    assert house.code_lines(SOURCE) == 5


def test_accesses_to_underscore_names():
    found = [name for _, name in sorted(house.foreign_accesses(ast.parse(PRIVATE)))]
    assert sorted(found) == ["_b", "_by_text", "_elsewhere", "_helper"]


def test_files(tmp_path):
    skal = tmp_path / "skal"
    for name in ("__init__.py", "_version.py", "base.py", "cli.py", "retraining.py", "_lookahead/posterior.py"):
        (skal / name).parent.mkdir(parents=True, exist_ok=True)
        (skal / name).write_text("# comment\nx = y._x\n")
    (skal / "cli.py").write_text("class A:\n    _x = 1\n")
    assert house.top_modules(skal) == ["base", "cli", "retraining"]
    assert house.lookahead(skal) == (2, 4)
    assert house.code_by_part(skal)["_lookahead"] == 1
    own, others = house.accesses(skal)
    assert "skal/base.py:2 _x" in own
    assert len(own) == 5
    assert others == []


def test_prints_all_tables(capsys):
    assert house.main(["--quick"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n### ") == 4
    walks = re.findall(r"^\| ([\w.-]+) \| (\d+) / (\d+) / (\d+) \|$", out, re.MULTILINE)
    kinds = ["margin", "BADGE", "dynamicAL", "NPC", "look-ahead", "ActiveLearningClassifier.fit", "run_benchmark"]
    assert [walk[0] for walk in walks] == kinds
    for _, modules, functions, switches in walks:
        assert 5 < int(modules) < int(functions)
        assert int(switches) >= int(modules) - 1


def test_lists_the_accesses_of_another_checkout(tmp_path, capsys):
    (tmp_path / "skal").mkdir()
    (tmp_path / "skal" / "__init__.py").write_text("x = y._x\n")
    assert house.main(["--accesses", "--root", str(tmp_path)]) == 0
    assert "skal/__init__.py:1 _x" in capsys.readouterr().out


def test_a_folder_without_skal_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        house.main(["--root", str(tmp_path)])
    assert "no checkout of skal" in capsys.readouterr().err
