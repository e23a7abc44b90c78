# SPDX-License-Identifier: BSD-3-Clause
"""One query at a time, and everything as it was if it fails, wherever it fails.

The passes of a query take the module's flags, its hooks and the random generators for a while, and give them back. An
interrupt may arrive just then, between two lines that belong together. So a query as a whole remembers what was there,
and puts back whatever is different if it fails: one Ctrl-C hits either the query or that, not both.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from skal._core.generators import GeneratorStates

# the generators and torch's settings belong to the process, so that queries wait for one another whatever their module
_lock = threading.RLock()


def _new_lock() -> None:
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):  # the thread that holds it is not there in a child
    os.register_at_fork(after_in_child=_new_lock)


class _Before:
    """What a query may not change: of a module, of torch, and of the random generators."""

    def __init__(self, module: nn.Module | None) -> None:
        modules = [] if module is None else list(module.modules())
        parameters = [p for part in modules for p in part._parameters.values() if p is not None]
        buffers = [b for part in modules for b in part._buffers.values() if b is not None]
        self.flags = [(part, part.training) for part in modules]
        self.hooks = [
            (hooks, dict(hooks) if hooks else {})  # there are many of them, nearly all empty
            for part in modules
            for name, hooks in vars(part).items()
            if isinstance(hooks, dict) and name.endswith(("_hooks", "_hooks_with_kwargs"))
        ]
        self.attributes = [(part, set(vars(part))) for part in modules]
        self.gradients = [(p, p.requires_grad, p.grad) for p in parameters]
        self.buffers = [(b, b.detach().clone()) for b in buffers]
        self.grad_mode = torch.is_grad_enabled()
        self.threads = torch.get_num_threads()
        self.generators = GeneratorStates()

    def restore(self) -> None:
        """Put back whatever is different; doing so twice does no harm."""
        torch.set_grad_enabled(self.grad_mode)
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
        self.generators.restore()
        for part, flag in self.flags:
            part.training = flag
        for hooks, own in self.hooks:
            if list(hooks) != list(own):
                hooks.clear()
                hooks.update(own)
        for part, names in self.attributes:
            for name in set(vars(part)) - names:
                vars(part).pop(name)
        for parameter, requires_grad, gradient in self.gradients:
            if parameter.requires_grad != requires_grad:
                parameter.requires_grad_(requires_grad)
            if parameter.grad is not gradient:
                parameter.grad = gradient
        with torch.no_grad():
            for buffer, before in self.buffers:
                if buffer.shape == before.shape and not torch.equal(buffer, before):
                    buffer.copy_(before)


@contextmanager
def one_query(net: Any = None) -> Iterator[None]:
    """Around a query: no other thread is in one, and the generators are as before; if it fails, net and torch too.

    Parameters
    ----------
    net : skorch net or other estimator, optional
        The one that the query works on.

    Examples
    --------
    >>> import torch
    >>> from skal._core.guard import one_query
    >>> try:
    ...     with one_query():
    ...         _ = torch.set_grad_enabled(False)
    ...         raise KeyboardInterrupt
    ... except KeyboardInterrupt:
    ...     print(torch.is_grad_enabled())
    True
    """
    module = getattr(net, "module_", None)
    with _lock:
        before = _Before(module if isinstance(module, nn.Module) else None)
        try:
            yield
        except BaseException:
            before.restore()
            raise
        before.generators.restore()
