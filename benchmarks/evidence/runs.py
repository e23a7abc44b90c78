"""Runs, and the files they are kept in: a line of JSON for each, in ``results/SETTING.jsonl``.

Lines are only added, so that results can be committed, continued on another machine, and put together from several.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed
from tqdm import tqdm

from benchmarks.evidence.picks import describe_picks
from benchmarks.evidence.settings import ARMS, SETTINGS, Setting
from skal.bench import BenchmarkResult, Run
from skal.bench._pools import Data, find_data, make_data
from skal.bench._run import Task, run_task
from skal.bench._store import write_text
from skal.strategies._names import make_strategy

RESULTS = Path(__file__).with_name("results")
BLOCK = 5  # seeds of a setting before the next has its turn: whatever stops it, all settings have much the same number

Line = dict[str, Any]


def fingerprint(setting: Setting) -> str:
    """Hash of everything that decides a run, without arm and seed: lines of other settings are refused."""
    chosen = {name: value for name, value in setting.protocol.as_dict().items() if name not in _ASIDE}
    return sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:10]


_ASIDE = ("strategies", "seeds", "notes", "title", "reference", "initial")


@lru_cache(maxsize=1)
def _data(name: str) -> Data:
    setting = SETTINGS[name]
    found = find_data(setting.protocol.data, setting.protocol.data_params)
    if setting.rows:
        found.X_train, found.X_test = (X.reshape(len(X), -1) for X in (found.X_train, found.X_test))
    return make_data(found, setting.protocol)


def make_run(name: str, arm: str, seed: int) -> Line:
    """One run as a line: what came out, what was picked, and how long it took."""
    chosen = make_strategy(ARMS[arm].strategy)
    run, seconds = time_run(SETTINGS[name], arm, seed, chosen, ARMS[arm].initial)
    return as_line(SETTINGS[name], run, seconds)


def as_line(setting: Setting, run: Run, seconds: float) -> Line:
    """A run as it is kept."""
    data, arm, seed = _data(setting.name), run.strategy, run.seed
    positions = json.dumps([run.initial, run.queried]).encode()
    return {
        "arm": arm,
        "seed": seed,
        "settings": fingerprint(setting),
        "n_labels": run.n_labels,
        "scores": [round(score, 6) for score in run.scores],
        "picks": describe_picks(data, data.pool(setting.protocol, seed), run),
        "queried": sha256(positions).hexdigest()[:10],
        "seconds": round(seconds, 2),
        "seconds_query": round(sum(run.seconds_query) / max(1, len(run.seconds_query)), 4),
        "warnings": run.warnings,
        "record": run.record,
    }


def time_run(
    setting: Setting, arm: str, seed: int, strategy: Any, initial: str | None, **settings: Any
) -> tuple[Run, float]:
    """A run, and the seconds of processor time that it took."""
    start = initial or setting.protocol.initial
    protocol, data = setting.protocol.with_settings(initial=start, **settings), _data(setting.name)
    began = time.process_time()
    run = run_task(Task(protocol, arm, seed, strategy, None), data)
    return run, time.process_time() - began


def measure(name: str, arm: str) -> float:
    """Seconds that a run will take, from one of two rounds: queries by their number, training by that of labels.

    The seed is none of those that count.
    """
    setting = SETTINGS[name]
    all_labels, n_rounds = setting.protocol.n_labels, min(2, setting.protocol.n_rounds)
    for n in (0, n_rounds):  # the first training in a process takes seconds more than any other
        chosen = make_strategy(ARMS[arm].strategy)
        run, seconds = time_run(setting, arm, setting.seeds, chosen, ARMS[arm].initial, n_rounds=n)
    fit, query = sum(run.seconds_fit), sum(run.seconds_query)
    longer_fit = fit * sum(all_labels) / sum(run.n_labels)
    longer_query = query * setting.protocol.n_rounds / max(1, n_rounds)
    # the share that is neither, scoring and bookkeeping, grows like the queries
    return seconds * (longer_fit + longer_query) / max(fit + query, 1e-9)


def read(setting: Setting, folder: Path = RESULTS) -> dict[tuple[str, int], Line]:
    """The lines of a setting by arm and seed; the first counts if there are two."""
    path = folder / f"{setting.name}.jsonl"
    found: dict[tuple[str, int], Line] = {}
    texts = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for number, text in enumerate(texts, start=1):
        try:
            line = json.loads(text)
        except json.JSONDecodeError as error:
            if number == len(texts):  # its writer was killed: the run is made again
                continue
            raise ValueError(f"{path}, line {number} is damaged ({error}). Delete the line.") from error
        if line["settings"] != fingerprint(setting):
            raise ValueError(
                f"{path}, line {number} was run with other settings than those in settings.py. Put the settings back, "
                "or delete the file to run them anew."
            )
        found.setdefault((line["arm"], line["seed"]), line)
    return found


def append(setting: Setting, line: Line, folder: Path = RESULTS) -> None:
    """Add a line, on the disk when this returns."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{setting.name}.jsonl"
    text = json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n"
    whole = path.read_bytes().rpartition(b"\n") if path.exists() else (b"", b"", b"")
    with path.open("ab") as file:
        file.truncate(len(whole[0]) + len(whole[1]))  # without what a killed writer left of a line
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())


def forget(setting: Setting, arms: Iterable[str], folder: Path = RESULTS) -> int:
    """Remove the lines of arms whose strategy has changed, and say how many."""
    path, arms = folder / f"{setting.name}.jsonl", set(arms)
    if not path.exists():
        return 0
    lines = path.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if json.loads(line)["arm"] not in arms]
    write_text(path, "".join(f"{line}\n" for line in kept))
    return len(lines) - len(kept)


def missing(setting: Setting, arms: Iterable[str], most: int, folder: Path = RESULTS) -> list[tuple[str, int]]:
    """Arms and seeds that have no line yet: a seed of all arms after the other."""
    done = read(setting, folder)
    wanted = [(arm, seed) for seed in range(most) for arm in arms if seed < setting.n_seeds(arm)]
    return [entry for entry in wanted if entry not in done]


def run_all(names: list[str], arms: list[str], seeds: int | None, jobs: int, hours: float | None, folder: Path) -> int:
    """Make the runs that are missing, block after block of seeds, and say how many failed."""
    ends = None if hours is None else time.monotonic() + 3600 * hours
    failed = 0
    most = max(SETTINGS[name].seeds for name in names)
    most = most if seeds is None else min(most, seeds)
    for last in range(BLOCK, most + BLOCK, BLOCK):
        for name in names:
            setting = SETTINGS[name]
            tasks = missing(setting, arms, min(last, most), folder)
            for line in tqdm(_make_runs(name, tasks, jobs, ends), name, len(tasks), file=sys.stderr, disable=not tasks):
                if isinstance(line, str):
                    failed += 1
                    print(line, file=sys.stderr, flush=True)
                else:
                    append(setting, line, folder)
    return failed


def _make_runs(name: str, tasks: list[tuple[str, int]], jobs: int, ends: float | None) -> Iterator[Line | str]:
    calls = (delayed(_attempt)(name, arm, seed) for arm, seed in tasks if ends is None or time.monotonic() < ends)
    return Parallel(n_jobs=jobs, return_as="generator_unordered", pre_dispatch="2*n_jobs")(calls)


def _attempt(name: str, arm: str, seed: int) -> Line | str:
    try:
        return make_run(name, arm, seed)
    except Exception:  # a run that fails must not take hours of others with it
        return f"{name}, {arm}, seed {seed}: {traceback.format_exc()}"


def as_result(setting: Setting, arms: list[str], folder: Path = RESULTS) -> BenchmarkResult | None:
    """The lines of some arms as a result of skal.bench, without what was queried; None if there are none."""
    lines = {key: line for key, line in read(setting, folder).items() if key[0] in arms}
    runs = [
        Run(
            strategy=arm,
            seed=seed,
            n_labels=line["n_labels"],
            scores=line["scores"],
            train_scores=[float("nan")] * len(line["scores"]),
            initial=[],
            queried=[],
            seconds_fit=[float("nan")] * len(line["scores"]),
            seconds_query=[line["seconds_query"]] * (len(line["scores"]) - 1),
            warnings=line["warnings"],
            record=line["record"],
        )
        for (arm, seed), line in sorted(lines.items(), key=lambda entry: entry[0][1])
    ]
    protocol = setting.protocol.with_settings(
        strategies=tuple(arms), seeds=setting.seeds, title=setting.name.replace("_", " ")
    )
    return BenchmarkResult(protocol, runs) if runs else None
