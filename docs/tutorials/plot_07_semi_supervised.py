"""
Learn from the unlabelled pool too: FixMatch in the loop
========================================================

Active learning has a pool of unlabelled samples, and an ordinary classifier ignores it while training. A
semi-supervised classifier learns from it. Here we train the same network on the same few labels, with and without the
pool. Then you see how DARP corrects pseudo-labels whose classes have the wrong sizes, and how a semi-supervised network
runs in the active-learning loop.
"""

# %%
# Data and augmentations
# ----------------------
# FixMatch shows the network every pool sample twice: once slightly changed, once strongly changed. Where the network is
# sure of the weak version, its answer becomes the label of the strong one (a *pseudo-label*). Which changes keep the
# class depends on the data. For points in the plane we add noise, and pass two callables. They say "neighbours are of
# one class", which suits the two moons well. We set the amount of noise and the learning rate after a few trials, so
# expect less from a first try on your own data.

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from sklearn.datasets import make_moons

from skal import ActiveLearningClassifier
from skal.nets import MLP
from skal.semi_supervised import FixMatchClassifier, darp
from skal.strategies import Margin, RandomSampling


def weak(x):
    return x + 0.1 * torch.randn_like(x)


def strong(x):
    return x + 0.3 * torch.randn_like(x)


def make_net(lambda_u, random_state=None):
    return FixMatchClassifier(
        MLP,
        module__n_features=2,
        module__n_classes=2,
        module__hidden=(64, 64),
        augment=(weak, strong),
        lambda_u=lambda_u,  # weight of the pseudo-labels: 0 leaves the pool out
        lr=0.3,
        batch_size=16,
        iterations_per_epoch=300,
        max_epochs=1,
        ema_decay=0.99,  # predictions come from averaged weights; for a short training a short average
        verbose=0,
        random_state=random_state,
    )


def moons(seed):
    X, y = make_moons(1000, noise=0.1, random_state=seed)
    X = X.astype("float32")
    return X[:500], y[:500], X[500:], y[500:]


# %%
# The same labels, with and without the pool
# ------------------------------------------
# :class:`skal.semi_supervised.FixMatchClassifier` is a skorch classifier. ``fit`` takes all samples, with −1 in ``y``
# for those without a label, as in scikit-learn. ``lambda_u=0`` is the same training (network, steps, augmentation,
# averaging) without the pool.

rows, shown = [], {}
for seed in range(3):
    X, y, X_test, y_test = moons(seed)
    generator = np.random.default_rng(seed)
    labelled = np.concatenate([generator.choice(np.flatnonzero(y == c), size=4, replace=False) for c in (0, 1)])
    y_partly = np.full(len(y), -1)
    y_partly[labelled] = y[labelled]
    nets = {"labels alone": make_net(0.0, seed), "labels and pool": make_net(1.0, seed)}
    scores = {name: net.fit(X, y_partly).score(X_test, y_test) for name, net in nets.items()}
    rows.append({"seed": seed} | scores)
    shown[seed] = X, y_partly, nets, scores
pd.DataFrame(rows).round(3)

# %%
# How much the pool helps differs from seed to seed. The maps below are for seed 1. Grey points have no label.

X, y_partly, nets, scores = shown[1]
fig, axes = plt.subplots(1, 2, figsize=(7, 3.2), sharex=True, sharey=True)
side = np.linspace(-1.6, 2.6, 80), np.linspace(-1.1, 1.6, 60)
grid = np.stack([g.ravel() for g in np.meshgrid(*side)], axis=1).astype("float32")
for ax, (name, net) in zip(axes, nets.items(), strict=True):
    proba = net.predict_proba(grid)[:, 1].reshape(60, 80)
    ax.contourf(*side, proba, levels=np.linspace(0, 1, 11), cmap="coolwarm", alpha=0.5)
    ax.scatter(*X[y_partly == -1].T, s=4, color="grey")
    ax.scatter(*X[y_partly >= 0].T, s=50, c=y_partly[y_partly >= 0], cmap="coolwarm", edgecolor="black")
    ax.set(title=f"{name}: accuracy {scores[name]:.3f}", xlabel="first feature")
axes[0].set_ylabel("second feature")
fig.tight_layout()

# %%
# DARP: classes of the right size
# -------------------------------
# Pseudo-labels inherit the network's mistakes. If the network favours a class, so do the pseudo-labels, and training on
# them can make it worse. :func:`skal.semi_supervised.darp` moves a table of probabilities so that classes have the
# sizes they should have: equal ones, unless you give a target. Sure rows are expensive to move, unsure ones are cheap.

before = np.array(
    [
        [0.97, 0.02, 0.01],
        [0.90, 0.05, 0.05],
        [0.60, 0.35, 0.05],
        [0.55, 0.10, 0.35],
        [0.45, 0.30, 0.25],
        [0.10, 0.30, 0.60],
    ]
)
after = darp(before)
table = pd.DataFrame(
    np.hstack([before, after]), columns=pd.MultiIndex.from_product([["before", "after"], ["a", "b", "c"]])
)
table.loc["sum"] = table.sum()
table.round(2)

# %%
# Every class now adds up to two samples. The sure rows kept their class; unsure ones moved to the classes that were too
# small. In training, pass ``FixMatchClassifier(..., darp="uniform")``, or an array of shares. Use it only if you know
# the shares. The moons are of equal size, but we leave it out here.
#
# In the loop
# -----------
# :class:`skal.loop.ActiveLearningClassifier` passes the whole pool, with −1 where there is no label yet, to any
# estimator with ``uses_unlabelled = True``, such as this one. We start with two labels of each class
# (``initial="stratified"`` reads all of ``y`` for that) and add two rounds of four. ``reinitialize=True`` trains from
# scratch each time, so wrong pseudo-labels of one round do not carry over to the next.

strategies = {"random": RandomSampling(), "margin": Margin()}
fig, axes = plt.subplots(1, 3, figsize=(7, 3), sharey=True)
for seed, ax in enumerate(axes):
    X, y, X_test, y_test = moons(seed)
    for name, strategy in strategies.items():
        loop = ActiveLearningClassifier(
            make_net(1.0),
            strategy,
            initial="stratified",
            n_initial=4,
            query_size=4,
            n_rounds=2,
            reinitialize=True,
            random_state=seed,
        )
        history = pd.DataFrame(loop.fit(X, y, eval_set=(X_test, y_test)).history_)
        ax.plot(history.n_labelled, history.eval_score, marker="o", label=name)
        print(f"seed {seed}, {name}: accuracy", history.eval_score.round(3).tolist())
    ax.set(title=f"seed {seed}", xlabel="labels", xticks=history.n_labelled)
axes[0].set_ylabel("accuracy on test points")
axes[0].legend()
fig.tight_layout()

# %%
# Each pair of curves starts from the same labels and the same weights. Margin, which asks near the boundary, ends ahead
# for some seeds but not for all. A curve can fall although labels were added: a network that is sure and wrong learns
# from its own mistakes, and a few more labels do not always stop that. Three seeds on a toy problem are no evidence for
# a strategy; they show why you should run several before you believe a curve.
#
# The moons are an easy case for FixMatch. :doc:`/guide/semi_supervised` has trials on images: there the pool helps a
# lot with some numbers of labels and not at all with the fewest, and on the small digits the gains were unclear.
