"""How every workload starts, fails and ends: arguments, rank, output, reports of failures, signals."""

from __future__ import annotations

import argparse
import functools
import io
import logging
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO, TypeVar

import msgspec

from lab.core.files import read_json, write_atomic
from lab.errors import LabError, writing
from lab.workload.rank import RankContext, check_promised_gpus

log = logging.getLogger("lab.workload")
T = TypeVar("T")


def start(
    parser: argparse.ArgumentParser, argv: Sequence[str] | None, *, own_log: bool = False
) -> tuple[argparse.Namespace, RankContext]:
    """Parse `argv` (default: sys.argv) and turn every uncaught error into a message and its exit code.

    Adds --out, the folder that the workload writes. own_log: this rank's output goes to OUT/rankN.log.
    """
    parser.add_argument("--out", required=True, type=Path, help="folder that this process writes to")
    args = parser.parse_args(argv)
    report_failures(RankContext(rank=0, local_rank=0, world_size=1), own_log=io.StringIO(), user=sys.stderr)
    context = RankContext.from_env()  # may fail, and its failure is reported like any other
    report_failures(context, own_log=io.StringIO(), user=sys.stderr)
    check_promised_gpus()
    if own_log:
        redirect_output(args.out / f"rank{context.rank}.log", context)
        exit_on_signals(args.out)
    return args, context


def read_config(path: Path, kind: type[T]) -> T:
    """A step's configuration file as `kind`. Raises MissingError or BadDataError."""
    return read_json(path, kind, "the configuration of this workload")


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically. Raises StorageError."""
    write_atomic(path, msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")


def redirect_output(path: Path, context: RankContext) -> None:
    """Make descriptors 1 and 2 the rank's log from here on; the user also sees messages and failures."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        log_fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
    user = {}
    # By descriptor, because NCCL and other C libraries write past sys.stdout.
    for fd, stream in ((1, sys.stdout), (2, sys.stderr)):
        stream.flush()
        user[fd] = os.fdopen(os.dup(fd), "w", encoding="utf-8", errors="replace")
        os.dup2(log_fd, fd)
    os.close(log_fd)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    if context.rank == 0:
        handlers.append(logging.StreamHandler(user[1]))
    for handler in handlers:
        handler.setFormatter(logging.Formatter("[%(asctime)s] %(message)s", "%Y-%m-%d %H:%M:%S"))
        log.addHandler(handler)
    log.propagate = False
    log.setLevel("INFO")
    report_failures(context, own_log=sys.stderr, user=user[2])


def report_failures(context: RankContext, *, own_log: TextIO, user: TextIO) -> None:
    """Let `die` handle every uncaught exception.

    The streams are bound now, because torch.distributed wraps the hook and replaces sys.stderr while it runs.
    """
    sys.excepthook = functools.partial(die, own_log=own_log, user=user, rank=context.rank)


def die(
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
    *,
    own_log: TextIO,
    user: TextIO,
    rank: int,
) -> None:
    """Report a failed rank and exit: the traceback to its log and to the user, the reason in one line.

    An error that lab raises on purpose is shown to the user without a traceback. Exits at once, because the
    usual teardown can wait for ever for peers that are still in a collective.
    """
    message = error.problem if isinstance(error, LabError) else str(error).strip()
    reason = f"rank {rank} failed: {kind.__name__}: {message.splitlines()[0] if message else 'no message'}\n"
    text = "".join(traceback.format_exception(kind, error, trace))
    own_log.write(text + reason)
    user.write((f"{error}\n" if isinstance(error, LabError) else text) + reason)
    code = 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    leave(error.exit_code if isinstance(error, LabError) else code, own_log, user)


def exit_on_signals(out: Path) -> None:
    """Exit with 128 + signal number on SIGINT and SIGTERM, even while the main thread is in a collective.

    A Python handler would run only after that wait. The C-level handler writes the signal's number into the
    wakeup descriptor at once, and a thread acts on it. Half-written traces of this rank are removed.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    stops = (signal.SIGINT, signal.SIGTERM)
    for stop in stops:
        signal.signal(stop, lambda *_: None)

    def watch(_keep_open: socket.socket) -> None:
        while (number := reader.recv(1)[0]) not in stops:
            pass
        log.warning("stopped by %s", signal.Signals(number).name)
        for draft in out.rglob(".draft_*"):
            draft.unlink(missing_ok=True)
        leave(128 + number)

    threading.Thread(target=watch, args=(writer,), daemon=True, name="signals").start()


def leave_group(context: RankContext) -> None:
    """End one of several ranks at once when all its files are written; do nothing in a single process.

    DTensor's caches keep the process group, and with it gloo's threads. Python ends while such a thread may
    still let go of a tensor, which aborts a rank that has finished (pytorch/pytorch#190489).
    """
    if context.world_size > 1:
        leave(0)


def leave(exit_code: int, *streams: TextIO) -> None:
    """End the process now, after flushing what was printed and `streams`."""
    for stream in (sys.stdout, sys.stderr, *streams):
        stream.flush()
    os._exit(exit_code)
