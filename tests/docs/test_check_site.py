"""The checks of the built site notice what they are there for."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

import skal.strategies
from benchmarks import check_site as in_browser
from benchmarks._browser import browser_path

DOCS = Path(__file__).parents[2] / "docs"
PAGE = "<html><head><title>{title}</title>{head}</head><body><h1 id='top'>Hello</h1>{body}</body></html>"


def load():
    spec = importlib.util.spec_from_file_location("check_site", DOCS / "check_site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def site(folder, *, title="A", head="", body="", index=("index", "other")):
    """Two pages and a search index."""
    folder.mkdir()
    (folder / "index.html").write_text(PAGE.format(title=title, head=head, body=body))
    (folder / "other.html").write_text(PAGE.format(title="B", head="", body="<a href='index.html#top'>back</a>"))
    (folder / "a.png").write_bytes(b"")
    if index is not None:
        (folder / "searchindex.js").write_text(f"Search.setIndex({json.dumps({'docnames': index})})")
    return folder


def test_a_sound_site_has_no_faults(tmp_path, capsys):
    body = "<a href='other.html'>x</a> <a href='https://example.org'>y</a> <img src='a.png'> <a href='#top'>z</a>"
    folder = site(tmp_path / "site", body=body)
    check = load()
    assert check.faults(folder) == []
    assert check.main([str(folder)]) == 0
    assert "2 pages" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"title": " "}, "index.html: no title"),
        ({"body": "<a href='missing.html'>x</a>"}, "missing.html: no such file"),
        ({"body": "<a href='../outside.html'>x</a>"}, "no such file"),
        ({"body": "<a href='other.html#nowhere'>x</a>"}, "no such place on the page"),
        ({"body": "<img src='b.png'>"}, "b.png: no such file"),
        ({"head": "<script src='https://cdn.example.org/x.js'></script>"}, "fetched from outside"),
        ({"head": "<link rel='stylesheet' href='//fonts.example.org/x.css'>"}, "fetched from outside"),
        ({"index": ["index"]}, "other: not in the search index"),
        ({"index": None}, "searchindex.js is missing"),
    ],
)
def test_faults_are_found(change, fault, tmp_path):
    check = load()
    folder = site(tmp_path / "site", **change)
    assert any(fault in line for line in check.faults(folder))
    assert check.main([str(folder)]) == 1


GOOD = {"missing": [], "outside": [], "overflow": 0, "formulas": 3, "unset": 0, "results": 5, "rows": 1, "header": 64}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"missing": ["a.png"]}, "a.png is missing"),
        ({"outside": ["https://cdn.example.org"]}, "asks for https"),
        ({"overflow": 12}, "12 pixels too wide"),
        ({"unset": 1}, "1 of 3 formulas"),
        ({"results": 0}, "finds nothing"),
        ({"rows": 2, "header": 120}, "header has 2 rows"),
    ],
)
def test_faults_in_the_browser_are_found(change, fault):
    assert in_browser.faults(in_browser.SEARCH, "desktop", GOOD) == []
    assert any(fault in wrong for wrong in in_browser.faults(in_browser.SEARCH, "desktop", GOOD | change))


HEADER = """<style>ul {{ display: flex; flex-wrap: wrap; margin: 0 }} li {{ width: {width}px }}</style>
<header class="bd-header"><ul class="navbar-nav"><li>one</li><li>two</li><li>three</li></ul></header>"""


@pytest.mark.skipif(browser_path(None) is None, reason="needs Chromium")
@pytest.mark.parametrize(("width", "status"), [(300, 0), (600, 1)])
def test_the_rows_of_the_header_are_counted_in_a_browser(width, status, tmp_path, capsys):
    (tmp_path / "index.html").write_text(HEADER.format(width=width))
    assert in_browser.main([str(tmp_path), "--pages", "index.html"]) == status
    assert ("index.html, desktop: the header has 2 rows" in capsys.readouterr().out) == bool(status)


def test_without_a_browser_nothing_is_called_checked(capsys):
    assert in_browser.main(["--browser", "no-such-browser"]) == 1
    assert "nothing was checked" in capsys.readouterr().err


TOPICS = [
    "first_steps",
    "images",
    "effect_or_noise",
    "cross_validation",
    "sequential_lookahead",
    "npc_zero_labels",
    "semi_supervised",
    "human_in_the_loop",
    "scaling_with_dask",
    "your_own_strategy",
    "pretrained_network",
    "frozen_features",
    "regression",
    "several_labels",
    "raw_tables",
    "audit",
    "label_studio",
]


def test_the_tutorials_are_all_there_in_order_and_shown_on_the_site():
    names = [path.stem for path in sorted((DOCS / "tutorials").glob("*.py"))]
    assert names == [f"plot_{number:02}_{topic}" for number, topic in enumerate(TOPICS, start=1)]


SECTIONS = ["In short", "Known errors in papers and code", "Cost", "When it fails"]
METHODS = ["uncertainty", "information", "diversity", "coverage", "dynamic_al", "ntk_lookahead", "npc"]


@pytest.mark.parametrize("name", [*METHODS, "semi_supervised"])
def test_a_page_of_methods_says_what_a_user_must_know(name):
    lines = (DOCS / "guide" / f"{name}.md").read_text(encoding="utf-8").splitlines()
    found = [line.removeprefix("## ") for line in lines if line.startswith("## ")]
    assert [title for title in found if title in SECTIONS] == SECTIONS


def test_the_map_leads_to_the_page_of_every_strategy():
    where = [*METHODS, "tasks"]  # the page of tasks has those that are made for regression
    rows = (DOCS / "guide" / "strategies.md").read_text(encoding="utf-8").split("## How do I call")[0].splitlines()
    pages = {name: row for name in where for row in rows if f"]({name}.md)" in row}
    assert set(pages) == set(where)
    for strategy in (name for name in skal.strategies.__all__ if name[0].isupper()):
        places = [name for name, row in pages.items() if f"`{strategy}`" in row]
        assert len(places) == 1, f"{strategy} is on {places}"
        assert strategy in (DOCS / "guide" / f"{places[0]}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("folder", ["guide", "evidence"])
def test_every_page_is_listed(folder):
    listed = (DOCS / folder / "index.md").read_text(encoding="utf-8").split()
    pages = {path.stem for path in (DOCS / folder).glob("*.md")} - {"index"}
    assert pages <= set(listed)


PROSE = sorted([*DOCS.rglob("*.md"), *(DOCS.parent / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING"))])
PROSE = [path for path in PROSE if "_build" not in path.parts and "generated" not in path.parts]


@pytest.mark.parametrize("path", PROSE, ids=lambda path: path.relative_to(DOCS.parent).as_posix())
def test_prose_has_a_line_for_every_sentence(path):
    """A change of one sentence is a change of one line; tables, code and formulas excepted."""
    code = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        code ^= line.startswith("```")
        if not code and not line.startswith(("|", "$", "!", "<!--")):
            assert len(line) <= 250, f"line {number} is {len(line)} columns long"
            assert not re.search(r"[a-z`)]{3}[.?!] +[A-Z][a-z]", line.split("** ", 1)[-1]), f"line {number}: {line}"
