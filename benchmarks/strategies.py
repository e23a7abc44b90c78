"""The papers' strategies on digits, MNIST and a part of CIFAR-10, over paired seeds, with the tests of skal.bench.

``python -m benchmarks.strategies [digits|mnist|cifar10_sub ...] [--out FOLDER] [--jobs N] [--figures FOLDER]``; digits
without an argument. Results are saved as they come, in ``skal-bench`` by default: repeat the command to continue
after an interruption, or to print the tables of a finished run again.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from skal.bench import BenchmarkResult, Protocol, run_benchmark, write_report
from skal.bench._report import markdown_table
from skal.bench._tables import headline, sections

STRATEGIES = (
    "random",
    "least_confidence",
    "margin",
    "entropy",
    "bald",
    "egl",
    "learning_loss",
    "coreset",
    "badge",
    "albl",
    "dynamic_al",
    "ntk_lookahead",
    "npc",
)
# dynamicAL's training: Adam 1e-3, minibatches of 64, inputs in [−1, 1], warm start, to a train accuracy of 0.99
TUTORIAL = Protocol(net="cnn", strategies=STRATEGIES, inputs="signed", optimizer="adam", lr=1e-3, stop_accuracy=0.99)
# NPC needs the kernel of all samples in its candidate batches: a thousand batches of 250 hold all 10,000 of them, and
# their kernel takes minutes; twenty batches hold about 4,000
LARGE = TUTORIAL.with_settings(strategies=(*STRATEGIES[:-1], "npc(n_candidates=20)"), n_initial=500, batch=250, seeds=3)
RUNS = {
    "digits": TUTORIAL.with_settings(data="digits", n_initial=20, batch=20, rounds=8, seeds=5),
    "mnist": LARGE.with_settings(data="mnist", rounds=4, n_pool=10_000),
    "cifar10_sub": LARGE.with_settings(data="cifar10_sub", rounds=9),
}
FIGURES = ("curves", "areas", "time", "overlap")  # of the guide; the report has one more
SHOWN = ("Scores", "Against random", "Pairwise penalties", "Time")  # the overlap is a figure

# dynamicAL's Table 2: CIFAR-10, the tutorial CNN, M = 500, b = 250, accuracy in percent at these rounds
TABLE2_ROUNDS = (0, 3, 6, 9)
TABLE2 = {
    "random": (32.3, 35.1, 36.9, 37.9),
    "entropy": (32.3, 35.2, 37.3, 38.3),
    "coreset": (32.4, 34.4, 36.2, 37.3),
    "badge": (32.7, 35.8, 37.9, 38.8),
    "dynamic_al": (32.6, 35.8, 38.0, 38.9),
}


def table2(result: BenchmarkResult) -> str:
    """The paper's rows beside ours."""
    ours, rounds = result.table(), [k for k in TABLE2_ROUNDS if k < len(result.n_labels)]
    columns = {"strategy": list(TABLE2)}
    for i, k in enumerate(rounds):
        columns[f"round {k}, paper"] = [f"{paper[i]:.1f}" for paper in TABLE2.values()]
        columns[f"round {k}, here"] = [str(ours.loc[name].iloc[k]) for name in TABLE2]
    return markdown_table(pd.DataFrame(columns))


def tables(result: BenchmarkResult) -> str:
    """The report's tables that the guide shows, in Markdown."""
    parts = ["\n".join(f"- {line}" for line in headline(result))]
    parts += [f"**{s.title}.** {s.note}\n\n{markdown_table(s.table)}" for s in sections(result) if s.title in SHOWN]
    return "\n\n".join(parts)


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is named and print its tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.strategies", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(RUNS)}; digits if none is named")
    parser.add_argument("--out", type=Path, default=Path("skal-bench"), metavar="FOLDER")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N")
    parser.add_argument("--figures", type=Path, metavar="FOLDER", help="write benchmark_NAME_KIND.png there")
    parser.add_argument("--quick", action="store_true", help="sizes that say nothing, to see that it runs")
    args = parser.parse_args(argv)
    names = args.names or ["digits"]
    if unknown := sorted(set(names) - set(RUNS)):
        parser.error(f"unknown data set {', '.join(unknown)}. Choose from: {', '.join(RUNS)}")
    for name in names:
        protocol = RUNS[name]
        if args.quick:
            protocol = protocol.with_settings(rounds=1, seeds=1, n_pool=60, n_test=30, max_epochs=1, batch=5)
        result = run_benchmark(protocol=protocol, out=args.out / name, n_jobs=args.jobs, progress=True)
        write_report(result, args.out / name)
        print(f"\n### {name}\n\n{tables(result)}")
        if name == "cifar10_sub":
            print(f"\nBeside dynamicAL's Table 2:\n\n{table2(result)}")
        if args.figures is not None:
            args.figures.mkdir(parents=True, exist_ok=True)
            for kind in FIGURES:
                shutil.copy(args.out / name / f"{kind}.png", args.figures / f"benchmark_{name}_{kind}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
