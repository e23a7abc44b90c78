"""The evidence by kind of data: pools, tables and sentences from stored runs, intervals, heads, other libraries."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from sklearn.exceptions import ConvergenceWarning

from benchmarks.evidence import centres, commands, everyday, heads, intervals, kinds, rivals
from benchmarks.evidence.runs import fingerprint
from benchmarks.evidence.settings import SETTINGS
from skal.bench._statistics import saved_labels

N_LABELS = [10, 20, 30]


def write_runs(folder, setting, gains, seeds=10):
    """Stored runs whose curves rise from 0.5 to 0.7 and lie so much above, at every budget, with a little noise."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    own = {"settings": fingerprint(setting), "n_labels": N_LABELS, "seconds_query": 0.5, "warnings": [], "record": {}}
    with (folder / f"{setting.name}.jsonl").open("a") as file:
        for arm, gain in gains.items():
            for seed in range(seeds):
                scores = np.array([0.5, 0.6, 0.7]) + gain + rng.normal(scale=1e-3, size=3)
                file.write(json.dumps({"arm": arm, "seed": seed, "scores": scores.tolist(), **own}) + "\n")


FOUR = {"random": 0.0, "margin": 0.01, "margin, coverage start": 0.03, "auto, own start": 0.05}


class TestKinds:
    def test_every_setting_has_a_kind(self):
        found = {kinds.kind_of(name) for name in [*SETTINGS, "raw_dna_forest_few"]}
        assert found == {kinds.FEATURES, kinds.ROWS, kinds.SCRATCH, kinds.TABLES}
        assert kinds.kind_of("raw_banking77_tfidf_few") == kinds.TEXTS

    def test_start_and_queries_stand_apart(self, tmp_path, capsys):
        write_runs(tmp_path, SETTINGS["letter_mlp_few"], FOUR)
        write_runs(tmp_path, SETTINGS["letter_mlp_many"], FOUR | {"auto, own start": 0.0301})
        write_runs(tmp_path, SETTINGS["cifar10_cnn_few"], FOUR, seeds=5)
        assert commands.main(["--results", str(tmp_path), "claims"]) == 0
        table, sentences = capsys.readouterr().out.split("With few", 1)
        few, many = (line.split(" | ") for line in table.strip().splitlines()[2:])  # five seeds are left out
        numbers = [float(re.sub("−", "-", cell)) for cell in few[4:7]]
        assert numbers == pytest.approx([5, 2, 2], abs=0.1)
        assert few[2:4] == ["1", "1 / 0"]
        assert (few[-1], many[-1]) == ("0 of 1 |", "1 of 1 |")
        assert float(few[7].split()[0]) == pytest.approx(25, abs=2)  # 5 of the 20 labels bought
        assert "better than random labels in 1 of 1 settings and worse in 0" in sentences

    def test_labels_saved_have_intervals(self, tmp_path, capsys):
        write_runs(tmp_path, SETTINGS["letter_mlp_few"], FOUR)
        assert commands.main(["--results", str(tmp_path), "saved"]) == 0
        name, seeds, bought, saved, low, high = capsys.readouterr().out.strip().splitlines()[2].strip("| ").split(" | ")
        assert (name, seeds, bought) == ("letter_mlp_few", "10", "20")
        assert int(low) <= int(saved) <= int(high)

    def test_readme_says_what_the_page_says(self):
        root = Path(__file__).parents[2]
        marks = r"<!-- table: python -m benchmarks.evidence {} -->\n(.*?)<!-- end of table -->"
        whole, short = (
            re.search(marks.format(command), (root / name).read_text(), re.DOTALL)[1]
            for name, command in (("docs/evidence/yours.md", "claims"), ("README.md", "claims --short"))
        )
        rows = [line.strip("| ").split(" | ") for line in whole.strip().splitlines()[2:]]
        by_kind = {}
        for kind, budget, n, outcome, _, _, _, saved, as_good in rows:
            assert outcome.endswith(" / 0")  # README: worse in none
            better = f"{outcome.split()[0]} of {n}"
            by_kind.setdefault(kind, {})[budget] = [better, saved.split(" (")[0], as_good]
        expected = [
            [kind, *(cell for budget in ("few", "many") for cell in own.get(budget, ["–"] * 3))]
            for kind, own in by_kind.items()
        ]
        assert [line.strip("| ").split(" | ") for line in short.strip().splitlines()[2:]] == expected


class TestIntervals:
    def curves(self, n_seeds, seed=2):
        rng = np.random.default_rng(seed)
        reference = np.linspace(0.5, 0.7, 4) + rng.normal(scale=0.02, size=(n_seeds, 4))
        scores = reference + np.array([0, 0.05, 0.04, 0.04]) + rng.normal(scale=0.02, size=(n_seeds, 4))
        return np.array([10, 20, 30, 40]), scores, reference

    def test_percentiles_are_those_of_all_resamples(self):
        n_labels, scores, reference = self.curves(3)
        rows = np.array(np.meshgrid([0, 1, 2], [0, 1, 2], [0, 1, 2])).reshape(3, -1).T
        saved = saved_labels(n_labels, scores[rows].mean(axis=1), reference[rows].mean(axis=1)[:, -1])
        low, high = intervals.percentile_bounds(n_labels, scores, reference)
        assert {low, high} <= set(saved)
        assert high == pytest.approx(np.nanmax(saved))  # the extreme ones have one in twenty-seven each

    def test_bca_is_that_of_scipy(self):
        n_labels, scores, reference = self.curves(12)

        def saved(*columns, axis=-1):
            own, target = (
                np.stack([np.mean(c, axis=axis) for c in columns[:4]], axis=-1),
                np.mean(columns[4], axis=axis),
            )
            return saved_labels(n_labels, own, target)

        data = (*scores.T, reference[:, -1])
        expected = stats.bootstrap(
            data, saved, paired=True, vectorized=True, n_resamples=5000, method="BCa", random_state=0
        ).confidence_interval
        assert intervals.bca_bounds(n_labels, scores, reference) == pytest.approx(expected, abs=1.0)

    @pytest.mark.parametrize(
        ("truth", "bounds", "held"),
        [
            (5, (4, 6), True),
            (5, (np.nan, 6), True),
            (np.nan, (np.nan, 6), True),
            (np.nan, (4, 6), False),
            (5, (np.nan, np.nan), False),
            (7, (4, 6), False),
        ],
    )
    def test_what_is_not_reached_is_worse_than_any_number(self, truth, bounds, held):
        assert intervals.holds(truth, *bounds) is held


class TestEveryday:
    y = np.repeat([f"c{k}" for k in range(10)], 600)

    def test_a_fifth_of_the_answers_is_wrong(self):
        rows, answers = everyday.draw_pool(everyday.SETTINGS["everyday_wrong_answers_few"], self.y, 0)
        wrong = answers != self.y[rows]
        assert len(set(rows)) == 3000
        assert wrong.mean() == pytest.approx(0.2, abs=0.03)
        assert np.unique(answers[wrong]).tolist() == np.unique(self.y).tolist()

    def test_one_in_a_hundred_is_rare(self):
        drawn = [everyday.draw_pool(everyday.SETTINGS["everyday_rare_class"], self.y, seed) for seed in range(4)]
        for rows, answers in drawn:
            assert (len(rows), (answers == "rare").sum()) == (3000, 30)
            assert len(set(self.y[rows[answers == "rare"]])) == 1
        assert len({self.y[rows[answers == "rare"]][0] for rows, answers in drawn}) > 1

    def test_found_samples_are_the_score(self, tmp_path, monkeypatch):
        rng = np.random.default_rng(0)
        y = np.repeat(np.arange(3), 150)
        X = rng.normal(size=(450, 4)).astype("float32")
        np.savez(tmp_path / "cifar10_features.npz", X_train=X, y_train=y, X_test=X[::9], y_test=y[::9])
        monkeypatch.setenv("SKAL_DATA_HOME", str(tmp_path))
        everyday._read.cache_clear()
        setting = everyday.SETTINGS["everyday_rare_class"]
        protocol = setting.protocol.with_settings(n_pool=200, n_rounds=2)
        monkeypatch.setattr(everyday, "SETTINGS", {"everyday_rare_class": everyday.Setting(protocol, 10, True)})
        arguments = ["--settings", "rare_class", "--results", str(tmp_path), "--seeds", "1", "--arms", "random"]
        for _ in range(2):  # what is there is not made again
            assert everyday.main(["run", *arguments]) == 0
        (line,) = (json.loads(text) for text in (tmp_path / "everyday_rare_class.jsonl").read_text().splitlines())
        assert line["n_labels"] == [20, 40, 60]
        assert len(line["accuracy"]) == 3
        assert line["scores"] == sorted(line["scores"])
        assert all(2 * score % 1 == 0 for score in line["scores"])  # two samples are rare
        everyday._read.cache_clear()

    def test_no_row_without_its_seeds(self, tmp_path, capsys):
        write_runs(tmp_path, everyday.SETTINGS["everyday_cells_logistic_few"], FOUR)
        write_runs(tmp_path, everyday.SETTINGS["everyday_churn_logistic_few"], FOUR, seeds=9)
        assert everyday.main(["report", "--results", str(tmp_path)]) == 0
        printed = capsys.readouterr().out
        assert "| cells_logistic_few | 10 |" in printed
        assert "| churn_logistic_few" not in printed
        assert "Not run with 10 seeds: credit_logistic_few, churn_logistic_few" in printed
        assert "`auto, own start` is better than Random in 1 of 1 settings of tables with few labels" in printed


def test_a_start_by_k_means_has_a_sample_of_each_cluster():
    X = np.repeat(10 * np.eye(4), 5, axis=0) + np.random.default_rng(0).normal(scale=0.1, size=(20, 4))
    chosen = centres.nearest_to_centres(X, 4)
    assert sorted(chosen // 5) == [0, 1, 2, 3]
    assert all(np.argmin(np.square(X - X[5 * k : 5 * k + 5].mean(0)).sum(1)) in chosen for k in range(4))
    with pytest.warns(ConvergenceWarning, match="distinct clusters"):
        assert len(set(centres.nearest_to_centres(np.ones((6, 2)), 5))) == 5  # copies are taken once each


class TestRivals:
    def test_they_stand_beside_stored_runs_of_the_same_seeds(self, tmp_path, capsys):
        write_runs(tmp_path, SETTINGS["letter_mlp_few"], {"Clue": 0.1}, seeds=10)
        write_runs(tmp_path, SETTINGS["letter_mlp_few"], {"Falcun": 0.1}, seeds=9)
        lines = (tmp_path / "letter_mlp_few.jsonl").read_text().replace(str(N_LABELS), str(list(range(26, 183, 26))))
        wide = [json.loads(line) for line in lines.splitlines()]
        for line in wide:
            line["scores"] = np.linspace(0.5, 0.9, 7).tolist()
        (tmp_path / "letter_mlp_few.jsonl").write_text("".join(json.dumps(line) + "\n" for line in wide))
        assert rivals.main(["report", "--results", str(tmp_path)]) == 0
        printed = capsys.readouterr().out
        assert "| Clue | scikit-activeml | – |" in printed
        assert "| falcun | skal |" in printed
        assert "| Falcun" not in printed  # nine seeds
        assert "banking77_linear_few: not run" in printed

    def test_all_of_them_can_be_made(self):
        pytest.importorskip("skactiveml", reason="scikit-activeml is an extra")
        for arm in rivals.RIVALS.values():
            assert callable(rivals.make_rival(arm.strategy))
        assert set(rivals.TWINS) <= set(rivals.RIVALS)
        assert set(rivals.WHERE) <= set(SETTINGS)


def test_heads_are_compared_by_seeds(tmp_path, capsys, monkeypatch):
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=300)
    X = (rng.normal(size=(300, 4)) + 3 * np.eye(2, 4)[y]).astype("float32")
    np.savez(tmp_path / "cifar10_features.npz", X_train=X, y_train=y, X_test=X[:50], y_test=y[:50])
    monkeypatch.setenv("SKAL_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(heads, "SIZES", {"cifar10_features": (20, 30)})
    heads._read.cache_clear()
    kept = tmp_path / "heads.jsonl"
    assert heads.main(["run", "--seeds", "1", "--kept", str(kept)]) == 0
    assert len(kept.read_text().splitlines()) == 6
    for head in heads.HEADS:
        assert heads.accuracy("cifar10_features", 20, head, 1) > 0.6
    with kept.open("w") as file:
        for seed in range(10):
            for head, value in zip(heads.HEADS, (0.5, 0.4 + 0.01 * (seed % 2), 0.6), strict=True):
                key = heads._key("cifar10_features", 20, head, seed)
                file.write(json.dumps({"key": key, "value": value}) + "\n")
    assert heads.main(["report", "--kept", str(kept)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[2] == "| cifar10_features | 20 | 10 | 50.0 | −9.50 ± 0.4 | +10.00 ± 0.0 |"
    assert "not run" in printed[3]
    heads._read.cache_clear()
