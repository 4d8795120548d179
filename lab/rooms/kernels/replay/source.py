"""source"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lab.errors import BadDataError
from lab.rooms.kernels.catalogue.execution_trace import Node, read_execution_trace
from lab.rooms.kernels.replay.args import (
    Origin,
    ReplayPlan,
)
from lab.rooms.kernels.replay.cpu_ops import working
from lab.rooms.kernels.replay.forwards import ForwardSpans
from lab.rooms.kernels.replay.owners import find_owners, gather, nest
from lab.rooms.kernels.replay.recorded_calls import RecordedCalls
from lab.rooms.kernels.replay.signatures import SignatureBook
from lab.rooms.kernels.replay.trace import decode_trace, sort_events


def read_plan(
    trace: Path,
    execution_trace: Path | None = None,
    recorded_ops: Path | None = None,
    *,
    run: str = "",
    state: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
    torch_version: str = "",
) -> ReplayPlan:
    """Everything a replay of `trace` needs. Raises MissingError and BadDataError for what cannot be read."""
    document = decode_trace(trace)
    ops, gpu, runtime, marks = sort_events(document.events)
    if not ops:
        raise BadDataError(
            "the trace holds no ops: nothing says what launched its kernels",
            where=trace,
            fix="record CPU and CUDA activities together, with record_shapes",
        )
    nodes = read_execution_trace(execution_trace) if execution_trace else {}
    nest(ops)
    recorder = RecordedCalls(ops, marks, recorded_ops)
    book = SignatureBook(ops, nodes, recorder)
    owners = gather(ops, recorder.lifted(find_owners(ops, gpu, runtime), ops, nodes)) if gpu else {}
    forwards = ForwardSpans(marks, ops)
    if gpu:
        book.add_launches(gpu, owners, forwards)
    else:
        book.add_leaves(forwards)
    device = document.devices[0] if document.devices else {}
    origin = Origin(
        recorder=str(recorded_ops or ""),
        trace=str(trace),
        execution_trace=str(execution_trace or ""),
        run=run,
        torch_version=torch_version,
        device_name=str(device.get("name", "")),
        num_sms=int(device.get("numSms", 0)),
        has_kernels=bool(gpu),
        model=str((config or {}).get("model", "")),
    )
    return ReplayPlan(
        origin=origin,
        forwards=forwards.finished(book.calls, bool(gpu)),
        signatures=tuple(book.signatures),
        calls=tuple(book.calls),
        orphans=tuple(book.orphans),
        state=state or {},
        config=config or {},
        notes=tuple(_notes(book, nodes, execution_trace, recorded_ops)),
    )


def working_ops(trace: Path) -> list[int]:
    """External ids of a CPU recording's ops that stand in for launches."""
    ops = sort_events(decode_trace(trace).events)[0]
    nest(ops)
    return [ops[place].args.external_id for place in working(ops)]


def _notes(
    book: SignatureBook, nodes: dict[int, Node], path: Path | None, recorded: Path | None
) -> list[str]:
    if path is None and recorded is not None:
        return [
            "no execution trace: arguments come from the dispatch recorder, which saw another pass of the same run"
        ]
    if path is None:
        return ["no execution trace: overloads are inferred, and which tensors share memory is not known"]
    joined = sum(1 for signature in book.signatures if signature.args is not None)
    if joined == 0 and nodes:
        raise BadDataError(
            "no op of the trace joins a node of the execution trace: they are of different runs",
            where=path,
            fix="give the execution trace that was recorded together with this trace",
        )
    return []
