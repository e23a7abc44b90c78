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
    from skal.demo import learning_curve_plot, learning_curve_table, run_demo  # slow to import: only when needed

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
