"""Every launch of one rank, with its owner, geometry, phase and signature."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lab.perfmodel.classes import class_of_launch
from lab.recordings.capture import shared_memory_bytes
from lab.recordings.tables import Table
from lab.rooms.kernels.catalogue.identity import sig_id_of
from lab.rooms.kernels.catalogue.ops import OpBook, OpKey
from lab.rooms.kernels.catalogue.rank import KINDS, RankData
from lab.rooms.kernels.schema import Launch
from lab.stats.columns import grouped_rows

GEOMETRY = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "smem_bytes", "regs", "bytes")


def launches_of(rank: RankData, book: OpBook, zero_ns: int) -> list[Launch]:
    """Every launch of a rank by time; launches with the same `sig_id` are the same."""
    columns, row = _columns(rank)
    layers = _layers(rank, row, columns["owner"])
    shared, group_of_row = _distinct(rank, book, columns, row, layers)
    names = ("device", "stream", "start_ns", "dur_ns", "owner", "mark", "correlation", "row")
    rows = zip(*(columns[name].tolist() for name in names), layers, group_of_row.tolist(), strict=True)
    return [
        Launch(
            rank=rank.rank,
            device=device,
            stream=stream,
            ts_us=(ts_ns - zero_ns) / 1000,
            dur_us=dur_ns / 1000,
            op_id=owner,
            forward=mark,
            correlation=correlation,
            row=table_row,
            layer=layer,
            **shared[group],
        )
        for device, stream, ts_ns, dur_ns, owner, mark, correlation, table_row, layer, group in rows
    ]


def _columns(rank: RankData) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The launches' columns (n,) by time, and the place (n,) of each among all launches of the rank.

    They are rows of `kernels` or, on a CPU, of `ops`; -1 is what a CPU does not have.
    """
    table = rank.trace.ops if rank.on_gpu else rank.trace.operators.take(rank.rows)
    row = np.argsort(table.start_ns, kind="stable")
    columns = {name: getattr(table, name)[row] for name in ("start_ns", "dur_ns", "name_id")}
    columns |= {"owner": rank.owner[row], "mark": rank.mark[row], "row": rank.rows[row]}
    if not rank.on_gpu:
        unknown = np.full(len(row), -1)
        blank = dict.fromkeys(("device", "correlation", "kind", "collective", *GEOMETRY), unknown)
        return {**columns, **blank, "stream": table.tid[row]}, row
    collective = np.full(len(table), -1, dtype=np.int32)
    collective[rank.trace.collectives.kernel] = rank.trace.collectives.collective_id
    return {
        **columns,
        **{name: column[row] for name, column in _gpu_columns(table).items()},
        "collective": collective[row],
    }, row


def _gpu_columns(ops: Table) -> dict[str, np.ndarray]:
    renamed = {"correlation": ops.corr, "smem_bytes": shared_memory_bytes(ops)}
    names = ("device", "stream", "kind", *GEOMETRY)
    return {name: getattr(ops, name) for name in names if name not in renamed} | renamed


def _layers(rank: RankData, row: np.ndarray, owner: np.ndarray) -> list[str]:
    """The layer of each launch (n,): what the graph's capture says, else that of its op."""
    layers = [""] * len(row)
    if rank.layers:
        of_op = np.array([*rank.layers, ""], dtype=object)
        layers = of_op[np.where(owner < len(rank.layers), owner, -1)].tolist()
    if (inside := _inside(rank, row)) is not None and rank.replayed is not None:
        layers = np.where(inside, rank.replayed.layer[row], np.array(layers, dtype=object)).tolist()
    return layers


def _inside(rank: RankData, row: np.ndarray) -> np.ndarray | None:
    """Mask (n,) of the launches that a graph replayed; None where no graph is known."""
    if not rank.on_gpu or rank.replayed is None:
        return None
    inside: np.ndarray = rank.replayed.inside[row]
    return inside


def _distinct(
    rank: RankData, book: OpBook, columns: dict[str, np.ndarray], row: np.ndarray, layers: list[str]
) -> tuple[list[dict[str, Any]], np.ndarray]:
    """The fields that launches share, per distinct launch, and the index (n,) of each launch there."""
    op, ops = book.keys_of(columns["owner"])
    graph, of_graphs = _of_graphs(rank, row)
    phase, phases = _phases(rank, columns["mark"])
    rule, rules = number_values(rank.op_rule[row].tolist())
    hashes = [""] * len(row) if rank.compiled is None else rank.compiled.hashes[row].tolist()
    hash_id, kernel_hashes = number_values(hashes)
    layered, _ = number_values(map(bool, layers))
    columns = {**columns, "op": op, "graph": graph, "phase": phase, "rule": rule, "hash": hash_id}
    columns["layered"] = layered
    by = ("name_id", "kind", "collective", "op", "graph", "phase", "rule", "hash", "layered", *GEOMETRY)
    first_rows, group_of_row = grouped_rows([columns[name] for name in by])
    values = {name: columns[name][first_rows].tolist() for name in by}
    names, collectives = (rank.trace.text(columns[name][first_rows]) for name in ("name_id", "collective"))
    shared = []
    for group, place in enumerate(first_rows.tolist()):
        launch = _Distinct(
            name=names[group],
            kind=KINDS[values["kind"][group]] if rank.on_gpu else "cpu_op",
            collective=collectives[group],
            sizes=tuple(values[name][group] for name in GEOMETRY),
            op=ops[values["op"][group]],
            phase=phases[values["phase"][group]],
            op_rule=rules[values["rule"][group]],
            graph=of_graphs[values["graph"][group]],
            has_layer=bool(layers[place]),
            kernel_hash=kernel_hashes[values["hash"][group]],
        )
        shared.append(launch.fields())
    return shared, group_of_row


def _phases(rank: RankData, mark: np.ndarray) -> tuple[np.ndarray, list[str]]:
    ids, names = number_values([*rank.marks.phases, ""])  # mark -1 is outside all
    return ids[mark], names


def _of_graphs(rank: RankData, row: np.ndarray) -> tuple[np.ndarray, list[tuple[str, str] | None]]:
    """How layers of replayed launches were found, how surely: index (n,) in the list; None: no replay."""
    inside = _inside(rank, row)
    if inside is None or rank.replayed is None:
        return np.zeros(len(row), dtype=np.int64), [None]
    pairs = zip(rank.replayed.layer_rule[row].tolist(), rank.replayed.confidence[row].tolist(), strict=True)
    return number_values(
        pair if is_inside else None for pair, is_inside in zip(pairs, inside.tolist(), strict=True)
    )


@dataclass(frozen=True)
class _Distinct:
    """What equal launches share. sizes: GEOMETRY; graph: (layer_rule, confidence) of a replayed one."""

    name: str
    kind: str
    collective: str
    sizes: tuple[int, ...]
    op: OpKey
    phase: str
    op_rule: str
    graph: tuple[str, str] | None
    has_layer: bool
    kernel_hash: str

    def fields(self) -> dict[str, Any]:
        """These as fields of a Launch."""
        layer_rule, confidence = self.graph or (self.op_rule if self.has_layer else "none", "")
        return {
            "name": self.name,
            "kind": self.kind,
            "class_": "comm" if self.collective else class_of_launch(self.name, self.op[0], self.kind),
            "sig_id": sig_id_of(self._key()),
            "grid": self.sizes[:3],
            "block": self.sizes[3:6],
            "smem_bytes": self.sizes[6],
            "regs": self.sizes[7],
            "bytes": self.sizes[8],
            "coll": self.collective,
            "phase": self.phase,
            "op_rule": self.op_rule,
            "layer_rule": layer_rule,
            "confidence": confidence,
            "kernel_hash": self.kernel_hash,
        }

    def _key(self) -> tuple[Any, ...]:
        """What makes launches differ; their digest is in files, so its order stays."""
        key: tuple[Any, ...] = (self.name, self.kind, self.sizes, *self.op, self.phase)
        if self.graph is not None:
            key = (*key, self.op_rule, *self.graph)
        return (*key, self.kernel_hash) if self.kernel_hash else key


def number_values(values: Iterable[Any]) -> tuple[np.ndarray, list[Any]]:
    """The index (n,) of each value in the list of the distinct ones, which are in order of appearance."""
    numbers: dict[Any, int] = {}
    ids = [numbers.setdefault(value, len(numbers)) for value in values]
    return np.array(ids, dtype=np.int64), list(numbers)
