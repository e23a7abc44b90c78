"""features="prepared" on raw samples: the steps of a Pipeline, then what the kind of its output asks for."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.compose import make_column_transformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.feature_selection import SelectKBest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from skal import ActiveLearner, ActiveLearningClassifier
from skal.context import QueryContext
from skal.exceptions import FeatureError, SkalError
from skal.features import SparseFeatures, TableFeatures
from skal.strategies import MaxHerding, UHerding

rng = np.random.default_rng(0)
TABLE = pd.DataFrame({"age": rng.normal(40, 10, 80), "gain": rng.choice([0.0, 1e5], 80, p=[0.9, 0.1])})
TABLE["job"] = rng.choice(["clerk", "cook"], 80)
LABELS = np.where(TABLE["job"] == "cook", "yes", "no")
TEXTS = [f"{rng.choice(['red', 'blue', 'green'])} {rng.choice(['cars', 'boats'])} number{i}" for i in range(80)]


def columns():
    return make_column_transformer((StandardScaler(), ["age", "gain"]), (OneHotEncoder(), ["job"]))


def features_of(estimator, X, labelled=None, spec="prepared"):
    learner = SimpleNamespace(estimator=estimator, X_training=labelled, y_training=None)
    return QueryContext(learner, X).features(spec).numpy()


def seen_from_the_middle(table):
    """What directions of a table are taken of: its features around 0, and a column of ones."""
    features = TableFeatures().fit_transform(table)
    return np.column_stack([np.ones(len(features)), features - features.mean(axis=0)])


def test_before_the_first_training_steps_are_fitted_on_the_pool():
    model = make_pipeline(columns(), LogisticRegression())
    prepared = columns().fit_transform(TABLE)
    np.testing.assert_allclose(features_of(model, TABLE), seen_from_the_middle(prepared), atol=1e-12)
    assert not hasattr(model[0], "transformers_")  # the user's own is left alone
    learner = ActiveLearner(model, MaxHerding())  # strings are prepared in any case
    own = columns().fit(TABLE)
    given = ActiveLearner(model, MaxHerding(features=lambda table: seen_from_the_middle(own.transform(table))))
    assert learner.query(TABLE, 10)[0].tolist() == given.query(TABLE, 10)[0].tolist()


def test_afterwards_they_are_the_pipelines_own():
    model = make_pipeline(columns(), LogisticRegression()).fit(TABLE[:20], LABELS[:20])
    expected = seen_from_the_middle(model[:-1].transform(TABLE))
    np.testing.assert_allclose(features_of(model, TABLE), expected, atol=1e-12)


def test_a_step_that_needs_labels_is_left_out_at_the_start():
    model = make_pipeline(columns(), SelectKBest(k=1), LogisticRegression())
    assert features_of(model, TABLE).shape[1] == 5
    assert features_of(model.fit(TABLE, TABLE["age"] > 40), TABLE).shape[1] == 2


def test_a_table_of_one_column_is_covered_from_end_to_end():
    table = np.linspace(-3, 3, 61)[:, None]
    learner = ActiveLearner(LogisticRegression(), MaxHerding(features="prepared"))
    picked = np.sort(table[learner.query(table, 4)[0], 0])
    assert np.diff(picked).min() > 0.5
    assert picked[0] < -1.2 < 1.2 < picked[-1]


def test_rows_of_length_1_and_other_arrays_are_taken_as_they_are():
    X = rng.normal(size=(30, 5))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    np.testing.assert_array_equal(features_of(LogisticRegression(), X), X)
    images = rng.normal(size=(6, 1, 4, 4))
    np.testing.assert_array_equal(features_of(LogisticRegression(), images), images.reshape(6, 16))
    np.testing.assert_array_equal(features_of(LogisticRegression(), 7 * X, spec="input"), 7 * X)


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        (rng.normal(size=(60, 120)), "embeddings"),
        (np.maximum(rng.normal(0.5, 0.1, size=(60, 120)), 0), "embeddings"),
        (rng.normal(size=(60, 30)), "table"),
        (np.eye(120)[rng.integers(0, 120, 60)] + 0.5, "table"),
        (rng.integers(0, 17, size=(60, 120)).astype(float), "table"),
    ],
    ids=["normal", "rectified", "few columns", "one-hot", "counts"],
)
def test_embeddings_are_told_from_tables(rows, kind):
    learner = SimpleNamespace(estimator=LogisticRegression(), X_training=None, y_training=None)
    assert QueryContext(learner, rows).preparation.kind == kind


def test_sparse_rows():
    wide = sp.random(60, 2000, 0.02, format="csr", random_state=0)
    np.testing.assert_allclose(features_of(LogisticRegression(), wide), SparseFeatures().fit_transform(wide), atol=1e-9)
    narrow = sp.csr_matrix(np.eye(4)[rng.integers(0, 4, 60)] * [1, 1, 1, 50])
    expected = seen_from_the_middle(narrow.toarray())
    np.testing.assert_allclose(features_of(LogisticRegression(), narrow), expected, atol=1e-12)


def test_words_are_learnt_from_the_pool():
    """A vectoriser that was fitted on a few labelled texts knows few words."""
    model = make_pipeline(TfidfVectorizer(), LogisticRegression())
    expected = SparseFeatures().fit_transform(TfidfVectorizer().fit_transform(TEXTS))
    for estimator in (model, model.fit(TEXTS[:6], np.arange(6) % 2)):
        found = features_of(estimator, TEXTS)
        np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=1e-6)  # signs are free


def test_a_whole_loop_on_a_raw_table_says_what_it_did():
    loop = ActiveLearningClassifier(
        make_pipeline(columns(), LogisticRegression()),
        "auto",
        initial="auto",
        n_initial=10,
        query_size=5,
        n_rounds=2,
        random_state=0,
    ).fit(TABLE, LABELS)
    assert "MaxHerding" in loop.initial_
    assert "whose columns are scaled" in loop.initial_
    assert loop.query_strategy_.kernel == "forest"
    assert loop.score(TABLE, LABELS) == 1


def test_columns_that_change_between_rounds_are_named():
    model = make_pipeline(TableFeatures(), LogisticRegression()).fit(TABLE[:20], LABELS[:20])
    learner = SimpleNamespace(estimator=model, X_training=TABLE[:20], y_training=LABELS[:20])
    for changed, word in ((TABLE.drop(columns="job"), "job"), (TABLE.rename(columns={"age": "years"}), "years")):
        with pytest.raises(FeatureError, match=rf"(?s)must have the columns that it was fitted on.*- {word}"):
            UHerding(features="prepared").select(learner, changed, 3)


@pytest.mark.parametrize("make", [columns, TableFeatures])
def test_a_table_that_changes_between_rounds_is_refused_by_name_and_nothing_is_lost(make):
    learner = ActiveLearner(make_pipeline(make(), LogisticRegression()), "auto", TABLE[:20], LABELS[:20])
    pool = TABLE[20:]
    before = learner.query(pool, 3)[0].tolist()
    for changed, word in (
        (pool.drop(columns="job"), "job"),
        (pool.rename(columns={"age": "years"}), "age"),
        (pool.assign(age="old"), "old"),
    ):
        with pytest.raises(SkalError, match=word):
            learner.query(changed, 3)
        assert learner.y_training.tolist() == LABELS[:20].tolist()
    assert learner.query(pool, 3)[0].tolist() == before


def test_a_category_that_was_never_seen_is_queried_like_any_other():
    new = TABLE[20:].assign(job=np.where(np.arange(60) % 2, "pilot", "cook"))
    learner = ActiveLearner(make_pipeline(TableFeatures(), LogisticRegression()), "auto", TABLE[:20], LABELS[:20])
    assert len(set(learner.query(new, 5)[0].tolist())) == 5
    strict = ActiveLearner(make_pipeline(columns(), LogisticRegression()), "auto", TABLE[:20], LABELS[:20])
    with pytest.raises(SkalError, match=r"unknown categories .'pilot'"):  # the user's own encoder takes none
        strict.query(new, 5)


def test_a_table_without_a_value_is_refused_by_name():
    learner = ActiveLearner(make_pipeline(TableFeatures(), LogisticRegression()), "auto", force_all_finite=False)
    with pytest.raises(FeatureError, match="must have values"):
        learner.query(pd.DataFrame({"age": [np.nan] * 9, "job": [None] * 9}), 3)
