"""What a release is made of: the name, its extras, and files that repeat what pyproject.toml says."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import jinja2
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import skal

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
CONFIGURATION = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT = CONFIGURATION["project"]
TEXTS = [
    *sorted((ROOT / "skal").rglob("*.py")),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "docs/index.md")),
    *sorted((ROOT / "docs" / "guide").glob("*.md")),
    *sorted((ROOT / "docs" / "evidence").glob("*.md")),
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


RECIPE_FILE = ROOT / "packaging" / "conda" / "meta.yaml"
# names that differ between the index and conda-forge
RENAMED = {"torch": "pytorch", "matplotlib": "matplotlib-base", "modAL-python": "modal-python"}


@pytest.fixture(scope="module")
def recipe():
    """The recipe as conda-build reads it: a template first, then YAML."""
    template = jinja2.Environment(undefined=jinja2.StrictUndefined).from_string(RECIPE_FILE.read_text("utf-8"))
    return yaml.safe_load(template.render(PYTHON="python"))


def as_conda(requirements):
    """``torch>=2.4`` as ``pytorch >=2.4``."""
    pairs = (re.fullmatch(r"([\w-]+)(>=.*)", requirement).groups() for requirement in requirements)
    return [f"{RENAMED.get(name, name)} {bound}" for name, bound in pairs]


def test_the_conda_recipe_says_what_pyproject_says(recipe):
    python = f"python {PROJECT['requires-python']}"
    assert recipe["package"] == {"name": PROJECT["name"], "version": skal.__version__}
    assert recipe["requirements"]["run"] == [python, *as_conda(PROJECT["dependencies"])]
    assert recipe["requirements"]["host"] == [python, "pip", *as_conda(CONFIGURATION["build-system"]["requires"])]
    assert recipe["build"]["entry_points"] == [f"{name} = {target}" for name, target in PROJECT["scripts"].items()]
    assert recipe["about"]["license"] == PROJECT["license"]
    assert recipe["about"]["home"] == recipe["about"]["doc_url"] == PROJECT["urls"]["Documentation"]


def test_the_addresses_agree():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["url"] == PROJECT["urls"]["Documentation"]
    assert all(address.startswith(f"https://{PROJECT['name']}.") for address in PROJECT["urls"].values())


def test_the_files_that_the_conda_recipe_names_are_there(recipe):
    source = RECIPE_FILE.parent / recipe["source"]["path"]
    assert (source / "pyproject.toml").samefile(ROOT / "pyproject.toml")
    assert [recipe["about"]["license_file"]] == PROJECT["license-files"]
    assert (source / recipe["about"]["license_file"]).is_file()


def test_what_the_conda_recipe_tests_works(recipe):
    """Its imports, and its commands by way of their entry points, each in an interpreter of its own."""
    scripts = [f"import {name}" for name in recipe["test"]["imports"]]
    for command in recipe["test"]["commands"]:
        name, *arguments = command.split()
        module, function = PROJECT["scripts"][name].split(":")
        scripts.append(
            f"import sys; from {module} import {function}; sys.argv = [{name!r}, *{arguments}]; {function}()"
        )
    assert len(scripts) >= 3
    for script in scripts:
        subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, cwd=ROOT)


def test_the_makefile_takes_every_python_that_is_promised():
    lowest = PROJECT["requires-python"].removeprefix(">=").replace(".", ", ")
    assert f"sys.version_info < ({lowest})" in (ROOT / "Makefile").read_text("utf-8")


PYTHONS = [label.rsplit(" ", 1)[1] for label in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", label)]


def test_the_workflow_runs_every_python_that_is_promised():
    """nox also tries newer ones, which a machine may not have."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text("utf-8"))
    assert workflow["jobs"]["tests"]["strategy"]["matrix"]["python"] == PYTHONS
    assert f">={PYTHONS[0]}" == PROJECT["requires-python"]
    assert set(PYTHONS) <= set(re.findall(r'"(3\.\d+)"', (ROOT / "noxfile.py").read_text("utf-8")))


def pins():
    """Name, version and marker of every line of constraints.txt."""
    for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            yield Requirement(line)


@pytest.mark.parametrize("python", PYTHONS)
def test_every_pinned_package_has_one_pin_for_every_python(python):
    """A package without one makes pip look through all of its versions, and give up."""
    applies = Counter(
        canonicalize_name(pin.name)
        for pin in pins()
        if not pin.marker or pin.marker.evaluate({"python_version": python})
    )
    assert set(applies.values()) == {1}
    left_out = {canonicalize_name(pin.name) for pin in pins()} - set(applies)
    assert left_out == ({"lazy-importer"} if python == "3.10" else set())  # which newer releases alone need


def test_the_pins_are_versions_that_are_promised():
    ranges = [
        Requirement(r) for part in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()) for r in part
    ]
    promised = {canonicalize_name(each.name): each.specifier for each in ranges}
    for pin in pins():
        version = str(pin.specifier).removeprefix("==")
        assert version in promised.get(canonicalize_name(pin.name), SpecifierSet()), pin


@pytest.mark.parametrize("path", sorted((ROOT / "skal").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_of_the_package_names_its_licence(path):
    assert path.read_text("utf-8").startswith(f"# SPDX-License-Identifier: {PROJECT['license']}\n")


def test_nox_uses_every_extra():
    text = (ROOT / "noxfile.py").read_text("utf-8")
    used = re.findall(r'^    "(\w+)": "', text[text.index("USES = {") :], re.MULTILINE)
    assert sorted(used) == sorted(PROJECT["optional-dependencies"])
