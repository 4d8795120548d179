"""Traces of captures and replays with known truth, as torch.profiler writes them on ROCm."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lab.recordings.graphs import Source
from lab.recordings.graphs.frames import read_frames
from lab.recordings.kineto import read_kineto

PID = 7


class Launched(NamedTuple):
    """One launch at capture: kernel, operator, the modules around it, and its first argument's sizes."""

    kernel: str
    op: str
    modules: tuple[str, ...] = ()
    dims: tuple[int, ...] = (2, 3)


def decoder(layers: int = 4) -> list[Launched]:
    """An embedding, `layers` equal layers of four kernels, and a head."""
    found = [Launched("gather", "aten::embedding", ("Model_0", "Embedding_0"))]
    for layer in range(layers):
        block = ("Model_0", f"Block_{layer}")
        found += [
            Launched("norm", "aten::rms_norm", (*block, f"Norm_{layer}")),
            Launched("gemm_in", "aten::mm", (*block, f"Linear_{2 * layer}")),
            Launched("act", "aten::silu", block),
            Launched("gemm_out", "aten::mm", (*block, f"Linear_{2 * layer + 1}")),
        ]
    return [*found, Launched("gemm_head", "aten::addmm", ("Model_0", f"Linear_{2 * layers}"))]


class Events:
    """Events of one trace; each call moves the clock on by 10 us."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.now, self.ids, self.correlation = 1000.0, 0, 0

    def add(
        self, cat: str, name: str, start: float, dur: float, args: dict[str, Any], tid: int = PID
    ) -> None:
        self.rows.append(
            {
                "ph": "X",
                "cat": cat,
                "name": name,
                "pid": PID,
                "tid": tid,
                "ts": start,
                "dur": dur,
                "args": args,
            }
        )

    def call(self, name: str, external_id: int | None = None, kernel: str = "", dur: float = 2.0) -> int:
        self.correlation += 1
        args: dict[str, Any] = {"correlation": self.correlation}
        if external_id is not None:
            args["External id"] = external_id
        if kernel:
            args["kernel"] = kernel
        self.add("cuda_runtime", name, self.now, dur, args)
        self.now += 10
        return self.correlation

    def launch(self, one: Launched, api: str = "hipLaunchKernel", *, named: bool = True) -> int:
        """An operator, its modules' frames and its launch; returns the correlation."""
        self.ids += 1
        self.add(
            "cpu_op",
            one.op,
            self.now - 1,
            6,
            {
                "External id": self.ids,
                "Input Dims": [list(one.dims)],
                "Input type": ["float"],
                "Input Strides": [[1] * len(one.dims)],
                "Concrete Inputs": [""],
            },
        )
        for depth, module in enumerate(one.modules):
            name = f"nn.Module: {module}"
            self.add("python_function", name, self.now - 4 + depth * 0.25, 9.5 - depth * 0.5, {})
        return self.call(api, self.ids, one.kernel if named else "")

    def row(
        self, kernel: str, correlation: int, stream: int = 0, external_id: int | None = None, **more: Any
    ) -> None:
        args = {"device": 0, "stream": stream, "correlation": correlation, **more}
        if external_id is not None:
            args["External id"] = external_id
        cat = "gpu_memset" if kernel == "Memset (Device)" else "kernel"
        self.add(cat, kernel, self.now, 3.0, args, tid=stream)
        self.now += 4

    def write(self, path: Path, **frame: Any) -> Path:
        path.write_text(json.dumps({"traceEvents": self.rows, "with_stack": 1, **frame}))
        return path


def capture_into(
    events: Events, launches: Sequence[Launched], *, named: bool = True, label: str = "", api: str = "hip"
) -> None:
    """One stream capture of these launches, which make no GPU rows."""
    start = events.now
    events.call(f"{api}StreamBeginCapture")
    for one in launches:
        fills = one.kernel == "Memset (Device)"
        events.launch(one, f"{api}MemsetAsync" if fills else f"{api}LaunchKernel", named=named)
    events.call(f"{api}StreamEndCapture")
    if label:
        events.add("user_annotation", label, start - 1, events.now - start, {})


def replay_into(
    events: Events, kernels: Sequence[str], streams: Sequence[int] | None = None, **more: Any
) -> int:
    """One graph launch and its rows, by time; `more`: arguments of every row. Returns the correlation."""
    correlation = events.call("hipGraphLaunch")
    for index, kernel in enumerate(kernels):
        events.row(kernel, correlation, streams[index] if streams else 0, **more)
    return correlation


def source(path: Path) -> Source:
    trace = read_kineto(path)
    return Source(path, trace, read_frames(path) if trace.meta.stacks else None)
