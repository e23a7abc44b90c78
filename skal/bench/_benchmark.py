# SPDX-License-Identifier: BSD-3-Clause
"""Run all strategies over all seeds, in parallel, and continue a benchmark that was interrupted."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed, effective_n_jobs
from joblib.externals.loky.process_executor import BrokenProcessPool
from tqdm.auto import tqdm

from skal._core.parallel import send_once
from skal.base import as_strategy
from skal.bench._activeml import adapt
from skal.bench._duration import announce_duration
from skal.bench._networks import make_net
from skal.bench._pools import Data, find_data, make_data
from skal.bench._protocol import Protocol
from skal.bench._result import BenchmarkResult
from skal.bench._run import Run, Task, describe, run_task
from skal.bench._store import Store
from skal.config import get_config
from skal.exceptions import InvalidParameterError, InvalidTypeError, SkalError
from skal.strategies._names import make_strategy
from skal.validation import as_list, check_n_jobs

Strategies = dict[str, tuple[Any, Any]]


class BenchmarkError(SkalError, RuntimeError):
    """Some runs of a benchmark failed; the others were saved.

    Attributes
    ----------
    result : BenchmarkResult or None
        The runs that finished; None if there are none.

    Examples
    --------
    >>> from skal.bench import BenchmarkError
    >>> issubclass(BenchmarkError, RuntimeError)
    True
    """

    result: BenchmarkResult | None = None


def run_benchmark(
    strategies: Sequence[Any] | Mapping[str, Any] | None = None,
    *,
    data: Any = None,
    net: Any = None,
    protocol: Protocol | None = None,
    out: str | os.PathLike[str] | None = None,
    n_jobs: int | None = 1,
    data_home: str | os.PathLike[str] | None = None,
    title: str | None = None,
    initial: Any = None,
    **settings: Any,
) -> BenchmarkResult:
    """Compare strategies on a data set, over seeds that give all of them the same start.

    All strategies of a seed have the same pool, first labels and initial weights. They differ in what they choose;
    BALD, EPIG and LearningLoss also add something to the network. The settings of :func:`skal.set_config` are handed on
    to the runs; ``progress=True`` shows a bar with the remaining time on stderr.

    Parameters
    ----------
    strategies : sequence, mapping, or None, default=None
        Names as in ``Protocol.strategies``, or a mapping of names to strategy objects, names, or pairs of a strategy
        and the skorch net to use for it instead of ``net``. A function ``f(learner, X_pool, n_instances)`` that returns
        positions in the pool is a strategy, too; in a sequence it is called by its own name. So is an object with the
        ``query`` of scikit-activeml, whose features are the inputs. None takes the strategies of the protocol.
    data : tuple, str, path or object, default=None
        ``(X, y)``, of which a fifth (of each class) is for testing, or ``(X_train, y_train, X_test, y_test)``; the name
        of a data set, or the path of an npz file, as in :func:`skal.datasets.load`; or an object with these four
        arrays.
    net : str or classifier, default=None
        Name of a network, or your own unfitted skorch net or scikit-learn classifier, which is then trained with its
        own settings. Without it, and without a protocol, features of shape (n, d) get an MLP on standardised inputs.
    protocol : Protocol or None, default=None
        All settings; :func:`skal.bench.papers.preset` has the papers' protocols.
    out : path or None, default=None
        Folder for the results; each run is saved as it finishes. Call again with the same settings to continue, or
        with more seeds or strategies to add to the results.
    n_jobs : int or None, default=1
        Number of runs in parallel, as in joblib: None follows ``joblib.parallel_config``, a Dask cluster for
        example. The result does not depend on it.
    data_home : path or None, default=None
        Folder of the data sets' files; see :func:`skal.datasets.load`.
    title : str or None, default=None
        Of the report, the figures and the LaTeX table; by default it is made of data, network and labels.
    initial : str, strategy or None, default=None
        How the first labels are chosen, for all strategies alike: a name as in ``Protocol.initial``, or a strategy
        such as ``MaxHerding()``, whose parameters must be numbers and texts.
    **settings
        Fields of :class:`skal.bench.Protocol` to change.

    Returns
    -------
    BenchmarkResult
        All runs, including those of earlier calls with the same ``out``.

    Raises
    ------
    BenchmarkError
        After all other runs have finished, if some failed. These are its ``result``, and are saved in ``out``, or in a
        new folder that the message names.

    Examples
    --------
    >>> from skal.bench import run_benchmark
    >>> result = run_benchmark(["random", "margin"], net="mlp", n_rounds=2, seeds=2, max_epochs=5, n_pool=200)
    >>> result.table().shape
    (2, 3)
    """
    check_n_jobs("run_benchmark", n_jobs)
    if title is not None:
        settings["title"] = title
    if initial is not None:
        settings["initial"] = _describe_initial(initial)
    base = protocol or Protocol()
    data = base.data if data is None else data
    task = settings.get("task", base.task)
    bunch = find_data(data, settings.get("data_params", base.data_params), data_home, task)
    protocol = (protocol or _default_protocol(bunch)).with_settings(**settings).settle()
    net = protocol.net if net is None else net
    own_net = None if isinstance(net, str) else net
    if own_net is not None and (isinstance(own_net, type) or not hasattr(own_net, "get_params")):
        expected, remedy = "the name of a network, or an unfitted classifier", "Pass 'mlp', or an object, not a class."
        raise InvalidTypeError.for_parameter("run_benchmark", "net", expected, own_net, remedy)
    if out is not None and (not isinstance(out, (str, os.PathLike)) or Path(out).is_file()):
        expected, remedy = "the path of a folder, or None", "Name a folder; it is made if it is not there."
        raise InvalidTypeError.for_parameter("run_benchmark", "out", expected, out, remedy)
    chosen = _name_strategies(protocol.strategies if strategies is None else strategies, own_net)
    protocol = protocol.with_settings(strategies=tuple(chosen), data=_name(data, bunch), net=_name(net)).check()
    arrays = make_data(bunch, protocol)
    _check_runnable(protocol, chosen, arrays)
    details = arrays.details() | ({} if own_net is None else {"net_params": _describe_net(own_net)})
    store = None if out is None else Store(out)
    if store is not None:
        store.open(protocol, details)
    done, tasks = _plan(protocol, chosen, store)
    failed: list[str] = []
    if get_config()["progress"]:
        announce_duration(tasks, arrays, n_jobs)
    shared = send_once(arrays) if tasks else arrays
    size = {"total": len(done) + len(tasks), "initial": len(done)}
    with tqdm(**size, unit="run", file=sys.stderr, disable=not get_config()["progress"]) as bar:
        for outcome in _run_all(tasks, shared, n_jobs):
            if isinstance(outcome, str):
                failed.append(outcome)
            else:
                done.append(outcome)
                if store is not None:
                    store.write(outcome)
            bar.update()
    if failed:
        raise _keep_others(failed, len(tasks), protocol, done, details, store)
    result = BenchmarkResult(protocol, done, details)
    if store is not None:
        result.write_tables(store.folder)
        store.close()
    return result


def _keep_others(
    failed: list[str], n_tasks: int, protocol: Protocol, done: list[Run], details: dict[str, Any], store: Store | None
) -> BenchmarkError:
    """The error of a benchmark in which runs failed, with those that did not; hours of them must not be lost."""
    kept, result = "No run finished.", None
    if done:
        result = BenchmarkResult(protocol, done, details)
        folder = tempfile.mkdtemp(prefix="skal-bench-") if store is None else store.folder
        if store is None:
            result.save(folder)
        kept = f"The others are saved in {folder}: run the benchmark again with this out to repeat those that failed."
    error = BenchmarkError(f"{len(failed)} of {n_tasks} runs failed. {kept}\n" + "\n".join(failed))
    error.result = result
    return error


def _plan(protocol: Protocol, strategies: Strategies, store: Store | None) -> tuple[list[Run], list[Task]]:
    """The runs that the folder has, and the tasks that are left.

    All strategies of a seed come before the next seed: a benchmark that is stopped then has whole pairs.
    """
    done: list[Run] = []
    tasks: list[Task] = []
    settings = get_config() | {"progress": False}  # one bar, for the benchmark, and none for each query
    for seed in range(protocol.seeds):
        for label, (strategy, net) in strategies.items():
            found = None if store is None else store.read(label, seed)
            if found is not None:
                _refuse_other(found, strategy)
                done.append(found)
            else:
                checkpoint = None if store is None else store.checkpoint(label, seed)
                tasks.append(Task(protocol, label, seed, strategy, net, checkpoint, settings))
    return done, tasks


def _run_all(tasks: list[Task], data: Any, n_jobs: int | None) -> Iterator[Run | str]:
    """The outcome of each task, in any order. A worker that is killed costs its own run and no other."""
    left = {(task.label, task.seed): task for task in tasks}
    while left:
        parallel = Parallel(n_jobs=n_jobs, return_as="generator_unordered")
        try:
            for key, outcome in parallel(delayed(_numbered_attempt)(task, data) for task in list(left.values())):
                del left[key]
                yield outcome
        except BrokenProcessPool:
            # joblib does not say whose worker it was: try the tasks that may have been running one by one
            for key in list(left)[: 3 * effective_n_jobs(n_jobs)]:
                yield _run_alone(left.pop(key), data)


def _run_alone(task: Task, data: Any) -> Run | str:
    """A run in a process of its own, which may be killed."""
    try:
        run: Run | str = Parallel(n_jobs=2)([delayed(_attempt)(task, data)])[0]
        return run
    except BrokenProcessPool as error:
        return (
            f"{task.label}, seed {task.seed}: the worker was killed ({type(error).__name__}). It may have run out of "
            "memory: use fewer jobs, a smaller pool, or set max_memory."
        )


def _numbered_attempt(task: Task, data: Data) -> tuple[tuple[str, int], Run | str]:
    return (task.label, task.seed), _attempt(task, data)


def _attempt(task: Task, data: Data) -> Run | str:
    """The run, or its traceback: one failure must not cost hours of other runs."""
    try:
        return run_task(task, data)
    except Exception:  # whatever a user's strategy, network or data may raise
        return f"{task.label}, seed {task.seed}: {traceback.format_exc()}"


def _describe_initial(initial: Any) -> str:
    """The text of a strategy, for the protocol."""
    if isinstance(initial, str):
        return initial
    strategy = as_strategy(initial)
    if strategy is not None:
        text = f"{type(strategy).__name__}({_describe_params(strategy)})"
        with suppress(SkalError):
            make_strategy(text)
            return text
    expected = "a name, or a strategy of skal whose parameters are numbers and texts"
    remedy = "Pass for example 'max_herding', or MaxHerding(features='input')."
    raise InvalidTypeError.for_parameter("run_benchmark", "initial", expected, initial, remedy)


def _describe_params(strategy: Any) -> str:
    """The parameters that differ from their defaults, as code."""
    standard = type(strategy)().get_params(deep=False)
    changed = {k: v for k, v in strategy.get_params(deep=False).items() if repr(v) != repr(standard[k])}
    return ", ".join(f"{name}={value!r}" for name, value in changed.items())


def _default_protocol(bunch: Any) -> Protocol:
    """The settings without a protocol: an MLP for features, since a CNN needs images."""
    features = np.ndim(bunch.X_train) == 2
    return Protocol(net="mlp", inputs="standardized") if features else Protocol()


def _name_strategies(strategies: Sequence[Any] | Mapping[str, Any], own_net: Any) -> Strategies:
    """Strategies by name, each with its net; None stands for the protocol's net."""
    if not isinstance(strategies, Mapping):
        expected, remedy = "a list of strategies, or a mapping of names to these", "Pass ['random', 'margin']."
        strategies = as_list("run_benchmark", "strategies", strategies, expected=expected, remedy=remedy)
        names = tuple(e if isinstance(e, str) else getattr(e, "__name__", repr(e)) for e in strategies)
        Protocol(strategies=names).settle().check()  # as a dict, names that come twice would go unnoticed
        strategies = dict(zip(names, strategies, strict=True))
    found: Strategies = {}
    for label, entry in strategies.items():
        strategy, net = entry if isinstance(entry, tuple) else (entry, None)
        strategy = make_strategy(strategy) if isinstance(strategy, str) else as_strategy(strategy) or adapt(strategy)
        if not callable(strategy) or isinstance(strategy, type):
            expected = "names, strategies of skal.base.QueryStrategy or functions, or a mapping of names to these"
            remedy = "Pass an object, a function f(learner, X_pool, n_instances), or an object of scikit-activeml."
            raise InvalidTypeError.for_parameter("run_benchmark", "strategies", expected, entry, remedy)
        found[str(label)] = (strategy, own_net if net is None else net)
    return found


def _name(value: Any, bunch: Any = None) -> str:
    """The name of the data or the net in the report; never a path, which differs between machines."""
    if isinstance(value, str) and not value.endswith(".npz"):
        return value
    return str(getattr(value if bunch is None else bunch, "name", type(value).__name__))


def _describe_net(net: Any) -> str:
    """The parameters of the user's net, without addresses and sets, which differ between processes."""
    params = {name: value for name, value in net.get_params(deep=False).items() if not name.startswith("_")}
    return re.sub(r" at 0x[0-9a-f]+", "", repr(sorted(params.items())))


def _refuse_other(run: Run, strategy: Any) -> None:
    if run.record.get("strategy") != describe(strategy):
        raise InvalidParameterError(
            f"The strategy {run.strategy!r} must be the one whose runs are in the folder, "
            f"{run.record.get('strategy')}. Got {describe(strategy)} instead. "
            "Give it another name, or choose another folder."
        )


def _check_runnable(protocol: Protocol, strategies: Strategies, data: Data) -> None:
    """Refuse settings that would fail, before the first run."""
    data.pool(protocol, 0)
    for strategy, net in strategies.values():
        if (made := as_strategy(strategy)) is not None:
            made.check_task(protocol.task)
        if net is None:
            make_net(protocol, data.X_train.shape[1:], data.n_classes, strategy)
