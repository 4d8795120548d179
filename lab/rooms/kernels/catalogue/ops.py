"""The ops of a rank that own launches, described once each."""

from __future__ import annotations

from lab.recordings.tables import Trace
from lab.rooms.kernels.catalogue.identity import args_key
from lab.rooms.kernels.catalogue.rank import RankData, mark_of
from lab.rooms.kernels.catalogue.trace_args import args_of
from lab.rooms.kernels.schema import Arg, OpRecord


class OpBook:
    """The ops of one rank that own launches, and those around them; each described once."""

    def __init__(self, rank: RankData, zero_ns: int) -> None:
        self.rank, self.zero_ns = rank, zero_ns
        self.names = rank.trace.text(rank.trace.ops.name_id)
        self.mark = mark_of(rank.trace.ops.ts_ns, rank.marks)
        self.kept: dict[int, OpRecord] = {}
        self._keys: dict[tuple[int, ...], str] = {}  # of arguments from the trace, by the ids of their texts

    def args_key(self, record: OpRecord | None) -> str:
        """`identity.args_key`, made once for all ops whose trace has the same arguments."""
        if record is None or record.recorded >= 0 or record.op_id >= len(self.names):
            return args_key(record)
        ops, row = self.rank.trace.ops, record.op_id
        texts = tuple(int(ids[row]) for ids in (ops.dims_id, ops.types_id, ops.strides_id, ops.concrete_id))
        if texts not in self._keys:
            self._keys[texts] = args_key(record)
        return self._keys[texts]

    def own(self, row: int) -> OpRecord:
        """The record of the op at `row`, which owns one more launch; the ops around it are kept too."""
        if row >= len(self.names):
            record = self.kept.setdefault(row, self._borrowed(row))
            record.num_launches += 1
            return record
        record = self._keep(row)
        record.num_launches += 1
        above = record.parent
        while above >= 0 and above not in self.kept:
            above = self._keep(above).parent
        return record

    def records(self) -> list[OpRecord]:
        return [self.kept[row] for row in sorted(self.kept)]

    def module_of(self, row: int) -> str:
        """The module path of the nearest recorded call around the op at `row`, else by its Python stack."""
        if row >= len(self.names):
            return self._borrowed(row).module_path
        by_stack = self.rank.modules[row] if row >= 0 and self.rank.modules else ""
        while row >= 0:
            call = self.rank.call[row]
            if call >= 0:
                return str(self.rank.recorded[call].module_path)
            row = int(self.rank.parent[row])
        return by_stack

    def _borrowed(self, row: int) -> OpRecord:
        """The op at capture of a replayed kernel."""
        assert self.rank.replayed is not None
        return self.rank.replayed.ops[row - len(self.names)]

    def _keep(self, row: int) -> OpRecord:
        if row in self.kept:
            return self.kept[row]
        ops, rank, mark = self.rank.trace.ops, self.rank, int(self.mark[row])
        call = int(rank.call[row])
        known = rank.recorded[call] if call >= 0 else None
        self.kept[row] = record = OpRecord(
            rank=rank.rank,
            op_id=row,
            name=str(self.names[row]),
            overload=known.overload if known else None,
            args=known.args if known else list(_trace_args(rank.trace, row)),
            parent=int(rank.parent[row]),
            module_path=self.module_of(row),
            phase=rank.marks.phases[mark] if mark >= 0 else "",
            forward=mark,
            external_id=int(ops.external_id[row]),
            rf_id=int(ops.rf_id[row]),
            tid=int(ops.tid[row]),
            ts_us=(int(ops.ts_ns[row]) - self.zero_ns) / 1000,
            dur_us=int(ops.dur_ns[row]) / 1000,
            recorded=call,
        )
        return record


def _trace_args(trace: Trace, row: int) -> tuple[Arg, ...]:
    ops = trace.ops
    columns = (ops.dims_id, ops.types_id, ops.strides_id, ops.concrete_id)
    return args_of(*(trace.strings[column[row]] if column[row] >= 0 else "" for column in columns))
