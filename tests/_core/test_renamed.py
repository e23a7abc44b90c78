"""The old name of a strategy's parameter works, warns and says what to use; the new one alone is documented."""

import warnings

import pytest
from sklearn.base import clone

import skal.strategies
from skal import ActiveLearningClassifier, Margin, margin
from skal.base import QueryStrategy
from skal.strategies import random_sampling

STRATEGIES = [each for name in skal.strategies.__all__ if isinstance(each := getattr(skal.strategies, name), type)]
MESSAGE = "'verbose' parameter of {} is now called 'progress', and will go in skal 0.3. Use progress=True"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_has_progress_and_takes_verbose_for_it(strategy):
    """``verbose`` is the loop's word for printed lines; a strategy shows a bar."""
    assert {"progress"} == {"progress", "verbose"} & set(strategy().get_params())
    with pytest.warns(FutureWarning, match=MESSAGE.format(strategy.__name__)) as caught:
        assert strategy(verbose=1).progress is True
    assert caught[0].filename == __file__  # the caller's line, not ours
    with pytest.warns(FutureWarning):
        assert strategy(verbose=0).progress is False


def test_old_name_in_set_params_and_in_a_search():
    with pytest.warns(FutureWarning, match=MESSAGE.format("Margin")):
        assert Margin().set_params(verbose=1, subset=5).get_params()["progress"] is True
    loop = ActiveLearningClassifier(None, Margin())
    with pytest.warns(FutureWarning, match=MESSAGE.format("Margin")):
        loop.set_params(query_strategy__verbose=2)
    assert clone(loop).query_strategy.progress is True


def test_old_name_in_functions_and_in_names():
    with pytest.warns(FutureWarning, match=MESSAGE.format("margin")):
        assert margin.make(verbose=1).progress is True
    with pytest.warns(FutureWarning, match=MESSAGE.format("random_sampling")):
        assert random_sampling.make(verbose=True).progress is True


def test_a_strategy_of_ones_own_may_have_verbose():
    class Own(QueryStrategy):
        def __init__(self, verbose=0):
            self.verbose = verbose

        def _select(self, context, n_instances):
            raise NotImplementedError

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Own(verbose=3).set_params(verbose=2).verbose == 2


def test_new_name_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Margin(progress=True).set_params(progress=False).progress is False
        assert repr(Margin(progress=True)) == "Margin(progress=True)"
