"""How busy the GPU was: computation, communication, copies, and what of them is exposed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from lab.perfmodel.communication import communication
from lab.recordings.capture import Capture, once
from lab.recordings.tables import MEMCPY, Table
from lab.recordings.views.launches import device_of, kernel_steps, link_ops, steps_at
from lab.stats.intervals import spans, subtract, total, union

COMP, COMM, MEMCOPY = 0, 1, 2
GLOO_PREFIX = "gloo:"
NOT_COMPUTATION = ("c10d::", "autograd::", "profiler::")


def gpu_timeline(
    trace: Capture, steps: Sequence[int] | None = None, *, linked_only: bool = False
) -> dict[str, float]:
    """Where the time went, in ms: computation, communication and copies as unions, and what is exposed.

    steps keeps only what ProfilerStep#N launched; linked_only leaves out kernels without a known op, as
    TraceLens does. Exposed communication is COMM minus COMP; exposed copies are MEMCPY minus COMP minus COMM.
    """
    by_class = _activity(trace, steps, linked_only)
    comp, comm, copy = (union(by_class[kind]) for kind in (COMP, COMM, MEMCOPY))
    busy = union(np.concatenate([comp, comm, copy]))
    total_ns = int(busy[-1, 1] - busy[0, 0]) if len(busy) else 0
    figures_ns = {
        "computation_time_ms": total(comp),
        "exposed_comm_time_ms": total(subtract(comm, comp)),
        "exposed_memcpy_time_ms": total(subtract(subtract(copy, comp), comm)),
        "busy_time_ms": total(busy),
        "idle_time_ms": total_ns - total(busy),
        "total_time_ms": total_ns,
        "total_comm_time_ms": total(comm),
        "total_memcpy_time_ms": total(copy),
    }
    return {name: ns / 1e6 for name, ns in figures_ns.items()}


@once
def classify(trace: Capture) -> np.ndarray:
    """COMP, COMM or MEMCOPY (n,) for each row of `kernels`; fills count as computation."""
    kernels = trace.ops
    is_comm, is_copy = (np.zeros(len(trace.strings) + 1, dtype=bool) for _ in range(2))
    for index in np.flatnonzero(np.bincount(kernels.name_id[kernels.name_id >= 0])).tolist():
        is_comm[index] = communication(trace.strings[index]) is not None
        is_copy[index] = "rocclr_copy" in trace.strings[index].lower()
    classes = np.full(len(kernels), COMP, dtype=np.int8)
    classes[(kernels.kind == MEMCPY) | is_copy[kernels.name_id]] = MEMCOPY
    classes[is_comm[kernels.name_id] & trace.work] = COMM
    classes[trace.collectives.kernel] = COMM
    return classes


def _activity(trace: Capture, steps: Sequence[int] | None, linked_only: bool) -> dict[int, np.ndarray]:
    if device_of(trace) == "cpu":
        return _cpu_activity(trace, steps)
    keep = np.ones(len(trace.ops), dtype=bool)
    if steps is not None:
        keep &= np.isin(kernel_steps(trace), list(steps))
    if linked_only:
        keep &= link_ops(trace) >= 0
    classes = classify(trace)
    slices = spans(trace.ops.start_ns, trace.ops.dur_ns)
    return {kind: slices[keep & (classes == kind)] for kind in (COMP, COMM, MEMCOPY)}


def _cpu_activity(trace: Capture, steps: Sequence[int] | None) -> dict[int, np.ndarray]:
    def of(table: Table, rule: Callable[[str], bool]) -> np.ndarray:
        keep = trace.by_text(rule, table.name_id)
        if steps is not None:
            keep &= np.isin(steps_at(trace, table.start_ns), list(steps))
        return spans(table.start_ns[keep], table.dur_ns[keep])

    comm = np.concatenate([of(trace.operators, _is_comm_op), of(trace.annotations, is_gloo)])
    return {COMP: of(trace.operators, is_computation), COMM: comm, MEMCOPY: comm[:0]}


def _is_comm_op(name: str) -> bool:
    return name.startswith("c10d::") or name == "record_param_comms"


def is_gloo(name: str) -> bool:
    return name.startswith(GLOO_PREFIX)


def is_computation(name: str) -> bool:
    """Operators have a namespace; autograd's and the profiler's only wrap or wait."""
    return "::" in name and not name.startswith(NOT_COMPUTATION)
