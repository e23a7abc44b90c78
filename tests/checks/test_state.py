"""What a query leaves behind: the learner, the network and the generators must be as they were."""

import random

import numpy as np
import pytest
import torch

from skal.checks import CheckFailure, check_drawing_dataset, check_interrupt, check_untouched

from .strategies import Base


def train_mode(module):
    module.train()


def eval_mode(module):
    module.eval()


def forward_in_train_mode(module):
    flags = {submodule: submodule.training for submodule in module.modules()}
    module.train()
    module(torch.zeros(2, 1, 8, 8))
    for submodule, flag in flags.items():
        submodule.training = flag


def backward(module):
    module(torch.zeros(2, 1, 8, 8)).sum().backward()


def zero_grad(module):
    module.zero_grad()


def forward_hook(module):
    module.hidden.register_forward_hook(lambda *_: None)


def no_hooks(module):
    for submodule in module.modules():
        submodule._forward_hooks.clear()


def tensor_hook(module):
    module.hidden.weight.register_hook(lambda grad: grad)


def new_attribute(module):
    module.hidden.seen = 1


def parameter_attribute(module):
    module.hidden.weight.batch_gradient = 1


def replaced_forward(module):
    module.forward = module.forward


def last_bit(module):
    weight = module.head.weight.data
    weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0))


def frozen(module):
    module.conv.weight.requires_grad_(False)


def replaced_weights(module):
    module.head.weight = torch.nn.Parameter(module.head.weight.detach().clone())


def default_dtype(module):
    torch.set_default_dtype(torch.float64)


DISTURBED = {
    train_mode: "training flag",
    eval_mode: "training flag",
    forward_in_train_mode: "buffer norm.running_mean",
    backward: "gradient of",
    zero_grad: "gradient of",
    forward_hook: "_forward_hooks of module 'hidden'",
    no_hooks: "_forward_hooks of module 'head'",
    tensor_hook: "tensor hooks of hidden.weight",
    new_attribute: "attributes of module 'hidden'",
    parameter_attribute: "attributes of hidden.weight",
    replaced_forward: "attributes of module 'SmallNet'",
    last_bit: "parameter head.weight",
    frozen: "requires_grad of conv.weight",
    replaced_weights: "identity of head.weight",
    default_dtype: "torch's settings",
}


class Disturbing(Base):
    def __init__(self, *, disturb=None, power=2):
        self.disturb = disturb
        self.power = power

    def _score(self, context):
        scores = super()._score(context)
        self.disturb(context)
        return scores


@pytest.mark.parametrize("disturb", DISTURBED, ids=lambda disturb: disturb.__name__)
def test_untouched_catches_changes_of_the_module(disturb, learner, X_pool):
    try:
        with pytest.raises(CheckFailure, match=DISTURBED[disturb]):
            check_untouched(Disturbing(disturb=lambda c: disturb(c.net.module_)), learner, X_pool)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("disturb", "message"),
    [
        (lambda c: c.net.optimizer_.param_groups[0].update(lr=9.0), "optimizer state"),
        (lambda c: c.net.optimizer_.state.clear(), "optimizer state"),
        (lambda c: c.net.history.clear(), "training history"),
        (lambda c: setattr(c.net, "cache", 1), "attributes of the net"),
        (lambda c: setattr(c.learner, "cache", 1), "attributes of the learner"),
        (lambda c: c.learner.X_training.fill(0), "X_training"),
        (lambda c: c.pool.X.fill(0), "X_pool"),
    ],
)
def test_untouched_catches_changes_of_net_and_data(disturb, message, learner, X_pool):
    with pytest.raises(CheckFailure, match=message):
        check_untouched(Disturbing(disturb=disturb), learner, X_pool)


class Reseeding(Base):
    """Leaves a global generator elsewhere. The base class restores them around ``_select``, not around this."""

    def __init__(self, *, seed=None, power=2):
        self.seed = seed
        self.power = power

    def select(self, learner, X_pool, n_instances=1):
        self.seed()
        return super().select(learner, X_pool, n_instances)


@pytest.mark.parametrize(
    ("seed", "message"),
    [
        (lambda: torch.manual_seed(99), "torch's generator"),
        (lambda: np.random.rand(), "numpy's global generator"),
        (random.random, "random's generator"),
    ],
)
def test_untouched_catches_random_draws(seed, message, learner, X_pool):
    with pytest.raises(CheckFailure, match=message):
        check_untouched(Reseeding(seed=seed), learner, X_pool)


class LeavesTraces(Base):
    def _score(self, context):
        group = context.net.optimizer_.param_groups[0]
        before, group["lr"] = group["lr"], 9.0
        scores = super()._score(context)
        group["lr"] = before
        return scores


def test_interrupt_catches_what_is_not_given_back(learner, X_pool):
    check_untouched(LeavesTraces(), learner, X_pool)
    with pytest.raises(CheckFailure, match=r"interrupted in pass 1 must leave everything.*optimizer state"):
        check_interrupt(LeavesTraces(), learner, X_pool)


class ReadsOutsideTheGuard(Base):
    """Looks at the pool before the query begins, so that whatever a Dataset draws stays drawn."""

    def select(self, learner, X_pool, n_instances=1):
        X_pool[0]
        return super().select(learner, X_pool, n_instances)


def test_drawing_dataset_catches_reading_outside_the_guard(learner, X_pool):
    check_drawing_dataset(Base(), learner, X_pool)
    check_untouched(ReadsOutsideTheGuard(), learner, X_pool)  # an array draws nothing
    with pytest.raises(CheckFailure, match=r"Dataset that draws.*numpy's global generator"):
        check_drawing_dataset(ReadsOutsideTheGuard(), learner, X_pool)
