"""What is named of a change: counts and kernels, durations, calls, idle and exposed time; its words, and the
rows of the recordings that it rests on."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

import msgspec
import numpy as np

from lab.compare.diff.comparable import without_times
from lab.compare.diff.judge import (
    BELOW,
    EXACT,
    NAMED,
    ONE_PAIR,
    PROVEN,
    TIMED,
    between_is_named,
    calls_differ,
    gap_is_large,
    time_is_large,
    time_name,
    times_beyond_error,
    unlike_steps,
)
from lab.compare.diff.split import SHARED, Block, Row
from lab.compare.side import Work, short_kernel, step_at
from lab.compare.units import CAUSE_WORDS, CAUSES, MIN_STEPS, Units, as_a_rule
from lab.compare.whole import IDLE, KERNELS, MEAN, Total, total_words
from lab.core.files import sha256_of
from lab.core.words import plural
from lab.recordings.names import short_dims, short_name

WHOLE = ("steps", "factor", "phase", "whole")  # kinds of causes of the whole, which come before rows
NAMES = 3  # kernels on each side of an exchange


class Evidence(msgspec.Struct, kw_only=True):
    """One of `count` events of a recording: of GPU operations the one of median duration.

    start_ns is on the recording's clock (of Kineto: with baseTimeNanoseconds), dur_ns -1 where an event has
    none, unit the number of the step from 0 (-1: none), correlation -1 where none was recorded.
    """

    side: str
    file: str
    event: str
    start_ns: int
    dur_ns: int
    unit: int
    correlation: int
    count: int


class File(msgspec.Struct, kw_only=True):
    """A recording that was compared; sha256 is "" for a folder."""

    side: str
    path: str
    sha256: str
    rank: int


class Call(msgspec.Struct, kw_only=True):
    """An API function's calls per unit on both sides."""

    name: str
    n_a: float
    n_b: float


class Finding(msgspec.Struct, kw_only=True):
    """A change that is named: its sentence, ns per unit (None for counts of calls), how sure it is, and the
    rows of the recordings that it rests on."""

    text: str
    ns: float | None = None
    kind: str
    confidence: str = ONE_PAIR
    module_path: str = msgspec.field(name="where", default="")  # phase and modules around it
    rows: list[int] = []  # of Comparison.rows
    call: str = ""  # the API function of a change of calls
    evidence: list[Evidence] = []


def calls(a: Units, b: Units) -> list[Call]:
    """Every API function, those with another number of calls first."""
    names = {*a.calls, *b.calls}
    calls_of_name = [
        Call(name=name, n_a=a.calls.get(name, 0.0), n_b=b.calls.get(name, 0.0)) for name in names
    ]
    return sorted(calls_of_name, key=lambda call: (-abs(call.n_b - call.n_a), call.name))


def findings(
    rows: Sequence[Row], blocks: Sequence[Block], a: Units, b: Units, totals: Sequence[Total]
) -> tuple[list[Finding], list[str]]:
    """What is named, largest first, and times that changed much, but that one pair cannot tell from noise.
    totals: over repeats, which then judge idle time; else none."""
    named = [*_of_blocks(rows, blocks), *_of_rows(rows)]
    for call in calls(a, b) if a.calls and b.calls else []:
        if calls_differ(a, b, call.name):
            text = f"{call.name}: {call.n_a:g} -> {call.n_b:g} calls per unit"
            named.append(Finding(text=text, kind="api", confidence="exact count", call=call.name))
    unnamed: list[str] = []
    if not without_times(a, b):
        times, unnamed = _of_times(a, b)
        named += [finding for finding in times if finding.kind != "idle" or not totals]
        idle = next((total for total in totals if (total.name, total.statistic) == (IDLE, MEAN)), None)
        if idle is not None and idle.differs:
            named.append(_of_total(idle, "idle"))
    if between_is_named(a, b):
        work = f"{a.between:.3g} -> {b.between:.3g} GPU operations"
        times_text = f"{time_text(a.between_ns)} -> {time_text(b.between_ns)}"
        text = f"launched between steps, in no other figure: {work} between two ({times_text})"
        named.append(Finding(text=text, ns=b.between_ns - a.between_ns, kind="work_between_steps"))
    return sorted(named, key=lambda finding: -abs(finding.ns or 0.0)), unnamed


def of_whole(totals: Sequence[Total], named: Sequence[Finding]) -> list[Finding]:
    """Totals that are proven to differ where nothing that is named explains them: kernel time by a cause of
    the whole or a row, idle time by itself, the step by either."""
    timed = {finding.kind for finding in named if finding.ns}
    has_kernels = bool(timed - {"idle", "exposed_comm", "exposed_copy", "work_between_steps"})
    explained = {KERNELS: has_kernels, IDLE: "idle" in timed}
    differing = [
        total
        for total in totals
        if total.decides and total.differs and not explained.get(total.name, bool(timed))
    ]
    best = {total.name: total for total in reversed(differing)}  # the mean, which comes first, where it does
    return [_of_total(total, "whole") for total in best.values()]


def _of_total(total: Total, kind: str) -> Finding:
    text = total_words(total).split(" (smallest change")[0]
    return Finding(text=text, ns=total.head_ns - total.base_ns, kind=kind, confidence=PROVEN)


def _of_blocks(rows: Sequence[Row], blocks: Sequence[Block]) -> list[Finding]:
    """Replaced blocks, and ops that only moved."""
    counted = {row.op for row in rows if row.kind == "count"}
    bare = [row for row in rows if row.kind in EXACT and not row.op]
    counted |= {short_name(name) for row in bare for name in (row.kernel_a, row.kernel_b) if name}
    named = []
    moved: dict[tuple[str, ...], int] = {}
    for block in blocks:
        members = [index for index, row in enumerate(rows) if row.block == block.index]
        if members:
            exchange = f"{_listed(block.ops_a)} -> {_listed(block.ops_b)}"
            text = f"{exchange}, {plural(block.times, 'time')} per unit ({_us(block.ns)})"
            named.append(Finding(text=text, ns=block.ns, kind="replaced_block", rows=members))
        elif not counted & {*block.ops_a, *block.ops_b}:  # else the rows of counts say it
            ops = tuple(dict.fromkeys([*block.ops_a, *block.ops_b]))
            moved[ops] = max(moved.get(ops, 0), block.times)
    for ops, times in moved.items():
        text = f"{_listed(ops)} launched in another order, {plural(times, 'time')} per unit"
        named.append(Finding(text=text, kind="moved"))
    return named


def _of_rows(rows: Sequence[Row]) -> list[Finding]:
    """Rows by themselves; those of an op of which several kernels took the place of others are one change."""
    groups: dict[object, list[int]] = {}
    for index, row in enumerate(rows):
        if row.block is None and row.confidence != BELOW and (row.kind in EXACT or row.confidence in NAMED):
            exchanged = row.kind == "other_kernel" and row.op
            groups.setdefault((row.op, row.dims, row.types) if exchanged else index, []).append(index)
    named = []
    for members in groups.values():
        is_exchange = len({rows[index].kernel_a is None for index in members}) == 2
        for indices in [members] if is_exchange else [[index] for index in members]:
            named.append(_of_one([rows[index] for index in indices], indices))
    return named


def _of_one(rows: Sequence[Row], indices: list[int]) -> Finding:
    """One change, of one row or of several kernels of one op."""
    row, ns = rows[0], sum(row.ns for row in rows)
    op = f"{row.op or 'no known op'} {short_dims(row.dims)}".strip()
    sides = [row.kernel_a for row in rows], [row.kernel_b for row in rows]
    old, new = map(_kernels, sides)
    if old == new and sides[0] != sides[1]:
        new = f"another variant of {new}"
    if row.kind == SHARED:
        text = f"{op}: {old} takes {100 * row.slower:+.1f} % ({_us(ns)} per unit)"
    elif row.kind == "count":
        text = f"{op}: {old} runs {row.n_a:g} -> {row.n_b:g} times ({_us(ns)})"
    else:
        text = f"{op}: {old} -> {new} ({_us(ns)})"
    return Finding(text=text, ns=ns, kind=row.kind, confidence=row.confidence, rows=indices)


def _kernels(names: Sequence[str | None]) -> str:
    kernels = [
        short_kernel(name) or "a kernel without a name" for name in dict.fromkeys(names) if name is not None
    ]
    return _listed(kernels, NAMES)


def _of_times(a: Units, b: Units) -> tuple[list[Finding], list[str]]:
    """Times that changed much: beyond the error of their means, and those that are not named."""
    beyond = times_beyond_error(a, b)
    named, unnamed = [], []
    for name in filter(functools.partial(time_is_large, a, b), TIMED):
        a_ns, b_ns = a.mean_ns(name), b.mean_ns(name)
        text = f"{time_name(name)}: {time_text(a_ns)} -> {time_text(b_ns)} per unit"
        if name not in beyond:
            is_known = min(len(units.times_ns[name]) for units in (a, b)) >= MIN_STEPS
            varies = "its steps vary as much" if is_known else "too few steps tell how much it varies"
            text += f", and {varies}"
        elif name == "idle":
            change = {cause: b.mean_ns(cause) - a.mean_ns(cause) for cause in CAUSES}
            text += f", most of it {CAUSE_WORDS[max(CAUSES, key=lambda cause: abs(change[cause]))]}"
        text = "; ".join(filter(None, (text, unlike_steps(a, b, name).text)))
        if name in beyond:
            named.append(Finding(text=text, ns=b_ns - a_ns, kind=name))
        else:
            unnamed.append(text)
    if gap_is_large(a, b):
        gap_a, gap_b, period_a, period_b = (
            time_text(as_a_rule(times)) for times in (a.gap_ns, b.gap_ns, a.period_ns, b.period_ns)
        )
        unnamed.append(
            f"from a step's GPU work to the next one's: {period_a} -> {period_b}, because of the time "
            f"between them, {gap_a} -> {gap_b} (host, data loader), which is in no figure above; it differs "
            "from process to process"
        )
    return named, unnamed


def _listed(names: Sequence[str], limit: int = 6) -> str:
    return ", ".join(names[:limit]) + (", ..." if len(names) > limit else "") or "nothing"


def time_text(ns: float) -> str:
    return f"{ns / 1000:,.1f} µs"


def _us(ns: float) -> str:
    return f"{ns / 1000:+,.1f} µs" if ns else "0 µs"


def file_of(side: str, work: Work) -> File:
    path = work.trace.source
    return File(side=side, path=str(path), sha256=sha256_of(path) if path.is_file() else "", rank=work.rank)


def evidence_of(number: int, units: Units, finding: Finding, rows: Sequence[Row]) -> list[Evidence]:
    """What stands for a finding about `rows` on side `number`: the first call of its API function, the
    operation of median duration, the longest gap of a unit; none where the side has none."""
    work, index = units.work, 0
    start_ns, dur_ns, launched_ns, correlation = work.start_ns, work.dur_ns, work.launched_ns, work.ops.corr
    events = np.empty(0, dtype=np.int64)
    if finding.call:
        api = work.trace.api
        start_ns, dur_ns, launched_ns, correlation = api.start_ns, api.dur_ns, api.start_ns, api.corr
        # nsys writes cudaLaunchKernel_v7000
        name = re.compile(re.escape(finding.call) + (r"(_v.*)?" if work.plain else ""), re.DOTALL)
        is_named = work.trace.by_text(lambda text: name.fullmatch(text) is not None, api.name_id)
        events = np.flatnonzero(is_named & units.called)
        events = events[np.argsort(start_ns[events], kind="stable")]
    elif keys := {key for row in rows if (key := row.keys[number])}:
        events = np.flatnonzero(work.is_key(keys.__contains__) & units.chosen)
        events, index = events[np.argsort(dur_ns[events], kind="stable")], (len(events) - 1) // 2
    elif finding.kind == "idle":
        chosen = np.flatnonzero(units.chosen)
        unit, begins = units.step_of[chosen], start_ns[chosen]
        start_ns = np.maximum.accumulate(begins + dur_ns[chosen])
        dur_ns = np.where(unit[1:] == unit[:-1], begins[1:] - start_ns[:-1], 0)
        launched_ns, correlation = launched_ns[chosen], np.full(len(chosen), -1)
        events = np.flatnonzero(dur_ns > 0)
        events = events[np.argsort(-dur_ns[events], kind="stable")]
    if not len(events):
        return []
    event = int(events[index])
    idle = f"idle before {work.kernel(chosen[event + 1])}" if finding.kind == "idle" else ""
    return [
        Evidence(
            side="AB"[number],
            file=work.trace.source.name,
            event=finding.call or idle or work.kernel(event),
            start_ns=int(start_ns[event]),
            dur_ns=int(dur_ns[event]),
            unit=int(step_at(work.steps_ns, launched_ns[[event]])[0]),
            correlation=int(correlation[event]),
            count=len(events),
        )
    ]
