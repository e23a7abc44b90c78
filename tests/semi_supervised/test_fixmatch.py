"""FixMatch: its loss and its step by hand, its average, its data, and its place among scikit-learn's estimators."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch.callbacks import Callback
from skorch.dataset import ValidSplit
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from skal.exceptions import (
    InvalidParameterError,
    InvalidTypeError,
    NoLabelledDataError,
    NonFiniteError,
    NoUnlabelledDataWarning,
)
from skal.nets import CNN, MLP
from skal.semi_supervised import FixMatchClassifier


def same(x):
    return x


def negative(x):
    return -x


class Record(Callback):
    """What the training looked like after every batch."""

    def on_train_begin(self, net, **kwargs):
        self.parameters, self.lrs, self.sizes, self.predictions = [], [], [], []

    def on_batch_end(self, net, batch=None, training=False, **kwargs):
        if training:
            self.parameters.append({name: p.detach().clone() for name, p in net.module_.named_parameters()})
            self.lrs.append(net.optimizer_.param_groups[0]["lr"])
            self.sizes.append(len(batch[1]))


@pytest.fixture(scope="module")
def data():
    """90 samples in 3 clusters of 4 features, 9 of them labelled."""
    rng = np.random.default_rng(0)
    truth = np.arange(90) % 3
    X = (rng.normal(size=(90, 4)) + 4 * np.eye(3, 4)[truth]).astype(np.float32)
    y = np.where(np.arange(90) < 9, truth, -1)
    return X, y, truth


def make(**params):
    settings = {
        "module__n_features": 4,
        "module__n_classes": 3,
        "module__hidden": (16,),
        "augment": "tabular",
        "batch_size": 8,
        "max_epochs": 3,
        "verbose": 0,
        "random_state": 0,
    }
    return FixMatchClassifier(MLP, **(settings | params))


def parameters(net):
    return torch.cat([p.detach().flatten() for p in net.module_.parameters()])


def test_loss_and_step_by_hand():
    X = np.array([[1.0, 0.0], [0.0, 1.0], [3.0, 0.0], [0.1, 0.2]], dtype=np.float32)
    y = np.array([0, 1, -1, -1])
    module = nn.Linear(2, 2)
    start = torch.tensor([[2.0, -1.0], [0.0, 1.0]]), torch.tensor([0.1, 0.0])
    module.weight.data, module.bias.data = start[0].clone(), start[1].clone()
    net = FixMatchClassifier(
        module, augment=(same, negative), threshold=0.9, lambda_u=0.7, mu=2, batch_size=2, max_epochs=1, lr=0.5,
        iterations_per_epoch=1, ema_decay=0.0, optimizer__momentum=0.0, optimizer__weight_decay=0.0, verbose=0,
    )  # fmt: skip
    net.fit(X, y)  # the batches are all labelled samples, and all samples

    W, b = (t.clone().double().requires_grad_() for t in start)
    x = torch.as_tensor(X).double()
    with torch.no_grad():
        p = torch.softmax(x @ W.T + b, dim=1)
    labelled = -torch.log_softmax(x[:2] @ W.T + b, dim=1)[[0, 1], [0, 1]].mean()
    strong = torch.log_softmax(-x @ W.T + b, dim=1)
    unlabelled = -sum(strong[i, p[i].argmax()] for i in range(4) if p[i].max() >= 0.9) / 4
    loss = labelled + 0.7 * unlabelled
    loss.backward()
    assert 0 < int((p.max(dim=1).values >= 0.9).sum()) < 4
    assert net.history[0, "train_loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert net.history[0, "labelled_loss"] == pytest.approx(labelled.item(), rel=1e-5)
    assert net.history[0, "unlabelled_loss"] == pytest.approx(unlabelled.item(), rel=1e-5)
    # the gradient of the formula with p held fixed, and no other, is what the step follows
    torch.testing.assert_close(net.module_.weight.detach().double(), start[0] - 0.5 * W.grad, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(net.module_.bias.detach().double(), start[1] - 0.5 * b.grad, rtol=1e-5, atol=1e-6)


def test_masked_samples_count_in_the_mean(data):
    X, y, _ = data
    net = make(threshold=1.0, max_epochs=1).fit(X, y)
    assert net.history[0, "unlabelled_loss"] == 0
    assert net.history[0, "mask_rate"] == 0
    assert net.history[0, "train_loss"] == pytest.approx(net.history[0, "labelled_loss"], rel=1e-4)


def test_the_average_predicts_and_partial_fit_continues_from_what_was_trained(data):
    X, y, _ = data
    record = Record()
    net = make(ema_decay=0.9, callbacks=[("record", record)], lr=0.1)
    net.initialize()
    average = {name: p.detach().clone() for name, p in net.module_.named_parameters()}
    net.set_params(warm_start=True)
    net.fit(X, y)
    for step, latest in enumerate(record.parameters, start=1):
        decay = min(0.9, (1 + step) / (10 + step))
        average = {name: decay * average[name] + (1 - decay) * latest[name] for name in average}
    for name, p in net.module_.named_parameters():
        torch.testing.assert_close(p.detach(), average[name])
        assert not torch.allclose(p, record.parameters[-1][name])
    trained = record.parameters[-1]
    with torch.no_grad():
        expected = torch.softmax(net.module_(torch.as_tensor(X)), dim=1).numpy()
    np.testing.assert_allclose(net.predict_proba(X), expected, rtol=1e-4)
    copy = pickle.loads(pickle.dumps(net))
    restored = make(callbacks=[("record", Record())]).initialize()
    restored.module_.load_state_dict(net.module_.state_dict())
    restored.set_state(net.get_state())
    for again in (net, copy, restored):
        again.set_params(lr=0.0, ema_decay=0.0)
        again.partial_fit(X, y)
        for name, p in again.module_.named_parameters():
            assert torch.equal(p, trained[name])


def test_batch_norm_statistics_are_the_latest_and_validation_uses_the_average(data):
    X, _, truth = data
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))

    class Check(Callback):
        def on_epoch_end(self, net, dataset_valid=None, **kwargs):
            raw = net.module_[0].weight.detach().clone()
            with net._average.use():
                net.module_.eval()
                x = torch.stack([dataset_valid[i][0] for i in range(len(dataset_valid))])
                target = torch.stack([dataset_valid[i][1] for i in range(len(dataset_valid))])
                loss = F.cross_entropy(net.module_(x), target).item()
            assert net.history[-1, "valid_loss"] == pytest.approx(loss, rel=1e-5)
            assert torch.equal(net.module_[0].weight, raw)
            self.mean = net.module_[1].running_mean.clone()

    check = Check()
    net = FixMatchClassifier(
        module, augment="tabular", batch_size=8, max_epochs=2, verbose=0, train_split=ValidSplit(3, stratified=True),
        callbacks=[("check", check)], random_state=0,
    )  # fmt: skip
    X_tensor = torch.as_tensor(X)
    net.fit(X_tensor, np.where(np.arange(90) < 30, truth, -1))
    assert "valid_acc" in net.history[-1]
    assert torch.equal(net.module_[1].running_mean, check.mean)
    assert net.module_[1].num_batches_tracked > 0


def test_runs_are_reproducible_and_leave_the_global_generators_alone(data):
    X, y, _ = data
    states = torch.get_rng_state(), np.random.get_state()[1].copy()
    first = make(darp="uniform", darp_warmup=0.2).fit(X, y)
    assert torch.equal(torch.get_rng_state(), states[0])
    np.testing.assert_array_equal(np.random.get_state()[1], states[1])
    assert torch.equal(parameters(first), parameters(make(darp="uniform", darp_warmup=0.2).fit(X, y)))
    assert not torch.equal(parameters(first), parameters(make(random_state=1).fit(X, y)))
    with torch.random.fork_rng():
        torch.manual_seed(3)
        by_torch = make(random_state=None).fit(X, y)
        torch.manual_seed(3)
        assert torch.equal(parameters(by_torch), parameters(make(random_state=None).fit(X, y)))


def test_schedule_and_small_labelled_sets(data):
    X, y, _ = data
    y = np.where(np.arange(90) < 3, y, -1)
    record = Record()
    net = make(callbacks=[("record", record)], iterations_per_epoch=5, max_epochs=2, lr=0.2).fit(X, y)
    np.testing.assert_allclose(record.lrs, 0.2 * np.cos(7 * np.pi * np.arange(10) / 160))
    assert record.sizes == [8] * 10
    assert net.optimizer_.param_groups[0]["lr"] == pytest.approx(0.2)
    constant = Record()
    make(callbacks=[("record", constant)], cosine=False, lr=0.2).fit(X, y)
    # one pass: 90 samples in batches of 7 × 8
    assert constant.lrs == [0.2] * 6


def test_weight_decay_spares_biases_and_normalisation():
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2))
    net = FixMatchClassifier(module, verbose=0).initialize()
    decay = {p: group["weight_decay"] for group in net.optimizer_.param_groups for p in group["params"]}
    assert len(decay) == len(list(module.parameters()))
    for name, p in net.module_.named_parameters():
        assert decay[p] == (5e-4 if name in {"0.weight", "3.weight"} else 0), name
    assert net.optimizer_.defaults["nesterov"]
    assert net.optimizer_.defaults["momentum"] == 0.9
    adam = FixMatchClassifier(module, optimizer=torch.optim.Adam, optimizer__weight_decay=0.1, verbose=0).initialize()
    assert sorted(group["weight_decay"] for group in adam.optimizer_.param_groups) == [0, 0.1]


def test_history(data):
    X, y, truth = data
    net = make(max_epochs=15, threshold=0.8, lr=0.1, darp="labels", darp_warmup=0.0).fit(X, y, y_true=truth)
    last = net.history[-1]
    assert 0.5 < last["mask_rate"] <= 1
    assert last["pseudo_accuracy"] > 0.8
    assert sum(last["pseudo_distribution"]) == pytest.approx(1)
    assert len(last["pseudo_distribution"]) == 3
    assert last["darp_residual"] < 1e-3
    plain = make().fit(X, y).history[-1]
    assert "pseudo_accuracy" not in plain
    assert "darp_residual" not in plain
    assert net.score(X, truth) > 0.9


def test_the_table_is_printed_without_the_distribution(data, capsys):
    X, y, _ = data
    make(verbose=1, max_epochs=1).fit(X, y)
    out = capsys.readouterr().out
    assert "mask_rate" in out
    assert "pseudo_distribution" not in out


def test_darp_changes_what_is_learned(data):
    X, y, _ = data
    given = [0.6, 0.3, 0.1]
    net = make(max_epochs=6, threshold=0.0, darp=given, darp_warmup=0.0, darp_alpha=None, darp_every=2).fit(X, y)
    plain = make(max_epochs=6, threshold=0.0).fit(X, y)
    off = [np.abs(np.subtract(n.history[-1, "pseudo_distribution"], given)).max() for n in (net, plain)]
    assert off[0] < 0.1 < off[1]


def test_inputs_of_many_kinds_give_the_same(data):
    X, y, _ = data
    expected = parameters(make(max_epochs=1).fit(X, y))
    tensors = TensorDataset(torch.as_tensor(X), torch.as_tensor(y))
    blind = TensorDataset(torch.as_tensor(X), torch.zeros(len(y)))  # y says what is labelled
    for X_, y_ in [(torch.as_tensor(X), torch.as_tensor(y)), (tensors, None), (blind, y), (X, y.tolist())]:
        torch.testing.assert_close(parameters(make(max_epochs=1).fit(X_, y_)), expected)


def test_dict_input(data):
    X, y, _ = data

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, a, b):
            return self.linear(torch.cat([a, b], dim=1))

    pair = (same, lambda x: {key: value + 0.1 for key, value in x.items()})
    net = FixMatchClassifier(Two, augment=pair, max_epochs=1, batch_size=8, verbose=0, random_state=0)
    assert net.fit({"a": X[:, :2], "b": X[:, 2:]}, y).predict({"a": X[:5, :2], "b": X[:5, 2:]}).shape == (5,)


def test_modules_that_end_in_a_softmax(data):
    X, y, _ = data
    torch.manual_seed(0)
    linear = nn.Linear(4, 3)
    weights = {name: value.clone() for name, value in linear.state_dict().items()}
    results = []
    for module, criterion in [(linear, nn.CrossEntropyLoss), (nn.Sequential(linear, nn.Softmax(dim=1)), nn.NLLLoss)]:
        linear.load_state_dict(weights)
        net = FixMatchClassifier(
            module,
            criterion=criterion,
            augment=(same, negative),
            threshold=0.5,
            max_epochs=1,
            verbose=0,
            random_state=0,
        )
        net.fit(X, y)
        results.append(parameters(net))
    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-4)


def test_images():
    X = torch.rand(40, 1, 8, 8)
    y = np.where(np.arange(40) < 10, np.arange(40), -1)
    net = FixMatchClassifier(CNN, module__in_channels=1, module__image_size=8, max_epochs=1, verbose=0, random_state=0)
    assert net.fit(X, y).predict_proba(X).shape == (40, 10)


def test_sklearn_tools(data):
    X, y, truth = data
    net = make(lr=0.1, max_epochs=2)
    copy = clone(net)
    assert copy.get_params()["mu"] == 7
    pipeline = make_pipeline(StandardScaler(), net).fit(X, y)
    assert (pipeline.predict(X) == truth).mean() > 0.6
    search = GridSearchCV(net, {"threshold": [0.5, 0.95]}, cv=StratifiedKFold(3)).fit(X, y)
    assert set(search.cv_results_["param_threshold"]) == {0.5, 0.95}
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.predict(X).shape == (90,)


def test_score_leaves_unlabelled_samples_out(data):
    X, y, truth = data
    net = make().fit(X, y)
    assert net.score(X, y) == pytest.approx((net.predict(X)[:9] == truth[:9]).mean())
    with pytest.raises(NoLabelledDataError, match="score"):
        net.score(X, np.full(90, -1))


def test_a_class_without_labels(data):
    X, y, _ = data
    y = np.where(y == 2, -1, y)
    net = make(darp="labels", darp_warmup=0.0).fit(X, y)
    assert net.predict_proba(X).shape == (90, 3)
    np.testing.assert_array_equal(net.classes_, [0, 1, 2])


def test_no_unlabelled_samples_is_supervised_training_and_said(data):
    X, _, truth = data
    with pytest.warns(NoUnlabelledDataWarning, match="plain supervised"):
        net = make(lr=0.1, max_epochs=5).fit(X, truth)
    assert "mask_rate" not in net.history[-1]
    assert net.score(X, truth) > 0.8


def test_bad_data(data):
    X, y, _ = data
    with pytest.raises(NoLabelledDataError, match="must hold labels"):
        make().fit(X, np.full(90, -1))
    bad = X.copy()
    bad[50, 1] = np.nan
    with pytest.raises(NonFiniteError, match="row 50"):
        make().fit(bad, y)
    with pytest.raises(NonFiniteError, match="row 50"):
        make().fit(TensorDataset(torch.as_tensor(bad), torch.as_tensor(y)), None)
    with pytest.raises(InvalidParameterError, match="3 outputs"):
        make().fit(X, np.where(y == 0, 3, y))
    with pytest.raises(InvalidParameterError, match="'y' parameter"):
        make().fit(X, np.where(y == -1, -2, y))
    with pytest.raises(InvalidParameterError, match="90 integers"):
        make().fit(X, y[:50])
    with pytest.raises(InvalidTypeError, match="LabelEncoder"):
        make().fit(X, np.array(["a"] * 90))
    with pytest.raises(InvalidParameterError, match="y_true"):
        make().fit(X, y, y_true=y[:3])
    with pytest.raises(InvalidTypeError, match="Set augment"):
        make(augment="image").fit(X, y)


def as_dataset(X, y):
    return TensorDataset(torch.as_tensor(X), torch.as_tensor(y))


def test_labelled_samples_of_a_dataset_must_be_finite(data):
    X, y, truth = data
    bad = X.copy()
    bad[7, 1] = np.nan
    # one iteration with all 9 labelled samples, and 9 of the 90 in the unlabelled batch: row 7 is not among those
    few = {"max_epochs": 1, "iterations_per_epoch": 1, "mu": 1}
    with pytest.raises(NonFiniteError, match="row 7"):
        make(batch_size=-1, **few).fit(as_dataset(bad, y))
    with pytest.raises(NonFiniteError, match="row 7"), pytest.warns(NoUnlabelledDataWarning):
        make(max_epochs=1).fit(as_dataset(bad, truth))


def test_a_dataset_that_is_not_finite_at_every_reading(data):
    X, y, _ = data

    def spoil(items):
        inputs, labels = zip(*items, strict=True)
        return torch.stack(inputs) * np.nan, torch.stack(labels)

    with pytest.raises(NonFiniteError, match="collate_fn"):
        make(iterator_train__collate_fn=spoil).fit(as_dataset(X, y))


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")  # columns of pandas 3, by skorch
def test_frames_go_to_the_module_by_column_name(data):
    X, y, _ = data
    with pytest.raises(InvalidTypeError, match=r"'X' parameter .* X\.to_numpy\(\)"):
        make().fit(pd.DataFrame(X), y)
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1]})

    class ByName(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 3)

        def forward(self, a, b):
            return self.linear(torch.cat([a, b], dim=1))

    net = FixMatchClassifier(ByName, augment=(same, same), max_epochs=1, verbose=0, random_state=0).fit(frame, y)
    assert net.predict_proba(frame).shape == (90, 3)


@pytest.mark.parametrize(
    "params",
    [
        {"threshold": 1.5}, {"mu": 0}, {"lambda_u": -1}, {"ema_decay": 2}, {"iterations_per_epoch": 0},
        {"darp_every": 0}, {"darp_warmup": 2}, {"darp_alpha": 0.5}, {"augment": "sound"}, {"darp": "even"},
        {"random_state": -1}, {"batch_size": 0}, {"batch_size": -2}, {"iterator_train__batch_size": 0},
        {"cosine": "no"}, {"cosine": None}, {"cosine": 1},
    ],
    ids=str,
)  # fmt: skip
def test_bad_parameters(data, params):
    X, y, _ = data
    with pytest.raises(InvalidParameterError, match=repr(next(iter(params)))):
        make(**params).fit(X, y)


@pytest.mark.parametrize(
    "params",
    [
        {"batch_size": 1.5},
        {"batch_size": None},
        {"batch_size": True},
    ],
    ids=str,
)
def test_parameters_of_a_wrong_type(data, params):
    X, y, _ = data
    with pytest.raises(InvalidTypeError, match=repr(next(iter(params)))):
        make(**params).fit(X, y)


def test_after_an_error_a_fit_works(data):
    X, y, _ = data
    net = make()
    with pytest.raises(InvalidTypeError):
        net.set_params(augment="image").fit(X, y)
    expected = parameters(make().fit(X, y))
    assert torch.equal(parameters(net.set_params(augment="tabular").fit(X, y)), expected)
