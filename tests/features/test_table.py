"""Features of tables: columns by their kind, and named errors for tables that cannot be compared."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from skal.exceptions import FeatureError, InvalidParameterError, InvalidTypeError
from skal.features import SparseFeatures, TableFeatures

N = 60


@parametrize_with_checks([TableFeatures(), SparseFeatures(n_components=2)])
@pytest.mark.filterwarnings("ignore")  # the checks hand over samples that estimators may warn about
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.fixture(name="table")
def mixed():
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": np.where(rng.random(N) < 0.3, np.nan, rng.normal(40, 10, N).round(1)),
            "gain": rng.choice([0.0, 1e5], N),
            "member": rng.random(N) < 0.5,
            "town": rng.choice(["Ulm", "Bern", "Pau", None], N, p=[0.4, 0.3, 0.05, 0.25]),
            "since": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, N), "D"),
            "code": rng.integers(0, 10**6, N).astype(str),
            "note": [f"note {i}" for i in range(N)],
            "empty": np.full(N, np.nan),
        }
    )


def test_every_column_by_its_kind(table):
    features = TableFeatures().fit(table)
    assert features.kinds_ == ["number", "number", "number", "category", "date", "number", "category", "missing"]
    found = pd.DataFrame(features.transform(table), columns=features.get_feature_names_out())
    # numbers and parts of dates are standardised, and the gaps are the median
    filled = table[["age"]].fillna(table["age"].median())
    np.testing.assert_allclose(found["age"], StandardScaler().fit_transform(filled)[:, 0])
    np.testing.assert_allclose(found["age is missing"], table["age"].isna())
    np.testing.assert_allclose(found["since"], StandardScaler().fit_transform(table[["since"]].astype("int64"))[:, 0])
    for part in ("month", "day_of_week"):
        expected = getattr(table["since"].dt, part).to_frame()
        np.testing.assert_allclose(found[f"since {part}"], StandardScaler().fit_transform(expected)[:, 0])
    assert not found["since hour"].any()
    # what is yes or no stays so
    assert set(found["gain"]) == set(found["member"]) == {0.0, 1.0}
    # categories with fewer than ten rows are merged, and a missing one is a category
    town = table["town"].fillna("missing")
    own = OneHotEncoder(sparse_output=False).fit_transform(town.where(town != "Pau", "rare").to_frame())
    columns = [f"town={name}" for name in sorted({*town} - {"Pau"} | {"rare"})]
    np.testing.assert_array_equal(found[columns], own)
    # names say nothing
    assert not [name for name in found if name.startswith(("note", "empty"))]
    assert np.isfinite(found.to_numpy()).all()


def test_the_same_rows_in_other_containers(table):
    numbers = table[["age", "gain"]].to_numpy()
    expected = TableFeatures().fit_transform(table[["age", "gain"]])
    np.testing.assert_allclose(TableFeatures().fit_transform(numbers), expected)
    np.testing.assert_allclose(TableFeatures().fit_transform(numbers.astype(object)), expected)
    mixed = table[["age", "town"]]
    expected = TableFeatures().fit_transform(mixed)
    np.testing.assert_allclose(TableFeatures().fit_transform(mixed.to_numpy(dtype=object)), expected)
    nullable = mixed.convert_dtypes().assign(town=mixed["town"].astype("category"))
    np.testing.assert_allclose(TableFeatures().fit_transform(nullable), expected)


def test_dates_as_strings_objects_and_zones(table):
    dates = table[["since"]]
    expected = TableFeatures().fit_transform(dates)
    for other in (
        dates.astype(str),
        dates.map(lambda value: value.date()),
        dates.apply(lambda column: column.dt.tz_localize("UTC")),
        dates.apply(lambda column: column.dt.to_period("D")),
    ):
        features = TableFeatures().fit(other)
        assert features.kinds_ == ["date"]
        np.testing.assert_allclose(features.transform(other), expected)
    lengths = dates - dates.min()
    np.testing.assert_allclose(TableFeatures().fit_transform(lengths)[:, 0], expected[:, 0])


def test_rows_do_not_depend_on_one_another(table):
    features = TableFeatures().fit(table)
    everything = features.transform(table)
    np.testing.assert_array_equal(features.transform(table.iloc[[7]]), everything[[7]])
    np.testing.assert_array_equal(clone(features).fit(table).transform(table), everything)


def test_a_category_that_was_never_seen_counts_as_rare(table):
    features = TableFeatures().fit(table)
    new = table.iloc[:2].assign(town=["Oslo", None])
    found = pd.DataFrame(features.transform(new), columns=features.get_feature_names_out())
    assert found["town=rare"].tolist() == [1.0, 0.0]
    assert found["town=missing"].tolist() == [0.0, 1.0]
    no_rare = TableFeatures(min_frequency=1).fit(table[["town"]])
    assert not no_rare.transform(new[["town"]])[0].any()


def test_at_most_so_many_categories(table):
    names = TableFeatures(max_categories=1).fit(table[["town"]]).get_feature_names_out()
    assert names.tolist() == ["town=rare", f"town={table['town'].fillna('missing').value_counts().index[0]}"]


def test_columns_that_change_are_named(table):
    features = TableFeatures().fit(table)
    with pytest.raises(FeatureError, match=r"(?s)columns that it was fitted on.*- town"):
        features.transform(table.drop(columns="town"))
    with pytest.raises(FeatureError, match=r"(?s)columns that it was fitted on.*- height"):
        features.transform(table.assign(height=1.0))
    with pytest.raises(FeatureError, match=r"must hold numbers, as when it was fitted. Got 'tall' instead"):
        features.transform(table.assign(age="tall"))
    with pytest.raises(FeatureError, match=r"must hold dates, as when it was fitted. Got 'soon' instead"):
        features.transform(table.assign(since="soon"))
    with pytest.raises(FeatureError, match="X has 3 features, but TableFeatures is expecting 2"):
        TableFeatures().fit(np.ones((5, 2))).transform(np.ones((5, 3)))


@pytest.mark.parametrize(
    ("table", "error", "message"),
    [
        (pd.DataFrame({"a": [None, None], "b": [np.nan, np.nan]}), FeatureError, "must have values. Got missing ones"),
        (pd.DataFrame({"a": []}), FeatureError, r"0 sample\(s\).*at least one row"),
        (pd.DataFrame(index=[0, 1]), FeatureError, r"0 feature\(s\)"),
        (np.ones(4), FeatureError, "rows and columns. Reshape your data"),
        (np.array([[1.0, np.inf]]), FeatureError, "finite or missing. Got infinity"),
        (sp.eye(3), InvalidTypeError, "a sparse matrix is no table"),
    ],
)
def test_tables_that_cannot_be_compared_are_refused(table, error, message):
    with pytest.raises(error, match=message):
        TableFeatures().fit(table)


@pytest.mark.parametrize("name", ["min_frequency", "max_categories"])
def test_parameters_are_checked(name):
    with pytest.raises(InvalidParameterError, match=f"'{name}' parameter of TableFeatures must be"):
        TableFeatures(**{name: 0}).fit(np.eye(3))


def test_in_a_pipeline_with_names(table):
    pipeline = make_pipeline(TableFeatures(), StandardScaler()).fit(table)
    assert len(pipeline.get_feature_names_out()) == pipeline.transform(table).shape[1]
