"""DynamicAL against its definition: autograd, one sample at a time, in float64."""

from itertools import combinations

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from skorch import NeuralNetBinaryClassifier
from torch import nn

import skal
from skal.checks import CHECKS
from skal.config import config_context
from skal.exceptions import InvalidParameterError, InvalidTypeError, NoLabelledDataError, SkalError
from skal.nets import CNN, MLP, ResNet18
from skal.strategies import DynamicAL, dynamic_al
from skal.strategies._dynamic import dynamic_scores, greedy_batch

from ..support import oracle
from ..support.learners import learner_of, untrained


def randomised(module, seed=0):
    """Batch norm as after some training: statistics, scales and shifts of its own in every channel."""
    generator = torch.Generator().manual_seed(seed)
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            for tensor, low, high in [
                (layer.running_mean, -0.5, 0.5),
                (layer.running_var, 0.5, 2.0),
                (layer.weight.data, 0.5, 1.5),
                (layer.bias.data, -0.5, 0.5),
            ]:
                tensor.copy_(torch.rand(tensor.shape, generator=generator) * (high - low) + low)
    return module


def build(name, n_classes=4):
    torch.manual_seed(0)
    module, shape = {
        "MLP": lambda: (MLP(6, n_classes, hidden=(9, 7)), (6,)),
        "CNN": lambda: (CNN(in_channels=2, n_classes=n_classes, image_size=8), (2, 8, 8)),
        "ResNet-18": lambda: (randomised(ResNet18(n_classes=n_classes, width=8)), (3, 8, 8)),
    }[name]()
    return module.double(), shape


def problem_of(module, shape, n_labelled=5, n_pool=9, n_classes=4, **params):
    return untrained(module, shape, n_labelled, n_pool, n_classes=n_classes, **params)


def gradients_by_hand(module, learner, X_pool):
    """Gradients of the pool with predicted labels (N, P), and the sum over the labelled set (P,)."""
    predicted = oracle.logits(module, X_pool).argmax(1)
    g_S = oracle.loss_gradients(module, learner.X_training, learner.y_training).sum(0)
    return oracle.loss_gradients(module, X_pool, predicted), g_S


def scores_by_hand(module, learner, X_pool, gamma):
    g, g_S = gradients_by_hand(module, learner, X_pool)
    return g @ g_S if gamma == np.inf else (g**2).sum(1) + gamma * g @ g_S


def value_by_hand(g, g_S, Q, gamma=2):
    total = g[list(Q)].sum(0)
    return total @ total + gamma * total @ g_S


def greedy_by_hand(g, g_S, b, gamma=2):
    """Always the sample that raises the objective most, the objective computed from scratch."""
    picked = []
    for _ in range(b):
        rest = [i for i in range(len(g)) if i not in picked]
        picked.append(max(rest, key=lambda i: value_by_hand(g, g_S, [*picked, i], gamma)))
    return picked


@pytest.fixture(scope="module", params=["MLP", "CNN", "ResNet-18"])
def problem(request):
    module, shape = build(request.param)
    return module, *problem_of(module, shape)


@pytest.fixture(scope="module")
def small():
    module, shape = build("MLP")
    return module, *problem_of(module, shape, n_pool=12)


# --- the score --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [0, 1, 2, 0.3, -1.5, np.inf])
def test_scores_are_the_definition(problem, gamma):
    module, learner, X_pool = problem
    expected = scores_by_hand(module, learner, X_pool, gamma)
    scores = DynamicAL(gamma=gamma).scores(learner, X_pool)
    np.testing.assert_allclose(scores, expected, rtol=1e-8, atol=1e-8 * np.abs(expected).max())


def test_minus_infinity_is_the_opposite_of_infinity(small):
    _, learner, X_pool = small
    least = DynamicAL(gamma=-np.inf).scores(learner, X_pool)
    np.testing.assert_array_equal(least, -DynamicAL(gamma=np.inf).scores(learner, X_pool))


def test_the_labelled_gradient_is_a_sum_not_a_mean(small):
    _, learner, X_pool = small
    twice = learner_of(
        learner.estimator, np.concatenate([learner.X_training] * 2), np.concatenate([learner.y_training] * 2)
    )
    np.testing.assert_allclose(
        DynamicAL(gamma=1).scores(twice, X_pool), DynamicAL(gamma=2).scores(learner, X_pool), rtol=1e-12
    )


@pytest.mark.parametrize("batch_size", [1, 2, 4, 1000])
def test_scores_do_not_depend_on_batch_size(problem, batch_size):
    _, learner, X_pool = problem
    with config_context(batch_size=batch_size):
        scores = DynamicAL().scores(learner, X_pool)
    np.testing.assert_allclose(scores, DynamicAL().scores(learner, X_pool), rtol=1e-9)


@pytest.mark.parametrize("backend", ["auto", "structured", "func", "backpack"])
@pytest.mark.parametrize("name", ["MLP", "CNN", "ResNet-18"])
def test_every_backend_gives_the_same_scores(name, backend):
    module, shape = build(name)
    learner, X_pool = problem_of(module, shape, n_pool=4)
    expected = scores_by_hand(module, learner, X_pool, 2)
    np.testing.assert_allclose(DynamicAL(backend=backend).scores(learner, X_pool), expected, rtol=1e-8)


def test_batch_norm_in_training_mode_is_evaluated_and_left_as_it_was():
    module, shape = build("ResNet-18")
    learner, X_pool = problem_of(module, shape, n_pool=3)
    expected = scores_by_hand(module, learner, X_pool, 2)
    module.train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    np.testing.assert_allclose(DynamicAL().scores(learner, X_pool), expected, rtol=1e-8)
    assert all(layer.training for layer in module.modules())
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_softmax_with_nll_loss_is_the_same_as_logits_with_cross_entropy(dtype):
    module, shape = build("CNN")
    logits, X_pool = problem_of(module, shape)
    expected = DynamicAL().scores(logits, X_pool)
    module = module.to(dtype)
    with_softmax, _ = problem_of(nn.Sequential(module, nn.Softmax(dim=1)), shape, criterion=nn.NLLLoss)
    tolerance = 1e-10 if dtype == torch.float64 else 1e-3
    np.testing.assert_allclose(
        DynamicAL().scores(with_softmax, X_pool), expected, rtol=tolerance, atol=tolerance * np.abs(expected).max()
    )


def test_two_classes():
    torch.manual_seed(0)
    module = MLP(5, 2, hidden=(8,)).double()
    learner, X_pool = problem_of(module, (5,), n_classes=2)
    np.testing.assert_allclose(
        DynamicAL().scores(learner, X_pool), scores_by_hand(module, learner, X_pool, 2), rtol=1e-8
    )


def test_binary_classifier_with_one_output():
    """``BCEWithLogitsLoss`` on one logit z: the gradient is (σ(z) − y) ∇z, with y the prediction for the pool."""
    torch.manual_seed(0)
    module = MLP(5, 2, hidden=(8,))
    module.fc = nn.Linear(8, 1)
    module = module.double()
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(14, 5)), (np.arange(5) % 2).astype(np.float64)
    net = NeuralNetBinaryClassifier(module, train_split=None, verbose=0, max_epochs=1).fit(X[:5], y)

    def by_hand(x, label=None):
        z = module(torch.as_tensor(x[None]))[0, 0]
        label = float(z > 0) if label is None else label
        parts = torch.autograd.grad((torch.sigmoid(z).detach() - label) * z, list(module.parameters()))
        return torch.cat([part.flatten() for part in parts]).numpy()

    g_S = sum(by_hand(x, label) for x, label in zip(X[:5], y, strict=True))
    g = np.stack([by_hand(x) for x in X[5:]])
    learner = learner_of(net, X[:5], y)
    np.testing.assert_allclose(DynamicAL().scores(learner, X[5:]), (g**2).sum(1) + 2 * g @ g_S, rtol=1e-8)


def test_many_classes():
    torch.manual_seed(0)
    module = MLP(6, 120, hidden=(10,)).double()
    learner, X_pool = problem_of(module, (6,), n_classes=120)
    np.testing.assert_allclose(
        DynamicAL().scores(learner, X_pool), scores_by_hand(module, learner, X_pool, 2), rtol=1e-8
    )
    assert len(set(DynamicAL(batch="greedy")(learner, X_pool, 5))) == 5


def test_frozen_parameters_do_not_count(small):
    module, shape = build("MLP")
    for parameter in module.features[1].parameters():
        parameter.requires_grad_(False)
    learner, X_pool = problem_of(module, shape)
    expected = scores_by_hand(module, learner, X_pool, 2)
    np.testing.assert_allclose(DynamicAL().scores(learner, X_pool), expected, rtol=1e-8)


def _double(X):
    return 2 * X


def test_labelled_samples_go_through_the_pipeline_too(small):
    _, learner, X_pool = small
    doubled = make_pipeline(FunctionTransformer(_double), learner.estimator)
    halves = learner_of(doubled, learner.X_training / 2, learner.y_training)
    np.testing.assert_allclose(DynamicAL().scores(halves, X_pool / 2), DynamicAL().scores(learner, X_pool), rtol=1e-9)


def test_top_takes_the_highest_scores(small):
    _, learner, X_pool = small
    scores = DynamicAL().scores(learner, X_pool)
    assert DynamicAL()(learner, X_pool, 4).tolist() == np.argsort(-scores)[:4].tolist()


@pytest.mark.parametrize("batch", ["top", "greedy"])
def test_subset(small, batch):
    _, learner, X_pool = small
    strategy = DynamicAL(batch=batch, subset=6, random_state=0)
    scores = strategy.scores(learner, X_pool)
    scored = np.flatnonzero(scores > -np.inf)
    np.testing.assert_allclose(scores[scored], DynamicAL().scores(learner, X_pool)[scored], rtol=1e-9)
    assert len(scored) == 6
    assert sorted(strategy(learner, X_pool, 6)) == scored.tolist()


def test_pure_score_function():
    norms, dots = torch.tensor([1.0, 2.0]), torch.tensor([3.0, -4.0])
    assert dynamic_scores(norms, dots, 2.0).tolist() == [7.0, -6.0]
    assert dynamic_scores(norms, dots, np.inf).tolist() == [3.0, -4.0]


# --- greedy batches ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [0, 1, 2, 5])
def test_exact_greedy_is_greedy_on_the_definition(small, gamma):
    module, learner, X_pool = small
    g, g_S = gradients_by_hand(module, learner, X_pool)
    expected = greedy_by_hand(g, g_S, 6, gamma)
    indices, gains = DynamicAL(gamma=gamma, batch="greedy", n_features=None).select(learner, X_pool, 6)
    assert indices.tolist() == expected
    np.testing.assert_allclose(gains.sum(), value_by_hand(g, g_S, expected, gamma), rtol=1e-8)


@pytest.mark.parametrize("gamma", [0, 2])
def test_greedy_by_passes_is_the_same(small, gamma):
    module, learner, X_pool = small
    params = {"gamma": gamma, "batch": "greedy", "n_features": None}
    indices, gains = DynamicAL(**params).select(learner, X_pool, 6)
    # room for the gradients of fewer than 12 samples
    n_bytes = 8 * sum(p.numel() for p in module.parameters())
    with config_context(max_memory=15 * n_bytes):
        by_passes, same_gains = DynamicAL(**params).select(learner, X_pool, 6)
    assert by_passes.tolist() == indices.tolist()
    np.testing.assert_allclose(same_gains, gains, rtol=1e-8)


def test_gradients_that_fit_into_memory_are_computed_once(small):
    module, learner, X_pool = small

    def n_passes(max_memory=None):
        seen = []
        handle = module.register_forward_hook(lambda module, args, output: seen.append(len(args[0])))
        with config_context(max_memory=max_memory):
            DynamicAL(batch="greedy", n_features=None)(learner, X_pool, 4)
        handle.remove()
        return sum(seen)

    n_passes()  # the first query compares the backends
    n_bytes = 8 * sum(p.numel() for p in module.parameters())
    assert n_passes("10MB") == n_passes() < n_passes(15 * n_bytes)


def test_sketched_greedy_is_close_to_exact():
    module, shape = build("CNN")
    learner, X_pool = problem_of(module, shape, n_pool=40)
    g, g_S = gradients_by_hand(module, learner, X_pool)
    exact = value_by_hand(g, g_S, greedy_by_hand(g, g_S, 8))
    for seed in range(3):
        indices = DynamicAL(batch="greedy", n_features=2048, random_state=seed)(learner, X_pool, 8)
        assert value_by_hand(g, g_S, indices) >= 0.97 * exact


def test_the_same_random_state_gives_the_same_sketch(small):
    _, learner, X_pool = small
    strategy = DynamicAL(batch="greedy", n_features=16, random_state=3)
    first, second = strategy.select(learner, X_pool, 5), clone(strategy).select(learner, X_pool, 5)
    assert first[0].tolist() == second[0].tolist()
    assert first[1].tolist() == second[1].tolist()


def test_with_little_memory_the_best_scores_take_part(small):
    _, learner, X_pool = small
    scores = DynamicAL().scores(learner, X_pool)
    with config_context(max_memory=10 * 64 * 8):
        indices = DynamicAL(batch="greedy", n_features=64, random_state=0)(learner, X_pool, 5)
    assert set(indices) <= set(np.argsort(-scores)[:7])
    assert len(set(indices)) == 5


def test_more_instances_than_fit_are_still_answered(small):
    _, learner, X_pool = small
    with config_context(max_memory=64 * 8):
        indices = DynamicAL(batch="greedy", n_features=64, random_state=0)(learner, X_pool, 12)
    assert sorted(indices) == list(range(12))


def test_greedy_with_infinite_gamma_is_top(small):
    _, learner, X_pool = small
    params = {"gamma": np.inf, "random_state": 0}
    greedy = DynamicAL(batch="greedy", **params)(learner, X_pool, 5)
    assert greedy.tolist() == DynamicAL(batch="top", **params)(learner, X_pool, 5).tolist()


def test_greedy_batch_counts_both_orders_of_a_pair():
    """Alone the second is worth more than the third, but the third goes the way of the first."""
    g = torch.tensor([[2.0, 0.0], [0.0, 1.5], [1.0, 0.0]], dtype=torch.float64)
    picked, gains = greedy_batch(g.square().sum(1), lambda best, gains: g @ g[best], 3)
    assert picked.tolist() == [0, 2, 1]
    assert gains.tolist() == [4.0, 1.0 + 2 * 2.0, 2.25]


def test_delta_is_the_change_of_the_training_dynamics(small):
    """Δ(Q|S) = ‖Σ_{S∪Q} g‖² − ‖Σ_S g‖², both from scratch, equals what greedy says it gained."""
    module, learner, X_pool = small
    g, g_S = gradients_by_hand(module, learner, X_pool)
    indices, gains = DynamicAL(batch="greedy", n_features=None).select(learner, X_pool, 4)
    together = g_S + g[indices].sum(0)
    np.testing.assert_allclose(gains.sum(), together @ together - g_S @ g_S, rtol=1e-9)


def test_greedy_comes_nearer_to_the_optimum_than_top():
    """20 random problems, N = 12, b = 3: share of the best of all 220 batches that each reaches."""
    shares = {"greedy": [], "top": []}
    for seed in range(20):
        torch.manual_seed(seed)
        module = MLP(4, 3, hidden=(8,)).double()
        learner, X_pool = problem_of(module, (4,), n_labelled=8, n_pool=12, n_classes=3, seed=seed)
        fit(module, learner)  # far from the labels, every batch can lower the objective: a share would mean nothing
        g, g_S = gradients_by_hand(module, learner, X_pool)
        optimum = max(value_by_hand(g, g_S, Q) for Q in combinations(range(12), 3))
        assert optimum > 0
        for batch, reached in shares.items():
            indices = DynamicAL(batch=batch, n_features=None)(learner, X_pool, 3)
            reached.append(value_by_hand(g, g_S, indices) / optimum)
    assert np.mean(shares["greedy"]) >= np.mean(shares["top"])
    assert np.mean(shares["greedy"]) > 0.9
    assert max(max(reached) for reached in shares.values()) <= 1 + 1e-9


def fit(module, learner, steps=30):
    X, y = torch.as_tensor(learner.X_training), torch.as_tensor(learner.y_training)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(X), y).backward()
        optimizer.step()


@pytest.mark.parametrize("params", [{"batch": "greedy"}, {"gamma": 0.0}], ids=str)
def test_variants_keep_the_promises_of_a_strategy(params, learner, X_pool):
    # a greedy batch is, on purpose, not made of the highest scores
    skipped = {"check_scores"} if "batch" in params else set()
    for check in CHECKS:
        if check.__name__ not in skipped:
            check(DynamicAL(**params), learner, X_pool[:16])


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("X", [None, np.empty((0, 6))])
def test_without_labelled_data_only_gamma_zero_works(small, X):
    _, learner, X_pool = small
    empty = learner_of(learner.estimator, X, None if X is None else np.empty(0))
    for params in ({}, {"gamma": np.inf}, {"batch": "greedy"}):
        with pytest.raises(NoLabelledDataError, match="DynamicAL needs labelled data"):
            DynamicAL(**params)(empty, X_pool, 2)
    np.testing.assert_allclose(
        DynamicAL(gamma=0).scores(empty, X_pool), DynamicAL(gamma=0).scores(learner, X_pool), rtol=1e-12
    )


@pytest.mark.parametrize("y", [["a", "b", "c", "a", "b"], [0, 1, 2, 3, 4], [-1, 0, 1, 2, 3], [0.0, 1.0, 2.0, 3.0, 1.0]])
@pytest.mark.parametrize("batch", ["top", "greedy"])
def test_labels_that_are_no_outputs_are_refused(small, y, batch):
    _, learner, X_pool = small
    wrong = learner_of(learner.estimator, learner.X_training, np.array(y))
    with pytest.raises(ValueError, match=r"DynamicAL differentiates must be integers in 0 … 3.*LabelEncoder") as caught:
        DynamicAL(batch=batch)(wrong, X_pool, 2)
    assert isinstance(caught.value, SkalError)


@pytest.mark.parametrize(
    ("params", "error"),
    [
        ({"gamma": np.nan}, InvalidParameterError),
        ({"gamma": "2"}, InvalidTypeError),
        ({"gamma": None}, InvalidTypeError),
        ({"batch": "best"}, InvalidParameterError),
        ({"backend": "jax"}, InvalidParameterError),
        ({"n_features": 0}, InvalidParameterError),
        ({"n_features": 1.5}, InvalidTypeError),
        ({"subset": -1}, InvalidParameterError),
        ({"random_state": "seed"}, InvalidTypeError),
    ],
)
def test_bad_parameters_are_named(small, params, error):
    _, learner, X_pool = small
    with pytest.raises(error, match=f"{next(iter(params))}.* of DynamicAL must be .* Got "):
        DynamicAL(**params)(learner, X_pool, 2)


def test_function_and_exports(small):
    _, learner, X_pool = small
    assert dynamic_al(learner, X_pool, 3, gamma=0).tolist() == DynamicAL(gamma=0)(learner, X_pool, 3).tolist()
    assert skal.DynamicAL is DynamicAL
    assert skal.dynamic_al is dynamic_al
