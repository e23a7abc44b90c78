# SPDX-License-Identifier: BSD-3-Clause
r"""What the papers compare the look-ahead with: ``direct``, ``one_step``, ``retrain``, ``infinite`` and ``gp``.

The first three work on one candidate and one label at a time, and cost accordingly. The last two are the look-ahead
with the tangent kernel of an infinitely wide fully connected ReLU network in the parametrisation of NTK theory [1]_,

    h_l = √(σ_w² / d_{l-1}) W_l a_{l-1} + σ_b b_l,    a_l = relu(h_l),    all entries of W and b ~ N(0, 1),

with the d numbers of a sample as a_0. That is He's initialisation for σ_w² = 2, with gradients in W and b. (In
PyTorch's own parametrisation the shares of all layers but the first grow with the width, and there is no limit.) All
outputs have the same kernel and do not interact. With q_l = E[h_l(x) h_l(z)] and the arc-cosine functions κ of it,

    Θ_1 = q_1 = σ_w² x·z / d + σ_b²,    q_{l+1} = σ_w² κ_1(q_l) + σ_b²,    Θ_{l+1} = q_{l+1} + σ_w² κ_0(q_l) Θ_l.

Index letters as in :mod:`skal._lookahead.posterior`.

.. [1] Jacot, Gabriel and Hongler, "Neural Tangent Kernel: Convergence and Generalization in Neural Networks", 2018.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import lru_cache
from math import pi
from typing import Any

import numpy as np
import torch
from skorch import NeuralNet
from skorch.callbacks import GradientNormClipping, LRScheduler
from skorch.history import History
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import Dataset

from skal._core.containers import concat_rows, dataset_input, n_rows, take_rows
from skal._core.guard import evaluating, preserve_rng
from skal._core.last_layer import LastOutput
from skal._core.memory import rows_within
from skal._core.network import Network
from skal._core.pool import Samples
from skal._lookahead.criteria import settle_known, terms_of_outputs
from skal._lookahead.posterior import Outputs, Posterior, places, precision_of_variances, read_outputs
from skal._lookahead.request import Settings
from skal._lookahead.sources import KernelSource, exact_kernel
from skal.callbacks import OneCycle
from skal.context import QueryContext
from skal.exceptions import InvalidParameterError
from skal.tangent._kernels import settle_kernel
from skal.tangent._tangent_engine import no_gradients
from skal.validation import make_generator

WEIGHT_VARIANCE = 2.0  # He: the size of the signal stays the same from layer to layer
BIAS_VARIANCE = 0.1**2  # the β of Jacot et al.
_ROUNDING = 64  # a cosine that is 1 up to this many units of rounding is that of two copies of a sample
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
# (candidate j, label y) -> (e + 1, c) outputs at the evaluation samples, and at j itself, after retraining
NewOutputs = Callable[[int, int], Tensor]
# what belongs to how the network is trained; other callbacks watch, print, write files or stop early
_TRAINING_CALLBACKS = (LRScheduler, OneCycle, GradientNormClipping)


def retrained_scores(context: QueryContext, settings: Settings, evaluation: np.ndarray, reference: str) -> np.ndarray:
    """(N,) scores of a pool by ``direct``, ``one_step`` or ``retrain``."""
    _ = context.class_labels  # refuses labels and outputs that cannot be used
    network, criterion, retraining = context.logit_network, settings.criterion, settings.retraining
    outputs = read_outputs(network, context.logits())
    rows = torch.as_tensor(evaluation, device=network.device)
    if retraining == "direct":
        new_outputs, posterior = direct_solver(context, settings, rows)
        if not bool(posterior.prior.any()):
            raise no_gradients("The look-ahead")
        start = posterior.linearized if reference == "linearized" else outputs.f
        scores = criterion_scores(new_outputs, criterion, outputs, start, rows)
        return settle_known(scores, posterior.is_known(), criterion).cpu().numpy()
    if reference != "network":
        expected = f"'network' with retraining={retraining!r}, where nothing is linearised"
        remedy = "Leave it at its default."
        raise InvalidParameterError.for_parameter(context.owner, "reference", expected, reference, remedy)
    seed = int(make_generator(context.owner, settings.random_state).integers(2**31))
    retrainer = Retrainer(context, evaluation, seed=seed)
    retrain = retrainer.retrain if retraining == "retrain" else retrainer.step
    return criterion_scores(retrain, criterion, outputs, outputs.f, rows).cpu().numpy()


def criterion_scores(
    new_outputs: NewOutputs, criterion: str, outputs: Outputs, start: Tensor, evaluation: Tensor
) -> Tensor:
    """(N,) scores from the outputs that every hypothetical label leads to, as they differ from (N, c) others.

    The evaluation set is a sample of all others; a candidate's own term is counted apart, once.
    """
    N, labels = len(start), outputs.labels
    scores = torch.zeros(N, dtype=torch.float64, device=start.device)
    for j in range(N):
        before, inside = torch.cat([start[evaluation], start[j : j + 1]]), bool((evaluation == j).any())
        scale = (N - 1) / max(1, len(evaluation) - inside)
        p = {int(labels[j]): 1.0} if criterion == "mlmoc" else dict(enumerate(outputs.proba[j].tolist()))
        for y, weight in p.items():
            if weight > 0:
                new = new_outputs(j, y)
                terms = terms_of_outputs(criterion, new, new - before, outputs.to_proba)
                own = terms[-1]
                scores[j] += weight * ((terms[:-1].sum() - own * inside) * scale + own)
    return scores


def solve_directly(K: Tensor, K_E: Tensor, residuals: Tensor, f_E: Tensor, rho: float) -> Tensor:
    """(e, c) outputs of the linearised network, trained to convergence on m samples; K is (mB, mB), K_E (eB, mB)."""
    augmented = K + rho * torch.eye(len(K), dtype=K.dtype, device=K.device)
    outputs: Tensor = f_E + (K_E @ torch.linalg.solve(augmented, residuals.reshape(len(K), -1))).reshape(f_E.shape)
    return outputs


def direct_solver(context: QueryContext, settings: Settings, evaluation: Tensor) -> tuple[NewOutputs, Posterior]:
    """A solver of the augmented system for any candidate and label, and the posterior before any label is added."""
    pool, epsilon = context.pool, precision_of_variances(context.network.dtype, torch.float64)
    engine = context.tangent_engine(settings.backend)
    kernel = exact_kernel(engine, settle_kernel(engine, pool, settings.kernel, context.owner))
    source = KernelSource(context, kernel, ridge=settings.ridge, epsilon=epsilon, memory=context.memory)
    B, own = source.B, source.own(pool)
    blocks = source.blocks_of(pool, evaluation[:0], own.new_empty(len(pool) * B, 0), own)
    posterior, K_LC, f = blocks.posterior(), blocks.K_LC, blocks.outputs.f
    K_EL = K_LC[:, places(evaluation, B)].T
    # half of the memory for the kernel between some candidates and the evaluation set
    size = rows_within(context.memory, 2 * 8 * B**2 * (len(evaluation) + 1))

    @lru_cache(maxsize=1)
    def with_evaluation(first: int) -> Tensor:
        group = pool.take(range(first, min(len(pool), first + size)))
        return source.kernel(group, pool.take(evaluation.cpu().numpy()))

    def new_outputs(j: int, label: int) -> Tensor:
        here = torch.cat([evaluation, torch.tensor([j], device=evaluation.device)])
        if bool(posterior.is_known()[j]):
            return posterior.linearized[here]
        first, k = j - j % size, K_LC[:, j * B : (j + 1) * B]
        k_E = with_evaluation(first)[(j - first) * B : (j - first + 1) * B].T
        last = torch.cat([k.T, own[j]], dim=1)
        K = torch.cat([torch.cat([blocks.K_LL, k], dim=1), last])
        K_E = torch.cat([torch.cat([K_EL, k_E], dim=1), last])
        residuals = torch.cat([blocks.residuals, blocks.outputs.residual(j, label)[None]])
        return solve_directly(K, K_E, residuals, f[here], posterior.rho)

    return new_outputs, posterior


class Retrainer:
    """A copy of the learner's network that is trained on hypothetical labels, and reset before each of them.

    The learner's net is only read. The copy keeps its module, criterion, optimiser, learning rate (and its schedule),
    gradient clipping, batch size and number of epochs. It starts from the present weights, with a fresh optimiser and
    the same random numbers for every label. It holds nothing back for validation, where the hypothetical label might
    end up, and runs no other callbacks.
    """

    def __init__(self, context: QueryContext, evaluation: np.ndarray, *, seed: int = 0) -> None:
        self.net = _copy_of(context.net)
        logits = context.logit_network
        self.network = LastOutput(self.net, logits.last) if isinstance(logits, LastOutput) else Network(self.net)
        self.candidates, self.evaluation = context.pool, evaluation
        self.batch_size, self.seed = context.batch_size, seed
        self._labelled, self._y = next(context.labelled.chunks(len(context.labelled))), context.labels
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

    def retrain(self, j: int, label: int) -> Tensor:
        """(e + 1, c) outputs after training on all labels and this one, for as many epochs as a ``fit`` takes."""
        with preserve_rng(), torch.enable_grad():
            self.reset()
            X, y = self._with(j, label)
            # not `partial_fit`, which takes Ctrl-C for the end of training
            self.net.notify("on_train_begin", X=X, y=y)
            self.net.fit_loop(X, y)
            self.net.notify("on_train_end", X=X, y=y)
        return self._outputs(j)

    def step(self, j: int, label: int) -> Tensor:
        """(e + 1, c) outputs after one step of the optimiser on this sample alone, in eval mode."""
        with evaluating(self.net.module_), torch.enable_grad():
            self.reset()
            batch = next(self.network.batches(self.candidates.take(np.array([j])), 1))
            y = torch.as_tensor(np.full_like(self._y[:1], label), device=self.network.device)

            def loss() -> Tensor:
                self.net.optimizer_.zero_grad()
                value: Tensor = self.net.get_loss(self.net.infer(batch), y, X=batch, training=True)
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


class _Relabelled(Dataset[Any]):
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
        return torch.as_tensor(x, device="cpu") if self.mixed and isinstance(x, np.ndarray) else x, self.y[i]


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


def wide_source(context: QueryContext, settings: Settings) -> KernelSource:
    """The source for ``infinite`` and ``gp``, with the labelled samples read."""
    network, depth = context.logit_network, depth_of(context.network.module)

    def inputs(samples: Samples) -> Tensor:
        return flat_inputs(network, samples, context.batch_size)

    def kernel(X: Samples, Z: Samples | None) -> Tensor:
        first = inputs(X)
        return infinite_kernel(first, first if Z is None else inputs(Z), depth)

    def own(samples: Samples) -> Tensor:
        return infinite_diagonal(inputs(samples), depth)[:, None, None]

    source = GaussianProcessSource if settings.retraining == "gp" else KernelSource
    epsilon = precision_of_variances(torch.float64, torch.float64)
    return source(context, (kernel, own), ridge=settings.ridge, epsilon=epsilon, memory=context.memory)


class GaussianProcessSource(KernelSource):
    """The kernel explains the labels alone, not their difference to a network."""

    def outputs(self, samples: Samples) -> Outputs:
        """Zeros: the mean before there are labels."""
        outputs = super().outputs(samples)  # refuses what is not finite
        zeros = torch.zeros_like(outputs.f)
        return outputs._replace(f=zeros, link=zeros)

    def posterior(
        self,
        pool: Samples,
        rows: np.ndarray,
        evaluation: np.ndarray,
        n_total: int | None,
        target: Samples | None = None,
    ) -> Posterior:
        """The posterior with its mean, given the labels, instead of the network's outputs."""
        posterior = super().posterior(pool, rows, evaluation, n_total, target)
        mean = posterior.linearized.clone()
        posterior.outputs = posterior.outputs._replace(f=mean, link=mean, proba=torch.softmax(mean, dim=1))
        return posterior


def infinite_kernel(X: Tensor, Z: Tensor, depth: int, bias_variance: float = BIAS_VARIANCE) -> Tensor:
    """(n, m) kernel between the rows of X (n, d) and those of Z (m, d)."""
    q_x, q_z = (WEIGHT_VARIANCE * rows.square().mean(1) + bias_variance for rows in (X, Z))
    q = WEIGHT_VARIANCE * (X @ Z.T) / X.shape[1] + bias_variance
    return _infinite(q, q_x[:, None], q_z[None, :], depth, bias_variance)


def infinite_diagonal(X: Tensor, depth: int) -> Tensor:
    """(n,) kernel of every row of X (n, d) with itself."""
    q = WEIGHT_VARIANCE * X.square().mean(1) + BIAS_VARIANCE
    return _infinite(q, q, q, depth, BIAS_VARIANCE)


def _infinite(q: Tensor, q_x: Tensor, q_z: Tensor, depth: int, bias_variance: float) -> Tensor:
    """Θ of pairs of samples, from q_1 of each pair and of its members with themselves."""
    theta = q.clone()
    for _ in range(depth - 1):
        norms = (q_x * q_z).sqrt_()
        # a sample that is zero has no angle; its κ_1 is zero whatever the angle is
        cosine = torch.where(norms > 0, q / norms, torch.ones_like(q)).clamp_(-1, 1)
        cosine[cosine > 1 - _ROUNDING * torch.finfo(q.dtype).eps] = 1  # or rounding grows by the root in the angle
        angle = torch.arccos(cosine)
        slope = (pi - angle) / (2 * pi)  # κ_0 = E[1(h(x) > 0) 1(h(z) > 0)]
        moment = norms * (torch.sin(angle) / (2 * pi) + slope * cosine)  # κ_1 = E[relu(h(x)) relu(h(z))]
        q = WEIGHT_VARIANCE * moment + bias_variance
        theta = q + WEIGHT_VARIANCE * slope * theta
        q_x, q_z = (WEIGHT_VARIANCE * v / 2 + bias_variance for v in (q_x, q_z))
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
