"""The errors that skal raises on purpose.

Every one is a :class:`SkalError` and at the same time the built-in or scikit-learn error that fits, so that
``except ValueError`` keeps working. A message names the parameter, what was expected, what came, and what to do.
"""

from __future__ import annotations

from sklearn.exceptions import ConvergenceWarning as _SklearnConvergenceWarning
from sklearn.exceptions import NotFittedError as _SklearnNotFittedError

__all__ = [
    "AdjustedInputWarning",
    "BudgetWarning",
    "CheckpointError",
    "ConvergenceWarning",
    "CrossEntropyWarning",
    "EmptyPoolError",
    "InvalidParameterError",
    "InvalidQueryError",
    "InvalidTypeError",
    "NoLabelledDataError",
    "NoNetworkError",
    "NoUnlabelledDataWarning",
    "NonFiniteError",
    "NotFittedError",
    "OutputError",
    "RankDeficiencyWarning",
    "ShardError",
    "SkalError",
    "SkalWarning",
    "TwoLevelWarning",
    "UnsupportedLayerError",
    "WorkerError",
]


class SkalError(Exception):
    """Base of every error that skal raises on purpose.

    Examples
    --------
    >>> from skal.exceptions import EmptyPoolError, SkalError
    >>> issubclass(EmptyPoolError, SkalError) and issubclass(EmptyPoolError, ValueError)
    True
    """


class InvalidParameterError(SkalError, ValueError):
    """A parameter has a value outside what is allowed."""


class InvalidTypeError(SkalError, TypeError):
    """A parameter, or the data, has a type that cannot be used."""


class EmptyPoolError(SkalError, ValueError):
    """There is nothing to choose from."""


class NonFiniteError(SkalError, ValueError):
    """NaN or infinity in the data or in the network's outputs."""


class NotFittedError(SkalError, _SklearnNotFittedError):
    """The estimator has not been fitted (or, for a net, initialised) yet."""


class NoNetworkError(SkalError, TypeError):
    """A torch module is needed and the estimator has none."""


class OutputError(SkalError, ValueError):
    """The network's outputs are not of the kind that its criterion expects."""


class NoLabelledDataError(SkalError, ValueError):
    """The strategy needs labelled data and the learner has none."""


class InvalidQueryError(SkalError, ValueError):
    """A query strategy answered with indices that cannot be used."""


class CheckpointError(SkalError, ValueError):
    """A checkpoint is damaged, or belongs to other data or another configuration."""


class UnsupportedLayerError(SkalError, TypeError):
    """The network has a part that the chosen gradient backend cannot handle."""


class ShardError(SkalError, RuntimeError):
    """A part of the pool could not be read, by an error that cannot be raised again with the rows in its message."""


class WorkerError(SkalError, RuntimeError):
    """The workers that share the passes over a pool cannot do their work."""


class SkalWarning(UserWarning):
    """Base of the warnings that skal gives by name."""


class CrossEntropyWarning(SkalWarning):
    """A method for squared loss meets a network that was trained with another, and does what comes nearest to it."""


class RankDeficiencyWarning(SkalWarning):
    """A kernel has too low a rank for the question: all answers would be zero up to rounding."""


class AdjustedInputWarning(SkalWarning):
    """What was given could not be used as it is, and was changed."""


class ConvergenceWarning(SkalWarning, _SklearnConvergenceWarning):
    """An iteration ended before it reached its tolerance."""


class NoUnlabelledDataWarning(SkalWarning):
    """A semi-supervised classifier was given labelled samples only."""


class BudgetWarning(SkalWarning):
    """More labels were asked for than there are samples."""


class TwoLevelWarning(SkalWarning):
    """A pool's embeddings do not fit into memory: the choice is made in two levels, and may differ a little."""


def parameter_message(owner: str, name: str, expected: str, got: object, remedy: str) -> str:
    """Put together what every parameter error says.

    Examples
    --------
    >>> parameter_message("Entropy", "subset", "an integer > 0", 0, "Leave it None to score the whole pool.")
    "The 'subset' parameter of Entropy must be an integer > 0. Got 0 instead. Leave it None to score the whole pool."
    """
    return f"The {name!r} parameter of {owner} must be {expected}. Got {shorten(got)} instead. {remedy}"


def shorten(value: object, limit: int = 80) -> str:
    """The repr of a value, cut so that a message stays readable."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
