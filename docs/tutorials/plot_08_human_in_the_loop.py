"""
Label by hand: ask, tell, close the notebook, continue
======================================================

In a real project labels come from a person, who answers some questions, skips others, and goes home in between. Here a
labelling session asks for images, takes answers in parts, and writes everything to a folder. We delete all objects in
the middle of a batch, and continue from the folder as if nothing had happened.
"""

# %%
# A classifier that asks
# ----------------------
# :class:`skal.loop.ActiveLearningClassifier` holds the network, the strategy and the budget: 20 images drawn at random,
# then 4 rounds of 10 that the strategy chooses. ``checkpoint`` names the folder. With ``train_split=None`` skorch
# trains on all labels; otherwise it would set a fifth of them aside. The function creates everything from scratch, as a
# notebook does when you open it again the next day.

import shutil
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from skorch import NeuralNetClassifier

from skal import ActiveLearningClassifier
from skal.datasets import load
from skal.exceptions import CheckpointError
from skal.loop import ActiveLearningCurveDisplay
from skal.nets import MLP
from skal.strategies import Margin

digits = load("digits")
folder = Path(tempfile.mkdtemp()) / "digits"  # in a project: a folder of yours


def make_loop(checkpoint):
    net = NeuralNetClassifier(
        MLP,
        module__n_features=64,
        criterion=torch.nn.CrossEntropyLoss,
        optimizer=torch.optim.Adam,
        lr=0.003,
        max_epochs=30,
        train_split=None,
        verbose=0,
    )
    return ActiveLearningClassifier(
        net, Margin(), n_initial=20, query_size=10, n_rounds=4, checkpoint=checkpoint, random_state=0
    )


# %%
# Nobody sits at the keyboard while this page is built, so the true labels play the person. This person does not label
# the faintest images. None means *I cannot say*, and such an image is not asked for again.

X, test = digits.X_train, (digits.X_test, digits.y_test)


def somebody(indices):
    return [None if X[i].mean() < 0.26 else digits.y_train[i] for i in indices]


# %%
# Monday: ask and tell
# --------------------
# :meth:`~skal.loop.ActiveLearningClassifier.start` needs only the images. It returns a
# :class:`skal.loop.LabellingSession`. ``ask`` says which images to label, as positions in ``X``; ``tell`` takes the
# answers and trains. The test images are scored after every round, but no decision depends on them.

loop = make_loop(folder)
session = loop.start(X, eval_set=test)
indices = session.ask()
session.tell(somebody(indices))
print(f"asked for {len(indices)}, labelled {len(loop.queried_)}, accuracy {loop.score(*test):.3f}")

# %%
# From now on the network chooses. ``Margin`` asks for images whose two best guesses are closest. The classifier can
# predict at any time, so we show its two best guesses as well.

monday = session.ask()
fig, axes = plt.subplots(2, 5, figsize=(7, 4.2))
for ax, i, proba in zip(axes.flat, monday, loop.predict_proba(X[monday]), strict=True):
    second, first = np.argsort(proba)[-2:]
    ax.imshow(X[i, 0], cmap="gray_r")
    ax.set_title(f"image {i}\n{first} or {second}?", fontsize=9)
    ax.axis("off")
fig.suptitle("Asked on Monday, with the network's two best guesses")
fig.tight_layout()

# %%
# Four answers, then it is time to go home. ``end_round=False`` keeps the round open: the labels are saved, and
# nothing is trained yet.

session.tell(somebody(monday[:4]), monday[:4], end_round=False)
print("still open:", session.ask())
print("in the folder:", sorted(path.name for path in folder.iterdir()))
del loop, session

# %%
# Tuesday: go on
# --------------
# The same call finds the folder, with the open batch and the answers so far. Nothing in the folder is a pickle, so
# reading it runs no code.

loop = make_loop(folder)
session = loop.start(X, eval_set=test)
tuesday = session.ask()
print("open:", tuesday)
assert tuesday.tolist() == monday[4:].tolist()
session.tell(dict(zip(tuesday, somebody(tuesday), strict=True)))  # a dict from positions to answers does as well
print(f"{len(loop.queried_)} labels, declined in this round: {loop.history_[-1]['declined']}")

# %%
# Labels belong to images, not to positions. Every label is a line of ``labels.jsonl``, under the id of its image (here
# a hash of the pixels; pass ``ids`` to use file names), so the images may come back in another order. Only one session
# at a time can write to a folder; ``readonly=True`` opens it to look.

with make_loop(folder).start(X[::-1], eval_set=test, readonly=True) as mirrored:
    positions = mirrored.state.labelled
    assert [digits.y_train[::-1][i] for i in positions] == mirrored.state.labels
print(session.labels().tail(3)[["id", "label", "round", "source"]])

try:
    make_loop(folder).start(X, eval_set=test)
except CheckpointError as error:
    print(type(error).__name__, "–", str(error).split(" Got")[0].replace(str(folder), "FOLDER"))

# %%
# A session is also an iterator over the remaining batches.

for indices in session:
    session.tell(somebody(indices))
print("stopped:", loop.stop_reason_, "with", len(loop.queried_), "labels")

fig, ax = plt.subplots(figsize=(6, 3.5))
ActiveLearningCurveDisplay.from_estimator(loop, ax=ax, score_name="accuracy on test images")
fig.tight_layout()

# %%
# Did the interruption change anything?
# -------------------------------------
# We run the whole loop again without a break, with the person as an *oracle*: a function that answers with labels.

in_one_go = make_loop(None).fit(X, oracle=lambda indices, samples: somebody(indices))
print("same images asked, in the same order:", np.array_equal(in_one_go.queried_, loop.queried_))
print("same predictions:", np.array_equal(in_one_go.predict_proba(test[0]), loop.predict_proba(test[0])))
shutil.rmtree(folder.parent)

# %%
# Somebody finds a wrong label later? ``session.relabel({id: label})`` corrects it, ``session.add`` takes labels that
# were not asked for, ``session.decline`` takes a sample out; see :doc:`/guide/loop`.
#
# One run with one strategy says nothing about how good the strategy is; for that you need several seeds and a
# comparison with random sampling. :doc:`/guide/loop` has the other ways to start and stop, and says what a checkpoint
# holds.
