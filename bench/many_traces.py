"""64 real traces through `lab gemm all` with two workers, and again from what it remembers (bar: 10x faster).

Medians of LAB_BENCH_ROUNDS rounds; each begins in an empty folder.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from bench import traces
from bench.measure import whole_cost
from bench.table import Row, at_least, measured

ROUNDS = int(os.environ.get("LAB_BENCH_ROUNDS", "3"))
CONFIGS = [(threads, channels) for threads in (256, 512) for channels in (28, 42, 56, 70)]
RUN = [sys.executable, "-m", "lab", "gemm", "all", "--workers", "2", "--quiet"]


def main() -> None:
    if not traces.SWEEP.is_dir():
        measured(Row("`lab gemm all`", size="64 traces", absent="no recorded sweep here (LAB_SHARED_DATA)"))
        return
    with tempfile.TemporaryDirectory() as name:
        sweep = made(Path(name) / "sweep")
        rounds = [[run(sweep, Path(name) / f"out{number}") for _ in range(2)] for number in range(ROUNDS)]
        first, second = (
            tuple(map(statistics.median, zip(*runs, strict=True))) for runs in zip(*rounds, strict=True)
        )
        for title, (wall_s, cpu_s, peak_mb) in {"first run": first, "second run": second}.items():
            print(f"{title}: {wall_s:.1f} s, {cpu_s:.1f} CPU s, {peak_mb:.0f} MB in the largest process")
        ratio = first[0] / second[0]
        limit, met = at_least(ratio, 10)
        measured(
            Row(
                "`lab gemm all`, two workers, again",
                size="64 traces",
                cost=f"{second[0]:.1f} s, {second[1]:.1f} CPU s",
                memory_mb=second[2],
                peer=f"the first run {first[0]:.1f} s, {first[1]:.1f} CPU s, {first[2]:.0f} MB",
                ratio=ratio,
                limit=limit,
                met=met,
            )
        )
        print(f"second run {first[0] / second[0]:.1f}x faster, {first[1] / second[1]:.1f}x less CPU")


def made(sweep: Path) -> Path:
    """8 configurations of 8 ranks; the recording has 4, so each stands twice."""
    for number, (threads, channels) in enumerate(CONFIGS):
        source = (
            traces.SWEEP / f"{(256, 512)[number // 2 % 2]}thread" / f"nccl_{(28, 42)[number % 2]}channels"
        )
        place = sweep / f"{threads}thread" / f"nccl_{channels}channels"
        for trace in sorted(source.rglob("*.json.gz")):
            path = place / trace.relative_to(source)
            path.parent.mkdir(parents=True)
            path.symlink_to(trace)
    return sweep


def run(sweep: Path, out: Path) -> tuple[float, float, float]:
    """Wall seconds, CPU seconds of all processes, and peak MB of the largest one."""
    start = time.perf_counter()
    cost, code = whole_cost([*RUN, str(sweep), "--out", str(out)])
    if code:
        raise SystemExit(f"lab gemm all failed with {code}")
    return time.perf_counter() - start, cost.cpu_s, cost.peak_mb
