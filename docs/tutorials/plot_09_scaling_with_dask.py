"""
Scaling out with Dask
=====================

A large pool may not fit into memory, and one process may take too long to go through it. This tutorial queries a pool
that stays on disk, forecasts the cost of a query before running it, and shares the work among processes and among the
workers of a Dask cluster. The answer stays the same. At the end BADGE chooses from more samples than its memory bound
allows, and we look at what that changes.
"""

# %%
# A pool on disk
# --------------
# The pool is 20,000 noisy copies of digits, written in parts to a file in a temporary folder. ``np.load`` with
# ``mmap_mode="r"`` opens it as a *memory map*: rows are read when they are needed. The file is small, so that this page
# runs quickly; nothing below would change for a file of many gigabytes.

import os
import tempfile
import textwrap
import time
import warnings
from pathlib import Path

import dask
import joblib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from dask.distributed import Client, LocalCluster
from sklearn.decomposition import PCA
from skorch import NeuralNetClassifier

import skal
from skal import ActiveLearner, datasets, nets
from skal.context import QueryContext
from skal.exceptions import TwoLevelWarning
from skal.features import Cache
from skal.strategies import BADGE, CoreSet, DynamicAL, Entropy, Margin

digits = datasets.load("digits")
rng = np.random.default_rng(0)
folder = tempfile.TemporaryDirectory()
path = Path(folder.name) / "pool.npy"
writer = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(20_000, 1, 8, 8))
for start in range(0, len(writer), 2_000):
    originals = digits.X_train[rng.integers(len(digits.X_train), size=2_000)]
    writer[start : start + 2_000] = np.clip(originals + rng.normal(scale=0.1, size=originals.shape), 0, 1)
writer.flush()
X_pool = np.load(path, mmap_mode="r")
print(type(X_pool).__name__, X_pool.shape, f"{path.stat().st_size / 1e6:.1f} MB on disk")

# %%
# To query we need a learner; this one has 100 labels. ``train_split=None`` keeps skorch from setting a fifth of these
# few labels aside.

torch.manual_seed(0)
training = {"optimizer": torch.optim.Adam, "max_epochs": 30, "batch_size": 32, "train_split": None, "verbose": 0}
net = NeuralNetClassifier(nets.CNN(in_channels=1, image_size=8), criterion=torch.nn.CrossEntropyLoss, **training)
learner = ActiveLearner(net, Entropy(), X_training=digits.X_train[:100], y_training=digits.y_train[:100])

# %%
# What will it take?
# ------------------
# ``strategy.cost`` answers before the query: it runs the strategy on a few samples and measures what passes through the
# network, the memory, and the time. Seconds depend on the machine and on what else it is doing, so for queries as short
# as these they are rough.

for strategy in (Entropy(), BADGE(random_state=0), DynamicAL()):
    print(f"{type(strategy).__name__:>10}: {strategy.cost(learner, X_pool, n_instances=20)}")

# %%
# Several processes
# -----------------
# How to compute is a setting, for all strategies: ``skal.set_config(n_jobs=2)`` from here on, or
# :func:`skal.config_context` for a block. The pool is cut into shards at multiples of ``batch_size``, another setting,
# so the batches are the same however many processes there are. Each worker opens the memory map itself; only the
# network is sent.

alone = Entropy().select(learner, X_pool, 20)[0]
with skal.config_context(n_jobs=2):
    shared = Entropy().select(learner, X_pool, 20)[0]
print("same indices from one process and from two:", np.array_equal(alone, shared))

# %%
# New processes have to import torch first, which takes seconds. They are kept for the next query. If the forecast of a
# query is shorter than that, use one process.
#
# A Dask cluster
# --------------
# Inside ``joblib.parallel_config(backend="dask")`` the shards go to the workers of the current Dask client. Here these
# are two threads of this process. Without ``processes=False`` they are processes on this machine. For a real cluster
# pass the address of its scheduler instead, ``Client("tcp://scheduler.example:8786")``: every worker needs skal, and
# must see the pool's file under the same path.
#
# Workers that are processes should be started with two variables in their environment. Without them Dask has the C
# library return memory to the system after every pass, and a query takes twice as long. Dask's profiler takes
# some of their time, too.

os.environ.update({"MALLOC_TRIM_THRESHOLD_": str(2**30), "MALLOC_MMAP_THRESHOLD_": str(2**30)})
dask.config.set({"distributed.worker.profile.enabled": False})
cluster = LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0")
with cluster, Client(cluster), joblib.parallel_config(backend="dask"):
    print("workers:", joblib.effective_n_jobs())
    on_cluster = Entropy().select(learner, X_pool, 20)[0]
    batch_on_cluster = BADGE(random_state=0).select(learner, X_pool, 20)[0]
batch_alone = BADGE(random_state=0).select(learner, X_pool, 20)[0]
print("Entropy, same indices from the cluster:", np.array_equal(alone, on_cluster))
print("BADGE,   same indices from the cluster:", np.array_equal(batch_alone, batch_on_cluster))

# %%
# BADGE draws at random, and still agrees: the workers compute only the embeddings, and all draws are made here, from
# ``random_state``.
#
# Several strategies, one pass
# ----------------------------
# Normally nothing is kept from one query to the next. If several strategies look at the same network and the same pool,
# give the learner a cache. Outputs and embeddings are then kept, within a memory bound, and are recognised by the
# contents of the network and of all samples. So Margin uses the outputs of Entropy, and CoreSet the embeddings of
# BADGE.

seconds = pd.DataFrame(columns=["Entropy", "Margin", "BADGE", "CoreSet"], dtype=float)
for name, cache in {"nothing kept": None, "a cache of 256 MB": Cache("256MB")}.items():
    learner.cache = cache
    for strategy in (Entropy(), Margin(), BADGE(random_state=0), CoreSet()):
        start = time.perf_counter()
        strategy.select(learner, X_pool, 20)
        seconds.loc[name, type(strategy).__name__] = time.perf_counter() - start
learner.cache = None
print(seconds.round(2).to_string())

# %%
# Nothing outdated can come back: once the network is trained further, it no longer matches. So a loop that trains after
# every query gains nothing from this.
#
# More samples than fit
# ---------------------
# BADGE compares every sample with the samples already chosen, so it keeps one embedding per sample. The setting
# ``max_memory`` limits that storage. If the pool does not fit, BADGE works in two stages: it selects a shortlist from
# each part of the pool that fits, and then the batch from the shortlists. You get a
# :class:`skal.exceptions.TwoLevelWarning`, because the batch may differ.

with warnings.catch_warnings(record=True) as caught, skal.config_context(max_memory="4MB"):
    warnings.simplefilter("always", TwoLevelWarning)
    batch_bounded = BADGE(random_state=0).select(learner, X_pool, 20)[0]
print(textwrap.fill(f"{caught[0].category.__name__}: {caught[0].message}", 100), "\n")
print(len(np.intersect1d(batch_alone, batch_bounded)), "of 20 samples are in both batches")

# %%
# Other samples need not be worse: another ``random_state`` gives another batch, too. BADGE spreads its batch over the
# samples' gradients, so we measure how well it does that: by the mean squared distance from a sample's gradient to the
# nearest chosen one. The gradient is a product of two vectors, both of which come from
# :class:`skal.context.QueryContext`: how far the probabilities are from the predicted label, and the input of the last
# layer.

features, logits = QueryContext(learner, X_pool).embeddings()
proba = torch.softmax(logits, dim=1)
residuals = proba - torch.nn.functional.one_hot(proba.argmax(dim=1), 10)
some = np.arange(0, len(X_pool), 10)  # every tenth sample, to be quick


def gradients(rows):
    return (residuals[rows, :, None] * features[rows, None, :]).flatten(1)


def spread(batch):
    return torch.cdist(gradients(some), gradients(batch)).amin(dim=1).square().mean().item()


rows = []
with warnings.catch_warnings():
    warnings.simplefilter("ignore", TwoLevelWarning)
    for seed in range(5):
        one = BADGE(random_state=seed).select(learner, X_pool, 20)[0]
        with skal.config_context(max_memory="4MB"):
            two = BADGE(random_state=seed).select(learner, X_pool, 20)[0]
        drawn = np.random.default_rng(seed).choice(len(X_pool), 20, replace=False)
        rows.append({"one stage": spread(one), "two stages": spread(two), "random": spread(drawn)})
print(pd.DataFrame(rows).rename_axis("seed").round(1).to_string())

# %%
# Smaller is better. One stage and two stages differ about as much as two seeds do, and both are better than a random
# batch. But this is one network and one pool, and for BADGE no bound is known. The picture shows the gradients in their
# first two principal components. Where the network is sure, they are near zero. Crosses that seem close may be far
# apart in the components that are not shown.

projection = PCA(n_components=2, random_state=0).fit(gradients(some).numpy())
background = projection.transform(gradients(some).numpy())
figure, axes = plt.subplots(1, 2, figsize=(7, 3.6), sharex=True, sharey=True, layout="constrained")
figure.suptitle("What BADGE chose (crosses); colours are predicted classes")
axes[0].set_ylabel("second component")
batches = {"one stage": batch_alone, "two stages, 4 MB": batch_bounded}
for ax, (name, batch) in zip(axes, batches.items(), strict=True):
    ax.scatter(*background.T, c=proba[some].argmax(dim=1), cmap="tab10", s=2, alpha=0.4)
    ax.scatter(*projection.transform(gradients(batch).numpy()).T, color="black", marker="x", s=40, linewidth=1.5)
    ax.set(title=name, xlabel="first component")

# %%
# :doc:`/guide/scaling` has the details, and a plan for pools that are too large for a single query.

folder.cleanup()
