"""A step's output, handled alike by every engine: redacted, then to its log file, the screen and the tail."""

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
LOGS_SHOWN, LOG_LINES_SHOWN, LOG_BYTES_READ = 4, 8, 4096


class LogWriter:
    """Writes lines as they come, for as long as they come.

    An error such as a full disk is kept in `error` for the driver: if reading stopped, the step would block.
    """

    def __init__(self, log: Path, on_line: Callable[[str], None]) -> None:
        self._log, self._on_line = log, on_line
        self._secrets = secret_values()
        self._file: TextIO | None = None
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.last_line = time.monotonic()
        self.error: OSError | None = None

    def __enter__(self) -> LogWriter:
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

    def write(self, lines: Iterable[str]) -> None:
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


def last_log_lines(run: Run, step: Step) -> list[str]:
    """The last lines of the logs that the step itself wrote, newest file last: how a killed rank ended."""
    paths = {path for pattern in step.logs for path in run.root.glob(pattern)}
    lines: list[str] = []
    for path in sorted(paths, key=lambda path: path.stat().st_mtime)[-LOGS_SHOWN:]:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_BYTES_READ))
            last = file.read().decode("utf-8", "replace").splitlines()[-LOG_LINES_SHOWN:]
        if last:
            lines.append(f"--- {path.relative_to(run.root)}")
            lines += [redact(line, secret_values()) for line in last]
    return lines
