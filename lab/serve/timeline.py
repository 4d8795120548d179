"""Turn a recording into the columns that the page's canvas draws: GPU operations, host calls, launches."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import pandas as pd

from lab.core.words import plural, ranks_text
from lab.errors import BadDataError, LabError
from lab.recordings.capture import API_COLUMNS, Capture, filled
from lab.recordings.gantt import bars_of_capture, process_names
from lab.recordings.gantt.bars import CPU, FAMILIES, FAMILY_OF, Bars, Span, assemble, joined, kinds_of
from lab.recordings.integrity.words import sentences
from lab.recordings.load import load_capture
from lab.recordings.names import short_name
from lab.recordings.pairing import pair_collectives
from lab.recordings.processes import combined, with_processes
from lab.recordings.projection import project
from lab.recordings.projection.sums import RangeForest
from lab.recordings.tables import Table
from lab.recordings.views.collectives import collective_instances

MAGIC = b"LABTL1\0\0"
MOST_BARS = 4_000_000
MOST_DEPTH, DEPTH_BITS = 8, 4  # of nested operators, where these are all there is
HOST = {"name": "host calls", "role": "idle"}


@dataclass(frozen=True)
class Columns:
    """What a page draws. Bars (n,) come by row, then start; times in ticks of `header["tickUs"]`.

    flow: for a host call the first GPU operation that it launched, for an operation its call; -1 for none.
    """

    header: dict[str, Any]
    start: np.ndarray
    dur: np.ndarray
    row: np.ndarray
    kind: np.ndarray
    flow: np.ndarray


def columns_of(paths: Sequence[Path]) -> Columns:
    """The timeline of one recording, or of the ranks of one job under each other on one clock.

    Ranks that cannot be read are in `header["notes"]`. Raises BadDataError where nothing can be drawn.
    """
    captures, notes = _read(paths)
    capture = captures[0] if len(captures) == 1 else combined(paths[0].parent, captures)
    capture = with_processes(capture)
    notes += [*capture.problems, *sentences(capture.lacks, processes=len(capture.processes))]
    deep = not len(capture.ops) and not len(capture.api)
    if deep:
        capture = _ranges_as_calls(capture, notes, paths[0])
    return _assembled(capture, notes, deep)


def _ranges_as_calls(capture: Capture, notes: list[str], path: Path) -> Capture:
    """On a CPU, where nothing is launched, operators and ranges are what there is: a row for each depth."""
    nest = RangeForest(capture)
    rows = np.flatnonzero((nest.level >= 0) & (nest.level < MOST_DEPTH))
    if not len(rows):
        raise BadDataError("no GPU operation, host call or range in this recording", location=path)
    notes.append(f"no GPU operation: operators and ranges of the host are drawn, {MOST_DEPTH} levels deep")
    ranges = capture.ranges.take(rows)
    shared = {name: getattr(ranges, name) for name in API_COLUMNS if name in set(ranges)}
    # Threads have numbers of up to 32 bits; the depth goes above them, so that each has a row of its own.
    shared |= {"tid": (ranges.tid << DEPTH_BITS) + nest.level[rows], "corr": np.full(len(rows), -1)}
    return replace(capture, api=filled(API_COLUMNS, shared))


def _read(paths: Sequence[Path]) -> tuple[list[Capture], list[str]]:
    if len(paths) == 1:
        return [load_capture(paths[0])], []
    captures: list[Capture] = []
    notes: list[str] = []
    for path in paths:
        try:
            captures.append(with_processes(load_capture(path)))
        except LabError as error:
            notes.append(f"{path.name} is left out: {error.problem}")
    if not captures:
        raise BadDataError(
            "none of the recordings can be read", location=paths[0].parent, fix="; ".join(notes[:3])
        )
    if len({capture.collector for capture in captures}) > 1:
        raise BadDataError("recordings of several profilers do not share a clock", location=paths[0].parent)
    return _on_one_clock(captures, notes), notes


def _on_one_clock(captures: list[Capture], notes: list[str]) -> list[Capture]:
    """Each rank's times less what its collectives show its clock to be off."""
    ranks: dict[int, Table] = {}
    of_rank: dict[int, int] = {}
    for index, capture in enumerate(captures):
        rank = next((process.rank for process in capture.processes if process.rank is not None), None)
        if capture.collector != "kineto" or rank is None or rank in ranks:
            notes.append("clocks of the ranks are as recorded: no collectives tell how far they are off")
            return captures
        ranks[rank] = collective_instances(capture)
        of_rank[rank] = index
    pairs = pair_collectives(ranks)
    offsets = pairs.offsets_ns
    doubtful = {
        "no collective with the others tells how far it is off": [
            clock.rank for clock in pairs.clocks if np.isnan(clock.low_ns)
        ],
        "its collectives contradict each other": [
            clock.rank for clock in pairs.clocks if not clock.plausible
        ],
    }
    notes += [
        f"{ranks_text(odd, limit=16)}: clock as recorded, {text}" for text, odd in doubtful.items() if odd
    ]
    for rank, offset_ns in offsets.items():
        if offset_ns:
            captures[of_rank[rank]] = _moved(captures[of_rank[rank]], -offset_ns)
            notes.append(f"rank {rank}: moved by {-offset_ns / 1000:+.1f} µs, by the ends of its collectives")
    return captures


def _moved(capture: Capture, by_ns: int) -> Capture:
    def moved(table: Table) -> Table:
        return Table({**table.as_dict(), "start_ns": table.start_ns + by_ns, "end_ns": table.end_ns + by_ns})

    return replace(capture, ops=moved(capture.ops), api=moved(capture.api), ranges=moved(capture.ranges))


def _assembled(capture: Capture, notes: list[str], deep: bool) -> Columns:
    projection = project(capture)
    gpu = bars_of_capture(projection)
    api = projection.capture.api
    call_of = projection.ops.api
    shown = np.arange(len(api))
    if len(gpu.row) + len(api) > MOST_BARS:
        shown = np.unique(call_of[call_of >= 0])
        notes.append(
            f"only the {plural(len(shown), 'host call')} that launched something are drawn, of {len(api):,}"
        )
    if len(gpu.row) + len(shown) > MOST_BARS:
        raise BadDataError(
            f"{len(gpu.row) + len(shown):,} bars, more than {MOST_BARS:,}",
            location=capture.source,
            fix="record fewer steps, or lab export RUN --to perfetto",
        )
    zero_ns = int(capture.ops.start_ns.min()) if len(capture.ops) else int(api.start_ns.min())
    host = _host_bars(projection.capture, shown, zero_ns, deep)
    return _joined(gpu, host, shown, call_of, capture, notes)


def _host_bars(capture: Capture, shown: np.ndarray, zero_ns: int, deep: bool) -> Bars:
    api = capture.api.take(shown)
    frame = pd.DataFrame(
        {
            "rank": api.process,
            "device": np.full(len(api), CPU),
            "stream": api.tid,
            "start_us": (api.start_ns - zero_ns) / 1000,
            "dur_us": (api.end_ns - api.start_ns) / 1000,
            "family": np.full(len(api), FAMILY_OF["other"], dtype=np.int8),
            "name": capture.text(api.name_id),
        }
    )
    bars = assemble(frame, [], process_names(capture))
    rows = [_host_row(text, deep) for text in bars.rows]
    return replace(bars, rows=rows, family=np.full(len(bars.row), len(FAMILIES), dtype=np.int8))


def _host_row(text: str, deep: bool) -> str:
    """`CPU thread 12 calls`; with the depth in the thread's number `CPU thread 12 level 0`."""
    words = text.removesuffix(" compute")
    if not deep:
        return f"{words} calls"
    thread, _, number = words.rpartition(" ")
    return f"{thread} {int(number) >> DEPTH_BITS} level {int(number) % (1 << DEPTH_BITS)}"


def _joined(
    gpu: Bars, host: Bars, shown: np.ndarray, call_of: np.ndarray, capture: Capture, notes: list[str]
) -> Columns:
    """GPU rows and host rows of each rank together, and the flows between their bars."""
    lanes = [(lane[0], 0, index) for index, lane in enumerate(gpu.lane)]
    lanes += [(lane[0], 1, index + len(gpu.rows)) for index, lane in enumerate(host.lane)]
    order = [index for _, _, index in sorted(lanes)]
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    row = place[np.concatenate([gpu.row, host.row + len(gpu.rows)])]
    start_us = np.concatenate([gpu.start_us, host.start_us])
    dur_us = np.maximum(np.concatenate([gpu.dur_us, host.dur_us]), 0)
    first_us = float(start_us.min())
    start_us = start_us - first_us  # host calls come before the first operation
    sorting = np.lexsort((start_us, row))
    bars = replace(
        gpu,
        row=row,
        name=np.concatenate([gpu.name, host.name + len(gpu.names)]),
        names=[*gpu.names, *host.names],
        family=np.concatenate([gpu.family, host.family]),
        labels={name: np.concatenate([ids, np.full(len(host.row), -1)]) for name, ids in gpu.labels.items()},
    )
    kind_of_bar, kinds, texts = kinds_of(bars)
    end_us = float((start_us + dur_us).max())
    tick_us = max(0.001, end_us / (2**32 - 1))
    rows = [*gpu.rows, *host.rows]
    header = {
        "tickUs": tick_us,
        "count": len(row),
        "rows": [rows[index] for index in order],
        "families": [*({"name": name, "role": role} for name, role, _ in FAMILIES), HOST],
        "texts": texts,
        "short": [short_name(name) for name in bars.names],
        "kinds": kinds,
        "marks": [[one.name, one.start_us - first_us, one.end_us - first_us] for one in _joint(gpu.marks)],
        "shades": [
            [int(place[index]), float(piece[0]) - first_us, float(piece[1]) - first_us]
            for index, lane in enumerate(gpu.lane)
            for piece in joined(gpu.overlap[lane], 0.0, gpu.end_us * 1.001)
        ],
        "notes": list(dict.fromkeys(notes))[:50],
        "source": capture.collector,
    }
    return Columns(
        header=header,
        start=np.rint(start_us / tick_us)[sorting].astype("<u4"),
        dur=np.rint(dur_us / tick_us)[sorting].astype("<u4"),
        row=row[sorting].astype("<u4"),
        kind=kind_of_bar[sorting].astype("<u4"),
        flow=_flows(gpu, host, shown, call_of, sorting).astype("<i4"),
    )


def _joint(marks: Sequence[Span]) -> list[Span]:
    """Join the same step of several ranks: overlapping spans of one name, from first start to last end."""
    by_name: dict[str, list[Span]] = {}
    for mark in sorted(marks, key=lambda mark: mark.start_us):
        same = by_name.setdefault(mark.name, [])
        if same and mark.start_us < same[-1].end_us:
            same[-1] = replace(same[-1], end_us=max(same[-1].end_us, mark.end_us))
        else:
            same.append(mark)
    return sorted((mark for same in by_name.values() for mark in same), key=lambda mark: mark.start_us)


def _flows(gpu: Bars, host: Bars, shown: np.ndarray, call_of: np.ndarray, sorting: np.ndarray) -> np.ndarray:
    """For each drawn bar (n,) the drawn bar at the other end of its launch, -1 for none."""
    drawn = np.empty(len(sorting), dtype=np.int64)  # from the place before sorting to that after
    drawn[sorting] = np.arange(len(sorting))
    bar_of_call = np.full(int(call_of.max(initial=-1)) + 2, -1)
    calls = shown[host.order]
    launching = calls < len(bar_of_call) - 1
    bar_of_call[calls[launching]] = drawn[len(gpu.row) + np.flatnonzero(launching)]
    flow = np.full(len(sorting), -1)
    call = call_of[gpu.order]
    target = np.where(call >= 0, bar_of_call[call], -1)
    operations = drawn[: len(gpu.row)]
    flow[operations] = target
    linked = target >= 0
    # Written last to first, so that a call keeps the first operation that it launched.
    late = np.argsort(-gpu.start_us[linked], kind="stable")
    flow[target[linked][late]] = operations[linked][late]
    return flow


def write_columns(columns: Columns, file: BinaryIO) -> None:
    """Write MAGIC, the header's length, the header (JSON, padded to 8 bytes), the columns; little endian."""
    head = msgspec.json.encode(columns.header)
    head += b" " * (-len(head) % 8)
    file.write(MAGIC + struct.pack("<Q", len(head)) + head)
    for values in (columns.start, columns.dur, columns.row, columns.kind, columns.flow):
        file.write(np.ascontiguousarray(values).tobytes())
