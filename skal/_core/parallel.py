# SPDX-License-Identifier: BSD-3-Clause
"""Passes over a set of samples, cut into shards that joblib's workers share.

A function, which holds the network, is applied to each shard. It is pickled once, sent to each worker once (joblib maps
it into memory for the processes of one machine; Dask gets it broadcast) and kept there until the next one comes. A
shard itself is a pair of numbers where the worker can open the samples, and its rows where it cannot. Shards are pure:
those that are lost with a worker are sent again a few times, and at last computed here.
"""

from __future__ import annotations

import pickle
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
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
from skal._core.memory import rows_within
from skal._core.pool import Samples
from skal.config import config_context, get_config
from skal.exceptions import InvalidTypeError, ShardError, SkalError, WorkerError, WorkerWarning

_SHARDS_PER_JOB = 4  # enough for an even load when some shards take longer
_MAX_ROWS = 2**14
# rows that are sent with a task; Dask warns of tasks beyond 10 MB
_MAX_BYTES = 2**23
_KEPT = 2  # functions that a worker keeps
_ATTEMPTS = 3  # to have shards computed by workers
# after which Dask is taken to have lost what it was sent, or a shard
_SEND_SECONDS = 60
_SHARD_SECONDS = 900
_local = threading.local()  # two threads of one process must not run one network at the same time

Result = TypeVar("Result")  # tensors, arrays, or tuples of them


@dataclass(frozen=True)
class Sharding:
    """Who shares the passes over a set of samples.

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
        """How many workers there are."""
        jobs: int = effective_n_jobs(self.n_jobs)
        return jobs

    def map(
        self, function: Callable[[Samples], Result], samples: Samples, step: int, device: Any = None
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
        """
        if len(samples) <= step or (not self.progress and self.jobs() == 1):
            return iter([function(samples)])
        return self._shards(function, samples, step, device)

    def _shards(
        self, function: Callable[[Samples], Result], samples: Samples, step: int, device: Any
    ) -> Iterator[Result]:
        jobs, n = self.jobs(), len(samples)
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
        task = _Task(self, np.frombuffer(pickled, dtype=np.uint8), samples, sends_rows, bounds)
        results: dict[int, Any] = {}
        done = 0
        # shards are pure: what is lost with a worker is sent again
        for _ in range(_ATTEMPTS):
            try:
                for number, result in task.run([k for k in range(done, len(bounds)) if k not in results]):
                    results[number] = result
                    while done in results:
                        yield results.pop(done)
                        done += 1
                return
            except (_ShardFailedError, SkalError, GeneratorExit):  # of the shard, or of samples that are read here
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
    sharding : Sharding
    pickled : (b,) uint8 array
        Function and samples; an array, which joblib maps into memory.
    samples : Samples
    sends_rows : bool
        Whether the rows of a shard go with it.
    bounds : list of (int, int)
        First and last row of each shard.
    """

    def __init__(
        self, sharding: Sharding, pickled: np.ndarray, samples: Samples, sends_rows: bool, bounds: list[tuple[int, int]]
    ) -> None:
        self._sharding, self._pickled, self._samples = sharding, pickled, samples
        self._sends_rows, self._bounds = sends_rows, bounds
        self._digest = blake2b(pickled.data, digest_size=16).digest()

    def run(self, numbers: list[int]) -> Iterator[tuple[int, Any]]:
        """The shards with these numbers, each with its result, in any order."""
        client = getattr(get_active_backend()[0], "client", None)
        return self._by_joblib(numbers) if client is None else self._by_dask(client, numbers)

    def _shard(self, number: int) -> tuple[int, int, Any, Any, str]:
        start, stop = self._bounds[number]
        rows = detach_rows(self._samples.read(start, stop)) if self._sends_rows else None
        return start, stop, rows, self._samples.row_numbers(start, stop), self._samples.name

    def _by_joblib(self, numbers: list[int]) -> Iterator[tuple[int, Any]]:
        streams = getattr(get_active_backend()[0], "supports_return_generator", False)
        n_jobs, form = self._sharding.n_jobs, "generator" if streams else "list"
        parallel = Parallel(n_jobs=n_jobs, batch_size=1, max_nbytes=1024, return_as=form)
        tasks = (delayed(_run)(self._pickled, self._digest, self._shard(number)) for number in numbers)
        return zip(numbers, parallel(tasks), strict=True)

    def _by_dask(self, client: Any, numbers: list[int]) -> Iterator[tuple[int, Any]]:
        """A few shards at a time: their rows would take the room of the whole pool."""
        from distributed import wait

        # to all workers: what a single one holds is lost with it
        payload = client.scatter([self._pickled], broadcast=True, hash=False, timeout=_SEND_SECONDS)[0]
        waiting, running = list(reversed(numbers)), dict[Any, int]()
        try:
            while waiting or running:
                while waiting and len(running) < 2 * self._sharding.jobs():
                    number = waiting.pop()
                    future = client.submit(_run_anywhere, payload, self._digest, self._shard(number), pure=False)
                    running[future] = number
                wait(list(running), timeout=_SHARD_SECONDS, return_when="FIRST_COMPLETED")  # type: ignore[no-untyped-call]
                for future in [future for future in running if future.done()]:
                    number = running.pop(future)
                    yield number, future.result()
        finally:
            client.cancel([payload, *running])


def on_every_worker(value: Any) -> Any:
    """What is passed to all tasks of a ``Parallel``: itself, and with Dask a replica that every worker holds.

    joblib alone would send it with each task, or to a single worker, and the loss of that one would lose it.

    Parameters
    ----------
    value : object

    Returns
    -------
    object
        ``value``, or with Dask the future that stands for it.

    Examples
    --------
    >>> from skal._core.parallel import on_every_worker
    >>> data = [1, 2, 3]
    >>> on_every_worker(data) is data  # unless joblib.parallel_config(backend="dask") says otherwise
    True
    """
    client = getattr(get_active_backend()[0], "client", None)
    return value if client is None else client.scatter([value], broadcast=True, hash=False)[0]


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


def _run(payload: np.ndarray, digest: bytes, shard: tuple[int, int, Any, Any, str]) -> Any:
    """One shard, in a worker."""
    start, stop, rows, numbers, name = shard
    function = None
    with one_thread():
        try:
            function, whole, settings = _unpack(payload, digest)
            part = (
                whole.take(range(start, stop)) if rows is None else replace(whole, X=rows, rows=None, numbers=numbers)
            )
            with config_context(**settings):
                return tree_map(lambda x: _Sent(x) if isinstance(x, Tensor) else x, function(part))
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
