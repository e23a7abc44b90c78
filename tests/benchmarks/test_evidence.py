"""The evidence: what is declared, runs that continue, the plan, the rule and the page."""

import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.evidence import commands, page, picks, runs, words
from benchmarks.evidence import settings as declared
from benchmarks.evidence.rule import judge
from skal.bench import BenchmarkSuite, Protocol, Run
from skal.bench._pools import Data, Pool
from skal.strategies import __all__ as public

from ..bench.results import make_result
from ..support.learners import strategy_named

TINY = Protocol(
    name="tiny",
    net="mlp",
    net_params={"hidden": (8,)},
    n_pool=60,
    n_test=40,
    n_initial=10,
    query_size=5,
    n_rounds=1,
    max_epochs=2,
)


@pytest.fixture
def tiny(monkeypatch):
    """One small setting in the place of the real ones, and three arms."""
    setting = declared.Setting(TINY, seeds=3, held_out=True, fewer={"entropy": 1, "coreset": 0})
    arms = {name: declared.ARMS[name] for name in ("random", "margin", "entropy", "margin, coverage start", "auto")}
    for module in (runs, commands, page, words):
        monkeypatch.setattr(module, "SETTINGS", {"tiny": setting}, raising=False)
        monkeypatch.setattr(module, "ARMS", arms, raising=False)
    runs._data.cache_clear()
    yield setting
    runs._data.cache_clear()


class TestDeclared:
    def test_every_strategy_takes_part(self):
        named = [*(arm.strategy for arm in declared.ARMS.values()), *declared.NOT_FOR_CLASSES]
        used = {type(strategy_named(name)) for name in named}
        assert used == {type(strategy_named(name)) for name in [*filter(str.islower, public), "random", "albl", "auto"]}
        assert {"dynamic_al greedy", "dynamic_al γ=0", "npc greedy", "auto", "auto, own start"} <= set(declared.ARMS)
        assert len(public) > 30

    def test_every_data_set_has_two_budgets_and_enough_seeds(self):
        names = list(declared.SETTINGS)
        stems = [name.removesuffix("_few") for name in names if name.endswith("_few")]
        assert sorted([f"{stem}_few" for stem in stems] + [f"{stem}_many" for stem in stems]) == sorted(names)
        for name, setting in declared.SETTINGS.items():
            least = 10 if name.startswith("mnist") else 5 if name.startswith("cifar10_cnn") else 20
            assert setting.seeds >= least
            assert setting.protocol.check()
        assert {s.protocol.data for s in declared.SETTINGS.values()} == {
            "cifar10_features",
            "banking77",
            "letter",
            "digits",
            "mnist",
            "cifar10_sub",
        }

    def test_few_is_about_one_label_for_each_class(self):
        n_classes = {"banking77": 77, "letter": 26}
        for name, setting in declared.SETTINGS.items():
            classes = n_classes.get(setting.protocol.data, 10)
            if name.endswith("_few"):
                assert setting.protocol.n_initial == setting.protocol.query_size == classes
            else:
                assert setting.protocol.n_initial >= 5 * classes

    def test_some_settings_are_held_out(self):
        held_out = [setting.held_out for setting in declared.SETTINGS.values()]
        assert 0 < sum(held_out) < len(held_out)

    def test_the_special_settings(self):
        imbalanced = declared.SETTINGS["imbalanced_linear_few"].protocol
        assert (imbalanced.imbalance, imbalanced.scoring) == (100, "balanced_accuracy")
        assert declared.SETTINGS["duplicates_linear_many"].protocol.duplicates == 0.05


class TestRuns:
    def test_made_once_continued_and_paired(self, tiny, tmp_path, capsys):
        folder = ["--results", str(tmp_path)]
        assert commands.main([*folder, "run", "--jobs", "1", "--seeds", "1", "--arms", "random;margin"]) == 0
        first = (tmp_path / "tiny.jsonl").read_text()
        assert commands.main([*folder, "run", "--jobs", "1"]) == 0
        lines = runs.read(tiny, tmp_path)
        assert (tmp_path / "tiny.jsonl").read_text().startswith(first)
        counts = {arm: sum(own == arm for own, _ in lines) for arm in runs.ARMS}
        assert counts == {"random": 3, "margin": 3, "entropy": 1, "margin, coverage start": 3, "auto": 3}
        for seed in range(3):  # one start for all, but for the arm with a start of its own
            assert lines["random", seed]["scores"][0] == lines["margin", seed]["scores"][0]
        assert any(lines["random", s]["scores"][0] != lines["margin, coverage start", s]["scores"][0] for s in range(3))
        line = lines["margin", 0]
        assert line["n_labels"] == [10, 15]
        assert set(line["picks"]) == {"balance", "distance", "remoteness"}
        # the same run again is the same line, but for the time it took
        again = runs.make_run("tiny", "margin", 0)
        assert {k: v for k, v in again.items() if "seconds" not in k} == {
            k: v for k, v in line.items() if "seconds" not in k
        }
        capsys.readouterr()
        assert commands.main([*folder, "plan", "--jobs", "2"]) == 0
        assert "| tiny | 13 | 13 | 0.00 | – |" in capsys.readouterr().out

    def test_a_torn_line_is_made_again_and_swallows_nothing(self, tiny, tmp_path):
        line = {"arm": "random", "seed": 0, "settings": runs.fingerprint(tiny)}
        runs.append(tiny, line, tmp_path)
        path = tmp_path / "tiny.jsonl"
        path.write_text(path.read_text() + '{"arm": "rand')
        assert list(runs.read(tiny, tmp_path)) == [("random", 0)]
        runs.append(tiny, line | {"seed": 1}, tmp_path)
        assert list(runs.read(tiny, tmp_path)) == [("random", 0), ("random", 1)]
        path.write_text("damaged\n" + path.read_text())
        with pytest.raises(ValueError, match="line 1 is damaged"):
            runs.read(tiny, tmp_path)

    def test_lines_of_other_settings_are_refused(self, tiny, tmp_path):
        other = replace(tiny, protocol=TINY.with_settings(query_size=7))
        runs.append(tiny, {"arm": "random", "seed": 0, "settings": runs.fingerprint(other)}, tmp_path)
        with pytest.raises(ValueError, match=r"line 1 was run with other settings"):
            runs.read(tiny, tmp_path)
        # names and further strategies do not make old runs worthless
        assert runs.fingerprint(replace(tiny, protocol=TINY.with_settings(title="x"))) == runs.fingerprint(tiny)

    def test_runs_of_a_changed_strategy_are_forgotten(self, tiny, tmp_path):
        for arm in ("random", "margin"):
            runs.append(tiny, {"arm": arm, "seed": 0, "settings": runs.fingerprint(tiny)}, tmp_path)
        assert runs.forget(tiny, ["margin"], tmp_path) == 1
        assert list(runs.read(tiny, tmp_path)) == [("random", 0)]

    def test_a_failure_is_shown_and_does_not_stop_the_others(self, tiny, tmp_path, monkeypatch, capsys):
        make = runs.make_run

        def failing(name, arm, seed):
            if arm == "margin":
                raise RuntimeError("out of luck")
            return make(name, arm, seed)

        monkeypatch.setattr(runs, "make_run", failing)
        arguments = ["--results", str(tmp_path), "run", "--jobs", "1", "--seeds", "1", "--arms", "margin;random"]
        assert commands.main(arguments) == 1
        assert "tiny, margin, seed 0" in capsys.readouterr().err
        assert list(runs.read(tiny, tmp_path)) == [("random", 0)]

    def test_hours_end_a_run(self, tiny, tmp_path):
        commands.main(["--results", str(tmp_path), "run", "--jobs", "1", "--hours", "0"])
        assert runs.read(tiny, tmp_path) == {}

    def test_the_plan_counts_measured_seconds(self, tiny, tmp_path, monkeypatch, capsys):
        monkeypatch.setattr(commands, "SECONDS", tmp_path / "seconds.json")
        assert commands.main(["measure", "--arms", "random;entropy"]) == 0
        assert set(json.loads((tmp_path / "seconds.json").read_text())["tiny"]) == {"random", "entropy"}
        (tmp_path / "seconds.json").write_text(json.dumps({"tiny": {"random": 3600, "entropy": 1800}}))
        capsys.readouterr()
        commands.main(["--results", str(tmp_path), "plan", "--arms", "random;entropy", "--jobs", "2"])
        assert "| tiny | 4 | 0 | 3.50 | – |" in (out := capsys.readouterr().out)
        assert "On 2 cores: 1.8 hours." in out
        # an arm that was timed in another setting only: three seeds of a guess
        (tmp_path / "seconds.json").write_text(
            json.dumps({"tiny": {"random": 900}, "other": {"random": 500, "margin": 800}})
        )
        monkeypatch.setitem(commands.SETTINGS, "other", tiny)
        commands.main(["--results", str(tmp_path), "plan", "--arms", "margin", "--settings", "tiny"])
        assert "| tiny | 3 | 0 | 1.00 | 1 |" in capsys.readouterr().out

    def test_unknown_names_are_refused(self, capsys):
        with pytest.raises(SystemExit):
            commands.main(["run", "--arms", "luck"])
        assert "unknown: luck" in capsys.readouterr().err


class TestPicks:
    def describe(self, queried, X=None):
        X = np.arange(100, dtype="float32")[:, None] if X is None else X
        y = (np.arange(len(X)) * 2) // len(X)
        run = Run("s", 0, [2, 4], [0, 0], [0, 0], [0, 99], [queried], [0, 0], [0], [], {})
        data = Data(X, y, X, y, 2)
        return picks.describe_picks(data, Pool(np.arange(len(X)), X, y, np.array([0, 99])), run)

    def test_classes(self):
        assert self.describe([10, 20, 60, 80])["balance"] == 1
        assert self.describe([10, 20, 30])["balance"] == 0
        assert self.describe([10, 20, 30, 60])["balance"] == pytest.approx(0.8113, abs=1e-4)

    def test_redundancy_and_outliers(self):
        assert self.describe([40, 41, 42])["distance"] == 1
        assert self.describe([20, 50, 70])["distance"] == pytest.approx(20)  # 20 from the start, then 20 and 20
        X = np.arange(100, dtype="float32")[:, None].copy()
        X[50] = 1000
        assert self.describe([50], X)["remoteness"] > 800
        # five on either side: 1 to 5, twice
        assert self.describe([50])["remoteness"] == pytest.approx(3)


def suite_of(gains, n_settings=4, noise=0.002):
    """Strategies whose areas differ from Random's by so much, in every setting."""
    rng = np.random.default_rng(0)
    results = {}
    for k in range(n_settings):
        scores = 0.6 + rng.normal(scale=noise, size=(1 + len(gains), 12, 3))
        for place, gain in enumerate(gains.values(), start=1):
            scores[place] += gain[k] if isinstance(gain, list) else gain
        results[f"s{k}"] = make_result(scores, ["random", *gains])
    return BenchmarkSuite(results)


class TestRule:
    def test_a_strategy_that_meets_all_three(self):
        found = judge(suite_of({"auto": 0.05, "margin": 0.055}), "auto", ["random", "auto", "margin"])
        assert found.passed
        assert len(found.better) == len(found.near) == 4
        assert set(found.best.values()) == {"margin"}

    @pytest.mark.parametrize(
        ("gain", "met"),
        [
            ([0.05, 0.05, 0.0, 0.0], [False, True, True]),  # better in half
            ([0.05, 0.05, 0.05, -0.05], [True, False, True]),  # worse in one
            ([0.05, 0.05, 0.02, 0.02], [True, True, False]),  # behind in half
            ([0.05, 0.05, 0.05, 0.0], [True, True, True]),  # three quarters, and far behind in one
        ],
    )
    def test_each_criterion_can_fail(self, gain, met):
        rival = [0.05, 0.05, 0.05, 0.05] if gain[2] else [0.05, 0.05, 0.0, 0.0]
        found = judge(suite_of({"auto": gain, "margin": rival}), "auto", ["random", "auto", "margin"])
        assert list(found.criteria.values()) == met
        assert found.passed == all(met)

    def test_random_can_be_the_best(self):
        found = judge(suite_of({"auto": -0.05}), "auto", ["random", "auto"])
        assert set(found.best.values()) == {"random"}
        assert found.gaps["s0"] == pytest.approx(0.05, abs=0.005)

    def test_arms_with_a_start_of_their_own_are_no_rivals(self):
        assert "auto" in words.COMMON_START
        assert "margin, coverage start" not in words.COMMON_START


class TestPage:
    def test_the_whole_page_from_stored_runs(self, tiny, tmp_path, capsys):
        results = ["--results", str(tmp_path / "results")]
        assert commands.main([*results, "run", "--jobs", "1", "--seeds", "2"]) == 0
        latex = tmp_path / "table.tex"
        assert commands.main([*results, "report", "--docs", str(tmp_path / "docs"), "--latex", str(latex)]) == 0
        text = (tmp_path / "docs" / "evidence" / "benchmark_results.md").read_text()
        # verdicts, then figures, then tables
        places = [text.index(heading) for heading in ("## Which strategy should I take?", "## Figures", "## Tables")]
        assert places == sorted(places)
        assert "Unfinished: 4 runs of these settings are missing." in text
        assert "| tiny | entropy | 1 |" in text
        assert "On the 1 held-out settings `auto`" in text
        for line in text.splitlines():
            if line.startswith("!["):
                assert (tmp_path / "docs" / "evidence" / line.split("(")[1].rstrip(")")).resolve().stat().st_size > 5000
        tables = [line.count("|") for line in text.splitlines() if line.startswith("|")]
        assert len(tables) > 10
        assert latex.read_text().startswith(r"\begin{table*}")
        capsys.readouterr()
        assert commands.main([*results, "rule"]) == 0
        assert "met: worse than Random in none" in capsys.readouterr().out

    def test_nothing_to_report(self, tiny, tmp_path):
        with pytest.raises(ValueError, match="There are no runs"):
            page.load_suite(tmp_path)

    def test_why_counts_what_differs_by_more_than_randoms_seeds(self):
        suite = suite_of({"bad": -0.05, "good": 0.05}, 2)
        rng = np.random.default_rng(0)
        rows = [
            {
                "setting": setting,
                "arm": arm,
                "balance": 0.9 - 0.3 * (arm == "bad") + rng.normal(scale=0.01),
                "distance": 1 + rng.normal(scale=0.01),
                "remoteness": 1 + 0.2 * (arm == "bad" and setting == "s0") + rng.normal(scale=0.001),
            }
            for setting in ("s0", "s1")
            for arm in ("random", "bad", "good")
            for _ in range(8)
        ]
        table = page.pd.DataFrame(rows).set_index(["setting", "arm"]).sort_index()
        line = words.why(suite, table, "bad")
        assert "worse than Random in s0 and s1" in line
        assert "from fewer classes in 2" in line
        assert "more remote in 1" in line
        assert words.why(suite, table, "good") == ""
