"""Every strategy picks the same samples with its network on another device as on the processor.

``SKAL_TEST_DEVICE=cuda python -m pytest -m device`` runs this on a GPU; ``nox -s devices`` on XLA, whose tensors do not
mix with the processor's and whose kernels are others, on any machine. At the end a table is printed.

Sums are rounded otherwise there. Two picks may therefore change places, or another sample may come in their place, if
their metrics are equal up to what single precision leaves of them: ``TIE`` of the largest.
"""

import copy
import time

import numpy as np
import pytest
import torch
from skorch import NeuralNetClassifier
from torch import nn

import skal
from benchmarks._device_cases import CASES, N_LABELLED, N_PICKS, make_case, to_device
from skal import ActiveLearningClassifier, LinearizedLearner
from skal.checks import make_learner
from skal.exceptions import UnsupportedLayerError
from skal.nets import CNN, MLP, SquaredLoss
from skal.strategies import BADGE, EGL, NPC, DynamicAL, Margin, NTKLookahead, UHerding
from skal.tangent import tangent_kernel

from ..support.learners import learner_of

pytestmark = [pytest.mark.device, pytest.mark.filterwarnings("default")]  # what torch_xla warns of is its own affair
TIE = 1e-3


def same_picks(expected, found):
    """Whether picks with their metrics are the same, but for ties."""
    (picks, metrics), (others, other_metrics) = expected, found
    close = np.abs(metrics - other_metrics) <= TIE * np.abs(metrics).max()
    return bool(((picks == others) | close).all() and close.all())


def timed(name, device):
    strategy, learner, X_pool = make_case(CASES[name], device)
    start = time.perf_counter()
    answer = strategy.select(learner, X_pool, N_PICKS)
    return answer, time.perf_counter() - start


@pytest.mark.parametrize("name", CASES)
def test_strategies_pick_the_same(name, device, rows):
    expected, seconds = timed(name, "cpu")
    try:
        found, there = timed(name, device)
    except Exception as error:
        rows.append([name, f"error: {type(error).__name__}", "", ""])
        raise
    same = same_picks(expected, found)
    scale = max(np.abs(expected[1]).max(), 1e-300)
    error = float(np.abs(expected[1] - found[1]).max() / scale)
    rows.append([name, "same" if same else "different", f"{error:.0e}", there / seconds])
    assert same, (expected, found)


def test_the_comparison_sees_other_picks():
    metrics = np.array([3.0, 2.0])
    assert same_picks((np.array([1, 2]), metrics), (np.array([1, 3]), metrics))  # a tie
    assert not same_picks((np.array([1, 2]), metrics), (np.array([1, 3]), np.array([3.0, 1.5])))


def make_net(device, module=None, criterion=nn.CrossEntropyLoss):
    torch.manual_seed(0)
    module = CNN(in_channels=1, n_classes=10, image_size=8) if module is None else module
    settings = {"max_epochs": 3, "lr": 0.02, "train_split": None, "verbose": 0, "iterator_train__shuffle": False}
    return NeuralNetClassifier(module, criterion=criterion, device=device, **settings)


@pytest.fixture(scope="module")
def digits():
    data = skal.datasets.load("digits")
    return data.X_train[:160].reshape(-1, 1, 8, 8), data.y_train[:160]


@pytest.mark.parametrize("strategy", [Margin(), UHerding(random_state=0)], ids=str)
def test_the_loop_labels_the_same(digits, device, strategy):
    """Training on the device, and choosing there; two rounds, before rounding has grown by training."""

    def labelled(where):
        loop = ActiveLearningClassifier(
            make_net(where), strategy, n_initial=20, query_size=5, n_rounds=2, random_state=0, reinitialize=True
        )
        return loop.fit(*digits).queried_

    np.testing.assert_array_equal(labelled(device), labelled("cpu"))


def test_a_session_goes_on_where_it_was(digits, device, tmp_path):
    X, y = digits

    def open_session(where, folder):
        loop = ActiveLearningClassifier(
            make_net(where), Margin(), n_initial=20, query_size=5, n_rounds=2, random_state=0, checkpoint=folder
        )
        return loop.start(X)

    asked = {}
    for where in ("cpu", device):
        folder = tmp_path / where.replace(":", "")
        with open_session(where, folder) as session:
            session.tell(y[session.ask()])
            asked[where] = session.ask().tolist()
        with open_session(where, folder) as session:
            assert session.ask().tolist() == asked[where]
    assert asked[device] == asked["cpu"]


def test_linearized_learner_asks_and_predicts_the_same(digits, device):
    X, y = digits
    flat = X.reshape(len(X), -1)
    answers = {}
    for where in ("cpu", device):
        torch.manual_seed(0)
        net = make_net("cpu", MLP(64, 10, hidden=(32,)), SquaredLoss).fit(flat[:30], y[:30])
        learner = LinearizedLearner(to_device(net, where), NTKLookahead(random_state=0))
        learner.X_training, learner.y_training = flat[:30], y[:30]
        pool, labels, asked = flat[30:], y[30:], []
        for _ in range(3):
            indices, samples = learner.query(pool)
            learner.teach(samples, labels[indices])
            asked += indices.tolist()
            pool, labels = np.delete(pool, indices, axis=0), np.delete(labels, indices)
        answers[where] = asked, learner.predict_proba(pool)
    assert answers[device][0] == answers["cpu"][0]
    np.testing.assert_allclose(answers[device][1], answers["cpu"][1], atol=1e-4)


def test_kernels_are_the_same(digits, device):
    module = make_net("cpu").initialize().module_
    there = copy.deepcopy(module).to(device)
    expected, found = (tangent_kernel(each, digits[0][:10], kind="pntk") for each in (module, there))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_batch_norm_is_differentiated_or_refused_by_name(device):
    learner, X_pool = make_learner()
    there = learner_of(to_device(learner.estimator, device), learner.X_training, learner.y_training)
    for strategy in (EGL(), DynamicAL(), NTKLookahead(random_state=0), NPC(n_candidates=20, random_state=0)):
        if device.startswith("xla"):
            with pytest.raises(UnsupportedLayerError, match=r"XLA.*batch norm"):
                strategy.select(there, X_pool, 3)
        else:
            assert same_picks(strategy.select(learner, X_pool, 3), strategy.select(there, X_pool, 3))
    for strategy in (Margin(), BADGE(random_state=0), UHerding(random_state=0)):
        assert same_picks(strategy.select(learner, X_pool, 3), strategy.select(there, X_pool, 3))


class Spread(nn.Module):
    """A body on one device, and a head on another."""

    def __init__(self, body, head):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU()).to(body)
        self.head = nn.Linear(16, 10).to(head)

    def forward(self, x):
        return self.head(self.body(x).to(self.head.weight.device))


@pytest.mark.parametrize("first", [True, False])
def test_modules_on_two_devices(digits, device, first):
    if device == "cpu":
        pytest.skip("the processor is one device: set SKAL_TEST_DEVICE to another one")
    X, y = digits[0], digits[1][:N_LABELLED]
    where = (device, "cpu") if first else ("cpu", device)
    torch.manual_seed(0)
    together = Spread("cpu", "cpu")
    apart = Spread(*where)
    apart.load_state_dict(together.state_dict())
    here, there = (learner_of(make_net(None, module).initialize(), X[:N_LABELLED], y) for module in (together, apart))
    for strategy in (Margin(), BADGE(random_state=0), UHerding(random_state=0)):
        expected, found = (strategy.select(each, X[N_LABELLED:], 5) for each in (here, there))
        assert same_picks(expected, found)
    if device == "mps":  # where a copy on the processor is asked
        assert same_picks(EGL().select(here, X[N_LABELLED:], 5), EGL().select(there, X[N_LABELLED:], 5))
        return
    with pytest.raises(UnsupportedLayerError, match="must live on one device"):
        EGL().select(there, X[N_LABELLED:], 5)


@pytest.mark.parametrize("strategy", [Margin(), BADGE(random_state=0), DynamicAL()], ids=str)
def test_autocast_around_a_query_changes_nothing(digits, device, strategy):
    X, y = digits[0], digits[1][:N_LABELLED]
    learner = learner_of(to_device(make_net("cpu").initialize(), device), X[:N_LABELLED], y)
    plain = strategy.select(learner, X[N_LABELLED:], 5)
    with torch.autocast(device.split(":")[0], dtype=torch.bfloat16):
        inside = strategy.select(learner, X[N_LABELLED:], 5)
    np.testing.assert_array_equal(plain[0], inside[0])


class AutocastCNN(CNN):
    """A network whose own forward computes in bfloat16."""

    def forward(self, x):
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            return super().forward(x).float()


@pytest.mark.parametrize("strategy", [Margin(), BADGE(random_state=0), DynamicAL()], ids=str)
def test_a_network_in_bfloat16_is_asked(digits, device, strategy):
    """Kernels of two devices round bfloat16 otherwise: the picks are as many, not the same."""
    X, y = digits[0], digits[1][:N_LABELLED]
    net = make_net("cpu", AutocastCNN(in_channels=1, n_classes=10, image_size=8)).initialize()
    picks, metrics = strategy.select(learner_of(to_device(net, device), X[:N_LABELLED], y), X[N_LABELLED:], 5)
    assert len(set(picks.tolist())) == 5
    assert np.isfinite(metrics).all()


@pytest.mark.parametrize("strategy", [Margin(), BADGE(random_state=0), DynamicAL()], ids=str)
def test_a_compiled_module_is_asked_as_it_is_written(digits, device, strategy):
    X, y = digits[0], digits[1][:N_LABELLED]
    net = to_device(make_net("cpu").initialize(), device)
    plain = strategy.select(learner_of(net, X[:N_LABELLED], y), X[N_LABELLED:], 5)
    net.module_ = torch.compile(net.module_)
    compiled = strategy.select(learner_of(net, X[:N_LABELLED], y), X[N_LABELLED:], 5)
    np.testing.assert_array_equal(plain[0], compiled[0])


def test_a_net_of_accelerate_is_asked(digits, device):
    from accelerate import Accelerator
    from skorch.hf import AccelerateMixin

    class AcceleratedClassifier(AccelerateMixin, NeuralNetClassifier):
        """skorch's classifier, with Accelerate in charge of the device."""

    X, y = digits
    torch.manual_seed(0)
    module = CNN(in_channels=1, n_classes=10, image_size=8)
    net = AcceleratedClassifier(
        module,
        criterion=nn.CrossEntropyLoss,
        accelerator=Accelerator(),
        max_epochs=1,
        train_split=None,
        verbose=0,
        callbacks__print_log__sink=lambda text: None,
    ).fit(X[:N_LABELLED], y[:N_LABELLED])
    there = learner_of(net, X[:N_LABELLED], y[:N_LABELLED])
    assert next(net.module_.parameters()).device.type == device.split(":")[0]
    here = learner_of(
        make_net("cpu", copy.deepcopy(net.module_).cpu()).initialize(), there.X_training, there.y_training
    )
    for strategy in (Margin(), BADGE(random_state=0)):
        expected, found = (strategy.select(each, X[N_LABELLED:], 5) for each in (here, there))
        assert same_picks(expected, found)
