"""Counts that would run for ever: every parameter that counts something, with 10**30, wherever it is taken."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from sklearn.naive_bayes import GaussianNB

import skal.nets
from benchmarks._attack_cases import REFUSED
from benchmarks._attack_commands import Named, ended
from skal import ActiveLearner, ActiveLearningClassifier, LinearizedLearner, set_config
from skal.bench import run_benchmark
from skal.callbacks import StopAtTrainAccuracy
from skal.datasets import load
from skal.diagnostics import convergence
from skal.features import PixelFeatures
from skal.loss_prediction import LossPredictionClassifier
from skal.semi_supervised import FixMatchClassifier, StrongImage, darp
from skal.stopping import forecast_accuracy, wilson_interval
from skal.tangent import tangent_features, tangent_kernel

HUGE = 10**30

# of strategies, by name
COUNTS = {
    "batch_size",
    "evaluation",
    "horizon",
    "max_clusters",
    "n_candidates",
    "n_clusters",
    "n_features",
    "n_jobs",
    "n_neighbors",
    "n_passes",
    "n_samples",
    "n_targets",
    "n_trials",
    "oversample",
    "subset",
    "verbose",
}

_LABELS = ("--n-initial", "--query-size", "--n-rounds", "--seeds")
_COMMANDS = [
    *(f"{command} {flag}" for command in ("demo", "bench") for flag in _LABELS),
    *(f"bench {flag}" for flag in ("--max-epochs", "--n-pool", "--n-test", "--jobs")),
    *(f"label --demo {flag}" for flag in ("--query-size", "--port")),
    "label --classes a,b --size",
]


def counts(learner: Any, X: np.ndarray, folder: Path) -> Named:
    """Learners, loops, benchmarks, networks, training, features, diagnostics and commands; strategies are elsewhere."""
    for name, call in (_calls(learner, X) | _networks()).items():
        yield name, REFUSED, call
    for command in _COMMANDS:
        for what, number in {"10**30": str(HUGE), "5,000 digits": "9" * 5000}.items():
            arguments = [*command.split(), number, "--out", str(folder / "counts")]
            if "--size" in command:
                arguments.append(str(folder))
            yield f"skal {command} {what}", REFUSED, lambda a=arguments: ended(a)


def _calls(learner: Any, X: np.ndarray) -> dict[str, Callable[[], Any]]:
    net, y_labelled = learner.estimator, learner.y_training
    flat, y = X.reshape(len(X), -1), np.arange(len(X)) % 4
    loop: dict[str, Any] = {"n_initial": 8, "n_rounds": 1, "query_size": 4, "random_state": 0}
    small = {"net": "logistic", "n_rounds": 1, "seeds": 1, "n_initial": 8, "query_size": 4, "max_epochs": 2}

    def training(cls: type, **changes: Any) -> Any:
        module, criterion = type(net.module_), net.criterion
        return cls(module, criterion=criterion, train_split=None, verbose=0, max_epochs=1, **changes)

    def fixmatch(**changes: Any) -> Any:
        return training(FixMatchClassifier, **changes).fit(X, np.where(np.arange(len(X)) < 8, y, -1))

    def fitted_loop(**changes: Any) -> Any:
        return ActiveLearningClassifier(GaussianNB(), **(loop | changes)).fit(flat, y)

    def benchmark(**changes: Any) -> Any:
        return run_benchmark(changes.pop("strategies", ["random"]), **({"data": (flat, y)} | small | changes))

    def linearized(**changes: Any) -> Any:
        return LinearizedLearner(clone(net), None, learner.X_training, y_labelled, **changes)

    def session_forecast() -> Any:
        session = ActiveLearningClassifier(GaussianNB(), **loop).start(flat)
        return session.forecast(HUGE)

    def stopping() -> Any:
        callbacks = [("stop", StopAtTrainAccuracy(every=HUGE))]
        return clone(net).set_params(callbacks=callbacks).fit(learner.X_training, y_labelled)

    curve = [10, 20, 30, 40], np.ones((4, 9), dtype=bool)
    calls: dict[str, Callable[[], Any]] = {
        "ActiveLearner.query(n_instances)": lambda: ActiveLearner(net, "margin").query(X, HUGE),
        "LinearizedLearner(retrain_every)": lambda: linearized(retrain_every=HUGE),
        "LossPredictionClassifier(hidden)": lambda: training(LossPredictionClassifier, hidden=HUGE).initialize(),
        "LossPredictionClassifier(cut_after)": lambda: training(LossPredictionClassifier, cut_after=HUGE).initialize(),
        "StrongImage(n_ops)": lambda: StrongImage(n_ops=HUGE)(torch.as_tensor(X)),
        "darp(max_iter)": lambda: darp(np.full((4, 2), 0.5), max_iter=HUGE),
        "tangent_features(n_features)": lambda: tangent_features(net, X, n_features=HUGE),
        "tangent_features(batch_size)": lambda: tangent_features(net, X, batch_size=HUGE),
        "tangent_kernel(batch_size)": lambda: tangent_kernel(net, X, batch_size=HUGE),
        "convergence(n_steps)": lambda: convergence(np.eye(2), np.eye(2), 0.5, HUGE),
        "wilson_interval(n)": lambda: wilson_interval(1, HUGE),
        "forecast_accuracy(more)": lambda: forecast_accuracy(*curve, more=HUGE),
        "forecast_accuracy(n_bootstrap)": lambda: forecast_accuracy(*curve, n_bootstrap=HUGE),
        "PixelFeatures(size)": lambda: PixelFeatures(HUGE).transform([]),
        "LabellingSession.forecast(more)": session_forecast,
        "load(image_size)": lambda: load("digits", image_size=HUGE),
        "set_config(batch_size)": lambda: set_config(batch_size=HUGE),
        "StopAtTrainAccuracy(every)": stopping,
    }
    for name in ("mu", "iterations_per_epoch", "darp_every", "batch_size"):
        calls[f"FixMatchClassifier({name})"] = lambda n=name: fixmatch(**{n: HUGE})
    for name in ("n_initial", "query_size", "n_rounds", "budget", "verbose"):
        calls[f"ActiveLearningClassifier({name})"] = lambda n=name: fitted_loop(**{n: HUGE})
    for name in (
        "n_jobs",
        "n_rounds",
        "seeds",
        "n_initial",
        "query_size",
        "max_epochs",
        "batch_size",
        "n_pool",
        "n_test",
    ):
        calls[f"run_benchmark({name})"] = lambda n=name: benchmark(**{n: HUGE})
    return calls


def _networks() -> dict[str, Callable[[], Any]]:
    """Every size of every network."""
    required = {"MLP": {"n_features": 4, "n_classes": 2}, "CNN": {"in_channels": 1, "image_size": 8}}
    calls: dict[str, Callable[[], Any]] = {}
    for name in skal.nets.__all__:
        cls = getattr(skal.nets, name)
        for parameter in inspect.signature(cls).parameters.values():
            is_size = isinstance(parameter.default, int) and not isinstance(parameter.default, bool)
            if is_size or parameter.default is parameter.empty:
                given = required.get(name, {}) | {parameter.name: HUGE}
                calls[f"{name}({parameter.name})"] = lambda c=cls, g=given: c(**g)
    return calls
