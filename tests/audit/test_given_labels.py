"""Audits of labels from elsewhere, in memory and from files."""

import csv
import warnings

import numpy as np
import pytest

from skal.audit import audit_command, draw_command, errors, plan
from skal.cli import main
from skal.exceptions import BiasedAuditWarning, SkalError, UnknownLabelsWarning


def make_labels(rng, n=4000):
    scores = rng.beta(8, 1, n)
    true = rng.choice(["cat", "dog"], n)
    given = np.where(rng.random(n) < scores, true, np.where(true == "cat", "dog", "cat"))
    return given, true, scores


@pytest.mark.parametrize("with_scores", [False, True])
@pytest.mark.parametrize("m", [40, 150])
def test_share_of_errors(m, with_scores):
    rng, held = np.random.default_rng(0), 0
    given, true, scores = make_labels(rng)
    for _ in range(40):
        at, chance = plan(scores, m, random_state=rng) if with_scores else plan(4000, m, uniform=True, random_state=rng)
        found = errors(given, at, true[at], chance, scores=scores if with_scores else None)
        held += found.low <= (given != true).mean() <= found.high
    assert held >= 36


def test_doubtful_labels_are_the_least_sure_ones_that_nobody_has_seen():
    given, true, scores = make_labels(np.random.default_rng(0))
    at, chance = plan(scores, 200, random_state=0)
    found = errors(given, at, true[at], chance, scores=scores)
    assert not set(found.doubtful) & set(at)
    assert len(found.doubtful) == round(found.estimate * 4000 - (given[at] != true[at]).sum())
    assert (given != true)[found.doubtful].mean() > 2 * (given != true).mean()
    at, chance = plan(4000, 200, uniform=True, random_state=0)
    assert len(errors(given, at, true[at], chance).doubtful) == 0


@pytest.mark.parametrize(
    ("given", "labels", "words"),
    [
        (str, int, "strings, as the given labels. Got 'numbers'"),
        (int, str, "numbers, as the given labels. Got 'strings'"),
        (bytes, str, "bytes, as the given labels. Got 'strings'"),
    ],
)
def test_labels_of_two_types_are_refused_and_not_compared(given, labels, words):
    codes = np.arange(400) % 3
    at, chance = plan(400, 60, uniform=True, random_state=0)
    with pytest.raises(SkalError, match=words):
        errors(codes.astype(given), at, codes[at].astype(labels), chance)
    mixed = np.array([1, "1"] * 200, dtype=object)
    assert errors(mixed, at, mixed[at], chance).estimate == 0
    assert errors(codes, at, codes[at].astype(float), chance).estimate == 0


def test_labels_that_are_no_given_label_are_named():
    given = np.array(["cat ", "dog"] * 200)
    at, chance = plan(400, 60, uniform=True, random_state=0)
    with pytest.warns(UnknownLabelsWarning, match=r"samples have labels that no given label has: 'Cat', 'cat'\."):
        found = errors(given, at, np.where(given[at] == "dog", "dog", np.where(at % 4, "cat", "Cat")), chance)
    assert found.estimate == pytest.approx((given[at] != "dog").mean())
    many = [f"class {i}" for i in range(60)]
    with pytest.warns(UnknownLabelsWarning, match=r"^60 of the 60 .*'class 12', \.\.\."):
        errors(given, at, many, chance)


@pytest.fixture
def files(tmp_path):
    given, true, scores = make_labels(np.random.default_rng(0), 1000)
    at, chance = plan(scores, 100, random_state=0)
    rows = [f"{i},{label},{score}\n" for i, (label, score) in enumerate(zip(given, scores, strict=True))]
    (tmp_path / "labels.csv").write_text("id,label,confidence\n" + "".join(rows))
    rows = [f"{i},{true[i]},{chance[k]!r}\n".replace("np.float64(", "").replace(")", "") for k, i in enumerate(at)]
    (tmp_path / "audited.csv").write_text("id,label,probability\n" + "".join(rows))
    return tmp_path, errors(given, at, true[at], chance, scores=scores)


def test_command_prints_the_same(files, capsys):
    folder, expected = files
    audit_command(folder / "labels.csv", folder / "audited.csv")
    said = capsys.readouterr().out
    assert said.startswith(f"{100 * expected.low:.1f} to {100 * expected.high:.1f} % of 1,000 labels are wrong")
    assert f"The {len(expected.doubtful)} most doubtful" in said
    assert ", ".join(map(str, expected.doubtful[:10])) in said


def test_doubtful_labels_go_to_a_file(files, capsys):
    folder, expected = files
    main(["audit", str(folder / "labels.csv"), "--truth", str(folder / "audited.csv"), "--doubtful", str(folder / "d")])
    rows = list(csv.DictReader((folder / "d").read_text().splitlines()))
    assert [int(row["id"]) for row in rows] == expected.doubtful.tolist()
    sure = [float(row["confidence"]) for row in rows]
    assert sure == sorted(sure)
    plain = (folder / "labels.csv").read_text().replace("confidence", "note")
    (folder / "labels.csv").write_text(plain)
    with pytest.raises(SkalError, match="'doubtful' parameter of audit_command"):
        audit_command(folder / "labels.csv", folder / "audited.csv", doubtful=folder / "d")


@pytest.mark.parametrize("with_scores", [False, True])
def test_the_command_draws_what_it_audits(files, capsys, with_scores):
    folder, _ = files
    labels, truth = folder / "labels.csv", folder / "drawn.csv"
    if not with_scores:
        labels.write_text(labels.read_text().replace("confidence", "note"))
    assert main(["audit", str(labels), "--truth", str(truth), "--draw", "50"]) == 0
    assert main(["audit", str(labels), "--truth", str(truth), "--draw", "50"]) == 1  # nothing is written over
    assert "a new file" in capsys.readouterr().err
    assert main(["audit", str(labels), "--truth", str(truth)]) == 1
    assert "no label for" in capsys.readouterr().err
    lines = truth.read_text().replace(",,", ",cat,").splitlines(keepends=True)
    truth.write_text("".join([lines[0], *sorted(lines[1:])]))
    assert main(["audit", str(labels), "--truth", str(truth)]) == 0
    assert "of 50 audited ones" in capsys.readouterr().out
    truth.write_text("".join(lines[:-1]))
    assert main(["audit", str(labels), "--truth", str(truth)]) == 1
    assert "whole plan" in capsys.readouterr().err
    truth.write_text("".join(line.rpartition(",")[0] + "\n" for line in lines))
    with pytest.warns(BiasedAuditWarning, match="Nothing shows that chance drew the 50 samples"):
        audit_command(labels, truth)
    assert main(["audit", str(labels), "--truth", str(truth)]) == 0
    assert capsys.readouterr().err.startswith("skal audit: Nothing shows that chance drew the 50 samples given to")


def test_a_spreadsheet_program_may_save_the_draw(files):
    """It keeps some digits of what it takes for a number, and no more."""
    folder, _ = files
    draw_command(folder / "labels.csv", folder / "drawn.csv", 50, random_state=0)
    header, *rows = csv.reader((folder / "drawn.csv").read_text().splitlines())
    saved = [[key, "cat", f"{float(chance):.10g}" if "x" not in chance else chance] for key, _, chance in rows]
    (folder / "drawn.csv").write_text("\n".join(map(",".join, [header, *saved])))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        audit_command(folder / "labels.csv", folder / "drawn.csv")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("id,label\nnobody,cat\n", "nobody"),
        ("id,label\n3,cat\n3,dog\n", "twice"),
        ("id,label\n3,\n", "no label"),
        ("name,label\n3,cat\n", "id,label"),
        ("id,label,probability\n3,cat,often\n", "often"),
    ],
)
def test_files_that_cannot_be_used(files, text, words):
    folder, _ = files
    (folder / "audited.csv").write_text(text)
    with pytest.raises(SkalError, match=words):
        audit_command(folder / "labels.csv", folder / "audited.csv")


def test_a_file_that_cannot_be_read_is_named_with_its_parameter(files, capsys):
    folder, _ = files
    with pytest.raises(SkalError, match="'labels' parameter of audit_command must be a CSV file"):
        audit_command(folder / "nothing.csv", folder / "audited.csv")
    assert main(["audit", str(folder / "labels.csv"), "--truth", str(folder / "nothing.csv")]) == 1
    said = capsys.readouterr().err
    assert "nothing.csv" in said
    assert "--draw N" in said
    (folder / "audited.csv").write_bytes(b"id,label\n3,\xff\n")
    with pytest.raises(SkalError, match="UTF-8"):
        audit_command(folder / "labels.csv", folder / "audited.csv")


def test_the_command_warns_of_labels_that_are_spelt_in_another_way(files):
    folder, _ = files
    (folder / "labels.csv").write_text((folder / "labels.csv").read_text().replace("cat", "Cat"))
    with pytest.warns(UnknownLabelsWarning, match="'cat'"):
        audit_command(folder / "labels.csv", folder / "audited.csv")
