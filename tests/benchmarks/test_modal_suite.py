"""The script that runs modAL's own tests, examples and notebooks: what it finds, runs and counts."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import modal_suite

SUITE = """
import unittest
import modAL.models.learners

class TestLearner(unittest.TestCase):
    def test_class(self):
        self.assertTrue(modAL.models.ActiveLearner.__module__.startswith("skal"))

    def test_nothing(self):
        print("noise")

    def test_fails(self):
        raise KeyError("lost")
"""


def notebook(*cells):
    return json.dumps({"cells": [{"cell_type": kind, "source": lines} for kind, lines in cells]})


@pytest.fixture
def clone(tmp_path):
    """A folder with the shape of modAL's repository."""
    for name, text in {
        "tests/core_tests.py": SUITE,
        "tests/mock.py": "",
        "examples/good.py": "import matplotlib.pyplot as plt\nwith plt.style.context('seaborn-white'):\n    pass",
        "examples/bad.py": "assert __name__ == '__main__'\n1 / 0",
        "examples/needy.py": "from no_such_package.part import thing\nfrom . import other",
        "docs/page.ipynb": notebook(
            ("markdown", ["# not code"]),
            ("code", ["%matplotlib inline\n", "x = 1\n", "!ls\n"]),
            ("code", ["y = x + 1"]),
        ),
        "docs/.ipynb_checkpoints/page.ipynb": notebook(),
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_finds_tests_examples_and_notebooks(clone):
    found = modal_suite.find(clone)
    names = {kind: [path.name for path in paths] for kind, paths in found.items()}
    assert names == {
        "tests": ["core_tests.py"],
        "examples": ["bad.py", "good.py", "needy.py"],
        "notebooks": ["page.ipynb"],
    }


def test_a_notebook_is_its_code_without_magic(clone):
    code = modal_suite.source(clone / "docs/page.ipynb")
    space = {}
    exec(code, space)
    assert space["y"] == 2
    assert "not code" not in code


def test_scripts_run_fail_or_lack_a_package(clone):
    examples = clone / "examples"
    assert modal_suite.run_script(examples / "good.py") == {}
    assert modal_suite.run_script(examples / "bad.py") == {"error": "ZeroDivisionError: division by zero"}
    assert modal_suite.run_script(examples / "needy.py") == {"lacks": "no_such_package"}


def test_a_suite_that_cannot_be_imported_counts_its_tests(clone, monkeypatch):
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delitem(sys.modules, "core_tests", raising=False)
    path = clone / "tests/core_tests.py"
    path.write_text("1 / 0\n" + SUITE)
    result = modal_suite.run_tests(path)
    assert result == {"total": 3, "passed": 0, "failed": {"core_tests.py": "ZeroDivisionError: division by zero"}}


def test_a_suite_in_a_process_of_its_own_with_skals_learner(clone):
    result = modal_suite.run(modal_suite.WAYS["with skal's learner"], clone / "tests/core_tests.py", timeout=300)
    assert (result["total"], result["passed"]) == (3, 2)
    assert result["failed"] == {"core_tests.TestLearner.test_fails": "KeyError: 'lost'"}


def test_a_process_that_breaks_or_takes_too_long_is_an_error(clone):
    good = clone / "examples/good.py"
    assert modal_suite.run("import no_such_package", good, 300)["error"].startswith("ModuleNotFoundError")
    assert modal_suite.run("import os\nos._exit(3)", good, 300) == {"error": "exit 3"}
    assert modal_suite.run("import time\ntime.sleep(60)", good, 0.5) == {"error": "not done after 0 s"}


def test_counts_are_of_what_can_be_run():
    results = {
        Path("core_tests.py"): {"total": 70, "passed": 65, "failed": {"a": "b"}},
        Path("good.py"): {},
        Path("bad.py"): {"error": "broken"},
        Path("needy.py"): {"lacks": "keras"},
    }
    said = ["a: b", "bad.py: broken", "needy.py: not run, needs keras"]
    assert modal_suite.count(results) == (66, 72, said)


def test_prints_the_table_and_says_what_fails(clone, monkeypatch, capsys):
    def run(way, path, timeout):
        assert timeout == 5
        if path.name == "core_tests.py":
            passed = {"": 0, "import skal": 3}.get(way, 2)
            return {"total": 3, "passed": passed, "failed": {} if passed == 3 else {"one": "failed"}}
        return {} if way else {"error": "broken"}

    monkeypatch.setattr(modal_suite, "run", run)
    assert modal_suite.main([str(clone), "--timeout", "5"]) == 1  # a test fails with skal's learner
    out = capsys.readouterr().out
    assert "numpy" in out
    assert "| | without skal | with skal | with skal's learner |" in out
    assert "| tests | 0 of 3 | 3 of 3 | 2 of 3 |" in out
    assert "| examples | 0 of 3 | 3 of 3 | 3 of 3 |" in out
    assert "with np.float put back by hand: 2 of 3." in out
    assert "tests with skal's learner: one: failed" in out
    assert modal_suite.main([str(clone), "--timeout", "5", "--only", "notebooks"]) == 0
    assert "| notebooks | 0 of 1 | 1 of 1 | 1 of 1 |" in capsys.readouterr().out


def test_without_a_folder_there_is_nothing_to_run(tmp_path, capsys):
    assert modal_suite.main([]) == 0
    assert "name the folder" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        modal_suite.main([str(tmp_path)])
    assert "holds no tests/core_tests.py" in capsys.readouterr().err


def test_the_child_prints_json(clone, capsys):
    modal_suite.child("", str(clone / "docs/page.ipynb"))
    assert json.loads(capsys.readouterr().out) == {}
