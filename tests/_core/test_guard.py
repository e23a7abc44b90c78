"""What a query leaves as it was: in threads, after an interrupt, and after an error."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.interrupts import interrupted
from skal import ActiveLearner, config_context
from skal.checks import make_learner
from skal.context import QueryContext, evaluating
from skal.strategies import ALBL, BADGE, BALD, DynamicAL, Margin

from ..support.learners import learner_of, net_of


def query_on(module):
    """Around what a strategy does with a net of this module."""
    return QueryContext(learner_of(net_of(module)), np.zeros((3, 2), dtype=np.float32)).query()


STRATEGIES = [BALD(random_state=0), BADGE(random_state=0), DynamicAL(), Margin()]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_threads_that_share_a_learner_and_a_strategy_get_the_right_answers(strategy):
    learner, X_pool = make_learner()
    learner.estimator.module_.train()

    def query(_=None):
        with config_context(batch_size=4):  # every thread has settings of its own
            return strategy.select(learner, X_pool, 5)[0]

    expected = query()
    generator, n_threads = torch.get_rng_state(), torch.get_num_threads()
    torch.set_num_threads(1)
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(query, range(8)))
    torch.set_num_threads(n_threads)
    assert all(np.array_equal(answer, expected) for answer in answers)
    assert all(part.training for part in learner.estimator.module_.modules())
    assert torch.equal(torch.get_rng_state(), generator)


def test_state_of_a_strategy_is_that_of_queries_one_after_the_other():
    learner, X_pool = make_learner()
    strategy = ALBL(random_state=0)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: strategy.select(learner, X_pool, 5), range(4)))
    assert strategy.n_rounds_ == 4


def test_a_query_waits_for_the_one_in_another_thread():
    inside, done = threading.Event(), threading.Event()
    learner, X_pool = make_learner()
    thread = threading.Thread(target=lambda: (inside.wait(), Margin().select(learner, X_pool, 1), done.set()))
    thread.start()
    with query_on(torch.nn.Linear(2, 2)):
        inside.set()
        assert not done.wait(0.2)
    assert done.wait(120)
    thread.join()


def test_a_query_keeps_nothing_on_the_learner():
    plain, X_pool = make_learner()
    learner = ActiveLearner(plain.estimator, "margin")
    before = dict(vars(learner))
    learner.query(X_pool, 3)
    assert vars(learner) == before


def test_interrupts_leave_everything_as_it_was():
    changed = {name: runs for name, runs in interrupted(36, seed=1).items() if any(runs)}
    assert not changed


def test_what_is_different_is_put_back():
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    called = []
    hook = module[0].register_forward_hook(lambda *_: called.append("the user's"))
    with suppress(KeyboardInterrupt), query_on(module):
        hook.remove()
        module[1].register_forward_pre_hook(lambda *_: called.append("another"))
        module.eval()
        module[0].weight.requires_grad_(False)
        module[0].bias.grad = torch.ones(2)
        module[1].running_mean += 1
        module.seen = 3
        torch.set_grad_enabled(False)
        raise KeyboardInterrupt
    assert torch.is_grad_enabled()
    assert all(part.training for part in module.modules())
    assert module[0].weight.requires_grad
    assert module[0].bias.grad is None
    assert not module[1].running_mean.any()
    assert not hasattr(module, "seen")
    module.eval()(torch.zeros(3, 2))
    assert called == ["the user's"]


def test_a_flag_that_is_called_hooks():
    module = torch.nn.Linear(2, 2)
    module.use_hooks = True
    with suppress(KeyboardInterrupt), query_on(module):
        module.eval()
        raise KeyboardInterrupt
    assert module.training
    assert module.use_hooks is True


def draw():
    return random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(1).item()


@pytest.mark.parametrize("warm_up", [0, 1, 2])
def test_what_is_drawn_afterwards_is_what_would_have_been(warm_up):
    """Normal numbers are made in pairs, of which half may be left."""
    for _ in range(warm_up):
        random.gauss(0, 1), np.random.randn()
    with suppress(KeyError), query_on(torch.nn.Linear(2, 2)):
        first = draw()
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        raise KeyError
    assert draw() == first


def test_evaluating_restores_flags_and_buffers_even_after_an_error():
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout())
    module[2].eval()
    mean = module[1].running_mean.clone()
    with suppress(KeyError), evaluating(module):
        assert not any(submodule.training for submodule in module.modules())
        module.train()
        module(torch.randn(6, 4))
        raise KeyError
    assert [submodule.training for submodule in module.modules()] == [True, True, True, False]
    assert torch.equal(module[1].running_mean, mean)
    assert module[1].num_batches_tracked == 0


def test_evaluating_keeps_embeddings_that_rescale_themselves():
    module = nn.Embedding(3, 2, max_norm=0.1)
    before = module.weight.detach().clone()
    with evaluating(module), torch.no_grad():
        module(torch.arange(3))
    assert torch.equal(module.weight, before)


def test_evaluating_takes_a_module_without_parameters():
    with evaluating(nn.ReLU()):
        pass


def test_evaluating_switches_autocast_off():
    with torch.autocast("cpu", dtype=torch.bfloat16), evaluating(module := nn.Linear(4, 3)):
        assert module(torch.ones(1, 4)).dtype == torch.float32
