# SPDX-License-Identifier: BSD-3-Clause
"""A model to take away: a folder with a fitted estimator, what comes before it, and what is known about it."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable
from dataclasses import fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.metaestimators import available_if

from skal._core.tasks import REGRESSION
from skal._files.whole import read_regular, replace_file
from skal._version import __version__
from skal.exceptions import CheckpointError, InvalidTypeError, SkalWarning
from skal.models._card import (
    describe_labels,
    describe_part,
    describe_scores,
    input_of,
    installed_version,
    what_it_takes,
)
from skal.models._persist import FILE, pack, unpack
from skal.models._predictor import Predictor, check_samples
from skal.models._row_predictors import LabelsPredictor, NumberPredictor
from skal.validation import as_list

CARD = "model.json"
_FORMAT = 3
_PACKAGES = ("scikit-learn", "skorch", "torch", "skops", "numpy")
_PREDICTORS: tuple[Any, ...] = (Predictor, NumberPredictor, LabelsPredictor)
_WARNED = ("scikit-learn", "skorch")  # what a model is made of; weights and arrays are the same in every release


class _Saved(BaseEstimator):
    """What all saved models do; those of classes and of numbers say what their labels are."""

    features_: Any
    estimator_: Any
    card_: dict[str, Any]

    def fit(self, X: Any, y: Any = None) -> _Saved:
        """Do nothing: the model is fitted.

        Parameters
        ----------
        X, y : object
            Not looked at.

        Returns
        -------
        SavedModel or SavedRegressor
            Itself.
        """
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Labels of samples.

        Parameters
        ----------
        X : what the labels were given to, n samples
            Paths, texts, rows or arrays: ``card_["takes"]`` says what.

        Returns
        -------
        (n,) array, (n, k) where a label is a row of numbers
            Of the labels' own type.
        """
        labels: np.ndarray = self._predictor.predict(self._before(X))
        return labels

    def _before(self, X: Any) -> Any:
        if self.features_ is not None:
            self._check_features()
            return self.features_.transform(X)
        return check_samples(self, self.estimator_, X, reset=False)

    def _check_features(self) -> None:
        """Refuse a pre-trained network whose weights are others than those that the model was trained on."""
        expected, found = self.card_["features"], describe_part(self.features_)
        if found != expected:
            raise CheckpointError(
                f"The features of this model must come from {expected}. Got {found}. Install the version of the "
                f"network that was there when the model was saved, on {self.card_['saved']}."
            )

    def _take(self, parts: dict[str, Any], predictor: Any, card: dict[str, Any]) -> None:
        self.features_, self.estimator_, self._predictor = parts["features"], predictor.estimator, predictor
        self.card_ = card
        self.__dict__.update(parts["seen"])

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "estimator_")

    def __sklearn_clone__(self) -> _Saved:
        return self


class SavedModel(ClassifierMixin, _Saved):
    """A classifier that was saved, for what its labels were given to: paths, texts, rows or arrays.

    :func:`skal.load_model` makes one. It is fitted, and stays as it is: ``fit`` changes nothing, and a clone is the
    same object, as with scikit-learn's ``FrozenEstimator``.

    Attributes
    ----------
    classes_ : (n_classes,) array
        The classes, or the numbers of several labels, in the order of the columns of ``predict_proba``.
    estimator_ : classifier
        What predicts.
    features_ : transformer or None
        What makes its input from what a user has.
    card_ : dict
        What is known about the model: ``task``, ``classes``, ``takes``, ``trained_on``, ``found``, ``saved``,
        ``versions``.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from sklearn.linear_model import LogisticRegression
    >>> import skal
    >>> from skal.models import SavedModel
    >>> X = np.linspace(0, 1, 50).reshape(-1, 1)
    >>> loop = skal.ActiveLearningClassifier(LogisticRegression(), n_initial=10, n_rounds=1, random_state=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     loop.fit(X, X[:, 0] > 0.4).save_model(folder)
    ...     model = skal.load_model(folder)
    >>> isinstance(model, SavedModel), model.card_["trained_on"]["labels"], model.predict([[0.9]])
    (True, 20, array([ True]))
    """

    @available_if(lambda self: hasattr(self.estimator_, "predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the classes; of several labels at once, that a sample has each.

        Parameters
        ----------
        X : what the labels were given to, n samples
            As for ``predict``.

        Returns
        -------
        (n, n_classes) array
            In the order of ``classes_``.
        """
        proba: np.ndarray = self._predictor.predict_proba(self._before(X))
        return proba

    def _take(self, parts: dict[str, Any], predictor: Any, card: dict[str, Any]) -> None:
        super()._take(parts, predictor, card)
        self.classes_ = predictor.names


class SavedRegressor(RegressorMixin, _Saved):
    """A regressor that was saved, for what its numbers were given to; as :class:`SavedModel`, without classes.

    Attributes
    ----------
    estimator_ : regressor
        What predicts, in the units that it was trained with.
    features_ : transformer or None
        What makes its input from what a user has.
    card_ : dict
        What is known about the model: ``task``, ``takes``, ``trained_on``, ``found``, ``saved``, ``versions``.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from sklearn.linear_model import Ridge
    >>> import skal
    >>> from skal.models import SavedRegressor
    >>> X = np.linspace(0, 1, 50).reshape(-1, 1)
    >>> loop = skal.ActiveLearningRegressor(Ridge(alpha=1e-6), n_initial=10, n_rounds=1, random_state=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     loop.fit(X, 3 * X[:, 0]).save_model(folder)
    ...     model = skal.load_model(folder)
    >>> isinstance(model, SavedRegressor), model.predict([[0.5]]).round(3)
    (True, array([1.5]))
    """


def write_model(
    path: Any,
    predictor: Any,
    *,
    features: Any = None,
    labelled: tuple[Any, np.ndarray] | None = None,
    row: dict[str, Any] | None = None,
    seen: dict[str, Any] | None = None,
) -> None:
    """Write a folder for :func:`load_model`, whole or not at all.

    Parameters
    ----------
    path : path
    predictor : Predictor, NumberPredictor or LabelsPredictor
    features : transformer or None
        What makes the estimator's input from what a user has.
    labelled : tuple of samples and (n,) numbers, or None
        The training set.
    row : dict or None
        The last row of a loop's history: how good the model was found to be.
    seen : dict or None
        ``n_features_in_`` and ``feature_names_in_``, as far as they are known.
    """
    if features is not None and (isinstance(features, type) or not hasattr(features, "transform")):
        expected, remedy = "a fitted transformer", "Pass what computed X, such as a Pipeline of transformers."
        raise InvalidTypeError.for_parameter("save_model", "features", expected, features, remedy)
    own = {field.name: getattr(predictor, field.name) for field in fields(predictor)}
    files, names = pack({"features": features, "seen": seen or {}, "predictor": own})
    shape, dtype = input_of(labelled)
    card = {
        "format": _FORMAT,
        "saved": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "task": predictor.task,
        **({"classes": predictor.names.tolist()} if hasattr(predictor, "names") else {}),
        "takes": what_it_takes(features, shape, dtype, seen or {}),
        "features": describe_part(features),
        "estimator": describe_part(predictor.estimator),
        "trained_on": describe_labels(predictor, labelled, row or {}),
        "found": describe_scores(row or {}),
        "versions": {"skal": __version__} | {name: installed_version(name) for name in _PACKAGES},
        "needs_trust": names,
        "input_shape": shape,
        "input_dtype": dtype,
        "files": list(files),
    }
    text = json.dumps(card, indent=1, ensure_ascii=False, default=str)
    _write_files(Path(path), files | {CARD: text.encode()})


def load_model(path: Any, *, trusted: Iterable[Any] = ()) -> SavedModel | SavedRegressor:
    """Read a model: a classifier, or a regressor, for what the user has labelled.

    The file is looked through before anything is imported or made. What it names must be scikit-learn's or skal's, a
    layer, loss or optimizer of torch, a net of skorch, or something that you trust by name. Nothing is unpickled.

    Parameters
    ----------
    path : path
        The folder that ``save_model`` wrote, or ``model`` in the folder of ``skal label``; that folder itself will do.
    trusted : iterable of str or class, default=()
        Classes and functions of other packages that the model may use, as in ``["mypackage.nets.MyNet"]``. They are
        imported and run: name only what you know.

    Returns
    -------
    SavedModel or SavedRegressor
        A fitted scikit-learn classifier: ``predict``, ``predict_proba``, ``score``, ``classes_``, ``card_``; or a
        regressor, if numbers were labelled.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from sklearn.linear_model import LogisticRegression
    >>> import skal
    >>> X = np.linspace(-5, 5, 50).reshape(-1, 1)
    >>> loop = skal.ActiveLearningClassifier(LogisticRegression(), n_initial=10, n_rounds=1, random_state=0)
    >>> loop = loop.fit(X, X[:, 0] > 0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     loop.save_model(folder)
    ...     model = skal.load_model(folder)
    >>> model.predict([[-5.0], [5.0]]).tolist(), model.classes_.tolist()
    ([False, True], [False, True])
    """
    folder = Path(path)
    if not (folder / CARD).is_file() and (folder / "model" / CARD).is_file():
        folder = folder / "model"
    expected, remedy = "a list of names or classes", "Pass for example ['mypackage.nets.MyNet']."
    names = as_list("load_model", "trusted", trusted, expected=expected, remedy=remedy)
    if not all(isinstance(name, str) or hasattr(name, "__name__") for name in names):
        raise InvalidTypeError.for_parameter("load_model", "trusted", expected, trusted, remedy)
    data = b""
    try:
        data = read_regular(folder / CARD)
        card = json.loads(data)
        found = card["format"]
        sample = None
        if found == _FORMAT and card["input_shape"] is not None:
            sample = np.zeros((1, *card["input_shape"]), dtype=card["input_dtype"])
        files = [str(name) for name in card["files"]] if found == _FORMAT else []
        then = dict(card.get("versions") or {})
    except Exception as error:  # whatever is wrong with the file
        raise _no_model(folder, error) from error
    if found != _FORMAT:
        raise CheckpointError(
            f"The model in {folder} must be of format {_FORMAT}. Got {found!r} instead. Write it again with this "
            "version of skal."
        )
    now = {name: installed_version(name) for name in _WARNED}
    old = [name for name in _WARNED if then.get(name) != now[name]]
    said = ", ".join(f"{name} {then.get(name)} (installed: {now[name]})" for name in old)
    try:
        parts = unpack(folder, files, sample, names)
        predictor = next(kind for kind in _PREDICTORS if kind.task == card["task"])(**parts["predictor"])
        model = SavedRegressor() if predictor.task == REGRESSION else SavedModel()
        model._take(parts, predictor, card)
    except CheckpointError:
        if (folder / CARD).read_bytes() != data:  # somebody has just replaced the model
            return load_model(path, trusted=names)
        raise
    except Exception as error:
        raise _no_model(folder, error, f" It was saved with {said}." if old else "") from error
    if old:
        warnings.warn(
            f"The model in {folder} was saved with {said}. Its predictions may differ, or fail: compare some with "
            "known ones, or save the model again with what is installed.",
            SkalWarning,
            stacklevel=2,
        )
    return model


def _no_model(folder: Path, error: Exception, more: str = "") -> CheckpointError:
    return CheckpointError(
        f"{folder} must hold a model written by save_model. Got {type(error).__name__}: {error}.{more} "
        f"Pass the folder that has {CARD}."
    )


def _write_files(folder: Path, files: dict[str, bytes]) -> None:
    """Put files into a folder, the card last: until then the folder holds the earlier model."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            replace_file(folder / name, data)
    except OSError as error:
        raise CheckpointError(
            f"A model must be written to {folder}. Got an error: {error.strerror or error}. Make room, or choose "
            "another folder."
        ) from error
    for path in folder.iterdir():
        if FILE.fullmatch(path.name) and path.name not in files:
            path.unlink(missing_ok=True)
