# SPDX-License-Identifier: BSD-3-Clause
"""The demonstration: the recommended default beside Random, on data where the difference is real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import normalize
from tqdm.auto import tqdm

from skal.bench._protocol import MOST_SEEDS
from skal.bench._statistics import area
from skal.bench._verdict import compare
from skal.config import get_config
from skal.datasets import load
from skal.exceptions import InvalidParameterError
from skal.loop import ActiveLearningClassifier
from skal.validation import Integer

ARMS = {"random": "random", "recommended": "auto"}  # of the first labels and of the queries


def demo_scores(n_initial: int, query_size: int, n_rounds: int, seeds: int) -> tuple[np.ndarray, np.ndarray]:
    """Budgets (b,), and the test accuracies of both (arm, seed, b), on digits with a logistic regression.

    Every seed has a pool of its own, a random half of the training images, which both share.

    Examples
    --------
    >>> from skal.bench._demo import demo_scores
    >>> n_labels, scores = demo_scores(n_initial=10, query_size=5, n_rounds=1, seeds=1)
    >>> n_labels.tolist(), scores.shape
    ([10, 15], (2, 1, 2))
    """
    Integer(1, MOST_SEEDS).check("skal demo", "seeds", seeds)
    data = load("digits")
    X, X_test = (normalize(part.reshape(len(part), -1)) for part in (data.X_train, data.X_test))
    budget: dict[str, Any] = {"n_initial": n_initial, "query_size": query_size, "n_rounds": n_rounds}
    if n_initial + n_rounds * query_size > len(X) // 2:
        expected, remedy = f"at most {len(X) // 2} labels in all", "Ask for fewer labels or rounds."
        got = f"{n_initial} + {n_rounds} × {query_size}"
        raise InvalidParameterError.for_parameter("skal demo", "n_rounds", expected, got, remedy)
    scores: dict[str, list[list[float]]] = {arm: [] for arm in ARMS}
    n_labels: list[int] = []
    with tqdm(total=seeds * len(ARMS), unit="run", disable=not get_config()["progress"]) as bar:
        for seed in range(seeds):
            rows = np.random.default_rng(seed).permutation(len(X))[: len(X) // 2]
            for arm, strategy in ARMS.items():
                # features of length 1 need little regularisation
                model = LogisticRegression(C=100, max_iter=1000)
                loop = ActiveLearningClassifier(model, strategy, initial=strategy, random_state=seed, **budget)
                loop.fit(X[rows], data.y_train[rows], eval_set=(X_test, data.y_test))
                n_labels = [row["n_labelled"] for row in loop.history_]
                scores[arm].append([row["eval_score"] for row in loop.history_])
                bar.update()
    return np.array(n_labels), np.array([scores[arm] for arm in ARMS])


def describe_demo(n_labels: np.ndarray, scores: np.ndarray) -> str:
    """The table, and a summary: size of the difference, number of seeds ahead, saved labels.

    Examples
    --------
    >>> import numpy as np
    >>> from skal.bench._demo import describe_demo
    >>> better = np.array([[[0.5, 0.7], [0.4, 0.6]], [[0.6, 0.9], [0.6, 0.7]]])
    >>> print(describe_demo(np.array([10, 20]), better).splitlines()[-2])
    Over all budgets: +15.0 points, ahead in 2 of 2 seeds.
    """
    seeds = scores.shape[1]
    spread = "1 seed" if seeds == 1 else f"mean ± standard deviation over {seeds} seeds"
    columns = {arm: [_cell(values) for values in part.T] for arm, part in zip(ARMS, scores, strict=True)}
    table = pd.DataFrame({"labels": n_labels, **columns}).to_string(index=False)
    random, own = (part.mean(axis=0) for part in scores)
    enough = np.flatnonzero(own >= random[-1])
    found = compare(list(ARMS), n_labels, scores, "random")[0]
    areas = area(n_labels, scores)
    lines = [f"Digits, logistic regression, test accuracy in percent, {spread}", "", table, ""]
    if len(enough):
        reached = int(n_labels[enough[0]])
        lines.append(f"Random's accuracy with {n_labels[-1]} labels is reached with {reached} labels.")
    difference = f"{100 * found.difference:+.1f} points"
    lines.append(f"Over all budgets: {difference}, ahead in {(areas[1] > areas[0]).sum()} of {seeds} seeds.")
    lines.append(f"The recommended default is {found.verdict}.")
    return "\n".join(lines)


def _cell(values: np.ndarray) -> str:
    return f"{100 * values.mean():.1f}" + ("" if len(values) == 1 else f" ± {100 * values.std(ddof=1):.1f}")


def draw_demo(n_labels: np.ndarray, scores: np.ndarray, path: Path) -> None:
    """Both curves, with the standard deviation over the seeds, as a picture."""
    from matplotlib.figure import Figure

    ax: Any = Figure(figsize=(6.4, 4), layout="constrained").add_subplot()
    for (arm, part), style in zip(zip(ARMS, scores, strict=True), ("--", "-"), strict=True):
        mean, deviation = 100 * part.mean(axis=0), 100 * part.std(axis=0)
        (line,) = ax.plot(n_labels, mean, style, marker="o", markersize=3, label=arm)
        ax.fill_between(n_labels, mean - deviation, mean + deviation, alpha=0.15, color=line.get_color(), linewidth=0)
    ax.set(xlabel="labels", ylabel="test accuracy, %", title=f"Digits, {scores.shape[1]} seeds")
    ax.legend(frameon=False)
    ax.spines[["top", "right"]].set_visible(False)
    ax.figure.savefig(path, dpi=150)
