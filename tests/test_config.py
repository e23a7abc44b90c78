"""Settings: defaults, checks, threads, nesting."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import skal
from skal.exceptions import InvalidParameterError, InvalidTypeError
from skal.strategies import CoreSet, Margin

DEFAULTS = {"batch_size": 256, "max_memory": None, "n_jobs": None, "progress": False}


@pytest.fixture(autouse=True)
def _settings_as_before():
    with skal.config_context():
        yield


def test_the_defaults_and_a_copy_of_them():
    assert skal.get_config() == DEFAULTS
    skal.get_config()["batch_size"] = 3
    assert skal.get_config() == DEFAULTS


def test_what_is_not_named_stays_as_it_is():
    skal.set_config(batch_size=7, max_memory="2MB")
    skal.set_config(n_jobs=2)
    assert skal.get_config() == {"batch_size": 7, "max_memory": "2MB", "n_jobs": 2, "progress": False}
    skal.set_config(max_memory=None, n_jobs=None)  # None is a value, too
    assert skal.get_config() == DEFAULTS | {"batch_size": 7}


def test_contexts_are_nested_and_end_with_an_exception():
    with skal.config_context(batch_size=3):
        with skal.config_context(max_memory="1MB"):
            assert skal.get_config() == DEFAULTS | {"batch_size": 3, "max_memory": "1MB"}
        with pytest.raises(RuntimeError), skal.config_context(batch_size=5):
            raise RuntimeError
        assert skal.get_config() == DEFAULTS | {"batch_size": 3}
    assert skal.get_config() == DEFAULTS


def test_every_thread_has_its_own():
    with ThreadPoolExecutor(1) as executor, skal.config_context(batch_size=3):
        assert executor.submit(skal.get_config).result() == DEFAULTS
        executor.submit(skal.set_config, batch_size=9).result()
        assert skal.get_config()["batch_size"] == 3
        assert executor.submit(skal.get_config).result()["batch_size"] == 9


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"batch_size": 0}, InvalidParameterError),
        ({"batch_size": 2.5}, InvalidTypeError),
        ({"batch_size": None}, InvalidTypeError),
        ({"max_memory": "much"}, InvalidParameterError),
        ({"max_memory": 0}, InvalidParameterError),
        ({"max_memory": 1.5}, InvalidTypeError),
        ({"n_jobs": 0}, InvalidParameterError),
        ({"n_jobs": "all"}, InvalidTypeError),
        ({"progress": 1}, InvalidParameterError),
    ],
    ids=str,
)
def test_wrong_values_are_named_and_change_nothing(settings, error):
    name = next(iter(settings))
    for use in (skal.set_config, lambda **given: skal.config_context(**given).__enter__()):
        with pytest.raises(error, match=f"'{name}' parameter of set_config must be .* Got .* instead"):
            use(batch_size=5, **settings) if name != "batch_size" else use(**settings)
        assert skal.get_config() == DEFAULTS


def test_unknown_settings_are_refused():
    with pytest.raises(TypeError, match="batchsize"):
        skal.set_config(batchsize=3)


def test_queries_obey_them(learner, X_pool):
    sizes = []
    module = learner.estimator.module_
    handle = module.register_forward_hook(lambda layer, args, output: sizes.append(len(args[0])))
    with skal.config_context(batch_size=8):
        scores = Margin().scores(learner, X_pool)
    handle.remove()
    assert max(sizes) == 8
    np.testing.assert_allclose(scores, Margin().scores(learner, X_pool), rtol=1e-4, atol=1e-6)
    with skal.config_context(max_memory=400), pytest.raises(InvalidParameterError, match=r"max_memory.*Got 400"):
        CoreSet().select(learner, X_pool, 3)
