"""The papers' protocols: every setting as the papers have it, and one scaled round of each."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks.papers.printed import read as read_printed
from skal.bench import Protocol, run_benchmark
from skal.bench._networks import make_net
from skal.bench.papers import PRESETS, preset
from skal.bench.papers._mohamadi2022 import rates
from skal.bench.papers._transcripts import NOT_STATED, PAPERS
from skal.exceptions import InvalidParameterError
from skal.nets import SquaredLoss, WideResNet
from skal.strategies import (
    ALBL,
    BADGE,
    NPC,
    CoreSet,
    DynamicAL,
    Entropy,
    LearningLoss,
    LeastConfidence,
    Margin,
    NTKLookahead,
    RandomSampling,
)

from ..support.learners import strategy_named

FULL = [name for name in PRESETS if not name.endswith("_scaled")]
TABLES = [f"dynamic_al_table{k}" for k in (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12)]


def test_all_protocols_are_there():
    expected = {*TABLES, "dynamic_al_figure10", "dynamic_al_gamma"}
    expected |= {f"ntk_{name}" for name in ("mnist", "svhn", "cifar10", "cifar100", "loss", "width")}
    expected |= {f"npc_{name}" for name in ("cifar10", "cifar100", "zero_shot", "single_shot")}
    assert set(FULL) == expected
    assert set(PRESETS) == expected | {f"{name}_scaled" for name in expected}


@pytest.mark.parametrize("name", PRESETS)
def test_protocols_are_complete(name):
    names = [protocol.name for protocol in preset(name)]
    assert len(set(names)) == len(names)
    for protocol in preset(name):
        assert protocol.check().name.startswith(name.removesuffix("_scaled"))
        assert protocol.notes
        for spec in protocol.strategies:
            strategy_named(spec)


# --- every preset against the transcription of its paper --------------------------------------------------------------

# the papers' words, and what they are here
DATA = {"CIFAR-10": "cifar10", "CIFAR-100": "cifar100", "SVHN": "svhn", "Caltech101": "caltech101", "MNIST": "mnist"}
NETWORKS = {
    "CNN": "cnn",
    "ResNet-18": "resnet18",
    "VGG-11": "vgg11",
    "WRN-28-2": "wide_resnet",
    "WideResNet, 1 block": "wide_resnet",
    "WideResNet, 2 blocks": "wide_resnet",
}
GROUPS = {"WRN-28-2": 3, "WideResNet, 1 block": 1, "WideResNet, 2 blocks": 2}
BLOCKS = {"WRN-28-2": 4, "WideResNet, 1 block": 1, "WideResNet, 2 blocks": 1}
CLASSES = {"cifar100": 100, "caltech101": 101}
STRATEGIES = {
    "Random": RandomSampling(),
    "Passive": RandomSampling(),
    "Coreset": CoreSet(),
    "Conf": LeastConfidence(),
    "Marg": Margin(),
    "Margin": Margin(),
    "Margin on logits": Margin(on="logits"),
    "Entropy": Entropy(),
    "ALBL": ALBL(),
    "BADGE": BADGE(),
    "LL4AL": LearningLoss(),
    "dynamicAL": DynamicAL(gamma=2.0),
    "dynamicAL, γ = 0": DynamicAL(gamma=0),
    "dynamicAL, γ = 1": DynamicAL(gamma=1),
    "dynamicAL, γ = 2": DynamicAL(gamma=2),
    "dynamicAL, γ = ∞": DynamicAL(gamma=float("inf")),
    "NPC": NPC(kernel="last_layer"),
}


def _strategy(name, paper):
    if name == "NTK":
        return NTKLookahead(criterion=paper["criterion"].lower(), subset=paper["subset"])
    return STRATEGIES[name]


def _channels(protocol):
    return WideResNet(**protocol.net_params).fc.in_features


def _optimiser(protocol, code):
    """The authors' code has the mean over samples and classes, which is 2/C of our squared loss."""
    expected = {"SGD": "sgd" if code.get("nesterov") else "heavy_ball", "Adam": "adam"}[code["optimiser"]]
    assert protocol.optimizer == expected
    if "largest learning rate" in code and protocol.criterion == "squared":
        share = 2 / CLASSES.get(protocol.data, 10)
        assert protocol.lr == pytest.approx(code["largest learning rate"] * share)
        assert protocol.weight_decay == pytest.approx(code["weight decay"] / share)
    for name, setting in (("momentum", "momentum"), ("epochs", "max_epochs"), ("minibatch", "batch_size")):
        assert name not in code or getattr(protocol, setting) == code[name]
    if "cycles" in code:  # trained networks, of which one less than that are asked for labels
        assert protocol.n_rounds == code["cycles"] - 1


# what each fact of the transcription says about a protocol
FACTS = {
    "data": lambda p, value, paper: p.data == DATA[value],
    "network": lambda p, value, paper: (
        p.net == NETWORKS[value]
        and p.net_params.get("groups", 3) == GROUPS.get(value, 3)
        and p.net_params.get("depth", 4) == 6 * BLOCKS.get(value, 0) + 4
    ),
    "channels": lambda p, value, paper: _channels(p) == value,
    "M": lambda p, value, paper: p.n_initial == value,
    "b": lambda p, value, paper: p.query_size == value,
    "R": lambda p, value, paper: p.n_rounds == value,
    "rounds": lambda p, value, paper: value == f"0 to {p.n_rounds}",
    # the paper's rounds, or as many whole ones as the images for training hold
    "rounds until no image is left": lambda p, value, paper: (
        p.n_rounds
        == min(value, (round(paper["images"] * (1 - paper["share for testing"])) - p.n_initial) // p.query_size)
    ),
    "images": lambda p, value, paper: p.data == "caltech101",
    "share for testing": lambda p, value, paper: p.data == "caltech101",
    "runs": lambda p, value, paper: p.seeds == value,
    "strategies": lambda p, value, paper: (
        [repr(strategy_named(spec)) for spec in p.strategies] == [repr(_strategy(name, paper)) for name in value]
    ),
    "loss": lambda p, value, paper: p.criterion == {"cross-entropy": "cross_entropy", "squared": "squared"}[value],
    "learning rate": lambda p, value, paper: p.lr == value,
    "schedule": lambda p, value, paper: (
        p.schedule == {"constant": "constant", "one cycle": "one_cycle_momentum"}[value]
    ),
    "training ends": lambda p, value, paper: value == f"training accuracy {p.stop_accuracy}",
    "between rounds": lambda p, value, paper: p.warm_start == (value == "warm start"),
    "training": lambda p, value, paper: p.semi_supervised["darp"] == "uniform",
    "first labels": lambda p, value, paper: (
        p.initial == {"one per class": "balanced", "by the strategy": "zero_shot"}[value]
    ),
    "labels in the table": lambda p, value, paper: (p.n_labels[1:] or p.n_labels) == value,
    "code": lambda p, value, paper: _optimiser(p, value) is None,
    # these say what a strategy is, and are part of "strategies"
    "criterion": lambda p, value, paper: "NTK" in paper["strategies"],
    "subset": lambda p, value, paper: "NTK" in paper["strategies"],
    "kernel": lambda p, value, paper: "NPC" in paper["strategies"] and value.startswith("the last layer's"),
}


@pytest.mark.parametrize("name", FULL)
def test_a_preset_is_what_the_paper_says(name):
    assert len(preset(name)) == len(PAPERS[name])
    for protocol, paper in zip(preset(name), PAPERS[name], strict=True):
        for fact, value in paper.items():
            if value != NOT_STATED:
                assert FACTS[fact](protocol, value, paper), (protocol.name, fact, value)


PRINTED = {name: printed for name, printed in read_printed().items() if name in PRESETS}
ONE_SETTING = [name for name in PRINTED if name.startswith("dynamic_al") and name != "dynamic_al_table1"]


def _arms(protocol):
    return {repr(strategy_named(spec)) for spec in protocol.strategies}


@pytest.mark.parametrize("name", ONE_SETTING)
def test_a_preset_has_the_arms_rounds_and_labels_of_the_printed_table(name):
    printed, (protocol,) = PRINTED[name], preset(name)
    assert _arms(protocol) == {repr(STRATEGIES[column]) for column in printed.columns}
    assert list(printed.rows) == [str(number) for number in range(protocol.n_rounds + 1)]
    data, network, batch, initial = printed.caption.split(", ")
    assert data.lower() == protocol.data
    assert protocol.net.startswith(network.lower())
    assert (batch, initial) == (f"Query Batch Size: {protocol.query_size}", f"Initial Set Size: {protocol.n_initial}")


def test_table_1_has_the_settings_and_batches_of_the_printed_one():
    printed, protocols = PRINTED["dynamic_al_table1"], preset("dynamic_al_table1")
    networks = {"CNN": "cnn", "Resnet": "resnet18", "VGG": "vgg11"}
    settings = [column.split("+") for column in printed.columns]
    expected = [
        (data.lower(), networks[net], f"R = {p.n_rounds}, b = {p.query_size}", 1000)
        for (data, net), p in zip(np.repeat(settings, len(printed.rows), axis=0), protocols, strict=True)
    ]
    found = [
        (p.data, p.net, row, p.n_rounds * p.query_size)
        for p, row in zip(protocols, 4 * list(printed.rows), strict=True)
    ]
    assert found == expected
    assert [_arms(p) for p in protocols] == [{repr(STRATEGIES["dynamicAL"])}] * len(protocols)


@pytest.mark.parametrize("name", [name for name in PRINTED if name.startswith("npc")])
def test_an_npc_preset_has_the_labels_and_arms_of_the_printed_table(name):
    printed = PRINTED[name]
    labels = [str(n) for protocol in preset(name) for n in (protocol.n_labels[1:] or protocol.n_labels)]
    assert labels == list(printed.rows)
    ours = {"Passive": "random", "Margin": "margin(on='logits')", "NPC": "npc(kernel='last_layer')"}
    arms = {repr(strategy_named(ours.get(column, column.lower()))) for column in printed.columns}
    assert [_arms(protocol) for protocol in preset(name)] == [arms] * len(preset(name))


def test_presets_without_a_printed_table_are_those_of_figures():
    figures = {"dynamic_al_figure10", "dynamic_al_gamma", *(name for name in FULL if name.startswith("ntk"))}
    assert set(FULL) - set(PRINTED) == figures


def test_rows_of_printed_tables_are_whole_and_their_lines_named():
    for printed in read_printed().values():
        assert re.fullmatch(r"(dynamical|thesis|npc) \d+-\d+", printed.source)
        assert all(len(cells) == len(printed.columns) for cells in printed.rows.values())
        assert sum(cell is None for cells in printed.rows.values() for cell in cells) <= 2


def test_every_preset_is_transcribed_and_every_fact_compared():
    assert set(PAPERS) == set(FULL)
    stated = {
        fact for entries in PAPERS.values() for paper in entries for fact, value in paper.items() if value != NOT_STATED
    }
    assert stated == set(FACTS)


# what the papers leave open, and we chose, must not change with the defaults of a protocol
@pytest.mark.parametrize("name", [*TABLES, "dynamic_al_figure10", "dynamic_al_gamma"])
def test_the_training_of_dynamic_al(name):
    for protocol in preset(name):
        assert (protocol.max_epochs, protocol.batch_size, protocol.inputs) == (200, 64, "signed")
        assert (protocol.initial, protocol.weight_decay) == ("random", 0)


def test_the_authors_learning_rate_in_terms_of_our_loss():
    """Mean over samples and classes with their rates, and our loss with ours, are the same training."""
    X, y = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64), torch.arange(6) % 3
    trained = []
    for criterion, settings in (
        (lambda f: (f - torch.eye(3, dtype=f.dtype)[y]).square().mean(), {"lr": 1.25, "weight_decay": 1e-4}),
        (lambda f: SquaredLoss()(f, y), rates(3)),
    ):
        torch.manual_seed(0)
        module = torch.nn.Linear(4, 3).double()
        optimizer = torch.optim.SGD(module.parameters(), momentum=0.9, **settings)
        for _ in range(20):
            optimizer.zero_grad()
            criterion(module(X)).backward()
            optimizer.step()
        trained.append(module.weight.detach())
    torch.testing.assert_close(*trained)


def test_the_networks_of_the_ntk_papers_are_trained_as_they_say():
    net = make_net(preset("ntk_mnist")[0], (1, 28, 28), 10, RandomSampling())
    assert (net.optimizer, net.optimizer__momentum, net.optimizer__nesterov) == (torch.optim.SGD, 0.9, False)
    assert dict(net.callbacks)["schedule"].cycle_momentum


def test_unknown_preset():
    with pytest.raises(InvalidParameterError, match="one of 'dynamic_al_table1'"):
        preset("table2")


@pytest.fixture(scope="module")
def images():
    """Small colour images of ten classes in the place of the real data."""
    rng = np.random.default_rng(0)
    y = np.arange(120) % 10
    X = rng.uniform(size=(120, 3, 8, 8)).astype("float32")
    X[np.arange(120), 0, y % 8, y % 5] = 1
    return SimpleNamespace(X_train=X[:80], y_train=y[:80], X_test=X[80:], y_test=y[80:], name="images")


def test_a_round_of_learning_loss_with_squared_loss(images):
    (protocol,) = preset("ntk_mnist_scaled")
    settings = {**_one_round(protocol), "strategies": ("learning_loss",)}
    (run,) = run_benchmark(data=images, protocol=protocol.with_settings(**settings)).runs
    assert run.n_labels == [10, 15]


def _one_round(protocol: Protocol) -> dict:
    """A round of a scaled protocol, with the strategy that the protocol is about."""
    about = [spec for spec in protocol.strategies if spec.split("(")[0] in {"dynamic_al", "ntk_lookahead", "npc"}]
    strategies = ((about or list(protocol.strategies))[-1].replace("subset=500", "subset=20"),)
    labels = {
        "n_initial": 10,
        "query_size": 5,
        "n_rounds": min(1, protocol.n_rounds),
        "seeds": 1,
        "n_pool": 60,
        "n_test": 30,
    }
    semi = protocol.semi_supervised and {**protocol.semi_supervised, "iterations_per_epoch": 2}
    return {"strategies": strategies, "max_epochs": 1, "semi_supervised": semi, **labels}


@pytest.mark.parametrize("name", FULL)
def test_one_scaled_round(name, images):
    kinds = {(p.net, p.criterion, p.initial): p for p in preset(f"{name}_scaled")}  # one of each
    for protocol in kinds.values():
        result = run_benchmark(data=images, protocol=protocol.with_settings(data_params={}, **_one_round(protocol)))
        expected = [10, 15] if protocol.n_rounds else [10]
        assert [run.n_labels for run in result.runs] == [expected]
