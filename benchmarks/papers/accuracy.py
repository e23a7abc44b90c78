"""Accuracy by strategy where no preset says it: MLMOC, EMOC, EER, naive retraining, Gaussian processes, LL4AL.

Each is a benchmark of ``skal.bench``; its runs lie in the results folder and are not repeated.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Callable, Sequence
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
from skal.bench import BenchmarkError, BenchmarkResult, Protocol, run_benchmark
from skal.bench._networks import make_net
from skal.bench.papers import preset
from skal.bench.papers._mohamadi2022 import rates
from skal.datasets import load
from skal.strategies import NTKLookahead

Scores = dict[str, Any]  # n_labels, scores by strategy, and a sentence about runs that diverged
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
MORE = {"quick": 12, "scaled": 100}  # in a step on the cause of what it does not lose


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


def sharpen(outputs: torch.Tensor) -> torch.Tensor:
    """Probabilities of a squared-loss network: a softmax at the temperature that the default criterion takes."""
    return torch.softmax(outputs / TEMPERATURE, dim=-1)


def _sharp_net(size: str) -> Any:
    """The network of the size, trained as ever, with other probabilities; its predictions are the same."""
    protocol = preset("ntk_mnist")[0].with_settings(**SIZES[size])
    data = load(protocol.data)
    net = make_net(protocol, data.X_train.shape[1:], len(np.unique(data.y_train)), None)
    return net.set_params(predict_nonlinearity=sharpen)


def _run(
    size: str,
    folder: Path | None,
    strategies: Any,
    name: str = "",
    net: Any = None,
    protocol: Protocol | None = None,
    **settings: Any,
) -> BenchmarkResult:
    protocol = (protocol or preset("ntk_mnist")[0]).with_settings(**SIZES[size] | settings)
    out = None if folder is None else folder / (name or "all")
    return run_benchmark(strategies, protocol=protocol, net=net, out=out)


def _scores(result: BenchmarkResult, diverged: str = "") -> Scores:
    """What is kept of a benchmark: test accuracies in per cent by strategy, seed and budget."""
    by_strategy = dict(zip(result.strategies, (100 * result.scores).tolist(), strict=True))
    return {"n_labels": list(map(int, result.n_labels)), "scores": by_strategy, "diverged": diverged}


def _means(found: Scores) -> dict[str, np.ndarray]:
    """Of the rounds after the first, one number a seed, by strategy."""
    return {name: np.array(scores)[:, 1:].mean(axis=1) for name, scores in found["scores"].items()}


def _table(found: Scores) -> str:
    """Accuracy by budget, the mean over the rounds after the first, and its paired difference to the first strategy."""
    means = _means(found)
    first = next(iter(means))
    rows: list[list[object]] = []
    for name, scores in found["scores"].items():
        cells = [mean_std(column, 3) for column in np.transpose(scores)]
        gap = paired_gap(means[name] - means[first]) if name != first else ""
        rows.append([name, *cells, f"{means[name].mean():.1f}", gap])
    header = ["strategy", *(f"{n} labels" for n in found["n_labels"]), "mean of all rounds"]
    return markdown([*header, f"difference to {first}"], rows)


def _with_gaps(found: Scores, pairs: Sequence[tuple[str, str]]) -> str:
    """The table, and paired differences of the means of all rounds."""
    means = _means(found)
    gaps = [f"{one} − {other}, mean of all rounds: {paired_gap(means[one] - means[other])}." for one, other in pairs]
    return "\n\n".join([_table(found), *gaps])


def _among(few: int) -> dict[str, Any]:
    """MLMOC by the linearised network and by naive retraining, among the same number of candidates."""
    return {
        f"mlmoc, of {few}": f"ntk_lookahead(criterion='mlmoc', subset={few}, evaluation={few})",
        f"naive retraining, of {few}": partial(naive_retraining, subset=few),
    }


def _criteria(size: str, kept: Kept, folder: Path | None) -> str:
    """The papers' criteria by the linearised network, and naive retraining on a small subset, which Random has too.

    Two more tables are each a step on the cause of what is found. EMOC and EER lose: the labels that they expect come
    by a softmax of the outputs, which is nearly uniform for outputs near 0 and 1; in the second table it is a sharp
    one. Naive retraining does not lose: a batch is half of its candidates; in the third there are more.
    """
    subset = SUBSET[size]
    criteria = ("mlmoc", "emoc", "eer")
    strategies: dict[str, Any] = {"random": "random"}
    strategies |= {name: f"ntk_lookahead(criterion='{name}', subset={subset})" for name in criteria}
    few = _among(FEW[size])
    found = kept("all", lambda: _scores(_run(size, folder, strategies | few)))
    pairs = [("mlmoc", "emoc"), ("mlmoc", "eer")]
    parts = [_with_gaps(found, [*pairs, _pair(few)])]
    if size in MORE:
        sharp = kept("sharp", lambda: _scores(_run(size, folder, strategies, "sharp", _sharp_net(size))))
        parts.append(f"With sharp probabilities:\n\n{_with_gaps(sharp, pairs)}")
        means, before = _means(sharp), _means(found)
        gaps = [f"{name}, sharp − not: {paired_gap(means[name] - before[name])}." for name in criteria]
        parts.append("\n\n".join(gaps))
        more = _among(MORE[size])
        wide = kept("more", lambda: _scores(_run(size, folder, {"random": "random"} | more, "more")))
        parts.append(f"With more candidates:\n\n{_with_gaps(wide, [_pair(more)])}")
    return "\n\n".join(parts)


def _pair(strategies: dict[str, Any]) -> tuple[str, str]:
    one, other = strategies
    return one, other


# the second is a step on the cause of what is found on digits: the paper's data, labels and number of candidates
PROCESS: dict[str, dict[str, dict[str, Any]]] = {
    "quick": {"all": {}},
    "scaled": {
        "all": {},
        "mnist": {"data": "mnist", "n_initial": 100, "query_size": 20, "n_pool": 10_000, "n_test": 2000},
    },
    "full": {"all": {}},
}


def _gaussian_process(size: str, kept: Kept, folder: Path | None) -> str:
    """The Gaussian process itself predicts and is asked; of the strategies only MLMOC needs more than probabilities."""
    tables = []
    for name, settings in PROCESS[size].items():
        others = ("random",) if settings else ("random", "entropy", "margin", "max_herding")
        subset = SUBSET["full" if settings else size]
        strategies = {
            **dict(zip(others, others, strict=True)),
            "mlmoc of the process": partial(gaussian_mlmoc, subset=subset),
        }
        run = partial(_run, size, folder, strategies, name, GaussianProcess(), **settings)
        tables.append(_table(kept(name, lambda run=run: _scores(run()))))
    return "\n\n".join(tables)


# of Figure 5a for LL4AL, after the one that Random is trained with there; of the authors' loss, the mean over classes
OWN_RATE = 1.0
RATES = {
    "quick": (OWN_RATE, 0.1),
    "scaled": (OWN_RATE, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001),
    "full": (OWN_RATE, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001),
}


def _learning_rates(size: str, kept: Kept, folder: Path | None) -> str:
    """LL4AL and Random at every rate, and LL4AL beside Random at the rate that the paper has for Random."""
    protocol, settings = preset("ntk_cifar100")[0], {"seeds": 3} if size == "full" else {}
    n_classes = 100 if size == "full" else 10
    found: dict[float, Scores] = {}
    for rate in RATES[size]:
        name, given = f"rate_{rate}", rates(n_classes, rate)
        run = partial(_run, size, folder, ("random", "learning_loss"), name, protocol=protocol, **{**settings, **given})
        found[rate] = kept(name, lambda run=run, name=name: _scores(*_finite_result(run, folder and folder / name)))
    own = _means(found[OWN_RATE])["random"]
    rows: list[list[object]] = []
    for rate, scores in found.items():
        means = _means(scores)
        learnt, cells = means.get("learning_loss"), ["diverged"] * 3
        if learnt is not None:
            cells = [f"{learnt.mean():.1f}", paired_gap(learnt - means["random"]), paired_gap(learnt - own)]
        rows.append([rate, f"{means['random'].mean():.1f}", *cells])
    header = ["largest learning rate", "random", "LL4AL", "− random", f"− random at {OWN_RATE}"]
    diverged = [f"Largest learning rate {rate}: {x['diverged']}" for rate, x in found.items() if x["diverged"]]
    return "\n\n".join([markdown(header, rows), *diverged])


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
    return result, f"outputs that are not finite end {diverged}."


def _kernels(size: str, kept: Kept, folder: Path | None) -> str:
    """MLMOC with the pseudo-NTK and with the empirical one, among the same number of candidates."""
    subset = SUBSET[size] // 2
    strategies: dict[str, Any] = {"random": "random"}
    for kernel in ("pntk", "entk"):
        strategies[f"MLMOC, {kernel}"] = f"ntk_lookahead(criterion='mlmoc', kernel='{kernel}', subset={subset})"
    found = kept("all", lambda: _scores(_run(size, folder, strategies)))
    return _with_gaps(found, [("MLMOC, pntk", "MLMOC, entk")])


# dynamicAL's Table 2 with its labels and training; fewer rounds and arms, so that ten seeds can be borne
TABLE2: dict[str, dict[str, Any]] = {
    "quick": {**SIZES["quick"], "net": "cnn", "net_params": {}},
    "scaled": {"data": "cifar10_sub", "seeds": 10, "n_rounds": 3},
    "full": {},
}
# Random and dynamicAL first, for all seeds; the greedy batch is a step on the cause of what is found: it has the terms
# between a batch's samples, which the paper drops
ARMS = (("random", "dynamic_al"), ("random", "dynamic_al", "dynamic_al(batch='greedy')"))


def _table2(size: str, kept: Kept, folder: Path | None) -> str:
    """One table for each set of arms; the second goes on from the runs of the first."""
    protocol, parts = preset("dynamic_al_table2")[0].with_settings(**TABLE2[size]), []
    for arms in ARMS if size != "full" else (protocol.strategies,):
        run = partial(run_benchmark, protocol=protocol.with_settings(strategies=arms), out=folder)
        parts.append(_table(kept(", ".join(arms), lambda run=run: _scores(run()))))
    return parts[-1]


STUDIES = (
    Study("criteria", "NTK look-ahead: accuracy of MLMOC, EMOC, EER and naive retraining", _criteria),
    Study("gaussian_process", "NTK look-ahead, Figure 1b: the Gaussian process as the model", _gaussian_process),
    Study("ll4al", "NTK look-ahead, Figure 5a: LL4AL over learning rates", _learning_rates),
    Study("kernels", "thesis, Figure 3.15: look-ahead with pNTK and eNTK, as accuracy", _kernels),
    Study("table2", "dynamicAL, Table 2: CIFAR-10, CNN, b = 250", _table2),
)
