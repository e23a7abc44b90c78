"""A trained skorch net as a tree of tensors and plain values, and back."""

from __future__ import annotations

from typing import Any

from skorch import NeuralNet
from skorch.history import History

__all__ = ["load_network_state", "network_state"]


def network_state(net: NeuralNet) -> dict[str, Any]:
    """Modules and criteria with their buffers, optimizers, the net's history, and what ``net.get_state()`` adds."""
    return {
        "modules": {name: dict(getattr(net, f"{name}_").state_dict()) for name in net._modules + net._criteria},
        "optimizers": {name: getattr(net, f"{name}_").state_dict() for name in net._optimizers},
        "history": net.history.to_list() if hasattr(net.history, "to_list") else list(net.history),
        "classes": getattr(net, "classes_inferred_", None),
        "extra": net.get_state() if hasattr(net, "get_state") else None,
    }


def load_network_state(net: NeuralNet, state: dict[str, Any]) -> None:
    """Put the state into a net that has been initialised."""
    for name, values in state["modules"].items():
        getattr(net, f"{name}_").load_state_dict(values)
    for name, values in state["optimizers"].items():
        getattr(net, f"{name}_").load_state_dict(values)
    net.history = History(state["history"])
    if state["classes"] is not None:
        net.classes_inferred_ = state["classes"]
    if state["extra"] is not None:
        net.set_state(state["extra"])
