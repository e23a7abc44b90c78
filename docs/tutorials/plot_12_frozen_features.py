"""
Frozen features: label 100 samples, not 1,000
=============================================

Today much labelling starts from embeddings: a foundation model turns texts or images into vectors, and a small
classifier on top learns the task. Then few labels go a long way, if they are the right ones. This tutorial compares a
random start and uncertainty with coverage strategies, which choose the first batch before anything is labelled.

With the environment variable ``SKAL_DATA_HOME`` set to a folder that has ``banking77.npz`` (sentence embeddings of
bank customers' questions) or ``cifar10_features.npz`` (features of a network trained on ImageNet), the tutorial runs on
those, otherwise on the digits that come with scikit-learn.
"""

# %%
# Features, whatever they come from
# ---------------------------------
# ``load`` reads any ``NAME.npz`` with four arrays. A pool of 3,000 keeps this page quick.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import LogisticRegression

from skal import ActiveLearningClassifier, datasets
from skal.strategies import MaxHerding, RandomSampling, UHerding


def load_features():
    for name in ("banking77", "cifar10_features"):
        try:
            return name, datasets.load(name)
        except (FileNotFoundError, ValueError):
            continue
    return "digits", datasets.load("digits")


name, data = load_features()
rows = np.random.default_rng(0).permutation(len(data.X_train))[:3000]
X, y = data.X_train[rows].reshape(len(rows), -1), data.y_train[rows]
X_test, y_test = data.X_test.reshape(len(data.X_test), -1), data.y_test
n_classes = len(np.unique(y))
print(f"{name}: {len(X)} samples, {X.shape[1]} features, {n_classes} classes")

# %%
# One loop, four ways to choose
# -----------------------------
# Every run has as many labels as classes, or 20, in the first batch and in each of three more. ``initial`` is the
# strategy of the first batch: it sees no label and no trained classifier.

size = max(20, n_classes)


def run(query_strategy, initial):
    classifier = LogisticRegression(C=10.0, max_iter=300)
    settings = {"n_initial": size, "query_size": size, "n_rounds": 3, "random_state": 0}
    loop = ActiveLearningClassifier(classifier, query_strategy, initial=initial, **settings)
    return loop.fit(X, y, eval_set=(X_test, y_test))


loops = {
    "random": run(RandomSampling(), "random"),
    "margin after a random start": run("margin", "random"),
    "MaxHerding": run(MaxHerding(), MaxHerding()),
    "UHerding after MaxHerding": run(UHerding(), MaxHerding()),
}

# %%
# What the labels were worth
# --------------------------

fig, ax = plt.subplots()
for label, loop in loops.items():
    scores = [row["eval_score"] for row in loop.history_]
    ax.plot([row["n_labelled"] for row in loop.history_], scores, marker="o", label=label)
    print(f"{label:30s}", "  ".join(f"{score:.3f}" for score in scores))
ax.set(xlabel="labels", ylabel="test accuracy", title=name)
ax.legend()

# %%
# One run is one draw: `skal.bench` has paired seeds and tests for a real comparison.
#
# Let skal decide
# ---------------
# ``"auto"`` is the strategy that we recommend. The loop says what it chose, and why.

auto = run("auto", "auto")
print(auto.initial_)
print(auto.query_strategy_, f"{auto.history_[-1]['eval_score']:.3f}")
