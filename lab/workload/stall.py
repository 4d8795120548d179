"""Record what each rank was doing when a step stalls, before its process ends.

Each rank watches its own progress. After the limit it dumps torch's flight recorder and its Python stacks
into OUT/hang, waits a little for the other ranks to do the same, and ends itself; the lowest rank alive
prints the rank that the others wait for. A thread does this, because the main one is inside the call that
hangs; while a C call holds Python's lock it cannot run, and the engine's own limit ends the step.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from lab.core.files import write_atomic
from lab.core.step import STALL_LIMIT
from lab.errors import LabError, StepFailed
from lab.recordings.flight import read_dumps, verdict_of
from lab.workload.rank import RankContext
from lab.workload.start import leave

log = logging.getLogger("lab.workload")

# The engine ends a silent step at the limit itself, so ranks act sooner.
EARLIER = 0.75
HANG = "hang"
LEAST_WAIT_S = 2.0  # for the others' dumps
BUFFER_ENTRIES = "2000"


def limit_s(env: Mapping[str, str] = os.environ) -> float:
    """Seconds without progress after which a rank dumps; 0 for never."""
    try:
        return EARLIER * max(0.0, float(env.get(STALL_LIMIT, "0")))
    except ValueError:
        return 0.0


def record_collectives() -> None:
    """Turn torch's flight recorder on; it must be on before the first process group is made."""
    for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):
        os.environ.setdefault(name, BUFFER_ENTRIES)
    os.environ.setdefault("TORCH_NCCL_ENABLE_TIMING", "1")  # without it a state `started` may be missing


@contextlib.contextmanager
def watch_for_stall(
    out: Path, context: RankContext, limit: float | None = None
) -> Iterator[Callable[[], None]]:
    """Yields what to call after each step; without a limit it does nothing.

    Enter before the process group is made, so that a rank that never joins it is caught too.
    """
    seconds = limit_s() if limit is None else limit
    if not seconds:
        yield lambda: None
        return
    record_collectives()
    watch = _Watch(out / HANG, context, seconds)
    try:
        yield watch.progressed
    finally:
        watch.stop()


class _Watch:
    """A thread that acts once nothing has progressed for `seconds`."""

    def __init__(self, folder: Path, context: RankContext, seconds: float) -> None:
        self._folder, self._context, self._seconds = folder, context, seconds
        self._progress_s, self._attempt_start_s = time.monotonic(), time.time()
        self._over = threading.Event()
        threading.Thread(target=self._run, daemon=True, name="stall").start()

    def progressed(self) -> None:
        self._progress_s = time.monotonic()

    def stop(self) -> None:
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(max(0.05, self._progress_s + self._seconds - time.monotonic())):
            if time.monotonic() - self._progress_s >= self._seconds:
                end(self._folder, self._context, self._seconds, self._attempt_start_s)


def end(folder: Path, context: RankContext, seconds: float, attempt_start_s: float) -> None:
    """Dump, wait for the others' dumps, say what they show, and end this process as failed.

    attempt_start_s: time.time() then; older files are an earlier attempt's and are removed.
    """
    reason = f"no step finished within {seconds:.0f} s"
    try:
        _forget(folder, attempt_start_s)
        dump(folder, context.rank)
        log.warning("rank %d: %s; wrote what it was doing into %s", context.rank, reason, folder)
        limit = min(20.0, max(LEAST_WAIT_S, seconds / 2))
        _await(lambda: len(_ranks_there(folder)) >= context.world_size, limit=limit)
        time.sleep(0.3)  # a rank that ends takes its peers with it, so let the slower ones finish reading
        ranks = _ranks_there(folder)
        summary = folder.with_suffix(".txt")
        if context.rank == min(ranks, default=context.rank):
            verdict = verdict_of(read_dumps(folder))
            reason = f"{reason}: {verdict.kind.replace('_', ' ')}: {verdict.text}"
            write_atomic(summary, f"rank {context.rank} stalled: {reason}\n".encode())
        else:  # wait: a rank that ends takes its peers with it, the one that writes the summary too
            _await(summary.exists, limit=10.0)
    except (LabError, OSError) as error:
        reason = f"{reason}; its dumps cannot be read: {error}"
    text = f"rank {context.rank} stalled: {reason}\n"
    for stream in (sys.stdout, sys.stderr):
        stream.write(text)
    leave(StepFailed.exit_code)


def _forget(folder: Path, oldest_s: float) -> None:
    for path in (folder.with_suffix(".txt"), *folder.glob("rank*")):
        with contextlib.suppress(FileNotFoundError):  # another rank was faster
            if path.stat().st_mtime < oldest_s:
                path.unlink()


def dump(folder: Path, rank: int) -> None:
    """Write this rank's flight recorder and Python stacks into `folder`. Raises StorageError."""
    write_atomic(folder / f"rank{rank}.stack.txt", stacks().encode())
    if recorded := flight_record():
        write_atomic(folder / f"rank{rank}.pkl", recorded)


def flight_record() -> bytes:
    """The flight recorder as torch pickles it; empty where this torch has none."""
    module: Any = getattr(torch._C, "_distributed_c10d", None)
    on_gpu = torch.distributed.is_initialized() and torch.distributed.get_backend() == "nccl"
    names = ("_dump_nccl_trace", "_dump_fr_trace") if on_gpu else ("_dump_fr_trace", "_dump_nccl_trace")
    for name in names:
        if function := getattr(module, name, None):
            recorded: bytes = function()
            if recorded:
                return recorded
    return b""


def stacks() -> str:
    """Every thread's Python stack, the main one first, the innermost frame first in each."""
    frames = sys._current_frames()
    threads = sorted(threading.enumerate(), key=lambda thread: thread is not threading.main_thread())
    lines = []
    for thread in threads:
        if thread.ident not in frames or thread is threading.current_thread():
            continue
        lines.append(f"Thread {thread.name} (most recent call first):")
        for frame in reversed(traceback.extract_stack(frames[thread.ident])):
            lines.append(f'  File "{frame.filename}", line {frame.lineno} in {frame.name}')
    return "\n".join(lines) + "\n"


def _await(is_complete: Callable[[], bool], *, limit: float) -> None:
    until = time.monotonic() + limit
    while not is_complete() and time.monotonic() < until:
        time.sleep(0.1)


def _ranks_there(folder: Path) -> list[int]:
    names = (path.name.removeprefix("rank").removesuffix(".pkl") for path in folder.glob("rank*.pkl"))
    return sorted(int(name) for name in names if name.isdigit())
