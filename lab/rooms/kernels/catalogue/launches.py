"""Every launch of one rank, with its owner, geometry, phase and signature."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from lab.rooms.kernels.catalogue.classes import class_of_launch
from lab.rooms.kernels.catalogue.identity import sig_id_of
from lab.rooms.kernels.catalogue.ops import OpBook
from lab.rooms.kernels.catalogue.rank import KINDS, RankData
from lab.rooms.kernels.schema import Launch

GEOMETRY = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "smem_bytes", "regs", "bytes")
TIMES = ("ts_ns", "dur_ns", "device", "stream", "correlation")


def launches_of(rank: RankData, book: OpBook, zero_ns: int) -> list[Launch]:
    """Every launch of a rank, or of the part that was asked for, by time; launches with the same `sig_id` are
    the same."""
    columns = _columns(rank)
    order = np.argsort(columns["ts_ns"], kind="stable")
    order = order[rank.kept[order]]
    phases = rank.marks.phases
    found = []
    for index in order.tolist():
        record = book.own(int(rank.owner[index])) if rank.owner[index] >= 0 else None
        mark, name, kind = int(rank.mark[index]), columns["name"][index], columns["kind"][index]
        sizes = tuple(int(columns[one][index]) for one in GEOMETRY)
        op = record.name if record else ""
        launch = Launch(
            rank=rank.rank,
            device=int(columns["device"][index]),
            stream=int(columns["stream"][index]),
            ts_us=(int(columns["ts_ns"][index]) - zero_ns) / 1000,
            dur_us=int(columns["dur_ns"][index]) / 1000,
            name=name,
            kind=kind,
            class_=_class(name, op, kind, columns["coll"][index]),
            grid=(sizes[0], sizes[1], sizes[2]),
            block=(sizes[3], sizes[4], sizes[5]),
            smem_bytes=sizes[6],
            regs=sizes[7],
            bytes=sizes[8],
            op_id=int(rank.owner[index]),
            coll=columns["coll"][index],
            phase=phases[mark] if mark >= 0 else "",
            forward=mark,
            correlation=int(columns["correlation"][index]),
            row=int(rank.rows[index]),
            op_rule=rank.op_rule[index],
            layer_rule="none",
        )
        key: tuple[Any, ...] = (
            name,
            kind,
            sizes,
            op,
            record.overload if record else None,
            book.args_key(record),
        )
        key = (*key, launch.phase)
        if rank.on_gpu and rank.replayed is not None and rank.replayed.inside[index]:
            launch.layer_rule = rank.replayed.layer_rule[index]
            launch.layer, launch.confidence = rank.replayed.layer[index], rank.replayed.confidence[index]
            key = (*key, launch.op_rule, launch.layer_rule, launch.confidence)
        elif record and rank.layers and rank.layers[launch.op_id]:
            launch.layer, launch.layer_rule = rank.layers[launch.op_id], launch.op_rule
        if rank.compiled is not None and rank.compiled.hashes[index]:
            launch.kernel_hash = rank.compiled.hashes[index]
            key = (*key, launch.kernel_hash)
        launch.sig_id = sig_id_of(key)
        found.append(launch)
    return found


@lru_cache(maxsize=1 << 16)
def _class(name: str, op: str, kind: str, coll: str) -> str:
    return "comm" if coll else class_of_launch(name, op, kind)


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
    return {
        **{name: getattr(kernels, name) for name in (*TIMES, *GEOMETRY)},
        "name": trace.text(kernels.name_id),
        "kind": [KINDS[kind] for kind in kernels.kind.tolist()],
        "coll": coll,
    }
