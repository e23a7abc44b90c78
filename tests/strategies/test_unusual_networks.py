"""Every strategy answers alike for a network and for one that does the same in an unusual way."""

from copy import deepcopy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from skorch import NeuralNetClassifier
from torch import nn
from torch.utils.checkpoint import checkpoint

from skal.checks import make_learner as make_checked_learner
from skal.exceptions import UnsupportedLayerError
from skal.strategies import (
    BADGE,
    BALD,
    EGL,
    NPC,
    CoreSet,
    DynamicAL,
    Entropy,
    LeastConfidence,
    Margin,
    MaxHerding,
    NTKLookahead,
    ProbCover,
    TypiClust,
    UHerding,
)
from skal.tangent import gradient_scores, tangent_features, tangent_kernel

from ..support.unusual import AuxiliaryHead, LossInside, ModelOutput, Plain, SortsItsBatch

STRATEGIES = {
    "Margin": Margin(),
    "Entropy": Entropy(),
    "LeastConfidence": LeastConfidence(),
    "BALD": BALD(random_state=0),
    "EGL": EGL(),
    "EGL last": EGL(layers="last"),
    "DynamicAL": DynamicAL(),
    "NTKLookahead": NTKLookahead(reference="linearized", random_state=0),
    "NTKLookahead exact": NTKLookahead(reference="linearized", n_features=None),
    "CoreSet": CoreSet(),
    "BADGE": BADGE(random_state=0),
    "NPC": NPC(random_state=0),
    "NPC last": NPC(kernel="last_layer", random_state=0),
    "MaxHerding": MaxHerding(random_state=0),
    "UHerding": UHerding(random_state=0),
    "TypiClust": TypiClust(random_state=0),
    "ProbCover": ProbCover(random_state=0),
}


UNUSUAL = [AuxiliaryHead, LossInside, ModelOutput, SortsItsBatch]


def make_learner(kind=Plain, dtype=torch.float64, **settings):
    """An initialised net whose weights do not depend on its kind, 12 labels, and 30 samples in order at first."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(42, 5))
    X[12:18] = X[12 + X[12:18, 0].argsort()[::-1]]
    torch.manual_seed(0)
    settings = {"criterion": nn.CrossEntropyLoss} | settings
    net = NeuralNetClassifier(kind, train_split=None, verbose=0, **settings).initialize()
    net.module_.to(dtype)
    learner = SimpleNamespace(estimator=net, X_training=X[:12], y_training=np.arange(12) % 3)
    return learner, X[12:]


@pytest.mark.filterwarnings("ignore::skal.exceptions.SampleOrderWarning")
@pytest.mark.parametrize("kind", UNUSUAL, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES.keys())
def test_answers_are_those_of_the_plain_network(strategy, kind):
    expected, answer = (strategy.select(*make_learner(some), n_instances=4) for some in (Plain, kind))
    np.testing.assert_array_equal(answer[0], expected[0])
    np.testing.assert_allclose(answer[1], expected[1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", UNUSUAL, ids=lambda kind: kind.__name__)
def test_gradients_are_those_of_the_plain_network(kind):
    torch.manual_seed(0)
    plain = Plain().double()
    module = kind().double()
    module.load_state_dict(plain.state_dict())
    X = torch.randn(20, 5, dtype=torch.float64)
    X[:4] = X[X[:4, 0].argsort(descending=True)]
    y = torch.arange(20) % 3
    np.testing.assert_allclose(tangent_kernel(module, X), tangent_kernel(plain, X), rtol=1e-9)
    np.testing.assert_allclose(tangent_kernel(module, X, layers="last"), tangent_kernel(plain, X, layers="last"))
    np.testing.assert_allclose(tangent_features(module, X), tangent_features(plain, X), atol=1e-12)
    np.testing.assert_allclose(gradient_scores(module, X, y), gradient_scores(plain, X, y), rtol=1e-9)


def compiled_parts():
    module = Plain()
    module.fc.compile(backend="eager")
    return module


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES.keys())
def test_compiled_networks_answer_like_others(strategy):
    expected = strategy.select(*make_learner(), n_instances=4)
    whole = make_learner(compile=True, compile__backend="eager")
    part = make_learner(compiled_parts)
    for learner, X_pool in (whole, part):
        Margin().select(learner, X_pool)
        learner.estimator.predict_proba(X_pool)  # compiled now, without hooks
        answer = strategy.select(learner, X_pool, n_instances=4)
        np.testing.assert_array_equal(answer[0], expected[0])
        np.testing.assert_allclose(answer[1], expected[1], rtol=1e-9, atol=1e-12)


class Checkpointed(Plain):
    def forward(self, x):
        return self.fc(checkpoint(self.features, x.requires_grad_(), use_reentrant=self.reentrant))


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES.keys())
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_works_or_is_refused_by_name(strategy, reentrant):
    learner, X_pool = make_learner(Checkpointed)
    learner.estimator.module_.reentrant = reentrant
    takes_gradients = "backend" in strategy.get_params()
    if reentrant and takes_gradients and getattr(strategy, "layers", "all") == "all":
        with pytest.raises(UnsupportedLayerError, match=r"must leave the graph whole\. .* Pass use_reentrant=False"):
            strategy.select(learner, X_pool, n_instances=4)
        return
    answer = strategy.select(learner, X_pool, n_instances=4)
    np.testing.assert_array_equal(answer[0], strategy.select(*make_learner(), n_instances=4)[0])


@pytest.mark.filterwarnings("ignore::skal.exceptions.RankDeficiencyWarning")
@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES.keys())
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_modules_of_low_precision_work(strategy, dtype):
    learner, X_pool = make_learner(dtype=dtype)
    indices, metrics = strategy.select(learner, X_pool, n_instances=4)
    assert len(set(indices.tolist())) == 4
    assert np.isfinite(metrics).all()


@pytest.mark.parametrize("backend", ["auto", "structured", "backpack"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_gradients_of_low_precision_are_off_by_no_more_than_that(dtype, backend):
    learner, X_pool = make_checked_learner()
    module = learner.estimator.module_.to(dtype)
    rounded = deepcopy(module).double()  # the same weights, so that what differs is the arithmetic
    images, y = torch.as_tensor(X_pool).to(dtype), np.arange(40) % 4
    kernel = tangent_kernel(module, images, backend=backend)
    expected = tangent_kernel(rounded, images.double())
    assert np.linalg.norm(kernel - expected) < 20 * torch.finfo(dtype).eps * np.linalg.norm(expected)
    norms, _ = gradient_scores(module, images, y, backend=backend)
    expected, _ = gradient_scores(rounded, images.double(), y)
    assert np.linalg.norm(norms - expected) < 20 * torch.finfo(dtype).eps * np.linalg.norm(expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "strategy",
    [EGL(layers="last"), EGL(), NTKLookahead(criterion="mlmoc", reference="linearized", n_features=None)],
    ids=str,
)
def test_a_softmax_of_low_precision_has_logits_behind_it(strategy, dtype):
    learner, X_pool = make_learner(lambda: nn.Sequential(Plain(), nn.Softmax(-1)), dtype, criterion=nn.NLLLoss)
    scores = strategy.scores(learner, X_pool)
    learner.estimator.module_.double()  # the same weights: what differs is the arithmetic
    assert np.corrcoef(scores, strategy.scores(learner, X_pool))[0, 1] > 0.95
    BADGE(random_state=0).select(learner, X_pool, 3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_probabilities_of_low_precision_are_distributions(dtype):
    scores, expected = (
        Entropy().scores(*make_learner(lambda: nn.Sequential(Plain(), nn.Softmax(-1)), some, criterion=nn.NLLLoss))
        for some in (dtype, torch.float64)
    )
    np.testing.assert_allclose(scores, expected, rtol=0.02)
