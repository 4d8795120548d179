from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time

import pytest

from lab.core.gpu import Gpu
from lab.core.stop import Stop
from lab.errors import BusyError, StorageError
from lab.gpus.leases import hold

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
    child = other_process("1,2", 60)
    with pytest.raises(BusyError, match=rf"GPU 1 .* held by run other \(pid {child.pid}\)"), held(GPUS[:2]):
        pass
    with held([GPUS[0], GPUS[3]]) as mine:
        assert mine
    child.kill()
    child.wait()


def test_a_killed_holder_frees_its_gpus():
    child = other_process("0", 60)
    child.kill()
    child.wait()
    with held(GPUS[:1]) as mine:
        assert mine


def test_waiting_says_for_whom_once_and_ends_when_the_gpu_is_free():
    child, said = other_process("0", 1.5), []
    with held(GPUS[:1], wait=True, said=said) as mine:
        assert mine and said == [f"waiting for GPU 0: held by run other (pid {child.pid})"]
    child.wait()


def test_a_stop_ends_the_waiting_without_the_gpu():
    child, stop = other_process("0", 60), Stop()
    threading.Timer(0.3, stop.set).start()
    with held(GPUS[:1], wait=True, stop=stop) as mine:
        assert not mine
    child.kill()
    child.wait()


def test_two_steps_of_one_process_do_not_share_a_gpu():
    with held(GPUS[:2]), pytest.raises(BusyError), held(GPUS[1:3]):
        pass


def test_opposite_orders_cannot_deadlock():
    done = []

    def take(order):
        for _ in range(20):
            with held(order, wait=True) as mine:
                done.append(mine)
                time.sleep(0.001)

    threads = [threading.Thread(target=take, args=(order,)) for order in (GPUS[:2], GPUS[1::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert done == [True] * 40


def test_a_gpu_in_a_container_without_driver_counts_as_held():
    with (
        pytest.raises(BusyError, match="outlived its driver"),
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
