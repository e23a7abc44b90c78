"""How often intervals of labels saved hold: three kinds of them on curves whose truth is known.

The stored settings with twenty seeds are the truth: their mean curves, and how the seeds scatter around them. Seeds are
drawn from a normal distribution with these moments.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy import special

from benchmarks._measure import markdown
from benchmarks.evidence.runs import RESULTS, read
from benchmarks.evidence.settings import DEFAULT, REFERENCE, SECOND, SETTINGS
from skal.bench._statistics import FEWEST_SEEDS, saved_labels, saved_labels_interval

Bounds = tuple[float, float]
N_RESAMPLES = 1000
SIZES = (5, 10, 20)


def resampled(n_labels: np.ndarray, scores: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """(resample,) labels saved by resampled seeds; what is not reached counts as −inf."""
    drawn = np.random.default_rng(0).integers(len(scores), size=(N_RESAMPLES, len(scores)))
    saved = saved_labels(n_labels, scores[drawn].mean(axis=1), reference[drawn].mean(axis=1)[:, -1])
    return np.where(np.isnan(saved), -np.inf, saved)


def percentile_bounds(n_labels: np.ndarray, scores: np.ndarray, reference: np.ndarray) -> Bounds:
    """Quantiles of the resamples."""
    return _quantiles(resampled(n_labels, scores, reference), np.array([0.025, 0.975]))


def bca_bounds(n_labels: np.ndarray, scores: np.ndarray, reference: np.ndarray) -> Bounds:
    """Efron's bias-corrected and accelerated bootstrap; a score that is not reached counts as all labels lost."""
    worst = float(n_labels[0] - n_labels[-1])

    def saved(rows: np.ndarray) -> float:
        own, base = scores[rows].mean(axis=0), reference[rows].mean(axis=0)[-1]
        return float(np.nan_to_num(saved_labels(n_labels, own, base), nan=worst))

    n = len(scores)
    values = resampled(n_labels, scores, reference)
    whole = saved(np.arange(n))
    below = (np.mean(values < whole) + np.mean(values <= whole)) / 2
    bias = special.ndtri(np.clip(below, 1 / N_RESAMPLES, 1 - 1 / N_RESAMPLES))
    without = np.array([saved(np.delete(np.arange(n), k)) for k in range(n)])
    skew = without.mean() - without
    acceleration = np.sum(skew**3) / max(6 * np.sum(skew**2) ** 1.5, 1e-12)
    z = bias + special.ndtri(np.array([0.025, 0.975]))
    return _quantiles(values, special.ndtr(bias + z / (1 - acceleration * z)))


def _quantiles(values: np.ndarray, levels: np.ndarray) -> Bounds:
    low, high = np.quantile(values, levels, method="nearest")  # no value between a number and "not reached"
    return tuple(float(bound) if np.isfinite(bound) else np.nan for bound in (low, high))  # type: ignore[return-value]


def t_bounds(n_labels: np.ndarray, scores: np.ndarray, reference: np.ndarray) -> Bounds:
    """Those of the library."""
    return saved_labels_interval(n_labels, scores, reference)[1:]


def holds(truth: float, low: float, high: float) -> bool:
    """Whether the interval has the truth; NaN is a score that is not reached, worse than any number."""
    truth, low, high = (-np.inf if np.isnan(value) else value for value in (truth, low, high))
    return bool(low <= truth + 1e-9 and truth <= high + 1e-9)


OURS = "where a paired t-test turns"
KINDS: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], Bounds]] = {
    "percentile bootstrap": percentile_bounds,
    "BCa bootstrap": bca_bounds,
    OURS: t_bounds,
}


def coverage_table(n_draws: int, folder: Path = RESULTS) -> str:
    """Share of intervals that hold, by the number of seeds; ``n_draws`` for each setting and strategy."""
    held: dict[tuple[str, int], list[bool]] = {(kind, size): [] for kind in KINDS for size in SIZES}
    generator = np.random.default_rng(0)
    for setting in SETTINGS.values():
        lines = read(setting, folder)
        for arm in (DEFAULT, SECOND):
            seeds = [k for k in range(setting.seeds) if (arm, k) in lines and (REFERENCE, k) in lines]
            if len(seeds) < 20:
                continue
            n_labels = np.array(lines[arm, seeds[0]]["n_labels"])
            curves = np.array([lines[arm, k]["scores"] + lines[REFERENCE, k]["scores"] for k in seeds])
            mean, spread, n = curves.mean(axis=0), np.cov(curves.T), len(n_labels)
            truth = float(saved_labels(n_labels, mean[:n], mean[-1]))
            for size in SIZES:
                for _ in range(n_draws):
                    drawn = generator.multivariate_normal(mean, spread, size=size)
                    for kind, bounds in KINDS.items():
                        if kind != OURS or size >= FEWEST_SEEDS:
                            held[kind, size].append(holds(truth, *bounds(n_labels, drawn[:, :n], drawn[:, n:])))
    rows: list[list[object]] = [
        [kind, *(f"{100 * np.mean(held[kind, size]):.1f} %" if held[kind, size] else "none" for size in SIZES)]
        for kind in KINDS
    ]
    n_each = len(held[OURS, SIZES[-1]])
    return markdown([f"{n_each:,} intervals of 95 % each", *(f"{size} seeds" for size in SIZES)], rows)
