"""Write measured tables into a page: numbers come from commands, prose from people.

``python docs/tables.py PAGE`` lists the commands of a page; ``python docs/tables.py PAGE COMMAND`` runs one of them,
from the top of the repository, and puts the tables that it prints between its comments::

    <!-- table: python -m benchmarks.npc gain -->
    ...
    <!-- end of table -->

A command may be named by a part of it, such as ``"npc gain"``.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

REGION = re.compile(
    r"(?<=<!-- table: )(?P<command>.*?)(?P<close> -->\n)(?P<body>.*?)(?=<!-- end of table -->)", re.DOTALL
)


def commands(text: str) -> list[str]:
    """The commands of a page, in its order."""
    return [match["command"] for match in REGION.finditer(text)]


def tables(output: str) -> str:
    """The tables in what a command prints, a blank line between two of them."""
    blocks = re.findall(r"(?:^\|.*\n?)+", output, re.MULTILINE)
    return "\n\n".join(block.strip() for block in blocks)


def replace(text: str, command: str, output: str) -> str:
    """The page with the tables of a command's output in the place of the old ones."""
    found = tables(output)
    if not found:
        raise ValueError(f"{command} printed no table; the page is as it was.")

    def fill(match: re.Match[str]) -> str:
        return f"{command}{match['close']}\n{found}\n\n" if match["command"] == command else match[0]

    return REGION.sub(fill, text)


def run(command: str) -> str:
    """What a command prints; words such as ``OMP_NUM_THREADS=1`` in front of it are its environment."""
    words = shlex.split(command)
    environment = dict(os.environ)
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    words = [sys.executable if word == "python" else word for word in words]
    root = Path(__file__).resolve().parents[1]
    return subprocess.run(words, cwd=root, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def main(arguments: list[str]) -> int:
    """List the commands of a page, or run one and write its tables."""
    page = Path(arguments[0])
    text = page.read_text(encoding="utf-8")
    chosen = [command for command in commands(text) if arguments[1:] and arguments[1] in command]
    if len(chosen) != 1:
        print("\n".join(chosen or commands(text)))
        return int(bool(arguments[1:]))
    page.write_text(replace(text, chosen[0], run(chosen[0])), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
