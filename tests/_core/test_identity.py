"""Samples, models and data sets are recognised by their content, in this process and in another."""

import contextlib
import dataclasses
import io
import subprocess
import sys
import threading
from functools import partial

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from torch import nn
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from skal._core.identity import data_digest, object_digest
from skal.context import Samples, copy_groups

X = np.array([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0], [0.0, 2.0]])  # the third row is a copy of the first
CONTAINERS = {
    "array": X,
    "float32": X.astype(np.float32),
    "fortran": np.asfortranarray(X),
    "backwards": X[::-1].copy()[::-1],
    "one number each": X[:, 0] * 10 + X[:, 1],
    "texts as an array": np.array(["a", "b", "a", "c"]),
    "objects": np.array([(1, "a"), (2, "b"), (1, "a"), (1, "b")], dtype=object),
    "list": X.tolist(),
    "texts": ["a", "b", "a", "c"],
    "tensor": torch.from_numpy(X),
    "bfloat16": torch.from_numpy(X).bfloat16(),
    "csr": sp.csr_matrix(X),
    "coo": sp.coo_matrix(X),
    "frame": pd.DataFrame({"a": X[:, 0], "b": ["p", "q", "p", "p"]}),
    "frame of lists": pd.DataFrame({"a": [[1], [2], [1], [3]]}),
    "series": pd.Series(["a", "b", "a", "c"]),
    "dict": {"image": X, "text": torch.from_numpy(X).long()},
    "dataset": TensorDataset(torch.from_numpy(X)),
    "labelled dataset": TensorDataset(torch.from_numpy(X), torch.arange(4)),
    "subset": Subset(TensorDataset(torch.cat([torch.zeros(1, 2), torch.from_numpy(X)])), [1, 2, 3, 4]),
}
containers = pytest.mark.parametrize("container", CONTAINERS.values(), ids=CONTAINERS)


@containers
def test_copies_and_nothing_else_have_the_same_digest(container):
    digests = Samples(container).digests()
    assert copy_groups(digests).tolist() == [0, 1, 0, 3]
    assert {len(digest) for digest in digests} == {16}


@containers
def test_a_part_has_the_digests_of_its_rows(container):
    samples, rows = Samples(container), np.array([3, 0])
    assert samples.take(rows).digests() == [samples.digests()[row] for row in rows]


@containers
def test_another_container_of_the_same_rows_is_recognised_unless_it_is_a_dataset(container):
    samples = Samples(container)
    again = Samples(container, rows=np.arange(4))
    assert samples.keys() == again.keys()
    assert (samples.keys() == samples.digests()) == (not isinstance(container, Dataset))


def test_more_samples_than_are_read_at_once():
    many = np.arange(10_000) % 5000
    assert copy_groups(Samples(many).digests()).tolist() == many.tolist()


def test_the_order_of_inputs_does_not_count_and_their_names_do():
    digests = Samples({"a": X, "b": X[::-1]}).digests()
    assert Samples({"b": X[::-1], "a": X}).digests() == digests
    assert Samples({"b": X, "a": X[::-1]}).digests() != digests


def test_texts_are_the_same_in_a_list_an_array_and_a_series():
    texts = ["a", "b", "ü"]
    expected = Samples(texts).digests()
    for other in (np.array(texts), np.array(texts, dtype=object), pd.Series(texts)):
        assert Samples(other).digests() == expected


def test_a_sparse_matrix_is_left_as_it_is():
    matrix = sp.csr_matrix((np.array([1.0, 2.0]), np.array([1, 0]), np.array([0, 2])), shape=(1, 2))
    tidy = sp.csr_matrix(matrix.toarray())
    assert Samples(matrix).digests() == Samples(tidy).digests()
    assert matrix.indices.tolist() == [1, 0]


def test_objects_in_a_dataset_are_known_by_their_content_not_by_their_address():
    class Box:
        def __init__(self, value):
            self.value = value

    class Boxes(Dataset):
        def __init__(self, values):
            self.values = values

        def __len__(self):
            return len(self.values)

        def __getitem__(self, row):
            return {"box": Box(self.values[row]), "text": "a"}, row

    assert copy_groups(Samples(Boxes([1, 2, 1])).digests()).tolist() == [0, 1, 0]


@given(st.lists(st.binary(max_size=2), max_size=12), st.lists(st.binary(max_size=2), max_size=4))
def test_copy_groups_against_a_loop(digests, known):
    expected = [-1 if digest in known else digests.index(digest) for digest in digests]
    assert copy_groups(digests, known).tolist() == expected


def test_a_row_of_a_dataset_is_known_by_its_place_however_it_is_wrapped():
    left, right = TensorDataset(torch.zeros(3, 2)), TensorDataset(torch.zeros(2, 2))
    both = ConcatDataset([left, right])
    keys = Samples(both).keys()
    assert len(set(keys)) == 5
    assert keys == Samples(left).keys() + Samples(right).keys()
    assert Samples(Subset(Subset(both, [4, 3, 0]), [2, 0])).keys() == [keys[0], keys[4]]


def test_a_new_dataset_is_another_one_wherever_it_lies_and_whatever_it_calls_equal():
    @dataclasses.dataclass
    class Same(Dataset):
        n: int

        def __len__(self):
            return self.n

    seen = set()
    for _ in range(20):
        seen.update(Samples(Same(1)).keys())  # the Dataset is gone, and its address may come again
    assert len(seen) == 20


SCRIPT = """
import numpy as np, torch
from functools import partial
from sklearn.ensemble import RandomForestClassifier
from skal._core.identity import object_digest
from skal.context import Samples
X = np.random.default_rng(0).normal(size=(30, 4))
forest = RandomForestClassifier(3, random_state=0).fit(X, np.arange(30) % 2)
torch.manual_seed(0)
print(object_digest([forest, torch.nn.Linear(3, 2), partial(np.clip, a_min=0), {"a", "b"}, lambda X: X * 2]))
print(Samples(X).digests()[0].hex(), Samples(["a", "b"]).digests()[1].hex())
"""


def test_another_process_finds_the_same():
    found = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True).stdout
    here = io.StringIO()
    with contextlib.redirect_stdout(here), torch.random.fork_rng():
        exec(compile(SCRIPT, "<string>", "exec"), {"__name__": "__main__"})
    assert found == here.getvalue()
    assert [len(word) for word in found.split()] == [40, 32, 32]


def test_everything_that_counts_counts():
    X = np.random.default_rng(0).normal(size=(30, 4))
    y = np.arange(30) % 2
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    seen = {object_digest(module)}
    with torch.no_grad():
        module[0].weight[0, 0] += 1
        seen.add(object_digest(module))
        module[1].running_mean += 1
        seen.add(object_digest(module))
    module[1].eps = 0.5
    seen.add(object_digest(module))
    assert len(seen) == 4
    assert object_digest(module.train()) == object_digest(module.eval())
    others = [
        PCA(2),
        PCA(2).fit(X),
        PCA(2).fit(X[1:]),
        RandomForestClassifier(2, random_state=0).fit(X, y),
        RandomForestClassifier(2, random_state=1).fit(X, y),
        X,
        X.astype(np.float32),
        X.T,
        np.sum,
        partial(np.sum, axis=0),
        PCA(2).fit(X).transform,
        lambda X: X,
        lambda X: 2 * X,
        lambda X, k=2: X,
        [1, [2]],
        [[1], 2],
        {1: 2},
        torch.arange(3),
        torch.arange(3.0, dtype=torch.bfloat16),
    ]
    assert len({object_digest(other) for other in others} - {None}) == len(others)


def test_parts_may_be_left_out_and_circles_end():
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    head = tuple(module[1].parameters())
    before = object_digest(module, without=head)
    with torch.no_grad():
        head[0].add_(1)
    assert object_digest(module, without=head) == before
    circle = [1]
    circle.append(circle)
    assert object_digest(circle) is not None


@pytest.mark.parametrize("value", [threading.Lock(), (i for i in range(3))])
def test_what_cannot_be_looked_at(value):
    assert object_digest(value) is None


def test_arrays_are_told_by_type_shape_content_name_and_where_one_ends():
    a = np.arange(6.0)
    different = [
        [a],
        [a.astype(np.float32)],
        [a.reshape(2, 3)],
        [a.reshape(3, 2)],
        [a + 1],
        [a[:3], a[3:]],
        [a[:2], a[2:]],
        [{"x": a}],
        [{"y": a}],
        [torch.arange(6.0).bfloat16()],
        [np.array([])],
        [],
    ]
    assert len({data_digest(parts) for parts in different}) == len(different)
    assert data_digest([np.asfortranarray(a.reshape(2, 3))]) == data_digest([torch.arange(6.0).double().reshape(2, 3)])
