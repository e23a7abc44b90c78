"""Several people on one project: links, overlap, disputes, and who said what."""

import json
import ssl
import stat
import subprocess
import urllib.request
from contextlib import closing, contextmanager
from urllib.error import HTTPError

import numpy as np
import pytest

from skal.exceptions import InvalidParameterError
from skal.labelling._access import revoke
from skal.labelling._label import as_source
from skal.labelling._models import choose_model
from skal.labelling._options import Door
from skal.labelling._project import Project
from skal.labelling._server import LabelServer
from skal.labelling._team import Team
from skal.loop._journal import Journal, make_event

from .conftest import CLASSES, Client, Command, make_project, truth

PEOPLE = ["ann", "ben", "eve"]


@contextmanager
def served(folder, overlap=0.1, people=PEOPLE, n=300, door=None, **settings):
    """Clients of a team's page, by their names."""
    with make_project(folder, n=n, team=Team(people, overlap), query_size=1000, **settings) as project:
        server = LabelServer(project, door=door)
        thread = server.start()
        try:
            yield project, server, {name: Client(link) for name, link in server.links.items()}
        finally:
            server.stop()
            thread.join(60)


def answer(client, label=truth, n=1):
    """Answer the next samples; gives their ids."""
    keys = []
    while len(keys) < n:
        (item,) = client.call("next", n=1)["items"]
        client.call("answer", id=item["id"], label=label(item["id"]))
        keys.append(item["id"])
    return keys


def test_everybody_has_a_link_and_gets_other_samples(tmp_path):
    with served(tmp_path, overlap=0.0) as (project, server, clients):
        assert len(set(server.links.values())) == 3
        given = {name: [item["id"] for item in client.call("next", n=5)["items"]] for name, client in clients.items()}
        assert len({key for keys in given.values() for key in keys}) == 15
        said = {name: answer(client, n=5) for name, client in clients.items()}
        assert len({key for keys in said.values() for key in keys}) == 15
        found = project.rounds.session.answers()
        assert {name: set(found["id"][found["annotator"] == name]) for name in PEOPLE} == {
            name: set(keys) for name, keys in said.items()
        }
        own = clients["ben"].call("gallery")["items"]
        assert {item["id"] for item in own} == set(said["ben"])  # a second opinion is one's own
        assert clients["ann"].call("gallery")["total"] == 15


def test_a_share_goes_to_two_people(tmp_path):
    team = Team(PEOPLE, 0.1)
    shared = np.mean([team.is_shared(f"file {i}") for i in range(20_000)])
    assert abs(shared - 0.1) < 0.01
    with served(tmp_path, overlap=1.0, n=12) as (project, _, clients):
        for _ in range(24):
            for client in clients.values():
                for item in client.call("next", n=1)["items"]:
                    client.call("answer", id=item["id"], label=truth(item["id"]))
        counts = project.rounds.session.answers().groupby("id")["annotator"].nunique()
        assert counts.tolist() == [2] * 12
        team = clients["ben"].call("status")["team"]
        assert team["alpha"] == 1.0
        assert team["common"] == 12
        assert sum(team["answers"].values()) == 24


def test_a_correction_does_not_give_anothers_sample_away(tmp_path):
    with served(tmp_path, overlap=1.0) as (project, _, clients):
        (key,) = answer(clients["eve"])
        (item,) = clients["ben"].call("next", n=1)["items"]
        assert item["id"] == key
        clients["eve"].call("answer", id=key, label=CLASSES[0])  # while ben looks at it
        assert clients["ann"].call("next", n=1)["items"][0]["id"] != key
        clients["ben"].call("answer", id=key, label=truth(key))
        assert key not in [item["id"] for item in clients["ann"].call("next", n=20)["items"]]
        assert sorted(project.rounds.session.answers()["annotator"]) == ["ben", "eve"]


def test_what_a_tab_shows_stays_its_own(tmp_path):
    with served(tmp_path, overlap=1.0) as (_, _, clients):
        (shown,) = clients["ann"].call("next", n=1)["items"]
        answer(clients["ben"], n=9)  # nine samples wait for a second opinion
        items = clients["ann"].call("next", n=7, shown=[shown["id"]])["items"]
        assert items[0]["id"] == shown["id"]
        others = [item["id"] for item in clients["eve"].call("next", n=20)["items"]]
        assert shown["id"] not in others
        clients["ann"].call("answer", id=shown["id"], label=truth(shown["id"]))
        assert clients["ann"].call("undo")["item"]["id"] == shown["id"]  # it is shown again
        assert shown["id"] not in [item["id"] for item in clients["eve"].call("next", n=20)["items"]]


def test_disputes_are_for_one_to_decide(tmp_path):
    with served(tmp_path, overlap=1.0) as (project, _, clients):
        (key,) = answer(clients["ben"])
        wrong = str((int(truth(key)) + 1) % 10)
        (item,) = clients["eve"].call("next", n=1)["items"]
        assert item["id"] == key
        assert "label" not in item  # nobody is told what the other has said
        clients["eve"].call("answer", id=key, label=wrong)
        assert clients["ann"].call("status")["team"]["disputes"] == 1
        (shown,) = clients["ann"].call("gallery", order="disputed")["items"]
        assert shown["answers"] == [["ben", truth(key)], ["eve", wrong]]
        for method in ("decide", "finish", "certify", "resume"):
            body = {"client": "test", "id": key, "label": wrong}
            status, _, data = clients["eve"].request("POST", f"{clients['eve'].root}api/{method}", body)
            assert status == 400
            assert "for ann to decide" in json.loads(data)["error"]
        clients["ann"].call("decide", id=key, label=truth(key))
        assert clients["ann"].call("status")["team"]["disputes"] == 0
        assert project.labels().set_index("id")["label"][key] == truth(key)
    events = [json.loads(line) for line in (tmp_path / "labels.jsonl").read_text().splitlines()]
    assert [(e["event"], e["annotator"], e["label"]) for e in events] == [
        ("answer", "ben", truth(key)),
        ("answer", "eve", wrong),
        ("label", "ann", truth(key)),
    ]


def test_undo_takes_back_ones_own_answer(tmp_path):
    with served(tmp_path, overlap=1.0) as (project, _, clients):
        (key,) = answer(clients["ben"])
        assert answer(clients["eve"]) == [key]
        clients["eve"].call("answer", id=key, label=CLASSES[0])
        assert clients["eve"].call("undo")["item"]["id"] == key
        assert clients["eve"].call("undo")["item"]["id"] == key
        assert clients["eve"].call("undo")["item"] is None
        found = project.rounds.session.answers()
        assert found[["annotator", "label"]].to_numpy().tolist() == [["ben", truth(key)]]


def test_a_revoked_link_is_dead_at_once_and_the_others_are_kept(tmp_path):
    with served(tmp_path) as (_, server, clients):
        port, links = server.port, dict(server.links)
        answer(clients["ben"])
        revoke(tmp_path, "ben")
        assert clients["ben"].request("GET", clients["ben"].root)[0] == 403
        assert clients["eve"].request("GET", clients["eve"].root)[0] == 200
        assert stat.S_IMODE((tmp_path / "access.json").stat().st_mode) == 0o600
    with served(tmp_path) as (project, server, _):
        assert server.port == port
        assert {name: server.links[name] == links[name] for name in PEOPLE} == {"ann": True, "ben": False, "eve": True}
        assert project.rounds.session.answers()["annotator"].tolist() == ["ben"]
    with pytest.raises(InvalidParameterError, match="Name somebody who has a link"):
        revoke(tmp_path, "zoe")


def test_revoke_on_the_command_line(tmp_path, capsys):
    from skal.cli import main

    with served(tmp_path):
        main(["label", "--out", str(tmp_path), "--revoke", "eve"])
    assert "no longer valid" in capsys.readouterr().out
    assert "eve" not in json.loads((tmp_path / "access.json").read_text())["people"]


@pytest.mark.parametrize(
    ("door", "why"),
    [
        (Door("192.0.2.1"), "must be encrypted"),
        (Door("0.0.0.0", url="http://label.example.org"), "must be encrypted"),
        (Door("0.0.0.0", certificate="a", key="b"), "every address"),
        (Door(certificate="a"), "two files"),
        (Door(url="label.example.org"), "scheme and host"),
        (Door(url="https://example.org/label"), "without a path"),
    ],
)
def test_no_door_is_open_to_others_in_clear_text(door, why):
    with pytest.raises(InvalidParameterError, match=why):
        door.check()


def test_behind_a_proxy_only_its_own_name_is_answered(tmp_path):
    with served(tmp_path, door=Door(url="https://label.example.org")) as (_, server, clients):
        assert server.address.startswith("https://label.example.org/")
        client = clients["ben"]
        client.address = client.address._replace(netloc=f"127.0.0.1:{server.port}")
        headers = {"Host": "label.example.org", "Origin": "https://label.example.org"}
        assert client.request("POST", f"{client.root}api/status", {}, headers)[0] == 200
        assert client.request("POST", f"{client.root}api/status", {})[0] == 403
        other = headers | {"Origin": "https://evil.example.org"}
        assert client.request("POST", f"{client.root}api/status", {}, other)[0] == 403


def test_tls_by_certificate_files(tmp_path):
    files = [tmp_path / "cert.pem", tmp_path / "key.pem"]
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *subject]
    subprocess.run([*make, "-out", files[0], "-keyout", files[1]], check=True, capture_output=True)
    with served(tmp_path / "out", door=Door(certificate=files[0], key=files[1])) as (_, server, _):
        assert server.address.startswith("https://127.0.0.1:")
        context = ssl.create_default_context(cafile=files[0])
        with closing(urllib.request.urlopen(server.address, context=context)) as found:
            assert b"skal label" in found.read()
        with pytest.raises((HTTPError, OSError)):
            urllib.request.urlopen(server.address.replace("https", "http")).close()


def test_the_command_prints_a_link_for_everybody(tmp_path, command):
    served: Command = command("--demo", "--out", tmp_path, "--team", "ann,ben", "--overlap", "0.5")
    said = "".join(served.lines)
    assert said.count("http://127.0.0.1:") == 1  # the first line that has one
    assert "ann: " in said
    served.kill()
    assert set(json.loads((tmp_path / "access.json").read_text())["people"]) == {"ann", "ben"}


@pytest.mark.parametrize("people", [["ann", "ann"], [""], ["x" * 61], [7]])
def test_names_are_names(people):
    with pytest.raises(InvalidParameterError, match="distinct names"):
        Team(people)
    with pytest.raises(InvalidParameterError, match="decider"):
        Team(["ann"], decider="zoe")


def test_a_second_look_is_asked_for_as_long_as_it_pays():
    team = Team(PEOPLE, overlap=0.0)
    keys = [f"s{i}" for i in range(100)]
    for key in keys:
        team.note(key, {"ann": "cat"})
    team.doubt(keys)
    assert list(team.seconds({"s0": None}))[:2] == ["s1", "s2"]
    for key in keys[:6]:
        team.note(key, {"ann": "cat", "ben": "cat"})
    assert team.pays
    team.note(keys[6], {"ann": "cat", "ben": "cat"})  # (0 + 2) / (7 + 4) is less than one in five
    assert not team.pays
    assert list(team.seconds({})) == []


def test_second_looks_leave_most_answers_for_new_samples(tmp_path):
    team, journal = Team(PEOPLE, overlap=0.0), Journal(tmp_path)
    events = [make_event("answer", f"s{i}", "cat", round=0, source="added", annotator="ann") for i in range(100)]
    events += [make_event("answer", f"s{i}", "dog", round=0, source="added", annotator="ben") for i in range(19)]
    journal.append(events)
    team.resume(journal)
    team.doubt(f"s{i}" for i in range(50, 60))
    assert len(list(team.seconds({}))) == 10
    team.note("s50", {"ann": "cat", "eve": "dog"})  # the twentieth of a hundred
    assert list(team.seconds({})) == []
    team.note("s100", {"eve": "cat"})
    assert next(iter(team.seconds({}))) == "s51"
    journal.release()


def test_doubtful_answers_get_a_second_opinion_and_an_export_column(tmp_path):
    from skal.labelling import export_labels

    with make_project(tmp_path, team=Team(["ann", "ben"], 0.0), query_size=120) as project:
        assert project.worker.wait_until_idle()  # so that everybody is asked for the same samples in every run
        wrong = []
        for i in range(120):
            (item,) = project.next("ann/tab", 1, person="ann")
            key = item["id"]
            label = truth(key) if i % 20 else str((int(truth(key)) + 5) % 10)
            wrong += [] if i % 20 else [key]
            project.answer(key, label, client="ann/tab", person="ann")
        assert project.worker.wait_until_idle()
        assert len(project.worker.doubts) == 120
        asked = [item["id"] for item in project.next("ben/tab", 8, person="ben")]
        assert len(set(asked[:6]) & set(wrong)) >= 3
        first = project.gallery(order="doubtful", limit=6, person="ann")["items"]
        assert len({item["id"] for item in first} & set(wrong)) >= 4
        assert not set(asked[:3]) & {item["id"] for item in project.next("ann/tab", 8, person="ann")}
    head, *lines = export_labels(tmp_path).splitlines()
    assert head.endswith(",doubt")
    doubt = {line.split(",")[0]: line.rsplit(",", 1)[1] for line in lines}
    assert sum(float(doubt[key] or 0) > 0.5 for key in wrong) >= 4


def test_identical_samples_are_asked_for_once(tmp_path):
    rows = np.repeat(np.random.default_rng(0).normal(size=(10, 4)), 3, axis=0)
    source = as_source(rows, [f"t{i}" for i in range(30)], None)
    with Project(source, ["a", "b"], choose_model(source, model="linear"), tmp_path, query_size=50) as project:
        assert project.worker.wait_until_idle()
        items = project.next("tab", 20)
        assert len(items) == 10
        assert {item["copies"] for item in items} == {3}
        project.answer([items[0]["id"], items[1]["id"]], "a", client="tab")
        assert len(project.labels()) == 6
        project.answer(items[2]["id"], None, client="tab", declined=True)
        assert len(project.next("tab", 20)) == 7
        assert len(project.undo("tab")["undone"]) == 3
        assert len(project.undo("tab")["undone"]) == 6
        assert len(project.labels()) == 0
        assert len(project.next("tab", 20)) == 10


def test_a_journal_of_a_team_without_a_name_for_the_first_labels(tmp_path):
    with make_project(tmp_path, query_size=1000) as project:
        keys = [item["id"] for item in project.next("tab", 3)]
        project.answer(keys, "1", client="tab")
    with served(tmp_path, overlap=1.0) as (_, _, clients):
        clients["ann"].call("answer", id=keys[0], label="2")
    journal = Journal(tmp_path, readonly=True).read()
    assert {who: event["label"] for who, event in journal.answers[keys[0]].items()} == {None: "1", "ann": "2"}
    assert journal.disputes() == [keys[0]]
