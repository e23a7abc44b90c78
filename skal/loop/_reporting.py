"""What is shown of a run while it goes on: a table in skorch's manner, a progress bar."""

from __future__ import annotations

from typing import Any

from tabulate import tabulate
from tqdm.auto import tqdm

__all__ = ["Reporter"]

_COLUMNS = ("round", "n_labelled", "train_score", "valid_score", "eval_score", "seconds_fit", "seconds_query")


class Reporter:
    """Prints a row of the history, or moves the bar, whenever a round is over.

    Parameters
    ----------
    verbose : int
        0 prints nothing.
    progress : bool
    total : int
        Labels that the run will have in the end.
    """

    def __init__(self, *, verbose: int, progress: bool, total: int) -> None:
        self.verbose = verbose
        self.bar = tqdm(total=total, unit="label") if progress else None
        self.columns: tuple[str, ...] = ()

    def report(self, row: dict[str, Any]) -> None:
        """Show one more round."""
        if self.verbose:
            print(self._table(row), flush=True)
        if self.bar is not None:
            score = next((row[name] for name in ("eval_score", "valid_score") if row.get(name) is not None), None)
            if score is not None:
                self.bar.set_postfix(score=f"{score:.3f}", refresh=False)
            self.bar.update(row["n_labelled"] - self.bar.n)

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self.bar is not None:
            self.bar.close()

    def _table(self, row: dict[str, Any]) -> str:
        first = not self.columns
        if first:
            self.columns = tuple(name for name in _COLUMNS if name in row)
        # widths must not change from row to row: every cell is as wide as its heading
        cells = [_cell(row.get(name)).rjust(len(name)) for name in self.columns]
        lines = tabulate([cells], self.columns, tablefmt="simple", disable_numparse=True, stralign="right").splitlines()
        return "\n".join(lines if first else lines[2:])


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)
