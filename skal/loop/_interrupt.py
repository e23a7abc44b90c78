"""Ctrl-C during a training breaks off the run.

skorch takes a KeyboardInterrupt as the wish to end this training and go on with what has been learnt; callbacks that
stop early use that. A loop would then go on with a network that nobody can train a second time.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["breaking_off"]


@contextmanager
def breaking_off() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end if there was a SIGINT inside, even if somebody has taken the exception."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield  # signals are no business of this thread, or are ignored, or handled outside Python
        return
    seen = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal seen
        seen = True
        before(number, frame)

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if seen:
        raise KeyboardInterrupt
