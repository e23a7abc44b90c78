"""Networks, pools and strategies on which the cost of a query is measured."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from skorch import NeuralNetClassifier
from torch import Tensor, nn

from skal.loss_prediction import LossPredictionClassifier
from skal.nets import CNN, MLP, ResNet18, SquaredLoss, WideResNet
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

STRATEGIES: dict[str, Callable[[], Any]] = {
    "RandomSampling": lambda: RandomSampling(random_state=0),
    "LeastConfidence": LeastConfidence,
    "Margin": Margin,
    "Entropy": Entropy,
    "LearningLoss": LearningLoss,
    "CoreSet": CoreSet,
    "BADGE": lambda: BADGE(random_state=0),
    "ClusterMargin": lambda: ClusterMargin(random_state=0),
    "Falcun": lambda: Falcun(random_state=0),
    "DropQuery": lambda: DropQuery(random_state=0),
    "BAIT": lambda: BAIT(random_state=0),
    "MaxHerding": lambda: MaxHerding(random_state=0),
    "UHerding": lambda: UHerding(random_state=0),
    "UHerding, forest": lambda: UHerding(kernel="forest", random_state=0),
    "UHerding, dynamics": lambda: UHerding(uncertainty="dynamics", random_state=0),
    "TypiClust": lambda: TypiClust(random_state=0),
    "ProbCover": lambda: ProbCover(random_state=0),
    "ALBL": lambda: ALBL(random_state=0),
    "BALD": lambda: BALD(random_state=0),
    "BALD, joint": lambda: BALD(batch="joint", random_state=0),
    "EPIG": lambda: EPIG(random_state=0),
    "EGL, last layer": lambda: EGL(layers="last"),
    "EGL": EGL,
    "DynamicAL": DynamicAL,
    "DynamicAL, greedy": lambda: DynamicAL(batch="greedy", random_state=0),
    "NTKLookahead": lambda: NTKLookahead(random_state=0),
    "NTKLookahead, 500 evaluation samples": lambda: NTKLookahead(evaluation=500, random_state=0),
    "NTKLookahead, last blocks": lambda: NTKLookahead(layers="last_blocks", random_state=0),
    "NTKLookahead, mlmoc": lambda: NTKLookahead(criterion="mlmoc", random_state=0),
    "MaxHerding, target": lambda: MaxHerding(random_state=0),
    "UHerding, target": lambda: UHerding(random_state=0),
    "NTKLookahead, target": lambda: NTKLookahead(random_state=0),
    "LCMD": lambda: LCMD(random_state=0),
    "MaxDet": lambda: MaxDet(random_state=0),
    "PredictiveStd": lambda: PredictiveStd(random_state=0),
    "NPC": lambda: NPC(n_candidates=100, random_state=0),
    "NPC, greedy": lambda: NPC(search="greedy", random_state=0),
}

N_TARGET = 500  # samples of a target


def make_strategy(name: str, X: np.ndarray) -> Any:
    """The strategy for a pool, whose last samples are its target where the name says so."""
    strategy = STRATEGIES[name]()
    return strategy.set_params(target=X[-N_TARGET:]) if name.endswith(", target") else strategy


class SmallTransformer(nn.Module):
    """Two encoder layers over 32 tokens, width 64, four heads; the mean over the tokens is classified."""

    def __init__(self, n_classes: int = 10, width: int = 64, dropout: float = 0.1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, n_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """(n, C) logits of (n, 32) tokens."""
        return self.head(self.dropout(self.encoder(self.embedding(tokens)).mean(1)))


class HeadDropoutCNN(CNN):
    """The tutorial's CNN with dropout before its last layer alone."""

    def __init__(self, n_classes: int = 10) -> None:
        super().__init__(n_classes=n_classes, dropout=0.1)
        self.dropout1, self.dropout2 = nn.Identity(), nn.Identity()


class Problem(NamedTuple):
    """A kind of network, how its samples are made, and how many there are by default."""

    module: Callable[..., nn.Module]
    samples: Callable[[int, np.random.Generator], np.ndarray]
    n_pool: int
    n_labelled: int = 100

    def make(self, n_pool: int, n_labelled: int, n_classes: int = 10, **params: Any) -> tuple[Any, np.ndarray]:
        """A learner whose network is as initialised, and a pool."""
        rng = np.random.default_rng(0)
        torch.manual_seed(0)
        module = self.module(n_classes=n_classes, **params)
        net = NeuralNetClassifier(module, criterion=nn.CrossEntropyLoss, train_split=None, verbose=0).initialize()
        X, y = self.samples(n_pool + n_labelled, rng), np.arange(n_labelled) % n_classes
        return SimpleNamespace(estimator=net, X_training=X[n_pool:], y_training=y), X[:n_pool]


def _features(n: int, rng: np.random.Generator) -> np.ndarray:
    centres = rng.normal(size=(20, 512))
    return (centres[rng.integers(20, size=n)] + rng.normal(size=(n, 512))).astype(np.float32)


def _images(n: int, rng: np.random.Generator) -> np.ndarray:
    return rng.normal(size=(n, 3, 32, 32)).astype(np.float32)


def _tokens(n: int, rng: np.random.Generator) -> np.ndarray:
    return rng.integers(1000, size=(n, 32))


def mlp(n_classes: int = 10, width: int = 128) -> MLP:
    """A head on 512 frozen features, with dropout before its last layer."""
    return MLP(512, n_classes, hidden=(width,), dropout=0.1)


PROBLEMS = {
    "MLP head": Problem(mlp, _features, 10_000),
    "tutorial CNN": Problem(HeadDropoutCNN, _images, 4_000),
    "small transformer": Problem(SmallTransformer, _tokens, 1_000),
}
# larger tensors for each sample, on which the number of samples per pass tells
LARGER = {
    "WRN-10-2": Problem(partial(WideResNet, 10, 2), _images, 1_024),
    "ResNet-18": Problem(ResNet18, _images, 512),
}


def learner_for(name: str, learner: Any) -> Any:
    """The learner as it is; MLMOC is made for squared loss, and learning loss for a network that predicts its own."""
    module, X, y = learner.estimator.module_, learner.X_training, learner.y_training
    if "mlmoc" in name:
        net = NeuralNetClassifier(module, criterion=SquaredLoss, train_split=None, verbose=0).initialize()
    elif name == "LearningLoss":
        settings = {"criterion": nn.CrossEntropyLoss, "train_split": None, "verbose": 0, "max_epochs": 1}
        net = LossPredictionClassifier(module, **settings).fit(X, y)
    else:
        return learner
    return SimpleNamespace(estimator=net, X_training=X, y_training=y)
