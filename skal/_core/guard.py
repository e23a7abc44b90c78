# SPDX-License-Identifier: BSD-3-Clause
"""State that a query restores: the shared random generators, a module's mode, and everything if it fails."""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from torch import Tensor, nn

# generators and torch's settings belong to the process: one query at a time, whatever its module
_lock = threading.RLock()


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):  # the thread that holds the lock does not exist in a child
    os.register_at_fork(after_in_child=_renew_lock)


@contextmanager
def preserve_rng() -> Iterator[None]:
    """Restore the random states of torch, numpy and ``random``, whatever happens inside.

    Examples
    --------
    >>> with preserve_rng():
    ...     first = random.random()
    >>> random.random() == first
    True
    """
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)


@contextmanager
def one_query(module: nn.Module | None = None) -> Iterator[None]:
    """Run one query at a time, and restore the generators afterwards; if it fails, the module and torch's modes too.

    The passes of a query change the module's flags and hooks and torch's modes, and restore them. An interrupt may
    arrive between two lines that belong together, so the state is also saved for the query as a whole.

    Parameters
    ----------
    module : nn.Module, optional
        The network that the query works on, if there is one.

    Examples
    --------
    >>> import torch
    >>> try:
    ...     with one_query(torch.nn.Linear(1, 1)):
    ...         _ = torch.set_grad_enabled(False)
    ...         raise KeyboardInterrupt
    ... except KeyboardInterrupt:
    ...     print(torch.is_grad_enabled())
    True
    """
    with _lock, preserve_rng():
        if module is None:
            yield
            return
        before = _Before(module)
        try:
            yield
        except BaseException:
            before.restore()
            raise


class _Before:
    """The state of a module and of torch, to be restored if a query fails."""

    def __init__(self, module: nn.Module) -> None:
        modules = list(module.modules())
        self.flags = [(part, part.training) for part in modules]
        self.hooks = [
            (hooks, dict(hooks))
            for part in modules
            for name, hooks in vars(part).items()
            if isinstance(hooks, dict) and name.endswith(("_hooks", "_hooks_with_kwargs"))
        ]
        self.attributes = [(part, set(vars(part))) for part in modules]
        self.gradients = [(p, p.requires_grad, p.grad) for p in module.parameters()]
        self.buffers = [(b, b.detach().clone()) for b in module.buffers()]
        self.grad_mode, self.threads = torch.is_grad_enabled(), torch.get_num_threads()

    def restore(self) -> None:
        """Put the state back; doing so twice does no harm."""
        torch.set_grad_enabled(self.grad_mode)
        torch.set_num_threads(self.threads)
        for part, flag in self.flags:
            part.training = flag
        for hooks, own in self.hooks:
            hooks.clear()
            hooks.update(own)
        for part, names in self.attributes:
            for name in set(vars(part)) - names:
                vars(part).pop(name)
        for parameter, requires_grad, gradient in self.gradients:
            parameter.requires_grad_(requires_grad)
            parameter.grad = gradient
        with torch.no_grad():
            for buffer, before in self.buffers:
                if buffer.shape == before.shape:
                    buffer.copy_(before)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Use eval mode without autocast or compiled code; restore flags, buffers and random states afterwards.

    Parameters
    ----------
    module : nn.Module
        The one to evaluate.

    Yields
    ------
    None
        Inside, the module is in eval mode.

    Examples
    --------
    >>> from skal.context import evaluating
    >>> module = nn.Dropout()
    >>> with evaluating(module):
    ...     module.training
    False
    >>> module.training
    True
    """
    flags = [(submodule, submodule.training) for submodule in module.modules()]
    buffers = {name: buffer.detach().clone() for name, buffer in module.named_buffers()}
    # embeddings with max_norm rescale their weights whenever they are called
    rescaled = [x.weight for x, _ in flags if isinstance(x, (nn.Embedding, nn.EmbeddingBag)) and x.max_norm]
    weights = [(weight, weight.detach().clone()) for weight in rescaled]
    device_type = device_of(module).type
    try:
        with preserve_rng(), ExitStack() as stack:
            if "torch._dynamo" in sys.modules and hasattr(torch.compiler, "set_stance"):  # torch 2.6 has it
                # compiled modules run uncompiled: compiled code ignores hooks that were added later
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            if torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type):
                stack.enter_context(torch.autocast(device_type, enabled=False))
            module.eval()
            yield
    finally:
        for submodule, flag in flags:
            submodule.training = flag
        with torch.no_grad():
            for name, buffer in module.named_buffers():
                if name in buffers and buffer.shape == buffers[name].shape:
                    buffer.copy_(buffers[name])
            for weight, before in weights:
                weight.copy_(before)


def device_of(module: nn.Module) -> torch.device:
    """The device of the first parameter or buffer; the processor if there is none."""
    tensor: Tensor | None = next(module.parameters(), None)
    tensor = next(module.buffers(), None) if tensor is None else tensor
    return torch.device("cpu") if tensor is None else tensor.device
