"""A disk that takes small files alone."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def files_up_to(n_bytes: int) -> Iterator[None]:
    """Inside, a file that would grow larger is an error of the disk: "File too large"."""
    resource = pytest.importorskip("resource", reason="the size of files cannot be bounded there")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
