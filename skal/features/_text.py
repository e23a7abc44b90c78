# SPDX-License-Identifier: BSD-3-Clause
"""Texts and sparse rows as a hundred numbers that can be compared."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import normalize
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from skal.exceptions import FeatureError, InvalidTypeError, shorten
from skal.features._pretrained import pretrained
from skal.features._zoo import find_network
from skal.validation import Integer


class SparseFeatures(TransformerMixin, BaseEstimator):
    """Features of sparse rows: a truncated singular value decomposition, scaled to length 1; fitted without labels.

    Parameters
    ----------
    n_components : int, default=100
        Columns, at most; fewer for small matrices.

    Attributes
    ----------
    n_features_in_ : int
        Columns of the matrix.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from skal.features import SparseFeatures
    >>> X = sp.random(50, 400, 0.05, format="csr", random_state=0)
    >>> SparseFeatures(n_components=10).fit_transform(X).shape
    (50, 10)
    """

    def __init__(self, *, n_components: int = 100) -> None:
        self.n_components = n_components

    def fit(self, X: Any, y: Any = None) -> SparseFeatures:
        """Find the directions in which the rows differ most.

        Parameters
        ----------
        X : sparse matrix or array, (n, columns)
            The pool.
        y : object, optional
            Not looked at.

        Returns
        -------
        SparseFeatures
            Itself.
        """
        Integer(1).check("SparseFeatures", "n_components", self.n_components)
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64)
        n_components = min(self.n_components, X.shape[1])
        self._svd = TruncatedSVD(n_components, random_state=0).fit(X)
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Features of rows.

        Parameters
        ----------
        X : sparse matrix or array, (n, columns)
            Rows.

        Returns
        -------
        (n, d) array
            Rows of length 1; one that shares no column with the pool is 0.
        """
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        features: np.ndarray = normalize(self._svd.transform(X))
        return features

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


class TextFeatures(TransformerMixin, BaseEstimator):
    """Features of texts, fitted without labels: a sentence model where one is at hand, otherwise TF-IDF of words.

    Parameters
    ----------
    model : str, default="auto"
        ``"tfidf"`` is TF-IDF, reduced to a hundred columns. Any other name is one that
        :func:`~skal.features.pretrained` takes, such as ``"texts"``. ``"auto"`` is ``"texts"`` where the extra
        ``backbones`` is installed, and ``"tfidf"`` where it is not.

    Attributes
    ----------
    model_ : str
        What computes the features.
    transformers_ : list
        The fitted steps.

    Examples
    --------
    >>> from skal.features import TextFeatures
    >>> texts = ["a red car", "a blue car", "cheap flights", "flights to Rome"]
    >>> features = TextFeatures(model="tfidf").fit_transform(texts)
    >>> bool(features[0] @ features[1] > features[0] @ features[2])
    True
    """

    def __init__(self, *, model: str = "auto") -> None:
        self.model = model

    def fit(self, X: Any, y: Any = None) -> TextFeatures:
        """Choose the model; for TF-IDF, learn the words, and the directions in which the texts differ most.

        Parameters
        ----------
        X : n strings
            The pool: a list, an array or a column of a data frame.
        y : object, optional
            Not looked at.

        Returns
        -------
        TextFeatures
            Itself.
        """
        texts = _as_texts(X)
        found = (find_network("texts") or "tfidf") if self.model == "auto" else self.model
        if found == "tfidf":
            self.transformers_: list[Any] = _fit_words(texts)
        else:
            self.transformers_ = [pretrained(found)]
        self.model_ = found
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Features of texts.

        Parameters
        ----------
        X : n strings
            Texts.

        Returns
        -------
        (n, d) array
            By TF-IDF rows of length 1; a text without a known word is 0.
        """
        check_is_fitted(self)
        values: Any = _as_texts(X)
        for step in self.transformers_:
            values = step.transform(values)
        features: np.ndarray = values
        return features

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        return tags


def _fit_words(texts: list[str]) -> list[Any]:
    vectorizer = TfidfVectorizer(sublinear_tf=True)
    try:
        counts = vectorizer.fit_transform(texts)
    except ValueError as error:
        raise FeatureError(
            "The texts given to TextFeatures must hold words. Got none instead, such as "
            f"{shorten(texts[0])}. Pass texts with words of two letters or more."
        ) from error
    return [vectorizer, SparseFeatures().fit(counts)]


def is_texts(X: Any) -> bool:
    """True if these are strings, one for each sample."""
    if isinstance(X, list):
        return bool(X) and isinstance(X[0], str)
    if sp.issparse(X) or getattr(X, "ndim", 0) != 1 or len(X) == 0:
        return False
    return isinstance(np.asarray(X[:1])[0], str)


def _as_texts(X: Any) -> list[str]:
    """Texts as a list; missing ones are empty."""
    if isinstance(X, str) or not hasattr(X, "__len__") or getattr(X, "ndim", 1) != 1:
        expected, remedy = "a list, an array or a column of strings", "Pass [text] for a single text."
        raise InvalidTypeError.for_parameter("TextFeatures", "X", expected, X, remedy)
    if len(X) == 0:
        raise FeatureError("The texts given to TextFeatures must be at least one. Got none instead. Pass texts.")
    return ["" if text is None or text != text else str(text) for text in X]
