"""What a query would cost on a GPU, in counts: multiplications by precision, and bytes that cross.

``python -m benchmarks.devices flops`` counts the floating-point operations of torch's products that each more sample of
the pool costs, by precision, on the processor. Double precision is 32 to 64 times slower on most GPUs.
``python -m benchmarks.devices transfers DEVICE`` counts the bytes per sample that cross between the host and a device,
such as ``cuda`` or ``xla:0``, in each direction, and how often the pool's own bytes cross to it. ``meta`` is a device
that the processor plays, whose counts are those of any other.

These two ask with two sizes of the pool and divide the difference by the samples more: what stays the same with any
pool is left out. Names of cases may follow.
``python -m benchmarks.devices bounds DEVICE`` counts how often a pool of 1200 goes there, with bounds on memory.
``python -m benchmarks.devices precision`` asks strategies that work in double precision where the pool grows, and asks
again with those products in single precision: which of them choose otherwise?
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from benchmarks._device_cases import CASES, N_LABELLED, N_PICKS, Case, make_case
from benchmarks._measure import markdown
from benchmarks._second_device import DEVICE, SecondDevice
from skal import config_context
from skal.strategies import BADGE, BALD, LCMD, CoreSet, MaxDet, MaxHerding, NTKLookahead, PredictiveStd

SIZES = (300, 600)
# bounds that hold what is computed from a pool of 1200, and that do not
BOUNDS = {"no bound": None, "2 MB": 2_000_000, "1 MB": 1_000_000}
BOUNDED = ("Margin", "CoreSet", "BADGE", "DropQuery", "MaxHerding", "UHerding", "ProbCover", "TypiClust", "ALBL")


def _triangular(A: Tensor, B: Tensor) -> int:
    return A.shape[-1] * B.numel()


# what torch's own counter leaves out, and grows with the pool in some strategies
MORE: dict[Any, Callable[..., int]] = {
    torch.ops.aten._cdist_forward: lambda a, b, *rest, **_: 3 * a.numel() * b.shape[-2],
    torch.ops.aten.linalg_solve_triangular: lambda A, B, **_: _triangular(A, B),
    torch.ops.aten.triangular_solve: lambda B, A, *rest, **_: _triangular(A, B),
    torch.ops.aten.cholesky_solve: lambda B, A, *rest, **_: 2 * _triangular(A, B),
    torch.ops.aten.mv: lambda A, x, **_: 2 * A.numel(),
    torch.ops.aten.addmv: lambda c, A, x, **_: 2 * A.numel(),
    torch.ops.aten.dot: lambda a, b, **_: 2 * a.numel(),
}


_NUMBERS = (Tensor.item, Tensor.tolist, Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__)


class Flops(TorchDispatchMode):
    """Floating-point operations of products, by the dtype of the result."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        packet = func.overloadpacket
        if packet in MORE:
            n = MORE[packet](*args, **kwargs)
        elif packet in flop_registry:
            n = flop_registry[packet](*args, **kwargs, out_val=result)
        else:
            return result
        dtype = next(x.dtype for x in tree_leaves(result) if isinstance(x, Tensor))
        self.counts[str(dtype).removeprefix("torch.")] += n
        return result


class Transfers(TorchFunctionMode):
    """Bytes that cross between the host and a device: ``to device``, ``to host``, and how often single numbers do.

    It looks at calls of torch's functions. A mode of torch's dispatcher, like that of :class:`Flops`, would see the
    same, but on XLA what is written into views of a tensor is lost under such a mode: BAIT's matrices were singular.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        first = args[0] if args else None
        if func in (torch.as_tensor, torch.tensor, Tensor.new_tensor):
            source = first.device.type if isinstance(first, Tensor) and func is torch.as_tensor else "cpu"
            self._cross(result, source, result.device.type)
        elif func in (Tensor.to, Tensor.cpu, Tensor.cuda, Tensor.type_as):
            self._cross(first, first.device.type, result.device.type)
        elif func in (Tensor.copy_, Tensor.__setitem__) and isinstance(args[-1], Tensor):
            self._cross(args[-1], args[-1].device.type, first.device.type)
        elif func in _NUMBERS and first.device.type != "cpu":
            self.counts["numbers"] += first.numel()
        return result

    def _cross(self, tensor: Tensor, source: str, target: str) -> None:
        if source != target:
            self.counts["to host" if target == "cpu" else "to device"] += tensor.nbytes


class InSingle(TorchDispatchMode):
    """Makes the products of double precision that grow with a pool of n samples in single precision."""

    def __init__(self, n_pool: int) -> None:
        super().__init__()
        self._n_pool = n_pool

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        packet = func.overloadpacket
        is_product = (packet in MORE or packet in flop_registry) and not func._schema.name.endswith("_")
        if not is_product or not isinstance(result, Tensor) or result.dtype != torch.float64:
            return result
        if max(result.shape) < self._n_pool // 4:
            return result

        def round_off(x: Any) -> Any:
            return x.float() if isinstance(x, Tensor) and x.dtype == torch.float64 else x

        return func(*tree_map(round_off, args), **tree_map(round_off, kwargs or {})).double()


def _far_from_zero(X: np.ndarray) -> np.ndarray:
    """Inputs, and a column that is the same for all."""
    return np.column_stack([X.reshape(len(X), -1), np.full(len(X), 1000, dtype=X.dtype)])


def _one_long_column(X: np.ndarray) -> np.ndarray:
    """Inputs, and a column in which some are far away."""
    rows = X.reshape(len(X), -1)
    return np.column_stack([rows, np.where(rows[:, 20] > 0.99, 10_000, 0).astype(X.dtype)])


DOUBLE: dict[str, Case] = {
    **{name: CASES[name] for name in ("CoreSet", "BADGE", "MaxHerding, laplace", "BALD, joint", "NTKLookahead, exact")},
    **{name: CASES[name] for name in ("LCMD", "MaxDet", "PredictiveStd", "LCMD, numbers", "MaxDet, numbers")},
    "CoreSet, one long column": Case(partial(CoreSet, features=_one_long_column), "numbers"),
    **{
        f"{name}, far from 0": Case(partial(cls, features=_far_from_zero, **params), "numbers")
        for name, cls, params in (
            ("BADGE", BADGE, {"random_state": 0}),
            ("LCMD", LCMD, {}),
            ("MaxDet", MaxDet, {}),
            ("PredictiveStd", PredictiveStd, {}),
            ("MaxHerding, laplace", MaxHerding, {"kernel": "laplace"}),
        )
    },
    "BALD, joint, faint dropout": Case(partial(BALD, batch="joint", random_state=0), "faint dropout"),
    **{
        f"NTKLookahead, {name}, near copies": Case(partial(NTKLookahead, random_state=0, **params), "near copies")
        for name, params in {
            "mlmoc": {"criterion": "mlmoc", "ridge": 0},
            "exact": {"criterion": "mlmoc", "ridge": 0, "n_features": None},
            "linear": {"kernel": "linear", "ridge": 1e-6},
        }.items()
    },
}


def precision_table(names: Sequence[str], n_labelled: int = N_LABELLED, n_pool: int = 950, n_picks: int = 40) -> str:
    """Picks and metrics with products in single precision, against those in double precision."""
    rows: list[list[object]] = []
    for name in names:
        answers = []
        for mode in (nullcontext(), InSingle(n_pool)):
            strategy, learner, X_pool = make_case(DOUBLE[name], "cpu", n_pool, n_labelled)
            with mode, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                answers.append(strategy.select(learner, X_pool, n_picks))
        (picks, metrics), (others, other_metrics) = answers
        scale = np.abs(metrics).max()
        rows.append([name, int((picks != others).sum()), f"{np.abs(metrics - other_metrics).max() / scale:.0e}"])
        print(*rows[-1], file=sys.stderr, flush=True)
    return markdown(["strategy", f"other picks of {n_picks}", "largest difference of the metrics"], rows)


def growth(
    name: str,
    mode: type[Flops] | type[Transfers],
    device: str,
    sizes: Sequence[int] = SIZES,
    n_labelled: int = N_LABELLED,
) -> dict[str, float]:
    """What each more sample of the pool adds to the counts."""
    found = []
    for n_pool in sizes:
        strategy, learner, X_pool = make_case(CASES[name], device, n_pool, n_labelled)
        with mode() as counter, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            strategy.select(learner, X_pool, N_PICKS)
        found.append(counter.counts)
    kinds = {*found[0], *found[1]}
    return {kind: (found[1][kind] - found[0][kind]) / (sizes[1] - sizes[0]) for kind in kinds}


def flops_table(names: Sequence[str], n_labelled: int = N_LABELLED) -> str:
    """Operations per sample more, by precision."""
    rows: list[list[object]] = []
    for name in names:
        more = growth(name, Flops, "cpu", n_labelled=n_labelled)
        single, double = more.get("float32", 0.0), more.get("float64", 0.0)
        share = 100 * double / (single + double) if single + double else 0.0
        rows.append([name, round(single), round(double), f"{share:.0f} %"])
        print(*rows[-1], file=sys.stderr, flush=True)
    return markdown(["strategy", "single precision", "double precision", "share of double"], rows)


def transfers_table(names: Sequence[str], device: str) -> str:
    """Bytes per sample more, in each direction."""
    rows: list[list[object]] = []
    for name in names:
        more = growth(name, Transfers, device)
        sample = make_case(CASES[name], "cpu", 1)[2][0].nbytes
        there, back = more.get("to device", 0.0), more.get("to host", 0.0)
        rows.append([name, sample, round(there), round(back), f"{there / sample:.2f}"])
        print(*rows[-1], file=sys.stderr, flush=True)
    return markdown(["strategy", "bytes of a sample", "to the device", "to the host", "crossings of the pool"], rows)


def whole_crossings(name: str, device: str, n_pool: int, max_memory: int | None) -> float:
    """How often the bytes of a pool go to the device in a query, those of labelled samples among them."""
    strategy, learner, X_pool = make_case(CASES[name], device, n_pool)
    with Transfers() as transfers, warnings.catch_warnings(), config_context(max_memory=max_memory):
        warnings.simplefilter("ignore")
        strategy.select(learner, X_pool, N_PICKS)
    return transfers.counts["to device"] / float(X_pool.nbytes)


def bounds_table(names: Sequence[str], device: str, n_pool: int = 1200) -> str:
    """How often the pool goes to the device, with bounds on memory."""
    rows: list[list[object]] = []
    for name in names:
        rows.append([name, *(f"{whole_crossings(name, device, n_pool, bound):.2f}" for bound in BOUNDS.values())])
        print(*rows[-1], file=sys.stderr, flush=True)
    return markdown(["strategy", *BOUNDS], rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Print one of the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.devices", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    flops = commands.add_parser("flops")
    flops.add_argument("--labels", type=int, default=N_LABELLED, help="number of labelled samples, %(default)s")
    transfers = commands.add_parser("transfers")
    transfers.add_argument("device")
    bounds = commands.add_parser("bounds")
    bounds.add_argument("device")
    precision = commands.add_parser("precision")
    for command, cases in ((flops, CASES), (transfers, CASES), (bounds, BOUNDED), (precision, DOUBLE)):
        command.add_argument("names", nargs="*", help=f"of {', '.join(cases)}")
    args = parser.parse_args(argv)
    known = {"precision": DOUBLE, "bounds": BOUNDED}.get(args.command, CASES)
    if unknown := sorted(set(args.names) - set(known)):
        parser.error(f"unknown case {', '.join(unknown)}. Choose from: {', '.join(known)}")
    names = args.names or list(known)
    if args.command == "precision":
        print(precision_table(names))
        return 0
    if args.command == "flops":
        print(flops_table(names, args.labels))
        return 0
    if args.device.startswith("xla"):
        import torch_xla

        torch_xla.experimental.eager_mode(True)
    with SecondDevice() if args.device == DEVICE else nullcontext():
        torch.zeros(1, device=args.device)
        print((bounds_table if args.command == "bounds" else transfers_table)(names, args.device))
    return 0


if __name__ == "__main__":
    sys.exit(main())
