"""``auto`` uses what a comparison with autograd has shown to be right, and remembers it as long as it holds."""

import pytest
import torch
from torch import nn

from skal.exceptions import NetworkError, UnsupportedLayerError
from skal.tangent import gradient_scores, register_rule, tangent_kernel

from ..support.networks import NETWORKS, build
from .checking import check_exact, plan_of

X = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def right_rule(layer, a, g):
    return {"shift": g, "matrix": a[:, :, None] * g[:, None, :]}


def wrong_rule(layer, a, g):
    return {"shift": g, "matrix": g[:, :, None] * a[:, None, :]}


@pytest.fixture
def shift_layer():
    """A user's layer, a new class for each test: what one test registers is unknown to the next."""

    class Shift(nn.Module):
        def __init__(self):
            super().__init__()
            self.shift, self.matrix = nn.Parameter(torch.rand(4)), nn.Parameter(torch.rand(4, 4))

        def forward(self, x):
            return x @ self.matrix + self.shift

    return Shift


@pytest.fixture
def module(shift_layer):
    torch.manual_seed(0)
    return nn.Sequential(shift_layer(), nn.Tanh(), nn.Linear(4, 3)).double()


def test_without_a_rule(module):
    assert check_exact(module, X) == {"structured": {"2.weight", "2.bias"}, "func": {"0.shift", "0.matrix"}}
    with pytest.raises(
        UnsupportedLayerError, match=r"'0.matrix' of a Shift layer .no rule for it.*'auto'.*register_rule"
    ):
        gradient_scores(module, X, None, backend="structured")


def test_right_rule(module):
    register_rule(type(module[0]))(right_rule)
    assert set(check_exact(module, X)) == {"structured"}
    check_exact(module, X, backend="structured")


def test_wrong_rule_is_found_out(module):
    register_rule(type(module[0]))(wrong_rule)
    plan = check_exact(module, X)
    assert plan == {"structured": {"0.shift", "2.weight", "2.bias"}, "func": {"0.matrix"}}
    with pytest.raises(
        UnsupportedLayerError, match=r"'0.matrix' of a Shift layer .its forward differs from what its rule"
    ):
        tangent_kernel(module, X, backend="structured")


@pytest.mark.parametrize(
    "rule",
    [
        lambda layer, a, g: {"shift": g},
        lambda layer, a, g: {"shift": g, "matrix": a},
        lambda layer, a, g: {"shift": g[:1], "matrix": a[:1, :, None] * g[:1, None, :]},
    ],
    ids=["incomplete", "wrong shape", "wrong number of samples"],
)
def test_unusable_rules_are_found_out(module, rule):
    register_rule(type(module[0]))(rule)
    assert "0.matrix" in check_exact(module, X)["func"]


def test_a_rule_that_raises_is_found_out(module):
    def broken(layer, a, g):
        raise KeyError("nothing here")

    register_rule(type(module[0]))(broken)
    assert set(check_exact(module, X)) == {"func"}
    with pytest.raises(UnsupportedLayerError, match="KeyError: 'nothing here'"):
        gradient_scores(module, X, None, backend="structured")


def test_a_zero_gradient_proves_no_users_rule(module):
    """At a head of zeros all rules agree; later they may not."""
    register_rule(type(module[0]))(wrong_rule)
    module.insert(1, nn.Linear(4, 4).double())
    head = module[-1].weight.detach().clone()
    nn.init.zeros_(module[-1].weight)
    plan = plan_of(module, X)
    assert plan["structured"] == {"1.weight", "1.bias", "3.weight", "3.bias"}
    assert plan["func"] == {"0.shift", "0.matrix"}
    module[-1].weight.data.copy_(head)
    check_exact(module, X)


def test_a_plan_is_made_once(module):
    """The comparison with autograd needs passes of its own, which show on the first call alone."""
    passes = []
    module.register_forward_pre_hook(lambda *_: passes.append(1))

    def count(function, **settings):
        passes.clear()
        function(module, X, **settings)
        return len(passes)

    def scores(module, X, **settings):
        return gradient_scores(module, X, None, **settings)

    first, *later = [count(scores) for _ in range(3)]
    assert later == [later[0]] * 2
    assert later[0] < first
    assert count(tangent_kernel) == count(tangent_kernel)
    assert count(scores, backend="func") > count(scores, backend="func")


def test_a_new_rule_makes_a_new_plan(module):
    register_rule(type(module[0]))(right_rule)
    assert set(check_exact(module, X)) == {"structured"}
    register_rule(type(module[0]))(wrong_rule)
    assert check_exact(module, X)["func"] == {"0.matrix"}


def test_a_changed_network_gets_a_new_plan(module):
    class Other(nn.Linear):
        def forward(self, x):
            return super().forward(x) ** 2

    check_exact(module, X)
    module[2].bias.requires_grad_(False)
    assert check_exact(module, X)["structured"] == {"2.weight"}
    module[2] = Other(4, 3).double()
    module[2].bias.requires_grad_(False)
    assert check_exact(module, X)["func"] == {"0.shift", "0.matrix", "2.weight"}
    assert plan_of(module.float(), X.float())["func"] == {"0.shift", "0.matrix", "2.weight"}


def test_one_sample_is_not_taken_for_many():
    """A layer that gets its input transposed looks right as long as there is one sample of one step."""

    class Transposed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x):  # (n, 4): for square inputs even the shapes fit
            return self.head(torch.tanh(self.layer(x[None])[0]))

    torch.manual_seed(0)
    module = Transposed().double()
    assert set(plan_of(module, X[:1])) == {"structured"}
    assert check_exact(module, X)["func"] == {"layer.weight", "layer.bias"}


def test_equal_samples_do_not_hide_a_permutation():
    class Reversed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x):
            return self.head(torch.tanh(self.layer(x.flip(0))).flip(0))

    torch.manual_seed(0)
    module = Reversed().double()
    samples = torch.cat([X[:1], X[:1], X[:1], X])
    assert check_exact(module, samples)["func"] == {"layer.weight", "layer.bias"}


def test_idle_parameters_are_nobodys_task():
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.spare = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x):
            return self.layer(x)

    module = Unused().double().eval()
    assert plan_of(module, X) == {"structured": {"layer.weight", "layer.bias"}}
    for backend in ("auto", "structured", "func", "backpack"):
        check_exact(module, X, backend=backend)


def test_without_influence_at_all():
    """Trainable parameters, none of which the outputs depend on: all gradients would be zero."""

    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.spare, self.scale = nn.Linear(4, 3), nn.Linear(4, 3).requires_grad_(False)

        def forward(self, x):
            return self.scale(x)

    with pytest.raises(NetworkError, match="must have gradients"):
        gradient_scores(Constant().double(), X, None)


@pytest.mark.parametrize("name", NETWORKS)
def test_plans_of_common_networks(name):
    module, inputs, _ = build(name)
    plan = plan_of(module, inputs)
    expected = {
        "vision_transformer": {"structured", "func"},
        "sequence_first": {"structured", "func"},
        "transformer_encoder": {"structured", "func"},
        "text_gru": {"structured", "loop"},
    }
    assert set(plan) == expected.get(name, {"structured"})
    others = plan.get("func", set()) | plan.get("loop", set())
    if name == "text_gru":
        assert {key.partition(".")[0] for key in others} == {"gru"}
    elif name != "sequence_first":  # there even the layers that have rules see the samples in another dimension
        assert all(key in ("token", "position") or "attention" in key or "self_attn" in key for key in others)
    assert set.union(*plan.values()) == {key for key, _ in module.named_parameters()}
