"""The training protocol between rounds: fresh optimiser, stop at a train accuracy, warm start or re-initialisation."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from skorch import NeuralNetBinaryClassifier, NeuralNetClassifier
from skorch.callbacks import Callback, LRScheduler
from skorch.dataset import ValidSplit
from skorch.helper import predefined_split
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from skal.callbacks import FreshOptimizer, OneCycle, StopAtTrainAccuracy
from skal.exceptions import InvalidParameterError, InvalidTypeError
from skal.nets import MLP


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


class StepsAtStart(Callback):
    """Notes what Adam remembers when the first batch of a ``fit`` comes in."""

    def on_train_begin(self, net, **kwargs):
        self.waiting = True

    def on_batch_begin(self, net, **kwargs):
        if self.waiting:
            self.seen = [*getattr(self, "seen", []), len(net.optimizer_.state)]
            self.waiting = False


class Snapshots(Callback):
    """Copies the first weight at the beginning of each ``fit``."""

    def on_train_begin(self, net, **kwargs):
        weight = net.module_.fc.weight.detach().clone()
        self.weights = [*getattr(self, "weights", []), weight]


class TestFreshOptimizer:
    def fit_twice(self, make_net, flat_data, *callbacks, **params):
        X, y = flat_data
        params = {"warm_start": True, "optimizer": torch.optim.Adam, "lr": 0.01} | params
        return make_net(callbacks=list(callbacks), **params).fit(X[:20], y[:20]).fit(X, y)

    def test_state_is_fresh_and_weights_go_on(self, make_net, flat_data):
        X, y = flat_data
        steps, snapshots = StepsAtStart(), Snapshots()
        net = make_net(
            callbacks=[FreshOptimizer(), steps, snapshots], warm_start=True, optimizer=torch.optim.Adam, lr=0.01
        )
        after_first = net.fit(X[:20], y[:20]).module_.fc.weight.detach().clone()
        net.fit(X, y)
        assert steps.seen == [0, 0]
        assert torch.equal(snapshots.weights[1], after_first)
        assert not torch.equal(snapshots.weights[0], after_first)
        assert len(net.history) == 6

    def test_without_it_the_state_is_kept(self, make_net, flat_data):
        steps = StepsAtStart()
        self.fit_twice(make_net, flat_data, steps)
        assert steps.seen == [0, 4]  # two layers, each with weight and bias

    def test_moments_are_those_of_the_last_fit_alone(self, make_net, flat_data):
        net = self.fit_twice(make_net, flat_data, FreshOptimizer(), max_epochs=2, batch_size=10)
        parameter = net.module_.fc.weight
        assert int(net.optimizer_.state[parameter]["step"]) == 2 * 60 // 10

    def test_the_optimiser_trains_the_module(self, make_net, flat_data):
        net = self.fit_twice(make_net, flat_data, FreshOptimizer(), lr=0.05, max_epochs=20)
        own = {id(p) for p in net.module_.parameters()}
        assert {id(p) for group in net.optimizer_.param_groups for p in group["params"]} == own
        assert net.history[-1, "train_loss"] < net.history[0, "train_loss"] / 2

    def test_the_net_s_parameters_hold_in_every_round(self, make_net, flat_data):
        X, y = flat_data
        net = self.fit_twice(
            make_net, flat_data, FreshOptimizer(), optimizer=torch.optim.SGD, optimizer__momentum=0.9, lr=0.1
        )
        net.set_params(lr=0.5).fit(X, y)
        group = net.optimizer_.param_groups[0]
        assert (group["lr"], group["momentum"]) == (0.5, 0.9)

    def test_a_scheduler_after_it_starts_again(self, make_net, flat_data):
        scheduler = LRScheduler(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.1, last_epoch=-1)
        net = self.fit_twice(
            make_net, flat_data, FreshOptimizer(), scheduler, optimizer=torch.optim.SGD, lr=1.0, max_epochs=2
        )
        assert net.history[:, "event_lr"] == pytest.approx([1.0, 0.1, 1.0, 0.1])

    def test_reinitialisation_is_the_alternative(self, make_net, flat_data):
        snapshots, steps = Snapshots(), StepsAtStart()
        net = self.fit_twice(make_net, flat_data, FreshOptimizer(), snapshots, steps, warm_start=False)
        assert steps.seen == [0, 0]
        assert len(net.history) == 3
        assert not torch.equal(snapshots.weights[1], snapshots.weights[0])  # another draw, not the trained weights

    def test_clone_and_pickle(self, make_net, flat_data):
        X, y = flat_data
        net = self.fit_twice(make_net, flat_data, FreshOptimizer())
        for copy in (clone(net), pickle.loads(pickle.dumps(net))):
            assert isinstance(copy.callbacks[0], FreshOptimizer)
            copy.fit(X, y)


class TestStopAtTrainAccuracy:
    def make(self, make_net, callback, **params):
        return make_net(
            **({"lr": 0.05, "max_epochs": 200, "optimizer": torch.optim.Adam, "callbacks": [callback]} | params)
        )

    @pytest.mark.parametrize("threshold", [0.6, 0.9, 1.0])
    def test_stops_at_the_threshold(self, make_net, flat_data, threshold):
        X, y = flat_data
        callback = StopAtTrainAccuracy(threshold)
        net = self.make(make_net, callback).fit(X, y)
        accuracies = net.history[:, "train_acc"]
        assert len(net.history) < 200
        assert accuracies[-1] >= threshold
        assert all(accuracy < threshold for accuracy in accuracies[:-1])
        assert accuracies[-1] == callback.accuracy_ == np.mean(net.predict(X) == y)

    def test_respects_the_cap(self, make_net, flat_data):
        X, y = flat_data
        net = self.make(make_net, StopAtTrainAccuracy(1.0), max_epochs=2, lr=1e-6).fit(X, y)
        assert len(net.history) == 2
        assert net.history[-1, "train_acc"] < 1

    def test_dropout_is_off_while_looking(self, make_net, flat_data):
        X, y = flat_data
        net = self.make(make_net, StopAtTrainAccuracy(0.8), module__dropout=0.5).fit(X, y)
        assert net.history[-1, "train_acc"] == np.mean(net.predict(X) == y)

    def test_looking_does_not_change_the_training(self, make_net, flat_data):
        """Shuffling and dropout draw the same numbers whether or not somebody looks, and however often."""
        X, y = flat_data
        losses = []
        for callbacks in ([], [StopAtTrainAccuracy(1.0)], [StopAtTrainAccuracy(1.0, every=3)]):
            torch.manual_seed(0)
            net = make_net(
                callbacks=callbacks, max_epochs=5, module__dropout=0.2, batch_size=16, iterator_train__shuffle=True
            )
            losses.append(net.fit(X, y).history[:, "train_loss"])
        assert losses[0] == losses[1] == losses[2]

    @pytest.mark.parametrize("threshold", [0.9, 1.0])
    def test_ending_measurements_early_ends_training_after_the_same_epoch(self, make_net, flat_data, threshold):
        X, y = flat_data
        nets = []
        for exact in (True, False):
            torch.manual_seed(0)
            callback = StopAtTrainAccuracy(threshold, exact=exact)
            nets.append(self.make(make_net, callback, batch_size=8, iterator_train__shuffle=True).fit(X, y))
        whole, early = (np.array(net.history[:, "train_acc"]) for net in nets)
        assert len(whole) == len(early) > 1
        assert early[-1] == whole[-1] >= threshold
        assert np.isnan(early[:-1]).all()
        assert nets[0].history[:, "train_loss"] == nets[1].history[:, "train_loss"]

    def test_a_measurement_that_ends_early_does_not_read_the_rest(self, make_net, flat_data):
        X, y = flat_data
        seen = []
        callback = StopAtTrainAccuracy(1.0, exact=False)
        net = self.make(make_net, callback, max_epochs=1, lr=1e-6, batch_size=8)
        net.initialize().module_.register_forward_hook(lambda module, args, output: seen.append(len(args[0])))
        net.partial_fit(X, y)
        assert sum(seen) < 2 * len(X)  # once to train, and not again to the end

    def test_every(self, make_net, flat_data):
        X, y = flat_data
        net = self.make(make_net, StopAtTrainAccuracy(0.9, every=4)).fit(X, y)
        accuracies = net.history[:, "train_acc"]
        assert len(accuracies) % 4 == 0
        assert np.isnan(accuracies[:3]).all()
        assert accuracies[4:7] == accuracies[3:4] * 3  # as last seen

    def test_every_counts_from_the_beginning_of_each_fit(self, make_net, flat_data):
        X, y = flat_data
        net = self.make(make_net, StopAtTrainAccuracy(1.0, every=4), max_epochs=6, lr=1e-6, warm_start=True)
        accuracies = np.array(net.fit(X, y).fit(X, y).history[:, "train_acc"])
        assert np.isnan(accuracies).tolist() == ([True] * 3 + [False] * 3) * 2

    def test_prints_a_table(self, make_net, flat_data, capsys):
        X, y = flat_data
        self.make(make_net, StopAtTrainAccuracy(1.0, every=2), max_epochs=3, verbose=1).fit(X, y)
        assert "train_acc" in capsys.readouterr().out

    def test_softmax_with_nll_loss(self, flat_data):
        X, y = flat_data
        module = nn.Sequential(MLP(5, 3, hidden=(8,)), nn.Softmax(dim=1))
        net = NeuralNetClassifier(
            module,
            optimizer=torch.optim.Adam,
            lr=0.05,
            max_epochs=200,
            train_split=None,
            verbose=0,
            callbacks=[StopAtTrainAccuracy(0.95)],
        ).fit(X, y)
        assert len(net.history) < 200
        assert net.history[-1, "train_acc"] == np.mean(net.predict(X) == y) >= 0.95

    @pytest.mark.parametrize("n_outputs", ["(n,)", "(n, 1)"])
    @pytest.mark.parametrize("criterion", [nn.BCEWithLogitsLoss, nn.BCELoss])
    def test_binary_classifier_with_one_output(self, flat_data, n_outputs, criterion):
        X, y = flat_data[0], (flat_data[1] == 1).astype(np.float32)
        layers = [nn.Linear(5, 1)] + [nn.Sigmoid()] * (criterion is nn.BCELoss)
        layers += [nn.Flatten(0)] * (n_outputs == "(n,)")
        net = NeuralNetBinaryClassifier(
            nn.Sequential(*layers),
            criterion=criterion,
            predict_nonlinearity=_two_columns if criterion is nn.BCELoss else "auto",
            optimizer=torch.optim.Adam,
            lr=0.05,
            max_epochs=200,
            train_split=None,
            verbose=0,
            callbacks=[StopAtTrainAccuracy(0.85)],
        ).fit(X, y)
        assert len(net.history) < 200
        assert net.history[-1, "train_acc"] == np.mean(net.predict(X) == y) >= 0.85

    def test_never_touches_validation_data(self, make_net, flat_data):
        """All the validation labels are wrong, and the images beside them have never been asked for."""
        X, y = flat_data
        watched = Watched(X[:20], (y[:20] + 1) % 3)
        callback = StopAtTrainAccuracy(1.0)
        net = self.make(make_net, callback, train_split=predefined_split(watched), max_epochs=400).fit(X[20:], y[20:])
        assert net.history[-1, "train_acc"] == np.mean(net.predict(X[20:]) == y[20:]) == 1.0
        assert net.history[-1, "valid_acc"] < 0.5
        # skorch itself reads every validation sample once an epoch, and nobody else does
        assert watched.reads == 20 * len(net.history)

    def test_with_skorch_s_split_only_the_training_part_counts(self, make_net, flat_data):
        X, y = flat_data
        split = ValidSplit(3, stratified=True)
        net = self.make(make_net, StopAtTrainAccuracy(1.0), train_split=split, max_epochs=5).fit(X, y)
        train, _ = net.get_split_datasets(X, y)
        assert net.history[-1, "train_acc"] == np.mean(net.predict(X[train.indices]) == y[train.indices])

    def test_dataset_with_its_own_labels(self, make_net, flat_data):
        X, y = flat_data
        dataset = TensorDataset(torch.from_numpy(X), torch.from_numpy(y))
        net = self.make(make_net, StopAtTrainAccuracy(0.9)).fit(dataset, None)
        assert len(net.history) < 200

    def test_clone_and_pickle(self, make_net, flat_data):
        X, y = flat_data
        net = self.make(make_net, StopAtTrainAccuracy(0.7, every=2)).fit(X, y)
        for copy in (clone(net), pickle.loads(pickle.dumps(net))):
            assert copy.callbacks[0].get_params() == {"threshold": 0.7, "every": 2, "exact": True}
            assert copy.fit(X, y).history[-1, "train_acc"] >= 0.7

    def test_in_a_grid_search(self, make_net, flat_data):
        X, y = flat_data
        net = self.make(make_net, None, callbacks=[("stop", StopAtTrainAccuracy())])
        search = GridSearchCV(net, {"callbacks__stop__threshold": [0.5, 0.95]}, cv=2, error_score="raise").fit(X, y)
        assert search.best_params_ == {"callbacks__stop__threshold": 0.95}
        assert search.best_estimator_.history[-1, "train_acc"] >= 0.95

    @pytest.mark.parametrize(
        ("params", "error"),
        [
            ({"threshold": 1.5}, InvalidParameterError),
            ({"threshold": -0.1}, InvalidParameterError),
            ({"threshold": np.nan}, InvalidParameterError),
            ({"threshold": "all"}, InvalidTypeError),
            ({"every": 0}, InvalidParameterError),
            ({"every": 1.5}, InvalidTypeError),
            ({"exact": "no"}, InvalidParameterError),
        ],
    )
    def test_bad_parameters_are_named(self, make_net, flat_data, params, error):
        X, y = flat_data
        with pytest.raises(error, match=f"'{next(iter(params))}' parameter of StopAtTrainAccuracy must be"):
            self.make(make_net, StopAtTrainAccuracy(**params)).fit(X, y)


def test_the_whole_protocol_over_two_rounds(make_net, flat_data):
    """Warm start, fresh optimiser, train to the threshold: the second round starts from the first one's weights."""
    X, y = flat_data
    snapshots = Snapshots()
    net = make_net(
        callbacks=[FreshOptimizer(), StopAtTrainAccuracy(0.9), snapshots],
        warm_start=True,
        optimizer=torch.optim.Adam,
        lr=0.02,
        max_epochs=100,
    )
    after = net.fit(X[:30], y[:30]).module_.fc.weight.detach().clone()
    first = len(net.history)
    net.fit(X, y)
    assert torch.equal(snapshots.weights[1], after)
    assert first < 100
    assert len(net.history) - first < 100
    assert np.mean(net.predict(X) == y) >= 0.9


def _two_columns(p):
    return torch.stack((1 - p, p), dim=1)


class Watched(Dataset):
    """Counts how often a sample is read."""

    def __init__(self, X, y):
        self.X, self.y, self.reads = X, y, 0

    def __len__(self):
        return len(self.X)

    def __getitem__(self, i):
        self.reads += 1
        return self.X[i], self.y[i]


class Rates(Callback):
    """Notes learning rate and momentum of every training step."""

    def on_batch_begin(self, net, training=False, **kwargs):
        group = net.optimizer_.param_groups[0]
        self.seen = [*getattr(self, "seen", []), (group["lr"], group["momentum"])]


@pytest.mark.parametrize("cycle_momentum", [False, True])
def test_one_cycle_spans_every_fit(make_net, flat_data, cycle_momentum):
    X, y = flat_data
    rates = Rates()
    callbacks = [FreshOptimizer(), OneCycle(cycle_momentum), rates]
    net = make_net(callbacks=callbacks, warm_start=True, optimizer__momentum=0.9, lr=0.2, max_epochs=3, batch_size=8)
    net.fit(X[:20], y[:20]).fit(X[:30], y[:30])
    expected = []
    for steps in (3 * 3, 4 * 3):  # batches × epochs
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.2, momentum=0.9)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=0.2, total_steps=steps, cycle_momentum=cycle_momentum
        )
        for step in range(steps):
            expected.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]))
            optimizer.step()
            if step < steps - 1:
                schedule.step()
    np.testing.assert_allclose(rates.seen, expected)
