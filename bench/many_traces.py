"""32 real traces through `lab gemm all` with two workers, in turns with another checkout of lab.

LAB_BENCH_BASE is the folder of that checkout (`git worktree add FOLDER COMMIT`). Medians of LAB_BENCH_ROUNDS
rounds; each begins in an empty folder.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from bench import traces
from bench.measure import whole_cost
from bench.table import Row, at_least, measured

ROUNDS = int(os.environ.get("LAB_BENCH_ROUNDS", "3"))
BASE = os.environ.get("LAB_BENCH_BASE", "")
RUN = [sys.executable, "-m", "lab", "gemm", "all", "--workers", "2", "--quiet"]


def main() -> None:
    if not traces.SWEEP.is_dir():
        measured(Row("`lab gemm all`", size="32 traces", absent="no recorded sweep here (LAB_SHARED_DATA)"))
        return
    trees = [None, BASE] if BASE else [None]
    with tempfile.TemporaryDirectory() as name:
        rounds = [
            [run(tree, Path(name) / f"{number}_{index}") for index, tree in enumerate(trees)]
            for number in range(ROUNDS)
        ]
    head, *base = (
        tuple(map(statistics.median, zip(*runs, strict=True))) for runs in zip(*rounds, strict=True)
    )
    row = Row(
        "`lab gemm all`, two workers",
        size="32 traces",
        cost=f"{head[0]:.1f} s, {head[1]:.1f} CPU s",
        memory_mb=head[2],
        absent="" if base else "no other checkout (LAB_BENCH_BASE)",
    )
    for wall_s, cpu_s, peak_mb in base:
        ratio = cpu_s / head[1]
        limit, met = at_least(ratio, 0.9)
        peer = f"the base {wall_s:.1f} s, {cpu_s:.1f} CPU s, {peak_mb:.0f} MB"
        row = replace(row, peer=peer, ratio=ratio, limit=limit, met=met)
    measured(row)


def run(tree: str | None, out: Path) -> tuple[float, float, float]:
    """Wall seconds, CPU seconds of all processes, and peak MB of the largest one; tree: of another lab."""
    start = time.perf_counter()
    cost, code = whole_cost([*RUN, str(traces.SWEEP), "--out", str(out)], tree)
    if code:
        raise SystemExit(f"lab gemm all of {tree or 'this tree'} failed with {code}")
    return time.perf_counter() - start, cost.cpu_s, cost.peak_mb
