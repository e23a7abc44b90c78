"""
Use a pre-trained network
=========================

Networks that others have trained come with a ``forward`` that nobody wants to edit. This tutorial takes a residual
network in the style of torchvision, gives it a new head, and queries with it, frozen and fine-tuned. Then it queries
with a transformer in the style of Hugging Face, which takes token ids and an attention mask. skal finds the last layer
of both by itself.
"""

# %%
# A network as it comes
# ---------------------
# This code has what makes such networks awkward to take apart: a ReLU that works in place, ``out += identity``, and a
# ``torch.flatten`` in ``forward`` that is not a layer.

from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.decomposition import PCA
from skorch import NeuralNetClassifier
from torch import nn

from skal import ActiveLearner, ActiveLearningClassifier, datasets
from skal.context import QueryContext
from skal.loop import ActiveLearningCurveDisplay
from skal.strategies import BADGE, CoreSet, DynamicAL


class BasicBlock(nn.Module):
    def __init__(self, n_in, n_out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(n_out)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(n_out)
        self.downsample = nn.Sequential(nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out))

    def forward(self, x):
        identity = self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, n_classes):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = BasicBlock(8, 16, stride=2)
        self.layer2 = BasicBlock(16, 32, stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(32, n_classes)

    def forward(self, x):
        x = self.layer2(self.layer1(self.relu(self.bn1(self.conv1(x)))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


# %%
# Suppose that somebody has trained it on the digits 0 to 4, with all their labels, and that we have only the weights.
# Our own task is to tell 5 to 9 apart, with few labels; without ``train_split=None`` skorch would set a fifth of them
# aside.

digits = datasets.load("digits")
theirs, ours, test = digits.y_train < 5, digits.y_train >= 5, digits.y_test >= 5
training = {"criterion": nn.CrossEntropyLoss, "optimizer": torch.optim.Adam, "train_split": None, "verbose": 0}
torch.manual_seed(0)
source = NeuralNetClassifier(ResNet, module__n_classes=5, lr=0.003, batch_size=32, max_epochs=5, **training)
weights = source.fit(digits.X_train[theirs], digits.y_train[theirs]).module_.state_dict()
X, y = digits.X_train[ours], digits.y_train[ours] - 5
X_test, y_test = digits.X_test[test], digits.y_test[test] - 5

# %%
# A new head, and the rest frozen or not
# --------------------------------------
# skorch's ``module`` may be a function that makes the network. Every ``fit``, and so every ``teach``, calls it and
# starts again from the pre-trained weights. (If you pass an instance instead, each ``fit`` continues where the last one
# ended.) ``requires_grad_(False)`` freezes the network; the new head is made afterwards, so it can learn. Freezing does
# not stop batch norm from updating its mean and variance during training.


def make_resnet(pretrained=True, frozen=False):
    model = ResNet(n_classes=5)
    if pretrained:
        model.load_state_dict(weights)
    model.requires_grad_(not frozen)
    model.fc = nn.Linear(model.fc.in_features, 5)
    return model


def make_net(lr=0.003, **params):
    shuffled = {"iterator_train__shuffle": True, "batch_size": 10, "max_epochs": 20}
    return NeuralNetClassifier(make_resnet, lr=lr, **training, **shuffled, **params)


# %%
# What skal sees
# --------------
# CoreSet compares the inputs of the last layer, BADGE the gradients in its weights, and DynamicAL the gradients in all
# trainable parameters. You need not tell them which layer is the last one: skal passes a sample or two through the
# network, with hooks that it removes again, and sees which layer with parameters is called last.

order = np.random.default_rng(0).permutation(len(X))
labelled, pool = order[:20], order[20:]
for frozen in (True, False):
    torch.manual_seed(0)
    net = make_net(module__frozen=frozen)
    learner = ActiveLearner(net, CoreSet(), X_training=X[labelled], y_training=y[labelled])
    context = QueryContext(learner, X[pool])
    n_free = sum(p.numel() for p in net.module_.parameters() if p.requires_grad)
    print(f"frozen={frozen}: {n_free} parameters can learn, embeddings {tuple(context.embeddings()[0].shape)}")
    print(f"last layer {context.last_layer.name}: {context.last_layer.layer}")

# %%
# The picture shows these embeddings for the fine-tuned network, in their first two principal components, and what each
# strategy asks for. It is a projection: points that look close may be far apart.

points = PCA(n_components=2, random_state=0).fit_transform(context.embeddings()[0].numpy())
figure, axes = plt.subplots(1, 3, figsize=(7, 2.9), sharex=True, sharey=True, layout="constrained")
for ax, strategy in zip(axes, (CoreSet(), BADGE(random_state=0), DynamicAL()), strict=True):
    chosen = strategy(learner, X[pool], 10)
    dots = ax.scatter(*points.T, c=y[pool] + 5, cmap="Set2", s=4)
    ax.scatter(*points[chosen].T, color="black", marker="x", s=35, linewidth=1.5)
    ax.set(title=type(strategy).__name__, xlabel="first component")
axes[0].set_ylabel("second component")
_ = figure.legend(*dots.legend_elements(), title="digit", loc="outside right center")

# %%
# Was the pre-training worth it?
# ------------------------------
# We compare three ways to start, with three seeds each and BADGE. :class:`skal.ActiveLearningClassifier` runs the loop;
# ``reinitialize=True`` makes every round call ``make_resnet`` again.

starts = {
    "from scratch": make_net(module__pretrained=False),
    "frozen": make_net(module__frozen=True, lr=0.02),  # a head alone can take larger steps
    "fine-tuned": make_net(),
}
settings = {"n_initial": 10, "query_size": 10, "n_rounds": 2, "reinitialize": True, "classes": range(5)}
loops = {
    name: [
        ActiveLearningClassifier(net, BADGE(), random_state=seed, **settings).fit(X, y, eval_set=(X_test, y_test))
        for seed in range(3)
    ]
    for name, net in starts.items()
}
figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
ActiveLearningCurveDisplay.from_estimator(loops, ax=ax, score_name="test accuracy")
ax.set(title="Mean and standard deviation of three seeds", xticks=range(10, 31, 10))
ax.grid(alpha=0.3)

# %%
# With the first labels the fine-tuned network is ahead. The network from scratch then catches up: such small digits can
# be learned without help, and three seeds cannot say which of the two is better later on. Freezing loses here, probably
# because features that tell five digits apart need not tell the other five apart, and a new head alone cannot make up
# for that. This may be different with a large backbone that was trained on far more data; measure it on your own data.
#
# A transformer with two inputs
# -----------------------------
# Hugging Face models take ``input_ids`` and an ``attention_mask``, and return an object that contains ``logits``. So
# does the small model below. skorch passes a dict of arrays as keyword arguments, and skal takes the same dict as the
# pool.


@dataclass
class Output:
    logits: torch.Tensor


class TextClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(40, 32, padding_idx=0)
        layer = nn.TransformerEncoderLayer(32, nhead=4, dim_feedforward=64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.classifier = nn.Linear(32, 3)

    def forward(self, input_ids, attention_mask):
        states = self.encoder(self.embedding(input_ids), src_key_padding_mask=attention_mask == 0)
        mask = attention_mask[..., None].to(states.dtype)
        return Output(self.classifier((states * mask).sum(dim=1) / mask.sum(dim=1)))


# %%
# Texts have 6 to 16 tokens and are padded with 0. Tokens 1 to 15 are words of three topics, five each; the others are
# filler. A text has three words of its topic and one of another.

rng = np.random.default_rng(0)
topics = rng.integers(3, size=700)
tokens = rng.integers(16, 40, size=(700, 16))
tokens[:, :3] = 1 + 5 * topics[:, None] + rng.integers(5, size=(700, 3))
tokens[:, 3] = 1 + 5 * ((topics + rng.integers(1, 3, size=700)) % 3) + rng.integers(5, size=700)
mask = (np.arange(16) < rng.integers(6, 17, size=(700, 1))).astype(np.int64)
first, pool, test = (
    {"input_ids": (tokens * mask)[rows], "attention_mask": mask[rows]}
    for rows in (slice(60), slice(60, 500), slice(500, None))
)

settings = training | {"lr": 0.001, "batch_size": 32, "max_epochs": 30}
try:
    NeuralNetClassifier(TextClassifier, **settings).fit(first, topics[:60])
except TypeError as error:
    print(error)

# %%
# An object is not a tensor: the loss refuses it before skal sees it, and skal's strategies would refuse it too. skal
# would accept a tuple with the logits first, but the loss would not. So wrap the model: the model itself stays as it
# is, and the wrapper's ``forward`` is one line.


class Logits(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = TextClassifier()  # here a pre-trained one would be loaded

    def forward(self, **inputs):
        return self.model(**inputs).logits


torch.manual_seed(0)
net = NeuralNetClassifier(Logits, **settings)
learner = ActiveLearner(net, DynamicAL(), X_training=first, y_training=topics[:60])
last = QueryContext(learner, pool).last_layer
print(f"last layer {last.name}: {last.layer}")
for strategy in (CoreSet(), BADGE(random_state=0), DynamicAL()):
    print(f"{type(strategy).__name__:>10}: {strategy(learner, pool, n_instances=5)}")

# %%
# The rest is as before, with dicts instead of arrays.

print(f"{len(learner.y_training)} labels, accuracy {learner.score(test, topics[500:]):.2f}")
indices, samples = learner.query(pool, n_instances=60)
learner.teach(samples, topics[60:500][indices])
print(f"{len(learner.y_training)} labels, accuracy {learner.score(test, topics[500:]):.2f}")
