"""The papers' own tables, as they are printed.

``printed.tsv`` was transcribed from the papers' texts, table by table and row by row, apart from the settings in
``skal/bench/papers/_transcripts.py``, and names the lines of the texts. Tests compare all presets with the settings,
and with these tables those presets whose results are printed as tables; the others repeat figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks._kept import Kept
from benchmarks._measure import markdown
from benchmarks.papers.study import Study

OURS = ("dynamicAL", "NPC")


@dataclass(frozen=True)
class Printed:
    """A printed table.

    Attributes
    ----------
    preset : str
        Or the study that repeats a table which no preset does.
    source : str
        Which text, and its lines.
    caption : str
    columns : list of str
        The strategies, or the settings.
    rows : dict
        From the name of a row to its cells; None where a number is not legible.
    """

    preset: str
    source: str
    caption: str
    columns: list[str]
    rows: dict[str, list[float | None]]


def read() -> dict[str, Printed]:
    """All tables, by preset."""
    text = Path(__file__).with_name("printed.tsv").read_text(encoding="utf-8")
    found = {}
    for block in text.split("\n\n")[1:]:
        title, header, *lines = block.strip().split("\n")
        place, caption = title[1:].split("] ", 1)
        preset, source = place.split(" | ")
        cells = [line.split("\t") for line in lines]
        rows = {name: [None if cell == "?" else float(cell) for cell in values] for name, *values in cells}
        found[preset] = Printed(preset, source, caption, header.split("\t")[1:], rows)
    return found


def summarize(size: str, kept: Kept, folder: Path | None) -> str:
    """Of comparisons the last row: Random, the best other baseline, the paper's strategy. Other tables as a whole."""
    lines: list[list[object]] = []
    whole: list[str] = []
    for name, printed in read().items():
        (own,) = [column for column in printed.columns if column in OURS] or [None]
        if own is None:
            rows: list[list[object]] = [
                [f"`{name}`", row, *(f"{cell:g}" for cell in cells)] for row, cells in printed.rows.items()
            ]
            whole.append(markdown(["for", printed.caption, *printed.columns], rows))
            continue
        row, cells = list(printed.rows.items())[-1]
        last = dict(zip(printed.columns, cells, strict=True))
        random = last.get("Random", last.get("Passive", "not given"))
        others = {column: value for column, value in last.items() if column not in ("Random", "Passive", own)}
        best = max(others, key=lambda column: others[column] or 0)
        unit = "labels" if name.startswith("npc") else "round"
        first = f"{row} {unit}" if unit == "labels" else f"{unit} {row}"
        cell = "not legible" if random is None else random if isinstance(random, str) else f"{random:.2f}"
        compared = f"{best} {others[best]:.2f}", f"{own} {last[own]:.2f}"
        lines.append([f"`{name}`", printed.caption, first, cell, *compared])
    header = ["preset", "setting", "last row", "Random", "best other baseline", "the paper's strategy"]
    return "\n\n".join([markdown(header, lines), *whole])


STUDIES = (Study("printed", "the papers' own tables, of comparisons the last rows", summarize),)
