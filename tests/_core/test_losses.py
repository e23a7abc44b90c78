"""The derivatives of the training loss, against autograd of the criterion on one sample at a time."""

from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from torch import nn

from skal.context import CrossEntropy, Network, QueryContext
from skal.exceptions import InvalidParameterError
from skal.nets import SquaredLoss

from ..support.criteria import CRITERIA, FocalLoss, net_trained_with, one_loss, weights
from ..support.learners import learner_of

LOGITS = torch.tensor([[1.0, -2.0, 0.5], [0.3, 0.2, 4.0], [-1.0, 2.0, 0.0]], dtype=torch.float64)


def loss_of(criterion):
    """The loss of a network that is trained with a criterion."""
    return Network(net_trained_with(criterion, nn.Linear(4, 3))).loss


def by_autograd(criterion, logits, labels):
    rows = []
    for f, label in zip(logits, labels, strict=True):
        f = f.clone().requires_grad_()
        binary = isinstance(criterion, nn.BCEWithLogitsLoss)
        loss = one_loss(criterion, f[1:] if binary else f[None], int(label))
        rows.append(torch.autograd.grad(loss, f)[0])
    return torch.stack(rows)


def logits_for(criterion):
    if not isinstance(criterion, nn.BCEWithLogitsLoss):
        return LOGITS
    return torch.cat([torch.zeros(3, 1, dtype=LOGITS.dtype), LOGITS[:, :1]], dim=1)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of vmap, for the margin loss
@pytest.mark.parametrize("name", CRITERIA)
def test_every_label(name):
    criterion = CRITERIA[name](torch.float64)
    logits, loss = logits_for(criterion), loss_of(criterion)
    for label in range(logits.shape[1]):
        labels = torch.full((3,), label)
        expected = by_autograd(criterion, logits, labels)
        result = loss.gradient(logits, labels)
        torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-14)
        rows = torch.func.vmap(lambda f, y, loss=loss: loss.gradient(f[None], y[None])[0])(logits, labels)
        torch.testing.assert_close(rows, expected, rtol=1e-12, atol=1e-14)
        lengths = loss.lengths(logits)[:, label]
        torch.testing.assert_close(lengths, torch.linalg.vector_norm(expected, dim=1), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("ignored", [-100, 2, 255])
def test_many_rows_of_few_classes(ignored):
    logits = 5 * torch.randn(100, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.arange(100) % 4
    labels[::7] = ignored
    criterion = nn.CrossEntropyLoss(ignore_index=ignored)
    expected = torch.softmax(logits, dim=1) - nn.functional.one_hot(labels.where(labels != ignored, 0), 4)
    expected[labels == ignored] = 0
    torch.testing.assert_close(loss_of(criterion).gradient(logits, labels), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", CRITERIA)
def test_the_criterion_is_left_as_it_is(name):
    criterion = CRITERIA[name](torch.float32)
    before = repr(criterion), criterion.reduction, {k: v.clone() for k, v in criterion.state_dict().items()}
    loss_of(criterion).gradient(logits_for(criterion), torch.tensor([0, 1, 1]))
    assert (repr(criterion), criterion.reduction) == before[:2]
    assert all(
        v.dtype == before[2][k].dtype and torch.equal(v, before[2][k]) for k, v in criterion.state_dict().items()
    )


def test_a_label_that_is_ignored_costs_nothing():
    loss = loss_of(nn.CrossEntropyLoss(weight=weights(), label_smoothing=0.1))
    gradient = loss.gradient(LOGITS, torch.tensor([-100, 0, -100]))
    assert not gradient[[0, 2]].any()
    assert gradient[1].all()
    assert not loss_of(nn.CrossEntropyLoss(ignore_index=2)).lengths(LOGITS)[:, 2].any()


@pytest.mark.parametrize("weight", [None, weights()])
def test_likelihood_behind_the_softmax_is_skorchs(weight):
    """skorch's loss is ``−w log(p + ε)`` with the ε of the outputs' type, here a large one to be seen."""
    criterion = nn.NLLLoss(weight=weight)
    eps = torch.finfo(torch.float32).eps
    net = net_trained_with(criterion, nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1)))
    loss = QueryContext(learner_of(net), np.eye(4, dtype="float32")).logit_network.loss
    logits = torch.tensor([[0.0, 16.0, 1.0]], dtype=torch.float64)  # p_0 is as small as ε
    for label in range(3):
        f = logits.clone().requires_grad_()
        value = criterion(torch.log(torch.softmax(f, 1) + eps), torch.tensor([label])) * (
            1 if weight is None else weight[label]
        )
        expected = torch.autograd.grad(value, f)[0]
        torch.testing.assert_close(loss.gradient(logits, torch.tensor([label])), expected, rtol=1e-8, atol=1e-20)
        length = torch.linalg.vector_norm(expected, dim=1)
        torch.testing.assert_close(loss.lengths(logits)[:, label], length, rtol=1e-8, atol=1e-20)


def exact_residual(logits, label):
    """σ(f) − e_y with fifty digits."""
    with localcontext() as context:
        context.prec = 50
        powers = [Decimal(float(f)).exp() for f in logits]
        return np.array([float(p / sum(powers) - (c == label)) for c, p in enumerate(powers)])


@pytest.mark.parametrize(("dtype", "gap", "rtol"), [(torch.float32, 12, 3e-6), (torch.float64, 40, 1e-13)])
def test_nothing_cancels_where_the_network_is_certain(dtype, gap, rtol):
    """At a loss of 1e-5 softmax minus one-hot has lost all but two digits in float32."""
    logits = torch.tensor([[gap, 0.5, -0.3, 0.0]], dtype=dtype)
    result = CrossEntropy().gradient(logits, torch.tensor([0]))[0]
    np.testing.assert_allclose(result.double().numpy(), exact_residual(logits[0], 0), rtol=rtol)
    naive = torch.softmax(logits, 1)[0, 0] - 1
    assert abs(float(naive) / exact_residual(logits[0], 0)[0] - 1) > 1e-3


@pytest.mark.parametrize("gap", [20, 40])
def test_nothing_cancels_in_the_lengths(gap):
    logits = torch.tensor([[gap, 0.5, -0.3, 0.0]], dtype=torch.float64)
    expected = [np.linalg.norm(exact_residual(logits[0], label)) for label in range(4)]
    np.testing.assert_allclose(CrossEntropy().lengths(logits)[0], expected, rtol=1e-13)


def test_entries_that_are_equal():
    """Of several largest ones each has the others beside it."""
    lengths = CrossEntropy().lengths(torch.zeros(2, 3, dtype=torch.float64))
    torch.testing.assert_close(lengths, torch.full_like(lengths, ((2 / 3) ** 2 + 2 / 9) ** 0.5))
    nothing = CrossEntropy(weight=torch.zeros(3), smoothing=0.1).gradient(LOGITS, torch.tensor([0, 1, 2]))
    torch.testing.assert_close(nothing, torch.zeros_like(LOGITS))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype):
    logits = torch.tensor([[9.0, 0.0, 1.0]], dtype=dtype)
    result = CrossEntropy().gradient(logits, torch.tensor([0]))
    assert result.dtype == dtype
    torch.testing.assert_close(result, CrossEntropy().gradient(logits.float(), torch.tensor([0])).to(dtype))


def test_the_derivative_of_mean_squared_error_is_that_of_the_sum_over_classes():
    labels = torch.tensor([0, 2, 1])
    expected = 2 * loss_of(SquaredLoss()).gradient(LOGITS, labels)
    torch.testing.assert_close(loss_of(nn.MSELoss()).gradient(LOGITS, labels), expected)


class Nested(nn.Module):
    """A criterion that leaves the reduction to another one."""

    def __init__(self, reduction="mean"):
        super().__init__()
        self.reduction, self.inner = reduction, nn.CrossEntropyLoss(reduction=reduction)

    def forward(self, outputs, target):
        return 2 * self.inner(outputs, target)


class Plain(torch.autograd.Function):
    """A function that torch.func does not know."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx, gradient):
        return 2 * ctx.saved_tensors[0] * gradient


class OldFunction(nn.Module):
    reduction = "mean"

    def forward(self, outputs, target):
        losses = Plain.apply(outputs).sum(1)
        return losses if self.reduction == "none" else losses.mean()


def test_other_ways_to_write_a_criterion():
    labels = torch.tensor([0, 2, 1])
    expected = 2 * CrossEntropy().gradient(LOGITS, labels)
    torch.testing.assert_close(loss_of(Nested()).gradient(LOGITS, labels), expected)
    torch.testing.assert_close(loss_of(OldFunction()).gradient(LOGITS, labels), 2 * LOGITS)


class Deaf(FocalLoss):
    def forward(self, outputs, target):
        return super().forward(outputs, target).mean()


class Contrastive(FocalLoss):
    def forward(self, outputs, target):
        return super().forward(outputs - outputs.mean(0), target)


class OneHotOnly(FocalLoss):
    def forward(self, outputs, target):
        return (outputs - target.reshape(outputs.shape)).square().sum(1)


class NoReduction(nn.Module):
    def forward(self, outputs, target):
        return nn.functional.cross_entropy(outputs, target)


@pytest.mark.parametrize(
    ("criterion", "got"),
    [
        (Deaf(), r"Deaf must give one loss per sample.*reduction is 'none'.*Got \(\) for 2 samples"),
        (Contrastive(), "losses that change with the other samples of a batch"),
        (OneHotOnly(), "OneHotOnly.*Got RuntimeError"),
        (NoReduction(), "NoReduction.*Got a criterion without reduction.*Write it like torch.nn.CrossEntropyLoss"),
        (nn.BCEWithLogitsLoss(pos_weight=torch.ones(4)), "'pos_weight' parameter of BCEWithLogitsLoss must be one"),
    ],
)
def test_what_cannot_be_used_is_named(criterion, got):
    with pytest.raises(InvalidParameterError, match=got):
        loss_of(criterion).gradient(LOGITS, torch.tensor([0, 2, 1]))
