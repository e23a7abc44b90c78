"""Strategies as a third party would write them, and one to break."""

from typing import ClassVar

import numpy as np
import torch

from skal.base import QueryStrategy, ScoreStrategy
from skal.validation import Real, make_generator


class FarthestFirst(QueryStrategy):
    """A batch strategy on the last layer's inputs that needs labels and has a parameter of its own."""

    needs_labels = True

    constraints: ClassVar = {"power": Real(0.1, 10)}

    def __init__(self, *, power=1.0):
        self.power = power

    def _select(self, context, n_instances):
        pool, _ = context.embeddings()
        labelled, _ = context.embeddings(context.labelled)
        distances = torch.cdist(pool.double(), labelled.double()).min(dim=1).values ** self.power
        chosen, metrics = [], []
        for _ in range(n_instances):
            self._mask(distances, chosen)
            best = int(distances.argmax())
            chosen.append(best)
            metrics.append(float(distances[best]))
            new = torch.cdist(pool.double(), pool[best : best + 1].double())[:, 0] ** self.power
            distances = torch.minimum(distances, new)
        return np.array(chosen), np.array(metrics)

    def _mask(self, distances, chosen):
        distances[chosen] = -1.0


class RandomBatch(QueryStrategy):
    """A batch strategy that draws."""

    needs_network = False
    reads_outputs = False
    draws_from_pool = True

    def __init__(self, *, random_state=None):
        self.random_state = random_state

    def _select(self, context, n_instances):
        indices = make_generator("RandomBatch", self.random_state).choice(context.n_pool, n_instances, replace=False)
        return indices, np.zeros(n_instances)


class Base(ScoreStrategy):
    """A score strategy to break."""

    constraints: ClassVar = {"power": Real(0.1, 10)}

    def __init__(self, *, power=2):
        self.power = power

    def _score(self, context):
        proba = context.predict_proba()
        return -(proba**self.power).sum(axis=1)


class ByPosition(Base):
    """Broken: the score depends on where a sample lies in the pool."""

    def _score(self, context):
        return super()._score(context) + np.linspace(0, 1, context.n_pool)


def outputs_as_found(context):
    """What the module returns in the mode that it is in, without skal's checks."""
    with torch.no_grad():
        return context.net.module_(torch.as_tensor(context.pool.X))


class TakesOutputsForLogits(Base):
    """Broken: looks neither at the criterion nor at what the module returned."""

    def _score(self, context):
        flags = {module: module.training for module in context.net.module_.modules()}
        context.net.module_.eval()
        outputs = outputs_as_found(context)
        for module, flag in flags.items():
            module.training = flag
        return torch.distributions.Categorical(logits=outputs.nan_to_num()).entropy().numpy()
