# SPDX-License-Identifier: BSD-3-Clause
"""Looking into estimators: the classifier inside Pipelines and search objects, and the transformers before it.

Also explains errors that estimators raise: what is probably wrong, and what to do. The original error is the cause.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from scipy.special import softmax
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import BaseEnsemble
from sklearn.exceptions import NotFittedError as SklearnNotFittedError
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier, OutputCodeClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier, MultiOutputRegressor, RegressorChain
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags
from skorch import NeuralNet, NeuralNetBinaryClassifier, NeuralNetRegressor
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from skal._core.memory import is_out_of_memory
from skal._core.tasks import CLASSIFICATION, MULTILABEL, Task, find_label_probabilities
from skal.exceptions import (
    InvalidTypeError,
    NetworkError,
    NonFiniteError,
    NotFittedError,
    OutputError,
    SampleError,
    SkalError,
    shorten,
)

# where wrappers keep the fitted estimator that does the work, in the order in which they are looked at
_FITTED_INSIDE = ("best_estimator_", "estimator_", "classifier_", "estimator")
# these predict with several copies of the estimator that they were given
_MANY_INSIDE = (
    BaseEnsemble,
    CalibratedClassifierCV,
    OneVsOneClassifier,
    OneVsRestClassifier,
    OutputCodeClassifier,
    MultiOutputClassifier,
    ClassifierChain,
    MultiOutputRegressor,
    RegressorChain,
)

# modules that raise where samples or labels are wrong; errors of callbacks and schedulers are left alone
_ABOUT_DATA = ("torch.nn", "torch.utils.data", "skorch.dataset", "skorch.utils", "skorch.classifier")


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
    """True if this is modAL's ``Committee`` or ``CommitteeRegressor``: a list of learners that predict together."""
    return hasattr(learner, "learner_list")


def chain_transformers(transformers: list[Any]) -> Callable[[Any], Any]:
    """All transformers, one after the other, as one function of X."""

    def transform(X: Any) -> Any:
        for transformer in transformers:
            try:
                X = transformer.transform(X)
            except SklearnNotFittedError as error:
                raise NotFittedError(
                    "The steps before the classifier must be fitted. "
                    f"Got an unfitted {type(transformer).__name__} instead. Fit the whole Pipeline before query."
                ) from error
            except ValueError as error:
                if isinstance(error, SkalError):
                    raise
                raise SampleError(
                    f"The steps before the classifier must accept the samples. Got {type(error).__name__} from "
                    f"{type(transformer).__name__}: {error}. Pass samples as the Pipeline was fitted on, or fit the "
                    "whole Pipeline again."
                ) from error
        return X

    return transform


def allows_nan(estimator: Any) -> bool:
    """True if an estimator says in its tags that it takes NaN, as imputers and histogram boosters do.

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
    """Refuse keywords that the ``fit`` of a loop does not take; for weights, say what to do instead.

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


def find_probabilities(estimator: Any, owner: str, task: Task = CLASSIFICATION) -> Callable[[Any], np.ndarray]:
    """A function for (n, C) class probabilities; without ``predict_proba``, the softmax of the decision function.

    Examples
    --------
    >>> from sklearn.svm import LinearSVC
    >>> predict = find_probabilities(LinearSVC().fit([[0.0], [1.0]], [0, 1]), "Margin")
    >>> int(predict([[1.0]]).argmax())
    1
    """
    if task == MULTILABEL:
        return find_label_probabilities(estimator, owner)
    if hasattr(estimator, "predict_proba"):

        def read(X: Any) -> np.ndarray:
            rows = np.asarray(estimator.predict_proba(X))
            if rows.ndim != 2 or rows.dtype.kind not in "fiub":
                raise _no_distributions(rows)
            return rows.astype(float, copy=False)

        return read
    if not hasattr(estimator, "decision_function"):
        raise InvalidTypeError(
            f"The estimator that {owner} works on must have predict_proba or decision_function. "
            f"Got {type(estimator).__name__} instead. Pass a classifier."
        )

    def predict(X: Any) -> np.ndarray:
        decisions = np.asarray(estimator.decision_function(X), dtype=float)
        if decisions.ndim == 1:  # for two classes: that of the second
            decisions = np.stack([np.zeros_like(decisions), decisions], axis=1)
        proba: np.ndarray = softmax(decisions, axis=1)
        return proba

    return predict


def check_distributions(proba: np.ndarray) -> None:
    """Refuse class probabilities (N, C) or (N, L, 2) that are not finite, or not one distribution per row.

    Examples
    --------
    >>> check_distributions(np.array([[0.3, 0.7], [1.0, 0.0]]))
    >>> check_distributions(np.array([[2.0, 3.0]]))
    Traceback (most recent call last):
        ...
    skal.exceptions.OutputError: The estimator's predict_proba must give one distribution per row. ...
    """
    if proba.ndim == 3:
        proba = proba.reshape(-1, proba.shape[2])
    if proba.ndim == 2 and proba.size and proba.min() >= -1e-4:  # false for NaN and minus infinity
        totals = proba.sum(axis=1)
        if totals.min() >= 1 - 1e-3 and totals.max() <= 1 + 1e-3:
            return
    if not np.isfinite(proba).all():
        raise NonFiniteError(
            "The estimator's probabilities must be finite. Got NaN or infinity instead. Training has probably "
            "diverged: lower the learning rate or scale the inputs, and fit again."
        )
    if proba.ndim != 2 or proba.size:
        raise _no_distributions(proba)


def _no_distributions(proba: np.ndarray) -> OutputError:
    got = f"rows such as {shorten(proba[0].tolist())}" if proba.ndim == 2 and len(proba) else shorten(proba)
    return OutputError(
        f"The estimator's predict_proba must give one distribution per row. Got {got} instead. For a net whose loss "
        "skorch does not know set predict_nonlinearity, for example to partial(torch.softmax, dim=-1)."
    )


def describe(batch: Any) -> str:
    """An input in a few words: its shape and type."""
    if isinstance(batch, Mapping):
        return "{" + ", ".join(f"{key!r}: {describe(value)}" for key, value in batch.items()) + "}"
    if isinstance(batch, (Tensor, np.ndarray)):
        return f"shape {tuple(batch.shape)} and dtype {str(batch.dtype).removeprefix('torch.')}"
    return f"type {type(batch).__name__}"


def _say(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0].rstrip('.')}"


def _remedy(module: nn.Module, X: Any) -> str:
    """Advise on an input that a module does not take."""
    weights = next((p for p in module.parameters() if p.is_floating_point()), None)
    dtypes = {str(x.dtype).removeprefix("torch.") for x in tree_leaves(X) if isinstance(x, (Tensor, np.ndarray))}
    wanted = "float32" if weights is None else str(weights.dtype).removeprefix("torch.")
    if isinstance(X, Mapping) or hasattr(X, "iloc"):
        return (
            "The inputs of a dict, and the columns of a data frame, go to forward under their names: rename them, or "
            f"pass an array, for example X.to_numpy(dtype={wanted!r})."
        )
    if dtypes and dtypes != {wanted}:
        return (
            f"The network's weights are {wanted}: convert the samples, for example with X.astype({wanted!r}); and pass "
            "them in the shape that the network was trained on."
        )
    return "Pass samples in the shape that the network was trained on, or correct its forward."


def explain_pass(error: Exception, module: nn.Module, batch: Any) -> NetworkError | None:
    """The error of a forward pass, explained by its input; None if the error is already clear."""
    if isinstance(error, (SkalError, Warning)) or is_out_of_memory(error):
        return None
    return NetworkError(
        f"The network must accept the samples. Got {_say(error)} for an input of {describe(batch)}. "
        f"{_remedy(module, batch)}"
    )


@contextmanager
def explain_training(estimator: Any, X: Any, y: Any) -> Iterator[None]:
    """Explain errors of a training in this block by the samples, the labels and the criterion.

    Parameters
    ----------
    estimator : classifier
        Errors of those without a network are their own.
    X, y : what it is fitted on
    """
    if isinstance(estimator, type) or not hasattr(estimator, "fit"):
        got = f"the class {estimator.__name__}" if isinstance(estimator, type) else type(estimator).__name__
        raise InvalidTypeError(
            f"The estimator must be a classifier with fit. Got {got} instead. Pass an object, not a class; wrap a "
            "torch module in skorch.NeuralNetClassifier."
        )
    _refuse_several_labels(estimator, y)
    try:
        yield
    except Exception as error:
        net, _ = unwrap_estimator(estimator)
        if isinstance(error, (SkalError, Warning)) or is_out_of_memory(error) or not hasattr(net, "criterion"):
            raise
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        in_callback = any(frame.f_code.co_name == "notify" for frame in frames)
        if in_callback or not any(frame.f_globals.get("__name__", "").startswith(_ABOUT_DATA) for frame in frames):
            raise
        raise NetworkError(
            f"The network must be trainable on its samples and labels. Got {_say(error)}. {_advice(net, X, y)}"
        ) from error


def _refuse_several_labels(estimator: Any, y: Any) -> None:
    """Refuse rows of several labels with cross-entropy, which would read them as class probabilities."""
    net, _ = unwrap_estimator(estimator)
    if getattr(y, "ndim", 1) != 2 or not issubclass(_criterion(net), nn.CrossEntropyLoss):
        return
    sums = y.sum(1)
    if y.shape[1] > 1 and not np.allclose(sums.detach().cpu() if isinstance(sums, Tensor) else sums, 1, atol=1e-3):
        raise NetworkError(
            f"The labels must be one class per sample. Got rows of {y.shape[1]} numbers that do not sum to 1. Pass one "
            "integer each; for several labels at once use criterion=torch.nn.BCEWithLogitsLoss."
        )


def _criterion(net: Any) -> type:
    criterion = getattr(net, "criterion", None)
    return criterion if isinstance(criterion, type) else type(criterion)


def _advice(net: Any, X: Any, y: Any) -> str:
    """Advise on labels, criterion or samples, in the order in which they are usually wrong."""
    criterion = _criterion(net)
    if isinstance(net, NeuralNetRegressor):
        return (
            f"The targets have {describe(y)}: skorch compares outputs (n, k) with targets (n, k), so pass "
            "y.reshape(-1, 1).astype('float32') for one target."
        )
    binary = isinstance(net, NeuralNetBinaryClassifier)
    try:
        labels = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    except Exception:  # ragged, or not in memory
        return f"The labels must be one integer per sample, 0 … C−1; they are {shorten(y)}."
    if labels.ndim > 1 and getattr(net.train_split, "stratified", False):
        return (
            "skorch's train_split is stratified, which needs one class for each sample: pass train_split=None, or "
            "skorch.dataset.ValidSplit(5) for a split at random."
        )
    if issubclass(criterion, (nn.BCEWithLogitsLoss, nn.BCELoss)) and not binary:
        return (
            f"{criterion.__name__} is for skorch.NeuralNetBinaryClassifier, with labels 0 and 1 in float32, or for "
            "several labels at once, an indicator matrix in float32; use that, or criterion=torch.nn.CrossEntropyLoss."
        )
    if labels.ndim > 1:
        return (
            f"The labels have the shape {labels.shape}. Pass one integer per sample (y.argmax(1) of one-hot rows); for "
            "several labels at once use criterion=torch.nn.BCEWithLogitsLoss."
        )
    if y is not None and not binary:
        outputs = _n_outputs(net)
        numbers = labels.dtype.kind in "iub" and labels.size > 0
        if not numbers:
            return f"The labels are {shorten(labels)}: encode them as integers with sklearn.preprocessing.LabelEncoder."
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or (outputs is not None and high >= outputs):
            return (
                f"The labels run from {low} to {high}, and must be 0 … {'C−1' if outputs is None else outputs - 1}, "
                "the numbers of the network's outputs: encode them with sklearn.preprocessing.LabelEncoder, or give "
                "the last layer more outputs."
            )
    return f"The samples have {describe(X)}. {_remedy(getattr(net, 'module_', nn.Identity()), X)}"


def _n_outputs(net: Any) -> int | None:
    """Outputs of the last layer that has ``out_features``: nearly always the one that makes the outputs."""
    module = getattr(net, "module_", nn.Identity())
    sizes = [layer.out_features for layer in module.modules() if hasattr(layer, "out_features")]
    return int(sizes[-1]) if sizes and isinstance(sizes[-1], int) else None
