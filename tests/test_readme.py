"""Every python block of README and of the guide runs as printed; every command in a console block exists."""

import os
import re
import shlex
import sys
import types
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from joblib import parallel_config

from skal.cli import _parser

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LANGUAGES = re.compile(r"^```(\S+)\n", re.MULTILINE)
README = ROOT / "README.md"
GUIDE = sorted((ROOT / "docs" / "guide").glob("*.md"))
EVIDENCE = sorted((ROOT / "docs" / "evidence").glob("*.md"))
PAGES = [README, ROOT / "CONTRIBUTING.md", *GUIDE, *EVIDENCE]


def blocks(page):
    """The python blocks of a page, each behind as many blank lines as put it on its line of the page."""
    text = page.read_text(encoding="utf-8")
    return ["\n" * text.count("\n", 0, match.start(1)) + match[1] for match in FENCE.finditer(text)]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a piece of a page, in a module that pickle can find, as it can find a script's.

    Workers are threads, where a page does not say otherwise: new processes take long to start.
    """
    module = types.ModuleType("skal_page")
    sys.modules[module.__name__] = module
    monkeypatch.chdir(tmp_path)

    def run(page, code):
        with parallel_config(backend="threading"):
            exec(compile(code, str(page), "exec"), module.__dict__)

    yield run
    del sys.modules[module.__name__]


def test_readme_example_is_short_and_learns(run, capsys):
    example = blocks(README)[0]
    assert sum(bool(line.strip()) for line in example.splitlines()) <= 15
    with torch.random.fork_rng():
        torch.manual_seed(0)
        run(README, example)
    accuracies = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert len(accuracies) == 5
    assert accuracies[-1] > max(0.6, accuracies[0])


@pytest.mark.parametrize("code", blocks(README)[1:], ids=lambda code: f"line {len(code) - len(code.lstrip()) + 1}")
def test_other_readme_block_runs_alone(code, run):
    run(README, code)


def missing(code):
    """Packages that a block says it needs, and that are not installed; ``SKAL_TEST_RECIPES`` wants them all."""
    needed = re.match(r"\s*# needs: (.*)", code)
    names = needed[1].split(", ") if needed and "SKAL_TEST_RECIPES" not in os.environ else []
    return [name for name in names if find_spec(name) is None]


@pytest.mark.parametrize("page", GUIDE, ids=lambda page: page.stem)
def test_guide_page_runs_from_top_to_bottom(page, run):
    for code in blocks(page):
        if not missing(code):
            run(page, code)


def test_only_recipes_may_need_other_packages(monkeypatch):
    monkeypatch.delenv("SKAL_TEST_RECIPES", raising=False)
    for page in GUIDE:
        if page.stem != "recipes":
            assert not any("# needs:" in code for code in blocks(page))
    assert missing("\n\n# needs: nonsense_package, numpy\nimport nonsense_package") == ["nonsense_package"]
    assert missing("import numpy  # needs: nothing") == []


def test_pages_are_found():
    assert len(blocks(README)) >= 2
    assert GUIDE


def commands(page):
    """The commands of a page's console blocks, lines that go on joined, comments left out."""
    for block in CONSOLE.findall(page.read_text(encoding="utf-8")):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            while words and "=" in words[0]:  # a variable for this command alone
                words.pop(0)
            if words:
                yield words


@pytest.mark.parametrize("words", [words for page in PAGES for words in commands(page)], ids=" ".join)
def test_console_command_exists(words):
    """They take minutes to hours, so they are parsed, not run: what they run has tests of its own."""
    name = words[0].removeprefix(".venv/bin/")
    if name == "skal":
        _parser().parse_args(words[1:])
    elif name == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert set(words[1:]) <= set(targets)
    elif name == "python" and words[1] == "-m":
        assert find_spec(words[2]) is not None
    elif name == "pip":  # what it installs is looked at in test_packaging.py
        assert words[1] == "install"
    elif name == "nox":
        sessions = re.findall(r"^def (\w+)\(session", (ROOT / "noxfile.py").read_text(encoding="utf-8"), re.MULTILINE)
        assert words[1:] == [] or (words[1] == "-s" and words[2] in sessions)
    elif name == "torchrun":
        assert (ROOT / words[-1]).is_file()
    else:
        assert name in {"pre-commit", "label-studio", "export"}


def test_no_block_has_another_language_that_nobody_runs():
    found = {language for page in PAGES for language in LANGUAGES.findall(page.read_text(encoding="utf-8"))}
    assert found <= {"python", "console", "text", "nginx", "{toctree}", "{eval-rst}", "{math}", "{image}"}
