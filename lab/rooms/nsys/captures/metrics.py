"""`lab analyze` of a database without a timeline: the costliest kernels, their metrics and the roof."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from lab.core.files import make_folder
from lab.core.words import plural, printable
from lab.errors import BadDataError
from lab.recordings.names import short_name
from lab.recordings.rocprof_compute import Metrics, load_metrics
from lab.report.page import write_page
from lab.report.parts import Page, Section, Table
from lab.report.provenance import provenance
from lab.report.tables import terminal_table, write_csv
from lab.rooms.nsys.captures.page import Written

FORMAT = "rocprof-compute"
NO_TIMELINE = (
    "Kernel metrics, no timeline: the times are those of passes that replayed each kernel for counters, "
    "not the application's."
)
_SHOWN = (
    "kernel dispatches dur_us time_share gflop_per_s flop_per_byte_hbm roof_hbm_gflop_per_s of_roof "
    "hbm_gb_per_s hbm_of_peak"
)
_TOP = 20


def write_metrics(path: Path, out: Path) -> tuple[Written, str]:
    """report.html and tables of one database in `out`, and the lines for a terminal.

    Raises what `load_metrics` raises; BadDataError without kernels.
    """
    metrics = load_metrics(path)
    if not metrics.kernels:
        raise BadDataError("the database has no kernels", location=path)
    make_folder(out)
    peaks = [
        {"workload": workload, "peak": name, "value": value}
        for workload, values in metrics.peaks.items()
        for name, value in values.items()
    ]
    tables = {
        "kernel_metrics": pd.DataFrame(metrics.rows()),
        "metric_values": pd.DataFrame(metrics.value_rows()),
        "roof_peaks": pd.DataFrame(peaks),
    }
    files = [write_csv(frame, out / "tables" / f"{name}.csv") for name, frame in tables.items()]
    shown = tables["kernel_metrics"][_SHOWN.split()].head(_TOP)
    shown = shown.assign(kernel=[short_name(name) for name in shown["kernel"]])
    machine = {
        f"{workload}, {name}": value
        for workload, values in metrics.machine.items()
        for name, value in values.items()
    }
    recorder = {"rocprof-compute": metrics.version or "unknown", "schema": metrics.schema or "unknown"}
    costliest = Table(shown, "Costliest first", "tables/kernel_metrics.csv")
    roof = Table(tables["roof_peaks"], "GB/s and GFLOP/s", "tables/roof_peaks.csv")
    sentences = _sentences(metrics)
    page = Page(
        title=path.name,
        question="Which kernels cost most, and how far from the roof are they?",
        verdict=sentences,
        status="warn",
        sections=[Section("Kernels", [costliest]), Section("Measured peaks", [roof])],
        provenance=provenance(path, None) | {"Recorder": recorder | machine},
        footnotes=list(metrics.problems),
        room="recording",
    )
    files = [write_page(page, out / "report.html"), *files]
    lines = "\n".join([*sentences, terminal_table(shown, width=150), *metrics.problems, str(files[0])])
    return Written(files, sentences, "warn"), "\n".join(map(printable, lines.splitlines()))


def _sentences(metrics: Metrics) -> list[str]:
    top, total_ns = metrics.kernels[0], sum(kernel.dur_ns for kernel in metrics.kernels)
    sentences = [NO_TIMELINE]
    if total_ns:
        sentences.append(
            f"{short_name(top.name)} costs most: {top.dur_ns / 1000:.1f} us in "
            f"{plural(top.dispatches, 'dispatch')}, {top.dur_ns / total_ns:.1%} of "
            f"{plural(len(metrics.kernels), 'kernel')}."
        )
    row = metrics.rows()[0]
    if row["of_roof"] is not None:
        sentences.append(
            f"It runs at {row['gflop_per_s']:.1f} GFLOP/s, {row['of_roof']:.1%} of the "
            f"{row['roof_hbm_gflop_per_s']:.1f} GFLOP/s that the measured HBM bandwidth allows it."
        )
    return sentences
