"""The command line: ``skal COMMAND``. Each command is a parser and a function that runs it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skal._version import __version__
from skal.exceptions import SkalError

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status.

    Parameters
    ----------
    argv : sequence of str or None, default=None
        The arguments after the program's name; None takes them from the command line.

    Returns
    -------
    int
        0 if all went well, 1 if the command could not do its job.

    Examples
    --------
    >>> from skal.cli import main
    >>> main([])  # doctest: +ELLIPSIS
    usage: skal [-h] [--version] COMMAND ...
    ...
    0
    """
    parser = _parser()
    args = parser.parse_args(argv)
    if args.run is None:
        parser.print_help()
        return 0
    try:
        return args.run(args)
    except (SkalError, OSError) as error:
        print(f"skal {args.command}: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="skal", description="Deep active learning for scikit-learn users.")
    parser.add_argument("--version", action="version", version=f"skal {__version__}")
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND")
    _add_demo(commands)
    _add_bench(commands)
    _add_report(commands)
    return parser


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be an integer >= 1. Got {text!r} instead")
    return value


def _add_demo(commands: Any) -> None:
    parser = commands.add_parser(
        "demo",
        help="an active-learning run on digits, in under a minute",
        description="Compare query strategies on digits: print a table of accuracy by number of labels and write "
        "a learning-curve plot. Needs no files and no network.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=Path("skal-demo"), metavar="FOLDER", help="where the plot goes")
    counts = {
        "--seeds": (3, "repetitions, each with its own initial labels and weights"),
        "--rounds": (5, "queries"),
        "--initial": (20, "labels at the start"),
        "--batch": (20, "labels per query"),
        "--epochs": (40, "training epochs per round"),
    }
    for flag, (default, text) in counts.items():
        parser.add_argument(flag, type=_positive, default=default, metavar="N", help=text)
    parser.set_defaults(run=_demo)


def _demo(args: argparse.Namespace) -> int:
    from skal.bench._demo import learning_curve_plot, learning_curve_table, run_demo  # slow to import: only when needed

    args.out.mkdir(parents=True, exist_ok=True)  # a folder that cannot be written should fail before the run
    curves = run_demo(
        n_seeds=args.seeds,
        n_rounds=args.rounds,
        n_initial=args.initial,
        batch=args.batch,
        max_epochs=args.epochs,
        progress=True,
    )
    seeds = "1 seed" if args.seeds == 1 else f"mean ± standard deviation over {args.seeds} seeds"
    print(f"Digits, an MLP, test accuracy in percent, {seeds}\n")
    print(learning_curve_table(curves))
    print("\nA few seeds do not prove a difference between strategies: look at the spread before you look at the mean.")
    print(f"Learning curves: {learning_curve_plot(curves, args.out / 'learning_curve.png')}")
    return 0


# option: (setting of skal.bench.Protocol, help)
_BENCH_COUNTS = {
    "--initial": ("n_initial", "labels at the start"),
    "--batch": ("batch", "labels per query"),
    "--rounds": ("rounds", "queries"),
    "--seeds": ("seeds", "repetitions, each with its own pool, first labels and initial weights"),
    "--epochs": ("max_epochs", "training epochs per round, at most"),
    "--pool": ("n_pool", "use only so many training images"),
    "--test": ("n_test", "use only so many test images"),
}


def _add_bench(commands: Any) -> None:
    parser = commands.add_parser(
        "bench",
        help="compare strategies over seeds, with significance tests",
        description="Run strategies on a data set over paired seeds, save results as they come, and write a report. "
        "The same command again goes on with a run that was stopped.",
        epilog="What is not given comes from the preset, or from the defaults of skal.bench.Protocol.",
    )
    parser.add_argument("--preset", metavar="NAME", help="a paper's protocol; --list names them")
    parser.add_argument("--list", action="store_true", help="name the presets and stop")
    parser.add_argument("--data", metavar="NAME", help="digits, mnist, cifar10, …, or the name of an npz file")
    parser.add_argument("--data-home", type=Path, metavar="FOLDER", help="where data sets are; else $SKAL_DATA_HOME")
    parser.add_argument("--net", metavar="NAME", help="mlp, cnn, convnet, vgg11, resnet18 or wide_resnet")
    parser.add_argument(
        "--strategies",
        metavar="A,B,…",
        help="function names of skal.strategies, random, albl; with parameters as in 'dynamic_al(gamma=0)'",
    )
    for flag, (setting, text) in _BENCH_COUNTS.items():
        parser.add_argument(flag, type=_positive, dest=setting, metavar="N", help=text)
    parser.add_argument("--reinitialize", action="store_true", help="start every round from new weights")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at a time; -1 is one per core")
    parser.add_argument("--out", type=Path, default=Path("skal-bench"), metavar="FOLDER", help="where results go")
    parser.set_defaults(run=_bench)


def _bench(args: argparse.Namespace) -> int:
    from skal.bench import PRESETS, Protocol, preset, run_benchmark
    from skal.bench._specs import split_specs

    if args.list:
        for name, protocols in PRESETS.items():
            print(
                f"{name}: {', '.join(f'{p.data}, {p.net}, {p.n_initial} + {p.rounds} x {p.batch}' for p in protocols)}"
            )
        return 0
    protocols = (Protocol(),) if args.preset is None else preset(args.preset)
    settings = {name: value for name, _ in _BENCH_COUNTS.values() if (value := getattr(args, name)) is not None}
    settings |= {name: value for name in ("data", "net") if (value := getattr(args, name)) is not None}
    if args.net is not None:
        settings["net_params"] = {}  # the preset's belong to its own network
    if args.strategies is not None:
        settings["strategies"] = tuple(split_specs(args.strategies))
    if args.reinitialize:
        settings["warm_start"] = False
    for protocol in protocols:
        out = args.out / protocol.name if len(protocols) > 1 else args.out
        chosen = protocol.with_settings(**settings)
        result = run_benchmark(protocol=chosen, out=out, n_jobs=args.jobs, progress=True, data_home=args.data_home)
        _print_report(result, out)
    return 0


def _add_report(commands: Any) -> None:
    parser = commands.add_parser(
        "report",
        help="tables, tests, plots and verdicts of a benchmark",
        description="Print the results of skal bench; write report.html, report.md, tables and figures beside them.",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="skal bench's --out folder, finished or not")
    parser.set_defaults(run=_report)


def _report(args: argparse.Namespace) -> int:
    from skal.bench import BenchmarkResult

    inside = sorted(path.parent for path in args.folder.glob("*/settings.json"))
    for folder in inside or [args.folder]:  # a preset of several protocols has a folder for each
        _print_report(BenchmarkResult.load(folder), folder)
    return 0


def _print_report(result: Any, folder: Path) -> None:
    from skal.bench import terminal_report, write_report

    page = write_report(result, folder)
    print(f"{terminal_report(result)}\n\nReport: {page}\n")
