"""Work on recordings that a page asks for: a few child processes at a time, results kept by files' state."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

import lab
from lab.core.files import cache_folder, make_folder
from lab.errors import BadDataError, BusyError
from lab.serve.sql.ask import environment
from lab.serve.worker import Done, Task

AT_ONCE = 2
WAIT_S = 60.0  # for one of them to end
LIMIT_S = 600.0
MOST_KEPT = 24  # files of earlier results


class Jobs:
    """Runs tasks; `slots` bounds how many at once, whatever is asked."""

    def __init__(self) -> None:
        self.slots = threading.BoundedSemaphore(AT_ONCE)
        self.folder = cache_folder() / "timelines"
        self._mutex = threading.Lock()
        self._making: dict[str, threading.Lock] = {}

    @contextlib.contextmanager
    def slot(self) -> Iterator[None]:
        """A place to work in. Raises BusyError when none was free for WAIT_S."""
        if not self.slots.acquire(timeout=WAIT_S):
            raise BusyError("too many questions at once", fix="wait for the others to be answered")
        try:
            yield
        finally:
            self.slots.release()

    def run(self, task: Task) -> Done:
        """Raises BadDataError with the worker's reason, BusyError when there is no place."""
        with self.slot():
            try:
                done = subprocess.run(
                    [sys.executable, "-m", "lab.serve.worker"],
                    input=msgspec.json.encode(task),
                    capture_output=True,
                    timeout=LIMIT_S,
                    env=environment(),
                    start_new_session=True,
                    check=False,
                )
            except subprocess.TimeoutExpired as error:
                raise BadDataError(f"stopped after {LIMIT_S:g} s") from error
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            signal = f"killed by signal {-done.returncode}" if done.returncode < 0 else ""
            raise BadDataError(
                f"the recording could not be read: {signal or (lines or ['no reason'])[-1][:500]}"
            )
        answer = msgspec.json.decode(done.stdout, type=Done)
        if answer.error:
            raise BadDataError(answer.error)
        return answer

    def file(self, what: str, paths: Sequence[Path], suffix: str) -> Path:
        """The result of a task that writes a file, made once for the same state of the same recordings."""
        target = self.folder / f"{_state_of(what, paths)}{suffix}"
        with self._mutex:
            making = self._making.setdefault(target.name, threading.Lock())
        with making:
            if not target.is_file():
                make_folder(self.folder)
                self.run(Task(what=what, paths=tuple(map(str, paths)), target=str(target)))  # type: ignore[arg-type]
                self._forget_old(target)
        return target

    def _forget_old(self, new: Path) -> None:
        files = sorted(self.folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        for old in files[MOST_KEPT:]:
            if old != new:
                old.unlink(missing_ok=True)


def _inside(path: Path) -> list[Path]:
    """The files of a recording that is a folder."""
    return sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else []


def _state_of(what: str, paths: Sequence[Path]) -> str:
    parts = [what, lab.__version__]
    for path in (part for one in paths for part in (one, *_inside(one))):
        found = os.stat(path)
        parts.append(f"{path}\0{found.st_size}\0{found.st_mtime_ns}\0{found.st_ino}")
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:32]
