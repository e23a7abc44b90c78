"""Features are computed once for every sample, whoever asks, and found again on disk."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from torch import nn

from skal import ActiveLearningClassifier
from skal.exceptions import FeatureError, InvalidTypeError
from skal.features import RememberedFeatures
from skal.strategies import MaxHerding, UHerding


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
    np.testing.assert_allclose(third.transform(X[::-1]), function.transform(X[::-1]), rtol=1e-5)
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
    features = RememberedFeatures(backbone, folder=tmp_path, batch_size=7)
    with torch.no_grad():
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
    with pytest.raises(FeatureError, match=r"array of 60 rows .* Got shape \(60,\)"):
        RememberedFeatures(lambda X: X[:, 0]).transform(X)
    with pytest.raises(InvalidTypeError, match="'X' parameter of RememberedFeatures"):
        RememberedFeatures(lambda X: X).transform(torch.utils.data.TensorDataset(torch.ones(3, 2)))
