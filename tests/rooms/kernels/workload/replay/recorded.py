"""A small network whose calls the recorder alone keeps, called again; also run by a Python with torch 1.12.

recorded.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from lab.rooms.kernels.replay.calls.source import read_plan
from lab.rooms.kernels.workload.recorder import Recorder, recording
from lab.rooms.kernels.workload.replay.main import run


def replay_recorded(folder: Path):
    """-> the plan and what its replay saw."""
    layers = torch.nn.Embedding(50, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 32), torch.nn.GELU()
    net = torch.nn.Sequential(*layers)
    ids = torch.arange(6).view(1, 6)

    def forward():
        return net(ids)[:, torch.tensor([0, 3])].softmax(-1) * 2.0

    forward()
    profiler = profile(activities=[ProfilerActivity.CPU], record_shapes=True)
    with torch.no_grad(), profiler as session, record_function("prefill"):
        forward()
    session.export_chrome_trace(str(folder / "trace.json"))
    with (folder / "ops.jsonl").open("wb") as file, torch.no_grad():
        recorder = Recorder(file.write)
        recorder.phase, recorder.forward = "prefill", 0
        with recording(recorder, net):
            forward()
    plan = read_plan(folder / "trace.json", None, folder / "ops.jsonl")
    (folder / "plan.json").write_bytes(msgspec.json.encode(plan))
    return plan, run(folder / "plan.json", folder, mode="in-order", repeats=2, device=torch.device("cpu"))


if __name__ == "__main__":
    plan, raw = replay_recorded(Path(sys.argv[1]))
    for signature, one in zip(plan.signatures, raw.signatures, strict=True):
        print(torch.__version__, signature.op, signature.origin, one.status, one.shapes_equal, sep="|")
