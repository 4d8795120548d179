"""Reading Kineto traces: lab.trace against the standard library's json, CPU seconds and peak memory."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from bench.measure import Cost, median_cost

DATA = Path(os.environ.get("LAB_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))
OURS = "import sys; from lab.trace.kineto import read_kineto; read_kineto(sys.argv[1])"
PEER = """
    import gzip, json, sys
    with (gzip.open if sys.argv[1].endswith(".gz") else open)(sys.argv[1], "rb") as file:
        json.load(file)
"""
BIG_MB = 200


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, path in {**recordings(), "made, 200 MB": made(Path(folder) / "made.json")}.items():
            show(name, median_cost(3, OURS, str(path)), median_cost(3, PEER, str(path)))


def recordings() -> dict[str, Path]:
    """One real trace, where the recordings are."""
    path = DATA / "kernels_h200" / "bloom560m_generate.json.gz"
    if not path.exists():
        print(f"skipped the recorded trace: not at {path}")
        return {}
    return {path.name: path}


def made(path: Path) -> Path:
    """A Kineto-layout trace of BIG_MB: a training step's launch, op and kernel events, over and over."""
    head = {
        "schemaVersion": 1,
        "deviceProperties": [],
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        "traceEvents": [],
    }
    with path.open("w") as file:
        file.write(json.dumps(head)[:-2])
        written, number = 0, 0
        while written < BIG_MB * 1_000_000:
            text = ("," if number else "") + ",\n".join(json.dumps(event) for event in step(number))
            written += file.write(text)
            number += 1
        file.write("]}")
    return path


def step(n: int) -> list[dict[str, object]]:
    ts, link = n * 50.125, n + 1
    op = {
        "External id": link,
        "Input Dims": [[4096, 2048], [2048, 8192]],
        "Input type": ["c10::BFloat16"] * 2,
    }
    kernel = {"External id": link, "device": 0, "context": 1, "stream": 7, "correlation": link, "registers per thread": 168,
              "shared memory": 213216, "grid": [132, 1, 1], "block": [384, 1, 1]}  # fmt: skip
    name = f"nvjet_sm90_tst_{64 << n % 3}x128_64x4_1x2_h_bz_coopA_TNT"
    return [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 7, "ts": ts, "dur": 21.5, "args": op},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernelExC", "pid": 7, "tid": 7, "ts": ts + 9, "dur": 4.25,
         "args": {"correlation": link, "External id": link}},
        {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": ts + 30, "dur": 41.375, "args": kernel},
        {"ph": "s", "id": link, "pid": 7, "tid": 7, "ts": ts + 9, "cat": "ac2g", "name": "ac2g"},
    ]  # fmt: skip


def show(name: str, ours: Cost, peer: Cost) -> None:
    print(
        f"{name}: lab {ours.cpu_s:.2f} s {ours.peak_mb:.0f} MB, json {peer.cpu_s:.2f} s {peer.peak_mb:.0f} MB: "
        f"{peer.cpu_s / ours.cpu_s:.1f}x faster, {peer.peak_mb / ours.peak_mb:.1f}x leaner"
    )
