r"""The tangent kernel of an infinitely wide fully connected ReLU network, in closed form.

The network has ``depth`` layers in the parametrisation of NTK theory (Jacot et al. 2018),

    h_l = √(σ_w² / d_{l-1}) W_l a_{l-1} + σ_b b_l,    a_l = relu(h_l),    all entries of W and b ~ N(0, 1),

with the d numbers of a sample as a_0 and h_depth as output. That is He's initialisation for σ_w² = 2, with gradients in
W and b, so that every layer has its share of the kernel however wide it is. (In PyTorch's own parametrisation the
shares of all layers but the first grow with the width, and there is no limit.)

As the widths grow, outputs have the same kernel and do not interact, so that ``pntk``, ``logit`` and one C-th of
``trace`` are the same. With q_l = E[h_l(x) h_l(z)] and the arc-cosine functions κ of the angle that q_l gives,

    q_1 = σ_w² x·z / d + σ_b²,    q_{l+1} = σ_w² κ_1(q_l) + σ_b²,
    Θ_1 = q_1,                    Θ_{l+1} = q_{l+1} + σ_w² κ_0(q_l) Θ_l.
"""

from __future__ import annotations

from math import pi

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from skal._core.network import Network, evaluating
from skal._core.samples import Samples
from skal.exceptions import InvalidParameterError

__all__ = ["depth_of", "flat_inputs", "infinite_diagonal", "infinite_kernel"]

WEIGHT_VARIANCE = 2.0  # He: the size of the signal stays the same from layer to layer
BIAS_VARIANCE = 0.1**2  # the β of Jacot et al.
_ROUNDING = 64  # a cosine that is 1 up to this many units of rounding is that of two copies of a sample
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


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
    q_x = weight_variance * X.square().mean(1) + bias_variance
    q_z = weight_variance * Z.square().mean(1) + bias_variance
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
