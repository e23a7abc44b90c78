# SPDX-License-Identifier: BSD-3-Clause
"""Who looks at which sample: every tab has its own, so that two do not label the same one. And how fast they are."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from itertools import pairwise

LEASE = 600.0  # seconds after which a sample that a tab has not answered goes to others
_BREAK = 60.0  # seconds: a longer silence counts as a break


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

    def keep(self, client: str, positions: Iterable[int]) -> None:
        """Give a client samples that it shows again, even if another client has them now."""
        self._held.update(dict.fromkeys(positions, (client, self._clock() + LEASE)))

    def release(self, client: str, position: int) -> None:
        """Let others have a sample that this client has answered; one in another's hands stays there."""
        if self._held.get(position, (None, 0.0))[0] == client:
            del self._held[position]


class Pace:
    """The labels given per minute today, without breaks.

    Parameters
    ----------
    times : iterable of str
        Of the labels so far, as the journal has them.
    clock : callable, default=time.time

    Examples
    --------
    >>> moments = iter([0.0, 3600.0, 3603.0, 3606.0, 3612.0])
    >>> pace = Pace([], clock=lambda: next(moments))
    >>> pace.note(), pace.note(), pace.note(), pace.note(2)
    (None, None, None, None)
    >>> pace.per_minute()
    20.0
    """

    def __init__(self, times: Iterable[str], clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        today = datetime.fromtimestamp(clock(), timezone.utc).date().isoformat()
        found = sorted(datetime.fromisoformat(text).timestamp() for text in times if text.startswith(today))
        self._times: deque[float] = deque(found, maxlen=2000)

    def note(self, n: int = 1) -> None:
        """There are n more labels."""
        self._times.extend([self._clock()] * n)

    def per_minute(self) -> float:
        """Labels a minute, 0 before there are two."""
        times = list(self._times)
        gaps = [b - a for a, b in pairwise(times) if b - a <= _BREAK]
        return 60 * len(gaps) / max(sum(gaps), 1e-3 * len(gaps)) if gaps else 0.0
