"""Does a second opinion on a doubtful label pay, or should people label new samples instead?

``python -m benchmarks.second_opinions develop`` and ``judge`` let three simulated people label tables. They err at
known rates, one sample in ten goes to a second person in any case, and all answers are counted. Every 60 answers a
logistic regression is trained on the labels as they are weighed, the next samples are those of the smallest margin, and
labels are doubted by five models that were trained without them. A doubtful label is shown to a second person before a
new sample is labelled. The arms differ in how many samples that may be: none, up to a share of those with an answer, or
any. Each seed gives all arms the same samples and the same errors. What has been run is kept in
``second_opinions_kept.jsonl``; ``--seeds 2`` shows a part.

``python -m benchmarks.second_opinions prior`` looks at the other half: of two people who differ, who is right? Answers
of crowds with known errors are weighed with several priors of the reliabilities. The prior is chosen on some crowds and
judged on crowds of other kinds.

Judging needs letter.npz, and tables/NAME.csv.gz, in $SKAL_DATA_HOME.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import load_digits, make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks._kept import Kept
from benchmarks._measure import markdown
from benchmarks._simulated_crowds import choose_prior
from skal.datasets import load
from skal.labelling._team import Team
from skal.loop._consensus import weigh_answers
from skal.loop._doubtful import N_FOLDS, find_issues, stratified_folds

KEPT = Path(__file__).with_name("second_opinions_kept.jsonl")
CROWDS = {"2, 5, 10": (0.02, 0.05, 0.10), "10, 15, 20": (0.10, 0.15, 0.20), "20, 30, 40": (0.20, 0.30, 0.40)}
DEVELOP, JUDGE = ("digits", "blobs"), ("letter", "satellite", "segment")
BUDGETS = (240, 600)
ROUND, OVERLAP, N_POOL, N_TEST = 60, 0.1, 2000, 2000
NEVER, ANY = 0.0, 1.0
ARMS = {"develop": (NEVER, 0.2, 0.4, ANY), "judge": (NEVER, Team.SHARE, ANY)}


@cache
def read(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Standardised rows, and classes as numbers."""
    if name == "digits":
        X, y = load_digits(return_X_y=True)
    elif name == "blobs":
        X, y = make_classification(4000, 20, n_informative=8, n_classes=4, random_state=0)
    elif name == "letter":
        data = load(name)
        X, y = data.X_train, data.y_train
    else:
        table = pd.read_csv(Path(os.environ["SKAL_DATA_HOME"]) / "tables" / f"{name}.csv.gz")
        X, y = table.iloc[:, :-1].to_numpy(float), pd.factorize(table.iloc[:, -1])[0]
    return np.asarray(X, dtype=np.float64), np.asarray(y, dtype=np.int64)


class Labelling:
    """Three people label one pool, as the page lets them.

    Parameters
    ----------
    data : str
    rates : tuple of float
        How often each person errs.
    share : float
        So many of the samples are shown to a second person at most, because models doubt their labels.
    seed : int
    """

    def __init__(self, data: str, rates: Sequence[float], share: float, seed: int) -> None:
        X, y = read(data)
        rng = np.random.default_rng(seed)
        rows = rng.permutation(len(X))
        pool, test = rows[: min(N_POOL, 2 * len(X) // 3)], rows[min(N_POOL, 2 * len(X) // 3) :][:N_TEST]
        self.X, self.y, self.X_test, self.y_test = X[pool], y[pool], X[test], y[test]
        self.n_classes = int(y.max()) + 1
        errs = rng.random((len(rates), len(pool))) < np.array(rates)[:, None]
        other = (self.y + rng.integers(1, self.n_classes, size=errs.shape)) % self.n_classes
        self.would_say = np.where(errs, other, self.y)
        self.team = type("Arm", (Team,), {"SHARE": share})([f"p{i}" for i in range(len(rates))], OVERLAP)
        self.team.is_shared = partial(_is_shared, rng.random(len(pool)) < OVERLAP)  # type: ignore[method-assign]
        self.said: dict[int, dict[str, int]] = {}
        self.order = rng.permutation(len(pool)).tolist()
        self.seed = seed

    def run(self, budgets: Sequence[int]) -> list[list[float]]:
        """[[accuracy of the model, share of wrong labels, samples]] at each budget."""
        found, turn = [], 0
        for budget in budgets:
            while turn < budget:
                self._answer(turn)
                turn += 1
                if turn % ROUND == 0:
                    self._learn()
            rows, labels = self.labels()
            score = self._fit(rows, labels).score(self.X_test, self.y_test)
            found.append([float(score), float((labels != self.y[rows]).mean()), len(rows)])
        return found

    def labels(self) -> tuple[np.ndarray, np.ndarray]:
        """Samples, and the labels that hold."""
        weighed = weigh_answers(self.said)
        labels = [weighed.get(key, next(iter(each.values()))) for key, each in self.said.items()]
        return np.array(list(self.said)), np.array(labels)

    def _answer(self, turn: int) -> None:
        who = turn % len(self.team.people)
        name = self.team.people[who]
        waits = (key for key in self.team.seconds({}) if name not in self.said[key])
        key = next(waits, None)
        if key is None:
            key = next(i for i in self.order if i not in self.said)
        said = self.said.setdefault(key, {})
        said[name] = int(self.would_say[who, key])
        self.team.note(key, said)

    def _learn(self) -> None:
        """What the page does in the background: train, choose, doubt."""
        rows, labels = self.labels()
        if len(np.unique(labels)) < 2:
            return
        open_rows = np.array([i for i in self.order if i not in self.said])
        proba = np.sort(self._fit(rows, labels).predict_proba(self.X[open_rows]), axis=1)
        self.order = open_rows[np.argsort(proba[:, -1] - proba[:, -2], kind="stable")].tolist()
        names, codes = np.unique(labels, return_inverse=True)
        if self.team.SHARE == NEVER or len(rows) < 2 * N_FOLDS:
            return
        folds = stratified_folds(codes, N_FOLDS, np.random.default_rng(self.seed))
        proba = np.zeros((len(rows), len(names)))
        for fold in range(N_FOLDS):
            here = folds == fold
            if len(np.unique(codes[~here])) < 2:
                return
            model = self._fit(rows[~here], codes[~here])
            proba[np.ix_(here, model.classes_)] = model.predict_proba(self.X[rows[here]])
        own, wrong = proba[np.arange(len(rows)), codes], find_issues(proba, codes)
        doubted = [i for i in np.argsort(own, kind="stable") if wrong[i]]
        self.team.doubt([int(rows[i]) for i in doubted if len(self.said[int(rows[i])]) == 1])

    def _fit(self, rows: np.ndarray, labels: np.ndarray) -> LogisticRegression:
        return make_pipeline(StandardScaler(), LogisticRegression(max_iter=200, tol=1e-2)).fit(self.X[rows], labels)


def _is_shared(shared: np.ndarray, key: int) -> bool:
    return bool(shared[key])


def measure(data: str, crowd: str, share: float, seed: int) -> list[list[float]]:
    """One run."""
    warnings.filterwarnings("ignore", "The number of unique classes is greater than 50%")
    return Labelling(data, CROWDS[crowd], share, seed).run(BUDGETS)


def run(what: str, seeds: int, kept: Kept) -> None:
    """The runs that are missing."""
    for seed in range(seeds):
        for data in DEVELOP if what == "develop" else JUDGE:
            for crowd in CROWDS:
                for arm in ARMS[what]:
                    key = f"{data} / {crowd} / {arm:g} / {seed}"
                    kept(key, partial(measure, data, crowd, arm, seed))
                    print(key, kept[key], file=sys.stderr, flush=True)


def table(what: str, kept: Kept, seeds: int) -> str:
    """For every crowd and budget: what the arm without second looks gives, and the gains of others ± two errors."""
    rows: list[list[object]] = []
    names = DEVELOP if what == "develop" else JUDGE
    whole: dict[tuple[float, int], list[float]] = {}
    for crowd in CROWDS:
        for k, budget in enumerate(BUDGETS):
            found = {
                arm: np.array(
                    [[kept[f"{data} / {crowd} / {arm:g} / {seed}"][k] for seed in range(seeds)] for data in names]
                )
                for arm in ARMS[what]
            }  # (data, seed, measure)
            row: list[object] = [crowd, budget, *_plain(found[NEVER])]
            for arm in ARMS[what][1:]:
                row += [_gain(found[arm], found[NEVER], 0), _gain(found[arm], found[NEVER], 1)]
                whole.setdefault((arm, 0), []).extend((found[arm] - found[NEVER])[:, :, 0].mean(axis=1))
                whole.setdefault((arm, 1), []).extend((found[arm] - found[NEVER])[:, :, 1].mean(axis=1))
            rows.append(row)
    last: list[object] = ["all", "", "", ""]
    for arm in ARMS[what][1:]:
        last += [f"{100 * np.mean(whole[arm, m]):+.1f}" for m in (0, 1)]
    words = {arm: "any" if arm == ANY else f"up to {100 * arm:g} %" for arm in ARMS[what]}
    head = [part for arm in ARMS[what][1:] for part in (f"{words[arm]}: model", "wrong labels")]
    return markdown(["errors of the three, %", "answers", "none: model, %", "wrong labels, %", *head], [*rows, last])


def _plain(found: np.ndarray) -> list[str]:
    return [f"{100 * found[:, :, m].mean():.1f}" for m in (0, 1)]


def _gain(found: np.ndarray, never: np.ndarray, measure: int) -> str:
    """The mean paired difference in points, ± two standard errors over seeds."""
    by_seed = 100 * (found - never)[:, :, measure].mean(axis=0)
    spread = 2 * by_seed.std(ddof=1) / np.sqrt(len(by_seed)) if len(by_seed) > 1 else float("nan")
    return f"{by_seed.mean():+.1f} ± {spread:.1f}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.second_opinions", description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["develop", "judge", "prior"])
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--kept", type=Path, default=KEPT)
    options = parser.parse_args(arguments)
    if options.what == "prior":
        print(choose_prior(options.seeds))
        return
    kept = Kept(options.kept)
    run(options.what, options.seeds, kept)
    print(table(options.what, kept, options.seeds))


if __name__ == "__main__":
    main()
