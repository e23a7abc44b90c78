"""skal: deep active learning for scikit-learn users."""

from skal._version import __version__
from skal.compat.modal import patch_modal as _patch_modal
from skal.learners import ActiveLearner

__all__ = ["ActiveLearner", "__version__"]

_patch_modal()
