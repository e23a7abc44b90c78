"""Sets of samples, chunk by chunk; and Datasets whose samples must not change during a query."""

import pickle
import random

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st
from joblib import parallel_config
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from torch.utils.data import Dataset, TensorDataset

from benchmarks._attack_datasets import Items, changing_pools
from benchmarks.attack import strategies
from skal import LinearizedLearner, NTKLookahead, config_context
from skal.checks import make_learner
from skal.context import QueryContext, Samples
from skal.exceptions import ChangedSamplesError, InvalidTypeError, NonFiniteError, SampleError
from skal.strategies import ALBL, BADGE, BALD, EPIG, CoreSet, DynamicAL, Margin, RandomSampling
from tests.support.learners import learner_of

X = np.arange(20.0).reshape(10, 2)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.integers(1, 40))
def test_chunks_cover_the_rows_in_order(rows, size):
    rows = np.array(rows)
    chunks = list(Samples(X, rows=rows).chunks(size))
    assert np.array_equal(np.concatenate(chunks), X[rows])
    assert all(len(chunk) == size for chunk in chunks[:-1])
    assert 1 <= len(chunks[-1]) <= size


def test_no_rows_give_no_chunks():
    assert list(Samples(X[:0]).chunks(3)) == []
    assert len(Samples(X, rows=np.array([], dtype=int))) == 0


def test_a_part_of_a_part():
    part = Samples(X, name="X_pool").take(np.array([9, 5, 1])).take(np.array([2, 0]))
    assert np.array_equal(next(part.chunks(5)), X[[1, 9]])
    assert part.name == "X_pool"


def test_the_transform_sees_one_chunk_at_a_time():
    sizes = []

    def transform(chunk):
        sizes.append(len(chunk))
        return chunk + 1

    samples = Samples(X, transform=transform)
    assert sizes == []
    assert np.array_equal(np.concatenate(list(samples.chunks(4))), X + 1)
    assert sizes == [4, 4, 2]
    assert np.array_equal(next(samples.take(np.array([3])).chunks(10)), X[[3]] + 1)


def test_a_sparse_result_of_a_transform_becomes_dense():
    chunk = next(Samples(X, transform=sp.csr_matrix).chunks(4))
    assert isinstance(chunk, np.ndarray)


def test_sparse_samples_stay_sparse_without_one():
    assert sp.issparse(next(Samples(sp.csr_matrix(X)).chunks(4)))


def test_lists_of_numbers_become_arrays_and_texts_stay():
    assert isinstance(Samples(X.tolist()).X, np.ndarray)
    assert next(Samples(["a", "b", "c"]).chunks(2)) == ["a", "b"]


def test_a_dataset_cannot_be_transformed():
    with pytest.raises(InvalidTypeError, match=r"X_pool must be an array .* Got a TensorDataset instead\. Move"):
        Samples(TensorDataset(torch.zeros(3)), name="X_pool", transform=lambda X: X)


def test_nonfinite_rows_are_named_by_their_place_in_the_whole():
    spoilt = X.copy()
    spoilt[7, 0] = np.nan
    with pytest.raises(NonFiniteError, match=r"X_pool .* row 7\."):
        list(Samples(spoilt, name="X_pool").chunks(3))
    with pytest.raises(NonFiniteError, match=r"row 7\."):
        list(Samples(spoilt, rows=np.array([1, 2, 3, 7])).chunks(3))
    assert len(list(Samples(spoilt, rows=np.array([1, 2])).chunks(3))) == 1
    assert len(list(Samples(spoilt, allow_nan=True).chunks(3))) == 4


@pytest.mark.parametrize("part", [range(1, 3), np.array([2, 0])], ids=["range", "rows"])
def test_rows_keep_their_numbers_when_a_part_of_them_travels(part):
    samples = Samples(X, rows=np.array([5, 1, 7]))
    travelled = pickle.loads(pickle.dumps(samples))
    assert list(travelled.take(part).row_numbers(0, 2)) == list(samples.take(part).row_numbers(0, 2))


def test_nonfinite_results_of_the_transform_are_found():
    with pytest.raises(NonFiniteError, match="row 4"):
        list(Samples(X, transform=lambda chunk: np.where(chunk == 8, np.inf, chunk)).chunks(3))


class Unread(Dataset):
    read = 0

    def __len__(self):
        return 5

    def __getitem__(self, i):
        Unread.read += 1
        return torch.zeros(2)


def test_taking_chunks_of_a_dataset_reads_nothing():
    chunks = list(Samples(Unread()).chunks(2))
    assert [len(chunk) for chunk in chunks] == [2, 2, 1]
    assert Unread.read == 0


def test_missing_values_are_left_to_the_steps_of_a_column_transformer():
    """An imputer for a column takes them; without one the classifier refuses them in its own words."""
    X = pd.DataFrame({"a": [1.0, np.nan, 3.0, 4.0] * 5, "b": list("xyxy") * 5})
    y = np.arange(20) % 2
    encoder = (OneHotEncoder(), ["b"])
    imputed = make_pipeline(make_column_transformer((SimpleImputer(), ["a"]), encoder), LogisticRegression())
    indices, _ = Margin().select(learner_of(imputed.fit(X, y), X, y), X, 3)
    assert len(indices) == 3
    plain = make_pipeline(make_column_transformer(("passthrough", ["a"]), encoder), LogisticRegression())
    learner = learner_of(plain.fit(X.fillna(0), y), X.fillna(0), y)
    with pytest.raises(ValueError, match="NaN"):
        Margin().select(learner, X, 3)


def test_a_pickled_part_takes_only_its_rows_along():
    for whole in (torch.zeros(10_000, 10), np.zeros((10_000, 10))):
        part = Samples(whole, name="X_pool").take(np.array([9_000, 3]))
        assert len(pickle.dumps(part)) < 2_000
        restored = pickle.loads(pickle.dumps(part))
        assert list(restored.row_numbers(0, 2)) == [9_000, 3]
        assert len(restored) == 2


def test_a_step_that_drops_rows_is_refused():
    with pytest.raises(SampleError, match=r"one row for each row of X_pool. Got 3 rows for 4"):
        list(Samples(np.zeros((8, 2)), name="X_pool", transform=lambda X: X[1:]).chunks(4))


# --- Datasets that must hold still ----------------------------------------------------------------------------------

ALL = {name: strategy for name, strategy in strategies().items() if name not in ("RandomSampling", "LearningLoss")}
SAMPLES = {
    "float tensor": torch.arange(20.0),
    "bfloat16 tensor": torch.arange(20.0).bfloat16(),
    "integer array": np.arange(20),
    "large image": np.random.default_rng(0).random((3, 64, 64)).astype(np.float32),
    "dict": {"x": torch.arange(4.0), "mask": np.ones(3, dtype=bool)},
    "nested tuple": (torch.arange(4.0), [np.zeros(3)]),
    "text": "a text",
    "number": 0.5,
}


def changed(sample):
    """The same kind of sample, of which little is another."""
    if isinstance(sample, dict):
        return {key: changed(value) for key, value in sample.items()}
    if isinstance(sample, (tuple, list)):
        return type(sample)(changed(value) for value in sample)
    if isinstance(sample, str):
        return sample + "s"
    if isinstance(sample, np.ndarray):
        return ~sample if sample.dtype == bool else np.roll(sample, 1, axis=-1) + sample.dtype.type(1)
    return sample + 1


class Reading(Dataset):
    """Items that are made anew, and counted."""

    def __init__(self, make, n=40):
        self.make, self.n, self.read = make, n, []

    def __len__(self):
        return self.n

    def __getitem__(self, row):
        self.read.append(row)
        return self.make(row)


def watch_over(dataset):
    return Samples(dataset, name="X_pool").start_watch()


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
def test_a_sample_that_changes_is_noticed_in_any_container(sample):
    for item in (sample, (sample, 1)):
        if item is sample and isinstance(sample, (tuple, list)):
            continue  # of a tuple the first entry is the input
        state = {"item": item}
        watch = watch_over(Reading(lambda row, state=state: state["item"], 3))
        watch.begin()
        watch.end()
        state["item"] = (changed(sample), 1) if item is not sample else changed(sample)
        with pytest.raises(
            ChangedSamplesError, match=r"X_pool must hold the same samples .* Got a Reading whose row 0"
        ):
            watch.end()


def test_labels_and_objects_that_hold_no_numbers_are_not_compared():
    values = iter(range(100))
    watch = watch_over(Reading(lambda row: (np.zeros(2), next(values))))
    watch.begin()
    watch.end()
    watch = watch_over(Reading(lambda row: {"a": object(), "b": torch.rand(2).to_sparse()}))
    watch.begin()
    watch.end()


def test_rounding_of_a_batch_of_another_size_is_no_change():
    noise = np.random.default_rng(0)
    watch = watch_over(Reading(lambda row: np.ones(5) * (1 + 1e-7 * noise.random())))
    watch.begin()
    watch.end()


@pytest.mark.parametrize("n", [1, 2, 7, 40, 100_000])
def test_a_constant_number_of_rows_is_read_first_and_last_among_them(n):
    data = Reading(lambda row: np.full(2, row), n)
    watch = watch_over(data)
    watch.begin()
    watch.begin()
    watch.end()
    assert len(data.read) <= 24
    assert {0, n - 1} <= set(data.read)


@pytest.mark.filterwarnings("ignore::skal.exceptions.SkalWarning")
@pytest.mark.parametrize("name", ALL)
def test_every_strategy_refuses_datasets_that_change(name):
    learner, X_pool = make_learner()
    for what in changing_pools(X_pool):
        with pytest.raises(ChangedSamplesError, match="X_pool"):
            ALL[name].select(learner, changing_pools(X_pool)[what], 3)


def test_a_refused_query_leaves_everything_as_it_was():
    learner, X_pool = make_learner()
    learner.estimator.module_.train()
    weights = {name: value.clone() for name, value in learner.estimator.module_.state_dict().items()}
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    for strategy in (Margin(), BALD(n_passes=2), DynamicAL()):
        for pool in changing_pools(X_pool).values():
            with pytest.raises(SampleError):
                strategy.select(learner, pool, 3)
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == states
    assert all(module.training for module in learner.estimator.module_.modules())
    assert all(torch.equal(value, weights[name]) for name, value in learner.estimator.module_.state_dict().items())


class OnlyAtTheEnd(Dataset):
    """Changes after the last row has been read as often as one query does."""

    def __init__(self, X, readings):
        self.X, self.readings, self.read = X, readings, 0

    def __len__(self):
        return len(self.X)

    def __getitem__(self, row):
        self.read += row == len(self.X) - 1
        return self.X[row] + np.float32(self.read > self.readings)


def test_a_strategy_with_a_single_pass_notices_at_its_end():
    learner, X_pool = make_learner()
    with pytest.raises(ChangedSamplesError, match="row 39"):
        Margin().select(learner, OnlyAtTheEnd(X_pool, readings=3), 3)  # two before the pass, one in it


def test_random_numbers_that_repeat_from_pass_to_pass_do_not_hide_a_change():
    """Every pass gives the generators back, so that each of them sees the same augmentation: all but this one."""
    learner, X_pool = make_learner()
    data = Items(40, lambda row: X_pool[row] + np.float32(random.random()))
    for strategy in (Margin(), BALD(n_passes=2, random_state=0), CoreSet()):
        random.seed(3)
        state = random.getstate()
        with pytest.raises(ChangedSamplesError):
            strategy.select(learner, data, 3)
        assert random.getstate() == state


def test_generators_are_as_before_where_samples_draw_but_stay():
    learner, X_pool = make_learner()

    def item(row):
        random.random(), np.random.normal(), torch.rand(3)
        return X_pool[row]

    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    indices, _ = Margin().select(learner, Items(40, item), 3)
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == states
    assert np.array_equal(indices, Margin().select(learner, X_pool, 3)[0])


@pytest.mark.parametrize("strategy", [Margin(), BADGE(random_state=0), DynamicAL(), EPIG(n_passes=2, random_state=0)])
def test_samples_that_stay_cost_a_constant_number_of_readings(strategy):
    learner, X_pool = make_learner()
    extra = []
    for n in (200, 400):
        many = np.concatenate([X_pool] * (n // 40))
        data = Reading(lambda row, many=many: many[row], n)
        indices, _ = strategy.select(learner, data, 3)
        assert np.array_equal(indices, strategy.select(learner, many, 3)[0])
        extra.append(len(data.read) % n)  # beyond whole passes
    assert extra[0] == extra[1]
    assert extra[0] >= 24  # the watch's own, and a few to look at the network


def test_rows_that_may_not_be_chosen_are_not_read():
    learner, X_pool = make_learner()
    data = Reading(lambda row: X_pool[row])
    Margin().select(learner, data, 3, candidates=np.arange(10, 20))
    assert set(data.read) == set(range(10, 20))
    assert RandomSampling(random_state=0).select(learner, Reading(None), 3)[0].shape == (3,)


def test_rows_of_a_part_have_their_own_numbers():
    learner, X_pool = make_learner()
    data = Reading(lambda row: X_pool[row] + np.float32(len(data.read) if row == 19 else 0))
    with pytest.raises(ChangedSamplesError, match="row 19 was another one"):
        Margin().select(learner, data, 3, candidates=np.arange(10, 20))


def test_workers_compare_with_what_was_read_here():
    learner, X_pool = make_learner()
    pool, plain = changing_pools(X_pool)["random augmentation"], TensorDataset(torch.as_tensor(X_pool))
    with parallel_config(backend="threading"), config_context(n_jobs=2, batch_size=8):
        with pytest.raises(ChangedSamplesError, match="X_pool must hold the same"):
            Margin().select(learner, pool, 3)
        indices, _ = Margin().select(learner, plain, 3)
    assert np.array_equal(indices, Margin().select(learner, X_pool, 3)[0])


class InWorkers(Dataset):
    """Random only in the processes of a loader."""

    def __init__(self, X):
        self.X = X

    def __len__(self):
        return len(self.X)

    def __getitem__(self, row):
        noise = 0 if torch.utils.data.get_worker_info() is None else torch.rand(1).item()
        return self.X[row] + np.float32(noise)


def test_what_only_a_loaders_worker_changes_is_noticed_there():
    learner, X_pool = make_learner()
    vars(learner.estimator).update(iterator_valid__num_workers=1)
    with pytest.raises(ChangedSamplesError, match="X_pool must hold the same samples"):
        Margin().select(learner, InWorkers(X_pool), 3)


class Batched(Dataset):
    """Reads several rows at once, and cannot read one by one."""

    def __init__(self, X, noise=0):
        self.X, self.noise = X, noise

    def __len__(self):
        return len(self.X)

    def __getitems__(self, rows):
        return [self.X[row] + np.float32(self.noise * torch.rand(1).item()) for row in rows]


def test_datasets_that_read_many_rows_at_once():
    learner, X_pool = make_learner()
    assert np.array_equal(Margin().select(learner, Batched(X_pool), 3)[0], Margin().select(learner, X_pool, 3)[0])
    with pytest.raises(ChangedSamplesError, match="a Batched whose row"):
        Margin().select(learner, Batched(X_pool, noise=1), 3)


def test_labelled_datasets_are_watched_where_they_are_read():
    learner, X_pool = make_learner()
    X_training = learner.X_training
    learner.X_training = Items(16, lambda row: X_training[row] + np.float32(random.random()))
    for strategy in (CoreSet(), DynamicAL()):
        with pytest.raises(ChangedSamplesError, match="X_training must hold the same samples"):
            strategy.select(learner, X_pool, 3)
    Margin().select(learner, X_pool, 3)  # which does not read them


def test_arms_and_the_linearized_learner_have_the_same_door():
    learner, X_pool = make_learner()
    for pool in changing_pools(X_pool).values():
        with pytest.raises(ChangedSamplesError):
            ALBL(arms=[Margin(), CoreSet()], random_state=0).select(learner, pool, 3)
    strategy = NTKLookahead(reference="linearized", random_state=0)
    linearized = LinearizedLearner(learner.estimator, strategy, learner.X_training, learner.y_training)
    data = Reading(lambda row: X_pool[row])
    assert len(linearized.query(data, 3)[0]) == 3
    with pytest.raises(ChangedSamplesError):
        linearized.query(changing_pools(X_pool)["random augmentation"], 3)


def test_arrays_and_memory_maps_are_left_alone(tmp_path):
    learner, X_pool = make_learner()
    np.save(tmp_path / "pool.npy", X_pool)
    mapped = np.load(tmp_path / "pool.npy", mmap_mode="r")
    context = QueryContext(learner, mapped)
    with context.query():
        assert context.pool.watch is None
