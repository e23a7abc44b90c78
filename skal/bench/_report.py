# SPDX-License-Identifier: BSD-3-Clause
"""A result as one HTML page that needs nothing else, as Markdown, and as a table in the terminal."""

from __future__ import annotations

import base64
import html
import io
import os
from pathlib import Path

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure
from tabulate import tabulate

from skal._version import __version__
from skal.bench import _plots
from skal.bench._result import BenchmarkResult
from skal.bench._store import csv_text, write_text
from skal.bench._tables import Section, headline, sections

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1b1b1b; background: #fff; }
body { max-width: 62rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: 0.88rem; }
th, td { padding: 0.3rem 0.6rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } th { border-bottom: 2px solid #888; }
.wide td:last-child { text-align: left; white-space: normal; overflow-wrap: anywhere; min-width: 14rem; }
.wide th:last-child { text-align: left; }
ul.verdicts { padding-left: 1.2rem; } p.note { color: #444; font-size: 0.9rem; max-width: 46rem; }
figure { margin: 1rem 0; }
img { width: 100%; min-width: 30rem; max-width: 44rem; height: auto; display: block; }
figcaption { color: #444; font-size: 0.9rem; }
"""


def write_report(result: BenchmarkResult, folder: str | os.PathLike[str]) -> Path:
    """Write ``report.html``, ``report.md``, a PNG per figure and a CSV per table; return the page's path.

    Parameters
    ----------
    result : BenchmarkResult
        Finished runs.
    folder : path
        Created if it does not exist.

    Returns
    -------
    pathlib.Path
        Of ``report.html``.

    Examples
    --------
    >>> import tempfile
    >>> from skal.bench import run_benchmark, write_report
    >>> result = run_benchmark(["random", "margin"], net="mlp", n_rounds=1, seeds=2, max_epochs=2, n_pool=100)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_report(result, folder).name
    'report.html'
    """
    folder = Path(folder)
    figures = _draw_figures(result)
    write_text(folder / "report.html", _page(result, figures))
    write_text(folder / "report.md", markdown_report(result))
    result.write_tables(folder)
    write_text(folder / "tests.csv", csv_text(result.tests()))
    write_text(folder / "pairwise.csv", csv_text(result.pairwise(), index=False))
    write_text(folder / "penalties.csv", csv_text(result.penalties()))
    write_text(folder / "overlap.csv", csv_text(result.overlap()))
    for kind, figure in figures.items():
        figure.savefig(folder / f"{kind}.png", dpi=120)
    return folder / "report.html"


def html_report(result: BenchmarkResult) -> str:
    """A page without scripts and without links to other files: figures are inside, as SVG.

    Parameters
    ----------
    result : BenchmarkResult
        Finished runs.

    Returns
    -------
    str
        A whole HTML document.

    Examples
    --------
    >>> from skal.bench import html_report, run_benchmark
    >>> result = run_benchmark(["random", "margin"], net="mlp", n_rounds=1, seeds=2, max_epochs=2, n_pool=100)
    >>> html_report(result).count("<img")
    5
    """
    return _page(result, _draw_figures(result))


def _draw_figures(result: BenchmarkResult) -> dict[str, Figure]:
    figures = {kind: result.plot(kind).figure for kind in _plots.RESULT_FIGURES}
    for figure in figures.values():
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # laid out now, and not again for every format
    return figures


def _page(result: BenchmarkResult, figures: dict[str, Figure]) -> str:
    title = html.escape(_title(result))
    verdicts = "".join(f"<li>{html.escape(line)}</li>" for line in headline(result))
    images = "".join(_image(figure, _plots.RESULT_FIGURES[kind][1]) for kind, figure in figures.items())
    tables = [_html_table(section) for section in sections(result)]
    return (
        "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{title}</title><link rel='icon' href='data:,'><style>{_STYLE}</style></head><body>\n"
        f"<h1>{title}</h1>\n{_note(result.protocol.notes)}\n<h2>Verdict</h2>\n<ul class='verdicts'>{verdicts}</ul>\n"
        f"{tables[0]}\n<h2>Figures</h2>\n{images}\n{''.join(tables[1:])}\n"
        f"{_note(f'Made with skal {__version__}.')}\n</body></html>\n"
    )


def _image(figure: Figure, caption: str) -> str:
    buffer = io.BytesIO()
    # no date and no random ids: the same result gives the same page
    with mpl.rc_context({"svg.hashsalt": "skal"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    data = base64.b64encode(buffer.getvalue()).decode()
    caption = html.escape(caption)
    return (
        f"<figure><div class='scroll'><img alt='{caption}' src='data:image/svg+xml;base64,{data}'></div>"
        f"<figcaption>{caption}</figcaption></figure>\n"
    )


def _html_table(section: Section) -> str:
    table = tabulate(section.table, "keys", "html", showindex=False, disable_numparse=True)  # escapes the cells
    kind = " wide" if section.title in {"Settings", "Warnings"} else ""
    heading = f"<h2>{html.escape(section.title)}</h2>\n{_note(section.note)}\n"
    return f"{heading}<div class='scroll{kind}'>{table}</div>\n"


def _note(text: str) -> str:
    return f"<p class='note'>{html.escape(text)}</p>" if text else ""


def markdown_report(result: BenchmarkResult) -> str:
    """The verdicts and every table, with links to the figures beside it.

    Parameters
    ----------
    result : BenchmarkResult
        Finished runs.

    Returns
    -------
    str
        Markdown whose figures are PNG files in the same folder.

    Examples
    --------
    >>> from skal.bench import markdown_report, run_benchmark
    >>> result = run_benchmark(["random", "margin"], net="mlp", n_rounds=1, seeds=1, max_epochs=2, n_pool=100)
    >>> print(markdown_report(result).splitlines()[4])
    - margin: not enough seeds: one run cannot tell a difference from Random from noise.
    """
    parts = [f"# {_title(result)}", result.protocol.notes, "## Verdict"]
    parts.append("\n".join(f"- {line}" for line in headline(result)))
    tables = [
        f"## {s.title}\n\n{s.note}\n\n{markdown_table(s.table)}".replace("\n\n\n", "\n") for s in sections(result)
    ]
    figures = "\n\n".join(f"![{caption}]({name}.png)" for name, (_, caption) in _plots.RESULT_FIGURES.items())
    parts += [tables[0], f"## Figures\n\n{figures}", *tables[1:]]
    # names and notes are the user's: Markdown would take angle brackets for HTML
    return html.escape("\n\n".join(part for part in parts if part), quote=False) + "\n"


def markdown_table(table: pd.DataFrame) -> str:
    """A table of texts, with bars in cells escaped."""
    lines = [table.columns, ["---"] * len(table.columns), *table.to_numpy()]
    cells = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def terminal_report(result: BenchmarkResult) -> str:
    """Scores, the comparison with the reference, and the verdicts.

    Parameters
    ----------
    result : BenchmarkResult
        Finished runs.

    Returns
    -------
    str
        Text of several lines.

    Examples
    --------
    >>> from skal.bench import run_benchmark, terminal_report
    >>> result = run_benchmark(["random", "margin"], net="mlp", n_rounds=1, seeds=1, max_epochs=2, n_pool=100)
    >>> print(terminal_report(result).splitlines()[0])
    digits, mlp, 20 to 40 labels
    """
    parts = [_title(result)]
    for title, table, note in sections(result)[:2]:
        text = tabulate(table, "keys", showindex=False, disable_numparse=True, stralign="right", colalign=("left",))
        parts.append(f"{title}. {note}\n\n{text}")
    parts.append("\n".join(headline(result)))
    return "\n\n".join(parts)


def _title(result: BenchmarkResult) -> str:
    protocol = result.protocol
    if protocol.title:
        return protocol.title
    name = "" if protocol.name == type(protocol).name else f"{protocol.name}: "
    return f"{name}{protocol.heading}, {result.n_labels[0]} to {result.n_labels[-1]} labels"
