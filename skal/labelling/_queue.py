# SPDX-License-Identifier: BSD-3-Clause
"""Who looks at which sample: every tab has its own, so that two do not label the same one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

LEASE = 600.0  # seconds after which a sample that a tab has not answered goes to others


class Leases:
    """Samples in the hands of tabs.

    Parameters
    ----------
    clock : callable, default=time.monotonic

    Examples
    --------
    >>> leases = Leases()
    >>> leases.take("first", [1, 2, 3, 4], 2), leases.take("second", [1, 2, 3, 4], 1)
    ([1, 2], [3])
    >>> leases.take("first", [2, 3, 4], 2)
    [2, 4]
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._held: dict[int, tuple[str, float]] = {}

    def take(self, client: str, order: Iterable[int], n: int) -> list[int]:
        """The first ``n`` of the order that are this client's or nobody's; what else it had is free."""
        now = self._clock()
        self._held = {i: (who, until) for i, (who, until) in self._held.items() if until > now and who != client}
        taken: list[int] = []
        for position in order:
            if len(taken) == n:
                break
            if position not in self._held:
                taken.append(position)
        self._held.update(dict.fromkeys(taken, (client, now + LEASE)))
        return taken
