"""Small Kineto traces: steps of launches, each an op with its kernel."""

from __future__ import annotations

import json
from pathlib import Path

STEP_US = 1000


def trace(path: Path, steps, *, calls=(), rank=None, shift_us=0, prefix="ProfilerStep#") -> Path:
    """`steps`: lists of (op, dims, kernel, dur_us[, gap_us]); `calls`: (step, name) of further API calls."""
    events, corr, ids = [], 1, 1
    for number, launches in enumerate(steps):
        begin = number * STEP_US + shift_us
        gpu = begin + 50.0
        events.append(event("user_annotation", f"{prefix}{number}", begin, STEP_US - 10, 1, 1))
        for at, (op, dims, kernel, dur_us, *gap) in enumerate(launches):
            cpu = begin + 5 + 4.0 * at
            if op:
                args = {"External id": ids, "Input Dims": dims, "Input type": ["float"] * len(dims)}
                events.append(event("cpu_op", op, cpu, 3, 1, 1, args))
            launch = {"External id": ids, "correlation": corr, "cbid": 211}
            events.append(event("cuda_runtime", "cudaLaunchKernel", cpu + 1, 1, 1, 1, launch))
            gpu += gap[0] if gap else 0
            args = {"External id": ids, "correlation": corr, "device": 0, "stream": 7}
            args |= {"grid": [1, 1, 1], "block": [32, 1, 1]}
            events.append(event("kernel", kernel, gpu, dur_us, 0, 7, args))
            gpu += dur_us
            corr, ids = corr + 1, ids + 1
        for which, name in calls:
            if which == number:
                args = {"correlation": corr, "cbid": 1}
                events.append(event("cuda_runtime", name, begin + 900, 2, 1, 1, args))
                corr += 1
    whole = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "GPU"}], "traceEvents": events}
    if rank is not None:
        whole["distributedInfo"] = {"rank": rank, "world_size": 2, "backend": "nccl"}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(whole))
    return path


def event(cat, name, ts, dur, pid, tid, args=None):
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": args or {},
    }


def layer(scale=1.0):
    """One layer: a product, an addition by a kernel that serves two ops, an activation."""
    return [
        ("aten::mm", [[64, 64], [64, 64]], "gemm_128", 40.0 * scale),
        ("aten::add", [[64, 64], [64, 64]], "elementwise", 5.0 * scale),
        ("aten::mul", [[64, 64], [64, 64]], "elementwise", 7.0 * scale),
        ("aten::relu", [[64, 64]], "relu", 3.0 * scale),
    ]


def edited(path, edit):
    """The recording at `path` with its events as `edit` leaves them."""
    whole = json.loads(path.read_text())
    whole["traceEvents"] = edit(whole["traceEvents"])
    path.write_text(json.dumps(whole))
    return path


def with_loader(events, wait_us, every=1):
    """Each `every`-th step begins `wait_us` later after the last one: the host does something else before."""
    for one in events:
        number = int(one["ts"] // STEP_US)
        marker = one["name"].startswith("ProfilerStep")
        waits = (number + 1) // every
        here = waits - number // every
        one["ts"] += wait_us * (waits - here if marker else waits)
        one["dur"] += wait_us * here if marker else 0
    return events


def with_work_between(events, after):
    """Five kernels of 50 us more, launched behind each of the steps `after`; -1 is before the first."""
    for step in after:
        for at in range(5):
            args = {"correlation": 10**6 + 10 * step + at, "device": 0, "stream": 7}
            call = event("cuda_runtime", "cudaLaunchKernel", step * STEP_US + 991 + at, 0.5, 1, 1, args)
            kernel = event("kernel", "extra", (step + 1) * STEP_US + 300 + 60 * at, 50, 0, 7, args)
            events += [call, kernel]
    return events
