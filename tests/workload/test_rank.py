"""A process group ends with its block: after what records it, and with all of its threads."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from tests.conftest import ROOT  # noqa: E402

PROGRAM = """
import gc, os, sys
from pathlib import Path

import torch
import torch.distributed as dist

from lab.rooms.kernels.workload.profile.passes import tracing
from lab.workload.start import leave_group
from lab.workload.rank import RankContext, process_group

ends = []


def noted(name, function):
    return lambda *args, **more: (ends.append(name), function(*args, **more))[1]


def threads():
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return sum(name.startswith(("pt_gloo", "gloo")) for name in names)


profiler = torch.profiler.profiler
for module, name in (
    (profiler, "_remove_execution_trace_observer"), (dist, "barrier"), (dist, "destroy_process_group")
):
    setattr(module, name, noted(name, getattr(module, name)))
context = RankContext(rank=0, local_rank=0, world_size=1)
device = torch.device("cpu")
try:
    with process_group(context, device):
        with tracing(Path(sys.argv[1]), 0, device, True) as keep:
            dist.all_reduce(torch.ones(2))
            assert threads()
            if "fails" in sys.argv:
                raise ValueError("in the block")
        keep()
except ValueError:
    pass
gc.collect()
print(*ends, threads())
if "waits" in sys.argv:
    import atexit
    atexit.register(print, "Python ends")
    leave_group(RankContext(rank=0, local_rank=0, world_size=2))
"""


def ends(folder, *words):
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    env.pop("WORLD_SIZE", None)
    command = [sys.executable, "-c", PROGRAM, str(folder), *words]
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return [line for line in done.stdout.splitlines() if not line.startswith("USDT")]


def test_the_observer_ends_first_then_the_ranks_meet_and_the_group_ends_with_its_threads(tmp_path):
    """torch's own functions kept the group, and a thread of gloo could abort a rank that had finished."""
    order = "_remove_execution_trace_observer barrier destroy_process_group 0"
    assert ends(tmp_path, "waits") == [order], "one of several ranks leaves without Python's own end"


def test_after_an_error_the_observer_has_ended_and_no_peer_is_waited_for(tmp_path):
    (line,) = ends(tmp_path, "fails")
    assert line.split()[:-1] == ["_remove_execution_trace_observer"]
