"""The reports that add up: kernels, calls, copies and ranges by name, and kernels by range or by call."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal

import numpy as np

from lab.core.words import inert, plural
from lab.recordings.capture import COPY_KINDS, MEMCPY, MEMSET, START_END, Capture
from lab.recordings.projection import Projection
from lab.recordings.tables import Table
from lab.stats import robust
from lab.stats.columns import grouped_rows

_VERSION = re.compile(r"_v\d{4}$")  # nsys strips versions of four digits only
SPREAD = ("Avg (ns)", "Med (ns)", "Min (ns)", "Max (ns)", "StdDev (ns)")


@dataclass(frozen=True)
class Report:
    """One table: its columns by heading, each cell as nsys prints it. problems: what is left out."""

    columns: dict[str, list[str]]
    problems: tuple[str, ...] = ()

    def csv(self) -> str:
        """The report as nsys' CSV: lines end in a newline, quotes where a name needs them."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        rows = zip(*self.columns.values(), strict=True)
        writer.writerows([cell if cell[:1].isdigit() else inert(cell) for cell in row] for row in rows)
        return text.getvalue()


@dataclass(frozen=True)
class Groups:
    """Rows (n,) with equal keys, in the order of the keys: the first row (g,) of each group, the group of
    each row (n,)."""

    first_row: np.ndarray
    of_row: np.ndarray

    def figures(self, values: np.ndarray, rows: np.ndarray | slice = slice(None)) -> Figures:
        """Figures of integers (n,) per group, over the rows that count."""
        return Figures(robust.grouped(values[rows], self.of_row[rows], len(self.first_row)))


@dataclass(frozen=True)
class Figures:
    """Figures (g,) of the values in each group, by the names of `robust.grouped`."""

    by_name: dict[str, np.ndarray]

    @property
    def total(self) -> np.ndarray:
        return self.by_name["sum"].astype(np.int64)

    def by_total(self) -> np.ndarray:
        """The groups, the largest total first, equal ones in the order of their keys."""
        return np.argsort(-self.total, kind="stable")

    def counts(self, order: np.ndarray) -> list[str]:
        return numbers(self.by_name["count"][order])

    def spread(
        self, order: np.ndarray, heads: Iterable[str] = SPREAD, digits: int = 1, unit: int = 1
    ) -> dict[str, list[str]]:
        """Average, median, minimum, maximum and sample deviation (0 for one value), in `unit`; the extremes
        without digits for 1."""
        columns = {}
        for head, name in zip(heads, ("mean", "median", "min", "max", "std"), strict=True):
            values = self.by_name[name][order] / unit
            is_whole = unit == 1 and name in ("min", "max")
            columns[head] = fixed(
                np.nan_to_num(values) if name == "std" else values, 0 if is_whole else digits
            )
        return columns


def grouped(*keys: np.ndarray) -> Groups:
    """Group rows by the columns (n,) of `keys`."""
    return Groups(*grouped_rows(keys))


def labelled(text_of: Callable[..., str], *keys: np.ndarray) -> np.ndarray:
    """`text_of` the keys of each row (n,), asked once for equal ones."""
    groups = grouped(*keys)
    texts = [text_of(*key) for key in zip(*(key[groups.first_row].tolist() for key in keys), strict=True)]
    labels: np.ndarray = np.array(texts, dtype=object)[groups.of_row]
    return labels


def rounded(value: float, digits: int) -> str:
    """Rounds a half up, as SQL's ROUND does; Python's own formatting rounds an exact half to even."""
    return str(Decimal(float(value)).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))


def fixed(values: np.ndarray, digits: int) -> list[str]:
    """Each number (n,) with these digits, "" for NaN."""
    return ["" if value != value else rounded(value, digits) for value in values.tolist()]


def numbers(values: np.ndarray) -> list[str]:
    """Each whole number (n,) as text."""
    return list(map(str, values.tolist()))


def recorded_numbers(values: np.ndarray) -> list[str]:
    """The same, "" for what was not recorded."""
    return ["" if value < 0 else str(value) for value in values.tolist()]


def megabytes(sizes: np.ndarray) -> list[str]:
    """Bytes (n,) as MB with three digits, "" for what was not recorded."""
    return list(labelled(lambda size: rounded(size / 1e6, 3) if size >= 0 else "", sizes))


def kernel_sum(projection: Projection) -> Report:
    ops = projection.capture.ops.where(projection.capture.kernels)
    return _time_sum(ops, "Instances", {"Name": projection.capture.text(ops.name_id)})


def call_sum(projection: Projection, *, of_os: bool = False) -> Report:
    """CUDA's calls, or those of the OS runtime."""
    capture, part, table = projection.capture, projection.part, "osrt" if of_os else "api"
    calls: Table = getattr(capture, table)
    calls = calls if part is None else calls.where(getattr(part, table))
    names = capture.text(calls.name_id) if of_os else api_names(capture, calls.name_id)
    return _time_sum(calls, "Num Calls", {"Name": names})


def memory_time(projection: Projection) -> Report:
    ops, names = _memory_ops(projection.capture)
    return _time_sum(ops, "Count", {"Operation": names})


def range_sum(projection: Projection, *, only_push_pop: bool = False) -> Report:
    capture = projection.capture
    mask = np.ones(len(capture.ranges), dtype=bool) if projection.part is None else projection.part.ranges
    rows = np.flatnonzero(mask & (capture.ranges.kind != START_END) if only_push_pop else mask)
    labels = {} if only_push_pop else {"Style": range_styles(capture)[rows]}
    labels["Range"] = range_labels(capture)[rows]
    return _time_sum(capture.ranges.take(rows), "Instances", labels)


def _time_sum(rows: Table, counted: str, labels: dict[str, np.ndarray]) -> Report:
    """Time (%), Total Time (ns), a count, the spread, labels: by total time, largest first."""
    groups = grouped(*labels.values())
    times = groups.figures(rows.dur_ns)
    order = times.by_total()
    total_ns, first_row = times.total[order], groups.first_row[order]
    return Report(
        {
            "Time (%)": fixed(100 * total_ns / (total_ns.sum() or 1), 1),
            "Total Time (ns)": numbers(total_ns),
            counted: times.counts(order),
            **times.spread(order),
            **{head: texts[first_row].tolist() for head, texts in labels.items()},
        }
    )


def memory_size(projection: Projection) -> Report:
    ops, names = _memory_ops(projection.capture)
    groups = grouped(names)
    sizes = groups.figures(np.maximum(ops.bytes, 0))
    order = sizes.by_total()
    return Report(
        {
            "Total (MB)": fixed(sizes.total[order] / 1e6, 3),
            "Count": sizes.counts(order),
            **sizes.spread(order, [head.replace("ns", "MB") for head in SPREAD], 3, 1_000_000),
            "Operation": names[groups.first_row[order]].tolist(),
        }
    )


def _memory_ops(capture: Capture) -> tuple[Table, np.ndarray]:
    rows = np.flatnonzero(np.isin(capture.ops.kind, (MEMCPY, MEMSET)))
    return capture.ops.take(rows), operation_names(capture)[rows]


def api_names(capture: Capture, name_id: np.ndarray) -> np.ndarray:
    """nsys' name of each API call (n,) by its string id."""
    return labelled(lambda index: _VERSION.sub("", capture.name(index)), name_id)


def operation_names(capture: Capture) -> np.ndarray:
    """nsys' name (n,) of each copy and fill (HIP for CUDA on ROCm); a kernel's own name for a kernel."""
    maker = "HIP" if capture.collector in ("rocpd", "rpd", "rocprofv3") else "CUDA"

    def text(kind: int, copy_kind: int, name_id: int) -> str:
        if kind == MEMSET:
            return f"[{maker} memset]"
        if kind == MEMCPY and copy_kind in COPY_KINDS:
            return f"[{maker} memcpy {COPY_KINDS[copy_kind]}]"
        return capture.name(name_id)

    return labelled(text, capture.ops.kind, capture.ops.copy_kind, capture.ops.name_id)


def range_labels(capture: Capture) -> np.ndarray:
    """nsys' name (n,) of each range: `domain:text`, the default domain being empty."""
    ranges = capture.ranges
    return labelled(
        lambda domain, text: f"{capture.name(domain)}:{capture.name(text)}", ranges.domain, ranges.text_id
    )


def range_styles(capture: Capture) -> np.ndarray:
    return labelled(lambda kind: "StartEnd" if kind == START_END else "PushPop", capture.ranges.kind)


def projected_rows(projection: Projection) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the ranges that launched anything, by projected start; and how many such children each has."""
    instances = projection.instances
    rows = np.flatnonzero(instances.num_ops > 0)
    rows = rows[np.lexsort((rows, instances.level[rows], instances.first_ns[rows]))]
    children = np.zeros(len(instances), dtype=np.int64)
    up = instances.parent[rows]
    np.add.at(children, up[up >= 0], 1)
    return rows, children[rows]


def projected_sum(projection: Projection) -> Report:
    instances, (rows, children) = projection.instances, projected_rows(projection)
    labels, styles = range_labels(projection.capture)[rows], range_styles(projection.capture)[rows]
    groups = grouped(labels, styles)
    times = groups.figures(instances.last_ns[rows] - instances.first_ns[rows])
    order = times.by_total()
    level, num_ops = np.maximum(instances.level[rows], 0), instances.num_ops[rows]
    host_ns, ops, levels, below = (
        np.bincount(groups.of_row, values)[order]
        for values in (projection.capture.ranges.dur_ns[rows], num_ops, level, children)
    )
    count, first_row = times.by_name["count"][order], groups.first_row[order]
    return Report(
        {
            "Range": labels[first_row].tolist(),
            "Style": styles[first_row].tolist(),
            "Total Proj Time (ns)": numbers(times.total[order]),
            "Total Range Time (ns)": fixed(host_ns, 0),
            "Range Instances": numbers(count),
            **times.spread(order, [f"Proj {head}" for head in SPREAD]),
            "Total GPU Ops": fixed(ops, 0),
            "Avg GPU Ops": fixed(ops / count, 1),
            "Avg Range Lvl": fixed(levels / count, 1),
            "Avg Num Child": fixed(below / count, 1),
        }
    )


def range_kernel_sum(projection: Projection) -> Report:
    """Kernels by range, thread and name; those of no range stand under their launching thread."""
    capture = projection.capture
    op, row = _kernel_range_pairs(projection)
    labels, styles = (np.append(texts, "")[row] for texts in (range_labels(capture), range_styles(capture)))
    launch_tid = np.append(capture.api.tid, -1)[projection.ops.api]
    tid = np.where(row >= 0, np.append(capture.ranges.tid, -1)[row], launch_tid[op])
    pid, kernel = capture.ops.pid[op], capture.text(capture.ops.name_id[op])
    thread = [labels, styles, pid, tid]
    groups = grouped(*thread, kernel)
    times = groups.figures(capture.ops.dur_ns[op])
    first_of_pair = grouped(groups.of_row, row).first_row
    in_range = first_of_pair[row[first_of_pair] >= 0]
    instances = np.bincount(groups.of_row[in_range], minlength=len(groups.first_row))
    order = np.lexsort((-times.total, grouped(*(key[groups.first_row] for key in thread)).of_row))
    first_row = groups.first_row[order]
    columns = {
        "NVTX Range": labels[first_row].tolist(),
        "Style": styles[first_row].tolist(),
        "PID": numbers(pid[first_row]),
        "TID": recorded_numbers(tid[first_row]),
        "NVTX Inst": numbers(instances[order]),
        "Kern Inst": times.counts(order),
        "Total Time (ns)": numbers(times.total[order]),
        **times.spread(order),
        "Kernel Name": kernel[first_row].tolist(),
    }
    return Report(columns, _unattributed_note(projection))


def _kernel_range_pairs(projection: Projection) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of a kernel (row of `ops`) and a range that it counts in; -1 once where there is none."""
    kernels = np.flatnonzero(projection.capture.kernels)
    in_loose = projection.capture.kernels[projection.loose.op]
    ops, rows = [projection.loose.op[in_loose]], [projection.loose.range[in_loose]]
    for start in (projection.ops.range, projection.ops.inherited):
        op, row = kernels, start[kernels]
        while len(op := op[row >= 0]):
            row = row[row >= 0]
            ops.append(op)
            rows.append(row)
            row = projection.instances.parent[row]
    alone = np.setdiff1d(kernels, np.concatenate(ops))
    return np.concatenate([*ops, alone]), np.concatenate([*rows, np.full(len(alone), -1)])


def execution_sum(projection: Projection) -> Report:
    """Kernels by launching thread, call and name: times in all, of the call, in the queue, of the kernel."""
    capture = projection.capture
    rows = np.flatnonzero(capture.kernels & (projection.ops.api >= 0))
    ops, api = capture.ops.take(rows), capture.api.take(projection.ops.api[rows])
    calls, kernels = api_names(capture, api.name_id), capture.text(ops.name_id)
    groups = grouped(ops.pid, api.tid, ops.device, calls, kernels)
    queued_ns = ops.start_ns - api.end_ns
    times = {
        "T": groups.figures(np.maximum(ops.end_ns, api.end_ns) - api.start_ns),
        "A": groups.figures(api.dur_ns),
        "Q": groups.figures(queued_ns, queued_ns > 0),
        "K": groups.figures(ops.dur_ns),
    }
    order = np.lexsort((groups.first_row, -times["T"].by_name["mean"]))
    first_row = groups.first_row[order]
    columns = {
        "PID": numbers(ops.pid[first_row]),
        "TID": numbers(api.tid[first_row]),
        "DevId": numbers(ops.device[first_row]),
        "Count": times["T"].counts(order),
        "QCount": times["Q"].counts(order),
    }
    for letter, figures in times.items():
        columns |= figures.spread(order, [letter + head for head in SPREAD])
    columns |= {"API Name": calls[first_row].tolist(), "Kernel Name": kernels[first_row].tolist()}
    return Report(columns, _unattributed_note(projection))


def _unattributed_note(projection: Projection) -> tuple[str, ...]:
    lost = int(((projection.ops.api < 0) & projection.capture.kernels).sum())
    return (f"{plural(lost, 'kernel')} without a recorded API call",) if lost else ()
