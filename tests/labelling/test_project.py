"""What the page relies on: order, undo, skip, classes, corrections, and the honest numbers beside them."""

import json
import re
import time

import numpy as np
import pytest
from PIL import Image

from skal import label
from skal.exceptions import CheckpointError, InvalidParameterError
from skal.labelling._models import choose_model
from skal.labelling._project import Project
from skal.labelling._queue import LEASE, Leases
from skal.labelling._settings import parse_classes
from skal.labelling._sources import ImageFolder
from skal.stopping import Budget

from .conftest import CLASSES, label_page, make_project, truth, wait_for_training, work


def label_some(project, n, client="me"):
    done = []
    for _ in range(n):
        (item,) = project.next(client, 1)
        project.answer(item["id"], truth(item["id"]), client=client)
        done.append(item["id"])
    return done


def test_labels_are_on_the_disk_when_answer_returns(project):
    (key,) = label_some(project, 1)
    lines = (project.folder / "labels.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["id"] == key
    assert json.loads(lines[-1])["label"] == truth(key)


def test_the_model_learns_and_says_how_good_it_is(tmp_path):
    with make_project(tmp_path, share=0.5) as project:
        for _ in range(4):
            label_some(project, 15)
            assert project.worker.wait_until_idle()
        status = project.status()
        assert status["labelled"] == 60
        assert sum(each["count"] for each in status["classes"]) == 60
        assert status["rounds"] >= 3
        assert len(status["curve"]) >= 3
        assert re.search(r"^\d+ to \d+ % right, 95 % sure, from \d+ audit labels\.$", status["audit"]["words"])
        assert status["forecast"].startswith(("With 100 more labels", "No forecast yet"))
        assert all(point["low"] <= point["score"] <= point["high"] for point in status["curve"])
        held = project.labels().query("source == 'held out'")["id"]
        assert 20 <= len(held) <= 40
        result = project.result()
        state = project.rounds.session.state
        flags = dict(zip(state.labelled, state.heldout, strict=True))
        assert {project.source.ids[i] for i, flag in flags.items() if flag} == set(held)
        assert result.forecast.n_heldout <= len(held)
        assert result.audit.accuracy.n_labels <= len(held)
        assert (project.folder / "model" / "model.json").exists()


def test_labels_that_are_given_at_once_are_counted_one_by_one(tmp_path):
    """By the training that is due, and by the pace of today."""
    with make_project(tmp_path, query_size=20, share=0) as project:
        keys = [item["id"] for item in project.next("me", 24)]
        began = time.monotonic()
        for label in sorted({truth(key) for key in keys}):
            project.answer([key for key in keys if truth(key) == label], label, client="me")
        minutes = (time.monotonic() - began) / 60
        assert project.worker.wait_until_idle()
        status = project.status()
        assert (status["labelled"], status["rounds"]) == (24, 1)
        # 23 gaps in these minutes, or the quickest that is counted: a thousand labels a second
        assert status["per_minute"] * minutes >= 23 or status["per_minute"] == pytest.approx(60_000)


def test_suggestions_never_come_with_samples_that_measure_accuracy(project):
    label_some(project, 30)
    assert project.worker.wait_until_idle()
    audit = {project.source.ids[i] for i in project.rounds.session.state.audit}
    items = project.next("me", 60)
    assert any(item["id"] in audit for item in items)
    for item in items:
        assert ("suggestion" in item) == (item["id"] not in audit)
    assert any(item.get("suggestion") for item in items)


def test_undo_goes_back_step_by_step(project):
    first, second = label_some(project, 2)
    project.answer(first, "0", client="me")
    assert project.undo("me")["id"] == first
    assert project.labels().set_index("id")["label"].to_dict() == {first: truth(first), second: truth(second)}
    assert project.undo("me")["id"] == second
    assert project.undo("other") is None
    assert project.undo("me")["id"] == first
    assert project.undo("me") is None
    assert len(project.labels()) == 0
    project.answer(first, None, client="me", declined=True)
    project.answer(first, "3", client="me")
    project.undo("me")
    assert project.status()["declined"] == 1  # it was skipped before
    project.undo("me")
    assert project.status()["declined"] == 0


def test_a_skipped_sample_is_not_asked_for_again(project):
    (item,) = project.next("me", 1)
    project.answer(item["id"], None, client="me", declined=True)
    assert item["id"] not in [each["id"] for each in project.next("me", 200)]


def test_two_tabs_get_different_samples(project):
    project.worker.wait_until_idle()
    first = [item["id"] for item in project.next("one", 5)]
    second = [item["id"] for item in project.next("two", 5)]
    assert not set(first) & set(second)
    assert [item["id"] for item in project.next("one", 5)] == first


def test_leases_end():
    now = [0.0]
    leases = Leases(lambda: now[0])
    assert leases.take("one", [1, 2, 3], 2) == [1, 2]
    assert leases.take("two", [1, 2, 3], 2) == [3]
    now[0] = LEASE + 1
    assert leases.take("two", [1, 2, 3], 2) == [1, 2]


def test_everything_can_be_labelled(tmp_path):
    with make_project(tmp_path, n=25, query_size=5) as project:
        keys = label_some(project, 25)
        assert sorted(keys) == project.source.ids
        assert project.next("me", 5) == []
        project.worker.wait_until_idle()
        assert project.next("me", 5) == []


def test_a_class_can_be_added_and_stays(tmp_path):
    with make_project(tmp_path, classes=CLASSES[:9]) as project:
        with pytest.raises(InvalidParameterError, match="Add the class first"):
            project.answer("digit-0009", "9", client="me")
        assert project.add_class("9") == CLASSES
        assert project.add_class("red, white")[-1] == "red, white"
        for key in ("digit-0009", "digit-0019"):
            project.answer(key, "9", client="me")
        project.answer("digit-0001", "red, white", client="me")
        with pytest.raises(InvalidParameterError, match="distinct"):
            project.add_class("9")
        with pytest.raises(InvalidParameterError, match="not empty"):
            project.add_class("  ")
        label_some(project, 30)
        assert project.worker.wait_until_idle()
        assert project.status()["error"] is None, project.status()["error"]
    assert json.loads((tmp_path / "project.json").read_text())["classes"] == [*CLASSES, "red, white"]
    with make_project(tmp_path, classes=CLASSES[:2]) as project:
        assert project.classes == [*CLASSES, "red, white"]
        assert len(project.labels()) == 33


def test_gallery_shows_doubtful_labels_first(project):
    keys = label_some(project, 40)
    wrong = str((int(truth(keys[0])) + 1) % 10)
    project.answer(keys[0], wrong, client="me")
    project.answer(keys[1], None, client="me", declined=True)
    assert project.worker.wait_until_idle()
    label_some(project, 10)
    assert project.worker.wait_until_idle()
    found = project.gallery(order="doubtful", limit=500)
    scores = [2.0 if item["doubt"] is None else item["doubt"]["probability"] for item in found["items"]]
    assert scores == sorted(scores)
    assert min(scores) < 1
    assert found["total"] == 50
    newest = project.gallery(limit=2)["items"]
    assert [item["id"] for item in newest] == [line["id"] for line in list(project.rounds.known.values())[:-3:-1]]
    assert {item["label"] for item in project.gallery(label=wrong)["items"]} == {wrong}
    assert [item["id"] for item in project.gallery(label="")["items"]] == [keys[1]]
    assert len(project.gallery(offset=45)["items"]) == 5


def test_known_labels_come_along_and_are_not_asked_for(tmp_path):
    known = {f"digit-{i:04d}": truth(f"digit-{i:04d}") for i in range(40)}
    with make_project(tmp_path, labels=known) as project:
        assert project.labels().set_index("id")["label"].to_dict() == known
        assert project.worker.wait_until_idle()
        assert not {item["id"] for item in project.next("me", 200)} & set(known)
        assert project.status()["rounds"] >= 1


def test_advice_does_not_end_the_work(tmp_path):
    with make_project(tmp_path, stop=Budget(20)) as project:
        label_some(project, 30)
        assert project.worker.wait_until_idle()
        assert re.fullmatch(r"You may stop: \d\d labels, as many as the budget\.", project.status()["advice"])
        assert len(label_some(project, 20)) == 20


def colours_page(image_folder, tmp_path, query_size=5):
    return label_page(image_folder, ["red", "blue"], tmp_path / "out", query_size=query_size)


def test_unreadable_images_are_declined_named_and_come_back_when_repaired(image_folder, tmp_path):
    broken = image_folder / "broken.jpg"
    broken.write_bytes(b"nothing")
    with colours_page(image_folder, tmp_path) as client:
        status, _, said = client.request("GET", f"{client.root}picture?id=broken.jpg&size=100")
        assert status == 404
        assert "broken.jpg must be an image" in json.loads(said)["error"]
        status = client.call("status")
        assert (status["unreadable"], status["declined"]) == (["broken.jpg"], 0)
        assert "broken.jpg" not in [item["id"] for item in client.call("next", n=200)["items"]]
        assert client.call("gallery", label="")["items"][0]["unreadable"]
    assert client.result.unreadable == ["broken.jpg"]
    Image.new("RGB", (30, 30), "red").save(broken)
    with colours_page(image_folder, tmp_path) as client:
        assert client.call("status")["unreadable"] == []
        assert "broken.jpg" in [item["id"] for item in client.call("next", n=200)["items"]]


def test_a_file_that_changes_under_its_label_is_refused_by_name(image_folder, tmp_path):
    with colours_page(image_folder, tmp_path, query_size=50) as client:
        client.call("answer", id="red/01.png", label="red")
    Image.new("RGB", (30, 30), "red").save(image_folder / "red" / "01.png")
    with pytest.raises(CheckpointError, match=r"red/01\.png"), colours_page(image_folder, tmp_path, query_size=50):
        pass


def test_files_may_be_added(image_folder, tmp_path):
    for n in (24, 25):
        with colours_page(image_folder, tmp_path) as client:
            status = client.call("status")
            assert (status["samples"], status["labelled"]) == (n, n - 24)
            if n == 24:
                client.call("answer", id="red/01.png", label="red")
        Image.new("RGB", (30, 30), "red").save(image_folder / "aaa.png")
    assert client.result.labels["id"].tolist() == ["red/01.png"]


def test_a_second_one_is_refused_by_name(project):
    with pytest.raises(CheckpointError, match=r"Only one session.*held by this process"):
        make_project(project.folder)
    label_some(project, 1)


def test_classes_of_the_command_line():
    assert parse_classes("a,b") == ["a", "b"]
    assert parse_classes('"red, white", blue') == ["red, white", "blue"]
    for text in ("a,,b", "", "a,a", " , "):
        with pytest.raises(InvalidParameterError, match="double quotes"):
            parse_classes(text)


def test_damaged_settings_are_refused(tmp_path):
    (tmp_path / "project.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"project\.json"):
        make_project(tmp_path)


def test_label_in_a_script(tmp_path):
    from .conftest import DIGITS, Client

    def person(address):
        client = Client(address)
        for _ in range(25):
            (item,) = client.call("next", n=1)["items"]
            client.call("answer", id=item["id"], label=truth(item["id"]))
        client.call("finish")

    ids = [f"digit-{i:04d}" for i in range(200)]
    found = label(
        DIGITS.images[:200] / 16, CLASSES, ids=ids, folder=tmp_path, model="linear", query_size=10, browser=person
    )
    assert len(found.labels) == 25
    assert (found.labels["label"] == [truth(key) for key in found.labels["id"]]).all()
    assert found.folder == tmp_path
    assert found.model is None or found.model.predict(np.zeros((1, 64), dtype=np.float32)).shape == (1,)
    y = [truth(key) if i < 5 else None for i, key in enumerate(ids)]
    again = label(
        DIGITS.images[:200] / 16,
        CLASSES,
        y=y,
        ids=ids,
        folder=tmp_path,
        model="linear",
        browser=lambda address: Client(address).call("finish"),
    )
    assert len(again.labels) == len({*found.labels["id"], *ids[:5]})


def test_whatever_goes_wrong_in_the_background_labelling_goes_on(tmp_path, capsys, monkeypatch):
    with make_project(tmp_path) as project:
        assert project.worker.wait_until_idle()
        calls = []

        def fail():
            calls.append(1)
            raise MemoryError("too large")

        monkeypatch.setattr(project.worker, "_predict", fail)
        label_some(project, 12)
        assert project.worker.wait_until_idle()
        assert project.status()["error"] == "MemoryError: too large"
        monkeypatch.undo()
        label_some(project, 12)
        assert project.worker.wait_until_idle()
        assert project.status()["error"] is None
        assert len(calls) == 1
        assert project.status()["labelled"] == 24
    assert "too large" in capsys.readouterr().err


def test_features_that_cannot_be_computed_are_told(tmp_path, capsys):
    def fail(progress):
        raise OSError("no disk")

    source = ImageFolder(_folder(tmp_path))
    model = choose_model(source, model="linear")
    model.prepare = fail
    with Project(source, ["a", "b"], model, tmp_path / "out") as project:
        assert project.worker.wait_until_idle()
        assert project.status()["error"] == "OSError: no disk"
        (item,) = project.next("me", 1)
        project.answer(item["id"], "a", client="me")
        assert project.status()["labelled"] == 1
    assert "no disk" in capsys.readouterr().err


def _folder(tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    for i in range(3):
        Image.new("RGB", (20, 20), (i, 0, 0)).save(folder / f"{i}.png")
    return folder


def test_samples_at_random_come_once_each_and_again_when_taken_back(tmp_path):
    """Before the first query: nobody has chosen anything yet."""
    project = make_project(tmp_path, n=30)
    seen = []
    for step in range(33):
        key = project.next("me", 4)[0]["id"]
        project.answer(key, truth(key), client="me")
        seen.append(key)
        if step in (7, 20):
            assert project.undo("me")["id"] == seen.pop()
        if step == 12:
            project.answer(seen.pop(3), None, client="me")  # taken back in the gallery
    assert project.next("me", 4) == []
    assert len(seen) == len(set(seen)) == 30
    project.close()


def test_the_first_round_on_a_large_pool_finishes(tmp_path):
    """The recommended strategy looks at a part of it."""
    rows = np.random.default_rng(0).normal(size=(6000, 4))
    with label_page(rows, ["a", "b"], tmp_path, ids=[f"row {i}" for i in range(6000)], query_size=5) as client:
        work(client, 10, lambda item: "ab"[int(rows[int(item["id"].split()[1])][0] > 0)])
        wait_for_training(client)
        assert client.call("status")["strategy"] == "UHerding"
        assert len(client.call("next", n=5)["items"]) == 5
