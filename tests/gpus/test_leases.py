from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from lab.core.gpu import Gpu
from lab.core.stop import Stop
from lab.errors import BusyError, StorageError
from lab.gpus import leases
from lab.gpus.leases import hold, lease_folder
from tests.conftest import ROOT

GPUS = [Gpu(vendor="nvidia", index=i, uuid=f"GPU-{i}") for i in range(4)]


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_LEASES", str(tmp_path / "leases"))


def held(gpus, *, wait=False, stop=None, said=None, **more):
    return hold(
        gpus, holder="me", wait=wait, stop=stop or Stop(), say=([] if said is None else said).append, **more
    )


HOLDER = """
    import sys, time
    from lab.core.gpu import Gpu
    from lab.gpus.leases import hold
    from lab.core.stop import Stop
    gpus = [Gpu(vendor="nvidia", index=int(i), uuid=f"GPU-{i}") for i in sys.argv[1].split(",")]
    with hold(gpus, holder="run other", wait=True, stop=Stop(), say=print):
        print("held", flush=True)
        time.sleep(float(sys.argv[2]))
"""


def other_process(indices: str, seconds: float) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOLDER), indices, str(seconds)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout and child.stdout.readline() == "held\n"
    return child


def test_a_gpu_held_by_another_process_is_refused_and_its_holder_named():
    child = other_process("1,2", 600)
    with pytest.raises(BusyError, match=rf"GPU 1 .* held by run other \(pid {child.pid}\)"), held(GPUS[:2]):
        pass
    with held([GPUS[0], GPUS[3]]) as mine:
        assert mine
    child.kill()
    child.wait()


def test_waiting_says_for_whom_once_and_ends_when_the_gpu_is_free(monkeypatch):
    child, said = other_process("0", 600), []

    def heard(text: str) -> None:
        said.append(text)
        threading.Timer(3 * leases.RETRY_S, child.kill).start()

    monkeypatch.setattr(leases, "RETRY_S", 0.05)
    with hold(GPUS[:1], holder="me", wait=True, stop=Stop(), say=heard) as mine:
        assert mine and said == [f"waiting for GPU 0: held by run other (pid {child.pid})"]
    child.wait()


def test_a_stop_ends_the_waiting_without_the_gpu():
    child, stop = other_process("0", 600), Stop()
    threading.Timer(0.3, stop.set).start()
    with held(GPUS[:1], wait=True, stop=stop) as mine:
        assert not mine
    child.kill()
    child.wait()


def test_locks_are_taken_in_one_order_and_given_back_together(monkeypatch):
    order = []
    plain = leases._acquire

    def noted(stack, gpu, *rest):
        order.append(gpu.uuid)
        return plain(stack, gpu, *rest)

    monkeypatch.setattr(leases, "_acquire", noted)
    gpus = [Gpu(vendor="amd", index=i, uuid=uuid) for i, uuid in enumerate(("b", "c", "a"))]
    for wish in (gpus, gpus[::-1]):
        with held(wish) as mine:
            assert mine
    assert order == ["a", "b", "c"] * 2


def test_a_gpu_in_a_container_without_driver_counts_as_held():
    with (
        pytest.raises(BusyError, match="used by a container of lab"),
        held(GPUS[:1], in_containers=lambda: {"GPU-0"}),
    ):
        pass
    with held(GPUS[1:2], in_containers=lambda: {"GPU-0"}) as mine:
        assert mine


def test_a_link_planted_for_a_lease_is_refused(tmp_path):
    with held(GPUS[:1]):
        pass
    (lock,) = (tmp_path / "leases").iterdir()
    lock.unlink()
    lock.symlink_to(tmp_path / "victim")
    with pytest.raises(StorageError), held(GPUS[:1]):
        pass
    assert not (tmp_path / "victim").exists()


def test_no_gpus_need_no_lease():
    with held([]) as mine:
        assert mine


def lock_of(gpu: Gpu):
    with held([gpu]):
        pass
    (lock,) = lease_folder().iterdir()
    return lock


def mode_of(path) -> int:
    return path.stat().st_mode & 0o7777


def test_a_new_folder_of_locks_is_open_to_all_users(tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_LEASES", str(tmp_path / "a" / "b"))
    assert lease_folder() == tmp_path / "a" / "b"
    assert mode_of(tmp_path / "a" / "b") == 0o1777


def test_a_folder_of_locks_that_is_there_keeps_its_rights(tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_LEASES", str(tmp_path))
    tmp_path.chmod(0o750)
    assert lease_folder() == tmp_path and mode_of(tmp_path) == 0o750


def test_a_folder_that_another_process_makes_in_the_meantime_is_used(tmp_path, monkeypatch):
    is_dir, answers = type(tmp_path).is_dir, [False]  # not there yet when asked, there when made
    monkeypatch.setattr(type(tmp_path), "is_dir", lambda path: answers.pop() if answers else is_dir(path))
    monkeypatch.setenv("LAB_LEASES", str(tmp_path))
    assert lease_folder() == tmp_path


@pytest.mark.parametrize("value", [None, ""])
def test_unless_told_otherwise_all_users_share_one_folder(tmp_path, monkeypatch, value):
    """An empty variable is none: it would mean the current folder, and each run its own leases."""
    monkeypatch.delenv("LAB_LEASES")
    if value is not None:
        monkeypatch.setenv("LAB_LEASES", value)
    monkeypatch.setattr(leases, "Path", lambda text: tmp_path / text.removeprefix("/"))
    assert lease_folder() == tmp_path / "var/lock/lab-gpus"


def test_a_folder_of_locks_that_cannot_be_made_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LAB_LEASES", str(tmp_path / "file" / "leases"))
    with pytest.raises(StorageError) as caught:
        lease_folder()
    assert caught.value.location == str(tmp_path / "file" / "leases")


@pytest.mark.parametrize(
    "fields, name",
    [
        ({"uuid": "GPU-0"}, "gpu-742563b159cc4efa36f4d829.lock"),
        ({"uuid": "GPU-0", "render_node": "/dev/dri/renderD128"}, "gpu-ede9d257af8eeecec8d156d4.lock"),
    ],
)
def test_the_lock_of_a_gpu_has_the_same_name_in_every_version_of_lab(fields, name):
    assert lock_of(Gpu(vendor="amd", index=0, **fields)).name == name


def test_a_lock_is_open_to_all_users_despite_the_umask():
    old = os.umask(0o077)
    try:
        assert mode_of(lock_of(GPUS[0])) == 0o666
    finally:
        os.umask(old)


def test_a_lock_of_another_user_keeps_its_rights(monkeypatch):
    lock = lock_of(GPUS[0])
    lock.chmod(0o660)
    monkeypatch.setattr(os, "geteuid", lambda: lock.stat().st_uid + 1)
    assert mode_of(lock_of(GPUS[0])) == 0o660


@pytest.fixture
def protected_regular(monkeypatch):
    """What fs.protected_regular=2 forbids a caller who is another user than the owner."""
    os_open = os.open

    def protected(path, flags, *rest, **more):
        if flags & os.O_CREAT and not flags & os.O_EXCL and os.path.exists(path):
            raise PermissionError(13, "Permission denied", str(path))
        return os_open(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", protected)


def test_an_existing_lock_is_opened_as_the_kernel_allows_another_user(protected_regular):
    for _ in range(2):  # made, then found
        with held(GPUS[:1]) as mine:
            assert mine


def test_a_lock_that_another_process_makes_first_is_used(monkeypatch):
    os_link = os.link

    def beaten(source, target):
        os_link(source, target)
        raise FileExistsError(17, "File exists", str(target))

    monkeypatch.setattr(os, "link", beaten)
    assert os.listdir(lease_folder()) == [] and mode_of(lock_of(GPUS[0])) == 0o666


@pytest.mark.root
def test_two_users_of_one_host_share_a_lock(open_folder):
    """Under the kernel's own rule, where this machine lets root set it (systemd does so at boot)."""
    setting = Path("/proc/sys/fs/protected_regular")
    before = setting.read_text()
    try:
        setting.write_text("2")
    except OSError:
        pytest.skip("fs.protected_regular cannot be set here")
    try:
        program = f"""
            import os, sys
            from lab.core.gpu import Gpu
            from lab.core.stop import Stop
            from lab.gpus.leases import hold, lease_folder
            def take(uid):
                gpu = Gpu(vendor="nvidia", index=0, uuid="GPU-0")
                os.setgid(uid); os.setuid(uid); os.umask(0o077)
                with hold([gpu], holder=f"run of {{uid}}", wait=False, stop=Stop(), say=print):
                    pass
            os.environ["LAB_LEASES"] = {str(open_folder / "leases")!r}
            lease_folder()  # root's: the kernel lets everybody open what the folder's owner made
            for uid in (1234, 1235, 1234):
                if not (child := os.fork()):
                    take(uid); os._exit(0)
                print(uid, os.waitpid(child, 0)[1])
            """
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, cwd=ROOT
        )
        assert done.stdout == "1234 0\n1235 0\n1234 0\n", done.stderr
    finally:
        setting.write_text(before)


def open_here() -> list[Path]:
    """What this process has open; a file that another thread has just closed is none."""
    found = []
    for one in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(one.readlink())
    return found


def test_a_lock_that_is_no_file_is_refused_and_named():
    lock = lock_of(GPUS[0])
    lock.unlink()
    os.mkfifo(lock)
    with pytest.raises(StorageError, match="not a regular file") as caught, held(GPUS[:1]):
        pass
    assert caught.value.location == str(lock) and caught.value.fix
    assert lock not in open_here()


def test_the_lock_says_who_holds_it_and_nothing_of_earlier_holders():
    lock = lock_of(GPUS[0])
    lock.write_text("x" * 500)
    with held(GPUS[:1]):
        assert json.loads(lock.read_text()) == {"holder": "me", "pid": os.getpid()}


@pytest.mark.parametrize("content", ["", "no json", "{}", '{"holder": "me"}', "[]", "3", "\xff"])
def test_a_holder_that_left_no_name_is_another_process(content):
    lock = lock_of(GPUS[0])
    lock.write_bytes(content.encode("latin-1"))
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(BusyError, match="held by another process") as caught, held(GPUS[:1]):
            pass
    assert "--gpus" in caught.value.fix


def test_a_stop_that_came_before_leaves_the_gpu_alone():
    stop = Stop()
    stop.set()
    with held(GPUS[:1], stop=stop) as mine:
        assert mine is False
    (lock,) = lease_folder().iterdir()
    assert lock.read_text() == ""


def test_all_are_given_back_when_one_cannot_be_had():
    with held(GPUS[1:2]), pytest.raises(BusyError), held(GPUS[:2]):
        pass
    with held(GPUS[:2]) as mine:
        assert mine is True


def test_a_gpu_in_a_container_is_waited_for_without_holding_its_lock(monkeypatch):
    """Its own driver may want to come back; the wait is told once, in two looks."""
    monkeypatch.setattr(leases, "RETRY_S", 0.0)
    looks, said = [{"GPU-0"}, {"GPU-0"}, {"GPU-1"}], []

    def say(text):
        said.append(text)
        with held(GPUS[:1]) as mine:
            assert mine

    stop, waits = Stop(), []
    monkeypatch.setattr(stop, "wait", waits.append)
    with hold(
        GPUS[:1], holder="me", wait=True, stop=stop, say=say, in_containers=lambda: looks.pop(0)
    ) as mine:
        assert mine is True
    assert len(said) == 1 and "GPU 0" in said[0] and "lab runs stop" in said[0]
    assert looks == [] and waits == [0.0, 0.0]


def test_where_an_ordinary_user_may_not_make_the_folder_the_cure_is_named(tmp_path, monkeypatch):
    """As on systems whose /run/lock is root's alone."""
    monkeypatch.setenv("LAB_LEASES", str(tmp_path / "root's/gpus"))

    def refuse(*_args, **_more):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(StorageError, match="users of this machine hold GPUs") as caught:
        lease_folder()
    assert "sudo install -d -m 1777" in caught.value.fix and "LAB_LEASES" in caught.value.fix
