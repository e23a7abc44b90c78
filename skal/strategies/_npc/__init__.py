# SPDX-License-Identifier: BSD-3-Clause
"""NPC and what only it needs."""

from skal.strategies._npc._strategy import NPC, npc

__all__ = ["NPC", "npc"]
