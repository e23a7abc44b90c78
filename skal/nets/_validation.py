"""Checks of constructor arguments, shared by all networks."""

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

from torch import nn

__all__ = ["check_dropout", "check_int", "check_widths", "dropout_layer"]


def check_int(owner: str, name: str, value: Any, minimum: int = 1, hint: str = "") -> int:
    """Return ``value`` as an int, or raise ValueError if it is no integer of at least ``minimum``."""
    # bool is an Integral, yet n_classes=True is always a slip.
    if isinstance(value, bool) or not isinstance(value, Integral) or value < minimum:
        raise ValueError(
            f"The {name} parameter of {owner} must be an integer of at least {minimum}. "
            f"Got {value!r} instead. {hint or f'Pass for example {name}={max(minimum, 10)}.'}"
        )
    return int(value)


def check_dropout(owner: str, value: Any) -> float:
    """Return the dropout rate as a float, or raise ValueError if it is outside [0, 1)."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < 1:
        raise ValueError(
            f"The dropout parameter of {owner} must be a number in [0, 1). Got {value!r} instead. "
            f"Pass 0 for no dropout, or for example dropout=0.5."
        )
    return float(value)


def check_widths(owner: str, name: str, value: Any) -> tuple[int, ...]:
    """Return layer widths as a tuple of ints; a single integer stands for one layer."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        value = (value,)
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ValueError(
            f"The {name} parameter of {owner} must be an integer or a sequence of integers. "
            f"Got {value!r} instead. Pass for example {name}=(128, 128)."
        )
    hint = f"Every entry of {name} is the width of a layer, for example {name}=(128, 128)."
    return tuple(check_int(owner, name, width, hint=hint) for width in value)


def dropout_layer(rate: float) -> nn.Module:
    """Dropout, or the identity for rate 0, so that a search for dropout layers finds none."""
    return nn.Dropout(rate) if rate else nn.Identity()
