"""skal: deep active learning for scikit-learn users.

The house, room by room:

- ``skal.strategies``: the query strategies, each as a class and as a function in modAL's form.
- ``skal.learners``: ``ActiveLearner`` and ``LinearizedLearner``, which a strategy is plugged into.
- ``skal.loop``: ``ActiveLearningClassifier``, the whole loop as a scikit-learn classifier, and labelling sessions.
- ``skal.labelling``: from files to labels and a model, by a page in the browser or a cell in a notebook.
- ``skal.stopping``: when to stop labelling, how good the model is, and how good it would be with more labels.
- ``skal.tangent``: per-sample gradients, tangent kernels and sketches of any torch module.
- ``skal.semi_supervised``: learning from unlabelled samples too (FixMatch, DARP).
- ``skal.loss_prediction``: a network that learns to predict its own loss, for ``LearningLoss``.
- ``skal.diagnostics``: what the papers' theory is about, as numbers.
- ``skal.bench``: strategies compared over paired seeds, with significance tests and reports.
- ``skal.nets``, ``skal.datasets``: small networks and data sets to try things on.
- ``skal.callbacks``: skorch callbacks for training from round to round.
- ``skal.base``, ``skal.context``, ``skal.validation``, ``skal.checks``: what a strategy of your own is made of, what it
  sees, how it checks its parameters, and how it is tested.
- ``skal.features``: features of a fixed backbone, computed once for every sample and kept on disk if asked for.
- ``skal.reuse``: keep what queries compute from one query to the next, if asked for.
- ``skal.exceptions``: all errors and warnings.
- ``skal.compat``: the bridge to modAL.
- ``skal.cli``: the commands ``skal demo``, ``skal bench``, ``skal report``, ``skal label``, ``skal export``,
  ``skal import``.
- ``skal._core``, ``skal._lookahead``: what the rooms above stand on. Not for import.

``__version__`` is the release that is installed.

>>> import skal
>>> tuple(map(int, skal.__version__.split(".")[:2])) >= (0, 1)
True
"""

from skal._version import __version__
from skal.compat.modal import patch_modal as _patch_modal
from skal.labelling import label
from skal.learners import ActiveLearner, LinearizedLearner
from skal.loop import ActiveLearningClassifier, load_model
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
    "label",
    "load_model",
    "npc",
    "ntk_lookahead",
]

_patch_modal()
