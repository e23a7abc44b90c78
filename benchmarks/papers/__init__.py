"""The papers' figures and tables that are no comparison of strategies by a preset: one command each, resumable.

``python -m benchmarks.papers STUDY [...] [--size quick|scaled|full] [--results FOLDER]``; ``--list`` names them, with
the figures and tables that they repeat. Presets are run by ``skal bench --preset NAME``.
"""

from benchmarks.papers.commands import main

__all__ = ["main"]
