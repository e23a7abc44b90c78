"""Small networks of the kinds that people use, each with a few inputs."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from skal.nets import CNN, MLP, ResNet18, WideResNet

N_CLASSES = 3


class ResidualBlock(nn.Module):
    """As torchvision writes it: one ReLU in place for all uses, and the sum in place."""

    def __init__(self, n_in, n_out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(n_out)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(n_out)
        self.downsample = None
        if stride != 1:
            self.downsample = nn.Sequential(nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out))

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class TorchvisionStyle(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = ResidualBlock(4, 4, 1)
        self.layer2 = ResidualBlock(4, 8, 2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(8, N_CLASSES)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.avgpool(self.layer2(self.layer1(x)))
        x = torch.flatten(x, 1)
        return self.fc(x)


def small_vgg():
    """VGG's pattern with batch norm, activations in place and dropout, a few channels wide."""
    layers, n_in = [], 3
    for n_out in (4, "pool", 6, 6, "pool"):
        if n_out == "pool":
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(n_in, n_out, 3, padding=1), nn.BatchNorm2d(n_out), nn.ReLU(inplace=True)]
            n_in = n_out
    head = [nn.Flatten(), nn.Linear(24, 10), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(10, N_CLASSES)]
    return nn.Sequential(*layers, *head)


class VisionTransformer(nn.Module):
    """Class token and positions as parameters of its own, attention written out, sequence or batch first."""

    def __init__(self, batch_first=True, encoder=False):
        super().__init__()
        self.batch_first = batch_first
        self.patches = nn.Conv2d(3, 8, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.position = nn.Parameter(torch.randn(1, 5, 8))
        self.encoder = nn.TransformerEncoderLayer(8, 2, 12, batch_first=batch_first) if encoder else None
        self.norm = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=batch_first)
        self.head = nn.Linear(8, N_CLASSES)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.position
        x = x if self.batch_first else x.transpose(0, 1)
        if self.encoder is not None:
            x = self.encoder(x)
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        x = x if self.batch_first else x.transpose(0, 1)
        return self.head(x[:, 0])


class TextGRU(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 5, padding_idx=0)
        self.gru = nn.GRU(5, 6, batch_first=True)
        self.head = nn.Linear(6, N_CLASSES)

    def forward(self, tokens):
        return self.head(self.gru(self.embedding(tokens))[0].mean(1))


class TextAttention(nn.Module):
    """Attention from Linear layers, with the padding masked out."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.query, self.key, self.value = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.head = nn.Linear(6, N_CLASSES)

    def forward(self, tokens):
        x = self.embedding(tokens)
        padding = (tokens == 0)[:, None, :]
        scores = (self.query(x) @ self.key(x).transpose(1, 2)).masked_fill(padding, -30.0)
        return self.head((F.softmax(scores / 6**0.5, dim=-1) @ self.value(x)).mean(1))


class TextTransformer(nn.Module):
    """An encoder on token numbers, samples or tokens first. The head gets ``features``."""

    def __init__(self, n_classes=N_CLASSES, *, batch_first=True, dropout=0.1):
        super().__init__()
        self.batch_first = batch_first
        self.embed = nn.Embedding(11, 8)
        layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=batch_first, dropout=dropout)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(8, n_classes)

    def features(self, x):
        tokens = self.embed(x if self.batch_first else x.transpose(0, 1))
        return self.encoder(tokens).mean(dim=1 if self.batch_first else 0)

    def forward(self, x):
        return self.head(self.features(x))


# one of each kind, and the shape of its samples; None is token numbers
SMALL = {
    "MLP": (lambda n_classes: MLP(5, n_classes, hidden=(8, 7)), (5,)),
    "CNN": (lambda n_classes: CNN(in_channels=1, n_classes=n_classes, image_size=8), (1, 8, 8)),
    "ResNet": (lambda n_classes: ResNet18(n_classes=n_classes, width=8), (3, 8, 8)),
    "transformer": (TextTransformer, None),
}


def small_network(kind, n, n_classes=N_CLASSES, dtype=torch.float64):
    """A network of a kind in eval mode, and an array of n samples."""
    factory, shape = SMALL[kind]
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    module = factory(n_classes).to(dtype).eval()
    if shape is None:
        return module, rng.integers(11, size=(n, 6))
    return module, torch.as_tensor(rng.normal(size=(n, *shape))).to(dtype).numpy()


class Branches(nn.Module):
    """The first sample of a batch says which of two layers is used."""

    def __init__(self, n_in, n_out):
        super().__init__()
        self.left, self.right = nn.Linear(n_in, n_out), nn.Linear(n_in, n_out)

    def forward(self, x):
        return self.left(x) if x[0, 0] > 0 else self.right(x)


def _images(n, size=8):
    return torch.randn(n, 3, size, size)


def _tokens(n):
    tokens = torch.randint(1, 11, (n, 7))
    tokens[:, 5:] *= torch.randint(0, 2, (n, 2))  # some padding, and tokens that come twice
    return tokens


NETWORKS = {
    "mlp": (lambda: MLP((3, 8, 8), N_CLASSES, hidden=(7, 6)), _images),
    "tutorial_cnn": (lambda: CNN(3, N_CLASSES, image_size=8), _images),
    "resnet18": (lambda: ResNet18(width=8, n_classes=N_CLASSES), _images),
    "torchvision_style": (TorchvisionStyle, lambda n: _images(n, 16)),
    "wide_resnet": (lambda: WideResNet(10, 1, n_classes=N_CLASSES), _images),
    "vgg": (small_vgg, _images),
    "vision_transformer": (VisionTransformer, _images),
    "sequence_first": (lambda: VisionTransformer(batch_first=False, encoder=True), _images),
    "transformer_encoder": (lambda: VisionTransformer(encoder=True), _images),
    "text_gru": (TextGRU, _tokens),
    "text_attention": (TextAttention, _tokens),
}
# why a backend cannot do a network alone: what its error must name
UNSUPPORTED = {
    ("func", "text_gru"): "RuntimeError",
    ("backpack", "vision_transformer"): "'token' of a VisionTransformer",
    ("backpack", "sequence_first"): "'token' of a VisionTransformer",
    ("backpack", "transformer_encoder"): "'token' of a VisionTransformer",
    ("backpack", "text_gru"): "Embedding layer .Only padding_idx=None",
    ("structured", "vision_transformer"): "VisionTransformer",
    ("structured", "sequence_first"): "'encoder.norm1'",
    ("structured", "transformer_encoder"): "VisionTransformer",
    ("structured", "text_gru"): "GRU",
}


def unsupported(backend, name, dtype=torch.float64):
    """What the error of a backend must name, or None where it must work."""
    if (backend, name, dtype) == ("backpack", "text_attention", torch.float64):
        return "Embedding layer .expected scalar type Double"  # BackPACK's embeddings know float32 alone
    return UNSUPPORTED.get((backend, name))


def count_hooks(module):
    """Hooks of all kinds on a module and its parts."""
    return sum(
        len(hooks) for m in module.modules() for name, hooks in vars(m).items() if name.endswith("_hooks") and hooks
    )


def randomise(module):
    """Running statistics and scales as training would leave them, not as initialisation does."""
    with torch.no_grad():
        for layer in module.modules():
            if isinstance(getattr(layer, "running_mean", None), torch.Tensor):
                layer.running_mean.normal_(0, 0.5)
                layer.running_var.uniform_(0.5, 2)
            if "Norm" in type(layer).__name__:
                for p in layer.parameters(recurse=False):
                    p.copy_(torch.randn_like(p) * 0.3 + 1)
    return module


def build(name, n=5, seed=0, dtype=torch.float64):
    """A network in training mode (it is the engine's task to see to eval mode), n inputs and n labels."""
    torch.manual_seed(seed)
    factory, inputs = NETWORKS[name]
    module, X = randomise(factory()), inputs(n)
    y = torch.arange(n) % N_CLASSES
    return module.to(dtype).train(), X.to(dtype) if X.is_floating_point() else X, y
