"""Importing skal is light, finds every name when it is used, and repairs modAL whenever that is imported."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import skal
import skal.strategies
from skal._vocabulary import STRATEGIES

HEAVY = {"dask", "distributed", "matplotlib", "modAL", "pandas", "skorch", "sklearn", "torch"}


def printed(code):
    """What a fresh interpreter prints."""
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()


def test_import_loads_nothing_heavy():
    loaded = printed("import sys, skal; print(*sys.modules)")
    assert "skal._version" in loaded
    assert not HEAVY & set(loaded)


# what scikit-learn imports itself is not ours to avoid: pandas, from 1.8 on
NEEDLESS = {"backpack", "dask", "distributed", "matplotlib", "scipy.io", "sklearn.datasets"}


AT_WORK = """
import sys, torch, skorch, sklearn, modAL
before = set(sys.modules)
from skal import *
print(*set(sys.modules) - before)
import skal.bench
skal.datasets.load("digits")
print("\\n", *sys.modules)
from skal.checks import make_learner
from skal.strategies import NTKLookahead
learner, X_pool = make_learner()
for batch in ("top", "greedy"):
    NTKLookahead(batch=batch, reference="linearized").select(learner, X_pool, 2)
print("\\n", *sys.modules)
"""


@pytest.fixture(scope="module")
def at_work():
    """The modules that all names load, and those that are there after a benchmark's start and after queries."""
    done = subprocess.run([sys.executable, "-c", AT_WORK], check=True, capture_output=True, text=True)
    return [text.split() for text in done.stdout.split("\n\n")]


def test_all_names_load_nothing_that_only_few_need(at_work):
    """Readers of files and plots are imported by the calls that use them."""
    added = set(at_work[0])
    assert "skal.labelling" in added
    assert not NEEDLESS & added


def test_work_loads_nothing_that_only_papers_need(at_work):
    """Neither an ordinary benchmark, nor a query what it is compared with."""
    _, benchmark, query = at_work
    assert "skal.bench" in benchmark
    papers = ("skal.bench.papers", "skal.semi_supervised", "skal.datasets._raw")
    assert [name for name in benchmark if name.startswith(papers)] == []
    assert "skal._lookahead.query" in query
    assert "skal._lookahead.comparators" not in query


LOOKED_FOR = "import skal; from importlib.util import find_spec; find_spec('modAL')"  # which is not importing it


@pytest.mark.parametrize("first", [LOOKED_FOR, "import modAL.models, skal"])
def test_modal_is_repaired_in_either_order(first):
    """``modAL.expected_error`` does not import by itself, and repaired functions carry a mark."""
    imports = "import modAL.expected_error, modAL.batch, modAL.multilabel"
    marks = f"{imports}; print(hasattr(modAL.utils.data.data_vstack, '_repaired_by_skal'))"
    broken = "from skal.compat.modal import patch_modal; print(patch_modal())"
    assert printed(f"{first}; {marks}; {broken}") == ["True", "False"]


def test_bars_are_widgets_in_notebooks():
    """``tqdm.auto`` draws one where there is a notebook; plain ``tqdm`` writes red text there."""
    files = sorted(Path(skal.__file__).parent.rglob("*.py"))
    lines = (line.strip() for path in files for line in path.read_text("utf-8").splitlines())
    imported = {line for line in lines if "import tqdm" in line}
    assert imported == {"from tqdm.auto import tqdm"}


def test_every_strategy_is_exported():
    assert set(skal.strategies.__all__) < set(skal.__all__)
    for name in skal.strategies.__all__:
        assert getattr(skal, name) is getattr(skal.strategies, name)


def test_every_strategy_may_be_named_without_loading_it():
    functions = {name: getattr(skal, name).strategy.__name__ for name in skal.strategies.__all__ if name.islower()}
    assert functions.items() <= STRATEGIES.items()
    assert {name for name in skal.strategies.__all__ if not name.islower()} <= set(STRATEGIES.values())


def test_names_and_rooms_are_listed_and_others_are_refused():
    assert {"ActiveLearner", "uherding", "strategies", "bench"} <= set(dir(skal))
    assert skal.nets is importlib.import_module("skal.nets")
    with pytest.raises(AttributeError, match="no attribute 'uherdin'"):
        _ = skal.uherdin
    with pytest.raises(ImportError):
        from skal import nonsense  # noqa: F401


def test_modal_that_is_not_installed_stays_not_found(monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "modAL")
    importlib.invalidate_caches()
    assert importlib.util.find_spec("modAL") is None
