"""Runs between the driver and a step, so that no process of the step outlives the driver.

Run as `python -I -S guard.py SOCKET_FD GRACE_S LOCK -- argv...`. The driver holds the other end of the
socket: when it sends a byte or dies (even by SIGKILL), the whole tree gets SIGINT, after GRACE_S seconds
SIGKILL. As a child subreaper the guard finds processes that moved to their own session, as torchrun's workers
do. LOCK stays locked while any of them lives. At the end one JSON line goes to the socket. It imports only
the standard library, because every step waits for its start.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import select
import signal
import socket
import sys
import time

PR_SET_CHILD_SUBREAPER = 36


def main() -> int:
    driver = socket.socket(fileno=int(sys.argv[1]))
    driver.set_inheritable(False)  # the step must not keep the socket open
    grace_s, lock, argv = float(sys.argv[2]), sys.argv[3], sys.argv[5:]
    handle = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
    fcntl.flock(handle, fcntl.LOCK_EX)
    adopt_orphans()
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    # Handlers that do nothing: the signals then end neither guard nor select, and arrive by the pipe.
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)

    child, error = start(argv)
    if child is None:
        send(driver, {"start_error": error})
        return 127
    status, stopped = watch(child, driver, wake_read, grace_s)
    kill_descendants()
    peak_kb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    code = os.waitstatus_to_exitcode(status)
    send(driver, {"exit_code": code, "stopped": stopped, "peak_mem_bytes": peak_kb * 1024})
    return 0


def adopt_orphans() -> None:
    """Processes below this one whose parent ends become its own, whatever session they are in."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def start(argv: list[str]) -> tuple[int | None, str]:
    """Start in a new session; why it could not start comes back as text.

    Signals with a handler have their default again in the program.
    """
    try:
        return os.posix_spawnp(argv[0], argv, os.environ, setsid=True), ""
    except OSError as error:
        return None, f"{argv[0]}: {error.strerror}"


def watch(child: int, driver: socket.socket, wake_read: int, grace_s: float) -> tuple[int, bool]:
    """Reap until `child` has ended; a command, or the death of the driver, stops the tree.

    -> the wait status, and whether it was stopped.
    """
    deadline: float | None = None
    listening: list[socket.socket | int] = [driver, wake_read]
    while True:
        status = reap(child)
        if status is not None:
            return status, deadline is not None
        wait_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select(listening, [], [], wait_s)
        if wake_read in ready:
            numbers = os.read(wake_read, 64)
            if signal.SIGTERM in numbers or signal.SIGINT in numbers:
                deadline = deadline or interrupt_descendants(grace_s)
        if driver in ready:
            command = receive(driver)
            if command == b"k":
                deadline = time.monotonic()
            else:
                deadline = deadline or interrupt_descendants(grace_s)
            if command == b"":
                # A closed socket stays readable: select would return at once for ever.
                listening.remove(driver)
        if deadline is not None and time.monotonic() >= deadline:
            kill_descendants(keep=child)


def interrupt_descendants(grace_s: float) -> float:
    for pid in descendants():
        signal_to(pid, signal.SIGINT)
    return time.monotonic() + grace_s


def kill_descendants(keep: int | None = None) -> None:
    """SIGKILL everything below us until nothing is left, except the zombie `keep`, whose status is wanted."""
    for _ in range(200):
        alive = descendants()
        if not alive:
            return
        for pid in alive:
            signal_to(pid, signal.SIGKILL)
        for pid in alive:
            if pid != keep:
                with contextlib.suppress(ChildProcessError):  # a grandchild: its own parent or the next round
                    os.waitpid(pid, os.WNOHANG)
        if keep is not None:
            return
        time.sleep(0.02)


def reap(child: int) -> int | None:
    """Collect dead processes; the status of `child` once it is dead, else None."""
    while True:
        try:
            # waitid only looks: the wait status comes from waitpid.
            info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return 0
        if info is None:
            return None
        _, status = os.waitpid(info.si_pid, 0)
        if info.si_pid == child:
            return status


def descendants() -> list[int]:
    """Process ids below this one, from /proc; orphans are ours because we are their subreaper."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    # The program's name, in parentheses, may hold spaces and parentheses.
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue  # ended while we looked
            if fields[0] != b"Z":
                children.setdefault(int(fields[1]), []).append(int(name))
    pids, queue = [], [os.getpid()]
    while queue:
        below = children.get(queue.pop(), [])
        pids += below
        queue += below
    return pids


def signal_to(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it ended by itself meanwhile
        os.kill(pid, number)


def receive(driver: socket.socket) -> bytes:
    try:
        return driver.recv(1)
    except OSError:
        return b""


def send(driver: socket.socket, message: dict[str, object]) -> None:
    with contextlib.suppress(OSError):  # the driver is gone
        driver.sendall(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
