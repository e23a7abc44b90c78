"""Every public docstring passes numpydoc's validation; pyproject.toml says which of its checks count, and why."""

import dataclasses
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


def documented_elsewhere(cls, method):
    """Whether a class further up, of skal or of another package, documents the parameters of the same method.

    So it is with ``forward`` of a network, the hooks that skorch calls and what scikit-learn's estimators have in
    common: what such a docstring must say is what this one does otherwise.
    """
    owner = next(base for base in cls.__mro__ if method in vars(base))
    above = cls.__mro__[cls.__mro__.index(owner) + 1 :]
    return (
        method in FORWARD
        or method in HOOKS
        or any(method in vars(base) and vars(base)[method].__doc__ for base in above)
    )


# torch's forward has no docstring, and skorch's nets get hooks that only its callbacks' page describes
FORWARD = {"forward", "extra_repr"}
HOOKS = {f"on_{part}_{end}" for part in ("train", "epoch", "batch") for end in ("begin", "end")}
INHERITED = {"PR01", "RT01", "YD01"}


def complaints(full_name, cls=None, method=None):
    """Code and message of what is wrong, without the checks that are left out."""
    left_out = set(LEFT_OUT)
    if method is not None and documented_elsewhere(cls, method):
        left_out |= INHERITED
    if method is None and cls is not None and (dataclasses.is_dataclass(cls) or hasattr(cls, "_fields")):
        left_out.add("PR01")  # a record, which users read and rarely make: tests/test_api.py compares its Attributes
    return [error for error in validate(full_name)["errors"] if error[0] not in left_out]


@pytest.mark.parametrize(("module", "name"), OBJECTS, ids=[".".join(pair) for pair in OBJECTS])
def test_public_docstring_is_valid(module, name):
    obj = getattr(importlib.import_module(module), name)
    cls, found = obj if inspect.isclass(obj) else None, []
    for full in documented(module, name):
        method = full.removeprefix(f"{module}.{name}").removeprefix(".") or None
        found += [(full, *error) for error in complaints(full, cls, method)]
    assert found == []


class Above:
    def ask(self, what):
        """Ask for something, which is said here."""


class Below(Above):
    def ask(self, what):
        """Ask twice."""
        return what, what

    def tell(self, what):
        """Say it."""
        return what


def test_a_method_must_say_what_no_class_above_says():
    assert complaints(f"{__name__}.Below.ask", Below, "ask") == []
    assert {code for code, _ in complaints(f"{__name__}.Below.tell", Below, "tell")} == {"PR01", "RT01"}


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
