"""Rules G, H, K, S, T, U, W and Z of each process; R stands in `replays`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from lab.core.words import plural
from lab.recordings.integrity.calls import COPY, GRAPH_LAUNCH, LAUNCH, WAIT
from lab.recordings.integrity.evidence import Evidence, of_capture, of_trace
from lab.recordings.lacks import AXES, Lack, Place
from lab.recordings.tables import GRAPH, KERNEL, MEMCPY, MEMSET, Table, Trace
from lab.stats.columns import distinct, distinct_rows

if TYPE_CHECKING:
    from lab.recordings.capture import Capture
    from lab.recordings.integrity.replays import Windows

# A kernel may seem to begin a little before its call (clocks drift); a queue may hold it for seconds.
EARLIEST_NS, LATEST_NS = 10_000_000, 60_000_000_000
# A wait returns after the row that it waited for; 8 us before its end was the most in recordings.
OUTLASTS_NS = 1_000_000
_IDENTITY = ("start_ns", "end_ns", "device", "stream", "corr", "name_id", "kind", "graph_node")
_CALL_IDENTITY = ("start_ns", "end_ns", "pid", "tid", "corr", "name_id")

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


# An empty recording proves nothing about the program.
NOTHING = tuple(
    Lack(axis, "all", "S", -1, 0, 0, None, "nothing at all was recorded", unknown=True) for axis in AXES
)


def integrity_of(capture: Capture, more: Sequence[Windows] = ()) -> tuple[Lack, ...]:
    """What `capture` lacks by its own tables. more: captures of graphs that were recorded beside it."""
    if not (len(capture.ops) or len(capture.api) or len(capture.ranges)):
        return NOTHING
    return lacks_of(of_capture(capture), more)


def integrity_of_trace(trace: Trace, more: Sequence[Windows] = ()) -> tuple[Lack, ...]:
    """The same for a Kineto trace."""
    if not (len(trace.kernels) or len(trace.runtime) or len(trace.ops) or len(trace.ranges)):
        return NOTHING
    return lacks_of(of_trace(trace), more)


def lacks_of(of: Evidence, more: Sequence[Windows] = ()) -> tuple[Lack, ...]:
    """Every finding, process by process."""
    if not len(of.ops) and not len(of.api):
        return ()
    due, not_traced = _due(of)
    found = list(not_traced)
    for process in range(of.num_processes):
        ops = _mine(of.ops.process, process, of.num_processes)
        api = _mine(of.api.process, process, of.num_processes)
        if len(ops) and not len(api):
            found += _no_calls(process, len(ops))
            continue
        found += _gpu_rows(of, process, api[due[api]], len(ops))
        found += _host_rows(of, process, ops, api)
        found += _clocks(of, process, ops, api)
        found += _waits(of, process, ops, api)
        found += _rows_twice(of, process, ops)
        found += _calls_twice(of, process, api)
        found += _unmeasured(of, process, ops)
        found += _unnamed(of, process, ops)
    if (of.call_kinds == GRAPH_LAUNCH).any() or (of.ops.graph_node > 0).any() or (of.ops.kind == GRAPH).any():
        from lab.recordings.integrity.replays import replay_lacks

        found += replay_lacks(of, more)
    return tuple(found)


def _mine(processes: np.ndarray, process: int, count: int) -> np.ndarray:
    return np.arange(len(processes)) if count == 1 else np.flatnonzero(processes == process)


def _due(of: Evidence) -> tuple[np.ndarray, list[Lack]]:
    """Which calls (n,) owe the GPU timeline a row, and the finding if copies were not traced at all."""
    kinds = of.call_kinds
    owed = (kinds == LAUNCH) | (kinds == GRAPH_LAUNCH) | (kinds == COPY)
    if len(of.windows):
        owed &= ~_captured(of)
    copies = owed & (kinds == COPY)
    if not of.optional_copies or not copies.any() or of.has_row[copies].any():
        return owed, []
    if (of.ops.kind == MEMCPY).any():
        return owed, []
    n = int(copies.sum())
    text = f"copies were not recorded: {plural(n, 'call')} that copy, and no row of a copy anywhere"
    return owed & ~copies, [Lack("gpu", "all", "T", -1, n, n, None, text, unknown=True, untraced=True)]


def _captured(of: Evidence) -> np.ndarray:
    """Calls (n,) that went into a graph: those of the capturing thread, and those of another thread during
    the window if none of its calls made a row (autograd's threads launch into the capture, too)."""
    found = of.window_of >= 0
    for process, thread, first, last in of.windows.tolist():
        during = (of.api.process == process) & (of.api.start_ns >= first) & (of.api.start_ns <= last)
        others = distinct(of.threads[during & (of.threads != thread)])
        for other in others.tolist():
            its = during & (of.threads == other)
            if not of.has_row[its].any():
                found |= its
    return found


def lost_at_edges(of: Evidence) -> np.ndarray:
    """The calls (m,) that owe a row on the GPU and have none, before the first or after the last that has one
    in its process: the recorder began late, or ended early. Copies that were never traced owe nothing."""
    due, _ = _due(replace(of, optional_copies=True))
    found = []
    for process in range(of.num_processes):
        mine = np.flatnonzero(due & (of.api.process == process))
        mine = mine[np.argsort(of.api.start_ns[mine], kind="stable")]
        hit = np.flatnonzero(of.has_row[mine])
        if len(hit):
            found += [mine[: hit[0]], mine[hit[-1] + 1 :]]
    return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


def _no_calls(process: int, rows: int) -> list[Lack]:
    why = "no API calls were recorded"
    return [
        Lack("host", "all", "H", process, rows, rows, None, f"{why}: nobody knows who launched what", True),
        Lack("gpu", "all", "G", process, 0, rows, None, f"{why}: lost GPU rows cannot be seen", True),
    ]


def _gpu_rows(of: Evidence, process: int, due: np.ndarray, rows: int) -> list[Lack]:
    """Rule G: calls that owe a row and have none, by where they stand among those that have one."""
    if not len(due):
        return []
    due = due[np.argsort(of.api.start_ns[due], kind="stable")]
    hit = of.has_row[due]
    if hit.all():
        return []
    if not hit.any():
        rule, what = ("G", "has a row of its own") if rows else ("S", "has a row: no GPU row was recorded")
        text = f"none of {plural(len(due), 'launch')} {what}"
        return [Lack("gpu", "all", rule, process, len(due), len(due), 1.0, text)]
    index = np.arange(len(due))
    first, last = int(hit.argmax()), len(due) - 1 - int(hit[::-1].argmax())
    parts: list[tuple[Place, np.ndarray]] = [
        ("head", index < first),
        ("hole", (index > first) & (index < last)),
        ("tail", index > last),
    ]
    found = []
    for place, where in parts:
        n = int((where & ~hit).sum())
        if n:
            share = n / len(due)
            text = (
                f"{n:,} of {plural(len(due), 'launch')} ({share:.1%}) without a GPU row, {_WHEN[place]}"
                + _runs(~hit & where, place)
            )
            found.append(Lack("gpu", place, "G", process, n, len(due), share, text))
    return found


def _runs(lost: np.ndarray, place: Place) -> str:
    runs = int((np.diff(lost.astype(np.int8), prepend=0) == 1).sum())
    return f", at {plural(runs, 'place')}" if place == "hole" else ""


def _host_rows(of: Evidence, process: int, ops: np.ndarray, api: np.ndarray) -> list[Lack]:
    """Rule H: GPU rows whose call is not here. Older than every recorded call: launched before the window;
    newer than every one: the calls end before the GPU rows do."""
    orphans = ops[~of.has_call[ops]]
    if not len(orphans):
        return []
    calls = of.api.corr[api]
    calls = calls[calls > 0]
    corr = of.ops.corr[orphans]
    early = (corr > 0) & (corr < (calls.min() if len(calls) else 0))
    late = corr > (calls.max() if len(calls) else np.iinfo(np.int64).max)
    whole_ns = int(_dur_ns(of, ops).sum())
    found = []
    parts: tuple[tuple[Place, np.ndarray], ...] = (
        ("head", orphans[early]),
        ("hole", orphans[~early & ~late]),
        ("tail", orphans[late]),
    )
    for place, rows in parts:
        if not len(rows):
            continue
        ns = int(_dur_ns(of, rows).sum())
        share = ns / whole_ns if whole_ns else len(rows) / len(ops)
        text = (
            f"{len(rows):,} of {plural(len(ops), 'GPU row')} ({share:.1%} of GPU time) without an API call: "
            f"{_LAUNCHED[place]}"
        )
        all_of_it: Place = "all" if len(rows) == len(ops) and place == "hole" else place
        found.append(Lack("host", all_of_it, "H", process, len(rows), len(ops), share, text))
    return found


def _clocks(of: Evidence, process: int, ops: np.ndarray, api: np.ndarray) -> list[Lack]:
    """Rule K: rows that begin before their call, or later than a queue explains: two clocks, or two units."""
    ops_known = ops[of.call_of[ops] >= 0]
    if not len(ops_known):
        return []
    delay_ns = of.ops.start_ns[ops_known] - of.api.start_ns[of.call_of[ops_known]]
    calls_ns = of.api.start_ns[api]
    most_ns = max(LATEST_NS, 10 * int(calls_ns.max() - calls_ns.min()))
    early, late = delay_ns < -EARLIEST_NS, delay_ns > most_ns
    found = []
    for rows, words in ((early, "before"), (late, "after")):
        if n := int(rows.sum()):
            far_s = int(np.abs(delay_ns[rows]).max()) / 1e9
            text = (
                f"{n:,} of {plural(len(ops), 'GPU row')} begin up to {far_s:,.3g} s {words} the call that "
                "launched them: clocks or units of GPU and host differ, and times across them mean nothing"
            )
            found.append(Lack("gpu", "all", "K", process, n, len(ops), None, text, unknown=True))
    return found


def _waits(of: Evidence, process: int, ops: np.ndarray, api: np.ndarray) -> list[Lack]:
    """Rule K: rows that end after a wait for the whole device that began when they were launched already.

    A wait covers the current device only, so a process with several is not judged. Nor is a wait of 0 ns,
    which is how readers give a call without an end: nobody saw it return.
    """
    waits = api[(of.call_kinds[api] == WAIT) & (of.api.end_ns[api] > of.api.start_ns[api])]
    known = ops[of.call_of[ops] >= 0]
    if not len(waits) or not len(known) or len(distinct(of.ops.device[ops])) > 1:
        return []
    waits = waits[np.argsort(of.api.start_ns[waits], kind="stable")]
    launched_ns = of.api.end_ns[of.call_of[known]]
    at = np.searchsorted(of.api.start_ns[waits], launched_ns, side="left")
    covered = at < len(waits)
    # Of the waits for a row, the one that begins first.
    over_ns = of.ops.end_ns[known[covered]] - of.api.end_ns[waits[at[covered]]]
    late_ns = over_ns[over_ns > OUTLASTS_NS]
    if not len(late_ns):
        return []
    text = (
        f"{len(late_ns):,} of {plural(len(ops), 'GPU row')} end up to {int(late_ns.max()) / 1e9:,.3g} s "
        "after the return of a call that waited for them: clocks of GPU and host differ, and times across "
        "them mean nothing"
    )
    return [Lack("gpu", "all", "K", process, len(late_ns), len(ops), None, text, unknown=True)]


def _written_twice(table: Table, rows: np.ndarray, identity: Sequence[str]) -> int:
    """How many of these rows repeat another one in every column of `identity`."""
    order = rows[np.argsort(table.start_ns[rows], kind="stable")]
    start_ns = table.start_ns[order]
    tied = np.flatnonzero(start_ns[1:] == start_ns[:-1])
    if not len(tied):
        return 0
    alike = order[np.union1d(tied, tied + 1)]
    keys = np.stack([getattr(table, name)[alike].astype(np.int64) for name in identity], axis=1)
    return len(alike) - len(distinct_rows(keys)[0])


def _calls_twice(of: Evidence, process: int, api: np.ndarray) -> list[Lack]:
    """Rule W: a correlation is one call's, so the second equal call is a copy."""
    known = api[of.api.corr[api] > 0]
    n = _written_twice(of.api, known, _CALL_IDENTITY)
    if not n:
        return []
    text = (
        f"{n:,} of {plural(len(api), 'API call')} are there twice (same thread, start, end, name and "
        "correlation): counts are too high"
    )
    return [Lack("host", "all", "W", process, n, len(api), None, text, unknown=True)]


def _rows_twice(of: Evidence, process: int, ops: np.ndarray) -> list[Lack]:
    """Rule W: equal rows. A stream runs one row at a time, so the second is a copy."""
    n = _written_twice(of.ops, ops, _IDENTITY)
    if not n:
        return []
    text = (
        f"{n:,} of {plural(len(ops), 'GPU row')} are there twice (same stream, start, end, name and "
        "correlation): counts and times are too high"
    )
    return [Lack("gpu", "all", "W", process, n, len(ops), None, text, unknown=True)]


def _unmeasured(of: Evidence, process: int, ops: np.ndarray) -> list[Lack]:
    """Rule Z: kernels, copies and fills that took no time, in a recording that resolves less than a µs; of
    any resolution if no kernel took time."""
    fine = bool((_dur_ns(of, ops) % 1000).any())
    found = []
    for kinds, one, many in (
        ((KERNEL,), "kernel", "kernels"),
        ((MEMCPY, MEMSET), "copy or fill", "copies and fills"),
    ):
        rows = ops[np.isin(of.ops.kind[ops], kinds)]
        n = int((_dur_ns(of, rows) <= 0).sum())
        if n and (fine or (kinds == (KERNEL,) and n == len(rows))):
            text = f"{n:,} of {plural(len(rows), one, many)} took 0 ns: their times were not measured"
            found.append(Lack("gpu", "all", "Z", process, n, len(rows), None, text, unknown=True))
    return found


def _unnamed(of: Evidence, process: int, ops: np.ndarray) -> list[Lack]:
    """Rule U: kernels whose name is not in the recording; no table can tell them apart."""
    kernels = ops[of.ops.kind[ops] == KERNEL]
    blank = [
        index for index in distinct(of.ops.name_id[kernels]) if index < 0 or not of.strings[index].strip()
    ]
    rows = kernels[np.isin(of.ops.name_id[kernels], blank)]
    if not len(rows):
        return []
    whole_ns = int(_dur_ns(of, kernels).sum())
    share = int(_dur_ns(of, rows).sum()) / max(whole_ns, 1)
    text = (
        f"{len(rows):,} of {plural(len(kernels), 'kernel')} ({share:.1%} of kernel time) have no name in the "
        "recording: they stand as one kernel without a name"
    )
    return [Lack("gpu", "all", "U", process, len(rows), len(kernels), None, text, unknown=True)]


def _dur_ns(of: Evidence, rows: np.ndarray) -> np.ndarray:
    dur: np.ndarray = of.ops.end_ns[rows] - of.ops.start_ns[rows]
    return dur
