"""Where a step's output goes, the same for every engine: its log file, the screen and the tail, redacted."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import TextIO

from lab.core.run import Run
from lab.core.step import Step
from lab.secrets import redact, secret_values

TAIL_LINES = 40


class Sink:
    """Takes lines and never stops taking: a full disk is kept in `error` for the driver, because a reader that stops
    would stop the step."""

    def __init__(self, log: Path, on_line: Callable[[str], None]) -> None:
        self._log, self._on_line = log, on_line
        self._secrets = secret_values()
        self._file: TextIO | None = None
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.last_line = time.monotonic()
        self.error: OSError | None = None

    def __enter__(self) -> Sink:
        try:
            self._file = self._log.open("w", encoding="utf-8", errors="replace")
        except OSError as error:
            self.error = error
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            try:
                self._file.close()
            except OSError as error:  # what was left in the buffer did not fit
                self.error = self.error or error
            self._file = None

    def take(self, lines: Iterable[str]) -> None:
        """Write whole lines, then flush, so that a log can be followed while the step runs."""
        self.last_line = time.monotonic()
        for raw in lines:
            line = redact(raw, self._secrets)
            self.tail.append(line)
            self._on_line(line)
            self._write(line)
        if self._file is not None and self.error is None:
            try:
                self._file.flush()
            except OSError as error:
                self.error = error

    def _write(self, line: str) -> None:
        if self._file is not None and self.error is None:
            try:
                self._file.write(line + "\n")
            except OSError as error:
                self.error = error


def last_words(run: Run, step: Step) -> list[str]:
    """The last lines of the step's own logs, newest file last: they hold what a killed rank said."""
    paths = sorted(
        {p for pattern in step.logs for p in run.root.glob(pattern)}, key=lambda p: p.stat().st_mtime
    )
    lines: list[str] = []
    for path in paths[-4:]:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 4096))
            last = file.read().decode("utf-8", "replace").splitlines()[-8:]
        if last:
            lines.append(f"--- {path.relative_to(run.root)}")
            lines += [redact(line, secret_values()) for line in last]
    return lines
