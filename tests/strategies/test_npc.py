"""NPC against its definition: gradients by autograd, one sample at a time, and an eigenvalue for every candidate."""

import warnings
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from skorch import NeuralNetClassifier
from torch import nn

import skal
from skal.config import config_context
from skal.exceptions import (
    InvalidParameterError,
    InvalidTypeError,
    NonFiniteError,
    RankDeficiencyWarning,
    SkalError,
    SkalWarning,
    UnsupportedLayerError,
)
from skal.nets import CNN, MLP
from skal.strategies import NPC, npc
from skal.strategies._candidates import CandidateKernel, GradientKernel
from skal.strategies._spectral import draw_batches
from skal.tangent._tangent_engine import TangentEngine

from ..support.learners import learner_of, net_of, untrained


def mlp(n_labelled=6, n_pool=30, hidden=(20, 7), seed=0, **params):
    """A network without units that are dead for some samples: the ranks are those of the sizes."""
    torch.manual_seed(seed)
    layers = []
    for width, following in pairwise([6, *hidden]):
        layers += [nn.Linear(width, following), nn.Tanh()]
    module = nn.Sequential(*layers, nn.Linear(hidden[-1], 3)).double()
    return untrained(module, (6,), n_labelled, n_pool, seed=seed, **params)


def gradients(module, X, kernel):
    """Rows whose inner products are the kernel's, by autograd: (n, features)."""
    module.eval()
    layer = list(module.modules())[-1]
    parameters = list(layer.parameters() if kernel == "last_layer" else module.parameters())
    rows = []
    for x in X:
        logits = module(torch.as_tensor(x[None]))[0]
        scalars = {"pntk": [logits.sum() / len(logits) ** 0.5], "logit": [logits[0]]}.get(kernel, list(logits))
        parts = [torch.autograd.grad(scalar, parameters, retain_graph=True) for scalar in scalars]
        rows.append(torch.cat([g.flatten() for part in parts for g in part]))
    return torch.stack(rows).double().numpy()


def kernel_by_hand(learner, X_pool, kernel="pntk"):
    g = gradients(learner.estimator.module_, np.concatenate([learner.X_training, X_pool]), kernel)
    return g @ g.T


def value_by_hand(K, n, batch):
    rows = [*range(n), *(n + np.asarray(batch))]
    return np.linalg.eigvalsh(K[np.ix_(rows, rows)])[0]


def stream(n_pool, b, m, seed):
    """The candidates of a query with ``random_state=seed``."""
    return draw_batches(n_pool, b, m, np.random.default_rng(seed))


# --- the search -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["pntk", "logit", "trace", "last_layer"])
@pytest.mark.parametrize("n_labelled", [0, 1, 3])
def test_the_winner_of_the_same_stream(kernel, n_labelled):
    learner, X_pool = mlp(n_labelled)
    K = kernel_by_hand(learner, X_pool, kernel)
    batches = stream(30, 4, 30, seed=5)
    values = [value_by_hand(K, n_labelled, batch) for batch in batches]
    indices, metrics = NPC(kernel=kernel, random_state=5).select(learner, X_pool, 4)
    assert indices.tolist() == batches[np.argmax(values)].tolist()
    np.testing.assert_allclose(metrics, max(values), rtol=1e-6)


@pytest.mark.parametrize("backend", ["auto", "structured", "func", "backpack"])
def test_every_backend_finds_the_same_batch(backend):
    torch.manual_seed(0)
    learner, X_pool = untrained(CNN(in_channels=1, n_classes=3, image_size=8).double(), (1, 8, 8), 4, 12)
    expected, values = NPC(random_state=0).select(learner, X_pool, 3)
    indices, metrics = NPC(random_state=0, backend=backend).select(learner, X_pool, 3)
    assert indices.tolist() == expected.tolist()
    np.testing.assert_allclose(metrics, values, rtol=1e-6)


@pytest.mark.parametrize(("n_pool", "n_candidates"), [(50, 50), (1200, 1000)])
def test_n_candidates_is_the_pool_size_or_a_thousand(n_pool, n_candidates):
    learner, X_pool = mlp(2, n_pool, hidden=(5,))

    def draws(n_candidates):
        generator = np.random.default_rng(0)
        NPC(n_candidates=n_candidates, random_state=generator).select(learner, X_pool, 2)
        return generator.bit_generator.state  # it tells how many batches have been drawn

    assert draws(None) == draws(n_candidates) != draws(n_candidates + 1)


@pytest.mark.parametrize("n_labelled", [0, 5])
def test_one_sample_is_the_best_of_the_whole_pool(n_labelled):
    learner, X_pool = mlp(n_labelled)
    K = kernel_by_hand(learner, X_pool)
    indices, metrics = NPC().select(learner, X_pool, 1)
    values = [value_by_hand(K, n_labelled, [u]) for u in range(30)]
    assert indices[0] == np.argmax(values)
    assert metrics[0] == pytest.approx(max(values), rel=1e-6)


def test_the_batch_beats_the_99th_percentile_of_fresh_ones():
    for seed in range(3):
        learner, X_pool = mlp(10, 200, hidden=(40,), seed=seed)
        K = kernel_by_hand(learner, X_pool)
        _, metrics = NPC(n_candidates=1000, random_state=seed).select(learner, X_pool, 10)
        rng = np.random.default_rng(100 + seed)
        fresh = [value_by_hand(K, 10, rng.choice(200, 10, replace=False)) for _ in range(1000)]
        assert metrics[0] > np.percentile(fresh, 99)


def test_greedy_is_its_definition_and_better_than_random():
    learner, X_pool = mlp(5)
    K = kernel_by_hand(learner, X_pool)
    indices, metrics = NPC(search="greedy").select(learner, X_pool, 6)
    for step in range(6):
        before = list(indices[:step])
        best = max(value_by_hand(K, 5, [*before, u]) for u in range(30) if u not in before)
        assert metrics[step] == pytest.approx(best, rel=1e-6)
        assert value_by_hand(K, 5, indices[: step + 1]) == pytest.approx(best, rel=1e-6)
    assert metrics[-1] > NPC(random_state=0).select(learner, X_pool, 6)[1][-1]


def test_greedy_chooses_from_n_candidates_samples():
    learner, X_pool = mlp(3, 60)
    seen = [
        set(NPC(search="greedy", n_candidates=6, random_state=seed).select(learner, X_pool, 6)[0]) for seed in (0, 1)
    ]
    assert seen[0] != seen[1]
    assert all(len(chosen) == 6 for chosen in seen)
    assert not NPC(search="greedy").draws_from_pool
    assert NPC(search="greedy", n_candidates=6).draws_from_pool


@pytest.mark.parametrize("n_labelled", [0, 4])
def test_little_memory_means_groups_and_the_same_answer(n_labelled, monkeypatch):
    """The whole kernel, gradients of all points, gradients of some at a time, blocks of the kernel: the same winner."""
    learner, X_pool = mlp(n_labelled, 60, hidden=(30,))
    expected, values = NPC(random_state=0, n_candidates=30).select(learner, X_pool, 6)
    exact = CandidateKernel.exact_blocks
    kept = 8 * ((6 + 30) + 30 + (30 + 3) + 3)  # of a sample: inputs and output gradients of two layers, two biases
    asked = []

    def asking(self, points, whole=True):
        blocks = exact(self, points, whole)
        asked.append((len(points), type(blocks.UU)))
        return blocks

    monkeypatch.setattr(CandidateKernel, "exact_blocks", asking)
    found = {}
    for name, memory in {"groups": 60_000, "few": 30_000, "blocks": 9 * kept}.items():
        asked.clear()
        with config_context(max_memory=memory):
            indices, metrics = NPC(random_state=0, n_candidates=30).select(learner, X_pool, 6)
        assert indices.tolist() == expected.tolist()
        np.testing.assert_allclose(metrics, values, rtol=1e-6)
        found[name] = list(asked[:-1])  # the last one is the winner's own
    for name in ("groups", "few"):
        assert {kind for _, kind in found[name]} == {GradientKernel}
    assert 1 < len(found["groups"]) < len(found["few"])
    assert {kind for _, kind in found["blocks"]} == {np.ndarray}


def test_gradients_of_the_candidates_are_read_once(monkeypatch):
    learner, X_pool = mlp(4, 400, hidden=(30,))
    read = []
    run = TangentEngine.run
    monkeypatch.setattr(
        TangentEngine,
        "run",
        lambda self, samples, *args, **kw: read.append(len(samples)) or run(self, samples, *args, **kw),
    )
    strategy = NPC(random_state=0, n_candidates=30)
    strategy.select(learner, X_pool, 20)
    assert sum(size for size in read if size > 8) <= 400  # those that look at the network take eight at most
    assert sum(read) < 450


# --- sketches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_features", [1, 12, 40, 2000])
@pytest.mark.parametrize("n_labelled", [0, 6])
def test_a_sketch_never_changes_the_answer(n_labelled, n_features):
    learner, X_pool = mlp(n_labelled, 60, hidden=(20,))
    for seed in range(3):
        expected, values = NPC(random_state=seed).select(learner, X_pool, 5)
        indices, metrics = NPC(random_state=seed, n_features=n_features).select(learner, X_pool, 5)
        assert indices.tolist() == expected.tolist()
        np.testing.assert_allclose(metrics, values, rtol=1e-6)


def test_a_sketched_winner_that_does_not_hold_is_replaced(monkeypatch):
    learner, X_pool = mlp(6, 60, hidden=(20,))
    proposals = []
    proposed = CandidateKernel.best_by_sketch
    monkeypatch.setattr(
        CandidateKernel, "best_by_sketch", lambda *args: proposals.append(proposed(*args)) or proposals[-1]
    )
    values = [NPC(random_state=seed, n_features=16).select(learner, X_pool, 5)[1][0] for seed in range(5)]
    assert len(proposals) == 5
    assert any(value > proposal[1] * (1 + 1e-6) for value, proposal in zip(values, proposals, strict=True))


def test_a_sketch_spares_blocks_of_the_exact_kernel(monkeypatch):
    learner, X_pool = mlp(30, 200, hidden=(40,))
    ruled_out = []
    rule = CandidateKernel.keep_possible

    def counting(self, batches, bar):
        rivals = rule(self, batches, bar)
        ruled_out.append(len(batches) - len(rivals))
        return rivals

    monkeypatch.setattr(CandidateKernel, "keep_possible", counting)
    NPC(random_state=0, n_features=4096).select(learner, X_pool, 3)
    assert ruled_out[0] > 100  # of 200


# --- copies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("search", ["random", "greedy"])
def test_no_copies_in_a_batch_of_a_pool_that_holds_every_sample_three_times(search):
    learner, X = mlp(5, 20)
    X_pool = np.concatenate([X, X, X])[np.random.default_rng(0).permutation(60)]
    for b in (2, 10, 20):
        indices, metrics = NPC(search=search, random_state=0).select(learner, X_pool, b)
        assert len(np.unique(X_pool[indices], axis=0)) == b
        assert metrics[-1] > 0


@pytest.mark.parametrize("search", ["random", "greedy"])
def test_copies_of_labelled_samples_come_last(search):
    learner, X = mlp(5, 8)
    X_pool = np.concatenate([learner.X_training, X])
    for b in (1, 4, 8):
        assert NPC(search=search, random_state=0).select(learner, X_pool, b)[0].min() >= 5
    indices, metrics = NPC(search=search, random_state=0).select(learner, X_pool, 10)
    assert set(indices[:8]) == set(range(5, 13))
    assert metrics.tolist() == [0.0] * 10


def test_labelled_copies_count_once():
    learner, X_pool = mlp(5)
    twice = learner_of(
        learner.estimator, np.concatenate([learner.X_training] * 2), np.concatenate([learner.y_training] * 2)
    )
    expected, values = NPC(random_state=0).select(learner, X_pool, 4)
    indices, metrics = NPC(random_state=0).select(twice, X_pool, 4)
    assert indices.tolist() == expected.tolist()
    np.testing.assert_allclose(metrics, values, rtol=1e-9)


# --- rank -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("search", ["random", "greedy"])
def test_a_last_layer_that_is_too_narrow_is_named(search):
    learner, X_pool = mlp(6)  # 7 inputs of the last layer: the rank is 8
    with pytest.warns(RankDeficiencyWarning, match=r"last_layer.*rank 9.*6 distinct.*3 to query.*at most 8.*pntk"):
        indices, metrics = NPC(kernel="last_layer", search=search, random_state=0).select(learner, X_pool, 3)
    assert len(set(indices)) == 3
    assert metrics.tolist() == [0.0] * 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert NPC(kernel="last_layer", search=search, random_state=0).select(learner, X_pool, 2)[1][-1] > 0
    assert issubclass(RankDeficiencyWarning, SkalWarning)


def test_the_bias_of_the_last_layer_counts_only_if_it_is_trained():
    learner, X_pool = mlp(6)
    learner.estimator.module_[-1].bias.requires_grad_(False)
    with pytest.warns(RankDeficiencyWarning, match="rank of at most 7"):
        NPC(kernel="last_layer", random_state=0).select(learner, X_pool, 2)


@pytest.mark.parametrize("kernel", ["pntk", "logit"])
def test_too_few_parameters_are_named(kernel):
    torch.manual_seed(0)
    learner, X_pool = untrained(nn.Linear(4, 3).double(), (4,), 10, 20)
    with pytest.warns(RankDeficiencyWarning, match=rf"{kernel} kernel.*rank 16 .*rank of at most 15.*trace"):
        NPC(kernel=kernel, random_state=0).select(learner, X_pool, 6)


@pytest.mark.parametrize("search", ["random", "greedy"])
@pytest.mark.parametrize("n_labelled", [0, 6])
@pytest.mark.parametrize("n_features", [None, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_spectrum_that_ends_early_is_noticed_although_the_sizes_would_do(search, n_labelled, n_features, dtype):
    """Linear layers have thousands of parameters, but their pseudo-NTK lies in the 5 dimensions of input and bias.

    In float32 the rounding of the hidden layers lifts the other eigenvalues above float64's rounding.
    """
    torch.manual_seed(0)
    hidden = [nn.Linear(4, 30), *(nn.Linear(30, 30) for _ in range(10))]
    for layer in hidden:
        nn.init.orthogonal_(layer.weight)
    module = nn.Sequential(*hidden, nn.Linear(30, 3)).to(dtype)
    learner, X_pool = untrained(module, (4,), n_labelled, 20)
    strategy = NPC(search=search, random_state=0, n_features=n_features)
    with pytest.warns(RankDeficiencyWarning, match=r"pntk.*rank 5 up to rounding"):
        indices, metrics = strategy.select(learner, X_pool, 7)
    assert len(set(indices)) == 7
    assert metrics.tolist() == [0.0] * 7


@pytest.mark.parametrize("n_labelled", [0, 10])
def test_the_fallback_is_the_largest_log_determinant(n_labelled):
    learner, X_pool = mlp(n_labelled)
    K = kernel_by_hand(learner, X_pool, "last_layer")
    batches = stream(30, 9, 30, seed=1)
    labelled = list(range(n_labelled))
    ridge = 1e-3 * np.diag(K)[:n_labelled].mean() if n_labelled else 1e-3 * np.diag(K).mean()

    def logdet(batch):
        rows = [*labelled, *(n_labelled + batch)]
        return np.linalg.slogdet(K[np.ix_(rows, rows)] + ridge * np.eye(len(rows)))[1]

    values = np.array([logdet(batch) for batch in batches])
    with pytest.warns(RankDeficiencyWarning):
        indices, _ = NPC(kernel="last_layer", random_state=1).select(learner, X_pool, 9)
    assert indices.tolist() == batches[values.argmax()].tolist()
    assert np.ptp(values) > 0.1  # it does tell them apart


def test_last_layer_eigenvalues_are_noise_beyond_its_width_and_the_whole_networks_are_not():
    """Which batch wins must not depend on rounding: compare the float32 network with the same one in float64."""

    def winners(kernel):
        found = []
        for dtype in (torch.float32, torch.float64):
            torch.manual_seed(0)
            module = MLP(6, 3, hidden=(16, 8)).to(dtype)
            X = np.random.default_rng(0).normal(size=(60, 6)).astype("float32")
            K = torch.as_tensor(gradients(module, torch.as_tensor(X, dtype=dtype).numpy(), kernel))
            K = (K @ K.T).numpy()
            values = [value_by_hand(K, 10, batch) for batch in stream(50, 6, 200, seed=0)]
            found.append((int(np.argmax(values)), np.array(values) / np.linalg.eigvalsh(K)[-1]))
        return found

    (first, a), (second, b) = winners("last_layer")
    assert first != second
    assert max(np.abs(a).max(), np.abs(b).max()) < 1e-14
    (first, a), (second, b) = winners("pntk")
    assert first == second
    np.testing.assert_allclose(a, b, rtol=1e-2)
    assert a.max() > 1e-6


# --- what it is for ---------------------------------------------------------------------------------------------------


def test_gradient_descent_decays_faster_on_the_chosen_set_than_on_the_median_random_one():
    """Theorem 1: a wide ReLU net, squared loss, full-batch gradient descent, random labels."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 8))
    X = (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32)
    y = rng.choice([-1.0, 1.0], size=150).astype(np.float32)

    class Wide(nn.Module):
        """Outputs (f, 0) of one hidden layer of 2048 units; only the hidden weights are trained, as in the theorem."""

        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.hidden = nn.Linear(8, 2048, bias=False)
            nn.init.normal_(self.hidden.weight)
            self.register_buffer("signs", torch.randint(0, 2, (2048,)) * 2.0 - 1)

        def forward(self, x):
            f = torch.relu(self.hidden(x)) @ self.signs / 2048**0.5
            return torch.stack([f, 0 * f], dim=1)

    def loss_after(rows, steps=300):
        module = Wide()
        inputs, target = torch.as_tensor(X[rows]), torch.as_tensor(y[rows])
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(steps):
            optimizer.zero_grad()
            loss = 0.5 * (module(inputs)[:, 0] - target).square().sum()
            loss.backward()
            optimizer.step()
        return loss.item() / len(rows)

    net = net_of(Wide)
    learner = learner_of(net)
    chosen, _ = NPC(n_candidates=1000, random_state=0).select(learner, X, 20)
    random = [loss_after(rng.choice(150, 20, replace=False)) for _ in range(11)]
    assert loss_after(chosen) < np.median(random)


def test_zero_shot_and_single_shot_through_the_ordinary_interface():
    torch.manual_seed(0)
    X = np.random.default_rng(0).normal(size=(80, 6)).astype(np.float32)
    net = NeuralNetClassifier(MLP(6, 3), criterion=nn.CrossEntropyLoss, train_split=None, max_epochs=1, verbose=0)
    learner = skal.ActiveLearner(net.initialize(), NPC(random_state=0))
    indices, samples = learner.query(X, n_instances=9)
    assert len(set(indices)) == 9
    learner.teach(samples, np.arange(9) % 3)
    indices, metrics = NPC(random_state=0).select(learner, np.delete(X, indices, axis=0), 12)
    assert len(set(indices)) == 12
    assert metrics[0] > 0


@pytest.mark.parametrize("backend", ["auto", "structured", "func"])
def test_a_softmax_with_nll_loss_has_the_kernel_of_its_logits(backend):
    learner, X_pool = mlp(5)
    module = nn.Sequential(learner.estimator.module_, nn.Softmax(dim=-1))
    net = net_of(module, nn.NLLLoss)
    softmaxed = learner_of(net, learner.X_training, learner.y_training)
    for kernel in ("pntk", "trace"):
        expected, values = NPC(kernel=kernel, random_state=0).select(learner, X_pool, 4)
        indices, metrics = NPC(kernel=kernel, random_state=0, backend=backend).select(softmaxed, X_pool, 4)
        assert indices.tolist() == expected.tolist()
        np.testing.assert_allclose(metrics, values, rtol=1e-6)


def test_backpack_refuses_to_stop_before_the_softmax():
    learner, X_pool = mlp(5)
    module = nn.Sequential(learner.estimator.module_, nn.Softmax(dim=-1))
    net = net_of(module, nn.NLLLoss)
    softmaxed = learner_of(net)
    with pytest.raises(UnsupportedLayerError, match="Use backend='structured'"):
        NPC(backend="backpack").select(softmaxed, X_pool, 4)


# --- parameters -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "error"),
    [
        ({"kernel": "entk"}, InvalidParameterError),
        ({"kernel": None}, InvalidParameterError),
        ({"search": "all"}, InvalidParameterError),
        ({"backend": "magic"}, InvalidParameterError),
        ({"n_candidates": 0}, InvalidParameterError),
        ({"n_candidates": 2.5}, InvalidTypeError),
        ({"n_features": 0}, InvalidParameterError),
        ({"n_features": "auto"}, InvalidTypeError),
        ({"search": "greedy", "n_candidates": 2}, InvalidParameterError),
    ],
)
def test_bad_parameters_are_refused(params, error):
    learner, X_pool = mlp()
    with pytest.raises(error, match=r"NPC must be.*Got") as caught:
        NPC(**params).select(learner, X_pool, 3)
    assert isinstance(caught.value, SkalError)


def test_exported_at_the_top():
    assert skal.NPC is NPC
    assert skal.npc is npc
    learner, X_pool = mlp()
    assert npc(learner, X_pool, 3, random_state=0).tolist() == NPC(random_state=0)(learner, X_pool, 3).tolist()


class NanForSome(nn.Module):
    """No numbers for samples that begin with more than 5."""

    def __init__(self):
        super().__init__()
        self.hidden, self.head = nn.Linear(6, 32), nn.Linear(32, 4)

    def forward(self, x):
        return torch.where(x[:, :1] > 5, torch.nan, self.head(torch.tanh(self.hidden(x))))


@pytest.mark.filterwarnings("ignore::skal.exceptions.SkalWarning")
@pytest.mark.parametrize("max_memory", [None, "200kB"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"n_features": 64},
        {"search": "greedy"},
        {"kernel": "trace"},
        {"kernel": "last_layer"},
        {"kernel": "trace", "n_features": 64},
        {"n_candidates": 2},
        {"search": "greedy", "n_candidates": 8},
    ],
    ids=str,
)
def test_samples_without_numbers_are_refused_or_not_among_the_candidates(settings, max_memory):
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    X, bad = rng.normal(size=(52, 6)).astype(np.float32), 12 + rng.choice(40, size=4, replace=False)
    X[bad, 0] = 9
    net = NeuralNetClassifier(NanForSome(), criterion=nn.CrossEntropyLoss, train_split=None, verbose=0).initialize()
    learner = SimpleNamespace(estimator=net, X_training=X[:12], y_training=np.arange(12) % 4)
    for seed in range(4):
        strategy = NPC(random_state=seed, **settings)
        try:
            with config_context(max_memory=max_memory):
                indices, _ = strategy.select(learner, X[12:], 5)
        except NonFiniteError:
            continue
        assert "n_candidates" in settings, "every sample of the pool takes part"
        assert not set(indices + 12) & set(bad)
