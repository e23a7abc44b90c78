"""Every strategy with a small network, to be asked on one device and on another.

The networks are trained on the processor, and copied: what is compared is the query, not the training.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from skorch import NeuralNetClassifier, NeuralNetRegressor
from torch import nn

from skal.datasets import load
from skal.loss_prediction import LossPredictionClassifier
from skal.nets import CNN, MLP, SquaredLoss
from skal.strategies import (
    ALBL,
    BADGE,
    BAIT,
    BALD,
    EGL,
    EPIG,
    LCMD,
    NPC,
    ClusterMargin,
    CoreSet,
    DropQuery,
    DynamicAL,
    Entropy,
    Falcun,
    LearningLoss,
    LeastConfidence,
    Margin,
    MaxDet,
    MaxHerding,
    NTKLookahead,
    PredictiveStd,
    ProbCover,
    RandomSampling,
    TypiClust,
    UHerding,
)
from skal.strategies._names import make_strategy

N_LABELLED, N_POOL, N_PICKS = 40, 200, 8


class Case(NamedTuple):
    """A strategy, and the kind of network that it is asked with."""

    make: Callable[..., Any]
    kind: str = "classes"
    on_device: bool = False  # whether the strategy itself holds a module: then ``make`` takes the device


@cache
def _frozen() -> nn.Module:
    """A network that is not trained, for features."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 24))


def _frozen_on(device: str) -> nn.Module:
    return copy.deepcopy(_frozen()).to(device)


@cache
def _digits() -> Any:
    return load("digits")


@cache
def _target() -> np.ndarray:
    return _digits().X_test[:60].reshape(-1, 1, 8, 8)


CASES: dict[str, Case] = {
    "RandomSampling": Case(partial(RandomSampling, random_state=0)),
    "LeastConfidence": Case(LeastConfidence),
    "Margin": Case(Margin),
    "Entropy": Case(Entropy),
    "LearningLoss": Case(LearningLoss, "loss"),
    "CoreSet": Case(CoreSet),
    "BADGE": Case(partial(BADGE, random_state=0)),
    "ClusterMargin": Case(partial(ClusterMargin, random_state=0)),
    "Falcun": Case(partial(Falcun, random_state=0)),
    "DropQuery": Case(partial(DropQuery, random_state=0)),
    "BAIT": Case(partial(BAIT, random_state=0)),
    "MaxHerding": Case(partial(MaxHerding, random_state=0)),
    "MaxHerding, laplace": Case(partial(MaxHerding, kernel="laplace", random_state=0)),
    "MaxHerding, cosine": Case(partial(MaxHerding, kernel="cosine", random_state=0)),
    "MaxHerding, tangent": Case(partial(MaxHerding, kernel="tangent", random_state=0)),
    "MaxHerding, target": Case(lambda: MaxHerding(target=_target(), random_state=0)),
    "UHerding": Case(partial(UHerding, random_state=0)),
    "UHerding, forest": Case(partial(UHerding, kernel="forest", random_state=0)),
    "UHerding, dynamics": Case(partial(UHerding, uncertainty="dynamics", random_state=0)),
    "UHerding, target": Case(lambda: UHerding(target=_target(), random_state=0)),
    "TypiClust": Case(partial(TypiClust, random_state=0)),
    "ProbCover": Case(partial(ProbCover, random_state=0)),
    "ALBL": Case(partial(ALBL, random_state=0)),
    "BALD": Case(partial(BALD, random_state=0)),
    "BALD, joint": Case(partial(BALD, batch="joint", random_state=0)),
    "EPIG": Case(partial(EPIG, random_state=0)),
    "EGL, last layer": Case(partial(EGL, layers="last")),
    "EGL": Case(EGL),
    "DynamicAL": Case(DynamicAL),
    "DynamicAL, greedy": Case(partial(DynamicAL, batch="greedy", random_state=0)),
    "NTKLookahead": Case(partial(NTKLookahead, random_state=0)),
    "NTKLookahead, exact": Case(partial(NTKLookahead, n_features=None, random_state=0)),
    "NTKLookahead, target": Case(lambda: NTKLookahead(target=_target(), random_state=0)),
    "NTKLookahead, last blocks": Case(partial(NTKLookahead, layers="last_blocks", random_state=0)),
    "NTKLookahead, rbf": Case(partial(NTKLookahead, kernel="rbf", random_state=0)),
    "NTKLookahead, forest": Case(partial(NTKLookahead, kernel="forest", random_state=0)),
    "NTKLookahead, mlmoc": Case(partial(NTKLookahead, criterion="mlmoc", random_state=0), "squared"),
    "NTKLookahead, emoc, entk": Case(
        partial(NTKLookahead, criterion="emoc", kernel="entk", n_features=None, subset=40, random_state=0), "squared"
    ),
    "NTKLookahead, eer": Case(partial(NTKLookahead, criterion="eer", random_state=0), "squared"),
    "LCMD": Case(partial(LCMD, random_state=0)),
    "MaxDet": Case(partial(MaxDet, random_state=0)),
    "PredictiveStd": Case(partial(PredictiveStd, random_state=0), "numbers"),
    "PredictiveStd, dropout": Case(partial(PredictiveStd, source="dropout", random_state=0), "numbers"),
    "NPC": Case(partial(NPC, n_candidates=100, random_state=0)),
    "NPC, greedy": Case(partial(NPC, search="greedy", random_state=0)),
    "auto": Case(partial(make_strategy, "auto")),
    "auto, numbers": Case(partial(make_strategy, "auto"), "numbers"),
    "auto, several labels": Case(partial(make_strategy, "auto"), "several labels"),
    **{
        f"{cls.__name__}, {kind}": Case(partial(cls, random_state=0), kind)
        for kind, classes in {
            "numbers": (CoreSet, MaxHerding, TypiClust, BADGE, BAIT, LCMD, MaxDet, NTKLookahead),
            "several labels": (UHerding, BADGE, BAIT, LCMD, MaxDet, NTKLookahead),
        }.items()
        for cls in classes
    },
    "Margin, several labels": Case(Margin, "several labels"),
    "CoreSet, frozen module": Case(lambda device: CoreSet(features=_frozen_on(device)), on_device=True),
    "UHerding, frozen module": Case(
        lambda device: UHerding(features=_frozen_on(device), random_state=0), on_device=True
    ),
}


def _net(kind: str) -> Any:
    settings: dict[str, Any] = {"train_split": None, "verbose": 0, "max_epochs": 10, "lr": 0.05}
    if kind == "numbers":
        return NeuralNetRegressor(MLP(64, 1, hidden=(32,), dropout=0.1), **settings)
    if kind == "several labels":
        return NeuralNetClassifier(MLP(64, 4, hidden=(32,)), criterion=nn.BCEWithLogitsLoss, classes=[0, 1], **settings)
    criterion = SquaredLoss if kind in ("squared", "near copies") else nn.CrossEntropyLoss
    cls = LossPredictionClassifier if kind == "loss" else NeuralNetClassifier
    module = CNN(in_channels=1, n_classes=10, image_size=8, dropout=0.0005 if kind == "faint dropout" else 0.2)
    return cls(module, criterion=criterion, optimizer=torch.optim.Adam, **(settings | {"lr": 0.002}))


def _targets(kind: str, y: np.ndarray) -> np.ndarray:
    if kind == "numbers":
        return (y[:, None] / 5 - 1).astype(np.float32)
    if kind == "several labels":
        return np.stack([y % 2 == 0, y > 4, y % 3 == 0, y < 2], axis=1).astype(np.float32)
    return y


@cache
def _trained(kind: str, n_labelled: int) -> Any:
    """A net that has learned from the first digits, on the processor."""
    digits = _digits()
    X = digits.X_train.reshape(-1, 1, 8, 8) if kind not in ("numbers", "several labels") else digits.X_train
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return _net(kind).fit(X[:n_labelled], _targets(kind, digits.y_train[:n_labelled]))


def to_device(net: Any, device: str) -> Any:
    """A copy of a fitted net that lives on a device."""
    other = copy.deepcopy(net)
    other.device = device
    other.module_.to(device)
    other.criterion_.to(device)
    return other


def make_case(
    case: Case, device: str, n_pool: int = N_POOL, n_labelled: int = N_LABELLED
) -> tuple[Any, Any, np.ndarray]:
    """A strategy, a learner whose network lives on a device, and a pool on the host."""
    digits = _digits()
    X = digits.X_train[: n_labelled + n_pool]
    X = X if case.kind in ("numbers", "several labels") else X.reshape(-1, 1, 8, 8)
    if case.kind == "near copies":  # the pool begins with the labelled samples, and a little noise
        noise = np.random.default_rng(0).normal(scale=1e-3, size=X[:n_labelled].shape).astype(X.dtype)
        X = np.concatenate([X[:n_labelled], X[:n_labelled] + noise, X[2 * n_labelled :]])
    y = _targets(case.kind, digits.y_train[:n_labelled])
    net = to_device(_trained(case.kind, n_labelled), device)
    learner = SimpleNamespace(estimator=net, X_training=X[:n_labelled], y_training=y)
    return case.make(device) if case.on_device else case.make(), learner, X[n_labelled:]
