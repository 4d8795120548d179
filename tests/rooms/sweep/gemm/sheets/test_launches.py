"""Which op launched which kernel, against plain loops."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lab.recordings.kineto import read_kineto
from lab.recordings.tables import Table
from lab.rooms.sweep.gemm.sheets.launches import launches, parents
from tests.tracegen import TraceWriter

NESTED = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=12
)


@given(NESTED)
def test_the_parent_is_the_op_around_that_began_last_on_the_same_thread(rows):
    rows = sorted(rows, key=lambda row: (row[0], row[1], -row[2]))
    rows = [row for i, row in enumerate(rows) if not any(_crosses(row, other) for other in rows[:i])]
    tid, start, dur = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    ops = Table({"pid": np.zeros_like(tid), "tid": tid, "start_ns": start, "end_ns": start + dur})
    for row, parent in enumerate(parents(ops).tolist()):
        around = [
            i
            for i in range(row)
            if tid[i] == tid[row] and start[i] <= start[row] and start[i] + dur[i] >= start[row] + dur[row]
        ]
        assert parent == max(around, default=-1)


def _crosses(one: tuple[int, int, int], other: tuple[int, int, int]) -> bool:
    if one[0] != other[0]:
        return False
    (a, b), (c, d) = ((start, start + dur) for _, start, dur in (one, other))
    return a < c < b < d or c < a < d < b


def test_a_subtree_holds_the_kernels_of_the_ops_inside_once(tmp_path):
    writer = TraceWriter()
    outer = writer.op("outer", 0, 100)
    inner = writer.op("inner", 10, 20)
    writer.op("silent", 40, 50)
    deep = writer.op("deep", 50, 10)
    for op, call, start in ((outer, 5, 200), (inner, 15, 205), (deep, 55, 300)):
        writer.kernel("k", start, 10, op=op, call_us=call)
    found = launches(read_kineto(writer.write(tmp_path / "t.json")))
    names = found.trace.text(found.ops.name_id).tolist()
    assert dict(zip(names, found.direct_us.tolist(), strict=True)) == {"outer": 10, "inner": 10, "deep": 10}
    assert dict(zip(names, found.subtree_us.tolist(), strict=True)) == {"outer": 25, "inner": 10, "deep": 10}
