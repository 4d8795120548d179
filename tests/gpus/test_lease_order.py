"""Two processes that want the same GPUs in opposite orders both get them: all lock in one order."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from lab.core.gpu import Gpu
from lab.core.stop import Stop
from lab.gpus import leases

# Takes its first lock, prints it, and waits for a line: each of two such processes would hold one lock before
# either takes its second. With one order for all, the second process cannot even take its first.
HOLDER = """
    import sys
    from lab.core.gpu import Gpu
    from lab.core.stop import Stop
    from lab.gpus import leases

    order = []
    plain = leases._acquire

    def stepwise(stack, gpu, *rest):
        mine = plain(stack, gpu, *rest)
        order.append(gpu.uuid)
        if len(order) == 1:
            print("first", gpu.uuid, flush=True)
            sys.stdin.readline()
        return mine

    leases._acquire = stepwise
    gpus = [Gpu(vendor="nvidia", index=i, uuid=f"GPU-{i}") for i in map(int, sys.argv[1].split(","))]
    with leases.hold(gpus, holder="x", wait=True, stop=Stop(), say=lambda text: print(text, flush=True)):
        print("both", *order, flush=True)
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_LEASES", str(tmp_path / "leases"))


def start(order: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", textwrap.dedent(HOLDER), order]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_opposite_wishes_between_two_processes_do_not_end_in_a_deadlock():
    one, other = start("0,1"), start("1,0")
    try:
        firsts = set()
        # Whoever is first holds GPU-0; the other one says that it waits for the same GPU.
        for child in (one, other):
            firsts.add(child.stdout.readline().split(":")[0].strip())
        assert firsts == {"first GPU-0", "waiting for GPU 0"}
        for child in (one, other):
            child.stdin.write("\n\n")
            child.stdin.flush()
        said = [child.communicate(timeout=900)[0] for child in (one, other)]
    finally:
        for child in (one, other):
            child.kill()
    assert all("both GPU-0 GPU-1" in text for text in said), said


def test_locks_are_taken_in_one_order_and_given_back_together(monkeypatch):
    order = []
    plain = leases._acquire

    def noted(stack, gpu, *rest):
        order.append(gpu.uuid)
        return plain(stack, gpu, *rest)

    monkeypatch.setattr(leases, "_acquire", noted)
    gpus = [Gpu(vendor="amd", index=i, uuid=uuid) for i, uuid in enumerate(("b", "c", "a"))]
    for wish in (gpus, gpus[::-1]):
        with leases.hold(wish, holder="me", wait=False, stop=Stop(), say=print) as mine:
            assert mine
    assert order == ["a", "b", "c"] * 2
