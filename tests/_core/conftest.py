"""Workers that the tests share: starting them takes longer than what they are asked to do."""

import pytest
from joblib import parallel_config


@pytest.fixture(scope="session")
def client():
    """A Dask cluster of two worker processes."""
    from distributed import Client, LocalCluster

    cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", memory_limit=0)
    with cluster, Client(cluster) as client:
        yield client


@pytest.fixture
def on_dask(client):
    """Inside, ``n_jobs=None`` is the Dask cluster."""
    with parallel_config(backend="dask"):
        yield client
