"""The bridge to modAL, releases 0.4.1 and 0.4.2.1.

modAL passes ``force_all_finite`` to ``sklearn.utils.check_X_y``, which scikit-learn 1.6 deprecated and 1.8 removed in
favour of ``ensure_all_finite``. :func:`patch_modal` gives modAL's own modules a ``check_X_y`` that knows both names.
Importing skal does this once; nothing else in modAL, and nothing in scikit-learn, is changed.
"""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any

import modAL.models  # noqa: F401 (so that the modules to be patched are loaded)
from sklearn.utils import check_X_y

__all__ = ["ask", "expects_metrics", "patch_modal"]

_OLD, _NEW = "force_all_finite", "ensure_all_finite"


def patch_modal() -> bool:
    """Let modAL run on the installed scikit-learn.

    Does nothing where scikit-learn still knows only the old name, or when called again.

    Returns
    -------
    bool
        Whether anything was changed.

    Examples
    --------
    >>> from skal.compat.modal import patch_modal
    >>> patch_modal()  # importing skal has done it
    False
    """
    if _NEW not in inspect.signature(check_X_y).parameters:
        return False
    patched = False
    for name, module in list(sys.modules.items()):
        own = getattr(module, "check_X_y", None)
        if name.split(".")[0] == "modAL" and own is not None and not hasattr(own, "_renamed_by_skal"):
            module.check_X_y = _renaming(own)  # type: ignore[attr-defined]
            patched = True
    return patched


def _renaming(check: Any) -> Any:
    @functools.wraps(check)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if _OLD in kwargs:
            kwargs[_NEW] = kwargs.pop(_OLD)
        return check(*args, **kwargs)

    wrapper._renamed_by_skal = True  # type: ignore[attr-defined]
    return wrapper


def expects_metrics(learner: Any) -> bool:
    """Whether a learner wants ``(indices, metrics)`` from its strategy, as modAL's do since 0.4.2.

    Earlier releases, plain objects and skal's own learners get the bare index array. modAL's two conventions are told
    apart by the ``return_metrics`` parameter of its ``query``, which came with the second.

    Parameters
    ----------
    learner : object

    Returns
    -------
    bool

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skal import ActiveLearner
    >>> from skal.compat.modal import expects_metrics
    >>> expects_metrics(ActiveLearner(LogisticRegression()))
    False
    """
    for cls in type(learner).__mro__:
        package = cls.__module__.split(".")[0]
        if package in ("modAL", "skal") and "query" in vars(cls):
            return package == "modAL" and "return_metrics" in inspect.signature(vars(cls)["query"]).parameters
    return False


def ask(strategy: Any, learner: Any, X_pool: Any, n_instances: int, **params: Any) -> tuple[Any, Any]:
    """Indices and metrics (None without) from a query function in either of modAL's conventions, called once.

    Parameters
    ----------
    strategy : callable
    learner, X_pool, n_instances, **params
        What it is called with.

    Examples
    --------
    >>> from skal.compat.modal import ask
    >>> ask(lambda learner, X_pool, n_instances: [2, 0], None, [1, 2, 3], 2)
    ([2, 0], None)
    """
    answer = strategy(learner, X_pool, n_instances=n_instances, **params)
    return answer if isinstance(answer, tuple) else (answer, None)
