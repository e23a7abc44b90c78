"""Strategies as a third party would write them, and one to break."""

import numpy as np
import torch

from skal.base import QueryStrategy, ScoreStrategy
from skal.exceptions import InvalidParameterError
from skal.validation import make_generator


class FarthestFirst(QueryStrategy):
    """A batch strategy on the last layer's inputs that needs labels and has a parameter of its own."""

    needs_labels = True

    def __init__(self, *, batch_size=256, n_jobs=None):
        self.batch_size = batch_size
        self.n_jobs = n_jobs

    def _check_params(self):
        super()._check_params()
        if self.n_jobs not in (None, 1, 2):
            raise InvalidParameterError.for_parameter("FarthestFirst", "n_jobs", "1 or 2", self.n_jobs, "Use 1.")

    def _select(self, context, n_instances):
        pool, _ = context.embeddings()
        labelled, _ = context.embeddings(context.labelled)
        distances = torch.cdist(pool.double(), labelled.double()).min(dim=1).values
        chosen, metrics = [], []
        for _ in range(n_instances):
            self._mask(distances, chosen)
            best = int(distances.argmax())
            chosen.append(best)
            metrics.append(float(distances[best]))
            new = torch.cdist(pool.double(), pool[best : best + 1].double())[:, 0]
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

    def __init__(self, *, batch_size=256):
        self.batch_size = batch_size

    def _score(self, context):
        proba = context.predict_proba()
        return -(proba**2).sum(axis=1)


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
