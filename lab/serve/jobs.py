"""Work on recordings that a page asks for: child processes, a few at a time, results kept by files' state.

`python -m lab.serve.jobs` is the child: a task on stdin, JSON on stdout.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

import lab
from lab.core.files import cache_folder, make_folder, replacing
from lab.errors import BadDataError, BusyError, LabError
from lab.serve.sql.ask import environment

AT_ONCE = 2
WAIT_S = 60.0  # for one of them to end
LIMIT_S = 600.0
MOST_ROWS = 200  # of an answer
MOST_FILES = 24  # earlier results that stay in the cache
# Of a child: a hostile recording can cost more than it looks.
ADDRESS_SPACE = 12 << 30
CPU_S = 900
Kind = Literal["timeline", "perfetto", "diff"]
DIFF = "diff-"  # what the folders of diffs begin with; no run's key does


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """timeline and perfetto write the file `target`, diff the folder `target` with the page of `lab diff` for
    two `paths`; without a target it answers with the comparison."""

    kind: Kind
    paths: tuple[str, ...]
    target: str = ""


class Outcome(msgspec.Struct, kw_only=True):
    error: str = ""
    notes: list[str] = []
    answer: dict[str, Any] = {}


class Jobs:
    """Runs tasks; `slots` bounds how many at once, whatever is asked."""

    def __init__(self) -> None:
        self.slots = threading.BoundedSemaphore(AT_ONCE)
        self.folder = cache_folder() / "timelines"
        self._mutex = threading.Lock()
        self._making: dict[str, threading.Lock] = {}

    @contextlib.contextmanager
    def slot(self) -> Iterator[None]:
        """Wait for one of AT_ONCE slots. Raises BusyError if none was free within WAIT_S."""
        if not self.slots.acquire(timeout=WAIT_S):
            raise BusyError("too many questions at once", fix="wait for the others to be answered")
        try:
            yield
        finally:
            self.slots.release()

    def run(self, task: Task) -> Outcome:
        """Run a task in a child. Raises BadDataError with its reason, BusyError if no slot was free."""
        with self.slot():
            try:
                child = subprocess.run(
                    [sys.executable, "-m", "lab.serve.jobs"],
                    input=msgspec.json.encode(task),
                    capture_output=True,
                    timeout=LIMIT_S,
                    env=environment(),
                    start_new_session=True,
                    check=False,
                )
            except subprocess.TimeoutExpired as error:
                raise BadDataError(f"stopped after {LIMIT_S:g} s") from error
        if child.returncode:
            lines = child.stderr.decode(errors="replace").strip().splitlines()
            signal = f"killed by signal {-child.returncode}" if child.returncode < 0 else ""
            raise BadDataError(
                f"the recording could not be read: {signal or (lines or ['no reason'])[-1][:500]}"
            )
        outcome = msgspec.json.decode(child.stdout, type=Outcome)
        if outcome.error:
            raise BadDataError(outcome.error)
        return outcome

    def file(self, kind: Kind, paths: Sequence[Path], suffix: str) -> Path:
        """The result of a task that writes a file, made once for the same state of the same recordings."""
        return self._made(kind, paths, self.folder / f"{_state_of(kind, paths)}{suffix}")

    def diff(self, paths: Sequence[Path]) -> str:
        """The name of the folder with the page of two recordings, made once as a file is."""
        return self._made("diff", paths, self.folder / f"{DIFF}{_state_of('diff', paths)}").name

    def _made(self, kind: Kind, paths: Sequence[Path], target: Path) -> Path:
        with self._mutex:
            making = self._making.setdefault(target.name, threading.Lock())
        with making:
            if not target.exists():
                make_folder(self.folder)
                self.run(Task(kind=kind, paths=tuple(map(str, paths)), target=str(target)))
                self._forget_old(target)
        return target

    def _forget_old(self, new: Path) -> None:
        results = sorted(self.folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        for old in results[MOST_FILES:]:
            if old.is_dir() and old != new:
                shutil.rmtree(old, ignore_errors=True)
            elif old != new:
                old.unlink(missing_ok=True)


def _inside(path: Path) -> list[Path]:
    """The files of a recording that is a folder."""
    return sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else []


def _state_of(kind: Kind, paths: Sequence[Path]) -> str:
    parts = [kind, lab.__version__]
    for path in (file for recording in paths for file in (recording, *_inside(recording))):
        state = os.stat(path)
        parts.append(f"{path}\0{state.st_size}\0{state.st_mtime_ns}\0{state.st_ino}")
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def main() -> None:
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        outcome = do(task)
    except LabError as error:
        outcome = Outcome(error=f"{error.problem}{f' ({error.fix})' if error.fix else ''}")
    except MemoryError:
        outcome = Outcome(error="not enough memory to read it")
    sys.stdout.buffer.write(msgspec.json.encode(outcome))


def do(task: Task) -> Outcome:
    paths = [Path(path) for path in task.paths]
    if task.kind == "timeline":
        from lab.serve.timeline import columns_of, write_columns

        columns = columns_of(paths)
        with replacing(Path(task.target)) as file:
            write_columns(columns, file)
        return Outcome(notes=columns.header["notes"])
    if task.kind == "perfetto":
        from lab.serve.export import write_perfetto

        return Outcome(notes=write_perfetto(paths, Path(task.target)))
    return _diff(paths, Path(task.target)) if task.target else _compared(paths)


def _diff(paths: Sequence[Path], target: Path) -> Outcome:
    from lab.compare.diff.comparison import compare_sides
    from lab.compare.diff.groups import KINDS
    from lab.compare.diff.page import write

    compared = compare_sides(*paths, by=KINDS, evidence=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}") as folder:
        write(compared, Path(folder) / "page")
        (Path(folder) / "page").rename(target)
    return Outcome()


def _compared(paths: Sequence[Path]) -> Outcome:
    from lab.compare.diff.comparison import compare
    from lab.compare.diff.text import problems, text

    comparison = compare(*paths)
    shown = comparison.shown
    rows = [
        {
            "op": row.op,
            "dims": row.dims,
            "before": row.kernel_a,
            "after": row.kernel_b,
            "change_us": row.ns / 1000,
            "kind": row.kind,
            "confidence": row.confidence,
        }
        for row in shown.rows[:MOST_ROWS]
    ]
    answer = {"text": text(comparison, 20), "rows": rows, "comparable": shown.comparable}
    return Outcome(answer=answer, notes=problems(comparison))


if __name__ == "__main__":
    main()
