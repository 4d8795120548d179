"""Regular expressions of `--fail` in a process of their own, so that none can hold a trial up.

Python cannot end a search that tries every way through a line, as `(a+)+$` does. Here the kernel's clock of
processor time ends it: such an expression is not judged from that line on, and the trial is undecided.
Run as `python -I -S expressions.py EXPRESSION...`: lines on standard input, one JSON object at their end. It
imports the standard library only, because every trial with an expression waits for its start.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Sequence

TICK_S = 1.0  # of processor time
FEW_LINES = 20  # in a tick; an expression that does no more lines than this is too slow
TICKS = 3  # in a row
WAIT_S = 60.0  # for the answer, once all lines are written: many times what the clock allows


class TooSlow(Exception):
    """The clock has run out on a line."""


class Expressions:
    """The judge of some expressions; `line` each line, then `ended` once."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, *patterns],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.pid = self._process.pid

    def line(self, line: str) -> None:
        """Hands a line over; waits while the judge is busy, and never for longer than its clock allows."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.replace("\n", " ").encode(errors="replace") + b"\n")
        except (BrokenPipeError, ValueError):  # it was killed: `ended` says so
            return

    def end(self) -> None:
        """Without an answer."""
        self._process.kill()
        self._process.communicate()

    def ended(self) -> tuple[dict[str, int], dict[str, str]]:
        """-> first line of each expression that matched, from 1; why each other one was not judged."""
        try:
            out, _ = self._process.communicate(timeout=WAIT_S)
            found = json.loads(out)
            return found["hits"], found["slow"]
        except (BrokenPipeError, ValueError, subprocess.TimeoutExpired):
            self.end()
            return {}, {"": "the process that judges expressions was killed"}


def main(patterns: Sequence[str]) -> int:
    """Judge standard input to its end, whatever a pattern does."""
    left = {one: re.compile(one) for one in patterns}
    hits: dict[str, int] = {}
    slow: dict[str, str] = {}
    clock = Clock()
    for at, raw in enumerate(sys.stdin.buffer, start=1):
        if not left:
            continue  # the writer must not wait
        clock.at, line = at, raw.decode(errors="replace").removesuffix("\n")
        for pattern, regex in list(left.items()):
            try:
                clock.judging = True
                hit = regex.search(line)
                clock.judging = False
            except (TooSlow, MemoryError, RecursionError) as error:
                clock.judging = False
                slow[pattern] = f"takes too long on line {at}" if isinstance(error, TooSlow) else str(error)
                del left[pattern]
                continue
            if hit:
                hits[pattern] = at
                del left[pattern]
    json.dump({"hits": hits, "slow": slow}, sys.stdout)
    return 0


class Clock:
    """Raises TooSlow inside a search that holds the processor for TICKS ticks without getting on."""

    def __init__(self) -> None:
        self.at, self.judging = 0, False
        self._was_at, self._slow = 0, 0
        signal.signal(signal.SIGVTALRM, self._tick)
        signal.setitimer(signal.ITIMER_VIRTUAL, TICK_S, TICK_S)

    def _tick(self, *_: object) -> None:
        is_slow = self.judging and self.at - self._was_at < FEW_LINES
        self._slow, self._was_at = self._slow + 1 if is_slow else 0, self.at
        if self._slow >= TICKS:
            self._slow = 0
            raise TooSlow


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
