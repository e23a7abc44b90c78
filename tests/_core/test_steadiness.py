"""Tests of skal._core.steadiness: a Dataset whose samples change during a query is refused, others are not."""

import random

import numpy as np
import pytest
import torch
from joblib import parallel_config
from torch.utils.data import Dataset, TensorDataset

import skal.strategies
from benchmarks._attack_datasets import Items, changing_pools
from benchmarks.attack import strategies
from skal import LinearizedLearner, NTKLookahead
from skal._core.steadiness import Watch, signature
from skal.checks import make_learner
from skal.checks._state import snapshot
from skal.exceptions import ChangedSamplesError, SampleError, SkalError
from skal.strategies import ALBL, BADGE, BALD, EPIG, CoreSet, DynamicAL, Margin

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


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
def test_a_sample_that_changes_is_noticed_in_any_container(sample):
    for item in (sample, (sample, 1)):
        if item is sample and isinstance(sample, (tuple, list)):
            continue  # of a tuple the first entry is the input
        state = {"item": item}
        watch = Watch(Reading(lambda row, state=state: state["item"], 3), "X_pool", range(3), range(3))
        watch.begin()
        watch.end()
        state["item"] = (changed(sample), 1) if item is not sample else changed(sample)
        with pytest.raises(
            ChangedSamplesError, match=r"X_pool must hold the same samples .* Got a Reading whose row 0"
        ):
            watch.end()


def test_labels_and_objects_that_hold_no_numbers_are_not_compared():
    values = iter(range(100))
    watch = Watch(Reading(lambda row: (np.zeros(2), next(values))), "X_pool", range(40), range(40))
    watch.begin()
    watch.end()
    assert signature([object(), torch.zeros(2).to_sparse()]) == [None, None]


def test_rounding_of_a_batch_of_another_size_is_no_change():
    noise = np.random.default_rng(0)
    watch = Watch(Reading(lambda row: np.ones(5) * (1 + 1e-7 * noise.random())), "X_pool", range(40), range(40))
    watch.begin()
    watch.end()


@pytest.mark.parametrize("n", [1, 2, 7, 40, 100_000])
def test_a_constant_number_of_rows_is_read_first_and_last_among_them(n):
    data = Reading(lambda row: np.full(2, row), n)
    watch = Watch(data, "X_pool", range(n), range(n))
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
        before = snapshot(learner)
        with pytest.raises(ChangedSamplesError, match="X_pool") as caught:
            ALL[name].select(learner, changing_pools(X_pool)[what], 3)
        assert isinstance(caught.value, SkalError)
        assert isinstance(caught.value, ValueError)
        assert isinstance(caught.value, SampleError)
        after = snapshot(learner)
        assert [key for key in before if before[key] != after[key]] == [], what


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

    before = snapshot(learner)
    indices, _ = Margin().select(learner, Items(40, item), 3)
    after = snapshot(learner)
    assert [key for key in before if before[key] != after[key]] == []
    assert np.array_equal(indices, Margin().select(learner, X_pool, 3)[0])


@pytest.mark.parametrize("strategy", [Margin(), BADGE(random_state=0), DynamicAL(), EPIG(n_passes=2, random_state=0)])
def test_samples_that_stay_cost_a_constant_number_of_readings(strategy):
    learner, X_pool = make_learner()
    many = np.concatenate([X_pool] * 5)
    data, plain = Reading(lambda row: many[row], 200), Reading(lambda row: many[row], 200)
    indices, _ = strategy.select(learner, data, 3)
    assert np.array_equal(indices, strategy.select(learner, many, 3)[0])
    context = strategy.prepare(learner, plain)
    context._watch = lambda samples: samples  # as if nobody watched
    context.__dict__.pop("labelled", None)
    strategy._select(context, 3)
    assert len(data.read) == len(plain.read) + 24


def test_rows_that_may_not_be_chosen_are_not_read():
    learner, X_pool = make_learner()
    data = Reading(lambda row: X_pool[row])
    Margin().select(learner, data, 3, candidates=np.arange(10, 20))
    assert set(data.read) == set(range(10, 20))
    assert skal.strategies.RandomSampling(random_state=0).select(learner, Reading(None), 3)[0].shape == (3,)


def test_rows_of_a_part_have_their_own_numbers():
    learner, X_pool = make_learner()
    data = Reading(lambda row: X_pool[row] + np.float32(len(data.read) if row == 19 else 0))
    with pytest.raises(ChangedSamplesError, match="row 19 was another one"):
        Margin().select(learner, data, 3, candidates=np.arange(10, 20))


@pytest.mark.parametrize("backend", ["threading", "loky"])
def test_workers_compare_with_what_was_read_here(backend):
    learner, X_pool = make_learner()
    with parallel_config(backend=backend), pytest.raises(ChangedSamplesError, match="X_pool must hold the same"):
        Margin(n_jobs=2, batch_size=8).select(learner, changing_pools(X_pool)["random augmentation"], 3)
    plain = TensorDataset(torch.as_tensor(X_pool))
    with parallel_config(backend=backend):
        indices, _ = Margin(n_jobs=2, batch_size=8).select(learner, plain, 3)
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
    context = Margin().prepare(learner, mapped)
    with context.steady():
        assert context.pool.watch is None
