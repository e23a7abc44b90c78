"""The one cache: what is kept, what is computed anew, and what has to go."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from torch import nn
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from skal import config_context
from skal.context import QueryContext, Samples
from skal.exceptions import FeatureError, InvalidParameterError
from skal.features import Cache
from skal.nets import SquaredLoss
from skal.strategies import ALBL, BADGE, CoreSet, DynamicAL, Entropy, Margin, NTKLookahead

from ..support.learners import learner_of, net_of

# --- the cache itself -----------------------------------------------------------------------------------------------


def squares(rows):
    return np.stack([rows, rows**2], axis=1).astype(np.float32)


def keys(*numbers):
    return [number.to_bytes(16, "big") for number in numbers]


@pytest.mark.parametrize("on_disk", [False, True])
def test_only_new_rows_are_computed_and_of_copies_one(on_disk, tmp_path):
    cache, asked = Cache(folder=tmp_path if on_disk else None), []

    def compute(rows):
        asked.append(rows.tolist())
        return squares(rows)

    first = cache.rows("s", keys(5, 6, 5, 7), compute)
    assert asked == [[0, 1, 3]]
    np.testing.assert_array_equal(first, squares(np.array([0, 1, 0, 3])))
    again = cache.rows("s", keys(7, 8, 5), compute)
    assert asked[1:] == [[1]]
    np.testing.assert_array_equal(again, squares(np.array([3, 1, 0])))
    assert cache.n_computed == 4
    for number in range(20, 40):  # many small additions
        cache.rows("s", keys(number), compute)
    np.testing.assert_array_equal(cache.rows("s", keys(6, 8), compute), squares(np.array([1, 1])))
    assert cache.n_computed == 24


def test_sources_do_not_meet():
    cache = Cache()
    cache.rows("a", keys(1), squares)
    assert cache.rows("b", keys(1), lambda rows: squares(rows) + 1).tolist() == [[1, 1]]
    assert cache.rows("a", keys(1), squares).tolist() == [[0, 0]]


@pytest.mark.parametrize("tear", ["features.bin", "keys.bin"])
def test_a_torn_file_costs_the_last_rows_alone(tear, tmp_path):
    Cache(folder=tmp_path).rows("s", keys(*range(10)), squares)
    content = (tmp_path / tear).read_bytes()
    row = len(content) // 10
    (tmp_path / tear).write_bytes(content[: 6 * row + 3])
    for n_new in (4, 0):
        cache = Cache(folder=tmp_path)
        values = cache.rows("s", keys(*range(10)), squares)
        np.testing.assert_array_equal(values, squares(np.arange(10)))
        assert cache.n_computed == n_new


def test_a_folder_that_was_made_and_never_written_to(tmp_path):
    Cache(folder=tmp_path / "new").rows("s", keys(1), squares)
    for name in ("features.bin", "keys.bin"):
        (tmp_path / "new" / name).write_bytes(b"")
    assert Cache(folder=tmp_path / "new").rows("s", keys(1), squares).tolist() == [[0, 0]]


def test_a_folder_of_another_source_is_refused(tmp_path):
    Cache(folder=tmp_path).rows("one backbone", keys(1), squares)
    with pytest.raises(FeatureError, match=r"computed by another\. Got those of one backbone instead\. Choose"):
        Cache(folder=tmp_path).rows("another", keys(1), squares)


def result(cache, key, n=100):
    """Whether a result of 4 n bytes has to be computed."""
    made = []
    cache.result(key, lambda: made.append(key) or torch.zeros(n))
    return bool(made)


def test_results_are_kept_within_the_bound_and_the_oldest_go_first():
    cache = Cache(max_memory=1000)
    assert [result(cache, key) for key in "abab"] == [True, True, False, False]
    assert [result(cache, key) for key in "cba"] == [True, False, True]  # a was used longest ago
    assert result(cache, "too large", 300)
    assert result(cache, "too large", 300)
    assert not result(cache, "a")  # and has driven nothing out


def test_rows_and_results_share_the_bound():
    cache = Cache(max_memory=1000)
    assert result(cache, "a")
    cache.rows("s", keys(*range(100)), squares)  # 800 bytes
    assert result(cache, "a")
    cache.rows("s", keys(*range(100)), squares)
    assert cache.n_computed == 200


@pytest.mark.parametrize("max_memory", ["lots", -1])
def test_a_bound_that_is_none_is_refused(max_memory):
    with pytest.raises(InvalidParameterError, match="'max_memory' parameter of Cache"):
        Cache(max_memory)


def test_what_is_given_away_may_be_written_into():
    cache = Cache()
    for _ in range(3):
        whole, parts = cache.result("a", lambda: (torch.ones(2), (torch.ones(3),)))
        assert bool(whole.all() and parts[0].all())
        whole.zero_()
        parts[0].zero_()


# --- features of a context ------------------------------------------------------------------------------------------


class Network(nn.Module):
    """A frozen backbone and a head; counts the samples that pass where a digest does not see it."""

    seen = SimpleNamespace(total=0)

    def __init__(self, frozen=True, norm=False):
        super().__init__()
        layers = [nn.Linear(5, 4), *([nn.BatchNorm1d(4)] if norm else []), nn.Tanh()]
        self.backbone = nn.Sequential(*layers).requires_grad_(not frozen)
        self.head = nn.Linear(4, 3)
        self.temperature = 1.0

    def forward(self, x):
        type(self).seen.total += len(x)
        return self.head(self.backbone(x)) * self.temperature


@pytest.fixture
def passed():
    """A function that says how many samples have passed since it was last asked."""
    Network.seen.total = 0

    def ask():
        total, Network.seen.total = Network.seen.total, 0
        return total

    return ask


def make_learner(flat_data, criterion=nn.CrossEntropyLoss, **kwargs):
    torch.manual_seed(0)
    learner = learner_of(net_of(Network(**kwargs), criterion), flat_data[0][:9].copy(), flat_data[1][:9])
    learner.cache = Cache()
    return learner


LOOK = 14  # samples that show the last layer, the number of classes and the order
AGAIN = 4  # samples that are passed again, to see whether their outputs stay the same


def test_a_frozen_backbone_is_run_once_for_each_sample(flat_data, passed):
    learner, X = make_learner(flat_data), flat_data[0]
    for round_ in range(3):
        pool = X[9 * (round_ + 1) :]
        found = QueryContext(learner, pool).features()
        with torch.no_grad():
            torch.testing.assert_close(found, learner.estimator.module_.backbone(torch.from_numpy(pool)))
            learner.estimator.module_.head.weight += 1  # training moves nothing else
    assert learner.cache.n_computed == 51
    assert passed() <= 51 + 3 * LOOK
    QueryContext(learner, X[20:][::-1]).features("last_layer")
    assert learner.cache.n_computed == 51


@pytest.mark.parametrize("kind", ["trained backbone", "moving statistics", "changed backbone"])
def test_a_backbone_that_changes_is_run_again(kind, flat_data):
    learner = make_learner(flat_data, frozen=kind != "trained backbone", norm=kind == "moving statistics")
    X, module = flat_data[0], learner.estimator.module_
    stale = QueryContext(learner, X).features()
    with torch.no_grad():
        if kind == "moving statistics":
            module.backbone[1].running_mean += 1
        else:
            module.backbone[0].weight += 1
        found = QueryContext(learner, X).features()
        expected = module.eval().backbone(torch.from_numpy(X))
    torch.testing.assert_close(found, expected)
    assert not torch.allclose(found, stale)


class Counted:
    """A transformer that knows how many samples it was given."""

    def __init__(self):
        self.seen = []

    def transform(self, X):
        self.seen.append(len(X))
        return np.asarray(X)[:, :2] * 2

    def __getstate__(self):
        return {"a transformer": 2}


def test_features_of_any_kind_are_those_without_a_cache(flat_data):
    X = flat_data[0]
    plain = make_learner(flat_data)
    plain.cache = None
    kept = make_learner(flat_data)
    backbone = nn.Linear(5, 2)
    for spec in ("auto", "input", "last_layer", "tangent", Counted(), lambda X: X**2, backbone):
        expected = QueryContext(plain, X).features(spec)
        for _ in range(2):
            found = QueryContext(kept, X).features(spec)
            torch.testing.assert_close(found, expected)
            assert QueryContext(kept, X).feature_width(spec) == expected.shape[1]
        part = QueryContext(kept, X).labelled
        torch.testing.assert_close(QueryContext(kept, X).features(spec, part), expected[:9])


def test_a_transformer_is_asked_once_for_each_sample(flat_data):
    learner, X, spec = make_learner(flat_data), flat_data[0], Counted()
    for start in (10, 30, 0):
        QueryContext(learner, X[start:]).features(spec)
    assert sum(spec.seen) == 60


def test_samples_of_a_dataset_are_known_by_their_place(flat_data, tmp_path):
    learner, spec = make_learner(flat_data), Counted()
    whole = TensorDataset(torch.from_numpy(flat_data[0]))
    function = lambda part: spec.transform(np.stack([part[i][0].numpy() for i in range(len(part))]))  # noqa: E731
    for pool in (whole, Subset(whole, range(30)), ConcatDataset([Subset(whole, [59, 3]), Subset(whole, [7])])):
        found = QueryContext(learner, pool).features(function)
        np.testing.assert_allclose(found[-1], 2 * pool[len(pool) - 1][0][:2])
    assert sum(spec.seen) == 60
    for n_new in (60, 0):  # in a folder by their content, which another process sees too
        learner.cache = Cache(folder=tmp_path)
        QueryContext(learner, TensorDataset(torch.from_numpy(flat_data[0]))).features(function)
        assert learner.cache.n_computed == n_new


# --- outputs and gradients of a round ---------------------------------------------------------------------------------

LOOKAHEAD = {"criterion": "mlmoc", "random_state": 0, "n_features": 64}
PAIRS = {
    "outputs": (Entropy(), Margin(), 0),
    "a part": (Entropy(), Entropy(subset=30, random_state=0), 30),
    "embeddings": (BADGE(random_state=0), CoreSet(), 9),
    "gradients": (DynamicAL(), DynamicAL(gamma=1), 12),
}


@pytest.mark.parametrize(("first", "second", "again"), PAIRS.values(), ids=PAIRS)
def test_the_second_strategy_of_a_round_makes_no_pass_over_the_pool(first, second, again, flat_data, passed):
    criterion = SquaredLoss if isinstance(first, NTKLookahead) else nn.CrossEntropyLoss
    learner, X = make_learner(flat_data, criterion, frozen=False), flat_data[0]
    cache, learner.cache = learner.cache, None
    expected = second.select(learner, X, 5)
    learner.cache = cache
    first.select(learner, X, 5)
    passed()
    answer = second.select(learner, X, 5)
    assert passed() <= again + LOOK
    assert np.array_equal(answer[0], expected[0])
    assert np.array_equal(answer[1], expected[1])


def change_weight(learner, X):
    with torch.no_grad():
        learner.estimator.module_.head.weight[0, 0] += 1


def change_buffer(learner, X):
    learner.estimator.module_.backbone[1].running_mean += 1


def change_attribute(learner, X):
    learner.estimator.module_.temperature = 2.0


def change_pool(learner, X):
    X[-1] += 1


def change_order(learner, X):
    X[:] = X[::-1].copy() if isinstance(X, np.ndarray) else X.flip(0)


@pytest.mark.parametrize("change", [change_weight, change_buffer, change_attribute, change_pool, change_order])
@pytest.mark.parametrize("as_tensor", [False, True])
def test_nothing_outdated_is_returned(change, as_tensor, flat_data):
    learner = make_learner(flat_data, frozen=False, norm=True)
    X = torch.as_tensor(flat_data[0].copy()) if as_tensor else flat_data[0].copy()
    stale = Entropy().scores(learner, X)
    change(learner, X)
    answer = Entropy().scores(learner, X)
    learner.cache = None
    assert np.array_equal(answer, Entropy().scores(learner, X))
    assert not np.array_equal(answer, stale)


@pytest.mark.parametrize("strategy", [DynamicAL(), NTKLookahead(**LOOKAHEAD)], ids=["dynamicAL", "look-ahead"])
@pytest.mark.parametrize("what", ["a label", "a labelled sample"])
def test_gradients_are_computed_anew_after_a_change(strategy, what, flat_data):
    criterion = SquaredLoss if isinstance(strategy, NTKLookahead) else nn.CrossEntropyLoss
    learner, X = make_learner(flat_data, criterion, frozen=False), flat_data[0]
    stale = strategy.scores(learner, X)
    if what == "a label":
        learner.y_training = (learner.y_training + 1) % 3
    else:
        learner.X_training[0] += 1
    answer = strategy.scores(learner, X)
    learner.cache = None
    assert np.array_equal(answer, strategy.scores(learner, X))
    assert not np.array_equal(answer, stale)


def test_another_reading_of_the_outputs_is_another_result(flat_data):
    """The same module as one of probabilities, and as one whose outputs are taken as they are."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3), nn.Softmax(1))
    X, cache = flat_data[0], Cache()

    def scores(criterion, cache):
        learner = learner_of(net_of(module, criterion), X[:5], np.arange(5) % 3)
        learner.cache = cache
        return NTKLookahead(reference="linearized", random_state=0).scores(learner, X[5:])

    expected = scores(SquaredLoss, None)
    assert not np.array_equal(scores(nn.NLLLoss, cache), expected)
    assert np.array_equal(scores(SquaredLoss, cache), expected)


def test_the_boundary_between_pool_and_labelled_samples_counts(flat_data):
    learner, X, sizes = make_learner(flat_data), flat_data[0], []
    for n in (40, 20):
        context = QueryContext(learner, X[:n])
        sizes.append(len(context.remember("size", lambda n=n: torch.zeros(n), also=(Samples(X[n:]),))))
    assert sizes == [40, 20]


def test_a_changed_preprocessing_is_noticed(flat_data):
    learner, X = make_learner(flat_data), flat_data[0]
    scaler, cast = StandardScaler().fit(X), FunctionTransformer(np.float32)
    learner.estimator = Pipeline([("scale", scaler), ("cast", cast), ("net", learner.estimator)])
    stale = Entropy().scores(learner, X)
    scaler.mean_ += 1
    answer = Entropy().scores(learner, X)
    learner.cache = None
    assert np.array_equal(answer, Entropy().scores(learner, X))
    assert not np.array_equal(answer, stale)


def test_outputs_of_datasets_are_computed_each_time(flat_data, passed):
    learner, data = make_learner(flat_data), TensorDataset(torch.as_tensor(flat_data[0]))
    for _ in range(2):
        Entropy().scores(learner, data)
        assert passed() == 60 + AGAIN


def test_arms_share_their_passes_without_a_cache(flat_data, passed):
    learner = make_learner(flat_data)
    learner.cache = None
    ALBL(arms=[Entropy(), Margin()], random_state=0).select(learner, flat_data[0], 5)
    assert passed() == 60 + AGAIN
    ALBL(arms=[Entropy(), Margin(subset=50)], random_state=0).select(learner, flat_data[0], 5)
    assert passed() == 110 + AGAIN


def test_batches_of_another_size_round_otherwise_and_are_computed_anew(flat_data, passed):
    learner = make_learner(flat_data)
    for batch_size in (256, 8):
        with config_context(batch_size=batch_size):
            Entropy().scores(learner, flat_data[0])
        assert passed() == 60 + AGAIN


def test_a_copy_of_a_learner_may_share_its_cache(flat_data, passed):
    learner = make_learner(flat_data)
    Entropy().scores(learner, flat_data[0])
    twin = copy.copy(learner)
    twin.estimator = copy.deepcopy(learner.estimator)
    passed()
    Entropy().scores(twin, flat_data[0])
    assert passed() == 0
