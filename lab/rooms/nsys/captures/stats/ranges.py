"""Time of NVTX ranges, on the host and projected onto the GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from lab.recordings.capture import START_END, Capture
from lab.recordings.projection import Projection
from lab.rooms.nsys.captures.stats.table import (
    Labels,
    Report,
    by_total,
    grouped,
    labelled,
    numbers,
    rounded,
    share_table,
    table_of,
)


def range_labels(capture: Capture) -> Labels:
    """nsys' name (n,) of each range: `domain:text`, the default domain being empty."""

    def text(domain: int, text_id: int) -> str:
        return f"{capture.name(domain)}:{capture.name(text_id)}"

    return labelled(text, capture.ranges.domain, capture.ranges.text_id)


def range_styles(capture: Capture) -> Labels:
    is_open = (capture.ranges.kind == START_END).astype(np.int64)
    return Labels(np.array(["PushPop", "StartEnd"], dtype=object), is_open)


def range_sum(name: str, projection: Projection) -> Report:
    capture = projection.capture
    labels, styles = range_labels(capture), range_styles(capture)
    style = {"nvtx_pushpop_sum": "PushPop", "nvtx_startend_sum": "StartEnd"}.get(name)
    counts = np.ones(len(labels.codes), dtype=bool) if projection.part is None else projection.part.ranges
    keep = np.flatnonzero(counts & (styles.column() == style) if style else counts)
    ranges, labels, styles = capture.ranges.take(keep), labels.take(keep), styles.take(keep)
    groups = grouped(ranges.end_ns - ranges.start_ns, labels.codes, styles.codes)
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
    labels, styles = range_labels(capture).take(rows), range_styles(capture).take(rows)
    span = instances.last_ns[rows] - instances.first_ns[rows]
    groups = grouped(span, labels.codes, styles.codes)
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
    ids = numbers(range_ids(capture))
    parents, stacks = _stacks(instances.parent, ids)
    start_ns, first_ns = ranges.start_ns[rows], instances.first_ns[rows]
    columns = {
        "Name": range_labels(capture).take(rows).column().tolist(),
        "Projected Start (ns)": numbers(first_ns),
        "Projected Duration (ns)": numbers(instances.last_ns[rows] - first_ns),
        "Orig Start (ns)": numbers(start_ns),
        "Orig Duration (ns)": numbers(ranges.end_ns[rows] - start_ns),
        "Style": range_styles(capture).take(rows).column().tolist(),
        "PID": numbers(ranges.pid[rows]),
        "TID": numbers(ranges.tid[rows]),
        "NumGPUOps": numbers(instances.num_ops[rows]),
        "Lvl": numbers(np.maximum(instances.level[rows], 0)),
        "NumChild": numbers(children[rows]),
        "RangeId": [ids[row] for row in rows.tolist()],
        "ParentId": [ids[parents[row]] if parents[row] >= 0 else "" for row in rows.tolist()],
        "RangeStack": [stacks(row) for row in rows.tolist()],
    }
    return table_of(name, columns)


def range_ids(capture: Capture) -> np.ndarray:
    """nsys' id (n,) of each range: its row in NVTX_EVENTS, otherwise its position in the capture, from 1."""
    own = capture.ranges.row
    ids: np.ndarray = np.where(own >= 0, own, np.arange(len(own)) + 1)
    return ids


def _stacks(parent: np.ndarray, ids: Sequence[str]) -> tuple[list[int], Callable[[int], str]]:
    """The parent of each range; and how to ask for `:outermost:...:own id`, made from the parent's."""
    parents = parent.tolist()
    made: dict[int, str] = {}

    def stack(row: int) -> str:
        above = []
        while row >= 0 and row not in made:
            above.append(row)
            row = parents[row]
        text = made[row] if row >= 0 else ""
        for one in reversed(above):
            made[one] = text = f"{text}:{ids[one]}"
        return text

    return parents, stack
