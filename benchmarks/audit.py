"""Do intervals and certificates of ``skal.audit`` hold as often as they say, and how many labels do they save?

Each project is a pool, a model and an audit of 20 to 500 labels. Simulated projects draw a new pool each; real ones
train logistic regression on new labels each (``SKAL_DATA_HOME`` has ``banking77.npz``, ``cifar10_features.npz`` and
``tables/adult.csv.gz``), and audit each model several times. ``python -m benchmarks.audit --keep FILE`` takes about
half an hour on one core and goes on where it was stopped; ``--quick`` takes a tenth of the projects.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import norm
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from benchmarks._kept import Kept
from skal.audit import accuracy, accuracy_sequence, balanced_accuracy, certify, plan, plan_sequence
from skal.audit._bounds import count_limit
from skal.exceptions import BiasedAuditWarning

SIZES = (20, 50, 100, 200, 500)
N_SIMULATED = 4000  # samples in a simulated pool
Pool = tuple[np.ndarray, np.ndarray]  # class probabilities (N, C) and labels (N,)


def simulate(rng: np.random.Generator, strength: float, n_classes: int = 5, skew: float = 0.0) -> Pool:
    """A calibrated model on classes of which some are rarer if ``skew`` is above 0."""
    logits = strength * rng.standard_normal((N_SIMULATED, n_classes)) - skew * np.arange(n_classes)
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    return p, (rng.random((N_SIMULATED, 1)) > p.cumsum(1)).sum(1).clip(max=n_classes - 1)


def sharpen(pool: Pool, power: float) -> Pool:
    """The same predictions, more confident."""
    p = pool[0] ** power
    return p / p.sum(1, keepdims=True), pool[1]


def spoil(rng: np.random.Generator, pool: Pool, share: float) -> Pool:
    """A subgroup of this share on which the model is confident, and always wrong."""
    p, y = pool[0].copy(), pool[1]
    rows = rng.permutation(len(p))[: round(share * len(p))]
    p[rows] = 0.01 / (p.shape[1] - 1)
    p[rows, (y[rows] + 1) % p.shape[1]] = 0.99
    return p, y


def thin(rng: np.random.Generator, pool: Pool, share: float) -> Pool:
    """The odd classes kept in this share of their samples only."""
    keep = (pool[1] % 2 == 0) | (rng.random(len(pool[1])) < share)
    return pool[0][keep], pool[1][keep]


SIMULATED: dict[str, Callable[[np.random.Generator], Pool]] = {
    "calibrated": lambda rng: simulate(rng, rng.uniform(3, 8)),
    "overconfident": lambda rng: sharpen(simulate(rng, rng.uniform(2, 6)), 4),
    "underconfident": lambda rng: sharpen(simulate(rng, rng.uniform(3, 8)), 0.5),
    "wrong on a subgroup": lambda rng: spoil(rng, simulate(rng, rng.uniform(4, 10)), rng.uniform(0.01, 0.1)),
    "imbalanced": lambda rng: simulate(rng, rng.uniform(3, 8), skew=rng.uniform(1, 3)),
    "errors are rare": lambda rng: sharpen(simulate(rng, rng.uniform(30, 90)), 2),
    "poor": lambda rng: simulate(rng, rng.uniform(0.5, 1.5)),
}


def load_vectors(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Features and labels of an npz file."""
    file = np.load(Path(os.environ["SKAL_DATA_HOME"], f"{name}.npz"), allow_pickle=False)
    return file["X_train"].astype(np.float32), file["y_train"].astype(np.int64)


def load_adult() -> tuple[np.ndarray, np.ndarray]:
    """Features of the table and who earns more than 50,000."""
    table = pd.read_csv(Path(os.environ["SKAL_DATA_HOME"], "tables", "adult.csv.gz"))
    y = (table.pop("income").str.strip().str.startswith(">")).to_numpy(np.int64)
    numbers = table.select_dtypes("number").columns
    others = OneHotEncoder(handle_unknown="ignore", sparse_output=False, min_frequency=20)
    rest = [column for column in table.columns if column not in numbers]
    features = make_column_transformer((StandardScaler(), list(numbers)), (others, rest)).fit_transform(table)
    return features, y


def train(rng: np.random.Generator, X: np.ndarray, y: np.ndarray, n_labels: int) -> Pool:
    """Logistic regression on random labels, two of every class at least: its probabilities of all others."""
    order = rng.permutation(len(y))
    first = np.concatenate([order[y[order] == c][:2] for c in np.unique(y)])
    chosen = np.concatenate([first, np.setdiff1d(order, first)[rng.permutation(len(y) - len(first))]])
    labelled, rest = chosen[:n_labels], chosen[n_labels:]
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=100, tol=1e-3))
    return model.fit(X[labelled], y[labelled]).predict_proba(X[rest]), y[rest]


def real_pools(n_models: int) -> Iterator[tuple[str, Callable[[], list[Pool]]]]:
    """Pools by setting, trained when they are needed."""
    loaders = {
        "banking77": (lambda: load_vectors("banking77"), 300, 2000),
        "CIFAR-10 features": (lambda: load_vectors("cifar10_features"), 100, 1000),
        "Adult": (load_adult, 100, 1000),
    }
    for name, (load, least, most) in loaders.items():

        def make(load: Any = load, least: int = least, most: int = most) -> list[Pool]:
            X, y = load()
            rng = np.random.default_rng(0)
            return [train(rng, X, y, int(np.exp(rng.uniform(np.log(least), np.log(most))))) for _ in range(n_models)]

        yield name, make


VARIANTS: dict[str, Callable[[np.random.Generator, Pool], Pool]] = {
    "": lambda rng, pool: pool,
    ", overconfident": lambda rng, pool: sharpen(pool, 3),
    ", imbalanced": lambda rng, pool: thin(rng, pool, 0.1),
    ", wrong on a subgroup": lambda rng, pool: spoil(rng, pool, 0.05),
}


def measure(pool: Pool, m: int, rng: np.random.Generator, extras: bool) -> dict[str, float]:
    """What one audit of m labels says about a pool, and whether it is true; extras take long."""
    p, y = pool
    n, right = len(p), p.argmax(1) == y
    true = right.mean()
    row: dict[str, float] = {}

    def note(name: str, low: float, high: float, truth: float = true) -> None:
        row[f"{name} holds"] = float(low <= truth <= high)
        row[f"{name} width"] = high - low

    at, chance = plan(p, m, random_state=rng)
    found = accuracy(p, at, y[at], chance)
    note("accuracy", found.low, found.high)
    guess = np.clip(1 - p.max(1), 0.02, 0.98)  # the normal interval of the same audit, for comparison
    off = (~right[at] - guess[at]) / chance
    half = norm.isf(0.025) * np.sqrt(((1 - chance) * off**2).sum()) / n
    middle = 1 - guess.mean() - off.sum() / n
    note("normal", middle - half, middle + half)
    classes = np.unique(y)
    if extras and p.shape[1] <= 10 and len(classes) == p.shape[1]:
        balanced = balanced_accuracy(p, at, y[at], chance)
        note("balanced", balanced.low, balanced.high, float(np.mean([right[y == c].mean() for c in classes])))
    at, chance = plan(p, m, uniform=True, random_state=rng)
    found = accuracy(p, at, y[at], chance)
    note("uniform", found.low, found.high)
    k = int(right[at].sum())
    note("random", 1 - count_limit(m - k, m, n, 0.025) / n, count_limit(k, m, n, 0.025) / n)
    certificate = certify(p, at, y[at], chance)
    row["certificate broken"] = float((~right[certificate.accepted]).sum() > 0.05 * n)
    row["accepted"] = float(certificate.accepted.sum() / (n - m))
    order = np.argsort(-p.max(1), kind="stable")
    row["oracle"] = float((np.cumsum(~right[order]) <= 0.05 * n).sum() / n)
    if extras and m == 200:
        at, chance = plan_sequence(p, m, random_state=rng)
        each = accuracy_sequence(p, at, y[at], chance)
        row["sequence holds"] = float(((each.low <= true) & (true <= each.high)).all())
        row["sequence width"] = float(each.high[-1] - each.low[-1])
    return row


def summarise(rows: list[dict[str, float]]) -> dict[str, Any]:
    """Means over projects, and how many there were."""
    table = pd.DataFrame(rows)
    return {"projects": len(rows)} | {name: float(value) for name, value in table.mean().items()}


def run(pools: list[Pool], m: int, seed: int) -> dict[str, Any]:
    """All projects of a setting, each with an audit of m labels. False alarms are counted."""
    rng = np.random.default_rng(seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BiasedAuditWarning)
        found = summarise([measure(pool, m, rng, i % 2 == 0) for i, pool in enumerate(pools)])
    return found | {"alarms": sum(issubclass(w.category, BiasedAuditWarning) for w in caught)}


def tables(found: pd.DataFrame) -> Iterator[str]:
    """The tables of the guide, in its form."""
    percent = found[[c for c in found if c.endswith(("holds", "broken")) or c in ("accepted", "oracle")]] * 100
    shown = percent.add_suffix(" %").round(1).join(found[[c for c in found if c.endswith("width")]].mul(100).round(1))
    saved = (1 - (found["accuracy width"] / found["random width"]) ** 2) * 100
    shown = found[["setting", "labels", "projects"]].join(shown).assign(saved=saved.round(0))
    columns = ["setting", "labels", "projects", "accuracy holds %", "normal holds %", "uniform holds %"]
    yield shown[[*columns, "balanced holds %", "sequence holds %", "certificate broken %"]].to_markdown(index=False)
    columns = ["setting", "labels", "accuracy width", "uniform width", "random width", "saved", "sequence width"]
    yield shown[[*columns, "accepted %", "oracle %"]].to_markdown(index=False)


def main() -> None:
    """Measure everything and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="a file that keeps results, so that a stopped run goes on")
    parser.add_argument("--quick", action="store_true", help="a tenth of the projects")
    parser.add_argument("--only", choices=["simulated", "real"], help="one half of the projects")
    args = parser.parse_args()
    kept, part = Kept(args.keep), 10 if args.quick else 1
    rows = []

    def add(setting: str, make: Callable[[], list[Pool]], seed: int) -> None:
        pools: list[Pool] = []
        for m in SIZES:

            def measure_all(m: int = m) -> dict[str, Any]:
                if not pools:
                    pools.extend(make())
                return run(pools, m, seed + m)

            result = kept(f"{setting} {m} {part}", measure_all)
            rows.append({"setting": setting, "labels": m} | result)
            print(setting, m, {k: round(v, 3) for k, v in result.items()}, flush=True)

    for number, (name, simulated) in enumerate(() if args.only == "real" else SIMULATED.items()):
        rng = np.random.default_rng(number)
        add(name, lambda make=simulated, rng=rng: [make(rng) for _ in range(150 // part)], 1000 * number)
    for number, (name, make) in enumerate(() if args.only == "simulated" else real_pools(10 // part)):
        trained: list[Pool] = []

        def pools_of(change: Any, make: Any = make, trained: list[Pool] = trained) -> list[Pool]:
            trained.extend([] if trained else make())
            rng = np.random.default_rng(0)
            return [change(rng, pool) for pool in trained for _ in range(5)]

        for place, (variant, change) in enumerate(VARIANTS.items()):
            add(
                name + variant, lambda change=change, pools_of=pools_of: pools_of(change), 10**5 * (10 * number + place)
            )
    found = pd.DataFrame(rows)
    real = found["setting"].str.contains("banking|CIFAR|Adult")
    for title, some in (("simulated", found[~real]), ("real", found[real])):
        largest = some.groupby("labels").mean(numeric_only=True)
        print(f"\n{title}, mean over settings\n\n{largest.round(3).to_markdown()}")
    print(f"\nalarms about audits that were drawn as planned: {int(found['alarms'].sum())}")
    for table in tables(found):
        print(f"\n{table}")


if __name__ == "__main__":
    main()
