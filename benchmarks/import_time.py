"""How long importing skal takes, beside importing torch, skorch and scikit-learn alone.

``python -m benchmarks.import_time`` starts fresh interpreters in turn and prints the fewest seconds of processor
time that the import takes, and their ratios to the packages alone. ``import skal`` loads nothing; with all of its
names it needs those packages and modAL. Compiled files are kept, as an installed package has them.
"""

import argparse
import os
import subprocess
import sys

ALONE = "import torch, skorch, sklearn"
CASES = {
    "torch, skorch, scikit-learn": ALONE,
    "import skal": "import skal",
    "skal.strategies": f"{ALONE}; import skal.strategies",
    "modAL": f"{ALONE}; import modAL",
    "from skal import *": f"{ALONE}; from skal import *",
}


def seconds(statement: str) -> float:
    """Processor time of one import in a fresh interpreter, without its start."""
    code = f"from time import process_time as now; start = now(); {statement}; print(now() - start)"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
    return float(run.stdout)


def measure(repeats: int) -> dict[str, float]:
    """Fewest seconds of each case; the cases take turns, so that a busy minute hits them all."""
    found = [[seconds(statement) for statement in CASES.values()] for _ in range(repeats + 1)][1:]  # the first warms up
    return dict(zip(CASES, map(min, zip(*found, strict=True)), strict=True))


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    times = measure(parser.parse_args(arguments).repeats)
    alone = next(iter(times.values()))
    for name, value in times.items():
        print(f"{name:<28} {value:6.3f} s   {value / alone:5.2f}")


if __name__ == "__main__":
    main()
