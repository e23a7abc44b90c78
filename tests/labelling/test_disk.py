"""A disk that fails under the page: an error in words, nothing changed, and the next answer works."""

import errno
import json

import pytest

from benchmarks._failing_disk import Disk

from .conftest import CLASSES, digits_page, wait_for_training


class Hand:
    """Makes calls, tries again what was refused, and knows what should hold."""

    def __init__(self, client):
        self.client, self.holds, self.classes, self.n_refused = client, {}, list(CLASSES), 0

    def change(self, method, **given):
        """A call that must work, or change nothing and work the second time."""
        before = self.read()
        body = {"client": "me"} | given
        status, _, data = self.client.request("POST", f"{self.client.root}api/{method}", body)
        if status != 200:
            assert status == 400
            said = json.loads(data)["error"]
            assert "Nothing was changed" in said or "must be a folder that can be written to" in said
            assert self.read() == before
            self.n_refused += 1
            data = json.dumps(self.client.call(method, **body)).encode()
        return json.loads(data)

    def read(self):
        """Labels, declined samples and classes, as the page shows them."""
        items = self.client.call("gallery", limit=200)["items"]
        classes = [each["name"] for each in self.client.call("status")["classes"]]
        return {item["id"]: item["label"] for item in items}, classes

    def work(self, number):
        """Label, correct, decline, add a class, take one back, undo."""
        first, second, third = (item["id"] for item in self.client.call("next", client="me", n=3)["items"])
        name = f"class {number}"
        self.change("answer", id=first, label="1")
        self.change("answer", id=second, label="2")
        self.change("answer", id=first, label="3")
        self.change("answer", id=third, declined=True)
        self.change("add_class", name=name)
        self.change("answer", id=second, label=name)
        assert self.change("undo")["item"]["id"] == second
        self.change("answer", id=third, label=None)
        self.holds |= {first: "3", second: "2"}
        self.classes.append(name)
        if number % 2:  # of each pair one is taken back, so that samples do not run out
            self.change("answer", id=second, label=None)
            del self.holds[second]
        assert self.read() == (self.holds, self.classes)


@pytest.mark.filterwarnings("ignore:The cache in:skal.exceptions.SkalWarning")
def test_every_operation_on_the_disk_may_fail_once(tmp_path, monkeypatch):
    disk, at = Disk(monkeypatch), 1
    with digits_page(tmp_path, n=300, query_size=5000) as client:
        wait_for_training(client, rounds=0)
        hand = Hand(client)
        while disk.count >= at - 1:  # until all that happens in one piece of work has failed
            with disk.fail(at, [errno.ENOSPC, errno.EIO, 0][at % 3]):
                hand.work(at)
            at += 1
    assert at > 50
    assert hand.n_refused > 40
    with digits_page(tmp_path, n=300, query_size=5000) as client:
        hand.client = client
        assert hand.read() == (hand.holds, hand.classes)
