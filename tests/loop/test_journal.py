"""One journal: events with checksums are the only truth."""

import shutil

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier

from skal import ActiveLearningClassifier
from skal.exceptions import CheckpointError, SkalWarning

X = np.arange(40.0).reshape(20, 2)
IDS = [f"s{i}" for i in range(20)]


def start(folder, **params):
    loop = ActiveLearningClassifier(
        DummyClassifier(), "random_sampling", initial="random", n_initial=4, query_size=2, n_rounds=None,
        checkpoint=folder, random_state=0,
    )  # fmt: skip
    return loop.start(X, ids=IDS, **params)


def labels(session):
    found = session.labels()
    return dict(zip(found["id"], found["label"], strict=True))


def write_some(folder):
    with start(folder) as session:
        session.tell(["a", "b", "a", None])
        asked = session.ask()
        session.tell(["b"], asked[:1], end_round=False)
        session.relabel({session.ids[asked[0]]: "a"})
        return labels(session)


@pytest.fixture
def written(tmp_path):
    """A folder with six events, and the labels that hold."""
    session = start(tmp_path)
    session.ask()
    session.close()
    return tmp_path, write_some(tmp_path)


def test_every_change_of_one_byte_is_noticed(written):
    """A bit that flips anywhere, in any line: the last line is taken for a torn write, any other is named."""
    folder, expected = written
    path = folder / "labels.jsonl"
    whole = path.read_bytes()
    start_of_last = whole[:-1].rfind(b"\n") + 1
    rng = np.random.default_rng(0)
    for place in rng.choice(len(whole), size=60, replace=False).tolist():
        data = bytearray(whole)
        data[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(data)
        number = whole[:place].count(b"\n") + 1
        if place >= start_of_last:
            with pytest.warns(SkalWarning, match="last line of .* was never written to its end"):
                session = start(folder)
            assert len(session.labels()) == len(expected)  # it was a correction
            session.close()
        else:
            with pytest.raises(CheckpointError, match=rf"labels\.jsonl .*damaged line {number}:.*delete line {number}"):
                start(folder)
    lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:1] + lines[2:]))  # the remedy that the message names
    with start(folder) as session:
        assert len(session.labels()) == len(expected) - 1


def test_a_lost_line_feed_is_no_torn_write(written):
    """Two whole lines in one: they were confirmed."""
    folder, _ = written
    path = folder / "labels.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1].replace(b"}\n{", b"}\x0b{") + b"\n")
    with pytest.raises(CheckpointError, match="damaged line 1:"):
        start(folder)


def test_a_journal_that_was_cut_is_said(written):
    folder, _ = written
    path = folder / "labels.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    with pytest.warns(SkalWarning, match=r"has 2 lines, and had 4 .* restore the file"):
        session = start(folder)
    assert len(session.labels()) == 2
    session.close()


def test_a_torn_line_is_left_out_said_and_overwritten(written):
    folder, expected = written
    path = folder / "labels.jsonl"
    whole = path.read_bytes()
    for torn in (b'{"event": "label", "id": "torn", "lab', b"\0\0\0\0", b"no json\n"):
        path.write_bytes(whole + torn)
        with pytest.warns(SkalWarning, match="last line"), start(folder, readonly=True) as looking:
            assert labels(looking) == expected
        assert path.read_bytes() == whole + torn
        with pytest.warns(SkalWarning, match="last line"):
            session = start(folder)
        session.add({"s0" if "s0" not in expected else "s1": "b"})
        session.close()
        assert path.read_bytes().startswith(whole + b'{"event": "label"')
        assert path.read_bytes().count(b"\n") == whole.count(b"\n") + 1


@pytest.mark.parametrize("cache", ["there", "of before", "deleted"])
def test_what_the_journal_says_holds_whatever_the_cache_says(cache, tmp_path):
    """Label, train, take back, decline, correct: the next start knows it, from any state of the cache."""
    session = start(tmp_path)
    asked = session.ask()
    session.tell(["a", "b", "a", "b"])
    session.ask()
    ids = [session.ids[i] for i in asked]
    shutil.copytree(tmp_path / "cache", tmp_path / "copy")
    session.relabel({ids[0]: "b"})
    session.decline([ids[1], ids[2]])
    session.undecline([ids[2]])
    session.add({next(key for key in IDS if key not in ids): "a"})
    expected, declined = labels(session), session.state.declined
    session.close()
    if cache != "there":
        shutil.rmtree(tmp_path / "cache")
    if cache == "of before":
        (tmp_path / "copy").rename(tmp_path / "cache")
    with start(tmp_path) as again:
        assert labels(again) == expected
        assert {IDS[i]: label for i, label in zip(again.state.labelled, again.state.labels, strict=True)} == expected
        assert again.state.declined == declined
        seen = set()
        while len(batch := again.ask()):
            seen.update(again.ids[batch])
            again.tell(["a"] * len(batch))
    assert ids[2] in seen  # its label was taken back: it is asked for again
    assert ids[1] not in seen


def test_nothing_is_written_on_top_of_another_writer(written):
    """Should a lock fail after all."""
    folder, _ = written
    session = start(folder)
    path = folder / "labels.jsonl"
    path.write_bytes(path.read_bytes() * 2)
    kept = path.read_bytes()
    with pytest.raises(CheckpointError, match="somebody else has written"):
        session.add({key: "a" for key in IDS if key not in labels(session)})
    assert path.read_bytes() == kept
