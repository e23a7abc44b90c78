# SPDX-License-Identifier: BSD-3-Clause
"""How long the trainings of a benchmark will take, said before they begin."""

from __future__ import annotations

import sys
from time import perf_counter

import numpy as np
import torch
from joblib import effective_n_jobs
from sklearn.base import clone
from skorch import NeuralNet

from skal._core.guard import preserve_rng
from skal._core.parallel import one_thread
from skal.bench._networks import make_net
from skal.bench._pools import Data
from skal.bench._run import Task

_SAMPLES = 256  # of the epoch that is measured
_LONG = 600.0  # seconds; of a shorter benchmark the bar soon says enough


def announce_duration(tasks: list[Task], data: Data, n_jobs: int | None) -> None:
    """Print on stderr how long the trainings of a long benchmark take at most; of a short one nothing."""
    try:
        seconds = (
            sum(training_seconds(task, data) for task in tasks[:1]) * len(tasks) / max(1, effective_n_jobs(n_jobs))
        )
    except Exception:  # whatever a user's network may raise: its run will say so
        return
    if seconds >= _LONG:
        runs = "run" if len(tasks) == 1 else "runs"
        print(
            f"Training for {len(tasks)} {runs} takes at most about {describe_seconds(seconds)}, less where it stops "
            "early; queries come on top. Stop at any time: with out=FOLDER the same command goes on.",
            file=sys.stderr,
            flush=True,
        )


def training_seconds(task: Task, data: Data) -> float:
    """Seconds that the trainings of one run take if all their epochs are needed: one epoch is made, and timed.

    Parameters
    ----------
    task : Task
    data : Data

    Returns
    -------
    float
        Zero for a classifier that is no network.
    """
    protocol = task.protocol
    pool = data.pool(protocol, task.seed)
    rows, y = pool.initial[:_SAMPLES], pool.y
    if protocol.semi_supervised is not None:  # it trains on the whole pool
        rows, y = np.arange(min(_SAMPLES, len(y))), np.where(np.isin(np.arange(len(y)), pool.initial), y, -1)
        rows = np.union1d(rows, pool.initial[:1])
    with preserve_rng(), one_thread():
        torch.manual_seed(task.seed)
        net = task.net if task.net is not None else make_net(protocol, pool.X.shape[1:], data.n_classes, task.strategy)
        if not isinstance(net, NeuralNet):
            return 0.0
        n_epochs, seconds = int(net.max_epochs), float("inf")
        for _ in range(2):  # the first training of a process takes longer than any other
            once = clone(net).set_params(max_epochs=1, verbose=0)
            start = perf_counter()
            once.fit(pool.X[rows], y[rows])
            seconds = min(seconds, perf_counter() - start)
    n_trained = len(y) * len(protocol.n_labels) if protocol.semi_supervised is not None else sum(protocol.n_labels)
    return seconds * n_epochs * n_trained / len(rows)


def describe_seconds(seconds: float) -> str:
    """Minutes, hours or days in words.

    Examples
    --------
    >>> describe_seconds(900), describe_seconds(9000), describe_seconds(10**6)
    ('15 minutes', '2.5 hours', '12 days')
    """
    for limit, size, name in ((7200, 60, "minutes"), (172_800, 3600, "hours")):
        if seconds < limit:
            return f"{seconds / size:.2g} {name}" if seconds / size < 10 else f"{seconds / size:.0f} {name}"
    return f"{seconds / 86_400:,.0f} days"
