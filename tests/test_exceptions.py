"""Tests of skal.exceptions."""

import inspect
import pickle

import pytest
from sklearn.exceptions import NotFittedError as SklearnNotFittedError

import skal.exceptions
from skal.exceptions import ConvergenceWarning, InvalidParameterError, NotFittedError, SkalError, SkalWarning, shorten

ERRORS = [
    thing
    for thing in (getattr(skal.exceptions, name) for name in skal.exceptions.__all__)
    if thing is not SkalError and not issubclass(thing, SkalWarning)
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_every_error_is_a_skal_error_and_a_familiar_one(error):
    assert issubclass(error, SkalError)
    assert issubclass(error, (ValueError, TypeError, RuntimeError))
    assert error.__doc__


def test_all_lists_every_class_of_the_module():
    written = {name for name, cls in inspect.getmembers(skal.exceptions, inspect.isclass) if not name.startswith("_")}
    assert written == set(skal.exceptions.__all__)


def test_not_fitted_is_caught_as_scikit_learns():
    with pytest.raises(SklearnNotFittedError):
        raise NotFittedError("x")


@pytest.mark.parametrize("kind", [NotFittedError, ConvergenceWarning])
def test_those_of_scikit_learn_come_back_from_other_processes(kind):
    assert kind.__module__ == "skal.exceptions"
    assert type(pickle.loads(pickle.dumps(kind("x")))) is kind


def test_other_names_are_none():
    with pytest.raises(AttributeError, match="no attribute 'NotFitedError'"):
        _ = skal.exceptions.NotFitedError


def test_a_warning_is_no_error():
    assert issubclass(SkalWarning, UserWarning)
    assert not issubclass(SkalWarning, SkalError)


def test_an_error_for_a_parameter_has_its_four_parts():
    error = InvalidParameterError.for_parameter("Margin", "subset", "an integer", "ten", "Pass 10.")
    assert str(error) == "The 'subset' parameter of Margin must be an integer. Got 'ten' instead. Pass 10."


@pytest.mark.parametrize(("length", "kept"), [(78, True), (79, False), (10_000, False)])
def test_shorten_keeps_messages_readable(length, kept):
    text = shorten("a" * length)  # the quotes count
    assert len(text) == 80
    assert text.endswith("a'" if kept else "a...")
