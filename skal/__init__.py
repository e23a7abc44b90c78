# SPDX-License-Identifier: BSD-3-Clause
"""skal: deep active learning for scikit-learn users.

The house, room by room:

- ``skal.strategies``: the query strategies, each as a class and as a function in modAL's form.
- ``skal.learners``: ``ActiveLearner`` and ``LinearizedLearner``, which a strategy is plugged into.
- ``skal.loop``: ``ActiveLearningClassifier`` and ``ActiveLearningRegressor``, the whole loop as a scikit-learn
  estimator, and labelling sessions.
- ``skal.labelling``: from files to labels and a model, by a page in the browser or a cell in a notebook.
- ``skal.models``: fitted models to take away, saved in a folder and loaded safely.
- ``skal.stopping``: when to stop labelling, how good the model is, and how good it would be with more labels.
- ``skal.audit``: how good a model is, with a guarantee, and which samples it may label.
- ``skal.tangent``: per-sample gradients, tangent kernels and sketches of any torch module.
- ``skal.semi_supervised``: learning from unlabelled samples too (FixMatch, DARP).
- ``skal.loss_prediction``: a network that learns to predict its own loss, for ``LearningLoss``.
- ``skal.diagnostics``: what the papers' theory is about, as numbers.
- ``skal.bench``: strategies compared over paired seeds, with significance tests and reports.
- ``skal.nets``, ``skal.datasets``: small networks and data sets to try things on.
- ``skal.callbacks``: skorch callbacks for training from round to round.
- ``skal.base``, ``skal.context``, ``skal.validation``, ``skal.checks``: what a strategy of your own is made of, what it
  sees, how it checks its parameters, and how it is tested.
- ``skal.features``: features of samples, and the cache that keeps them.
- ``skal.config``: settings that say how to compute: batch size, memory, workers, progress bars.
- ``skal.exceptions``: all errors and warnings.
- ``skal.compat``: the bridge to modAL.
- ``skal.cli``: the commands ``skal demo``, ``skal bench``, ``skal report``, ``skal label``, ``skal predict``,
  ``skal export``, ``skal import``, ``skal audit``, ``skal doctor``.
- ``skal._core``, ``skal._cost``, ``skal._doctor``, ``skal._files``, ``skal._lookahead``, ``skal._sklearn_errors``,
  ``skal._vocabulary``: what the rooms above stand on. Not for import.

``__version__`` is the release that is installed.

>>> import skal
>>> tuple(map(int, skal.__version__.split(".")[:2])) >= (0, 1)
True
"""

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

from skal._version import __version__
from skal._vocabulary import EXPORTED as _EXPORTED
from skal.compat._on_import import repair_on_import as _repair_on_import

if TYPE_CHECKING:
    from skal.config import config_context, get_config, set_config
    from skal.labelling import label
    from skal.learners import ActiveLearner, LinearizedLearner
    from skal.loop import ActiveLearningClassifier, ActiveLearningRegressor
    from skal.models import load_model
    from skal.strategies import *  # noqa: F403

__all__ = [
    "ActiveLearner",
    "ActiveLearningClassifier",
    "ActiveLearningRegressor",
    "LinearizedLearner",
    "__version__",
    "config_context",
    "get_config",
    "label",
    "load_model",
    "set_config",
]
__all__ += _EXPORTED

# Where the names are. They are imported when they are first used: importing skal loads neither torch nor pandas.
_HOMES = dict.fromkeys(_EXPORTED, "skal.strategies") | {
    "ActiveLearner": "skal.learners",
    "LinearizedLearner": "skal.learners",
    "ActiveLearningClassifier": "skal.loop",
    "ActiveLearningRegressor": "skal.loop",
    "load_model": "skal.models",
    "label": "skal.labelling",
    "config_context": "skal.config",
    "get_config": "skal.config",
    "set_config": "skal.config",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
        return value
    if name in _rooms():
        return importlib.import_module(f"skal.{name}")
    raise AttributeError(f"module 'skal' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_rooms()})


def _rooms() -> set[str]:
    return {found.name for found in pkgutil.iter_modules(__path__) if not found.name.startswith("_")}  # noqa: F405


_repair_on_import()
