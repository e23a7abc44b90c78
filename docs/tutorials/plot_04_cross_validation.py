"""
Cross-validation and grid search
================================

:class:`skal.loop.ActiveLearningClassifier` is the whole active-learning loop as a scikit-learn classifier: ``fit``
spends a labelling budget. So everything that scikit-learn offers for classifiers works for a strategy. This tutorial
uses cross-validation, pipelines and grid search, looks at what a run records, and checks that only queried labels are
read.
"""

# %%
# The loop as a classifier
# ------------------------
# The loop needs an estimator, a strategy and a budget: here 20 labels at random, then 3 rounds of 20. Labels are few,
# so ``train_split=None`` keeps skorch from setting a fifth of them aside. ``random_state`` decides the initial samples,
# the weights and the strategy's draws.

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetClassifier

from skal import ActiveLearningClassifier, DynamicAL, datasets, nets
from skal.loop import ActiveLearningCurveDisplay
from skal.strategies import Margin, RandomSampling

digits = datasets.load("digits")
X, y = digits.X_train.reshape(-1, 64), digits.y_train
X_test, y_test = digits.X_test.reshape(-1, 64), digits.y_test

net = NeuralNetClassifier(
    nets.MLP,
    module__n_features=64,
    module__n_classes=10,
    module__hidden=(64,),
    criterion=torch.nn.CrossEntropyLoss,
    optimizer=torch.optim.Adam,
    lr=0.01,
    batch_size=64,
    iterator_train__shuffle=True,
    max_epochs=15,
    train_split=None,
    verbose=0,
)
loop = ActiveLearningClassifier(net, DynamicAL(), n_initial=20, query_size=20, n_rounds=3, random_state=0)
loop.fit(X, y, eval_set=(X_test, y_test))
print(f"accuracy with {len(loop.queried_)} of {len(y)} labels: {loop.score(X_test, y_test):.3f}")

# %%
# What a run records
# ------------------
# ``history_`` has one row per round. ``eval_score`` is there because we passed ``eval_set``. It is only scored: no
# decision depends on it.

columns = ["round", "n_labelled", "train_score", "eval_score"]
pd.DataFrame(loop.history_)[columns].round(3)

# %%
# ``queried_`` has the positions of the labelled samples, in the order in which they were labelled. So we can check the
# promise that no other label is read. We make all the other labels wrong, and fit again:

spoilt = (y + 1) % 10
spoilt[loop.queried_] = y[loop.queried_]
other = clone(loop).fit(X, spoilt)
print(f"{np.mean(spoilt != y):.0%} of the labels are wrong")
print("same queries:", np.array_equal(other.queried_, loop.queried_))
print("same probabilities:", np.array_equal(other.predict_proba(X_test), loop.predict_proba(X_test)))

# %%
# Cross-validation
# ----------------
# Every fold runs its own loop on its training part. The test part is scored with all its labels, which a real project
# would not have. So cross-validation tells you what a strategy *would have* gained, on data that happen to be labelled.

folds = StratifiedKFold(3, shuffle=True, random_state=0)
scores = cross_val_score(loop, X, y, cv=folds)
print("accuracy by fold:", scores.round(3))

# %%
# ``cross_validate`` with ``return_estimator=True`` returns the fitted loops, and a display draws their curves: mean and
# standard deviation over the folds. Both strategies get the same folds and, with the same ``random_state``, the same
# first labels and weights.

fitted = {}
for name, strategy in {"random": RandomSampling(), "dynamicAL": DynamicAL()}.items():
    loop.set_params(query_strategy=strategy)
    outcome = cross_validate(
        loop, X, y, cv=folds, return_estimator=True, params={"eval_set": (X_test, y_test)}, error_score="raise"
    )
    fitted[name] = outcome["estimator"]

figure, ax = plt.subplots(figsize=(7, 4.2), layout="constrained")
ActiveLearningCurveDisplay.from_estimator(fitted, score="eval_score", score_name="test accuracy", ax=ax)
ax.set_title(f"Mean and standard deviation over {folds.n_splits} folds")
ax.grid(alpha=0.3)

# %%
# dynamicAL does not beat random choice here. Do not read more into such a picture: there are few repetitions, and they
# are not independent, because the folds' training parts overlap. To compare strategies, use paired seeds and a test:
# :doc:`/guide/benchmark`.
#
# In a pipeline
# -------------
# A scaler can be in two places. Before the loop it sees all samples of the training part, labelled or not; this is not
# cheating, because it needs no labels. Inside the loop it sees only the labelled samples, and is fitted again in every
# round.

outside = make_pipeline(StandardScaler(), loop)
inside = clone(loop).set_params(estimator=make_pipeline(StandardScaler(), net))
for name, classifier in {"scaler before the loop": outside, "scaler inside the loop": inside}.items():
    print(f"{name}: {cross_val_score(classifier, X, y, cv=folds).round(3)}")

# %%
# Grid search
# -----------
# Parameters have the names that ``get_params`` gives them: ``estimator__...`` for the network, ``query_strategy__...``
# for the strategy. (In the first pipeline above they have the prefix ``activelearningclassifier__``.)

grid = {"estimator__lr": [0.003, 0.01], "query_strategy__gamma": [0.0, 2.0]}
search = GridSearchCV(loop, grid, cv=folds, error_score="raise").fit(X, y)


def results(search):
    table = pd.DataFrame(search.cv_results_)
    return table[[*(c for c in table if c.startswith("param_")), "mean_test_score", "std_test_score"]].round(3)


results(search)

# %%
# You can search over the strategy itself, too.

search = GridSearchCV(loop, {"query_strategy": [RandomSampling(), Margin(), DynamicAL()]}, cv=folds).fit(X, y)
results(search)

# %%
# The search always names a winner.

print(search.best_params_)

# %%
# But compare the differences between rows with the standard deviations over the folds, and remember how few folds there
# are. A search finds settings that train well. It does not prove that one strategy is better than another. And it needs
# the labels of every test part: for a new project, search on a similar data set that is already labelled.
