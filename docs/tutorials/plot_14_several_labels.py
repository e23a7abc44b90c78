"""
Several labels at once: what is in the picture?
===============================================

A photograph may show a beach and people and a boat. Then a label is a row of zeros and ones, and one look of a person
answers all questions about a sample at once. This tutorial runs the loop on such rows.
"""

# %%
# Rows of zeros and ones
# ----------------------
# y is an indicator matrix, dense or sparse; ``sklearn.preprocessing.MultiLabelBinarizer`` makes one of lists of names.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_multilabel_classification
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skal import ActiveLearningClassifier

X, Y = make_multilabel_classification(n_samples=1500, n_features=20, n_classes=6, random_state=1)
X_pool, Y_pool, X_test, Y_test = X[:900], Y[:900], X[900:], Y[900:]
print(f"a sample has {Y.sum(axis=1).mean():.1f} labels on average, and {(Y.sum(axis=1) == 0).mean():.0%} have none")

# %%
# The loop
# --------
# Any classifier that takes such a matrix will do. ``Margin`` is the mean over the labels of one minus \|2p − 1\|: how
# undecided the classifier is, label by label.

model = make_pipeline(StandardScaler(), MultiOutputClassifier(LogisticRegression(max_iter=500)))
curves = {}
for strategy in ("random", "margin", "uherding"):
    scores = []
    for seed in range(3):
        loop = ActiveLearningClassifier(
            model,
            strategy,
            n_initial=40,
            initial="random",
            query_size=20,
            n_rounds=5,
            scoring="f1_micro",
            random_state=seed,
        )
        loop.fit(X_pool, Y_pool, eval_set=(X_test, Y_test))
        scores.append([row["eval_score"] for row in loop.history_])
    curves[strategy] = np.array(scores)

figure, axis = plt.subplots(figsize=(5, 3.5))
for strategy, scores in curves.items():
    axis.plot(40 + 20 * np.arange(6), scores.mean(axis=0), marker="o", label=strategy)
axis.set(xlabel="labelled samples", ylabel="micro F1")
axis.legend()
plt.show()

# %%
# Micro F1 counts all labels together; macro F1 is the mean over labels, so that rare ones count as much.

print(f"micro {f1_score(Y_test, loop.predict(X_test), average='micro'):.3f}")
print(f"macro {f1_score(Y_test, loop.predict(X_test), average='macro'):.3f}")

# %%
# By hand
# -------
# In a session a label is a row, too.

session = ActiveLearningClassifier(model, "margin", n_initial=40, n_rounds=1, random_state=0).start(X_pool)
for indices in session:
    session.tell([Y_pool[i].tolist() for i in indices])  # a person would look at the samples
print(session.labels().head(3)[["id", "label", "round"]])
