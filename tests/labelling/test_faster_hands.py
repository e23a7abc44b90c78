"""The page where many samples, many classes, a reload or a lost server are at hand."""

import json
import os
import signal

import numpy as np
import pytest
from selenium.webdriver import ActionChains

from benchmarks._label_page import Keys
from skal.labelling._label import as_source
from skal.labelling._models import choose_model
from skal.labelling._project import Project
from skal.labelling._server import LabelServer
from skal.labelling._team import Team

from .conftest import DIGITS, PATIENCE, Client, digits_page, label_page, truth, wait_for_training, work

CHOSEN = "return [...document.querySelectorAll('.cell[aria-pressed=true]')].map((cell) => cell.dataset.id)"


def events(folder):
    path = folder / "labels.jsonl"
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def test_the_grid_labels_many_at_once_and_undoes_them_as_one(page, tmp_path):
    with digits_page(tmp_path, n=60, classes=["ant", "bee"], query_size=1000) as client:
        page.open(client.address.geturl())
        page.click("[data-option=grid]")
        page.wait_for(lambda: len(page.find(".cell")) == 12)
        ids = [cell.get_attribute("data-id") for cell in page.find(".cell")]
        page.click(".cell", 1)
        page.click(".cell", 3)
        assert page.run(CHOSEN) == [ids[1], ids[3]]
        cells = page.find(".cell")
        ActionChains(page.driver).key_down(Keys.SHIFT).click(cells[5]).key_up(Keys.SHIFT).perform()
        assert page.run(CHOSEN) == [ids[i] for i in (1, 3, 4, 5)]
        page.click(".cell", 4)
        assert page.run(CHOSEN) == [ids[i] for i in (1, 3, 5)]
        page.press("1")
        page.wait_for(lambda: len(events(tmp_path)) == 3)
        assert {(e["id"], e["label"]) for e in events(tmp_path)} == {(ids[i], "ant") for i in (1, 3, 5)}
        page.wait_for(lambda: "ant" in page.find(".cell")[5].text)
        page.press(Keys.BACKSPACE)
        page.wait_for(lambda: len(client.call("gallery")["items"]) == 0)
        page.wait_for(lambda: not page.find(".cell")[5].text.endswith("ant"))
        cells = page.find(".cell")
        ActionChains(page.driver).move_to_element(cells[6]).click_and_hold().move_to_element(cells[7]).move_to_element(
            cells[8]
        ).release().perform()
        assert page.run(CHOSEN) == ids[6:9]
        page.press(Keys.ESCAPE)
        page.press("a")
        assert page.run(CHOSEN) == ids
        page.press("2")
        page.wait_for(lambda: client.call("status")["labelled"] == 12)
        page.wait_for(lambda: page.find(".cell") and page.find(".cell")[0].get_attribute("data-id") not in ids)
        page.press(Keys.BACKSPACE)
        page.wait_for(lambda: client.call("status")["labelled"] == 0)
        assert page.complaints() == []


def test_many_classes_stand_by_the_guess_and_are_found_without_accents(page, tmp_path):
    names = [f"Zahl_{i}" for i in range(10)] + ["Crème_brûlée", "other"]
    with digits_page(tmp_path, classes=names, query_size=60, share=0.0) as client:
        work(client, 60, lambda item: f"Zahl_{truth(item['id'])}")
        wait_for_training(client, rounds=1)
        page.open(client.address.geturl())
        status = {item["id"]: item for item in client.call("next", client="other", n=3)["items"]}
        assert all(len(item["guesses"]) >= 10 for item in status.values())
        shown = page.run("return [...document.querySelectorAll('.class')].map((button) => button.dataset.class)")
        assert set(shown) == set(names)
        assert shown[-2:] == ["Crème_brûlée", "other"]  # of these the model knows nothing
        assert page.run("return document.querySelectorAll('.class kbd').length") == 10
        likeliest = page.run("return document.querySelector('.class').dataset.class")
        before = page.label("1")
        found = {item["id"]: item["label"] for item in client.call("gallery")["items"]}
        assert found[before] == likeliest
        page.press("/")
        page.press("CREME brul")
        assert [button.text for button in page.find(".class")] == ["Crème_brûlée"]
        page.press(Keys.ENTER)
        page.wait_for(lambda: client.call("gallery", label="Crème_brûlée")["total"] == 1)


def test_a_sample_stays_when_the_page_is_loaded_again(page, tmp_path):
    with digits_page(tmp_path, n=100, query_size=1000) as client:
        page.open(client.address.geturl())
        page.label("1")
        shown = page.current()
        page.driver.refresh()
        page.wait_for(page.current)
        assert page.current() == shown
        page.label("1")
        assert page.current() != shown


def test_a_lost_server_is_noticed_and_found_again(page, tmp_path):
    def start():
        source = as_source(DIGITS.images[:60] / 16, [f"digit-{i:04d}" for i in range(60)], None)
        project = Project(source, ["a", "b"], choose_model(source, model="linear"), tmp_path, query_size=1000).start()
        server = LabelServer(project)
        return project, server, server.start()

    def stop(project, server, thread):
        server.stop()
        thread.join(PATIENCE)
        project.close()

    project, server, thread = start()
    address = server.address
    page.open(address)
    page.label("1")
    shown = page.current()
    stop(project, server, thread)
    page.wait_for(lambda: "does not answer" in page.text(".banner") and page.find(".banner"))
    page.press("2")  # is lost, and the page says so: the sample stays
    project, server, thread = start()
    try:
        assert server.address == address
        page.wait_for(lambda: not page.find(".banner"))
        assert page.current() == shown
        page.label("2")
        labels = project.labels().set_index("id")["label"]
        assert labels[shown] == "b"
        assert len(labels) == 2
    finally:
        page.driver.get("about:blank")
        stop(project, server, thread)


def test_a_frozen_server_is_noticed_and_goes_on(page, command, tmp_path):
    """It takes connections and does not answer; the page asks so often, and waits so short, that it knows soon."""
    running = command("--demo", "--out", tmp_path)
    page.open(running.address)
    script = "const [done] = arguments; import(new URL('transport.js', location.href)).then((all) => done({ ...all }))"
    declared = page.driver.execute_async_script(script)
    assert declared["PERIOD"] + declared["TIMEOUT"] < 3000
    shown = page.current()
    os.kill(running.process.pid, signal.SIGSTOP)
    try:
        page.wait_for(lambda: page.find(".banner") and "does not answer" in page.text(".banner"))
    finally:
        os.kill(running.process.pid, signal.SIGCONT)
    page.wait_for(lambda: not page.find(".banner"))
    assert page.current() == shown
    assert page.label("1") == shown


def test_confusions_open_their_samples_and_few_labels_give_no_percentage(page, tmp_path):
    with digits_page(tmp_path, n=400, query_size=50, share=0.3) as client:
        page.open(client.address.geturl())
        assert "%" not in page.text("aside")
        assert page.find(".confusion") == []
        assert "20" in page.text(".accuracy")  # what is missing
        work(client, 150, lambda item: truth(item["id"]))
        cells = wait_for_training(client)["confusion"]
        assert sum(cell["n"] for cell in cells) >= 20
        page.wait_for(lambda: page.find(".confusion button"))
        cell = max(cells, key=lambda cell: cell["n"])
        page.click(f".confusion [data-cell='{cell['label']} {cell['predicted']}']")
        page.wait_for(lambda: len(page.find(".card")) == cell["n"])
        assert {card.find_element("css selector", ".card-label").text for card in page.find(".card")} == {cell["label"]}
        found = client.call("gallery", cell=[cell["label"], cell["predicted"]])["items"]
        assert {item["predicted"]["label"] for item in found} == {cell["predicted"]}
        page.click(".behind")
        page.wait_for(lambda: len(page.find(".card")) == 60)


def test_many_classes_have_the_worst_mistakes_and_a_figure_for_each_class(page, tmp_path):
    rng = np.random.default_rng(0)
    names = [f"class {k}" for k in range(15)]
    codes = rng.permutation(300) % 15
    X = 4 * np.eye(15)[np.maximum(codes, 1)] + rng.normal(size=(300, 15))  # the first two classes look the same
    settings = {"ids": [f"s{i}" for i in range(300)], "model": "linear", "query_size": 60, "share": 0.4}
    with label_page(X, names, tmp_path, **settings) as client:
        work(client, 180, lambda item: names[codes[int(item["id"][1:])]])
        wait_for_training(client)
        page.open(client.address.geturl())
        page.wait_for(lambda: page.find(".recalls li"))
        cells = client.call("status")["confusion"]
        lines = [line.text for line in page.find(".recalls li")]
        found = {name: line for line in lines for name in names if line.startswith(f"{name}: ")}
        held = {name: sum(cell["n"] for cell in cells if cell["label"] == name) for name in names}
        right = {cell["label"]: cell["n"] for cell in cells if cell["label"] == cell["predicted"]}
        assert found == {n: f"{n}: {right.get(n, 0)} of {total}" for n, total in held.items() if total}
        shares = [right.get(name, 0) / held[name] for name in sorted(found, key=lambda name: lines.index(found[name]))]
        assert shares == sorted(shares)
        assert shares[0] < shares[-1] == 1
        assert page.find(".confusions button")
        page.click(".confusions button")
        page.wait_for(lambda: "only where a model disagrees" in page.text(".judged") and page.find(".judged"))
        page.click(".behind")
        page.wait_for(lambda: not page.find(".judged"))
        assert page.complaints() == []


@pytest.fixture
def two(tmp_path):
    """A team's page, and the clients of two people."""
    X = np.random.default_rng(0).normal(size=(40, 3))
    source = as_source(X, [f"s{i}" for i in range(40)], None)
    team = Team(["ann", "ben"], 1.0)
    with Project(source, ["x", "y"], choose_model(source), tmp_path, query_size=1000, team=team) as project:
        server = LabelServer(project)
        thread = server.start()
        yield server, Client(server.links["ben"])
        server.stop()
        thread.join(PATIENCE)


def test_who_decides_sees_disputes_and_agreement(page, two):
    server, ben = two
    for _ in range(3):
        (item,) = ben.call("next", n=1)["items"]
        ben.call("answer", id=item["id"], label="x")
    page.open(server.links["ann"])
    first = page.current()
    for key in ["2", "1", "1"]:
        page.label(key)
    page.wait_for(lambda: page.text(".disputes") == "1 sample to decide")
    assert "ann and ben" in page.text(".agreement")
    page.click(".disputes")
    page.wait_for(lambda: [card.get_attribute("data-id") for card in page.find(".card")] == [first])
    page.click(".card")
    page.wait_for(lambda: page.find("dialog.correct"))
    assert "ben: x, ann: y" in page.text("dialog.correct")
    page.press("1")
    page.wait_for(lambda: ben.call("status")["team"]["disputes"] == 0)
    page.open(server.links["ben"])
    assert page.find(".finish") == []
    assert page.find(".disputes") == []
    assert page.complaints() == []
