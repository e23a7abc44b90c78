"""NTK look-ahead: its time beside BADGE's, how close a sketch comes, memory, and how well it foretells retraining.

``python -m benchmarks.lookahead batches|speed|naive|kernels|picks|tau|evaluation|memory|sequential|width [--data NAME]
[--quick]``; all of them without an argument. The network is a CNN of 421,642 parameters for 28 × 28 images; MNIST is
read by ``skal.datasets.load``. ``--quick`` and ``--data digits`` run on digits, with a smaller one.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from scipy.stats import kendalltau, spearmanr
from skorch import NeuralNetClassifier
from torch import nn

from benchmarks._measure import interleaved, markdown
from benchmarks.memory import peak
from skal import LinearizedLearner
from skal._lookahead.comparators import Retrainer
from skal._lookahead.posterior import Posterior
from skal._lookahead.query import make_source
from skal._lookahead.request import Settings
from skal._lookahead.sources import FeatureSource
from skal._lookahead.variance import VarianceGains, logit_variance
from skal.config import config_context, set_config
from skal.datasets import load
from skal.nets import SquaredLoss
from skal.strategies import BADGE, NTKLookahead
from skal.tangent._cotangents import kernel_cotangents


class ConvNet(nn.Module):
    """Two 3 × 3 convolutions with pooling and two linear layers: 421,642 parameters for 28 × 28 images."""

    def __init__(self, side: int = 28, n_classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        self.hidden = nn.Sequential(nn.Linear(64 * (side // 4) ** 2, 128), nn.ReLU())
        self.fc = nn.Linear(128, n_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, n_classes) outputs of (n, 1, side, side) images."""
        return self.fc(self.hidden(self.features(x)))


def make_net(module: nn.Module, epochs: int, criterion: type[nn.Module] = SquaredLoss) -> NeuralNetClassifier:
    """Adam with 1e-3, batches of 32."""
    return NeuralNetClassifier(
        module,
        criterion=criterion,
        optimizer=torch.optim.Adam,
        lr=1e-3,
        batch_size=32,
        max_epochs=epochs,
        train_split=None,
        verbose=0,
    )


def problem(
    data: str, n: int, N: int, epochs: int = 20, seed: int = 0, criterion: type[nn.Module] = SquaredLoss
) -> tuple[Any, np.ndarray]:
    """A learner trained on n labels, and a pool of N others."""
    bunch = load(data)
    rows = np.random.default_rng(seed).permutation(len(bunch.X_train))[: n + N]
    X, y = bunch.X_train[rows], bunch.y_train[rows]
    torch.manual_seed(seed)
    net = make_net(ConvNet(X.shape[-1]), epochs, criterion).fit(X[:n], y[:n])
    return SimpleNamespace(estimator=net, X_training=X[:n], y_training=y[:n]), X[n:]


def batch_table(data: str, quick: bool) -> str:
    """The default against BADGE for a small and a large batch, and what each of its parts takes.

    Seconds of processor time, one thread, everything taking turns.
    """
    n, N = (20, 100) if quick else (100, 4000)
    learner, X_pool = problem(data, n, N, epochs=15)
    variance, badge = NTKLookahead(random_state=0), BADGE(random_state=0)
    context, settings = variance.prepare(learner, X_pool), Settings.of(variance)
    source = make_source(context, settings, np.random.default_rng(0), N)
    assert isinstance(source, FeatureSource)
    reader, (small, large) = source.reader, (5, 10) if quick else (20, 250)
    evaluation = settings.evaluation_rows(context, np.random.default_rng(0))
    cotangents = kernel_cotangents("pntk", 10)

    features = reader.features(context.pool)

    def covariances() -> Posterior:
        source.reader.features = lambda samples: features  # type: ignore[method-assign] # the pass is counted apart
        posterior = source.posterior(context.pool, np.arange(N), evaluation, None)
        del source.reader.features
        return posterior

    def chosen(b: int) -> None:
        posterior = covariances()
        tau = logit_variance(posterior.outputs.logits)
        importance = source.importance(posterior.outputs.beliefs, tau, posterior.rho, posterior.scale)
        VarianceGains(posterior, importance).choose(b)

    tasks: dict[str, Callable[[], object]] = {
        "forward": lambda: context.network.all_logits(context.pool, reader.chunk),
        "backward": lambda: list(
            reader.engine.run(context.pool, cotangents, lambda found, n: next(found) and None, batch_size=reader.chunk)
        ),
        "gradients": lambda: reader.features(context.pool),
        "covariances": covariances,
    }
    for b in (small, large):
        tasks |= {
            f"chosen {b}": partial(chosen, b),
            f"BADGE {b}": partial(badge.select, learner, X_pool, b),
            f"variance {b}": partial(variance.select, learner, X_pool, b),
        }
    seconds = interleaved(tasks, repeats=1 if quick else 3, clock=time.process_time)
    rows: list[list[object]] = []

    def add(name: str, taken: float, b: int = small) -> None:
        rows.append([name, taken, taken / seconds[f"BADGE {b}"]])

    add("a forward pass", seconds["forward"])
    add("the backward pass", seconds["backward"] - seconds["forward"])
    add("per-sample gradients, their kernel with the labels, their sketch", seconds["gradients"] - seconds["backward"])
    add(f"covariances with {len(evaluation)} evaluation samples", seconds["covariances"])
    for b in (small, large):
        add(f"choice of {b}", seconds[f"chosen {b}"] - seconds["covariances"], b)
    for b in (small, large):
        add(f"BADGE, a batch of {b}", seconds[f"BADGE {b}"], b)
        add(f"variance, a batch of {b}", seconds[f"variance {b}"], b)
    return markdown([f"{N} samples, {n} labels", "seconds", "times BADGE"], rows)


def speed_table(data: str, quick: bool) -> str:
    """One query of 20."""
    n, N = (20, 100) if quick else (100, 4000)
    learner, X_pool = problem(data, n, N, epochs=15)
    strategies: dict[str, Any] = {
        "BADGE": BADGE(random_state=0),
        "variance, greedy": NTKLookahead(random_state=0),
        "MLMOC": NTKLookahead(criterion="mlmoc", random_state=0),
        "EMOC": NTKLookahead(criterion="emoc", random_state=0),
        "EER": NTKLookahead(criterion="eer", random_state=0),
        "MLMOC, greedy": NTKLookahead(criterion="mlmoc", batch="greedy", random_state=0),
    }
    tasks = {name: lambda s=s: s.select(learner, X_pool, 20) for name, s in strategies.items()}
    seconds = interleaved(tasks, repeats=1 if quick else 2)
    rows = [[name, t, t / seconds["BADGE"], t / seconds["MLMOC"]] for name, t in seconds.items()]
    return markdown([f"n = {n}, N = {N}, {data}", "seconds", "times BADGE", "times MLMOC"], rows)


def naive_table(data: str, quick: bool) -> str:
    """15 epochs and one pass over the evaluation set for each candidate: three are timed, times the pool's size."""
    n, N = (20, 100) if quick else (100, 4000)
    learner, X_pool = problem(data, n, N, epochs=15)
    strategy = NTKLookahead(criterion="mlmoc", random_state=0)
    seconds = interleaved({"MLMOC": lambda: strategy.scores(learner, X_pool)}, repeats=1)["MLMOC"]
    context = strategy.prepare(learner, X_pool)
    evaluation = Settings.of(strategy).evaluation_rows(context, np.random.default_rng(0))
    retrainer = Retrainer(context, evaluation)
    start = time.perf_counter()
    for candidate in range(3):
        retrainer.retrain(candidate, 0)
    naive = (time.perf_counter() - start) / 3 * N
    header = [f"n = {n}, N = {N}", "MLMOC, seconds", f"naive retraining, 3 of {N} timed", "times MLMOC"]
    return markdown(header, [[data, seconds, naive, naive / seconds]])


def kernel_table(data: str, quick: bool) -> str:
    """The scalar kernel against the one with a C × C block for each pair, both exact."""
    n, N = (10, 30) if quick else (50, 300)
    learner, X_pool = problem(data, n, N, epochs=15)
    seconds = {}
    for kernel in ("pntk", "entk"):
        start = time.perf_counter()
        NTKLookahead(criterion="mlmoc", kernel=kernel, n_features=None).scores(learner, X_pool)
        seconds[kernel] = time.perf_counter() - start
    share = f"{seconds['pntk'] / seconds['entk']:.1%}"
    header = [f"n = {n}, N = {N}", "pntk, seconds", "entk, seconds", "pntk of entk"]
    return markdown(header, [[data, seconds["pntk"], seconds["entk"], share]])


def tau_table(data: str, quick: bool) -> str:
    """Kendall τ of the ranking with default settings to the one with the exact kernel, the same pool of 400."""
    rows: list[list[object]] = []
    for n, epochs in [(20, 10), (40, 10)] if quick else [(100, 40), (300, 30), (1000, 20)]:
        learner, X_pool = problem(data, n, 50 if quick else 400, epochs)
        row: list[object] = [n]
        for criterion in ("mlmoc", "emoc", "eer"):
            exact = NTKLookahead(criterion=criterion, n_features=None).scores(learner, X_pool)
            for k in ("auto",) if criterion != "mlmoc" else (1024, "auto"):
                sketched = NTKLookahead(criterion=criterion, n_features=k, random_state=0).scores(learner, X_pool)
                row.append(float(kendalltau(exact, sketched)[0]))
        rows.append(row)
    return markdown(["n", "MLMOC, k = 1024", "MLMOC, default", "EMOC, default", "EER, default"], rows)


def picks_table(data: str, quick: bool) -> str:
    """How many picks of the variance criterion are those of the exact kernel with the whole pool as evaluation set.

    Mean over two draws of sketches and evaluation sets; a network trained with cross-entropy.
    """
    n, N, batches = (20, 100, (5, 10)) if quick else (100, 4000, (20, 250))
    learner, X_pool = problem(data, n, N, epochs=15, criterion=nn.CrossEntropyLoss)
    most = batches[-1]
    with config_context(max_memory="4GB"):
        exact = NTKLookahead(n_features=None, evaluation=None).select(learner, X_pool, most)[0]
    lengths = (64, 128) if quick else (512, 1024, 4096)
    settings: dict[str, dict[str, Any]] = {f"sketch of {k}": {"n_features": k, "evaluation": None} for k in lengths}
    settings["the default: evaluation samples drawn, too"] = {}
    rows: list[list[object]] = []
    for name, params in settings.items():
        found = [NTKLookahead(**params, random_state=seed).select(learner, X_pool, most)[0] for seed in range(2)]
        shared = [np.mean([len(set(exact[:b]) & set(picks[:b])) for picks in found]) for b in batches]
        rows.append([name, *(f"{count:.1f} of {b}" for count, b in zip(shared, batches, strict=True))])
    return markdown([f"n = {n}, N = {N}", *(f"the first {b}" for b in batches)], rows)


def evaluation_table(data: str, quick: bool) -> str:
    """Kendall τ to the sum over the whole pool, and how many of the best 20 are the same; mean over three draws."""
    n, N = (20, 200) if quick else (100, 4000)
    learner, X_pool = problem(data, n, N)
    strategy = NTKLookahead(criterion="mlmoc")
    context = strategy.prepare(learner, X_pool)
    source = make_source(context, Settings.of(strategy), np.random.default_rng(0), N)
    assert isinstance(source, FeatureSource)
    features = source.reader.features(context.pool)
    source.reader.features = lambda samples: features  # type: ignore[method-assign] # one pass for all evaluation sets

    def scores(evaluation: np.ndarray, criterion: str) -> np.ndarray:
        posterior = source.posterior(context.pool, np.arange(N), evaluation, N)
        return posterior.scores(criterion, "network").numpy()

    rows: list[list[object]] = []
    for criterion in ("mlmoc", "emoc"):
        whole = scores(np.arange(N), criterion)
        best = set(np.argsort(-whole)[:20])
        for size in [20, 100] if quick else [100, 250, 500, 1000, 2000]:
            taus, shared = [], []
            for seed in range(3):
                drawn = scores(np.random.default_rng(seed).choice(N, size, replace=False), criterion)
                taus.append(kendalltau(whole, drawn)[0])
                shared.append(len(best & set(np.argsort(-drawn)[:20])))
            rows.append([criterion, size, float(np.mean(taus)), float(np.mean(shared))])
    return markdown([f"N = {N}", "evaluation samples", "Kendall τ", "of the best 20"], rows)


def sequential_table(data: str, quick: bool) -> str:
    """Seconds of the first query on a pool, and of a further teach and query; how far it is from scratch."""
    n, N = (20, 100) if quick else (100, 2000)
    learner, X_pool = problem(data, n, N, epochs=15)
    strategy = NTKLookahead(criterion="mlmoc", evaluation=None, random_state=0)
    sequential = LinearizedLearner(learner.estimator, strategy)
    sequential.X_training, sequential.y_training = learner.X_training, learner.y_training
    start = time.perf_counter()
    indices, samples = sequential.query(X_pool)
    first = time.perf_counter() - start
    steps = []
    for step in range(10):
        start = time.perf_counter()
        sequential.teach(samples, np.array([step % 10]))
        X_pool = np.delete(X_pool, indices, axis=0)
        indices, samples = sequential.query(X_pool)
        steps.append(time.perf_counter() - start)
    every = sequential.query(X_pool, n_instances=len(X_pool), return_metrics=True)
    ours = np.empty(len(X_pool))
    ours[every[0]] = every[2]
    scratch = strategy.scores(sequential, X_pool)
    tau = float(kendalltau(ours, scratch)[0])
    header = [f"n = {n}, N = {N}", "first query, s", "teach + query, s", "ratio", "τ to scratch after 10"]
    return markdown(header, [["seconds", first, min(steps), first / min(steps), tau]])


def width_table(quick: bool) -> str:
    """Change foretold for the pool against that after real training, over candidates; digits, one hidden layer.

    Gradient descent on the squared loss until it has all but vanished, from the network that was trained so on the
    labels alone, with the outputs divided by the root of the width; 20 candidates, mean over three networks.
    """
    digits = load("digits")
    X, y = torch.as_tensor(digits.X_train.reshape(-1, 64)), torch.as_tensor(digits.y_train)
    X = X / X.norm(dim=1, keepdim=True)
    n, N, n_candidates, tolerance = (5, 10, 4, 1e-3) if quick else (20, 60, 20, 1e-5)
    rows: list[list[object]] = []
    for width in (256,) if quick else (16, 64, 256, 1024, 4096):
        correlations, errors = [], []
        for seed in range(1 if quick else 3):
            torch.manual_seed(seed)
            module = Scaled(width)
            train(module, X[:n], y[:n], tolerance)
            net = make_net(module, 1).initialize()
            net.module_ = module
            learner = SimpleNamespace(estimator=net, X_training=X[:n].numpy(), y_training=y[:n].numpy())
            pool = X[n : n + N]
            strategy = NTKLookahead(criterion="mlmoc", kernel="entk", ridge=1e-8, evaluation=None)
            foretold = strategy.scores(learner, pool.numpy())[:n_candidates]
            before = module(pool).detach()
            state = {name: value.clone() for name, value in module.state_dict().items()}
            real = []
            for j in range(n_candidates):
                module.load_state_dict(state)
                train(module, torch.cat([X[:n], pool[[j]]]), torch.cat([y[:n], before[[j]].argmax(1)]), tolerance)
                real.append(float((module(pool).detach() - before).norm(dim=1).sum()))
            correlations.append(spearmanr(foretold, real)[0])
            errors.append(float(np.median(np.abs(foretold / np.array(real) - 1))))
        rows.append([width, float(np.mean(correlations)), float(np.mean(errors))])
    return markdown(["width", "Spearman's ρ", "median relative difference"], rows)


class Scaled(nn.Module):
    """One hidden layer in the NTK parametrisation: the output is divided by the root of the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(64, width, bias=False), nn.Linear(width, 10, bias=False)
        nn.init.normal_(self.hidden.weight)
        nn.init.normal_(self.out.weight)
        self.scale = width**-0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, 10) outputs."""
        return self.scale * self.out(torch.relu(self.hidden(x)))


def train(module: nn.Module, X: torch.Tensor, y: torch.Tensor, tolerance: float) -> None:
    """Gradient descent with momentum on all samples at once until the loss per sample is below the tolerance."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.2 / len(X), momentum=0.95, nesterov=True)
    loss_of = SquaredLoss(reduction="sum")
    for _ in range(5000):
        optimizer.zero_grad()
        loss = loss_of(module(X), y)
        loss.backward()
        if float(loss.detach()) < tolerance * len(X):
            return
        optimizer.step()


def memory_table(data: str, quick: bool) -> str:
    """Peak growth of a process that chooses 20 samples, beyond network and data; on Linux."""
    learner, X_pool = problem(data, *((20, 100) if quick else (100, 4000)), epochs=1)

    def within(bound: str) -> NTKLookahead:
        set_config(max_memory=bound)  # of a process of its own
        return NTKLookahead(random_state=0)

    rows: list[list[object]] = []
    for bound in ("100MB",) if quick else ("200MB", "400MB", "1GB"):
        grown = peak(within, bound, learner, X_pool, 20)
        rows.append([bound, f"{int(grown) / 1e6:.0f} MB" if grown.isdigit() else grown])
    return markdown(["max_memory", "measured"], rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables that are asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lookahead", description=__doc__)
    parser.add_argument("what", nargs="*", metavar="TABLE", help="see above; default: all")
    parser.add_argument("--data", default="mnist", help="mnist or digits")
    parser.add_argument("--quick", action="store_true", help="tiny sizes on digits, to see that it runs")
    args = parser.parse_args(argv)
    data = "digits" if args.quick else args.data
    torch.set_num_threads(1)
    tables: dict[str, Callable[[], str]] = {
        "batches": lambda: batch_table(data, args.quick),
        "speed": lambda: speed_table(data, args.quick),
        "naive": lambda: naive_table(data, args.quick),
        "kernels": lambda: kernel_table(data, args.quick),
        "picks": lambda: picks_table(data, args.quick),
        "tau": lambda: tau_table(data, args.quick),
        "evaluation": lambda: evaluation_table(data, args.quick),
        "memory": lambda: memory_table(data, args.quick),
        "sequential": lambda: sequential_table(data, args.quick),
        "width": lambda: width_table(args.quick),
    }
    if unknown := sorted(set(args.what) - set(tables)):
        parser.error(f"unknown table {', '.join(unknown)}. Choose from: {', '.join(tables)}")
    for name in args.what or tables:
        print(f"\n### {name}\n\n{tables[name]()}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
