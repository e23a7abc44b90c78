"""Features of texts and of sparse rows."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import normalize

from skal.exceptions import FeatureError, InvalidParameterError, InvalidTypeError, SkalError
from skal.features import SparseFeatures, TextFeatures, pretrained

TEXTS = [f"{a} {b} number {i}" for i in range(10) for a, b in (("red", "cars"), ("cheap", "flights"), ("old", "songs"))]


def test_rows_are_those_of_the_decomposition():
    X = TfidfVectorizer().fit_transform(TEXTS)
    U, s, _ = np.linalg.svd(X.toarray(), full_matrices=False)
    expected = normalize(U[:, :3] * s[:3])
    found = SparseFeatures(n_components=3).fit_transform(X)
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=1e-6)  # signs are free
    np.testing.assert_allclose(SparseFeatures(n_components=3).fit(X).transform(X.toarray()), found, atol=1e-9)


def test_small_matrices_and_empty_rows():
    X = sp.csr_matrix(np.eye(4)[[0, 1, 2]])
    features = SparseFeatures().fit(X)
    assert features.transform(X).shape == (3, 3)
    assert not features.transform(sp.csr_matrix((1, 4))).any()


def test_texts_that_share_words_are_alike():
    found = TextFeatures(model="tfidf").fit_transform(TEXTS)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1)
    similar = found @ found.T
    assert similar[0, 3] > similar[0, 1] + 0.2
    for other in (np.array(TEXTS), np.array(TEXTS, dtype=object), pd.Series(TEXTS, index=range(5, 35))):
        np.testing.assert_allclose(TextFeatures(model="tfidf").fit(TEXTS).transform(other), found)


def test_missing_and_unknown_texts_are_zero():
    features = TextFeatures(model="tfidf").fit(TEXTS)
    assert not features.transform([None, np.nan, "", "xylophone"]).any()


@pytest.mark.parametrize(
    ("texts", "error", "message"),
    [
        ([], FeatureError, "at least one"),
        (["", "!"], FeatureError, "must hold words. Got none"),
        ("one text", InvalidTypeError, r"a list, an array or a column of strings.*Pass \[text\]"),
        (np.ones((2, 2)), InvalidTypeError, "a column of strings"),
    ],
)
def test_what_is_no_text_is_refused(texts, error, message):
    with pytest.raises(error, match=message):
        TextFeatures(model="tfidf").fit(texts)


def test_the_number_of_columns_is_checked():
    with pytest.raises(InvalidParameterError, match="'n_components' parameter of SparseFeatures"):
        SparseFeatures(n_components=0).fit(sp.eye(3))


def test_a_sentence_model_where_one_is_at_hand():
    try:
        expected = pretrained("texts").name
    except SkalError:  # the extra is not installed
        expected = "tfidf"
    assert TextFeatures().fit(TEXTS).model_ == expected
    with pytest.raises(InvalidParameterError, match="'name' parameter of pretrained"):
        TextFeatures(model="none such").fit(TEXTS)
