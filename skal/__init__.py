"""skal: deep active learning for scikit-learn users."""

from skal._version import __version__
from skal.compat.modal import patch_modal as _patch_modal
from skal.learners import ActiveLearner
from skal.strategies import NPC, DynamicAL, dynamic_al, npc

__all__ = ["NPC", "ActiveLearner", "DynamicAL", "__version__", "dynamic_al", "npc"]

_patch_modal()
