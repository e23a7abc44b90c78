"""
First steps
===========

Labels cost time and money. With active learning the model says which samples it wants labelled next. This tutorial
explains what a pool, a query and a label are. It runs the loop with modAL's ``ActiveLearner`` and a small skorch
network, and compares a strategy with random choice over a few seeds. At the end you change one line to use skal's own
learner.
"""

# %%
# A pool and a few labels
# -----------------------
# The *pool* is the set of samples that nobody has labelled yet. Here the samples are handwritten digits, 8 by 8 pixels
# each. In fact all labels are known. We pretend that they are not, and look one up only when the strategy asks for it.
#
# ``import skal`` is all that modAL needs to run on a current scikit-learn: see :doc:`/guide/modal`.

# sphinx_gallery_thumbnail_number = 2
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from modAL.models import ActiveLearner
from skorch import NeuralNetClassifier

import skal
from skal import datasets, nets
from skal.strategies import RandomSampling, entropy

digits = datasets.load("digits")
X, y = digits.X_train, digits.y_train
order = np.random.default_rng(0).permutation(len(X))
labelled, pool = order[:20], order[20:]
print(f"{len(labelled)} labelled samples, {len(pool)} in the pool, {len(digits.X_test)} for testing")

# %%
# A network that trains on few labels
# -----------------------------------
# skorch turns a torch module into a scikit-learn classifier. Two settings matter. The module returns logits, so the
# criterion is ``CrossEntropyLoss``. And without ``train_split=None`` skorch would set a fifth of the labels aside for
# validation; we have too few for that.


def make_net():
    return NeuralNetClassifier(
        nets.MLP,
        module__n_features=64,
        module__n_classes=10,
        criterion=torch.nn.CrossEntropyLoss,
        optimizer=torch.optim.Adam,
        lr=0.005,
        batch_size=64,
        iterator_train__shuffle=True,
        max_epochs=30,
        train_split=None,
        verbose=0,
    )


torch.manual_seed(0)
learner = ActiveLearner(make_net(), query_strategy=entropy, X_training=X[labelled], y_training=y[labelled])
print(f"accuracy with {len(learner.y_training)} labels: {learner.score(digits.X_test, digits.y_test):.3f}")

# %%
# One query
# ---------
# A *query strategy* looks at the learner and the pool, and returns positions in the pool. ``entropy`` chooses the
# samples whose predicted class probabilities are spread most evenly: the network is least sure about these.

indices, samples = learner.query(X[pool], n_instances=4)

figure, axes = plt.subplots(2, 4, figsize=(7, 3.6), layout="constrained", height_ratios=[1.3, 1])
figure.suptitle("What entropy asks for first, and what the network predicts")
axes[1, 0].set_ylabel("probability")
for column, (image, proba) in enumerate(zip(samples, learner.predict_proba(samples), strict=True)):
    axes[0, column].imshow(image[0], cmap="gray_r")
    axes[0, column].set_axis_off()
    axes[1, column].bar(range(10), proba)
    axes[1, column].set(xlabel="class", ylim=(0, 1), xticks=range(0, 10, 3))

# %%
# Now somebody must say what these images show: each gets a *label*. ``teach`` adds these labels to the old ones and
# trains a new network on all of them. Labelled samples leave the pool.

answers = y[pool[indices]]
learner.teach(samples, answers)
pool = np.delete(pool, indices)
print(f"the answers were {answers}; now {len(learner.y_training)} labels are known and {len(pool)} are not")

# %%
# The loop
# --------
# Query, label, teach, repeat: that is the whole loop. We repeat it for several seeds. A seed decides the first labels
# and the initial weights, so both strategies of a seed start from the same network. ``RandomSampling`` gets a
# generator, which advances from query to query; an integer seed would make the same draw every time.


def learning_curve(strategy, seed, n_rounds=6, batch=20, learner_class=ActiveLearner):
    order = np.random.default_rng(seed).permutation(len(X))
    labelled, pool = order[:20], order[20:]
    torch.manual_seed(seed)
    learner = learner_class(make_net(), query_strategy=strategy, X_training=X[labelled], y_training=y[labelled])
    scores = [learner.score(digits.X_test, digits.y_test)]
    for _ in range(n_rounds):
        indices, samples = learner.query(X[pool], n_instances=batch)
        learner.teach(samples, y[pool[indices]])
        pool = np.delete(pool, indices)
        scores.append(learner.score(digits.X_test, digits.y_test))
    return scores


seeds = range(5)
n_labels = np.arange(20, 141, 20)
curves = {
    "random": np.array([learning_curve(RandomSampling(random_state=np.random.default_rng(s)), s) for s in seeds]),
    "entropy": np.array([learning_curve(entropy, s) for s in seeds]),
}

figure, ax = plt.subplots(figsize=(7, 4.2), layout="constrained")
for (name, scores), colour in zip(curves.items(), ["black", "tab:orange"], strict=True):
    ax.plot(n_labels, scores.T, color=colour, alpha=0.3, linewidth=1)
    ax.plot(n_labels, scores.mean(axis=0), color=colour, marker="o", label=f"{name}, mean of {len(seeds)} seeds")
ax.set(xlabel="labels", ylabel="test accuracy", title="Thin lines: single seeds")
ax.legend()
ax.grid(alpha=0.3)

# %%
# Is entropy better than random? The table shows the difference between the two, in percentage points. Each row compares
# two runs with the same start.

difference = 100 * (curves["entropy"] - curves["random"])
print(pd.DataFrame(difference, index=[f"seed {s}" for s in seeds], columns=n_labels).round(1).to_string())

# %%
# The signs differ from seed to seed: with a single seed you would have believed its row. These five seeds do not show
# that entropy is better than random. There are reasons why it may not be: with few labels the network is often sure
# where it should not be, and the samples of one batch may all show the same confusion. But five seeds do not settle the
# question either way; :doc:`/guide/benchmark` says how to test it.
#
# skal's learner
# --------------
# :class:`skal.ActiveLearner` is a subclass of modAL's with the same signature, so you can use it in place of the class
# above.

again = learning_curve(entropy, seed=0, learner_class=skal.ActiveLearner)
print("same curve as with modAL's learner:", np.allclose(again, curves["entropy"][0]))

# %%
# Why use it, then? It calls every strategy exactly once per query; modAL 0.4.2 calls a strategy twice if it returns
# only indices. It returns the strategy's scores if you ask for them. And it can add labels without training, for
# answers that come one at a time.

order = np.random.default_rng(0).permutation(len(X))
learner = skal.ActiveLearner(make_net(), entropy, X_training=X[order[:20]], y_training=y[order[:20]])
X_pool, y_pool = X[order[20:]], y[order[20:]]
indices, samples, scores = learner.query(X_pool, n_instances=3, return_metrics=True)
print("entropies of the chosen samples:", scores.round(2))
for index in indices[:2]:
    learner.teach(X_pool[[index]], y_pool[[index]], fit=False)  # an answer has come in
learner.teach(X_pool[indices[2:]], y_pool[indices[2:]])  # the last one: train on everything
print(len(learner.y_training), "labels")
