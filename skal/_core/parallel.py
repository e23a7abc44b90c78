# SPDX-License-Identifier: BSD-3-Clause
"""Passes over a set of samples, cut into shards that joblib's workers share.

A function, which holds the network, is applied to each shard. It is pickled once, sent to each worker once (joblib maps
it into memory for the processes of one machine) and kept there until the next one comes. A shard itself is a pair of
numbers where the worker can open the samples, and its rows where it cannot. Shards are pure: those that are lost with a
worker are sent again a few times, and at last computed here.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import cloudpickle
import numpy as np
import torch
from joblib import Parallel, delayed, effective_n_jobs
from joblib.parallel import get_active_backend
from torch import Tensor
from torch.utils._pytree import tree_map
from tqdm.auto import tqdm

from skal._core.containers import detach_rows, reference_to, row_bytes
from skal._core.identity import digest_bytes
from skal._core.memory import rows_within
from skal._core.pool import Samples
from skal.config import config_context, get_config
from skal.exceptions import InvalidTypeError, ShardError, SkalError, SkalWarning, WorkerError, WorkerWarning

_SHARDS_PER_JOB = 4  # enough for an even load when some shards take longer
_MAX_ROWS = 2**14
# rows that are sent with a task; Dask warns of tasks beyond 10 MB
_MAX_BYTES = 2**23
_KEPT = 2  # functions that a worker keeps
_ATTEMPTS = 3  # at computing shards by workers
# after these Dask is taken to have lost a shard, and a cluster without workers to get none
_SHARD_SECONDS = 900
_EMPTY_SECONDS = 20
# a fixed trim threshold also ends the growth of glibc's mmap threshold, so that every large tensor is mapped anew
_TRIM, _MMAP = "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"
_told: list[int] = []  # the worker that the user has been warned about
_local = threading.local()  # two threads of one process must not run one network at the same time

Result = TypeVar("Result")  # tensors, arrays, or tuples of them


@dataclass(frozen=True)
class Sharding:
    """The workers that share the passes over a set of samples.

    Parameters
    ----------
    n_jobs : int or None, default=1
        As in joblib; None is what ``joblib.parallel_config`` says, and 1 without it.
    progress : bool, default=False
        Whether to show a bar.
    owner : str
        What the bar is called.

    Examples
    --------
    >>> import numpy as np
    >>> import torch
    >>> from skal._core.parallel import Sharding
    >>> from skal._core.pool import Samples
    >>> samples = Samples(np.arange(6.0).reshape(6, 1))
    >>> [float(part) for part in Sharding(n_jobs=1).map(lambda part: part.X[part.rows].sum(), samples, 2)]
    [15.0]
    """

    n_jobs: int | None = 1
    progress: bool = False
    owner: str = "skal"

    def jobs(self) -> int:
        """The number of workers; 1, with a warning, if a cluster has none and gets none."""
        try:
            jobs: int = effective_n_jobs(self.n_jobs)
        except TimeoutError as error:  # joblib has waited for Dask's workers
            warnings.warn(f"{error} The query is computed in this process.", WorkerWarning, stacklevel=2)
            return 1
        return jobs

    def map(
        self,
        function: Callable[[Samples], Result],
        samples: Samples,
        step: int,
        device: Any = None,
        *,
        alone: bool = False,
    ) -> Iterator[Result]:
        """``function(part)`` of one part of the samples after the other, in their order.

        Parameters
        ----------
        function : callable
            Takes Samples, returns tensors, arrays, or tuples of them. It may run in another process, on a copy of
            all that it holds.
        samples : Samples
        step : int
            Parts are cut at multiples of this, so that batches are the same however many parts there are.
        device : torch.device, optional
            Where tensors from other processes are put.
        alone : bool, default=False
            Do it all in this process.
        """
        if len(samples) <= step or ((jobs := 1 if alone else self.jobs()) == 1 and not self.progress):
            return iter([function(samples)])
        return self._shards(function, samples, step, device, jobs)

    def _shards(
        self, function: Callable[[Samples], Result], samples: Samples, step: int, device: Any, jobs: int
    ) -> Iterator[Result]:
        n = len(samples)
        sends_rows = jobs > 1 and reference_to(samples.X) is None
        rows = shard_rows(n, step, jobs, (row_bytes(samples.X) or 2**13) if sends_rows else None)
        bounds = [(start, min(start + rows, n)) for start in range(0, n, rows)]
        if jobs == 1:
            results: Iterator[Any] = (function(samples.take(range(*part))) for part in bounds)
        else:
            results = self._in_parallel(function, samples, sends_rows, bounds)
        bar = tqdm(results, desc=self.owner, total=len(bounds), unit="shard", disable=not self.progress)
        try:
            for result in bar:
                yield tree_map(lambda x: x.tensor(device) if isinstance(x, _Sent) else x, result)
        except _ShardFailedError as failure:
            raise failure.args[0] from failure

    def _in_parallel(
        self, function: Callable[[Samples], Any], samples: Samples, sends_rows: bool, bounds: list[tuple[int, int]]
    ) -> Iterator[Any]:
        try:
            settings = get_config() | {"n_jobs": 1, "progress": False}
            pickled = cloudpickle.dumps((function, samples.take(range(0)) if sends_rows else samples, settings))
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            raise InvalidTypeError(
                f"The network, its preprocessing and a Dataset in {samples.name} must be picklable to be sent to "
                f"workers. Got {type(error).__name__}: {error}. Remove what cannot be pickled (open files, locks), or "
                "use n_jobs=1."
            ) from error
        task = _Task(self.n_jobs, np.frombuffer(pickled, dtype=np.uint8), samples, sends_rows, bounds)
        results: dict[int, Any] = {}
        done = 0
        # shards are pure: what is lost with a worker is sent again
        for _ in range(_ATTEMPTS):
            try:
                for number, (result, trimming) in task.run([k for k in range(done, len(bounds)) if k not in results]):
                    results[number] = result
                    if trimming is not None:
                        _warn_of_trimming(trimming)
                    while done in results:
                        yield results.pop(done)
                        done += 1
                return
            # of the shard, of samples that are read here, or a warning that is an error here
            except (_ShardFailedError, SkalError, SkalWarning, GeneratorExit):
                raise
            except ImportError as error:  # a package that the workers lack will be missing the next time, too
                raise _worker_error(error) from error
            except Exception as error:
                failure = _worker_error(error)
        warnings.warn(f"{failure} The rest of the query is computed in this process.", WorkerWarning, stacklevel=2)
        for number in range(done, len(bounds)):
            yield results[number] if number in results else function(samples.take(range(*bounds[number])))


class _Task:
    """A function of samples that workers are sent once, and the shards that they are asked for.

    Parameters
    ----------
    n_jobs : int or None
    pickled : (b,) uint8 array
        Function and samples; an array, which joblib maps into memory.
    samples : Samples
    sends_rows : bool
        Whether the rows of a shard go with it.
    bounds : list of (int, int)
        First and last row of each shard.
    """

    def __init__(
        self, n_jobs: int | None, pickled: np.ndarray, samples: Samples, sends_rows: bool, bounds: list[tuple[int, int]]
    ) -> None:
        self._n_jobs, self._pickled, self._samples = n_jobs, pickled, samples
        self._sends_rows, self._bounds = sends_rows, bounds
        self._digest = digest_bytes(pickled.data)

    def run(self, numbers: list[int]) -> Iterator[tuple[int, Any]]:
        """The shards with these numbers, each with what :func:`_run` gives, in any order."""
        client = getattr(get_active_backend()[0], "client", None)
        return self._by_joblib(numbers) if client is None else self._by_dask(client, numbers)

    def _shard(self, number: int) -> tuple[int, int, Any, Any, str]:
        start, stop = self._bounds[number]
        rows = detach_rows(self._samples.read(start, stop)) if self._sends_rows else None
        return start, stop, rows, self._samples.row_numbers(start, stop), self._samples.name

    def _by_joblib(self, numbers: list[int]) -> Iterator[tuple[int, Any]]:
        streams = getattr(get_active_backend()[0], "supports_return_generator", False)
        form = "generator" if streams else "list"
        parallel = Parallel(n_jobs=self._n_jobs, batch_size=1, max_nbytes=1024, return_as=form)
        tasks = (delayed(_run)(self._pickled, self._digest, self._shard(number)) for number in numbers)
        return zip(numbers, parallel(tasks), strict=True)

    def _by_dask(self, client: Any, numbers: list[int]) -> Iterator[tuple[int, Any]]:
        """A few shards at a time: their rows would take the room of the whole pool."""
        payload, ahead = _send_everywhere(client, self._pickled), 2 * max(1, sum(client.nthreads().values()))
        waiting, running = list(reversed(numbers)), dict[Any, int]()
        try:
            while waiting or running:
                while waiting and len(running) < ahead:
                    number = waiting.pop()
                    future = client.submit(_run_anywhere, payload, self._digest, self._shard(number), pure=False)
                    running[future] = number
                _await_any(client, list(running))
                for future in [future for future in running if future.done()]:
                    number = running.pop(future)
                    yield number, future.result(timeout=_SHARD_SECONDS)
        finally:
            client.cancel([payload, *running])


def _await_any(client: Any, futures: list[Any]) -> None:
    """Wait until one of the futures is done; raise after a time limit, which is lower without workers."""
    from distributed import wait

    for _ in range(_SHARD_SECONDS // _EMPTY_SECONDS):
        try:
            wait(futures, timeout=_EMPTY_SECONDS, return_when="FIRST_COMPLETED")  # type: ignore[no-untyped-call]
            return
        except asyncio.TimeoutError:  # Dask's; another class than TimeoutError before Python 3.11
            if not client.nthreads():
                raise TimeoutError(f"the cluster has no workers, after {_EMPTY_SECONDS} seconds") from None
    raise TimeoutError(f"no shard was computed within {_SHARD_SECONDS} seconds")


def _send(client: Any, data: np.ndarray) -> Any:
    """A Dask future of the bytes. They are arguments of tasks, so that Dask makes again what is lost with a worker.

    What is scattered is lost with its worker, and a worker that is killed in a broadcast leaves the scheduler waiting.
    """
    starts = range(0, len(data), _MAX_BYTES)
    parts = [client.submit(np.copy, data[start : start + _MAX_BYTES], pure=False) for start in starts]
    return client.submit(np.concatenate, parts, pure=False)


def _send_everywhere(client: Any, data: np.ndarray) -> Any:
    """A Dask future of the bytes, which each worker has fetched: one that computes is slow to hand them to others."""
    from distributed import wait

    payload = _send(client, data)
    here = [
        client.submit(len, payload, workers=[worker], allow_other_workers=True, pure=False)
        for worker in client.nthreads()
    ]
    with suppress(asyncio.TimeoutError):  # a worker has been lost: the shards will notice
        wait(here, timeout=_EMPTY_SECONDS)  # type: ignore[no-untyped-call]
    return payload


def send_once(value: Any) -> Any:
    """Prepare an argument for all tasks of a ``Parallel``: with Dask a future, so that it is sent once; else the value.

    Examples
    --------
    >>> from skal._core.parallel import send_once
    >>> data = [1, 2, 3]
    >>> send_once(data) is data  # unless joblib.parallel_config(backend="dask") says otherwise
    True
    """
    client = getattr(get_active_backend()[0], "client", None)
    if client is None:
        return value
    pickled = np.frombuffer(cloudpickle.dumps(value), dtype=np.uint8)
    return client.submit(pickle.loads, _send(client, pickled), pure=False)


def shard_rows(n: int, step: int, jobs: int, n_bytes: int | None) -> int:
    """Rows of a shard: a multiple of ``step``.

    Examples
    --------
    >>> shard_rows(100_000, 256, 2, None), shard_rows(100_000, 256, 2, 12_288), shard_rows(300, 256, 2, None)
    (12288, 512, 256)
    """
    rows = min(-(-n // (_SHARDS_PER_JOB * jobs)), _MAX_ROWS)
    if n_bytes is not None:
        rows = min(rows, rows_within(_MAX_BYTES, n_bytes))
    return max(step, rows // step * step)


class _Sent:
    """A tensor on its way back: as an array, since tensors of some libraries' pickles share memory that may vanish."""

    def __init__(self, tensor: Tensor) -> None:
        tensor = tensor.detach().cpu()
        self.short = tensor.dtype == torch.bfloat16  # numpy has none
        self.array = (tensor.view(torch.int16) if self.short else tensor).numpy()

    def tensor(self, device: Any) -> Tensor:
        """The tensor, on the caller's device."""
        tensor = torch.from_numpy(self.array if self.array.flags.writeable else self.array.copy())
        return (tensor.view(torch.bfloat16) if self.short else tensor).to(device)


class _ShardFailedError(Exception):
    """Carries the error of a shard to the caller, who tells it from what happens to the worker itself."""


def _rebuild(error: Exception, message: str) -> Exception:
    """The error with another message, in its own type if that can be made from a message and can travel."""
    try:
        rebuilt = pickle.loads(pickle.dumps(type(error)(message)))
        if type(rebuilt) is type(error) and message in str(rebuilt):
            return rebuilt
    except Exception:  # whatever keeps it from being made or from travelling, its text can
        pass
    return ShardError(f"{type(error).__name__}: {message}")


def _run(payload: np.ndarray, digest: bytes, shard: tuple[int, int, Any, Any, str]) -> tuple[Any, int | None]:
    """One shard, in a worker, and the worker's number if it was started with a fixed trim threshold."""
    start, stop, rows, numbers, name = shard
    function = None
    with one_thread():
        try:
            function, whole, settings = _unpack(payload, digest)
            part = (
                whole.take(range(start, stop)) if rows is None else replace(whole, X=rows, rows=None, numbers=numbers)
            )
            with config_context(**settings):
                result = tree_map(lambda x: _Sent(x) if isinstance(x, Tensor) else x, function(part))
            trims = sys.platform == "linux" and {_TRIM, _MMAP} & os.environ.keys() == {_TRIM}
            return result, os.getpid() if trims else None
        except Exception as error:
            if function is None and isinstance(error, ImportError):  # a package that the worker lacks, not the shard
                raise
            rebuilt = _rebuild(error, f"{error} (in rows {numbers[0]} to {numbers[-1]} of {name})")
            raise _ShardFailedError(rebuilt).with_traceback(error.__traceback__) from None


def _run_anywhere(payload: Any, digest: bytes, shard: Any) -> Any:
    """:func:`_run` for a worker that may lack skal: one that cannot even read its task would die without a word."""
    from skal._core.parallel import _run

    return _run(payload, digest, shard)


_run_anywhere.__module__ = "__main__"  # so that it is pickled with its code, not by its name


def _warn_of_trimming(worker: int) -> None:
    """Say once that workers return memory after every pass; a process that runs already does not heed the setting."""
    if worker == os.getpid() or _told:
        return
    _told.append(worker)
    warnings.warn(
        f"The workers were started with the environment variable {_TRIM}, which Dask sets. Memory is then returned to "
        "the system after every pass and asked for again, so that a query may take twice as long. Before you start "
        f"the workers, set both {_TRIM} and {_MMAP} to {2**30}: by export in a shell, by os.environ in Python.",
        WorkerWarning,
        stacklevel=2,
    )


def _unpack(payload: np.ndarray, digest: bytes) -> Any:
    kept: OrderedDict[bytes, Any] = vars(_local).setdefault("kept", OrderedDict())
    if digest not in kept:
        while len(kept) >= _KEPT:
            kept.popitem(last=False)
        kept[digest] = pickle.loads(payload.data)
    kept.move_to_end(digest)
    return kept[digest]


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for torch: there are as many shards at a time as there are workers.

    Examples
    --------
    >>> import torch
    >>> from skal._core.parallel import one_thread
    >>> with one_thread():
    ...     torch.get_num_threads()
    1
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _worker_error(error: Exception) -> WorkerError:
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, ImportError):
        missing = (error.name or "skal").partition(".")[0]
        return WorkerError(
            f"A worker failed: {text}. Every worker needs skal and the packages of your network. Install {missing} "
            "there, in the version that is used here (for a module of your own: client.upload_file), or use n_jobs=1."
        )
    return WorkerError(
        f"A worker failed: {text}. It may have run out of memory: lower max_memory or batch_size, or use fewer "
        "workers. If it could not start or could not read its task, install the same version of skal there."
    )
