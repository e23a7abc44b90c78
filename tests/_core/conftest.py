"""Workers that the tests share: starting them takes longer than what they are asked to do."""

import numpy as np
import pytest
import torch
from joblib import parallel_config
from torch import nn

from skal.loss_prediction import LossPredictionClassifier
from skal.nets import CNN, SquaredLoss

from ..support.learners import learner_of


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


@pytest.fixture(scope="session")
def client():
    """A Dask cluster of two worker processes."""
    from distributed import Client, LocalCluster

    cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", memory_limit=0)
    with cluster, Client(cluster) as client:
        yield client


@pytest.fixture
def on_dask(client):
    """Inside, ``n_jobs=None`` is the Dask cluster."""
    with parallel_config(backend="dask"):
        yield client
