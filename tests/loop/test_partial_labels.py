"""Samples of which some labels are known: told, kept, trained on, scored."""

import json

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import f1_score
from sklearn.multioutput import MultiOutputClassifier
from skorch import NeuralNetClassifier
from torch import nn

from skal import ActiveLearningClassifier, ActiveLearningRegressor
from skal.exceptions import AdjustedInputWarning, InvalidParameterError, InvalidTypeError
from skal.labelling import export_labels
from skal.nets import KnownLabelsLoss

generator = np.random.default_rng(0)
X = generator.normal(size=(40, 3)).astype(np.float32)
WHOLE = (X + 0.5 * generator.normal(size=X.shape) > 0).astype(int)
PART = np.where(generator.random(WHOLE.shape) < 0.3, -1, WHOLE)  # −1: nobody has said
SETTINGS = {"n_initial": 20, "query_size": 5, "n_rounds": 1, "initial": "random", "random_state": 0}


class Linear(nn.Linear):
    """Three logits, all zero before the training."""

    def __init__(self):
        super().__init__(3, 3)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)


def make_net(**settings):
    settings = {"criterion": nn.BCEWithLogitsLoss, "max_epochs": 1, "batch_size": -1, "lr": 1.0} | settings
    return NeuralNetClassifier(Linear, train_split=None, verbose=0, **settings)


def make_loop(estimator=None, **settings):
    return ActiveLearningClassifier(make_net() if estimator is None else estimator, "margin", **SETTINGS | settings)


def test_the_loss_is_the_mean_over_what_is_known():
    outputs, targets = torch.from_numpy(X).double(), torch.from_numpy(PART).double()
    p, known = 1 / (1 + np.exp(-X.astype(float))), PART >= 0
    losses = -np.where(PART == 1, np.log(p), np.log(1 - p)) * known
    assert float(KnownLabelsLoss()(outputs, targets)) == pytest.approx(losses.sum() / known.sum())
    assert float(KnownLabelsLoss(reduction="sum")(outputs, targets)) == pytest.approx(losses.sum())
    np.testing.assert_allclose(KnownLabelsLoss(reduction="none")(outputs, targets).numpy(), losses, atol=1e-12)
    whole = torch.from_numpy(WHOLE).double()
    assert KnownLabelsLoss()(outputs, whole) == nn.BCEWithLogitsLoss()(outputs, whole)


def test_a_network_learns_from_what_is_known():
    loop = make_loop(n_rounds=0).fit(X, PART)
    rows = loop.queried_
    known = PART[rows] >= 0
    residual = np.where(known, PART[rows] - 0.5, 0) / known.sum()  # one step from zero weights, at p = 1/2
    weight, bias = residual.T @ X[rows], residual.sum(axis=0)
    np.testing.assert_allclose(loop.predict_proba(X), 1 / (1 + np.exp(-(X @ weight.T + bias))), rtol=1e-5)


def test_others_learn_from_what_is_known_as_a_whole():
    estimator = MultiOutputClassifier(LogisticRegression())
    with pytest.warns(AdjustedInputWarning, match="known in part, from which MultiOutputClassifier cannot learn"):
        loop = make_loop(estimator).fit(X, PART)
    rows = loop.queried_[(PART[loop.queried_] >= 0).all(axis=1)]
    assert 0 < len(rows) < len(loop.queried_) == 25
    expected = estimator.fit(X[rows], PART[rows])
    np.testing.assert_array_equal(loop.predict(X), expected.predict(X))
    assert (loop.learner_.y_training == -1).any()  # a strategy sees all samples that have been asked for


def spell(row, how):
    """A row with −1 in other words."""
    if how == "NaN":
        return np.where(row < 0, np.nan, row)
    return [None if value < 0 else int(value) for value in row] if how == "None" else row


@pytest.mark.parametrize("how", ["NaN", "None", "-1", "masked"])
def test_unknown_can_be_said_in_four_ways(how, tmp_path):
    loop = make_loop(checkpoint=tmp_path, n_rounds=0)
    with loop.start(X, ids=range(40)) as session:
        asked = session.ask()
        rows = PART[asked]
        told = np.ma.masked_less(rows, 0) if how == "masked" else [spell(row, how) for row in rows]
        session.tell(told)
        kept = {row["id"]: row["label"] for row in session.labels().to_dict("records")}
    some = (rows >= 0).any(axis=1)
    assert kept == {int(i): row.tolist() for i, row in zip(asked[some], rows[some], strict=True)}
    assert session.state.declined == asked[~some].tolist()  # nothing is known of it: no label
    lines = [json.loads(line) for line in (tmp_path / "labels.jsonl").read_text().splitlines()]
    assert {line["id"]: line["label"] for line in lines if line["label"] is not None} == kept
    with make_loop(checkpoint=tmp_path, n_rounds=0).start(X, ids=range(40)) as session:
        assert {row["id"]: row["label"] for row in session.labels().to_dict("records")} == kept
        first = int(asked[some][0])
        session.relabel({first: WHOLE[first]})
        assert session.labels().set_index("id")["label"][first] == WHOLE[first].tolist()
    choices = {
        task["data"]["skal_id"]: task["annotations"][0]["result"][0]["value"]["choices"]
        for task in json.loads(export_labels(tmp_path, to="label-studio"))
    }
    last = int(asked[some][-1])
    assert choices[last] == [str(k) for k in np.flatnonzero(PART[last] == 1)]


def test_labels_from_before_the_start_and_samples_without_any():
    rows = PART.copy()
    rows[10:] = -1
    session = make_loop().start(X, rows)
    assert sorted(session.labels()["id"]) == [i for i in range(10) if (rows[i] >= 0).any()]
    rows = PART.copy()
    rows[::2] = -1
    loop = make_loop(n_rounds=None).fit(X, rows)  # asks for those that have something to say
    assert sorted(loop.queried_) == np.flatnonzero((rows >= 0).any(axis=1)).tolist()


def test_scores_count_what_is_known_as_a_whole():
    loop = make_loop(scoring="f1_micro").fit(X, PART, eval_set=(X, PART))
    whole = (PART >= 0).all(axis=1)
    score = f1_score(WHOLE[whole], loop.predict(X[whole]), average="micro")
    assert loop.history_[-1]["eval_score"] == pytest.approx(score)


def test_a_label_that_nobody_knows_is_named():
    rows = PART.copy()
    rows[:, 1] = np.where(rows[:, 1] == 1, -1, rows[:, 1])
    with pytest.raises(InvalidParameterError, match=r"none of the 40 samples with label 1"):
        make_loop().fit(X, rows)
    with pytest.raises(InvalidParameterError, match=r"indicator matrix.*Got \[2\] instead"):
        make_loop().fit(X, np.where(PART < 0, 2, PART))


NUMBERS = np.random.default_rng(2).normal(size=(60, 4))
TARGETS = {
    "classes": (
        lambda **given: ActiveLearningClassifier(LogisticRegression(), **given),
        (NUMBERS[:, 0] > 0).astype(int),
    ),
    "words": (
        lambda **given: ActiveLearningClassifier(LogisticRegression(), **given),
        np.where(NUMBERS[:, 0] > 0, "cat", "dog"),
    ),
    "numbers": (lambda **given: ActiveLearningRegressor(Ridge(), **given), NUMBERS[:, 0]),
    "rows": (
        lambda **given: ActiveLearningClassifier(MultiOutputClassifier(LogisticRegression()), **given),
        (NUMBERS[:, :3] > 0).astype(int),
    ),
}


@pytest.mark.parametrize("form", ["array", "list"])
@pytest.mark.parametrize("target", TARGETS)
def test_what_is_masked_is_unknown(target, form):
    """To fit, to an oracle's caller, to tell and to start: it is never asked for, or declined, and never learnt."""
    make, y = TARGETS[target]
    given = {"n_initial": 12, "query_size": 16, "n_rounds": None, "random_state": 0}
    given |= {"initial": "random", "query_strategy": "random_sampling"}
    hidden = np.arange(60) < 20

    def mask(rows):
        some = np.ma.array(y[rows], mask=np.broadcast_to(hidden[rows].reshape(-1, *[1] * (y.ndim - 1)), y[rows].shape))
        return list(some) if form == "list" else some

    everything = np.arange(60)
    told = make(**given).fit(NUMBERS, oracle=lambda indices, samples: mask(indices))
    assert sorted(told.queried_) == list(range(20, 60))
    assert sorted(i for row in told.history_ for i in row["declined"]) == list(range(20))
    if (target, form) != ("numbers", "list"):  # there it is NaN, which scikit-learn wants refused
        assert sorted(make(**given).fit(NUMBERS, mask(everything)).queried_) == list(range(20, 60))
    with make(**given).start(NUMBERS, mask(everything)) as session:
        assert session.labels()["id"].tolist() == list(range(20, 60))
        asked = session.ask()
        assert set(asked) <= set(range(20))
        assert session.tell(mask(asked)).state.declined == asked.tolist()
    if form == "array":
        with pytest.raises(InvalidTypeError, match=r"'eval_set'.*labels for all of its samples.*masked labels"):
            make(**given).fit(NUMBERS, y, eval_set=(NUMBERS, mask(everything)))


@pytest.mark.parametrize("target", TARGETS)
def test_all_labels_may_be_taken_back_after_a_training(target):
    make, y = TARGETS[target]
    settings = {"query_strategy": "random_sampling", "initial": "random", "n_rounds": None, "random_state": 0}
    with make(n_initial=10, query_size=4, **settings).start(NUMBERS) as session:
        session.tell(y[session.ask()])
        keys = session.labels()["id"].tolist()
        session.decline(keys).undecline(keys)
        assert len(session.labels()) == 0
        asked = session.ask()
        assert len(asked) == 4
        session.tell(y[asked])
        assert len(session.ask()) == 4
        assert len(session.labels()) == 4
