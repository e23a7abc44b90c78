"""
Label one sample at a time with NTK look-ahead
==============================================

Look-ahead strategies ask a natural question: *if I labelled this sample and trained again, how much would change?*
Taken literally, that needs one training for every sample in the pool. NTK look-ahead answers with the tangent kernel
instead, and trains nothing. Here you see how well it predicts the result of a real training, and how
:class:`skal.LinearizedLearner` uses it to label one sample at a time. At the end we compare it with random choice.
"""

# %%
# The network and the data
# ------------------------
# The theory is for the squared loss, so we train the network with :class:`skal.nets.SquaredLoss`. With
# ``train_split=None`` skorch trains on all labels; by default it would set a fifth of them aside, and we have few.
# ``warm_start=True`` continues training from the current weights, and ``batch_size=-1`` puts all labels into one batch.

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.stats import spearmanr
from skorch import NeuralNetClassifier

from skal import ActiveLearner, LinearizedLearner, NTKLookahead
from skal.datasets import load
from skal.nets import MLP, SquaredLoss

digits = load("digits")


def make_net(seed):
    torch.manual_seed(seed)  # for the initial weights
    return NeuralNetClassifier(
        MLP,
        module__n_features=64,
        module__hidden=256,
        criterion=SquaredLoss,
        optimizer=torch.optim.Adam,
        lr=0.003,
        max_epochs=80,
        batch_size=-1,
        train_split=None,
        warm_start=True,
        verbose=0,
    ).initialize()


def split(seed, n_initial=50, n_pool=500):
    order = np.random.default_rng(seed).permutation(len(digits.X_train))
    return np.split(order[: n_initial + n_pool], [n_initial])


initial, pool = split(seed=0)
X_initial, y_initial = digits.X_train[initial], digits.y_train[initial]

# %%
# What would this label change?
# -----------------------------
# For every candidate, ``mlmoc``, the criterion of the paper, assumes that the predicted label is the true one. It sums
# how far the network's outputs on the pool would move after training with it. ``retraining="retrain"`` really trains,
# with a copy of the network for every candidate. ``retraining="linearized"`` (the default) replaces the network by its
# first-order expansion in the parameters, whose training has a closed form. For fifteen candidates we can afford both.

learner = ActiveLearner(make_net(0), X_training=X_initial, y_training=y_initial)
few = digits.X_train[pool[:15]]
foretold = NTKLookahead(criterion="mlmoc").scores(learner, few)
real = NTKLookahead(criterion="mlmoc", retraining="retrain", random_state=0).scores(learner, few)

fig, ax = plt.subplots(figsize=(4.5, 4))
ax.scatter(foretold, real)
ax.axline((0, 0), slope=1, color="grey", linestyle=":", label="equal")
ax.set(xlabel="change of outputs, foretold", ylabel="change of outputs, after training")
ax.legend()
fig.tight_layout()
print(f"rank correlation: {spearmanr(foretold, real).statistic:.2f}")

# %%
# For a query only the order counts, and the order is nearly the same. The amounts differ more: a network of this width,
# trained for a limited time, is not the same as its linearisation. :doc:`/guide/ntk_lookahead` has the formulas, and
# shows that the two get closer as networks get wider.
#
# One label at a time
# -------------------
# :class:`skal.LinearizedLearner` goes a step further. ``teach`` does not train the network: it adds the sample to the
# kernel. Predictions and further queries come from the linearised network, trained on all labels so far. We use a torch
# hook to count how many samples pass through the network in each query.

learner = LinearizedLearner(make_net(0), NTKLookahead(criterion="mlmoc"), X_initial, y_initial)
net = learner.estimator
accuracies = {f"network, {len(initial)} labels": net.score(digits.X_test, digits.y_test)}

passed, counts, asked = [], [], []
hook = net.module_.register_forward_hook(lambda module, inputs, outputs: passed.append(len(outputs)))
rest = pool
for _ in range(30):
    passed.clear()
    index, sample = learner.query(digits.X_train[rest])
    counts.append(sum(passed))
    learner.teach(sample, digits.y_train[rest[index]])  # here you would ask somebody
    asked.append(rest[index[0]])
    rest = np.delete(rest, index)
hook.remove()

print(f"samples through the network: {counts[0]} in the first query, {max(counts[1:])} at most in a later one")
print(f"in one training: {net.max_epochs} epochs of {len(learner.y_training)}, forward and backward")
print(f"in one query by real retraining: {len(pool)} such trainings")

# %%
# Only the first query reads the pool. Later ones update the matrices that it left. These are the images that were asked
# for, in this order. The criterion may ask for one class several times in a row: nothing in it prevents that.

fig, axes = plt.subplots(3, 10, figsize=(7, 2.6))
for ax, i in zip(axes.flat, asked, strict=True):
    ax.imshow(digits.X_train[i, 0], cmap="gray_r")
    ax.set_title(digits.y_train[i], fontsize=9)
    ax.axis("off")
fig.tight_layout()

# %%
# Retrain when it suits you
# -------------------------
# The network still has its first weights; only its linearised version has learnt. ``retrain`` trains the network on all
# labels and starts again from there.

name = f"{len(learner.y_training)} labels"
accuracies[f"linearised network, {name}"] = learner.score(digits.X_test, digits.y_test)
before = learner.predict(digits.X_test)
learner.retrain()
accuracies[f"retrained network, {name}"] = net.score(digits.X_test, digits.y_test)
for what, accuracy in accuracies.items():
    print(f"{what}: accuracy {accuracy:.3f}")
print(f"same prediction before and after: {np.mean(before == net.predict(digits.X_test)):.3f} of the test images")

# %%
# Is it better than random?
# -------------------------
# ``retrain_every=15`` retrains automatically after every fifteen labels; the next query then reads the pool again.
# Look-ahead and random choice start from the same labels and weights and use the same learner. We try two starting
# points, 20 labels and 50 labels, with three seeds each.


def run(seed, n_initial, at_random):
    initial, rest = split(seed, n_initial)
    learner = LinearizedLearner(
        make_net(seed),
        NTKLookahead(criterion="mlmoc"),
        digits.X_train[initial],
        digits.y_train[initial],
        retrain_every=15,
    )
    generator = np.random.default_rng(seed)
    curve = [learner.score(digits.X_test, digits.y_test)]
    for step in range(1, 31):
        index = [generator.integers(len(rest))] if at_random else learner.query(digits.X_train[rest])[0]
        learner.teach(digits.X_train[rest[index]], digits.y_train[rest[index]])
        rest = np.delete(rest, index)
        if step % 5 == 0:
            curve.append(learner.score(digits.X_test, digits.y_test))
    return curve


fig, axes = plt.subplots(1, 2, figsize=(7, 3.5))
for ax, n_initial in zip(axes, [20, 50], strict=True):
    ends = {}
    for name in ["random", "look-ahead"]:
        curves = np.array([run(seed, n_initial, name == "random") for seed in range(3)])
        labels = n_initial + 5 * np.arange(curves.shape[1])
        (line,) = ax.plot(labels, curves.mean(axis=0), marker="o", label=f"{name}, mean")
        ax.plot(labels, curves.T, color=line.get_color(), alpha=0.3)
        ends[name] = curves[:, -1]
    ax.set(title=f"start with {n_initial} labels", xlabel="labels", ylabel="accuracy on test images")
    points = 100 * (ends["look-ahead"] - ends["random"])
    print(f"start with {n_initial}: look-ahead minus random at the end, in points, by seed: {points.round(1)}")
axes[0].legend()
fig.tight_layout()

# %%
# With a start of 50 labels, look-ahead is ahead of random here. With a start of 20 it is not: it wins for some seeds
# and loses for others. Three seeds prove nothing either way, and other data or another network may reverse the order.
# The cost does not depend on the seed: between two trainings the pool is read once, however many labels you ask for. To
# compare strategies properly, see :doc:`/guide/benchmark`.
