"""What is named of a change: counts and kernels, durations, calls, idle and exposed time; its words, and the
rows of the recordings that it rests on."""

from __future__ import annotations

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
    times_beyond_error,
    unlike_steps,
)
from lab.compare.diff.split import Block, Row
from lab.compare.side import Key, Work, short_kernel, step_at
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
    ns: float | None
    kind: str
    confidence: str
    module_path: str = msgspec.field(name="where", default="")  # phase and modules around it
    rows: list[int] = []  # of Comparison.rows
    call: str = ""  # the API function of a change of calls
    evidence: list[Evidence] = []


def calls(a: Units, b: Units) -> list[Call]:
    """Every API function, those with another number of calls first."""
    names = {*a.calls, *b.calls}
    found_calls = [Call(name=name, n_a=a.calls.get(name, 0.0), n_b=b.calls.get(name, 0.0)) for name in names]
    return sorted(found_calls, key=lambda call: (-abs(call.n_b - call.n_a), call.name))


def findings(
    rows: Sequence[Row], blocks: Sequence[Block], a: Units, b: Units, totals: Sequence[Total]
) -> list[Finding]:
    """What is named, largest first. totals: over repeats, which then judge idle time; else none."""
    named = [*_of_blocks(rows, blocks)]
    exchanges = exchanged(rows)
    named += [_of_exchange([rows[index] for index in members], members) for members in exchanges]
    in_exchange = {index for members in exchanges for index in members}
    for index, row in enumerate(rows):
        loose = row.block is None and row.confidence not in ("", BELOW) and index not in in_exchange
        if loose and (row.kind in EXACT or row.confidence in NAMED):
            named.append(_of_row(row, index))
    for call in calls(a, b) if a.calls and b.calls else []:
        if calls_differ(a, b, call.name):
            text = f"{call.name}: {call.n_a:g} -> {call.n_b:g} calls per unit"
            named.append(Finding(text=text, ns=None, kind="api", confidence="exact count", call=call.name))
    if not without_times(a, b):
        named += [_of_time(a, b, name) for name in times_beyond_error(a, b) if name != "idle" or not totals]
        idle = next((total for total in totals if (total.name, total.statistic) == (IDLE, MEAN)), None)
        if idle is not None and idle.differs:
            named.append(_of_total(idle, "idle"))
    if between_is_named(a, b):
        work = f"{a.between:.3g} -> {b.between:.3g} GPU operations"
        times = f"{time_text(a.between_ns)} -> {time_text(b.between_ns)}"
        text = f"launched between steps, in no other figure: {work} between two ({times})"
        change_ns = b.between_ns - a.between_ns
        named.append(Finding(text=text, ns=change_ns, kind="work_between_steps", confidence=ONE_PAIR))
    return sorted(named, key=lambda finding: -abs(finding.ns or 0.0))


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
            ops_before, ops_after = (_listed(ops) or "nothing" for ops in (block.ops_a, block.ops_b))
            text = f"{ops_before} -> {ops_after}, {plural(block.times, 'time')} per unit ({_us(block.ns)})"
            named.append(
                Finding(text=text, ns=block.ns, kind="replaced_block", confidence=ONE_PAIR, rows=members)
            )
        elif not counted & {*block.ops_a, *block.ops_b}:  # else the rows of counts say it
            ops = tuple(dict.fromkeys([*block.ops_a, *block.ops_b]))
            moved[ops] = max(moved.get(ops, 0), block.times)
    for ops, times in moved.items():
        text = f"{_listed(ops)} launched in another order, {plural(times, 'time')} per unit"
        named.append(Finding(text=text, ns=None, kind="moved", confidence=ONE_PAIR))
    return named


def exchanged(rows: Sequence[Row]) -> list[list[int]]:
    """The rows of each op of which several kernels took the place of others: they are one change."""
    of_op: dict[tuple[str, str, str], list[int]] = {}
    for index, row in enumerate(rows):
        if row.kind == "other_kernel" and row.op and row.block is None and row.confidence not in ("", BELOW):
            of_op.setdefault((row.op, row.dims, row.types), []).append(index)
    sides = {op: {rows[index].kernel_a is None for index in members} for op, members in of_op.items()}
    return [members for op, members in of_op.items() if len(members) > 1 and len(sides[op]) == 2]


def _of_exchange(rows: Sequence[Row], indices: Sequence[int]) -> Finding:
    sides = [row.kernel_a for row in rows], [row.kernel_b for row in rows]
    kernels = [[short_kernel(name) for name in dict.fromkeys(side) if name] for side in sides]
    names = [", ".join(side[:NAMES]) + (", ..." if len(side) > NAMES else "") for side in kernels]
    ns = sum(row.ns for row in rows)
    text = f"{rows[0].op} {short_dims(rows[0].dims)}".strip() + f": {names[0]} -> {names[1]} ({_us(ns)})"
    return Finding(text=text, ns=ns, kind="other_kernel", confidence=rows[0].confidence, rows=list(indices))


def _of_row(row: Row, index: int) -> Finding:
    op = f"{row.op or 'no known op'} {short_dims(row.dims)}".strip()
    kernels = [
        "nothing" if name is None else short_kernel(name) or "a kernel without a name"
        for name in (row.kernel_a, row.kernel_b)
    ]
    if kernels[0] == kernels[1] and row.kernel_a != row.kernel_b:
        kernels[1] = f"another variant of {kernels[1]}"
    if row.kind == "same_kernel_duration":
        text = f"{op}: {kernels[0]} takes {100 * row.slower:+.1f} % ({_us(row.ns)} per unit)"
    elif row.kind == "count":
        text = f"{op}: {kernels[0]} runs {row.n_a:g} -> {row.n_b:g} times ({_us(row.ns)})"
    else:
        text = f"{op}: {kernels[0]} -> {kernels[1]} ({_us(row.ns)})"
    return Finding(text=text, ns=row.ns, kind=row.kind, confidence=row.confidence, rows=[index])


def _of_time(a: Units, b: Units, name: str) -> Finding:
    a_ns, b_ns = a.mean_ns(name), b.mean_ns(name)
    text = f"{name.replace('_', ' ')} time: {time_text(a_ns)} -> {time_text(b_ns)} per unit"
    if name == "idle":
        change = {cause: b.mean_ns(cause) - a.mean_ns(cause) for cause in CAUSES}
        text += f", most of it {CAUSE_WORDS[max(CAUSES, key=lambda cause: abs(change[cause]))]}"
    if carriers := unlike_steps(a, b, name):
        text += f"; {carriers.text}"
    return Finding(text=text, ns=b_ns - a_ns, kind=name, confidence=ONE_PAIR)


def unnamed(a: Units, b: Units) -> list[str]:
    """Times that changed much, and of which one pair cannot tell that from noise."""
    beyond = times_beyond_error(a, b)
    texts = []
    for name in TIMED:
        if time_is_large(a, b, name) and name not in beyond:
            times = f"{time_text(a.mean_ns(name))} -> {time_text(b.mean_ns(name))}"
            is_known = min(len(units.times_ns[name]) for units in (a, b)) >= MIN_STEPS
            varies = "its steps vary as much" if is_known else "too few steps tell how much it varies"
            text = f"{name.replace('_', ' ')} time: {times} per unit, and {varies}"
            carriers = unlike_steps(a, b, name)
            texts.append(f"{text}; {carriers.text}" if carriers else text)
    if gap_is_large(a, b):
        gap_a, gap_b, period_a, period_b = (
            time_text(as_a_rule(times)) for times in (a.gap_ns, b.gap_ns, a.period_ns, b.period_ns)
        )
        texts.append(
            f"from a step's GPU work to the next one's: {period_a} -> {period_b}, because of the time "
            f"between them, {gap_a} -> {gap_b} (host, data loader), which is in no figure above; it differs "
            "from process to process"
        )
    return texts


def _listed(ops: Sequence[str]) -> str:
    return ", ".join(ops[:6]) + (", ..." if len(ops) > 6 else "")


def time_text(ns: float) -> str:
    return f"{ns / 1000:,.1f} µs"


def _us(ns: float) -> str:
    return f"{ns / 1000:+,.1f} µs" if ns else "0 µs"


def files(side: str, works: Sequence[Work]) -> list[File]:
    paths = [(work.rank, work.trace.source) for work in works]
    return [
        File(side=side, path=str(path), sha256=sha256_of(path) if path.is_file() else "", rank=rank)
        for rank, path in paths
    ]


def evidence_of(
    side: str, work: Work, units: Units, *, keys: Sequence[Key | None], call: str, idle: bool
) -> list[Evidence]:
    """What stands for a finding on one side: a call of this API function, an operation with one of these
    keys, or the longest gap of a unit; none where the side has none."""
    if call:
        example = _first_call(work, units, call)
    elif any(keys):
        example = _median_operation(work, units, {*keys})
    else:
        example = _longest_gap(work, units) if idle else None
    if not example:
        return []
    event, (start_ns, dur_ns, launched_ns, correlation), count = example
    unit = int(step_at(work.steps_ns, np.array([launched_ns]))[0])
    return [
        Evidence(
            side=side,
            file=work.trace.source.name,
            event=event,
            start_ns=int(start_ns),
            dur_ns=int(dur_ns),
            unit=unit,
            correlation=int(correlation),
            count=count,
        )
    ]


# An event's name; its start, duration, launch and correlation; how many there are.
_Found = tuple[str, tuple[int, int, int, int], int]


def _first_call(work: Work, units: Units, call: str) -> _Found | None:
    api = work.trace.api
    # nsys writes cudaLaunchKernel_v7000
    is_named = work.trace.by_text(
        lambda text: text == call or (work.plain and text.startswith(f"{call}_v")), api.name_id
    )
    rows = np.flatnonzero(is_named & units.called)
    if not len(rows):
        return None
    row = rows[np.argmin(api.start_ns[rows])]
    return call, (api.start_ns[row], api.dur_ns[row], api.start_ns[row], api.corr[row]), len(rows)


def _median_operation(work: Work, units: Units, wanted: set[Key | None]) -> _Found | None:
    rows = np.flatnonzero(work.is_key(wanted.__contains__) & units.chosen)
    if not len(rows):
        return None
    row = rows[np.argsort(work.dur_ns[rows], kind="stable")[(len(rows) - 1) // 2]]
    times = work.start_ns[row], work.dur_ns[row], work.launched_ns[row], work.ops.corr[row]
    return work.kernel(row), times, len(rows)


def _longest_gap(work: Work, units: Units) -> _Found | None:
    rows = np.flatnonzero(units.chosen)
    ends = np.maximum.accumulate(work.start_ns[rows] + work.dur_ns[rows])
    unit = units.step_of[rows]
    inside_ns = np.where(unit[1:] == unit[:-1], work.start_ns[rows][1:] - ends[:-1], 0)
    if not (inside_ns > 0).any():
        return None
    longest = int(np.argmax(inside_ns))
    times = ends[longest], inside_ns[longest], work.launched_ns[rows[longest]], -1
    return f"idle before {work.kernel(rows[longest + 1])}", times, int((inside_ns > 0).sum())
