"""skal: deep active learning for scikit-learn users.

``__version__`` is the release that is installed.

>>> import skal
>>> tuple(map(int, skal.__version__.split(".")[:2])) >= (0, 1)
True
"""

from skal._version import __version__
from skal.compat.modal import patch_modal as _patch_modal
from skal.learners import ActiveLearner, LinearizedLearner
from skal.loop import ActiveLearningClassifier
from skal.strategies import NPC, DynamicAL, NTKLookahead, dynamic_al, npc, ntk_lookahead

__all__ = [
    "NPC",
    "ActiveLearner",
    "ActiveLearningClassifier",
    "DynamicAL",
    "LinearizedLearner",
    "NTKLookahead",
    "__version__",
    "dynamic_al",
    "npc",
    "ntk_lookahead",
]

_patch_modal()
