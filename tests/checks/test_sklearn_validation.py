"""A strategy may validate its parameters with scikit-learn's own machinery."""

from numbers import Integral, Real
from typing import ClassVar

import numpy as np
import pytest
from sklearn.utils._param_validation import Interval, StrOptions

from skal.base import ScoreStrategy
from skal.checks import CheckFailure, check_invalid_parameters, check_strategy, make_learner


class Tempered(ScoreStrategy):
    """Written by somebody who knows scikit-learn: constraints are declared, and checked when used."""

    needs_network = False
    _parameter_constraints: ClassVar = {
        "temperature": [Interval(Real, 0, None, closed="neither")],
        "measure": [StrOptions({"entropy", "gini"})],
        "n_terms": [Interval(Integral, 1, None, closed="left")],
    }

    def __init__(self, *, temperature=1.0, measure="entropy", n_terms=256):
        self.temperature = temperature
        self.measure = measure
        self.n_terms = n_terms

    def check_params(self):
        self._validate_params()

    def _score(self, context):
        proba = context.predict_proba() ** (1 / self.temperature)
        proba /= proba.sum(axis=1, keepdims=True)
        if self.measure == "gini":
            return 1 - (proba**2).sum(axis=1)
        return -(proba * np.log(proba + 1e-12)).sum(axis=1)


@pytest.mark.parametrize("params", [{}, {"temperature": 2.0, "measure": "gini"}], ids=str)
def test_scikit_learns_errors_are_accepted(params):
    check_strategy(Tempered(**params))


def test_the_errors_are_scikit_learns():
    with pytest.raises(ValueError, match="The 'n_terms' parameter of Tempered must be an int"):
        Tempered(n_terms=0)(*make_learner(), 1)


def test_a_parameter_without_constraint_is_still_found():
    class Forgetful(Tempered):
        _parameter_constraints: ClassVar = {**Tempered._parameter_constraints, "measure": "no_validation"}

    with pytest.raises(CheckFailure, match=r"measure=.* must raise ValueError or TypeError"):
        check_invalid_parameters(Forgetful(), *make_learner())
