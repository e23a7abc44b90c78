"""Numbers of the evidence come from commands that exist, and are written between their comments."""

import re
import runpy
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
TABLES = runpy.run_path(str(DOCS / "tables.py"))
PAGES = sorted((DOCS / "evidence").glob("*.md"))
PAGE = "Before.\n\n<!-- table: python -m some thing -->\n\n| a |\n|---|\n| 1 |\n\n<!-- end of table -->\n\nAfter.\n"


def test_tables_are_replaced_and_prose_is_not():
    output = "# timing\n\n| a |\n|---|\n| 2 |\n\nwords\n\n| b |\n|---|\n| 3 |\n"
    text = TABLES["replace"](PAGE, "python -m some thing", output)
    assert text == PAGE.replace("| 1 |", "| 2 |\n\n| b |\n|---|\n| 3 |")
    assert TABLES["replace"](PAGE, "python -m another", output) == PAGE
    with pytest.raises(ValueError, match="printed no table"):
        TABLES["replace"](PAGE, "python -m some thing", "nothing")


def test_a_page_is_written_by_a_command(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text(PAGE.replace("python -m some thing", "X=1 python -c \"print('| b |')\""))
    assert TABLES["main"]([str(page)]) == 0
    assert "print" in capsys.readouterr().out
    assert TABLES["main"]([str(page), "no such"]) == 1
    assert TABLES["main"]([str(page), "print"]) == 0
    assert "\n\n| b |\n\n<!-- end" in page.read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_page_exists(page):
    text = page.read_text(encoding="utf-8")
    assert text.count("<!-- table: ") == text.count("<!-- end of table -->") == len(TABLES["commands"](text))
    for command in TABLES["commands"](text):
        words = [word for word in shlex.split(command) if not re.match(r"[A-Z_]+=", word)]
        assert words[:2] == ["python", "-m"]
        assert find_spec(words[2]) is not None
