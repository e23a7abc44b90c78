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
    """Two processes to which joblib sends its tasks.

    Parameters
    ----------
    keep_memory : bool, default=True
        Whether they keep memory that they are done with, as the documentation advises; Dask's default is not to.
    """
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    for name in MALLOC:
        if keep_memory:
            os.environ[name] = str(2**30)
        else:
            os.environ.pop(name, None)
    settings = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0", "memory_limit": 0}
    # otherwise a cluster gives up a worker that takes longer than 15 seconds to start again
    patient = dask.config.set({"distributed.deploy.lost-worker-timeout": "600s"})
    try:
        with patient, LocalCluster(**settings) as cluster, Client(cluster) as client, parallel_config(backend="dask"):
            yield client
    finally:
        for name in MALLOC:  # Dask leaves it in this process, whose other workers would inherit it
            os.environ.pop(name, None)
