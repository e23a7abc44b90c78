"""Norms of per-sample gradients beside other libraries': vmap(grad), opacus' ghost clipping, and BackPACK.

``python -m benchmarks.gradients [--quick]``. One thread; everybody takes turns on the same samples, in eval mode, with
the batch size that is quickest for each. What a library refuses is skipped by name; opacus is in the extra ``bench``.
"""

from __future__ import annotations

import argparse
import copy
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from benchmarks._cost_problems import PROBLEMS, SmallTransformer
from benchmarks._measure import interleaved, markdown
from skal._core.pool import Samples
from skal.nets import CNN, ResNet18
from skal.tangent._cotangents import LossCotangent
from skal.tangent._gradients import loss_scores
from skal.tangent._tangent_engine import TangentEngine

BATCH_SIZES = (32, 128)
# the network, how many samples, and samples of which problem
NETWORKS: dict[str, tuple[Callable[[], nn.Module], int, str]] = {
    "tutorial CNN": (CNN, 512, "tutorial CNN"),
    "ResNet-18, width 16": (lambda: ResNet18(width=16), 64, "tutorial CNN"),
    "small transformer": (lambda: SmallTransformer(dropout=0.0), 256, "small transformer"),
}


def by_skal(module: nn.Module, X: Tensor, y: Tensor, size: int) -> Callable[[], Tensor]:
    """This package's engine."""
    samples = Samples(X)
    engine = TangentEngine(module, samples, batch_size=size)
    return lambda: loss_scores(engine, samples, y)[0]


def passes_alone(module: nn.Module, X: Tensor, y: Tensor, size: int) -> Callable[[], Tensor]:
    """The same passes, forward and back to the layers' outputs, with nothing made of them: nobody can do with less."""
    samples = Samples(X)
    engine = TangentEngine(module, samples, batch_size=size)
    cotangents = [LossCotangent(engine.network.loss)]
    return lambda: engine.collect(samples, cotangents, lambda found, n: (next(found), torch.zeros(n))[1])


def by_vmap(module: nn.Module, X: Tensor, y: Tensor, size: int) -> Callable[[], Tensor]:
    """Per-sample gradients written out by torch.func."""
    parameters = {name: p.detach() for name, p in module.named_parameters()}
    buffers = dict(module.named_buffers())

    def loss(parameters: Any, x: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(module, (parameters, buffers), (x[None],)), label[None])

    every = vmap(grad(loss), in_dims=(None, 0, 0))

    def norms(x: Tensor, label: Tensor) -> Tensor:
        gradients = every(parameters, x, label)
        return torch.stack([g.flatten(1).square().sum(1) for g in gradients.values()]).sum(0)

    return lambda: torch.cat([norms(*part) for part in zip(X.split(size), y.split(size), strict=True)])


def by_opacus(module: nn.Module, X: Tensor, y: Tensor, size: int) -> Callable[[], Tensor]:
    """Ghost clipping: norms without gradients, where a layer has a rule for that."""
    from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import GradSampleModuleFastGradientClipping

    wrapped = GradSampleModuleFastGradientClipping(copy.deepcopy(module), loss_reduction="sum", max_grad_norm=1.0)
    wrapped.train()  # its hooks sleep in eval mode; none of these networks has a layer to which that matters

    def norms(x: Tensor, label: Tensor) -> Tensor:
        wrapped.zero_grad(set_to_none=True)
        F.cross_entropy(wrapped(x), label, reduction="sum").backward()
        return wrapped.get_norm_sample().square()

    return lambda: torch.cat([norms(*part) for part in zip(X.split(size), y.split(size), strict=True)])


def by_backpack(extension: str, module: nn.Module, X: Tensor, y: Tensor, size: int) -> Callable[[], Tensor]:
    """BackPACK's gradients, written out, or its squared norms."""
    from backpack import backpack, extend, extensions

    extended = extend(copy.deepcopy(module), use_converter=not isinstance(module, CNN)).eval()
    criterion = extend(nn.CrossEntropyLoss(reduction="sum"))

    def norms(x: Tensor, label: Tensor) -> Tensor:
        with backpack(getattr(extensions, extension)()):
            criterion(extended(x), label).backward()
        found = []
        for p in extended.parameters():
            value = p.batch_l2 if extension == "BatchL2Grad" else p.grad_batch.flatten(1).square().sum(1)
            found.append(value)
            p.grad = None
        return torch.stack(found).sum(0)

    return lambda: torch.cat([norms(*part) for part in zip(X.split(size), y.split(size), strict=True)])


RIVALS = {
    "vmap(grad)": by_vmap,
    "opacus, ghost clipping": by_opacus,
    "BackPACK, BatchGrad": partial(by_backpack, "BatchGrad"),
    "BackPACK, BatchL2Grad": partial(by_backpack, "BatchL2Grad"),
}


def table(quick: bool = False) -> str:
    """Time over skal's, and skal's over a plain forward pass."""
    rows: list[list[object]] = []
    for name, (build, n, problem) in NETWORKS.items():
        n = 16 if quick else n
        torch.manual_seed(0)
        module = build().eval()
        _, X = PROBLEMS[problem].make(n, 1)
        X, y = torch.from_numpy(X), torch.arange(n) % 10
        truth = by_skal(module, X, y, 32)()
        tasks: dict[str, Callable[[], object]] = {}
        refused = {}
        for rival, make in {"skal": by_skal, **RIVALS}.items():
            try:
                made = {f"{rival} {size}": make(module, X, y, size) for size in BATCH_SIZES}
                if not torch.allclose(next(iter(made.values()))().to(truth), truth, rtol=1e-2, atol=1e-6):
                    raise ValueError("other norms")
            except Exception as error:
                refused[rival] = f"does not run ({type(error).__name__})"
                continue
            tasks |= made
        for size in BATCH_SIZES:
            tasks[f"forward {size}"] = partial(_forward, module, X, size)
            tasks[f"passes {size}"] = passes_alone(module, X, y, size)
        seconds = interleaved(tasks, repeats=1 if quick else 3)
        best = {
            who: min(seconds[f"{who} {size}"] for size in BATCH_SIZES)
            for who in ("skal", "forward", "passes", *RIVALS)
            if f"{who} {BATCH_SIZES[0]}" in seconds
        }
        cells = [best[who] / best["skal"] if who in best else refused[who] for who in RIVALS]
        rows.append([name, best["skal"] / best["forward"], best["passes"] / best["skal"], *cells])
    header = ["network", "skal over a forward pass", "its passes alone, over skal"]
    return markdown([*header, *(f"{who}, over skal" for who in RIVALS)], rows)


def _forward(module: nn.Module, X: Tensor, size: int) -> None:
    with torch.no_grad():
        for part in X.split(size):
            module(part)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gradients", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="sizes that say nothing, to see that it runs")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        print(f"\n### gradients\n\n{table(args.quick)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
