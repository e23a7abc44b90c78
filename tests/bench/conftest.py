"""Made-up results as fixtures."""

import numpy as np
import pytest

from . import results


@pytest.fixture(scope="session")
def make_result():
    return results.make_result


@pytest.fixture
def result(make_result):
    """Four strategies, five seeds, four budgets; ``s3`` is clearly better than Random."""
    rng = np.random.default_rng(0)
    scores = np.array([0.5, 0.6, 0.66, 0.7]) + rng.normal(scale=0.01, size=(4, 5, 4))
    scores[:, :, 0] = scores[0, :, 0]
    scores[3, :, 1:] += 0.1
    return make_result(scores)
