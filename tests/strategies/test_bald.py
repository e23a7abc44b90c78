"""BALD and BatchBALD against the definitions; dropout alone is on, with masks that all samples share."""

from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from skal.config import config_context
from skal.context import Network, Samples
from skal.exceptions import InvalidParameterError, InvalidTypeError, UnsupportedLayerError
from skal.strategies import BALD, bald
from skal.strategies._dropout import apply_dropout, draw_mask, dropout_outputs
from skal.strategies._information import group_labels, joint_information

from ..support.learners import learner_of, net_of
from ..support.networks import TextTransformer


class Net(nn.Module):
    """Convolution, batch norm and two kinds of dropout."""

    def __init__(self, first=None, second=None):
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3)
        self.norm = nn.BatchNorm2d(6)
        self.first = first or nn.Dropout2d(0.3)
        self.second = second or nn.Dropout(0.4)
        self.head = nn.Linear(6 * 16, 3)

    def forward(self, x):
        x = torch.relu(self.first(self.norm(self.conv(x))))
        return self.head(self.second(torch.flatten(x, 1)))


NETS = {
    "conv": Net,
    "text": lambda: TextTransformer(dropout=0.3),
    "turned": lambda: TextTransformer(dropout=0.3, batch_first=False),
}


def images(n, seed=0):
    return np.random.default_rng(seed).normal(size=(n, 1, 6, 6)).astype(np.float32)


def made(module):
    torch.manual_seed(0)
    net = net_of(module)
    with torch.no_grad():
        for layer in net.module_.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.running_mean.uniform_(-0.5, 0.5)
                layer.running_var.uniform_(0.5, 2)
            elif isinstance(layer, nn.Linear):
                layer.weight.mul_(4)  # opinions strong enough to disagree about
    return learner_of(net)


@pytest.fixture
def learner():
    return made(Net())


def passes(learner, X, seeds, batch_size=256):
    """(T, N, C) outputs."""
    network = Network(learner.estimator)
    return torch.cat(list(dropout_outputs(network, Samples(X), batch_size, seeds, "test")), dim=1)


def information_by_hand(proba):
    """Mutual information of a label and a mask from their joint table: (T, C) with uniform masks."""
    joint = np.asarray(proba, dtype=float) / len(proba)
    outer = joint.sum(axis=1, keepdims=True) * joint.sum(axis=0, keepdims=True)
    return float(np.sum(joint[joint > 0] * np.log(joint[joint > 0] / outer[joint > 0])))


def joint_information_by_hand(proba, batch):
    """The same for the labels of a whole batch, enumerated: (T, N, C)."""
    tables = [
        np.prod([proba[:, i, label] for i, label in zip(batch, labels, strict=True)], axis=0)
        for labels in product(range(proba.shape[2]), repeat=len(batch))
    ]
    return information_by_hand(np.stack(tables, axis=1))


def table(n_masks, n_pool, n_classes, seed=0):
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.full(n_classes, 0.4), size=(n_masks, n_pool))


# --- the score --------------------------------------------------------------------------------------------------------


def test_score_is_the_mutual_information_of_label_and_mask(learner):
    X = images(12)
    seeds = np.random.default_rng(3).integers(2**31, size=7)
    proba = torch.softmax(passes(learner, X, [int(s) for s in seeds]).double(), dim=-1).numpy()
    expected = [information_by_hand(proba[:, i]) for i in range(12)]
    scores = BALD(n_passes=7, random_state=3).scores(learner, X)
    np.testing.assert_allclose(scores, expected, rtol=1e-6, atol=1e-9)
    assert scores.min() > 1e-3


@pytest.mark.parametrize("batch_size", [1, 5, 256])
@pytest.mark.parametrize("build", NETS.values(), ids=NETS)
def test_scores_depend_neither_on_chunks_nor_on_order(build, batch_size):
    learner = made(build())
    X = (
        images(11)
        if isinstance(learner.estimator.module_, Net)
        else np.random.default_rng(0).integers(11, size=(11, 6))
    )
    order = np.random.default_rng(1).permutation(11)
    expected = BALD(random_state=0).scores(learner, X)
    with config_context(batch_size=batch_size):
        got = BALD(random_state=0).scores(learner, X[order])
    np.testing.assert_allclose(got, expected[order], rtol=1e-3, atol=1e-6)
    assert expected.min() > 1e-4


def test_other_seeds_draw_other_masks(learner):
    X = images(5)
    one, two = BALD(random_state=0).scores(learner, X), BALD(random_state=1).scores(learner, X)
    assert not np.allclose(one, two, rtol=1e-2)


def test_more_passes_converge(learner):
    X = images(6)
    one, two = (BALD(n_passes=600, random_state=seed).scores(learner, X) for seed in (0, 1))
    np.testing.assert_allclose(one, two, rtol=0.2)


# --- dropout and nothing else -----------------------------------------------------------------------------------------


def test_only_dropout_is_switched_on(learner):
    module = learner.estimator.module_
    module.first.p, module.second.p = 0.0, 1e-9  # a mask that keeps everything
    X = images(8)
    with torch.no_grad():
        expected = module.eval()(torch.as_tensor(X))
    module.train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    torch.testing.assert_close(passes(learner, X, [5])[0], expected)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(layer.training for layer in module.modules())


@pytest.mark.parametrize(
    ("layer", "shape", "whole_channels"),
    [
        (nn.Dropout(0.3), (4, 50, 20), False),
        (nn.Dropout1d(0.3), (4, 900, 3), True),
        (nn.Dropout2d(0.3), (4, 900, 2, 2), True),
        (nn.Dropout3d(0.3), (4, 900, 2, 1, 2), True),
        (nn.AlphaDropout(0.3), (4, 50, 20), False),
        (nn.FeatureAlphaDropout(0.3), (4, 900, 2, 2), True),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
def test_masks_do_what_the_layer_does_in_training(layer, shape, whole_channels):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    ours = apply_dropout(layer, x, draw_mask(layer, (1, *shape[1:]), (0,)))
    torch.manual_seed(0)
    theirs = layer.train()(x)
    # what torch makes of kept and dropped units is known from one of each
    alpha = isinstance(layer, (nn.AlphaDropout, nn.FeatureAlphaDropout))
    a = (0.7 * (1 + 0.3 * 1.7580993408473766**2)) ** -0.5 if alpha else 1 / 0.7
    b = a * 1.7580993408473766 * 0.3 if alpha else 0.0
    gone = b - a * 1.7580993408473766 if alpha else 0.0
    for result in (ours, theirs):
        kept = torch.isclose(result, a * x + b, atol=1e-5)
        lost = torch.isclose(result, torch.tensor(gone), atol=1e-5)
        assert bool((kept | lost).all())
        assert 0.62 < kept.float().mean() < 0.78
    kept = torch.isclose(ours, a * x + b, atol=1e-5) & ~torch.isclose(ours, torch.tensor(gone), atol=1e-5)
    if whole_channels:
        kept = kept.flatten(2)
        assert torch.equal(kept.all(dim=2), kept.any(dim=2))
    assert torch.equal(kept[0], kept[1])  # all samples share the mask


@pytest.mark.parametrize("layer", [nn.Dropout(1.0), nn.AlphaDropout(1.0)])
def test_dropping_everything_gives_zeros(layer):
    assert torch.equal(apply_dropout(layer, torch.ones(2, 3), torch.ones(1, 3)), torch.zeros(2, 3))


def test_a_layer_that_is_called_twice_has_two_masks():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x):
            return torch.cat([self.drop(x), self.drop(x)], dim=1)

    network = Network(Twice())
    (outputs,) = dropout_outputs(network, Samples(torch.ones(3, 40)), 3, [0], "test")
    first, second = outputs[0].split(40, dim=1)
    assert not torch.equal(first, second)
    assert torch.equal(first[0], first[2])


@pytest.mark.parametrize("module", [Net(nn.Identity(), nn.Identity()), Net(nn.Identity(), nn.Dropout(0.0))])
def test_a_net_without_dropout_is_refused(module):
    with pytest.raises(UnsupportedLayerError, match=r"BALD must have dropout.*Got a Net.*Add nn.Dropout"):
        BALD()(made(module), images(4), 1)


# --- batches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_joint_gains_are_differences_of_the_joint_information(seed):
    proba = table(6, 8, 3, seed)
    picked, gains = joint_information(torch.as_tensor(proba), 4, 10**6, np.random.default_rng(0))
    batch = []
    for index, gain in zip(picked, gains, strict=True):
        values = {i: joint_information_by_hand(proba, [*batch, i]) for i in range(8) if i not in batch}
        assert index == max(values, key=values.get)
        before = joint_information_by_hand(proba, batch) if batch else 0
        np.testing.assert_allclose(gain, values[index] - before, rtol=1e-9, atol=1e-12)
        batch.append(int(index))
    assert (np.diff(gains) <= 1e-12).all()


@pytest.mark.parametrize(("n_pool", "n_samples"), [(2, 2), (3, 8)])
def test_drawn_joint_labels_estimate_the_gain_without_bias(n_pool, n_samples):
    proba = torch.as_tensor(table(8, n_pool, 3, seed=4))  # as many as are asked for: the last choice is forced
    last = [joint_information(proba, n_pool, n_samples, np.random.default_rng(seed))[1][-1] for seed in range(300)]
    picked, _ = joint_information(proba, n_pool, n_samples, np.random.default_rng(0))
    assert np.ptp(last) > 0  # drawn, not enumerated
    proba = proba.numpy()
    expected = joint_information_by_hand(proba, picked) - joint_information_by_hand(proba, picked[:-1])
    np.testing.assert_allclose(np.mean(last), expected, rtol=0.1)


def test_blocks_make_no_difference():
    proba = torch.as_tensor(table(5, 20, 3))
    expected = joint_information(proba, 6, 30, np.random.default_rng(0))
    for block_bytes in (1, 1000):
        picked, gains = joint_information(proba, 6, 30, np.random.default_rng(0), block_bytes)
        assert picked.tolist() == expected[0].tolist()
        np.testing.assert_allclose(gains, expected[1], rtol=1e-9)


def test_long_batches_do_not_underflow():
    proba = torch.as_tensor(table(10, 300, 4))
    picked, gains = joint_information(proba, 300, 50, np.random.default_rng(0))
    assert sorted(picked) == list(range(300))
    assert np.isfinite(gains).all()


def test_certain_predictions_gain_nothing():
    proba = torch.zeros(4, 5, 3).double()
    proba[..., 0] = 1
    picked, gains = joint_information(proba, 5, 9, np.random.default_rng(0))
    assert sorted(picked) == list(range(5))
    assert gains.tolist() == [0.0] * 5


def test_a_copy_of_what_was_chosen_waits_its_turn(learner):
    X = images(10)
    best = int(BALD(random_state=0).scores(learner, X).argmax())
    pool = np.concatenate([X, X[[best] * 5]])
    top_batch = BALD(random_state=0)(learner, pool, 6)
    assert np.isin(top_batch, [best, *range(10, 15)]).all()
    joint = BALD(random_state=0, batch="joint")(learner, pool, 6)
    assert np.isin(joint, [best, *range(10, 15)]).sum() < 4


def test_joint_batches_through_the_strategy(learner):
    X = images(20)
    scores = BALD(random_state=0).scores(learner, X)
    indices, gains = BALD(random_state=0, batch="joint").select(learner, X, 5)
    assert indices[0] == scores.argmax()
    np.testing.assert_allclose(gains[0], scores.max(), rtol=1e-9)
    assert len(set(indices.tolist())) == 5
    joint = BALD(random_state=0, batch="joint")
    with config_context(batch_size=3):
        again, _ = joint.select(learner, X, 5)
    assert again.tolist() == indices.tolist()
    # half of it is room for six samples of 20 passes and 3 classes: the six with the highest scores take part
    with config_context(max_memory=2 * 6 * (8 * 20 * 3 + 24)):
        few, _ = joint.select(learner, X, 5)
    assert set(few) <= set(np.argsort(-scores)[:6])
    error = pytest.raises(InvalidParameterError, match=r"max_memory.* must be at least 5,040 bytes")
    with error, config_context(max_memory=4000):
        joint.select(learner, X, 5)
    within, _ = BALD(random_state=0, batch="joint", subset=7).select(learner, X, 7)
    assert set(within) == set(np.flatnonzero(np.isfinite(BALD(random_state=0, subset=7).scores(learner, X))))


def test_bad_parameters(learner):
    for name, value, error in [
        ("n_passes", 1, InvalidParameterError),
        ("n_passes", "many", InvalidTypeError),
        ("batch", "all", InvalidParameterError),
        ("n_samples", 0, InvalidParameterError),
    ]:
        with pytest.raises(error, match=name):
            bald(learner, images(3), 1, **{name: value})


# --- gains that are not computed --------------------------------------------------------------------------------------


def every_gain(proba, n_instances, n_samples, generator):
    """BatchBALD as it is defined, with the same draws: every gain of every sample for every joint label."""
    n_masks, _, n_classes = proba.shape
    weights, share, drawn = np.full((1, n_masks), 1 / n_masks), np.ones(1), None
    picked = []
    while True:
        mixed = np.einsum("mt,tnc->mnc", weights, proba)
        inner = np.where(mixed > 0, mixed * np.log(np.where(mixed > 0, mixed, 1)), 0).sum(2)
        noise = np.where(proba > 0, proba * np.log(np.where(proba > 0, proba, 1)), 0).sum(2).mean(0)
        gains = noise - share @ inner
        gains[picked] = -np.inf
        picked.append(int(gains.argmax()))
        if len(picked) == n_instances:
            return picked, gains[picked[-1]]
        if drawn is None and len(weights) * n_classes <= n_samples:
            joint = weights[:, None, :] * proba[:, picked[-1]].T
            share = (share[:, None] * joint.sum(-1)).ravel()
            weights = (joint / joint.sum(-1, keepdims=True)).reshape(-1, n_masks)
            continue
        again = [picked[-1]]
        if drawn is None:
            drawn = np.resize(generator.permutation(n_masks), n_samples)
            weights, share = np.full((n_samples, n_masks), 1 / n_masks), np.full(n_samples, 1 / n_samples)
            again = picked
        for index in again:
            cumulated = proba[drawn, index].cumsum(axis=1)
            label = (generator.random(n_samples)[:, None] * cumulated[:, -1:] >= cumulated).sum(axis=1)
            weights = weights * proba[:, index, label.clip(max=n_classes - 1)].T
            weights /= weights.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("strength", [0.05, 0.4, 3.0])
@pytest.mark.parametrize("n_samples", [40, 300, 2000])
def test_bounds_lead_to_the_same_picks_as_every_gain(strength, n_samples):
    rng = np.random.default_rng(7)
    logits = rng.normal(size=(150, 4)) + strength * rng.normal(size=(9, 150, 4))
    proba = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected, last = every_gain(proba, 20, n_samples, np.random.default_rng(0))
    picked, gains = joint_information(torch.as_tensor(proba), 20, n_samples, np.random.default_rng(0))
    assert picked.tolist() == expected
    np.testing.assert_allclose(gains[-1], last, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("n_groups", [1, 5, 40, 60])
def test_groups_bound_every_gain(n_groups):
    rng = np.random.default_rng(3)
    proba = torch.as_tensor(table(6, 30, 4))
    weights = torch.as_tensor(rng.dirichlet(np.full(6, 0.5), size=60))
    share = torch.as_tensor(rng.dirichlet(np.ones(60)))
    few_weights, few_share = group_labels(weights, share, n_groups)
    assert len(few_share) == n_groups
    np.testing.assert_allclose(few_share.sum(), 1)
    np.testing.assert_allclose(few_share @ few_weights, share @ weights)

    def conditional_entropy(weights, share):
        mixed = torch.einsum("mt,tnc->mnc", weights, proba)
        return share @ torch.special.entr(mixed).sum(-1)

    exact, bound = conditional_entropy(weights, share), conditional_entropy(few_weights, few_share)
    assert (bound >= exact - 1e-12).all()
    assert n_groups == 60 or (bound > exact + 1e-6).any()
