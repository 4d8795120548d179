"""From recordings to a ReplayPlan: which op owns each launch, and with what arguments it was called.

A launch belongs to the innermost op around it. Arguments come from the execution trace if the op has a node
there, otherwise from the recorder, otherwise from the trace itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.errors import BadDataError
from lab.rooms.kernels.catalogue.execution_trace import read_execution_trace
from lab.rooms.kernels.replay.args import Origin, ReplayPlan
from lab.rooms.kernels.replay.calls.forwards import ForwardSpans
from lab.rooms.kernels.replay.calls.inductor import InductorKernels, is_inductor
from lab.rooms.kernels.replay.calls.owners import gather
from lab.rooms.kernels.replay.calls.recorded_calls import RecordedCalls
from lab.rooms.kernels.replay.calls.recording import read_recording
from lab.rooms.kernels.replay.calls.signatures import SignatureBook


def read_plan(
    trace: Path,
    execution_trace: Path | None = None,
    recorded_ops: Path | None = None,
    *,
    run: str = "",
    state: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
    inductor: Sequence[Path] = (),
) -> ReplayPlan:
    """Everything a replay of `trace` needs. inductor: folders with the files of Inductor's kernels.

    Raises MissingError and BadDataError for files that cannot be read.
    """
    recording = read_recording(trace)
    ops, work, meta = recording.ops, recording.work, recording.capture.meta
    if not ops:
        raise BadDataError(
            "the trace holds no ops, so the ops that launched its kernels are unknown",
            location=trace,
            fix="record CPU and CUDA activities together, with record_shapes",
        )
    nodes = read_execution_trace(execution_trace) if execution_trace else {}
    recorder = RecordedCalls(recording, recorded_ops)
    generated = InductorKernels(trace, inductor) if any(is_inductor(op.name) for op in ops) else None
    book, forwards = SignatureBook(ops, nodes, recorder, generated), ForwardSpans(recording)
    if work:
        owners = {index: row.owner for index, row in enumerate(work) if row.owner >= 0}
        owners = owners if nodes else recorder.recorded_owners(owners)
        book.add_launches(work, gather(ops, owners), forwards)
    else:
        book.add_leaves(forwards)
    if nodes:
        _check_of_one_run(book, execution_trace)
    return ReplayPlan(
        origin=Origin(
            trace=str(trace),
            execution_trace=str(execution_trace or ""),
            recorder=str(recorded_ops or ""),
            device_name=meta.devices[0] if meta.devices else "",
            num_sms=meta.num_sms[0] if meta.num_sms else 0,
            run=run,
            model=str((config or {}).get("model", "")),
            has_kernels=bool(work),
        ),
        forwards=forwards.finished(book.calls, bool(work)),
        signatures=tuple(book.signatures),
        calls=tuple(book.calls),
        orphans=tuple(book.orphans),
        state=state or {},
        config=config or {},
        notes=_notes(execution_trace, recorded_ops),
        kernels=tuple(generated.needed.values()) if generated else (),
    )


def _check_of_one_run(book: SignatureBook, execution_trace: Path | None) -> None:
    """Raises BadDataError where no op has a node."""
    if not any(signature.args is not None for signature in book.signatures):
        raise BadDataError(
            "no op of the trace joins a node of the execution trace: they are of different runs",
            location=execution_trace,
            fix="give the execution trace that was recorded together with this trace",
        )


def _notes(execution_trace: Path | None, recorded_ops: Path | None) -> tuple[str, ...]:
    if execution_trace is not None:
        return ()
    if recorded_ops is not None:
        return (
            "no execution trace: arguments come from the recorder, which saw another pass of the same run",
        )
    return ("no execution trace: overloads are inferred, and which tensors share memory is not known",)
