# SPDX-License-Identifier: BSD-3-Clause
"""modAL is repaired when somebody imports it, and not before: importing skal must not import modAL and pandas."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _RepairsModal(MetaPathFinder):
    """Finds modAL as the other finders do, and has it repaired once its package has run."""

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != "modAL":
            return None
        others = (finder for finder in sys.meta_path if not isinstance(finder, _RepairsModal))
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_repair(module: ModuleType) -> None:
                run(module)
                _repair()

            spec.loader.exec_module = run_and_repair  # type: ignore[method-assign]
        return spec


def _repair() -> None:
    from skal.compat.modal import patch_modal

    patch_modal()


def repair_on_import() -> None:
    """Repair modAL at once if it has been imported, else as soon as it is."""
    if "modAL" in sys.modules:
        _repair()
    elif not any(isinstance(finder, _RepairsModal) for finder in sys.meta_path):
        sys.meta_path.insert(0, _RepairsModal())
