"""Greedy coverage against a plain implementation in float64, and what the coverage strategies promise."""

from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from torch import nn

from skal.config import config_context
from skal.exceptions import FeatureError, InvalidParameterError, InvalidTypeError, NoNetworkError, NotFittedError
from skal.strategies import BAIT, BALD, EGL, CoreSet, DynamicAL, Margin, MaxHerding, ProbCover, TypiClust, UHerding
from skal.strategies._coverage import greedy_coverage
from skal.strategies._gains import Pairs
from skal.strategies._pool_features import row_keys
from skal.strategies._similarity import Kernel, similarity_to
from skal.tangent import tangent_kernel

from ..support.learners import learner_of, net_of

ALL = [MaxHerding(), UHerding(), TypiClust(random_state=0), ProbCover(random_state=0)]
TOO_SMALL_FOR_FEATURES = 590_000  # bytes, to keep those of the pool; they are read again and again


def similarity_oracle(A, B, kernel, radius):
    """(n, m), from the formulas."""
    distances = np.sqrt(((A[:, None] - B[None]) ** 2).sum(-1))
    return {
        "rbf": np.exp(-((distances / radius) ** 2)),
        "laplace": np.exp(-distances / radius),
        "tophat": (distances <= radius).astype(float),
        "cosine": np.maximum(A @ B.T, 0),
    }[kernel]


def coverage_oracle(X, labelled, weights, picked, kernel, radius):
    """(n, N) gains of all candidates before each of the picks, every gain anew for every pick."""
    K = similarity_oracle(X, X, kernel, radius)
    covered = similarity_oracle(X, labelled, kernel, radius).max(1) if len(labelled) else np.zeros(len(X))
    gains = []
    for number, pick in enumerate(picked):
        gain = (weights * np.maximum(K - covered, 0)).sum(1)
        gain[picked[:number]] = -1
        gains.append(gain)
        covered = np.maximum(covered, K[pick])
    return np.array(gains)


def assert_greedy(picked, metrics, gains, rtol=1e-9):
    """Each pick has the largest gain, which is its metric; two samples may cover as much as each other."""
    assert len(set(picked.tolist())) == len(picked)
    np.testing.assert_allclose(gains[range(len(picked)), picked], gains.max(1), rtol=rtol, atol=rtol)
    np.testing.assert_allclose(metrics, gains.max(1), rtol=rtol, atol=rtol)


def unit(rng, n, d=4):
    X = rng.normal(size=(n, d))
    return X / np.linalg.norm(X, axis=1, keepdims=True)


@pytest.mark.parametrize("kernel", ["rbf", "laplace", "tophat", "cosine"])
@given(
    seed=st.integers(0, 10**6),
    n_labelled=st.integers(0, 6),
    first_look=st.sampled_from([1, 2, 16]),
    room=st.sampled_from([0, 40 * 8 * 5, 10**6]),
    symmetric=st.booleans(),
    weighed=st.booleans(),
)
def test_lazy_picks_are_those_of_plain_greedy(kernel, seed, n_labelled, first_look, room, symmetric, weighed):
    rng = np.random.default_rng(seed)
    X, labelled = unit(rng, 40), unit(rng, n_labelled)
    weights = rng.uniform(size=40) if weighed else np.full(40, 2.5)
    points, centres = torch.as_tensor(X), torch.as_tensor(labelled).reshape(-1, 4)

    picked, gains = greedy_coverage(
        points.__getitem__,
        row_keys(points),
        Kernel(kernel, 0.7),
        points,
        torch.as_tensor(weights),
        centres,
        row_keys(centres),
        12,
        symmetric=symmetric,
        room=room,
        first_look=first_look,
    )
    assert_greedy(picked, gains, coverage_oracle(X, labelled, weights, picked, kernel, 0.7), rtol=1e-6)


def near_ties(seed):
    """Samples in single precision, in pairs that cover the pool almost equally well, and labelled pairs."""
    rng = np.random.default_rng(seed)
    X = unit(rng, 150, 16)
    order = rng.permutation(16)
    mirrored = X[:, order] + 3e-8 * rng.normal(size=X.shape)  # the same distances to one another, nearly
    pool = np.concatenate([np.hstack([X, 0 * X]), np.hstack([0 * X, mirrored])])
    pool = torch.as_tensor(pool, dtype=torch.float32)
    pool /= torch.linalg.vector_norm(pool, dim=1, keepdim=True)
    return pool, pool[[0, 1, 2, 150, 151, 152]]


@pytest.mark.parametrize("kernel", ["rbf", "laplace", "tophat", "cosine"])
@pytest.mark.parametrize(("seed", "room"), [(0, 0), (1, 10**7), (2, 10**7)])
def test_picks_in_single_precision_are_those_of_double_precision(kernel, seed, room):
    pool, labelled = near_ties(seed)
    settings = {"symmetric": True, "room": room}

    def chosen(dtype):
        points, centres = pool.to(dtype), labelled.to(dtype)
        weights, keys, taken = torch.ones(300, dtype=dtype), row_keys(pool), row_keys(labelled)
        given = (points.__getitem__, keys, Kernel(kernel, 0.9), points, weights, centres, taken, 40)
        return greedy_coverage(*given, **settings)

    single, double = chosen(torch.float32), chosen(torch.float64)
    gains = coverage_oracle(*(part.double().numpy() for part in (pool, labelled)), np.ones(300), single[0], kernel, 0.9)
    gains[:, np.isin(row_keys(pool).numpy(), row_keys(labelled).numpy())] = -1
    assert_greedy(single[0], gains.max(1), gains, rtol=1e-11)
    assert single[0].tolist() == double[0].tolist()
    np.testing.assert_allclose(single[1], double[1], rtol=1e-4)


def test_only_pairs_that_count_are_kept_where_they_are_few(monkeypatch):
    """The choice does not depend on what is kept: pairs, rows, or nothing."""
    rng = np.random.default_rng(0)
    pool = torch.as_tensor(unit(rng, 700, 12), dtype=torch.float32)
    weights, keys = torch.as_tensor(rng.uniform(size=700), dtype=torch.float32), row_keys(pool)
    made = []
    kept = Pairs.sort
    monkeypatch.setattr(Pairs, "sort", lambda self: (made.append(self._size), kept(self)))

    def chosen(room, symmetric, labelled):
        kernel, start = Kernel("rbf", 0.8), len(made)
        given = (pool.__getitem__, keys, kernel, pool, weights, labelled, row_keys(labelled), 60)
        return greedy_coverage(*given, symmetric=symmetric, room=room)[0].tolist(), len(made) > start

    labelled = pool[::2]
    answers = [chosen(room, symmetric, labelled) for room in (0, 10**4, 10**8) for symmetric in (True, False)]
    assert [pairs for _, pairs in answers] == [False, False, False, False, True, True]
    assert all(picked == answers[0][0] for picked, _ in answers)
    assert not chosen(10**8, True, pool[:0])[1]  # at first everything counts


class CountingKernel(Kernel):
    """Counts the pairs whose similarity is computed."""

    n_pairs: ClassVar[list[int]] = []

    def to(self, points):
        similarity = super().to(points)

        def counted(rows, start=0, stop=None):
            found = similarity(rows, start, stop)
            self.n_pairs.append(found.numel())
            return found

        return counted


@pytest.mark.parametrize("radius", [1e-6, 0.3, 0.9])  # each sample alone; a few; all covered before the end
def test_balls_are_counted_at_most_twice_however_many_are_equal(radius):
    X = unit(np.random.default_rng(0), 300, 3)
    points, kernel = torch.as_tensor(X, dtype=torch.float32), CountingKernel("tophat", radius)
    kernel.n_pairs.clear()
    given = (points.__getitem__, row_keys(points), kernel, points, torch.ones(300), points[:0], torch.zeros(0), 60)
    picked, gains = greedy_coverage(*given, room=0)
    n_pairs = sum(kernel.n_pairs)
    # besides, a look at 32 candidates, and what each pick covers
    assert n_pairs <= (2 * 300 + 32 + 60) * 300
    expected = coverage_oracle(points.double().numpy(), X[:0], np.ones(300), picked, "tophat", radius)
    assert_greedy(picked, gains, expected)


def test_balls_are_judged_in_double_precision_at_their_edge():
    rng = np.random.default_rng(0)
    points = torch.as_tensor(unit(rng, 400, 8), dtype=torch.float32)
    distances = torch.cdist(points.double(), points.double(), compute_mode="donot_use_mm_for_euclid_dist")
    wider = (1 + 8 * torch.finfo(torch.float32).eps) ** 0.5  # so much a ball is wider than its radius
    for distance in distances[0, 1:200].tolist():
        for edge in (distance * (1 - 1e-8), distance * (1 + 1e-8)):
            inside = similarity_to(points, "tophat", edge / wider)(points[:5])
            assert (inside.bool() == (distances[:5] <= edge)).all()
    lattice = torch.eye(6)  # where everything lies on the edge
    assert similarity_to(lattice, "tophat", 2**0.5)(lattice).all()


@pytest.mark.parametrize("strategy", [MaxHerding(), UHerding(), ProbCover(random_state=0), TypiClust(random_state=0)])
def test_too_small_a_bound_names_the_smallest_that_works(strategy, data):
    X, y = data
    learner = learner_on(X[:10], y[:10])
    with (
        pytest.raises(
            InvalidParameterError, match=r"'max_memory' parameter of \w+ must be at least \d+ bytes"
        ) as caught,
        config_context(max_memory=1000),
    ):
        clone(strategy).select(learner, X[10:], 5)
    smallest = int(str(caught.value).split("at least ")[1].split()[0])
    with pytest.raises(InvalidParameterError), config_context(max_memory=smallest - 1):
        clone(strategy).select(learner, X[10:], 5)
    with config_context(max_memory=smallest):
        assert len(set(clone(strategy)(learner, X[10:], 5).tolist())) == 5


def test_an_evaluation_set_of_a_given_size_is_not_cut(data):
    X, y = data
    learner = learner_on(X[:10], y[:10])
    with config_context(max_memory=300_000):
        with pytest.raises(InvalidParameterError, match="bytes for 290 evaluation samples of 290"):
            MaxHerding(evaluation=None).select(learner, X[10:], 5)
        MaxHerding(random_state=0).select(learner, X[10:], 5)  # fewer, which fit


def learner_on(X, y=None):
    model = LogisticRegression()
    if y is not None:
        model.fit(X, y)
    return SimpleNamespace(estimator=model, X_training=None if y is None else X, y_training=y)


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    y = np.arange(300) % 5
    X = 4 * rng.normal(size=(5, 64))[y] + rng.normal(size=(300, 64))
    return X, y


def test_max_herding_is_the_formula(data):
    X, y = data
    learner = learner_on(X[:10], y[:10])
    pool, labelled = ((part / np.linalg.norm(part, axis=1, keepdims=True)) for part in (X[10:], X[:10]))
    picked, metrics = MaxHerding().select(learner, X[10:], 15)
    assert_greedy(picked, metrics, coverage_oracle(pool, labelled, np.ones(290), picked, "rbf", 1.0))


@pytest.mark.parametrize(("radius", "rule"), [("auto", np.median), ("minimum", np.min)])
@pytest.mark.parametrize("uncertainty", ["margin", "entropy", "least_confidence"])
def test_uherding_is_the_formula(data, radius, rule, uncertainty):
    X, y = data
    learner = learner_on(X[:11], y[:11])
    pool, labelled = ((part / np.linalg.norm(part, axis=1, keepdims=True)) for part in (X[11:], X[:11]))
    distances = np.sqrt(((labelled[:, None] - labelled) ** 2).sum(-1))
    sigma = rule(np.where(np.eye(11, dtype=bool), np.inf, distances).min(1))
    p = np.sort(learner.estimator.predict_proba(X[11:]) ** (1 / 2), axis=1)  # temperature 2
    p /= p.sum(1, keepdims=True)
    weights = {
        "margin": 1 - (p[:, -1] - p[:, -2]),
        "entropy": -(p * np.log(p)).sum(1),
        "least_confidence": 1 - p[:, -1],
    }[uncertainty]
    strategy = UHerding(radius=radius, temperature=2.0, uncertainty=uncertainty)
    picked, metrics = strategy.select(learner, X[11:], 15)
    assert_greedy(picked, metrics, coverage_oracle(pool, labelled, weights, picked, "rbf", sigma))


@pytest.mark.parametrize(
    ("uncertainty", "scoring"),
    [("dynamics", DynamicAL()), ("egl", EGL()), (BALD(random_state=0), BALD(random_state=0)), (Margin(), Margin())],
)
def test_uherding_weighs_by_the_scores_of_a_strategy(uncertainty, scoring):
    torch.manual_seed(0)
    X = np.random.default_rng(0).normal(size=(90, 6)).astype(np.float32)
    module = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.3), nn.Linear(12, 4))
    learner = learner_of(net_of(module), X[:10], np.arange(10) % 4)
    strategy = UHerding(uncertainty=uncertainty, features=lambda X: np.asarray(X, dtype=np.float64), radius=0.7)
    picked, metrics = strategy.select(learner, X[10:], 12)
    scores, exact = scoring.scores(learner, X[10:]), X.astype(np.float64)
    pool, labelled = ((part / np.linalg.norm(part, axis=1, keepdims=True)) for part in (exact[10:], exact[:10]))
    assert_greedy(picked, metrics, coverage_oracle(pool, labelled, scores - scores.min(), picked, "rbf", 0.7))
    with config_context(batch_size=13):
        np.testing.assert_array_equal(clone(strategy).select(learner, X[10:], 12)[0], picked)


def test_uherding_refuses_what_gives_no_scores(data):
    X, y = data
    with pytest.raises(InvalidTypeError, match=r"uncertainty.*CoreSet.*Pass for example"):
        UHerding(uncertainty=CoreSet())(learner_on(X[:11], y[:11]), X[11:], 2)
    with pytest.raises(NoNetworkError, match="UHerding"):
        UHerding(uncertainty="dynamics")(learner_on(X[:11], y[:11]), X[11:], 2)


@pytest.mark.parametrize("strategy", [s for s in ALL if not isinstance(s, UHerding)], ids=lambda s: type(s).__name__)
def test_nothing_is_needed_at_the_start(strategy, data):
    picked = strategy(learner_on(data[0]), data[0], 10)
    assert len(set(picked.tolist())) == 10


@pytest.mark.parametrize("strategy", ALL, ids=lambda s: type(s).__name__)
def test_copies_come_last(strategy, data):
    X, y = data
    distinct = X[10:40]
    pool = np.concatenate([X[:10], distinct, distinct, X[:10]])  # copies of the labelled, and of one another
    picked = strategy(learner_on(X[:10], y[:10]), pool, 35)
    content = [tuple(row) for row in pool[picked[:30]]]
    assert len(set(content)) == 30
    assert not set(content) & {tuple(row) for row in X[:10]}


@pytest.mark.parametrize("strategy", [*ALL, MaxHerding(kernel="tangent")], ids=str)
@pytest.mark.parametrize("features", ["auto", "backbone"])
def test_copies_come_last_however_a_network_rounds_their_features(strategy, features):
    """A matrix product gives a row other last digits at another place of a batch."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    backbone = nn.Sequential(nn.Linear(144, 301), nn.ReLU(), nn.Linear(301, 203), nn.ReLU())
    X = rng.normal(size=(60, 144)).astype(np.float32)
    net = net_of(nn.Sequential(backbone, nn.Linear(203, 3)))
    learner = learner_of(net, X[:13], np.arange(13) % 3)
    origin = np.concatenate([np.arange(60), rng.permutation(60), rng.permutation(60)])
    with_features = clone(strategy).set_params(features=backbone if features == "backbone" else features)
    with config_context(batch_size=7):
        picked = origin[with_features(learner, X[origin], 47)]
    assert sorted(picked) == list(range(13, 60))


@pytest.mark.parametrize("strategy", ALL, ids=lambda s: type(s).__name__)
def test_a_bound_on_memory_changes_nothing(strategy, data):
    X, y = data
    learner = learner_on(X[:10], y[:10])
    expected, metrics = strategy.select(learner, X[10:], 12)
    tight, max_memory = clone(strategy), TOO_SMALL_FOR_FEATURES
    if isinstance(strategy, TypiClust):  # whose k-means would see less of the pool
        tight.set_params(features=lambda X: np.repeat(X, 100, axis=1))
        max_memory = 100 * TOO_SMALL_FOR_FEATURES
    with config_context(max_memory=max_memory):
        picked, again = tight.select(learner, X[10:], 12)
    assert picked.tolist() == expected.tolist()
    np.testing.assert_allclose(again, metrics, rtol=1e-6)


WITH_FEATURES = [MaxHerding, UHerding, TypiClust, ProbCover, BAIT]


@pytest.mark.parametrize("strategy", WITH_FEATURES, ids=lambda s: s.__name__)
@pytest.mark.parametrize(
    ("features", "words"),
    [
        (lambda X: np.where(X > 1e9, X, np.nan), "NaN or infinity, first for sample 0"),
        (lambda X: X[:-1], r"must be an array of 1 rows .* Got shape \(0, 64\)"),
        (lambda X: np.concatenate([X, X]), "must be an array of"),
        (lambda X: X[:, :0], r"at least one column\. Got shape"),
        (lambda X: np.ones((len(X), 3)), "must be different for different samples. Got the same for all"),
        (lambda X: X[:, : 1 + len(X) % 2], "of one length for all samples"),
        (lambda X: np.full((len(X), 2), "a"), "must be numbers"),
        (lambda X: 1.0, r"Got shape \(\)"),
    ],
)
@pytest.mark.parametrize("max_memory", [None, TOO_SMALL_FOR_FEATURES])
def test_features_that_cannot_be_worked_on_are_named(strategy, features, words, max_memory, data):
    X, y = data
    if strategy is BAIT:  # which keeps all features, and some megabytes besides
        max_memory = max_memory and 10_000_000
    with pytest.raises(FeatureError, match=words) as caught, config_context(max_memory=max_memory):
        strategy(features=features).select(learner_on(X[:10], y[:10]), X[10:], 5)
    assert f"The features that {strategy.__name__} works on" in str(caught.value)
    assert "Pass other features=" in str(caught.value)


@pytest.mark.parametrize("strategy", WITH_FEATURES, ids=lambda s: s.__name__)
@pytest.mark.parametrize("features", ["inputs", None, 3, PCA, [1, 2]])
def test_what_gives_no_features_is_refused(strategy, features, data):
    X, y = data
    with pytest.raises(InvalidTypeError, match=f"'features' parameter of {strategy.__name__} must be one of 'auto'"):
        strategy(features=features).select(learner_on(X[:10], y[:10]), X[10:], 5)


@pytest.mark.parametrize("strategy", WITH_FEATURES, ids=lambda s: s.__name__)
def test_an_unfitted_transformer_is_refused(strategy, data):
    X, y = data
    with pytest.raises(NotFittedError, match=r"given to .* as features must be fitted"):
        strategy(features=PCA(2)).select(learner_on(X[:10], y[:10]), X[10:], 5)


class Broken(PCA):
    def transform(self, X):
        return self.nothing_of_the_kind


@pytest.mark.parametrize("fitted", [False, True])
def test_a_missing_attribute_means_unfitted_only_where_it_is(fitted, data):
    """Before scikit-learn 1.8 an unfitted PCA raises AttributeError; so may a mistake in one that is fitted."""
    X, y = data
    broken = Broken(2).fit(X) if fitted else Broken(2)
    with pytest.raises(AttributeError, match="nothing_of_the_kind" if fitted else "must be fitted"):
        MaxHerding(features=broken).select(learner_on(X[:10], y[:10]), X[10:], 5)


@pytest.mark.parametrize("strategy", ALL, ids=lambda s: type(s).__name__)
def test_the_same_features_give_the_same_choice_however_they_come(strategy, data):
    X, y = data
    learner, pool = learner_on(X[:10], y[:10]), X[10:]
    pca = PCA(3).fit(X)
    linear = torch.nn.Linear(64, 3).double()
    with torch.no_grad():
        linear.weight.copy_(torch.as_tensor(pca.components_))
        linear.bias.copy_(torch.as_tensor(-pca.components_ @ pca.mean_))
    answers = [
        clone(strategy).set_params(features=features).select(learner, pool, 8)
        for features in (pca, pca.transform, lambda X: torch.as_tensor(pca.transform(X)), linear)
    ]
    for picked, metrics in answers[1:]:
        np.testing.assert_allclose(metrics, answers[0][1], rtol=1e-6)
        assert picked.tolist() == answers[0][0].tolist()


@pytest.mark.parametrize("radius", ["auto", "minimum"])
@pytest.mark.parametrize("strategy", [MaxHerding, UHerding])
def test_copies_among_the_labelled_leave_a_radius(strategy, radius, data):
    X, y = data
    copies = learner_on(X[[0, 0, 1, 1, 2]], y[[0, 0, 1, 1, 2]])
    once = learner_on(X[[0, 1, 2]], y[[0, 1, 2]])
    once.estimator = copies.estimator
    expected = strategy(radius=radius, temperature=1.0) if strategy is UHerding else strategy(radius=radius)
    if radius == "minimum":  # copies do not count at all
        assert expected(copies, X[5:], 10).tolist() == expected(once, X[5:], 10).tolist()
    same = learner_on(X[[0, 0, 1]], [0, 0, 1])
    same.X_training = X[[0, 0, 0]]  # nothing but copies: the radius is 1
    at_one = clone(expected).set_params(radius=1.0)
    assert expected(same, X[5:], 10).tolist() == at_one(same, X[5:], 10).tolist()


def test_the_tangent_kernel_is_that_of_the_network(learner_and_pool):
    learner, X_pool = learner_and_pool
    X = np.concatenate([X_pool, learner.X_training])
    kernel = tangent_kernel(learner.estimator, X)  # from the gradients, where the strategy has a sketch of them
    scale = np.sqrt(np.diag(kernel))
    similarity = np.maximum(kernel / scale / scale[:, None], 0)[: len(X_pool)]
    covered = similarity[:, len(X_pool) :].max(1)
    gains = np.maximum(similarity[:, : len(X_pool)] - covered[:, None], 0).sum(0)
    picked, metrics = MaxHerding(kernel="tangent").select(learner, X_pool, 1)
    np.testing.assert_allclose(metrics, gains.max(), rtol=0.1)
    assert gains[picked[0]] > 0.9 * gains.max()
    with pytest.raises(NoNetworkError, match="MaxHerding"):
        MaxHerding(kernel="tangent").select(learner_on(X.reshape(len(X), -1)), X.reshape(len(X), -1), 1)
