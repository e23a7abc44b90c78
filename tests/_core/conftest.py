"""Workers that the tests share: starting them takes longer than what they are asked to do."""

import os

import pytest
from joblib import parallel_config

from ..support.processes import PRELOADED, READY


@pytest.fixture(scope="session")
def client():
    """A Dask cluster of two worker processes, which keep memory and are not profiled, as the guide advises."""
    import dask
    from distributed import Client, LocalCluster
    from distributed.utils import get_mp_context

    os.environ.update(dict.fromkeys(("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"), str(2**30)))
    # otherwise a cluster gives up a worker that takes longer than 15 seconds to start again
    options = {"distributed.deploy.lost-worker-timeout": "600s", "distributed.worker.profile.enabled": False}
    # workers, also those in the place of killed ones, are copies of a process that has imported torch
    options |= {"distributed.worker.multiprocessing-method": "forkserver"}
    with dask.config.set(options):
        get_mp_context()  # sets what it wants to be imported: after that, what we want
        READY.set_forkserver_preload(PRELOADED)
        cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", memory_limit=0)
        with cluster, Client(cluster) as client:
            yield client


@pytest.fixture
def on_dask(client):
    """Inside, ``n_jobs=None`` is the Dask cluster."""
    with parallel_config(backend="dask"):
        yield client
