"""Labels of any type go in, come out the same, and are numbers in between."""

from dataclasses import asdict
from itertools import permutations

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression

from skal import ActiveLearningClassifier
from skal.exceptions import InvalidParameterError, InvalidTypeError
from skal.loop._labels import class_names, common_dtype, read_labels
from skal.nets import SquaredLoss

NAMES = np.array(["cow", "ant", "bee"])
TYPES = {
    "strings": NAMES,
    "objects": NAMES.astype(object),
    "small integers": np.array([0, 1, 2], dtype=np.uint8),
    "floats": np.array([0.0, 1.0, 2.0]),
    "negative integers": np.array([-1, 0, 1]),
}


@pytest.mark.parametrize("network", [True, False])
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("kind", TYPES)
def test_any_type(kind, given, network, make_loop, flat_data):
    X, y = flat_data
    labels = TYPES[kind][y]
    classes = TYPES[kind] if given else None
    loop = make_loop(net={"lr": 0.5}, n_initial=20, classes=classes, n_rounds=1)
    if not network:
        loop.set_params(estimator=LogisticRegression())
    loop.fit(X, labels)
    assert loop.classes_.tolist() == sorted(TYPES[kind].tolist())
    predicted = loop.predict(X)
    assert set(predicted.tolist()) <= set(labels.tolist())
    assert predicted.dtype.kind == ("U" if labels.dtype.kind == "O" else labels.dtype.kind)
    proba = loop.predict_proba(X)
    np.testing.assert_allclose(proba.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(loop.classes_[proba.argmax(axis=1)], predicted)
    if kind == "small integers":
        assert loop.classes_.dtype == np.uint8


def test_booleans(flat_data, make_loop):
    X, y = flat_data
    loop = make_loop(net={"n_classes": 2}).fit(X, y == 1)
    assert loop.classes_.tolist() == [False, True]
    assert loop.predict(X).dtype == bool


def test_the_encoding_of_a_network_never_changes(flat_data, make_loop):
    """A class that turns up later takes the next output, though it sorts before the others."""
    X, y = flat_data
    order = np.argsort(y, kind="stable")[::-1]  # bee, then ant, then cow
    seen = []

    def in_order(learner, X_pool, n_instances):
        seen.append(learner.y_training.tolist())
        return np.arange(n_instances)

    make_loop(in_order, initial=np.arange(10), query_size=20, n_rounds=2).fit(X[order], NAMES[y][order])
    assert seen[0] == [0] * 10
    assert seen[1] == [0] * 20 + [1] * 10


def test_the_first_training_settles_what_integers_are():
    assert class_names(np.array([1, -1, 0]), None, network=True).tolist() == [-1, 0, 1]
    assert class_names(np.array([1, -1, 0, 3]), None, network=True, known=[-1, 1]).tolist() == [-1, 1, 0, 3]
    assert class_names(np.array([1, 3]), None, network=True, known=[0, 1]).tolist() == [0, 1, 2, 3]
    with pytest.raises(InvalidParameterError, match=r"Got \[-1\] instead. List all labels in 'classes'"):
        class_names(np.array([1, 0, -1]), None, network=True, known=[0, 1])
    assert class_names(np.array([1, 0, -1]), [-1, 0, 1], network=True).tolist() == [-1, 0, 1]
    assert class_names(np.array([1, 0]), [-1, 0, 1], network=True, known=[0, 1]).tolist() == [0, 1, -1]
    assert class_names(np.array([1, 0, -1]), None, network=False, known=[0, 1]).tolist() == [-1, 0, 1]


@pytest.mark.parametrize("trained", [False, True])
def test_a_mistyped_label_costs_no_memory(trained, flat_data, make_loop):
    X, y = flat_data
    session = make_loop().start(X)
    if trained:
        session.tell(y[session.ask()])
    asked = session.ask()
    with pytest.raises(InvalidParameterError, match="Got 3000000000 instead"):
        session.tell([3_000_000_000], indices=asked[:1])
    assert session.ask().tolist() == asked.tolist()


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
@pytest.mark.parametrize("first", [1, 2, 3])
def test_outputs_classes_and_columns_are_in_one_order(first, order, flat_data, make_loop, tmp_path):
    """String labels first seen in every order, with one to three of them in the first training."""
    X, y = flat_data
    by_class = [np.flatnonzero(y == k) for k in order]
    rounds = [np.concatenate([rows[:4] for rows in by_class[:first]]), *(rows[:4] for rows in by_class[first:])]
    loop = make_loop(net={"max_epochs": 20, "lr": 0.5}, initial=rounds[0], checkpoint=tmp_path, n_rounds=4)
    session = loop.start(X)
    session.tell(NAMES[y[session.ask()]])
    for rows in rounds[1:]:
        session.ask()
        session.add({session.ids[i]: NAMES[y[i]] for i in rows})
        session.tell({})
    session.close()
    assert sorted(loop.classes_) == sorted(NAMES)
    assert loop.classes_[: min(first, 3)].tolist() == sorted(NAMES[list(order[:first])])
    again = make_loop(net={"max_epochs": 20, "lr": 0.5}, initial=rounds[0], checkpoint=tmp_path, n_rounds=4)
    again.start(X, readonly=True)
    for fitted in (loop, again):
        np.testing.assert_array_equal(fitted.classes_[fitted.estimator_.predict(X)], fitted.predict(X))
        np.testing.assert_array_equal(fitted.classes_[fitted.predict_proba(X).argmax(axis=1)], fitted.predict(X))
        np.testing.assert_allclose(fitted.predict_proba(X), fitted.estimator_.predict_proba(X), rtol=1e-6)
    np.testing.assert_array_equal(loop.predict_proba(X), again.predict_proba(X))


def test_a_negative_label_later_is_refused(flat_data, make_loop, tmp_path):
    """It would give every output another meaning."""
    X, y = flat_data
    loop = make_loop(checkpoint=tmp_path)
    session = loop.start(X)
    session.tell(y[session.ask()])
    asked = session.ask()
    before = asdict(session.state)
    with pytest.raises(InvalidParameterError, match="'classes'"):
        session.tell([-1, 0, 1, 2])
    assert asdict(session.state) == before
    session.tell(y[asked])
    assert loop.classes_.tolist() == [0, 1, 2]


def test_negative_labels_from_the_start_keep_their_outputs(flat_data, make_loop, tmp_path):
    X, _ = flat_data
    loop = make_loop(checkpoint=tmp_path)
    session = loop.start(X)
    session.ask()
    session.tell([5, -1] + [5] * 7)
    session.ask()
    session.tell([0, -1, 0, 5])
    session.close()
    names = np.array([-1, 5, 0])
    for fitted in (loop, make_loop(checkpoint=tmp_path).start(X).classifier):
        np.testing.assert_array_equal(fitted.predict(X), names[fitted.estimator_.predict(X)])


def test_spare_outputs_are_never_predicted(flat_data, make_loop):
    X, y = flat_data
    loop = make_loop(net={"n_classes": 7}).fit(X, NAMES[y])
    assert loop.predict_proba(X).shape == (60, 3)
    np.testing.assert_allclose(loop.predict_proba(X).sum(axis=1), 1, rtol=1e-6)
    assert set(loop.predict(X)) <= set(NAMES)
    numbers = make_loop(net={"n_classes": 7}).fit(X, y)
    assert numbers.classes_.tolist() == list(range(7))


def test_too_few_outputs(flat_data, make_loop):
    X, y = flat_data
    with pytest.raises(InvalidParameterError, match="an output for each of the 3 classes"):
        make_loop(net={"n_classes": 2}, initial="stratified").fit(X, y)
    with pytest.raises(InvalidParameterError, match="an output for each of the 3 classes"):
        make_loop(net={"n_classes": 2}, classes=[0, 1, 2]).fit(X, np.minimum(y, 1))


def test_a_label_that_is_no_class(flat_data, make_loop):
    X, y = flat_data
    with pytest.raises(InvalidParameterError, match=r"'classes'.*\[2\]"):
        make_loop(classes=[0, 1]).fit(X, y)


def test_classes_not_seen_have_probability_zero(flat_data):
    X, y = flat_data
    loop = ActiveLearningClassifier(LogisticRegression(), n_initial=20, n_rounds=0, classes=[0, 1, 2, 3]).fit(X, y)
    assert (loop.predict_proba(X)[:, 3] == 0).all()


def test_probabilities_of_a_squared_loss_network_are_a_softmax(flat_data, make_loop):
    X, y = flat_data
    loop = make_loop(net={"criterion": SquaredLoss}).fit(X, y)
    outputs = torch.as_tensor(loop.estimator_.predict_proba(X))  # skorch knows no nonlinearity for this loss
    np.testing.assert_allclose(loop.predict_proba(X), torch.softmax(outputs, dim=1), rtol=1e-5)
    assert loop.predict(X).tolist() == outputs.argmax(dim=1).tolist()


def test_read_labels():
    assert read_labels(torch.tensor([1, 2])) == ([1, 2], "<i8")
    assert read_labels([1, None, 2.0]) == ([1, None, 2.0], "<f8")
    assert read_labels(np.array([1.0, np.nan])) == ([1.0, None], "<f8")
    assert read_labels(pd.Series(["a", None, pd.NA], dtype="string")) == (["a", None, None], "<U0")
    assert read_labels(pd.Series(["a", "b"], dtype="category"))[0] == ["a", "b"]
    assert read_labels(np.ma.array([1, 2], mask=[True, False]))[0] == [None, 2]
    assert read_labels([None]) == ([None], None)
    assert read_labels([]) == ([], None)
    for bad in (["a", 1], [object()], [True, 2], [(1, 2), (3, 4)]):
        with pytest.raises(InvalidTypeError, match="all of one kind"):
            read_labels(bad)
    with pytest.raises(ValueError, match="continuous"):
        read_labels([0.5])
    with pytest.raises(ValueError, match="infinity"):
        read_labels([1.0, np.inf])


def test_common_dtype():
    assert common_dtype(None, "<i8") == "<i8"
    assert common_dtype("|u1", "<f8") == "|u1"
    assert common_dtype("|u1", "<i8") == "<i8"
    with pytest.raises(InvalidTypeError, match="one kind"):
        common_dtype("<i8", "<U0")


def test_a_spare_output_that_takes_everything(make_loop, flat_data):
    """What is left of a row is scaled to sum to 1; of nothing, all classes get the same."""
    X, _ = flat_data
    loop = make_loop(net={"n_classes": 3}, initial=[0, 1], n_rounds=0).fit(X, ["b", "a"] * 30)
    for bias, expected in [([1.0, 0.0, 0.0], [np.e, 1]), ([0.0, 0.0, 500.0], [1, 1])]:
        last = [layer for layer in loop.estimator_.module_.modules() if isinstance(layer, torch.nn.Linear)][-1]
        last.weight.data.zero_()
        last.bias.data = torch.tensor(bias)
        np.testing.assert_allclose(loop.predict_proba(X), [np.array(expected) / sum(expected)] * 60, rtol=1e-6)


def test_stratified_start():
    labels = np.array([0] * 70 + [1] * 29 + [2])

    def draw(n, seed):
        loop = ActiveLearningClassifier(
            DummyClassifier(), "random", initial="stratified", n_initial=n, n_rounds=0, random_state=seed
        )
        return loop.fit(np.arange(100.0).reshape(-1, 1), labels).queried_.tolist()

    drawn = draw(10, seed=1)
    assert np.bincount(labels[drawn]).tolist() == [7, 2, 1]
    assert len(set(drawn)) == 10
    assert len(draw(2, seed=0)) == 2
    assert draw(10, seed=1) == drawn != draw(10, seed=2)
