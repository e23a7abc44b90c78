"""Features are computed once for every sample, whoever asks, and found again on disk."""

import resource
import shutil
import threading
from typing import ClassVar

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from skorch import NeuralNetClassifier
from torch import nn

from skal import ActiveLearningClassifier, config_context
from skal.exceptions import FeatureError, InvalidTypeError
from skal.features import RememberedFeatures
from skal.strategies import CoreSet, MaxHerding, UHerding


@pytest.fixture(name="X")
def samples():
    return np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)


def counted(function):
    seen = []

    def counting(X):
        seen.append(len(X))
        return function(X)

    return counting, seen


def test_every_sample_is_computed_once_in_a_whole_loop(X):
    function, seen = counted(lambda X: X[:, :3] ** 2)
    features = RememberedFeatures(function)
    y = np.arange(60) % 3
    settings = {"n_initial": 6, "query_size": 6, "n_rounds": 4, "random_state": 0}
    loop = ActiveLearningClassifier(
        LogisticRegression(), UHerding(features=features), initial=MaxHerding(features=features), **settings
    ).fit(X, y)
    assert sum(seen) == features.n_computed_ == 60

    def plain(X):
        return X[:, :3] ** 2

    again = ActiveLearningClassifier(
        LogisticRegression(), UHerding(features=plain), initial=MaxHerding(features=plain), **settings
    ).fit(X, y)
    assert loop.queried_.tolist() == again.queried_.tolist()


def test_features_are_found_again_on_disk(X, tmp_path):
    first = RememberedFeatures(PCA(2).fit(X), folder=tmp_path / "features")
    expected = first.transform(X[:40])
    function = PCA(2).fit(X)
    second = RememberedFeatures(function, folder=tmp_path / "features")
    np.testing.assert_array_equal(second.transform(X[:40]), expected)
    assert second.n_computed_ == 0
    second.transform(X)
    assert second.n_computed_ == 20
    third = RememberedFeatures(function, folder=tmp_path / "features")
    np.testing.assert_allclose(third.transform(X[::-1]), function.transform(X[::-1]), rtol=1e-5, atol=1e-7)
    assert third.n_computed_ == 0


def test_half_a_row_on_disk_is_computed_again(X, tmp_path):
    function = PCA(2).fit(X)
    RememberedFeatures(function, folder=tmp_path).transform(X)
    content = (tmp_path / "features.bin").read_bytes()
    (tmp_path / "features.bin").write_bytes(content[: 41 * 8 + 3])
    again = RememberedFeatures(function, folder=tmp_path)
    np.testing.assert_allclose(again.transform(X), function.transform(X), rtol=1e-5)
    assert again.n_computed_ == 60 - 41
    assert RememberedFeatures(function, folder=tmp_path).transform(X).shape == (60, 2)


def test_a_backbone_is_run_in_evaluation_mode_and_its_weights_are_known(X, tmp_path):
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5)).train()
    features = RememberedFeatures(backbone, folder=tmp_path)
    with torch.no_grad(), config_context(batch_size=7):
        np.testing.assert_allclose(features.transform(X), backbone[0](torch.as_tensor(X)).numpy(), rtol=1e-5)
    assert backbone.training
    with pytest.raises(FeatureError, match=r"must have been computed by Sequential \w+\. Got those of Sequential"):
        RememberedFeatures(nn.Sequential(nn.Linear(5, 4)), folder=tmp_path).transform(X)


def test_copies_share_one_memory_and_copies_of_samples_one_row(X):
    features = RememberedFeatures(lambda X: X)
    assert clone(MaxHerding(features=features)).features is features
    np.testing.assert_array_equal(features.transform(np.concatenate([X, X])), np.concatenate([X, X]))
    assert features.n_computed_ == 60


def test_other_containers():
    texts = ["a", "bb", "a"]
    features = RememberedFeatures(lambda texts: np.array([[len(text), 1] for text in texts]))
    assert features.transform(texts).tolist() == [[1, 1], [2, 1], [1, 1]]
    assert features.n_computed_ == 2
    both = RememberedFeatures(lambda X: X["a"] + X["b"].numpy())
    assert both.transform({"a": np.ones((2, 1)), "b": torch.tensor([[1.0], [2.0]])}).tolist() == [[2], [3]]


def test_what_cannot_be_remembered_is_refused(X):
    with pytest.raises(FeatureError, match=r"array of 60 rows .* Got shape \(59, 5\)"):
        RememberedFeatures(lambda X: X[1:]).transform(X)
    with pytest.raises(InvalidTypeError, match="'X' parameter of RememberedFeatures"):
        RememberedFeatures(lambda X: X).transform(torch.utils.data.TensorDataset(torch.ones(3, 2)))


def test_a_transformer_that_is_fitted_anew_gives_new_features(X, tmp_path):
    pca = PCA(2).fit(X[:20])
    features = RememberedFeatures(pca)
    np.testing.assert_allclose(features.transform(X), pca.transform(X))
    pca.fit(X[20:])
    np.testing.assert_allclose(features.transform(X), pca.transform(X))
    assert features.n_computed_ == 120
    RememberedFeatures(pca, folder=tmp_path).transform(X)
    with pytest.raises(FeatureError, match=r"must have been computed by PCA \w+\. Got those of PCA"):
        RememberedFeatures(PCA(2).fit(X[:20]), folder=tmp_path).transform(X)


scale = np.array([2.0])


def scaled(X):
    return X * scale


def test_functions_are_known_by_their_code_and_what_they_use(X, monkeypatch):
    pca = PCA(2).fit(X[:20])
    inside = RememberedFeatures(lambda X: pca.transform(X))
    np.testing.assert_allclose(inside.transform(X), pca.transform(X))
    pca.fit(X[20:])
    np.testing.assert_allclose(inside.transform(X), pca.transform(X))

    outside = RememberedFeatures(scaled)
    np.testing.assert_allclose(outside.transform(X), 2 * X)
    monkeypatch.setitem(globals(), "scale", np.array([3.0]))
    np.testing.assert_allclose(outside.transform(X), 3 * X)

    with torch.no_grad():
        backbone = nn.Linear(5, 2)
        method = RememberedFeatures(backbone.forward)
        first = method.transform(torch.as_tensor(X))
        backbone.bias += 1
        np.testing.assert_allclose(method.transform(torch.as_tensor(X)), first + 1, rtol=1e-5, atol=1e-6)


def test_what_cannot_be_looked_at_is_refused(X):
    class Locked:
        def __init__(self):
            self.lock = threading.Lock()

        def transform(self, X):
            return X

    with pytest.raises(InvalidTypeError, match=r"'features' parameter of RememberedFeatures must be .* pickled"):
        RememberedFeatures(Locked()).transform(X)


@pytest.mark.parametrize("kind", ["function", "transformer", "module", "dataset", "sparse"])
def test_a_loop_computes_the_features_of_a_sample_once(kind, X):
    seen = []

    class Counting(nn.Module):
        def forward(self, X):
            seen.append(len(X))
            return X[:, :3] ** 2

    class Transformer(PCA):
        def transform(self, X):
            seen.append(X.shape[0])
            return super().transform(X)

    def function(X):
        seen.append(len(X))
        return X[:, :3] ** 2

    y = np.arange(60) % 3
    features = {"function": function, "transformer": Transformer(3).fit(X), "sparse": Transformer(3).fit(X)}
    features = features.get(kind, Counting())
    samples = {"dataset": torch.utils.data.TensorDataset(torch.as_tensor(X), torch.as_tensor(y))}.get(kind, X)
    estimator = LogisticRegression() if kind != "dataset" else network(False)
    if kind == "sparse":
        samples = csr_matrix(X)
    seen.clear()
    ActiveLearningClassifier(
        estimator,
        CoreSet(features=features),
        initial=MaxHerding(features=features),
        n_initial=6,
        query_size=6,
        n_rounds=4,
        random_state=0,
    ).fit(samples, None if kind == "dataset" else y)
    assert sum(seen) == 60


class Backbone(nn.Sequential):
    """Counts the samples that pass in evaluation, where a digest does not see it."""

    seen: ClassVar[list[int]] = []

    def forward(self, X):
        if not self.training:
            self.seen.append(len(X))
        return super().forward(X)


def network(batch_norm):
    torch.manual_seed(0)
    layers = [nn.Linear(5, 8), *([nn.BatchNorm1d(8)] if batch_norm else []), nn.ReLU()]
    module = nn.Sequential(Backbone(*layers).requires_grad_(False), nn.Linear(8, 3))
    return NeuralNetClassifier(module, criterion=nn.CrossEntropyLoss, max_epochs=2, train_split=None, verbose=0)


@pytest.mark.parametrize("batch_norm", [False, True])
def test_frozen_layers_of_the_network_itself_are_run_once_unless_training_moves_them(batch_norm, X):
    y = np.arange(60) % 3
    settings = {"initial": "max_herding", "n_initial": 6, "query_size": 6, "n_rounds": 3, "random_state": 0}
    Backbone.seen.clear()
    ActiveLearningClassifier(network(batch_norm), CoreSet(), **settings).fit(X, y)
    over_the_pool = [n for n in Backbone.seen if n > 30]
    assert (len(over_the_pool) == 1) == (not batch_norm)


def test_a_checkpoint_does_not_depend_on_where_features_are_kept(X, tmp_path):
    y = np.arange(60) % 3
    pca = PCA(2).fit(X)

    def loop(folder, n_rounds):
        features = RememberedFeatures(pca, folder=folder)
        strategy = MaxHerding(features=features)
        settings = {"n_initial": 6, "query_size": 6, "random_state": 0, "checkpoint": tmp_path / "run"}
        return ActiveLearningClassifier(LogisticRegression(), strategy, n_rounds=n_rounds, **settings), features

    first, features = loop(tmp_path / "run" / "features", 3)
    session = first.start(X)
    session.tell(y[session.ask()])
    session.tell(y[session.ask()])
    del session
    moved = tmp_path / "moved"
    shutil.copytree(tmp_path / "run" / "features", moved)
    again, features = loop(moved, 3)
    assert len(again.fit(X, y).queried_) == 24
    assert features.n_computed_ == 0


def test_a_loop_does_not_keep_more_than_its_memory_allows(X):
    function, seen = counted(lambda X: X[:, :5])
    settings = {"n_initial": 6, "query_size": 6, "n_rounds": 2, "random_state": 0, "initial": "random"}
    loop = ActiveLearningClassifier(LogisticRegression(), MaxHerding(features=function), **settings)
    with config_context(max_memory=11_000):
        loop.fit(X, np.arange(60) % 3)
    assert sum(seen) > 120


def test_no_room_on_the_disk_is_named_and_loses_nothing(X, tmp_path):
    """For a while, files of this process may have 200 bytes: ten rows of five numbers."""
    limit, before = resource.RLIMIT_FSIZE, resource.getrlimit(resource.RLIMIT_FSIZE)
    remembered = RememberedFeatures(lambda X: -X, folder=tmp_path)
    for n_known in (0, 5):
        remembered.transform(X[:n_known]) if n_known else None
        resource.setrlimit(limit, (200, before[1]))
        try:
            with pytest.raises(
                FeatureError, match=rf"File too large.*Make room.*The features of {n_known} samples are"
            ):
                remembered.transform(X)
        finally:
            resource.setrlimit(limit, before)
    again = RememberedFeatures(lambda X: -X, folder=tmp_path)
    np.testing.assert_array_equal(again.transform(X), -X)
    assert again.n_computed_ == 55
