"""Strategies of other libraries in the same loop, beside those of skal: points, and seconds per query.

``python -m benchmarks.evidence.rivals run`` makes the runs that are missing, and ``report`` prints the tables of
``docs/evidence/yours.md``. The settings are those of the evidence, with their pools, first labels and classifiers; what
is compared with them are its stored runs of the same seeds. scikit-activeml's strategies come as they are, with their
defaults; modAL's is its ranked batch. *From no labels* is the start that scikit-activeml's pages show: the strategy is
asked before there is any label. *k-means start* is the sample nearest to each centre of as many clusters, then Margin.

Written down before the runs: two settings with few labels, features of texts and rows of numbers, ten seeds. Badge of
scikit-activeml keeps an embedding of samples times classes times features, 1 GB with 77 classes: it takes part in the
rows only.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tqdm import tqdm

from benchmarks._measure import markdown
from benchmarks.evidence.centres import centres_then_margin
from benchmarks.evidence.runs import RESULTS, append, as_line, as_result, read, time_run
from benchmarks.evidence.settings import DEFAULT, REFERENCE, SECOND, SETTINGS, Arm
from skal.bench import BenchmarkResult, BenchmarkSuite
from skal.bench._activeml import adapt
from skal.bench._verdict import points

NO_LABELS = ", from no labels"
SEEDS = 10
_NAMES = ("CoreSet", "TypiClust", "ProbCover", "Falcun", "DropQuery", "Clue")
RANKED = "modAL's ranked batch"
CENTRES = "margin, k-means start"
# the same method in skal, whose stored runs stand beside it
TWINS: Mapping[str, str] = MappingProxyType(
    {
        "Badge": "badge",
        "CoreSet": "coreset",
        "TypiClust": "typiclust",
        "ProbCover": "prob_cover",
        "Falcun": "falcun",
        "DropQuery": "drop_query",
    }
)
RIVALS: Mapping[str, Arm] = MappingProxyType(
    {name: Arm(name) for name in _NAMES}
    | {RANKED: Arm(RANKED), CENTRES: Arm(CENTRES, "zero_shot")}
    | {f"TypiClust{NO_LABELS}": Arm("TypiClust", "zero_shot"), f"Clue{NO_LABELS}": Arm("Clue", "zero_shot")}
    | {"Badge": Arm("Badge")}
)
WHERE: Mapping[str, list[str]] = MappingProxyType(
    {"banking77_linear_few": [name for name in RIVALS if name != "Badge"], "letter_mlp_few": list(RIVALS)}
)


def make_rival(name: str) -> Callable[..., Any]:
    """A strategy of another library as a function of learner, pool and size."""
    if name == CENTRES:
        return centres_then_margin
    if name == RANKED:
        from modAL.batch import uncertainty_batch_sampling

        return uncertainty_batch_sampling  # type: ignore[no-any-return]
    from skactiveml import pool

    return adapt(getattr(pool, name)())  # type: ignore[no-any-return]


def run(names: list[str], arms: list[str] | None, seeds: int, folder: Path) -> None:
    """Make the runs that are missing; it may be stopped at any time."""
    for name in names:
        for seed in range(seeds):
            done = read(SETTINGS[name], folder)
            left = [arm for arm in arms or WHERE[name] if arm in WHERE[name] and (arm, seed) not in done]
            for arm in tqdm(left, f"{name}, seed {seed}", file=sys.stderr, disable=not left):
                rival = RIVALS[arm]
                found = time_run(SETTINGS[name], arm, seed, make_rival(rival.strategy), rival.initial)
                append(SETTINGS[name], as_line(SETTINGS[name], *found), folder)


def load(name: str, folder: Path) -> BenchmarkResult | None:
    """The rivals that have all seeds, beside stored runs of skal of the same seeds."""
    foreign = as_result(SETTINGS[name], list(RIVALS), folder)
    own = as_result(
        SETTINGS[name], [REFERENCE, SECOND, f"{SECOND}, coverage start", DEFAULT, "auto, own start", *TWINS.values()]
    )
    if foreign is None or own is None:
        return None
    done = {arm for arm in foreign.strategies if sum(run.strategy == arm for run in foreign.runs) >= SEEDS}
    runs = [run for run in [*own.runs, *foreign.runs] if run.seed < SEEDS]
    runs = [run for run in runs if run.strategy not in RIVALS or run.strategy in done]
    protocol = own.protocol.with_settings(strategies=tuple(dict.fromkeys(run.strategy for run in runs)), seeds=SEEDS)
    return BenchmarkResult(protocol, runs) if done else None


def report(folder: Path) -> str:
    """A table for each setting that has been run."""
    parts = []
    for name in WHERE:
        result = load(name, folder)
        if result is None:
            parts.append(f"{name}: not run with {SEEDS} seeds.")
            continue
        against = {c.strategy: c for c in BenchmarkSuite({name: result}).comparisons()[name]}
        seconds = result.times()["query"]
        rows: list[list[object]] = []
        for c in sorted(against.values(), key=lambda c: -c.difference):
            library = {RANKED: "modAL", CENTRES: "scikit-learn"}.get(
                c.strategy, "scikit-activeml" if c.strategy in RIVALS else "skal"
            )
            cells = [f"{points(c.difference)} ({c.outcome})", f"{seconds[c.strategy]:.2g}"]
            rows.append([c.strategy, library, TWINS.get(c.strategy, "–"), *cells])
        rows.append([REFERENCE, "skal", "–", "0", f"{seconds[REFERENCE]:.2g}"])
        area = 100 * result.areas().loc[REFERENCE].mean()
        header = ["strategy", "from", "the same in skal", f"points over Random's {area:.1f}", "seconds per query"]
        parts.append(f"**{name}**, {SEEDS} seeds.\n\n" + markdown(header, rows))
    return "\n\n".join(parts)


def main(argv: list[str] | None = None) -> int:
    """Run, or print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evidence.rivals", description=__doc__)
    parser.add_argument("command", choices=["run", "report"])
    parser.add_argument("--settings", type=lambda text: text.split(","), default=list(WHERE), metavar="A,B")
    parser.add_argument("--arms", type=lambda text: text.split(";"), metavar="A;B")
    parser.add_argument("--seeds", type=int, default=SEEDS, metavar="N")
    parser.add_argument("--results", type=Path, default=RESULTS / "rivals", metavar="FOLDER")
    args = parser.parse_args(argv)
    if args.command == "report":
        print(report(args.results))
    else:
        run(args.settings, args.arms, args.seeds, args.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
