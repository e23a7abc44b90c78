"""Sessions for many versions: ``nox`` runs the tests on every Python that this machine has, ``nox -l`` lists the rest.

``nox -s tests-3.12 -- tests/loop -k stop`` passes what follows ``--`` to pytest. Pythons that are not installed are
skipped by name, 3.14 among them; in continuous integration a missing one is an error, as nox has it.
"""

import re
import shutil
import tempfile
from pathlib import Path

import nox

nox.needs_version = ">=2024.4.15"
nox.options.sessions = ["tests"]
nox.options.reuse_venv = "yes"

PYTHONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
# what depends on the releases of modAL and scikit-learn: as in the Makefile
MODAL_TESTS = ["tests/compat", "tests/learners/test_active.py", "tests/strategies/test_uncertainty.py"]
OLD_PACKAGES = ("scikit-learn", "skorch")  # whose older releases a model may come from
XLA = ["torch==2.9.0", "torch_xla==2.9.0"]  # the last ones that go together
PROJECT = nox.project.load_toml("pyproject.toml")["project"]


def run_tests(session: nox.Session, *arguments: str, **environment: str) -> None:
    """All tests in three processes, or those named after ``--``."""
    pytest = ["python", "-m", "pytest", "-q", "-n", "3"]
    session.run(*pytest, *arguments, *session.posargs, env=ONE_THREAD | environment)


def lowest(requirements: list[str]) -> list[str]:
    """``numpy>=1.26`` as ``numpy==1.26.*``: the oldest release that is promised, with its repairs.

    >>> lowest(["numpy>=1.26", "cloudpickle>=3"])
    ['numpy==1.26.*', 'cloudpickle==3.*']
    """
    return [re.sub(r">=(.*)", r"==\1.*", requirement) for requirement in requirements]


def other_environment(session: nox.Session, folder: Path, *packages: str) -> str:
    """The Python of a new environment with nothing but some packages."""
    session.run("python", "-m", "venv", "--clear", str(folder))
    python = str(folder / "bin" / "python")
    session.run(python, "-m", "pip", "install", "-q", *packages, external=True)
    return python


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """The whole suite with the versions of constraints.txt."""
    session.install("-c", "constraints.txt", ".[dev]")
    run_tests(session)


@nox.session(python="3.10")
def oldest(session: nox.Session) -> None:
    """The oldest versions that pyproject.toml promises, on the oldest Python."""
    pins = Path(tempfile.mkdtemp()) / "oldest.txt"
    oldest = lowest(PROJECT["dependencies"])
    pins.write_text("\n".join(oldest))
    session.install("-c", str(pins), ".[dev]")
    # old releases warn of what newer Pythons and packages have changed since: a warning is no failure here
    (sklearn,) = re.findall(r"scikit-learn==(\d+\.\d+)", " ".join(oldest))
    run_tests(session, "-W", "default", SKAL_TEST_SKLEARN=sklearn)


@nox.session(python="3.13")
def newest(session: nox.Session) -> None:
    """The newest versions that install together, whatever constraints.txt says."""
    session.install("--upgrade", "--upgrade-strategy", "eager", ".[dev]")
    run_tests(session)


@nox.session(python="3.11")
@nox.parametrize("sklearn", ["1.6.1", "newest"])
@nox.parametrize("modal", ["0.4.1", "0.4.2.1"])
def modal(session: nox.Session, modal: str, sklearn: str) -> None:
    """Both releases of modAL on the oldest and the newest scikit-learn."""
    session.install("-c", "constraints.txt", ".[dev]")
    # its pins do not allow today's packages
    session.install("--no-deps", f"modAL-python=={modal}")
    if sklearn != "newest":
        session.install("--no-deps", f"scikit-learn=={sklearn}")
    expected = {"SKAL_TEST_MODAL": modal} | ({} if sklearn == "newest" else {"SKAL_TEST_SKLEARN": sklearn[:3]})
    session.run("python", "-m", "pytest", "-q", *MODAL_TESTS, *session.posargs, env=ONE_THREAD | expected)


@nox.session(python="3.11")
def coverage(session: nox.Session) -> None:
    """The share of lines that the tests run; below 98 % it fails."""
    session.install("-c", "constraints.txt", ".[dev]", "pytest-cov")
    # the copy in the source tree is measured, which is what the tests import
    run_tests(session, "--cov=skal", "--cov-report=term:skip-covered", "--cov-report=xml", "--cov-fail-under=98")


@nox.session(python="3.11")
def lint(session: nox.Session) -> None:
    """Ruff and mypy."""
    session.install("-c", "constraints.txt", ".[dev]")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")


@nox.session(python="3.11")
def docs(session: nox.Session) -> None:
    """The site, with warnings as errors."""
    session.install("-c", "constraints.txt", ".[docs]")
    session.run("sphinx-build", "-W", "--keep-going", "-b", "html", "docs", "docs/_build/html", env=ONE_THREAD)
    session.run("python", "docs/check_site.py", "docs/_build/html")


@nox.session(python="3.11")
def recipes(session: nox.Session) -> None:
    """The recipes of the guide that need other packages."""
    # without constraints.txt, whose versions are too new for some of them
    session.install(".[dev]", "transformers", "peft", "datasets", "mlflow>=2", "wandb")
    # what those packages warn of is their own affair
    arguments = ["-W", "default", "tests/test_readme.py", "-k", "recipes"]
    session.run("python", "-m", "pytest", "-q", *arguments, env=ONE_THREAD | {"SKAL_TEST_RECIPES": "1"})


@nox.session(python="3.11")
def devices(session: nox.Session) -> None:
    """The tests of another device, on XLA, which runs on any machine; it installs gigabytes."""
    pins = Path(session.create_tmp()).resolve() / "devices.txt"
    kept = [line for line in Path("constraints.txt").read_text().splitlines() if not line.startswith("torch")]
    pins.write_text("\n".join([*kept, *XLA]))
    session.install("-c", str(pins), *XLA, ".[devices]", "pytest", "pytest-xdist", "hypothesis")
    # code is compiled for a single use: the quicker the better
    on_xla = {"SKAL_TEST_DEVICE": "xla:0", "PJRT_DEVICE": "CPU", "XLA_FLAGS": "--xla_backend_optimization_level=0"}
    session.run(
        "python", "-m", "pytest", "-q", "-m", "device", "tests/devices", *session.posargs, env=ONE_THREAD | on_xla
    )


@nox.session(python="3.11")
def models(session: nox.Session) -> None:
    """Models that were labelled on the page say the same in a fresh environment; those of older packages warn."""
    session.install("-c", "constraints.txt", ".[label,backbones,parquet]")
    session.install("-c", "constraints.txt", "datasets")
    folder = Path(session.create_tmp()).resolve()
    projects = folder / "projects"
    shutil.rmtree(projects, ignore_errors=True)
    script = ["-I", str(Path("benchmarks", "take_away.py").resolve())]  # -I: not the clone, but what is installed
    session.run("python", *script, "label", str(projects), env=ONE_THREAD)
    session.run("python", *script, "datasets", str(projects), env=ONE_THREAD)
    fresh = other_environment(session, folder / "fresh", "-c", "constraints.txt", ".")
    session.run(fresh, *script, "load", str(projects), external=True, env=ONE_THREAD)
    session.run(fresh, "-m", "pip", "install", "-q", "-c", "constraints.txt", ".[backbones]", external=True)
    session.run(fresh, *script, "load", str(projects), external=True, env=ONE_THREAD)
    old_pins = folder / "old.txt"
    kept = [line for line in Path("constraints.txt").read_text().splitlines() if not line.startswith(OLD_PACKAGES)]
    old_pins.write_text(
        "\n".join([*kept, *lowest([each for each in PROJECT["dependencies"] if each.startswith(OLD_PACKAGES)])])
    )
    old = other_environment(session, folder / "old", "-c", str(old_pins), ".")
    session.run(old, *script, "old", str(projects), external=True, env=ONE_THREAD)
    session.run(fresh, *script, "warned", str(projects), external=True, env=ONE_THREAD)


# what an extra is for, in a line that fails without it
USES = {
    "images": "from skal.features import PixelFeatures as P; P(8).transform([N.zeros((9, 9, 3), 'u1')])",
    "label": "import skal; from urllib.request import Request as R, urlopen as u; "
    "J = {'Content-Type': 'application/json'}; "
    "skal.label(N.eye(9), ['a'], folder='label', browser=lambda at: u(R(at + 'api/finish', b'{}', J)).close())",
    "backbones": "from skal.features import pretrained as p; p('images').transform(N.zeros((1, 32, 32, 3), 'u1')); "
    "p('texts').transform(['a text'])",
    "notebook": "import skal; skal.label(N.eye(9), ['a'], folder='cell', notebook=True)",
    "parquet": "import pandas; pandas.DataFrame({'a': [1]}).to_parquet('a.parquet')",
    "completion": "from skal.cli import main; assert main(['completion', 'bash']) == 0",
    "dask": "from dask.distributed import Client; print(Client(processes=False).submit(sum, [1, 2]).result())",
    "disk": "import h5py, zarr",
    "devices": "import accelerate",
    "bench": "import skactiveml, opacus",
    "docs": "import sphinx, sphinx_gallery, pydata_sphinx_theme, numpydoc, myst_parser",
    "dev": "import pytest, xdist, hypothesis, selenium, mypy",
}


@nox.session(python="3.11")
@nox.parametrize("extra", sorted(PROJECT["optional-dependencies"]))
def extras(session: nox.Session, extra: str) -> None:
    """Each extra in an environment of its own, from the wheel and away from the clone: it installs and works."""
    folder = Path(session.create_tmp()).resolve()
    session.run("python", "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), ".")
    wheel = max(folder.glob("*.whl"), key=lambda path: path.stat().st_mtime)
    session.install("-c", "constraints.txt", f"{wheel}[{extra}]")
    session.run("python", "-m", "pip", "check")
    with session.chdir(folder):
        session.run("python", "-I", "-c", f"import numpy as N; {USES[extra]}", env=ONE_THREAD)
        session.run("skal", "doctor", env=ONE_THREAD)


@nox.session(python="3.11")
def label_studio(session: nox.Session) -> None:
    """The live command against a real Label Studio, in an environment of its own beside this one."""
    session.install("-c", "constraints.txt", ".[dev]")
    folder = Path(session.create_tmp()).resolve() / "label-studio"
    if not (folder / "bin" / "label-studio").exists():
        other_environment(session, folder, "label-studio==1.23.2")
    server = {"SKAL_LABEL_STUDIO": str(folder / "bin" / "label-studio")}
    session.run("python", "-m", "pytest", "-q", "tests/labelling/studio", *session.posargs, env=ONE_THREAD | server)


@nox.session(python="3.11")
def package(session: nox.Session) -> None:
    """Wheel and sdist: both build, the wheel installs into a clean environment and passes the tests of the sdist."""
    session.install("build", "twine")
    folder = Path(session.create_tmp()).resolve()  # for commands in other folders
    session.run("python", "-m", "build", "--outdir", str(folder / "dist"), ".")
    wheel, sdist = (next((folder / "dist").glob(kind)) for kind in ("*.whl", "*.tar.gz"))
    session.run("twine", "check", "--strict", str(wheel), str(sdist))
    session.install("-c", "constraints.txt", f"{wheel}[dev]")
    session.run("tar", "-xzf", str(sdist), "-C", str(folder), external=True)
    unpacked = folder / sdist.name.removesuffix(".tar.gz")
    with session.chdir(folder):  # not beside a copy of skal: what was installed
        where = "import pathlib, skal; print(pathlib.Path(skal.__file__).parent)"
        installed = (session.run("python", "-c", where, silent=True) or "").strip()
        session.run("diff", "-r", "-x", "__pycache__", installed, str(unpacked / "skal"), external=True)
        session.run("skal", "--version")
    with session.chdir(unpacked):
        run_tests(session)
