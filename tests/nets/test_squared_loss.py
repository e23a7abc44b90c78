"""The squared loss against its formula, and as a criterion of skorch."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from skorch import NeuralNetClassifier

from skal.nets import MLP, SquaredLoss


def by_formula(outputs, labels):
    """The loss of each sample, one number at a time."""
    return [
        0.5 * sum((value - (1.0 if c == label else 0.0)) ** 2 for c, value in enumerate(row))
        for row, label in zip(outputs, labels, strict=True)
    ]


@st.composite
def problems(draw):
    n, n_classes = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    row = st.lists(st.floats(-50, 50), min_size=n_classes, max_size=n_classes)
    outputs = draw(st.lists(row, min_size=n, max_size=n))
    labels = draw(st.lists(st.integers(0, n_classes - 1), min_size=n, max_size=n))
    return outputs, labels


@given(problems())
def test_loss_is_the_formula(problem):
    outputs, labels = problem
    expected = by_formula(outputs, labels)
    tensors = torch.tensor(outputs, dtype=torch.float64), torch.tensor(labels)
    np.testing.assert_allclose(SquaredLoss("none")(*tensors), expected)
    np.testing.assert_allclose(SquaredLoss("sum")(*tensors), sum(expected))
    np.testing.assert_allclose(SquaredLoss()(*tensors), sum(expected) / len(expected))


def test_gradient_is_the_residual():
    torch.manual_seed(0)
    outputs = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 2, 1, 2])
    SquaredLoss(reduction="sum")(outputs, labels).backward()
    torch.testing.assert_close(outputs.grad, outputs.detach() - torch.eye(3, dtype=torch.float64)[labels])


def test_works_for_each_sample_under_vmap():
    torch.manual_seed(0)
    outputs, labels = torch.randn(4, 3), torch.tensor([0, 2, 1, 2])

    def loss(row, label):
        return SquaredLoss("sum")(row[None], label[None])

    gradients = torch.func.vmap(torch.func.grad(loss))(outputs, labels)
    torch.testing.assert_close(gradients, outputs - torch.eye(3)[labels])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_any_integer_labels(dtype):
    assert SquaredLoss()(torch.zeros(2, 3), torch.tensor([0, 2], dtype=dtype)) == 0.5


@pytest.mark.parametrize(
    ("outputs", "target", "message"),
    [
        (torch.zeros(2, 3), torch.zeros(2, 3), r"shape \(n, C\).*one-hot"),
        (torch.zeros(2), torch.tensor([0, 1]), r"Got \(2,\) and \(2,\)"),
        (torch.zeros(2, 3), torch.tensor([0, 1, 2]), r"Got \(2, 3\) and \(3,\)"),
        (torch.zeros(2, 3), torch.tensor([0.0, 1.0]), r"integer labels.*float32"),
        (torch.zeros(2, 3), torch.tensor([True, False]), r"integer labels.*bool"),
        (torch.zeros(2, 3), torch.tensor([0, 3]), r"labels 0\.\.2.*index 3.*more outputs"),
        (torch.zeros(2, 3), torch.tensor([-1, 0]), r"labels 0\.\.2.*index -1"),
    ],
)
def test_bad_input_is_refused(outputs, target, message):
    with pytest.raises(ValueError, match=message):
        SquaredLoss()(outputs, target)


def test_bad_reduction_is_refused():
    with pytest.raises(ValueError, match=r"'reduction' parameter of SquaredLoss must be .*Got 'max' instead"):
        SquaredLoss(reduction="max")


def test_trains_a_skorch_classifier_on_digits():
    torch.manual_seed(0)
    X, y = load_digits(return_X_y=True)
    X = (X / 16).astype(np.float32)
    net = NeuralNetClassifier(
        MLP,
        module__n_features=64,
        module__hidden=(64,),
        criterion=SquaredLoss,
        optimizer=torch.optim.Adam,
        lr=0.005,
        max_epochs=15,
        train_split=None,
        verbose=0,
    )
    net.fit(X, y)
    assert net.score(X, y) > 0.97
    losses = [row["train_loss"] for row in net.history]
    assert losses[-1] < losses[0] / 4
    assert net.set_params(criterion__reduction="sum").initialize().criterion_.reduction == "sum"
