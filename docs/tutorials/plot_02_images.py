"""
Images: a convolutional network
===============================

This tutorial sets up a convolutional network for active learning on images: the loss, training on few labels, and warm
starts from round to round. BADGE chooses a batch of images, and we look at them with their labels. Then we compare
BADGE with random choice over a few seeds, and see how little such a comparison can say.
"""

# %%
# The network
# -----------
# :class:`skal.nets.CNN` is the small network of PyTorch's tutorial. It takes images as (N, channels, height, width),
# and we tell it their size. Four settings need an explanation:
#
# - The module returns logits, so the criterion is ``CrossEntropyLoss``, and skorch applies the softmax when it
#   predicts. skorch's default, ``NLLLoss``, is for modules that end in a softmax. The two must not be mixed.
# - ``train_split=None``: otherwise skorch holds a fifth of the labels back for validation, and we have few.
# - ``warm_start=True``: each round starts from the weights of the last one, not from new random ones.
# - The callbacks: :class:`skal.callbacks.FreshOptimizer` makes Adam forget its moments from earlier rounds, and
#   :class:`skal.callbacks.StopAtTrainAccuracy` ends a round when the network fits the labelled images. It looks only at
#   the training set: stopping on test accuracy would use labels that we claim not to have.

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy import stats
from skorch import NeuralNetClassifier

from skal import ActiveLearner, datasets, nets
from skal.callbacks import FreshOptimizer, StopAtTrainAccuracy
from skal.strategies import BADGE, RandomSampling

digits = datasets.load("digits")
X, y = digits.X_train, digits.y_train


def make_net():
    return NeuralNetClassifier(
        nets.CNN,
        module__in_channels=1,
        module__image_size=8,
        module__n_classes=10,
        criterion=torch.nn.CrossEntropyLoss,
        optimizer=torch.optim.Adam,
        lr=0.002,
        batch_size=64,
        iterator_train__shuffle=True,
        max_epochs=100,  # the cap, should the labels never be fitted
        warm_start=True,
        callbacks=[FreshOptimizer(), StopAtTrainAccuracy(0.99)],
        train_split=None,
        verbose=0,
    )


# %%
# The first labels
# ----------------
# We start with twenty random images. ``ActiveLearner`` trains on them at once, and the net's history shows how that
# went.

order = np.random.default_rng(0).permutation(len(X))
labelled, pool = order[:20], order[20:]
torch.manual_seed(0)
learner = ActiveLearner(
    make_net(), BADGE(random_state=np.random.default_rng(0)), X_training=X[labelled], y_training=y[labelled]
)
history = learner.estimator.history
print(f"{len(history)} epochs, accuracy on the {len(labelled)} labels {history[-1, 'train_acc']:.2f}")
print(f"accuracy on the test images {learner.score(digits.X_test, digits.y_test):.2f}")

# %%
# What BADGE asks for
# -------------------
# BADGE uses the gradient that an image would give the last layer if its predicted label were right. It looks for
# gradients that are long, because there the network is unsure, and that point in different directions, so that one
# batch does not ask the same thing twenty times. :doc:`/guide/diversity` has the formula.

indices, images = learner.query(X[pool], n_instances=20)
labels = y[pool[indices]]
predicted = learner.predict(images)

figure, axes = plt.subplots(2, 10, figsize=(7, 2.1), layout="constrained")
figure.suptitle("BADGE's first batch: label, and in brackets a wrong prediction", fontsize=10)
for ax, image, label, guess in zip(axes.flat, images, labels, predicted, strict=True):
    ax.imshow(image[0], cmap="gray_r")
    ax.set_title(
        f"{label}" if guess == label else f"{label} ({guess})", color="k" if guess == label else "r", fontsize=9
    )
    ax.set_axis_off()

# %%
# How often is the network wrong on these images, and how often on the whole pool? In a real project you would not know
# the second number.

wrong_in_pool = np.mean(learner.predict(X[pool]) != y[pool])
print(f"wrong on {np.mean(predicted != labels):.0%} of the batch, on {wrong_in_pool:.0%} of the pool")
print(
    "classes in the batch:", dict(zip(*(part.tolist() for part in np.unique(labels, return_counts=True)), strict=True))
)

# %%
# Compared with random choice
# ---------------------------
# Each seed gives both strategies the same first labels and the same weights. The test images are used only to draw the
# curves.


def run(strategy, seed, n_rounds=4, batch=20):
    order = np.random.default_rng(seed).permutation(len(X))
    labelled, pool = order[:20], order[20:]
    torch.manual_seed(seed)
    learner = ActiveLearner(make_net(), strategy, X_training=X[labelled], y_training=y[labelled])
    scores, epochs = [learner.score(digits.X_test, digits.y_test)], [len(learner.estimator.history)]
    for _ in range(n_rounds):
        indices, images = learner.query(X[pool], n_instances=batch)
        learner.teach(images, y[pool[indices]])
        pool = np.delete(pool, indices)
        scores.append(learner.score(digits.X_test, digits.y_test))
        epochs.append(len(learner.estimator.history))
    return scores, np.diff(epochs, prepend=0)


seeds = range(4)
n_labels = np.arange(20, 101, 20)
scores = {}
for name, strategy in {"random": RandomSampling, "BADGE": BADGE}.items():
    runs = [run(strategy(random_state=np.random.default_rng(seed)), seed) for seed in seeds]
    scores[name] = np.array([curve for curve, _ in runs])
    print(f"{name}: epochs by round, mean over seeds: {np.mean([epochs for _, epochs in runs], axis=0).round()}")

# %%
# The last rounds take fewer epochs than the first. One reason is the warm start: most labels are fitted already.
# Another is that an epoch has more minibatches once the labels do not fit into one.
#
# On the left are the two means. On the right is what counts: the difference within each seed.

figure, (left, right) = plt.subplots(1, 2, figsize=(7, 3.4), layout="constrained")
for (name, curves), style in zip(scores.items(), ["k--o", "C1-s"], strict=True):
    left.plot(n_labels, curves.mean(axis=0), style, markersize=4, label=name)
difference = 100 * (scores["BADGE"] - scores["random"])
for seed, row in zip(seeds, difference, strict=True):
    right.plot(n_labels, row, color="0.6", linewidth=1, label="single seeds" if seed == 0 else None)
right.plot(n_labels, difference.mean(axis=0), "C1-s", markersize=4, label="mean")
right.axhline(0, color="black", linestyle="--", linewidth=1)
left.set(xlabel="labels", ylabel="test accuracy", title=f"Means over {len(seeds)} seeds")
right.set(xlabel="labels", ylabel="points", title="BADGE minus random")
for ax in (left, right):
    ax.grid(alpha=0.3)
    ax.legend(fontsize=8)

# %%
# The mean alone hides how far apart the seeds are. So we print one number per seed, the mean difference over all
# budgets after the first, and the 95 % interval of their mean.

by_seed = difference[:, 1:].mean(axis=1)
low, high = stats.ttest_1samp(by_seed, 0).confidence_interval()
print("by seed:", by_seed.round(1))
print(f"mean difference {by_seed.mean():+.1f} points, 95 % interval {low:+.1f} to {high:+.1f}")

# %%
# If the interval contains zero, we have shown neither that BADGE is better than random here, nor that it is not. With
# so few seeds the interval is wide. Even a narrow one would be for a single network, a single set of training
# parameters and a single data set. The next tutorial compares strategies properly.
