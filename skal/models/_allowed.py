# SPDX-License-Identifier: BSD-3-Clause
"""What a model's file may name, checked before anything is imported or made.

scikit-learn's estimators are on skops' own list. This one adds what skal writes. A class of a network is allowed as a
name alone: skorch restores an object of one by unpickling, so a file that brings such an object is refused.
"""

from __future__ import annotations

import importlib
import io
import json
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any
from zipfile import ZIP_STORED, ZipFile

import numpy as np
import skorch
import torch
from sklearn.base import TransformerMixin
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
    RandomTreesEmbedding,
)
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from torch import nn

from skal import features, nets
from skal.exceptions import CheckpointError, shorten
from skal.features._own_file import FileFeatures, load_trusted
from skal.features._zoo import BUNDLES

# parts of scikit-learn's estimators that are no estimators, and what skal puts beside them; none of them runs anything
_OBJECTS = {
    "numpy.dtype",
    "sklearn.calibration._CalibratedClassifier",
    "sklearn.calibration._SigmoidCalibration",
    "sklearn.compose._column_transformer._RemainderColsList",  # before scikit-learn 1.9
    "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",  # its indices are checked, see check_trees
    "sklearn.gaussian_process._gpc._BinaryGaussianProcessClassifierLaplace",
    *(
        f"sklearn.gaussian_process.kernels.{name}"
        for name in ("ConstantKernel", "Product", "RBF", "Sum", "WhiteKernel")
    ),
    "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
    "sklearn.neural_network._stochastic_optimizers.SGDOptimizer",
    "sklearn.tree._tree.Tree",  # its indices are checked, too
    "sklearn.utils._bunch.Bunch",
    "skal.models._persist.SavedNetwork",
    "skal.models._persist.SavedTensor",
}
_CLASSES = {
    "skal.loss_prediction._loss_classifier.LossPredictionClassifier",
    "skal.semi_supervised._averaging.AveragingClassifier",
    "skal.semi_supervised._fixmatch.FixMatchClassifier",
    "skorch.classifier.NeuralNetBinaryClassifier",
    "skorch.classifier.NeuralNetClassifier",
    "skorch.dataset.Dataset",
    "skorch.net.NeuralNet",
    "skorch.regressor.NeuralNetRegressor",
    "torch.utils.data.dataloader.DataLoader",
}
_FORESTS = (
    DecisionTreeClassifier,
    DecisionTreeRegressor,
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
    RandomTreesEmbedding,
)
_READ_AGAIN = 16  # an array that is named twice is read twice; a file that makes more of itself than this is refused


def audit(data: bytes, trusted: Iterable[Any], where: str) -> list[str]:
    """Refuse a file of skops that names what is not allowed; gives the names that skops does not know by itself.

    Nothing is imported but what the user trusts, and nothing is made.

    Parameters
    ----------
    data : bytes
        The file.
    trusted : iterable of str or type
        What the user allows besides.
    where : str
        The file's path, for messages.
    """
    from skops.io import get_untrusted_types  # takes seconds to import: it lists all of scikit-learn

    nodes = list(_nodes(_schema(data)))
    _check_size(data, nodes)
    found: list[str] = get_untrusted_types(data=data)
    own = {name if isinstance(name, str) else name_of(name) for name in trusted}
    refused = sorted(set(found) - object_names() - class_names() - own)
    if refused:
        raise CheckpointError(
            f"A model must be made of what is on the list of allowed names. Got {', '.join(refused)} in {where}. "
            "Nothing of it was imported or run. If you know the file's author and want this to run, say so: "
            f"skal.load_model(path, trusted={refused})."
        )
    by_name = class_names() | {name for name in own.intersection(found) if _is_network_class(name)}
    objects = sorted({_name(node) for node in nodes if node["__loader__"] != "TypeNode"} & by_name)
    if objects:
        raise CheckpointError(
            f"A model must bring its networks as weights, and name their classes alone. Got an object of "
            f"{', '.join(objects)} in {where}, which would be unpickled. Do not use this file: save_model writes none "
            "such."
        )
    return found


def unknown_names(data: bytes) -> list[str]:
    """The names in a file that a user must trust to load it."""
    from skops.io import get_untrusted_types

    return sorted(set(get_untrusted_types(data=data)) - object_names() - class_names())


@cache
def object_names() -> frozenset[str]:
    """What may be made beyond skops' own list."""
    own = (part for part in vars(features).values() if _is_subclass(part, TransformerMixin))
    return frozenset(
        _OBJECTS | {name_of(FileFeatures)} | {name_of(part) for part in own if part is not features.RememberedFeatures}
    )


@cache
def class_names() -> frozenset[str]:
    """Networks, their losses, optimizers and data: allowed as names."""
    groups = ((torch.nn, nn.Module), (torch.optim, torch.optim.Optimizer), (nets, nn.Module))
    classes = (part for module, base in groups for part in vars(module).values() if _is_subclass(part, base))
    return frozenset(_CLASSES | {name_of(part) for part in classes})


def name_of(part: Any) -> str:
    """By what skops knows a class or a function."""
    return f"{part.__module__}.{part.__name__}"


def resolve(name: str) -> Any:
    """Import what a name stands for; ImportError or AttributeError if it stands for nothing."""
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def check_trees(parts: Iterable[Any], walk: Any) -> None:
    """Refuse trees that lead out of their arrays: scikit-learn follows a tree's indices without looking.

    Parameters
    ----------
    parts : iterable
        Everything that a model is made of.
    walk : callable
        ``walk(part)`` gives a part and everything below it.
    """
    for part in parts:
        if isinstance(part, _FORESTS):
            for tree in walk(part):
                _check_tree(tree, getattr(part, "n_features_in_", 0))  # an unfitted one has no trees


def _check_tree(tree: Any, n_features: int) -> None:
    if type(tree).__name__ == "TreePredictor":
        nodes = tree.nodes
        inner = nodes["is_leaf"] == 0
        left, right, feature = (nodes[name].astype(np.int64) for name in ("left", "right", "feature_idx"))
        categorical = inner & (nodes["is_categorical"] != 0)
        n_sets = min(len(tree.binned_left_cat_bitsets), len(tree.raw_left_cat_bitsets))
        good = bool((nodes["bitset_idx"][categorical] < n_sets).all())
    elif type(tree).__name__ == "Tree":
        left, right, feature = tree.children_left, tree.children_right, tree.feature
        inner, good = left != -1, True
    else:
        return
    here = np.arange(len(left))[inner]
    for child in (left[inner], right[inner]):  # always behind their parents, so that every path has an end
        good &= bool(((child > here) & (child < len(left))).all())
    good &= bool(((feature[inner] >= 0) & (feature[inner] < n_features)).all())
    if not good:
        raise CheckpointError(
            "The trees of a model must have branches and columns that are there. Got one that leads out of its arrays. "
            "Do not use this file: it is damaged, or was made to do harm."
        )


def network_names(parts: Iterable[Any]) -> tuple[list[str], list[FileFeatures]]:
    """Pre-trained networks that are not on the list, and features by files of somebody's own."""
    there = list(parts)
    names = {part.name for part in there if isinstance(part, features.PretrainedFeatures)}
    return sorted(names - set(BUNDLES)), [part for part in there if isinstance(part, FileFeatures)]


def check_networks(parts: Iterable[Any], trusted: Iterable[Any]) -> None:
    """Refuse networks that would be downloaded or read from a folder or a file, unless the user trusts their names.

    Those that come with a package of the extra ``backbones`` are compared with a digest, and so are files.
    """
    names, files = network_names(parts)
    texts = [name for name in trusted if isinstance(name, str)]
    for file in files:
        load_trusted(file, texts)
    refused = sorted(set(names).difference(texts))
    if refused:
        raise CheckpointError(
            f"A model must use pre-trained networks that are on the list ({', '.join(BUNDLES)}), or trusted by name. "
            f"Got {', '.join(refused)}, which would be downloaded or read from a folder. If you want that, say so: "
            f"skal.load_model(path, trusted={refused})."
        )


def _schema(data: bytes) -> Any:
    with ZipFile(io.BytesIO(data)) as archive:
        return json.loads(archive.read("schema.json"))


def _check_size(data: bytes, nodes: list[dict[str, Any]]) -> None:
    """Refuse what would be much larger in memory than it is on the disk; save_model compresses nothing."""
    with ZipFile(io.BytesIO(data)) as archive:
        sizes = {info.filename: info.file_size for info in archive.infolist()}
        packed = sorted(info.filename for info in archive.infolist() if info.compress_type != ZIP_STORED)
    read = sum(sizes.get(str(node.get("file")), 0) for node in nodes)
    if packed or sum(sizes.values()) > len(data) or read > _READ_AGAIN * len(data):
        raise CheckpointError(
            "The estimator of a model must be no larger in memory than on the disk. Got an archive that unpacks to "
            f"more{f', with compressed parts {shorten(packed)}' if packed else ''}. Do not use this file: save_model "
            "compresses nothing."
        )


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    stack = [tree]
    while stack:
        part = stack.pop()
        if isinstance(part, dict):
            if "__loader__" in part:
                yield part
            stack += part.values()
        elif isinstance(part, list):
            stack += part


def _name(node: dict[str, Any]) -> str:
    return f"{node.get('__module__')}.{node.get('__class__')}"


def _is_network_class(name: str) -> bool:
    try:
        found = resolve(name)
    except (ImportError, AttributeError, ValueError):
        return False
    return _is_subclass(found, (nn.Module, skorch.NeuralNet, torch.optim.Optimizer))


def _is_subclass(part: Any, base: Any) -> bool:
    return isinstance(part, type) and issubclass(part, base)
