"""Labels that may be wrong, beside cleanlab's scores."""

import numpy as np
import pytest
from cleanlab.filter import find_label_issues
from cleanlab.rank import get_label_quality_scores
from sklearn.datasets import load_digits
from sklearn.linear_model import LinearRegression, LogisticRegression

from skal import ActiveLearningClassifier, ActiveLearningRegressor
from skal.loop._doubtful import find_issues, predict_out_of_fold

N, PLANTED = 300, 30


@pytest.fixture(scope="module")
def session():
    """Digits, of which 30 have a wrong label."""
    X, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    labels = y[:N].copy()
    wrong = rng.choice(N, PLANTED, replace=False)
    labels[wrong] = (labels[wrong] + rng.integers(1, 10, PLANTED)) % 10
    model = LogisticRegression(max_iter=200, C=0.1)
    loop = ActiveLearningClassifier(model, n_rounds=None, hold_out="audit", random_state=0)
    found = loop.start(X[:N] / 16, labels, ids=range(N))
    found.wrong = set(wrong.tolist())
    return found


def test_planted_errors_come_first(session):
    table = session.doubtful()
    assert len(table) == N  # held-out labels are judged, too
    assert len(session.wrong.intersection(table["id"][:PLANTED])) >= 24
    assert session.wrong.intersection(table["id"][:PLANTED]) <= set(table["id"][table["label"] != table["predicted"]])


def test_scores_and_issues_are_cleanlabs(session):
    rows, codes, proba, names = predict_out_of_fold(session.engine.trainer, session.state)
    table = session.doubtful().set_index("id").loc[rows]
    expected = get_label_quality_scores(codes, proba, method="self_confidence")
    np.testing.assert_allclose(table["probability"], expected, atol=1e-12)
    np.testing.assert_array_equal(names[codes], table["label"])
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    theirs = find_label_issues(codes, proba, filter_by="confident_learning", n_jobs=1)
    ours = find_issues(proba, codes)
    np.testing.assert_array_equal(ours, theirs)
    assert ours.any()


def test_predictions_come_from_models_without_the_sample(session):
    """By a slow cross-validation: leave the fold out, fit, predict."""
    rows, codes, proba, _ = predict_out_of_fold(session.engine.trainer, session.state)
    X = session.X
    from skal.loop._doubtful import stratified_folds

    folds = stratified_folds(codes, 5, np.random.default_rng(session.state.seed_for("score", round=0)))
    here = folds == 3
    model = LogisticRegression(max_iter=200, C=0.1).fit(X[rows[~here]], codes[~here])
    np.testing.assert_allclose(proba[here], model.predict_proba(X[rows[here]]), atol=1e-6)


def test_too_few_labels_and_other_tasks():
    X = np.random.default_rng(0).normal(size=(40, 2))
    session = ActiveLearningClassifier(LogisticRegression(), n_rounds=None).start(X, [0, 1] + [None] * 38)
    assert session.doubtful().empty
    with pytest.raises(ValueError, match="n_folds"):
        session.doubtful(1)
    numbers = ActiveLearningRegressor(LinearRegression(), n_rounds=None).start(X, X[:, 0])
    with pytest.raises(ValueError, match="one class per sample"):
        numbers.doubtful()
