"""The papers' protocols: every setting as the papers have it, and one scaled round of each."""

from types import SimpleNamespace

import numpy as np
import pytest

from skal.bench import PRESETS, Protocol, preset, run_benchmark
from skal.exceptions import InvalidParameterError
from skal.strategies._names import make_strategy

FULL = [name for name in PRESETS if not name.endswith("_scaled")]
TABLES = [f"dynamic_al_table{k}" for k in (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12)]


def test_all_protocols_are_there():
    expected = {*TABLES, "dynamic_al_gamma"}
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
            make_strategy(spec)


# from the papers: data, network, labels at the start, per query, queries, seeds
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dynamic_al_table2", [("cifar10", "cnn", 500, 250, 10, 5)]),
        ("dynamic_al_table3", [("cifar10", "cnn", 500, 500, 10, 5)]),
        ("dynamic_al_table4", [("cifar10", "resnet18", 500, 500, 10, 5)]),
        ("dynamic_al_table5", [("cifar10", "resnet18", 500, 1000, 10, 5)]),
        ("dynamic_al_table6", [("svhn", "vgg11", 500, 500, 10, 5)]),
        ("dynamic_al_table7", [("svhn", "vgg11", 500, 1000, 10, 5)]),
        ("dynamic_al_table8", [("caltech101", "resnet18", 500, 500, 10, 5)]),
        ("dynamic_al_table9", [("caltech101", "resnet18", 500, 1000, 4, 5)]),
        (
            "dynamic_al_table1",
            [("cifar10", "cnn", 500, b, r, 5) for r, b in ((10, 100), (4, 250), (2, 500), (1, 1000))],
        ),
        ("ntk_mnist", [("mnist", "wide_resnet", 100, 20, 10, 6)]),
        ("ntk_svhn", [("svhn", "wide_resnet", 1000, 1000, 5, 6)]),
        ("ntk_cifar100", [("cifar100", "wide_resnet", 10_000, 1000, 5, 6)]),
        ("npc_cifar10", [("cifar10", "wide_resnet", 10, 20, 3, 3)]),
        ("npc_cifar100", [("cifar100", "wide_resnet", 100, 200, 3, 3)]),
    ],
)
def test_the_papers_numbers(name, expected):
    found = [(p.data, p.net, p.n_initial, p.batch, p.rounds, p.seeds) for p in preset(name)]
    assert found == expected


def test_what_the_papers_compare():
    gammas = [make_strategy(spec).gamma for spec in preset("dynamic_al_gamma")[0].strategies[1:]]
    assert gammas == [0, 1, 2, float("inf")]
    assert [p.criterion for p in preset("ntk_loss")] == ["squared", "cross_entropy"]
    assert [64 * p.net_params["width"] for p in preset("ntk_width")] == [64, 128, 320, 640]
    assert not any(p.warm_start for name in ("table11", "table12") for p in preset(f"dynamic_al_{name}"))
    assert all(p.warm_start for name in TABLES[:9] for p in preset(name))
    assert "ntk_lookahead(subset=4000)" in preset("ntk_mnist")[0].strategies
    assert "ntk_lookahead(subset=6000)" in preset("ntk_svhn")[0].strategies
    assert all(p.semi_supervised is not None and not p.warm_start for p in preset("npc_cifar10"))
    assert [(p.n_initial, p.rounds) for p in preset("npc_zero_shot")] == [(30, 0), (50, 0)]
    assert [(p.n_initial, p.batch, p.rounds) for p in preset("npc_single_shot")] == [(10, 30, 1), (10, 50, 1)]


# the training of dynamicAL is what a protocol has by default: it must not change with the defaults
@pytest.mark.parametrize("name", [*TABLES, "dynamic_al_gamma"])
def test_the_training_of_dynamic_al(name):
    for protocol in preset(name):
        assert (protocol.optimizer, protocol.lr, protocol.weight_decay, protocol.schedule) == (
            "adam",
            1e-3,
            0,
            "constant",
        )
        assert (protocol.criterion, protocol.stop_accuracy, protocol.max_epochs) == ("cross_entropy", 0.99, 200)
        assert (protocol.batch_size, protocol.inputs, protocol.start) == (64, "signed", "random")


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


def _one_round(protocol: Protocol) -> dict:
    """A round of a scaled protocol, with the strategy that the protocol is about."""
    about = [spec for spec in protocol.strategies if spec.split("(")[0] in {"dynamic_al", "ntk_lookahead", "npc"}]
    strategies = ((about or list(protocol.strategies))[-1].replace("subset=500", "subset=20"),)
    labels = {"n_initial": 10, "batch": 5, "rounds": min(1, protocol.rounds), "seeds": 1, "n_pool": 60, "n_test": 30}
    semi = protocol.semi_supervised and {**protocol.semi_supervised, "iterations_per_epoch": 2}
    return {"strategies": strategies, "max_epochs": 1, "semi_supervised": semi, **labels}


@pytest.mark.parametrize("name", FULL)
def test_one_scaled_round(name, images):
    for protocol in preset(f"{name}_scaled"):
        result = run_benchmark(data=images, protocol=protocol.with_settings(data_params={}, **_one_round(protocol)))
        expected = [10, 15] if protocol.rounds else [10]
        assert [run.n_labels for run in result.runs] == [expected]
