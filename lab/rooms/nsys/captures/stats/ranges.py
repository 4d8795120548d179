"""Time of NVTX ranges, on the host and projected onto the GPU."""

from __future__ import annotations

import numpy as np

from lab.recordings.capture import START_END, Capture
from lab.recordings.projection import Projection
from lab.rooms.nsys.captures.stats.table import (
    Report,
    as_text,
    by_total,
    distinct_codes,
    grouped,
    rounded,
    share_table,
)


def range_labels(capture: Capture) -> np.ndarray:
    """nsys' name (n,) of each range: `domain:text`, the default domain being empty."""
    texts, domains = capture.text(capture.ranges.text_id), capture.text(capture.ranges.domain)
    labels: np.ndarray = domains + ":" + texts
    return labels


def range_styles(capture: Capture) -> np.ndarray:
    styles: np.ndarray = np.where(capture.ranges.kind == START_END, "StartEnd", "PushPop").astype(object)
    return styles


def range_sum(name: str, projection: Projection) -> Report:
    capture = projection.capture
    labels, styles = range_labels(capture), range_styles(capture)
    style = {"nvtx_pushpop_sum": "PushPop", "nvtx_startend_sum": "StartEnd"}.get(name)
    counts = np.ones(len(labels), dtype=bool) if projection.part is None else projection.part.ranges
    keep = np.flatnonzero(counts & (styles == style) if style else counts)
    ranges, labels, styles = capture.ranges.take(keep), labels[keep], styles[keep]
    groups = grouped(ranges.end_ns - ranges.start_ns, distinct_codes(labels), distinct_codes(styles))
    shown = ["Range"] if style else ["Style", "Range"]

    def label(group: int) -> list[str]:
        row = groups.first[group]
        return [styles[row], labels[row]][-len(shown) :]

    return share_table(name, "Instances", shown, groups, label)


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
    labels, styles = range_labels(capture)[rows], range_styles(capture)[rows]
    span = instances.last_ns[rows] - instances.first_ns[rows]
    groups = grouped(span, distinct_codes(labels), distinct_codes(styles))
    host = capture.ranges.end_ns[rows] - capture.ranges.start_ns[rows]
    sums = {
        key: np.bincount(groups.of_row, values)
        for key, values in {
            "host": host,
            "ops": instances.num_ops[rows],
            "level": np.maximum(instances.level[rows], 0),
            "children": children[rows],
        }.items()
    }

    def label(group: int) -> list[str]:
        return [labels[groups.first[group]], styles[groups.first[group]]]

    shown = []
    for group in by_total(groups, label):
        count = groups.count[group]
        means = [rounded(sums[key][group] / count, 1) for key in ("ops", "level", "children")]
        figures = [str(groups.total[group]), str(int(sums["host"][group])), str(count), *groups.spread(group)]
        shown.append([*label(group), *figures, str(int(sums["ops"][group])), *means])
    header = [
        "Range",
        "Style",
        "Total Proj Time (ns)",
        "Total Range Time (ns)",
        "Range Instances",
        "Proj Avg (ns)",
        "Proj Med (ns)",
        "Proj Min (ns)",
        "Proj Max (ns)",
        "Proj StdDev (ns)",
        "Total GPU Ops",
        "Avg GPU Ops",
        "Avg Range Lvl",
        "Avg Num Child",
    ]
    return Report(name, header, shown)


def projected_trace(name: str, projection: Projection) -> Report:
    capture, instances = projection.capture, projection.instances
    ranges = capture.ranges
    rows, children = _projected_rows(projection)
    labels, styles = range_labels(capture), range_styles(capture)
    ids = range_ids(capture)
    shown = []
    for row in rows.tolist():
        stack = _stack(instances.parent, row)
        shown.append(
            [
                labels[row],
                instances.first_ns[row],
                instances.last_ns[row] - instances.first_ns[row],
                ranges.start_ns[row],
                ranges.end_ns[row] - ranges.start_ns[row],
                styles[row],
                ranges.pid[row],
                ranges.tid[row],
                instances.num_ops[row],
                max(int(instances.level[row]), 0),
                children[row],
                ids[row],
                ids[stack[-2]] if len(stack) > 1 else "",
                "".join(f":{ids[one]}" for one in stack),
            ]
        )
    header = [
        "Name",
        "Projected Start (ns)",
        "Projected Duration (ns)",
        "Orig Start (ns)",
        "Orig Duration (ns)",
        "Style",
        "PID",
        "TID",
        "NumGPUOps",
        "Lvl",
        "NumChild",
        "RangeId",
        "ParentId",
        "RangeStack",
    ]
    return Report(name, header, as_text(shown))


def range_ids(capture: Capture) -> np.ndarray:
    """nsys' id (n,) of each range: its row in NVTX_EVENTS, otherwise its position in the capture, from 1."""
    own = capture.ranges.row
    ids: np.ndarray = np.where(own >= 0, own, np.arange(len(own)) + 1)
    return ids


def _stack(parent: np.ndarray, row: int) -> list[int]:
    stack = [row]
    while parent[stack[-1]] >= 0:
        stack.append(int(parent[stack[-1]]))
    return stack[::-1]
