"""Do intervals and certificates of ``skal.audit`` hold as often as they say, and how many labels do they save?

Each project is a pool, a model and audits of 20 to 500 labels. Simulated projects draw a new pool each; real ones
train a logistic regression on new labels each (``SKAL_DATA_HOME`` has ``banking77.npz``, ``cifar10_features.npz`` and
``tables/adult.csv.gz``). ``python -m benchmarks.audit --keep FILE`` takes about an hour on one core and goes on where
it was stopped; ``--parts 1`` makes a twentieth of the projects. Intervals that take longer (classes, balanced
accuracy, sequences) are looked at in every fifth project.

``--sequences`` makes the same projects, and of each one audit of 500 labels that is looked at after every label;
``--classes`` looks at classes and balanced accuracy in all projects of at most ten classes. The results of both need
files of their own.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import binom, norm
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from benchmarks._kept import Kept
from skal.audit import accuracy, accuracy_by_class, accuracy_sequence, balanced_accuracy, certify, plan, plan_sequence
from skal.audit._bounds import count_limit
from skal.exceptions import BiasedAuditWarning

SIZES = (20, 50, 100, 200, 500)
LOOKS = (50, 100, 200, 500)  # labels by which a sequence must not have missed at any look
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


REAL: dict[
    str, tuple[Callable[[], tuple[np.ndarray, np.ndarray]], int, int]
] = {  # and how many labels it is trained on
    "banking77": (lambda: load_vectors("banking77"), 300, 2000),
    "CIFAR-10 features": (lambda: load_vectors("cifar10_features"), 100, 1000),
    "Adult": (load_adult, 100, 1000),
}
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
    if extras and has_few_classes(pool):
        row |= measure_classes(pool, at, chance, rng)
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
        looks = accuracy_sequence(p, at, y[at], chance)
        row["sequence holds"] = float(((looks.low <= true) & (true <= looks.high)).all())
        row["sequence width"] = float(looks.high[-1] - looks.low[-1])
    return row


def has_few_classes(pool: Pool) -> bool:
    """Whether a pool has samples of all classes, and at most ten of these."""
    return pool[0].shape[1] <= 10 and len(np.unique(pool[1])) == pool[0].shape[1]


def measure_classes(pool: Pool, at: np.ndarray, chance: np.ndarray, rng: np.random.Generator) -> dict[str, float]:
    """What an audit says about the mean over classes, and about a class that is drawn at random."""
    p, y = pool
    right = p.argmax(1) == y
    recalls = np.array([right[y == c].mean() for c in range(p.shape[1])])
    balanced = balanced_accuracy(p, at, y[at], chance)
    each_class = accuracy_by_class(p, at, y[at], chance)
    inside = [one.low <= recall <= one.high for one, recall in zip(each_class, recalls, strict=True)]
    return {
        "balanced holds": float(balanced.low <= recalls.mean() <= balanced.high),
        "balanced width": balanced.high - balanced.low,
        "one class holds": float(inside[rng.integers(len(inside))]),
    }


def run_part(projects: Iterator[tuple[str, Pool]], seed: list[int]) -> list[dict[str, Any]]:
    """Audits of every size of some projects: for each setting and size the sums over projects, and their numbers."""
    rng = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    for number, (setting, pool) in enumerate(projects):
        for m in SIZES:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", BiasedAuditWarning)
                row = measure(pool, m, rng, extras=number % 5 == 0)
            alarms = sum(issubclass(w.category, BiasedAuditWarning) for w in caught)
            rows.append({"setting": setting, "labels": m, "alarms": alarms} | row)
    return add_up(rows)


def follow_part(projects: Iterator[tuple[str, Pool]], seed: list[int]) -> list[dict[str, Any]]:
    """As :func:`run_part`, with one audit of each project that is looked at after every label."""
    rng = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    for setting, (p, y) in projects:
        true = (p.argmax(1) == y).mean()
        at, chance = plan_sequence(p, LOOKS[-1], random_state=rng)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", BiasedAuditWarning)
            found = accuracy_sequence(p, at, y[at], chance)
        alarms = sum(issubclass(w.category, BiasedAuditWarning) for w in caught)
        held = np.logical_and.accumulate((found.low <= true) & (true <= found.high))
        for m in LOOKS:
            row = {"sequence holds": float(held[m - 1]), "sequence width": float(found.high[m - 1] - found.low[m - 1])}
            rows.append({"setting": setting, "labels": m, "alarms": alarms if m == LOOKS[-1] else 0} | row)
    return add_up(rows)


def classes_part(projects: Iterator[tuple[str, Pool]], seed: list[int]) -> list[dict[str, Any]]:
    """As :func:`run_part`, for the intervals of classes alone, and for every project."""
    rng = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BiasedAuditWarning)  # counted by run_part
        for setting, pool in projects:
            for m in SIZES if has_few_classes(pool) else ():
                at, chance = plan(pool[0], m, random_state=rng)
                rows.append({"setting": setting, "labels": m} | measure_classes(pool, at, chance, rng))
    return add_up(rows)


def add_up(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each setting and number of labels the sums over projects, and their numbers."""
    if not rows:
        return []
    grouped = pd.DataFrame(rows).groupby(["setting", "labels"], sort=False)
    sums = grouped.sum(min_count=1).join(grouped.count().add_suffix(" n")).reset_index()
    return list(json.loads(sums.to_json(orient="records")))


def simulated_projects(part: int) -> Iterator[tuple[str, Pool]]:
    """A part's simulated projects: new pools of each setting, so that all parts have 2,100."""
    rng = np.random.default_rng([0, part])
    for _ in range(15):
        for setting, make in SIMULATED.items():
            yield setting, make(rng)


def real_projects(name: str, part: int) -> Iterator[tuple[str, Pool]]:
    """A part's projects of a data set: newly trained models in each variant, so that all parts have 500 of each."""
    load, least, most = REAL[name]
    X, y = load()
    rng = np.random.default_rng([1, part])
    for _ in range(25):
        pool = train(rng, X, y, int(np.exp(rng.uniform(np.log(least), np.log(most)))))
        for variant, change in VARIANTS.items():
            yield name + variant, change(rng, pool)


def collect(parts: list[list[dict[str, Any]]]) -> pd.DataFrame:
    """One row for each setting and number of labels: means over projects, and of how many."""
    rows = pd.DataFrame([row for part in parts for row in part])
    total = rows.groupby(["setting", "labels"], sort=False).sum(min_count=1)
    names = [name for name in total if not name.endswith(" n")]
    means = {name: total[name] / total[f"{name} n"] for name in names}
    return pd.DataFrame(means | {f"{name} n": total[f"{name} n"] for name in names}).reset_index()


def group(found: pd.DataFrame) -> pd.Series:
    """The kind of project of each row."""
    real = found["setting"].str.contains("|".join(REAL))
    return real.map({True: "real", False: "simulated"}).rename("projects")


def print_summary(found: pd.DataFrame) -> None:
    """Coverage over all projects of a kind, what they save, and cells in which a promise is kept too seldom."""
    promises = [name for name in found if name.endswith((" holds", " broken"))]
    by = [group(found), found["labels"]]
    percent = 100 * found.groupby(by)[[*promises, "accepted", "oracle"]].mean()
    widths = 100 * found.groupby(by)[["accuracy width", "uniform width", "random width"]].mean()
    sizes = found.groupby(by)["accuracy holds n"].sum().astype(int).rename("number")
    print(percent.join(widths).round(1).join(sizes).reset_index().to_markdown(index=False), "\n")
    print_promises(found, promises)
    weighted, even = (saved_by_setting(found, interval) for interval in ("accuracy", "uniform"))
    weighted["200, normal interval"] = saved_by_setting(found, "normal")[200]
    print(weighted.round().astype(int).to_markdown(), "\n")
    print(even.round().astype(int).to_markdown())


def print_promises(found: pd.DataFrame, promises: list[str]) -> None:
    """How often each promise is kept, and where it is kept too seldom."""
    rows = []
    for name in promises:
        size = found[f"{name} n"].fillna(0)
        missed = ((found[name] if name.endswith("broken") else 1 - found[name]) * size)[size > 0].round()
        chance = pd.Series(binom.sf(missed - 1, size[size > 0], 0.05), index=missed.index)
        worst = found.loc[(missed / size[size > 0]).idxmax()]
        rows.append(
            {
                "promise": name,
                "audits": int(size.sum()),
                "cells": len(missed),
                "kept, %": round(100 * (1 - missed.sum() / size.sum()), 1),
                "cells below 95 % beyond chance": int((chance < 0.05 / len(missed)).sum()),
                "worst cell": f"{worst['setting']}, {worst['labels']} labels",
                "kept there, %": round(100 * (1 - (missed / size[size > 0]).max()), 1),
            }
        )
    print(pd.DataFrame(rows).to_markdown(index=False), "\n")


def print_classes(found: pd.DataFrame) -> None:
    """Coverage of the intervals of classes."""
    promises = ["balanced holds", "one class holds"]
    means = found.groupby([group(found), found["labels"]])
    number = means["balanced holds n"].sum().astype(int).rename("number")
    percent = 100 * means[[*promises, "balanced width"]].mean()
    print(percent.round(1).join(number).reset_index().to_markdown(index=False), "\n")
    print_promises(found, promises)


def saved_by_setting(found: pd.DataFrame, interval: str) -> pd.DataFrame:
    """Labels saved, in percent: a row for each setting, a column for each number of labels."""
    saved = found.assign(saved=100 * count_saved(found, interval))
    return saved.pivot(index="setting", columns="labels", values="saved").loc[found["setting"].unique()]


def count_saved(found: pd.DataFrame, interval: str = "accuracy") -> pd.Series:
    """Share of labels that an interval saves: a random audit of the same width needs so many more."""
    return 1 - (found[f"{interval} width"] / found["random width"]) ** 2


def print_cells(found: pd.DataFrame) -> None:
    """Every setting and number of labels: coverage, and what audits of uncertain samples save against random ones."""
    names = [name for name in found if name.endswith((" holds", " broken")) or name in ("accepted", "oracle")]
    shown = found[["setting", "labels"]].assign(projects=found["accuracy holds n"].astype(int))
    saved = {"labels saved, %": (100 * count_saved(found)).round()}
    print(shown.join((100 * found[names]).round(1)).assign(**saved).to_markdown(index=False))


def print_sequences(found: pd.DataFrame) -> None:
    """How often sequences hold at all looks up to a number of labels, over all projects of a kind and by setting."""
    shares = 100 * found.groupby([group(found), found["labels"]])[["sequence holds", "sequence width"]].mean()
    number = found.groupby([group(found), found["labels"]])["sequence holds n"].sum().astype(int).rename("number")
    print(shares.round(1).join(number).reset_index().to_markdown(index=False), "\n")
    last = found[found["labels"] == LOOKS[-1]].set_index("setting")
    n = last["sequence holds n"].astype(int)
    missed = ((1 - last["sequence holds"]) * n).round().astype(int)
    beyond = int((binom.sf(missed - 1, n, 0.05) < 0.05 / len(n)).sum())
    table = pd.DataFrame({"projects": n, "missed at any look": missed, "holds, %": (100 * (1 - missed / n)).round(1)})
    width = (100 * last["sequence width"]).round(1).rename("width after 500")
    print(table.join(width).reset_index().to_markdown(index=False))
    print(f"\nsettings below 95 % beyond chance: {beyond}")


def main() -> None:
    """Measure everything and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="a file that keeps results, so that a stopped run goes on")
    parser.add_argument("--parts", type=int, default=20, help="of 20 parts; 0 prints what is kept")
    parser.add_argument("--only", choices=["simulated", *REAL], action="append", help="some of the projects")
    parser.add_argument("--cells", action="store_true", help="print every setting and number of labels")
    parser.add_argument("--sequences", action="store_true", help="audits that are looked at after every label, alone")
    parser.add_argument("--classes", action="store_true", help="classes and balanced accuracy alone, in every project")
    args = parser.parse_args()
    kept = Kept(args.keep)
    measure_part = follow_part if args.sequences else classes_part if args.classes else run_part
    for part in range(args.parts):
        for number, name in enumerate(["simulated", *REAL]):
            if name in (args.only or [name]):
                projects = real_projects(name, part) if number else simulated_projects(part)
                kept(f"{name} {part}", functools.partial(measure_part, projects, [2 + number, part]))
    found = collect(kept.values())
    if args.classes:
        print_classes(found)
        return
    print(f"alarms about audits that were drawn as planned: {int((found['alarms'] * found['alarms n']).sum())}\n")
    (print_sequences if args.sequences else print_cells if args.cells else print_summary)(found)


if __name__ == "__main__":
    main()
