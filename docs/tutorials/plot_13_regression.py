"""
Numbers: which experiments to run next
======================================

A laboratory can measure the strength of a few mixtures out of many. Which ones? This tutorial predicts a number with a
network and with a forest, lets skal choose the measurements, and compares that with measuring at random.
"""

# %%
# Data whose truth we know
# ------------------------
# A function of five inputs with noise, from which 600 mixtures are at hand. Labels are far from zero and have a unit:
# the loop scales them for a network, and predicts in the unit that it was told.

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import make_friedman1
from sklearn.ensemble import RandomForestRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetRegressor
from torch import nn

from skal import ActiveLearningRegressor
from skal.strategies import PredictiveStd

X, y = make_friedman1(n_samples=1200, n_features=5, noise=0.5, random_state=0)
X, y = X.astype(np.float32), 1000 + 10 * y
X_pool, y_pool, X_test, y_test = X[:600], y[:600], X[600:], y[600:]


# %%
# A network that predicts a number
# --------------------------------
# skorch's ``NeuralNetRegressor`` wants targets in the shape of the outputs; the loop sees to that, too.


class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x):
        return self.layers(x)


net = NeuralNetRegressor(
    Perceptron, optimizer=torch.optim.Adam, lr=3e-3, max_epochs=100, batch_size=64, train_split=None, verbose=0
)

# %%
# The loop
# --------
# ``scoring`` may be any of scikit-learn's. By its convention higher is better, so an error comes as its negative.
# ``"lcmd"`` takes the farthest sample of the cluster that is spread out most, by the gradients of the network, or by
# what the trees of a forest predict. ``"auto"`` chooses it for networks; for trees on a table it is UHerding by their
# leaves.

models = {
    "network": make_pipeline(StandardScaler(), net),
    "forest": RandomForestRegressor(100, random_state=0),
}
curves = {}
for name, model in models.items():
    for strategy in ("random", "lcmd"):
        errors = []
        for seed in range(3):
            loop = ActiveLearningRegressor(
                model,
                strategy,
                n_initial=20,
                initial="random",
                query_size=20,
                n_rounds=4,
                reinitialize=True,
                scoring="neg_root_mean_squared_error",
                random_state=seed,
            )
            loop.fit(X_pool, y_pool, eval_set=(X_test, y_test))
            errors.append([-row["eval_score"] for row in loop.history_])
        curves[name, strategy] = np.array(errors)

figure, axes = plt.subplots(1, 2, figsize=(9, 3.5), sharey=True)
for axis, name in zip(axes, models, strict=True):
    for strategy in ("random", "lcmd"):
        axis.plot(20 + 20 * np.arange(5), curves[name, strategy].mean(axis=0), marker="o", label=strategy)
    axis.set(title=name, xlabel="measurements")
axes[0].set_ylabel("root mean squared error")
axes[0].legend()
plt.show()

# %%
# Three seeds are few: the difference is a hint, not a result. The page :doc:`/evidence/regression` has more.

for (name, strategy), errors in curves.items():
    print(f"{name}, {strategy}: {errors[:, -1].mean():.1f} after 100 measurements")

# %%
# How sure is it of each mixture?
# -------------------------------
# :class:`~skal.strategies.PredictiveStd` gives the deviation of each prediction: here the spread of the trees. It says
# what the trees do not agree on, and so what a label could teach them. It is no error bar: all trees may be wrong
# alike, and here they are no better where they agree.

deviations = PredictiveStd().scores(loop, X_test)
errors = np.abs(loop.predict(X_test) - y_test)
sure = deviations < np.median(deviations)
print(f"mean error where the forest is sure: {errors[sure].mean():.1f}, elsewhere: {errors[~sure].mean():.1f}")
