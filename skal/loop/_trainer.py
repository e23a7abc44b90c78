"""The estimator of a loop: fitted on a state's labels, scored, stored and brought back."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.metrics import check_scoring

from skal._core.containers import n_rows, take_rows
from skal.exceptions import InvalidParameterError, shorten
from skal.loop._interrupt import breaking_off
from skal.loop._labels import class_names, encode
from skal.loop._network_state import load_network_state, network_state
from skal.loop._seeding import seed_for, seeded
from skal.loop._state import LoopState
from skal.loop._training import (
    fit_transformers,
    fresh_estimator,
    goes_on,
    has_network,
    inputs,
    own_network,
    training_data,
)

if TYPE_CHECKING:
    from skal.loop._classifier import ActiveLearningClassifier

__all__ = ["Trainer"]


class Trainer:
    """Keeps the classifier's ``estimator_`` up to date.

    Parameters
    ----------
    classifier : ActiveLearningClassifier
    X : all samples
    eval_set : tuple of X and y, or None

    Attributes
    ----------
    estimator : classifier or None
        None before the first training, or before an untrained network is needed.
    network : bool
        Whether it is a network, or ends in one.
    fitted : dict or None
        The ``round`` of the last training, and how many labels (``n_labelled``) there were.
    """

    def __init__(self, classifier: ActiveLearningClassifier, X: Any, eval_set: tuple[Any, Any] | None) -> None:
        self.classifier = classifier
        self.X = X
        self.eval_set = eval_set
        self.network = has_network(classifier.estimator)
        self.estimator: Any = None
        self.fitted: dict[str, int] | None = None
        self._n_outputs: int | None = None

    def check_labels(self, state: LoopState, positions: list[int], labels: np.ndarray) -> None:
        """Refuse labels, those of a state and the new ones, that the estimator could not be trained with."""
        names = class_names(labels, self.classifier.classes, network=self.network, n_first=state.n_first())
        if not self.network:
            return
        n_outputs = self._outputs(state.seed, np.array(positions), encode(labels, names))
        if n_outputs is not None and len(names) > n_outputs:
            raise InvalidParameterError(
                f"The network must have an output for each of the {len(names)} classes. Got {n_outputs} outputs and "
                f"the labels {shorten(np.unique(labels).tolist())}. Without 'classes', integers are the numbers of the "
                "outputs, from 0: correct the labels or 'classes', or give the last layer more outputs."
            )

    def _outputs(self, seed: int, positions: np.ndarray, codes: np.ndarray) -> int | None:
        """How many outputs the network has; before the first training those of a copy, None if it cannot be tried."""
        if self.fitted is not None:
            return len(self.classifier._columns)
        trial = self._fresh()
        net = own_network(trial)
        if self._n_outputs is not None or net is None:
            return self._n_outputs
        try:
            with seeded(seed_for(seed, 0, "fit")), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the training will give them
                if trial is not net:
                    fit_transformers(trial, *training_data(trial, self.X, n_rows(self.X), positions, codes))
                net.set_params(callbacks="disable").initialize()  # a logger or the like must see trainings alone
                self._n_outputs = np.asarray(trial.predict_proba(inputs(take_rows(self.X, np.arange(1))))).shape[1]
        except Exception:
            # sizes that are only known in training, too few samples for a transformer, …: the training will tell
            return None
        return self._n_outputs

    def can_fit(self, state: LoopState) -> bool:
        """A network needs one label, other classifiers two classes."""
        labels = state.label_array()[state.rows(heldout=False)]
        return len(labels) > 0 and (self.network or len(np.unique(labels)) > 1)

    def fit(self, state: LoopState) -> None:
        """Train on the labels of a state, with the randomness of its round."""
        params = self.classifier
        with seeded(seed_for(state.seed, state.round, "fit")):
            self.prepare(state)
            anew = self.estimator is None or params.reinitialize or not self._continues()
            estimator = self._fresh() if anew else self.estimator
            names, X, y = self._training_data(state, len(state.labelled))
            try:
                with breaking_off():
                    estimator.fit(X, y)
            except IndexError as error:
                if "out of bounds" not in str(error):
                    raise
                raise InvalidParameterError(
                    f"The network must have an output for every class. Got the label number {int(y.max())}, and fewer "
                    "outputs. Integer labels are taken as the numbers of the outputs, from 0: give the last layer more "
                    f"outputs, or list the labels in 'classes'. ({error})"
                ) from error
            self.estimator = estimator  # only now: one whose first training failed is of no use
            self.fitted = {"round": state.round, "n_labelled": len(state.labelled)}
            self._hand_over(names)

    def prepare(self, state: LoopState) -> None:
        """Without initial labels the first samples are chosen with an untrained network, which is then trained."""
        params = self.classifier
        if self.estimator is not None or params.n_initial > 0 or not isinstance(params.initial, str):
            return
        if own_network(params.estimator) is not params.estimator:
            remedy = "Pass n_initial=1 or more."
            expected = "an integer >= 1 unless the estimator is a skorch net, which can query untrained"
            raise InvalidParameterError.for_parameter(type(params).__name__, "n_initial", expected, 0, remedy)
        with seeded(seed_for(state.seed, 0, "fit")):
            self.estimator = self._fresh().initialize()

    def scores(self, state: LoopState) -> dict[str, float]:
        """Scores on the labels trained on, on those held out, and on the evaluation set, as far as there are any."""
        if self.fitted is None:
            return {}
        params, scorer = self.classifier, check_scoring(self.classifier, scoring=self.classifier.scoring)
        rows, labels = np.array(state.labelled), state.label_array()
        sets = {"train_score": state.rows(heldout=False), "valid_score": state.rows(heldout=True)}
        with seeded(seed_for(state.seed, state.round, "score")):
            scores = {
                name: float(scorer(params, take_rows(self.X, rows[part]), labels[part]))
                for name, part in sets.items()
                if len(part)
            }
            if self.eval_set is not None:
                X, y = self.eval_set
                scores["eval_score"] = float(scorer(params, X, y.cpu().numpy() if isinstance(y, torch.Tensor) else y))
        return scores

    def check_storable(self) -> None:
        """Refuse an estimator whose state is neither a network's nor a matter of its labels."""
        if goes_on(self.classifier.estimator):
            raise InvalidParameterError(
                "With a checkpoint the estimator must be a skorch net, or one that starts anew whenever it is fitted. "
                "Got a warm_start=True outside a network. Set warm_start=False, or run without checkpoint."
            )

    def stored(self) -> dict[str, Any] | None:
        """What a checkpoint must keep of the estimator: its network, None if it can be fitted again."""
        net = own_network(self.estimator)
        return None if self.fitted is None or net is None else network_state(net)

    def restore(self, state: LoopState, fitted: dict[str, int] | None, stored: Any) -> None:
        """Bring the estimator back: a network from what was stored, everything else by the same fit once more."""
        if fitted is None:
            return
        with seeded(seed_for(state.seed, fitted["round"], "fit")):
            self.estimator = self._fresh()
            names, X, y = self._training_data(state, fitted["n_labelled"])
            net = own_network(self.estimator)
            if net is None:
                self.estimator.fit(X, y)
            else:
                X = fit_transformers(self.estimator, X, y)
                # a net may have to see samples to know how large it is
                initialized = net.initialize_for(X, y) if hasattr(net, "initialize_for") else net.initialize()
                load_network_state(initialized, stored)
            self.fitted = fitted
            self._hand_over(names)

    def _continues(self) -> bool:
        return own_network(self.classifier.estimator) is not None or goes_on(self.classifier.estimator)

    def _fresh(self) -> Any:
        return fresh_estimator(self.classifier.estimator, warm_start=not self.classifier.reinitialize)

    def _training_data(self, state: LoopState, n_labelled: int) -> tuple[np.ndarray, Any, np.ndarray]:
        """Names of the classes, X and y of a training that saw the first ``n_labelled`` labels."""
        labels = state.label_array()[:n_labelled]
        rows = state.rows(heldout=False)
        rows = rows[rows < n_labelled]
        names = class_names(labels, self.classifier.classes, network=self.network, n_first=state.n_first())
        positions, codes = np.array(state.labelled)[rows], encode(labels, names)[rows]
        return names, *training_data(self.classifier.estimator, self.X, n_rows(self.X), positions, codes)

    def _hand_over(self, names: np.ndarray) -> None:
        self.classifier._set_fitted(self.estimator, names, take_rows(self.X, np.arange(1)), network=self.network)
