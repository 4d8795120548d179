"""Time of NVTX ranges, on the host and projected onto the GPU."""

from __future__ import annotations

import numpy as np
import pandas as pd

from lab.recordings.capture import START_END, Capture
from lab.recordings.projection import Projection
from lab.rooms.nsys.captures.stats.table import (
    Report,
    by_total,
    labelled,
    numbers,
    rounded,
    rows_of,
    share_table,
    spread,
    table_of,
)

_PROJECTED = [
    *["Range", "Style", "Total Proj Time (ns)", "Total Range Time (ns)", "Range Instances"],
    *["Proj Avg (ns)", "Proj Med (ns)", "Proj Min (ns)", "Proj Max (ns)", "Proj StdDev (ns)"],
    *["Total GPU Ops", "Avg GPU Ops", "Avg Range Lvl", "Avg Num Child"],
]


def range_labels(capture: Capture) -> np.ndarray:
    """nsys' name (n,) of each range: `domain:text`, the default domain being empty."""

    def text(domain: int, text_id: int) -> str:
        return f"{capture.name(domain)}:{capture.name(text_id)}"

    return labelled(text, capture.ranges.domain, capture.ranges.text_id)


def range_styles(capture: Capture) -> np.ndarray:
    styles: np.ndarray = np.where(capture.ranges.kind == START_END, "StartEnd", "PushPop").astype(object)
    return styles


def range_sum(name: str, projection: Projection) -> Report:
    capture, ranges = projection.capture, projection.capture.ranges
    columns = {
        "ns": ranges.end_ns - ranges.start_ns,
        "Style": range_styles(capture),
        "Range": range_labels(capture),
    }
    frame = pd.DataFrame(columns)
    if projection.part is not None:
        frame = frame[projection.part.ranges]
    if name == "nvtx_pushpop_sum":
        return share_table(name, "Instances", frame[frame["Style"] == "PushPop"], ["Range"])
    return share_table(name, "Instances", frame, ["Style", "Range"])


def _projected_rows(projection: Projection) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the ranges that launched anything, by projected start; and how many such children each has."""
    instances = projection.instances
    rows = np.flatnonzero(instances.num_ops > 0)
    rows = rows[np.lexsort((rows, instances.level[rows], instances.first_ns[rows]))]
    children = np.zeros(len(instances), dtype=np.int64)
    up = instances.parent[rows]
    np.add.at(children, up[up >= 0], 1)
    return rows, children


def projected_sum(name: str, projection: Projection) -> Report:
    capture, instances = projection.capture, projection.instances
    rows, children = _projected_rows(projection)
    by = ["range", "style"]
    frame = pd.DataFrame(
        {
            "range": range_labels(capture)[rows],
            "style": range_styles(capture)[rows],
            "ns": instances.last_ns[rows] - instances.first_ns[rows],
            "host": capture.ranges.end_ns[rows] - capture.ranges.start_ns[rows],
            "ops": instances.num_ops[rows],
            "level": np.maximum(instances.level[rows], 0),
            "children": children[rows],
        }
    )
    table = by_total(frame, by).join(frame.groupby(by)[["host", "ops", "level", "children"]].sum(), on=by)
    lines = [
        [
            *(row.range, row.style, str(row.total), str(row.host), str(row.size), *spread(row), str(row.ops)),
            *(rounded(total / row.size, 1) for total in (row.ops, row.level, row.children)),
        ]
        for row in rows_of(table)
    ]
    return Report(name, _PROJECTED, lines)


def projected_trace(name: str, projection: Projection) -> Report:
    capture, instances = projection.capture, projection.instances
    ranges = capture.ranges
    rows, children = _projected_rows(projection)
    # nsys' id of a range is its row in NVTX_EVENTS; without one, its position in the capture, from 1.
    ids = numbers(np.where(ranges.row >= 0, ranges.row, np.arange(len(ranges)) + 1))
    parents = instances.parent.tolist()
    stacks = {-1: ""}  # row -> `:outermost:...:own id`, made from the parent's

    def stack(row: int) -> str:
        missing = []
        while row not in stacks:
            missing.append(row)
            row = parents[row]
        for inner in reversed(missing):
            stacks[inner] = f"{stacks[parents[inner]]}:{ids[inner]}"
        return stacks[missing[0]] if missing else stacks[row]

    columns = {
        "Name": list(range_labels(capture)[rows]),
        "Projected Start (ns)": numbers(instances.first_ns[rows]),
        "Projected Duration (ns)": numbers(instances.last_ns[rows] - instances.first_ns[rows]),
        "Orig Start (ns)": numbers(ranges.start_ns[rows]),
        "Orig Duration (ns)": numbers(ranges.end_ns[rows] - ranges.start_ns[rows]),
        "Style": list(range_styles(capture)[rows]),
        "PID": numbers(ranges.pid[rows]),
        "TID": numbers(ranges.tid[rows]),
        "NumGPUOps": numbers(instances.num_ops[rows]),
        "Lvl": numbers(np.maximum(instances.level[rows], 0)),
        "NumChild": numbers(children[rows]),
        "RangeId": [ids[row] for row in rows.tolist()],
        "ParentId": [ids[parents[row]] if parents[row] >= 0 else "" for row in rows.tolist()],
        "RangeStack": [stack(row) for row in rows.tolist()],
    }
    return table_of(name, columns)
