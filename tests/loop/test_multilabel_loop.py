"""The loop of a classifier with several labels for each sample."""

import json

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.datasets import make_multilabel_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import cross_val_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetClassifier
from torch import nn

from skal import ActiveLearningClassifier
from skal.exceptions import CheckpointError, InvalidParameterError

X, Y = make_multilabel_classification(n_samples=80, n_features=6, n_classes=3, random_state=0)
X = (X / 10).astype(np.float32)


def make_net():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    return NeuralNetClassifier(
        module, criterion=nn.BCEWithLogitsLoss, train_split=None, verbose=0, max_epochs=30, lr=0.2
    )


ESTIMATORS = {
    "net": make_net,
    "multi-output": lambda: MultiOutputClassifier(LogisticRegression()),
    "one versus rest": lambda: OneVsRestClassifier(LogisticRegression()),
    "chain": lambda: ClassifierChain(LogisticRegression()),
    "forest": lambda: RandomForestClassifier(10, random_state=0),
}


def make_loop(kind="multi-output", strategy="margin", **params):
    params = {"n_initial": 20, "query_size": 6, "n_rounds": 2, "initial": "random", "random_state": 0} | params
    return ActiveLearningClassifier(ESTIMATORS[kind](), strategy, **params)


@pytest.mark.parametrize("kind", ESTIMATORS)
@pytest.mark.parametrize("strategy", ["auto", "badge"])
def test_any_classifier(kind, strategy):
    loop = make_loop(kind, strategy).fit(X, Y, eval_set=(X, Y))
    assert len(np.unique(loop.queried_)) == 32
    predicted, proba = loop.predict(X), loop.predict_proba(X)
    assert predicted.shape == proba.shape == Y.shape
    assert set(np.unique(predicted)) <= {0, 1}
    assert ((proba > 0.5) == predicted).mean() > 0.95  # a chain predicts from its predictions
    assert loop.score(X, Y) == pytest.approx(loop.history_[-1]["eval_score"])
    assert f1_score(Y, predicted, average="micro") > f1_score(Y, np.ones_like(Y), average="micro") - 0.2


def test_a_sparse_matrix_is_the_same():
    dense, sparse = (make_loop().fit(X, targets) for targets in (Y, sp.csr_matrix(Y)))
    assert dense.queried_.tolist() == sparse.queried_.tolist()
    assert (dense.predict(X) == sparse.predict(X)).all()


def test_labels_that_have_one_value_so_far_are_left_out_of_the_training():
    rare = np.column_stack([Y, np.arange(80) >= 78])  # two of eighty samples have the last label
    loop = make_loop(initial=range(20), n_rounds=0).fit(X, rare)
    assert loop.predict(X).shape == (80, 4)
    assert (loop.predict(X)[:, 3] == 0).all()
    assert loop.estimator_.predict(X).shape == (80, 3)
    assert (make_loop(initial=range(20), n_rounds=1).fit(X, rare).predict_proba(X)[:, 3] <= 1).all()


def test_scoring_and_cross_validation():
    loop = make_loop(scoring="f1_macro").fit(X, Y, eval_set=(X, Y))
    assert loop.history_[-1]["eval_score"] == pytest.approx(f1_score(Y, loop.predict(X), average="macro"))
    assert cross_val_score(make_loop(n_rounds=1), X, Y, cv=2, scoring="f1_micro", error_score="raise").shape == (2,)


@pytest.mark.parametrize("kind", ["net", "multi-output"])
def test_a_checkpoint_goes_on_where_it_was(tmp_path, kind):
    make_loop(kind, n_rounds=1, checkpoint=tmp_path).fit(X, Y)
    resumed = make_loop(kind, n_rounds=2, checkpoint=tmp_path).fit(X, Y)
    at_once = make_loop(kind, n_rounds=2).fit(X, Y)
    assert resumed.queried_.tolist() == at_once.queried_.tolist()
    assert (resumed.predict_proba(X) == at_once.predict_proba(X)).all()


def test_a_session_is_told_rows():
    loop = make_loop(n_initial=10)
    session = loop.start(X)
    for indices in session:
        session.tell([Y[i].tolist() for i in indices])
    assert session.labels()["label"].iloc[0] == Y[loop.queried_[0]].tolist()
    assert len(loop.queried_) == 22
    counts = ", ".join(f"{label} {n}" for label, n in enumerate(Y[loop.queried_].sum(axis=0)))
    assert f"classes: {counts}, last" in repr(session)
    assert f">{counts}<" in session._repr_html_()


@pytest.mark.parametrize(
    ("targets", "text"),
    [
        (2 * Y, r"indicator matrix.*Got \[2\]"),
        (np.column_stack([Y, np.ones(80, dtype=int)]), r"present in some .*Got all of the 80 samples with label 3"),
        (np.column_stack([Y, np.zeros(80, dtype=int)]), r"present in some .*Got none of the 80 samples with label 3"),
        (Y + 0.5, "indicator matrix"),
        ([[0, 1]] * 40 + [[1, 0]] * 39 + [[1]], r"as many numbers .* Got the shapes \[\(1,\), \(2,\)\]"),
        (Y[:, 0], "a column for each of several labels with MultiOutputClassifier.*Got one label for each sample"),
        (Y[:, :1], "a column for each of several labels with MultiOutputClassifier.*Got one label for each sample"),
    ],
    ids=["twos", "all", "none", "fractions", "ragged", "one label", "a column"],
)
def test_bad_indicators_are_named(targets, text):
    with pytest.raises(InvalidParameterError, match=text):
        make_loop().fit(X, targets)


def test_named_columns_are_in_the_journal_and_others_are_refused(tmp_path):
    names = ["cat", "dog", "cow"]
    with make_loop(classes=names, checkpoint=tmp_path).start(X) as session:
        session.tell(Y[session.ask()])
        before = session.labels()["label"].tolist()
    first = json.loads((tmp_path / "labels.jsonl").read_text().splitlines()[0])
    assert (first["event"], first["columns"]) == ("columns", names)
    for readonly in (True, False):
        with make_loop(classes=names, checkpoint=tmp_path).start(X, readonly=readonly) as session:
            assert session.labels()["label"].tolist() == before
    for other in (["dog", "cat", "cow"], ["cat", "dog"], ["cat", "dog", "cows"]):
        with pytest.raises(CheckpointError, match=r"cat.*dog.*cow"):
            make_loop(classes=other, checkpoint=tmp_path).start(X)
    (tmp_path / "labels.jsonl").unlink()
    with (
        make_loop(classes=names[:2], checkpoint=tmp_path / "other").start(X) as session,
        pytest.raises(InvalidParameterError, match=r"a column for each of its 'classes'.*Got 3 columns"),
    ):
        session.tell(Y[session.ask()])
    assert not (tmp_path / "other" / "labels.jsonl").exists()


def test_a_classifier_of_one_class_each_says_so():
    loop = make_loop()
    for estimator in (LogisticRegression(), make_pipeline(StandardScaler(), LogisticRegression())):
        with pytest.raises(InvalidParameterError, match=r"must learn 3 labels .* Wrap it in .*MultiOutputClassifier"):
            loop.set_params(estimator=estimator).fit(X, Y)
    session = make_loop().set_params(estimator=LogisticRegression()).start(X)
    with pytest.raises(InvalidParameterError, match=r"one class for each sample.*\(20, 3\).*MultiOutputClassifier"):
        session.tell(Y[session.ask()])
    assert len(session.labels()) == 0


def test_a_classifier_that_was_fitted_on_several_labels_may_learn_one():
    estimator = OneVsRestClassifier(LogisticRegression()).fit(X, Y)
    loop = make_loop().set_params(estimator=estimator).fit(X, Y[:, 0])
    assert loop.predict(X).shape == (80,)


def test_the_first_sample_may_be_unknown():
    session = make_loop().start(X, [None, *Y[1:30].tolist(), *[None] * 50])
    assert len(session.labels()) == 29
