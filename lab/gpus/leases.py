"""GPU leases across processes: one flock per GPU, which the kernel frees however its holder dies.

A container may outlive its driver, so the GPUs of running containers (by their label) count as held too.
LAB_LEASES names another folder for the lock files, which all users of the machine must share.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shlex
import stat
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from lab.core.gpu import Gpu
from lab.core.stop import Stop
from lab.errors import BusyError, StorageError, storage_error, writing

RETRY_S = 0.5


def lease_folder() -> Path:
    """The folder of the lock files: $LAB_LEASES, else one that every user of this machine may write."""
    folder = Path(os.environ.get("LAB_LEASES") or "/var/lock/lab-gpus")
    try:
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o1777)
    except PermissionError as error:
        raise StorageError(
            "not allowed to make the folder in which the users of this machine hold GPUs",
            location=folder,
            fix=f"sudo install -d -m 1777 {shlex.quote(str(folder))}; or LAB_LEASES=FOLDER, the same for all",
        ) from error
    except OSError as error:
        raise storage_error(error, folder) from error
    return folder


@contextlib.contextmanager
def hold(
    gpus: Sequence[Gpu],
    *,
    holder: str,
    wait: bool,
    stop: Stop,
    say: Callable[[str], None],
    in_containers: Callable[[], Collection[str]] = tuple,
) -> Iterator[bool]:
    """Hold these GPUs while the block runs; yields False if `stop` was set before they were free.

    `holder` is shown to processes that wait. `in_containers` returns the UUIDs that running containers of
    other steps use. Raises BusyError when a GPU is held and `wait` is False.
    """
    with contextlib.ExitStack() as stack:
        # One order for all: two processes that want the same GPUs never hold one each and wait for the other.
        for gpu in sorted(gpus, key=lambda gpu: gpu.uuid):
            if not _acquire(stack, gpu, holder, wait, stop, say, in_containers):
                yield False
                return
        yield True


def _acquire(
    stack: contextlib.ExitStack,
    gpu: Gpu,
    holder: str,
    wait: bool,
    stop: Stop,
    say: Callable[[str], None],
    in_containers: Callable[[], Collection[str]],
) -> bool:
    announced = False
    handle = _open(_lock_file(gpu))
    stack.callback(os.close, handle)
    while not stop.is_set():
        busy = None if _locked(handle) else f"held by {_holder(handle)}"
        if busy is None and gpu.uuid in in_containers():
            fcntl.flock(handle, fcntl.LOCK_UN)
            busy = "used by a container of lab, whose run `lab runs reap` or `lab runs stop` can end"
        if busy is None:
            # Emptied first: a reader in between sees no holder, not half of two.
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps({"holder": holder, "pid": os.getpid()}).encode(), 0)
            return True
        if not wait:
            raise BusyError(
                f"GPU {gpu.number} ({gpu.uuid}) is {busy}", fix="wait for it, or pick others with --gpus"
            )
        if not announced:
            say(f"waiting for GPU {gpu.number}: {busy}")
            announced = True
        stop.wait(RETRY_S)
    return False


def _lock_file(gpu: Gpu) -> Path:
    # Hashed, because a UUID comes from a driver or a label and may not be a valid file name.
    key = hashlib.sha256((gpu.render_node or gpu.uuid).encode()).hexdigest()[:24]
    return lease_folder() / f"gpu-{key}.lock"


def _open(path: Path) -> int:
    """Open the lock file, made if there is none; a symbolic link in the shared folder is refused.

    Opened without O_CREAT, which fs.protected_regular forbids for another user's file in a sticky folder.
    """
    with writing(path):
        while True:
            try:
                handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                break
            except FileNotFoundError:
                _make(path)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise StorageError("the lock file of a GPU is not a regular file", location=path, fix="remove it")
    return handle


def _make(path: Path) -> None:
    """An empty lock file that every user may lock; another process may make it first."""
    handle, temporary = tempfile.mkstemp(prefix=".lock-", dir=path.parent)
    try:
        os.fchmod(handle, 0o666)  # despite the umask, and before the file has its name
        # A link fails where a rename would replace the file that another process has locked.
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        os.close(handle)
        os.unlink(temporary)


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(handle: int) -> str:
    try:
        content = json.loads(os.pread(handle, 4096, 0) or b"{}")
        return f"{content['holder']} (pid {content['pid']})"
    except (ValueError, KeyError, TypeError):
        return "another process"
