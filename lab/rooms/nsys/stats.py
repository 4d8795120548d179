"""The reports of `nsys stats`, computed anew from a capture: the same headers, order and numbers, without nsys.

Names, columns and rules were taken from reports that nsys 2025.3 wrote for a capture, and are held against them row by
row in the tests. Two things are as nsys has them, though one may wish otherwise: a range counts whole captures, warm-up
included, and the throughput of a copy is its bytes times 10^9 divided by its time *without remainder*. Reports of
Kineto traces have the same columns; their kernels are named as Kineto names them.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from lab.core.files import write_atomic
from lab.errors import MissingError, UsageError
from lab.recordings.capture import COPY_KINDS, KERNEL, MEMCPY, MEMORY_KINDS, MEMSET, START_END, Capture
from lab.recordings.projection import Projection

SPREAD = ["Avg (ns)", "Med (ns)", "Min (ns)", "Max (ns)", "StdDev (ns)"]
_VERSION = re.compile(r"_v\d{4}$")  # nsys takes versions of four digits off, and no others


@dataclass(frozen=True)
class Report:
    """One table as text: the header and the rows as nsys prints them. problems: what it had to leave out."""

    name: str
    header: list[str]
    rows: list[list[str]]
    problems: tuple[str, ...] = ()

    def csv(self) -> str:
        """The report as nsys' CSV: lines end in a newline, quotes where a name needs them."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.header)
        writer.writerows(self.rows)
        return text.getvalue()


def report(name: str, projection: Projection) -> Report:
    """One report of a projected capture (`attribution="nsys"` for nsys' own numbers).

    Raises UsageError for a name that is not in REPORTS, MissingError where the capture lacks what the report is about.
    """
    if name not in REPORTS:
        raise UsageError(f"no report is called {name!r}", fix=f"there are: {', '.join(REPORTS)}")
    make, lacks = REPORTS[name]
    if said := lacks(projection.capture):
        raise MissingError(f"{name}: {said}", where=projection.capture.source)
    return make(name, projection)


def available(capture: Capture) -> dict[str, str]:
    """For each report "", or why this capture cannot give it."""
    return {name: lacks(capture) for name, (_, lacks) in REPORTS.items()}


def write_reports(projection: Projection, folder: Path, stem: str) -> list[str]:
    """Write `{stem}_{report}.csv` for every report that the capture can give; sentences about the others."""
    lacking = []
    for name, said in available(projection.capture).items():
        if said:
            lacking.append(f"{name}: {said}")
        else:
            write_atomic(folder / f"{stem}_{name}.csv", report(name, projection).csv())
    return lacking


@dataclass(frozen=True)
class _Groups:
    """Rows (n,) of one kind, grouped: `first`, a row of each group; the figures of its values, each (g,)."""

    first: np.ndarray
    of_row: np.ndarray
    total: np.ndarray
    count: np.ndarray
    avg: np.ndarray
    med: np.ndarray
    min: np.ndarray
    max: np.ndarray
    std: np.ndarray

    def spread(self, group: int, digits: int = 1, scale: int = 1) -> list[str]:
        """Average, median, smallest, largest, standard deviation; the extremes without digits where scale is 1."""
        ends = [self.min[group], self.max[group]]
        shown = [str(end) for end in ends] if scale == 1 else [rounded(end / scale, digits) for end in ends]
        avg, med, std = (rounded(values[group] / scale, digits) for values in (self.avg, self.med, self.std))
        return [avg, med, *shown, std]


def rounded(value: float, digits: int) -> str:
    """A half goes up, as SQL's ROUND has it (Python's own formatting takes an exact half to the even digit)."""
    return str(Decimal(float(value)).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))


def _group(values: np.ndarray, *keys: np.ndarray) -> _Groups:
    """Group values (n,) by the columns of `keys`; the deviation is that of a sample, 0 for a single value."""
    if len(values) == 0:
        none = np.empty(0, dtype=np.int64)
        return _Groups(none, none, none, none, none, none, none, none, none)
    _, first, of_row = np.unique(np.stack(keys, axis=1), axis=0, return_index=True, return_inverse=True)
    of_row = of_row.ravel()
    ordered = values[np.lexsort((values, of_row))]
    count = np.bincount(of_row)
    start = np.cumsum(count) - count
    total = np.add.reduceat(ordered, start)
    avg = total / count
    squares = np.add.reduceat((ordered - np.repeat(avg, count)) ** 2, start)
    return _Groups(
        first=first,
        of_row=of_row,
        total=total,
        count=count,
        avg=avg,
        med=(ordered[start + (count - 1) // 2] + ordered[start + count // 2]) / 2,
        min=ordered[start],
        max=ordered[start + count - 1],
        std=np.sqrt(squares / np.maximum(count - 1, 1)),
    )


def _distinct(texts: np.ndarray) -> np.ndarray:
    """A number (n,) for each text (n,), equal for equal ones."""
    codes: dict[str, int] = {}
    return np.array([codes.setdefault(text, len(codes)) for text in texts], dtype=np.int64)


def _share_table(
    name: str, counted: str, last: Sequence[str], groups: _Groups, labels: Callable[[int], list[str]]
) -> Report:
    """Time (%), Total Time (ns), a count, the spread, labels: by total time, largest first."""
    whole = groups.total.sum()
    rows = []
    for group in _by_total(groups, labels):
        share = 100 * groups.total[group] / whole if whole else 0.0
        figures = [
            rounded(share, 1),
            str(groups.total[group]),
            str(groups.count[group]),
            *groups.spread(group),
        ]
        rows.append(figures + labels(group))
    return Report(name, ["Time (%)", "Total Time (ns)", counted, *SPREAD, *last], rows)


def _by_total(groups: _Groups, labels: Callable[[int], list[str]]) -> list[int]:
    return sorted(range(len(groups.total)), key=lambda group: (-groups.total[group], labels(group)))


def _kernel_sum(name: str, projection: Projection) -> Report:
    capture = projection.capture
    ops = capture.ops.where(capture.kernels)
    groups = _group(ops.end_ns - ops.start_ns, ops.name_id)
    return _share_table(
        name, "Instances", ["Name"], groups, lambda group: [capture.name(ops.name_id[groups.first[group]])]
    )


def _api_sum(name: str, projection: Projection) -> Report:
    capture = projection.capture
    api = capture.api
    names = _api_names(capture)[api.name_id]
    groups = _group(api.end_ns - api.start_ns, _distinct(names))
    return _share_table(name, "Num Calls", ["Name"], groups, lambda group: [names[groups.first[group]]])


def _api_names(capture: Capture) -> np.ndarray:
    return np.array([*(_VERSION.sub("", text) for text in capture.strings), ""], dtype=object)


def operation_names(capture: Capture) -> np.ndarray:
    """nsys' name (n,) of each copy and fill of `ops`; a kernel's own name for a kernel."""
    copies = np.array(
        [*(f"[CUDA memcpy {COPY_KINDS[kind]}]" if kind in COPY_KINDS else "" for kind in range(14)), ""]
    )
    copies = copies.astype(object)
    names = capture.text(capture.ops.name_id)
    kinds = np.clip(capture.ops.copy_kind, -1, 13)
    is_copy = (capture.ops.kind == MEMCPY) & (copies[kinds] != "")
    names = np.where(is_copy, copies[kinds], names)
    return np.where(capture.ops.kind == MEMSET, "[CUDA memset]", names)


def _memory_ops(projection: Projection) -> tuple[np.ndarray, np.ndarray]:
    rows = np.flatnonzero(np.isin(projection.capture.ops.kind, (MEMCPY, MEMSET)))
    return rows, operation_names(projection.capture)[rows]


def _memory_time(name: str, projection: Projection) -> Report:
    rows, names = _memory_ops(projection)
    ops = projection.capture.ops.take(rows)
    groups = _group(ops.end_ns - ops.start_ns, _distinct(names))
    return _share_table(name, "Count", ["Operation"], groups, lambda group: [names[groups.first[group]]])


def _memory_size(name: str, projection: Projection) -> Report:
    rows, names = _memory_ops(projection)
    groups = _group(np.maximum(projection.capture.ops.bytes[rows], 0), _distinct(names))
    shown = []
    for group in _by_total(groups, lambda group: [names[groups.first[group]]]):
        figures = [
            rounded(groups.total[group] / 1e6, 3),
            str(groups.count[group]),
            *groups.spread(group, 3, 1_000_000),
        ]
        shown.append([*figures, names[groups.first[group]]])
    header = [
        "Total (MB)",
        "Count",
        "Avg (MB)",
        "Med (MB)",
        "Min (MB)",
        "Max (MB)",
        "StdDev (MB)",
        "Operation",
    ]
    return Report(name, header, shown)


def range_labels(capture: Capture) -> np.ndarray:
    """nsys' name (n,) of each range: `domain:text`, the default domain being empty."""
    texts, domains = capture.text(capture.ranges.text_id), capture.text(capture.ranges.domain)
    labels: np.ndarray = domains + ":" + texts
    return labels


def _styles(capture: Capture) -> np.ndarray:
    styles: np.ndarray = np.where(capture.ranges.kind == START_END, "StartEnd", "PushPop").astype(object)
    return styles


def _range_sum(name: str, projection: Projection) -> Report:
    capture = projection.capture
    labels, styles = range_labels(capture), _styles(capture)
    keep = np.flatnonzero(styles == "PushPop") if name == "nvtx_pushpop_sum" else np.arange(len(labels))
    ranges, labels, styles = capture.ranges.take(keep), labels[keep], styles[keep]
    groups = _group(ranges.end_ns - ranges.start_ns, _distinct(labels), _distinct(styles))
    shown = ["Range"] if name == "nvtx_pushpop_sum" else ["Style", "Range"]

    def label(group: int) -> list[str]:
        row = groups.first[group]
        return [styles[row], labels[row]][-len(shown) :]

    return _share_table(name, "Instances", shown, groups, label)


def _projected(projection: Projection) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the ranges that launched anything, by projected start; and the children of each range that did, too."""
    instances = projection.instances
    rows = np.flatnonzero(instances.num_ops > 0)
    rows = rows[np.lexsort((rows, instances.level[rows], instances.first_ns[rows]))]
    children = np.zeros(len(instances), dtype=np.int64)
    up = instances.parent[rows]
    np.add.at(children, up[up >= 0], 1)
    return rows, children


def _projected_sum(name: str, projection: Projection) -> Report:
    capture, instances = projection.capture, projection.instances
    rows, children = _projected(projection)
    labels, styles = range_labels(capture)[rows], _styles(capture)[rows]
    span = instances.last_ns[rows] - instances.first_ns[rows]
    groups = _group(span, _distinct(labels), _distinct(styles))
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
    for group in _by_total(groups, label):
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


def _projected_trace(name: str, projection: Projection) -> Report:
    capture, instances = projection.capture, projection.instances
    ranges = capture.ranges
    rows, children = _projected(projection)
    labels, styles = range_labels(capture), _styles(capture)
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
    return Report(name, header, _as_text(shown))


def range_ids(capture: Capture) -> np.ndarray:
    """nsys' id (n,) of each range: its row in NVTX_EVENTS; where there is none, its place in the capture from 1 on."""
    own = capture.ranges.row
    ids: np.ndarray = np.where(own >= 0, own, np.arange(len(own)) + 1)
    return ids


def _stack(parent: np.ndarray, row: int) -> list[int]:
    stack = [row]
    while parent[stack[-1]] >= 0:
        stack.append(int(parent[stack[-1]]))
    return stack[::-1]


def _as_text(rows: Sequence[Sequence[Any]]) -> list[list[str]]:
    return [[str(value) for value in row] for row in rows]


def _pairs(projection: Projection) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of a kernel (row of `ops`) and a range that it counts in; -1 once where there is none."""
    kernels = np.flatnonzero(projection.capture.kernels)
    ops, rows = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    for start in (projection.ops.range, projection.ops.inherited):
        op, at = kernels, start[kernels]
        while len(op := op[at >= 0]):
            at = at[at >= 0]
            ops.append(op)
            rows.append(at)
            at = projection.instances.parent[at]
    in_loose = projection.capture.kernels[projection.loose.op]
    ops.append(projection.loose.op[in_loose])
    rows.append(projection.loose.range[in_loose])
    op, row = np.concatenate(ops), np.concatenate(rows)
    alone = np.setdiff1d(kernels, op)
    return np.concatenate([op, alone]), np.concatenate([row, np.full(len(alone), -1)])


def _range_kernel_sum(name: str, projection: Projection) -> Report:
    capture = projection.capture
    op, row = _pairs(projection)
    labels = np.append(range_labels(capture), "")[row]
    styles = np.append(_styles(capture), "")[row]
    tid = np.where(row >= 0, np.append(capture.ranges.tid, -1)[row], _launch_tid(projection)[op])
    pid, kernel = capture.ops.pid[op], capture.ops.name_id[op]
    dur_ns = capture.ops.end_ns[op] - capture.ops.start_ns[op]
    groups = _group(dur_ns, _distinct(labels), _distinct(styles), pid, tid, kernel)
    distinct = np.unique(np.stack([groups.of_row, row], axis=1), axis=0)
    instances = np.bincount(distinct[:, 0][distinct[:, 1] >= 0], minlength=len(groups.total))
    at = groups.first

    def key(group: int) -> tuple[Any, ...]:
        one = at[group]
        return (labels[one], styles[one], pid[one], tid[one], -groups.total[group], capture.name(kernel[one]))

    shown = []
    for group in sorted(range(len(groups.total)), key=key):
        one = at[group]
        whose = [labels[one], styles[one], str(pid[one]), str(tid[one]) if tid[one] >= 0 else ""]
        figures = [instances[group], groups.count[group], groups.total[group]]
        shown.append([*whose, *map(str, figures), *groups.spread(group), capture.name(kernel[one])])
    header = [
        "NVTX Range",
        "Style",
        "PID",
        "TID",
        "NVTX Inst",
        "Kern Inst",
        "Total Time (ns)",
        *SPREAD,
        "Kernel Name",
    ]
    return Report(name, header, shown, _unattributed(projection))


def _launch_tid(projection: Projection) -> np.ndarray:
    """Thread (n,) that launched each operation, -1 where the call was not recorded."""
    tids: np.ndarray = np.append(projection.capture.api.tid, -1)[projection.ops.api]
    return tids


def _unattributed(projection: Projection) -> tuple[str, ...]:
    lost = (projection.ops.api < 0) & projection.capture.kernels
    if not lost.any():
        return ()
    return (f"{lost.sum()} kernels have no recorded API call",)


def _execution_sum(name: str, projection: Projection) -> Report:
    capture = projection.capture
    rows = np.flatnonzero(capture.kernels & (projection.ops.api >= 0))
    ops, api = capture.ops.take(rows), capture.api.take(projection.ops.api[rows])
    api_names = _api_names(capture)[api.name_id]
    keys = (ops.pid, api.tid, ops.device, _distinct(api_names), ops.name_id)
    queued = ops.start_ns - api.end_ns
    times = {
        "T": np.maximum(ops.end_ns, api.end_ns) - api.start_ns,
        "A": api.end_ns - api.start_ns,
        "Q": queued,
        "K": ops.end_ns - ops.start_ns,
    }
    groups = {letter: _group(values, *keys) for letter, values in times.items()}
    waits = {
        group: queued[(groups["Q"].of_row == group) & (queued > 0)] for group in range(len(groups["T"].total))
    }
    shown = []
    for group in sorted(waits, key=lambda group: (-groups["T"].avg[group], groups["T"].first[group])):
        one, wait = groups["T"].first[group], waits[group]
        count = groups["T"].count[group]
        spread = _group(wait, np.zeros_like(wait)).spread(0) if len(wait) else ["", "", "", "", "0.0"]
        figures = [groups["T"].spread(group), groups["A"].spread(group), spread, groups["K"].spread(group)]
        whose = [ops.pid[one], api.tid[one], ops.device[one], count, len(wait)]
        shown.append(
            [*map(str, whose), *chain.from_iterable(figures), api_names[one], capture.name(ops.name_id[one])]
        )
    header = ["PID", "TID", "DevId", "Count", "QCount", *(letter + key for letter in times for key in SPREAD)]
    return Report(name, [*header, "API Name", "Kernel Name"], shown, _unattributed(projection))


def _gpu_trace(name: str, projection: Projection) -> Report:
    capture = projection.capture
    ops, names = capture.ops, operation_names(capture)
    devices = {(one.pid, one.device): f"{one.name} ({one.device})" for one in capture.devices}
    shown = []
    for row in np.lexsort((ops.end_ns, ops.start_ns)).tolist():
        device = int(ops.device[row])
        known = devices.get((int(ops.pid[row]), device)) or devices.get((-1, device)) or str(device)
        green = ops.green_context[row]
        figures = _geometry(capture, row) if ops.kind[row] == KERNEL else _copied(capture, row)
        where = [
            known,
            str(ops.context[row]),
            str(green) if green > 0 else "",
            str(ops.stream[row]),
            names[row],
        ]
        times = [ops.start_ns[row], ops.end_ns[row] - ops.start_ns[row], ops.corr[row]]
        shown.append([*map(str, times), *figures, *where])
    header = [
        "Start (ns)",
        "Duration (ns)",
        "CorrId",
        "GrdX",
        "GrdY",
        "GrdZ",
        "BlkX",
        "BlkY",
        "BlkZ",
        "Reg/Trd",
        "StcSMem (MB)",
        "DymSMem (MB)",
        "Bytes (MB)",
        "Throughput (MB/s)",
        "SrcMemKd",
        "DstMemKd",
        "Device",
        "Ctx",
        "GreenCtx",
        "Strm",
        "Name",
    ]
    return Report(name, header, shown)


def _geometry(capture: Capture, row: int) -> list[str]:
    ops = capture.ops
    names = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "regs")
    memory = (ops.static_smem_bytes[row], ops.dynamic_smem_bytes[row])
    megabytes = [rounded(size / 1e6, 3) if size >= 0 else "" for size in memory]
    return [*(str(getattr(ops, name)[row]) for name in names), *megabytes, "", "", "", ""]


def _copied(capture: Capture, row: int) -> list[str]:
    ops = capture.ops
    size, dur_ns = int(ops.bytes[row]), int(ops.end_ns[row] - ops.start_ns[row])
    rate = rounded(size * (10**9 // dur_ns) / 1e6, 3) if dur_ns > 0 and size >= 0 else ""
    kinds = [MEMORY_KINDS.get(int(kind), "") for kind in (ops.src_kind[row], ops.dst_kind[row])]
    return [""] * 9 + [rounded(size / 1e6, 3) if size >= 0 else "", rate, *kinds]


def _kernels(capture: Capture) -> str:
    return "" if capture.kernels.any() else "the capture holds no kernels"


def _copies(capture: Capture) -> str:
    return (
        ""
        if np.isin(capture.ops.kind, (MEMCPY, MEMSET)).any()
        else "the capture holds no copies and no fills"
    )


def _calls(capture: Capture) -> str:
    return "" if len(capture.api) else "the capture holds no CUDA API calls"


def _ranges(capture: Capture) -> str:
    return "" if len(capture.ranges) else "the capture holds no ranges"


def _ranges_and_ops(capture: Capture) -> str:
    return _ranges(capture) or ("" if len(capture.ops) else "the capture holds no GPU work")


def _any_op(capture: Capture) -> str:
    return "" if len(capture.ops) else "the capture holds no GPU work"


REPORTS: dict[str, tuple[Callable[[str, Projection], Report], Callable[[Capture], str]]] = {
    "cuda_gpu_kern_sum": (_kernel_sum, _kernels),
    "cuda_api_sum": (_api_sum, _calls),
    "cuda_gpu_mem_time_sum": (_memory_time, _copies),
    "cuda_gpu_mem_size_sum": (_memory_size, _copies),
    "nvtx_sum": (_range_sum, _ranges),
    "nvtx_pushpop_sum": (_range_sum, _ranges),
    "nvtx_gpu_proj_sum": (_projected_sum, _ranges_and_ops),
    "nvtx_gpu_proj_trace": (_projected_trace, _ranges_and_ops),
    "nvtx_kern_sum": (_range_kernel_sum, _kernels),
    "cuda_gpu_trace": (_gpu_trace, _any_op),
    "cuda_kern_exec_sum": (_execution_sum, _kernels),
}
