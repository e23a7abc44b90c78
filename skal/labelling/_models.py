# SPDX-License-Identifier: BSD-3-Clause
"""A model without a line of code: what it is trained on, and how to make one for a number of classes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import pandas as pd
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler
from skorch import NeuralNetClassifier

from skal._core.tasks import CLASSIFICATION, Task
from skal._files.whole import open_regular
from skal.exceptions import InvalidParameterError, InvalidTypeError, SampleError, shorten
from skal.features import TableFeatures
from skal.features._own_file import load_object
from skal.features._zoo import EXTRA
from skal.labelling._backbones import (
    Progress,
    as_model_input,
    at_hand,
    compute_features,
    load_backbone,
    saved_features,
)
from skal.labelling._sources import ImageFolder, Source, TableRows
from skal.nets import CNN


@dataclass
class Model:
    """The model that is trained while somebody labels.

    Attributes
    ----------
    X : what the loop is started with, a row for each sample
    make : callable
        ``make(n_classes)`` is an unfitted classifier.
    words : str
        What it is, for people.
    prepare : callable or None
        Fills X, in the background and before anything is trained; told what to call with its progress.
    features : transformer or None
        What makes X from samples as a user has them; saved with the model.
    note : str or None
        What people should know about it before they begin.
    target : samples or None
        Like X, of the samples that the model is for, if these are others.
    """

    X: Any
    make: Callable[[int], Any]
    words: str
    prepare: Callable[[Progress], None] | None = None
    features: Any = None
    note: str | None = None
    target: Any = None

    def aim(self, target: Model) -> Model:
        """The same model, to be used on the samples of another one; whatever has to be prepared is, one by one."""
        parts = [part.prepare for part in (target, self) if part.prepare is not None]

        def prepare(progress: Progress) -> None:
            for part in parts:
                part(progress)

        return replace(self, target=target.X, prepare=prepare if parts else None)


def choose_model(
    source: Source,
    *,
    model: Any = None,
    features: Any = None,
    backbone: str | None = None,
    cache: Path | None = None,
    task: Task = CLASSIFICATION,
) -> Model:
    """The model for a source.

    Parameters
    ----------
    source : Source
    model : None, "network", "linear", "FILE.py:NAME", classifier or callable
        None is a linear classifier, on features of a pre-trained network if one is at hand; without one, a small
        network for images.
    features : None, path or (n, d) array
        Features of the samples, in the order of the source's ids, for a linear classifier.
    backbone : str or None
        A frozen network that computes features: a name of :func:`skal.features.pretrained`, or "FILE.py:NAME".
    cache : path or None
        A folder in which features are kept.
    task : {"classification", "multilabel", "regression"}
        For the others a linear classifier stands for a linear model of their kind, and there is no small network.

    Examples
    --------
    >>> from skal.labelling._sources import TextTable
    >>> choose_model(TextTable(["good", "bad"]), model="linear").words
    'a linear classifier on TF-IDF'
    """
    if task != CLASSIFICATION and model == "network":
        remedy = "Use 'linear', or a model of your own: --model FILE.py:NAME."
        raise InvalidParameterError.for_parameter("label", "model", f"None or 'linear' with {task}", model, remedy)
    if features is not None and backbone is not None:
        remedy = "Leave one of them out."
        raise InvalidParameterError.for_parameter("label", "features", "None with a backbone", features, remedy)
    X: Any
    prepare: Callable[[Progress], None] | None
    if features is not None:
        X = read_features(features, len(source))
        return Model(X, _own(model) or (lambda n: linear_on_features()), "a linear classifier on given features")
    if backbone is None and model is None:
        backbone = at_hand(source)
    if backbone is not None:
        frozen = load_backbone(backbone, source)
        X, prepare = compute_features(source, frozen, cache)
        words = f"a linear classifier on features of {frozen.name}"
        # a function of the user's own may give a column or two, whose directions say nothing
        linear = linear_on_features if ".py:" in backbone else linear_on_embeddings
        return Model(X, _own(model) or (lambda n: linear()), words, prepare, saved_features(source, frozen))
    if model is None and task != CLASSIFICATION:
        model = "linear"
    if model is None or (isinstance(model, str) and model in ("network", "linear")):
        return _built_in(source, model, cache)
    make = _own(model)
    assert make is not None
    if source.kind == "image" and not isinstance(make(2), (NeuralNetClassifier, Pipeline)):
        X, prepare = _pixels(source, cache)
        return Model(X, make, "your classifier on pixels", prepare, as_model_input(source, flatten=True))
    return Model(source.samples(), make, "your model", None, as_model_input(source))


def aim_model(
    chosen: Model, source: Source, target: Source, *, features: Any, cache: Path | None, **options: Any
) -> Model:
    """The model of a source, to be used on the samples of a target, which are read in the same way.

    Parameters
    ----------
    chosen : Model
        What :func:`choose_model` gave for the source.
    source, target : Source
    features
        Refused, if there are any: those of the target are unknown.
    cache : path or None
    **options
        As for the source.
    """
    if features is not None:
        expected, remedy = "left out with given features", "Let a backbone compute them instead."
        raise InvalidParameterError.for_parameter("label", "target", expected, "a target", remedy)
    if target.kind != source.kind:
        expected, remedy = f"samples of kind {source.kind!r}, as those to label", "Name a source of the same kind."
        raise InvalidParameterError.for_parameter("label", "target", expected, target.kind, remedy)
    return chosen.aim(choose_model(target, cache=cache, **options))


def linear_on_features() -> Any:
    """Logistic regression on standardised features."""
    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))


def linear_on_embeddings() -> Any:
    """Logistic regression on features of a pre-trained network, of which the directions count.

    Rows of length one are also what tells the recommended strategy that they are features, and no table.
    """
    return make_pipeline(Normalizer(), LogisticRegression(C=100.0, max_iter=2000))


def small_network(in_channels: int, image_size: int, n_classes: int) -> NeuralNetClassifier:
    """A LeNet for small pictures, trained from new weights in every round."""
    return NeuralNetClassifier(
        CNN,
        module__in_channels=in_channels,
        module__n_classes=max(2, n_classes),
        module__image_size=image_size,
        criterion=torch.nn.CrossEntropyLoss,
        optimizer=torch.optim.AdamW,
        lr=1e-3,
        max_epochs=40,
        batch_size=32,
        train_split=None,
        verbose=0,
    )


def _fit_words(texts: np.ndarray) -> TfidfVectorizer:
    """TF-IDF of the words of the texts; of their letters, where no word has two of them."""
    for analyzer in ("word", "char"):
        with suppress(ValueError):  # there are none
            return TfidfVectorizer(analyzer=analyzer, sublinear_tf=True).fit(texts)
    raise SampleError("The texts must not all be empty. Got no letter in any of them. Check the column of the texts.")


def _built_in(source: Source, model: str | None, cache: Path | None) -> Model:
    if source.kind == "text":
        if model == "network":
            expected, remedy = "None or 'linear' for texts", "Pass a model of your own: --model FILE.py:NAME."
            raise InvalidParameterError.for_parameter("label", "model", expected, model, remedy)
        texts = source.samples()
        vectorizer = FrozenEstimator(_fit_words(texts))  # words of all texts, not of a few
        return Model(
            texts,
            lambda n: Pipeline([("words", vectorizer), ("linear", LogisticRegression(C=10.0, max_iter=2000))]),
            "a linear classifier on TF-IDF",
            note=_note("sentence model", "Words are only counted") if model is None else None,
        )
    if isinstance(source, TableRows) and model != "network":
        return _on_table(source.samples())
    if source.kind == "image" and model != "linear":
        X = source.samples()
        channels, size = X[0].shape[0], min(X[0].shape[1:])
        if len(set(X[0].shape[1:])) > 1:
            expected = "None for images that are not square"
            remedy = "Use model='linear', or a model of your own."
            raise InvalidParameterError.for_parameter("label", "model", expected, tuple(X[0].shape), remedy)
        words = f"a small convolutional network on pictures of {size} × {size} pixels"
        note = _note("pre-trained network", "A small one learns from your labels alone") if model is None else None
        return Model(X, lambda n: small_network(channels, size, n), words, None, as_model_input(source), note)
    if model == "network":
        expected, remedy = "None or 'linear' for rows", "Pass a model of your own: --model FILE.py:NAME."
        raise InvalidParameterError.for_parameter("label", "model", expected, model, remedy)
    if source.kind == "image":
        X, prepare = _pixels(source, cache)
        reader = as_model_input(source, flatten=True)
        return Model(X, lambda n: linear_on_features(), "a linear classifier on pixels", prepare, reader)
    return Model(source.samples(), lambda n: linear_on_features(), "a linear classifier", None, as_model_input(source))


def _on_table(table: pd.DataFrame) -> Model:
    """Logistic regression on columns that are read by their kinds; what those are all rows say, not a few."""
    columns = TableFeatures(min_frequency=max(2, min(10, len(table) // 20))).fit(table)
    silent = [str(table.columns[j]) for j in columns.silent_columns()]
    if len(silent) == table.shape[1]:
        raise SampleError(
            f"A table must have columns of numbers, of dates, or of values that come again. Got {shorten(silent)} "
            "alone. If one of these is a text to judge by, label texts: --text COLUMN."
        )
    note = None
    if silent:
        note = (
            f"The model does not see {', '.join(silent)}: nearly every row has another value there. If one of these is "
            "a text to judge by, label texts: --text COLUMN."
        )
    frozen = FrozenEstimator(columns)
    return Model(
        table,
        lambda n: Pipeline([("columns", frozen), ("linear", LogisticRegression(max_iter=2000))]),
        "a linear classifier on the columns",
        note=note,
    )


def _note(what: str, instead: str) -> str:
    return f"There is no {what} here. {instead}, so expect little from a few hundred labels. {EXTRA}"


def _pixels(source: Source, cache: Path | None) -> tuple[Any, Callable[[Progress], None] | None]:
    """Pictures as rows of numbers: at once from an array, in the background from files."""
    if isinstance(source, ImageFolder):
        return compute_features(source, None, cache)
    X = source.samples()
    return X.reshape(len(X), -1), None


def read_features(features: Any, n_samples: int) -> np.ndarray:
    """(n_samples, d) float32 features from an array or an npy file."""
    expected = f"an array of numbers of shape ({n_samples}, d), a row for each sample in the order of their ids"
    try:
        if isinstance(features, (str, Path)):
            open_regular(Path(features)).close()
        array = np.load(features, mmap_mode="r") if isinstance(features, (str, Path)) else np.asarray(features)
    except (ValueError, OSError, EOFError, BadZipFile) as error:
        expected, remedy = f"{expected}, or an npy file of it", f"{type(error).__name__}: {error}."
        raise InvalidParameterError.for_parameter("label", "features", expected, features, remedy) from error
    is_array = isinstance(array, np.ndarray) and array.ndim == 2 and array.dtype.kind in "fiu"
    if not is_array or len(array) != n_samples:
        if isinstance(array, np.ndarray):
            got = f"{array.dtype} of shape {array.shape}"
        else:
            got = f"an archive, {features}"
            array.close()
        remedy = "Compute the features of exactly these samples, and write them with numpy.save."
        raise InvalidParameterError.for_parameter("label", "features", expected, got, remedy)
    return np.asarray(array, dtype=np.float32)


def _own(model: Any) -> Callable[[int], Any] | None:
    """A user's model as a function of the number of classes."""
    if model is None or (isinstance(model, str) and model in ("network", "linear")):
        return None
    if isinstance(model, str):
        model = load_object(model, "model")
    if hasattr(model, "fit") and not isinstance(model, type):
        return lambda n_classes: model
    if not callable(model):
        expected = "a classifier, a function that makes one, or FILE.py:NAME of such"
        raise InvalidTypeError.for_parameter("label", "model", expected, model, "See the guide's page on labelling.")
    takes = "n_classes" in inspect.signature(model).parameters

    def make(n_classes: int) -> Any:
        try:
            made = model(n_classes=n_classes) if takes else model()
        except Exception as error:
            expected, got = "a function that returns a classifier", f"{type(error).__name__}: {error}"
            remedy = "It is called without arguments, or with n_classes if it has that parameter."
            raise InvalidParameterError.for_parameter("label", "model", expected, got, remedy) from error
        if not hasattr(made, "fit"):
            expected, remedy = (
                "a function that returns a classifier",
                "Return a skorch net, or one of scikit-learn.",
            )
            raise InvalidTypeError.for_parameter("label", "model", expected, made, remedy)
        return made

    return make
