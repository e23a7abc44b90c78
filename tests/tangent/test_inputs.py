"""What the public functions take, and what they refuse and how."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from skorch import NeuralNetClassifier
from torch import nn

from skal.exceptions import (
    InvalidParameterError,
    InvalidTypeError,
    NoNetworkError,
    NonFiniteError,
    NotFittedError,
    OutputError,
    SkalError,
    UnsupportedLayerError,
)
from skal.nets import MLP, SquaredLoss
from skal.tangent import gradient_scores, loss_gradient, tangent_features, tangent_kernel

from ..support import oracle

X = np.random.default_rng(0).normal(size=(6, 4))
Y = np.array([0, 1, 2, 2, 1, 0])
PUBLIC = {
    "gradient_scores": lambda net, X=X: gradient_scores(net, X, None),
    "loss_gradient": lambda net, X=X: loss_gradient(net, X, None),
    "tangent_kernel": lambda net, X=X: tangent_kernel(net, X),
    "tangent_features": lambda net, X=X: tangent_features(net, X),
}
public = pytest.mark.parametrize("function", PUBLIC.values(), ids=PUBLIC)


@pytest.fixture
def module():
    torch.manual_seed(0)
    return MLP(4, 3, hidden=(5,)).double()


def skorch_net(module, criterion, **params):
    net = NeuralNetClassifier(type(module), criterion=criterion, **params)
    net.initialize()
    net.module_ = module
    return net


class Softmax(nn.Module):
    def __init__(self, body=None):
        super().__init__()
        self.body = nn.Linear(4, 3) if body is None else body

    def forward(self, x):
        return F.softmax(self.body(x), dim=1)


def test_skorch_nets_follow_their_criterion(module):
    gradients = oracle.loss_gradients(module, X, Y)
    bare = gradient_scores(module, X, Y)[0]
    assert oracle.relative_error(bare, (gradients**2).sum(1)) < 1e-8
    net = NeuralNetClassifier(MLP, criterion=nn.CrossEntropyLoss, module__n_features=4).initialize()
    net.module_ = module
    np.testing.assert_array_equal(gradient_scores(net, X, Y)[0], bare)
    # skorch takes the logarithm of what a module with a softmax returns, and the loss is the same
    net = skorch_net(Softmax(module), nn.NLLLoss)
    np.testing.assert_allclose(gradient_scores(net, X, Y)[0], bare, rtol=1e-6)
    summed = loss_gradient(net, X, Y)
    expected = oracle.flatten(loss_gradient(module, X, Y), module)
    assert oracle.relative_error(oracle.flatten(summed, net.module_), expected) < 1e-6


def test_kernel_of_a_net_with_softmax_is_that_of_its_log_probabilities(module):
    net = skorch_net(Softmax(module), nn.NLLLoss)
    J = oracle.jacobian(module, X, lambda f: F.log_softmax(f, dim=1))
    assert oracle.relative_error(tangent_kernel(net, X, kind="trace"), oracle.kernel(J, J, "trace")) < 1e-6


def test_squared_loss_net_has_its_outputs_for_logits(module):
    net = NeuralNetClassifier(MLP, criterion=SquaredLoss, module__n_features=4).initialize()
    net.module_ = module
    np.testing.assert_array_equal(tangent_kernel(net, X), tangent_kernel(module, X))
    gradients = oracle.loss_gradients(module, X, Y, "squared_error")
    norms, _ = gradient_scores(net, X, Y, loss="squared_error")
    assert oracle.relative_error(norms, (gradients**2).sum(1)) < 1e-8


@pytest.mark.parametrize("flat", [True, False])
def test_binary_net_with_one_output(flat):
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1), *([nn.Flatten(0)] if flat else [])).double()

    class Body(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = body

        def forward(self, x):
            return self.body(x)

    net = skorch_net(Body(), nn.BCEWithLogitsLoss)
    y = np.array([0, 1, 1, 0, 1, 0])
    parameters = list(body.parameters())
    rows = []
    for x, label in zip(torch.as_tensor(X), y, strict=True):
        loss = F.binary_cross_entropy_with_logits(body(x[None]).reshape(()), torch.tensor(float(label)).double())
        rows.append(torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, parameters)]).numpy())
    norms, _ = gradient_scores(net, X, y)
    assert oracle.relative_error(norms, np.square(rows).sum(1)) < 1e-8
    assert oracle.relative_error(oracle.flatten(loss_gradient(net, X, y), net.module_), np.sum(rows, axis=0)) < 1e-8


@public
def test_float32_net_and_float64_data(function):
    function(MLP(4, 3, hidden=(5,)))


@public
def test_nan_outputs(function, module):
    nn.init.constant_(next(module.parameters()), torch.nan)
    with pytest.raises(NonFiniteError, match=r"outputs must be finite.*lower the learning rate"):
        function(module)


@public
def test_nothing_to_train(function, module):
    with pytest.raises(InvalidParameterError, match=r"at least one trainable parameter.*Unfreeze"):
        function(module.requires_grad_(False))


def test_last_layer_without_anything_to_train(module):
    *_, last = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    last.requires_grad_(False)
    with pytest.raises(InvalidParameterError, match=r"last layer.*must be trainable.*layers='all'"):
        tangent_kernel(module, X, layers="last")


@public
def test_bad_samples(function, module):
    bad = X.copy()
    bad[4, 1] = np.nan
    with pytest.raises(NonFiniteError, match=r"X must be finite.*row 4"):
        function(module, bad)
    with pytest.raises(InvalidParameterError, match="at least one sample"):
        function(module, X[:0])
    with pytest.raises(InvalidTypeError, match="must be numbers"):
        function(module, np.array([["a", "b", "c", "d"]]))


def test_bad_second_set(module):
    bad = X.copy()
    bad[2] = np.inf
    with pytest.raises(NonFiniteError, match=r"Z must be finite.*row 2"):
        tangent_kernel(module, X, bad)
    assert tangent_kernel(module, X, X[:0]).shape == (6, 0)


@pytest.mark.parametrize("name", [name for name in PUBLIC if name != "loss_gradient"])
def test_batch_norm_that_mixes_samples(name):
    module = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5, track_running_stats=False), nn.Linear(5, 3))
    with pytest.raises(UnsupportedLayerError, match=r"'1', a BatchNorm1d without running statistics.*GroupNorm"):
        PUBLIC[name](module)


@public
def test_probabilities_instead_of_logits(function):
    net = NeuralNetClassifier(Softmax, criterion=nn.CrossEntropyLoss).initialize()
    with pytest.raises(OutputError, match=r"must return logits. Got probabilities"):
        function(net)
    net = NeuralNetClassifier(
        nn.Linear, module__in_features=4, module__out_features=3, criterion=nn.NLLLoss
    ).initialize()
    with pytest.raises(OutputError, match="must return probabilities"):
        function(net)


@public
def test_no_network(function):
    with pytest.raises(NotFittedError, match="unfitted"):
        function(NeuralNetClassifier(MLP))
    with pytest.raises(NoNetworkError, match=r"skorch net or a torch nn.Module"):
        function("a network")


@public
def test_outputs_of_the_wrong_shape(function):
    with pytest.raises(OutputError, match=r"shape \(n_samples, n_outputs >= 1\)"):
        function(nn.Sequential(nn.Linear(4, 3), nn.Unflatten(1, (3, 1))))


@pytest.mark.parametrize("y", [Y[:5], Y + 1, -Y, Y.astype(float), Y.astype(str), Y[:, None], 3])
@pytest.mark.parametrize("function", [gradient_scores, loss_gradient])
def test_wrong_labels(function, module, y):
    with pytest.raises(InvalidParameterError, match=r"(?s)6 integers in 0 … 2, one per sample.*LabelEncoder"):
        function(module, X, y)


def test_labels_of_any_integer_kind(module):
    expected = gradient_scores(module, X, Y)[0]
    for y in (Y.tolist(), torch.as_tensor(Y), Y.astype(np.uint8), Y.astype(np.int16)):
        np.testing.assert_array_equal(gradient_scores(module, X, y)[0], expected)


def test_wrong_direction(module):
    name, parameter = next(iter(module.named_parameters()))
    with pytest.raises(
        InvalidParameterError, match=rf"shaped like the parameters \('{name}': \(5, 4\)\). Got .* \(2,\)"
    ):
        gradient_scores(module, X, Y, {name: torch.zeros(2)})
    with pytest.raises(InvalidParameterError, match="no trainable parameter of that name"):
        gradient_scores(module, X, Y, {"other": torch.zeros(2)})
    parameter.requires_grad_(False)
    with pytest.raises(InvalidParameterError, match="no trainable parameter of that name"):
        gradient_scores(module, X, Y, {name: torch.zeros_like(parameter)})


@pytest.mark.parametrize(
    ("function", "params", "message"),
    [
        (gradient_scores, {"y": None, "backend": "fast"}, "'backend' parameter of gradient_scores.*'fast'"),
        (gradient_scores, {"y": None, "loss": "hinge"}, "'loss' parameter of gradient_scores.*'hinge'"),
        (gradient_scores, {"y": None, "batch_size": 0}, "'batch_size' parameter of gradient_scores.*>= 1"),
        (gradient_scores, {"y": None, "max_memory": "much"}, "'max_memory' parameter of gradient_scores.*'much'"),
        (loss_gradient, {"y": None, "loss": "hinge"}, "'loss' parameter of loss_gradient.*'hinge'"),
        (tangent_kernel, {"kind": "ntk"}, "'kind' parameter of tangent_kernel.*'ntk'"),
        (tangent_kernel, {"layers": "first"}, "'layers' parameter of tangent_kernel.*'first'"),
        (tangent_kernel, {"batch_size": 1.5}, "'batch_size' parameter of tangent_kernel.*1.5"),
        (tangent_features, {"kind": "ntk"}, "'kind' parameter of tangent_features.*'ntk'"),
        (tangent_features, {"n_features": 0}, "'n_features' parameter of tangent_features.*>= 1 or None"),
        (tangent_features, {"random_state": -1}, "'random_state' parameter of tangent_features.*>= 0"),
        (tangent_features, {"backend": "loop"}, "'backend' parameter of tangent_features.*'loop'"),
    ],
)
def test_wrong_parameters(module, function, params, message):
    with pytest.raises(SkalError, match=message) as caught:
        function(module, X, **params)
    assert isinstance(caught.value, (ValueError, TypeError))
