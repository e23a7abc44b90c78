"""
A raw table: strings, dates, gaps and all
=========================================

Tables rarely come as numbers of one scale. This one has names of plans and countries, dates, sums of money and missing
values. Which customers should somebody call and classify first? Columns are treated by their kind, a forest learns
which of them matter, and nothing has to be prepared by hand.
"""

# %%
# The table
# ---------
# 2,500 customers, and what each of them is going to do: stay, leave or buy more. Two columns say nothing about it, one
# is missing for every fifth customer, and spending has a long tail.

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from skal import ActiveLearningClassifier
from skal.features import TableFeatures

rng = np.random.default_rng(0)
n = 2500
plan = rng.choice(["free", "basic", "team", "company"], n, p=[0.55, 0.3, 0.12, 0.03])
logins = rng.poisson(np.where(rng.random(n) < 0.3, 2, 12)).astype(float)
tickets = rng.poisson(1.0, n)
since = pd.Timestamp("2026-01-01") - pd.to_timedelta(rng.integers(10, 2000, n), unit="D")
paid = plan != "free"
leaves = (logins < 5) & (paid | (tickets > 1))
grows = (logins > 12) & np.isin(plan, ["basic", "team"])
y = np.select([leaves, grows], ["leaves", "buys more"], "stays")
y = np.where(rng.random(n) < 0.03, rng.choice(y, n), y)  # people are not that simple
table = pd.DataFrame(
    {
        "plan": plan,
        "country": rng.choice(["FR", "DE", "US", "IN", "BR", "JP", "KE", "NO"], n),
        "since": since,
        "spending": rng.lognormal(3 + paid, 1.5),
        "logins": np.where(rng.random(n) < 0.2, np.nan, logins),
        "tickets": tickets,
        "newsletter": rng.random(n) < 0.4,
    }
)
print(table.head().to_string())
print(pd.Series(y).value_counts().to_dict())

# %%
# Features by the kind of column
# ------------------------------
# :class:`~skal.features.TableFeatures` is a transformer of scikit-learn: numbers are standardised and gaps filled,
# categories get a column each, dates become several numbers. It reads no labels, so it is fitted on everything.

features = TableFeatures().fit(table)
print(features.get_feature_names_out().tolist())

# %%
# The loop
# --------
# Any Pipeline will do as the estimator, with a ``ColumnTransformer`` of your own, too. ``"auto"`` says in a sentence
# what it chose, and why. Most customers stay, and the others matter: the score is the balanced accuracy, in which each
# class counts alike.

X, X_test, y_pool, y_test = table[:1500], table[1500:], y[:1500], y[1500:]
model = make_pipeline(TableFeatures(), LogisticRegression(max_iter=1000))


def run(strategy, initial, seed):
    settings = {"n_initial": 20, "query_size": 10, "n_rounds": 6, "scoring": "balanced_accuracy", "random_state": seed}
    loop = ActiveLearningClassifier(model, strategy, initial=initial, **settings)
    return loop.fit(X, y_pool, eval_set=(X_test, y_test))


loops = {
    "random": [run("random", "random", seed) for seed in range(4)],
    "margin after a random start": [run("margin", "random", seed) for seed in range(4)],
    "auto": [run("auto", "auto", seed) for seed in range(4)],
}
first = loops["auto"][0]
print(first.initial_)
print(first.query_strategy_)

# %%
# What it gave
# ------------
# Means of four runs, which are too few to tell strategies apart: :doc:`plot_03_effect_or_noise` has the tests, and
# :doc:`/evidence/raw` has what came out on six real tables.

figure, axes = plt.subplots(figsize=(6, 3.5))
for name, own in loops.items():
    scores = np.array([[row["eval_score"] for row in loop.history_] for loop in own])
    axes.plot([row["n_labelled"] for row in own[0].history_], scores.mean(axis=0), marker="o", label=name)
    print(f"{name:28s}", "  ".join(f"{score:.3f}" for score in scores.mean(axis=0)))
axes.set(xlabel="labels", ylabel="balanced accuracy on new customers")
axes.legend()
plt.show()

# %%
# Ask a person
# ------------
# ``y`` is only here to play the part of a person. With people, ``start`` opens a session, and rows are shown to them.

session = ActiveLearningClassifier(model, n_initial=10, query_size=10, random_state=0).start(X)
rows = session.ask()
print(X.iloc[rows].head(3).to_string())
session.tell(y_pool[rows])
print(session)

# %%
# The same table as a file needs no code at all:
#
# .. code-block:: console
#
#    skal label customers.csv --classes "stays,leaves,buys more" --out labels
#    skal predict labels other_customers.csv --out predictions.csv
