"""The ops of a rank that own launches, described when asked for."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from lab.recordings.capture import Capture
from lab.rooms.kernels.catalogue.identity import args_key
from lab.rooms.kernels.catalogue.rank import RankData, mark_of
from lab.rooms.kernels.catalogue.trace_args import args_of
from lab.rooms.kernels.schema import Arg, OpRecord
from lab.stats.columns import grouped_rows

OpKey = tuple[str, str | None, str]  # name, overload, digest of the arguments
_NO_OP: OpKey = ("", None, "")
_ARGS = ("dims_id", "types_id", "strides_id", "concrete_id")


class OpBook:
    """The ops of one rank. Rows (n,) of `ops` from len(ops) upwards are those that graphs had at capture."""

    def __init__(self, rank: RankData, zero_ns: int) -> None:
        self.rank, self.zero_ns = rank, zero_ns
        self.names = rank.trace.text(rank.trace.operators.name_id)
        self._mark = mark_of(rank.trace.operators.start_ns, rank.marks)
        self._call = _nearest_calls(rank.call, rank.parent)

    def keys_of(self, rows: np.ndarray) -> tuple[np.ndarray, list[OpKey]]:
        """What tells ops apart, for rows (n,), -1 for none: the index (n,) of each in a list of keys."""
        ops, num_ops = self.rank.trace.operators, len(self.names)
        in_trace = (rows >= 0) & (rows < num_ops)
        call = np.full(len(rows), -1)
        call[in_trace] = self.rank.call[rows[in_trace]]
        described = in_trace & (call < 0)  # by the trace: many ops have the same texts
        columns = [np.where(described, -1, rows), call]
        for name in ("name_id", *_ARGS):
            texts = np.full(len(rows), -1, dtype=np.int64)
            texts[described] = getattr(ops, name)[rows[described]]
            columns.append(texts)
        first_rows, group_of_row = grouped_rows(columns)
        return group_of_row, [self._key(row) for row in rows[first_rows].tolist()]

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
        """`module_of` each of the rows."""
        paths: dict[int, str] = {}
        if not self.rank.modules and not self.rank.recorded:
            paths = dict.fromkeys((row for row in rows if row < len(self.names)), "")
        return [paths[row] if row in paths else paths.setdefault(row, self.module_of(row)) for row in rows]

    def _borrowed(self, row: int) -> OpRecord:
        """The op at capture of a replayed kernel."""
        assert self.rank.replayed is not None
        return self.rank.replayed.ops[row - len(self.names)]

    def _key(self, row: int) -> OpKey:
        if row < 0:
            return _NO_OP
        record = self.describe(row)
        return record.name, record.overload, args_key(record)


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
