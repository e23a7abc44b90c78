# SPDX-License-Identifier: BSD-3-Clause
"""The command line: ``skal COMMAND``. Each command is a parser and a function that runs it.

Parsers import nothing heavy: help, versions and usage errors come before torch is loaded.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skal._version import __version__
from skal._vocabulary import UsageError, parse_count
from skal.bench._bench_commands import add_bench, add_demo, add_report
from skal.exceptions import SkalError, SkalWarning, how_to_install
from skal.labelling._commands import add_export, add_import, add_label, add_label_studio, add_predict

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
        0 if all went well, 1 if the command could not do its job, 2 if it was not given what it needs.

    Examples
    --------
    >>> from skal.cli import main
    >>> main([])  # doctest: +ELLIPSIS
    usage: skal [-h] [--version] COMMAND ...
    ...
    0
    """
    args = _parser().parse_args(_join_range(sys.argv[1:] if argv is None else argv))
    try:
        args.run(args)
    except UsageError as error:
        print(f"skal {args.command}: {error}", file=sys.stderr)
        return 2
    except (SkalError, OSError) as error:
        print(f"skal {args.command}: {error}", file=sys.stderr)
        return 1
    return 0


def _join_range(words: Sequence[str]) -> list[str]:
    """``--range -5,5`` as ``--range=-5,5``: argparse takes what begins with a minus for an option."""
    joined: list[str] = []
    for word in words:
        if joined and joined[-1] == "--range" and word[:1] == "-" and "," in word:
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="skal", description="Deep active learning for scikit-learn users.")
    parser.add_argument("--version", action="version", version=f"skal {__version__}")
    parser.set_defaults(run=lambda _: parser.print_help())
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND")
    for add in (add_demo, add_bench, add_report, add_label, add_label_studio, add_predict, add_export, add_import):
        add(commands)
    _add_audit(commands)
    _add_doctor(commands)
    _add_completion(commands, parser)
    return parser


def _add_doctor(commands: Any) -> None:
    about = "Print versions, the device, which pre-trained networks are at hand, what is missing, and what helps."
    parser = commands.add_parser("doctor", help="what is installed, what is missing, and what helps", description=about)
    parser.set_defaults(run=_doctor)


def _doctor(args: argparse.Namespace) -> None:
    from skal._doctor import examine

    print(*examine(), sep="\n")


def _add_completion(commands: Any, whole: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "completion",
        help="let the shell complete commands and options",
        description='Print a script that completes commands and options. For bash: eval "$(skal completion bash)"',
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish", "tcsh"), help="your shell")
    parser.set_defaults(run=lambda args: _completion(whole, args.shell))


def _completion(parser: argparse.ArgumentParser, shell: str) -> None:
    try:
        import shtab
    except ImportError:
        raise UsageError(f"this needs the package shtab. {how_to_install('completion')}") from None
    print(shtab.complete(parser, shell))


def _add_audit(commands: Any) -> None:
    parser = commands.add_parser(
        "audit", help="how many labels of a file are wrong, from a few that were looked at again"
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="CSV with the columns id, label and perhaps confidence")
    parser.add_argument("--truth", type=Path, required=True, metavar="FILE", help="CSV with ids and labels of an audit")
    parser.add_argument("--draw", type=parse_count, metavar="N", help="first: draw N ids, and write them to that CSV")
    parser.add_argument("--doubtful", type=Path, metavar="FILE", help="write the labels to look at again to this CSV")
    parser.set_defaults(run=_audit)


def _audit(args: argparse.Namespace) -> None:
    args.file.stat()  # an error names the file that is not there, before anything heavy is loaded
    if args.draw is None and not args.truth.exists():
        raise FileNotFoundError(f"{args.truth} is not there. The option --draw N writes the first one.")
    from skal.audit import audit_command, draw_command

    if args.draw is not None:
        draw_command(args.file, args.truth, args.draw)
        return
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", SkalWarning)
        audit_command(args.file, args.truth, doubtful=args.doubtful)
    for warning in found:  # as a sentence, without the line of code that it comes from
        print(f"skal audit: {warning.message}", file=sys.stderr)
