"""Somebody labels between the rounds: some of them, later, or not at all."""

import pickle
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetBinaryClassifier, NeuralNetClassifier
from skorch.callbacks import Callback

from skal import ActiveLearningClassifier, DynamicAL
from skal.config import config_context
from skal.exceptions import InvalidParameterError, InvalidTypeError
from skal.nets import MLP
from skal.strategies import ALBL, Margin


def test_same_as_fit(make_loop, flat_data, same_run):
    X, y = flat_data
    loop = make_loop()
    session = loop.start(X)
    while not session.done:
        session.tell(y[session.ask()])
    assert session.ask().tolist() == []
    same_run(loop, make_loop().fit(X, y))


def test_the_parameters_of_a_session_are_fixed(make_loop, flat_data, same_run):
    X, y = flat_data
    loop = make_loop()
    session = loop.start(X)
    session.tell(y[session.ask()])
    loop.set_params(query_size=7, n_rounds=1, reinitialize=True)
    session.run(lambda indices, samples: y[indices])
    same_run(loop, make_loop().fit(X, y))


def test_asking_twice(make_loop, flat_data):
    X, y = flat_data
    session = make_loop().start(X)
    assert session.ask().tolist() == session.ask().tolist()
    session.tell(y[session.ask()])
    assert session.ask().tolist() == session.ask().tolist()


def test_declined_samples_are_not_asked_again(make_loop, flat_data):
    X, y = flat_data
    loop = make_loop(n_rounds=None)
    session = loop.start(X)
    declined = []
    for indices in session:
        labels = [None if i % 5 == 0 else int(y[i]) for i in indices]
        declined += [i for i in indices.tolist() if i % 5 == 0]
        session.tell(labels)
    assert sorted(declined) == list(range(0, 60, 5))
    assert sorted(loop.queried_) == [i for i in range(60) if i % 5]
    assert [i for row in loop.history_ for i in row["declined"]] == declined


def test_a_part_of_a_batch(make_loop, flat_data):
    X, y = flat_data
    loop = make_loop()
    session = loop.start(X)
    session.tell(y[session.ask()])
    asked = session.ask()
    session.tell({int(asked[2]): int(y[asked[2]])})
    assert loop.queried_[9:].tolist() == [asked[2]]
    assert len(loop.history_[-1]["metrics"]) == 1
    assert not set(session.ask().tolist()) & {int(asked[2])}
    asked = session.ask()
    session.tell(y[asked[:2]], indices=asked[:2], end_round=False)
    assert session.ask().tolist() == asked[2:].tolist()
    assert len(loop.history_) == 2
    session.tell(y[asked[2:]])
    assert loop.queried_[10:].tolist() == asked.tolist()
    assert len(loop.history_) == 3


def test_labels_keep_the_order_in_which_they_were_asked_for(make_loop, flat_data):
    """Strategies that learn from a batch, such as ALBL, find it at the end of the labelled set as they returned it."""
    X, y = flat_data
    loop = make_loop(ALBL(random_state=0))
    session = loop.start(X)
    session.tell(y[session.ask()])
    asked = session.ask()
    session.tell({int(i): int(y[i]) for i in asked[::-1]})
    assert loop.queried_[9:].tolist() == asked.tolist()


def test_nothing_told_trains_nothing(make_loop, flat_data):
    X, y = flat_data
    loop = make_loop()
    session = loop.start(X)
    with pytest.raises(InvalidParameterError, match=r"Call ask\(\) first"):
        session.tell([None] * 9)
    session.ask()
    session.tell([None] * 9)
    with pytest.raises(NotFittedError, match="not fitted"):
        loop.predict(X)
    asked = session.ask()
    assert len(asked) == 4  # a further draw at random
    session.tell(y[asked])
    epochs = len(loop.estimator_.history)
    session.ask()
    session.tell([None] * 4)
    assert len(loop.estimator_.history) == epochs
    assert loop.history_[-1]["train_score"] == loop.history_[-2]["train_score"]


def test_wrong_answers_change_nothing(make_loop, flat_data):
    X, y = flat_data
    session = make_loop(classes=[0, 1, 2]).start(X)
    asked = session.ask()
    before = asdict(session.state)
    for labels, indices, error, message in [
        (y[asked][:3], None, InvalidParameterError, "one for each of the 9 samples"),
        ([0, 1], [int(asked[0]), int(asked[0])], InvalidParameterError, "distinct"),
        ([0], [next(i for i in range(60) if i not in asked)], InvalidParameterError, "among those asked for"),
        ([7] * 9, None, InvalidParameterError, "'classes'"),
        (["a", 1] + [None] * 7, None, InvalidTypeError, "one kind"),
    ]:
        with pytest.raises(error, match=message):
            session.tell(labels, indices)
        assert asdict(session.state) == before
    session.tell(y[asked])
    with pytest.raises(InvalidParameterError, match="nothing is asked for"):
        session.tell(y[asked])


def binary_net():
    net = NeuralNetBinaryClassifier(torch.nn.Linear, module__in_features=5, module__out_features=1, train_split=None)
    return net.set_params(verbose=0, max_epochs=1)


NAMES = np.array(["a", "b", "c", "d"])
TOO_MANY = {
    "integers": (lambda make: make(), np.arange(4)),
    "strings": (lambda make: make(), NAMES),
    "classes": (lambda make: make(n_classes=2), np.array([0, 1, 2])),
    "binary": (lambda make: binary_net(), NAMES[:3]),
    "pipeline": (lambda make: make_pipeline(StandardScaler(), make()), NAMES),
}


@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
@pytest.mark.parametrize("kind", TOO_MANY)
def test_a_label_without_an_output_changes_nothing(kind, first, make_net, flat_data, tmp_path):
    """Refused before it is saved: the session at hand and the one in the folder can go on."""
    X, _ = flat_data
    make, names = TOO_MANY[kind]
    estimator = make(lambda **settings: make_net(**({"max_epochs": 1} | settings)))

    def loop():
        return ActiveLearningClassifier(
            estimator, n_initial=8, query_size=4, n_rounds=1, checkpoint=tmp_path, random_state=0
        )

    session = loop().start(X)
    asked = session.ask()
    if not first:
        session.tell(np.resize(names[:-1], len(asked)))
        asked = session.ask()
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    before = asdict(session.state)
    draws = torch.get_rng_state()
    with pytest.raises(InvalidParameterError, match=f"an output for each of the {len(names)} classes"):
        session.tell(np.resize(names, len(asked)))
    assert torch.equal(torch.get_rng_state(), draws)
    assert asdict(session.state) == before
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files
    good = np.resize(names[:-1], len(asked))
    assert session.tell(good).state.labels[-len(asked) :] == good.tolist()
    session.close()
    loop().start(X).run(lambda indices, samples: np.resize(names[:-1], len(indices)))


def test_classes_beyond_the_outputs_are_refused_with_the_first_label(make_loop, flat_data):
    X, _ = flat_data
    session = make_loop(classes=[0, 1, 2, 3]).start(X)
    asked = session.ask()
    with pytest.raises(InvalidParameterError, match=r"each of the 4 classes\. Got 3 outputs"):
        session.tell([0], indices=asked[:1], end_round=False)
    assert session.ask().tolist() == asked.tolist()


class TakeSizesFromData(Callback):
    def on_train_begin(self, net, X=None, y=None, **_):
        net.set_params(module__n_features=X.shape[1])


def sized_in_training(n_classes, **params):
    net = NeuralNetClassifier(MLP, module__n_features=1, module__n_classes=n_classes, train_split=None, verbose=0)
    net.set_params(criterion=torch.nn.CrossEntropyLoss, callbacks=[TakeSizesFromData()], max_epochs=1)
    return ActiveLearningClassifier(net, n_initial=9, query_size=4, n_rounds=1, random_state=0, **params)


def test_a_network_whose_sizes_come_with_the_training(flat_data):
    """It cannot be tried before, and is not refused for that."""
    X, y = flat_data
    assert sized_in_training(3).fit(X, y).predict(X).shape == (60,)


def test_too_few_outputs_that_only_the_training_shows(flat_data):
    X, y = flat_data
    with pytest.raises(InvalidParameterError, match=r"each of the 3 classes\. Got fewer outputs"):
        sized_in_training(2).fit(X, y)
    with pytest.raises(InvalidParameterError, match=r"each of the 3 classes\. Got 2 outputs"):
        sized_in_training(2, classes=[0, 1, 2]).fit(X, np.minimum(y, 1))


@pytest.mark.parametrize("labels", [None, 3, "abc", np.array(1), iter([1, 2])])
def test_labels_that_are_no_list(labels, make_loop, flat_data):
    X, y = flat_data
    session = make_loop().start(X)
    asked = session.ask()
    with pytest.raises(InvalidTypeError, match="'labels' parameter of tell"):
        session.tell(labels)
    with pytest.raises(InvalidTypeError, match="an oracle must return its labels"):
        session.run(lambda indices, samples: labels)
    with pytest.raises(InvalidTypeError, match="'oracle' parameter of ActiveLearningClassifier"):
        session.run(y)
    assert session.ask().tolist() == asked.tolist()
    session.tell(y[asked])


def test_a_training_that_fails_keeps_the_labels(flat_data):
    X, y = flat_data

    class Moody(LogisticRegression):
        fail = True

        def fit(self, X, y):
            if Moody.fail:
                raise RuntimeError("not today")
            return super().fit(X, y)

    loop = ActiveLearningClassifier(Moody(), n_initial=9, query_size=4, n_rounds=1, random_state=0)
    session = loop.start(X)
    asked = session.ask()
    with pytest.raises(RuntimeError, match="not today"):
        session.tell(y[asked[:8]], asked[:8])
    assert len(session.state.labelled) == 8
    with pytest.raises(InvalidParameterError, match="nothing is asked for"):
        session.tell({int(asked[8]): 0})  # the round is closed: its last sample went back to the pool
    Moody.fail = False
    assert len(session.ask()) == 4
    assert len(loop.queried_) == 8


@pytest.mark.parametrize("when", ["asked", "partly told", "trained"])
def test_a_session_survives_a_restart(when, make_loop, flat_data, tmp_path, same_run):
    X, y = flat_data
    loop = make_loop(checkpoint=tmp_path)
    session = loop.start(X)
    session.tell(y[session.ask()])
    if when != "trained":
        asked = session.ask()
    if when == "partly told":
        session.tell([int(y[asked[0]]), None], indices=asked[:2], end_round=False)
        asked = asked[2:]
    del session, loop

    loop = make_loop(checkpoint=tmp_path)
    session = loop.start(X)
    assert loop.predict(X).shape == (60,)
    assert len(loop.queried_) == (10 if when == "partly told" else 9)
    if when != "trained":
        assert session.ask().tolist() == asked.tolist()
    session.run(lambda indices, samples: y[indices])
    if when == "partly told":
        assert len(loop.queried_) == 20
        assert len(loop.history_[1]["declined"]) == 1
    else:
        same_run(loop, make_loop().fit(X, y))


def test_labels_survive_a_death_during_training(make_loop, flat_data, tmp_path, same_run):
    X, y = flat_data

    class Mortal(type(make_loop().estimator)):
        dying = True

        def fit_loop(self, *args, **kwargs):
            if Mortal.dying:
                raise SystemExit
            return super().fit_loop(*args, **kwargs)

    def mortal_loop():
        params = make_loop().estimator.get_params(deep=False)
        net = Mortal(**{name: value for name, value in params.items() if not name.startswith("_")})
        return make_loop(checkpoint=tmp_path).set_params(estimator=net)

    session = mortal_loop().start(X)
    with pytest.raises(SystemExit):
        session.tell(y[session.ask()])
    session.close()
    Mortal.dying = False
    resumed = mortal_loop()
    session = resumed.start(X)
    session.run(lambda indices, samples: y[indices])
    same_run(resumed, make_loop().fit(X, y))


def test_where_a_session_stands(make_loop, flat_data):
    X, y = flat_data
    session = make_loop(n_rounds=1).start(X, eval_set=(X, y))
    session.tell([None, *y[session.ask()[1:]].tolist()])
    asked = session.ask()
    session.tell([2], asked[:1], end_round=False)
    text, html = repr(session), session._repr_html_()
    counts = {k: session.state.labels.count(k) for k in range(3)}
    shown = ", ".join(f"{k} {n}" for k, n in sorted(counts.items(), key=lambda item: (-item[1], item[0])))
    score = f"eval score {session.state.history[-1]['eval_score']:.3f}"
    assert text == (
        f"LabellingSession(labelled: 9, open: 3, declined: 1, rounds: 1, classes: {shown}, last score: {score})"
    )
    for part in ("labelled", "<td style='text-align:left'>9</td>", score):
        assert part in html
    session.tell(y[asked[1:]])
    assert "stopped: budget" in repr(session)


@pytest.mark.parametrize("kind", ["images", "colours", "text", "frame", "dict", "nothing"])
def test_show(kind, tmp_path):
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.switch_backend("Agg")
    images = np.random.default_rng(0).random((12, 3 if kind == "colours" else 1, 8, 8)).astype(np.float32)
    X = {
        "images": images,
        "colours": images,
        "text": [f"a text {i}" for i in range(12)],
        "frame": pd.DataFrame({"a": range(12), "b": range(12)}),
        "dict": {"x": np.arange(12), "z": np.arange(12)},
        "nothing": np.zeros((12, 2)),
    }[kind]
    session = ActiveLearningClassifier(
        make_pipeline(CountVectorizer(), LogisticRegression()), n_initial=7, n_rounds=0, initial="random"
    ).start(X)
    if kind != "nothing":
        session.ask()
    figure = session.show()
    if kind in ("images", "colours"):
        drawn = [ax.get_title() for ax in figure.axes if ax.get_title()]
    else:
        drawn = [
            cell.get_text().get_text() for place, cell in figure.axes[0].tables[0].get_celld().items() if not place[1]
        ]
    assert sorted(drawn) == (sorted(map(str, session.ask())) if kind != "nothing" else [""])
    assert len(session.show([3]).axes) == 1
    with pytest.raises(InvalidTypeError, match="'indices' parameter of show"):
        session.show([12])
    plt.close("all")


@pytest.mark.parametrize("estimator", ["network", "linear"])
def test_the_cost_of_a_query_of_a_fitted_loop(estimator, make_loop, flat_data):
    X, y = flat_data
    loop = make_loop(n_rounds=1)
    if estimator == "linear":
        loop.set_params(estimator=LogisticRegression())
    with pytest.raises(NotFittedError):
        loop.cost(X)
    loop.fit(X, y)
    cost = loop.cost(X)
    assert cost.passes == Margin().cost(loop, X, 4).passes == Margin().cost(loop.learner_, X, 4).passes
    # four samples pass twice, to see whether outputs are steady
    assert cost.passes.forward == (64 if estimator == "network" else 0)
    if estimator == "network":
        assert DynamicAL().cost(loop, X, 4).passes.backward == 60 + 13
    assert pickle.loads(pickle.dumps(loop)).predict(X).tolist() == loop.predict(X).tolist()


def test_the_bar_begins_where_the_session_does(make_loop, flat_data, tmp_path, capsys):
    X, y = flat_data
    with make_loop(checkpoint=tmp_path).start(X) as session:
        session.tell(y[session.ask()])
    with config_context(progress=True):
        make_loop(checkpoint=tmp_path).start(X).close()
    assert "9/21" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("method", "value"),
    [
        ("relabel", [1, 2]),
        ("add", iter([1])),
        ("decline", 3),
        ("undecline", None),
        ("to_csv", 3),
        ("to_csv", "no such folder/labels.csv"),
        ("to_json", None),
        ("to_json", "."),
    ],
)
def test_what_is_no_list_of_ids_and_no_path_is_named(method, value, make_loop, flat_data):
    X, y = flat_data
    session = make_loop().start(X)
    session.tell(y[session.ask()])
    with pytest.raises((InvalidTypeError, InvalidParameterError), match=f"parameter of {method}"):
        getattr(session, method)(value)


@pytest.mark.parametrize(
    ("params", "name"),
    [
        ({"estimator": None}, "estimator"),
        ({"estimator": LogisticRegression}, "estimator"),
        ({"scoring": "acuracy"}, "scoring"),
        ({"scoring": 3}, "scoring"),
        ({"checkpoint": ""}, "checkpoint"),
    ],
)
def test_what_no_loop_can_work_with_is_named(params, name, flat_data):
    X, y = flat_data
    loop = ActiveLearningClassifier(**({"estimator": LogisticRegression()} | params))
    with pytest.raises((InvalidTypeError, InvalidParameterError), match=f"'{name}' parameter of Active"):
        loop.fit(X, y)


def test_ids_that_are_no_list(flat_data):
    with pytest.raises(InvalidTypeError, match="'ids' parameter of start"):
        ActiveLearningClassifier(LogisticRegression(), n_rounds=None).start(flat_data[0], ids=3)
