"""What the tests share."""

import numpy as np
import pytest
import torch
from hypothesis import settings
from skorch import NeuralNetClassifier
from torch import nn

from skal.checks import make_learner
from skal.loss_prediction import LossPredictionClassifier
from skal.nets import CNN, MLP, SquaredLoss

from .support.learners import learner_of

# the first example of a property pays for imports and warm-up: a deadline would fail it on a busy machine
settings.register_profile("skal", deadline=None, max_examples=25)
settings.load_profile("skal")


@pytest.fixture(scope="session")
def learner_and_pool():
    """A plain learner on small images, and a pool. The session shares it: use only what leaves it unchanged."""
    return make_learner()


@pytest.fixture
def learner(learner_and_pool):
    return learner_and_pool[0]


@pytest.fixture(name="X_pool")
def pool(learner_and_pool):
    return learner_and_pool[1]


def _make_net(n_features=5, n_classes=3, **params):
    settings = {
        "module__n_features": n_features,
        "module__n_classes": n_classes,
        "module__hidden": (8,),
        "criterion": nn.CrossEntropyLoss,
        "lr": 0.1,
        "max_epochs": 3,
        "train_split": None,
        "verbose": 0,
    }
    return NeuralNetClassifier(MLP, **(settings | params))


@pytest.fixture(scope="session")
def make_net():
    """Build an unfitted skorch net on flat data."""
    return _make_net


@pytest.fixture(scope="session")
def flat_data():
    """60 samples of 5 features in 3 classes."""
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    X = rng.normal(size=(60, 5)).astype(np.float32)
    X[np.arange(60), y] += 1.5
    return X, y


@pytest.fixture(scope="session")
def flat_learner(flat_data):
    """A plain learner with a fitted MLP on the first 15 samples."""
    X, y = flat_data
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = _make_net().fit(X[:15], y[:15])
    return learner_of(net, X[:15], y[:15])


@pytest.fixture(scope="session")
def images():
    """120 small images with labels of three classes, as float32."""
    rng = np.random.default_rng(0)
    y = np.arange(120) % 3
    X = rng.normal(size=(120, 1, 8, 8)).astype(np.float32)
    X[np.arange(120), 0, y] += 2
    return X, y


@pytest.fixture(scope="session")
def make_image_learner(images):
    """Learners with a fitted CNN with dropout, that predicts its own loss too."""
    X, y = images

    def make(criterion=nn.CrossEntropyLoss):
        module = CNN(in_channels=1, n_classes=3, image_size=8, dropout=0.2)
        settings = {"lr": 0.02, "max_epochs": 3, "train_split": None, "verbose": 0}
        with torch.random.fork_rng():
            torch.manual_seed(0)
            net = LossPredictionClassifier(module, criterion=criterion, **settings).fit(X[:20], y[:20])
        return learner_of(net, X[:20], y[:20])

    made = {}
    return lambda criterion=nn.CrossEntropyLoss: made.setdefault(criterion, make(criterion))


@pytest.fixture
def image_learner(make_image_learner):
    return make_image_learner()


@pytest.fixture
def squared_learner(make_image_learner):
    return make_image_learner(SquaredLoss)
