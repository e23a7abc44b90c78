"""The attack on one strategy of each kind: no foreign traceback, no garbage."""

import inspect
import re
import sys

import pytest

from benchmarks import attack, interrupts
from benchmarks._attack_counts import COUNTS, counts
from skal.exceptions import SkalError

NAMES = ["Margin:", "BADGE:", "gradient_scores", "ActiveLearner", "stopping, ", "sessions, ", "counts, ", "BALD("]


@pytest.mark.parametrize("name", NAMES)
def test_what_users_do_wrong_is_told_in_words(name, capsys):
    attack.main(["--only", name, "--show"])
    *said, total = capsys.readouterr().out.splitlines()
    assert not [line for line in said if line.startswith(("foreign", "garbage"))]
    cells = total.strip("| ").split(" | ")
    assert cells[0] == "all"
    assert int(cells[1]) >= 60
    assert cells[5:7] == ["0", "0"]  # foreign tracebacks, garbage


def test_the_attack_can_tell(capsys):
    def fail():
        raise KeyError("foreign")

    assert attack.outcome(attack.REFUSED, lambda: 1)[0] == "garbage"
    assert attack.outcome("may work", fail)[0] == "foreign traceback"
    assert attack.outcome("may work", lambda: attack.np.array([float("nan")]))[0] == "garbage"


@pytest.mark.parametrize("name", ["Margin: ", "CoreSet: ", "DynamicAL.scores: ", "ActiveLearningClassifier.fit: "])
def test_samples_that_change_are_refused(name, capsys):
    attack.main(["--only", f"changing samples, {name}", "--show"])
    assert capsys.readouterr().out.splitlines()[-1] == "| all | 10 | 10 | 0 | 0 | 0 | 0 | 0 |"


def test_counts_without_end_are_refused_by_name_and_with_the_limit(tmp_path):
    learner, X = attack.fresh_learner()
    found = [case for case in counts(learner, X, tmp_path) if not case[0].startswith("skal ")]
    assert len(found) >= 55
    for name, _, call in found:
        with pytest.raises(SkalError) as caught:
            call()
        parameter = name.split("(")[1].rstrip(")")
        assert re.search(rf"'{parameter}' parameter of .* (from \d+ to [\d,]+|one of 1, 2, 3)", str(caught.value)), name


def test_every_count_of_a_strategy_is_attacked():
    """A parameter that is an integer by default, or by its type, counts something; a seed does not."""
    for name, strategy in attack.strategies().items():
        for parameter in inspect.signature(type(strategy)).parameters.values():
            counted = "int" in str(parameter.annotation) and parameter.name not in ("max_memory", "random_state")
            assert not counted or parameter.name in COUNTS, (name, parameter.name)


def test_interrupts_are_counted(capsys):
    interrupts.main(["--interrupts", "18"])
    assert "| all | 18 | 0 |" in capsys.readouterr().out


def test_whoever_traced_before_traces_on():
    def tracer(frame, event, argument):
        return None

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        interrupts.passed_lines(lambda: None)
        found = sys.gettrace()
    finally:
        sys.settrace(before)
    assert found is tracer
