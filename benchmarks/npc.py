"""NPC's search against an eigenvalue for every candidate, how its cost grows, and what the eigenvalue is good for.

``python -m benchmarks.npc speed|growth|gain|theorem|noise [--timed K] [--quick]``; all of them without an argument.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import numpy as np
import torch
from scipy.sparse.linalg import lobpcg
from scipy.stats import kendalltau
from skorch import NeuralNetClassifier
from torch import nn

from benchmarks._measure import interleaved, markdown
from skal.datasets import load
from skal.nets import CNN, MLP
from skal.strategies import NPC
from skal.strategies._spectral import (
    KernelBlocks,
    draw_batches,
    greedy_search,
    pruned_search,
    ridge_logdets,
    smallest_eigenvalue,
)
from skal.tangent import tangent_kernel


def digits_kernel(n_points: int, seed: int = 0) -> np.ndarray:
    """The pseudo-NTK of an untrained CNN on that many digits: (n_points, n_points)."""
    torch.manual_seed(seed)
    digits = load("digits")
    X = np.concatenate([digits.X_train, digits.X_test])
    rows = np.random.default_rng(seed).choice(len(X), n_points, replace=False)
    return tangent_kernel(CNN(in_channels=1, image_size=8), X[rows])


def blocks(K: np.ndarray, n: int) -> KernelBlocks:
    """Labelled block, cross block and pool block, the first n points labelled."""
    return KernelBlocks(K[:n, :n], K[:n, n:], K[n:, n:])


def by_dense(parts: KernelBlocks, batches: np.ndarray) -> np.ndarray:
    """λ_min of every batch from all eigenvalues of its matrix."""
    return np.array([np.linalg.eigvalsh(parts.join(batch))[0] for batch in batches])


def by_scipy_lobpcg(parts: KernelBlocks, batches: np.ndarray) -> np.ndarray:
    """λ_min of every batch by scipy's LOBPCG from a random start, to a relative residual of 1e-5 or 200 steps."""
    rng = np.random.default_rng(0)
    values = []
    for batch in batches:
        M = parts.join(batch)
        start = rng.normal(size=(len(M), 1))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says so where it has not converged
            values.append(lobpcg(M, start, tol=1e-5 * np.trace(M) / len(M), maxiter=200, largest=False)[0][0])
    return np.array(values)


def by_torch_lobpcg(parts: KernelBlocks, batches: np.ndarray) -> np.ndarray:
    """λ_min of every batch by torch's LOBPCG with its default settings."""
    generator = torch.Generator().manual_seed(0)
    values = []
    for batch in batches:
        M = torch.from_numpy(parts.join(batch))
        start = torch.randn(len(M), 1, dtype=M.dtype, generator=generator)
        values.append(float(torch.lobpcg(M, k=1, X=start, largest=False)[0]))
    return np.array(values)


RIVALS: dict[str, Callable[[KernelBlocks, np.ndarray], np.ndarray]] = {
    "dense eigenvalues": by_dense,
    "LOBPCG (torch)": by_torch_lobpcg,
    "LOBPCG (scipy)": by_scipy_lobpcg,
}


def speed_table(timed: int = 50, quick: bool = False) -> str:
    """The same candidates, one run: the search takes all of them, the others the first ``timed``, times m / timed."""
    sizes = [(10, 5, 60, 40)] if quick else [(50, 20, 1000, 1000), (300, 200, 1000, 1000)]
    rows: list[list[object]] = []
    for n, b, N, m in sizes:
        parts = blocks(digits_kernel(n + N), n)
        batches = draw_batches(N, b, m, np.random.default_rng(0))
        few = batches[: min(timed, m)]
        seconds = interleaved({"search": lambda p=parts, q=batches: pruned_search(p, q)}, repeats=3)["search"]
        index, value = pruned_search(parts, batches)
        rows.append([n, b, m, "pruned search", m, seconds, 1.0, f"batch {index}, λ_min {value:.6g}"])
        exact = by_dense(parts, few)
        for name, rival in RIVALS.items():
            start = time.perf_counter()
            values = rival(parts, few)
            taken = (time.perf_counter() - start) * m / len(few)
            if len(few) == m:
                answer = f"batch {values.argmax()}, λ_min {values.max():.6g}"
            else:
                answer = f"largest error {np.abs(values / exact - 1).max():.0e}"
            rows.append([n, b, m, name, len(few), taken, taken / seconds, answer])
    return markdown(["n", "b", "m", "method", "timed", "seconds for m", "times the search", "answer"], rows)


def growth_table(quick: bool = False) -> str:
    """Seconds of the search as one of n, b, m grows; pool of 1,000 points."""
    N = 100 if quick else 1000
    n, b, m = (10, 5, 50) if quick else (100, 50, 1000)
    settings = [(n * k // 2, b, m) for k in (0, 1, 2, 4, 8)]
    settings += [(n, b * k // 2, m) for k in (1, 4, 8)] + [(n, b, m * k // 4) for k in (1, 16)]
    K = digits_kernel(N + 4 * n)
    rows: list[list[object]] = []
    for labelled, size, candidates in settings:
        part = np.r_[:labelled, len(K) - N : len(K)]
        parts = blocks(K[np.ix_(part, part)], labelled)
        batches = draw_batches(N, size, candidates, np.random.default_rng(0))
        seconds = interleaved({"search": lambda p=parts, q=batches: pruned_search(p, q)}, repeats=2)["search"]
        rows.append([labelled, size, candidates, seconds])
    return markdown(["n", "b", "m", "seconds"], rows)


def gain_table(quick: bool = False) -> str:
    """λ_min over that of the median random batch: best of 1,000 batches, greedy, and the labelled set's, a bound."""
    N, m = (60, 20) if quick else (1000, 1000)
    settings = [(0, 5), (10, 5)] if quick else [(0, 20), (20, 20), (100, 20), (400, 20), (20, 5), (20, 100)]
    K = digits_kernel(N + max(n for n, _ in settings))
    rows: list[list[object]] = []
    for n, b in settings:
        part = np.r_[:n, len(K) - N : len(K)]
        parts = blocks(K[np.ix_(part, part)], n)
        batches = draw_batches(N, b, m, np.random.default_rng(0))
        median = np.median(by_dense(parts, batches[:200]))
        greedy = greedy_search(parts, b)[1][-1]
        bound = smallest_eigenvalue(parts.LL) / median if n else ""
        rows.append([n, b, pruned_search(parts, batches)[1] / median, greedy / median, bound])
    return markdown(["n", "b", "best of m", "greedy", "labelled set alone"], rows)


class WideNet(nn.Module):
    """One hidden layer of ReLU units between which fixed random signs sum: (f, 0). The theorem's network."""

    def __init__(self, n_features: int, width: int, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.hidden = nn.Linear(n_features, width, bias=False)
        self.hidden.weight.data.normal_(generator=generator)
        self.register_buffer("signs", torch.randint(0, 2, (width,), generator=generator) * 2.0 - 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, 2) outputs of (n, n_features) inputs."""
        f = torch.relu(self.hidden(x)) @ self.signs / len(self.signs) ** 0.5
        return torch.stack([f, torch.zeros_like(f)], dim=1)


def theorem_table(quick: bool = False) -> str:
    """Squared loss after gradient descent on the set that NPC chose, among those on random sets: five pools."""
    width, n_steps, n_random, n_pools = (256, 20, 5, 2) if quick else (4096, 300, 31, 5)
    rows: list[list[object]] = []
    for seed in range(n_pools):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(200, 8))
        X = (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32)
        y = rng.choice([-1.0, 1.0], size=200).astype(np.float32)

        def loss(chosen: np.ndarray, seed: int = seed, X: np.ndarray = X, y: np.ndarray = y) -> float:
            module = WideNet(8, width, seed)
            optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
            inputs, target = torch.as_tensor(X[chosen]), torch.as_tensor(y[chosen])
            for _ in range(n_steps):
                optimizer.zero_grad()
                value = (module(inputs)[:, 0] - target).square().mean()
                (value * len(chosen) / 2).backward()
                optimizer.step()
            return value.item()

        net = NeuralNetClassifier(WideNet(8, width, seed), criterion=nn.CrossEntropyLoss, verbose=0).initialize()
        learner = SimpleNamespace(estimator=net, X_training=None, y_training=None)
        chosen, values = NPC(n_candidates=1000, random_state=seed).select(learner, X, 20)
        losses = np.array([loss(rng.choice(200, 20, replace=False)) for _ in range(n_random)])
        of_npc = loss(chosen)
        rows.append([seed, values[-1], of_npc, *np.percentile(losses, [10, 50, 90]), f"{(losses > of_npc).mean():.0%}"])
    header = ["pool", "λ_min", "loss, NPC", "random, 10 %", "median", "90 %", "random sets that are worse"]
    return markdown(header, rows)


def noise_table(quick: bool = False) -> str:
    """Is the eigenvalue a property of the batch? Twice the same candidates, the points written in another order.

    That changes nothing but rounding. An MLP whose last layer has 128 inputs, trained on the labelled digits.
    """
    digits = load("digits")
    X, y = torch.as_tensor(digits.X_train), torch.as_tensor(digits.y_train)
    torch.manual_seed(0)
    module = MLP(64, 10, hidden=(128, 128))
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(X[:100]), y[:100]).backward()
        optimizer.step()
    N, m = (60, 20) if quick else (600, 1000)
    kernels = {
        "last_layer": tangent_kernel(module, X[: 100 + N], kind="trace", layers="last"),
        "pntk": tangent_kernel(module, X[: 100 + N]),
    }
    rows: list[list[object]] = []
    for n, b in [(80, 20), (100, 50)]:
        batches = draw_batches(N, b, m, np.random.default_rng(0))
        part = np.r_[:n, 100 : 100 + N]
        shuffled = np.random.default_rng(1).permutation(n)
        values = {}
        for name, K in kernels.items():
            K = K[np.ix_(part, part)]
            kernel = blocks(K, n)
            moved = KernelBlocks(kernel.LL[np.ix_(shuffled, shuffled)], kernel.LU[shuffled], kernel.UU)
            both = [(kernel, batches), (moved, batches[:, ::-1])]
            values[f"{name}, λ_min"] = [by_dense(p, q) for p, q in both]
            if name == "last_layer":
                ridge = 1e-3 * kernel.LL.diagonal().mean()
                values[f"{name}, log det (the fallback)"] = [ridge_logdets(p, q, ridge) for p, q in both]
        reference = values["pntk, λ_min"][0]
        for name, (first, second) in values.items():
            winner = int(first.argmax())
            rows.append(
                [
                    n + b,
                    name,
                    float(kendalltau(first, second)[0]),
                    "yes" if winner == second.argmax() else "no",
                    f"{(first < 0).mean():.0%}" if "λ_min" in name else "",
                    f"{(reference < reference[winner]).mean():.1%}",
                ]
            )
    header = ["n + b", "criterion", "Kendall τ of the two", "same winner", "negative", "winner beats, under pntk"]
    return markdown(header, rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables that are asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.npc", description=__doc__)
    parser.add_argument("what", nargs="*", metavar="TABLE", help="speed, growth, gain, theorem, noise; default: all")
    parser.add_argument("--timed", type=int, default=50, help="candidates that the slow methods are timed on")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    args = parser.parse_args(argv)
    tables: dict[str, Callable[[], str]] = {
        "speed": lambda: speed_table(args.timed, args.quick),
        "growth": lambda: growth_table(args.quick),
        "gain": lambda: gain_table(args.quick),
        "theorem": lambda: theorem_table(args.quick),
        "noise": lambda: noise_table(args.quick),
    }
    if unknown := sorted(set(args.what) - set(tables)):
        parser.error(f"unknown table {', '.join(unknown)}. Choose from: {', '.join(tables)}")
    torch.set_num_threads(1)
    for name in args.what or tables:
        print(f"\n### {name}\n\n{tables[name]()}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
