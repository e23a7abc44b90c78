"""Workers share a query: the same answer, what travels, errors that name rows, progress, and lost workers."""

import os
import signal
import sys
import threading
import time
import traceback
import warnings
from contextlib import ExitStack
from unittest import mock

import cloudpickle
import dask
import h5py
import numpy as np
import pytest
import torch
from distributed import Client, Future, LocalCluster
from joblib import parallel_config
from sklearn.naive_bayes import GaussianNB
from skorch import NeuralNetClassifier
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import skal.strategies
from skal import ActiveLearner, config_context, get_config
from skal.context import Network, QueryContext, Samples
from skal.exceptions import (
    InvalidParameterError,
    InvalidTypeError,
    NonFiniteError,
    SampleError,
    ShardError,
    WorkerError,
    WorkerWarning,
)
from skal.strategies import ALBL, BADGE, BALD, EGL, NPC, DynamicAL, Entropy, NTKLookahead
from skal.tangent import register_rule

from ..support.learners import learner_of, net_of
from ..support.on_disk import as_zarr, kinds


def in_threads():
    """Two workers and small batches; joblib ends processes after an error, and starting new ones takes long."""
    stack = ExitStack()
    stack.enter_context(parallel_config(backend="threading"))
    stack.enter_context(config_context(n_jobs=2, batch_size=8))
    return stack


def collect(function, samples, step, n_jobs=2):
    """What a network's workers make of samples, in parts that are cut at multiples of the step."""
    with config_context(n_jobs=n_jobs):
        return context_of(samples).network.collect(function, samples, step)


def context_of(samples):
    return QueryContext(learner_of(net_of(nn.Linear(2, 2))), samples.X)


def squares(part):
    return torch.cat([torch.as_tensor(chunk) ** 2 for chunk in part.chunks(3)])


def test_shards_come_in_order_and_cover_all_rows_once():
    X = np.arange(100.0).reshape(50, 2)
    for step in (1, 3, 49, 50, 60):
        assert torch.equal(collect(squares, Samples(X), step), torch.as_tensor(X) ** 2)


def test_one_job_hands_over_the_samples_themselves():
    samples = Samples(np.zeros((50, 2)))
    seen = []
    collect(seen.append, samples, 2, n_jobs=1)
    assert seen == [samples]


@pytest.mark.parametrize("rows", [None, np.array([5, 3, 40, 3, 7, 9, 11, 2]), range(10, 30)], ids=str)
def test_a_part_of_the_samples_keeps_its_rows(rows):
    X = np.arange(100.0).reshape(50, 2)
    samples = Samples(X, rows=rows)
    expected = X if rows is None else X[np.asarray(rows)]
    assert np.array_equal(collect(squares, samples, 2).numpy(), expected**2)


def test_several_results_and_bfloat16_travel():
    def pair(part):
        chunk = torch.as_tensor(part.read(0, len(part)))
        return chunk.bfloat16(), {"sum": chunk.sum(1).double()}

    X = np.arange(40, dtype=np.float32).reshape(20, 2)
    first, second = collect(pair, Samples(X), 4)
    assert first.dtype == torch.bfloat16
    assert np.array_equal(first.float().numpy(), X)
    assert np.array_equal(second["sum"].numpy(), X.sum(1))


@pytest.mark.parametrize(
    ("n", "step", "jobs", "n_bytes"),
    [(10, 3, 2, None), (10**6, 256, 2, None), (10**5, 256, 2, 12288), (10**4, 7, 3, 1)],
)
def test_shards_are_whole_batches_and_not_too_large(n, step, jobs, n_bytes):
    if n_bytes is None:  # workers open a Dataset by themselves: no rows are sent
        samples = Samples(TensorDataset(torch.zeros(n)))
    else:
        samples = Samples(np.broadcast_to(np.zeros(n_bytes, dtype=np.uint8), (n, n_bytes)))
    with parallel_config(backend="threading"), config_context(n_jobs=jobs):
        sizes = list(context_of(samples).network.map(len, samples, step))
    assert sum(sizes) == n
    assert len(set(sizes[:-1])) <= 1
    assert sizes[0] % step == 0
    assert sizes[0] <= max(step, -(-n // (4 * jobs)), 1)
    assert n_bytes is None or sizes[0] == step or sizes[0] * n_bytes <= 8 * 2**20


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
        pids = collect(count, Samples(np.zeros((64, 2))), 4)
    workers = {tuple(path.name.split("-")[:2]) for path in tmp_path.iterdir()}
    assert len(list(tmp_path.iterdir())) == len(workers) <= 2
    assert (set(pids.tolist()) == {os.getpid()}) == (backend == "threading")


@pytest.mark.parametrize("backend", ["loky", "threading"])
def test_workers_have_the_settings_of_who_ordered_the_work(backend):
    def settings(part):
        now = get_config()
        return torch.full((len(part), 2), now["batch_size"]) * torch.tensor([1, now["n_jobs"]])

    for batch_size in (7, 9):  # of the same worker
        with parallel_config(backend=backend), config_context(batch_size=batch_size, progress=True):
            found = collect(settings, Samples(np.zeros((20, 2))), 5)
        assert found.unique().tolist() == [batch_size]  # a worker has no workers of its own
    assert get_config()["batch_size"] == 256


def test_a_worker_gets_the_module_once_and_nothing_of_its_training(image_learner):
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


def test_workers_learn_the_users_layer_rules():
    """A class that only this process can import, for example one of a script, and the rule for it."""

    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = nn.Parameter(torch.tensor(2.0))

        def forward(self, x):
            return self.factor * x

    @register_rule(Scale)
    def rule(layer, a, g):
        return {"factor": (a * g).flatten(1).sum(1)}

    torch.manual_seed(0)
    net = net_of(nn.Sequential(nn.Linear(4, 5), Scale(), nn.Linear(5, 3)))
    X, y = torch.randn(24, 4), np.arange(24) % 3
    learner = learner_of(net, X[:12], y[:12])
    strategy = DynamicAL(backend="structured")
    with config_context(batch_size=2):
        expected = strategy.scores(learner, X[12:])
        with config_context(n_jobs=2):
            np.testing.assert_array_equal(strategy.scores(learner, X[12:]), expected)


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
        return collect(function, Samples(X, name="X_pool"), 5)


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
            in_threads(),
            pytest.raises(NonFiniteError, match=f"first in row {77 - (rows.start or 0)}.*in rows"),
        ):
            Entropy().scores(image_learner, X[rows])


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
    with in_threads(), pytest.raises(SampleError, match=r"image 44.*rows 40 to 47"):
        Entropy().scores(image_learner, Broken())


# --- the rest ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_progress_shows_a_bar_over_shards(image_learner, images, n_jobs, capsys):
    with config_context(n_jobs=n_jobs, batch_size=8):
        with config_context(progress=True):
            Entropy().scores(image_learner, images[0])
        assert "Entropy: 100%" in capsys.readouterr().err
        Entropy().scores(image_learner, images[0][:-1])
    assert capsys.readouterr().err == ""


def test_threads_and_modules_are_left_as_they_were(image_learner, images):
    before = torch.get_num_threads()
    with in_threads():
        Entropy().scores(image_learner, images[0])
    assert torch.get_num_threads() == before


def test_a_dataset_in_memory_is_shared(image_learner, images):
    X, y = images
    dataset = TensorDataset(torch.as_tensor(X), torch.as_tensor(y))
    with config_context(batch_size=8):
        expected = Entropy().scores(image_learner, X)
        with config_context(n_jobs=2):
            assert np.array_equal(Entropy().scores(image_learner, dataset), expected)


# --- the same answer -------------------------------------------------------------------------------------------------


CASES = [
    *(getattr(skal.strategies, name)() for name in skal.strategies.__all__ if name[0].isupper()),
    ALBL(uniform=True),
    BALD(batch="joint", n_passes=4),
    DynamicAL(batch="greedy", n_features=64),
    EGL(layers="last"),
    NPC(search="greedy", n_candidates=40),
    NPC(kernel="trace", n_features=256, n_candidates=10),
    NTKLookahead(n_features=None, evaluation=30, criterion="emoc"),
]


def answer(strategy, learner, X, n_jobs=None):
    strategy = type(strategy)(**(strategy.get_params(deep=False) | {"random_state": 3}))
    with config_context(batch_size=8, n_jobs=n_jobs):  # many batches to share
        return strategy.select(learner, X, 6)


@pytest.fixture
def learner_for(image_learner, squared_learner):
    return lambda strategy: squared_learner if isinstance(strategy, NTKLookahead) else image_learner


@pytest.mark.parametrize("strategy", CASES, ids=repr)
def test_two_processes(strategy, learner_for, images):
    learner, X = learner_for(strategy), images[0][20:]
    indices, metrics = answer(strategy, learner, X, n_jobs=1)
    shared_indices, shared_metrics = answer(strategy, learner, X, n_jobs=2)
    assert indices.tolist() == shared_indices.tolist()
    np.testing.assert_allclose(shared_metrics, metrics, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("strategy", [Entropy(), BADGE(), NTKLookahead()], ids=repr)
def test_dask(strategy, learner_for, images, on_dask):
    learner, X = learner_for(strategy), images[0][20:]
    indices, metrics = answer(strategy, learner, X, n_jobs=1)
    shared_indices, shared_metrics = answer(strategy, learner, X)
    assert indices.tolist() == shared_indices.tolist()
    np.testing.assert_allclose(shared_metrics, metrics, rtol=1e-6, atol=1e-9)


def test_classifiers_without_a_network_are_shared_too(images):
    X, y = images[0].reshape(120, -1), images[1]

    class Learner:
        estimator = GaussianNB().fit(X[:20], y[:20])
        X_training, y_training = X[:20], y[:20]

    X = np.tile(X, (80, 1))  # more than a chunk
    expected = Entropy().scores(Learner, X)
    with config_context(n_jobs=2):
        assert np.array_equal(Entropy().scores(Learner, X), expected)


# --- pools on disk ---------------------------------------------------------------------------------------------------


@kinds
@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.parametrize("strategy", [Entropy(subset=60), BADGE(), DynamicAL()], ids=repr)
def test_the_same_answer_as_from_an_array(kind, n_jobs, strategy, image_learner, images, tmp_path):
    X = images[0][20:]
    expected = answer(strategy, image_learner, X, n_jobs=1)[0]
    with parallel_config(backend="threading"):  # processes: below
        indices = answer(strategy, image_learner, kind(X, tmp_path), n_jobs)[0]
    assert indices.tolist() == expected.tolist()


@kinds
def test_dask_workers_read_them_too(kind, image_learner, images, tmp_path, on_dask):
    X = images[0][20:]
    expected = answer(Entropy(), image_learner, X, n_jobs=1)
    found = answer(Entropy(), image_learner, kind(X, tmp_path))
    assert np.array_equal(found[0], expected[0])
    assert np.array_equal(found[1], expected[1])


class Watched:
    """An array that only says how many of its rows were read at once."""

    def __init__(self, X):
        self.X, self.shape, self.dtype, self.largest = X, X.shape, X.dtype, 0

    def __getitem__(self, rows):
        part = self.X[rows]
        self.largest = max(self.largest, len(part))
        return part


@pytest.mark.parametrize("strategy", [Entropy(), BADGE(), DynamicAL()], ids=repr)
def test_only_a_chunk_is_read_at_a_time(strategy, image_learner, images):
    pool = Watched(images[0])
    with config_context(batch_size=8):
        strategy(image_learner, pool, 3)
    assert pool.largest == 8


def test_an_hdf5_file_open_for_writing_is_refused(image_learner, images, tmp_path):
    with h5py.File(tmp_path / "pool.h5", "w") as file:
        pool = file.create_dataset("images", data=images[0])
        with config_context(batch_size=8, n_jobs=2), pytest.raises(InvalidParameterError, match=r"mode.*'r'"):
            Entropy()(image_learner, pool)


def test_a_learner_queries_and_teaches_from_disk(image_learner, images, tmp_path):
    X, y = images
    pool = as_zarr(X[20:], tmp_path)
    learner = ActiveLearner(image_learner.estimator, Entropy(), X_training=X[:20], y_training=y[:20])
    indices, samples = learner.query(pool, n_instances=4)
    assert np.array_equal(samples, X[20:][indices])
    learner.teach(samples, y[20:][indices], fit=False)
    assert len(learner.y_training) == 24


# --- what only a cluster can do --------------------------------------------------------------------------------------


WITHOUT_SKAL = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "skal":
            raise ModuleNotFoundError("No module named 'skal'", name="skal")

sys.meta_path.insert(0, Refuse())
for name in [name for name in sys.modules if name.partition(".")[0] == "skal"]:
    del sys.modules[name]
"""


class CountingClient(Client):
    """Notes what it sends to workers."""

    def submit(self, function, *args, **kwargs):
        self.sent.append(len(cloudpickle.dumps([arg for arg in args if not isinstance(arg, Future | list)])))
        return super().submit(function, *args, **kwargs)

    def scatter(self, data, **kwargs):
        raise AssertionError("what is scattered is lost with its worker")


def test_the_network_is_sent_once(image_learner, images, client):
    sent = []
    with CountingClient(client.cluster, set_as_default=False) as counting, config_context(batch_size=4):
        counting.sent = sent
        with config_context(n_jobs=1):
            expected = Entropy().scores(image_learner, images[0])
        with parallel_config(backend="dask", client=counting):
            assert np.array_equal(Entropy().scores(image_learner, images[0]), expected)
    weights = sum(p.numel() * p.element_size() for p in image_learner.estimator.module_.parameters())
    assert len(sent) > 3
    assert [size > weights for size in sent] == [True] + [False] * (len(sent) - 1)


def killing_its_worker(network, sample, marker):
    """The network, in a module that ends the first process but this one in which it meets a certain sample.

    Without a sample it is the first process to which the network is sent. A class of its own for each call: workers
    cannot import this file, and such a class travels with its code.
    """

    class KillsItsWorker(nn.Module):
        def __init__(self):
            super().__init__()
            self.network, self.own_process = network, os.getpid()

        def __setstate__(self, state):
            super().__setstate__(state)
            if sample is None:
                self.kill_once()

        def kill_once(self):
            if os.getpid() != self.own_process:
                try:
                    marker.touch(exist_ok=False)
                except FileExistsError:
                    pass
                else:
                    os.kill(os.getpid(), signal.SIGKILL)

        def forward(self, x):
            if sample is not None and (x == sample).flatten(1).all(1).any():
                self.kill_once()
            return self.network(x)

    return KillsItsWorker()


@pytest.mark.parametrize(
    ("strategy", "row"), [(DynamicAL(), 48), (DynamicAL(), None), (BADGE(), 48)], ids=["middle", "sending", "BADGE"]
)
def test_a_worker_killed_in_a_query(strategy, row, image_learner, images, tmp_path, on_dask):
    """One of two workers is killed, once, when it comes to the middle of the pool or is sent the network."""
    X, marker = images[0][20:], tmp_path / "killed"
    sample = None if row is None else torch.as_tensor(X[row])
    module = killing_its_worker(image_learner.estimator.module_.backbone, sample, marker)
    net = NeuralNetClassifier(module, criterion=nn.CrossEntropyLoss, verbose=0).initialize()
    learner = learner_of(net, image_learner.X_training, image_learner.y_training)
    expected = answer(strategy, learner, X, n_jobs=1)
    assert not marker.exists()
    on_dask.wait_for_workers(2)  # the one that was killed before is started again
    indices, metrics = answer(strategy, learner, X)
    assert marker.exists()
    assert indices.tolist() == expected[0].tolist()
    np.testing.assert_allclose(metrics, expected[1], rtol=1e-6)


@pytest.mark.skipif(sys.version_info >= (3, 11), reason="only before 3.11 is Dask's TimeoutError not Python's")
def test_shards_that_take_longer_than_dask_is_asked_for_are_waited_for(on_dask):
    def slow_squares(part):
        time.sleep(21)
        return torch.as_tensor(part.read(0, len(part))) ** 2

    X = np.arange(8.0).reshape(4, 2)
    assert torch.equal(collect(slow_squares, Samples(X), 2, n_jobs=None), torch.as_tensor(X) ** 2)


def test_dask_workers_as_they_come_are_told_how_to_be_quicker(image_learner, images):
    """Dask sets a variable in the environment of its workers, unless it is set here; it slows them down."""
    as_it_comes = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    spawned = dask.config.set({"distributed.worker.multiprocessing-method": "spawn"})  # with the variables of now
    with mock.patch.dict(os.environ, as_it_comes, clear=True), spawned:
        cluster = LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=":0", memory_limit=0)
        with cluster, Client(cluster), parallel_config(backend="dask"), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", WorkerWarning)
            for _ in range(2):
                with config_context(batch_size=8):
                    Entropy().scores(image_learner, images[0])
    assert [warning.category for warning in caught] == [WorkerWarning]  # said once
    assert "set both MALLOC_TRIM_THRESHOLD_ and MALLOC_MMAP_THRESHOLD_ to 1073741824" in str(caught[0].message)


def test_a_worker_without_skal(image_learner, images, tmp_path):
    (tmp_path / "refuse.py").write_text(WITHOUT_SKAL)
    cluster = LocalCluster(
        n_workers=1,
        threads_per_worker=2,
        dashboard_address=":0",
        memory_limit=0,
        preload=[str(tmp_path / "refuse.py")],
    )
    with (
        cluster,
        Client(cluster),
        parallel_config(backend="dask"),
        config_context(batch_size=8),
        pytest.raises(WorkerError, match=r"No module named 'skal'.*Every worker needs skal.*Install skal"),
    ):
        Entropy().scores(image_learner, images[0])


def test_an_error_in_another_process_then_one_that_ends_it():
    with pytest.raises(KeyError, match=r"odd.*in rows 30 to 34 of X_pool") as caught:
        run(failing(KeyError, "odd"), np.zeros((60, 2)), "loky")
    assert "in fail" in shown(caught.value)
    with pytest.raises(WorkerWarning, match="max_memory"):  # and not computed here, since warnings are errors
        run(lambda part: os.kill(os.getpid(), signal.SIGKILL), np.zeros((60, 2)), "loky")


def test_samples_that_cannot_be_read_here_are_no_matter_of_the_workers():
    class Texts(list):
        def __getitem__(self, rows):
            if isinstance(rows, slice) and rows.start >= 20:
                raise SampleError("row 20 cannot be read")
            return super().__getitem__(rows)

    with parallel_config(backend="threading"), pytest.raises(SampleError, match="row 20"):
        collect(len, Samples(Texts("abcdefghij" * 4)), 5)
