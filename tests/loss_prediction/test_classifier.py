"""The ranking loss by hand, the module beside any network, and joint training."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from skorch import NeuralNetClassifier
from skorch.dataset import ValidSplit
from torch import nn

from skal.exceptions import InvalidParameterError, InvalidTypeError, UnsupportedLayerError
from skal.loss_prediction import LossPredictingModule, LossPredictionClassifier, ranking_loss
from skal.nets import MLP
from skal.strategies import Entropy, LearningLoss

from ..support.learners import learner_of
from ..support.networks import small_network


class Signal(nn.Module):
    """Convolutions along one dimension, where channels come first."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 5, 3)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(torch.relu(self.conv(x)).mean(dim=2))


SETTINGS = {"criterion": nn.CrossEntropyLoss, "train_split": None, "verbose": 0, "max_epochs": 2}


def data(kind, n=13):
    if kind == "signal":
        X = np.random.default_rng(0).normal(size=(n, 1, 9)).astype(np.float32)
    else:
        _, X = small_network(kind, n, dtype=torch.float32)
    return X, np.arange(n) % 3


def build(kind):
    torch.manual_seed(0)
    return Signal() if kind == "signal" else small_network(kind, 1, dtype=torch.float32)[0]


# --- the ranking loss -------------------------------------------------------------------------------------------------


def test_ranking_loss_by_hand():
    predicted = torch.tensor([0.2, 1.0, -0.5, 0.9])
    losses = torch.tensor([3.0, 0.1, 0.4, 1.0])
    # pairs (0, 3): l is larger, l̂ by −0.7: 1 + 0.7; (1, 2): l is smaller, l̂ larger by 1.5: 1 + 1.5
    assert float(ranking_loss(predicted, losses)) == pytest.approx((1.7 + 2.5) / 2)
    assert float(ranking_loss(predicted, losses, margin=0.0)) == pytest.approx((0.7 + 1.5) / 2)
    assert float(ranking_loss(torch.tensor([5.0, 0.0, 2.0, 1.0]), losses)) == 0


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
def test_any_number_of_samples(n):
    rng = np.random.default_rng(n)
    predicted, losses = rng.normal(size=n), rng.exponential(size=n)
    expected = [
        max(0.0, 1 - np.sign(losses[i] - losses[n - 1 - i]) * (predicted[i] - predicted[n - 1 - i]))
        for i in range(n // 2)
    ]
    tensor = torch.tensor(predicted, requires_grad=True)
    loss = ranking_loss(tensor, torch.as_tensor(losses))
    assert float(loss.detach()) == pytest.approx(np.mean(expected) if expected else 0.0)
    loss.backward()
    assert tensor.grad is not None


def test_equal_losses_have_no_order():
    predicted = torch.tensor([3.0, 1.0], requires_grad=True)
    loss = ranking_loss(predicted, torch.tensor([0.5, 0.5]))
    loss.backward()
    assert float(loss.detach()) == 0
    assert predicted.grad.tolist() == [0, 0]


def test_no_gradient_flows_into_the_losses():
    losses = torch.tensor([1.0, 2.0], requires_grad=True)
    ranking_loss(torch.tensor([1.0, 0.0], requires_grad=True), losses).backward()
    assert losses.grad is None


# --- beside any network -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "widths"),
    [
        ("MLP", [8, 7]),
        ("CNN", None),
        ("ResNet", None),
        ("transformer", [16, 8]),
        ("signal", [5]),
    ],
)
def test_layers_are_found_in_any_network(kind, widths):
    X, y = data(kind)
    net = LossPredictionClassifier(build(kind), **SETTINGS).fit(X, y)
    module = net.module_
    assert 1 <= len(module.layers) <= 4
    *_, head = (name for name, layer in module.backbone.named_modules() if isinstance(layer, nn.Linear))
    assert head not in module.layers
    if widths is not None:
        assert [linear.in_features for linear in module.inner] == widths
    learner = learner_of(net, X, y)
    scores = LearningLoss().scores(learner, X)
    assert np.ptp(scores) > 0
    for strategy in (Entropy(), LearningLoss()):
        assert len(strategy(learner, X, 3)) == 3
    assert net.predict_proba(X).shape == (13, 3)


def test_tokens_are_averaged_over_positions_and_signals_over_time():
    X, y = data("transformer")
    net = LossPredictionClassifier(build("transformer"), layers=["encoder"], **SETTINGS).fit(X, y)
    with torch.no_grad(), net.module_.eval().collecting_features() as features:
        net.module_(torch.as_tensor(X))
        expected = net.module_.backbone.encoder(net.module_.backbone.embed(torch.as_tensor(X))).mean(dim=1)
    torch.testing.assert_close(features["encoder"], expected)


# --- training ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 2, 3, 5, 100])
def test_trains_with_any_batch_size(batch_size):
    X, y = data("MLP")
    net = LossPredictionClassifier(build("MLP"), batch_size=batch_size, **SETTINGS).fit(X, y)
    assert np.isfinite(net.history[:, "train_loss"]).all()


def test_training_loss_is_the_criterion_plus_the_weighted_ranking_loss():
    X, y = data("MLP", n=7)
    torch.manual_seed(3)
    net = LossPredictionClassifier(build("MLP"), loss_weight=0.7, margin=0.4, lr=0.0, **SETTINGS).fit(X, y)
    module = net.module_.train()
    output, predicted = module(torch.as_tensor(X))
    losses = nn.functional.cross_entropy(output, torch.as_tensor(y), reduction="none")
    expected = losses.mean() + 0.7 * ranking_loss(predicted, losses, 0.4)
    assert net.history[-1, "train_loss"] == pytest.approx(float(expected.detach()), rel=1e-5)
    assert net.criterion_.reduction == "mean"


def noisy_problem(n, rng):
    """Half of the samples (x₀ < 0) have random labels, the others clear ones: losses differ by where a sample lies."""
    X = rng.normal(size=(n, 4)).astype(np.float32)
    clear = (X[:, 1] > 0).astype(np.int64)
    return X, np.where(X[:, 0] < 0, rng.integers(2, size=n), clear)


def ranking_error(net, X, y):
    """Share of pairs whose expected losses, known from where they lie, are in the other order than the predicted."""
    learner = learner_of(net, X, y)
    scores = LearningLoss().scores(learner, X)
    noisy = X[:, 0] < 0
    return float((scores[noisy][:, None] < scores[~noisy][None]).mean())


def test_training_reduces_the_ranking_error_where_losses_differ():
    rng = np.random.default_rng(0)
    X, y = noisy_problem(400, rng)
    X_test, y_test = noisy_problem(300, rng)
    torch.manual_seed(0)
    net = LossPredictionClassifier(
        MLP(4, 2, hidden=(32,)), optimizer=torch.optim.Adam, lr=0.01, batch_size=32, **{**SETTINGS, "max_epochs": 1}
    )
    net.set_params(max_epochs=0).fit(X, y)
    before = ranking_error(net, X_test, y_test)
    net.set_params(max_epochs=25, warm_start=True).fit(X, y)
    after = ranking_error(net, X_test, y_test)
    assert before > 0.35
    assert after < 0.2


def gradient_reaches_backbone(net, X, y):
    module = net.module_.train()
    module.zero_grad()
    module(torch.as_tensor(X))[1].sum().backward()
    gradients = [p.grad for p in module.backbone.parameters()]
    return any(g is not None and bool(g.any()) for g in gradients)


@pytest.mark.parametrize(
    ("cut_after", "epochs", "reaches"),
    [(None, 5, True), (5, 5, True), (4, 5, False), (0, 1, False), ("auto", 1, True), ("auto", 5, False)],
)
def test_the_gradient_to_the_backbone_is_cut_after_some_epochs(cut_after, epochs, reaches):
    X, y = data("MLP")
    net = LossPredictionClassifier(build("MLP"), cut_after=cut_after, **{**SETTINGS, "max_epochs": epochs}).fit(X, y)
    assert gradient_reaches_backbone(net, X, y) == reaches


def test_epochs_are_counted_anew_in_every_fit():
    X, y = data("MLP")
    settings = {**SETTINGS, "max_epochs": 3}
    net = LossPredictionClassifier(build("MLP"), cut_after=3, warm_start=True, **settings).fit(X, y).fit(X, y)
    assert len(net.history) == 6
    assert gradient_reaches_backbone(net, X, y)


def test_without_weight_the_network_is_trained_as_if_alone():
    X, y = data("MLP")
    torch.manual_seed(0)
    alone = NeuralNetClassifier(build("MLP"), **SETTINGS).fit(X, y)
    torch.manual_seed(0)
    both = LossPredictionClassifier(build("MLP"), loss_weight=0.0, **SETTINGS).fit(X, y)
    for name, value in alone.module_.state_dict().items():
        torch.testing.assert_close(both.module_.backbone.state_dict()[name], value)


def test_skorch_features_work():
    X, y = data("MLP", n=30)
    softmax = nn.Sequential(MLP(5, 3), nn.Softmax(dim=1))
    for module, changes in [
        (build("MLP"), {"train_split": ValidSplit(3)}),
        (softmax, {"criterion": nn.NLLLoss}),
        (build("MLP"), {"criterion__weight": torch.tensor([1.0, 2.0, 3.0])}),
    ]:
        net = LossPredictionClassifier(module, **{**SETTINGS, **changes}).fit(X, y)
        restored = pickle.loads(pickle.dumps(net))
        np.testing.assert_array_equal(restored.predict(X), net.predict(X))
        assert restored.partial_fit(X, y).module_.layers == net.module_.layers
        assert clone(net).get_params()["cut_after"] == "auto"


def test_parameters_are_saved_and_loaded_without_data(tmp_path):
    X, y = data("MLP")
    net = LossPredictionClassifier(build("MLP"), **SETTINGS).fit(X, y)
    net.save_params(f_params=tmp_path / "net.pt")
    module = net.module_
    again = LossPredictionClassifier(
        build("MLP"), layers=module.layers, widths=[x.in_features for x in module.inner], **SETTINGS
    ).initialize()
    again.load_params(f_params=tmp_path / "net.pt")
    scores = [LearningLoss().scores(learner_of(n, X, y), X) for n in (net, again)]
    np.testing.assert_array_equal(*scores)


def test_a_module_that_predicts_its_loss_already_is_not_wrapped_again():
    X, y = data("MLP")
    module = LossPredictingModule(build("MLP"), ["fc"], [3])
    net = LossPredictionClassifier(module, **SETTINGS).fit(X, y)
    assert sum(isinstance(part, LossPredictingModule) for part in net.module_.modules()) == 1


# --- errors -----------------------------------------------------------------------------------------------------------


class NoReduction(nn.Module):
    def forward(self, output, target):
        return nn.functional.cross_entropy(output, target)


@pytest.mark.parametrize(
    ("params", "error", "text"),
    [
        ({"layers": ["nothing"]}, InvalidParameterError, "'nothing'"),
        ({"hidden": 0}, InvalidParameterError, "hidden"),
        ({"margin": -1}, InvalidParameterError, "margin"),
        ({"loss_weight": "much"}, InvalidTypeError, "loss_weight"),
        ({"cut_after": "soon"}, InvalidTypeError, "cut_after"),
        ({"criterion": NoReduction}, InvalidParameterError, "reduction"),
    ],
)
def test_bad_parameters(params, error, text):
    X, y = data("MLP")
    with pytest.raises(error, match=text):
        LossPredictionClassifier(build("MLP"), **{**SETTINGS, **params}).fit(X, y)


def test_initialising_without_data_says_what_to_do():
    with pytest.raises(InvalidParameterError, match=r"widths.*Call fit"):
        LossPredictionClassifier(build("MLP"), **SETTINGS).initialize()


def test_a_layer_that_is_not_called_is_refused():
    class Unused(MLP):
        def __init__(self):
            super().__init__(5, 3)
            self.spare = nn.Linear(2, 2)

    X, y = data("MLP")
    with pytest.raises(UnsupportedLayerError, match="spare"):
        LossPredictionClassifier(Unused(), layers=["spare"], **SETTINGS).fit(X, y)
