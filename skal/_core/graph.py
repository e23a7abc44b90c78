# SPDX-License-Identifier: BSD-3-Clause
"""The graph that autograd keeps behind a tensor."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor
from torch.autograd.graph import Node


def nodes_behind(tensor: Tensor) -> Iterator[Node]:
    """Every node of the graph that a tensor was made by, once."""
    nodes, seen = [tensor.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            nodes += [following for following, _ in node.next_functions]
