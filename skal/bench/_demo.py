"""The main job in under a minute: an active-learning run on digits, as a table and a plot."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from skorch import NeuralNetClassifier
from tqdm import tqdm

from skal import strategies
from skal._core.network import preserved_rng
from skal.base import QueryStrategy
from skal.datasets import load
from skal.exceptions import InvalidParameterError
from skal.learners import ActiveLearner
from skal.nets import MLP
from skal.validation import check_integer

__all__ = ["demo_strategies", "learning_curve_plot", "learning_curve_table", "run_demo"]

BASELINES = ("RandomSampling", "Entropy")
# each joins the demo as soon as skal.strategies exports it
HEADLINE = ("DynamicAL", "NTKLookahead", "NPC")
# what it would do, and warn of, by itself: the demo's network is trained with cross-entropy
_PARAMS: dict[str, dict[str, Any]] = {"NTKLookahead": {"reference": "linearized"}}


def demo_strategies() -> list[str]:
    """Names of the strategies that the demo compares: two baselines, then the headline strategies that exist.

    Examples
    --------
    >>> from skal.bench._demo import demo_strategies
    >>> demo_strategies()[:2]
    ['RandomSampling', 'Entropy']
    """
    return [*BASELINES, *(name for name in HEADLINE if name in strategies.__all__)]


def run_demo(
    *,
    n_seeds: int = 3,
    n_rounds: int = 5,
    n_initial: int = 20,
    batch: int = 20,
    max_epochs: int = 40,
    progress: bool = False,
) -> pd.DataFrame:
    """Run every strategy of :func:`demo_strategies` on digits and record its test accuracy after every round.

    All strategies of a seed start from the same labels and the same trained network, so that they can be compared
    in pairs. Training goes on from round to round (``warm_start=True``), on everything labelled so far.

    Parameters
    ----------
    n_seeds : int, default=3
        Number of repetitions, each with its own initial labels and weights.
    n_rounds : int, default=5
        Number of queries.
    n_initial, batch : int, default=20
        Number of labels at the start, and per query.
    max_epochs : int, default=40
        Epochs per round.
    progress : bool, default=False
        Whether to show a progress bar on stderr.

    Returns
    -------
    pandas.DataFrame
        One row per strategy, seed and round, with the columns ``strategy``, ``seed``, ``n_labels``, ``accuracy``.

    Examples
    --------
    >>> from skal.bench._demo import run_demo
    >>> curves = run_demo(n_seeds=1, n_rounds=1, max_epochs=1)
    >>> sorted(set(curves["n_labels"]))
    [20, 40]
    """
    sizes = {"n_seeds": n_seeds, "n_rounds": n_rounds, "n_initial": n_initial, "batch": batch, "max_epochs": max_epochs}
    for name, value in sizes.items():
        check_integer("run_demo", name, value, 1)
    data = load("digits")
    if n_initial + n_rounds * batch > len(data.X_train):
        raise InvalidParameterError.for_parameter(
            "run_demo",
            "n_rounds",
            f"such that n_initial + n_rounds * batch is at most {len(data.X_train)}, the size of the training set",
            n_rounds,
            "Ask for fewer rounds or smaller batches.",
        )
    names = demo_strategies()
    rows: list[dict[str, Any]] = []
    bar = tqdm(total=n_seeds * len(names) * n_rounds, unit="round", file=sys.stderr, disable=not progress)
    with bar, preserved_rng(), _one_thread():
        for seed in range(n_seeds):
            labelled = np.random.default_rng(seed).choice(len(data.X_train), size=n_initial, replace=False)
            start = _start(data.X_train[labelled], data.y_train[labelled], seed, max_epochs)
            for name in names:
                bar.set_description(name)
                curve = _curve(start, _make(name, seed), data, labelled, n_rounds, batch, seed)
                for n_labels, accuracy in curve:
                    rows.append({"strategy": name, "seed": seed, "n_labels": n_labels, "accuracy": accuracy})
                    bar.update(n_labels > n_initial)
    return pd.DataFrame(rows)


def learning_curve_table(curves: pd.DataFrame) -> str:
    """Test accuracy in percent by number of labels, one column per strategy: mean ± standard deviation over seeds.

    Parameters
    ----------
    curves : pandas.DataFrame
        What :func:`run_demo` returns.

    Returns
    -------
    str

    Examples
    --------
    >>> import pandas as pd
    >>> from skal.bench._demo import learning_curve_table
    >>> row = {"strategy": "Entropy", "n_labels": 20}
    >>> print(learning_curve_table(pd.DataFrame([row | {"accuracy": 0.5}, row | {"accuracy": 0.6}])))
    labels       Entropy
        20    55.0 ± 7.1
    """
    mean, std = _mean_and_std(curves)
    # with one seed there is no spread to show
    cells = [
        [f"{100 * m:.1f}" if np.isnan(s) else f"{100 * m:.1f} ± {100 * s:.1f}" for m, s in zip(*pair, strict=True)]
        for pair in zip(mean.to_numpy(), std.to_numpy(), strict=True)
    ]
    width = max(12, *(len(name) for name in mean.columns))
    lines = ["labels" + "".join(f"  {name:>{width}}" for name in mean.columns)]
    for n_labels, row in zip(mean.index, cells, strict=True):
        lines.append(f"{n_labels:>6}" + "".join(f"  {cell:>{width}}" for cell in row))
    return "\n".join(lines)


def learning_curve_plot(curves: pd.DataFrame, path: str | Path) -> Path:
    """Draw the mean accuracy of each strategy against the number of labels, with a band of one standard deviation.

    Parameters
    ----------
    curves : pandas.DataFrame
        What :func:`run_demo` returns.
    path : str or Path
        The image to write; its folder is made if it is not there.

    Returns
    -------
    Path
        ``path``.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from skal.bench._demo import learning_curve_plot
    >>> rows = [{"strategy": "Entropy", "n_labels": n, "accuracy": n / 100} for n in (20, 20, 40, 40)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     learning_curve_plot(pd.DataFrame(rows), f"{folder}/curve.png").name
    'curve.png'
    """
    mean, std = _mean_and_std(curves)
    # a Figure of its own, without pyplot: no display is needed and no global state is touched
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.add_subplot(xlabel="labels", ylabel="test accuracy", title="Active learning on digits")
    for name in mean.columns:
        axes.plot(mean.index, mean[name], marker="o", label=name)
        axes.fill_between(mean.index, mean[name] - std[name], mean[name] + std[name], alpha=0.15)
    axes.grid(alpha=0.3)
    axes.legend()
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path


def _mean_and_std(curves: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Tables (number of labels × strategy) of the mean and the sample standard deviation over seeds."""
    by_cell = curves.groupby(["n_labels", "strategy"], sort=False)["accuracy"]
    order = list(dict.fromkeys(curves["strategy"]))
    return by_cell.mean().unstack()[order].sort_index(), by_cell.std().unstack()[order].sort_index()


def _make(name: str, seed: int) -> QueryStrategy:
    strategy = getattr(strategies, name)
    params = dict(_PARAMS.get(name, {}))
    if "random_state" in inspect.signature(strategy).parameters:
        # a generator, not an integer: the draws then differ from round to round
        params["random_state"] = np.random.default_rng(seed)
    return strategy(**params)


def _start(X: np.ndarray, y: np.ndarray, seed: int, max_epochs: int) -> ActiveLearner:
    torch.manual_seed(seed)
    net = NeuralNetClassifier(
        MLP,
        module__n_features=X.shape[1:],
        module__n_classes=10,
        criterion=torch.nn.CrossEntropyLoss,
        optimizer=torch.optim.Adam,
        lr=0.003,
        batch_size=32,
        max_epochs=max_epochs,
        iterator_train__shuffle=True,
        train_split=None,
        warm_start=True,
        verbose=0,
    )
    return ActiveLearner(net, X_training=X, y_training=y)


def _curve(
    start: ActiveLearner, strategy: QueryStrategy, data: Any, labelled: np.ndarray, n_rounds: int, batch: int, seed: int
) -> Iterator[tuple[int, float]]:
    """Number of labels and test accuracy, at the start and after every round."""
    learner = copy.deepcopy(start)
    learner.query_strategy = strategy
    pool = np.setdiff1d(np.arange(len(data.X_train)), labelled)
    torch.manual_seed(seed)  # the order of the minibatches
    yield len(labelled), float(learner.score(data.X_test, data.y_test))
    for n_labels in range(len(labelled) + batch, len(labelled) + (n_rounds + 1) * batch, batch):
        indices, samples = learner.query(data.X_train[pool], n_instances=batch)
        learner.teach(samples, data.y_train[pool[indices]])
        pool = np.delete(pool, indices)
        yield n_labels, float(learner.score(data.X_test, data.y_test))


@contextmanager
def _one_thread() -> Iterator[None]:
    """One torch thread inside: on a network this small, handing work to a second costs more than it saves."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(n_threads)
