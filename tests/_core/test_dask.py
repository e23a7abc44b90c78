"""What only a cluster can do: lose a worker, or have one without skal."""

import os
import signal

import numpy as np
import pytest
import torch
from distributed import Client, LocalCluster
from joblib import parallel_config
from skorch import NeuralNetClassifier
from torch import nn

from skal.bench import run_benchmark
from skal.exceptions import WorkerError
from skal.nets import SquaredLoss
from skal.strategies import BADGE, DynamicAL, Entropy, NTKLookahead

from ..support.learners import learner_of

WITHOUT_SKAL = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "skal":
            raise ModuleNotFoundError("No module named 'skal'", name="skal")

sys.meta_path.insert(0, Refuse())
"""


def test_the_network_is_sent_once_to_each_worker(image_learner, images, on_dask, monkeypatch):
    sent = []
    scatter = Client.scatter

    def counted(self, data, **kwargs):
        sent.append((sum(part.nbytes for part in data), kwargs.get("broadcast")))
        return scatter(self, data, **kwargs)

    monkeypatch.setattr(Client, "scatter", counted)
    expected = Entropy(batch_size=4, n_jobs=1).scores(image_learner, images[0])
    assert np.array_equal(Entropy(batch_size=4).scores(image_learner, images[0]), expected)
    weights = sum(p.numel() * p.element_size() for p in image_learner.estimator.module_.parameters())
    assert sent[:1] == sent  # nothing else is scattered: what a single worker holds is lost with it
    assert sent[0][0] > weights
    assert sent[0][1] is True


def killing_its_worker(network, sample, marker):
    """The network, in a module that ends the first process but this one in which it meets a certain sample.

    A class of its own for each call: workers cannot import this file, and such a class travels with its code.
    """

    class KillsItsWorker(nn.Module):
        def __init__(self):
            super().__init__()
            self.network, self.own_process = network, os.getpid()

        def forward(self, x):
            if os.getpid() != self.own_process and (x == sample).flatten(1).all(1).any():
                try:
                    marker.touch(exist_ok=False)
                except FileExistsError:
                    pass
                else:
                    os.kill(os.getpid(), signal.SIGKILL)
            return self.network(x)

    return KillsItsWorker()


@pytest.mark.parametrize(
    "strategy", [Entropy(), BADGE(random_state=0), DynamicAL(), NTKLookahead(random_state=0)], ids=repr
)
def test_a_worker_killed_in_the_middle_of_a_query(strategy, make_image_learner, images, tmp_path):
    """One of two workers is killed, once, when it comes to the middle of the pool; the answer is the same."""
    learner = make_image_learner(SquaredLoss if isinstance(strategy, NTKLookahead) else nn.CrossEntropyLoss)
    X, marker = images[0][20:], tmp_path / "killed"
    module = killing_its_worker(learner.estimator.module_.backbone, torch.as_tensor(X[48]), marker)
    net = NeuralNetClassifier(module, criterion=learner.estimator.criterion, verbose=0).initialize()
    learner = learner_of(net, learner.X_training, learner.y_training)
    strategy.set_params(batch_size=8)
    expected = strategy.set_params(n_jobs=1).select(learner, X, 6)
    assert not marker.exists()
    cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", memory_limit=0)
    with cluster, Client(cluster), parallel_config(backend="dask"):
        indices, metrics = strategy.set_params(n_jobs=None).select(learner, X, 6)
    assert marker.exists()
    assert indices.tolist() == expected[0].tolist()
    np.testing.assert_allclose(metrics, expected[1], rtol=1e-6)


def test_a_benchmark_on_a_cluster(client, monkeypatch, tmp_path):
    """The same runs as in this process, with the data sent to each worker once."""
    sent = []
    scatter = Client.scatter
    monkeypatch.setattr(Client, "scatter", lambda self, *args, **kw: sent.append(kw) or scatter(self, *args, **kw))
    settings = {"net": "mlp", "n_initial": 10, "query_size": 5, "n_rounds": 1, "seeds": 2}
    settings |= {"n_pool": 80, "max_epochs": 3}
    names = ["random", "margin", "badge"]
    alone = run_benchmark(names, out=tmp_path / "alone", **settings)
    with parallel_config(backend="dask"):
        shared = run_benchmark(names, n_jobs=None, out=tmp_path / "shared", **settings)
    assert [(run.scores, run.queried) for run in shared.runs] == [(run.scores, run.queried) for run in alone.runs]
    assert (tmp_path / "shared/results.csv").read_bytes() == (tmp_path / "alone/results.csv").read_bytes()
    assert sent == [{"broadcast": True, "hash": False}]


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
        pytest.raises(WorkerError, match=r"No module named 'skal'.*Every worker needs skal.*Install skal"),
    ):
        Entropy(batch_size=8).scores(image_learner, images[0])
