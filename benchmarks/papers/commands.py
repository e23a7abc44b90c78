"""The command line of the studies."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks._kept import Kept
from benchmarks.papers import accuracy, bounds, kernels, mnist, printed, tightness
from benchmarks.papers.study import SIZES, Study

STUDIES: dict[str, Study] = {
    study.name: study for module in (bounds, accuracy, mnist, kernels, tightness, printed) for study in module.STUDIES
}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables that are asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers", description="The papers' studies.")
    parser.add_argument("studies", nargs="*", metavar="STUDY", help=f"{', '.join(STUDIES)}; default: all")
    parser.add_argument("--size", choices=SIZES, default="scaled", help="default: scaled, for two cores")
    parser.add_argument("--results", type=Path, help="folder of finished runs, to go on after an interruption")
    parser.add_argument("--list", action="store_true", help="name the studies and run nothing")
    args = parser.parse_args(argv)
    if unknown := sorted(set(args.studies) - set(STUDIES)):
        parser.error(f"unknown study {', '.join(unknown)}. Choose from: {', '.join(STUDIES)}")
    torch.set_num_threads(1)
    for name in args.studies or STUDIES:
        study = STUDIES[name]
        if args.list:
            print(f"{name}: {study.repeats}")
            continue
        folder = None if args.results is None else args.results / args.size / name
        kept = Kept(None if folder is None else folder.with_suffix(".jsonl"))
        print(f"\n### {name}: {study.repeats}\n\n{study.table(args.size, kept, folder)}", flush=True)
    return 0
