"""dynamicAL's theory on real data: the approximation ratio while a network trains, and three correlations."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.stats import kendalltau
from sklearn.utils import Bunch
from torch import nn

from benchmarks._measure import markdown
from skal._core.pool import Samples
from skal.datasets import load
from skal.diagnostics import alignment, generalization_bound, training_dynamics
from skal.nets import CNN, ConvNet, SquaredLoss
from skal.tangent import gradient_scores, loss_gradient, tangent_kernel
from skal.tangent._sketch import loss_features
from skal.tangent._tangent_engine import TangentEngine

RATIO_SIZES = (10, 50, 250)
CHECKPOINTS = (0, 1, 2, 5, 10, 20, 40, 80, 160)
# the tutorial's CNN, and three convolutions with global average pooling
RATIO_NETWORKS: dict[str, Callable[[np.ndarray], nn.Module]] = {
    "cnn": lambda X: CNN(in_channels=X.shape[1], n_classes=10, image_size=X.shape[2]),
    "convnet": lambda X: ConvNet(in_channels=X.shape[1], n_classes=10, depth=3, width=32),
}


def data_set(name: str) -> Bunch:
    """A data set, or digits where its files are not found."""
    try:
        return load(name)
    except FileNotFoundError:
        print(f"{name} was not found: using digits. Set SKAL_DATA_HOME to the folder with {name}.npz.\n")
        return load("digits")


def split(data: Bunch, n_labelled: int, n_pool: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Samples in [−1, 1], labels, and the positions of the labelled ones, which come first."""
    order = np.random.default_rng(seed).permutation(len(data.X_train))[: n_labelled + n_pool]
    return 2 * data.X_train[order] - 1, data.y_train[order], np.arange(min(n_labelled, len(order) // 3))


# --- the approximation ratio ------------------------------------------------------------------------------------------


def ratio_table(
    name: str,
    out: Path | None,
    *,
    n_labelled: int = 500,
    n_pool: int = 1000,
    n_draws: int = 200,
    query_sizes: Sequence[int] = RATIO_SIZES,
    checkpoints: Sequence[int] = CHECKPOINTS,
    network: str = "cnn",
) -> str:
    """Quartiles of ``R(Q|S)`` over random query sets with pseudo-labels, at checkpoints of training on S.

    The pool has twice as many samples as the largest query at least.
    """
    n_pool = max(n_pool, 2 * max(query_sizes))
    data = data_set(name)
    X, y, first = split(data, n_labelled, n_pool, seed=0)
    S, pool = X[first], X[len(first) :]
    torch.manual_seed(0)
    module = RATIO_NETWORKS[network](X)
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
    rng = np.random.default_rng(1)
    results: dict[int, dict[int, np.ndarray]] = {}
    rows: list[list[object]] = []
    for epoch in range(max(checkpoints) + 1):
        if epoch in checkpoints:
            accuracy = _accuracy(module, S, y[first])
            results[epoch] = _ratios(module, S, y[first], pool, rng, n_draws, query_sizes)
            cells = [_quartiles(results[epoch][size]) for size in query_sizes]
            rows.append([epoch, f"{accuracy:.3f}", *cells, f"{results[epoch][query_sizes[-1]].mean():.3f}"])
        _train_epoch(module, optimizer, nn.CrossEntropyLoss(), S, y[first], rng)
    sizes = f"{data.name}, {network}, Adam 1e-3, |S| = {len(S)}, a pool of {len(pool)}, {n_draws} draws of Q"
    if out is not None:
        suffix = "" if network == "cnn" else f"_{network}"
        _plot_ratios(results, sizes, out / f"approximation_ratio_{data.name}{suffix}.png")
    header = ["epoch", "train accuracy", *(f"R, \\|Q\\| = {size}" for size in query_sizes)]
    header.append(f"mean, \\|Q\\| = {query_sizes[-1]}")
    return f"{sizes}; median [quartiles]:\n\n{markdown(header, rows)}"


def _ratios(
    module: nn.Module,
    S: np.ndarray,
    y: np.ndarray,
    pool: np.ndarray,
    rng: np.random.Generator,
    n_draws: int,
    query_sizes: Sequence[int],
) -> dict[int, np.ndarray]:
    """All pairwise inner products of the pool's gradients once; every draw is then a matter of indices."""
    direction = loss_gradient(module, S, y)
    samples = Samples(pool)
    gradients = loss_features(TangentEngine(module, samples), samples, None).double()
    gram = (gradients @ gradients.T).numpy()
    dots = gradient_scores(module, pool, None, direction)[1]
    result = {}
    for size in query_sizes:
        draws = [rng.choice(len(pool), size, replace=False) for _ in range(n_draws)]
        separate = np.array([gram[Q, Q].sum() + 2 * dots[Q].sum() for Q in draws])
        joint = np.array([gram[np.ix_(Q, Q)].sum() + 2 * dots[Q].sum() for Q in draws])
        result[size] = separate / joint
    return result


def _quartiles(values: np.ndarray) -> str:
    low, middle, high = np.percentile(values, [25, 50, 75])
    return f"{middle:.3f} [{low:.3f}, {high:.3f}]"


def _accuracy(module: nn.Module, X: np.ndarray, y: np.ndarray) -> float:
    with torch.no_grad():
        return float((module(torch.as_tensor(X)).argmax(1).numpy() == y).mean())


def _train_epoch(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    criterion: nn.Module,
    X: np.ndarray,
    y: np.ndarray,
    rng: np.random.Generator,
) -> None:
    for rows in np.array_split(rng.permutation(len(X)), max(1, len(X) // 64)):
        optimizer.zero_grad()
        criterion(module(torch.as_tensor(X[rows])), torch.as_tensor(y[rows])).backward()
        optimizer.step()


def _plot_ratios(results: dict[int, dict[int, np.ndarray]], title: str, path: Path) -> None:
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    epochs = list(results)
    for size in results[epochs[0]]:
        low, middle, high = (np.array([np.percentile(results[e][size], q) for e in epochs]) for q in (25, 50, 75))
        line = axes.plot(epochs, middle, "o-", label=f"|Q| = {size}")[0]
        axes.fill_between(epochs, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.axhline(1, color="k", linestyle=":", linewidth=1)
    axes.set(xlabel="epoch", ylabel="R(Q|S)", ylim=(-0.5, 2))
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xlim(-0.1, 1.1 * epochs[-1])
    axes.set_xticks(epochs, [str(epoch) for epoch in epochs])
    axes.minorticks_off()
    axes.set_title(title, fontsize=7)
    axes.legend(frameon=False)
    _save(figure, path)


# --- the correlations -------------------------------------------------------------------------------------------------


def correlation_table(
    name: str,
    out: Path | None,
    *,
    standardise: bool = True,
    n_labelled: int = 500,
    n_query: int = 250,
    n_draws: int = 150,
    n_pool: int = 1000,
) -> str:
    """Kendall's τ over random query sets between training dynamics, alignment and bound of ``S ∪ Q``.

    Inputs have mean 0 and variance 1, or, not standardised, lie in [−1, 1].
    """
    data = data_set(name)
    X, y, first = split(data, n_labelled, n_pool, seed=0)
    rest = np.arange(len(first), len(X))
    rng = np.random.default_rng(1)
    n_query = min(n_query, len(rest) // 2)
    draws = [rng.choice(rest, n_query, replace=False) for _ in range(n_draws)]
    if standardise:
        X = (X - X[first].mean()) / X[first].std()
    torch.manual_seed(0)
    module = ConvNet(in_channels=X.shape[1], n_classes=10, depth=3, width=64)
    K, f = _kernel_and_outputs(module, X)
    # the theory starts from a network whose outputs are zero: then G is A
    states = {"outputs taken as 0": (K, np.zeros_like(f)), "at initialisation": (K, f)}
    _fit_squared(module, X[first], y[first], rng)
    states["trained on S"] = _kernel_and_outputs(module, X)
    pairs = [("G", "A"), ("G pseudo", "A"), ("G pseudo", "A pseudo"), ("G", "B"), ("G pseudo", "B")]
    rows: list[list[object]] = []
    points = {}
    for state, (kernel, outputs) in states.items():
        values = points[state] = _quantities(kernel, outputs, y, first, draws)
        rows.append([state, *(f"{kendalltau(values[a], values[b]).statistic:.3f}" for a, b in pairs)])
    sizes = f"{data.name}, 3 convolutions of 64 channels, |S| = {len(first)}, |Q| = {n_query} of {len(rest)}, "
    sizes += f"{n_draws} draws"
    if out is not None:
        _plot_correlations(points, sizes, out / f"dynamics_correlation_{data.name}.png")
    header = ["network", "G, A: true labels", "G pseudo, A true", "G, A: pseudo-labels", "G, B", "G pseudo, B"]
    return f"{sizes}:\n\n{markdown(header, rows)}"


def _fit_squared(module: nn.Module, X: np.ndarray, y: np.ndarray, rng: np.random.Generator, cap: int = 60) -> None:
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
    for _ in range(cap):
        _train_epoch(module, optimizer, SquaredLoss(), X, y, rng)
        if _accuracy(module, X, y) >= 0.99:
            return


def _kernel_and_outputs(module: nn.Module, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """In float64: the bound is a matter of the smallest eigenvalues, which lie below float32's rounding errors."""
    double, inputs = copy.deepcopy(module).double(), X.astype(np.float64)
    K = tangent_kernel(double, inputs, batch_size=64, max_memory="3GB")
    with torch.no_grad():
        parts = [double(torch.as_tensor(part)).numpy() for part in np.array_split(inputs, 20)]
    return K, np.concatenate(parts)


def _quantities(
    K: np.ndarray, f: np.ndarray, y: np.ndarray, first: np.ndarray, draws: list[np.ndarray]
) -> dict[str, np.ndarray]:
    """Everything is a matter of indices now: G and A with true and with pseudo-labels, B with true ones."""
    Y = np.eye(f.shape[1])[y]
    pseudo = K[:, first] @ np.linalg.solve(K[np.ix_(first, first)], Y[first])
    pseudo[first] = Y[first]
    result: dict[str, list[float]] = {name: [] for name in ("G", "A", "B", "G pseudo", "A pseudo")}
    for Q in draws:
        both = np.concatenate([first, Q])
        part = K[np.ix_(both, both)]
        result["G"].append(training_dynamics(part, f[both] - Y[both]))
        result["A"].append(alignment(part, Y[both]))
        result["B"].append(generalization_bound(part, Y[both]))
        result["G pseudo"].append(training_dynamics(part, f[both] - pseudo[both]))
        result["A pseudo"].append(alignment(part, pseudo[both]))
    return {name: np.array(values) for name, values in result.items()}


def _plot_correlations(points: dict[str, dict[str, np.ndarray]], title: str, path: Path) -> None:
    pairs = (("G", "A"), ("G pseudo", "A"), ("G", "B"))
    figure = Figure(figsize=(9, 7.6), layout="constrained")
    for line, (state, values) in zip(figure.subplots(len(points), len(pairs)), points.items(), strict=True):
        for axes, (a, b) in zip(line, pairs, strict=True):
            tau = kendalltau(values[a], values[b]).statistic
            axes.plot(values[a], values[b], ".", alpha=0.6)
            axes.set(xlabel=a.replace(" pseudo", ", pseudo-labels"), ylabel=b)
            axes.set_title(f"{state}: τ = {tau:.2f}", fontsize=9)
            axes.ticklabel_format(scilimits=(-2, 3))
    figure.suptitle(title, fontsize=8)
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
