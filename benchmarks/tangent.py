"""The tangent engine against a plain forward pass: time, memory, and how they grow.

``python -m benchmarks.tangent time|memory|growth|kernels [--out FOLDER]``; all of them without an argument.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks._measure import interleaved, markdown, peak_memory, print_baseline, print_peak
from skal._core.pool import Samples
from skal.exceptions import UnsupportedLayerError
from skal.nets import CNN, MLP, ResNet18
from skal.tangent import loss_gradient
from skal.tangent._gradients import loss_scores
from skal.tangent._kernels import kernel_matrix
from skal.tangent._sketch import feature_matrix
from skal.tangent._tangent_engine import TangentEngine


def wide_cnn(n_classes: int = 10) -> nn.Module:
    """A CNN of about half a million parameters for 32×32 colour images."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4096, 120),
        nn.ReLU(),
        nn.Linear(120, n_classes),
    )


# what is run, on how many images, and on how many of them the slow backends are timed
NETWORKS = {"tutorial CNN": (CNN, 2048, 512), "wider CNN": (wide_cnn, 1024, 256), "ResNet-18": (ResNet18, 64, 4)}


def _images(n: int) -> torch.Tensor:
    return torch.randn(n, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def _forward(module: nn.Module, X: torch.Tensor, batch_size: int = 64) -> None:
    with torch.no_grad():
        for start in range(0, len(X), batch_size):
            module(X[start : start + batch_size])


def time_table() -> str:
    """Time per image over that of a plain forward pass, in one run on one thread.

    All backends at the default batch size; the forward pass at 64 or 256, whichever is quicker.
    """
    torch.set_num_threads(1)
    rows: list[list[object]] = []
    for name, (build, n, n_slow) in NETWORKS.items():
        torch.manual_seed(0)
        module = build().eval()
        X = _images(n)
        samples, few = Samples(X), Samples(X[:n_slow])
        direction = loss_gradient(module, X[:32], torch.arange(32) % 10)
        engine = TangentEngine(module, samples)
        tasks = {
            "forward 64": lambda module=module, X=X: _forward(module, X, 64),
            "forward 256": lambda module=module, X=X: _forward(module, X, 256),
            "scores": lambda e=engine, s=samples, d=direction: loss_scores(e, s, None, d),
            "sketch": lambda e=engine, s=samples: feature_matrix(e, s, "pntk", 4096),
        }
        for backend in ("func", "backpack"):
            try:
                slow = TangentEngine(module, few, backend=backend)
            except UnsupportedLayerError:
                continue
            tasks[backend] = lambda e=slow, s=few, d=direction: loss_scores(e, s, None, d)
        seconds = interleaved(tasks, repeats=3)
        forward = min(seconds["forward 64"], seconds["forward 256"]) / n
        scores = seconds["scores"] / n
        slow_ones = [seconds[b] / n_slow if b in seconds else float("nan") for b in ("func", "backpack")]
        rows.append(
            [
                name,
                f"{sum(p.numel() for p in module.parameters()):,}",
                scores / forward,
                *(
                    f"{s / forward:.1f} ({s / scores:.1f} × structured)" if s == s else "does not run"
                    for s in slow_ones
                ),
                seconds["sketch"] / n / forward,
            ]
        )
    header = ["network", "parameters", "scores, structured", "scores, func", "scores, BackPACK", "sketch, k = 4096"]
    return markdown(header, rows)


def memory_table() -> str:
    """Peak memory above the loaded network, each measured in a process of its own."""
    rows: list[list[object]] = []
    for name in NETWORKS:
        for task in ("scores", "sketch"):
            sizes = (500, 2000) if name == "ResNet-18" else (2000, 8000)
            peaks = [peak_memory("benchmarks.tangent", "_task", name, task, str(n)) / 1e6 for n in sizes]
            rows.append([name, task, *(f"{n:,}: {peak:,.0f} MB" for n, peak in zip(sizes, peaks, strict=True))])
    return markdown(["network", "what", "images", "images"], rows)


def _memory_task(name: str, task: str, n: int) -> None:
    build, *_ = NETWORKS[name]
    module = build().eval()
    # a Dataset, so that the images themselves do not count
    X = _GeneratedImages(n)
    _forward(module, _images(64))
    print_baseline()
    samples = Samples(X)
    engine = TangentEngine(module, samples)
    if task == "scores":
        loss_scores(engine, samples, None, loss_gradient(module, _images(32), torch.arange(32) % 10))
    else:
        feature_matrix(engine, samples, "pntk", 4096)
    print_peak()


class _GeneratedImages(torch.utils.data.Dataset):
    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(3, 32, 32, generator=torch.Generator().manual_seed(index))


def growth_table() -> str:
    """Exponents b of ``seconds = a · size^b``, fitted over four sizes, everything else fixed."""
    torch.set_num_threads(1)
    rows: list[list[object]] = []

    def row(what: str, sizes: list[int], make: object) -> None:
        tasks: dict = {}
        for size in sizes:
            for name, task in make(size).items():  # type: ignore[operator]
                tasks[name, size] = task
        seconds = interleaved(tasks, repeats=2)
        names = list(dict.fromkeys(name for name, _ in seconds))
        exponents = [np.polyfit(np.log(sizes), np.log([seconds[name, s] for s in sizes]), 1)[0] for name in names]
        rows.append([what, f"{sizes[0]:,} … {sizes[-1]:,}", *(f"{e:.2f}" for e in exponents)])

    def tasks(module: nn.Module, X: torch.Tensor) -> dict:
        samples = Samples(X)
        engine = TangentEngine(module.eval(), samples)
        small = samples.take(np.arange(64))
        return {
            "scores": lambda: loss_scores(engine, samples, None, None),
            "sketch": lambda: feature_matrix(engine, samples, "pntk", 1024),
            "pntk": lambda: kernel_matrix(engine, small, samples, "pntk"),
            "trace": lambda: kernel_matrix(engine, small, samples, "trace"),
        }

    row("N images, tutorial CNN", [128, 256, 512, 1024], lambda n: tasks(CNN(), _images(n)))
    flat = torch.randn(128, 256, generator=torch.Generator().manual_seed(0))
    row(
        "P ~ width², MLP of three layers (exponent in P)",
        [256**2, 512**2, 1024**2, 2048**2],
        lambda p: tasks(MLP(256, 10, hidden=(round(p**0.5), round(p**0.5))), flat),
    )
    row("C classes, tutorial CNN", [4, 8, 16, 32], lambda c: tasks(CNN(n_classes=c), _images(128)))
    return markdown(["what grows", "from … to", "scores", "sketch", "pntk (64 × N)", "trace (64 × N)"], rows)


def kernel_table(out: Path | None = None) -> str:
    """pNTK against eNTK by width at initialisation (three seeds), and during training."""
    from benchmarks._kernel_study import study

    return study(out)


TASKS = {"time": time_table, "memory": memory_table, "growth": growth_table}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables that are asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tangent", description=__doc__)
    parser.add_argument("tasks", nargs="*", help="time, memory, growth, kernels")
    parser.add_argument("--out", type=Path, help="folder for the plot")
    args = parser.parse_args(argv)
    if args.tasks[:1] == ["_task"]:
        _memory_task(args.tasks[1], args.tasks[2], int(args.tasks[3]))
        return 0
    for name in args.tasks or [*TASKS, "kernels"]:
        print(f"\n### {name}\n\n{kernel_table(args.out) if name == 'kernels' else TASKS[name]()}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
