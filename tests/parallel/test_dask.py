"""What only a cluster can do: lose a worker, or have one without skal."""

import os
import signal

import numpy as np
import pytest
import torch
from distributed import Client, LocalCluster
from joblib import parallel_config

from skal import reuse
from skal.exceptions import WorkerError
from skal.network import Network
from skal.parallel import Sharding, filled
from skal.samples import Samples
from skal.strategies import Entropy

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
        sent.append((getattr(data, "nbytes", 0), kwargs.get("broadcast")))
        return scatter(self, data, **kwargs)

    monkeypatch.setattr(Client, "scatter", counted)
    expected = Entropy(batch_size=4, n_jobs=1).scores(image_learner, images[0])
    reuse.clear()
    assert np.array_equal(Entropy(batch_size=4).scores(image_learner, images[0]), expected)
    weights = sum(p.numel() * p.element_size() for p in image_learner.estimator.module_.parameters())
    assert sent[:1] == sent  # nothing else is scattered: what a single worker holds is lost with it
    assert sent[0][0] > weights
    assert sent[0][1] is True


def test_a_worker_killed_in_the_middle_of_a_query(image_learner, images, tmp_path):
    """The first worker to reach the middle of the pool is killed there, once."""
    network, X = Network(image_learner.estimator), images[0]
    expected = network.outputs(Samples(X), 8)

    def shard(part):
        if 48 in part.row_numbers(0, len(part)):
            try:
                (tmp_path / "killed").touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return torch.cat(list(network._output_batches(part, 8)))

    cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", memory_limit=0)
    with cluster, Client(cluster), parallel_config(backend="dask"):
        result = filled(Sharding(n_jobs=None).map(shard, Samples(X), 8), len(X))
    assert (tmp_path / "killed").exists()
    assert torch.equal(result, expected)


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
        pytest.raises(WorkerError, match=r"Every worker must have skal.*No module named 'skal'.*Install skal"),
    ):
        Entropy(batch_size=8).scores(image_learner, images[0])
