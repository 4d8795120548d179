"""What a recording lacks, found by comparing its own tables: no format is asked for its opinion here.

Rules G, H, S and T stand here, R in `replays`, what a GPU cannot have done (B, K, P, U, W, Z) in
`physics`; docs/integrity.md says what each one finds. What a format can prove about itself, its reader puts
into `Capture.lacks`: C (Kineto's event indices), N (nsys' own counts), D (AMD's dispatch ids).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lab.core.words import plural
from lab.recordings.calls import (
    COPY,
    FOREVER,
    GRAPH_LAUNCH,
    LAUNCH,
    call_kinds,
    capture_of_call,
    capture_windows,
    has_row,
    launch_calls,
    replays_graphs,
    uncalled,
)
from lab.recordings.capture import UNCLAIMED, Capture
from lab.recordings.integrity.physics import durations_ns, impossible
from lab.recordings.lacks import AXES, Lack, Place, doubt
from lab.recordings.owners import AMBIGUOUS
from lab.recordings.phase_names import is_step
from lab.recordings.tables import GRAPH, MEMCPY
from lab.stats import robust

_WHEN: dict[Place, str] = {
    "head": "at its start",
    "tail": "at its end",
    "hole": "in its middle",
    "all": "anywhere in it",
}


_LAUNCHED: dict[Place, str] = {
    "head": "launched before the window",
    "tail": "launched after the last call that was recorded",
    "hole": "the calls are missing in the middle",
}


FEWEST_UNTRACED = 3  # copies that all lack a row: the recorder was not asked for them
# An empty recording proves nothing about the program.
NOTHING = tuple(doubt(axis, "S", "nothing at all was recorded") for axis in AXES)


def integrity_of(of: Capture) -> tuple[Lack, ...]:
    """Judge what a recording lacks by its own tables, process by process: what joins prove, then what a GPU
    cannot have done."""
    if not len(of.ops) and not len(of.api):
        return _host_alone(of) if len(of.ranges) else NOTHING
    # What owes nothing cannot be lost, and a domain that was never asked for is named once for all.
    due, not_traced = _due(of, copies_optional=_copies_are_optional(of))
    lacks = list(not_traced)
    for process in range(len(of.processes)):
        ops = _rows_of(of.ops.process, process, len(of.processes))
        api = _rows_of(of.api.process, process, len(of.processes))
        if of.processes[process] == UNCLAIMED:
            lacks += _unclaimed(of, process, ops)
        elif len(ops) and not len(api):
            lacks += _no_calls(process, len(ops))
        else:
            lacks += _gpu_rows(of, process, api[due[api]], len(ops))
            lacks += _host_rows(of, process, ops, api)
        lacks += impossible(of, process, ops, api)
    if replays_graphs(of) or (of.ops.kind == GRAPH).any():
        from lab.recordings.integrity.replays import replay_lacks

        lacks += replay_lacks(of)
    return tuple(lacks)


def _host_alone(of: Capture) -> tuple[Lack, ...]:
    """Ranges or operators, and neither a call nor a GPU row: beside a GPU, it may have worked unseen."""
    if not of.devices:
        return ()
    gpus = plural(len(of.devices), "GPU")
    text = f"neither calls nor GPU rows were recorded beside {gpus}: not used, not traced, or lost"
    return (doubt("gpu", "S", text),)


def _rows_of(processes: np.ndarray, process: int, count: int) -> np.ndarray:
    return np.arange(len(processes)) if count == 1 else np.flatnonzero(processes == process)


# Of these tools every domain is a flag of its own; CUPTI's activities come together. XLA leaves out copies of
# AMD's GPUs, whose stream it does not know (xla/backends/profiler/gpu/rocm_collector.cc).
_BY_DOMAIN = ("rocpd", "rpd", "rocprofv3", "xplane amd")


def _copies_are_optional(of: Capture) -> bool:
    """Whether the recorder traces copies only if asked (rule T)."""
    return not {of.collector, f"{of.collector} {of.info.get('vendor')}"}.isdisjoint(_BY_DOMAIN)


def _due(of: Capture, *, copies_optional: bool) -> tuple[np.ndarray, list[Lack]]:
    """Which calls (n,) owe the GPU timeline a row, and the finding if copies were not traced at all."""
    kinds = call_kinds(of)
    # Not fills: a memset of zero bytes, or inside a library, leaves no GPU row (616 of 2,284 in real traces).
    owed = (kinds == LAUNCH) | (kinds == GRAPH_LAUNCH) | (kinds == COPY)
    # An ambiguous call may own a row of another process: that proves no loss.
    owed &= of.api.corr != AMBIGUOUS
    if len(capture_windows(of)):
        owed &= capture_of_call(of) < 0
    copies = owed & (kinds == COPY)
    if not copies_optional or not copies.any() or has_row(of)[copies].any():
        return owed, []
    # A single row of a copy shows that the domain was traced.
    if (of.ops.kind == MEMCPY).any():
        return owed, []
    n = int(copies.sum())
    text = f"copies were not recorded: {plural(n, 'call')} that copy, and no row of a copy anywhere"
    # Few copies, or copies at one end alone, where rows get lost, may be a loss as well.
    with_row, copied = of.api.start_ns[owed & has_row(of)], of.api.start_ns[copies]
    one_end = bool((copied > with_row.max(initial=0)).all() or (copied < with_row.min(initial=FOREVER)).all())
    untraced = n >= FEWEST_UNTRACED and not one_end
    text += "" if untraced else "; they were not asked for, or lost"
    return owed & ~copies, [doubt("gpu", "T", text, n=n, of=n, untraced=untraced)]


def lost_at_edges(of: Capture) -> np.ndarray:
    """The calls (m,) that owe a row on the GPU and have none, before the first or after the last that has one
    in its process: the recorder began late, or ended early. Copies that were never traced owe nothing."""
    due, _ = _due(of, copies_optional=True)
    parts = []
    for process in range(len(of.processes)):
        calls = np.flatnonzero(due & (of.api.process == process))
        calls = calls[np.argsort(of.api.start_ns[calls], kind="stable")]
        hit = np.flatnonzero(has_row(of)[calls])
        if len(hit):
            parts += [calls[: hit[0]], calls[hit[-1] + 1 :]]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def _no_calls(process: int, rows: int) -> list[Lack]:
    reason = "no API calls were recorded"
    return [
        doubt("host", "H", f"{reason}: who launched what is unknown", process=process, n=rows, of=rows),
        doubt("gpu", "G", f"{reason}: lost GPU rows cannot be seen", process=process, of=rows),
    ]


def _unclaimed(of: Capture, process: int, ops: np.ndarray) -> list[Lack]:
    """Rule H in a file of several processes: GPU rows whose call is in none of them. Those that could be of
    several are a doubt, which the reader told. Ids mean nothing here: only rows before all calls are edge."""
    lost = ops[(of.ops.corr[ops] != AMBIGUOUS) & ~uncalled(of)[ops]]
    early = of.ops.end_ns[lost] < of.api.start_ns.min(initial=FOREVER)
    parts: tuple[tuple[Place, np.ndarray], ...] = (("head", lost[early]), ("hole", lost[~early]))
    return [_orphans(of, process, place, rows, np.arange(len(of.ops))) for place, rows in parts if len(rows)]


def _gpu_rows(of: Capture, process: int, due: np.ndarray, rows: int) -> list[Lack]:
    """Rule G: calls that owe a row and have none, by where they stand among those that have one."""
    if not len(due):
        return []
    due = due[np.argsort(of.api.start_ns[due], kind="stable")]
    hit = has_row(of)[due]
    if hit.all():
        return []
    if not hit.any():
        # ROCm 7.0 lost whole compute streams (ROCm/rocm-systems#1327), and all rows if HIP ran before the
        # profiler registered (pytorch/kineto#1338).
        rule, fault = ("G", "has a row of its own") if rows else ("S", "has a row: no GPU row was recorded")
        text = f"none of {plural(len(due), 'launch')} {fault}"
        return [Lack("gpu", "all", rule, process, len(due), len(due), 1.0, text)]
    # The window explains a head (rows before it are dropped with a log line only: pytorch/pytorch#192021) and
    # a tail. No sound recording among those tested has a hole.
    begin, end = np.flatnonzero(hit)[[0, -1]].tolist()
    runs = int((np.diff((~hit[begin:end]).astype(np.int8)) == 1).sum())
    places: tuple[tuple[Place, np.ndarray, str], ...] = (
        ("head", hit[:begin], ""),
        ("hole", hit[begin:end], f", at {plural(runs, 'place')}"),
        ("tail", hit[end:], ""),
    )
    lacks = []
    for place, hits, detail in places:
        if n := int((~hits).sum()):
            share = n / len(due)
            due_text = plural(len(due), "launch")
            text = f"{n:,} of {due_text} ({share:.1%}) without a GPU row, {_WHEN[place]}{detail}"
            lacks.append(Lack("gpu", place, "G", process, n, len(due), share, text))
    return lacks


def _host_rows(of: Capture, process: int, ops: np.ndarray, api: np.ndarray) -> list[Lack]:
    """Rule H: GPU rows whose call is not here. Older than every recorded call: launched before the window;
    newer than every one: the calls end before the GPU rows do."""
    orphans = ops[(launch_calls(of)[ops] < 0) & ~uncalled(of)[ops] & (of.ops.corr[ops] != AMBIGUOUS)]
    if not len(orphans):
        return []
    calls = of.api.corr[api]
    calls = calls[calls > 0]
    corr = of.ops.corr[orphans]
    # Correlation ids rise with time: below the first recorded call means launched before the window.
    early = (corr > 0) & (corr < (calls.min() if len(calls) else 0))
    late = corr > (calls.max() if len(calls) else np.iinfo(np.int64).max)
    parts: tuple[tuple[Place, np.ndarray], ...] = (
        ("head", orphans[early]),
        ("hole", orphans[~early & ~late]),
        ("tail", orphans[late]),
    )
    return [_orphans(of, process, place, rows, ops) for place, rows in parts if len(rows)]


def _orphans(of: Capture, process: int, place: Place, rows: np.ndarray, ops: np.ndarray) -> Lack:
    """The finding for `rows` of the GPU rows `ops` that have no call."""
    whole_ns = int(durations_ns(of, ops).sum())
    share = int(durations_ns(of, rows).sum()) / whole_ns if whole_ns else len(rows) / len(ops)
    text = (
        f"{len(rows):,} of {plural(len(ops), 'GPU row')} ({share:.1%} of GPU time) without an API call: "
        f"{_LAUNCHED[place]}"
    )
    part: Place = "all" if len(rows) == len(ops) and place == "hole" else place
    return Lack("host", part, "H", process, len(rows), len(ops), share, text)


class Shape(NamedTuple):
    """One rank: its GPU rows, the names of its steps, ns from its first step to its last GPU row."""

    rows: int
    steps: tuple[str, ...]
    reach_ns: int
    step_ns: int


def shape_of(capture: Capture) -> Shape:
    steps = capture.ranges.where(capture.by_text(is_step, capture.ranges.text_id))
    steps = steps.take(np.argsort(steps.start_ns, kind="stable"))
    names = tuple(capture.text(steps.text_id).tolist())
    has_both = len(steps) and len(capture.ops)
    reach_ns = int(capture.ops.end_ns.max() - steps.start_ns[0]) if has_both else -1
    step_ns = int(robust.median(steps.dur_ns)) if len(steps) else 0
    return Shape(len(capture.ops), names, reach_ns, step_ns)


def lacks_beside(shape: Shape, peers: Sequence[Shape]) -> tuple[Lack, ...]:
    """What a rank's recording lacks when compared with the others'; signs, no proofs, hence unknown.

    Unequal numbers of rows prove nothing: pipeline stages and sharded tables make them. Clocks of ranks
    differ, so a rank's end counts from the start of its own first step.
    """
    if not peers:
        return ()
    if not shape.rows and any(peer.rows for peer in peers):
        text = f"this rank has no GPU row, {sum(peer.rows > 0 for peer in peers)} of the others have some"
        return (doubt("gpu", "S", text, process=0),)
    longest = max((peer.steps for peer in peers), key=len)
    absent = [name for name in longest if name not in shape.steps]
    # Profilers of ranks need not stop together: one peer that is as short makes this end a usual one.
    if absent and shape.steps and all(len(peer.steps) > len(shape.steps) for peer in peers):
        n, of = len(absent), len(longest)
        text = f"{n} of {plural(of, 'step')} that every other rank has are not here ({absent[0]} first)"
        return (doubt("gpu", "S", text, place="tail", process=0, n=n, of=of),)
    # Reach counts from the first step, so ranks compare only where they have the same steps.
    reaches = [peer.reach_ns for peer in peers if peer.reach_ns >= 0 and peer.steps == shape.steps]
    if shape.reach_ns < 0 or not reaches or not shape.step_ns:
        return ()
    # Against the shortest of the others and by more than a step: less is the usual skew.
    short_ns = min(reaches) - shape.reach_ns
    if short_ns <= shape.step_ns:
        return ()
    text = f"this rank's GPU rows end {short_ns / 1e6:.3f} ms before those of every other rank"
    return (doubt("gpu", "S", text, place="tail", process=0),)
