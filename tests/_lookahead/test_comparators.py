"""What the look-ahead is compared with: against loops written out, Monte Carlo integrals and very wide networks."""

import copy
from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback, LRScheduler
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import Dataset, TensorDataset

from skal._lookahead.comparators import (
    BIAS_VARIANCE,
    WEIGHT_VARIANCE,
    Retrainer,
    criterion_scores,
    depth_of,
    flat_inputs,
    infinite_diagonal,
    infinite_kernel,
    solve_directly,
)
from skal._lookahead.posterior import Outputs
from skal.callbacks import OneCycle
from skal.config import config_context
from skal.context import Network, QueryContext, Samples
from skal.exceptions import InvalidParameterError
from skal.nets import CNN, MLP, SquaredLoss
from skal.tangent import tangent_kernel

from ..support.learners import learner_of


class Loud(Callback):
    """Belongs to the user's own training: it must not run during a query."""

    calls = 0

    def on_epoch_end(self, net, **kwargs):
        self.calls += 1


def retrainer_of(net, X, y, pool, batch_size=256):
    learner = learner_of(net, X, y)
    with config_context(batch_size=batch_size):
        context = QueryContext(learner, pool)
    return Retrainer(context, np.arange(len(pool)))


def outputs_of(module, X, j):
    """At all of X, and at candidate j once more."""
    with torch.no_grad():
        return module.eval()(torch.as_tensor(np.r_[X, X[[j]]])).double()


@pytest.fixture
def fitted(make_net, flat_data):
    X, y = flat_data

    def fit(net=None, **params):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return (net or make_net(**params)).fit(X[:15], y[:15]), X[:15], y[:15], X[15:30]

    return fit


def normed_net(**params):
    """With buffers, random numbers, and a local class, which cannot be pickled."""

    class Normed(nn.Sequential):
        def __init__(self):
            super().__init__(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))

    settings = {"criterion": nn.CrossEntropyLoss, "lr": 0.1, "max_epochs": 3, "train_split": None, "verbose": 0}
    return NeuralNetClassifier(Normed, **(settings | params))


# --- one step ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "settings"),
    [
        ({"criterion": SquaredLoss}, {}),
        ({"optimizer": torch.optim.SGD}, {"momentum": 0.9, "weight_decay": 0.1}),
        ({"optimizer": torch.optim.Adam, "lr": 0.01}, {}),
    ],
    ids=["squared loss", "momentum", "Adam"],
)
def test_one_step_is_one_real_step(fitted, params, settings):
    net, X, y, pool = fitted(**params, **{f"optimizer__{name}": value for name, value in settings.items()})
    retrainer = retrainer_of(net, X, y, pool, batch_size=4)
    for candidate, label in [(3, 2), (0, 0), (3, 2)]:
        module = copy.deepcopy(net.module_).eval()
        optimizer = net.optimizer(module.parameters(), lr=net.lr, **settings)
        net.criterion()(module(torch.as_tensor(pool[[candidate]])), torch.tensor([label])).backward()
        optimizer.step()
        expected = outputs_of(module, pool, candidate)
        assert not torch.allclose(expected, outputs_of(copy.deepcopy(net.module_), pool, candidate), atol=1e-3)
        torch.testing.assert_close(retrainer.step(candidate, label), expected, rtol=1e-6, atol=1e-6)


def test_one_step_in_eval_mode(fitted):
    net, X, y, pool = fitted(normed_net())
    retrainer = retrainer_of(net, X, y, pool)
    torch.testing.assert_close(retrainer.step(0, 1), retrainer.step(0, 1), rtol=0, atol=0)
    # running statistics stay those of the labels: a batch of one has none of its own
    for now, before in zip(retrainer.net.module_.buffers(), net.module_.buffers(), strict=True):
        torch.testing.assert_close(now, before, rtol=0, atol=0)


# --- retraining -------------------------------------------------------------------------------------------------------


def by_hand(net, X, y, schedule=None):
    """SGD in the data's order, in batches of the net's size, with a schedule that moves after every epoch."""
    module = copy.deepcopy(net.module_).train()
    optimizer = torch.optim.SGD(module.parameters(), lr=net.lr)
    scheduler = None if schedule is None else OneCycleLR(optimizer, **schedule)
    for _ in range(net.max_epochs):
        for start in range(0, len(X), net.batch_size):
            part = slice(start, start + net.batch_size)
            optimizer.zero_grad()
            net.criterion()(module(torch.as_tensor(X[part])), torch.as_tensor(y[part])).backward()
            optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return module


@pytest.mark.parametrize("schedule", [None, {"max_lr": 0.5, "total_steps": 5}], ids=["constant", "one cycle"])
def test_retraining_is_a_warm_started_fit_with_one_label_more(fitted, schedule):
    callbacks = [] if schedule is None else [LRScheduler(OneCycleLR, **schedule)]
    net, X, y, pool = fitted(criterion=SquaredLoss, batch_size=6, max_epochs=4, callbacks=callbacks)
    retrainer = retrainer_of(net, X, y, pool)
    first = retrainer.retrain(2, 1)
    expected = outputs_of(by_hand(net, np.r_[X, pool[[2]]], np.r_[y, 1], schedule), pool, 2)
    torch.testing.assert_close(first, expected, rtol=1e-5, atol=1e-6)
    # another label in between leaves no trace
    assert not torch.allclose(retrainer.retrain(2, 0), first)
    torch.testing.assert_close(retrainer.retrain(2, 1), first, rtol=0, atol=0)


def test_a_cycle_over_the_whole_training_is_kept(fitted):
    net, X, y, pool = fitted(criterion=SquaredLoss, batch_size=64, max_epochs=4, callbacks=[OneCycle()])
    schedule = {"max_lr": net.lr, "total_steps": 4, "cycle_momentum": False}  # one batch an epoch
    expected = outputs_of(by_hand(net, np.r_[X, pool[[2]]], np.r_[y, 1], schedule), pool, 2)
    torch.testing.assert_close(retrainer_of(net, X, y, pool).retrain(2, 1), expected, rtol=1e-5, atol=1e-6)


def test_every_label_meets_the_same_random_numbers(fitted):
    net, X, y, pool = fitted(normed_net(iterator_train__shuffle=True))
    retrainer = retrainer_of(net, X, y, pool)
    first = retrainer.retrain(4, 2)
    torch.rand(7)
    retrainer.retrain(1, 0)
    torch.testing.assert_close(retrainer.retrain(4, 2), first, rtol=0, atol=0)


@pytest.mark.parametrize("how", ["retrain", "step"])
def test_the_network_is_left_as_it_was(fitted, how):
    loud = Loud()
    callbacks = [("loud", loud), ("schedule", LRScheduler(OneCycleLR, max_lr=0.5, total_steps=10, last_epoch=-1))]
    net, X, y, pool = fitted(
        normed_net(optimizer=torch.optim.Adam, callbacks=callbacks, iterator_train__shuffle=True, warm_start=True)
    )
    net.module_.train()
    before = {
        "module": copy.deepcopy(net.module_.state_dict()),
        "optimizer": copy.deepcopy(net.optimizer_.state_dict()),
        "history": copy.deepcopy(list(net.history)),
        "grad": [None if p.grad is None else p.grad.clone() for p in net.module_.parameters()],
        "flags": [module.training for module in net.module_.modules()],
        "calls": dict(net.callbacks_)["loud"].calls,
        "lr": dict(net.callbacks_)["schedule"].lr_scheduler_.get_last_lr(),
        "attributes": set(net.__dict__),
        "torch": torch.get_rng_state(),
    }
    numpy_state = np.random.get_state()[1].copy()
    retrainer = retrainer_of(net, X, y, pool)
    getattr(retrainer, how)(0, 1)
    getattr(retrainer, how)(1, 2)
    after = {
        "module": net.module_.state_dict(),
        "optimizer": net.optimizer_.state_dict(),
        "history": list(net.history),
        "grad": [p.grad for p in net.module_.parameters()],
        "flags": [module.training for module in net.module_.modules()],
        "calls": dict(net.callbacks_)["loud"].calls,
        "lr": dict(net.callbacks_)["schedule"].lr_scheduler_.get_last_lr(),
        "attributes": set(net.__dict__),
        "torch": torch.get_rng_state(),
    }
    for name in before:
        if name in ("history", "flags", "calls", "lr", "attributes"):
            assert after[name] == before[name], name
        else:
            torch.testing.assert_close(after[name], before[name], rtol=0, atol=0, msg=name)
    np.testing.assert_array_equal(np.random.get_state()[1], numpy_state)
    assert net.optimizer_.param_groups[0]["params"][0] is next(net.module_.parameters())


def test_no_label_is_held_back_for_validation(fitted):
    with_split, X, y, pool = fitted()
    without = copy.copy(with_split)
    with_split.train_split = lambda dataset, y: (torch.utils.data.Subset(dataset, range(9)), None)
    expected = retrainer_of(without, X, y, pool).retrain(0, 1)
    torch.testing.assert_close(retrainer_of(with_split, X, y, pool).retrain(0, 1), expected, rtol=0, atol=0)


def test_ctrl_c_ends_the_whole_query(fitted):
    net, X, y, pool = fitted()
    retrainer = retrainer_of(net, X, y, pool)

    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    retrainer.net.__dict__["train_step"] = interrupt
    with pytest.raises(KeyboardInterrupt):
        retrainer.retrain(0, 1)


@pytest.mark.parametrize("labelled_as", ["array", "tensor", "dataset"])
@pytest.mark.parametrize("pool_as", ["array", "tensor", "dataset"])
def test_containers(fitted, labelled_as, pool_as):
    net, X, y, pool = fitted()
    expected = retrainer_of(net, X, y, pool).retrain(1, 2), retrainer_of(net, X, y, pool).step(1, 2)
    forms = {
        "array": lambda X, y: X,
        "tensor": lambda X, y: torch.as_tensor(X),
        "dataset": lambda X, y: TensorDataset(torch.as_tensor(X), torch.as_tensor(y)),
    }
    y_given = None if labelled_as == "dataset" else y
    wrong = np.zeros(len(pool), dtype=int)  # the pool's own labels are nobody's to see
    retrainer = retrainer_of(net, forms[labelled_as](X, y), y_given, forms[pool_as](pool, wrong))
    torch.testing.assert_close(retrainer.retrain(1, 2), expected[0], rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(retrainer.step(1, 2), expected[1], rtol=1e-6, atol=1e-7)


# --- the criteria -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_evaluation", [4, 2])
def test_criteria_written_out(n_evaluation):
    rng = np.random.default_rng(0)
    N, C = 4, 3
    new = rng.normal(size=(N, C, N, C))  # candidate, label, sample, class
    start, proba, labels = rng.normal(size=(N, C)), rng.dirichlet(np.ones(C), size=N), rng.integers(0, C, N)
    evaluation = np.arange(n_evaluation)

    def total(j, term):
        """A sum over all samples, estimated from the evaluation set but for the candidate's own term."""
        others = [term(x) for x in evaluation if x != j]
        return term(j) + (N - 1) * np.mean(others)

    def entropy(f):
        p = np.exp(f) / np.exp(f).sum()
        return -(p * np.log(p)).sum()

    change = np.array(
        [[total(j, lambda x: np.linalg.norm(new[j, y, x] - start[x])) for y in range(C)] for j in range(N)]  # noqa: B023
    )
    entropies = np.array([[total(j, lambda x: entropy(new[j, y, x])) for y in range(C)] for j in range(N)])  # noqa: B023
    expected = {
        "mlmoc": change[np.arange(N), labels],
        "emoc": (proba * change).sum(1),
        "eer": -(proba * entropies).sum(1),
    }
    outputs = Outputs(torch.eye(C)[torch.as_tensor(labels)], None, torch.as_tensor(proba))
    for criterion, values in expected.items():
        scores = criterion_scores(
            lambda j, y: torch.as_tensor(new[j, y][np.append(evaluation, j)]),
            criterion,
            outputs,
            torch.as_tensor(start),
            torch.as_tensor(evaluation),
        )
        np.testing.assert_allclose(scores.numpy(), values, rtol=1e-12)


# --- the direct solution ----------------------------------------------------------------------------------------------


def test_the_solution_is_ridge_regression_on_the_gradients():
    rng = np.random.default_rng(0)
    features, evaluation = rng.normal(size=(6, 9)), rng.normal(size=(4, 9))
    residuals, f_E, ridge = rng.normal(size=(6, 3)), rng.normal(size=(4, 3)), 0.3
    expected = f_E + Ridge(alpha=ridge, fit_intercept=False).fit(features, residuals).predict(evaluation)
    K, K_E, r, f = map(torch.as_tensor, (features @ features.T, evaluation @ features.T, residuals, f_E))
    np.testing.assert_allclose(solve_directly(K, K_E, r, f, ridge).numpy(), expected, rtol=1e-10)
    # a matrix kernel whose outputs do not interact is the same problem
    eye = torch.eye(3, dtype=K.dtype)
    matrix = solve_directly(torch.kron(K, eye), torch.kron(K_E, eye), r, f, ridge)
    np.testing.assert_allclose(matrix.numpy(), expected, rtol=1e-10)


# --- the infinitely wide network --------------------------------------------------------------------------------------


def inputs(n=6, d=5, seed=0):
    return torch.as_tensor(np.random.default_rng(seed).normal(size=(n, d)))


class TheoryLinear(nn.Module):
    """A layer in the parametrisation of the theory: ``√(σ_w² / d) W a + σ_b b`` with standard normal W and b."""

    def __init__(self, n_in, n_out, generator):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_out, n_in, generator=generator))
        self.bias = nn.Parameter(torch.randn(n_out, generator=generator))

    def forward(self, a):
        scale = (WEIGHT_VARIANCE / a.shape[1]) ** 0.5
        return scale * (a @ self.weight.T) + BIAS_VARIANCE**0.5 * self.bias


def random_network(d, depth, width, seed, n_outputs=4):
    generator = torch.Generator().manual_seed(seed)
    widths = [d, *[width] * (depth - 1), n_outputs]
    layers = []
    for n_in, n_out in pairwise(widths):
        layers += [TheoryLinear(n_in, n_out, generator), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def empirical_kernel(module, X):
    """pNTK from one backward pass: a weight's gradient is √(σ_w² / d) g aᵀ, a bias's σ_b g."""
    inputs, outputs = [], []
    a = X.float().requires_grad_(True)
    for layer in module:
        if isinstance(layer, TheoryLinear):
            inputs.append(a)
        a = layer(a)
        if isinstance(layer, TheoryLinear):
            outputs.append(a)
    gradients = torch.autograd.grad(a.sum() / a.shape[1] ** 0.5, outputs)
    K = torch.zeros(len(X), len(X))
    for a, g in zip(inputs, gradients, strict=True):
        K += (WEIGHT_VARIANCE * (a @ a.T) / a.shape[1] + BIAS_VARIANCE) * (g @ g.T)
    return K.detach().numpy()


def test_the_empirical_kernel_is_that_of_the_engine():
    X, module = inputs(), random_network(5, 3, 32, seed=0)
    np.testing.assert_allclose(empirical_kernel(module, X), tangent_kernel(module, X.float()), rtol=1e-4)


# one network's kernel scatters by 1/√width; the mean of several shows whether it scatters around the right one
@pytest.mark.parametrize(("depth", "width", "n_networks"), [(1, 1, 1), (2, 16384, 16), (3, 2048, 48), (5, 1024, 150)])
def test_very_wide_random_networks_agree_to_two_per_cent(depth, width, n_networks):
    X = inputs()
    K = np.mean([empirical_kernel(random_network(5, depth, width, seed), X) for seed in range(n_networks)], axis=0)
    expected = infinite_kernel(X, X, depth).numpy()
    assert np.linalg.norm(K - expected) < 0.02 * np.linalg.norm(expected)
    assert np.abs(K / expected - 1)[expected > 0.1 * expected.max()].max() < 0.05


def test_the_diagonal_needs_no_angles():
    X = inputs(20)
    for depth in (1, 2, 6):
        torch.testing.assert_close(
            infinite_diagonal(X, depth), infinite_kernel(X, X, depth).diagonal(), rtol=1e-7, atol=0
        )


def test_positive_definite_and_finite_for_copies_opposites_and_zeros():
    X = inputs(8)
    X = torch.cat([X, X[:2], -X[:1], 2 * X[:1], torch.zeros(1, 5, dtype=X.dtype)])
    for depth in (1, 3, 20):
        for bias_variance in (0.0, 0.01):
            K = infinite_kernel(X, X, depth, bias_variance=bias_variance)
            assert bool(torch.isfinite(K).all())
            assert torch.linalg.eigvalsh(K)[0] > -1e-6 * K.diagonal().max()


def test_depth_counts_linear_and_convolutional_layers():
    assert depth_of(MLP(4, 3, hidden=(5, 6))) == 3
    assert depth_of(CNN(in_channels=1, image_size=8)) == 5
    assert depth_of(nn.BatchNorm1d(3)) == 1


def test_inputs_are_flattened_as_the_network_receives_them():
    X = np.arange(48, dtype=np.float32).reshape(4, 1, 3, 4)
    network = Network(nn.Flatten())
    flat = flat_inputs(network, Samples(X), batch_size=3)
    assert flat.dtype == torch.float64
    np.testing.assert_array_equal(flat.numpy(), X.reshape(4, 12))
    two = flat_inputs(network, Samples({"a": X, "b": X[:, 0]}), batch_size=3)
    assert two.shape == (4, 24)


def test_samples_of_several_lengths_have_no_such_kernel():
    class Texts(Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, i):
            return torch.ones(2 + i), 0

    with pytest.raises(InvalidParameterError, match="same shape"):
        flat_inputs(Network(nn.Flatten()), Samples(Texts()), batch_size=1)
