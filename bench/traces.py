"""Traces to measure with: recorded ones where they are, repeated to any size, and made ones."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

DATA = Path(os.environ.get("LAB_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))
SWEEP = DATA / "sweep_h200"
ONE_RANK = SWEEP / "256thread" / "nccl_28channels" / "torch_profiler" / "rank0" / "trace_step7.json.gz"
REAL = {
    "qwen_mi300": DATA / "rocm" / "mi300_qwen1.5_0.5b.json.gz",
    "training_h200": DATA / "kernels_h200" / "cs336_small_training.json.gz",
    "resnet_ddp_mi300": DATA / "rocm" / "mi300_resnet_ddp_rank0of8.json.gz",
}
IDS = ("correlation", "External id", "Ev Idx", "Sequence number")


def recorded() -> dict[str, Path]:
    """One recording of the sweep, and every large one in the folder LAB_BENCH_TRACES."""
    found = {path.name: path for path in [ONE_RANK] if path.exists()}
    if not found:
        print(f"skipped the recorded traces: not at {DATA}")
    folder = os.environ.get("LAB_BENCH_TRACES")
    if not folder:
        print("no further real traces: LAB_BENCH_TRACES names no folder of them")
        return found
    return found | {path.name: path for path in sorted(Path(folder).glob("*.json*"))}


def real(folder: Path, megabytes: int = 56) -> Iterator[Path]:
    """Recordings of inference, training and DDP, each repeated to this size."""
    for name, source in REAL.items():
        if source.exists():
            yield repeated(source, folder / f"{name}.json", megabytes)
        else:
            print(f"skipped {name}: no recording at {source}")


def big(folder: Path, megabytes: int) -> Path:
    """A trace of this size: the recorded rank over and over, or without recordings a made step."""
    path = folder / f"{megabytes}mb.json"
    return repeated(ONE_RANK, path, megabytes) if ONE_RANK.exists() else made(path, megabytes)


def repeated(source: Path, path: Path, megabytes: int) -> Path:
    """`source` again and again, later each time and with ids of its own, until it weighs `megabytes`."""
    document = json.loads(gzip.decompress(source.read_bytes()), parse_float=Decimal)
    events = document.pop("traceEvents")
    once = [event for event in events if event.get("ph") == "M"]
    again = [_template(event) for event in events if event.get("ph") != "M"]
    times_us = [event["ts"] for event in events if event.get("ph") == "X"]
    span_us, ids = max(times_us) - min(times_us) + 1000, 10_000_000
    with path.open("w") as file:
        file.write(json.dumps({**document, "traceEvents": []}, default=float).removesuffix("]}"))
        file.write(",\n".join(json.dumps(event, default=float) for event in once))
        for number in range(1 << 30):
            if file.tell() > megabytes * 1_000_000:
                break
            for parts, ts, numbers in again:
                file.write(parts.format(ts + number * span_us, *(n + number * ids for n in numbers)))
        file.write("\n]}")
    return path


def _template(event: dict[str, Any]) -> tuple[str, Decimal, list[int]]:
    """The event as a format string of its time and ids, in the layout that Kineto writes."""
    numbers: list[int] = []

    def hole(value: int) -> str:
        numbers.append(value)
        return f"\0{len(numbers)}\0"

    args = {k: hole(v) if k in IDS and isinstance(v, int) else v for k, v in event.get("args", {}).items()}
    head = {
        k: hole(v) if k == "id" else "\0" + "0\0" if k == "ts" else v for k, v in event.items() if k != "args"
    }
    lines = ", ".join(f"{json.dumps(k)}: {json.dumps(v, default=float)}" for k, v in head.items())
    inner = ", ".join(f"{json.dumps(k)}: {json.dumps(v, default=float)}" for k, v in args.items())
    text = f",\n  {{\n    {lines}" + (f',\n    "args": {{\n      {inner}\n    }}' if args else "") + "\n  }"
    text = text.replace("{", "{{").replace("}", "}}")
    for index in range(len(numbers) + 1):
        text = text.replace(f'"\\u0000{index}\\u0000"', f"{{{index}}}")
    return text, Decimal(event["ts"]), numbers


def made(path: Path, megabytes: float) -> Path:
    """A Kineto-layout trace: a training step's launch, op and kernel events, over and over."""
    head = {"schemaVersion": 1, "baseTimeNanoseconds": 1_700_000_000_000_000_000, "deviceProperties": []}
    with path.open("w") as file:
        file.write(json.dumps(head)[:-1] + ', "traceEvents": [{"ph": "M"}')
        for number in range(1 << 30):
            if file.tell() > megabytes * 1_000_000:
                break
            file.write("".join(",\n" + json.dumps(event) for event in _step(number)))
        file.write("]}")
    return path


def _step(n: int) -> Iterator[dict[str, Any]]:
    ts, link = n * 50.125, n + 1
    shapes = {"Input Dims": [[4096, 2048], [2048, 8192]], "Input type": ["c10::BFloat16"] * 2}
    kernel = {
        "External id": link,
        "device": 0,
        "context": 1,
        "stream": 7,
        "correlation": link,
        "registers per thread": 168,
        "shared memory": 213216,
        "grid": [132, 1, 1],
        "block": [384, 1, 1],
    }
    name = f"nvjet_sm90_tst_{64 << n % 3}x128_64x4_1x2_h_bz_coopA_TNT"
    at = {"pid": 7, "tid": 7}
    yield {
        "ph": "X",
        "cat": "cpu_op",
        "name": "aten::mm",
        **at,
        "ts": ts,
        "dur": 21.5,
        "args": {"External id": link, **shapes},
    }
    yield {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaLaunchKernelExC",
        **at,
        "ts": ts + 9,
        "dur": 4.25,
        "args": {"correlation": link, "External id": link},
    }
    yield {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": 0,
        "tid": 7,
        "ts": ts + 30,
        "dur": 41.375,
        "args": kernel,
    }
    yield {"ph": "s", "id": link, **at, "ts": ts + 9, "cat": "ac2g", "name": "ac2g"}
