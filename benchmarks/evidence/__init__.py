"""Which strategy saves how many labels: all strategies on all settings over paired seeds, and the page about it.

``python -m benchmarks.evidence plan|run|report|rule``; ``--help`` after each says more. The settings, the arms, and
which settings the recommended strategy is judged on are in ``settings.py``, written before they are run.
"""

from benchmarks.evidence.commands import main

__all__ = ["main"]
