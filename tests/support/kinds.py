"""Networks of many kinds: the layers, connections and inputs that the shared networks leave out, and these."""

import torch
from torch import nn

from skal.nets import ConvNet

from .networks import N_CLASSES, NETWORKS


class Residual(nn.Module):
    """A branch added to its input."""

    def __init__(self, branch):
        super().__init__()
        self.branch = branch

    def forward(self, x):
        return x + self.branch(x)


class TiedEnds(nn.Module):
    """One matrix for the way in and the way out."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.head = nn.Linear(6, 4), nn.Linear(4, 6), nn.Linear(6, N_CLASSES)
        self.last.weight = nn.Parameter(self.first.weight.data.T.clone())
        self.again = self.first

    def forward(self, x):
        return self.head(torch.tanh(self.last(torch.tanh(self.first(x) + self.again(x.flip(1))))))


class TextLSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(11, 5), nn.LSTM(5, 6, batch_first=True, bidirectional=True)
        self.head = nn.Linear(12, N_CLASSES)

    def forward(self, tokens):
        return self.head(self.lstm(self.embedding(tokens))[0].mean(1))


class Gated(nn.Module):
    """Parameters of its own, a product of branches, and a scale that is learnt."""

    def __init__(self):
        super().__init__()
        self.value, self.gate, self.head = nn.Linear(6, 5), nn.Linear(6, 5), nn.Linear(5, N_CLASSES)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return self.head(self.scale * self.value(x) * torch.sigmoid(self.gate(x)))


class Bilinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.pair, self.head = nn.Bilinear(6, 6, 5), nn.Linear(5, N_CLASSES)

    def forward(self, x):
        return self.head(torch.tanh(self.pair(x, x.flip(1))))


class Mixture(nn.Module):
    """Two experts, and a softmax between them."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(6, N_CLASSES) for _ in range(2))
        self.router = nn.Linear(6, 2)

    def forward(self, x):
        shares = torch.softmax(self.router(x), dim=1)
        return sum(shares[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts))


def frozen_body():
    module = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, N_CLASSES))
    for p in module[0].parameters():
        p.requires_grad = False
    return module


def _flat(n):
    return torch.randn(n, 6)


def _images(n):
    return torch.randn(n, 3, 8, 8)


def _words(n):
    return torch.randint(0, 11, (n, 7))


def _ends(*layers, width):
    """Layers for flat inputs, and a head."""
    return nn.Sequential(*layers, nn.Linear(width, N_CLASSES))


def _pooled(*layers, channels, pool=nn.AdaptiveAvgPool2d):
    """Convolutions, their average and a head."""
    return nn.Sequential(*layers, pool(1), nn.Flatten(), nn.Linear(channels, N_CLASSES))


KINDS = {
    **NETWORKS,
    "linear": (lambda: nn.Linear(6, N_CLASSES), _flat),
    "batch norm MLP": (lambda: _ends(nn.Linear(6, 7), nn.BatchNorm1d(7), nn.PReLU(7), width=7), _flat),
    "layer norm MLP": (lambda: _ends(nn.Linear(6, 7), nn.LayerNorm(7), nn.GELU(), nn.Dropout(), width=7), _flat),
    "residual MLP": (lambda: _ends(Residual(nn.Sequential(nn.Linear(6, 6), nn.SiLU())), width=6), _flat),
    "tied ends": (TiedEnds, _flat),
    "gated": (Gated, _flat),
    "bilinear": (Bilinear, _flat),
    "mixture of experts": (Mixture, _flat),
    "frozen body": (frozen_body, _flat),
    "weight norm": (lambda: _ends(nn.utils.parametrizations.weight_norm(nn.Linear(6, 7)), nn.Tanh(), width=7), _flat),
    "ConvNet": (lambda: ConvNet(3, N_CLASSES, width=4), _images),
    "group norm": (lambda: _pooled(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ELU(), channels=4), _images),
    "instance norm": (
        lambda: _pooled(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.ReLU(), channels=4),
        _images,
    ),
    "depthwise": (
        lambda: _pooled(nn.Conv2d(3, 6, 3, groups=3), nn.ReLU(), nn.Conv2d(6, 4, 1), nn.Hardswish(), channels=4),
        _images,
    ),
    "dilated and strided": (
        lambda: _pooled(nn.Conv2d(3, 4, 3, stride=2, padding=2, dilation=2), nn.LeakyReLU(), channels=4),
        _images,
    ),
    "transposed": (lambda: _pooled(nn.ConvTranspose2d(3, 4, 3, stride=2), nn.ReLU(), channels=4), _images),
    "sequence convolution": (
        lambda: _pooled(nn.Conv1d(3, 4, 3), nn.ReLU(), channels=4, pool=nn.AdaptiveAvgPool1d),
        lambda n: torch.randn(n, 3, 9),
    ),
    "volume convolution": (
        lambda: _pooled(nn.Conv3d(2, 3, 2), nn.ReLU(), channels=3, pool=nn.AdaptiveMaxPool3d),
        lambda n: torch.randn(n, 2, 4, 4, 4),
    ),
    "text LSTM": (TextLSTM, _words),
    "embedding bag": (lambda: _ends(nn.EmbeddingBag(11, 6, mode="mean"), nn.Tanh(), width=6), _words),
}
