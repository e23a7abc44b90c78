"""Products of matrices that are made part by part, beside those that are made at once."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from skal.context import product_rows
from skal.strategies import CoreSet
from skal.strategies._badge import _OuterProducts, nearest_masses
from skal.strategies._information import _conditional_entropy
from skal.tangent._factors import gram_matrix

from ..support.learners import learner_of

RNG = np.random.default_rng(0)


def random(*shape):
    return torch.as_tensor(RNG.normal(size=shape))


@pytest.mark.parametrize("matrix", [random(3000, 256), random(3, 10**6).float(), random(3000, 5, 20)])
def test_a_part_is_a_megabyte_or_one_row(matrix):
    rows = product_rows(matrix)
    assert rows == 1 or matrix[:rows].numel() * matrix.element_size() <= 2**20
    assert matrix[: rows + 1].numel() * matrix.element_size() > 2**20


def test_empty_matrices_have_a_row():
    assert product_rows(torch.zeros(0, 3)) >= 1
    assert product_rows(torch.zeros(3, 0)) >= 1


def test_furthest_points_of_several_parts():
    points, centres = random(1500, 256), random(9, 256)
    learner = learner_of(LogisticRegression(), centres.numpy(), np.zeros(9, int))
    picked, distances = CoreSet(features="input").select(learner, points.numpy(), 6)
    chosen = [*centres]
    for index, distance in zip(picked, distances, strict=True):
        nearest = torch.cdist(points, torch.stack(chosen)).amin(1)
        assert index == int(nearest.argmax())
        assert distance == pytest.approx(float(nearest.max()))
        chosen.append(points[index])


def test_what_points_of_several_parts_stand_for():
    q, phi, mass = random(1500, 4), random(1500, 256), torch.ones(1500).double()
    picked = np.array([3, 700, 1499])
    outer = (q[:, :, None] * phi[:, None, :]).flatten(1)
    expected = np.bincount(torch.cdist(outer, outer[picked]).argmin(1).numpy(), minlength=3)
    assert nearest_masses(q, phi, picked, mass).tolist() == expected.tolist()
    assert product_rows(_OuterProducts(q, phi).phi) < 1500


@pytest.mark.parametrize("some", [None, torch.as_tensor(RNG.permutation(3000)[:1700])], ids=["all", "some"])
def test_entropies_of_mixtures_of_several_parts(some):
    rows = random(3000, 5, 20).softmax(1)
    weights, share = random(7, 20).softmax(1), random(7).softmax(0)
    mixed = torch.einsum("nct,mt->nmc", rows if some is None else rows[some], weights)
    expected = -(mixed * mixed.log()).sum(2) @ share
    assert product_rows(rows) < 1700
    torch.testing.assert_close(_conditional_entropy(rows, weights, share, 2**23, some), expected)
    torch.testing.assert_close(_conditional_entropy(rows, weights, share, 1, some), expected)


def test_gram_matrices_of_several_parts():
    first, second = random(20, 300).float(), random(2000, 300).float()
    torch.testing.assert_close(gram_matrix(first, second), first.double() @ second.double().T)
