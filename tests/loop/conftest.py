"""A loop on the small flat data set."""

import numpy as np
import pytest
import torch

from skal import ActiveLearningClassifier
from skal.strategies import Margin


@pytest.fixture
def make_loop(make_net):
    """A loop with a small network: ``make_loop(strategy, net={...}, **params)``."""

    def make(strategy=None, *, net=None, **params):
        settings = {"n_initial": 9, "query_size": 4, "n_rounds": 3, "random_state": 0}
        return ActiveLearningClassifier(
            make_net(**({"max_epochs": 1} | (net or {}))), strategy or Margin(), **(settings | params)
        )

    return make


@pytest.fixture(scope="session")
def same_run():
    """Assert that two fitted loops are equal bit for bit, times excepted."""

    def check(first, second):
        assert first.queried_.tolist() == second.queried_.tolist()
        assert without_seconds(first) == without_seconds(second)
        assert first.classes_.tolist() == second.classes_.tolist()
        assert first.stop_reason_ == second.stop_reason_
        if hasattr(first.estimator_, "module_"):
            for part in ("module_", "optimizer_"):
                assert_same_tree(
                    getattr(first.estimator_, part).state_dict(), getattr(second.estimator_, part).state_dict()
                )

    return check


def without_seconds(loop):
    times = ("seconds_fit", "seconds_query", "elapsed")
    return [{name: value for name, value in row.items() if name not in times} for row in loop.history_]


def assert_same_tree(first, second):
    if isinstance(first, dict):
        assert list(first) == list(second)
        for key in first:
            assert_same_tree(first[key], second[key])
    elif isinstance(first, (list, tuple)):
        assert len(first) == len(second)
        for one, other in zip(first, second, strict=True):
            assert_same_tree(one, other)
    elif isinstance(first, torch.Tensor):
        assert first.dtype == second.dtype
        assert torch.equal(first, second)
    elif isinstance(first, np.ndarray):
        np.testing.assert_array_equal(first, second)
    else:
        assert first == second
