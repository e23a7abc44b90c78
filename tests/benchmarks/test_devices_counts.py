"""The counts of benchmarks.devices: what crosses between host and device, and products by their precision."""

import numpy as np
import pytest
import torch

from benchmarks.devices import DOUBLE, Flops, Transfers, growth, precision_table


def test_bytes_that_cross_are_counted_in_each_direction():
    """The device is "meta", to which nothing has to be sent; from there nothing comes back."""
    rows = torch.ones(3, 5)
    with Transfers() as transfers:
        there = rows.to("meta")
        torch.as_tensor(np.ones((3, 5)), device="meta")
        there.copy_(rows)
        there[1:] = rows[1:]
        there.to(torch.float64)
        rows.double() + torch.as_tensor(rows)
    assert transfers.counts == {"to device": 60 + 120 + 60 + 40}


def test_products_are_counted_by_their_precision():
    A = torch.ones(3, 5)
    with Flops() as flops:
        A @ A.T + A.square().sum()
        A.double() @ A.double().T
    assert flops.counts == {"float32": 90, "float64": 90}


def test_a_pool_without_transfers_and_with_one_pass():
    assert not any(growth("Margin", Transfers, "cpu", (20, 40)).values())
    one_pass = growth("Margin", Flops, "cpu", (20, 40))["float32"]
    assert one_pass <= growth("UHerding", Flops, "cpu", (20, 40))["float32"] < 2 * one_pass


def rounded(name):
    """How many picks of 20 single precision changes, and the largest difference of the metrics."""
    row = precision_table([name], n_pool=300, n_picks=20).splitlines()[-1].split("|")
    return int(row[2]), float(row[3])


CHANGED = ("far from 0", "column", "faint dropout", "exact, near copies", "linear, near copies")


@pytest.mark.parametrize("name", [name for name in DOUBLE if name.endswith(CHANGED)])
def test_products_in_single_precision_would_choose_other_samples(name):
    assert rounded(name)[0] > 2


def test_products_in_single_precision_would_change_metrics_of_the_look_ahead():
    """Beyond what is taken for equal on another device."""
    assert rounded("NTKLookahead, mlmoc, near copies")[1] > 1e-3


def test_products_in_single_precision_often_choose_the_same():
    assert rounded("CoreSet")[0] == 0
