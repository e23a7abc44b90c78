"""Checks of parameters, each with an error that says what to do."""

from __future__ import annotations

import numbers
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from skal.exceptions import InvalidParameterError, InvalidTypeError, parameter_message

__all__ = [
    "check_choice",
    "check_integer",
    "check_n_jobs",
    "check_real",
    "check_seed",
    "make_generator",
    "parse_memory",
]

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def check_integer(owner: str, name: str, value: Any, minimum: int, *, optional: bool = False, remedy: str = "") -> None:
    """Refuse what is not an integer of at least ``minimum`` (or None, where that is allowed).

    Parameters
    ----------
    owner : str
        Whose parameter it is, for the message: a strategy's name.
    name : str
        Of the parameter.
    value : object
    minimum : int
    optional : bool, default=False
        Whether None is allowed.
    remedy : str, optional
        What to do, for the end of the message.

    Raises
    ------
    InvalidTypeError, InvalidParameterError

    Examples
    --------
    >>> from skal.validation import check_integer
    >>> check_integer("MyStrategy", "k", 3, 1)
    >>> check_integer("MyStrategy", "k", 0, 1)
    Traceback (most recent call last):
        ...
    skal.exceptions.InvalidParameterError: The 'k' parameter of MyStrategy must be an integer >= 1. Got 0 instead. ...
    """
    if value is None and optional:
        return
    expected = f"an integer >= {minimum}{' or None' if optional else ''}"
    message = parameter_message(owner, name, expected, value, remedy or f"Pass an integer of at least {minimum}.")
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise InvalidTypeError(message)
    if value < minimum:
        raise InvalidParameterError(message)


def check_real(
    owner: str, name: str, value: Any, minimum: float = -np.inf, maximum: float = np.inf, *, remedy: str = ""
) -> None:
    """Refuse what is not a number in ``[minimum, maximum]``; NaN is never in it.

    Parameters
    ----------
    owner : str
        Whose parameter it is, for the message: a strategy's name.
    name : str
        Of the parameter.
    value : object
    minimum, maximum : float, optional
    remedy : str, optional
        What to do, for the end of the message.

    Raises
    ------
    InvalidTypeError, InvalidParameterError

    Examples
    --------
    >>> from skal.validation import check_real
    >>> check_real("MyStrategy", "beta", 0.5, 0, 1)
    >>> check_real("MyStrategy", "beta", 2, 0, 1)
    Traceback (most recent call last):
        ...
    skal.exceptions.InvalidParameterError: The 'beta' parameter of MyStrategy must be a number in [0, 1]. Got 2 ...
    """
    expected = f"a number in [{minimum:g}, {maximum:g}]"
    message = parameter_message(owner, name, expected, value, remedy or "Pass a number within these bounds.")
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InvalidTypeError(message)
    if not minimum <= float(value) <= maximum:
        raise InvalidParameterError(message)


def check_choice(owner: str, name: str, value: Any, choices: Sequence[Any]) -> None:
    """Refuse what is not one of the choices.

    Parameters
    ----------
    owner : str
        Whose parameter it is, for the message: a strategy's name.
    name : str
        Of the parameter.
    value : object
    choices : sequence

    Raises
    ------
    InvalidParameterError

    Examples
    --------
    >>> from skal.validation import check_choice
    >>> check_choice("MyStrategy", "batch", "top", ["top", "greedy"])
    >>> check_choice("MyStrategy", "batch", "best", ["top", "greedy"])
    Traceback (most recent call last):
        ...
    skal.exceptions.InvalidParameterError: The 'batch' parameter of MyStrategy must be one of 'top', 'greedy'. Got ...
    """
    if not any(value is choice or (type(value) is type(choice) and value == choice) for choice in choices):
        expected = "one of " + ", ".join(repr(choice) for choice in choices)
        raise InvalidParameterError.for_parameter(owner, name, expected, value, "Use one of the listed values.")


def parse_memory(owner: str, name: str, value: Any) -> int | None:
    """Turn a memory bound such as ``"2GB"``, ``"512MiB"`` or a number of bytes into bytes.

    Parameters
    ----------
    owner : str
        Whose parameter it is, for the message: a strategy's name.
    name : str
        Of the parameter.
    value : int, str or None

    Returns
    -------
    int, or None for None

    Raises
    ------
    InvalidTypeError, InvalidParameterError

    Examples
    --------
    >>> from skal.validation import parse_memory
    >>> parse_memory("NPC", "max_memory", "1.5GB")
    1500000000
    """
    if value is None:
        return None
    message = parameter_message(
        owner, name, "a positive number of bytes or a string such as '2GB'", value, "Write for example '512MB'."
    )
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        n_bytes = int(value)
    elif isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([a-zA-Z]*)\s*", value)
        if match is None or match[2].upper() not in _UNITS:
            raise InvalidParameterError(message)
        n_bytes = int(float(match[1]) * _UNITS[match[2].upper()])
    else:
        raise InvalidTypeError(message)
    if n_bytes <= 0:
        raise InvalidParameterError(message)
    return n_bytes


def check_n_jobs(owner: str, n_jobs: Any) -> None:
    """Refuse what joblib does not take for a number of jobs.

    Parameters
    ----------
    owner : str
        Whose parameter it is, for the message.
    n_jobs : object

    Raises
    ------
    InvalidTypeError, InvalidParameterError

    Examples
    --------
    >>> from skal.validation import check_n_jobs
    >>> check_n_jobs("MyStrategy", -1)
    >>> check_n_jobs("MyStrategy", 0)
    Traceback (most recent call last):
        ...
    skal.exceptions.InvalidParameterError: The 'n_jobs' parameter of MyStrategy must be None, an integer >= 1, or ...
    """
    expected = "None, an integer >= 1, or a negative one (-1 is all processors)"
    message = parameter_message(owner, "n_jobs", expected, n_jobs, "Use 1 to stay in this process.")
    if n_jobs is None:
        return
    if isinstance(n_jobs, bool) or not isinstance(n_jobs, numbers.Integral):
        raise InvalidTypeError(message)
    if n_jobs == 0:
        raise InvalidParameterError(message)


def check_seed(owner: str, random_state: Any) -> None:
    """Refuse what :func:`make_generator` cannot take.

    Parameters
    ----------
    owner : str
        Whose parameter it is, for the message.
    random_state : object

    Raises
    ------
    InvalidTypeError, InvalidParameterError

    Examples
    --------
    >>> from skal.validation import check_seed
    >>> check_seed("MyStrategy", 0)
    >>> check_seed("MyStrategy", "zero")
    Traceback (most recent call last):
        ...
    skal.exceptions.InvalidTypeError: The 'random_state' parameter of MyStrategy must be None, an integer >= 0, ...
    """
    if random_state is None or isinstance(random_state, (np.random.Generator, np.random.RandomState)):
        return
    expected = "None, an integer >= 0, a numpy Generator or a numpy RandomState"
    message = parameter_message(owner, "random_state", expected, random_state, "Pass an integer for repeatable runs.")
    if isinstance(random_state, bool) or not isinstance(random_state, numbers.Integral):
        raise InvalidTypeError(message)
    if random_state < 0:
        raise InvalidParameterError(message)


def make_generator(owner: str, random_state: Any) -> np.random.Generator:
    """A generator of its own for one query.

    ``None`` draws fresh entropy and an integer seeds; a ``RandomState`` or ``Generator`` is advanced, as in
    scikit-learn, so that repeated queries differ. numpy's global state is never touched, not even by ``None``.

    Parameters
    ----------
    owner : str
        Whose parameter it is, for messages.
    random_state : None, int, Generator or RandomState

    Returns
    -------
    numpy Generator

    Examples
    --------
    >>> from skal.validation import make_generator
    >>> int(make_generator("MyStrategy", 0).integers(100)) == int(make_generator("MyStrategy", 0).integers(100))
    True
    """
    check_seed(owner, random_state)
    if random_state is None:
        return np.random.default_rng()
    if isinstance(random_state, np.random.Generator):
        return random_state
    if isinstance(random_state, np.random.RandomState):
        return np.random.default_rng(random_state.randint(0, 2**32, size=4, dtype=np.uint64))
    return np.random.default_rng(int(random_state))
