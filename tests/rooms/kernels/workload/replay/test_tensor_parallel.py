"""The recording of one of two tensor-parallel ranks, replayed in order by one process."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from lab.rooms.kernels.replay.args import RawReplay  # noqa: E402
from lab.rooms.kernels.replay.calls.source import read_plan  # noqa: E402
from tests.conftest import ROOT  # noqa: E402

ENV = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
TORCHRUN = "-m torch.distributed.run --nproc_per_node=2 --rdzv_backend=c10d --rdzv_endpoint=localhost:0 -m"


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tp")
    program = "tests.rooms.kernels.workload.replay.tp_recording"
    command = [sys.executable, *TORCHRUN.split(), program, str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=ENV, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, read_plan(folder / "trace_rank0.json.gz", folder / "execution_trace_rank0.json.gz")


def null_id(plan):
    """The id that the recording gives to what has no memory: that of its empty tensors."""
    return {
        call.ins[0][0]
        for call in plan.calls
        if plan.signatures[call.sig].overload == "start_out" and call.ins
    }


def test_the_recording_gives_one_id_to_empty_tensors(plan):
    """Otherwise this file tests nothing."""
    assert len(null_id(plan[1])) == 1


def test_it_replays_in_order_in_a_process_of_its_own_and_lives(plan):
    folder, plan = plan
    (folder / "plan.json").write_bytes(msgspec.json.encode(plan))
    words = f"-m lab.rooms.kernels.workload.replay.main --plan {folder}/plan.json --out {folder}/out"
    command = [sys.executable, *words.split(), "--repeats", "2", "--device", "cpu"]
    done = subprocess.run(command, cwd=ROOT, env=ENV, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    raw = msgspec.json.decode((folder / "out" / "replay_raw.json").read_bytes(), type=RawReplay)
    assert {one.status for one in raw.signatures} == {"ran"}
    ran = {index for index, one in enumerate(raw.signatures) if one.status == "ran"}
    assert [call.place for call in raw.calls] == [i for i, call in enumerate(plan.calls) if call.sig in ran]
    assert not [note for note in raw.notes if "memory" in note]


def test_results_that_the_recording_keeps_apart_keep_their_values(plan):
    """Each arange grew the same empty tensor, so the second one used to overwrite the first one's result."""
    from lab.rooms.kernels.workload.replay.main import Replay
    from lab.rooms.kernels.workload.replay.order import InOrder

    _, plan = plan
    replay = Replay(plan, torch.device("cpu"), 1)
    with torch.no_grad():
        replay.alone("in-order")
        order = InOrder(plan, replay.ready, torch.device("cpu"))
        order.once()
    grown = [call for call in plan.calls if plan.signatures[call.sig].overload == "start_out"]
    held = {call.outs[0][0]: order.memory.buffers[call.outs[0][0]].data_ptr() for call in grown[-3:]}
    assert len(held) == len(set(held.values())) >= 2


def test_collectives_are_named_as_not_replayed_not_as_failed_calls(plan):
    _, plan = plan
    assert {one.launch.name for one in plan.orphans} == {"c10d::allreduce_"}
    assert {one.reason for one in plan.orphans} == {
        "a collective: it needs the other ranks, and a replay is one process"
    }
