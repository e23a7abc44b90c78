# SPDX-License-Identifier: BSD-3-Clause
"""Checks of parameters, for all packages and for strategies of your own.

Each raises a :class:`skal.exceptions.SkalError` that names the parameter, what was expected, what came, and what to do.
A class declares the constraints of its parameters once, and its base class :class:`Constrained` checks them::

    constraints = {"gamma": Real(0), "batch": Choice("top", "greedy"), "n_features": Integer(1, optional=True)}
"""

from __future__ import annotations

import numbers
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from skal.exceptions import InvalidParameterError, InvalidTypeError, NonFiniteError

__all__ = [
    "Choice",
    "Constrained",
    "Constraint",
    "Features",
    "Integer",
    "Real",
    "Seed",
    "Target",
    "as_finite_array",
    "as_list",
    "as_path",
    "check_known",
    "check_n_jobs",
    "is_auto",
    "make_generator",
    "parse_memory",
    "target_weights",
]

MOST = 10**12  # of anything that is counted, unless a parameter has a limit of its own
MOST_JOBS = 4096  # joblib would start all of them
MOST_PIXELS = 4096  # a side of a picture
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def _is_integer(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _error(right_type: bool) -> type[InvalidParameterError] | type[InvalidTypeError]:
    return InvalidParameterError if right_type else InvalidTypeError


class Constraint(ABC):
    """The values that a parameter may have, declared once in the ``constraints`` of a class.

    Examples
    --------
    >>> from skal.validation import Constraint, Integer
    >>> isinstance(Integer(1), Constraint)
    True
    """

    @abstractmethod
    def check(self, owner: str, name: str, value: Any) -> None:
        """Refuse a value that the parameter may not have.

        Parameters
        ----------
        owner : str
            The class that has the parameter.
        name : str
            The parameter's name.
        value : object
            What the user passed.
        """


class Constrained:
    """A class that declares once what its parameters may be; those of its base classes count too.

    Attributes
    ----------
    constraints : dict from str to Constraint
        By the parameter's name.

    Examples
    --------
    >>> from skal.validation import Constrained, Integer
    >>> class Neighbours(Constrained):
    ...     constraints = {"k": Integer(1)}
    ...
    ...     def __init__(self, k):
    ...         self.k = k
    >>> Neighbours(0).check_params()
    Traceback (most recent call last):
        ...
    skal.exceptions.InvalidParameterError: The 'k' parameter of Neighbours must be an integer >= 1. Got 0 instead. ...
    """

    constraints: ClassVar[dict[str, Constraint]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        declared = (base.__dict__.get("constraints", {}) for base in reversed(cls.__mro__))
        cls.constraints = {name: constraint for own in declared for name, constraint in own.items()}

    def check_params(self) -> None:
        """Refuse parameters that are not what was declared; a subclass adds what concerns several at once."""
        for name, constraint in self.constraints.items():
            if hasattr(self, name):
                constraint.check(type(self).__name__, name, getattr(self, name))


def _or_words(remedy: str, words: tuple[str, ...]) -> str:
    return ", or ".join([remedy, *map(repr, words)]) + "."


@dataclass(frozen=True)
class Integer(Constraint):
    """An integer from ``minimum`` to ``maximum``; None if ``optional``, and the given words.

    Parameters
    ----------
    minimum, maximum : int
        The bounds, both allowed. More than 10¹² is refused at once, unless maximum is None: nobody has as many samples,
        rounds or passes, and a count would run for ever.
    optional : bool, default=False
        Whether None is allowed.
    words : tuple of str
        Strings that are allowed too, such as ``"auto"``.
    remedy : str, optional
        The end of the message: what to do.

    Examples
    --------
    >>> from skal.validation import Integer
    >>> Integer(1, words=("auto",)).check("MyStrategy", "k", 0)
    Traceback (most recent call last):
        ...
    skal.exceptions.InvalidParameterError: The 'k' parameter of MyStrategy must be an integer >= 1. Got 0 instead. ...
    """

    minimum: int = 1
    maximum: int | None = MOST
    optional: bool = False
    words: tuple[str, ...] = ()
    remedy: str = ""

    def check(self, owner: str, name: str, value: Any) -> None:
        """Refuse anything else."""
        is_integer = _is_integer(value)
        too_large = is_integer and self.maximum is not None and value > self.maximum
        if is_integer and value >= self.minimum and not too_large:
            return
        if (self.optional and value is None) or (isinstance(value, str) and value in self.words):
            return
        expected = f"an integer >= {self.minimum}{' or None' if self.optional else ''}"
        remedy = self.remedy or f"Pass an integer of at least {self.minimum}."
        if too_large:
            expected = f"an integer from {self.minimum} to {self.maximum:,}"
            remedy = f"Pass an integer of at most {self.maximum:,}."
        elif self.words and not self.remedy:
            remedy = _or_words("Pass an integer within these bounds", self.words)
        raise _error(is_integer).for_parameter(owner, name, expected, value, remedy)


@dataclass(frozen=True)
class Real(Constraint):
    """A number from ``minimum`` to ``maximum``, never NaN; None if ``optional``, and the given words.

    Parameters
    ----------
    minimum, maximum : float
        The bounds, both allowed.
    optional : bool, default=False
        Whether None is allowed.
    words : tuple of str
        Strings that are allowed too, such as ``"auto"``.
    below_maximum : bool, default=False
        Whether the maximum itself is refused too.
    remedy : str, optional
        The end of the message: what to do.

    Examples
    --------
    >>> from skal.validation import Real
    >>> Real(0, 1).check("MyStrategy", "beta", 0.5)
    """

    minimum: float = -np.inf
    maximum: float = np.inf
    optional: bool = False
    words: tuple[str, ...] = ()
    below_maximum: bool = False
    remedy: str = ""

    def check(self, owner: str, name: str, value: Any) -> None:
        """Refuse anything else."""
        if (self.optional and value is None) or (isinstance(value, str) and value in self.words):
            return
        is_real = isinstance(value, numbers.Real) and not isinstance(value, bool)
        below = is_real and (value < self.maximum if self.below_maximum else value <= self.maximum)
        if below and value >= self.minimum:
            return
        end = f"{')' if self.below_maximum else ']'}{' or None' if self.optional else ''}"
        remedy = self.remedy or _or_words("Pass a number within these bounds", self.words)
        expected = f"a number in [{self.minimum:g}, {self.maximum:g}{end}"
        raise _error(is_real).for_parameter(owner, name, expected, value, remedy)


class Choice(Constraint):
    """One of the given values.

    Parameters
    ----------
    *values
        What is allowed: True is not 1, and numpy's True is Python's.
    remedy : str, optional
        The end of the message: what to do.

    Examples
    --------
    >>> from skal.validation import Choice
    >>> Choice("top", "greedy").check("MyStrategy", "batch", "top")
    """

    def __init__(self, *values: Any, remedy: str = "") -> None:
        self.values, self.remedy = values, remedy

    def check(self, owner: str, name: str, value: Any) -> None:
        """Refuse anything else."""
        value = value.item() if isinstance(value, np.generic) else value
        for choice in self.values:
            if value is choice or (type(value) is type(choice) and value == choice):
                return
        expected = "one of " + ", ".join(repr(choice) for choice in self.values)
        remedy = self.remedy or "Use one of the listed values."
        raise InvalidParameterError.for_parameter(owner, name, expected, value, remedy)


class Seed(Constraint):
    """None, an integer, or a generator of numpy: what ``random_state`` may be.

    Examples
    --------
    >>> from skal.validation import Seed
    >>> Seed().check("MyStrategy", "random_state", 0)
    """

    def check(self, owner: str, name: str, value: Any) -> None:
        """Refuse anything else."""
        is_integer = _is_integer(value)
        known = value is None or isinstance(value, (np.random.Generator, np.random.RandomState))
        if not (known or (is_integer and value >= 0)):
            expected = "None, an integer >= 0, a numpy Generator or a numpy RandomState"
            raise _error(is_integer).for_parameter(owner, name, expected, value, "Pass an integer for repeatable runs.")


class Features(Constraint):
    """A value that ``QueryContext.features`` takes: a name, a fitted transformer, a function of X, or an ``nn.Module``.

    Examples
    --------
    >>> from skal.validation import Features
    >>> Features().check("MyStrategy", "features", "last_layer")
    """

    names = ("auto", "input", "prepared", "last_layer", "tangent")

    def check(self, owner: str, name: str, value: Any) -> None:
        """Refuse what cannot give features."""
        known = value in self.names if isinstance(value, str) else not isinstance(value, type)
        if not known or not (isinstance(value, str) or callable(value) or hasattr(value, "transform")):
            names = ", ".join(map(repr, self.names))
            expected = f"one of {names}, a fitted transformer, a function of X or an nn.Module"
            remedy = "Pass for example a fitted sklearn.decomposition.PCA, or a frozen backbone."
            raise InvalidTypeError.for_parameter(owner, name, expected, value, remedy)


class Target(Constraint):
    """A value that ``QueryContext.aim`` takes: None, samples, or a weight for each sample of the pool.

    Examples
    --------
    >>> from skal.validation import Target
    >>> Target().check("MyStrategy", "target", [0.0, 1.0, 0.5])
    """

    def check(self, owner: str, name: str, value: Any) -> None:
        """Refuse what is no set of samples, and weights that weigh nothing."""
        if isinstance(value, (str, bytes, type, numbers.Number)):
            expected = "None, samples like those of the pool, or a weight for each sample of the pool"
            remedy = "Pass for example the samples that the model will be used on."
            raise InvalidTypeError.for_parameter(owner, name, expected, value, remedy)
        weights = target_weights(value)
        if weights is None:
            return
        remedy = "Pass one number for each sample of the pool, 0 for those that do not matter."
        if not np.isfinite(weights).all():
            raise NonFiniteError.for_parameter(owner, name, "finite weights", weights, remedy)
        if (weights < 0).any() or not weights.any():
            expected = "weights >= 0, at least one of them larger"
            raise InvalidParameterError.for_parameter(owner, name, expected, weights, remedy)


def target_weights(target: Any) -> np.ndarray | None:
    """Weights of the pool's samples, from a flat array of numbers; None for anything else, which are samples.

    Parameters
    ----------
    target : object
        The parameter of a strategy.

    Returns
    -------
    (n,) float64 array or None
        Not checked.

    Examples
    --------
    >>> from skal.validation import target_weights
    >>> target_weights([True, False])
    array([1., 0.])
    >>> target_weights([[1.0, 2.0]]) is None
    True
    """
    if isinstance(target, list) and all(isinstance(value, numbers.Real) for value in target):
        target = np.asarray(target)
    shape, dtype = getattr(target, "shape", ()), str(getattr(target, "dtype", ""))
    if len(shape) != 1 or not re.match(r"(torch\.)?(float|bfloat|u?int|bool)", dtype.lower()):
        return None
    return np.asarray(target.detach().cpu() if hasattr(target, "detach") else target, dtype=np.float64)


def is_auto(value: Any) -> bool:
    """True if a parameter is left at ``"auto"``; an array, which compares entry by entry, is not.

    Parameters
    ----------
    value : object
        A parameter of any type.

    Returns
    -------
    bool
        True for the string ``"auto"`` alone.

    Examples
    --------
    >>> from skal.validation import is_auto
    >>> is_auto("auto"), is_auto(np.array(["auto", "auto"])), is_auto(3)
    (True, False, False)
    """
    return isinstance(value, str) and value == "auto"


def check_known(what: str, given: Iterable[str], known: Iterable[str], *, remedy: str) -> None:
    """Refuse names that nobody knows.

    Parameters
    ----------
    what : str
        What they are the names of.
    given, known : iterables of str
        The names that the user passed, and the allowed ones.
    remedy : str
        What to do instead.

    Examples
    --------
    >>> from skal.validation import check_known
    >>> check_known("parameters of margin", ["batchsize"], ["batch_size", "subset"], remedy="See Margin.")
    Traceback (most recent call last):
        ...
    skal.exceptions.InvalidParameterError: The parameters of margin must be among batch_size, subset. Got 'batchsize'...
    """
    known = list(known)
    if unknown := sorted(set(given) - set(known)):
        raise InvalidParameterError(
            f"The {what} must be among {', '.join(known)}. Got {', '.join(map(repr, unknown))} instead. {remedy}"
        )


def as_finite_array(owner: str, name: str, value: Any, shape: Sequence[int | str], *, remedy: str = "") -> np.ndarray:
    """The value as a float64 array of this shape, without NaN or infinity; anything else is refused.

    Parameters
    ----------
    owner : str
        The class or function that has the parameter.
    name : str
        The parameter's name.
    value : array-like
        What the user passed.
    shape : sequence of int and str
        The length of each axis; a letter is any length above 0, and the same letter the same length. A vector is taken
        as one column where a matrix is expected.
    remedy : str, optional
        The end of the message: what to do.

    Returns
    -------
    float64 array
        A copy only where the type or the shape had to change.

    Examples
    --------
    >>> from skal.validation import as_finite_array
    >>> as_finite_array("alignment", "K", [[2, 1]], ("n", "n"))
    Traceback (most recent call last):
        ...
    skal.exceptions.InvalidParameterError: The 'K' parameter of alignment must be finite numbers of shape (n, n). ...
    """
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        got = value
    else:
        if array.ndim == 1 and len(shape) == 2:
            array = array[:, None]
        lengths = dict(zip(shape, array.shape, strict=False))  # a letter that occurs twice keeps the later length
        wanted = tuple(lengths.get(axis) if isinstance(axis, str) else axis for axis in shape)
        fits = array.shape == wanted and array.size > 0
        if fits and np.isfinite(array).all():
            return array
        got = "NaN or infinity" if fits else f"shape {array.shape}"
    expected = f"finite numbers of shape ({', '.join(map(str, shape))})"
    raise InvalidParameterError.for_parameter(owner, name, expected, got, remedy or "Pass an array of this shape.")


def as_list(owner: str, name: str, value: Any, *, expected: str, remedy: str) -> list[Any]:
    """The entries of a sequence, an array or an iterator; a text, or what has no entries, is refused.

    Parameters
    ----------
    owner : str
        The class or function that has the parameter.
    name : str
        The parameter's name.
    value : object
        What the user passed.
    expected : str
        What the value should be, in words.
    remedy : str
        The end of the message: what to do.

    Returns
    -------
    list
        The entries in their order; of an array Python's own numbers and strings.

    Examples
    --------
    >>> from skal.validation import as_list
    >>> as_list("label", "ids", np.array([3, 4]), expected="a list of ids", remedy="Pass one for each sample.")
    [3, 4]
    """
    entries = value.tolist() if isinstance(value, np.ndarray) else value
    if isinstance(entries, (str, bytes, type)) or not isinstance(entries, Iterable):
        raise InvalidTypeError.for_parameter(owner, name, expected, value, remedy)
    return list(entries)


def as_path(owner: str, name: str, value: Any) -> Path:
    """The path of a file that can be written: its folder is there, and it is no folder itself.

    Parameters
    ----------
    owner : str
        The class or function that has the parameter.
    name : str
        The parameter's name.
    value : str or path
        What the user passed.

    Returns
    -------
    pathlib.Path
        As it was given, not made absolute.

    Examples
    --------
    >>> from skal.validation import as_path
    >>> as_path("to_csv", "path", "labels.csv").name
    'labels.csv'
    """
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise InvalidTypeError.for_parameter(owner, name, "the path of a file", value, "Pass a str or a pathlib.Path.")
    path = Path(value)
    if path.is_dir() or not path.absolute().parent.is_dir():
        expected, remedy = "the path of a file in a folder that is there", "Name a file, and make its folder first."
        raise InvalidParameterError.for_parameter(owner, name, expected, str(path), remedy)
    return path


def parse_memory(owner: str, name: str, value: Any) -> int | None:
    """Turn a memory bound such as ``"2GB"``, ``"512MiB"`` or a number of bytes into bytes.

    Parameters
    ----------
    owner : str
        The class or function that has the parameter.
    name : str
        The parameter's name.
    value : int, str or None
        What the user passed. ``GB`` is 10⁹ bytes and ``GiB`` 2³⁰; None is no bound.

    Returns
    -------
    int or None
        Bytes; None where there is no bound.

    Examples
    --------
    >>> from skal.validation import parse_memory
    >>> parse_memory("NPC", "max_memory", "1.5GB")
    1500000000
    """
    if value is None:
        return None
    n_bytes = int(value) if _is_integer(value) else 0
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([a-zA-Z]*)\s*", value)
        n_bytes = int(float(match[1]) * _UNITS.get(match[2].upper(), 0)) if match else 0
    if n_bytes <= 0:
        expected = "a positive number of bytes or a string such as '2GB'"
        error = _error(_is_integer(value) or isinstance(value, str))
        raise error.for_parameter(owner, name, expected, value, "Write for example '512MB'.")
    return n_bytes


def check_n_jobs(owner: str, n_jobs: Any) -> None:
    """Refuse what joblib does not take for a number of jobs.

    Parameters
    ----------
    owner : str
        The class or function that has the parameter.
    n_jobs : int or None
        What the user passed.

    Examples
    --------
    >>> from skal.validation import check_n_jobs
    >>> check_n_jobs("MyStrategy", 0)
    Traceback (most recent call last):
        ...
    skal.exceptions.InvalidParameterError: The 'n_jobs' parameter of MyStrategy must be None, an integer >= 1, or ...
    """
    is_known = n_jobs is None or (_is_integer(n_jobs) and n_jobs != 0)
    if not is_known or (n_jobs is not None and abs(n_jobs) > MOST_JOBS):
        expected = "None, an integer >= 1, or a negative one (-1 is all processors)"
        remedy = "Use 1 to stay in this process."
        if is_known:
            expected = f"None, an integer from 1 to {MOST_JOBS:,}, or a negative one (-1 is all processors)"
            remedy = f"Use -1 for all processors, or an integer of at most {MOST_JOBS:,}."
        raise _error(_is_integer(n_jobs)).for_parameter(owner, "n_jobs", expected, n_jobs, remedy)


def make_generator(owner: str, random_state: Any) -> np.random.Generator:
    """A generator of its own for one query.

    ``None`` draws fresh entropy and an integer seeds; a ``RandomState`` or ``Generator`` is advanced, as in
    scikit-learn, so that repeated queries differ. numpy's global state is never touched, not even by ``None``.

    Parameters
    ----------
    owner : str
        The class or function that has the parameter.
    random_state : None, int, Generator or RandomState
        Where its draws come from.

    Returns
    -------
    numpy.random.Generator
        The generator that was passed, or a new one.

    Examples
    --------
    >>> from skal.validation import make_generator
    >>> int(make_generator("MyStrategy", 0).integers(100)) == int(make_generator("MyStrategy", 0).integers(100))
    True
    """
    Seed().check(owner, "random_state", random_state)
    if isinstance(random_state, np.random.RandomState):
        return np.random.default_rng(random_state.randint(0, 2**32, size=4, dtype=np.uint64))
    return np.random.default_rng(random_state)  # a Generator comes back as it is
