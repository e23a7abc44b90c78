"""Worst relative error of loss gradients against brute-force autograd, for networks of many kinds and six criteria.

``python -m benchmarks.exactness [NETWORK ...]`` prints a table with a row for each network. A cell has the worst error
in float64 and in float32 over the squared norms of the per-sample gradients, their inner products with the gradient of
the labelled set, that gradient itself, and the scores of DynamicAL, each in units of its largest value. The truth is
one call of ``torch.autograd.grad`` per sample, in float64, with the same parameters.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from benchmarks._measure import markdown
from skal.strategies import DynamicAL
from skal.tangent import gradient_scores, loss_gradient
from tests.support import oracle
from tests.support.criteria import CRITERIA, net_trained_with, one_loss
from tests.support.kinds import KINDS
from tests.support.learners import learner_of
from tests.support.networks import N_CLASSES, randomise

COLUMNS = {
    "plain": "plain",
    "weighted": "weighted",
    "smoothed": "smoothed",
    "squared": "squared",
    "binary": "binary, `pos_weight`",
    "focal": "a user's own",
}
LIMITS = {torch.float64: 1e-9, torch.float32: 1e-3}
N = 5


def worst_error(kind: str, name: str, dtype: torch.dtype) -> float:
    """The worst relative error for one network and one criterion."""
    torch.manual_seed(0)
    make, inputs = KINDS[kind]
    module, X = randomise(make()), inputs(N)
    binary = name == "binary"
    if binary:
        module = nn.Sequential(module, nn.Linear(N_CLASSES, 1))
    module, X = module.to(dtype), X.to(dtype) if X.is_floating_point() else X
    y = np.arange(N) % (2 if binary else N_CLASSES)
    truth_criterion = CRITERIA[name](torch.float64)

    def truth(labels: np.ndarray) -> np.ndarray:
        return oracle.loss_gradients(module, X, labels, lambda f, label: one_loss(truth_criterion, f, label))

    f = oracle.logits(module, X)
    g, own = truth(y), truth((f[:, 0] > 0).astype(int) if binary else f.argmax(1))
    g_S = g.sum(0)
    net = net_trained_with(CRITERIA[name](dtype), module)
    total = loss_gradient(net, X, y)
    norms, dots = gradient_scores(net, X, y, total)
    learner = learner_of(net, X, y.astype(np.float32) if binary else y)
    pairs = [
        (norms, (g**2).sum(1)),
        (dots, g @ g_S),
        (oracle.flatten(total, module), g_S),
        (DynamicAL().scores(learner, X), (own**2).sum(1) + 2 * own @ g_S),
    ]
    return max(oracle.relative_error(result, expected) for result, expected in pairs)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 1 if an error is larger than rounding explains."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exactness", description=__doc__)
    parser.add_argument("networks", nargs="*", help=f"of {', '.join(KINDS)}")
    args = parser.parse_args(argv)
    if unknown := sorted(set(args.networks) - set(KINDS)):
        parser.error(f"unknown network {', '.join(unknown)}. Choose from: {', '.join(KINDS)}")
    rows: list[list[object]] = []
    worst = dict.fromkeys(LIMITS, 0.0)
    for kind in args.networks or KINDS:
        row: list[object] = [kind.replace("_", " ")]
        for name in COLUMNS:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="There is a performance drop")  # of vmap, for some layers
                errors = {dtype: worst_error(kind, name, dtype) for dtype in LIMITS}
            worst = {dtype: max(worst[dtype], error) for dtype, error in errors.items()}
            row.append(" / ".join(f"{error:.0e}" for error in errors.values()))
        rows.append(row)
        print(kind, *row[1:], file=sys.stderr, flush=True)
    rows.append([f"worst of {len(rows)}", f"{worst[torch.float64]:.0e} / {worst[torch.float32]:.0e}"])
    rows[-1] += [""] * (len(COLUMNS) - 1)
    print(markdown(["network", *COLUMNS.values()], rows))
    return int(any(worst[dtype] > limit for dtype, limit in LIMITS.items()))


if __name__ == "__main__":
    sys.exit(main())
