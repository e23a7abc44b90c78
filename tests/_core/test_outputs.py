"""What a network's outputs mean, by its criterion; against skorch and the formula in float64."""

import numpy as np
import pytest
import torch
from skorch import NeuralNetBinaryClassifier, NeuralNetClassifier
from torch import nn

from skal.context import Network, QueryContext, Samples
from skal.exceptions import NonFiniteError, OutputError
from skal.nets import SquaredLoss

from ..support.learners import Told, learner_of, net_of, numbered

X = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)


def linear(n_in=4, n_out=3):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(n_in, n_out)


def test_nll_loss_takes_the_logarithm_of_probabilities():
    logits = Network(linear()).all_logits(Samples(X), 5)
    net = NeuralNetClassifier(nn.Sequential(linear(), nn.Softmax(-1))).initialize()
    network = Network(net)
    np.testing.assert_allclose(network.all_logits(Samples(X), 5), torch.log_softmax(logits, -1), atol=1e-5)
    proba = network.to_proba(network.all_outputs(Samples(X), 5))
    np.testing.assert_allclose(proba, net.predict_proba(X), rtol=1e-5)
    np.testing.assert_allclose(proba, torch.softmax(logits, -1), rtol=1e-5)


@pytest.mark.parametrize("end", [nn.Identity(), nn.Flatten(0)], ids=["(n, 1)", "(n,)"])
def test_a_binary_net_has_the_logits_0_and_z(end):
    net = NeuralNetBinaryClassifier(nn.Sequential(linear(4, 1), end)).initialize()
    network = Network(net)
    logits = network.all_logits(Samples(X), 5)
    np.testing.assert_allclose(logits[:, 1], linear(4, 1)(torch.from_numpy(X)).detach()[:, 0], rtol=1e-5, atol=1e-6)
    assert (logits[:, 0] == 0).all()
    proba = network.to_proba(network.all_outputs(Samples(X), 5))
    np.testing.assert_allclose(proba, net.predict_proba(X), rtol=1e-5)
    np.testing.assert_allclose(torch.softmax(logits, -1), proba, rtol=1e-4, atol=1e-6)


def test_squared_loss_gets_a_softmax_unless_the_user_says_otherwise():
    net = NeuralNetClassifier(linear(), criterion=SquaredLoss).initialize()
    network = Network(net)
    outputs = network.all_logits(Samples(X), 5)
    np.testing.assert_allclose(network.to_proba(outputs), torch.softmax(outputs, -1))
    net.set_params(predict_nonlinearity=torch.sigmoid)
    np.testing.assert_allclose(network.to_proba(outputs), torch.sigmoid(outputs))


def read_proba(proba):
    return QueryContext(learner_of(Told(proba)), numbered(len(proba))).predict_proba()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, [np.inf, -np.inf]], ids=str)
@pytest.mark.filterwarnings("error")
def test_probabilities_that_are_not_finite_are_refused_without_a_warning(value):
    proba = np.full((3, 2), 0.5)
    proba[1] = value
    with pytest.raises(NonFiniteError, match="probabilities must be finite"):
        read_proba(proba)


@pytest.mark.parametrize("row", [[0.5, 0.6], [0.5, 0.4], [1.1, -0.1]], ids=str)
def test_one_row_that_is_no_distribution_is_refused(row):
    with pytest.raises(OutputError, match="one distribution per row"):
        read_proba([[0.5, 0.5], row])


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_a_criterion_of_another_kind_is_taken_as_it_is():
    scripted = torch.jit.script(nn.CrossEntropyLoss())
    for criterion in (scripted, len, None):
        net = net_of(linear())
        net.criterion_ = criterion
        assert Network(net).criterion is criterion


def test_a_compiled_criterion_is_looked_through():
    net = NeuralNetClassifier(nn.Sequential(linear(), nn.Softmax(-1))).initialize()
    net.criterion_ = torch.compile(net.criterion_, backend="eager")
    assert isinstance(Network(net).criterion, nn.NLLLoss)


@pytest.mark.parametrize(
    "output",
    [torch.zeros(3), torch.zeros(3, 1), torch.zeros(3, 2, 2), [1, 2]],
    ids=["vector", "one column", "three axes", "list"],
)
def test_outputs_of_another_shape_are_refused(output):
    with pytest.raises(OutputError, match=r"shape \(n_samples, n_classes >= 2\)\. Got .* instead\. Give"):
        Network(net_of(linear())).check_output(output)


def test_a_module_without_a_criterion_may_have_one_output():
    Network(linear()).check_output(torch.zeros(3, 1))
    with pytest.raises(OutputError, match=r"shape \(n_samples, n_outputs >= 1\)\. Got \(3, 2, 2\) instead"):
        Network(linear()).check_output(torch.zeros(3, 2, 2))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_outputs_that_are_not_finite_are_refused(bad):
    output = torch.zeros(3, 2)
    output[1, 1] = bad
    with pytest.raises(NonFiniteError, match="outputs must be finite"):
        Network(linear()).check_output(output)


def test_probabilities_and_logits_are_told_apart():
    logits, probabilities = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.full((6, 3), 1 / 3)
    cross_entropy = Network(NeuralNetClassifier(linear(), criterion=nn.CrossEntropyLoss).initialize())
    cross_entropy.check_output(logits)
    with pytest.raises(OutputError, match=r"With criterion CrossEntropyLoss the module must return logits"):
        cross_entropy.check_output(probabilities)
    nll = Network(NeuralNetClassifier(linear()).initialize())
    nll.check_output(probabilities)
    with pytest.raises(OutputError, match="With criterion NLLLoss the module must return probabilities"):
        nll.check_output(logits)
    with pytest.raises(OutputError, match="NLLLoss"):
        nll.check_output(torch.log(probabilities))
    # a bare module has no criterion, and squared errors fit outputs to one-hot rows
    Network(linear()).check_output(probabilities)
    Network(NeuralNetClassifier(linear(), criterion=SquaredLoss).initialize()).check_output(probabilities)


def by_formula(logits):
    powers = np.exp(logits.double().numpy() - logits.double().numpy().max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 3), (33, 2), (500, 10), (500, 15), (500, 16), (40, 100), (3, 50, 4), (5,)])
def test_is_the_formula(shape, dtype):
    logits = 30 * torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    found = Network(linear()).to_proba(logits)
    assert found.shape == logits.shape
    assert found.dtype == dtype
    np.testing.assert_allclose(found.numpy(), by_formula(logits), rtol=200 * torch.finfo(dtype).eps, atol=1e-37)


def test_large_logits_do_not_overflow():
    logits = torch.tensor([[1e4, 0.0, -1e4]]).repeat(100, 1)
    assert torch.equal(Network(linear()).to_proba(logits), torch.tensor([[1.0, 0.0, 0.0]]).repeat(100, 1))


def test_own_nonlinearity_of_a_net_is_kept():
    """Only the softmax that skorch itself takes is replaced."""

    class Net(NeuralNetClassifier):
        def _get_predict_nonlinearity(self):
            return lambda output: torch.softmax(output / 2, dim=-1)

    net = net_of(linear(), cls=Net, predict_nonlinearity=None)
    logits = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    np.testing.assert_allclose(Network(net).to_proba(logits).numpy(), by_formula(logits / 2), rtol=1e-5)
