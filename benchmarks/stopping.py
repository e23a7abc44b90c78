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
    forecast_labels,
)
from skal.stopping._forecast import LEAST_POINTS, power_law

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


def table_of(each: dict[str, Any], t: int) -> np.ndarray:
    """(t + 1, H) whether each model up to round t is right on each label that was held out by then."""
    state = each["state"]
    heldout = {i for i, flag in zip(state.labelled, state.heldout, strict=True) if flag}
    label_of = dict(zip(state.labelled, state.labels, strict=True))
    known = [i for i in state.labelled[: each["history"][t]["n_labelled"]] if i in heldout]
    columns = [state.audit.index(i) for i in known]
    correct = [
        [said["names"][said["codes"][c]] == label_of[i] for c, i in zip(columns, known, strict=True)]
        for said in state.audit_predictions[: t + 1]
    ]
    return np.array(correct, dtype=bool).reshape(t + 1, len(known))


def forecasts(runs: list[dict[str, Any]]) -> pd.DataFrame:
    """How often intervals hold the test accuracy, of now and with 100 more labels, and how wide they are."""
    now, later, width, error, flat = [], [], [], [], []
    for each in runs:
        history = each["history"]
        scores = {row["n_labelled"]: row["eval_score"] for row in history}
        for t in range(LEAST_POINTS - 1, len(history)):
            n, correct = history[t]["n_labelled"], table_of(each, t)
            found = forecast_accuracy([row["n_labelled"] for row in history[: t + 1]], correct, MORE, n_bootstrap=200)
            now.append(found.low <= scores[n] <= found.high)
            if n + MORE in scores and found.later is not None:
                later.append(found.later_low <= scores[n + MORE] <= found.later_high)
                width.append(100 * (found.later_high - found.later_low))
                error.append(100 * abs(found.later - scores[n + MORE]))
                flat.append(100 * abs(found.accuracy - scores[n + MORE]))
    found = {
        "interval of now holds the test accuracy, %": 100 * np.mean(now),
        "interval of 100 more labels holds it, %": 100 * np.mean(later),
        "its width in points": np.mean(width),
        "error of the forecast in points": np.mean(error),
        'error of "as now" in points': np.mean(flat),
    }
    return pd.DataFrame([found])


def targets(runs: list[dict[str, Any]]) -> pd.DataFrame:
    """Labels to what the model will in fact reach: forecast by a line of logits, by a power law, and "as now".

    The target is the best test accuracy until there are half as many labels again. "As now" says that no more labels
    are needed if the held-out accuracy is at the target, and that no number is enough otherwise.
    """
    found: dict[str, list[tuple[float, float, float, float]]] = {}
    for each in runs:
        n = np.array([row["n_labelled"] for row in each["history"]])
        scores = np.maximum.accumulate([row["eval_score"] for row in each["history"]])
        for t in range(LEAST_POINTS - 1, len(n)):
            if 1.5 * n[t] > n[-1]:
                break
            target = float(scores[n <= 1.5 * n[t]][-1])
            truth = int(n[np.argmax(scores >= target)]) - int(n[t])
            correct = table_of(each, t)
            if truth <= 0 or correct.shape[1] < 5:
                continue
            line = forecast_labels(n[: t + 1], correct, min(target, 0.9999), n_bootstrap=200)
            more = np.unique(np.geomspace(1, 100 * n[t], 200).astype(int))
            draws = np.random.default_rng(0).integers(correct.shape[1], size=(200, correct.shape[1]))
            means = np.vstack([correct.mean(axis=1), *(correct[:, rows].mean(axis=1) for rows in draws)])
            curves = power_law(n[: t + 1].astype(float), means, (n[t] + more).astype(float)) >= target
            power = np.where(curves.any(axis=1), more[np.argmax(curves, axis=1)], np.inf)
            low, high = np.sort(power[1:])[[5, 195]]
            now = 0.0 if correct[-1].mean() >= target else np.inf
            found.setdefault("line of logits", []).append((line.more or 0.0, line.low or 0.0, line.high or 0.0, truth))
            found.setdefault("power law", []).append((power[0], low, high, truth))
            found.setdefault("as now", []).append((now, now, now, truth))
    rows = []
    for name, values in found.items():
        more, low, high, truth = np.array(values).T
        within = (more >= truth / 2) & (more <= 2 * truth)
        finite = np.isfinite(high)
        rows.append(
            {
                "forecast": name,
                "within a factor of 2": f"{100 * within.mean():.0f} %",
                "says 'never'": f"{100 * np.isinf(more).mean():.0f} %",
                "interval holds": f"{100 * ((low <= truth) & (truth <= high)).mean():.0f} %",
                "interval has an end": f"{100 * finite.mean():.0f} %",
                "median width / truth": f"{np.median((high - low)[finite] / truth[finite]):.1f}"
                if finite.any()
                else "-",
            }
        )
    return pd.DataFrame(rows)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stopping", description=__doc__.split("\n")[0])
    parser.add_argument("data", nargs="*", default=["digits"])
    parser.add_argument("--strategy", default="margin")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--query-size", type=int, default=20)
    parser.add_argument("--labels", type=int, default=800)
    parser.add_argument("--pool", type=int, default=5000)
    options = parser.parse_args(arguments)
    tables: list[list[pd.DataFrame]] = [[], [], []]
    for name in options.data:
        data = datasets.load(name)
        settings = {"query_size": options.query_size, "n_labels": options.labels, "n_pool": options.pool}
        runs = [run(data, options.strategy, seed, **settings) for seed in range(options.seeds)]
        for rows, found in zip(tables, (stops(runs), forecasts(runs), targets(runs)), strict=True):
            found.insert(0, "data", name)
            rows.append(found)
    for rows in tables:
        print(pd.concat(rows).round(1).to_markdown(index=False), "\n")


if __name__ == "__main__":
    main()
