"""A step's output, the same for every engine: split into lines, redacted, then to log, screen and tail."""

from __future__ import annotations

import codecs
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TextIO

from lab.core.run import Run
from lab.core.step import Step
from lab.core.stop import Stop
from lab.secrets import redact, secret_values

LONGEST = 64 * 1024  # characters; a longer line is cut into pieces so that memory stays bounded
TAIL_LINES = 40
LOGS_SHOWN, LOG_LINES_SHOWN, LOG_BYTES_READ = 4, 8, 4096


class LineSplitter:
    """Incremental UTF-8 decoder and line splitter. Undecodable bytes become U+FFFD."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self._unfinished = ""

    def feed(self, chunk: bytes) -> Iterator[str]:
        *lines, self._unfinished = (self._unfinished + self._decode(chunk)).split("\n")
        for line in lines:
            yield from _pieces(line.rstrip("\r"))
        if len(self._unfinished) > LONGEST:
            yield from _pieces(self._unfinished)
            self._unfinished = ""

    def flush(self) -> Iterator[str]:
        line, self._unfinished = self._unfinished + self._decode(b"", True), ""
        if line:
            yield from _pieces(line)


def _pieces(line: str) -> Iterator[str]:
    for start in range(0, max(len(line), 1), LONGEST):
        yield line[start : start + LONGEST]


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

    def reason_to_stop(self, step: Step, stop: Stop, ran_s: float) -> str | None:
        """Why lab must end the step now, as `Ending.stopped_by` has it; None while it may go on."""
        if stop.is_set():
            return "user"
        if step.timeout_s and ran_s > step.timeout_s:
            return "timeout"
        if step.stall_timeout_s and time.monotonic() - self.last_line > step.stall_timeout_s:
            return "stall"
        return "disk" if self.error else None

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
            tail = file.read().decode("utf-8", "replace").splitlines()[-LOG_LINES_SHOWN:]
        if tail:
            lines.append(f"--- {path.relative_to(run.root)}")
            lines += [redact(line, secret_values()) for line in tail]
    return lines
