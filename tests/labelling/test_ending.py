"""The end of a project: how good the model is, the last check, the certificate, and who labelled what."""

import json
import re

import numpy as np
import pytest

from skal.cli import main
from skal.labelling import export_final
from skal.stopping import Certified

from . import conftest
from .conftest import Client, label_page, make_project, truth, wait_for_status, wait_for_training

N = 600
MAX_ERROR = 0.1
FIRST = 100  # labels of the first query


@pytest.fixture(scope="module")
def data():
    """Two classes with a wide gap between them."""
    X = np.random.default_rng(0).normal(size=(N, 3))
    y = X[:, 0] + X[:, 1] > 0
    X[:, :2] += np.where(y, 1.0, -1.0)[:, np.newaxis]
    return X, {f"s{i}": "yes" if label else "no" for i, label in enumerate(y)}


def open_page(data, folder, **settings):
    settings = {"query_size": FIRST, "share": 0.4, "max_error": MAX_ERROR, "strategy": "margin"} | settings
    return label_page(data[0], ["no", "yes"], folder, ids=list(data[1]), **settings)


def work(client, data, n):
    """Label n samples truly; gives their ids."""
    return list(conftest.work(client, n, lambda item: data[1][item["id"]]))


def wait_for(client, condition):
    """The status in which a condition holds, when nothing is being done."""
    status = wait_for_status(client, condition)
    assert status["error"] is None
    return status


def begin(client, data):
    """Answer the first query, and wait for the training on it; gives the status.

    About one check in thirty grants nothing, even to a model without an error: its few samples may miss the confident
    ones. So nothing here depends on the machine's load: chance draws the same samples in every run.
    """
    wait_for_training(client, rounds=0)
    work(client, data, FIRST)
    return wait_for(client, lambda status: status["audit"]["n_model"])


def begin_check(client, data):
    """Label until the model could label something, and begin the last check."""
    status = begin(client, data)
    client.call("certify")
    return status, wait_for(client, lambda status: status["check"])


def test_below_twenty_audit_labels_no_percentage_but_what_is_missing(data, tmp_path):
    with open_page(data, tmp_path, query_size=30) as client:
        wait_for_training(client, rounds=0)
        assert client.call("status")["audit"]["words"].endswith("20 more are needed.")
        work(client, data, 30)
        wait_for_training(client)
        status = client.call("status")
        lines = [json.loads(line) for line in (tmp_path / "labels.jsonl").read_text().splitlines()]
        held = [line for line in lines if line.get("source") == "held out"]
        assert 0 < len(held) < 20
        assert status["audit"]["words"].endswith(f"draws: {20 - len(held)} more are needed.")
        assert not status["audit"]["enough"]
        assert (status["curve"], status["forecast"], status["later"]) == ([], None, None)
        assert status["audit"]["finish"] == ""
        code, _, body = client.request("POST", f"{client.root}api/certify", {})
        assert code == 400
        assert "Label more samples first." in json.loads(body)["error"]
    assert not re.search(r"\d %", client.result.audit.say_accuracy())


def test_from_the_promise_to_the_data_set_with_its_certificate(data, tmp_path, capsys):
    with open_page(data, tmp_path, annotator="Ada") as client:
        before, status = begin_check(client, data)
        audit = before["audit"]
        assert re.match(r"\d+ to \d+ % right, 95 % sure, from \d+ audit labels\.", audit["words"])
        n_people = N - before["labelled"] - audit["n_model"]
        assert audit["finish"] == (
            f"Finish now: the model labels about {audit['n_model']} of {N}, you {n_people} more, at most 10 % wrong."
        )
        assert status["check"] == {"total": audit["n_check"], "done": 0}
        items = client.call("next", n=200)["items"]
        assert len(items) == audit["n_check"]
        assert not any("suggestion" in item for item in items)  # it would bias the labels
        rounds = status["rounds"]
        work(client, data, audit["n_check"] - 1)
        assert client.call("status")["rounds"] == rounds  # the model stays as it is
        assert client.call("status")["final"] is None
        work(client, data, 1)
        status = wait_for(client, lambda status: status["final"])
        certificate = status["final"]["certificate"]
        assert certificate["n_audited"] == audit["n_check"]
        assert certificate["max_error"] == MAX_ERROR
        assert certificate["n_left"] == status["final"]["left"]
        assert {"error_bound", "method", "seed", "confidence", "n_wrong", "threshold"} <= certificate.keys()
        left = work(client, data, status["final"]["left"])
        assert len(set(left)) == certificate["n_left"]
        assert client.call("next", n=5)["items"] == []
        assert "People have labelled all others" in client.call("status")["final"]["words"]
        code, headers, body = client.request("GET", f"{client.root}final.json")
        assert (code, headers["content-disposition"]) == (200, "attachment; filename=final.json")
    told = json.loads(body)
    assert told["certificate"] == certificate
    assert told["counts"] == {"people": N - certificate["n_accepted"], "model": certificate["n_accepted"], "open": 0}
    assert {row["id"]: row["by"] for row in told["labels"] if row["by"] == "people"}.keys() >= set(left)
    assert {row["annotator"] for row in told["labels"]} == {"Ada", None}
    sources = client.result.labels.set_index("id")["source"]
    assert set(sources[left]) <= {"left", "held out"}
    wrong = sum(row["label"] != data[1][row["id"]] for row in told["labels"])
    assert wrong <= MAX_ERROR * N
    assert all(row["label"] == data[1][row["id"]] for row in told["labels"] if row["by"] == "people")

    by_id = {row["id"]: row for row in told["labels"]}
    assert {row["id"]: row for row in json.loads(export_final(tmp_path))["labels"]} == by_id
    assert main(["export", str(tmp_path), "--to", "final"]) in (0, None)
    assert json.loads(capsys.readouterr().out)["counts"] == told["counts"]
    assert client.result.final.certificate == certificate
    assert len(client.result.model.learner_.y_training) == N - certificate["n_accepted"]  # those held out too


def test_a_check_goes_on_after_a_restart_and_the_certificate_stays(data, tmp_path):
    with open_page(data, tmp_path) as client:
        _, status = begin_check(client, data)
        done = work(client, data, 10)
        waiting = {item["id"] for item in client.call("next", n=200)["items"]}
    assert client.result.final.certificate is None
    with open_page(data, tmp_path) as client:
        status = wait_for(client, lambda status: status["check"])
        assert status["check"]["done"] == 10
        again = {item["id"] for item in client.call("next", n=200)["items"]}
        assert again == waiting
        assert not again & set(done)
        work(client, data, len(again))
        certificate = wait_for(client, lambda status: status["final"])["final"]["certificate"]
    with open_page(data, tmp_path) as client:
        status = client.call("status")
        assert status["finishing"]
        assert status["final"]["certificate"] == certificate
        assert len(client.call("next", n=200)["items"]) == min(200, certificate["n_left"])


def test_whoever_goes_on_learning_pays_with_a_stricter_check(data, tmp_path):
    with open_page(data, tmp_path) as client:
        _, status = begin_check(client, data)
        work(client, data, 5)
        client.call("resume")
        status = wait_for(client, lambda status: not status["check"] and status["audit"]["n_model"])
        assert not status["finishing"]
        assert any("suggestion" in item for item in client.call("next", n=20)["items"])
        client.call("certify")
        status = wait_for(client, lambda status: status["check"])
        work(client, data, status["check"]["total"])
        certificate = wait_for(client, lambda status: status["final"])["final"]["certificate"]
        assert certificate["audit"] == 2
        assert "wrong with probability 0.00833" in certificate["method"]  # 0.05 / (2 * 3)


def test_a_model_that_is_worse_than_it_seemed_gets_nothing(data, tmp_path):
    with open_page(data, tmp_path) as client:
        _, status = begin_check(client, data)
        for item in client.call("next", n=200)["items"]:  # in the last check people say the opposite
            client.call("answer", id=item["id"], label={"no": "yes", "yes": "no"}[data[1][item["id"]]])
        status = wait_for(client, lambda status: status["check"] is None)
        assert status["final"] is None
        assert status["refused"].startswith("The last check does not allow a promise of at most 10 %.")
        assert client.call("next", n=5)["items"]
    assert client.result.final.certificate is None


def test_labels_that_come_beside_a_check_do_not_change_what_it_is_about(data, tmp_path):
    with open_page(data, tmp_path) as client:
        wait_for_training(client, rounds=0)
        stale = client.call("next", client="another tab", n=20)["items"]
        _, status = begin_check(client, data)
        before = status["labelled"]
        for item in stale:
            client.call("answer", client="another tab", id=item["id"], label=data[1][item["id"]])
        checked = {item["id"] for item in client.call("next", n=200)["items"]}
        work(client, data, len(checked))
        status = wait_for(client, lambda status: status["final"])
        assert status["final"]["certificate"]["n_samples"] == N - before
    final = client.result.final.labels
    assert set(final["id"][final["by"] == "people"]) >= {item["id"] for item in stale}


def test_skipped_audit_samples_widen_the_interval(data, tmp_path):
    with open_page(data, tmp_path) as client:
        begin(client, data)
    held = client.result.labels.query("source == 'held out'")["id"].tolist()
    with open_page(data, tmp_path, query_size=5) as client:
        for key in held[:5]:
            client.call("answer", id=key, label=None, declined=True)
        status = wait_for(client, lambda status: "5 skipped in the audit" in status["audit"]["words"])
        assert f"from {len(held) - 5} audit labels" in status["audit"]["words"]
    accuracy = client.result.audit.accuracy
    assert accuracy.high - accuracy.low > 5 / len(held)


def test_nothing_is_trained_on_the_audit_until_the_project_ends(tmp_path):
    with make_project(tmp_path, share=0.5) as project:
        for _ in range(30):
            (item,) = project.next("me", 1)
            project.answer(item["id"], truth(item["id"]), client="me")
        assert project.worker.wait_until_idle()
        loop, held = project.rounds.session.classifier, project.labels().query("source == 'held out'")
        assert len(held) > 5
        assert len(loop.learner_.y_training) <= 30 - len(held)
        project.finish()
        assert len(project.result().model.learner_.y_training) == 30


def test_calls_of_the_page_are_named(client: Client):
    code, _, body = client.request("POST", f"{client.root}api/bless", {})
    assert code == 400
    assert "certify, resume" in json.loads(body)["error"]


def test_a_criterion_of_ones_own_says_what_is_promised(data, tmp_path):
    with open_page(data, tmp_path, stop=Certified(0.2, n_left=N)) as client:
        assert "at most 20 % wrong" in begin(client, data)["audit"]["finish"]
