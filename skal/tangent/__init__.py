# SPDX-License-Identifier: BSD-3-Clause
"""The tangent engine: per-sample gradients and tangent kernels at the cost of a few network passes."""

from skal.tangent._gradients import gradient_scores, loss_gradient
from skal.tangent._kernels import tangent_kernel
from skal.tangent._layer_rules import register_rule
from skal.tangent._sketch import tangent_features

__all__ = ["gradient_scores", "loss_gradient", "register_rule", "tangent_features", "tangent_kernel"]
