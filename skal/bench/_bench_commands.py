# SPDX-License-Identifier: BSD-3-Clause
"""The commands ``skal demo``, ``skal bench`` and ``skal report``. As all parsers, these import nothing heavy."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skal._vocabulary import UsageError, parse_count

if TYPE_CHECKING:
    from skal.bench._protocol import Protocol

# the settings of skal.bench.Protocol that are options, under the same names
_COUNTS = {
    "n_initial": "labels at the start",
    "query_size": "labels per query",
    "n_rounds": "number of queries",
    "seeds": "repetitions, each with its own pool, first labels and initial weights",
    "max_epochs": "training epochs per round, at most",
    "n_pool": "use only this many training samples",
    "n_test": "use only this many test samples",
}
_DEMO_COUNTS = {"n_initial": 20, "query_size": 20, "n_rounds": 8, "seeds": 6}


def _add_counts(parser: argparse.ArgumentParser, **defaults: int) -> None:
    """Add an option for each setting, or only for the settings with a default if any has one."""
    for setting in defaults or _COUNTS:
        flag = f"--{setting.replace('_', '-')}"
        parser.add_argument(flag, type=parse_count, default=defaults.get(setting), metavar="N", help=_COUNTS[setting])


def add_demo(commands: Any) -> None:
    """``skal demo``."""
    parser = commands.add_parser(
        "demo",
        help="the recommended default beside Random on digits, in under a minute",
        description="Label digits with the recommended default and at random, over paired seeds: print accuracies by "
        "number of labels and whether the difference is real, and write a plot. Needs no files and no network.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=Path("skal-demo"), metavar="FOLDER", help="where the plot goes")
    _add_counts(parser, **_DEMO_COUNTS)
    parser.set_defaults(run=_demo)


def _demo(args: argparse.Namespace) -> None:
    from skal.bench._demo import demo_scores, describe_demo, draw_demo
    from skal.config import config_context

    args.out.mkdir(parents=True, exist_ok=True)  # a folder that cannot be written should fail before the run
    with config_context(progress=True):
        n_labels, scores = demo_scores(args.n_initial, args.query_size, args.n_rounds, args.seeds)
    print(describe_demo(n_labels, scores))
    path = args.out / "learning_curve.png"
    draw_demo(n_labels, scores, path)
    print(f"Learning curves: {path}")


def add_bench(commands: Any) -> None:
    """``skal bench``."""
    parser = commands.add_parser(
        "bench",
        help="compare strategies over seeds, with significance tests",
        description="Run strategies on a data set over paired seeds, save each run as it finishes, and write a report. "
        "Repeat the command to continue a benchmark that was interrupted.",
        epilog="Settings that you do not give come from the preset, or from the defaults of skal.bench.Protocol.",
    )
    parser.add_argument("--preset", metavar="NAME", help="a paper's protocol; --list shows the names")
    parser.add_argument("--list", action="store_true", help="list the presets and exit")
    tasks = ["classification", "regression", "multilabel"]
    parser.add_argument("--task", choices=tasks, help="what the labels are: classes, numbers, or several at once")
    scores = "accuracy, balanced_accuracy; rmse, mae, r2 (errors as negative numbers); f1_micro, f1_macro, "
    parser.add_argument("--scoring", metavar="NAME", help=f"{scores}average_precision")
    parser.add_argument("--data", metavar="NAME", help="digits, mnist, cifar10, …, or an npz file, by its name or path")
    parser.add_argument("--data-home", type=Path, metavar="FOLDER", help="data sets; $SKAL_DATA_HOME by default")
    parser.add_argument(
        "--net",
        metavar="NAME",
        help="mlp, cnn, convnet, vgg11, resnet18, wide_resnet; for features logistic, linear, forest",
    )
    parser.add_argument(
        "--strategies",
        metavar="A,B,…",
        help="function names of skal.strategies, random, albl; with parameters as in 'dynamic_al(gamma=0)'",
    )
    parser.add_argument("--title", metavar="TEXT", help="of the report and the figures")
    _add_counts(parser)
    new_weights = "start every round from new weights"
    parser.add_argument("--reinitialize", action="store_const", const=False, dest="warm_start", help=new_weights)
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs in parallel; -1 uses every core")
    parser.add_argument("--out", type=Path, default=Path("skal-bench"), metavar="FOLDER", help="where results go")
    parser.set_defaults(run=_bench)


def _bench(args: argparse.Namespace) -> None:
    from skal.bench import Protocol

    if args.list:
        _list_presets()
        return
    if args.data is None and args.preset is None:
        raise UsageError("Say what to run: --data digits, for example, or --preset NAME. --list shows the presets.")
    known = {field.name for field in fields(Protocol)}
    settings = {name: value for name, value in vars(args).items() if name in known and value is not None}
    if args.strategies is not None:
        settings["strategies"] = tuple(_split_list(args.strategies))
    if args.net is not None:
        settings["net_params"] = {}  # the preset's belong to its own network
    chosen: tuple[Protocol | None, ...] = (None,)
    if args.preset is not None:
        from skal.bench.papers import preset

        chosen = preset(args.preset)
    for protocol in chosen:
        _check_bench((protocol or Protocol()).with_settings(**settings), args.data_home)
    from skal.bench import run_benchmark
    from skal.config import config_context

    for protocol in chosen:
        out = args.out / protocol.name if protocol is not None and len(chosen) > 1 else args.out
        with config_context(progress=True):
            result = run_benchmark(protocol=protocol, out=out, n_jobs=args.jobs, data_home=args.data_home, **settings)
        _print_report(result, out)


def _check_bench(protocol: Protocol, data_home: Path | None) -> None:
    """Refuse a wrong name before torch is loaded for it."""
    from skal._vocabulary import parse_strategy
    from skal.bench._protocol import check_net, find_rows
    from skal.datasets._load import find

    for name in protocol.settle().check().strategies:
        parse_strategy(name)
    check_net(protocol.net, protocol.task)
    if protocol.task == "classification":
        find(protocol.data, data_home)
    elif protocol.data not in ("diabetes", "digits"):  # those that scikit-learn has
        find_rows(protocol.data, data_home)


def _list_presets() -> None:
    from skal.bench.papers import PRESETS

    for name, protocols in PRESETS.items():
        sizes = ", ".join(f"{p.data}, {p.net}, {p.n_initial} + {p.n_rounds} x {p.query_size}" for p in protocols)
        print(f"{name}: {sizes}")


def _split_list(text: str) -> list[str]:
    """Cut a list at its commas, but not inside parentheses.

    Examples
    --------
    >>> _split_list("random, npc(search='greedy', n_candidates=9),badge")
    ['random', "npc(search='greedy', n_candidates=9)", 'badge']
    """
    parts, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def add_report(commands: Any) -> None:
    """``skal report``."""
    parser = commands.add_parser(
        "report",
        help="show tables, tests, plots and verdicts of a benchmark",
        description="Print the results of skal bench; write report.html, report.md, tables and figures beside them.",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the --out folder of skal bench, finished or not")
    parser.set_defaults(run=_report)


def _report(args: argparse.Namespace) -> None:
    from skal.bench._protocol import find_settings

    inside = sorted(path.parent for path in args.folder.glob("*/settings.json"))
    if not inside:
        find_settings(args.folder)
    from skal.bench import BenchmarkResult

    for folder in inside or [args.folder]:  # a preset of several protocols has a folder for each
        _print_report(BenchmarkResult.load(folder), folder)


def _print_report(result: Any, folder: Path) -> None:
    from skal.bench import terminal_report, write_report

    page = write_report(result, folder)
    print(f"{terminal_report(result)}\n\nReport: {page}\n")
