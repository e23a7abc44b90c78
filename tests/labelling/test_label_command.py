"""``skal label`` as a process: its sentences, its end, and what is left when it is killed."""

import json
import re
import socket
import threading

import numpy as np
import pytest
from PIL import Image

from skal.cli import main

from . import conftest
from .conftest import Client, truth, wait_for_training


def labels_of(folder):
    lines = [json.loads(line) for line in (folder / "labels.jsonl").read_text().splitlines()]
    return {line["id"]: line["label"] for line in lines}


def work(client, n):
    """Label so many samples; gives what was said."""
    return conftest.work(client, n, lambda item: truth(item["id"]))


def one_picture(folder):
    Image.new("RGB", (20, 20), "red").save(folder / "a.png")


def refused(arguments, capsys):
    """What a command prints that cannot do its job."""
    assert main(["label", *map(str, arguments), "--no-browser"]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("skal label: ")
    assert "Traceback" not in printed
    return printed


def test_killed_and_started_again_it_goes_on_and_nothing_is_lost(command, tmp_path, capsys):
    out = tmp_path / "out"
    running = command("--demo", "--out", out, "--query-size", "10")
    client = Client(running.address)
    said = work(client, 25)
    second = refused(["--demo", "--out", out], capsys)
    assert f"held by process {running.process.pid} on {socket.gethostname()}" in second
    port = client.address.port
    assert f"Got 127.0.0.1, {port}" in refused(["--demo", "--out", tmp_path, "--port", port], capsys)
    said |= work(client, 12)
    running.kill()
    assert labels_of(out) == said
    running = command("--demo", "--out", out, "--query-size", "10")
    client = Client(running.address)
    assert client.call("status")["labelled"] == 37
    said |= work(client, 3)
    client.call("finish")
    status, printed, errors = running.end()
    assert status == 0, errors
    assert "40 labels in" in printed
    assert "skal export" in printed
    assert labels_of(out) == said


@pytest.mark.parametrize("bounds", [["--range", "-5,5"], ["--range=-5,5"]], ids=["apart", "as one"])
def test_numbers_with_a_unit_and_bounds(bounds, command, image_folder, tmp_path):
    out = tmp_path / "out"
    task = ["--task", "regression", "--unit", "°C", "--hold-out", "0", "--model", "linear"]
    running = command(image_folder, *task, *bounds, "--out", out)
    client = Client(running.address)
    form = client.call("status")["form"]
    assert (form["task"], form["unit"], form["low"], form["high"]) == ("regression", "°C", -5, 5)
    (item,) = client.call("next", n=1)["items"]
    client.call("answer", id=item["id"], label=-4.5)
    client.call("finish")
    assert running.end()[0] == 0
    assert labels_of(out) == {item["id"]: -4.5}
    again = command("--model", "linear", "--out", out)  # the folder knows its task
    client = Client(again.address)
    status, _, answer = client.request(
        "POST", f"{client.root}api/answer", {"client": "test", "id": item["id"], "label": -6}
    )
    assert (status, b"at least -5 and at most 5" in answer) == (400, True)


def test_several_labels_of_a_sample(command, image_folder, tmp_path):
    out = tmp_path / "out"
    running = command(image_folder, "--task", "multilabel", "--classes", "red,dark", "--model", "linear", "--out", out)
    client = Client(running.address)
    (item,) = client.call("next", n=1)["items"]
    client.call("answer", id=item["id"], label=["dark"])
    assert labels_of(out)[item["id"]] == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--task", "regression", "--range", "5"], "--range needs two numbers.*Got 5. Say --range 0,100"),
        (["--task", "regression", "--range", "-5,-9"], "'bounds' .* the lower one first"),
        (["--unit", "m", "--classes", "a,b"], "'unit' .* left out with classification"),
    ],
)
def test_bounds_and_units_that_make_no_sense(arguments, said, image_folder, tmp_path, capsys):
    assert main(["label", str(image_folder), *arguments, "--out", str(tmp_path / "out"), "--no-browser"]) in (1, 2)
    assert re.search(said, capsys.readouterr().err)


def test_a_folder_of_broken_pictures_alone_is_refused(tmp_path, capsys):
    for name in ("a.jpg", "b.png"):
        (tmp_path / name).write_bytes(b"nothing")
    printed = refused([tmp_path, "--classes", "a,b", "--out", tmp_path / "out"], capsys)
    assert f"The folder {tmp_path.resolve()} must hold images that can be read. Got 2 files" in printed
    assert "the first error: a.jpg must be an image" in printed


def test_ctrl_c_ends_it_and_the_folder_knows_its_source(command, image_folder, tmp_path, monkeypatch, capsys):
    (image_folder / "broken.jpg").write_bytes(b"nothing")
    (image_folder / "new.jpg").write_bytes((image_folder / "blue" / "00.jpg").read_bytes())
    out = tmp_path / "out"
    running = command(image_folder, "--labels", "folders", "--model", "linear", "--out", out)
    client = Client(running.address)
    status = client.call("status")
    assert {each["name"]: each["count"] for each in status["classes"]} == {"red": 12, "blue": 12}
    assert client.request("GET", f"{client.root}picture?id=broken.jpg")[0] == 404
    client.call("answer", id="new.jpg", label="blue")
    running.interrupt()
    status, printed, errors = running.end()
    assert status == 0, errors
    assert "25 labels in" in printed
    assert "1 files could not be read and were skipped:\n  broken.jpg" in printed
    assert "Traceback" not in errors

    threads = []

    def visit(address):
        threads.append(threading.Thread(target=Client(address).call, args=("finish",)))
        threads[-1].start()

    monkeypatch.setattr("webbrowser.open", visit)
    monkeypatch.setenv("DISPLAY", ":0")
    assert main(["label", "--out", str(out), "--model", "linear"]) == 0
    threads[0].join()
    assert "25 labels in" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (lambda f: None, ["{f}", "--classes", "a,b"], "must hold images"),
        (lambda f: None, ["{f}/nothing", "--classes", "a,b"], "not there"),
        (lambda f: (f / "t.csv").write_text("review\nx\ny,z\n"), ["{f}/t.csv", "--classes", "a,b"], "CSV or JSONL"),
        (lambda f: (f / "t.csv").write_text("a,b\nx,y\n"), ["{f}/t.csv", "--classes", "a,b"], "--text COLUMN"),
        (lambda f: (f / "t.csv").write_text("text\nx\n"), ["{f}/t.csv"], "--classes cat,dog"),
        (lambda f: (f / "t.csv").write_text("text\nx\n"), ["{f}/t.csv", "--classes", "a,,b"], "double quotes"),
        (lambda f: one_picture(f), ["{f}", "--classes", "a,b", "--size", "-3"], "'--size' parameter of skal label"),
        (lambda f: one_picture(f), ["{f}", "--classes", "a,b", "--query-size", "0"], "'--query-size' parameter"),
        (lambda f: one_picture(f), ["{f}", "--classes", "a,b", "--features", "{f}/a.png"], "an npy file of it"),
        (lambda f: one_picture(f), ["{f}", "--classes", "a,b", "--features", "{f}/none.npy"], "There is no file"),
        (lambda f: one_picture(f), ["{f}", "--classes", "a,b", "--labels", "{f}/none.csv"], "a file that can be read"),
        (lambda f: np.savez(f / "a.npz", X=np.zeros(3)), ["{f}/a.npz", "--classes", "a,b"], "2, 3 or 4 dimensions"),
    ],
)
def test_bad_input_gets_a_sentence(make, arguments, message, tmp_path, capsys):
    make(tmp_path)
    assert message in refused([*(text.format(f=tmp_path) for text in arguments), "--out", tmp_path / "out"], capsys)


def test_known_labels_that_are_no_classes_or_of_two_files_are_refused(image_folder, tmp_path, capsys):
    for place in ("a", "b"):
        (image_folder / place).mkdir()
        (image_folder / place / "same.png").write_bytes((image_folder / "red" / "01.png").read_bytes())
    known = tmp_path / "known.csv"
    arguments = [image_folder, "--classes", "red,blue", "--out", tmp_path / "out", "--labels", known]
    known.write_text("file,label\nsame.png,red\n")
    assert "2 files of that name" in refused(arguments, capsys)
    known.write_text('file,label\na/same.png,"red, dark"\n')
    assert "red, dark" in refused(arguments, capsys)


def test_a_target_is_what_the_questions_serve_and_the_folder_knows_it(image_folder, tmp_path, monkeypatch, capsys):
    target, out = tmp_path / "deploy", tmp_path / "out"
    target.mkdir()
    for path in (image_folder / "red").iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    asked, threads = [], []

    def visit(address):
        def look():
            client = Client(address)
            wait_for_training(client, rounds=0)
            asked.append([item["id"] for item in client.call("next", n=6)["items"]])
            for key in [*asked[-1][:3], "blue/00.jpg"]:
                client.call("answer", id=key, label=key.split("/")[0])
            client.call("finish")

        threads.append(threading.Thread(target=look))
        threads[-1].start()

    monkeypatch.setattr("webbrowser.open", visit)
    monkeypatch.setenv("DISPLAY", ":0")
    how = ["--classes", "red,blue", "--model", "linear", "--query-size", "2", "--hold-out", "0"]
    for arguments in ([str(image_folder), "--target", str(target)], []):  # the folder knows both
        assert main(["label", *arguments, *how, "--out", str(out)]) == 0
        threads.pop().join()
        assert sum(key.startswith("red") for key in asked.pop()) >= 5  # half of all are
    capsys.readouterr()
    texts = tmp_path / "texts.csv"
    texts.write_text("text\nx\n")
    again = [image_folder, *how, "--out", out]
    assert "samples of kind 'image'" in refused([*again, "--target", texts], capsys)
    np.save(tmp_path / "features.npy", np.zeros((24, 3)))
    given = ["--features", tmp_path / "features.npy", "--target", target]
    assert "left out with given features" in refused([image_folder, "--classes", "a,b", "--out", out, *given], capsys)
    assert "takes a target" in refused([*again, "--target", target, "--strategy", "margin"], capsys)
