"""Small Kineto traces: steps of launches, each an op with its kernel; and processes drawn in memory: a step
of kernels on one stream, with what equal processes differ by."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lab.compare.check.samples import Process, _process
from lab.compare.side import Work, read_works
from lab.compare.units import by_step

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


KERNELS = 12
OPS = ("aten::mm", "aten::gelu", "aten::native_layer_norm", "aten::add")


@dataclass(frozen=True)
class Plant:
    """What a process has more than BASE: a factor on all kernels, one on some kernels, one on all kernels of
    every n-th step, and idle time per step (us)."""

    factor: float = 1.0
    kernels: tuple[tuple[int, float], ...] = ()
    every: int = 0
    every_factor: float = 1.0
    idle_us: float = 0.0


NOTHING = Plant()


class Program:
    """One program; `draw` makes a process of it."""

    def __init__(self, folder: Path, steps: int = 8) -> None:
        sizes_us = np.geomspace(4, 60, KERNELS)
        step = [
            (OPS[index % len(OPS)], [[64 * (index + 1), 64]], f"kernel_{index}", float(us))
            for index, us in enumerate(sizes_us)
        ]
        (self.work,) = read_works(trace(folder / "program.json", [step] * steps))
        keys, which = self.work.keys
        self.kernel = np.array([int(key[3].removeprefix("kernel_")) for key in keys])[which]
        self.steps = steps

    def draw(
        self,
        rng: np.random.Generator,
        plant: Plant = NOTHING,
        *,
        own: float = 0.002,  # of a process: its speed
        each: float = 0.004,  # of a kernel in a process
        noise: float = 0.01,  # of one launch
        idle_us: float = 50.0,  # per step, with as much scatter from step to step
        idle_own: float = 0.05,  # of a process: its idle time
    ) -> Work:
        step = np.repeat(np.arange(self.steps), KERNELS)
        speed = plant.factor * np.exp(rng.normal(0, own))
        factor = speed * np.exp(rng.normal(0, each, KERNELS))[self.kernel]
        for kernel, share in plant.kernels:
            factor[self.kernel == kernel] *= share
        if plant.every:
            factor[step % plant.every == plant.every - 1] *= plant.every_factor
        dur_ns = np.rint(self.work.dur_ns * factor * np.exp(rng.normal(0, noise, len(step)))).astype(np.int64)
        mean_us = (idle_us + plant.idle_us) * np.exp(rng.normal(0, idle_own))
        gap_us = np.maximum(rng.normal(mean_us, idle_us / 2, self.steps), 1.0)
        gaps_ns = np.zeros(len(step), dtype=np.int64)
        gaps_ns[KERNELS // 2 :: KERNELS] = np.rint(1000 * gap_us)
        first = np.flatnonzero(np.diff(step, prepend=-1))
        ends_ns = np.cumsum(dur_ns + gaps_ns)
        offset_ns = np.repeat(self.work.start_ns[first] - (ends_ns - dur_ns)[first], KERNELS)
        work = replace(self.work)
        shared = {name: getattr(self.work, name) for name in ("order", "launched_ns", "_call", "keys")}
        start_ns = ends_ns - dur_ns + offset_ns
        ops = self.work.ops.with_columns(start_ns=start_ns, end_ns=start_ns + dur_ns)
        vars(work).update(shared, ops=ops)
        return work


def as_sample(work: Work) -> Process:
    """As `lab check` reads it."""
    return _process([by_step(work)])
