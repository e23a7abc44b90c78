"""
May I stop? An audit with a guarantee
=====================================

The model seems good. How good is it, on samples that nobody has labelled? And may it label the rest, so that the whole
data set has few errors? An audit answers both from a few labels that chance has drawn.
"""

# %%
# A model, and samples without labels
# -----------------------------------
# ``y`` plays the part of the people who label. Of the rest it is only used at the end, to see whether what the audit
# said was true.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from skal import ActiveLearningClassifier
from skal.audit import accuracy, certify, errors, labels_left, plan
from skal.stopping import Certified

X, y = load_digits(return_X_y=True)
X = X / 16
order = np.random.default_rng(0).permutation(len(y))
labelled, rest = order[:150], order[150:]
model = LogisticRegression(C=10, max_iter=1000).fit(X[labelled], y[labelled])
proba = model.predict_proba(X[rest])

# %%
# How good is the model?
# ----------------------
# ``plan`` draws the samples by chance, and people label them. Samples that a strategy chose would say nothing: a
# strategy looks for hard ones.

positions, chances = plan(proba, 150, uniform=True, random_state=1)
answers = y[rest][positions]
found = accuracy(proba, positions, answers, chances)
print(found)
print(f"in truth {np.mean(proba.argmax(1) == y[rest]):.1%}")

# %%
# May it label the rest?
# ----------------------
# ``certify`` finds the samples that the model may label, so that at most 5 % of the *whole* data set are wrong,
# people's labels and the model's together, with 95 % confidence. The same audit will do.

certificate = certify(proba, positions, answers, chances, max_error=0.05, n_labelled=len(labelled))
print(certificate)
wrong = (proba.argmax(1) != y[rest]) & certificate.accepted
print(f"in truth {wrong.sum() / len(y):.1%} of the data set are wrong")

# %%
# How large should the audit be?
# ------------------------------
# A larger one costs labels and lets the model label more. ``labels_left`` forecasts that from the errors of this one.

sizes = np.array([50, 75, 100, 150, 200, 300, 400])
left = labels_left(proba, positions, answers, chances, sizes, n_labelled=len(labelled))
figure, axes = plt.subplots(figsize=(6, 3.5))
axes.plot(sizes, sizes, ":", color="grey", label="the audit itself")
axes.plot(sizes, sizes + left, marker="o", label="with what people label afterwards")
axes.set(xlabel="labels of the audit", ylabel="labels by people")
axes.legend()
plt.show()

# %%
# From the first label to the certificate
# ---------------------------------------
# A loop does all of it by itself: it learns, holds an audit when the model seems good enough, and goes on learning if
# that fails. The promise holds however often it looks.

loop = ActiveLearningClassifier(
    LogisticRegression(C=10, max_iter=1000),
    query_size=40,
    n_rounds=None,
    stop=Certified(max_error=0.05),
    random_state=0,
)
session = loop.start(X)
session.run(lambda indices, samples: y[indices])
final = session.final()
print(loop.stop_reason_)
print(final.labels["by"].value_counts().to_dict())
print(f"in truth {np.mean(final.labels['label'] != y):.1%} are wrong")

# %%
# Labels from elsewhere
# ---------------------
# Somebody else labelled everything: a language model, a crowd, an old system. How many of these labels are wrong?

given = np.where(np.random.default_rng(1).random(len(y)) < 0.06, (y + 1) % 10, y)
positions, chances = plan(len(y), 200, uniform=True, random_state=2)
print(errors(given, positions, y[positions], chances))

# %%
# On the command line ``skal audit labels.csv --truth audited.csv`` does that, and ``--draw 200`` draws the samples. The
# page of ``skal label`` shows how good the model is from its audit, and has a button that finishes with a certificate.
