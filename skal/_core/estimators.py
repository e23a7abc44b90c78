# SPDX-License-Identifier: BSD-3-Clause
"""Looking into estimators: the classifier inside Pipelines and search objects, and the transformers before it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import BaseEnsemble
from sklearn.exceptions import NotFittedError as SklearnNotFittedError
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier, OutputCodeClassifier
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags
from skorch import NeuralNet

from skal.exceptions import InvalidTypeError, NotFittedError, SampleError, SkalError

# where wrappers keep the fitted estimator that does the work, in the order in which they are looked at
_FITTED_INSIDE = ("best_estimator_", "estimator_", "classifier_", "estimator")
# which predict with several copies of the estimator that they keep
_MANY_INSIDE = (BaseEnsemble, CalibratedClassifierCV, OneVsOneClassifier, OneVsRestClassifier, OutputCodeClassifier)


def unwrap_estimator(estimator: Any) -> tuple[Any, list[Any]]:
    """The innermost estimator, and the fitted transformers that its input goes through first.

    Looks into Pipelines, search objects (``best_estimator_``) and wrappers that keep a fitted ``estimator_``, but not
    into ensembles: no single one of their members does the work.

    Parameters
    ----------
    estimator : estimator

    Returns
    -------
    estimator : estimator
        A skorch net if there is one.
    transformers : list
        In the order in which they are applied.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> unwrap_estimator(make_pipeline(StandardScaler(), LogisticRegression()))
    (LogisticRegression(), [StandardScaler()])
    """
    transformers: list[Any] = []
    while not isinstance(estimator, (NeuralNet, *_MANY_INSIDE)):
        if isinstance(estimator, Pipeline):
            transformers += [step for _, step in estimator.steps[:-1] if step is not None and step != "passthrough"]
            estimator = estimator.steps[-1][1]
            continue
        for name in _FITTED_INSIDE:
            inside = getattr(estimator, name, None)
            if inside is not None and _is_estimator(inside):
                estimator = inside
                break
        else:
            break
    return estimator, transformers


def _is_estimator(value: Any) -> bool:
    return hasattr(value, "fit") and hasattr(value, "predict") and not isinstance(value, type)


def is_committee(learner: Any) -> bool:
    """Whether this is modAL's ``Committee`` or ``CommitteeRegressor``: a list of learners that predict together."""
    return hasattr(learner, "learner_list")


def chain_transformers(transformers: list[Any]) -> Callable[[Any], Any]:
    """All transformers, one after the other, as one function of X."""

    def transform(X: Any) -> Any:
        for transformer in transformers:
            try:
                X = transformer.transform(X)
            except SklearnNotFittedError as error:
                raise NotFittedError(
                    "The steps before the network must be fitted. "
                    f"Got an unfitted {type(transformer).__name__} instead. Fit the whole Pipeline before query."
                ) from error
            except ValueError as error:
                if isinstance(error, SkalError):
                    raise
                raise SampleError(
                    f"The steps before the network must accept the samples. Got {type(error).__name__} from "
                    f"{type(transformer).__name__}: {error}. Pass samples as the Pipeline was fitted on, or fit the "
                    "whole Pipeline again."
                ) from error
        return X

    return transform


def allows_nan(estimator: Any) -> bool:
    """Whether an estimator says in its tags that it takes NaN, as imputers and histogram boosters do.

    A ``ColumnTransformer`` hands each column to a step of its own, which takes or refuses what is in it.
    """
    if isinstance(estimator, ColumnTransformer):
        return True
    if is_committee(estimator):
        ways_in = (unwrap_estimator(learner.estimator) for learner in estimator.learner_list)
        return all(allows_nan((steps or [inner])[0]) for inner, steps in ways_in)
    try:
        return bool(get_tags(estimator).input_tags.allow_nan)
    except (AttributeError, TypeError):  # an estimator that follows only a part of scikit-learn's conventions
        return False


def check_net_takes_weights(net: Any, fit_params: Mapping[str, Any]) -> None:
    """Refuse ``sample_weight`` for a skorch net whose module does not take it: skorch would hand it to ``forward``.

    Parameters
    ----------
    net : classifier
        Any that is not a skorch net answers for itself.
    fit_params : dict
        What ``fit`` was given.

    Examples
    --------
    >>> from skorch import NeuralNetClassifier
    >>> from skal._core.estimators import check_net_takes_weights
    >>> from skal.nets import MLP
    >>> check_net_takes_weights(NeuralNetClassifier(MLP), {"sample_weight": [1.0, 2.0]})
    Traceback (most recent call last):
    ...
    skal.exceptions.InvalidTypeError: The fit parameters of NeuralNetClassifier must not have sample_weight: ...
    """
    if fit_params.get("sample_weight") is None or not isinstance(net, NeuralNet):
        return
    forward = getattr(net.module, "forward", net.module)
    if "sample_weight" not in inspect.signature(forward).parameters:
        raise InvalidTypeError(
            f"The fit parameters of {type(net).__name__} must not have sample_weight: its loss does not use it. Got "
            "weights. Weigh the classes with criterion__weight, or draw samples by their weights with "
            "iterator_train__sampler=torch.utils.data.WeightedRandomSampler(...)."
        )


def refuse_fit_params(owner: str, unknown: Mapping[str, Any]) -> None:
    """Refuse what the ``fit`` of a loop has no use for, weights in words of their own.

    Parameters
    ----------
    owner : str
        The class.
    unknown : dict
        Keywords that ``fit`` does not know.
    """
    if unknown.get("sample_weight") is not None:
        raise InvalidTypeError(
            f"The fit of {owner} must not be given sample_weight: it chooses the samples that it trains on. Got "
            "weights. Weigh the classes in the estimator (class_weight, criterion__weight), or use ActiveLearner, "
            "whose teach hands sample_weight on."
        )
    others = sorted(set(unknown) - {"sample_weight"})
    if others:
        raise InvalidTypeError(
            f"The fit of {owner} must be given X, y, oracle and eval_set alone. Got {', '.join(others)} too. Set "
            "parameters of the estimator with set_params(estimator__name=value)."
        )
