"""A strategy as a user writes it: one class, public names alone."""

import ast
import inspect
import sys

import numpy as np
import torch

from skal.base import ScoreStrategy
from skal.checks import check_strategy
from skal.context import QueryContext, rows_within


class DensityMargin(ScoreStrategy):
    """Margin, weighed by how near a sample is to the others of the pool."""

    needs_network = False

    def __init__(self, *, subset: int | None = None, random_state=None) -> None:
        self.subset = subset
        self.random_state = random_state

    def _score(self, context: QueryContext) -> np.ndarray:
        features = context.features().double()
        features = features / torch.linalg.vector_norm(features, dim=1, keepdim=True).clamp_min(1e-12)
        step = rows_within(context.memory // 8, 8 * context.n_pool)
        density = torch.cat([(rows @ features.T).mean(dim=1) for rows in features.split(step)])
        ordered = np.sort(context.predict_proba(), axis=1)
        return (1 - ordered[:, -1] + ordered[:, -2]) * (1 + density.cpu().numpy())


def test_it_passes_all_checks():
    check_strategy(DensityMargin())


def test_it_needs_public_names_alone():
    tree = ast.parse(inspect.getsource(sys.modules[__name__]))
    modules = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not [name for name in modules if any(part.startswith("_") for part in name.split("."))]
