"""What a release is made of: the name, its extras, and files that repeat what pyproject.toml says."""

import re
import sys
from pathlib import Path

import pytest

import skal

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
TEXTS = [
    *sorted((ROOT / "skal").rglob("*.py")),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "docs/index.md")),
    *sorted((ROOT / "docs" / "guide").glob("*.md")),
]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_pip_is_told_our_name_and_extras_that_exist(path):
    """``pip install skal`` would fetch somebody else's package."""
    for name, extras in re.findall(r"pip install '?(skal[\w-]*)(?:\[([\w,]*)\])?", path.read_text("utf-8")):
        assert name == PROJECT["name"] == "skal-learn"
        assert set(filter(None, extras.split(","))) <= set(PROJECT["optional-dependencies"])


def test_extras_of_extras_exist():
    for requirements in PROJECT["optional-dependencies"].values():
        for requirement in requirements:
            if match := re.fullmatch(r"skal[\w-]*\[(.*)\]", requirement):
                assert requirement.startswith("skal-learn[")
                assert set(match[1].split(",")) <= set(PROJECT["optional-dependencies"])


@pytest.mark.parametrize(
    ("path", "pattern"),
    [
        ("CITATION.cff", r"^version: (.*)$"),
        ("packaging/conda/meta.yaml", r'set version = "(.*)"'),
        ("docs/citing.md", r"version = \{(.*)\}"),
    ],
)
def test_files_that_repeat_the_version(path, pattern):
    assert re.search(pattern, (ROOT / path).read_text("utf-8"), re.MULTILINE)[1] == skal.__version__


def test_the_conda_recipe_requires_what_the_wheel_does():
    renamed = {"torch": "pytorch", "matplotlib": "matplotlib-base", "modAL-python": "modal-python"}
    wanted = [re.fullmatch(r"([\w-]+)(>=.*)", requirement).groups() for requirement in PROJECT["dependencies"]]
    recipe = (ROOT / "packaging" / "conda" / "meta.yaml").read_text("utf-8")
    run = recipe.split("  run:\n")[1].split("\n\n")[0]
    found = [line.removeprefix("    - ").split(" ") for line in run.splitlines()]
    assert sorted(map(tuple, found)) == sorted(
        [("python", PROJECT["requires-python"]), *((renamed.get(name, name), bound) for name, bound in wanted)]
    )


def test_the_makefile_takes_every_python_that_is_promised():
    lowest = PROJECT["requires-python"].removeprefix(">=").replace(".", ", ")
    assert f"sys.version_info < ({lowest})" in (ROOT / "Makefile").read_text("utf-8")


@pytest.mark.parametrize("path", sorted((ROOT / "skal").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_of_the_package_names_its_licence(path):
    assert path.read_text("utf-8").startswith(f"# SPDX-License-Identifier: {PROJECT['license']}\n")
