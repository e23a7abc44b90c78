"""
An effect, or noise?
====================

Which strategy is best? One run per strategy gives an answer, but another seed may give another answer. This tutorial
compares strategies with :func:`skal.bench.run_benchmark` over paired seeds, shows how single seeds mislead, and
explains the verdicts. Two of the "strategies" are copies of Random: any difference between them is noise.
"""

# %%
# The benchmark
# -------------
# A *seed* decides the first labels and the initial weights. All strategies of a seed share them. Only what they query
# differs, so the luck of the start cancels when two strategies are compared within a seed. Copies of a strategy under
# different names draw different random numbers.
#
# The network is small, to keep the run short. :class:`skal.bench.Protocol` lists all settings.

# sphinx_gallery_thumbnail_number = 2
from textwrap import fill

import matplotlib.pyplot as plt

from skal.bench import BenchmarkResult, run_benchmark
from skal.strategies import RandomSampling

strategies = {
    "random": "random",
    "random again": RandomSampling(),
    "random once more": RandomSampling(),
    "entropy": "entropy",
    "margin": "margin",
    "badge": "badge",
}
result = run_benchmark(
    strategies,
    data="digits",
    net="mlp",
    net_params={"hidden": (64,)},
    lr=0.005,
    max_epochs=40,
    n_initial=20,
    query_size=20,
    n_rounds=4,
    seeds=8,
)
print(len(result.runs), "runs of", len(result.n_labels), "trainings each")

# %%
# One seed at a time
# ------------------
# The area under a run's curve is its mean accuracy over the budget: one number per run. Each column of this table is a
# complete experiment. Often it is the only one that people run.

areas = 100 * result.areas()
print(areas.round(1).to_string())

# %%
# Who wins? And how often is each strategy ahead of ``random``?

print("seeds won:", areas.idxmax().value_counts().to_dict())
print("seeds ahead of random:", (areas > areas.loc["random"]).sum(axis=1).drop("random").to_dict())

# %%
# The copies of Random beat Random in some seeds and lose in others, by several points at times, although they are the
# same strategy. So a gap of that size in a single seed says nothing about any strategy. The winner also changes from
# seed to seed. And the numbers differ along a row: that is the luck of the start, which is why we compare runs within
# seeds.
#
# All seeds together
# ------------------
# Test accuracy in percent, mean ± standard deviation over the seeds, by number of labels. All strategies share their
# start, so the first column has the same number in every row.

result.table()

# %%
# Here are the same means as curves.

figure, ax = plt.subplots(figsize=(7, 4.6), layout="constrained")
_ = result.plot("curves", ax=ax)

# %%
# The standard deviations in the table are those of single runs, and include the luck of the start. What counts is the
# difference from Random within each seed. This plot shows the mean differences, with 95 % intervals.

figure, ax = plt.subplots(figsize=(7, 4.6), layout="constrained")
_ = result.plot("difference", ax=ax)

# %%
# The verdicts
# ------------
# That plot has an interval for every strategy at every budget. With so many, some miss zero by luck, and anyone who
# wants to see a winner can pick the budget. So the test looks at one number per run that was fixed beforehand, the
# area, and Holm's method corrects the p-values for the number of strategies.

for comparison in result.comparisons():
    print(fill(f"{comparison.strategy} is {comparison.verdict}", 90), end="\n\n")

# %%
# "Not distinguishable" does not mean equal. It means that these seeds cannot tell the two apart, and the interval says
# what remains possible. For the copies of Random we know that the true difference is zero. For the others we do not.
# And a strategy can be *worse* than Random: the samples that the network is least sure of are not always the ones that
# help it.
#
# ``low``, ``high`` and ``p`` are what you would see if this strategy were the only one; 0.01 is one percentage point.
# The verdict uses ``p_holm``. So the interval of a strategy may miss zero while its verdict is still "not
# distinguishable": among several strategies, one such interval is no surprise.

result.tests()[["difference", "low", "high", "p", "p_holm"]].round(3)

# %%
# How many seeds?
# ---------------
# This is the verdict on ``margin`` if we had stopped earlier.

for n_seeds in (1, 2, 4, 8):
    shorter = BenchmarkResult(result.protocol, [run for run in result.runs if run.seed < n_seeds])
    margin = next(comparison for comparison in shorter.comparisons() if comparison.strategy == "margin")
    print(fill(f"seeds: {n_seeds}; {margin.verdict}", 90), end="\n\n")

# %%
# More seeds make the interval narrower. Decide on their number before you look: if you add seeds until you like the
# verdict, you will find effects in copies of Random, too. And a verdict holds for this network, this training and this
# data set. Another learning rate may change the order.
#
# With ``out="folder"`` the results are saved as they come, and ``skal report folder`` writes all of this as one page.
# :doc:`/guide/benchmark` has the details.
