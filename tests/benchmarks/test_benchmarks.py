"""The runner of the benchmarks finds, lists and runs the modules of its package."""

import pytest

import benchmarks
from benchmarks.__main__ import main, names

MODULE = '''"""Measures {name}.

More about it."""


def main(argv):
    print("{name} ran with", argv)
    return {status}
'''


@pytest.fixture
def package(tmp_path, monkeypatch):
    for name, status in [("skal_fake_good", None), ("skal_fake_bad", 1), ("_skal_fake_helper", None)]:
        (tmp_path / f"{name}.py").write_text(MODULE.format(name=name, status=status))
    monkeypatch.setattr(benchmarks, "__path__", [str(tmp_path)])


@pytest.mark.usefixtures("package")
class TestRunner:
    def test_finds_public_modules(self):
        assert names() == ["skal_fake_bad", "skal_fake_good"]

    def test_lists_without_running(self, capsys):
        assert main(["--list"]) == 0
        out = capsys.readouterr().out
        assert out == "skal_fake_bad: Measures skal_fake_bad.\nskal_fake_good: Measures skal_fake_good.\n"

    def test_runs_what_is_named(self, capsys):
        assert main(["skal_fake_good"]) == 0
        out = capsys.readouterr().out
        assert "skal_fake_good ran with []" in out
        assert "skal_fake_bad" not in out

    def test_a_failure_does_not_stop_the_others_and_shows_in_the_status(self, capsys):
        assert main([]) == 1
        assert "skal_fake_good ran" in capsys.readouterr().out

    def test_unknown_name_is_refused(self, capsys):
        with pytest.raises(SystemExit):
            main(["nothing"])
        assert "Choose from: skal_fake_bad, skal_fake_good" in capsys.readouterr().err
