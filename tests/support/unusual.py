"""Networks whose ``forward`` does more than pass samples through layers, one after the other."""

from types import SimpleNamespace

import torch
from torch import nn

from skal.nets import MLP


class Plain(MLP):
    """What the others are compared with: the same weights, and nothing unusual."""

    def __init__(self):
        super().__init__(5, 3, hidden=(16,))
        self.auxiliary = nn.Linear(16, 3).requires_grad_(False)
        self.features.append(nn.Dropout(0.2))


class AuxiliaryHead(Plain):
    """Calls the head that makes the outputs before another one."""

    def forward(self, x):
        features = self.features(x)
        logits = self.fc(features)
        return logits, self.auxiliary(features)


class LossInside(Plain):
    """Computes a loss of its own in ``forward``, with a layer of its own."""

    def forward(self, x):
        logits = super().forward(x)
        return {"loss": self.auxiliary(torch.relu(logits @ self.fc.weight)).mean(), "logits": logits}


class ModelOutput(Plain):
    """Returns an object, as Hugging Face's models do; its first entry is a loss."""

    def forward(self, x):
        logits = super().forward(x)
        return SimpleNamespace(loss=logits.mean(), logits=logits, hidden_states=None)


class SortsItsBatch(Plain):
    """As for packed sequences: sorted on entering, restored at the end."""

    def forward(self, x):
        order = x[:, 0].argsort(descending=True, stable=True)
        return super().forward(x[order])[order.argsort()]


class Scaled(MLP):
    """What the last layer gives is not what comes out."""

    def forward(self, x):
        return 2 * super().forward(x)
