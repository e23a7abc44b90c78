"""Are certificates at stopping time broken as rarely as they promise, and what do they cost?

``python -m benchmarks.certified`` takes about ten minutes on one core. Data other than digits are read from
``SKAL_DATA_HOME``, and left out if they are not there.

1. Loops that should never be certified: the share of errors in the rest is just above what is allowed, and the model is
   sure of itself, so that it is audited as often as possible. Whoever gets a certificate has a broken one. Beside
   ``Certified`` stands a criterion that takes the whole chance to be wrong for every audit, as if nobody had looked
   before.
2. Loops on data: how often the data set has more errors than promised, how many labels people give, and how many errors
   there are.
3. How labels should be held out for the accuracy of a model that changes: by chance, or by the uncertainty of an early
   model. Widths are in points.
4. What the held-out labels of a loop say of new samples: by their number alone, as ``session.audit()`` does; as draws
   from the pool, of which the model has seen a part; and compared with what the model expects of the samples that are
   held out, the only ones of the pool that the model had no part in choosing.
5. How the last check should be drawn, for a certificate of a model that stays as it is: by chance, or more often where
   the model is unsure. All three ways hold for any number of labels.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import hypergeom
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from benchmarks._measure import markdown
from benchmarks.audit import REAL, SIMULATED, VARIANTS, Pool, train
from skal import ActiveLearningClassifier
from skal.audit import accuracy, accuracy_sequence, certify, mean_score, plan, plan_sequence
from skal.audit._bounds import log_wealth
from skal.audit._certificate import list_thresholds
from skal.audit._checksum import add_checksum
from skal.audit._design import draw_shares, guess_errors, inclusion_probabilities
from skal.loop._audit_report import estimate_accuracy
from skal.stopping import Certified, wilson_interval


class Sure(ClassifierMixin, BaseEstimator):
    """Knows which samples it labels rightly, because the samples say so, and is always sure of itself.

    Parameters
    ----------
    trust : float
        The probability of what it predicts.
    """

    def __init__(self, trust: float = 1.0) -> None:
        self.trust = trust

    def fit(self, X: np.ndarray, y: np.ndarray) -> Sure:
        self.classes_ = np.unique(y)
        return self

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        proba = np.full((len(X), 2), 1 - self.trust)
        proba[np.arange(len(X)), X[:, 0].astype(int)] = self.trust
        return proba

    def predict(self, X: np.ndarray) -> np.ndarray:
        return self.predict_proba(X).argmax(axis=1)


class Unsplit(Certified):
    """Takes the whole chance to be wrong for every audit and every stage."""

    def alpha(self, audit: int, stage: int, n_stages: int = 3) -> float:
        return 1 - self.confidence


def false_certificates(n_projects: int, n: int = 20_000) -> list[list[object]]:
    """The share of projects that get a certificate although the rest has too many errors at any time."""
    rows = []
    for criterion in (Certified(), Unsplit()):
        broken, n_audits = 0, []
        for seed in range(n_projects):
            rng = np.random.default_rng(seed)
            y = rng.integers(2, size=n)
            said = np.where(rng.random(n) < 0.058, 1 - y, y)  # the rest has more than 5 % of all at every stage
            X = np.column_stack([said, rng.random(n)])
            loop = ActiveLearningClassifier(
                Sure(), "random_sampling", initial="random", query_size=20, n_rounds=None, budget=n // 8,
                stop=criterion, random_state=seed,
            )  # fmt: skip
            session = loop.start(X)
            session.run(lambda indices, _, y=y: y[indices])
            found = [row["certificate"] for row in loop.history_ if "certificate" in row]
            n_audits.append(len(found))
            final = session.final()
            errors = sum(
                label is not None and label != truth for label, truth in zip(final.labels["label"], y, strict=True)
            )
            broken += final.certificate is not None and errors > criterion.max_error * n
        name = type(criterion).__name__
        rows.append([name, n_projects, f"{np.mean(n_audits):.1f}", f"{100 * broken / n_projects:.1f} %"])
    return rows


def load_vectors(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Features and labels: digits, or an npz file of ``SKAL_DATA_HOME``."""
    if name == "digits":
        X, y = load_digits(return_X_y=True)
        return X / 16, y
    file = np.load(Path(os.environ["SKAL_DATA_HOME"], f"{name}.npz"), allow_pickle=False)
    return file["X_train"].reshape(len(file["X_train"]), -1).astype(np.float32), file["y_train"].astype(np.int64)


def data_at_hand(settings: dict[str, tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Name, features, labels and settings of the data sets that are there."""
    for name, values in settings.items():
        with suppress(KeyError, FileNotFoundError):
            X, y = load_vectors(name)
            yield name, X, y, *values


def mean_rows(name: str, found: dict[tuple[int, str], list[tuple[float, bool]]]) -> list[list[object]]:
    """Mean width and coverage of intervals, by the number of labels and by what they are called."""
    means = {key: 100 * np.mean(values, axis=0) for key, values in sorted(found.items())}
    return [[name, m, which, f"{width:.1f}", f"{holds:.1f} %"] for (m, which), (width, holds) in means.items()]


def run_project(X: np.ndarray, y: np.ndarray, seed: int, size: int, **params: Any) -> tuple[float, int, float, bool]:
    """Share of errors in the data set, labels by people, labels of audits, and whether there was a certificate."""
    loop = ActiveLearningClassifier(
        LogisticRegression(max_iter=200, C=10), "margin", n_initial=size, query_size=size, n_rounds=None,
        random_state=seed, **params,
    )  # fmt: skip
    session = loop.start(X)
    session.run(lambda indices, _: y[indices])
    final = session.final()
    by_model = (final.labels["by"] == "model").to_numpy()
    errors = (final.labels["label"].to_numpy()[by_model] != y[by_model]).sum() / len(y)
    n_audit = int((session.labels()["source"] == "audit").sum())
    return float(errors), len(loop.queried_), n_audit, final.certificate is not None


def projects_on_data(n_projects: int) -> list[list[object]]:
    """Certificates of loops on data."""
    rows = []
    settings = {"digits": (20, 0.05, 1797), "cifar10_features": (30, 0.1, 1500)}
    for name, X, y, size, max_error, n_pool in data_at_hand(settings):
        for hold_out in ("random", "audit"):
            found = []
            for seed in range(n_projects):
                own = np.random.default_rng(seed).permutation(len(y))[:n_pool]
                stop = Certified(max_error)
                found.append(run_project(X[own], y[own], seed, size, stop=stop, hold_out=hold_out))
            errors, labels, audits, granted = (np.array(column) for column in zip(*found, strict=True))
            rows.append(
                [name, hold_out, f"{100 * max_error:g} %", len(found), f"{100 * granted.mean():.0f} %",
                 f"{100 * (errors > max_error).mean():.1f} %", f"{100 * errors.mean():.1f} %",
                 f"{labels.mean():.0f} of {min(n_pool, len(y))}", f"{audits.mean():.0f}"]
            )  # fmt: skip
    return rows


def compare_designs(n_models: int, n_audits: int = 10) -> list[list[object]]:
    """Width and coverage of intervals for a model, from labels that were planned without it."""
    rows = []
    for name, X, y, n_early, n_late in data_at_hand({"digits": (40, 300), "banking77": (200, 1500)}):
        found: dict[tuple[int, str], list[tuple[float, bool]]] = {}
        rng = np.random.default_rng(0)
        for _ in range(n_models):
            order = rng.permutation(len(y))
            rest, proba = order[n_late : n_late + 1200], []
            for n in (n_early, n_late):
                model = LogisticRegression(max_iter=300, C=10).fit(X[order[:n]], y[order[:n]])
                proba.append(np.zeros((len(rest), y.max() + 1)))
                proba[-1][:, model.classes_] = model.predict_proba(X[rest])
            early, late = proba
            right = late.argmax(1) == y[rest]
            for m in (40, 100, 200) * n_audits:
                at, chance = plan(len(rest), m, uniform=True, random_state=rng)
                low, high = wilson_interval(int(right[at].sum()), m)
                intervals = {"by chance, Wilson": (low, high)}
                one = accuracy(late, at, y[rest][at], chance)
                intervals["by chance, accuracy"] = one.low, one.high
                at, chance = plan(early, m, random_state=rng)
                one = accuracy(late, at, y[rest][at], chance)
                intervals["by an early model, accuracy"] = one.low, one.high
                first, chances = plan_sequence(early, m // 2, random_state=rng)
                more, others = plan_sequence(late, m - m // 2, drawn=first, random_state=rng)
                at, chance = np.concatenate([first, more]), np.concatenate([chances, others])
                many = accuracy_sequence(late, at, y[rest][at], chance)
                intervals["planned anew, accuracy_sequence"] = many.low[-1], many.high[-1]
                for design, (low, high) in intervals.items():
                    found.setdefault((m, design), []).append((high - low, bool(low <= right.mean() <= high)))
        rows += mean_rows(name, found)
    return rows


def compare_populations(n_models: int, n_audits: int = 10) -> list[list[object]]:
    """Width and coverage, for new samples, of intervals from labels that were held out of a loop with ``margin``."""
    rows = []
    for name, X, y, size, n_pool in data_at_hand({"digits": (40, 500), "banking77": (100, 1500)}):
        found: dict[tuple[int, str], list[tuple[float, bool]]] = {}
        rng = np.random.default_rng(0)
        for _ in range(n_models):
            order = rng.permutation(len(y))
            held, pool, new = np.split(order[: n_pool + 5000], [n_pool // 4, n_pool])
            model, seen = LogisticRegression(max_iter=200, C=10), np.arange(size)
            for _ in range(3):
                top = np.sort(model.fit(X[pool[seen]], y[pool[seen]]).predict_proba(X[pool]), axis=1)
                unsure = np.argsort(top[:, -1] - top[:, -2])
                seen = np.append(seen, unsure[~np.isin(unsure, seen)][:size])
            truth = float((model.predict(X[new]) == y[new]).mean())
            proba = np.zeros((len(held), y.max() + 1))
            proba[:, model.classes_] = model.predict_proba(X[held])
            right = proba.argmax(1) == y[held]
            for m in (40, 60, 100) * n_audits:
                at, chance = plan(len(held), m, uniform=True, random_state=rng)
                here, pooled = np.arange(m), add_checksum(np.arange(m), np.full(m, m / n_pool), n_pool)
                intervals = {
                    "new samples": estimate_accuracy(right[at], 0),
                    "the pool": mean_score(n_pool, here, right[at].astype(float), pooled),
                    "held-out samples, with what is expected": accuracy(proba, at, y[held][at], chance),
                }
                for who, one in intervals.items():
                    found.setdefault((m, who), []).append((one.high - one.low, one.low <= truth <= one.high))
        rows += mean_rows(name, found)
    return rows


def fixed_sequence(confidences: np.ndarray, at: np.ndarray, passes: Callable[[np.ndarray], bool]) -> np.ndarray:
    """Samples above the loosest threshold before the first that fails, without audited ones, as ``certify`` has it."""
    accepted = np.zeros(len(confidences), dtype=bool)
    for threshold in list_thresholds(confidences):
        above = confidences >= threshold
        if not passes(above):
            break
        accepted = above
    accepted[at] = False
    return accepted


def check_by_chance(p: np.ndarray, y: np.ndarray, allowed: int, m: int, rng: np.random.Generator) -> np.ndarray:
    """Samples that the model may label, from uniform draws and the exact limit."""
    at, chance = plan(p, m, uniform=True, random_state=rng)
    return certify(p, at, y[at], chance, allowed / len(p)).accepted


def check_by_bets(p: np.ndarray, y: np.ndarray, allowed: int, m: int, rng: np.random.Generator) -> np.ndarray:
    """The same from the draws of ``plan`` and the betting bound: a sample that is right is a bet that is won."""
    confidences, wrong = p.max(1), p.argmax(1) != y
    at, _ = plan(p, m, random_state=rng)
    scale = m / (len(p) * inclusion_probabilities(confidences, m))

    def passes(above: np.ndarray) -> bool:
        if above.sum() <= allowed:
            return True
        most = scale[above].max()
        values = most - scale[at] * (wrong & above)[at]
        return bool(log_wealth(values / (most - (allowed + 1) / len(p))) >= -np.log(0.05))

    return fixed_sequence(confidences, at, passes)


def check_in_strata(p: np.ndarray, y: np.ndarray, allowed: int, m: int, rng: np.random.Generator) -> np.ndarray:
    """The same from two strata, of which the unsure one has more labels, and the exact limit over all ways to split.

    The sure stratum has a third of the errors that the model expects. Labels go halfway from equal shares to those of
    ``plan``. Of the ways to split the errors 100 are looked at, which is in favour of this draw.
    """
    confidences, wrong = p.max(1), p.argmax(1) != y
    order = np.argsort(-confidences, kind="stable")
    guess = guess_errors(confidences)
    sure = np.zeros(len(p), dtype=bool)
    sure[order[np.cumsum(guess[order]) <= guess.sum() / 3]] = True
    share = (sure.mean() + draw_shares(confidences)[sure].sum()) / 2
    strata = [np.flatnonzero(sure), np.flatnonzero(~sure)]
    size = min(m - 1, max(1, round(m * float(share))))
    at = [rng.permutation(rows)[:k] for rows, k in zip(strata, (size, m - size), strict=True)]
    weights = [len(rows) / len(drawn) for rows, drawn in zip(strata, at, strict=True)]

    def passes(above: np.ndarray) -> bool:
        totals = [int(above[rows].sum()) for rows in strata]
        if sum(totals) <= allowed:
            return True
        drawn, seen = ([int(of[rows].sum()) for rows in at] for of in (above, above & wrong))
        found = weights[0] * seen[0] + weights[1] * seen[1]
        ends = max(0, allowed + 1 - totals[1]), min(allowed + 1, totals[0])
        first = np.unique(np.linspace(*ends, 100).round().astype(int))[:, None]  # errors in the sure stratum
        second = np.arange(int(found / weights[1] + 1e-9) + 1)  # seen in the other
        most = np.floor((found - weights[1] * second) / weights[0] + 1e-9)
        chance = hypergeom.pmf(second, totals[1], allowed + 1 - first, drawn[1]) if totals[1] else 1.0 * (second == 0)
        return bool((chance * hypergeom.cdf(most, totals[0], first, drawn[0])).sum(1).max() <= 0.05)

    return fixed_sequence(confidences, np.concatenate(at), passes)


CHECKS = {"by chance, exact": check_by_chance, "as plan, betting": check_by_bets, "two strata, exact": check_in_strata}


def pools_at_hand(n_rounds: int) -> Iterator[tuple[str, Pool]]:
    """Whether a pool is simulated or real, and the pool: in every round one of each setting of ``benchmarks.audit``."""
    rng = np.random.default_rng(0)
    data = {}
    for name, (load, _, _) in REAL.items():
        with suppress(KeyError, FileNotFoundError):
            data[name] = load()
    for _ in range(n_rounds):
        for make in SIMULATED.values():
            yield "simulated", make(rng)
        for name, (X, y) in data.items():
            _, least, most = REAL[name]
            pool = train(rng, X, y, int(np.exp(rng.uniform(np.log(least), np.log(most)))))
            for change in VARIANTS.values():
                yield "real", change(rng, pool)


def compare_checks(n_rounds: int) -> list[list[object]]:
    """What share of the samples a certificate lets the model label, and how often it is broken, by how it is drawn."""
    found: dict[tuple[str, int], list[list[tuple[float, bool]]]] = {}
    rng = np.random.default_rng(1)
    for kind, (p, y) in pools_at_hand(n_rounds):
        wrong, allowed = p.argmax(1) != y, int(0.05 * len(p))
        for m in (100, 200, 400):
            accepted = [check(p, y, allowed, m, rng) for check in CHECKS.values()]
            found.setdefault((kind, m), []).append([(a.mean(), bool((wrong & a).sum() > allowed)) for a in accepted])
    rows: list[list[object]] = []
    for (kind, m), projects in found.items():
        values = 100 * np.array(projects, dtype=np.float64)  # (projects, checks, 2)
        more = values[:, :, 0] - values[:, :1, 0]
        error = more.std(0, ddof=1) / np.sqrt(len(more)) if len(more) > 1 else np.zeros(len(CHECKS))
        for k, name in enumerate(CHECKS):
            gain = f"{more[:, k].mean():+.1f} ± {error[k]:.1f}" if k else "-"
            share, broken = values[:, k].mean(0)
            rows.append([kind, len(projects), m, name, f"{share:.1f} %", gain, f"{broken:.1f} %"])
    return rows


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.certified", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--simulated", type=int, default=200, help="projects that should never be certified")
    parser.add_argument("--loops", type=int, default=10, help="loops on each data set")
    parser.add_argument("--models", type=int, default=5, help="models for the designs of held-out labels")
    parser.add_argument("--populations", type=int, default=100, help="models for what held-out labels say")
    parser.add_argument("--checks", type=int, default=30, help="pools of each setting for the draw of the last check")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")  # trainings with few steps, budgets that are larger than the pool
    if options.simulated:
        columns = ["criterion", "projects", "looks", "broken certificates"]
        print(markdown(columns, false_certificates(options.simulated)) + "\n", flush=True)
    if options.loops:
        columns = ["data", "hold_out", "max_error", "projects", "certified", "broken", "errors", "labels by people"]
        print(markdown([*columns, "of audits"], projects_on_data(options.loops)) + "\n", flush=True)
    if options.models:
        print(markdown(["data", "labels", "held out", "width", "holds"], compare_designs(options.models)) + "\n")
    if options.populations:
        columns = ["data", "labels", "as a draw from", "width", "holds for new samples"]
        print(markdown(columns, compare_populations(options.populations)) + "\n", flush=True)
    if options.checks:
        columns = ["projects", "number", "labels", "drawn", "the model labels", "more than by chance", "broken"]
        print(markdown(columns, compare_checks(options.checks)))


if __name__ == "__main__":
    main()
