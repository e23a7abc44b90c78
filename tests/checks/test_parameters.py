"""Parameters: names, checks, pickling, seeds."""

import numpy as np
import pytest

from skal.checks import CheckFailure, check_init, check_invalid_parameters, check_parameters, check_pickle, check_seed
from skal.exceptions import InvalidParameterError

from .strategies import Base


class Nameless(Base):
    def __repr__(self):
        return "strategy"


class HidesParameter(Base):
    def set_params(self, **params):
        super().set_params(**params)


class ChecksInInit(Base):
    def __init__(self, *, power=2):
        if not isinstance(power, int):
            raise TypeError("power")
        self.power = power


class WorksInInit(Base):
    def __init__(self, *, power=2):
        self.power = power
        self.cache = {}


class Signed(Base):
    def __init__(self, *, sign=1, power=2):
        self.sign = sign
        self.power = power

    def _score(self, context):
        return super()._score(context) * (-1 if self.sign == -1 else 1)


class LosesSign(Signed):
    def __getstate__(self):
        return super().__getstate__() | {"sign": -1}


class BareError(Base):
    def check_params(self):
        if not isinstance(self.power, int):
            raise ValueError("wrong power")


class GlobalDraws(Base):
    def _score(self, context):
        return np.random.rand(context.n_pool)


BROKEN = [
    (check_parameters, Nameless, "must name the class"),
    (check_parameters, HidesParameter, "must return the strategy itself"),
    (check_init, ChecksInInit, "must only assign"),
    (check_init, WorksInInit, "nothing but its parameters"),
    (check_invalid_parameters, Signed, "sign=.* must raise ValueError or TypeError"),
    (check_invalid_parameters, BareError, "must raise a SkalError"),
    (check_pickle, LosesSign, "Pickling must give the same batch"),
    (check_seed, GlobalDraws, "from random_state alone"),
]


@pytest.mark.parametrize(("check", "strategy", "message"), BROKEN)
def test_check_catches(check, strategy, message, learner, X_pool):
    # a strategy that breaks down, rather than answering wrongly, shows its own error
    with pytest.raises(Exception, match=message):
        check(strategy(), learner, X_pool)


@pytest.mark.parametrize(
    ("message", "missing"),
    [
        ("power is wrong", "what it got"),
        ("power must be larger. Got 0.", "what to do"),
        ("It must be larger. Got 0 instead. Raise it.", "must name"),
    ],
)
def test_error_messages_must_be_complete(message, missing, learner, X_pool):
    class Terse(Base):
        def check_params(self):
            if self.power != 2:
                raise InvalidParameterError(message)

    with pytest.raises(CheckFailure, match=missing):
        check_invalid_parameters(Terse(), learner, X_pool)
