"""The ops of a rank that own launches, described when asked for; what makes two launches the same."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from lab.perfmodel.classes import class_of_launch
from lab.recordings.capture import Capture, shared_memory_bytes
from lab.rooms.kernels.catalogue.rank import KINDS, RankData, mark_of
from lab.rooms.kernels.catalogue.trace_args import args_of
from lab.rooms.kernels.schema import Arg, Launch, OpRecord


@lru_cache(maxsize=1 << 16)
def sig_id_of(key: tuple[Any, ...]) -> str:
    """Twelve hex digits, the same in every process."""
    return hashlib.blake2b(repr(key).encode(), digest_size=6).hexdigest()


def args_key(record: OpRecord) -> str:
    """A digest of the arguments' types, sizes, strides and numbers; where the data lie is not part of it."""
    return _digest(tuple(map(_bare, record.args)))


def _bare(arg: Arg | None) -> Any:
    if arg is None:
        return None
    shape, stride = (None if sizes is None else tuple(sizes) for sizes in (arg.shape, arg.stride))
    return arg.kind, arg.dtype, shape, stride, arg.device, repr(arg.value), tuple(map(_bare, arg.items or ()))


@lru_cache(maxsize=1 << 16)
def _digest(bare: tuple[Any, ...]) -> str:
    return hashlib.blake2b(repr(bare).encode(), digest_size=8).hexdigest()


OpKey = tuple[str, str | None, str]  # name, overload, digest of the arguments
_NO_OP: OpKey = ("", None, "")
_ARGS = ("dims_id", "types_id", "strides_id", "concrete_id")


class OpBook:
    """The ops of one rank. Rows (n,) of `ops` from len(ops) upwards are those that graphs had at capture."""

    def __init__(self, rank: RankData, zero_ns: int) -> None:
        self.rank, self.zero_ns = rank, zero_ns
        self.names = rank.trace.text(rank.trace.operators.name_id)
        self._mark = mark_of(rank.trace.operators.start_ns, rank.marks)
        self._keys: dict[tuple[int, ...], OpKey] = {}
        self._call = _nearest_calls(rank.call, rank.parent)

    def key_of(self, row: int) -> OpKey:
        """What tells the op at `row` from others; -1: none. Ops that only the trace describes share texts."""
        if row < 0:
            return _NO_OP
        key: tuple[int, ...] = (row,)
        if row < len(self.names) and self.rank.call[row] < 0:
            ops = self.rank.trace.operators
            key = tuple(int(getattr(ops, name)[row]) for name in ("name_id", *_ARGS))
        if key not in self._keys:
            record = self.describe(row)
            self._keys[key] = record.name, record.overload, args_key(record)
        return self._keys[key]

    def describe(self, row: int, num_launches: int = 0) -> OpRecord:
        """The record of the op at `row`, which owns so many launches."""
        rank, ops = self.rank, self.rank.trace.operators
        if row >= len(self.names):
            return msgspec.structs.replace(self._borrowed(row), num_launches=num_launches)
        mark, call = int(self._mark[row]), int(rank.call[row])
        recorded = rank.recorded[call] if call >= 0 else None
        return OpRecord(
            rank=rank.rank,
            op_id=row,
            name=str(self.names[row]),
            overload=recorded.overload if recorded else None,
            args=recorded.args if recorded else list(_trace_args(rank.trace, row)),
            parent=int(rank.parent[row]),
            module_path=self.module_of(row),
            phase=rank.marks.phases[mark] if mark >= 0 else "",
            forward=mark,
            external_id=int(ops.external_id[row]),
            rf_id=int(ops.rf_id[row]),
            tid=int(ops.tid[row]),
            ts_us=(int(ops.start_ns[row]) - self.zero_ns) / 1000,
            dur_us=int(ops.dur_ns[row]) / 1000,
            num_launches=num_launches,
            recorded=call,
        )

    def records(self) -> list[OpRecord]:
        """Every op that owns a launch, and the ops around these, by row."""
        owners = self.rank.owner
        rows, counts = np.unique(owners[owners >= 0], return_counts=True)
        launches = dict(zip(rows.tolist(), counts.tolist(), strict=True))
        all_rows = np.union1d(rows, _around(rows[rows < len(self.names)], self.rank.parent))
        return [self.describe(row, launches.get(row, 0)) for row in all_rows.tolist()]

    def module_of(self, row: int) -> str:
        """The module path of the nearest recorded call around the op at `row`, else by its Python stack."""
        if row >= len(self.names):
            return self._borrowed(row).module_path
        if row >= 0 and self._call[row] >= 0:
            return str(self.rank.recorded[self._call[row]].module_path)
        return self.rank.modules[row] if row >= 0 and self.rank.modules else ""

    def modules_of(self, rows: Sequence[int]) -> list[str]:
        """`module_of` each of the rows, which come many times."""
        paths = {row: self.module_of(row) for row in set(rows)}
        return [paths[row] for row in rows]

    def _borrowed(self, row: int) -> OpRecord:
        """The op at capture of a replayed kernel."""
        assert self.rank.replayed is not None
        return self.rank.replayed.ops[row - len(self.names)]


def _nearest_calls(call: np.ndarray, parent: np.ndarray) -> np.ndarray:
    """The recorded call (ops,) of each op, or of the innermost op around it that has one; -1 for none."""
    nearest: np.ndarray = call.copy()
    if (call < 0).all():
        return nearest
    above = parent.copy()
    while (rows := np.flatnonzero((nearest < 0) & (above >= 0))).size:
        nearest[rows], above[rows] = call[above[rows]], parent[above[rows]]
    return nearest


def _around(rows: np.ndarray, parent: np.ndarray) -> np.ndarray:
    """The rows of all ops around those at `rows` (n,), each once."""
    is_around = np.zeros(len(parent), dtype=bool)
    while len(rows):
        above = parent[rows]
        above = above[above >= 0]
        rows = np.unique(above[~is_around[above]])
        is_around[rows] = True
    return np.flatnonzero(is_around)


def _trace_args(trace: Capture, row: int) -> tuple[Arg, ...]:
    ids = (getattr(trace.operators, name)[row] for name in _ARGS)
    return args_of(*(trace.strings[one] if one >= 0 else "" for one in ids))


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
