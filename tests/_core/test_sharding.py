"""Shards: their order, what travels, errors that name rows, progress."""

import os
import threading
import traceback

import numpy as np
import pytest
import torch
from joblib import parallel_config
from skal._core.sharding import Sharding, filled, shard_rows
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from skal.context import Network, Samples, TangentEngine
from skal.exceptions import InvalidTypeError, NonFiniteError, SampleError, ShardError, WorkerError
from skal.strategies import Entropy
from skal.tangent import register_rule
from skal.tangent._gradients import loss_scores


def squares(part):
    return torch.cat([torch.as_tensor(chunk) ** 2 for chunk in part.chunks(3)])


def test_shards_come_in_order_and_cover_all_rows_once():
    X = np.arange(100.0).reshape(50, 2)
    for step in (1, 3, 49, 50, 60):
        result = filled(Sharding(n_jobs=2).map(squares, Samples(X), step), 50)
        assert torch.equal(result, torch.as_tensor(X) ** 2)


def test_one_job_hands_over_the_samples_themselves():
    samples = Samples(np.zeros((50, 2)))
    seen = []
    next(Sharding(n_jobs=1).map(seen.append, samples, 2))
    assert seen == [samples]


@pytest.mark.parametrize("rows", [None, np.array([5, 3, 40, 3, 7, 9, 11, 2]), range(10, 30)], ids=str)
def test_a_part_of_the_samples_keeps_its_rows(rows):
    X = np.arange(100.0).reshape(50, 2)
    samples = Samples(X, rows=rows)
    expected = X if rows is None else X[np.asarray(rows)]
    result = filled(Sharding(n_jobs=2).map(squares, samples, 2), len(samples))
    assert np.array_equal(result.numpy(), expected**2)


def test_several_results_and_bfloat16_travel():
    def pair(part):
        chunk = torch.as_tensor(part.read(0, len(part)))
        return chunk.bfloat16(), {"sum": chunk.sum(1).double()}

    X = np.arange(40, dtype=np.float32).reshape(20, 2)
    first, second = filled(Sharding(n_jobs=2).map(pair, Samples(X), 4), 20)
    assert first.dtype == torch.bfloat16
    assert np.array_equal(first.float().numpy(), X)
    assert np.array_equal(second["sum"].numpy(), X.sum(1))


@pytest.mark.parametrize(
    ("n", "step", "jobs", "n_bytes"),
    [(10, 3, 2, None), (10**6, 256, 2, None), (10**6, 256, 2, 12288), (10**5, 7, 3, 1)],
)
def test_shards_are_whole_batches_and_not_too_large(n, step, jobs, n_bytes):
    rows = shard_rows(n, step, jobs, n_bytes)
    assert rows % step == 0
    assert rows <= max(step, -(-n // (4 * jobs)), 1)
    assert n_bytes is None or rows == step or rows * n_bytes <= 8 * 2**20


class Noting:
    """Writes down where it is unpickled."""

    def __init__(self, folder):
        self.folder = folder

    def __setstate__(self, state):
        self.__dict__.update(state)
        name = f"{os.getpid()}-{threading.get_ident()}-{len(os.listdir(self.folder))}-{os.urandom(4).hex()}"
        (self.folder / name).touch()


@pytest.mark.parametrize("backend", ["loky", "threading"])
def test_a_function_is_unpacked_once_by_a_worker(tmp_path, backend):
    noting = Noting(tmp_path)

    def count(part, noting=noting):
        return torch.full((len(part),), os.getpid())

    with parallel_config(backend=backend):
        pids = filled(Sharding(n_jobs=2).map(count, Samples(np.zeros((64, 2))), 4), 64)
    workers = {tuple(path.name.split("-")[:2]) for path in tmp_path.iterdir()}
    assert len(list(tmp_path.iterdir())) == len(workers) <= 2
    assert (set(pids.tolist()) == {os.getpid()}) == (backend == "threading")


def test_a_worker_gets_the_module_once_and_nothing_of_its_training(image_learner):
    import cloudpickle

    net = image_learner.estimator
    network = Network(net)
    size = len(cloudpickle.dumps(network))
    weights = sum(p.numel() * p.element_size() for p in net.module_.parameters())
    assert size < 1.5 * weights + 20_000
    twin = cloudpickle.loads(cloudpickle.dumps(network))
    assert twin.net.module_ is twin.module
    assert twin.net.history_ is None
    assert net.history_ is not None
    x = torch.as_tensor(image_learner.X_training)
    with torch.no_grad():
        assert torch.equal(twin.to_proba(twin.module.eval()(x)), network.to_proba(net.module_.eval()(x)))


class Scale(nn.Module):
    """A layer with a rule that no worker knows."""

    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return self.factor * x


def test_workers_learn_the_users_layer_rules():
    import cloudpickle

    from skal.tangent import _layers

    def rule(layer, a, g):
        return {"factor": (a * g).flatten(1).sum(1)}

    register_rule(Scale)(rule)
    try:
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(4, 5), Scale(), nn.Linear(5, 3))
        samples = Samples(torch.randn(12, 4))
        engine = TangentEngine(module, samples, backend="structured")
        expected = loss_scores(engine, samples)[0]
        shipped = cloudpickle.dumps(engine)
        del _layers._RULES[Scale]
        assert torch.equal(loss_scores(cloudpickle.loads(shipped), samples)[0], expected)
    finally:
        _layers._RULES.pop(Scale, None)


# --- errors ------------------------------------------------------------------------------------------------------


def failing(kind, *args):
    def fail(part):
        if 30 in np.asarray(part.row_numbers(0, len(part))):
            raise kind(*args)
        return torch.zeros(len(part))

    return fail


def run(function, X, backend="threading"):
    # joblib ends its processes after an error, and starting new ones takes long
    with parallel_config(backend=backend):
        return filled(Sharding(n_jobs=2).map(function, Samples(X, name="X_pool"), 5), len(X))


def shown(error):
    """What a user sees of it, the worker's own traceback included."""
    return "".join(traceback.format_exception(error))


@pytest.mark.parametrize("error", [ValueError("odd"), KeyError("odd"), ZeroDivisionError("odd")], ids=repr)
def test_an_error_keeps_its_type_and_names_the_rows(error):
    with pytest.raises(type(error), match=r"odd.*in rows 30 to 34 of X_pool") as caught:
        run(failing(type(error), *error.args), np.zeros((60, 2)))
    assert "in fail" in shown(caught.value)


def test_an_error_that_cannot_be_made_again_is_a_shard_error():
    with pytest.raises(ShardError, match=r"UnicodeDecodeError.*in rows 30 to 34 of X_pool"):
        run(failing(UnicodeDecodeError, "utf8", b"x", 0, 1, "odd"), np.zeros((60, 2)))


def test_a_bad_row_is_found_by_its_number_in_the_pool(image_learner, images, tmp_path):
    X = np.lib.format.open_memmap(tmp_path / "pool.npy", "w+", np.float32, (100, 1, 8, 8))
    X[:] = images[0][20:]
    X[77] = np.nan
    for rows in (slice(None), slice(40, 100)):
        with (
            parallel_config(backend="threading"),
            pytest.raises(NonFiniteError, match=f"first in row {77 - (rows.start or 0)}.*in rows"),
        ):
            Entropy(n_jobs=2, batch_size=8).scores(image_learner, X[rows])


def test_what_cannot_be_pickled_is_refused_with_a_remedy():
    lock = threading.Lock()
    with pytest.raises(InvalidTypeError, match=r"picklable.*n_jobs=1"):
        run(lambda part: lock and torch.zeros(len(part)), np.zeros((60, 2)))


class Broken(Dataset):
    """A file in the middle is missing."""

    def __len__(self):
        return 60

    def __getitem__(self, index):
        if index == 44:
            raise FileNotFoundError(f"no image {index}")
        return torch.zeros(1, 8, 8), 0


def test_a_dataset_that_fails_names_the_rows(image_learner):
    with parallel_config(backend="threading"), pytest.raises(SampleError, match=r"image 44.*rows 40 to 47"):
        Entropy(n_jobs=2, batch_size=8).scores(image_learner, Broken())


# --- the rest ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_progress_shows_a_bar_over_shards(image_learner, images, n_jobs, capsys):
    Entropy(n_jobs=n_jobs, batch_size=8, progress=True).scores(image_learner, images[0])
    assert "Entropy: 100%" in capsys.readouterr().err
    Entropy(n_jobs=n_jobs, batch_size=8).scores(image_learner, images[0][:-1])
    assert capsys.readouterr().err == ""


def test_threads_and_modules_are_left_as_they_were(image_learner, images):
    before = torch.get_num_threads()
    with parallel_config(backend="threading"):
        Entropy(n_jobs=2, batch_size=8).scores(image_learner, images[0])
    assert torch.get_num_threads() == before


def test_a_dataset_in_memory_is_shared(image_learner, images):
    X, y = images
    expected = Entropy(batch_size=8).scores(image_learner, X)
    dataset = TensorDataset(torch.as_tensor(X), torch.as_tensor(y))
    assert np.array_equal(Entropy(batch_size=8, n_jobs=2).scores(image_learner, dataset), expected)


def test_an_error_in_another_process_then_one_that_ends_it():
    with pytest.raises(KeyError, match=r"odd.*in rows 30 to 34 of X_pool") as caught:
        run(failing(KeyError, "odd"), np.zeros((60, 2)), "loky")
    assert "in fail" in shown(caught.value)
    with pytest.raises(WorkerError, match="max_memory"):
        run(lambda part: os._exit(1), np.zeros((60, 2)), "loky")
