"""The slow truth: one call of ``torch.autograd.grad`` per sample and class, in float64, written from the formulas.

n samples, C classes, P trainable parameters. Nothing here uses the tangent engine.
"""

import copy

import numpy as np
import torch
import torch.nn.functional as F


def as_double(X):
    """The inputs in float64, indices as they are."""
    if isinstance(X, dict):
        return {key: as_double(value) for key, value in X.items()}
    X = torch.as_tensor(X)
    return X.double() if X.is_floating_point() else X


def _rows(X, i):
    return {key: value[i : i + 1] for key, value in X.items()} if isinstance(X, dict) else X[i : i + 1]


def _length(X):
    return len(next(iter(X.values()))) if isinstance(X, dict) else len(X)


def _output(module, x):
    output = module(**x) if isinstance(x, dict) else module(x)
    return output[0] if isinstance(output, tuple) else output


def _flat(gradients, parameters):
    parts = [torch.zeros_like(p) if g is None else g for g, p in zip(gradients, parameters, strict=True)]
    return torch.cat([part.to_dense().reshape(-1) for part in parts])


def _prepared(module, X):
    module = copy.deepcopy(module).double().eval()
    return module, as_double(X), [p for p in module.parameters() if p.requires_grad]


def jacobian(module, X, to_logits=lambda output: output):
    """Derivatives of the logits: (n, C, P) float64."""
    module, X, parameters = _prepared(module, X)
    rows = []
    for i in range(_length(X)):
        f = to_logits(_output(module, _rows(X, i)))[0]
        gradients = [torch.autograd.grad(f_c, parameters, retain_graph=True, allow_unused=True) for f_c in f]
        rows.append(torch.stack([_flat(g, parameters) for g in gradients]))
    return torch.stack(rows).numpy()


def logits(module, X, to_logits=lambda output: output):
    """(n, C) float64."""
    module, X, _ = _prepared(module, X)
    with torch.no_grad():
        return torch.cat([to_logits(_output(module, _rows(X, i))) for i in range(_length(X))]).numpy()


def loss_gradients(module, X, y, loss="cross_entropy"):
    """Gradient of each sample's loss: (n, P) float64. A loss may also be a function of one output and its label."""
    module, X, parameters = _prepared(module, X)
    rows = []
    for i, label in enumerate(np.asarray(y).tolist()):
        f = _output(module, _rows(X, i))
        if callable(loss):
            value = loss(f, label)
        elif loss == "cross_entropy":
            value = F.cross_entropy(f, torch.tensor([label]))
        else:
            value = (f - F.one_hot(torch.tensor([label]), f.shape[1])).square().sum() / 2
        rows.append(_flat(torch.autograd.grad(value, parameters, allow_unused=True), parameters))
    return torch.stack(rows).numpy()


def flatten(gradient, module):
    """A dict by parameter names as one vector, in the module's order."""
    names = [name for name, p in module.named_parameters() if p.requires_grad]
    assert set(gradient) == set(names)
    return torch.cat([gradient[name].double().reshape(-1) for name in names]).numpy()


def kernel(J, J2, kind):
    """A tangent kernel of two Jacobians (n, C, P), (m, C, P)."""
    C = J.shape[1]
    if kind == "pntk":
        return (J.sum(1) / np.sqrt(C)) @ (J2.sum(1) / np.sqrt(C)).T
    if kind == "logit":
        return J[:, 0] @ J2[:, 0].T
    if kind == "trace":
        return sum(J[:, c] @ J2[:, c].T for c in range(C))
    return J.reshape(-1, J.shape[2]) @ J2.reshape(-1, J.shape[2]).T


def features(J, kind):
    """The vectors whose inner products are the kernel."""
    n, C, _ = J.shape
    if kind == "pntk":
        return J.sum(1) / np.sqrt(C)
    if kind == "logit":
        return J[:, 0]
    return J.reshape(n, -1) if kind == "trace" else J.reshape(n * C, -1)


def relative_error(result, truth):
    """Largest difference in units of the largest true value."""
    result, truth = np.asarray(result, dtype=np.float64), np.asarray(truth, dtype=np.float64)
    assert result.shape == truth.shape
    assert np.abs(truth).max() > 0, "nothing to compare"
    return np.abs(result - truth).max() / np.abs(truth).max()


def slow_k_means_plus_plus(gradients, indices):
    """Squared distances of each pick to the nearest before, from the gradients written out."""
    squares = [np.square(gradients[indices[0]]).sum()]
    for k in range(1, len(indices)):
        before = gradients[indices[:k]]
        squares.append(np.square(before - gradients[indices[k]]).sum(axis=1).min())
    return squares


def slow_herding(X, n_labelled, weights, radius, n_instances):
    """Greedy gains Σ_z w_z max(k(z, x) − coverage of z, 0) on directions; the labelled samples come first."""
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    K = np.exp(-np.square(unit[:, None] - unit[None]).sum(axis=2) / radius**2)[n_labelled:]
    covered, picked = K[:, :n_labelled].max(axis=1), []
    for _ in range(n_instances):
        gains = (weights[:, None] * np.maximum(K[:, n_labelled:] - covered[:, None], 0)).sum(axis=0)
        gains[picked] = -np.inf
        picked.append(int(gains.argmax()))
        covered = np.maximum(covered, K[:, n_labelled + picked[-1]])
    return picked
