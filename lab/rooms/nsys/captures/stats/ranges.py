"""Time of NVTX ranges, on the host and projected onto the GPU."""

from __future__ import annotations

import re

import numpy as np

from lab.recordings.capture import COPY_KINDS, MEMCPY, MEMSET, START_END, Capture
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

_VERSION = re.compile(r"_v\d{4}$")  # nsys strips versions of four digits only


def kernel_sum(name: str, projection: Projection) -> Report:
    capture = projection.capture
    ops = capture.ops.where(capture.kernels)
    names = labelled(capture.name, ops.name_id)
    return _sum_by_name(name, "Instances", "Name", ops.end_ns - ops.start_ns, names)


def api_sum(name: str, projection: Projection) -> Report:
    calls = projection.capture.api
    if projection.part is not None:
        calls = calls.where(projection.part.api)
    names = api_names(projection.capture, calls.name_id)
    return _sum_by_name(name, "Num Calls", "Name", calls.end_ns - calls.start_ns, names)


def os_sum(name: str, projection: Projection) -> Report:
    calls = projection.capture.osrt
    if projection.part is not None:
        calls = calls.where(projection.part.osrt)
    names = labelled(projection.capture.name, calls.name_id)
    return _sum_by_name(name, "Num Calls", "Name", calls.end_ns - calls.start_ns, names)


def memory_time(name: str, projection: Projection) -> Report:
    rows, names = _memory_ops(projection)
    ops = projection.capture.ops.take(rows)
    return _sum_by_name(name, "Count", "Operation", ops.end_ns - ops.start_ns, names)


def _sum_by_name(name: str, counted: str, heading: str, dur_ns: np.ndarray, names: Labels) -> Report:
    groups = grouped(dur_ns, names.codes)
    return share_table(name, counted, [heading], groups, lambda group: [names[groups.first_row[group]]])


def memory_size(name: str, projection: Projection) -> Report:
    rows, names = _memory_ops(projection)
    groups = grouped(np.maximum(projection.capture.ops.bytes[rows], 0), names.codes)
    lines = []
    for group in by_total(groups, lambda group: [names[groups.first_row[group]]]):
        total = rounded(groups.total[group] / 1e6, 3)
        spread = groups.spread(group, 3, 1_000_000)
        lines.append([total, str(groups.count[group]), *spread, names[groups.first_row[group]]])
    spread_heads = [f"{word} (MB)" for word in ("Avg", "Med", "Min", "Max", "StdDev")]
    return Report(name, ["Total (MB)", "Count", *spread_heads, "Operation"], lines)


def _memory_ops(projection: Projection) -> tuple[np.ndarray, Labels]:
    rows = np.flatnonzero(np.isin(projection.capture.ops.kind, (MEMCPY, MEMSET)))
    return rows, operation_names(projection.capture).take(rows)


def api_names(capture: Capture, name_id: np.ndarray) -> Labels:
    """nsys' name of each API call (n,) by its string id."""
    return labelled(lambda index: _VERSION.sub("", capture.name(index)), name_id)


def operation_names(capture: Capture) -> Labels:
    """nsys' name (n,) of each copy and fill (HIP for CUDA on ROCm); a kernel's own name for a kernel."""
    maker = "HIP" if capture.collector in ("rocpd", "rpd", "rocprofv3") else "CUDA"

    def text(kind: int, copy_kind: int, name_id: int) -> str:
        if kind == MEMSET:
            return f"[{maker} memset]"
        if kind == MEMCPY and copy_kind in COPY_KINDS:
            return f"[{maker} memcpy {COPY_KINDS[copy_kind]}]"
        return capture.name(name_id)

    return labelled(text, capture.ops.kind, capture.ops.copy_kind, capture.ops.name_id)


_PROJECTED = [
    *["Range", "Style", "Total Proj Time (ns)", "Total Range Time (ns)", "Range Instances"],
    *["Proj Avg (ns)", "Proj Med (ns)", "Proj Min (ns)", "Proj Max (ns)", "Proj StdDev (ns)"],
    *["Total GPU Ops", "Avg GPU Ops", "Avg Range Lvl", "Avg Num Child"],
]


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
    mask = np.ones(len(capture.ranges), dtype=bool) if projection.part is None else projection.part.ranges
    only_push_pop = name == "nvtx_pushpop_sum"
    rows = np.flatnonzero(mask & (capture.ranges.kind != START_END) if only_push_pop else mask)
    ranges, labels, styles = capture.ranges.take(rows), labels.take(rows), styles.take(rows)
    groups = grouped(ranges.end_ns - ranges.start_ns, labels.codes, styles.codes)
    heads = ["Range"] if only_push_pop else ["Style", "Range"]

    def label(group: int) -> list[str]:
        row = groups.first_row[group]
        return [styles[row], labels[row]][-len(heads) :]

    return share_table(name, "Instances", heads, groups, label)


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
    groups = grouped(instances.last_ns[rows] - instances.first_ns[rows], labels.codes, styles.codes)
    host_ns = np.bincount(groups.of_row, capture.ranges.end_ns[rows] - capture.ranges.start_ns[rows])
    sums = [
        np.bincount(groups.of_row, values)
        for values in (instances.num_ops[rows], np.maximum(instances.level[rows], 0), children[rows])
    ]

    def label(group: int) -> list[str]:
        return [labels[groups.first_row[group]], styles[groups.first_row[group]]]

    lines = []
    for group in by_total(groups, label):
        count = groups.count[group]
        times = [str(groups.total[group]), str(int(host_ns[group])), str(count), *groups.spread(group)]
        means = [rounded(summed[group] / count, 1) for summed in sums]
        lines.append([*label(group), *times, str(int(sums[0][group])), *means])
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
        "Name": range_labels(capture).take(rows).column(),
        "Projected Start (ns)": numbers(instances.first_ns[rows]),
        "Projected Duration (ns)": numbers(instances.last_ns[rows] - instances.first_ns[rows]),
        "Orig Start (ns)": numbers(ranges.start_ns[rows]),
        "Orig Duration (ns)": numbers(ranges.end_ns[rows] - ranges.start_ns[rows]),
        "Style": range_styles(capture).take(rows).column(),
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
