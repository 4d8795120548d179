"""Ending steps from outside: one Ctrl-C (or SIGTERM, SIGHUP) ends them gracefully, a second one at once."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from lab.core.step import Step


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


def reason_to_stop(step: Step, stop: Stop, *, ran_s: float, silent_s: float, disk_full: bool) -> str | None:
    """Why lab must end this step now, as `Ending.stopped_by` has it; None while it may go on."""
    if stop.is_set():
        return "user"
    if step.timeout_s and ran_s > step.timeout_s:
        return "timeout"
    if step.stall_timeout_s and silent_s > step.stall_timeout_s:
        return "stall"
    return "disk" if disk_full else None
