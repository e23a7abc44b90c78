"""
The first batch, without a single label: NPC
============================================

Most strategies need a trained network, so somebody has to label a first batch chosen at random. NPC needs no labels and
no training: it looks at how a network *with its initial weights* tells samples apart. Here NPC chooses a first batch on
two-dimensional data, where you can see what it does. Then we compare it with random batches, by the quantity that NPC
maximises and by the accuracy after training. At the end you see the warning for a kernel that cannot tell batches
apart.
"""

# %%
# A network that has seen nothing
# -------------------------------
# ``initialize()`` gives the network its weights and trains nothing. ``warm_start=True`` makes the later training start
# from these weights; without it skorch would draw new ones, and NPC would have judged another network. With
# ``train_split=None`` skorch trains on all labels, instead of setting a fifth of them aside.

import textwrap
import warnings

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from sklearn.datasets import make_moons
from skorch import NeuralNetClassifier

from skal import NPC, ActiveLearner
from skal.datasets import load
from skal.exceptions import RankDeficiencyWarning
from skal.nets import MLP
from skal.tangent import tangent_kernel


def make_net(seed, n_features, n_classes, hidden=(256, 256)):
    torch.manual_seed(seed)
    return NeuralNetClassifier(
        MLP,
        module__n_features=n_features,
        module__n_classes=n_classes,
        module__hidden=hidden,
        criterion=torch.nn.CrossEntropyLoss,
        optimizer=torch.optim.Adam,
        lr=0.01,
        max_epochs=40,
        batch_size=-1,
        train_split=None,
        warm_start=True,
        verbose=0,
    ).initialize()


def moons(seed):
    X, y = make_moons(800, noise=0.15, random_state=seed)
    X = X.astype("float32")
    return X[:300], y[:300], X[300:], y[300:]


X, y, X_test, y_test = moons(seed=0)
net = make_net(0, n_features=2, n_classes=2)
learner = ActiveLearner(net, NPC(random_state=0))
print("labels:", learner.y_training)

# %%
# Three batches of ten
# --------------------
# The tangent kernel :math:`\Theta(x, x')` is the inner product of the network's gradients at two samples: it is large
# where a training step on one sample moves the output for the other. If two samples of a batch are nearly the same to
# the network, the batch's kernel matrix is nearly singular, and its smallest eigenvalue :math:`\lambda_{\min}` is
# nearly zero. NPC looks for the batch with the largest :math:`\lambda_{\min}`. By default it takes the best of many
# random batches; with ``search="greedy"`` it adds one sample after the other.

kernel = tangent_kernel(net, X)


def smallest_eigenvalue(batch):
    return np.linalg.eigvalsh(kernel[np.ix_(batch, batch)])[0]


generator = np.random.default_rng(0)
random_batches = [generator.choice(len(X), size=10, replace=False) for _ in range(300)]
best, _ = learner.query(X, n_instances=10)
greedy, _ = ActiveLearner(net, NPC(search="greedy")).query(X, n_instances=10)

fig, axes = plt.subplots(1, 3, figsize=(7, 2.9), sharex=True, sharey=True)
shown = {"a random batch": random_batches[0], "NPC, best of random": best, "NPC, greedy": greedy}
for ax, (name, batch) in zip(axes, shown.items(), strict=True):
    ax.scatter(*X.T, s=6, color="lightgrey")
    ax.scatter(*X[batch].T, s=30, c=y[batch], cmap="coolwarm", edgecolor="black")
    ax.set(title=f"{name}\n$\\lambda_{{\\min}}$ = {smallest_eigenvalue(batch):.3g}", xlabel="first feature")
    ax.title.set_fontsize(10)
axes[0].set_ylabel("second feature")
fig.tight_layout()

# %%
# The colours are the classes, which NPC does not see. The greedy batch is spread over the data, without close
# neighbours. How unusual are such batches? The histogram shows the eigenvalues of many random ones.

fig, ax = plt.subplots(figsize=(6, 3.2))
ax.hist([smallest_eigenvalue(batch) for batch in random_batches], bins=40, color="lightgrey", label="random batches")
ax.axvline(smallest_eigenvalue(best), color="C1", label="NPC, best of random")
ax.axvline(smallest_eigenvalue(greedy), color="C0", label="NPC, greedy")
ax.set(xlabel=r"$\lambda_{\min}$ of the batch's kernel", ylabel="number of batches")
ax.legend(loc=(0.52, 0.62))
fig.tight_layout()

# %%
# By default NPC draws as many batches as the pool has samples (a thousand at most) and takes the best, so it ends in
# the tail of this histogram, although the draws are different ones. Greedy search can go beyond it.
#
# Does it help?
# -------------
# A larger eigenvalue promises that the training loss falls faster, for wide networks and squared loss. It promises
# nothing about the accuracy on new samples. So we measure it: five seeds, each with its own data and weights, on moons
# with ten labels and on digits with twenty, with three random batches per seed to compare with.

digits = load("digits")


def some_digits(seed):
    rows = np.random.default_rng(seed).choice(len(digits.X_train), size=300, replace=False)
    return digits.X_train[rows], digits.y_train[rows], digits.X_test, digits.y_test


def accuracy(batch, data, seed, sizes):
    X, y, X_test, y_test = data
    learner = ActiveLearner(make_net(seed, *sizes))
    learner.teach(X[batch], y[batch])  # the first labels, and the first training
    return learner.score(X_test, y_test)


rows = []
for task, make_data, sizes, n in [("moons", moons, (2, 2), 10), ("digits", some_digits, (64, 10), 20)]:
    for seed in range(5):
        data = make_data(seed)
        generator = np.random.default_rng(seed)
        batches = [("random", generator.choice(len(data[0]), size=n, replace=False)) for _ in range(3)]
        for name, strategy in {"NPC": NPC(random_state=seed), "NPC, greedy": NPC(search="greedy")}.items():
            batches.append((name, ActiveLearner(make_net(seed, *sizes), strategy).query(data[0], n_instances=n)[0]))
        rows += [(task, seed, name, accuracy(batch, data, seed, sizes)) for name, batch in batches]
results = pd.DataFrame(rows, columns=["task", "seed", "batch", "accuracy"])

fig, axes = plt.subplots(1, 2, figsize=(7, 3.4))
for ax, task in zip(axes, ["moons", "digits"], strict=True):
    for name, color, marker in [("random", "grey", "o"), ("NPC", "C1", "s"), ("NPC, greedy", "C0", "D")]:
        part = results[(results.task == task) & (results.batch == name)]
        ax.scatter(part.seed, part.accuracy, color=color, marker=marker, label=name)
    ax.set(title=task, xlabel="seed", ylabel="accuracy on test samples", xticks=range(5))
fig.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncols=3)
fig.tight_layout(rect=(0, 0.08, 1, 1))
results.groupby(["task", "batch"]).accuracy.agg(["mean", "std", "min"]).round(3)

# %%
# On the moons NPC's batches have the higher means. On digits the three means hardly differ. In both, seeds differ more
# than strategies do, and for some seeds a random batch is the best of all. Five seeds prove nothing, but they are a
# warning: a better conditioned kernel does not have to give a better classifier.
#
# A kernel that is too small
# --------------------------
# The paper's kernel uses only the last layer. With :math:`d` inputs of that layer such a kernel has a rank of at most
# :math:`d + 1`. For larger batches every :math:`\lambda_{\min}` is zero, so it cannot tell batches apart. NPC says so.

narrow = make_net(0, n_features=2, n_classes=2, hidden=(256, 8))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    _, _, metrics = ActiveLearner(narrow, NPC(kernel="last_layer", random_state=0)).query(
        X, n_instances=10, return_metrics=True
    )
assert [w.category for w in caught] == [RankDeficiencyWarning]
print(textwrap.fill(str(caught[0].message), 100))
print("eigenvalues:", metrics)

# %%
# The default, the pseudo-NTK, uses all layers and has no such problem with the same network.

_, _, metrics = ActiveLearner(narrow, NPC(random_state=0)).query(X, n_instances=10, return_metrics=True)
print("eigenvalue:", metrics[0])

# %%
# :doc:`/guide/npc` has the theory and the cost, and says when NPC fails. To run the whole loop from zero labels, pass
# ``n_initial=0`` to :class:`skal.loop.ActiveLearningClassifier`.
