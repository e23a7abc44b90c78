"""Accuracy by strategy where no preset says it: MLMOC, EMOC, EER, naive retraining, Gaussian processes, LL4AL.

Each is a benchmark of ``skal.bench``; its runs lie in the results folder and are not repeated.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin

from benchmarks._kept import Kept
from benchmarks._measure import markdown
from benchmarks.papers.study import Study, mean_std, paired_gap
from skal._lookahead.comparators import infinite_kernel
from skal._lookahead.posterior import TEMPERATURE
from skal.bench import BenchmarkError, BenchmarkResult, run_benchmark
from skal.bench.papers import preset
from skal.strategies import NTKLookahead

EPOCHS = 15  # of naive retraining, for each candidate
# every strategy's settings: the squared loss and its training as in the preset, on a network that two cores can bear
SIZES: dict[str, dict[str, Any]] = {
    "quick": {"data": "digits", "net": "mlp", "net_params": {"hidden": (16,)}, "seeds": 2, "n_rounds": 1,
              "max_epochs": 2, "n_initial": 20, "query_size": 5, "n_pool": 80, "n_test": 50},
    "scaled": {"data": "digits", "net": "mlp", "net_params": {"hidden": (128, 128)}, "seeds": 10, "n_rounds": 5,
               "max_epochs": 60, "n_initial": 20, "query_size": 10},
    "full": {},
}  # fmt: skip
SUBSET = {"quick": 20, "scaled": 200, "full": 4000}
FEW = {"quick": 6, "scaled": 20, "full": 100}  # candidates of naive retraining


def naive_retraining(learner: Any, X_pool: Any, n_instances: int, subset: int) -> np.ndarray:
    """MLMOC by training a copy of the network for 15 epochs on every candidate of a small subset."""
    net = copy.copy(learner.estimator)
    net.max_epochs = EPOCHS
    seed = int(np.random.randint(2**31))  # the benchmark seeds NumPy's own generator for plain functions
    settings = {"subset": subset, "evaluation": min(100, subset), "random_state": seed}
    strategy = NTKLookahead(criterion="mlmoc", retraining="retrain", **settings)
    short = SimpleNamespace(estimator=net, X_training=learner.X_training, y_training=learner.y_training)
    return strategy(short, X_pool, n_instances)


class GaussianProcess(ClassifierMixin, BaseEstimator):
    """The posterior mean of a Gaussian process with the kernel of an infinitely wide network, one output per class.

    What is predicted are probabilities: a softmax of the mean, at the temperature that the look-ahead takes for
    outputs near 0 and 1.
    """

    def __init__(self, depth: int = 3, ridge: float = 1e-4) -> None:
        self.depth = depth
        self.ridge = ridge

    def fit(self, X: np.ndarray, y: np.ndarray) -> GaussianProcess:
        """Solve for the coefficients of the one-hot labels."""
        self.classes_, codes = np.unique(y, return_inverse=True)
        self._X = _flat(X)
        K = infinite_kernel(self._X, self._X, self.depth)
        self.noise_ = self.ridge * float(K.diagonal().mean())
        self._regular = K + self.noise_ * torch.eye(len(K), dtype=torch.float64)
        targets = torch.eye(len(self.classes_), dtype=torch.float64)[torch.as_tensor(codes)]
        self._coefficients = torch.linalg.solve(self._regular, targets)
        return self

    def mean(self, X: np.ndarray) -> torch.Tensor:
        """(n, C) means of the outputs."""
        return infinite_kernel(_flat(X), self._X, self.depth) @ self._coefficients

    def covariance(self, X: np.ndarray) -> torch.Tensor:
        """(n, n), what the labels leave of the kernel."""
        rows = _flat(X)
        between = infinite_kernel(rows, self._X, self.depth)
        return infinite_kernel(rows, rows, self.depth) - between @ torch.linalg.solve(self._regular, between.T)

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        """(n, C)."""
        return torch.softmax(self.mean(X) / TEMPERATURE, dim=1).numpy()

    def predict(self, X: np.ndarray) -> np.ndarray:
        """The class with the largest mean."""
        return self.classes_[self.predict_proba(X).argmax(1)]


def _flat(X: np.ndarray) -> torch.Tensor:
    return torch.as_tensor(np.asarray(X).reshape(len(X), -1)).double()


def gaussian_mlmoc(learner: Any, X_pool: Any, n_instances: int, subset: int) -> np.ndarray:
    """MLMOC of the Gaussian process: one more label, the predicted one, moves the mean by ``S(x, x') r / u``."""
    rows = np.random.permutation(len(X_pool))[:subset]
    process, X = learner.estimator, np.asarray(X_pool)[rows]
    mean, S = process.mean(X), process.covariance(X)
    residual = torch.eye(mean.shape[1], dtype=mean.dtype)[mean.argmax(1)] - mean
    scores = residual.norm(dim=1) * S.abs().sum(0) / (S.diagonal() + process.noise_)
    return rows[scores.argsort(descending=True)[:n_instances].numpy()]


def _run(
    size: str, folder: Path | None, strategies: Any, name: str = "", net: Any = None, **settings: Any
) -> BenchmarkResult:
    protocol = preset("ntk_mnist")[0].with_settings(**SIZES[size] | settings)
    out = None if folder is None else folder / (name or "all")
    return run_benchmark(strategies, protocol=protocol, net=net, out=out)


def _table(result: BenchmarkResult) -> str:
    """Accuracy by budget, the mean over the rounds after the first, and its paired difference to the first strategy."""
    scores = 100 * result.scores  # strategy × seed × budget
    means = scores[:, :, 1:].mean(axis=2)
    rows: list[list[object]] = []
    for name, by_budget, mean in zip(result.strategies, scores, means, strict=True):
        cells = [f"{mean_std(by_budget[:, k], 3)}" for k in range(by_budget.shape[1])]
        gap = paired_gap(mean - means[0]) if name != result.strategies[0] else ""
        rows.append([name, *cells, f"{mean.mean():.1f}", gap])
    header = ["strategy", *(f"{n} labels" for n in result.n_labels), "mean of all rounds"]
    return markdown([*header, f"difference to {result.strategies[0]}"], rows)


def _criteria(size: str, kept: Kept, folder: Path | None) -> str:
    """The papers' criteria by the linearised network, and naive retraining on a small subset, which Random has too."""
    subset, few = SUBSET[size], FEW[size]
    strategies: dict[str, Any] = {"random": "random"}
    for criterion in ("mlmoc", "emoc", "eer"):
        strategies[criterion] = f"ntk_lookahead(criterion='{criterion}', subset={subset})"
    strategies[f"mlmoc, of {few}"] = f"ntk_lookahead(criterion='mlmoc', subset={few}, evaluation={few})"
    strategies[f"naive retraining, of {few}"] = partial(naive_retraining, subset=few)
    return _table(_run(size, folder, strategies))


def _gaussian_process(size: str, kept: Kept, folder: Path | None) -> str:
    """The Gaussian process itself predicts and is asked; of the strategies only MLMOC needs more than probabilities."""
    strategies: dict[str, Any] = {name: name for name in ("random", "entropy", "margin", "max_herding")}
    strategies["mlmoc of the process"] = partial(gaussian_mlmoc, subset=SUBSET[size])
    return _table(_run(size, folder, strategies, net=GaussianProcess()))


RATES = (0.005, 0.025, 0.1, 0.25)


def _learning_rates(size: str, kept: Kept, folder: Path | None) -> str:
    """LL4AL and Random at every rate, and LL4AL beside Random at the rate that is the best for Random."""
    parts = []
    mean_scores: dict[float, dict[str, np.ndarray]] = {}  # of the rounds after the first, one number a seed
    for lr in RATES:
        run = partial(_run, size, folder, ("random", "learning_loss"), f"lr_{lr}", lr=lr)
        result, diverged = _finite_result(run, folder and folder / f"lr_{lr}")
        mean_scores[lr] = dict(zip(result.strategies, 100 * result.scores[:, :, 1:].mean(axis=2), strict=True))
        parts.append(f"largest learning rate {lr}:\n\n{_table(result)}{diverged}")
    own = max(RATES, key=lambda lr: mean_scores[lr]["random"].mean())
    rows: list[list[object]] = []
    for lr, means in mean_scores.items():
        learnt = means.get("learning_loss")
        cells = ["diverged"] * 3
        if learnt is not None:
            gaps = paired_gap(learnt - means["random"]), paired_gap(learnt - mean_scores[own]["random"])
            cells = [f"{learnt.mean():.1f}", *gaps]
        rows.append([lr, f"{means['random'].mean():.1f}", *cells])
    header = ["largest learning rate", "random", "LL4AL", "− random", f"− random at its own rate, {own}"]
    return "\n\n".join([markdown(header, rows), *parts])


def _finite_result(run: Callable[[], BenchmarkResult], out: Path | None) -> tuple[BenchmarkResult, str]:
    """The result of a benchmark without strategies in whose runs a network diverged, and a sentence that names them."""
    try:
        return run(), ""
    except BenchmarkError as error:
        failed = re.findall(r"^(.+), seed \d+: Traceback", str(error), re.MULTILINE)
        if out is None or str(error).count("\nskal.exceptions.NonFiniteError:") != len(failed):
            raise
    found = BenchmarkResult.load(out)
    protocol = found.protocol.with_settings(strategies=tuple(x for x in found.protocol.strategies if x not in failed))
    diverged = ", ".join(f"{k} run{'s' * (k > 1)} of {name}" for name, k in sorted(Counter(failed).items()))
    result = BenchmarkResult(protocol, found.runs, found.details)
    return result, f"\n\nOutputs that are not finite end {diverged}."


def _kernels(size: str, kept: Kept, folder: Path | None) -> str:
    """MLMOC with the pseudo-NTK and with the empirical one, among the same number of candidates."""
    subset = SUBSET[size] // 2
    strategies: dict[str, Any] = {"random": "random"}
    for kernel in ("pntk", "entk"):
        strategies[f"MLMOC, {kernel}"] = f"ntk_lookahead(criterion='mlmoc', kernel='{kernel}', subset={subset})"
    return _table(_run(size, folder, strategies))


# dynamicAL's Table 2 with its labels and training; fewer rounds and arms, so that ten seeds can be borne
TABLE2: dict[str, dict[str, Any]] = {
    "quick": {**SIZES["quick"], "net": "cnn", "net_params": {}, "strategies": ("random", "dynamic_al")},
    "scaled": {
        "data": "cifar10_sub",
        "seeds": 10,
        "n_rounds": 4,
        # the greedy batch is a step on the cause: it has the terms between a batch's samples, which the paper drops
        "strategies": ("random", "dynamic_al", "dynamic_al(batch='greedy')"),
    },
    "full": {},
}


def _table2(size: str, kept: Kept, folder: Path | None) -> str:
    protocol = preset("dynamic_al_table2")[0].with_settings(**TABLE2[size])
    return _table(run_benchmark(protocol=protocol, out=folder))


STUDIES = (
    Study("criteria", "NTK look-ahead: accuracy of MLMOC, EMOC, EER and naive retraining", _criteria),
    Study("gaussian_process", "NTK look-ahead, Figure 1b: the Gaussian process as the model", _gaussian_process),
    Study("ll4al", "NTK look-ahead, Figure 5a: LL4AL over learning rates", _learning_rates),
    Study("kernels", "thesis, Figure 3.15: look-ahead with pNTK and eNTK, as accuracy", _kernels),
    Study("table2", "dynamicAL, Table 2: CIFAR-10, CNN, b = 250", _table2),
)
