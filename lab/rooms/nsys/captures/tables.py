"""The tables of one recording, one per CSV file; every row names its process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

import numpy as np
import pandas as pd

from lab.recordings.capture import Capture
from lab.recordings.gantt.bars import FAMILIES, LABELS, Bars
from lab.recordings.integrity.words import bound, busy_and_idle
from lab.recordings.lacks import AXES, Axis
from lab.recordings.names import CLASSES, short_name
from lab.recordings.processes import process_label
from lab.recordings.views import row_classes
from lab.rooms.nsys.captures.summary import Summary


def recording_tables(capture: Capture, per_process: Sequence[Summary]) -> dict[str, pd.DataFrame]:
    """Tables by the name of their CSV; every row names its process."""
    tables = {}
    makers = {
        "phases": _phase_rows,
        "classes": _class_rows,
        "gpus": _gpu_rows,
        "gpu_metrics": _metric_rows,
        "unified_memory": _traffic_rows,
    }
    for name, rows_of in makers.items():
        rows = [{"process": process.label, **row} for process in per_process for row in rows_of(process)]
        if rows:
            tables[name] = pd.DataFrame(rows)
    return tables | {
        "kernels": _kernel_table(capture),
        "integrity": _integrity_table(capture),
        "processes": _process_table(capture),
    }


def _path_text(summary: Summary, path: Sequence[str]) -> str:
    return "/".join(path) or ("step" if summary.steps else "the whole recording")


def _phase_rows(summary: Summary) -> list[dict[str, Any]]:
    rows = []
    for phase in summary.phases:
        is_range = bool(phase.path or summary.steps)
        row = {
            "phase": _path_text(summary, phase.path),
            "instances_per_step": phase.instances_per_step if is_range else None,
            "kernels": phase.launches,
            "kernel_ms": phase.kernel_ms,
            "kernel_sd_ms": phase.kernel_sd_ms if len(summary.steps) > 1 else None,
            "busy_ms": phase.busy_ms,
            "span_ms": phase.span_ms,
            "host_ms": phase.host_ms if is_range else None,
            "share_percent": None if phase.share is None else 100 * phase.share,
            "bound": bound(summary.lacks),
        }
        rows.append(row)
    return rows


def _class_rows(summary: Summary) -> list[dict[str, Any]]:
    lost = bound(summary.lacks, "gpu")
    names = ("class", "kernels", "kernel_ms", "share_percent", "bound")
    return [
        dict(zip(names, (kind.name, kind.kernels, kind.kernel_ms, 100 * kind.share, lost), strict=True))
        for kind in summary.classes
    ]


def _gpu_rows(summary: Summary) -> list[dict[str, Any]]:
    names = ("gpu", "name", "busy_ms", "idle_ms", "longest_gap_ms", "warmup_left_out")
    lost = busy_and_idle(summary.lacks)
    return [{**dict(zip(names, astuple(gpu), strict=True)), "bound": lost} for gpu in summary.gpus]


def _metric_rows(summary: Summary) -> list[dict[str, Any]]:
    metrics = summary.gpu_metrics or {"ranges": [], "kernels": []}
    ranges = ({"of": "range", "name": _path_text(summary, row["path"]), **row} for row in metrics["ranges"])
    return _without_path([*ranges, *({"of": "kernel", **row} for row in metrics["kernels"])])


def _traffic_rows(summary: Summary) -> list[dict[str, Any]]:
    if (memory := summary.unified_memory) is None:
        return []
    per = "step" if summary.steps else "recording"
    ranges = ({"phase": _path_text(summary, row["path"]), "per": per, **row} for row in memory["ranges"])
    return _without_path([*ranges, {"phase": "the whole recording", "per": "recording", **memory["in_all"]}])


def _without_path(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "path"} for row in rows]


def _integrity_table(capture: Capture) -> pd.DataFrame:
    """What the recording lacks; with its columns also where that is nothing."""
    columns = ["axis", "place", "rule", "process", "missing", "of", "share_percent", "proven", "what"]
    rows = []
    for lack in capture.lacks:
        process, share = _process_of(capture, lack.process), None if lack.share is None else 100 * lack.share
        counts = process, lack.n, lack.of, share
        rows.append((lack.axis, lack.place, lack.rule, *counts, not lack.unknown, lack.text))
    return pd.DataFrame(rows, columns=columns)


def _process_of(capture: Capture, index: int) -> str:
    return process_label(capture.processes[index], index) if 0 <= index < len(capture.processes) else "all"


def _kernel_table(capture: Capture) -> pd.DataFrame:
    """Every kernel of every process by name and class, costliest first. Launches of one name by different ops
    may be of different classes."""
    ops, bounds = capture.ops.where(capture.kernels), _bounds(capture)
    columns = {
        "process": ops.process,
        "name": ops.name_id,
        "class": row_classes(capture)[capture.kernels],
        "ns": ops.dur_ns,
    }
    keys = ["process", "name", "class"]
    groups = pd.DataFrame(columns).groupby(keys)["ns"].agg(["size", "sum"]).reset_index()
    names = [capture.name(index) or "(no name recorded)" for index in groups["name"]]
    processes, counts, dur_ms = groups["process"], groups["size"], groups["sum"] / 1e6
    table = pd.DataFrame(
        {
            "process": [_process_of(capture, index) for index in processes],
            "kernel": [short_name(name) for name in names],
            "class": [CLASSES[index] for index in groups["class"]],
            "launches": counts,
            "kernel_ms": dur_ms,
            "mean_us": 1000 * dur_ms / counts,
            "name": names,
            "bound": [bounds[index] for index in processes],
        }
    )
    process_ms = table.groupby("process")["kernel_ms"].transform("sum")
    table.insert(6, "share_percent", 100 * table["kernel_ms"] / process_ms.where(process_ms > 0))
    return table.sort_values(["process", "kernel_ms"], ascending=[True, False], kind="stable")


def _process_table(capture: Capture) -> pd.DataFrame:
    """A row per process: rows of each table, and when its GPU operations began and ended."""
    rows, bounds = [], _bounds(capture, *AXES)
    for index in range(len(capture.processes)):
        ops = capture.ops.where(capture.ops.process == index)
        row = {
            "process": _process_of(capture, index),
            "gpu_operations": len(ops),
            "api_calls": int((capture.api.process == index).sum()),
            "ranges": int((capture.ranges.process == index).sum()),
            "span_ms": (int(ops.end_ns.max()) - int(ops.start_ns.min())) / 1e6 if len(ops) else None,
            "bound": bounds[index],
        }
        rows.append(row)
    return pd.DataFrame(rows)


def _bounds(capture: Capture, *axes: Axis) -> dict[int, str]:
    """How to read counts and times of each process that rest on `axes` (the GPU's if none is named), by its
    index; of -1, those of no process."""
    return {
        index: bound([lack for lack in capture.lacks if lack.process in (-1, index)], *(axes or ("gpu",)))
        for index in range(-1, len(capture.processes))
    }


def bar_table(bars: Bars) -> pd.DataFrame:
    """One row per bar of the chart, with all that the chart knows of it."""
    families = np.array([name for name, _, _ in FAMILIES], dtype=object)
    texts = np.array([*bars.texts, ""], dtype=object)
    columns = {
        "row": np.array(bars.rows, dtype=object)[bars.row],
        "name": np.array(bars.names, dtype=object)[bars.name],
        "start_ms": bars.start_us / 1000,
        "dur_ms": bars.dur_us / 1000,
        "category": families[bars.family],
        **{name: texts[bars.labels[name]] for name in LABELS if name in bars.labels},
    }
    return pd.DataFrame(columns)
