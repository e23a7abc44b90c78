"""Shapes, sizes and arguments of every network."""

import copy

import pytest
import torch
from torch import nn

from skal.exceptions import SkalError
from skal.nets import CNN, MLP, VGG11, ConvNet, ResNet18, WideResNet

IMAGE_NETS = {
    "MLP": lambda c, k, size: MLP((c, size, size), n_classes=k, hidden=(16,)),
    "CNN": lambda c, k, size: CNN(in_channels=c, n_classes=k, image_size=size),
    "ConvNet": lambda c, k, size: ConvNet(in_channels=c, n_classes=k, depth=2, width=8),
    "VGG11": lambda c, k, size: VGG11(batch_norm=True, in_channels=c, n_classes=k, hidden=32),
    "VGG11 without batch norm": lambda c, k, size: VGG11(batch_norm=False, in_channels=c, n_classes=k),
    "ResNet18 cifar": lambda c, k, size: ResNet18(stem="cifar", width=4, in_channels=c, n_classes=k),
    "ResNet18 imagenet": lambda c, k, size: ResNet18(stem="imagenet", width=4, in_channels=c, n_classes=k),
    "WideResNet": lambda c, k, size: WideResNet(depth=10, width=1, in_channels=c, n_classes=k),
}


def n_parameters(net):
    return sum(parameter.numel() for parameter in net.parameters())


@pytest.fixture(params=IMAGE_NETS.values(), ids=IMAGE_NETS)
def make(request):
    torch.manual_seed(0)
    return request.param


@pytest.mark.parametrize(("channels", "size", "n_classes"), [(1, 8, 2), (1, 28, 10), (3, 32, 100), (3, 19, 1)])
def test_logits_have_one_column_per_class(make, channels, size, n_classes):
    net = make(channels, n_classes, size)
    images = torch.rand(2, channels, size, size)
    assert net(images).shape == (2, n_classes)


def test_every_parameter_is_used(make):
    net = make(1, 3, 16)
    # Squared, since softmax-like invariances could cancel a plain sum.
    net(torch.rand(4, 1, 16, 16)).square().sum().backward()
    unused = [name for name, p in net.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert unused == []


def test_outputs_are_logits_not_probabilities(make):
    net = make(1, 3, 8).eval()
    outputs = net(10 * torch.randn(6, 1, 8, 8))
    assert outputs.min() < 0
    assert not torch.allclose(outputs.sum(1), torch.ones(6))
    assert not torch.allclose(outputs.exp().sum(1), torch.ones(6))


def test_samples_are_independent_in_eval_mode(make):
    net = make(1, 3, 8).eval()
    images = torch.rand(4, 1, 8, 8)
    together = net(images)
    alone = torch.cat([net(image[None]) for image in images])
    torch.testing.assert_close(together, alone)


def test_graph_can_be_traced(make):
    """BackPACK's converter, which residual networks need, traces with torch.fx."""
    net = make(1, 3, 8).eval()
    images = torch.rand(2, 1, 8, 8)
    torch.testing.assert_close(torch.fx.symbolic_trace(copy.deepcopy(net))(images), net(images))


def test_per_sample_gradients_with_torch_func(make):
    net = make(1, 3, 8).eval().double()
    images = torch.rand(2, 1, 8, 8, dtype=torch.float64)
    state = dict(net.named_parameters())

    def output(parameters, image):
        return torch.func.functional_call(net, parameters, (image[None],))[0, 1]

    rows = torch.func.vmap(torch.func.grad(output), (None, 0))(state, images)
    for row, image in enumerate(images):
        expected = torch.autograd.grad(net(image[None])[0, 1], list(state.values()))
        for name, gradient in zip(state, expected, strict=True):
            torch.testing.assert_close(rows[name][row], gradient)


def test_cnn_is_the_tutorial_network():
    net = CNN()
    shapes = {name: tuple(parameter.shape) for name, parameter in net.named_parameters()}
    assert shapes == {
        "conv1.weight": (6, 3, 5, 5),
        "conv1.bias": (6,),
        "conv2.weight": (16, 6, 5, 5),
        "conv2.bias": (16,),
        "fc1.weight": (120, 400),
        "fc1.bias": (120,),
        "fc2.weight": (84, 120),
        "fc2.bias": (84,),
        "fc3.weight": (10, 84),
        "fc3.bias": (10,),
    }
    assert n_parameters(net) == 62_006


def test_cnn_computes_what_the_tutorial_computes():
    F = nn.functional
    net = CNN()
    x = torch.rand(2, 3, 32, 32)
    y = F.max_pool2d(F.relu(net.conv1(x)), 2, 2)
    y = F.max_pool2d(F.relu(net.conv2(y)), 2, 2)
    y = F.relu(net.fc1(torch.flatten(y, 1)))
    expected = net.fc3(F.relu(net.fc2(y)))
    torch.testing.assert_close(net(x), expected)


@pytest.mark.parametrize("size", [4, 5, 8, 15, 16, 17, 28, 64])
def test_cnn_pads_only_small_images(size):
    net = CNN(image_size=size)
    assert net.conv1.padding == ((0, 0) if size >= 16 else (2, 2))
    assert net(torch.rand(1, 3, size, size)).shape == (1, 10)


DROPOUT_NETS = {
    "MLP": (lambda rate: MLP(64, hidden=(32, 32), dropout=rate), 2),
    "CNN": (lambda rate: CNN(1, image_size=8, dropout=rate), 3),
    "VGG11": (lambda rate: VGG11(in_channels=1, dropout=rate), 2),
    "WideResNet": (lambda rate: WideResNet(10, 1, dropout=rate, in_channels=1), 3),
}


@pytest.mark.parametrize(("make_net", "n_layers"), DROPOUT_NETS.values(), ids=DROPOUT_NETS)
def test_dropout_layers_are_there_only_if_asked_for(make_net, n_layers):
    def rates(net):
        return [module.p for module in net.modules() if isinstance(module, nn.Dropout)]

    assert rates(make_net(0.0)) == []
    assert rates(make_net(0.3)) == [0.3] * n_layers
    # Weights can go from a network without dropout to one with it.
    make_net(0.3).load_state_dict(make_net(0.0).state_dict())


@pytest.mark.parametrize(("make_net", "n_layers"), DROPOUT_NETS.values(), ids=DROPOUT_NETS)
def test_dropout_acts_in_training_only(make_net, n_layers):
    torch.manual_seed(0)
    net = make_net(0.5)
    images = torch.rand(4, 1, 8, 8)
    assert not torch.equal(net(images), net(images))
    net.eval()
    assert torch.equal(net(images), net(images))


def test_mlp_takes_an_int_or_a_shape():
    assert n_parameters(MLP((1, 8, 8), 10, (20, 30))) == 65 * 20 + 21 * 30 + 31 * 10
    assert n_parameters(MLP(64, 10, 20)) == 65 * 20 + 21 * 10
    assert n_parameters(MLP(64, 10, ())) == 65 * 10


def test_convnet_counts_its_convolutions():
    net = ConvNet(in_channels=1, n_classes=10, depth=4, width=6)
    convolutions = [module for module in net.modules() if isinstance(module, nn.Conv2d)]
    assert [(c.in_channels, c.out_channels) for c in convolutions] == [(1, 6), (6, 6), (6, 6), (6, 6)]
    assert net.fc.in_features == 6


def test_convnet_averages_over_the_image():
    torch.manual_seed(0)
    net = ConvNet(in_channels=1, depth=2, width=5)
    images = torch.rand(3, 1, 8, 8)
    expected = net.fc(net.features(images).mean(dim=(2, 3)))
    torch.testing.assert_close(net(images), expected)


def test_convnet_keeps_the_scale_at_depth():
    torch.manual_seed(0)
    images = torch.randn(4, 3, 16, 16)
    features = ConvNet(depth=12, width=64).features(images)
    # Zero padding loses a little at every layer; PyTorch's default would lose a factor 6 in variance at each.
    assert 0.1 < features.square().mean() < 2


def test_vgg11_features_are_torchvisions():
    with torch.device("meta"):
        plain, normed = VGG11(batch_norm=False).features, VGG11(batch_norm=True).features
    assert n_parameters(plain) == 9_220_480
    kinds = "".join({nn.Conv2d: "C", nn.BatchNorm2d: "B", nn.ReLU: "R", nn.MaxPool2d: "M"}[type(m)] for m in normed)
    assert kinds == "CBRMCBRMCBRCBRMCBRCBRMCBRCBRM"
    assert normed[25].weight.shape == (512, 512, 3, 3)
    assert plain[18].weight.shape == (512, 512, 3, 3)


@pytest.mark.parametrize(("size", "left"), [(8, 1), (28, 1), (32, 1), (64, 2), (224, 7), (1, 1)])
def test_vgg11_pooling_keeps_a_pixel(size, left):
    with torch.device("meta"):
        assert VGG11().features(torch.rand(2, 3, size, size)).shape == (2, 512, left, left)


def test_vgg11_classifier_widths():
    with torch.device("meta"):
        linear = [m for m in VGG11(n_classes=7).modules() if isinstance(m, nn.Linear)]
        assert [tuple(m.weight.shape) for m in linear] == [(512, 512), (512, 512), (7, 512)]
        linear = [m for m in VGG11(n_classes=7, hidden=()).modules() if isinstance(m, nn.Linear)]
        assert [tuple(m.weight.shape) for m in linear] == [(7, 512)]


BAD_ARGUMENTS = [
    (MLP, {"n_features": 0}, "n_features"),
    (MLP, {"n_features": ()}, "n_features"),
    (MLP, {"n_features": "64"}, "n_features"),
    (MLP, {"n_features": 64, "hidden": (8, -1)}, "hidden"),
    (MLP, {"n_features": 64, "hidden": 2.5}, "hidden"),
    (MLP, {"n_features": 64, "n_classes": True}, "n_classes"),
    (MLP, {"n_features": 64, "dropout": 1.0}, "dropout"),
    (CNN, {"in_channels": 0}, "in_channels"),
    (CNN, {"n_classes": 2.0}, "n_classes"),
    (CNN, {"image_size": 3}, "image_size"),
    (CNN, {"image_size": (32, 32)}, "image_size"),
    (CNN, {"dropout": -0.1}, "dropout"),
    (CNN, {"dropout": "much"}, "dropout"),
    (ConvNet, {"depth": 0}, "depth"),
    (ConvNet, {"width": 0}, "width"),
    (ConvNet, {"in_channels": None}, "in_channels"),
    (VGG11, {"batch_norm": 3}, "batch_norm"),
    (VGG11, {"dropout": float("nan")}, "dropout"),
    (VGG11, {"hidden": None}, "hidden"),
    (ResNet18, {"stem": "mnist"}, "stem"),
    (ResNet18, {"width": -64}, "width"),
    (ResNet18, {"n_classes": 0}, "n_classes"),
    (WideResNet, {"depth": 27}, "depth"),
    (WideResNet, {"depth": 4}, "depth"),
    (WideResNet, {"width": 0.5}, "width"),
    (WideResNet, {"dropout": 1}, "dropout"),
]


@pytest.mark.parametrize(("net", "arguments", "name"), BAD_ARGUMENTS)
def test_bad_arguments_are_named(net, arguments, name):
    with pytest.raises(SkalError, match=rf"The '{name}' parameter of {net.__name__} must be .*Got .* instead\. \w"):
        net(**arguments)


@pytest.mark.parametrize(
    ("activation", "f"),
    [
        ("relu", lambda x: x.clamp(min=0)),
        ("leaky_relu", lambda x: torch.where(x > 0, x, 0.01 * x)),
        ("elu", lambda x: torch.where(x > 0, x, x.exp() - 1)),
        ("gelu", lambda x: x * (1 + torch.erf(x / 2**0.5)) / 2),
        ("tanh", torch.tanh),
    ],
)
def test_nonlinearities_of_an_mlp(activation, f):
    torch.manual_seed(0)
    net = MLP(4, 3, hidden=(5,), activation=activation).double()
    x = torch.randn(6, 4, dtype=torch.float64)
    first, last = (layer for layer in net.modules() if isinstance(layer, nn.Linear))
    torch.testing.assert_close(net(x), f(x @ first.weight.T + first.bias) @ last.weight.T + last.bias)


@pytest.mark.parametrize("init", ["he_normal", "truncated_normal"])
def test_weights_of_an_mlp_start_with_the_variance_of_he(init):
    torch.manual_seed(0)
    net = MLP(400, 300, hidden=(500,), init=init)
    for layer in (layer for layer in net.modules() if isinstance(layer, nn.Linear)):
        scaled = layer.weight.detach() / (2 / layer.in_features) ** 0.5
        assert abs(float(scaled.mean())) < 0.01
        assert float(scaled.std()) == pytest.approx(1, abs=0.01)
        assert (float(scaled.abs().max()) < 2 / 0.879) == (init == "truncated_normal")
        assert not layer.bias.any()


def test_an_mlp_refuses_other_nonlinearities_and_starts():
    with pytest.raises(SkalError, match="'activation' parameter of MLP must be one of 'relu'"):
        MLP(4, activation="swish")
    with pytest.raises(SkalError, match="'init' parameter of MLP must be one of 'uniform'"):
        MLP(4, init="zeros")
