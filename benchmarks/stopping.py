"""How far from the plateau does each criterion of ``skal.stopping`` stop, and do the forecasts come true?

Runs loops far beyond the point at which the curve is flat, and asks every criterion after every round whether it would
have stopped. ``python -m benchmarks.stopping digits`` takes about a minute; other data sets of ``skal.datasets`` and
npz files of features need ``SKAL_DATA_HOME``.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skal import ActiveLearningClassifier, datasets
from skal.stopping import (
    HoldOut,
    StablePredictions,
    StoppingCriterion,
    TargetScore,
    UncertaintyPlateau,
    forecast_accuracy,
)
from skal.stopping._forecast import LEAST_POINTS

CRITERIA: dict[str, StoppingCriterion] = {
    "StablePredictions()": StablePredictions(),
    "StablePredictions(0.98)": StablePredictions(0.98),
    "UncertaintyPlateau()": UncertaintyPlateau(),
    "UncertaintyPlateau(statistic='max')": UncertaintyPlateau(statistic="max"),
    "UncertaintyPlateau(threshold=0.05)": UncertaintyPlateau(threshold=0.05, window=10**6),
    "StablePredictions() & UncertaintyPlateau()": StablePredictions() & UncertaintyPlateau(),
}
MARGIN = 0.01  # the plateau begins where the curve stays within this of its end
MORE = 100


def run(data: Any, strategy: str, seed: int, *, query_size: int, n_labels: int, n_pool: int) -> dict[str, Any]:
    """One loop with a fifth of the labels held out: its history, and what was held out."""
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(data.X_train))[:n_pool]
    X, y = data.X_train[rows].reshape(len(rows), -1), data.y_train[rows]
    test = rng.permutation(len(data.X_test))[:5000]
    evaluation = data.X_test[test].reshape(len(test), -1), data.y_test[test]
    loop = ActiveLearningClassifier(
        make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=300)),
        strategy,
        n_initial=query_size,
        query_size=query_size,
        n_rounds=None,
        budget=min(n_labels, len(X)),
        stop=HoldOut(0.2),
        random_state=seed,
    )
    session = loop.start(X, eval_set=evaluation)
    session.run(lambda indices, _: y[indices])
    return {"history": loop.history_, "state": session.state}


def plateau(history: list[dict[str, Any]]) -> tuple[float, int]:
    """The mean score of the last five rounds, and the labels from which on the curve stays near it."""
    scores = np.array([row["eval_score"] for row in history])
    level = float(scores[-5:].mean())
    outside = np.flatnonzero(np.abs(scores - level) > MARGIN)
    first = 0 if len(outside) == 0 else min(int(outside[-1]) + 1, len(history) - 1)
    return level, int(history[first]["n_labelled"])


def stop_of(criterion: StoppingCriterion, history: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The row after which a criterion stops, None if it never does."""
    prefixes = (history[: i + 1] for i in range(len(history)))
    return next((rows[-1] for rows in prefixes if criterion.reason(rows, rows[-1]["n_labelled"])), None)


def stops(runs: list[dict[str, Any]]) -> pd.DataFrame:
    """For each criterion: labels at its stop, labels at the plateau, and how much accuracy is missing there."""
    table = []
    level = np.mean([plateau(each["history"])[0] for each in runs])
    criteria = CRITERIA | {"TargetScore(plateau - 0.02)": TargetScore(min(1.0, max(0.0, level - 0.02)))}
    for name, criterion in criteria.items():
        found = [(stop_of(criterion, each["history"]), plateau(each["history"])) for each in runs]
        reached = [(row, level, n) for row, (level, n) in found if row is not None]
        line = {"criterion": name, "stopped": f"{len(reached)} of {len(runs)}"}
        if reached:
            labels = np.array([row["n_labelled"] for row, _, _ in reached])
            missing = np.array([100 * (level - row["eval_score"]) for row, level, _ in reached])
            line |= {
                "labels": f"{labels.mean():.0f} ± {labels.std():.0f}",
                "plateau at": f"{np.mean([n for _, _, n in reached]):.0f}",
                "below plateau (points)": f"{missing.mean():.1f} ± {missing.std():.1f}",
                "worst": f"{missing.max():.1f}",
            }
        table.append(line)
    return pd.DataFrame(table).fillna("-")


def forecasts(runs: list[dict[str, Any]]) -> dict[str, float]:
    """How often intervals hold the test accuracy, of now and with 100 more labels, and how wide they are."""
    now, later, width, error, flat = [], [], [], [], []
    for each in runs:
        history, state = each["history"], each["state"]
        scores = {row["n_labelled"]: row["eval_score"] for row in history}
        heldout = {i for i, flag in zip(state.labelled, state.heldout, strict=True) if flag}
        label_of = dict(zip(state.labelled, state.labels, strict=True))
        for t in range(LEAST_POINTS - 1, len(history)):
            n = history[t]["n_labelled"]
            known = [i for i in state.labelled[:n] if i in heldout]
            columns = [state.audit.index(i) for i in known]
            correct = [
                [said["names"][said["codes"][c]] == label_of[i] for c, i in zip(columns, known, strict=True)]
                for said in state.audit_predictions[: t + 1]
            ]
            found = forecast_accuracy([row["n_labelled"] for row in history[: t + 1]], correct, MORE, n_bootstrap=200)
            now.append(found.low <= scores[n] <= found.high)
            if n + MORE in scores and found.later is not None:
                later.append(found.later_low <= scores[n + MORE] <= found.later_high)
                width.append(100 * (found.later_high - found.later_low))
                error.append(100 * abs(found.later - scores[n + MORE]))
                flat.append(100 * abs(found.accuracy - scores[n + MORE]))
    return {
        "interval of now holds the test accuracy": 100 * np.mean(now),
        "interval of 100 more labels holds it": 100 * np.mean(later),
        "its width in points": np.mean(width),
        "error of the forecast in points": np.mean(error),
        "error of 'as now' in points": np.mean(flat),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stopping", description=__doc__.split("\n")[0])
    parser.add_argument("data", nargs="*", default=["digits"])
    parser.add_argument("--strategy", default="margin")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--query-size", type=int, default=20)
    parser.add_argument("--labels", type=int, default=800)
    parser.add_argument("--pool", type=int, default=5000)
    options = parser.parse_args(arguments)
    for name in options.data:
        data = datasets.load(name)
        settings = {"query_size": options.query_size, "n_labels": options.labels, "n_pool": options.pool}
        runs = [run(data, options.strategy, seed, **settings) for seed in range(options.seeds)]
        print(f"\n{name}, {options.strategy}, {options.seeds} seeds, batches of {options.query_size}\n")
        print(stops(runs).to_string(index=False))
        print()
        for text, value in forecasts(runs).items():
            print(f"{text}: {value:.1f}")


if __name__ == "__main__":
    main()
