"""ResNet-18 and WideResNet against their papers, torchvision's names, and the forward pass written out."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from skal.exceptions import InvalidParameterError
from skal.nets import ResNet18, WideResNet


def n_parameters(net):
    return sum(parameter.numel() for parameter in net.parameters())


def torchvision_shapes(conv1, n_classes):
    """Names and shapes of torchvision's resnet18, written down by its rule."""

    def batch_norm(prefix, channels):
        shapes = {f"{prefix}.{key}": (channels,) for key in ("weight", "bias", "running_mean", "running_var")}
        return {**shapes, f"{prefix}.num_batches_tracked": ()}

    shapes = {"conv1.weight": conv1, **batch_norm("bn1", 64)}
    previous = 64
    for stage, channels in enumerate((64, 128, 256, 512), start=1):
        for block in (0, 1):
            name = f"layer{stage}.{block}"
            first_of_narrower = block == 0 and stage > 1
            shapes[f"{name}.conv1.weight"] = (channels, previous, 3, 3)
            shapes |= batch_norm(f"{name}.bn1", channels)
            shapes[f"{name}.conv2.weight"] = (channels, channels, 3, 3)
            shapes |= batch_norm(f"{name}.bn2", channels)
            if first_of_narrower:
                shapes[f"{name}.downsample.0.weight"] = (channels, previous, 1, 1)
                shapes |= batch_norm(f"{name}.downsample.1", channels)
            previous = channels
    return shapes | {"fc.weight": (n_classes, 512), "fc.bias": (n_classes,)}


@pytest.mark.parametrize(
    ("stem", "conv1", "n_classes", "count"),
    [
        ("imagenet", (64, 3, 7, 7), 1000, 11_689_512),
        ("cifar", (64, 3, 3, 3), 10, 11_173_962),
    ],
)
def test_resnet18_names_and_sizes_are_torchvisions(stem, conv1, n_classes, count):
    with torch.device("meta"):
        net = ResNet18(stem=stem, n_classes=n_classes)
    expected = torchvision_shapes(conv1, n_classes)
    state = net.state_dict()
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == expected
    assert list(state) == list(expected)
    assert n_parameters(net) == count


def batch_norm(x, state, name):
    return F.batch_norm(
        x,
        state[f"{name}.running_mean"],
        state[f"{name}.running_var"],
        state[f"{name}.weight"],
        state[f"{name}.bias"],
    )


def with_random_statistics(net):
    """Batch norm layers that do something, in eval mode."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight.data, module.bias.data, module.running_mean, module.running_var):
                tensor.uniform_(0.5, 1.5)
    return net.eval()


@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
def test_resnet18_forward_written_out(stem):
    torch.manual_seed(0)
    net = with_random_statistics(ResNet18(stem=stem, width=3, in_channels=1, n_classes=4))
    s = net.state_dict()
    images = torch.rand(2, 1, 32, 32)

    if stem == "cifar":
        x = F.relu(batch_norm(F.conv2d(images, s["conv1.weight"], padding=1), s, "bn1"))
    else:
        x = F.relu(batch_norm(F.conv2d(images, s["conv1.weight"], stride=2, padding=3), s, "bn1"))
        x = F.max_pool2d(x, 3, stride=2, padding=1)
    for stage in (1, 2, 3, 4):
        for block in (0, 1):
            name = f"layer{stage}.{block}"
            stride = 2 if stage > 1 and block == 0 else 1
            shortcut = x
            if stride == 2:
                shortcut = F.conv2d(x, s[f"{name}.downsample.0.weight"], stride=2)
                shortcut = batch_norm(shortcut, s, f"{name}.downsample.1")
            y = F.conv2d(x, s[f"{name}.conv1.weight"], stride=stride, padding=1)
            y = F.relu(batch_norm(y, s, f"{name}.bn1"))
            y = batch_norm(F.conv2d(y, s[f"{name}.conv2.weight"], padding=1), s, f"{name}.bn2")
            x = F.relu(y + shortcut)
    expected = x.mean(dim=(2, 3)) @ s["fc.weight"].T + s["fc.bias"]

    torch.testing.assert_close(net(images), expected)


def test_resnet18_starts_as_torchvisions():
    torch.manual_seed(0)
    net = ResNet18(width=16)
    weight = net.layer4[1].conv2.weight
    fan_out = weight.shape[0] * 9
    assert weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.02)
    # A convolution that changes the number of channels tells fan_out from fan_in.
    weight = net.layer4[0].conv1.weight
    assert weight.std().item() == pytest.approx((2 / (weight.shape[0] * 9)) ** 0.5, rel=0.02)
    assert (net.layer4[1].bn2.weight == 1).all()


# WRN-16-8, -28-10 and -40-4 as in Table 4 of the paper (millions); WRN-28-2 as in the semi-supervised literature.
@pytest.mark.parametrize(
    ("depth", "width", "millions"), [(28, 2, 1.47), (40, 4, 8.9), (16, 8, 11.0), (28, 10, 36.5), (40, 1, 0.56)]
)
def test_wide_resnet_has_the_papers_size(depth, width, millions):
    with torch.device("meta"):
        net = WideResNet(depth, width)
    assert n_parameters(net) / 1e6 == pytest.approx(millions, rel=0.01)
    assert net.fc.in_features == 64 * width


def test_wide_resnet_28_2_exactly():
    with torch.device("meta"):
        assert n_parameters(WideResNet()) == 1_467_610


@pytest.mark.parametrize(("depth", "n_blocks"), [(10, 1), (16, 2), (28, 4)])
def test_wide_resnet_blocks_per_group(depth, n_blocks):
    with torch.device("meta"):
        net = WideResNet(depth, 1)
    assert [len(group) for group in (net.layer1, net.layer2, net.layer3)] == [n_blocks] * 3


# the networks of the NTK look-ahead papers: one block in one or two groups, at most 640 channels
@pytest.mark.parametrize(("groups", "width"), [(1, 40), (2, 20), (3, 10)])
def test_wide_resnet_of_640_channels(groups, width):
    with torch.device("meta"):
        net = WideResNet(10, width, groups=groups)
    assert net.fc.in_features == net.bn.num_features == 640
    assert [name for name, _ in net.named_children() if name.startswith("layer")] == ["layer1", "layer2", "layer3"][
        :groups
    ]


@pytest.mark.parametrize("groups", [0, 4, 2.0, True])
def test_wide_resnet_refuses_other_numbers_of_groups(groups):
    with pytest.raises(InvalidParameterError, match="'groups' parameter of WideResNet must be one of 1, 2, 3"):
        WideResNet(10, 1, groups=groups)


@pytest.mark.parametrize(("width", "groups"), [(1, 3), (2, 3), (2, 2), (1, 1)])
def test_wide_resnet_forward_written_out(width, groups):
    torch.manual_seed(0)
    net = with_random_statistics(WideResNet(16, width, in_channels=1, n_classes=4, groups=groups))
    s = net.state_dict()
    images = torch.rand(2, 1, 16, 16)

    x = F.conv2d(images, s["conv1.weight"], padding=1)
    for group in (1, 2, 3)[:groups]:
        for block in (0, 1):
            name = f"layer{group}.{block}"
            stride = 2 if group > 1 and block == 0 else 1
            activated = F.relu(batch_norm(x, s, f"{name}.bn1"))
            changes = f"{name}.shortcut.weight" in s
            assert changes == (block == 0 and (group > 1 or width > 1))
            shortcut = F.conv2d(activated, s[f"{name}.shortcut.weight"], stride=stride) if changes else x
            y = F.conv2d(activated, s[f"{name}.conv1.weight"], stride=stride, padding=1)
            y = F.relu(batch_norm(y, s, f"{name}.bn2"))
            x = F.conv2d(y, s[f"{name}.conv2.weight"], padding=1) + shortcut
    x = F.relu(batch_norm(x, s, "bn"))
    expected = x.mean(dim=(2, 3)) @ s["fc.weight"].T + s["fc.bias"]

    torch.testing.assert_close(net(images), expected)
