"""Two Dask workers, with memory that they keep or as Dask starts them."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import dask
from distributed import Client, LocalCluster
from joblib import parallel_config

MALLOC = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")


@contextmanager
def two_workers(keep_memory: bool = True) -> Iterator[Client]:
    """Two processes of Dask to which joblib sends its tasks.

    Parameters
    ----------
    keep_memory : bool, default=True
        Whether they keep memory that they are done with and are not profiled, as the documentation advises; Dask's
        default is the opposite of both.
    """
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    if keep_memory:
        os.environ.update(dict.fromkeys(MALLOC, str(2**30)))
    settings = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0", "memory_limit": 0}
    # otherwise a cluster gives up a worker that takes longer than 15 seconds to start again
    options = {"distributed.deploy.lost-worker-timeout": "600s", "distributed.worker.profile.enabled": not keep_memory}
    try:
        with dask.config.set(options), LocalCluster(**settings) as cluster, Client(cluster) as client:
            client.wait_for_workers(2)
            with parallel_config(backend="dask", client=client):
                yield client
    finally:  # Dask leaves its settings in this process, whose other workers would inherit them
        for name in MALLOC:
            os.environ.pop(name, None)
