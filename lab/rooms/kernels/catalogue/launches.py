"""launches"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from lab.rooms.kernels.catalogue.classes import class_of, class_of_op
from lab.rooms.kernels.catalogue.identity import args_key, sig_id_of
from lab.rooms.kernels.catalogue.ops import OpBook
from lab.rooms.kernels.catalogue.rank import KINDS, RankData
from lab.rooms.kernels.schema import (
    Launch,
)

GEOMETRY = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "smem_bytes", "regs", "bytes")


def launches_of(rank: RankData, book: OpBook, zero_ns: int) -> list[tuple[Launch, tuple[Any, ...]]]:
    """Every launch of a rank by time, with the key that makes it equal to others."""
    columns = _columns(rank)
    order = np.argsort(columns["ts_ns"], kind="stable")
    phases = rank.marks.phases
    found = []
    for at in order.tolist():
        record = book.own(int(rank.owner[at])) if rank.owner[at] >= 0 else None
        mark, name, kind = int(rank.mark[at]), columns["name"][at], columns["kind"][at]
        sizes = tuple(int(columns[one][at]) for one in GEOMETRY)
        op = record.name if record else ""
        launch = Launch(
            rank=rank.rank,
            device=int(columns["device"][at]),
            stream=int(columns["stream"][at]),
            ts_us=(int(columns["ts_ns"][at]) - zero_ns) / 1000,
            dur_us=int(columns["dur_ns"][at]) / 1000,
            name=name,
            kind=kind,
            class_=_class(name, op, kind, columns["coll"][at]),
            grid=(sizes[0], sizes[1], sizes[2]),
            block=(sizes[3], sizes[4], sizes[5]),
            smem_bytes=sizes[6],
            regs=sizes[7],
            bytes=sizes[8],
            op_id=int(rank.owner[at]),
            coll=columns["coll"][at],
            phase=phases[mark] if mark >= 0 else "",
            forward=mark,
            correlation=int(columns["correlation"][at]),
            row=int(rank.rows[at]),
        )
        key = (name, kind, sizes, op, record.overload if record else None, args_key(record), launch.phase)
        launch.sig_id = sig_id_of(key)
        found.append((launch, key))
    return found


@lru_cache(maxsize=1 << 16)
def _class(name: str, op: str, kind: str, coll: str) -> str:
    if coll:
        return "comm"
    if kind == "cpu_op":
        return class_of_op(op)
    return kind if kind != "kernel" else class_of(name, op)


def _columns(rank: RankData) -> dict[str, Any]:
    """The launches' columns (n,), whether they are rows of `kernels` or, on a CPU, of `ops`."""
    if not rank.on_gpu:
        ops = rank.trace.ops.take(rank.rows)
        unknown = np.full(len(ops), -1)
        names = rank.trace.text(ops.name_id)
        return {
            "ts_ns": ops.ts_ns,
            "dur_ns": ops.dur_ns,
            "name": names,
            "device": unknown,
            "stream": ops.tid,
            "kind": ["cpu_op"] * len(ops),
            "coll": [""] * len(ops),
            "correlation": unknown,
            **dict.fromkeys(GEOMETRY, unknown),
        }
    kernels, trace = rank.trace.kernels, rank.trace
    coll = np.full(len(kernels), "", dtype=object)
    coll[trace.collectives.kernel] = trace.text(trace.collectives.collective_id)
    named = {
        name: getattr(kernels, name)
        for name in ("ts_ns", "dur_ns", "device", "stream", "correlation", *GEOMETRY)
    }
    return {
        **named,
        "name": trace.text(kernels.name_id),
        "kind": [KINDS[kind] for kind in kernels.kind.tolist()],
        "coll": coll,
    }
