"""What other libraries query in a regression, as strategies of the same loop.

``bmdal_reg`` (LCMD by its authors) runs in an environment of its own, because it does not run on NumPy 2 as it is::

    python -m venv ENV && ENV/bin/pip install torch bmdal_reg && export BMDAL_PYTHON=ENV/bin/python

This file is also what runs there: ``BMDAL_PYTHON others.py`` reads the path of an ``npz`` file from each line of its
input, with the layers of a network and the samples, and answers with the chosen positions. It gives numpy its old name
``np.Inf`` back. scikit-activeml is asked in this process, with the estimator that the loop has trained.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

SKETCH = 512  # as in the experiments of LCMD's authors


def bmdal_lcmd(learner: Any, X_pool: np.ndarray, n_instances: int = 1) -> np.ndarray:
    """LCMD of bmdal_reg on sketched gradients, as its authors recommend it."""
    scaler, net = learner.estimator[0], learner.estimator[-1]
    weights = [p.detach().numpy() for p in net.module_.parameters()]
    arrays = {f"layer{i}": weight for i, weight in enumerate(weights)}
    arrays |= {"train": scaler.transform(learner.X_training), "pool": scaler.transform(X_pool)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "query.npz"
        np.savez(path, n=n_instances, **arrays)
        worker = _worker()
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(f"{path}\n")
        worker.stdin.flush()
        return np.array(json.loads(worker.stdout.readline()))


@lru_cache(maxsize=1)
def _worker() -> subprocess.Popen[str]:
    python = os.environ.get("BMDAL_PYTHON")
    if not python:
        raise RuntimeError("Set BMDAL_PYTHON to the Python of an environment with bmdal_reg; this file says how.")
    return subprocess.Popen([python, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def activeml_greedy(learner: Any, X_pool: np.ndarray, n_instances: int = 1) -> np.ndarray:
    """Improved greedy sampling: far from the labelled samples in inputs and in predictions (Wu et al. 2019)."""
    from skactiveml.pool import GreedySamplingTarget

    return _ask_activeml(GreedySamplingTarget(method="GSi", random_state=0), learner, X_pool, n_instances)


def activeml_trees(learner: Any, X_pool: np.ndarray, n_instances: int = 1) -> np.ndarray:
    """Regression trees that say which leaves need labels, and diverse samples of those (Jose et al. 2024)."""
    from skactiveml.pool import RegressionTreeBasedAL
    from skactiveml.regressor import SklearnRegressor
    from sklearn.tree import DecisionTreeRegressor

    tree = SklearnRegressor(DecisionTreeRegressor(min_samples_leaf=5, random_state=0))
    strategy = RegressionTreeBasedAL(method="diversity", random_state=0)
    return _ask_activeml(strategy, learner, X_pool, n_instances, tree)


def activeml_committee(learner: Any, X_pool: np.ndarray, n_instances: int = 1) -> np.ndarray:
    """Query by committee: the variance of what the trees of a forest predict (Burbidge et al. 2007)."""
    from skactiveml.pool import QueryByCommittee

    trees = [_Given(tree) for tree in learner.estimator.estimators_]
    X, y = _all_samples(learner, X_pool)
    strategy = QueryByCommittee(random_state=0)  # of regressors: the variance of their predictions
    return np.array(strategy.query(X, y, trees, fit_ensemble=False, batch_size=n_instances))


def _ask_activeml(strategy: Any, learner: Any, X_pool: np.ndarray, n_instances: int, reg: Any = None) -> np.ndarray:
    X, y = _all_samples(learner, X_pool)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = _Given(learner.estimator) if reg is None else reg
        return np.array(strategy.query(X, y, given, fit_reg=reg is not None, batch_size=n_instances)).reshape(-1)


def _all_samples(learner: Any, X_pool: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The pool, and behind it the labelled samples: indices mean the same."""
    y = np.asarray(learner.y_training, dtype=np.float64)
    return np.concatenate([X_pool, learner.X_training]), np.concatenate([np.full(len(X_pool), np.nan), y])


def _Given(estimator: Any) -> Any:  # noqa: N802 - scikit-activeml is imported where it is used
    """A regressor of scikit-activeml that is trained already."""
    from skactiveml.base import SkactivemlRegressor

    class Given(SkactivemlRegressor):
        def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Given:
            return self

        def __sklearn_is_fitted__(self) -> bool:
            return True

        def predict(self, X: Any) -> np.ndarray:
            return np.asarray(estimator.predict(X.astype(np.float32)), dtype=np.float64).reshape(-1)

    return Given()


def answer(path: str) -> list[int]:
    """What bmdal_reg picks for the query in a file."""
    vars(np)["Inf"] = np.inf
    import torch
    from bmdal_reg.bmdal.algorithms import select_batch
    from bmdal_reg.bmdal.feature_data import TensorFeatureData
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    with np.load(path) as found:
        weights = [torch.from_numpy(found[name]) for name in found.files if name.startswith("layer")]
        data = {part: TensorFeatureData(torch.from_numpy(found[part]).float()) for part in ("train", "pool")}
        n = int(found["n"])
    layers: list[nn.Module] = []
    for weight, bias in zip(weights[::2], weights[1::2], strict=True):
        layer = nn.Linear(weight.shape[1], weight.shape[0])
        layer.load_state_dict({"weight": weight, "bias": bias})
        layers += [layer, nn.ReLU()]
    rows, _ = select_batch(
        n,
        [nn.Sequential(*layers[:-1])],
        data,
        None,
        base_kernel="grad",
        kernel_transforms=[("rp", [SKETCH])],
        selection_method="lcmd",
        verbosity=0,
    )
    picked: list[int] = rows.tolist()
    return picked


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(answer(line.strip())), flush=True)
