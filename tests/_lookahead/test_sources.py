"""What a network's outputs mean to the look-ahead."""

import pytest
import torch
from skorch import NeuralNetClassifier
from torch import nn

from skal._lookahead.feature_reader import Covariances, Features
from skal._lookahead.posterior import read_outputs
from skal.context import Network
from skal.nets import SquaredLoss


def sharper(f):
    return torch.softmax(2 * f, -1)


@pytest.mark.parametrize("criterion", [SquaredLoss, nn.CrossEntropyLoss])
def test_what_outputs_mean(criterion):
    logits = torch.tensor([[2.0, 0.0, -1.0]])
    f = logits.double()
    network = Network(NeuralNetClassifier(nn.Linear(2, 3), criterion=criterion).initialize())
    outputs = read_outputs(network, logits)
    assert torch.equal(outputs.proba, torch.softmax(f, 1))
    assert torch.equal(outputs.link, f if criterion is SquaredLoss else outputs.proba)
    assert outputs.labels.tolist() == [0]
    assert outputs.to_proba is None
    assert outputs.residual(0, 2).tolist() == (torch.eye(3).double()[2] - outputs.link[0]).tolist()


def test_the_users_own_nonlinearity():
    net = NeuralNetClassifier(nn.Linear(2, 3), criterion=SquaredLoss, predict_nonlinearity=sharper).initialize()
    f = torch.tensor([[2.0, 0.0, -1.0]]).double()
    outputs = read_outputs(Network(net), f)
    assert torch.equal(outputs.proba, sharper(f))
    assert torch.equal(outputs.link, f)
    assert torch.equal(outputs.to_proba(f[None] + 1), sharper(f)[None])


@pytest.mark.parametrize("made", [1, 12, 10_000])
@pytest.mark.parametrize("evaluation", [[0, 1, 2], [6, 1, 4, 3], list(range(7))])
def test_covariances_are_made_in_parts(evaluation, made):
    generator = torch.Generator().manual_seed(0)
    root, positions = torch.randn(7, 5, generator=generator, dtype=torch.float64), torch.tensor(evaluation)
    nothing, numbers = torch.empty(7, 0), torch.arange(7.0)
    features = Features([], root, nothing, nothing, numbers, numbers, nothing)
    n_made = []

    class Reader:
        def covariance(self, here, there):
            n_made.append(len(here.psi) * len(there.psi))
            return here.psi @ there.psi.T

    covariances = Covariances(Reader(), features, positions)
    torch.testing.assert_close(covariances.with_evaluation(made), root @ root[positions].T)
    if made == 1:  # of a symmetric matrix one half is enough
        e = len(evaluation)
        assert sum(n_made) == e * (e + 1) // 2 + (7 - e) * e
    rows, columns = torch.tensor([5, 0, 2]), torch.tensor([1, 6])
    torch.testing.assert_close(covariances(rows, columns), root[rows] @ root[columns].T)
