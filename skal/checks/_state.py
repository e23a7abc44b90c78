# SPDX-License-Identifier: BSD-3-Clause
"""The check that a query leaves everything as it was, to the bit."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import keystr, tree_flatten_with_path
from torch.utils.data import TensorDataset

from skal._core.estimators import unwrap_estimator
from skal._core.guard import preserve_rng
from skal.checks._support import copy_learner, expect, fresh


def _flatten(value: Any, name: str, into: dict[str, Any]) -> None:
    """Write the leaves of nested containers as bytes and texts that can be compared."""
    leaves, into[f"structure of {name}"] = tree_flatten_with_path(value)
    for path, leaf in leaves:
        device = str(leaf.device) if isinstance(leaf, Tensor) else ""
        leaf = leaf.detach().cpu().numpy() if isinstance(leaf, Tensor) else leaf
        is_array = isinstance(leaf, np.ndarray)
        content = (device, str(leaf.dtype), leaf.shape, leaf.tobytes()) if is_array else repr(leaf)
        into[f"{name}{keystr(path)}"] = content


def snapshot(learner: Any) -> dict[str, Any]:
    """Everything about a learner, and about the world, that a query must not change."""
    net, _ = unwrap_estimator(learner.estimator)
    module: nn.Module = net.module_
    state: dict[str, Any] = {}
    for name, parameter in module.named_parameters():
        _flatten(parameter, f"parameter {name}", state)
        _flatten(parameter.grad, f"gradient of {name}", state)
        state[f"identity of {name}"] = (id(parameter), parameter.data_ptr(), id(parameter.grad))
        state[f"requires_grad of {name}"] = parameter.requires_grad
        state[f"attributes of {name}"] = sorted(vars(parameter))
        state[f"tensor hooks of {name}"] = len(parameter._backward_hooks or ())
    for name, buffer in module.named_buffers():
        _flatten(buffer, f"buffer {name}", state)
        state[f"identity of {name}"] = (id(buffer), buffer.data_ptr())
    for name, submodule in module.named_modules():
        label = f"module {name or type(module).__name__!r}"
        state[f"training flag of {label}"] = submodule.training
        state[f"attributes of {label}"] = sorted(vars(submodule))
        for attribute, hooks in vars(submodule).items():
            if attribute.endswith("_hooks") and isinstance(hooks, Mapping):
                state[f"{attribute} of {label}"] = list(hooks)
    for attribute, hooks in vars(nn.modules.module).items():
        if attribute.startswith("_global_") and attribute.endswith("_hooks"):
            state[f"torch's {attribute}"] = list(hooks)
    _flatten(net.optimizer_.state_dict(), "optimizer state", state)
    _flatten(list(net.history), "training history", state)
    state["attributes of the net"] = sorted(vars(net))
    state["attributes of the learner"] = sorted(vars(learner))
    _flatten(learner.X_training, "X_training", state)
    _flatten(learner.y_training, "y_training", state)
    state["random's generator"] = random.getstate()  # 625 numbers, of which none is of interest
    _flatten(np.random.get_state(), "numpy's global generator", state)
    _flatten(torch.get_rng_state(), "torch's generator", state)
    state["torch's settings"] = (
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
    )
    return state


def expect_unchanged(before: dict[str, Any], after: dict[str, Any], when: str) -> None:
    """Name whatever differs between two snapshots."""
    changed = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    expect(not changed, f"{when} must leave everything as it was. Changed: {', '.join(sorted(changed))}.")


def check_untouched(strategy: Any, learner: Any, X_pool: Any) -> None:
    """The estimator, the data and the global generators after a query are bit-identical to those before."""
    learner, X_pool = copy_learner(learner), X_pool.copy()
    module = unwrap_estimator(learner.estimator)[0].module_
    # a state that is easy to disturb: mixed train and eval flags, gradients that are there for some, a user's hook
    *_, last = module.modules()
    module.train()
    last.eval()
    for number, parameter in enumerate(module.parameters()):
        parameter.grad = torch.full_like(parameter, number + 1.0) if number % 2 else None
    last.register_forward_hook(lambda *_: None)
    pool_before = X_pool.tobytes()
    with preserve_rng():
        random.seed(11)
        np.random.seed(12)
        torch.manual_seed(13)
        torch.randn(3)
        before = snapshot(learner)
        fresh(strategy).select(learner, X_pool, 3)
        expect_unchanged(before, snapshot(learner), "A query")
        if hasattr(strategy, "scores"):
            fresh(strategy).scores(learner, X_pool)
            expect_unchanged(before, snapshot(learner), "scores()")
    expect(X_pool.tobytes() == pool_before, "A query must leave X_pool as it was. It was written to.")


class _DrawingDataset(TensorDataset):
    """Gives the same samples each time, and draws from the shared generators whenever it is read."""

    def __getitem__(self, row: Any) -> Any:
        random.random(), np.random.random(), torch.rand(1)
        return tuple(tensor[row] for tensor in self.tensors)


def check_drawing_dataset(strategy: Any, learner: Any, X_pool: Any) -> None:
    """The shared generators are left as they were, also where a Dataset draws from them."""
    pool = _DrawingDataset(torch.as_tensor(np.asarray(X_pool)))
    with preserve_rng():
        before = snapshot(learner)
        fresh(strategy).select(learner, pool, 3)
        expect_unchanged(before, snapshot(learner), "A query on a Dataset that draws random numbers")
        if hasattr(strategy, "scores"):
            fresh(strategy).scores(learner, pool)
            expect_unchanged(before, snapshot(learner), "scores() on a Dataset that draws random numbers")


def check_interrupt(strategy: Any, learner: Any, X_pool: Any) -> None:
    """After an interrupt in a forward pass everything is as before, to the bit, even while the error is kept."""
    learner = copy_learner(learner)
    module = unwrap_estimator(learner.estimator)[0].module_
    module.train()
    calls, stop = 0, None

    def interrupt(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == stop:
            raise KeyboardInterrupt

    module.register_forward_hook(interrupt)
    fresh(strategy).select(learner, X_pool, 3)
    before = snapshot(learner)
    for stop in sorted({1, (calls + 1) // 2, calls} - {0}):
        calls = 0
        try:
            fresh(strategy).select(learner, X_pool, 3)
        except KeyboardInterrupt as error:
            kept = error  # with its frames, as a notebook keeps them
            expect_unchanged(before, snapshot(learner), f"A query that is interrupted in pass {stop}")
            del kept
