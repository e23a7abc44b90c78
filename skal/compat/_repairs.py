# SPDX-License-Identifier: BSD-3-Clause
"""What modAL 0.4.1 and 0.4.2.1 need in order to run on current releases of the packages below them.

A repair is a wrapper around one function of modAL. It is put in place only where a probe shows that the function, as
it is, fails, warns or answers wrongly. The guide's page on modAL has the table of them.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy.sparse as sp

from skal._core.containers import take_rows

# labels of columns and rows are numbers, but not positions: a function that mixes them up answers wrongly
_FRAME = pd.DataFrame({1: [0.0, 1.0], 0: [2.0, 3.0]}, index=[1, 0])
_LABELS = np.array([0, 1])


class Repair(NamedTuple):
    """A function of modAL, or one that modAL imports, and what is done about it.

    Attributes
    ----------
    name : str
        Of the function, or of the method; the releases have it in different places.
    works : callable
        Calls the function as it is. False, an error or a warning means that the wrapper is needed.
    wrap : callable
        From the function to the wrapper.
    """

    name: str
    works: Callable[[Any], bool]
    wrap: Callable[[Any], Any]


def make_repairs() -> bool:
    """Make the repairs that are needed and have not been made; whether there were any."""
    import modAL.batch  # modules that modAL itself does not load, with functions to repair
    import modAL.multilabel  # noqa: F401
    from modAL.models import ActiveLearner, BayesianOptimizer
    from modAL.models.base import BaseLearner

    made = [
        _import_expected_error(),
        _give_batch_a_bool(),
        *map(_say_bootstrap_init, (ActiveLearner, BayesianOptimizer)),
    ]
    for repair in REPAIRS:
        for place in (*_modal_modules(), BaseLearner, ActiveLearner):
            function = vars(place).get(repair.name)
            if function is None or hasattr(function, "_repaired_by_skal") or _runs(repair.works, function):
                continue
            wrapper = repair.wrap(function)
            wrapper._repaired_by_skal = True
            setattr(place, repair.name, wrapper)
            made.append(True)
    return any(made)


def _modal_modules() -> Iterator[ModuleType]:
    return (module for name, module in list(sys.modules.items()) if name.split(".")[0] == "modAL")


def _runs(works: Callable[[Any], bool], function: Any) -> bool:
    state = np.random.get_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return works(function)
        except Exception:
            return False
        finally:
            np.random.set_state(state)


class _PostponedAnnotations(SourceFileLoader):
    """Compiles a module as if it began with ``from __future__ import annotations``; leaves its bytecode file alone."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = compile(self.get_data(path), path, "exec", annotations.compiler_flag, dont_inherit=True)
        return code


def _import_expected_error() -> bool:
    """Import ``modAL.expected_error``: numpy has not had ``np.float``, one of its annotations, since 1.24."""
    import modAL

    name = "modAL.expected_error"
    if name in sys.modules:
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # it compares strings by identity
        try:
            importlib.import_module(name)
        except AttributeError:
            spec = importlib.util.find_spec(name)
            assert spec is not None
            assert spec.origin is not None
            spec.loader = loader = _PostponedAnnotations(name, spec.origin)
            module = importlib.util.module_from_spec(spec)
            loader.exec_module(module)
            sys.modules[name] = modAL.expected_error = module
            return True
    return False


class _NumpyWithBool(ModuleType):
    """numpy, with the ``np.bool`` that its releases 1.24 to 1.26 do not have."""

    bool = bool

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


def _give_batch_a_bool() -> bool:
    """Let ``modAL.batch`` find the ``np.bool`` that it makes a mask with; numpy itself stays as it is."""
    import modAL.batch

    if "bool" in vars(np) or isinstance(modAL.batch.np, _NumpyWithBool):
        return False
    modAL.batch.np = _NumpyWithBool("numpy")
    return True


def _say_bootstrap_init(cls: Any) -> bool:
    """Give a class the parameter that it takes and does not keep; ``get_params``, ``repr`` and ``clone`` read it."""
    if hasattr(cls, "bootstrap_init"):
        return False
    cls.bootstrap_init = False
    return True


def _renames_force_all_finite(check: Any) -> Any:
    @functools.wraps(check)
    def check_X_y(*args: Any, **kwargs: Any) -> Any:  # noqa: N802
        if "force_all_finite" in kwargs:
            kwargs["ensure_all_finite"] = kwargs.pop("force_all_finite")
        return check(*args, **kwargs)

    return check_X_y


def _stacks_frames(stack: Any) -> Any:
    @functools.wraps(stack)
    def data_vstack(blocks: Any) -> Any:
        first = blocks[0]
        if not isinstance(first, (pd.DataFrame, pd.Series)) or any(map(sp.issparse, blocks)):
            return stack(blocks)
        if isinstance(first, pd.DataFrame):  # one row of a frame comes as a Series
            blocks = [b.to_frame().T.infer_objects() if isinstance(b, pd.Series) else b for b in blocks]
        return pd.concat(blocks)

    return data_vstack


def _joins_frames(join: Any) -> Any:
    @functools.wraps(join)
    def data_hstack(blocks: Any) -> Any:
        if not isinstance(blocks[0], pd.DataFrame) or any(map(sp.issparse, blocks)):
            return join(blocks)
        return pd.concat(blocks, axis=1)

    return data_hstack


def _with_frames(on_frame: Callable[..., Any]) -> Callable[[Any], Any]:
    """A repair that does for a data frame what ``on_frame`` does, and for anything else what the function does."""

    def wrap(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(X: Any, *args: Any, **kwargs: Any) -> Any:
            return (on_frame if isinstance(X, pd.DataFrame) else function)(X, *args, **kwargs)

        return wrapper

    return wrap


def _frame_rows(X: pd.DataFrame, I: Any) -> Any:  # noqa: E741 (modAL's name)
    return X.iloc[I]


def _frame_without(X: pd.DataFrame, I: Any) -> pd.DataFrame:  # noqa: E741
    return X.iloc[np.delete(np.arange(len(X)), I)]


def _enumerated_frame(X: pd.DataFrame) -> Any:
    return enumerate(row for _, row in X.iterrows())


def _ranks_frames(rank: Any) -> Any:
    @functools.wraps(rank)
    def ranked_batch(classifier: Any, unlabeled: Any, *args: Any, **kwargs: Any) -> Any:
        labelled = classifier.X_training
        if classifier.on_transformed:
            transform = classifier.transform_without_estimating
            unlabeled, labelled = transform(unlabeled), None if labelled is None else transform(labelled)
        unlabeled, labelled = (X.to_numpy() if isinstance(X, pd.DataFrame) else X for X in (unlabeled, labelled))
        return rank(SimpleNamespace(on_transformed=False, X_training=labelled), unlabeled, *args, **kwargs)

    return ranked_batch


def _looks_into_learners(loss: Any) -> Any:
    from modAL.models.base import BaseLearner

    @functools.wraps(loss)
    def svm_loss(multiclass_classifier: Any, *args: Any, **kwargs: Any) -> Any:
        is_learner = isinstance(multiclass_classifier, BaseLearner)
        classifier = multiclass_classifier.estimator if is_learner else multiclass_classifier
        return loss(classifier, *args, **kwargs)

    return svm_loss


def _bootstraps_frames(fit: Any) -> Any:
    signature = inspect.signature(fit)

    @functools.wraps(fit)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(self, *args, **kwargs).arguments
        X, y = (given[name] if name in given else getattr(self, f"{name}_training") for name in ("X", "y"))
        if not given.get("bootstrap") or not isinstance(X, pd.DataFrame):
            return fit(self, *args, **kwargs)
        rows = np.random.choice(len(X), len(X))
        self.estimator.fit(X.iloc[rows], take_rows(y, rows), **given.get("fit_kwargs", {}))
        return self

    return wrapper


def _learner(X: Any, y: Any) -> SimpleNamespace:
    """As much of a learner as the probes need."""
    fitted = SimpleNamespace(fit=lambda X, y: None)
    return SimpleNamespace(estimator=fitted, X_training=X, y_training=y, on_transformed=False, force_all_finite=True)


def _learner_of_two_labels() -> Any:
    from modAL.models import ActiveLearner

    return ActiveLearner(_TwoLabels())


class _TwoLabels:
    """A fitted multi-label classifier."""

    classes_ = _LABELS

    def predict(self, X: Any) -> np.ndarray:
        return np.eye(2, dtype=int)


_NAMED = _FRAME.rename(columns=str)

REPAIRS = (
    Repair(
        "check_X_y",
        lambda check: check(_FRAME, _LABELS, force_all_finite=True) is not None,
        _renames_force_all_finite,
    ),
    Repair(
        "data_vstack",
        lambda stack: len(stack((_FRAME, _FRAME))) == 4,
        _stacks_frames,
    ),
    Repair(
        "data_hstack",
        lambda join: join((_FRAME, _FRAME)).shape == (2, 4),
        _joins_frames,
    ),
    Repair(
        "retrieve_rows",
        lambda rows: rows(_FRAME, [0]).equals(_FRAME.iloc[[0]]),
        _with_frames(_frame_rows),
    ),
    Repair(
        "drop_rows",
        lambda without: without(_FRAME, 0).equals(_FRAME.iloc[[1]]),
        _with_frames(_frame_without),
    ),
    Repair(
        "enumerate_data",
        lambda enumerated: [position for position, _ in enumerated(_FRAME)] == [0, 1],
        _with_frames(_enumerated_frame),
    ),
    Repair(
        "ranked_batch",
        lambda rank: rank(_learner(_FRAME, _LABELS), _FRAME, np.zeros(2), 1, "euclidean", None) is not None,
        _ranks_frames,
    ),
    Repair(
        "_SVM_loss",
        lambda loss: loss(_learner_of_two_labels(), _FRAME).shape == (2,),
        _looks_into_learners,
    ),
    Repair(
        "_fit_to_known",
        lambda fit: fit(_learner(_NAMED, _LABELS), bootstrap=True) is not None,
        _bootstraps_frames,
    ),
    Repair(
        "_fit_on_new",
        lambda fit: fit(_learner(None, None), _NAMED, _LABELS, bootstrap=True) is not None,
        _bootstraps_frames,
    ),
)
