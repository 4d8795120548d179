"""Show the progress of steps in plain lines."""

from __future__ import annotations

import sys
import threading
from typing import TextIO

from lab.core.plan import Watcher
from lab.core.step import Outcome, Status, Step
from lab.secrets import redact, secret_values

MARKS = {Status.ok: "✓", Status.skipped: "-"}


class Console:
    """Writes for a person to stderr, so that stdout holds only results and --json."""

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.quiet = quiet
        self._secrets = secret_values()
        self._mutex = threading.Lock()

    def say(self, text: str) -> None:
        text = redact(text, self._secrets)
        with self._mutex:
            print(text, file=self.stream, flush=True)

    def detail(self, text: str) -> None:
        if not self.quiet:
            self.say(text)


class StepDisplay(Watcher):
    """Shows how many steps have started, and each step's lines as they come."""

    def __init__(self, console: Console, total: int) -> None:
        self._console, self._total = console, total
        self._steps: set[str] = set()  # begun or ended; one may begin again
        self._skipped: list[tuple[str, str]] = []  # names and reasons, not printed yet

    def __enter__(self) -> StepDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        self._say_skipped()

    def begin(self, step: Step) -> None:
        self._say_skipped()
        self._steps.add(step.name)
        self._console.say(f"> {step.name} starts ({len(self._steps)} of {self._total})")

    def line(self, step: Step, line: str) -> None:
        self._console.detail(f"  [{step.name}] {line}")

    def end(self, step: Step, outcome: Outcome) -> None:
        self._steps.add(step.name)
        if outcome.status is Status.skipped:
            self._skipped.append((step.name, outcome.reason))
        else:
            self._say_skipped()
            self._say_end(step, outcome)

    def _say_end(self, step: Step, outcome: Outcome) -> None:
        mark = MARKS.get(outcome.status, "✗")
        self._console.say(
            f"{mark} {step.name}: {outcome.status.value} in {outcome.seconds:.1f} s"
            + (f" - {outcome.reason}" if outcome.reason else "")
        )

    def _say_skipped(self) -> None:
        """Print one line per reason: a run that is decided early skips hundreds of steps in a row."""
        skipped, self._skipped = self._skipped, []
        for reason in dict.fromkeys(reason for _, reason in skipped):
            names = [name for name, cause in skipped if cause == reason]
            named = names[0] if len(names) == 1 else f"{len(names)} steps, {names[0]} to {names[-1]}"
            self._console.say(f"- {named}: skipped{f' - {reason}' if reason else ''}")
