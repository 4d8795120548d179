"""nsys' own reports of a cell's capture, in the published result tree (`stats_reports/part_x/`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lab.core.files import write_atomic
from lab.recordings.capture import Capture
from lab.recordings.projection import project
from lab.rooms.nsys.captures.stats.reports import available, report
from lab.rooms.nsys.layout import Found, published_name

REPORTS = (
    "cuda_gpu_kern_sum",
    "cuda_api_sum",
    "cuda_gpu_mem_time_sum",
    "cuda_gpu_mem_size_sum",
    "nvtx_sum",
    "nvtx_gpu_proj_sum",
    "nvtx_kern_sum",
)


def write_reports(found: Found, capture: Capture, parts: Sequence[str], out: Path) -> list[Path]:
    """Write the capture's reports with nsys' numbers into the folder of each part; returns the files.

    A report without data (no copies, no kernels) is left out; nsys writes a placeholder there.
    """
    projection = project(capture, "nsys")
    missing = available(capture)
    texts = {name: report(name, projection).csv() for name in REPORTS if not missing[name]}
    files = []
    for folder, base in dict.fromkeys(published_name(found.cell, part) for part in parts):
        for name, text in texts.items():
            path = out / folder / f"{base}_{name}.csv"
            write_atomic(path, text)
            files.append(path)
    return files
