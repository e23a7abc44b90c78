# SPDX-License-Identifier: BSD-3-Clause
"""How far strategies agree on what to query."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from skal.exceptions import InvalidParameterError, InvalidTypeError, shorten


def query_overlap(queried: Mapping[Any, Iterable[Any]]) -> pd.DataFrame:
    """Intersection over union of what each pair of strategies queried.

    A strategy's set is the union over its trials. All indices must refer to one and the same data set. Large sets
    overlap by chance: two random ones with shares p and q of the data have about ``pq / (p + q − pq)`` in common.

    Parameters
    ----------
    queried : mapping of name to trials
        For each strategy a list of integer arrays, one for each trial; a single array is one trial.

    Returns
    -------
    pandas.DataFrame
        Symmetric, with 1 on the diagonal; NaN where neither strategy queried anything.

    Examples
    --------
    >>> from skal.diagnostics import query_overlap
    >>> query_overlap({"entropy": [[0, 1], [2, 3]], "margin": [[2, 3], [4, 5]]})
              entropy    margin
    entropy  1.000000  0.333333
    margin   0.333333  1.000000
    """
    if not isinstance(queried, Mapping):
        remedy = "Write for example {'entropy': [first, second]}."
        expected = "a mapping of names to lists of index arrays"
        raise InvalidTypeError.for_parameter("query_overlap", "queried", expected, queried, remedy)
    sets = {name: _union(name, trials) for name, trials in queried.items()}
    names = list(sets)
    overlap = np.array([[_iou(sets[a], sets[b]) for b in names] for a in names]).reshape(len(names), len(names))
    return pd.DataFrame(overlap, index=names, columns=names)


def _iou(a: set[int], b: set[int]) -> float:
    union = len(a | b)
    return len(a & b) / union if union else float("nan")


def _union(name: Any, trials: Any) -> set[int]:
    trials = list(trials)
    if trials and np.ndim(trials[0]) == 0:
        trials = [trials]
    indices: set[int] = set()
    for trial in trials:
        array = np.asarray(trial)
        if array.ndim != 1 or (array.size and (array.dtype.kind not in "iu" or array.min() < 0)):
            remedy = "Pass what the strategy returned, mapped to positions in the whole data set."
            got = f"{shorten(trial)} for {name!r}"
            expected = "lists of index arrays, integers >= 0"
            raise InvalidParameterError.for_parameter("query_overlap", "queried", expected, got, remedy)
        indices.update(array.tolist())
    return indices
