"""The command line, called as a function."""

import pytest

import skal
from skal import cli

TINY = ["--seeds", "2", "--n-rounds", "1", "--query-size", "10"]


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"skal {skal.__version__}\n"


def test_no_command_prints_the_help(capsys):
    assert cli.main([]) == 0
    assert "demo" in capsys.readouterr().out


def test_demo_prints_a_table_and_what_it_says_and_writes_a_plot(tmp_path, capsys):
    assert cli.main(["demo", "--out", str(tmp_path / "out"), *TINY]) == 0
    out, err = capsys.readouterr()
    table = [line.split() for line in out.splitlines() if line.strip()[:2].isdigit()]
    assert [row[0] for row in table] == ["20", "30"]
    assert "mean ± standard deviation over 2 seeds" in out
    assert out.split("\n\n")[1].split()[:3] == ["labels", "random", "recommended"]
    assert "The recommended default is " in out
    assert "100%" in err  # the progress bar stays out of what one may want to redirect
    assert (tmp_path / "out" / "learning_curve.png").stat().st_size > 1000


def test_the_demo_shows_a_difference_that_is_real(tmp_path, capsys):
    """What the README says of it, with half of its seeds and rounds."""
    assert cli.main(["demo", "--out", str(tmp_path), "--seeds", "3", "--n-rounds", "4"]) == 0
    assert "ahead in 3 of 3 seeds" in capsys.readouterr().out


def test_one_seed_proves_nothing(tmp_path, capsys):
    assert cli.main(["demo", "--out", str(tmp_path), "--seeds", "1", "--n-rounds", "1"]) == 0
    out = capsys.readouterr().out
    assert "1 seed" in out
    assert "±" not in out
    assert "not enough seeds" in out


@pytest.mark.parametrize("option", ["--initial", "--batch", "--rounds", "--epochs", "--pool"])
def test_an_option_has_one_name(option, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["bench", option, "3"])
    assert stop.value.code == 2
    assert option in capsys.readouterr().err


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5"])
def test_counts_must_be_positive_integers(value, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["demo", "--seeds", value])
    assert stop.value.code == 2
    assert f"--seeds: must be an integer >= 1. Got '{value}'" in capsys.readouterr().err


def test_more_labels_than_samples_is_an_error_without_a_traceback(tmp_path, capsys):
    assert cli.main(["demo", "--out", str(tmp_path), "--n-rounds", "500"]) == 1
    assert "skal demo: " in capsys.readouterr().err


def test_a_file_in_the_place_of_the_folder_is_an_error_before_the_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("skal.bench._demo.demo_scores", lambda *_, **__: pytest.fail("the run was started"))
    (tmp_path / "out").write_text("")
    assert cli.main(["demo", "--out", str(tmp_path / "out")]) == 1
    assert "out" in capsys.readouterr().err


def test_unknown_command_lists_the_known_ones(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["dmeo"])
    assert stop.value.code == 2
    assert "demo" in capsys.readouterr().err
