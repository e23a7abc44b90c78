"""Retraining on hypothetical labels for real: the yardstick that NTK look-ahead is measured against.

Everything here works on one candidate and one label at a time, and costs accordingly.

Index letters: N candidates, e evaluation samples (some of the candidates), c classes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from skorch import NeuralNet
from skorch.callbacks import GradientNormClipping, LRScheduler
from skorch.history import History
from skorch.utils import to_device
from torch import Tensor
from torch.utils.data import Dataset

from skal._core.containers import concat_rows, dataset_input, n_rows, take_rows
from skal._core.last_layer import LastOutput
from skal._core.network import Network, evaluating, preserved_rng
from skal._lookahead.criteria import Probabilities, terms_of_outputs
from skal._lookahead.direct import DirectSolver
from skal._lookahead.posterior import Outputs, Reading, settle_known
from skal.callbacks import OneCycle
from skal.context import QueryContext
from skal.exceptions import InvalidParameterError
from skal.tangent._engine import TangentEngine
from skal.tangent._gradients import one_hot
from skal.validation import make_generator

__all__ = ["NewOutputs", "Retrainer", "criterion_scores", "retrained_scores"]

# (candidate j, label y) -> (e + 1, c) float64 outputs at the evaluation samples, and at j itself, after retraining
NewOutputs = Callable[[int, int], Tensor]

# what belongs to how the network is trained; other callbacks watch, print, write files or stop early
_TRAINING_CALLBACKS = (LRScheduler, OneCycle, GradientNormClipping)


def retrained_scores(
    strategy: Any,
    context: QueryContext,
    network: Network,
    reading: Reading,
    evaluation: np.ndarray,
    *,
    reference: str,
) -> np.ndarray:
    """Scores of a pool by ``direct``, ``one_step`` or ``retrain``.

    Parameters
    ----------
    strategy : NTKLookahead
        Its parameters say how.
    context : QueryContext
    network : Network
    reading : Reading
    evaluation : (e,) array
        Rows of the pool over which the change is summed.
    reference : {"network", "linearized"}

    Returns
    -------
    (N,) float64 array
    """
    targets = one_hot(context.class_labels, len(context.labelled), context.n_classes, network).double()
    positions = torch.as_tensor(evaluation, device=network.device)
    outputs = reading.read(network.all_logits(context.pool, context.batch_size))
    if strategy.retraining == "direct":
        residuals = targets - reading.read(network.all_logits(context.labelled, context.batch_size)).link
        solver = _direct_solver(strategy, context, network, residuals, outputs, positions)
        start = solver.start if reference == "linearized" else outputs.network
        scores = criterion_scores(solver.new_outputs, strategy.criterion, outputs, start, positions, reading.to_proba)
        return settle_known(scores, solver.known, strategy.criterion).cpu().numpy()
    if reference != "network":
        expected = f"'network' with retraining={strategy.retraining!r}, where nothing is linearised"
        remedy = "Leave it at its default."
        raise InvalidParameterError.for_parameter(context.owner, "reference", expected, reference, remedy)
    seed = int(make_generator(context.owner, strategy.random_state).integers(2**31))
    retrainer = Retrainer(context, evaluation, seed=seed)
    retrain = retrainer.retrained if strategy.retraining == "retrain" else retrainer.stepped
    scores = criterion_scores(retrain, strategy.criterion, outputs, outputs.network, positions, reading.to_proba)
    return scores.cpu().numpy()


def _direct_solver(
    strategy: Any, context: QueryContext, network: Network, residuals: Tensor, outputs: Outputs, evaluation: Tensor
) -> DirectSolver:
    engine = TangentEngine(
        network,
        context.pool,
        backend=strategy.backend,
        batch_size=context.batch_size,
        max_memory=strategy.max_memory,
        owner=context.owner,
    )
    return DirectSolver(
        engine, context.labelled, context.pool, strategy.kernel, residuals, outputs, evaluation, strategy.ridge
    )


def criterion_scores(
    new_outputs: NewOutputs,
    criterion: str,
    outputs: Outputs,
    start: Tensor,
    evaluation: Tensor,
    to_proba: Probabilities | None = None,
) -> Tensor:
    """Scores of the candidates from the outputs that every hypothetical label leads to.

    The evaluation set is a sample of all others; a candidate's own term is counted apart, once.

    Parameters
    ----------
    new_outputs : callable
        ``new_outputs(j, y)`` → (e + 1, c).
    criterion : {"mlmoc", "emoc", "eer"}
        Sum of the changes of the outputs under the most likely label; its expectation over the labels; minus the
        expected sum of the entropies after retraining.
    outputs : Outputs
        Of the candidates before retraining; what is used are labels and probabilities.
    start : (N, c) float64 tensor
        The candidates' outputs from which change is measured.
    evaluation : (e,) tensor
    to_proba : callable, optional
        Class probabilities of outputs, a softmax by default.

    Returns
    -------
    (N,) float64 tensor

    Examples
    --------
    >>> outputs = Outputs(None, None, torch.tensor([[0.25, 0.75]]), torch.tensor([1]))
    >>> new = lambda j, y: torch.tensor([[4.0, 3.0], [4.0, 3.0]]) * (1 + y)
    >>> start, evaluation = torch.zeros(1, 2), torch.tensor([0])
    >>> criterion_scores(new, "mlmoc", outputs, start, evaluation).tolist()
    [10.0]
    >>> criterion_scores(new, "emoc", outputs, start, evaluation).tolist()
    [8.75]
    """
    n_candidates = len(start)
    scores = torch.zeros(n_candidates, dtype=torch.float64, device=start.device)
    everywhere = torch.cat([start[evaluation], start[:1]])
    for j in range(n_candidates):
        everywhere[-1] = start[j]
        inside = bool((evaluation == j).any())
        scale = (n_candidates - 1) / max(1, len(evaluation) - inside)
        if criterion == "mlmoc":
            weights = {int(outputs.labels[j]): 1.0}
        else:
            weights = {y: p for y, p in enumerate(outputs.proba[j].tolist()) if p > 0}
        for y, weight in weights.items():
            terms = terms_of_outputs(criterion, new_outputs(j, y), everywhere, to_proba)
            own = terms[-1]
            scores[j] += weight * ((terms[:-1].sum() - own * inside) * scale + own)
    return scores


class Retrainer:
    """A copy of the learner's network that is trained on hypothetical labels, and reset before each of them.

    The learner's net is only read. The copy keeps its module, criterion, optimiser, learning rate (and its schedule),
    gradient clipping, batch size and number of epochs. It starts from the present weights, with a fresh optimiser and
    the same random numbers for every label. It holds nothing back for validation, where the hypothetical label might
    end up, and runs no other callbacks.

    Parameters
    ----------
    context : QueryContext
        Its pool are the candidates.
    evaluation : (e,) tensor or array
    seed : int
        For shuffling, dropout and whatever else training draws.
    """

    def __init__(self, context: QueryContext, evaluation: Tensor | np.ndarray, *, seed: int = 0) -> None:
        self.net = _copy_of(context.net)
        logits = context.logit_network
        self.network = LastOutput(self.net, logits.last) if isinstance(logits, LastOutput) else Network(self.net)
        self.candidates = context.pool
        self.evaluation = np.asarray(torch.as_tensor(evaluation).cpu())
        self.batch_size = context.batch_size
        self.seed = seed
        self._labelled = next(context.labelled.chunks(len(context.labelled)))
        self._y = context.y_labelled
        parts = [self.net.module_, self.net.criterion_]
        self._states = [(part, copy.deepcopy(part.state_dict())) for part in parts]

    def reset(self) -> None:
        """Weights, buffers, optimiser, schedule, history and random numbers as at the start."""
        for part, state in self._states:
            part.load_state_dict(state)
        self.net.history_ = History()
        self.net.initialize_optimizer()
        for _, callback in self.net.callbacks_:
            callback.initialize()
        torch.manual_seed(self.seed)

    def retrained(self, j: int, label: int) -> Tensor:
        """(e + 1, c) outputs after training on all labels and this one, for as many epochs as a ``fit`` takes."""
        with preserved_rng(), torch.enable_grad():
            self.reset()
            X, y = self._with(j, label)
            # not `partial_fit`, which takes Ctrl-C for the end of training
            self.net.notify("on_train_begin", X=X, y=y)
            self.net.fit_loop(X, y)
            self.net.notify("on_train_end", X=X, y=y)
        return self.outputs(np.append(self.evaluation, j))

    def stepped(self, j: int, label: int) -> Tensor:
        """(e + 1, c) outputs after one step of the optimiser on this sample alone, in eval mode."""
        with evaluating(self.net.module_), torch.enable_grad():
            self.reset()
            batch = next(self.network.batches(self.candidates.take(np.array([j])), 1))
            y = to_device(torch.as_tensor(np.full_like(self._y[:1], label)), self.network.device)

            def loss() -> Tensor:
                self.net.optimizer_.zero_grad()
                value = self.net.get_loss(self.net.infer(batch), y, X=batch, training=True)
                value.backward()
                return value

            self.net.optimizer_.step(loss)
        return self.outputs(np.append(self.evaluation, j))

    def outputs(self, rows: np.ndarray) -> Tensor:
        """(r, c) float64 outputs, before any softmax, of the copy as it is, at some of the candidates."""
        return self.network.all_logits(self.candidates.take(rows), self.batch_size).double()

    def _with(self, j: int, label: int) -> tuple[Any, Any]:
        new = next(self.candidates.take(np.array([j])).chunks(1))
        y = np.concatenate([self._y, np.full_like(self._y[:1], label)])
        if isinstance(self._labelled, Dataset) or isinstance(new, Dataset):
            return _Relabelled([self._labelled, new], y), None
        return concat_rows(self._labelled, new), y


class _Relabelled(Dataset):
    """Inputs of several containers, one after the other, with labels of their own."""

    def __init__(self, parts: list[Any], y: np.ndarray) -> None:
        self.rows = [(part, i) for part in parts for i in range(n_rows(part))]
        self.mixed = not all(isinstance(part, Dataset) for part in parts)
        self.y = y

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> tuple[Any, Any]:
        X, row = self.rows[i]
        x = dataset_input(X[row]) if isinstance(X, Dataset) else take_rows(X, row)
        # a batch is of one type
        return torch.as_tensor(x) if self.mixed and isinstance(x, np.ndarray) else x, self.y[i]


def _copy_of(net: NeuralNet) -> NeuralNet:
    """A net that shares the settings and nothing that training changes.

    ``copy.deepcopy`` of a net pickles its module, which local classes do not survive.
    """
    twin = object.__new__(type(net))
    twin.__dict__.update(net.__dict__)
    memo: dict[int, Any] = {}  # modules and criteria may refer to one another
    for name in [*net._modules, *net._criteria]:
        twin.__dict__[f"{name}_"] = copy.deepcopy(net.__dict__[f"{name}_"], memo)
    kept = [(name, callback) for name, callback in net.callbacks_ if isinstance(callback, _TRAINING_CALLBACKS)]
    twin.__dict__.update(
        callbacks_=[(name, copy.copy(callback)) for name, callback in kept],
        history_=History(),
        train_split=None,
        verbose=0,
    )
    return twin
