"""One step under its guard: started, asked to stop, and read from."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import lab
from lab.engines.output import LineSplitter, LogWriter
from lab.errors import EngineError

GUARD = Path(lab.__file__).with_name("workload") / "guard.py"  # run by its path, never imported


class GuardedProcess:
    """The guard of one step, and the socket to it."""

    def __init__(self, guard: subprocess.Popen[bytes], connection: socket.socket) -> None:
        self._guard, self._connection = guard, connection
        assert guard.stdout is not None
        self.output: BinaryIO = guard.stdout  # type: ignore[assignment]

    def running(self) -> bool:
        return self._guard.poll() is None

    def ask_to_stop(self) -> None:
        self._send(b"s")

    def kill(self) -> None:
        self._send(b"k")

    def _send(self, command: bytes) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has just ended by itself
            self._connection.sendall(command)

    def report(self) -> dict[str, Any]:
        """What the guard reports at its end; {} if it was killed itself."""
        self._connection.setblocking(False)
        try:
            lines = self._connection.recv(65536).splitlines()
        except (BlockingIOError, ConnectionResetError):
            return {}
        return dict(json.loads(lines[0])) if lines else {}


@contextlib.contextmanager
def guarded(
    argv: Sequence[str],
    *,
    name: str,
    cwd: Path,
    env: Mapping[str, str],
    lock: Path,
    grace_s: float,
    stdin: bytes = b"",
) -> Iterator[GuardedProcess]:
    """Start `argv` under a guard, with `env` as its whole environment and `stdin` to read.

    Raises EngineError when the guard itself cannot be started.
    """
    driver_end, guard_end = socket.socketpair()
    arguments = [str(guard_end.fileno()), str(grace_s), str(lock), "--", *argv]
    source = _in_memory(stdin)
    try:
        guard = subprocess.Popen(
            [sys.executable, "-I", "-S", str(GUARD), *arguments],
            cwd=cwd,
            env=dict(env),
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[guard_end.fileno()],
            start_new_session=True,
        )
    except OSError as error:
        raise EngineError(f"cannot start step {name!r}: {error.strerror}", location=error.filename) from error
    finally:
        guard_end.close()
        os.close(source)
    with guard, driver_end:
        yield GuardedProcess(guard, driver_end)


def _in_memory(content: bytes) -> int:
    """A descriptor to read `content` from, which has no name and is gone with its last process."""
    handle = os.memfd_create("lab-stdin")
    os.write(handle, content)
    os.lseek(handle, 0, os.SEEK_SET)
    return handle


class OutputReader(threading.Thread):
    """Carries a step's output to its log; never stops reading, because a full pipe would block the step."""

    def __init__(self, source: BinaryIO, log: LogWriter) -> None:
        super().__init__(daemon=True, name="lab-output")
        self._source, self._log = source, log
        self.start()

    def run(self) -> None:
        splitter = LineSplitter()
        with self._log as log:
            while chunk := self._source.read1(65536):  # type: ignore[attr-defined]
                log.write(splitter.feed(chunk))
            log.write(splitter.flush())
