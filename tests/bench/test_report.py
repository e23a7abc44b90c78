"""Reports: complete, self-contained, and the same for the same result."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest

from skal.bench import html_report, markdown_report, terminal_report, write_report
from skal.bench._report import _image


class Page(HTMLParser):
    """Collects tags, with their attributes, and text; void tags aside, everything that is opened must be closed."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.text = [], [], ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in {"meta", "link", "img"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_page_has_everything_and_needs_nothing(result):
    text = html_report(result)
    page = Page(text)
    images = [attrs for tag, attrs in page.tags if tag == "img"]
    assert len(images) == 5
    assert all(image["src"].startswith("data:image/svg+xml;base64,") and image["alt"] for image in images)
    assert not any(tag in {"script", "iframe"} for tag, _ in page.tags)
    links = [v for _, attrs in page.tags for k, v in attrs.items() if k in {"src", "href"}]
    assert all(link.startswith("data:") for link in links)
    assert "url(" not in text
    assert "@import" not in text
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in page.tags
    for expected in (
        "s3: better than Random at every budget, p < 0.001",
        "Pairwise penalties",
        "Friedman",
        "max_epochs",
    ):
        assert expected in page.text


def test_the_same_result_gives_the_same_figures(result):
    assert len({_image(result.plot("curves").figure, "curves") for _ in range(2)}) == 1


def test_names_are_escaped(make_result):
    result = make_result(np.random.default_rng(0).uniform(size=(2, 3, 3)), ["random", "<script>alert('&')</script>"])
    page = Page(html_report(result))
    assert not any(tag == "script" for tag, _ in page.tags)
    assert "<script>alert('&')</script>: " in page.text


def test_markdown_tables_are_rectangular(make_result):
    result = make_result(np.random.default_rng(0).uniform(size=(3, 3, 3)), ["random", "a|b", "c"])
    text = markdown_report(result)
    tables = re.findall(r"(?:^\|.*\|$\n?)+", text, re.MULTILINE)
    assert len(tables) >= 6
    for table in tables:
        widths = {len(re.split(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(widths) == 1
    assert "- a|b: " in text


def test_terminal_report_has_scores_comparison_and_verdicts(result):
    text = terminal_report(result)
    assert "digits, cnn, 20 to 80 labels" in text
    assert re.search(r"^random\s+\d\d\.\d ± \d\.\d", text, re.MULTILINE)
    assert "s3: better than Random" in text
    assert "Wilcoxon's test has not enough seeds" in text


@pytest.mark.parametrize("shape", [(1, 1, 2), (3, 2, 1)], ids=["one run", "one budget"])
def test_little_can_be_reported_too(make_result, shape, tmp_path):
    result = make_result(np.random.default_rng(0).uniform(size=shape))
    write_report(result, tmp_path)
    assert Page((tmp_path / "report.html").read_text(encoding="utf-8"))


def test_unfinished_runs_are_mentioned(result):
    result.runs = [run for run in result.runs if (run.strategy, run.seed) != ("s1", 2)]
    assert "Unfinished: 1 of 20 runs are missing" in terminal_report(result)


def test_strategies_with_another_network_are_mentioned(make_result):
    result = make_result(np.random.default_rng(0).uniform(size=(3, 2, 2)), ["random", "bald", "mine"])
    networks = {"random": "cnn", "bald": "cnn with dropout", "mine": "cnn with loss prediction"}
    for run in result.runs:
        run.record["network"] = networks[run.strategy]
    text = terminal_report(result)
    assert "random trains" not in text
    assert "bald trains the same network with dropout; mine trains the same network with loss prediction:" in text


def test_warnings_are_reported_once_per_strategy(result):
    for run in result.runs:
        if run.strategy == "s2":
            run.warnings.append("SkalWarning: mind the gap")
    assert "There were warnings in runs of s2" in terminal_report(result)
    assert "| s2 | 5 | SkalWarning: mind the gap |" in markdown_report(result)


def test_mixed_versions_are_mentioned(result):
    result.runs[0].record["versions"] = {"skal": "1"}
    assert "different versions" in markdown_report(result)


def test_write_report_leaves_tables_and_figures(result, tmp_path):
    assert write_report(result, tmp_path / "new").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    names = {path.name for path in (tmp_path / "new").iterdir()}
    assert {"report.md", "results.csv", "tests.csv", "pairwise.csv", "penalties.csv", "overlap.csv"} <= names
    assert {"curves.png", "areas.png", "difference.png", "time.png", "overlap.png"} <= names
