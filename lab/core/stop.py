"""Ending steps from outside: one Ctrl-C (or SIGTERM, SIGHUP) ends them gracefully, a second one at once."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


class Stop(threading.Event):
    """Set by the first signal; `now` by the second."""

    at_once = False


@contextlib.contextmanager
def on_signals(say: Callable[[str], None]) -> Iterator[Stop]:
    """Turn signals into a Stop while the block runs, then restore the earlier handlers."""
    stop = Stop()

    def handle(number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            stop.at_once = True
            say("stopping at once")
        else:
            stop.set()
            say(f"{signal.Signals(number).name}: ending the running steps; once more to kill them")

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield stop
    finally:
        for number, old in handlers.items():
            signal.signal(number, old)
