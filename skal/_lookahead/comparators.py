r"""What the papers compare the look-ahead with: ``direct``, ``one_step``, ``retrain``, ``infinite`` and ``gp``.

The first three work on one candidate and one label at a time, and cost accordingly. The last two are the look-ahead
with the tangent kernel of an infinitely wide fully connected ReLU network. It has ``depth`` layers in the
parametrisation of NTK theory (Jacot et al. 2018),

    h_l = √(σ_w² / d_{l-1}) W_l a_{l-1} + σ_b b_l,    a_l = relu(h_l),    all entries of W and b ~ N(0, 1),

with the d numbers of a sample as a_0 and h_depth as output. That is He's initialisation for σ_w² = 2, with gradients in
W and b, so that every layer has its share of the kernel however wide it is. (In PyTorch's own parametrisation the
shares of all layers but the first grow with the width, and there is no limit.)

As the widths grow, outputs have the same kernel and do not interact, so that ``pntk``, ``logit`` and one C-th of
``trace`` are the same. With q_l = E[h_l(x) h_l(z)] and the arc-cosine functions κ of the angle that q_l gives,

    q_1 = σ_w² x·z / d + σ_b²,    q_{l+1} = σ_w² κ_1(q_l) + σ_b²,
    Θ_1 = q_1,                    Θ_{l+1} = q_{l+1} + σ_w² κ_0(q_l) Θ_l.

Index letters: n labelled samples, N candidates, e evaluation samples (some of the candidates), c classes, B rows of the
kernel for each sample.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from math import pi
from typing import Any

import numpy as np
import torch
from skorch import NeuralNet
from skorch.callbacks import GradientNormClipping, LRScheduler
from skorch.history import History
from skorch.utils import to_device
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import Dataset

from skal._core.containers import concat_rows, dataset_input, n_rows, take_rows
from skal._core.last_layer import LastOutput
from skal._core.memory import rows_within
from skal._core.network import Network, evaluating, preserved_rng
from skal._core.samples import Samples
from skal._lookahead.criteria import settle_known, terms_of_outputs
from skal._lookahead.posterior import KernelBlocks, Outputs, Posterior, places
from skal._lookahead.query import Settings
from skal._lookahead.sources import KernelSource, exact_kernel, read_outputs
from skal.callbacks import OneCycle
from skal.context import QueryContext
from skal.exceptions import InvalidParameterError
from skal.validation import make_generator

__all__ = ["DirectSolver", "Retrainer", "criterion_scores", "infinite_kernel", "retrained_scores", "wide_source"]

WEIGHT_VARIANCE = 2.0  # He: the size of the signal stays the same from layer to layer
BIAS_VARIANCE = 0.1**2  # the β of Jacot et al.
_ROUNDING = 64  # a cosine that is 1 up to this many units of rounding is that of two copies of a sample
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
# what belongs to how the network is trained; other callbacks watch, print, write files or stop early
_TRAINING_CALLBACKS = (LRScheduler, OneCycle, GradientNormClipping)


def retrained_scores(context: QueryContext, settings: Settings, evaluation: np.ndarray, reference: str) -> np.ndarray:
    """(N,) scores of a pool by ``direct``, ``one_step`` or ``retrain``, the change summed over some of its rows."""
    if settings.retraining == "direct":
        direct = DirectSolver(context, settings, evaluation)
        start = direct.start if reference == "linearized" else direct.outputs.f
        scores = criterion_scores(direct.new_outputs, settings.criterion, direct.outputs, start, direct.evaluation)
        return settle_known(scores, direct.known, settings.criterion).cpu().numpy()
    if reference != "network":
        expected = f"'network' with retraining={settings.retraining!r}, where nothing is linearised"
        remedy = "Leave it at its default."
        raise InvalidParameterError.for_parameter(context.owner, "reference", expected, reference, remedy)
    _ = context.class_labels  # refuses labels and outputs that cannot be used
    network = context.logit_network
    outputs = read_outputs(network, network.all_logits(context.pool, context.batch_size))
    seed = int(make_generator(context.owner, settings.random_state).integers(2**31))
    retrainer = Retrainer(context, evaluation, seed=seed)
    retrain = retrainer.retrained if settings.retraining == "retrain" else retrainer.stepped
    rows = torch.as_tensor(evaluation, device=network.device)
    return criterion_scores(retrain, settings.criterion, outputs, outputs.f, rows).cpu().numpy()


def criterion_scores(
    new_outputs: Callable[[int, int], Tensor], criterion: str, outputs: Outputs, start: Tensor, evaluation: Tensor
) -> Tensor:
    """Scores of the candidates from the outputs that every hypothetical label leads to.

    The evaluation set is a sample of all others; a candidate's own term is counted apart, once.

    Parameters
    ----------
    new_outputs : callable, (candidate j, label y) -> (e + 1, c) tensor
        Outputs at the evaluation samples, and at j itself, after retraining.
    criterion : {"mlmoc", "emoc", "eer"}
    outputs : Outputs
        Of the candidates before retraining; what is used are labels and probabilities.
    start : (N, c) float64 tensor
        The candidates' outputs from which change is measured.
    evaluation : (e,) tensor

    Returns
    -------
    (N,) float64 tensor

    Examples
    --------
    >>> f = torch.tensor([[0.0, 1.0]])
    >>> outputs = Outputs(f, f, proba=torch.tensor([[0.25, 0.75]]))
    >>> new = lambda j, y: torch.tensor([[4.0, 3.0], [4.0, 3.0]]) * (1 + y)
    >>> criterion_scores(new, "mlmoc", outputs, torch.zeros(1, 2), torch.tensor([0])).tolist()
    [10.0]
    >>> criterion_scores(new, "emoc", outputs, torch.zeros(1, 2), torch.tensor([0])).tolist()
    [8.75]
    """
    N, labels = len(start), outputs.labels
    scores = torch.zeros(N, dtype=torch.float64, device=start.device)
    for j in range(N):
        everywhere = torch.cat([start[evaluation], start[j : j + 1]])
        inside = bool((evaluation == j).any())
        scale = (N - 1) / max(1, len(evaluation) - inside)
        if criterion == "mlmoc":
            weights = {int(labels[j]): 1.0}
        else:
            weights = {y: p for y, p in enumerate(outputs.proba[j].tolist()) if p > 0}
        for y, weight in weights.items():
            terms = terms_of_outputs(criterion, new_outputs(j, y), everywhere, outputs.to_proba)
            own = terms[-1]
            scores[j] += weight * ((terms[:-1].sum() - own * inside) * scale + own)
    return scores


# --- direct: one linear system for every candidate and label ----------------------------------------------------------


def solve_directly(K: Tensor, K_E: Tensor, residuals: Tensor, f_E: Tensor, rho: float) -> Tensor:
    """(e, c) outputs of the linearised network, trained to convergence, from the system of its m training samples.

    Parameters
    ----------
    K : (mB, mB) tensor
        Kernel between the training samples.
    K_E : (eB, mB) tensor
        Kernel between the evaluation samples and them.
    residuals : (m, c) tensor
        Targets minus what the network says now.
    f_E : (e, c) tensor
        The network's outputs at the evaluation samples.
    rho : float
        Added to the diagonal of K.

    Examples
    --------
    >>> solve_directly(torch.eye(2), torch.ones(1, 2), torch.ones(2, 3), torch.zeros(1, 3), 1.0)  # 2 · 1 / (1 + 1)
    tensor([[1., 1., 1.]])
    """
    augmented = K + rho * torch.eye(len(K), dtype=K.dtype, device=K.device)
    return f_E + (K_E @ torch.linalg.solve(augmented, residuals.reshape(len(K), -1))).reshape(f_E.shape)


class DirectSolver:
    """Solves the augmented system of any candidate and label.

    Parameters
    ----------
    context : QueryContext
    settings : Settings
    evaluation : (e,) array

    Attributes
    ----------
    outputs : Outputs
        Of the candidates.
    start : (N, c) float64 tensor
        The linearised network's outputs at the candidates, before any of them is labelled.
    known : (N,) bool tensor
        Which candidates would change nothing.
    """

    def __init__(self, context: QueryContext, settings: Settings, evaluation: np.ndarray) -> None:
        engine, epsilon = context.engine(settings.backend), torch.finfo(context.network.dtype).eps
        kernel = exact_kernel(engine, settings.kernel)
        source = KernelSource(context, kernel, ridge=settings.ridge, epsilon=epsilon, memory=context.memory)
        self.evaluation = torch.as_tensor(evaluation, device=engine.device)
        self._pool, self._evaluated = context.pool, context.pool.take(evaluation)
        self._kernel, self._K_LL, self._residuals, self._B = source.kernel, source.K_LL, source.residuals, source.B
        self._K_CL, self._own = source.kernel(context.pool, context.labelled), source.own(context.pool)
        self.outputs = source.outputs(context.pool)
        nobody, nothing = self.evaluation[:0], self._K_CL[:, :0]
        blocks = (self._K_LL, self._K_CL.T, nothing, self._own, self._residuals, self.outputs, nobody)
        posterior = KernelBlocks(*blocks, settings.ridge, epsilon).posterior()
        self.rho, self.known, self.start = posterior.rho, posterior.known, posterior.linearized
        # half of the memory for the kernel between some candidates and the evaluation set
        self._size = rows_within(context.memory, 2 * 8 * self._B**2 * (len(evaluation) + 1))
        self._first, self._K_BE = -1, nothing

    def _with_evaluation(self, j: int) -> Tensor:
        """(B, eB) kernel of candidate j; those of some candidates are made at once."""
        first = j - j % self._size
        if first != self._first:
            group = self._pool.take(range(first, min(len(self._pool), first + self._size)))
            self._first, self._K_BE = first, self._kernel(group, self._evaluated)
        return self._K_BE[(j - first) * self._B : (j - first + 1) * self._B]

    def new_outputs(self, j: int, label: int) -> Tensor:
        """(e + 1, c) outputs at the evaluation samples, and at candidate j itself, once j is labelled."""
        here = torch.cat([self.evaluation, torch.tensor([j], device=self.evaluation.device)])
        if bool(self.known[j]):
            return self.start[here]
        k = self._K_CL[j * self._B : (j + 1) * self._B]
        last = torch.cat([k, self._own[j]], dim=1)
        K = torch.cat([torch.cat([self._K_LL, k.T], dim=1), last])
        K_EL = self._K_CL[places(self.evaluation, self._B)]
        K_E = torch.cat([torch.cat([K_EL, self._with_evaluation(j).T], dim=1), last])
        residuals = torch.cat([self._residuals, self.outputs.residual(j, label)[None]])
        return solve_directly(K, K_E, residuals, self.outputs.f[here], self.rho)


# --- one_step and retrain: real training ------------------------------------------------------------------------------


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
    evaluation : (e,) array
    seed : int
        For shuffling, dropout and whatever else training draws.
    """

    def __init__(self, context: QueryContext, evaluation: np.ndarray, *, seed: int = 0) -> None:
        self.net = _copy_of(context.net)
        logits = context.logit_network
        self.network = LastOutput(self.net, logits.last) if isinstance(logits, LastOutput) else Network(self.net)
        self.candidates, self.evaluation = context.pool, evaluation
        self.batch_size, self.seed = context.batch_size, seed
        self._labelled, self._y = next(context.labelled.chunks(len(context.labelled))), context.y_labelled
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
        return self._outputs(j)

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
        return self._outputs(j)

    def _outputs(self, j: int) -> Tensor:
        samples = self.candidates.take(np.append(self.evaluation, j))
        return self.network.all_logits(samples, self.batch_size).double()

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
    callbacks = [(name, copy.copy(callback)) for name, callback in kept]
    twin.__dict__.update(callbacks_=callbacks, history_=History(), train_split=None, verbose=0)
    return twin


# --- infinite and gp: the kernel of the infinitely wide network -------------------------------------------------------


def wide_source(context: QueryContext, settings: Settings) -> KernelSource:
    """What ``infinite`` and ``gp`` are computed from, the labelled samples read."""
    network, depth = context.logit_network, depth_of(context.network.module)

    def inputs(samples: Samples) -> Tensor:
        return flat_inputs(network, samples, context.batch_size)

    def kernel(X: Samples, Z: Samples | None) -> Tensor:
        first = inputs(X)
        return infinite_kernel(first, first if Z is None else inputs(Z), depth)

    def own(samples: Samples) -> Tensor:
        return infinite_diagonal(inputs(samples), depth)[:, None, None]

    source = GaussianProcessSource if settings.retraining == "gp" else KernelSource
    epsilon = torch.finfo(torch.float64).eps
    return source(context, (kernel, own), ridge=settings.ridge, epsilon=epsilon, memory=context.memory)


class GaussianProcessSource(KernelSource):
    """The kernel explains the labels alone, not their difference to a network."""

    def outputs(self, samples: Samples) -> Outputs:
        """Zeros: the mean before there are labels."""
        outputs = super().outputs(samples)  # refuses what is not finite
        zeros = torch.zeros_like(outputs.f)
        return outputs._replace(f=zeros, link=zeros)

    def posterior(self, pool: Samples, rows: np.ndarray, evaluation: np.ndarray, n_total: int | None) -> Posterior:
        """With the mean, given the labels, in the place of the network."""
        posterior = super().posterior(pool, rows, evaluation, n_total)
        mean = posterior.linearized.clone()
        posterior.outputs = posterior.outputs._replace(f=mean, link=mean, proba=torch.softmax(mean, dim=1))
        return posterior


def infinite_kernel(
    X: Tensor,
    Z: Tensor,
    depth: int,
    *,
    weight_variance: float = WEIGHT_VARIANCE,
    bias_variance: float = BIAS_VARIANCE,
) -> Tensor:
    """(n, m) kernel between the rows of X (n, d) and those of Z (m, d).

    Examples
    --------
    >>> X = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> infinite_kernel(X, X, depth=1, bias_variance=0.0)  # a linear model: σ_w² x·z / d
    tensor([[1., 0.],
            [0., 1.]])
    """
    q = weight_variance * (X @ Z.T) / X.shape[1] + bias_variance
    q_x, q_z = (weight_variance * rows.square().mean(1) + bias_variance for rows in (X, Z))
    theta = q.clone()
    for _ in range(depth - 1):
        norms = (q_x[:, None] * q_z[None, :]).sqrt_()
        # a sample that is zero has no angle; its κ_1 is zero whatever the angle is
        cosine = torch.where(norms > 0, q / norms, torch.ones_like(q)).clamp_(-1, 1)
        cosine[cosine > 1 - _ROUNDING * torch.finfo(q.dtype).eps] = 1  # or rounding grows by the root in the angle
        angle = torch.arccos(cosine)
        slope = (pi - angle) / (2 * pi)  # κ_0 = E[1(h(x) > 0) 1(h(z) > 0)]
        moment = norms * (torch.sin(angle) / (2 * pi) + slope * cosine)  # κ_1 = E[relu(h(x)) relu(h(z))]
        q = weight_variance * moment + bias_variance
        theta = q + weight_variance * slope * theta
        q_x, q_z = (weight_variance * v / 2 + bias_variance for v in (q_x, q_z))
    return theta


def infinite_diagonal(
    X: Tensor, depth: int, *, weight_variance: float = WEIGHT_VARIANCE, bias_variance: float = BIAS_VARIANCE
) -> Tensor:
    """(n,) kernel of every row of X (n, d) with itself: all angles are zero."""
    q = weight_variance * X.square().mean(1) + bias_variance
    theta = q.clone()
    for _ in range(depth - 1):
        q = weight_variance * q / 2 + bias_variance
        theta = q + weight_variance * theta / 2
    return theta


def depth_of(module: nn.Module) -> int:
    """Number of linear and convolutional layers, those in shortcuts included; 1 at least."""
    return max(1, sum(isinstance(layer, _LAYERS) for layer in module.modules()))


def flat_inputs(network: Network, samples: Samples, batch_size: int) -> Tensor:
    """(n, d) what the network receives, flattened, all inputs of a multi-input network side by side, in float64."""
    rows = []
    with evaluating(network.module):
        for batch in network.batches(samples, batch_size):
            parts = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)]
            rows.append(torch.cat([part.flatten(1).double() for part in parts], dim=1))
    if len({row.shape[1] for row in rows}) != 1:
        raise InvalidParameterError(
            f"The samples in {samples.name} must all have the same shape for the infinitely wide network's kernel. "
            "Got batches of different widths instead. Pad them, or use the network's own kernel (kernel='pntk')."
        )
    return torch.cat(rows)
