"""A capture of any format as traces, one per process: what the kernels room reads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from lab.recordings.cache import load_trace
from lab.recordings.capture import GRAPH, KERNEL, OP, Capture
from lab.recordings.kineto.capture import from_kineto
from lab.recordings.lacks import Lack
from lab.recordings.owners import traces_of_ranks
from lab.recordings.tables import (
    COLLECTIVE_COLUMNS,
    COMM_OP_COLUMNS,
    KERNEL_COLUMNS,
    OP_COLUMNS,
    PROCESS_COLUMNS,
    RANGE_COLUMNS,
    RUNTIME_COLUMNS,
    THREAD_COLUMNS,
    Schema,
    Table,
    Trace,
    TraceMeta,
    concat,
)
from lab.stats.columns import distinct

# Numbers of devices come from the file: a list is made up to here.
_MOST_DEVICES = 1024


@dataclass(frozen=True)
class Loaded:
    """A recording of any format as traces, one per process.

    annotated: torch.profiler made it, as one trace; capture: what the others were made from, None for it.
    """

    traces: list[Trace]
    annotated: bool
    capture: Capture | None = None

    def masks(self, ops: np.ndarray, ranges: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Masks of the rows of `whole()` as masks of each trace's `kernels` and `ops`."""
        capture = self.whole()
        is_op = capture.ranges.kind == OP
        if self.capture is None:
            return [(ops, ranges[is_op])]
        return [
            (ops[capture.ops.process == one], ranges[is_op & (capture.ranges.process == one)])
            for one in _used_processes(capture)
        ]

    def whole(self) -> Capture:
        """The recording in the schema of a capture; its operations and operators in the traces' order."""
        return self.capture if self.capture is not None else from_kineto(self.traces[0])


def load_recording(path: Path | str, *, cache: Path | None = None) -> Loaded:
    """A recording of any format as traces. Raises what `load_capture` raises."""
    from lab.recordings.load import kind_of, look, read_found  # every reader: 70 ms

    with look(Path(path)) as found:
        if kind_of(found).name != "kineto":
            capture = read_found(found)
            return Loaded(traces_of(capture), annotated=False, capture=capture)
    return Loaded([load_trace(path, cache=cache)], annotated=True)


def load_traces(path: Path | str, *, cache: Path | None = None) -> tuple[list[Trace], bool]:
    """The traces of a recording of any format, one per process or merged rank, and whether torch.profiler
    made it.

    Raises what `load_capture` raises.
    """
    recording = load_recording(path, cache=cache)
    if recording.annotated:
        return traces_of_ranks(recording.traces[0]), True
    return recording.traces, False


def _used_processes(capture: Capture) -> list[int]:
    tables = (capture.ops, capture.api, capture.ranges)
    used: list[int] = distinct(np.concatenate([distinct(table.process) for table in tables])).tolist()
    return used or [0]


def traces_of(capture: Capture) -> list[Trace]:
    """One trace per process that has rows, in the order of `capture.processes`; one at least."""
    used = _used_processes(capture)
    first = used[0]
    return [
        replace(_trace(capture, process), lacks=_lacks(capture, process, also_all=process == first))
        for process in used
    ]


def _lacks(capture: Capture, process: int, *, also_all: bool) -> tuple[Lack, ...]:
    """The process' findings, and those of the recording as a whole, which count once."""
    return tuple(
        msgspec.structs.replace(lack, process=0 if lack.process >= 0 else -1)
        for lack in capture.lacks
        if lack.process == process or (lack.process < 0 and also_all)
    )


def _trace(capture: Capture, process: int) -> Trace:
    ops, api, ranges = (
        table.where(table.process == process) for table in (capture.ops, capture.api, capture.ranges)
    )
    is_op = ranges.kind == OP
    return Trace(
        source=capture.source,
        meta=_meta(capture, process),
        kernels=_kernels(ops),
        ops=_ops(ranges.where(is_op)),
        runtime=_renamed(api, RUNTIME_COLUMNS, correlation=api.corr),
        ranges=_ranges(ranges.where(~is_op)),
        collectives=concat([], COLLECTIVE_COLUMNS),
        comm_ops=concat([], COMM_OP_COLUMNS),
        threads=concat([], THREAD_COLUMNS),
        processes=concat([], PROCESS_COLUMNS),
        strings=capture.strings,
        problems=list(capture.problems),
        truncated=False,
    )


def _meta(capture: Capture, process: int) -> TraceMeta:
    devices = {
        one.device: one
        for one in capture.devices
        if one.process in (-1, process) and 0 <= one.device < _MOST_DEVICES
    }
    every = [devices.get(index) for index in range(max(devices, default=-1) + 1)]
    who = capture.processes[process] if process < len(capture.processes) else None
    return TraceMeta(
        rank=who.rank if who else None,
        world_size=None,
        backend=None,
        vendor=capture.info.get("vendor", "nvidia" if capture.collector == "nsys" else "none"),
        devices=tuple(one.name if one else "" for one in every),
        base_ns=0,
        nccl_version=None,
        torch_version=None,
        cuda_version=None,
        hip_version=None,
        process_groups=(),
        host=who.host if who else None,
        num_sms=tuple((one.num_sms or 0) if one else 0 for one in every),
    )


def _kernels(ops: Table) -> Table:
    smem = np.where(
        ops.dynamic_smem_bytes >= 0,
        ops.dynamic_smem_bytes + np.maximum(ops.static_smem_bytes, 0),
        ops.static_smem_bytes,
    )
    return _renamed(
        ops,
        KERNEL_COLUMNS,
        correlation=ops.corr,
        smem_bytes=np.minimum(smem, np.iinfo(np.int32).max),
        # A replay of a whole graph in one row is work of the GPU as well; its name says what it is.
        kind=np.where(ops.kind == GRAPH, KERNEL, ops.kind),
    )


def _ops(ranges: Table) -> Table:
    return _renamed(ranges, OP_COLUMNS, sequence=ranges.seq)


def _ranges(ranges: Table) -> Table:
    on_gpu = np.zeros(len(ranges), dtype=bool)
    return _renamed(ranges, RANGE_COLUMNS, on_gpu=on_gpu)


def _renamed(table: Table, schema: Schema, **more: np.ndarray) -> Table:
    """The columns of `schema`: those given, those of the same name, the times, -1 for the rest."""
    same = {name: getattr(table, name) for name in schema if name in set(table)}
    times = {"ts_ns": table.start_ns, "dur_ns": table.end_ns - table.start_ns}
    known = same | times | more
    unknown = np.full(len(table), -1)
    return Table({name: np.asarray(known.get(name, unknown), dtype=kind) for name, kind in schema.items()})
