"""dynamicAL: scoring against a forward pass, greedy batches against the optimum, and the theory on real data.

``python -m benchmarks.dynamic_al speed|optimum|ratio|correlation [--data NAME] [--raw] [--net cnn|convnet]
[--sizes 10 50 250] [--checkpoints 0 10 160] [--out FOLDER]``; all of them without an argument.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from skorch import NeuralNetClassifier
from torch import nn

from benchmarks._measure import interleaved, markdown
from skal.nets import CNN, MLP, ResNet18
from skal.strategies import DynamicAL
from skal.tangent import loss_gradient

# what is timed: a network, the images in its pool, and those in its labelled set
TIMED = (("tutorial CNN", CNN, 8192, 500), ("ResNet-18", ResNet18, 512, 32))
N_POOL, N_QUERY = 12, 3


def learner_of(module: nn.Module, X: np.ndarray, y: np.ndarray) -> SimpleNamespace:
    """What a strategy needs of a learner, around a module as it is."""
    net = NeuralNetClassifier(module, criterion=nn.CrossEntropyLoss, train_split=None, verbose=0).initialize()
    return SimpleNamespace(estimator=net, X_training=X, y_training=y)


def speed_table(repeats: int = 3, timed: Sequence[tuple[str, type[nn.Module], int, int]] = TIMED) -> str:
    """``DynamicAL.scores``, labelled set included, over a plain forward pass (batches of 64) over the same pool."""
    rows: list[list[object]] = []
    for name, build, n_pool, n_labelled in timed:
        torch.manual_seed(0)
        module = build().eval()
        rng = np.random.default_rng(0)
        X = rng.normal(size=(n_pool, 3, 32, 32)).astype(np.float32)
        learner = learner_of(module, X[:n_labelled], np.arange(n_labelled) % 10)
        strategy = DynamicAL()
        seconds = interleaved(
            {
                "forward": lambda module=module, X=X: _forward(module, X),
                "scores": lambda strategy=strategy, learner=learner, X=X: strategy.scores(learner, X),
            },
            repeats,
        )
        rows.append([name, f"{n_pool:,}", n_labelled, seconds["scores"] / seconds["forward"]])
    return markdown(["network", "pool", "labelled", "ratio"], rows)


def _forward(module: nn.Module, X: np.ndarray, batch_size: int = 64) -> None:
    with torch.no_grad():
        for start in range(0, len(X), batch_size):
            module(torch.from_numpy(X[start : start + batch_size]))


def small_problems(n_problems: int = 100) -> Iterator[tuple[SimpleNamespace, np.ndarray]]:
    """Random networks of two layers, slightly trained on 10 samples of 3 classes, and pools of 12 samples."""
    for seed in range(n_problems):
        torch.manual_seed(seed)
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(10 + N_POOL, 6)).astype(np.float32)
        y = rng.integers(3, size=10)
        module = MLP(6, 3, hidden=(16,))
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(20):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(torch.from_numpy(X[:10])), torch.from_numpy(y)).backward()
            optimizer.step()
        yield learner_of(module, X[:10], y), X[10:]


def optimum_table(n_problems: int = 100) -> str:
    """Share of the best batch's ``Δ(Q|S)``, found by trying all 220, that greedy and top-b reach."""
    shares: dict[str, list[float]] = {"greedy": [], "top": []}
    for learner, X_pool in small_problems(n_problems):
        value = batch_objective(learner, X_pool)
        optimum = max(value(Q) for Q in combinations(range(N_POOL), N_QUERY))
        for batch, reached in shares.items():
            indices = DynamicAL(batch=batch, n_features=None)(learner, X_pool, N_QUERY)
            reached.append(value(indices) / optimum)
    rows: list[list[object]] = [
        [
            name,
            f"{np.mean(values):.4f}",
            f"{np.percentile(values, 5):.4f}",
            f"{np.min(values):.4f}",
            f"{np.mean(np.array(values) > 1 - 1e-6):.0%}",
        ]
        for name, values in shares.items()
    ]
    return markdown(["batch", "mean share", "5th percentile", "worst", "optimum found"], rows)


def batch_objective(learner: SimpleNamespace, X_pool: np.ndarray):  # type: ignore[no-untyped-def]
    """``Q -> ‖Σ_Q g‖² + 2 g_S·Σ_Q g`` from gradients that are written out."""
    module = learner.estimator.module_
    labelled = loss_gradient(module, learner.X_training, learner.y_training)
    g_S = torch.cat([g.flatten() for g in labelled.values()]).double().numpy()
    singles = [loss_gradient(module, X_pool[i : i + 1], None) for i in range(len(X_pool))]
    gradients = np.stack([torch.cat([g.flatten() for g in single.values()]).double().numpy() for single in singles])

    def value(Q: Sequence[int]) -> float:
        total = gradients[np.asarray(Q)].sum(0)
        return float(total @ total + 2 * total @ g_S)

    return value


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables that are asked for."""
    from benchmarks._dynamics_study import CHECKPOINTS, RATIO_NETWORKS, RATIO_SIZES, correlation_table, ratio_table

    parser = argparse.ArgumentParser(prog="python -m benchmarks.dynamic_al", description=__doc__)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help="speed, optimum, ratio, correlation")
    parser.add_argument("--data", default="mnist", help="data set of ratio and correlation (default: mnist)")
    parser.add_argument("--raw", action="store_true", help="correlation: inputs in [-1, 1], not standardised")
    parser.add_argument("--net", choices=RATIO_NETWORKS, default="cnn", help="ratio: the network (default: cnn)")
    parser.add_argument("--sizes", type=int, nargs="+", default=RATIO_SIZES, help="ratio: sizes of the query sets")
    epochs = "ratio: epochs after which it is measured"
    parser.add_argument("--checkpoints", type=int, nargs="+", default=CHECKPOINTS, help=epochs)
    parser.add_argument("--out", type=Path, help="folder for the plots")
    args = parser.parse_args(argv)
    tasks = {
        "speed": speed_table,
        "optimum": optimum_table,
        "ratio": lambda: ratio_table(
            args.data, args.out, network=args.net, query_sizes=args.sizes, checkpoints=args.checkpoints
        ),
        "correlation": lambda: correlation_table(args.data, args.out, standardise=not args.raw),
    }
    if unknown := sorted(set(args.tasks) - set(tasks)):
        parser.error(f"unknown task {', '.join(unknown)}. Choose from: {', '.join(tasks)}")
    for name in args.tasks or tasks:
        print(f"\n### {name}\n\n{tasks[name]()}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
