"""Whole commands on real recordings of every format, start included.

LAB_BENCH_BEFORE names another checkout of lab: both take turns. LAB_BENCH_MB sizes the repeated trace (200).
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from bench import traces
from bench.measure import Cost, median_of, whole_cost
from bench.table import Row, measured

DATA = traces.DATA
_RECORDINGS = {
    "kineto": "serve/a_swap01.json.gz",
    "nsys sqlite": "nsys_public/h100_2gpu_1s.sqlite.gz",
    "nsys parquet": "captures/h200_decoder/nsys_graph_nodes_parquetdir",
    "rocpd": "captures/rocpd_ck_batched_gemm_mi300x.db.gz",
    "rocprofv3": "captures/rocprofv3_aorta_mi350x_dispatch_1_20000.json.gz",
}
ROUNDS = 3


def main() -> None:
    before = os.environ.get("LAB_BENCH_BEFORE")
    with tempfile.TemporaryDirectory() as name:
        out = str(Path(name) / "out")
        for title, words in _rows(Path(name), out):
            _show(title, words, before)


def _rows(folder: Path, out: str) -> list[tuple[str, list[str]]]:
    rows = []
    for kind, place in _RECORDINGS.items():
        if not (path := DATA / place).exists():
            print(f"skipped {kind}: not at {path}")
            continue
        rows.append((f"inspect, {kind}", ["inspect", str(path)]))
        rows.append((f"diff, {kind}", ["diff", str(path), str(path)]))
    for kind, place in {
        "planted": "ranks/planted/base",
        "recorded": "sweep_h200/256thread/nccl_28channels",
    }.items():
        if (path := DATA / place).exists():
            rows.append((f"ranks, 8 {kind}", ["ranks", str(path), "-o", out]))
    megabytes = int(os.environ.get("LAB_BENCH_MB", "200"))
    big = str(traces.big(folder, megabytes))
    rows.append((f"kernels unique, {megabytes} MB", ["kernels", "unique", big, "-o", out]))
    rows.append((f"nsys summary -o, {megabytes} MB", ["nsys", "summary", big, "-o", out]))
    return rows


def _show(title: str, words: list[str], before: str | None) -> None:
    trees = [None, before] if before else [None]
    rounds = [[_run(words, tree) for tree in trees] for _ in range(ROUNDS)]
    now, *then = (median_of(costs) for costs in zip(*rounds, strict=True))
    measured(
        Row(
            f"`lab {title}`",
            cost=f"{now.cpu_s:.2f} CPU s",
            memory_mb=now.peak_mb,
            peer=f"before: {then[0].cpu_s:.2f} CPU s, {then[0].peak_mb:.0f} MB" if then else "",
            ratio=then[0].cpu_s / now.cpu_s if then else None,
        )
    )


def _run(words: list[str], tree: str | None) -> Cost:
    cost, code = whole_cost([sys.executable, "-m", "lab", *words], tree)
    if code not in (0, 1):  # 1: written, and the recording is known to lack something
        raise SystemExit(f"lab {' '.join(words)} failed with {code}")
    return cost
