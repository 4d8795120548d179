"""Every launch of one rank, with its owner, geometry, phase and signature."""

from __future__ import annotations

from typing import Any

import numpy as np

from lab.perfmodel.classes import class_of_launch
from lab.recordings.capture import shared_memory_bytes
from lab.rooms.kernels.catalogue.ops import OpBook, sig_id_of
from lab.rooms.kernels.catalogue.rank import KINDS, RankData
from lab.rooms.kernels.schema import Launch

GEOMETRY = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "smem_bytes", "regs", "bytes")


def launches_of(rank: RankData, book: OpBook, zero_ns: int) -> list[Launch]:
    """Every launch of a rank by time; launches with the same `sig_id` are the same."""
    columns = _columns(rank)
    phases = [*rank.marks.phases, ""]  # mark -1 is outside all
    launches = []
    for place in np.argsort(columns["start_ns"], kind="stable").tolist():
        row = {name: column[place] for name, column in columns.items()}
        op, phase = book.key_of(row["owner"]), phases[row["mark"]]
        sizes = tuple(row["sizes"])
        layer, layer_rule, confidence = _layer(rank, place, row["owner"], row["op_rule"])
        # What makes launches differ; the digest is in files, so the order stays.
        key: tuple[Any, ...] = (row["name"], row["kind"], sizes, *op, phase)
        if row["inside"]:
            key = (*key, row["op_rule"], layer_rule, confidence)
        launches.append(
            Launch(
                rank=rank.rank,
                device=row["device"],
                stream=row["stream"],
                ts_us=(row["start_ns"] - zero_ns) / 1000,
                dur_us=row["dur_ns"] / 1000,
                name=row["name"],
                kind=row["kind"],
                class_="comm" if row["collective"] else class_of_launch(row["name"], op[0], row["kind"]),
                sig_id=sig_id_of((*key, row["kernel_hash"]) if row["kernel_hash"] else key),
                grid=sizes[:3],
                block=sizes[3:6],
                smem_bytes=sizes[6],
                regs=sizes[7],
                bytes=sizes[8],
                op_id=row["owner"],
                coll=row["collective"],
                phase=phase,
                forward=row["mark"],
                correlation=row["correlation"],
                row=row["row"],
                op_rule=row["op_rule"],
                layer=layer,
                layer_rule=layer_rule,
                confidence=confidence,
                kernel_hash=row["kernel_hash"],
            )
        )
    return launches


def _columns(rank: RankData) -> dict[str, list[Any]]:
    """The launches' columns (n,); -1 is what a CPU, whose ops stand for launches, does not have."""
    size = len(rank.rows)
    table = rank.trace.ops if rank.on_gpu else rank.trace.operators.take(rank.rows)
    columns: dict[str, list[Any]] = {
        "start_ns": table.start_ns.tolist(),
        "dur_ns": table.dur_ns.tolist(),
        "name": rank.trace.text(table.name_id).tolist(),
        "owner": rank.owner.tolist(),
        "mark": rank.mark.tolist(),
        "row": rank.rows.tolist(),
        "op_rule": rank.op_rule.tolist(),
        "kernel_hash": [""] * size if rank.compiled is None else rank.compiled.hashes.tolist(),
        "inside": (rank.replayed.inside if rank.on_gpu and rank.replayed else np.zeros(size, bool)).tolist(),
    }
    if not rank.on_gpu:
        unknown = {"device": -1, "correlation": -1, "kind": "cpu_op", "collective": ""}
        sizes = [[-1] * len(GEOMETRY)] * size
        return {
            **columns,
            **{name: [value] * size for name, value in unknown.items()},
            "sizes": sizes,
            "stream": table.tid.tolist(),
        }
    collective_id = np.full(size, -1, dtype=np.int32)
    collective_id[rank.trace.collectives.kernel] = rank.trace.collectives.collective_id
    geometry = {name: getattr(table, name) for name in GEOMETRY if name != "smem_bytes"}
    geometry["smem_bytes"] = shared_memory_bytes(table)
    return {
        **columns,
        "device": table.device.tolist(),
        "stream": table.stream.tolist(),
        "correlation": table.corr.tolist(),
        "kind": [KINDS[kind] for kind in table.kind.tolist()],
        "collective": rank.trace.text(collective_id).tolist(),
        "sizes": np.stack([geometry[name] for name in GEOMETRY], axis=1).tolist(),
    }


def _layer(rank: RankData, place: int, owner: int, op_rule: str) -> tuple[str, str, str]:
    """The layer of a launch, how it was found and how surely: by its graph's capture, else by its op."""
    replayed = rank.replayed
    if rank.on_gpu and replayed is not None and replayed.inside[place]:
        return str(replayed.layer[place]), str(replayed.layer_rule[place]), str(replayed.confidence[place])
    layer = rank.layers[owner] if 0 <= owner < len(rank.layers) else ""
    return layer, op_rule if layer else "none", ""
