"""When a loop ends."""

from __future__ import annotations

import warnings
from typing import Any

from skal.exceptions import BudgetWarning
from skal.loop._state import LoopState

__all__ = ["n_to_ask", "planned_labels", "stop_reason"]


def planned_labels(n_initial: int, query_size: int, n_rounds: int | None, budget: int | None, n_samples: int) -> int:
    """How many labels a run will have in the end, unless something stops it earlier; warns of more than there are."""
    if budget is None and n_rounds is None:
        return n_samples
    planned = budget if budget is not None else n_initial + (n_rounds or 0) * query_size
    if planned > n_samples:
        asked = f"budget={budget}" if budget is not None else f"n_initial + n_rounds * query_size = {planned}"
        warnings.warn(
            f"{asked} exceeds the {n_samples} samples; all of them will be labelled. "
            "Use n_rounds=None to label everything without this warning.",
            BudgetWarning,
            stacklevel=4,
        )
    return min(planned, n_samples)


def n_to_ask(state: LoopState, size: int, budget: int | None, n_pool: int) -> int:
    """The size of the next batch."""
    left = n_pool if budget is None else budget - len(state.labelled)
    return max(0, min(size, left, n_pool))


def stop_reason(
    state: LoopState,
    *,
    n_rounds: int | None,
    budget: int | None,
    target_score: float | None,
    n_pool: int,
    row: dict[str, Any],
) -> str | None:
    """Why the loop ends after the round that ``row`` describes, or None; a budget takes the place of ``n_rounds``."""
    if target_score is not None and row["valid_score"] is not None and row["valid_score"] >= target_score:
        return "target score"
    if budget is not None and len(state.labelled) >= budget:
        return "budget"
    if budget is None and n_rounds is not None and row["round"] >= n_rounds:
        return "budget"
    return "pool exhausted" if n_pool == 0 else None
