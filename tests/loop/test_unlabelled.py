"""An estimator that learns from unlabelled data gets the whole pool."""

from typing import ClassVar

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier
from skorch import NeuralNetClassifier
from torch.utils.data import TensorDataset

from skal import ActiveLearningClassifier
from skal.nets import MLP
from skal.semi_supervised import FixMatchClassifier
from skal.strategies import Margin


class Recording(LogisticRegression):
    """Learns from the labelled ones, and remembers what it was given."""

    uses_unlabelled = True
    given: ClassVar[list] = []

    def fit(self, X, y):
        self.given.append((X, y))
        return super().fit(X[y >= 0], y[y >= 0])


@pytest.mark.parametrize("names", [np.array([0, 1, 2]), np.array(["c", "a", "b"])], ids=["integers", "strings"])
def test_the_whole_pool_with_minus_one(names, flat_data):
    X, y = flat_data
    Recording.given.clear()
    loop = ActiveLearningClassifier(Recording(), Margin(), n_initial=9, query_size=4, n_rounds=2, random_state=0)
    loop.fit(X, names[y])
    sizes = [9, 13, 17]
    assert len(Recording.given) == 3
    for size, (X_given, y_given) in zip(sizes, Recording.given, strict=True):
        np.testing.assert_array_equal(X_given, X)
        labelled = np.flatnonzero(y_given >= 0)
        assert sorted(loop.queried_[:size]) == labelled.tolist()
        np.testing.assert_array_equal(np.sort(names)[y_given[labelled]], names[y[labelled]])
        assert (np.delete(y_given, labelled) == -1).all()


def test_unlabelled_samples_of_y_are_never_labelled(flat_data):
    """y == −1 means to such an estimator what it means to scikit-learn."""
    X, y = flat_data
    partly = np.where(np.arange(60) % 2, y, -1)
    loop = ActiveLearningClassifier(Recording(), Margin(), n_initial=20, query_size=10, n_rounds=None, random_state=0)
    loop.fit(X, partly)
    assert sorted(loop.queried_) == list(range(1, 60, 2))


@pytest.mark.parametrize("names", [np.array([0, 1, 2]), np.array(["c", "a", "b"])], ids=["integers", "strings"])
def test_minus_one_declines(names, flat_data):
    """From an oracle and in tell as in y."""
    X, y = flat_data
    loop = ActiveLearningClassifier(Recording(), Margin(), n_initial=20, query_size=10, n_rounds=None, random_state=0)

    def oracle(indices, samples):
        return [names[y[i]].item() if i % 2 else (-1 if names.dtype.kind == "i" else None) for i in indices]

    loop.fit(X, oracle=oracle)
    assert sorted(loop.queried_) == list(range(1, 60, 2))
    session = clone(loop).start(X)
    session.ask()
    session.tell(np.full(20, -1))  # says nothing about the type of the labels
    assert len(session.state.declined) == 20
    session.tell(names[y[session.ask()]])
    assert session.classifier.classes_.tolist() == np.unique(names[y[session.classifier.queried_]]).tolist()


@pytest.mark.parametrize(
    "estimator",
    [
        LabelSpreading(gamma=0.5),
        SelfTrainingClassifier(LogisticRegression()),
        make_pipeline(StandardScaler(), LabelSpreading(gamma=0.5)),
    ],
    ids=["graph", "self-training", "pipeline"],
)
def test_scikit_learns_own(estimator, flat_data):
    X, y = flat_data
    loop = ActiveLearningClassifier(estimator, Margin(), n_initial=9, query_size=4, n_rounds=2, random_state=0)
    assert loop.fit(X, y).score(X, y) > 0.5
    last = loop.estimator_[-1] if isinstance(loop.estimator_, Pipeline) else loop.estimator_
    assert len(last.transduction_) == len(X)  # it was given the whole pool


def test_a_network_on_a_dataset(make_net, flat_data):
    X, y = flat_data
    given: ClassVar[list] = []

    class SemiSupervised(NeuralNetClassifier):
        uses_unlabelled = True

        def fit(self, X, y):
            given.append(([X[i] for i in range(len(X))], y))
            rows = np.flatnonzero(y >= 0)
            return super().fit(torch.stack([X[int(i)][0] for i in rows]), y[rows])

    params = {k: v for k, v in make_net(max_epochs=1).get_params(deep=False).items() if not k.startswith("_")}
    loop = ActiveLearningClassifier(SemiSupervised(**params), n_initial=9, query_size=4, n_rounds=1, random_state=0)
    loop.fit(TensorDataset(torch.from_numpy(X)), y)
    items, codes = given[-1]
    assert [int(code) for _, code in items] == codes.tolist()
    assert (codes >= 0).sum() == 13


@pytest.mark.parametrize("reinitialize", [False, True])
def test_fixmatch_in_a_resumed_loop(reinitialize, flat_data, tmp_path, same_run):
    X, y = flat_data
    net = FixMatchClassifier(
        MLP, module__n_features=5, module__n_classes=3, augment="tabular", batch_size=8, mu=2, max_epochs=2, verbose=0
    )
    loop = ActiveLearningClassifier(
        net, Margin(), n_initial=9, query_size=4, n_rounds=2, reinitialize=reinitialize, random_state=0
    )
    for round in (0, 1):
        stopped = clone(loop).set_params(
            checkpoint=tmp_path, callbacks=[lambda loop, row, n=round: 0 / (row["round"] - n)]
        )
        with pytest.raises(ZeroDivisionError):
            stopped.fit(X, y)
    resumed, whole = clone(loop).set_params(checkpoint=tmp_path).fit(X, y), clone(loop).fit(X, y)
    same_run(resumed, whole)
    np.testing.assert_array_equal(resumed.predict_proba(X), whole.predict_proba(X))
