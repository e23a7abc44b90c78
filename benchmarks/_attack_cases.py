"""What users do wrong, case by case: pools, learners and labels that cannot work, or only just."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from skorch import NeuralNetBinaryClassifier, NeuralNetClassifier, NeuralNetRegressor
from skorch.dataset import Dataset as SkorchDataset
from torch import nn
from torch.utils.data import Subset, TensorDataset

from benchmarks._attack_datasets import Items, Stream
from skal.checks import make_learner
from skal.loss_prediction import LossPredictionClassifier


def _quietly(make: Callable[[], Any]) -> Any:
    """What numpy and torch make with a warning, and some users still have."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


REFUSED, MAY_WORK = "must be refused", "may work"


class Returning(nn.Module):
    """A module whose forward returns what a function makes of its logits."""

    def __init__(self, change: Callable[[torch.Tensor], Any], n_classes: int = 4) -> None:
        super().__init__()
        self.hidden, self.dropout = nn.Linear(64, 16), nn.Dropout(0.2)
        self.head, self.change = nn.Linear(16, n_classes), change

    def forward(self, x: torch.Tensor) -> Any:
        """Whatever the function makes."""
        return self.change(self.head(self.dropout(torch.relu(self.hidden(x.flatten(1))))))


class _WithoutGradient(Returning):
    """Written for predictions alone."""

    def __init__(self, mode: Any) -> None:
        super().__init__(lambda z: z)
        self.mode = mode

    def forward(self, x: torch.Tensor) -> Any:
        """The logits, cut off from the parameters."""
        with self.mode():
            return super().forward(x)


class _Silent(ClassifierMixin, BaseEstimator):
    """A classifier of another library, whose predict_proba gives what it should not."""

    def __init__(self, value: Any = None) -> None:
        self.value, self.classes_ = value, np.arange(4)

    def fit(self, X: Any, y: Any) -> _Silent:
        """Learns nothing."""
        return self

    def predict_proba(self, X: Any) -> Any:
        """Always the same."""
        return self.value

    predict = predict_proba


def _cut_off(learner: Any, mode: Any) -> Any:
    return _fitted(learner, module=_WithoutGradient(mode))


def _on_meta(learner: Any) -> Any:
    made = _returning(learner, lambda z: z)
    made.estimator.module_.to("meta")
    return made


def _plain() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4))


def _nan_for_some(z: torch.Tensor) -> torch.Tensor:
    """NaN for about a tenth of the samples."""
    return torch.where((z[:, :1] * 1000).floor() % 10 == 0, torch.nan, z)


def _along_the_batch(z: torch.Tensor) -> torch.Tensor:
    """Each row with a part of the one before, as of a recurrent layer that takes samples for steps."""
    return z + 0.5 * torch.cat([torch.zeros_like(z[:1]), z[:-1]])


# outputs that depend on more than the sample, in eval mode
BY_BATCH: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "differences from the batch's mean": lambda z: z - z.mean(0),
    "batch norm that is always training": lambda z: nn.functional.batch_norm(z, None, None, training=True),
    "a softmax over the batch": lambda z: 10 * z.softmax(0),
    "sums along the batch": _along_the_batch,
}
BY_CHANCE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "noise": lambda z: z + torch.randn_like(z),
    "a little noise": lambda z: z + 0.01 * torch.randn_like(z),
    "dropout that is always on": lambda z: nn.functional.dropout(z, 0.2),
}


def _fail(row: int) -> Any:
    raise OSError("image file is truncated")


def _object_rows(X: np.ndarray) -> np.ndarray:
    rows = np.empty(len(X), dtype=object)
    rows[:] = list(X)
    return rows


def pools(X: np.ndarray) -> dict[str, tuple[str, Any]]:
    """Pools by name, each with what must happen; X is (40, 1, 8, 8)."""
    flat = X.reshape(len(X), -1)
    return {
        "float64": (MAY_WORK, X.astype(np.float64)),
        "float16": (MAY_WORK, X.astype(np.float16)),
        "longdouble": (MAY_WORK, X.astype(np.longdouble)),
        "complex": (REFUSED, X.astype(np.complex64)),
        "uint8": (MAY_WORK, (X * 255).astype(np.uint8)),
        "int64": (MAY_WORK, (X * 255).astype(np.int64)),
        "int tensor": (MAY_WORK, torch.as_tensor((X * 255).astype(np.int64))),
        "bool": (MAY_WORK, X > 0.5),
        "float64 tensor": (MAY_WORK, torch.as_tensor(X).double()),
        "float64 Dataset": (MAY_WORK, TensorDataset(torch.as_tensor(X).double())),
        "uint8 Dataset": (MAY_WORK, Items(40, lambda row: (X[row] * 255).astype(np.uint8))),
        "flat": (REFUSED, flat),
        "too few columns": (REFUSED, X[..., :3]),
        "too many columns": (REFUSED, np.concatenate([X, X], axis=-1)),
        "three channels": (REFUSED, np.concatenate([X] * 3, axis=1)),
        "no channel": (MAY_WORK, X[:, 0]),
        "1-d": (REFUSED, flat[:, 0]),
        "0-d": (REFUSED, np.float32(1)),
        "one dimension more": (REFUSED, X[None]),
        "transposed": (REFUSED, np.ascontiguousarray(X.T)),
        "no columns": (REFUSED, X[..., :0]),
        "ragged list": (REFUSED, [x.ravel()[: 3 + i % 2].tolist() for i, x in enumerate(X)]),
        "list of arrays": (MAY_WORK, list(X)),
        "list of arrays of two shapes": (REFUSED, [x[:, : 8 - i % 2] for i, x in enumerate(X)]),
        "list of paths": (REFUSED, [f"images/{i}.png" for i in range(40)]),
        "array of strings": (REFUSED, np.array([f"images/{i}.png" for i in range(40)])),
        "list of None": (REFUSED, [None] * 40),
        "list of dicts": (MAY_WORK, [{"x": x} for x in X]),
        "object array of rows": (MAY_WORK, _object_rows(X)),
        "object array of numbers": (MAY_WORK, X.astype(object)),
        "object array with None": (REFUSED, np.where(X > 0.5, None, X)),
        "datetime": (REFUSED, np.zeros((40, 3), dtype="datetime64[s]")),
        "structured": (REFUSED, np.zeros(40, dtype=[("a", "f4"), ("b", "f4")])),
        "masked array": (REFUSED, np.ma.masked_greater(X, 0.9)),
        "masked array without masked entries": (MAY_WORK, np.ma.array(X)),
        "dict with a masked array": (REFUSED, {"x": np.ma.masked_greater(X, 0.9)}),
        "list of masked rows": (REFUSED, list(np.ma.masked_greater(X, 0.9))),
        "np.matrix": (MAY_WORK, _quietly(lambda: np.asmatrix(flat))),
        "big-endian": (MAY_WORK, X.astype(">f4")),
        "big-endian integers": (MAY_WORK, (X * 255).astype(">i4")),
        "meta tensor": (REFUSED, torch.empty(X.shape, device="meta")),
        "dict with a meta tensor": (REFUSED, {"x": torch.empty(X.shape, device="meta")}),
        "Dataset of meta tensors": (REFUSED, Items(40, lambda row: torch.empty(1, 8, 8, device="meta"))),
        "sparse tensor": (REFUSED, torch.as_tensor(X).to_sparse()),
        "sparse CSR tensor": (REFUSED, _quietly(lambda: torch.as_tensor(flat).to_sparse_csr())),
        "Dataset of sparse tensors": (REFUSED, Items(40, lambda row: torch.as_tensor(X[row]).to_sparse())),
        "Subset": (MAY_WORK, Subset(TensorDataset(torch.as_tensor(X)), range(40))),
        "data frame": (MAY_WORK, _frame(flat)),
        "data frame of words": (REFUSED, _frame(np.full((40, 3), "word"))),
        "series": (REFUSED, _frame(flat)[0]),
        "sparse": (REFUSED, __import__("scipy.sparse").sparse.csr_matrix(flat)),
        "dict of another input": (REFUSED, {"no_such_input": X}),
        "dict of two lengths": (REFUSED, {"x": X, "y": X[:3]}),
        "empty dict": (REFUSED, {}),
        "generator": (REFUSED, (x for x in X)),
        "None": (REFUSED, None),
        "a number": (REFUSED, 7),
        "a text": (REFUSED, "images/"),
        "set": (REFUSED, {1.0, 2.0, 3.0}),
        "a class": (REFUSED, TensorDataset),
        "NaN": (REFUSED, np.where(np.arange(40)[:, None, None, None] == 7, np.nan, X)),
        "huge": (MAY_WORK, np.where(np.arange(40)[:, None, None, None] == 7, np.float32(3e38), X)),
        "all huge": (MAY_WORK, np.full_like(X, 3e38)),
        "float64 beyond float32": (REFUSED, X.astype(np.float64) * 1e300),
        "infinite Dataset": (REFUSED, TensorDataset(torch.full((40, 1, 8, 8), torch.inf))),
        "corrupt Dataset": (REFUSED, Items(40, lambda row: X[row] if row != 30 else _fail(row))),
        "Dataset of two shapes": (REFUSED, Items(40, lambda row: X[row] if row != 30 else X[row][:, :3])),
        "Dataset of None": (REFUSED, Items(40, lambda row: None)),
        "Dataset of paths": (REFUSED, Items(40, lambda row: f"images/{row}.png")),
        "Dataset of dicts of another input": (REFUSED, Items(40, lambda row: {"no_such_input": X[row]})),
        "Dataset of empty tuples": (REFUSED, Items(40, lambda row: ())),
        "Dataset shorter than it says": (REFUSED, Items(80, lambda row: X[row])),
        "Dataset of negative length": (REFUSED, Items(-1, lambda row: X[row])),
        "Dataset of PIL images": (REFUSED, Items(40, lambda row: __import__("PIL.Image").Image.fromarray(X[row][0]))),
        "stream": (REFUSED, Stream(X)),
    }


def _frame(values: np.ndarray) -> Any:
    import pandas as pd

    return pd.DataFrame(values)


def _fitted(learner: Any, cls: type = NeuralNetClassifier, module: Any = None, **params: Any) -> Any:
    """A net of another class, initialised; with the labelled samples of the learner."""
    settings = {"criterion": nn.CrossEntropyLoss, "train_split": None, "verbose": 0, "max_epochs": 1} | params
    net = cls(module or Returning(lambda z: z), **settings).initialize()
    return SimpleNamespace(estimator=net, X_training=learner.X_training, y_training=learner.y_training)


def _returning(learner: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    return _fitted(learner, module=Returning(change))


class _FewerColumns(SkorchDataset):
    """A dataset class that loses samples."""

    def __len__(self) -> int:
        return super().__len__() - 1


def _refitted(learner: Any) -> Any:
    """A Pipeline of which a step has been fitted again, on fewer columns."""
    flat = learner.X_training.reshape(len(learner.X_training), -1)
    steps = make_pipeline(StandardScaler(), FunctionTransformer(np.float32), PCA(10), FunctionTransformer(np.float32))
    net = NeuralNetClassifier(
        nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4)),
        criterion=nn.CrossEntropyLoss,
        train_split=None,
        verbose=0,
    )
    pipeline = make_pipeline(*steps, net).fit(flat, learner.y_training)
    pipeline[0].fit(flat[:, :10])
    return SimpleNamespace(
        estimator=make_pipeline(FunctionTransformer(_flat), *[step for _, step in pipeline.steps]),
        X_training=learner.X_training,
        y_training=learner.y_training,
    )


def _flat(X: Any) -> Any:
    return np.asarray(X).reshape(len(X), -1)


def _with(learner: Any, **changes: Any) -> Any:
    return SimpleNamespace(**(vars(learner) | changes))


def _configured(learner: Any, **settings: Any) -> Any:
    learner = deepcopy(learner)
    vars(learner.estimator).update(settings)
    return learner


def learners(learner: Any) -> dict[str, tuple[str, Callable[[], Any]]]:
    """Learners by name, each with what must happen to strategies that look at it."""
    y, X = learner.y_training, learner.X_training
    linear = LogisticRegression().fit(X.reshape(len(X), -1), y)
    return {
        "returns (n,)": (REFUSED, lambda: _returning(learner, lambda z: z[:, 0])),
        "returns (n, 1)": (REFUSED, lambda: _returning(learner, lambda z: z[:, :1])),
        "returns (n, C, 1)": (REFUSED, lambda: _returning(learner, lambda z: z[..., None])),
        "returns one row less": (REFUSED, lambda: _returning(learner, lambda z: z[1:])),
        "returns each row twice": (REFUSED, lambda: _returning(learner, lambda z: torch.cat([z, z]))),
        "returns one row": (REFUSED, lambda: _returning(learner, lambda z: z.mean(0, keepdim=True))),
        "returns a number": (REFUSED, lambda: _returning(learner, lambda z: z.sum())),
        "returns None": (REFUSED, lambda: _returning(learner, lambda z: None)),
        "returns a list": (REFUSED, lambda: _returning(learner, lambda z: [z])),
        "returns numpy": (REFUSED, lambda: _returning(learner, lambda z: z.detach().numpy())),
        "returns integers": (REFUSED, lambda: _returning(learner, lambda z: z.argmax(1))),
        "returns integer rows": (REFUSED, lambda: _returning(learner, lambda z: (9 * z).long())),
        "returns NaN": (REFUSED, lambda: _returning(learner, lambda z: z * torch.nan)),
        "returns complex": (REFUSED, lambda: _returning(learner, lambda z: torch.complex(z, z))),
        "returns probabilities": (REFUSED, lambda: _returning(learner, lambda z: z.softmax(1))),
        "returns NaN for a part": (REFUSED, lambda: _returning(learner, _nan_for_some)),
        **{
            f"returns {what}": (REFUSED, lambda c=change: _returning(learner, c))
            for what, change in {**BY_BATCH, **BY_CHANCE}.items()
        },
        "runs under no_grad": (MAY_WORK, lambda: _cut_off(learner, torch.no_grad)),
        "runs under inference_mode": (
            MAY_WORK,
            lambda: _cut_off(learner, torch.inference_mode),
        ),
        "weights on meta": (REFUSED, lambda: _on_meta(learner)),
        "jit.script": (MAY_WORK, lambda: _fitted(learner, module=torch.jit.script(_plain()))),
        "jit.trace": (MAY_WORK, lambda: _fitted(learner, module=torch.jit.trace(_plain(), torch.as_tensor(X[:2])))),
        "predict_proba gives None": (REFUSED, lambda: _with(learner, estimator=_Silent())),
        "predict_proba gives words": (REFUSED, lambda: _with(learner, estimator=_Silent(np.full((40, 4), "a")))),
        "predict_proba gives a number": (REFUSED, lambda: _with(learner, estimator=_Silent(0.5))),
        "predict_proba gives one column": (REFUSED, lambda: _with(learner, estimator=_Silent(np.zeros(40)))),
        "fails": (REFUSED, lambda: _returning(learner, lambda z: z[:, 99])),
        "fails by an attribute": (REFUSED, lambda: _returning(learner, lambda z: z.no_such_method())),
        "BCEWithLogitsLoss": (REFUSED, lambda: _fitted(learner, criterion=nn.BCEWithLogitsLoss)),
        "BCELoss": (REFUSED, lambda: _fitted(learner, criterion=nn.BCELoss)),
        "binary classifier of four outputs": (
            REFUSED,
            lambda: _fitted(learner, NeuralNetBinaryClassifier, criterion=nn.BCEWithLogitsLoss),
        ),
        "regressor of four outputs": (MAY_WORK, lambda: _fitted(learner, NeuralNetRegressor, criterion=nn.MSELoss)),
        "default criterion": (REFUSED, lambda: _fitted(learner, criterion=nn.NLLLoss)),
        "unfitted": (REFUSED, lambda: _with(learner, estimator=NeuralNetClassifier(Returning))),
        "net class": (REFUSED, lambda: _with(learner, estimator=NeuralNetClassifier)),
        "bare module": (REFUSED, lambda: _with(learner, estimator=Returning(lambda z: z))),
        "no estimator": (REFUSED, lambda: _with(learner, estimator=None)),
        "the net itself": (REFUSED, lambda: learner.estimator),
        "no learner": (REFUSED, lambda: None),
        "linear model on images": (MAY_WORK, lambda: _with(learner, estimator=linear)),
        "step refitted on fewer columns": (REFUSED, lambda: _refitted(learner)),
        "dataset class that loses rows": (MAY_WORK, lambda: _configured(learner, dataset=_FewerColumns)),
        "drop_last": (MAY_WORK, lambda: _configured(learner, iterator_valid__drop_last=True, dataset=SkorchDataset)),
        "collate that fails": (REFUSED, lambda: _configured(learner, iterator_valid__collate_fn=_fail)),
        "collate that gives None": (REFUSED, lambda: _configured(learner, iterator_valid__collate_fn=lambda x: None)),
    }


def labels(y: np.ndarray) -> dict[str, Any]:
    """Labels by name that a network with outputs 0 … 3 cannot have been trained with; y is (16,)."""
    return {
        "1 to C": y + 1,
        "negative": y - 1,
        "floats": y + 0.5,
        "whole floats": y.astype(np.float32),
        "NaN": np.where(y == 1, np.nan, y),
        "words": np.array(["a", "b", "c", "d"])[y],
        "one-hot": np.eye(4)[y],
        "several at once": np.tile([[0, 1, 1, 0]], (len(y), 1)),
        "column": y[:, None],
        "too few": y[:-1],
        "too many": np.append(y, 0),
        "None": None,
        "a number": 3,
        "list of None": [None] * len(y),
        "ragged": [[0], [1, 2]] * (len(y) // 2),
        "huge": y + 10**12,
        "objects": np.array([object() for _ in y]),
        "complex": y + 1j,
        "tensor on meta": torch.zeros(len(y), device="meta"),
        "masked in part": np.ma.array(y, mask=y == 1),
        "list with masked entries": list(np.ma.array(y, mask=y == 1)),
    }


# networks of which no strategy gets what it should
SILENT = {"returns NaN for a part", *(f"returns {what}" for what in (*BY_BATCH, *BY_CHANCE))}
# pools that no estimator can have looked at
NOTHING_THERE = {
    "masked array",
    "dict with a masked array",
    "list of masked rows",
    "meta tensor",
    "dict with a meta tensor",
    "Dataset of meta tensors",
}


def linear_learner(learner: Any) -> Any:
    """The same labelled samples, for a classifier without a network."""
    X = learner.X_training.reshape(len(learner.X_training), -1)
    model = LogisticRegression().fit(X, learner.y_training)
    return SimpleNamespace(estimator=model, X_training=X, y_training=learner.y_training)


def loss_predicting(learner: Any) -> Any:
    """The learner that LearningLoss works on."""
    module = type(learner.estimator.module_)
    net = LossPredictionClassifier(
        module, criterion=nn.CrossEntropyLoss, train_split=None, verbose=0, max_epochs=1, batch_size=8
    )
    return _with(learner, estimator=net.fit(learner.X_training, learner.y_training))


def fresh_learner() -> tuple[Any, np.ndarray]:
    """The small learner that the public checks use, and its pool."""
    torch.manual_seed(0)
    return make_learner()
