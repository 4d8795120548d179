"""The table of coverage and the picture of docs/kernels.md: `python -m bench.flops_coverage`.

Reads the shared recordings ($LAB_SHARED_DATA). Prints a row per recording: the share of GPU time of ops whose
FLOPs are known, and the same by TraceLens' published tables; writes docs/roofline.png.
"""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np

from bench.table import Row, measured
from lab.recordings.load import load_capture
from lab.recordings.views import drawing_of, op_roofs
from lab.recordings.views.roofline import NO_OP
from lab.report.figures import roofline, save_png

PICTURE = Path(__file__).parent.parent / "docs" / "roofline.png"
PICTURED = "public/traces/h100_qwen.json.gz"
# Recording, and the folder of TraceLens' tables of it.
RECORDINGS = {
    "rocm/mi300_qwen1.5_0.5b.json.gz": "rocm/mi300_qwen1.5_0.5b_reference",
    PICTURED: "public/traces/h100_qwen_reference",
    "public/traces/mi300_timesformer.json.gz": "public/traces/mi300_timesformer_reference",
    "captures/graphs/torch_compile_triton/trace.json.gz": "captures/graphs/torch_compile_triton/"
    "trace_perf_report_csvs",
    "public/serve/timesformer_h100.json.gz": "",
    "serve/falconsai_mi300.json.gz": "",
    "kernels_h200/bloom560m_generate.json.gz": "",
    "kernels_h200/cs336_small_training.json.gz": "",
    "captures/graphs/flux1_one_file/capture_and_replay.json.gz": "",
    "rocm/mi300_resnet_ddp_rank0of8.json.gz": "",
}


def coverage(path: Path) -> tuple[float, float, str]:
    """Percent of the ops' GPU time with FLOPs, with and without ops that compute nothing; the largest gap."""
    roofs = op_roofs(load_capture(path))
    rows = np.flatnonzero(roofs.op != NO_OP)
    time_ms, gflop = roofs.time_ms[rows].astype(float), roofs.gflop[rows].astype(float)
    has_flops = ~np.isnan(gflop)
    percents = (100 * time_ms[mask].sum() / time_ms.sum() for mask in (has_flops, gflop > 0))
    gaps = rows[~has_flops]
    gap = f"{roofs.op[gaps[0]]} ({roofs.note[gaps[0]]})" if len(gaps) else ""
    return *percents, gap


def reference_coverage(folder: Path) -> float:
    """The same share by TraceLens' unified_perf_summary.csv."""
    with (folder / "unified_perf_summary.csv").open(newline="") as file:
        rows = [(float(row["Kernel Time (µs)_sum"] or 0), row["GFLOPS"]) for row in csv.DictReader(file)]
    return 100 * sum(us for us, gflops in rows if gflops) / sum(us for us, _ in rows)


def main() -> None:
    shared = Path(os.environ.get("LAB_SHARED_DATA", Path(__file__).parents[2] / "shared/data"))
    print("| recording | FLOPs known | of it computing | TraceLens | largest gap |\n|---|--:|--:|--:|---|")
    for name, folder in RECORDINGS.items():
        known, computing, gap = coverage(shared / name)
        reference = f"{reference_coverage(shared / folder):.1f} %" if folder else "–"
        title = name.removesuffix(".json.gz").split("/")[-1 if "graphs" not in name else -2]
        print(f"| {title} | {known:.1f} % | {computing:.1f} % | {reference} | {gap} |")
        measured(Row(title, cost=f"{computing:.1f} % of GPU time", peer=f"TraceLens {reference}"))
    points, ceilings = drawing_of(op_roofs(load_capture(shared / PICTURED)))
    drawing = roofline(points, roofs=ceilings, across="FLOP per byte (each tensor once)", axis="TFLOP/s")
    save_png(drawing, PICTURE, dpi=110)


if __name__ == "__main__":
    main()
