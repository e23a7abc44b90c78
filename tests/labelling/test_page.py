"""The page in a real browser, by keyboard and by click."""

import csv
import io
import json
import re
from contextlib import ExitStack
from urllib.parse import urlsplit

import numpy as np
import pandas as pd
import pytest

from benchmarks._label_page import Keys
from skal.labelling import export_final, export_labels
from skal.labelling._label import as_source
from skal.labelling._models import choose_model
from skal.labelling._project import Project
from skal.labelling._server import LabelServer

from .conftest import Client, digits_page, label_page, make_project, truth, work


@pytest.fixture
def serve():
    """Serve a project, and end it."""
    open_ones = []

    def start(project):
        project.start()
        server = LabelServer(project)
        open_ones.append((project, server, server.start()))
        return server.address

    yield start
    for project, server, thread in open_ones:
        server.stop()
        thread.join(120)
        project.close()


def labels_of(folder):
    rows = csv.DictReader(io.StringIO(export_labels(folder)))
    return {row["id"]: row["label"] for row in rows}


def test_thirty_digits_by_keyboard(page, command, tmp_path):
    """Undo, skip, correct, reload, kill the server in between, go on, export: the labels agree one by one."""
    out, said = tmp_path / "out", {}

    def label(n):
        for _ in range(n):
            key = page.current()
            said[page.label(truth(key))] = truth(key)

    running = command("--demo", "--out", out)
    page.open(running.address)
    label(8)
    wrong = page.current()
    page.label(str((int(truth(wrong)) + 1) % 10))
    page.press(Keys.BACKSPACE)  # undo: the sample is back
    page.wait_for(lambda: page.current() == wrong)
    label(4)
    skipped = page.label(" ")
    page.driver.refresh()
    page.wait_for(page.current)
    assert page.current() not in {*said, skipped}
    label(4)
    late = page.current()
    page.label(str((int(truth(late)) + 1) % 10))  # noticed too late: corrected in the gallery
    page.press("g")
    page.click(f'.card[data-id="{late}"]')
    page.wait_for(lambda: page.find("dialog.correct .class"))
    page.click(f'dialog.correct .class[data-class="{truth(late)}"]')
    page.wait_for(lambda: not page.find("dialog.correct"))
    said[late] = truth(late)
    page.press("g")
    page.wait_for(page.current)
    running.kill()
    assert labels_of(out) == said
    shown = page.current()
    page.press(truth(shown))
    page.wait_for(lambda: "does not answer" in page.text(".banner"))
    assert page.current() == shown  # nothing is shown before the label is on the disk
    assert labels_of(out) == said

    running = command("--demo", "--out", out)
    page.open(running.address)
    label(30 - len(said))
    page.wait_for(lambda: page.text(".numbers").startswith("30 of 1797"))
    assert "1 skipped" in page.text(".numbers")
    page.click(".finish")
    page.wait_for(lambda: "Every label is on the disk" in page.text("main"))
    assert running.end()[0] == 0
    assert len(said) == 30
    assert labels_of(out) == said
    assert all(label == truth(key) for key, label in said.items())
    lines = [json.loads(line) for line in (out / "labels.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines if line["event"] == "declined"] == [skipped]


def test_grid_options_classes_zoom_and_help(page, serve, tmp_path):
    project = make_project(tmp_path, classes=[str(i) for i in range(9)])
    page.open(serve(project))
    page.wait_for(lambda: project.worker.wait_until_idle(0.01))
    page.press("?")
    page.wait_for(lambda: page.find("dialog.help"))
    page.press(Keys.ESCAPE)
    page.wait_for(lambda: not page.find("dialog.help"))  # a key that comes earlier still belongs to the dialog
    page.press("z")
    page.wait_for(lambda: page.find("dialog.zoom-dialog img"))
    page.press("+")
    page.press("z")
    page.wait_for(lambda: not page.find("dialog.zoom-dialog"))

    page.click(".new-class")
    page.press("nine & <b>more</b>", Keys.ENTER)
    page.wait_for(lambda: len(page.find(".label-view .class")) == 10)
    assert project.classes[-1] == "nine & <b>more</b>"
    assert not page.find(".class b")
    page.click(".new-class")
    page.press("5")  # a digit in a field is a digit
    page.wait_for(lambda: page.run("return document.querySelector('.new-class').value") == "5")
    assert len(project.labels()) == 0

    page.click("[data-option=grid]")
    page.wait_for(lambda: len(page.find(".cell")) == 12)
    keys = [each.get_attribute("data-id") for each in page.find(".cell")]
    page.run("document.activeElement.blur()")
    page.press("1")
    page.wait_for(lambda: page.find(".cell")[0].text == "1")
    columns = page.run(
        "return getComputedStyle(document.querySelector('.stage')).gridTemplateColumns.split(' ').length"
    )
    page.press(Keys.ARROW_DOWN, Keys.ARROW_RIGHT)  # the focus was on the second cell
    page.wait_for(lambda: page.find(".cell")[columns + 2].get_attribute("aria-pressed") == "true")
    page.press(Keys.ARROW_UP, Keys.ARROW_UP, Keys.ARROW_RIGHT)  # above the first row there is nothing
    page.wait_for(lambda: page.find(".cell")[3].get_attribute("aria-pressed") == "true")
    page.press(" ")
    page.wait_for(lambda: page.find(".cell")[3].text == "cannot say")
    page.click(".cell", 5)
    page.press("2")
    page.wait_for(lambda: page.find(".cell")[5].text == "2")
    assert labels_of(tmp_path) == {keys[0]: "1", keys[5]: "2"}
    page.press("a")
    page.press("3")
    page.wait_for(lambda: page.find(".cell") and page.find(".cell")[0].get_attribute("data-id") not in keys)
    page.click("[data-option=grid]")
    page.wait_for(page.current)

    page.wait_for(lambda: project.worker.wait_until_idle(0.01) and project.worker.predictions)
    assert not page.find(".suggestion")
    page.click("[data-option=suggestions]")
    page.run("document.activeElement.blur()")
    audit = {project.source.ids[i] for i in project.rounds.session.state.audit}
    for _ in range(15):
        key = page.current()
        if page.find(".suggestion"):
            assert key not in audit
            break
        page.label("4")
    else:
        pytest.fail("no suggestion was shown")
    assert page.complaints() == []


@pytest.fixture
def visit(page):
    """Open the page of a project, and finish it at the end."""
    with ExitStack() as stack:

        def enter(pages):
            address = stack.enter_context(pages).address.geturl()
            page.open(address)
            return address

        yield enter


def test_two_tabs(page, visit, tmp_path):
    address = visit(digits_page(tmp_path))
    first = page.driver.current_window_handle
    page.driver.switch_to.new_window("tab")
    page.open(address)
    said = {}
    for _ in range(3):
        said[page.label("1")] = "1"
        other = page.driver.current_window_handle
        page.driver.switch_to.window(first)
        said[page.label("2")] = "2"
        page.driver.switch_to.window(other)
    page.driver.close()
    page.driver.switch_to.window(first)
    assert labels_of(tmp_path) == said
    assert len(said) == 6


def test_many_classes_texts_and_what_looks_like_html(page, visit, tmp_path):
    nasty = "<img src=x onerror=\"document.title='broken in'\"> <script>document.title='broken in'</script>"
    classes = [f"class {i}" for i in range(40)]
    visit(label_page([f"{nasty} {i}" for i in range(8)], classes, tmp_path))
    assert nasty in page.text(".stage")
    assert not page.find(".stage img, .stage script")
    assert not page.find(".zoom")  # a text has nothing to enlarge
    key = page.current()
    page.press("/", "class 3")
    assert len(page.find(".label-view .class")) == 11  # class 3, and class 30 to class 39
    assert [each.text for each in page.find(".label-view .best")] == ["4\nclass 3"]
    page.press("3", Keys.ENTER)
    page.wait_for(lambda: page.current() != key)
    assert labels_of(tmp_path) == {key: "class 33"}
    assert page.text("[aria-live=polite].hidden").startswith(f"class 33. Next: {nasty}")
    page.press("/", "nothing", Keys.ENTER)
    assert "No class has this in its name" in page.text(".class-panel")
    page.press(Keys.ESCAPE)

    page.press("g")  # corrected by keyboard alone, taken back, and asked for again
    page.click(".card")
    page.wait_for(lambda: page.find("dialog.correct"))
    page.press("2")
    page.wait_for(lambda: not page.find("dialog.correct"))
    assert labels_of(tmp_path) == {key: "class 1"}
    page.wait_for(lambda: "class 1" in page.text(".card"))
    page.click(".card")
    page.click("dialog.correct .actions button", 1)
    (empty,) = page.wait_for(lambda: page.find("[aria-label=Gallery] .done:not([hidden])"))
    assert empty.text == "Nothing has been labelled yet."
    assert labels_of(tmp_path) == {}
    page.press("g")
    for _ in range(7):
        if page.label("1") == key:
            break
    assert key in labels_of(tmp_path) or page.current() == key
    assert page.driver.title == "skal label"
    assert page.complaints() == []


def test_a_corrupt_image_is_shown_as_such_and_named(page, image_folder, tmp_path):
    (kept, *others) = sorted(image_folder.rglob("*.*"))
    for path in others:
        path.unlink()
    with label_page(image_folder, ["red", "blue"], tmp_path / "out") as client:
        kept.write_bytes(b"nothing")  # one that could be read until now
        page.driver.get(client.address.geturl())
        page.wait_for(lambda: f"{kept.name} cannot be read" in page.text(".problems") + page.text(".stage"))
        page.wait_for(lambda: "1 problem" in page.text(".problems"))


CONTRAST = """
const light = (text) => {
  const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const [r, g, b] = text.match(/[\\d.]+/g).map((v) => linear(v / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ground = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const colour = getComputedStyle(at).backgroundColor;
    if (!/, 0\\)$/.test(colour) && colour !== "transparent") return colour;
  }
  return "rgb(255, 255, 255)";
};
const found = [];
for (const element of document.querySelectorAll(".skal *")) {
  const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  if (!own || element.closest("svg") || element.offsetParent === null) continue;
  const [a, b] = [light(getComputedStyle(element).color), light(ground(element))].sort((x, y) => y - x);
  const ratio = (a + 0.05) / (b + 0.05);
  if (ratio < 4.5) found.push(`${element.className || element.tagName}: ${ratio.toFixed(2)}`);
}
return found;
"""
NAMELESS = """
const named = (each) => each.getAttribute("aria-label") || each.textContent.trim() || each.alt || each.labels?.length;
return [...document.querySelectorAll(".skal button, .skal input, .skal select, .skal figure img")].filter((each) =>
  each.offsetParent !== null && !named(each)).map((each) => each.outerHTML);
"""


CLIPPED = """
return [...document.querySelectorAll(".skal button")].filter((each) => each.offsetParent !== null
  && (each.scrollHeight > each.clientHeight + 1 || each.scrollWidth > each.clientWidth + 1))
  .map((each) => each.outerHTML);
"""
FOCUS = "const at = document.activeElement; return at.textContent + getComputedStyle(at).outlineStyle"


def test_every_width_and_scheme_can_be_read_and_used(page, visit, tmp_path):
    long = "a class with a name that is much longer than others, andonewordthatdoesnotfitintoanybutton"
    address = visit(digits_page(tmp_path, classes=[str(i) for i in range(9)] + [long]))
    work(Client(address), 12, lambda item: "1")
    page.label("9")
    assert long in set(labels_of(tmp_path).values())
    for width in (360, 820, 1280):
        for scheme in ("light", "dark"):
            page.resize(width, 900, scheme=scheme)
            for view in ("label", "gallery"):
                page.click(f'.tab[data-view="{view}"]')
                page.wait_for(lambda view=view: page.find(".card" if view == "gallery" else ".class"))
                assert page.run("return document.documentElement.scrollWidth <= innerWidth"), (width, view)
                assert page.run(CONTRAST) == [], (width, scheme, view)
                assert page.run(NAMELESS) == [], (width, view)
                assert page.run(CLIPPED) == [], (width, view)
    page.resize(1280, 900)
    page.click('.tab[data-view="label"]')
    page.run("document.activeElement.blur()")
    reached = []
    for _ in range(24):  # everything can be reached, and its focus seen, without a mouse
        page.press(Keys.TAB)
        reached.append(page.run(FOCUS))
    assert "Gallerysolid" in reached
    assert "11solid" in reached
    assert any(text.endswith("Cannot saysolid") for text in reached)
    assert page.complaints() == []


def test_the_row_of_a_table_is_shown_as_a_table(page, tmp_path):
    frame = pd.DataFrame({"age": [31.0, None], "job": ["<b>nurse</b>", "smith"]}, index=["a", "b"])
    with label_page(frame, ["yes", "no"], tmp_path / "out", share=0) as client:
        page.open(client.address.geturl())
        seen = {}
        for key in ("1", "2"):
            cells = page.find("figure.sample table th, figure.sample table td")
            seen[page.current()] = [cell.text for cell in cells]
            page.label(key)
        assert seen == {"a": ["age", "31", "job", "<b>nurse</b>"], "b": ["age", "missing", "job", "smith"]}
        page.press("g")
        page.click(".card", 0)
        page.wait_for(lambda: page.find("dialog.correct table td"))
        assert not page.complaints()
    assert set(labels_of(tmp_path / "out")) == {"a", "b"}


def test_from_the_promise_over_the_last_check_to_the_data_set(page, serve, tmp_path):
    X = np.random.default_rng(0).normal(size=(500, 3))
    X[:, 0] += np.where(X[:, 0] > 0, 1.0, -1.0)
    said = {f"s{i}": "yes" if value > 0 else "no" for i, value in enumerate(X[:, 0])}
    source = as_source(X, list(said), None)
    model = choose_model(source, model="linear")
    project = Project(
        source, ["no", "yes"], model, tmp_path, strategy="margin", query_size=90, share=0.4, max_error=0.1
    )
    address = serve(project)
    assert project.worker.wait_until_idle()  # so that chance draws the same samples in every run
    client = Client(address)

    def label(n):
        work(client, n, lambda item: said[item["id"]])

    page.open(address)
    assert page.text(".accuracy").endswith("20 more are needed.")
    assert not page.find(".finishing")
    label(90)
    page.wait_for(lambda: page.find(".certify"))
    assert re.match(r"\d+ to \d+\xa0% right, 95\xa0% sure, from \d+ audit labels\.$", page.text(".accuracy"))
    assert page.text(".guessing").startswith("Guessing gives ")
    promise = r"Finish now: the model labels about \d+ of 500, you \d+ more, at most 10\xa0% wrong\. "
    assert re.match(promise + ".* a last check, drawn by chance", page.text(".finish-words"))
    for width, scheme in ((360, "dark"), (1280, "light")):
        page.resize(width, 900, scheme=scheme)
        assert (page.run(CONTRAST), page.run(NAMELESS), page.run(CLIPPED)) == ([], [], [])
        assert page.run("return document.documentElement.scrollWidth <= innerWidth")

    page.click(".certify")
    page.wait_for(lambda: page.text(".finish-words").startswith("Last check: 0 of "))
    checked = {project.source.ids[position] for position in project.ending.questions()}
    page.wait_for(lambda: page.current() in checked)  # what was fetched before is gone
    label(len(client.call("next", n=200)["items"]))  # by another tab; this one has some of its own
    total = client.call("status")["check"]["total"]
    while page.current() in checked:
        page.label("2" if said[page.current()] == "yes" else "1")
    page.wait_for(lambda: "The model labels" in page.text(".finish-words"))
    final = client.call("status")["final"]
    assert final["certificate"]["n_audited"] == total == len(checked)
    assert checked <= labels_of(tmp_path).keys()
    assert page.find(".resume")
    assert not page.find(".certify")
    (link,) = page.find(".final-file")
    status, _, body = client.request("GET", urlsplit(link.get_attribute("href")).path)
    assert (status, json.loads(body)["certificate"]) == (200, final["certificate"])
    by_model = {row["id"] for row in json.loads(body)["labels"] if row["by"] == "model"}
    if final["left"]:
        assert page.wait_for(page.current) not in by_model
    assert page.complaints() == []
    page.click(".finish")
    page.wait_for(lambda: "--to final" in page.text("main"))
    assert "The model labels" in page.text("main")
    assert json.loads(export_final(tmp_path))["certificate"] == final["certificate"]
