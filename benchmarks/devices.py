"""What a query would cost on a GPU, in counts: multiplications by precision, and bytes that cross.

``python -m benchmarks.devices flops`` counts the floating-point operations of torch's products that each more sample of
the pool costs, by precision, on the processor. Double precision is 32 to 64 times slower on most GPUs.
``python -m benchmarks.devices transfers DEVICE`` counts the bytes per sample that cross between the host and a device,
such as ``cuda`` or ``xla:0``, in each direction, and how often the pool's own bytes cross to it.

Both ask with two sizes of the pool and divide the difference by the samples more: what stays the same with any pool is
left out. Names of cases may follow.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from benchmarks._device_cases import CASES, N_PICKS, make_case
from benchmarks._measure import markdown

SIZES = (300, 600)


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


class Transfers(TorchDispatchMode):
    """Bytes that cross between the host and a device: ``to device``, ``to host``, and how many numbers one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name == "_to_copy":
            self._cross(args[0], args[0].device, result.device)
        elif name == "copy_" and isinstance(args[1], Tensor):
            self._cross(args[1], args[1].device, args[0].device)
        elif name == "lift_fresh" and result.device.type != "cpu":  # torch.as_tensor(array, device=device)
            self.counts["to device"] += result.nbytes
        elif name == "_local_scalar_dense" and args[0].device.type != "cpu":
            self.counts["numbers"] += 1
        return result

    def _cross(self, tensor: Tensor, source: torch.device, target: torch.device) -> None:
        if source.type != target.type:
            self.counts["to host" if target.type == "cpu" else "to device"] += tensor.nbytes


def growth(
    name: str, mode: type[Flops] | type[Transfers], device: str, sizes: Sequence[int] = SIZES
) -> dict[str, float]:
    """What each more sample of the pool adds to the counts."""
    found = []
    for n_pool in sizes:
        strategy, learner, X_pool = make_case(name, device, n_pool)
        with mode() as counter, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            strategy.select(learner, X_pool, N_PICKS)
        found.append(counter.counts)
    kinds = {*found[0], *found[1]}
    return {kind: (found[1][kind] - found[0][kind]) / (sizes[1] - sizes[0]) for kind in kinds}


def flops_table(names: Sequence[str], sizes: Sequence[int] = SIZES) -> str:
    """Operations per sample more, by precision."""
    rows: list[list[object]] = []
    for name in names:
        more = growth(name, Flops, "cpu", sizes)
        single, double = more.get("float32", 0.0), more.get("float64", 0.0)
        share = 100 * double / (single + double) if single + double else 0.0
        rows.append([name, round(single), round(double), f"{share:.0f} %"])
        print(*rows[-1], file=sys.stderr, flush=True)
    return markdown(["strategy", "single precision", "double precision", "share of double"], rows)


def transfers_table(names: Sequence[str], device: str, sizes: Sequence[int] = SIZES) -> str:
    """Bytes per sample more, in each direction."""
    rows: list[list[object]] = []
    for name in names:
        more = growth(name, Transfers, device, sizes)
        sample = make_case(name, "cpu", 1)[2][0].nbytes
        there, back = more.get("to device", 0.0), more.get("to host", 0.0)
        rows.append([name, sample, round(there), round(back), f"{there / sample:.2f}"])
        print(*rows[-1], file=sys.stderr, flush=True)
    return markdown(["strategy", "bytes of a sample", "to the device", "to the host", "crossings of the pool"], rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Print one of the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.devices", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    flops = commands.add_parser("flops")
    transfers = commands.add_parser("transfers")
    transfers.add_argument("device")
    for command in (flops, transfers):
        command.add_argument("names", nargs="*", help=f"of {', '.join(CASES)}")
    args = parser.parse_args(argv)
    if unknown := sorted(set(args.names) - set(CASES)):
        parser.error(f"unknown case {', '.join(unknown)}. Choose from: {', '.join(CASES)}")
    names = args.names or list(CASES)
    if args.command == "flops":
        print(flops_table(names))
        return 0
    if args.device.startswith("xla"):
        import torch_xla

        torch_xla.experimental.eager_mode(True)
    torch.zeros(1, device=args.device)
    print(transfers_table(names, args.device))
    return 0


if __name__ == "__main__":
    sys.exit(main())
