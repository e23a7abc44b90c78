"""Every public docstring passes numpydoc's validation; pyproject.toml says which of its checks count, and why."""

import importlib
import inspect
from pathlib import Path

import pytest
from numpydoc.validate import ERROR_MSGS, validate

from .test_api import OBJECTS
from .test_packaging import tomllib

ROOT = Path(__file__).parents[1]
LEFT_OUT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["numpydoc_validation"]["checks"]


PUBLIC = {name for _, name in OBJECTS}


def documented(module, name):
    """Dotted names of an object and of the methods that skal defines for it."""
    obj = getattr(importlib.import_module(module), name)
    if inspect.isfunction(obj) or inspect.isclass(obj):
        yield f"{module}.{name}"
    # what a class inherits is looked at where it is defined, unless that class is not public
    for base in obj.__mro__ if inspect.isclass(obj) else ():
        if base is obj or (base.__module__.split(".")[0] == "skal" and base.__name__ not in PUBLIC):
            members = vars(base).items()
            yield from (f"{module}.{name}.{n}" for n, m in members if not n.startswith("_") and inspect.isfunction(m))


def complaints(full_name):
    """Code and message of what is wrong, without the checks that are left out."""
    return [error for error in validate(full_name)["errors"] if error[0] not in LEFT_OUT]


@pytest.mark.parametrize(("module", "name"), OBJECTS, ids=[".".join(pair) for pair in OBJECTS])
def test_public_docstring_is_valid(module, name):
    assert [(full, found) for full in documented(module, name) if (found := complaints(full))] == []


def test_the_checks_that_are_left_out_exist_and_the_rest_can_fail():
    assert LEFT_OUT[0] == "all"
    assert set(LEFT_OUT[1:]) < set(ERROR_MSGS)
    assert {code for code, _ in complaints(f"{__name__}.bad")} == {"SS03", "PR02"}


def bad(x):
    """Do something

    Parameters
    ----------
    x : int
        A number.
    z : int
        A number that is not there.
    """
