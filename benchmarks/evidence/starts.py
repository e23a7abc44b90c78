"""How the default's start for numbers, and for several labels at once, is chosen on data that do not judge it.

``python -m benchmarks.evidence.starts run [--task numbers]`` makes the runs that are missing, and ``report``
prints the tables of ``docs/evidence/regression.md``. The queries are the default's; every cell is the gain over the
same queries after random labels, with its standard error.

Written down before the runs of each: few labels. *numbers*: the two development sets, both models, 20 seeds; the
default starts by distance. *labels*: emotions, and two sets that are made of digits and letters, whose labels are
properties such as "even" or "a vowel"; both models, ten seeds; the default starts by direction. Another start, random
labels among them, takes the place of the default's if its mean gain over the cases is the largest, and ahead of that
of the default's by more than two standard errors; then the default is judged anew, with few labels and many.

When *labels* was written down, ten seeds on the sets that judge it were known: worse than Random on scene.

*more numbers* came after *numbers*, which told no start from another, and after the judging had shown the default 0.018
behind the LCMD of bmdal_reg, which starts at random: six tables that judge nothing, both models, ten seeds. By the same
rule, the means are those over these twelve cases. Twenty seeds were planned; time ended them before anybody looked.

*embeddings*: the sets that judge several labels are no tables to skal but embeddings, on which the default is coverage
by direction and then UHerding by direction. So other ways are compared with it as a whole, start and queries, on two
sets of embeddings: features of pictures, and of questions to a bank, whose labels are the words in the name of the
intent. Gains are over random labels; the rule is the same, and the starts are random unless the name says otherwise.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from benchmarks._measure import markdown
from benchmarks.evidence.made import NUMBERS, PROPERTIES
from benchmarks.evidence.runs import RESULTS
from benchmarks.evidence.tasks import DEVELOPMENT, MULTILABEL_DEVELOPMENT, STARTS, gains, make_missing, read


class Study(NamedTuple):
    """Data sets, the default's queries for each model, its own start when it was looked at, and how many seeds.

    ``whole`` has arms that are compared as they are, in the place of one for each start.
    """

    data: list[str]
    queries: dict[str, str]
    own: str
    seeds: int
    whole: dict[str, str] | None = None

    def arms(self, query: str) -> dict[str, str]:
        """The arm of each start, the default's own first; or the arms that are compared as a whole."""
        others = {start: f"{query}, start by {start}" for start in STARTS if start != self.own}
        return self.whole or {self.own: f"{query}, start by {self.own}", "random": query} | others


EMBEDDINGS = ["cifar10_features, properties", "banking77, properties"]
STUDIES = {
    "numbers": Study(DEVELOPMENT, {"mlp": "lcmd", "forest": "uherding, forest"}, "distance", 20),
    "more numbers": Study(list(NUMBERS), {"mlp": "lcmd", "forest": "uherding, forest"}, "distance", 10),
    "labels": Study(
        [*MULTILABEL_DEVELOPMENT, *(name for name in PROPERTIES if name not in EMBEDDINGS)],
        dict.fromkeys(("logistic", "forest"), "uherding, forest"),
        "direction",
        10,
    ),
    "embeddings": Study(
        EMBEDDINGS,
        dict.fromkeys(("logistic", "forest"), "random"),
        "auto",
        10,
        {
            "auto": "auto",
            "random": "random",
            "leaves": "uherding, forest",
            "leaves, start by direction": "uherding, forest, start by direction",
            "look-ahead": "ntk_lookahead",
        },
    ),
}


def run(study: Study, seeds: int, out: Path) -> None:
    """Make the runs that are missing."""
    cases = product(range(seeds), study.data, study.queries.items())
    make_missing(
        [(data, model, "few", arm, seed) for seed, data, (model, query) in cases for arm in study.arms(query).values()],
        out,
    )


def report(study: Study, seeds: int, out: Path) -> str:
    """The gains of every start over random labels, in every case and in the mean."""
    runs, rows = read(out), list[list[object]]()
    found: dict[str, list[np.ndarray]] = {}
    for data, (model, query) in product(study.data, study.queries.items()):
        own = {s: gains(runs, data, model, "few", arm, query)[:seeds] for s, arm in study.arms(query).items()}
        for start, values in own.items():
            found.setdefault(start, []).append(values)
        rows.append([data, model, len(own[study.own]), *map(_cell, own.values())])
    means = {start: np.mean(cases, axis=0) for start, cases in found.items()}  # of the cases, for each seed
    rows.append(["mean", "", "", *map(_cell, means.values())])
    rows.append([f"over {study.own}", "", "", *(_cell(own - means[study.own]) for own in means.values())])
    return markdown(["data", "model", "seeds", *found], rows)


def _cell(values: np.ndarray) -> str:
    """A mean and its standard error."""
    return f"{values.mean():+.3f} ± {values.std(ddof=1) / np.sqrt(len(values)):.3f}" if values.any() else "0"


def main(argv: Sequence[str] | None = None) -> int:
    """Run, or print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evidence.starts", description=__doc__)
    parser.add_argument("command", choices=["run", "report"])
    parser.add_argument("--task", choices=list(STUDIES), action="append")
    parser.add_argument("--seeds", type=int, metavar="N", help="at most this many")
    parser.add_argument("--out", type=Path, default=RESULTS / "tasks", metavar="FOLDER")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    for study in (STUDIES[name] for name in args.task or STUDIES):
        seeds = min(study.seeds, args.seeds or study.seeds)
        if args.command == "run":
            run(study, seeds, args.out)
        else:
            print(report(study, seeds, args.out), end="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
