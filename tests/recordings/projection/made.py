"""Captures made by hand, row by row, and what tests ask of their projections."""

from __future__ import annotations

from lab.recordings.capture import (
    API_COLUMNS,
    OPS_COLUMNS,
    PUSH_POP,
    RANGE_COLUMNS,
    Capture,
    filled,
)
from lab.recordings.projection import RULES
from lab.recordings.tables import KERNEL


def named(name, start, end, *, tid=1, pid=1, **columns):
    """A row of `ranges`; name None: a range without one."""
    return {
        "name": name,
        "start_ns": start,
        "end_ns": end,
        "pid": pid,
        "tid": tid,
        "kind": PUSH_POP,
    } | columns


def number(corr):
    """As recorders count calls: from 1, as 0 is none."""
    return corr + 1 if corr >= 0 else corr


def call(corr, start, end, *, tid=1, pid=1):
    return {"start_ns": start, "end_ns": end, "pid": pid, "tid": tid, "corr": number(corr)}


def kernel(corr, start=1000, end=1010, *, pid=1, **columns):
    return {"start_ns": start, "end_ns": end, "pid": pid, "corr": number(corr), "kind": KERNEL} | columns


def made(ranges=(), calls=(), ops=()):
    strings = sorted({row["name"] for row in ranges} - {None})
    index = {None: -1} | {name: i for i, name in enumerate(strings)}
    ranges = [{"name_id": index[row["name"]], "text_id": index[row["name"]]} | row for row in ranges]
    return Capture(
        source=None,
        collector="nsys",
        ops=_table(OPS_COLUMNS, ops),
        api=_table(API_COLUMNS, calls),
        ranges=_table(RANGE_COLUMNS, ranges),
        strings=strings,
    )


def _table(schema, rows):
    return filled(schema, {name: [row.get(name, -1) for row in rows] for name in schema})


def rules(projection):
    return [RULES[rule] for rule in projection.ops.rule.tolist()]


def paths(projection):
    return ["/".join(projection.path(path)) for path in projection.ops.path.tolist()]


def sums(projection):
    """path -> (kernels, kernel ns) of everything below it."""
    tree = projection.tree
    return {
        "/".join(projection.path(i)): (int(tree.num_kernels[i]), int(tree.kernel_ns[i]))
        for i in range(len(tree))
    }
