"""Several people: agreement and reliability beside kept libraries, and what the journal makes of their answers."""

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import cohen_kappa_score

from skal import ActiveLearningClassifier
from skal.loop._consensus import cohen_kappa, dawid_skene, krippendorff_alpha, weigh_answers


def simulate(n=200, people=(0.95, 0.8, 0.55), n_classes=4, missing=0.3, seed=0):
    """True classes, and answers of people who are right so often."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(n_classes, size=n)
    other = (truth[:, None] + rng.integers(1, n_classes, size=(n, len(people)))) % n_classes
    answers = np.where(rng.random((n, len(people))) < people, truth[:, None], other)
    return truth, np.where(rng.random(answers.shape) < missing, -1, answers)


def test_cohen_is_scikit_learns():
    _, answers = simulate()
    both = (answers[:, 0] >= 0) & (answers[:, 2] >= 0)
    expected = cohen_kappa_score(answers[both, 0], answers[both, 2])
    assert cohen_kappa(answers[:, 0], answers[:, 2]) == pytest.approx(expected, abs=1e-12)
    assert np.isnan(cohen_kappa(np.array([-1, 0]), np.array([0, -1])))
    assert cohen_kappa(np.array([1, 1]), np.array([1, 1])) == 1.0


def test_krippendorff_is_nltks():
    from nltk.metrics.agreement import AnnotationTask

    _, answers = simulate()
    rows = [(f"p{p}", str(i), str(answers[i, p])) for i, p in np.argwhere(answers >= 0)]
    counts = pd.Series([row[1] for row in rows]).value_counts()
    rows = [row for row in rows if counts[row[1]] > 1]  # one answer agrees with nobody
    assert krippendorff_alpha(answers) == pytest.approx(AnnotationTask(rows).alpha(), abs=1e-12)
    assert np.isnan(krippendorff_alpha(np.array([[0, -1], [-1, 1]])))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of pandas, about how crowd-kit calls it
def test_dawid_and_skene_are_crowd_kits():
    from crowdkit.aggregation.classification.dawid_skene import DawidSkene

    _, answers = simulate()
    answers = answers[(answers >= 0).any(axis=1)]
    rows = [{"task": i, "worker": p, "label": answers[i, p]} for i, p in np.argwhere(answers >= 0)]
    theirs = DawidSkene(n_iter=100, tol=0).fit(pd.DataFrame(rows))
    posterior, confusion = dawid_skene(answers, 4, prior=0.0, n_iter=100, tol=0)
    np.testing.assert_allclose(posterior, theirs.probas_.sort_index()[range(4)].to_numpy(), atol=1e-6)
    # ours are a step behind theirs
    errors = theirs.errors_  # by worker and what was said; the columns are the true classes
    for p in range(3):
        np.testing.assert_allclose(confusion[p].T, errors.loc[p].loc[range(4), range(4)].to_numpy(), atol=1e-4)


def test_the_reliable_are_believed():
    """One who is nearly always right outvotes two who are not, more often than a plain majority lets her."""
    truth, answers = simulate(n=400, people=(0.4, 0.97, 0.4), missing=0.0)
    said = {i: {p: int(answers[i, p]) for p in range(3)} for i in range(len(truth))}
    weighed = weigh_answers(said)
    keys = list(weighed)
    votes = [max((list(said[i].values())), key=list(said[i].values()).count) for i in keys]
    assert np.mean([weighed[i] == truth[i] for i in keys]) > np.mean(np.array(votes) == truth[keys]) + 0.1


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "project"


def start(folder):
    X = np.random.default_rng(0).normal(size=(30, 2))
    return ActiveLearningClassifier(LogisticRegression(), n_rounds=None, checkpoint=folder, random_state=0).start(X)


def test_the_journal_keeps_every_answer_with_its_author(folder):
    with start(folder) as session:
        keys = session.ids[:4].tolist()
        session.answer(dict(zip(keys, ["cat", "dog", "cat", None], strict=True)), annotator="ann")
        session.answer({keys[0]: "cat", keys[1]: "cat"}, annotator="ben")
        session.answer({keys[1]: "cat"}, annotator="eve")
        assert session.disputes() == [keys[1]]
        assert session.labels().set_index("id")["label"].to_dict() == dict(zip(keys, ["cat"] * 3, strict=False))
        session.relabel({keys[1]: "dog"}, annotator="eve")
        session.answer({keys[1]: "cat"}, annotator="ann")  # too late: it is decided
    lines = [json.loads(line) for line in (folder / "labels.jsonl").read_text().splitlines()]
    assert [(line["annotator"], line["event"]) for line in lines].count(("ann", "answer")) == 5
    with start(folder) as again:
        assert again.disputes() == []
        assert again.labels().set_index("id")["label"][keys[1]] == "dog"
        answers = again.answers()
        assert len(answers) == 7
        found = answers[answers["id"] == keys[1]].set_index("annotator")
        assert found["label"].to_dict() == {"ben": "cat", "eve": "cat", "ann": "cat"}
        assert found["decided"].all()
        assert again.state.declined == [again.ids.tolist().index(keys[3])]


def test_reliability_reaches_labels_and_training_alike_however_the_folder_is_opened(folder):
    truth, answers = simulate(n=30, people=(0.97, 0.5), n_classes=2, missing=0.0)
    with start(folder) as session:
        keys = session.ids.tolist()
        for p, name in enumerate(["careful", "careless"]):
            session.answer({key: f"c{answers[i, p]}" for i, key in enumerate(keys)}, annotator=name)
        session.relabel({keys[i]: f"c{truth[i]}" for i in range(10)})
        session.ask()
        trained = dict(zip(session.state.labelled, session.state.labels, strict=True))
    with start(folder) as again:
        known = {keys.index(row.id): row.label for row in again.labels().itertuples()}
        assert trained == known == dict(zip(again.state.labelled, again.state.labels, strict=True))


@pytest.mark.parametrize("labels", [["cat"], {"nobody": "cat"}])
def test_answers_are_by_known_ids(folder, labels):
    with start(folder) as session, pytest.raises((TypeError, ValueError), match=r"ids|dict"):
        session.answer(labels, annotator="ann")
    with start(folder) as session, pytest.raises(TypeError, match="Say who answers"):
        session.answer({}, annotator="")
