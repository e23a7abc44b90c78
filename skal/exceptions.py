# SPDX-License-Identifier: BSD-3-Clause
"""The errors that skal raises on purpose, and its warnings.

Every error is a :class:`SkalError` and at the same time the built-in or scikit-learn error that fits, so that
``except ValueError`` keeps working. A message names the parameter, what was expected, what came, and what to do.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, Self

__all__ = [
    "AdjustedInputWarning",
    "BiasedAuditWarning",
    "BudgetWarning",
    "ChangedSamplesError",
    "CheckpointError",
    "ConvergenceWarning",  # noqa: F822, see __getattr__
    "CrossEntropyWarning",
    "EmptyPoolError",
    "FeatureError",
    "InvalidParameterError",
    "InvalidQueryError",
    "InvalidTypeError",
    "MissingSamplesWarning",
    "NetworkError",
    "NoLabelledDataError",
    "NoNetworkError",
    "NoTargetWarning",
    "NoUnlabelledDataWarning",
    "NonFiniteError",
    "NotFittedError",  # noqa: F822
    "OutputError",
    "RankDeficiencyWarning",
    "SampleError",
    "SampleOrderWarning",
    "ShardError",
    "SkalError",
    "SkalWarning",
    "TrainingFailedWarning",
    "TwoLevelWarning",
    "UnknownLabelsWarning",
    "UnsteadyOutputWarning",
    "UnsupportedLayerError",
    "VanishingKernelWarning",
    "WorkerError",
    "WorkerWarning",
]


def __getattr__(name: str) -> Any:
    """The two that inherit from scikit-learn's, which takes a second to import: usage errors do without."""
    if name in ("ConvergenceWarning", "NotFittedError"):
        value = globals()[name] = getattr(importlib.import_module("skal._sklearn_errors"), name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class SkalError(Exception):
    """Base of every error that skal raises on purpose.

    Examples
    --------
    >>> from skal.exceptions import EmptyPoolError, SkalError
    >>> issubclass(EmptyPoolError, SkalError) and issubclass(EmptyPoolError, ValueError)
    True
    """

    @classmethod
    def for_parameter(cls, owner: str, name: str, expected: str, got: object, remedy: str) -> Self:
        """The error in the words that every parameter's error has.

        Examples
        --------
        >>> from skal.exceptions import InvalidParameterError
        >>> print(InvalidParameterError.for_parameter("Entropy", "subset", "an integer > 0", 0, "Leave it None."))
        The 'subset' parameter of Entropy must be an integer > 0. Got 0 instead. Leave it None.
        """
        return cls(f"The {name!r} parameter of {owner} must be {expected}. Got {shorten(got)} instead. {remedy}")


class InvalidParameterError(SkalError, ValueError):
    """A parameter has a value outside what is allowed.

    Examples
    --------
    >>> from skal.checks import make_learner
    >>> from skal.strategies import margin
    >>> margin(*make_learner(), n_instances=100)
    Traceback (most recent call last):
        ...
    skal.exceptions.InvalidParameterError: The 'n_instances' parameter of Margin must be at most the size of the ...
    """


class InvalidTypeError(SkalError, TypeError):
    """A parameter, or the data, has a type that cannot be used.

    Examples
    --------
    >>> from skal.checks import make_learner
    >>> from skal.strategies import margin
    >>> margin(*make_learner(), n_instances="three")
    Traceback (most recent call last):
        ...
    skal.exceptions.InvalidTypeError: The 'n_instances' parameter of Margin must be an integer >= 1. Got 'three' ...
    """


class EmptyPoolError(SkalError, ValueError):
    """There is nothing to choose from.

    Examples
    --------
    >>> from skal.checks import make_learner
    >>> from skal.strategies import margin
    >>> margin(make_learner()[0], [])
    Traceback (most recent call last):
        ...
    skal.exceptions.EmptyPoolError: The X_pool given to Margin must hold at least one sample. ...
    """


class FeatureError(SkalError, ValueError):
    """Features that a strategy cannot work on.

    Examples
    --------
    >>> from skal.checks import make_learner
    >>> from skal.strategies import max_herding
    >>> max_herding(*make_learner(), features=lambda X: X[:3])
    Traceback (most recent call last):
        ...
    skal.exceptions.FeatureError: The features that MaxHerding works on must be an array of ...
    """

    @classmethod
    def for_features(cls, owner: str, expected: str, got: str) -> Self:
        """The error in the words that all messages about features have.

        Examples
        --------
        >>> from skal.exceptions import FeatureError
        >>> print(FeatureError.for_features("CoreSet", "numbers", "texts"))
        The features that CoreSet works on must be numbers. Got texts instead. Pass other features=: a fitted ...
        """
        return cls(
            f"The features that {owner} works on must be {expected}. Got {got} instead. Pass other features="
            ": a fitted transformer, a function X -> (n, d), or a frozen nn.Module."
        )


class NonFiniteError(SkalError, ValueError):
    """NaN or infinity in the data or in the network's outputs.

    Examples
    --------
    >>> from skal.checks import make_learner
    >>> from skal.strategies import margin
    >>> learner, X_pool = make_learner()
    >>> X_pool[3] = float("nan")
    >>> margin(learner, X_pool)
    Traceback (most recent call last):
        ...
    skal.exceptions.NonFiniteError: X_pool must be finite. Got NaN or infinity, first in row 3. ...
    """


class NoNetworkError(SkalError, TypeError):
    """A torch module is needed and the estimator has none.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skal import ActiveLearner
    >>> from skal.strategies import dynamic_al
    >>> learner = ActiveLearner(LogisticRegression(), dynamic_al, X_training=[[0.0], [1.0]], y_training=[0, 1])
    >>> learner.query([[0.0], [1.0]])
    Traceback (most recent call last):
        ...
    skal.exceptions.NoNetworkError: The estimator that DynamicAL works on must be a skorch net, or a Pipeline or ...
    """


class NetworkError(SkalError, RuntimeError):
    """A network cannot be run, or trained, on what it is given; the cause is the error that it raised.

    Examples
    --------
    >>> from skal.checks import make_learner
    >>> from skal.strategies import margin
    >>> learner, X_pool = make_learner()
    >>> margin(learner, X_pool[..., :3])
    Traceback (most recent call last):
        ...
    skal.exceptions.NetworkError: The network must accept the samples. Got RuntimeError: ... for an input of shape ...
    """


class OutputError(SkalError, ValueError):
    """The network's outputs are not of the kind that its criterion expects.

    Examples
    --------
    >>> from skorch import NeuralNetClassifier
    >>> from skal import ActiveLearner
    >>> from skal.nets import MLP
    >>> from skal.strategies import margin
    >>> net = NeuralNetClassifier(MLP(1, 3)).initialize()  # skorch's default, NLLLoss, expects a softmax
    >>> ActiveLearner(net, margin).query([[0.0], [1.0]])
    Traceback (most recent call last):
        ...
    skal.exceptions.OutputError: With criterion NLLLoss the module must return probabilities ...
    """


class NoLabelledDataError(SkalError, ValueError):
    """The strategy needs labelled data and the learner has none.

    Examples
    --------
    >>> from skal import ActiveLearner
    >>> from skal.checks import make_learner
    >>> from skal.strategies import dynamic_al
    >>> learner, X_pool = make_learner()
    >>> ActiveLearner(learner.estimator, dynamic_al).query(X_pool)
    Traceback (most recent call last):
        ...
    skal.exceptions.NoLabelledDataError: DynamicAL needs labelled data: the learner's X_training must ...
    """


class InvalidQueryError(SkalError, ValueError):
    """A query strategy answered with indices that cannot be used.

    Examples
    --------
    >>> from skal import ActiveLearner
    >>> learner = ActiveLearner(None, lambda learner, X_pool, n_instances: [0] * n_instances)
    >>> learner.query([[0.0], [1.0]], n_instances=2)
    Traceback (most recent call last):
        ...
    skal.exceptions.InvalidQueryError: The query strategy ... must return n_instances=2 distinct indices. ...
    """


class CheckpointError(SkalError, ValueError):
    """A checkpoint is damaged, in use by somebody else, or belongs to other data.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skal import ActiveLearningClassifier
    >>> X, y = np.arange(20.0).reshape(-1, 1), np.arange(20) // 10
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     loop = ActiveLearningClassifier(LogisticRegression(), n_initial=6, n_rounds=1, checkpoint=folder)
    ...     loop.fit(X, y).fit(X + 100, y)  # continues the run of the first fit
    Traceback (most recent call last):
        ...
    skal.exceptions.CheckpointError: The samples must be those that the labels in ... belong to. Got none of its ...
    """


class UnsupportedLayerError(SkalError, TypeError):
    """The network has, or lacks, a part that the strategy or the chosen gradient backend depends on.

    Examples
    --------
    >>> import torch
    >>> from skorch import NeuralNetClassifier
    >>> from skal import ActiveLearner
    >>> from skal.nets import MLP
    >>> from skal.strategies import bald
    >>> net = NeuralNetClassifier(MLP(1, 3), criterion=torch.nn.CrossEntropyLoss).initialize()
    >>> ActiveLearner(net, bald).query([[0.0], [1.0]])
    Traceback (most recent call last):
        ...
    skal.exceptions.UnsupportedLayerError: The network given to BALD must have dropout layers ...
    """


class SampleError(SkalError, ValueError):
    """Samples cannot be read, or do not all arrive in their order.

    Examples
    --------
    >>> from torch.utils.data import Dataset
    >>> from skal.checks import make_learner
    >>> from skal.strategies import margin
    >>> learner, X_pool = make_learner()
    >>> class Files(Dataset):
    ...     def __len__(self):
    ...         return len(X_pool)
    ...     def __getitem__(self, i):
    ...         return X_pool[i] if i != 30 else bytes([255]).decode()  # a damaged file
    >>> margin(learner, Files())
    Traceback (most recent call last):
        ...
    skal.exceptions.SampleError: X_pool must be readable row by row. Got UnicodeDecodeError in row 30: 'utf-8' codec ...
    """


class ChangedSamplesError(SampleError):
    """A Dataset gives other samples, or another number of them, when it is read again during a query.

    Examples
    --------
    >>> import torch
    >>> from torch.utils.data import Dataset
    >>> from skal.checks import make_learner
    >>> from skal.strategies import margin
    >>> learner, X_pool = make_learner()
    >>> class Augmented(Dataset):
    ...     def __len__(self):
    ...         return len(X_pool)
    ...     def __getitem__(self, i):
    ...         return X_pool[i] + 0.1 * torch.randn(1).item()
    >>> margin(learner, Augmented())
    Traceback (most recent call last):
        ...
    skal.exceptions.ChangedSamplesError: X_pool must hold the same samples whenever it is read. Got a Augmented ...
    """


class ShardError(SkalError, RuntimeError):
    """A part of the pool could not be read, by an error that cannot be raised again with the rows in its message.

    Examples
    --------
    >>> import numpy as np
    >>> from joblib import parallel_config
    >>> from skal._core.pool import Samples
    >>> from skal._core.parallel import Sharding
    >>> def read(part):
    ...     return bytes([255]).decode()  # a damaged text
    >>> with parallel_config(backend="threading"):
    ...     list(Sharding(n_jobs=2).map(read, Samples(np.zeros((40, 2)), name="X_pool"), 8))
    Traceback (most recent call last):
        ...
    skal.exceptions.ShardError: UnicodeDecodeError: 'utf-8' codec can't decode ... (in rows ... of X_pool)
    """


class WorkerError(SkalError, RuntimeError):
    """The workers that share the passes over a pool cannot do their work.

    Examples
    --------
    >>> import skal
    >>> from skal.checks import make_learner
    >>> from skal.exceptions import WorkerError
    >>> try:
    ...     with skal.config_context(n_jobs=-1):
    ...         indices = skal.margin(*make_learner(), 3)
    ... except WorkerError:  # a worker lacks a package: the message says which
    ...     indices = skal.margin(*make_learner(), 3)
    >>> indices.shape
    (3,)
    """


class SkalWarning(UserWarning):
    """Base of the warnings that skal gives by name.

    Examples
    --------
    >>> import warnings
    >>> from skal.exceptions import BudgetWarning, SkalWarning
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", SkalWarning)  # all of them
    ...     warnings.warn("more labels than samples", BudgetWarning)
    """


class CrossEntropyWarning(SkalWarning):
    """A method for squared loss meets a network that was trained with another, and does what comes nearest to it.

    Examples
    --------
    >>> import warnings
    >>> from skal.checks import make_learner
    >>> from skal.strategies import ntk_lookahead
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error")
    ...     ntk_lookahead(*make_learner(), criterion="mlmoc")
    Traceback (most recent call last):
        ...
    skal.exceptions.CrossEntropyWarning: NTKLookahead assumes squared loss, but the network uses CrossEntropyLoss. ...
    """


class RankDeficiencyWarning(SkalWarning):
    """A kernel has too low a rank for the question: all answers would be zero up to rounding.

    Examples
    --------
    >>> import warnings
    >>> from skal.checks import make_learner
    >>> from skal.strategies import npc
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error")
    ...     npc(*make_learner(), 5, kernel="last_layer")
    Traceback (most recent call last):
        ...
    skal.exceptions.RankDeficiencyWarning: The last_layer kernel of NPC cannot tell batches apart: ...
    """


class AdjustedInputWarning(SkalWarning):
    """A value could not be used as it is, and was changed.

    Examples
    --------
    >>> import warnings
    >>> from skal.semi_supervised import darp
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error")
    ...     darp([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]], target=[5, 5])
    Traceback (most recent call last):
        ...
    skal.exceptions.AdjustedInputWarning: target=[5, 5] sums neither to the 3 samples nor to 1, so darp ...
    """


class NoTargetWarning(SkalWarning):
    """The recommended strategy is one that cannot work for a target.

    Examples
    --------
    >>> import warnings
    >>> import numpy as np
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skal import ActiveLearningClassifier
    >>> clf = ActiveLearningClassifier(LogisticRegression(), n_initial=2, n_rounds=None)
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error")
    ...     clf.start(np.ones((20, 3)), target=np.ones((5, 3))).ask()
    Traceback (most recent call last):
        ...
    skal.exceptions.NoTargetWarning: The recommended strategy is RandomSampling, which has no target: ...
    """


class NoUnlabelledDataWarning(SkalWarning):
    """A semi-supervised classifier was given labelled samples only.

    Examples
    --------
    >>> import warnings
    >>> import numpy as np
    >>> from skal.nets import MLP
    >>> from skal.semi_supervised import FixMatchClassifier
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error")
    ...     FixMatchClassifier(MLP(1, 2)).fit(np.ones((4, 1), dtype="float32"), np.array([0, 1, 0, 1]))
    Traceback (most recent call last):
        ...
    skal.exceptions.NoUnlabelledDataWarning: The y given to FixMatchClassifier has no unlabelled samples ...
    """


class BudgetWarning(SkalWarning):
    """More labels were asked for than there are samples.

    Examples
    --------
    >>> import warnings
    >>> import numpy as np
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skal import ActiveLearningClassifier
    >>> X, y = np.arange(20.0).reshape(-1, 1), np.arange(20) // 10
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error")
    ...     ActiveLearningClassifier(LogisticRegression(), budget=100).fit(X, y)
    Traceback (most recent call last):
        ...
    skal.exceptions.BudgetWarning: budget=100 exceeds the 20 samples; all of them will be labelled. ...
    """


class BiasedAuditWarning(SkalWarning):
    """Audited samples do not look as if they had been drawn by the probabilities that are given for them.

    Examples
    --------
    >>> import warnings
    >>> import numpy as np
    >>> from skal.audit import accuracy
    >>> proba = np.random.default_rng(0).dirichlet([1, 1, 1], size=1000)
    >>> queried = proba.max(1).argsort()[:50]  # the least confident ones, as a strategy chooses them
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error")
    ...     accuracy(proba, queried, np.zeros(50, dtype=int), np.full(50, 0.05))
    Traceback (most recent call last):
        ...
    skal.exceptions.BiasedAuditWarning: The 50 audited samples given to accuracy are less confident than ...
    """


class MissingSamplesWarning(SkalWarning):
    """Samples that have been labelled are no longer in the pool; their labels are kept.

    Examples
    --------
    >>> import tempfile, warnings
    >>> import numpy as np
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skal import ActiveLearningClassifier
    >>> X, y = np.arange(20.0).reshape(-1, 1), np.arange(20) // 10
    >>> with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
    ...     warnings.simplefilter("error")
    ...     loop = ActiveLearningClassifier(LogisticRegression(), n_rounds=0, initial=range(12), checkpoint=folder)
    ...     loop.fit(X, y).fit(X[1:], y[1:])
    Traceback (most recent call last):
        ...
    skal.exceptions.MissingSamplesWarning: 1 of 12 labelled samples are no longer in X: ...
    """


class TrainingFailedWarning(SkalWarning):
    """A session could not train on its labels, and goes on without.

    Examples
    --------
    >>> import warnings
    >>> import numpy as np
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skal import ActiveLearningClassifier
    >>> session = ActiveLearningClassifier(LogisticRegression(C=-1), n_initial=2, n_rounds=None).start(np.eye(9))
    >>> try:
    ...     session.tell([0, 1], session.ask())
    ... except ValueError:  # the training fails; the labels are kept
    ...     pass
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error")
    ...     session.ask()
    Traceback (most recent call last):
        ...
    skal.exceptions.TrainingFailedWarning: The training on 2 labels failed ...
    """


class WorkerWarning(SkalWarning):
    """Workers were lost again and again, so that this process computes the rest of a query; or they are slow.

    Examples
    --------
    >>> from skal.exceptions import WorkerWarning
    >>> issubclass(WorkerWarning, UserWarning)
    True
    """


class SampleOrderWarning(SkalWarning):
    """A module reorders its batch, so that a layer's rows belong to other samples: they are passed one by one.

    Examples
    --------
    >>> import warnings
    >>> from skal.checks import make_learner
    >>> from skal.strategies import coreset
    >>> learner, X_pool = make_learner()
    >>> class Sorting(type(learner.estimator.module_)):
    ...     def forward(self, x):
    ...         order = x.flatten(1).sum(1).argsort()
    ...         return super().forward(x[order])[order.argsort()]
    >>> learner.estimator.module_.__class__ = Sorting
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error")
    ...     coreset(learner, X_pool)
    Traceback (most recent call last):
        ...
    skal.exceptions.SampleOrderWarning: The layer 'head' does not receive the samples of a batch in their order, ...
    """


class TwoLevelWarning(SkalWarning):
    """A pool's embeddings do not fit into memory: the batch is selected in two stages, and may differ a little.

    Examples
    --------
    >>> import warnings
    >>> import skal
    >>> from skal.checks import make_learner
    >>> with warnings.catch_warnings(), skal.config_context(max_memory="4kB"):
    ...     warnings.simplefilter("error")
    ...     skal.badge(*make_learner(), 2)
    Traceback (most recent call last):
        ...
    skal.exceptions.TwoLevelWarning: max_memory='4kB' holds only ... of 40 embeddings, so BADGE selects in two ...
    """


class UnknownLabelsWarning(SkalWarning):
    """People gave labels in an audit that no given label has: they may be spelt in another way.

    Examples
    --------
    >>> import warnings
    >>> from skal.audit import errors, plan
    >>> positions, probabilities = plan(200, 50, uniform=True, random_state=0)
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error")
    ...     errors(["cat "] * 200, positions, ["cat"] * 50, probabilities)
    Traceback (most recent call last):
        ...
    skal.exceptions.UnknownLabelsWarning: 50 of the 50 audited samples have labels that no given label has: 'cat'. ...
    """


class UnsteadyOutputWarning(SkalWarning):
    """A network's outputs for a sample depend on the other samples of its batch, or on chance, in eval mode.

    Examples
    --------
    >>> import warnings
    >>> from skal.checks import make_learner
    >>> from skal.strategies import margin
    >>> learner, X_pool = make_learner()
    >>> class Centred(type(learner.estimator.module_)):
    ...     def forward(self, x):
    ...         logits = super().forward(x)
    ...         return logits - logits.mean(0)
    >>> learner.estimator.module_.__class__ = Centred
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error")
    ...     margin(learner, X_pool)
    Traceback (most recent call last):
        ...
    skal.exceptions.UnsteadyOutputWarning: The network's outputs for a sample depend on the other samples of its ...
    """


class VanishingKernelWarning(SkalWarning):
    """The pseudo-NTK is rounding, because the network's outputs sum to a constant.

    Examples
    --------
    >>> import warnings
    >>> from skal.checks import make_learner
    >>> from skal.strategies import npc
    >>> learner, X_pool = make_learner()
    >>> class Centred(type(learner.estimator.module_)):
    ...     def forward(self, x):
    ...         logits = super().forward(x)
    ...         return logits - logits.mean(1, keepdim=True)
    >>> learner.estimator.module_.__class__ = Centred
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error")
    ...     npc(learner, X_pool, 2, kernel="pntk")
    Traceback (most recent call last):
        ...
    skal.exceptions.VanishingKernelWarning: The pseudo-NTK that NPC uses vanishes ...
    """


def shorten(value: object, limit: int = 80) -> str:
    """The repr of a value, cut so that a message stays readable."""
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        text = f"a {type(value).__name__} that is too large to be shown"
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def how_to_install(extra: str) -> str:
    """The sentence that says how to install an extra: from the clone, until there is a release.

    Examples
    --------
    >>> how_to_install("label")
    "Run in the clone of skal: pip install '.[label]'"
    """
    return f"Run in the clone of skal: pip install '.[{extra}]'"
