"""The evidence about numbers and several labels: runs go on where they stopped, and differences have the right sign."""

import json

import numpy as np
import pytest

from benchmarks.evidence import starts, tasks


@pytest.fixture
def data_home(tmp_path, monkeypatch):
    """A folder with small data sets of both kinds, and a short protocol."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(120, 4)).astype(np.float32)
    targets = {"regression/concrete": X[:, 0] + X[:, 1] ** 2, "multilabel/scene": (X[:, :3] > 0).astype(np.int8)}
    for name, y in targets.items():
        path = tmp_path / f"{name}.npz"
        path.parent.mkdir(exist_ok=True)
        np.savez(path, X_train=X[:80], y_train=y[:80], X_test=X[80:], y_test=y[80:])
    monkeypatch.setenv("SKAL_DATA_HOME", str(tmp_path))
    monkeypatch.setitem(tasks.SIZES, "few", tasks.Size(n_pool=80, n_initial=30, query_size=10, n_rounds=1))
    return tmp_path


def test_runs_are_kept_and_not_made_twice(data_home, capsys):
    words = ["run", "--data", "concrete,scene", "--models", "logistic,forest", "--arms", "random;margin;lcmd"]
    words += ["--seeds", "1", "--sizes", "few", "--out", str(data_home)]
    assert tasks.main(words) == 0
    lines = (data_home / "runs.jsonl").read_text()
    made = {(line["data"], line["model"], line["arm"]) for line in map(json.loads, lines.splitlines())}
    scene = {("scene", model, arm) for model in ("logistic", "forest") for arm in ("random", "margin")}
    assert made == {("concrete", "forest", "random"), ("concrete", "forest", "lcmd")} | scene
    several = [line for line in map(json.loads, lines.splitlines()) if line["data"] == "scene"]
    assert all(0 <= x <= 1 for line in several for name in ("scores", "macro", "precision") for x in line[name])
    assert {len(line["macro"]) for line in several} == {2}
    tasks.main(words)
    assert (data_home / "runs.jsonl").read_text() == lines
    tasks.main(["report", "--out", str(data_home)])
    assert "| judging | forest | few | lcmd |" in capsys.readouterr().out


@pytest.mark.parametrize(("task", "own"), [("numbers", "distance"), ("labels", "direction")])
def test_starts_are_compared_on_data_that_do_not_judge(task, own, data_home, monkeypatch, capsys):
    small = {"numbers": "concrete", "labels": "digits, properties"}[task]
    monkeypatch.setitem(starts.STUDIES, task, starts.STUDIES[task]._replace(data=[small]))
    words = ["--task", task, "--seeds", "2", "--out", str(data_home)]
    assert starts.main(["run", *words]) == 0
    assert starts.main(["report", *words]) == 0
    table = capsys.readouterr().out.strip().splitlines()
    assert table[0].startswith(f"| data | model | seeds | {own} | random |")
    models = list(starts.STUDIES[task].queries)
    assert [row.split(" | ")[:3] for row in table[2:4]] == [[f"| {small}", model, "2"] for model in models]
    assert table[-1].startswith(f"| over {own} |  |  | 0 | ")
    lines = [json.loads(line) for line in (data_home / "runs.jsonl").read_text().splitlines()]
    assert len(lines) == 2 * 2 * 4
    first = {(line["model"], line["arm"]): line["scores"][0] for line in lines if line["seed"] == 0}
    assert len(set(first.values())) == len(first)  # each start is another one


def runs_of(data, model, scores):
    return {(data, model, "few", arm, seed): rounds for arm, each in scores.items() for seed, rounds in enumerate(each)}


def test_a_smaller_error_and_a_larger_f1_are_better():
    runs = runs_of("bike", "mlp", {"random": [[1.0, 1.0]], "lcmd": [[1.0, 0.5]]})
    assert tasks.compare(runs, ["bike"]) == [["mlp", "few", "lcmd", "+0.693", "1 / 1"]]
    runs = runs_of("scene", "forest", {"random": [[0.5, 0.5]], "margin": [[0.5, 0.4]]})
    assert tasks.compare(runs, ["scene"]) == [["forest", "few", "margin", "-0.100", "0 / 1"]]


def test_settings_are_judged_with_corrected_p_values():
    random = [[1.0, 1.0, 1.0]] * 6
    noise = np.linspace(-0.01, 0.01, 6)
    better = [[1.0, *np.exp([-0.5 + e, -0.5 - 2 * e])] for e in noise]
    level = [[1.0, *np.exp([30 * e, 0.0])] for e in noise]
    runs = runs_of("bike", "mlp", {"random": random, "auto": better})
    runs |= runs_of("concrete", "mlp", {"random": random, "auto": level})
    rows = tasks.judge(runs, ["bike", "concrete"], "auto", "random")
    assert [row[-1] for row in rows] == ["better", "level"]
    assert [row[0] for row in rows] == ["bike", "concrete"]
    assert rows[0][3].startswith("+0.500")


def test_the_default_is_counted_against_every_arm():
    worse, better = ([[1.0, np.exp(gain + e)] for e in np.linspace(-0.01, 0.01, 6)] for gain in (0.3, -0.3))
    runs = runs_of("bike", "mlp", {"random": worse, "lcmd": better, "auto": [[1.0, 1.0]] * 6})
    rows = tasks.count_outcomes(runs, ["bike"], "numbers")
    assert [row[:2] for row in rows] == [["numbers", "random"], ["numbers", "lcmd"]]
    assert [row[3:] for row in rows] == [["6 / 6", 1, 1, 0, 0], ["0 / 6", 1, 0, 0, 1]]
    assert rows[0][2].startswith("+0.300")
    assert rows[1][2].startswith("-0.300")


def test_scores_of_several_labels_side_by_side(tmp_path):
    names = ("data", "model", "size", "arm", "seed")
    for arm, shift in (("random", 0.0), ("margin", 0.1)):
        key = dict(zip(names, ("scene", "forest", "few", arm, 0), strict=True))
        scores = {"scores": [0.5, 0.5 + shift], "macro": [0.4, 0.4 - shift], "precision": [0.3, 0.3]}
        with (tmp_path / "runs.jsonl").open("a") as file:
            file.write(json.dumps(key | scores) + "\n")
    rows = tasks.compare_scores(tmp_path, ["scene"])
    assert rows == [["forest", "few", "margin", "+0.100", "-0.100", "+0.000", "0 / 1"]]


@pytest.mark.parametrize("arm", ["scikit-activeml greedy", "scikit-activeml trees", "scikit-activeml committee"])
def test_another_library_in_the_same_loop(arm, data_home):
    pytest.importorskip("skactiveml")
    assert len(tasks.run("concrete", "forest", "few", arm, 0)["scores"]) == 2
