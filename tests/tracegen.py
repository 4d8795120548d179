"""A writer of small synthetic Kineto traces whose every figure is known, in all layouts met in the wild."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BASE_NS = 1_700_000_000_000_000_000
CPU_PID = 4321
LAYOUTS = ("compact", "one_line_per_block", "key_per_line", "indented", "tabs")


@dataclass
class TraceWriter:
    """Collects events in microseconds relative to BASE_NS, then writes them. vendor: nvidia, amd or none."""

    rank: int | None = 0
    world_size: int | None = 1
    vendor: str = "nvidia"
    events: list[dict[str, Any]] = field(default_factory=list)
    next_id: int = 1

    def event(
        self, cat: str, name: str, ts_us: float, dur_us: float, *, args: Any = None, **more: Any
    ) -> None:
        where = {"pid": CPU_PID, "tid": CPU_PID, **more}
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, **where, "ts": ts_us, "dur": dur_us, "args": args or {}}
        )

    def op(self, name: str, ts_us: float, dur_us: float, **args: Any) -> int:
        """A CPU op; returns its External id."""
        self.next_id += 1
        self.event("cpu_op", name, ts_us, dur_us, args={"External id": self.next_id, **args})
        return self.next_id

    def kernel(
        self,
        name: str,
        ts_us: float,
        dur_us: float,
        *,
        op: int = 0,
        stream: int = 7,
        call_us: float | None = None,
        **args: Any,
    ) -> int:
        """A kernel that op launched at call_us (0: the launch was not recorded); returns its correlation.

        An op owns the launch only if it is open at call_us.
        """
        call_us = ts_us - 5 if call_us is None else call_us
        self.next_id += 1
        correlation = self.next_id
        known: dict[str, Any] = {"device": 0, "stream": stream, "correlation": correlation}
        if op:
            call = "hipLaunchKernel" if self.vendor == "amd" else "cudaLaunchKernel"
            extra = {"stream": "0x0", "bytes": "12"} if self.vendor == "amd" else {}
            self.event("cuda_runtime", call, call_us, 2, args={"correlation": correlation, **extra})
            known |= {"External id": op, "grid": [8, 1, 1], "block": [256, 1, 1]}
        elif self.vendor == "amd":
            known["kind"] = "Dispatch Kernel"
        self.event("kernel", name, ts_us, dur_us, args={**known, **args}, pid=0, tid=stream)
        return correlation

    def gemm(self, m: int, n: int, k: int, ts_us: float, dur_us: float) -> int:
        """aten::mm of bf16 [m,k] x [k,n] with its kernel 5 us after the launch."""
        op = self.op(
            "aten::mm",
            ts_us - 6,
            4,
            **{
                "Concrete Inputs": ["", ""],
                "Input type": ["c10::BFloat16", "c10::BFloat16"],
                "Input Strides": [[k, 1], [n, 1]],
                "Input Dims": [[m, k], [k, n]],
            },
        )
        self.kernel("Cijk_gemm" if self.vendor == "amd" else "nvjet_gemm", ts_us, dur_us, op=op)
        return op

    def all_reduce(
        self,
        nelems: int,
        ts_us: float,
        dur_us: float,
        *,
        grid: int = 28,
        block: int = 288,
        stream: int = 28,
    ) -> None:
        """An all-reduce of float32 with NCCL metadata, by default on its own stream."""
        op = self.op("record_param_comms", ts_us - 6, 4)
        self.kernel(
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)",
            ts_us,
            dur_us,
            op=op,
            stream=stream,
            grid=[grid, 1, 1],
            block=[block, 1, 1],
            **{
                "Collective name": "allreduce",
                "In msg nelems": nelems,
                "Out msg nelems": nelems,
                "Group size": self.world_size,
                "dtype": "Float",
                "Process Group Name": "0",
                "Process Group Description": "default_pg",
                "Process Group Ranks": str(list(range(self.world_size or 1))),
            },
        )

    def step(self, number: int, ts_us: float, dur_us: float) -> None:
        self.event("user_annotation", f"ProfilerStep#{number}", ts_us, dur_us)

    def gloo(self, name: str, nelems: int, ts_us: float, dur_us: float) -> None:
        """A collective as torch records it on a CPU: a range on a worker thread with its input's shape."""
        args = {"Input type": ["float"], "Input Dims": [[nelems]]}
        self.event("user_annotation", f"gloo:{name}", ts_us, dur_us, args=args, tid=CPU_PID + 1)

    def document(self) -> dict[str, Any]:
        head: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": []}
        if self.vendor != "none":
            name = {"nvidia": "NVIDIA H200", "amd": "AMD Instinct MI300X"}[self.vendor]
            head["deviceProperties"] = [{"id": i, "name": name} for i in range(3)]
            head["cuda_runtime_version" if self.vendor == "nvidia" else "hip_runtime_version"] = 13000
        if self.rank is not None:
            ranks = list(range(self.world_size or 1))
            group = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "x", "ranks": ranks}
            info = {"backend": "gloo" if self.vendor == "none" else "nccl", "rank": self.rank}
            head["distributedInfo"] = info | {"world_size": self.world_size, "pg_config": [group]}
        meta = {"ph": "M", "name": "process_name", "pid": "Spans", "tid": 0, "ts": 1, "args": {"name": "x"}}
        return {
            **head,
            "baseTimeNanoseconds": BASE_NS,
            "traceEvents": [meta, *self.events],
            "traceName": "t.json",
        }

    def write(self, path: Path, layout: str = "compact") -> Path:
        text = dump(self.document(), layout).encode("utf-8", "surrogatepass")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text, 1) if path.suffix == ".gz" else text)
        return path


def dump(document: dict[str, Any], layout: str) -> str:
    """The document as text; `one_line_per_block` is older Kineto's way, `key_per_line` that of torch 2.13."""
    if layout == "compact":
        return json.dumps(document, separators=(",", ":"))
    if layout == "indented":
        return json.dumps(document, indent=4)
    if layout == "tabs":
        return json.dumps(document, indent="\t").replace("\n", "\r\n")
    events = ",\n".join(_block(event, layout) for event in document["traceEvents"])
    head = {key: value for key, value in document.items() if key not in ("traceEvents", "traceName")}
    start = json.dumps(head, indent=2).rstrip().removesuffix("}").rstrip()
    return f'\n{start},\n  "traceEvents": [\n{events}\n  ],\n  "traceName": "t.json"\n}}'


def _block(event: dict[str, Any], layout: str) -> str:
    if layout == "key_per_line":
        return json.dumps(event, indent=2)
    first = ", ".join(
        f"{json.dumps(key)}: {json.dumps(value)}" for key, value in event.items() if key != "args"
    )
    args = ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in event["args"].items())
    return f'  {{\n    {first},\n    "args": {{\n      {args}\n    }}\n  }}'


def training_step(writer: TraceWriter, number: int, at_us: float) -> None:
    """50 us: GEMM 10..20, a collective 15..30, a copy 40..41.5, idle 30..40; busy 21.5, exposed comm 10."""
    writer.step(number, at_us, 50)
    writer.gemm(64, 32, 128, at_us + 10, 10)
    writer.all_reduce(1024, at_us + 15, 15)
    copy = {"device": 0, "stream": 7, "correlation": 1_000_000 + number, "bytes": 4096}
    writer.event("gpu_memcpy", "Memcpy HtoD", at_us + 40, 1.5, args=copy, pid=0, tid=7)


def cpu_step(writer: TraceWriter, number: int, at_us: float) -> None:
    """50 us on a CPU: mm 10..20 inside linear 9..21, gloo all_reduce 18..30."""
    writer.step(number, at_us, 50)
    shapes = {
        "Input Dims": [[8, 4], [16, 4]],
        "Input type": ["float", "float"],
        "Input Strides": [[4, 1], [4, 1]],
    }
    writer.op("aten::linear", at_us + 9, 12, **shapes)
    shapes = {
        "Input Dims": [[8, 4], [4, 16]],
        "Input type": ["float", "float"],
        "Input Strides": [[4, 1], [1, 4]],
    }
    writer.op("aten::mm", at_us + 10, 10, **shapes)
    writer.gloo("all_reduce", 512, at_us + 18, 12)
