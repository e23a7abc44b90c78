# SPDX-License-Identifier: BSD-3-Clause
"""Rows of a table as numbers that can be compared: every column treated by its kind."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from skal.exceptions import FeatureError, InvalidTypeError, shorten
from skal.validation import Integer

_CALENDAR = ("month", "day_of_week", "hour")  # of a date, beside the time itself
_REMEDY = "Pass a table with at least one row and one column that has values."


class TableFeatures(TransformerMixin, BaseEstimator):
    """Features of the rows of a table, by the kind of each column; fitted on the pool, without labels.

    - Numbers are standardised; a missing one is the median of its column.
    - Columns with two numbers, and truth values, become 0 and 1.
    - Categories get a column of 0 and 1 each; rare ones, missing ones and those that come later share columns.
    - Dates become the time, the month, the day of the week and the hour, standardised.
    - Strings that all read as numbers or as ISO dates are taken as such.
    - Where a number is often missing, a further column says so.

    Parameters
    ----------
    min_frequency : int, default=10
        Categories with fewer rows are merged.
    max_categories : int, default=100
        The most frequent categories of a column that may have a column of their own.

    Attributes
    ----------
    n_features_in_ : int
        Columns of the table.
    kinds_ : list of str
        What each column is: ``"number"``, ``"date"``, ``"category"`` or ``"missing"``.

    Notes
    -----
    A category that was not there when the features were fitted is no error: it counts as a rare one. A column of names
    or of free text has only rare categories, and says nothing here; see :class:`TextFeatures` for texts.

    skrub's ``TableVectorizer`` reads more kinds of tables. It neither scales numbers nor imputes them, which is what
    comparing rows needs, and it would be one more package that everybody has to install. It can be passed to a strategy
    as ``features``, with a scaler and an imputer behind it.

    Examples
    --------
    >>> import pandas as pd
    >>> from skal.features import TableFeatures
    >>> table = pd.DataFrame({"age": [20, 40, None], "smokes": [True, False, True], "town": ["Ulm", "Bern", "Ulm"]})
    >>> features = TableFeatures(min_frequency=1).fit(table)
    >>> features.get_feature_names_out().tolist()
    ['age', 'smokes', 'age is missing', 'town=Ulm', 'town=Bern']
    >>> features.transform(table).round(1)
    array([[-1.2,  1. ,  0. ,  1. ,  0. ],
           [ 1.2,  0. ,  0. ,  0. ,  1. ],
           [ 0. ,  1. ,  1. ,  1. ,  0. ]])
    """

    def __init__(self, *, min_frequency: int = 10, max_categories: int = 100) -> None:
        self.min_frequency = min_frequency
        self.max_categories = max_categories

    def fit(self, X: Any, y: Any = None) -> TableFeatures:
        """Learn the kinds of the columns, their scales and their categories.

        Parameters
        ----------
        X : data frame, or (n, columns) array of numbers, of strings or of both
            The pool.
        y : object, optional
            Not looked at.

        Returns
        -------
        TableFeatures
            Itself.
        """
        Integer(1).check("TableFeatures", "min_frequency", self.min_frequency)
        Integer(1).check("TableFeatures", "max_categories", self.max_categories)
        table = self._read(X, reset=True)
        self.kinds_ = [_kind_of(table.iloc[:, j]) for j in range(table.shape[1])]
        if all(kind == "missing" for kind in self.kinds_):
            raise FeatureError(f"The table given to TableFeatures must have values. Got missing ones alone. {_REMEDY}")
        numbers = self._numbers(table)
        present = ~np.isnan(numbers)
        self._median = np.array([np.median(numbers[present[:, j], j]) for j in range(numbers.shape[1])])
        n_missing = len(numbers) - present.sum(0)
        self._shows_missing = np.flatnonzero((n_missing >= self.min_frequency) & (n_missing < len(numbers)))
        filled = np.where(present, numbers, self._median)
        low, high = filled.min(0), filled.max(0)
        binary = ((filled == low) | (filled == high)).all(0) & (high > low)
        deviation = filled.std(0)
        self._centre = np.where(binary, low, filled.mean(0))
        # equal numbers may have a mean that differs from them in the last digit
        self._scale = np.where(binary, high - low, np.where(high > low, deviation, 1.0))
        self._scale[self._scale == 0] = 1.0
        self._categories = [self._learn_categories(table.iloc[:, j]) for j in self._columns("category")]
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Features of the rows of a table with the same columns.

        Parameters
        ----------
        X : data frame, or (n, columns) array
            Rows.

        Returns
        -------
        (n, d) array
            Of float64, without missing values.
        """
        check_is_fitted(self)
        table = self._read(X, reset=False)
        numbers = self._numbers(table)
        missing = np.isnan(numbers)
        filled = np.where(missing, self._median, numbers)
        parts = [(filled - self._centre) / self._scale, missing[:, self._shows_missing].astype(float)]
        for j, (kept, merges) in zip(self._columns("category"), self._categories, strict=True):
            codes = pd.Index(kept, dtype=object).get_indexer(_as_names(table.iloc[:, j]))
            parts.append((codes[:, None] == np.arange(-1 if merges else 0, len(kept))).astype(float))
        return np.hstack(parts)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names of the features.

        Parameters
        ----------
        input_features : sequence of str, optional
            Names of the columns, where the table had none.

        Returns
        -------
        (d,) array of str
            One for each column of what ``transform`` returns.
        """
        check_is_fitted(self)
        known = getattr(self, "feature_names_in_", None)
        columns = input_features if known is None else known
        columns = [f"x{j}" for j in range(self.n_features_in_)] if columns is None else list(columns)
        parts = ["", *(f" {part}" for part in _CALENDAR)]
        names = []
        for j, kind in enumerate(self.kinds_):
            names += {"number": [columns[j]], "date": [f"{columns[j]}{part}" for part in parts]}.get(kind, [])
        names += [f"{names[k]} is missing" for k in self._shows_missing]
        for j, (kept, merges) in zip(self._columns("category"), self._categories, strict=True):
            names += [f"{columns[j]}=rare"] * merges + [f"{columns[j]}={name}" for name in kept]
        return np.array(names, dtype=object)

    def silent_columns(self) -> list[int]:
        """Columns of which no feature is made, because no value is frequent enough or there is none.

        Returns
        -------
        list of int
            Their positions.
        """
        check_is_fitted(self)
        none_kept = [j for j, (kept, _) in zip(self._columns("category"), self._categories, strict=True) if not kept]
        return sorted([*none_kept, *self._columns("missing")])

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.string = tags.input_tags.categorical = True
        return tags

    def _read(self, X: Any, reset: bool) -> pd.DataFrame:
        """The table as a data frame; refused if its columns are not those that were there before."""
        owner = type(self).__name__
        if sp.issparse(X):
            expected, remedy = "a data frame or an array", "Use SparseFeatures for a sparse matrix."
            raise InvalidTypeError.for_parameter(owner, "X", f"{expected}: a sparse matrix is no table", X, remedy)
        if not hasattr(X, "iloc"):
            X = X.detach().cpu().numpy() if hasattr(X, "detach") else np.asarray(X)
        if X.ndim != 2:
            remedy = f"Reshape your data: got an array of {X.ndim} dimensions. One sample is X.reshape(1, -1)."
            raise FeatureError(f"The table given to {owner} must have rows and columns. {remedy}")
        if 0 in X.shape:
            what = "sample(s)" if len(X) == 0 else "feature(s)"
            got = f"Found array with 0 {what} (shape={X.shape}) while a minimum of 1 is required"
            raise FeatureError(f"The table given to {owner} must have rows and columns. {got}. {_REMEDY}")
        try:
            validate_data(self, X, reset=reset, skip_check_array=True)
        except ValueError as error:
            raise FeatureError(
                f"The table given to {owner} must have the columns that it was fitted on. {str(error).strip()} Bring "
                "these columns back, in their order, or fit the features anew."
            ) from error
        if np.iscomplexobj(X):
            raise FeatureError(f"Complex data not supported by {owner}. Pass real and imaginary parts as two columns.")
        return X if isinstance(X, pd.DataFrame) else pd.DataFrame(X)

    def _columns(self, kind: str) -> list[int]:
        return [j for j, found in enumerate(self.kinds_) if found == kind]

    def _numbers(self, table: pd.DataFrame) -> np.ndarray:
        """(n, k) numbers of the number and date columns in their order, NaN where they are missing."""
        if set(self.kinds_) == {"number"} and all(dtype.kind in "fiub" for dtype in table.dtypes):
            values: np.ndarray = table.to_numpy(dtype=np.float64, na_value=np.nan)
        else:
            parts = [np.empty((len(table), 0))]
            for j, kind in enumerate(self.kinds_):
                if kind in ("number", "date"):
                    column = table.iloc[:, j]
                    parts.append(_to_numbers(column) if kind == "number" else _to_times(column))
            values = np.hstack(parts)
        if np.isinf(values).any():
            expected = "The numbers in a table given to TableFeatures must be finite or missing"
            raise FeatureError(
                f"{expected}. Got infinity instead. Replace it by NaN, or by the largest value there is."
            )
        return values

    def _learn_categories(self, column: pd.Series) -> tuple[list[str], bool]:
        """The categories that get a column, and whether one more is for all the others."""
        counts = pd.Series(_as_names(column)).value_counts()  # the most frequent first, in the order of appearance
        kept = counts.index[counts >= self.min_frequency][: self.max_categories]
        return kept.tolist(), 0 < len(kept) < len(counts)


def _kind_of(column: pd.Series) -> str:
    present = column.dropna()
    if len(present) == 0:
        return "missing"
    kind = getattr(column.dtype, "kind", "O")
    if kind in "mM" or isinstance(column.dtype, pd.PeriodDtype):
        return "date"
    if isinstance(column.dtype, pd.CategoricalDtype):
        return "category"
    if kind in "fiub" or pd.to_numeric(present, errors="coerce").notna().all():
        return "number"
    some = present.iloc[:100]  # most columns of strings show at once that they are no dates
    if _parse_dates(some).notna().all() and _parse_dates(present).notna().all():
        return "date"
    return "category"


def _parse_dates(column: pd.Series) -> pd.Series:
    """Points in time, of ISO strings and of Python's dates; NaT for anything else, numbers among strings too."""
    if column.dtype == object:
        column = column.mask(column.map(lambda value: isinstance(value, numbers.Number)).astype(bool))
    try:
        return pd.to_datetime(column, errors="coerce", format="ISO8601", utc=True)
    except (ValueError, TypeError):
        return pd.Series(pd.NaT, index=column.index)


def _to_numbers(column: pd.Series) -> np.ndarray:
    values: np.ndarray = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    _refuse_others(column, np.isnan(values), "numbers")
    return values[:, None]


def _to_times(column: pd.Series) -> np.ndarray:
    """(n, 4): days since 1970, and what a calendar says; durations have no calendar."""
    if getattr(column.dtype, "kind", "O") == "m":
        days = column.dt.total_seconds().to_numpy(dtype=np.float64) / 86400
        return np.column_stack([days, *[np.zeros(len(days))] * len(_CALENDAR)])
    dates = column.dt.to_timestamp() if isinstance(column.dtype, pd.PeriodDtype) else column
    dates = _parse_dates(dates) if dates.dtype.kind != "M" else dates
    _refuse_others(column, dates.isna().to_numpy(), "dates")
    dates = dates.dt.tz_convert(None) if dates.dt.tz is not None else dates
    days = (dates - pd.Timestamp(0)).dt.total_seconds() / 86400
    parts = [days, *(getattr(dates.dt, part) for part in _CALENDAR)]
    return np.column_stack([part.to_numpy(dtype=np.float64, na_value=np.nan) for part in parts])


def _refuse_others(column: pd.Series, unread: np.ndarray, expected: str) -> None:
    wrong = column[unread & column.notna().to_numpy()]
    if len(wrong):
        raise FeatureError(
            f"The column {column.name!r} of the table given to TableFeatures must hold {expected}, as when it was "
            f"fitted. Got {shorten(wrong.iloc[0])} instead. Repair the column, or fit the features anew."
        )


def _as_names(column: pd.Series) -> np.ndarray:
    """Categories as strings, missing ones as one of their own."""
    names = column.astype(object).where(column.notna().to_numpy(), "missing")
    # the 1 of a file without gaps is the 1.0 of one with gaps
    return np.array([str(n).removesuffix(".0") if isinstance(n, float) else str(n) for n in names], dtype=object)
