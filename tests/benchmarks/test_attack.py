"""The attack on one strategy of each kind: no foreign traceback, no garbage."""

import pytest

from benchmarks import attack, interrupts


@pytest.mark.parametrize("name", ["Margin:", "BADGE:", "gradient_scores", "ActiveLearner", "stopping, ", "sessions, "])
def test_what_users_do_wrong_is_told_in_words(name, capsys):
    attack.main(["--only", name, "--show"])
    *said, total = capsys.readouterr().out.splitlines()
    assert not [line for line in said if line.startswith(("foreign", "garbage"))]
    cells = total.strip("| ").split(" | ")
    assert cells[0] == "all"
    assert int(cells[1]) >= 70
    assert cells[4:6] == ["0", "0"]


def test_the_attack_can_tell(capsys):
    def fail():
        raise KeyError("foreign")

    assert attack.outcome(attack.REFUSED, lambda: 1)[0] == "garbage"
    assert attack.outcome("may work", fail)[0] == "foreign traceback"
    assert attack.outcome("may work", lambda: attack.np.array([float("nan")]))[0] == "garbage"


def test_interrupts_are_counted(capsys):
    interrupts.main(["--interrupts", "18"])
    assert "| all | 18 | 0 |" in capsys.readouterr().out
