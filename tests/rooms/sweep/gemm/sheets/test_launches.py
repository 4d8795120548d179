"""Which op launched which kernel."""

from __future__ import annotations

from lab.recordings.kineto import read_kineto
from lab.rooms.sweep.gemm.sheets.launches import launches
from tests.tracegen import TraceWriter


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
