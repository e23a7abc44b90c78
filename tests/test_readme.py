"""Every python block of README and of the guide runs as printed."""

import re
import sys
import types
from pathlib import Path

import pytest
import torch

from skal.network import preserved_rng

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
README = ROOT / "README.md"
GUIDE = sorted((ROOT / "docs" / "guide").glob("*.md"))


def blocks(page):
    """The python blocks of a page, each behind as many blank lines as put it on its line of the page."""
    text = page.read_text(encoding="utf-8")
    return ["\n" * text.count("\n", 0, match.start(1)) + match[1] for match in FENCE.finditer(text)]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a piece of a page, in a module that pickle can find, as it can find a script's."""
    module = types.ModuleType("skal_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.chdir(tmp_path)

    def run(page, code):
        exec(compile(code, str(page), "exec"), module.__dict__)

    return run


def test_readme_example_is_short_and_learns(run, capsys):
    example = blocks(README)[0]
    assert sum(bool(line.strip()) for line in example.splitlines()) <= 15
    with preserved_rng():
        torch.manual_seed(0)
        run(README, example)
    accuracies = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert len(accuracies) == 5
    assert accuracies[-1] > max(0.6, accuracies[0])


@pytest.mark.parametrize("code", blocks(README)[1:], ids=lambda code: f"line {len(code) - len(code.lstrip()) + 1}")
def test_other_readme_block_runs_alone(code, run):
    run(README, code)


@pytest.mark.parametrize("page", GUIDE, ids=lambda page: page.stem)
def test_guide_page_runs_from_top_to_bottom(page, run):
    for code in blocks(page):
        run(page, code)


def test_pages_are_found():
    assert len(blocks(README)) >= 2
    assert GUIDE
