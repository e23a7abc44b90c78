"""Cotangents are the derivatives of what they are named after."""

import pytest
import torch
import torch.nn.functional as F

from skal._core.losses import CrossEntropy, SquaredError, loss_of
from skal.tangent._cotangents import LossCotangent, kernel_cotangents, probes

LOGITS = torch.tensor([[1.0, -2.0, 0.5, 0.1], [0.3, 0.2, 4.0, -1.0]], dtype=torch.float64)
LABELS = torch.tensor([3, 2])


def derivative(scalar):
    logits = LOGITS.clone().requires_grad_()
    return torch.autograd.grad(scalar(logits), logits)[0]


def test_loss_of_labels_of_the_prediction_and_of_one_label():
    cotangent = LossCotangent(CrossEntropy())
    for labels, target in ((LABELS, LABELS), (LOGITS.argmax(1), None)):
        expected = derivative(lambda f, labels=labels: F.cross_entropy(f, labels, reduction="sum"))
        torch.testing.assert_close(cotangent(LOGITS, target), expected)
    expected = derivative(lambda f: F.cross_entropy(f, torch.tensor([1, 1]), reduction="sum"))
    torch.testing.assert_close(LossCotangent(CrossEntropy(), 1)(LOGITS, None), expected)


@pytest.mark.parametrize(
    "criterion",
    [
        torch.nn.CrossEntropyLoss(),
        torch.nn.CrossEntropyLoss(weight=torch.tensor([1.0, 4.0, 0.5, 2.0]), label_smoothing=0.1),
        torch.nn.CrossEntropyLoss(weight=torch.tensor([1.0, 4.0, 0.5, 2.0]), ignore_index=2),
        torch.nn.MultiMarginLoss(),
    ],
)
def test_one_label_for_all_samples(criterion):
    loss = loss_of(criterion)
    for label in range(4):
        found = LossCotangent(loss, label)(LOGITS, None)
        criterion.reduction = "sum"
        criterion.to(torch.float64)
        both = torch.full((2,), label)
        expected = derivative(lambda f, both=both: sum(criterion(f[i : i + 1], both[i : i + 1]) for i in range(2)))
        torch.testing.assert_close(found, expected)


def test_kernels():
    (pntk,) = kernel_cotangents("pntk", 4)
    torch.testing.assert_close(pntk(LOGITS, None), derivative(lambda f: f.sum() / 2))
    (logit,) = kernel_cotangents("logit", 4)
    torch.testing.assert_close(logit(LOGITS, None), derivative(lambda f: f[:, 0].sum()))
    for kind in ("trace", "entk"):
        for c, cotangent in enumerate(kernel_cotangents(kind, 4)):
            torch.testing.assert_close(cotangent(LOGITS, None), derivative(lambda f, c=c: f[:, c].sum()))
        assert len(kernel_cotangents(kind, 4)) == 4


@pytest.mark.parametrize(
    "cotangent", [LossCotangent(CrossEntropy()), LossCotangent(SquaredError(), 2), *kernel_cotangents("pntk", 4)]
)
def test_row_by_row(cotangent):
    rows = [cotangent(LOGITS[i : i + 1], None) for i in range(2)]
    torch.testing.assert_close(torch.cat(rows), cotangent(LOGITS, None))
    torch.testing.assert_close(torch.func.vmap(lambda f: cotangent(f, None))(LOGITS), cotangent(LOGITS, None))


def test_probes_are_all_different():
    assert len(set(probes(3, 10).flatten().tolist())) == 30
    assert probes(3, 10).abs().min() > 1e-3
