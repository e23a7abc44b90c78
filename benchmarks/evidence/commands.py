"""The command line of the evidence: plan, measure, run, report, rule."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks._measure import markdown
from benchmarks.evidence import words
from benchmarks.evidence.intervals import coverage_table
from benchmarks.evidence.page import load_suite, write_page
from benchmarks.evidence.rule import judge
from benchmarks.evidence.runs import RESULTS, forget, measure, missing, read, run_all
from benchmarks.evidence.settings import ARMS, DEFAULT, REFERENCE, SETTINGS
from skal.bench._store import write_text

SECONDS = Path(__file__).with_name("seconds.json")  # of one run each, for a plan before there are results


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; without one, print the plan."""
    args = _parser().parse_args(argv)
    torch.set_num_threads(1)
    return args.command(args)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evidence", description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER", help="where the runs are kept")
    parser.set_defaults(command=_plan, settings=list(SETTINGS), arms=list(ARMS), jobs=2)
    commands = parser.add_subparsers(metavar="COMMAND")
    plan = commands.add_parser("plan", help="hours that are left, by setting")
    run = commands.add_parser("run", help="make the runs that are missing; stop it at any time")
    timing = commands.add_parser("measure", help="time a short run of each arm, for the plan")
    timing.set_defaults(command=_measure)
    for command in (plan, timing, run):
        command.add_argument("--settings", type=_among(SETTINGS), default=list(SETTINGS), metavar="A,B")
        command.add_argument("--arms", type=_among(ARMS), default=list(ARMS), metavar="A;B", help="separated by ;")
        command.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N")
    plan.set_defaults(command=_plan)
    run.add_argument("--seeds", type=int, metavar="N", help="at most this many of each setting")
    run.add_argument("--hours", type=float, metavar="H", help="start no run after H hours")
    run.add_argument("--again", action="store_true", help="forget the runs of these arms first: their strategy changed")
    run.set_defaults(command=_run)
    report = commands.add_parser("report", help="write the page and its figures from the runs")
    report.add_argument("--docs", type=Path, default=Path("docs"), metavar="FOLDER")
    report.add_argument("--latex", type=Path, metavar="FILE", help="write the summary as a LaTeX table, too")
    report.set_defaults(command=_report)
    commands.add_parser("rule", help="judge the recommended strategy").set_defaults(command=_rule)
    claims = commands.add_parser("claims", help="what the default gives for each kind of data")
    claims.add_argument("--short", action="store_true", help="a row for each kind, as README has it")
    claims.set_defaults(command=_claims)
    saved = commands.add_parser("saved", help="labels saved by the default in every setting, with intervals")
    saved.set_defaults(command=_saved)
    holding = commands.add_parser("intervals", help="how often intervals of labels saved hold")
    holding.add_argument("--draws", type=int, default=50, metavar="N", help="for each setting, strategy and size")
    holding.set_defaults(command=_intervals)
    return parser


def _among(known: Sequence[str] | object) -> object:
    names = list(known)  # type: ignore[call-overload]

    def parse(text: str) -> list[str]:
        # names of arms may have commas in them
        parts = [part.strip() for part in text.split(";" if ";" in text or text in names else ",")]
        if unknown := [part for part in parts if part not in names]:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}. Choose from {'; '.join(names)}")
        return parts

    return parse


def _seconds() -> dict[str, dict[str, float]]:
    return json.loads(SECONDS.read_text(encoding="utf-8")) if SECONDS.exists() else {}


def _measure(args: argparse.Namespace) -> int:
    for name in args.settings:
        for arm in args.arms:
            if SETTINGS[name].n_seeds(arm) and arm not in _seconds().get(name, {}):
                found = round(measure(name, arm), 1)
                seconds = _seconds()  # another process may have written since
                seconds.setdefault(name, {})[arm] = found
                write_text(SECONDS, json.dumps(seconds, indent=1, ensure_ascii=False) + "\n")
                print(f"{name}, {arm}: {found} s", flush=True)
    return 0


def _guess(name: str, arm: str, seconds: dict[str, dict[str, float]]) -> float:
    """Random's time here, and what the arm takes beyond Random's in other settings: those with the same classifier."""
    known = {other: t[arm] - t.get(REFERENCE, 0) for other, t in seconds.items() if arm in t}
    alike = [time for other, time in known.items() if SETTINGS[other].protocol.net == SETTINGS[name].protocol.net]
    beyond = alike or list(known.values()) or [0.0]
    return max(0.0, seconds.get(name, {}).get(REFERENCE, 0) + sum(beyond) / len(beyond))


def _plan(args: argparse.Namespace) -> int:
    """Hours by setting, from the seconds of runs that are there, or of those measured before."""
    before = _seconds()
    rows: list[list[object]] = []
    for name in args.settings:
        setting = SETTINGS[name]
        done = read(setting, args.results)
        seconds = dict(before.get(name, {}))
        for arm in args.arms:
            if own := [line["seconds"] for (other, _), line in done.items() if other == arm]:
                seconds[arm] = sum(own) / len(own)
        left = missing(setting, args.arms, setting.seeds, args.results)
        unknown = sorted({arm for arm, _ in left if arm not in seconds})
        seconds |= {arm: _guess(name, arm, before) for arm in unknown}
        hours = sum(seconds[arm] for arm, _ in left) / 3600
        wanted = sum(setting.n_seeds(arm) for arm in args.arms)
        rows.append([name, wanted, wanted - len(left), f"{hours:.2f}", str(len(unknown)) if unknown else "–"])
    total = sum(float(str(row[3])) for row in rows)
    runs, made = (sum(int(str(row[k])) for row in rows) for k in (1, 2))
    rows.append(["all", runs, made, f"{total:.2f}", ""])
    print(markdown(["setting", "runs", "made", "hours of one core left", "arms guessed from other settings"], rows))
    print(f"\nOn {args.jobs} cores: {total / args.jobs:.1f} hours.")
    return 0


def _run(args: argparse.Namespace) -> int:
    if args.again:
        for name in args.settings:
            print(f"{name}: forgot {forget(SETTINGS[name], args.arms, args.results)} runs")
    return int(run_all(args.settings, args.arms, args.seeds, args.jobs, args.hours, args.results) > 0)


def _report(args: argparse.Namespace) -> int:
    print(write_page(args.docs, args.results))
    if args.latex is not None:
        args.latex.write_text(load_suite(args.results).to_latex(), encoding="utf-8")
    return 0


def _claims(args: argparse.Namespace) -> int:
    # it reads raw, which is a command itself: imported above, python -m would import it twice
    from benchmarks.evidence.kinds import kinds_table, load_kinds, sentences, short_table

    suites = load_kinds(args.results)
    print(*([short_table(suites)] if args.short else [kinds_table(suites), *sentences(suites)]), sep="\n")
    return 0


def _saved(args: argparse.Namespace) -> int:
    from benchmarks.evidence.kinds import intervals_table, load_kinds

    print(intervals_table(load_kinds(args.results)))
    return 0


def _intervals(args: argparse.Namespace) -> int:
    print(coverage_table(args.draws, args.results))
    return 0


def _rule(args: argparse.Namespace) -> int:
    suite = load_suite(args.results)
    for held_out, which in ((False, "development"), (True, "held-out")):
        names = [name for name in suite.settings if SETTINGS[name].held_out is held_out]
        names = [name for name in names if DEFAULT in suite.results[name].strategies]
        if not names:
            continue
        found = judge(suite.subset(names), DEFAULT, words.COMMON_START)
        print("\n".join(words.judged(found, DEFAULT, which)))
        for criterion, met in found.criteria.items():
            print(f"  {'met' if met else 'not met'}: {criterion}")
    return 0
