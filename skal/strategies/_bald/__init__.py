"""BALD and what only it needs."""

from skal.strategies._bald._strategy import BALD, bald

__all__ = ["BALD", "bald"]
