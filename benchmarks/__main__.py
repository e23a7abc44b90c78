"""Run benchmarks: ``python -m benchmarks [NAME ...]``, all of them if none is named; ``--list`` names them."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Sequence

import benchmarks


def names() -> list[str]:
    """Names of the benchmark modules, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(benchmarks.__path__) if module.name[0] != "_")


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is asked for, all of it even if one fails, and return 1 if any failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=benchmarks.__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"benchmarks to run: {', '.join(names()) or 'none'}")
    parser.add_argument("--list", action="store_true", help="print the names and what they measure, run nothing")
    args = parser.parse_args(argv)
    if unknown := sorted(set(args.names) - set(names())):
        parser.error(f"unknown benchmark {', '.join(unknown)}. Choose from: {', '.join(names()) or 'none yet'}")
    failed = False
    for name in args.names or names():
        module = importlib.import_module(f"benchmarks.{name}")
        if args.list:
            print(f"{name}: {(module.__doc__ or '').strip().partition(chr(10))[0]}")
        else:
            print(f"== {name}", flush=True)
            failed |= bool(module.main([]))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
