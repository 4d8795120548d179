"""Collectives of many ranks, matched: which rank was late, how long others waited, how fast the links were.

By process group and sequence number where the recording has them; otherwise by order, if every rank
recorded the same calls, whatever the clocks say; otherwise by the best common order of calls that can have
met on a common clock (Needleman and Wunsch, 1970, with agreement of the ends as the score), so that a lost
collective costs one row and shifts no other. The clocks are a result of the pairing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lab.core.words import plural
from lab.recordings.pairing.clocks import Clock, clocks_of
from lab.recordings.pairing.match import match_calls
from lab.recordings.pairing.rows import UNNAMED, CallRows, Match, bus_factor, running_count
from lab.recordings.tables import Table
from lab.stats.columns import objects

__all__ = ["Clock", "Pairs", "pair_collectives"]


@dataclass(frozen=True)
class Pairs:
    """The collectives of a set of ranks.

    collectives: one row per matched call, in order of its earliest start. Columns: collective_id, pg_name,
    pg_desc, pg_ranks, collective, kind, blocks (no rank leaves before all are in), dtype, in_nelems,
    out_nelems, msg_bytes, group_size, index_in_group, num_ranks, complete, missing_ranks (text `1, 5`),
    ts_ns, latency_us (the shortest, so the transfer without the waiting), start_skew_us, end_skew_us,
    straggler_rank (started last), first_rank, algbw_gb_s, busbw_gb_s (GB = 1e9 bytes; NaN where
    unknown), stream, step, confidence (`seq`, `order`, `lcs` or, without metadata, `stream`). A call seen on
    one rank alone has NaN skews and straggler_rank -1.
    instances: the rows of every rank's table with rank, collective_id (-1: cannot be matched; of several
    sends and receives in one kernel the first), all_in_ns (when the last of those it waits for had come),
    awaited (that one's rank, -1 where it cannot be told), wait_us until then, and ts_ns corrected by
    offsets_ns. legs: of every paired send and receive its instance and collective_id, the ranks that it goes
    from and to, and whether it waits (a send that NCCL buffered does not).
    clocks: each rank's clock against the reference rank's, with bounds; offsets_ns: what was subtracted from
    each rank's times in the middle of the recording, if they were impossible. problems: sentences.
    """

    ranks: tuple[int, ...]
    collectives: Table
    instances: Table
    legs: Table
    offsets_ns: dict[int, int]
    problems: tuple[str, ...]
    clocks: tuple[Clock, ...] = ()


def pair_collectives(ranks: Mapping[int, Table], *, hosts: Mapping[int, str] | None = None) -> Pairs:
    """Match the rows of `views.collective_instances`, one table per rank.

    A rank without rows or without a table is missing in every collective of its groups. hosts: the host of
    each rank where it is known; ranks of different hosts are put on one clock. Cost: a sort of all
    rows where calls have sequence numbers or every rank has all of them; otherwise the square
    of the calls between two steps.
    """
    rows = CallRows(ranks)
    matches = match_calls(rows)
    return _pairs_of(rows, matches, clocks_of(rows, matches, hosts=hosts))


def _pairs_of(rows: CallRows, matches: Sequence[Match], clocks: tuple[Clock, ...]) -> Pairs:
    start = np.array(rows.start, dtype=np.int64)
    for index, clock in enumerate(clocks):
        if clock.corrected:
            of_rank = rows.rank_index == index
            start[of_rank] -= clock.error_ns(start[of_rank])
    call = np.full(len(rows.rank), -1, dtype=np.int64)
    confidence: list[str] = []
    for group, match in enumerate(matches):
        members = rows.of_group(group)
        used, dense = np.unique(match.call[match.call >= 0], return_inverse=True)
        call[members[match.call >= 0]] = dense.ravel() + len(confidence)
        confidence += [match.confidence] * len(used)
    # Numbers of calls are columns of tables, so they count over all groups, by time.
    call, confidence = _in_order_of_time(call, confidence, start)
    table = CallSummary(rows, call, start)
    collectives = table.collectives(confidence)
    return Pairs(
        ranks=rows.ranks,
        collectives=collectives,
        instances=_instances(rows, call, start, table.all_in(), collectives),
        legs=_legs(rows, call),
        offsets_ns={clock.rank: round(clock.offset_ns) if clock.corrected else 0 for clock in clocks},
        problems=tuple(_problems_of(rows, call, collectives, clocks)),
        clocks=clocks,
    )


def _instances(
    rows: CallRows, call: np.ndarray, start: np.ndarray, all_in: np.ndarray, collectives: Table
) -> Table:
    """One row per kernel of every rank, with its call, and whom it waits for until when."""
    straggler = np.append(collectives.straggler_rank, -1)[call]
    blocks = np.append(collectives.blocks.astype(bool), False)[call]
    awaited = np.where(rows.p2p | blocks, straggler, -1)
    awaited = np.where((awaited >= 0) & (all_in <= start), rows.rank, awaited)
    wait = np.where(call >= 0, (all_in - start) / 1e3, np.nan)
    # Of the rows of one kernel the one that all the others are in before stands for it.
    order = np.lexsort((call < 0, -all_in, rows.source))
    of_kernel = order[np.searchsorted(rows.source[order], np.arange(_num_kernels(rows)))]
    named = np.full(_num_kernels(rows), np.iinfo(np.int64).max)
    np.minimum.at(named, rows.source[call >= 0], call[call >= 0])
    columns = {
        "rank": rows.rank[of_kernel],
        "collective_id": np.where(named == np.iinfo(np.int64).max, -1, named),
        **rows.kernels,
        "ts_ns": start[of_kernel],
        "all_in_ns": all_in[of_kernel],
        "awaited": awaited[of_kernel],
        "wait_us": wait[of_kernel],
    }
    return Table(columns)


def _legs(rows: CallRows, call: np.ndarray) -> Table:
    """One row per paired send or receive."""
    is_leg = np.flatnonzero(rows.p2p & (call >= 0))
    routes = np.array([route or UNNAMED for route in rows.routes], dtype=np.int64).reshape(-1, 2)
    columns = {
        "instance": rows.source[is_leg],
        "collective_id": call[is_leg],
        "source": routes[rows.group[is_leg], 0],
        "target": routes[rows.group[is_leg], 1],
        "waits": ~rows.buffered[is_leg],
    }
    return Table(columns)


def _num_kernels(rows: CallRows) -> int:
    return int(rows.source[-1]) + 1 if len(rows.source) else 0


def _in_order_of_time(
    call: np.ndarray, confidence: list[str], start: np.ndarray
) -> tuple[np.ndarray, list[str]]:
    earliest = np.full(len(confidence), np.iinfo(np.int64).max)
    np.minimum.at(earliest, call[call >= 0], start[call >= 0])
    order = np.argsort(earliest, kind="stable")
    number = np.empty(len(order) + 1, dtype=np.int64)
    number[order], number[-1] = np.arange(len(order)), -1
    return number[call], [confidence[i] for i in order]


def _problems_of(
    rows: CallRows, call: np.ndarray, collectives: Table, clocks: Sequence[Clock]
) -> Iterator[str]:
    num = len(collectives)
    is_loose = (call < 0) & rows.p2p
    loose, unnamed = int(is_loose.sum()), np.array([route == UNNAMED for route in rows.routes], dtype=bool)
    if loose:
        reason = "their partners are not named" if unnamed[rows.group[is_loose]].all() else "no partner fits"
        yield f"{plural(loose, 'send or receive', 'sends or receives')} not paired: {reason}"
    incomplete = int((~collectives.complete).sum()) if num else 0
    if incomplete:
        yield f"{incomplete} of {num} collectives are incomplete: not every rank of the group recorded them"
    if num and (unsure := int((collectives.confidence == "stream").sum())):
        yield f"{unsure} of {num} collectives have no metadata: they were paired by stream and order only"
    if num and (by_lcs := int((collectives.confidence == "lcs").sum())):
        yield f"{by_lcs} of {num} collectives were aligned, because not every rank recorded the same calls"
    if rows.not_aligned:
        calls = plural(rows.not_aligned, "collective")
        yield f"{calls} of one rank not aligned: too many between two steps"
    for clock in clocks:
        drift = f" and drifts by {clock.drift_ppm:.1f} ppm" if clock.drift_ppm else ""
        if clock.corrected:
            off_us = clock.offset_ns / 1e3
            yield f"the clock of rank {clock.rank} was off by {off_us:.1f} us{drift}: corrected"
        if not clock.plausible:
            yield (
                f"the clock of rank {clock.rank} contradicts the collectives: it is at least "
                f"{clock.low_ns / 1e3:.0f} us and at most {clock.high_ns / 1e3:.0f} us ahead; "
                "its pairing or its clock is wrong"
            )


class CallSummary:
    """One row per call from the rows that belong to it."""

    def __init__(self, rows: CallRows, call: np.ndarray, start: np.ndarray) -> None:
        self._rows, self._call = rows, call
        order, from_last = (np.lexsort((rows.rank, key, call)) for key in (start, -start))
        self._index = order[call[order] >= 0]
        call_of_row = call[self._index]
        self._num = int(call_of_row[-1]) + 1 if len(call_of_row) else 0
        self._offset = np.searchsorted(call_of_row, np.arange(self._num))
        self._size = np.diff(np.append(self._offset, len(call_of_row)))
        self._start = start
        self._ends = start + rows.dur
        # The row that started last in each call; the lowest rank among equals.
        self._last_rows = from_last[call[from_last] >= 0][self._offset]
        self.last_start = start[self._last_rows]

    def all_in(self) -> np.ndarray:
        """When the last that each row (n,) waits for had come; its own start where that is unknown."""
        last_start_ns = np.append(self.last_start, np.iinfo(np.int64).min)[self._call]
        waits = (self._call >= 0) & ~self._rows.buffered
        return np.where(waits, np.maximum(last_start_ns, self._start), self._start)

    def collectives(self, confidence: Sequence[str]) -> Table:
        rows, lead = self._rows, self._index[self._offset]
        kinds = [rows.kinds[i] for i in lead.tolist()]
        columns: dict[str, Any] = {"collective_id": np.arange(self._num)}
        for name in ("pg_name", "pg_desc", "pg_ranks", "collective"):
            columns[name] = rows.column(name)[lead]
        columns["kind"] = objects(kinds)
        columns["blocks"] = rows.blocking[lead]
        columns["dtype"] = rows.column("dtype")[lead]
        for name in ("in_nelems", "out_nelems", "msg_bytes"):
            columns[name] = self._reduce(np.maximum, rows.column(name))
        columns |= self._membership(lead) | self._times()
        size = np.where(columns["group_size"] > 0, columns["group_size"], self._size)
        columns |= self._bandwidth(columns["msg_bytes"], columns["latency_us"], kinds, size)
        for name in ("stream", "step"):
            columns[name] = rows.column(name)[lead]
        return Table({**columns, "confidence": objects(confidence)})

    def _membership(self, lead: np.ndarray) -> dict[str, np.ndarray]:
        rows = self._rows
        num_ranks = len(rows.ranks)
        is_member = np.zeros((self._num, num_ranks), dtype=bool)
        is_member[np.repeat(np.arange(self._num), self._size), rows.rank_index[self._index]] = True
        expected = [rows.members_of(group) for group in range(rows.num_groups)]
        group = rows.group[lead]
        texts: dict[tuple[int, bytes], str] = {}
        missing = []
        for g, mask in zip(group.tolist(), is_member, strict=True):
            # Thousands of calls lack the same ranks: each set becomes a text once.
            key = (g, mask.tobytes())
            if key not in texts:
                members = {rank for rank, is_there in zip(rows.ranks, mask.tolist(), strict=True) if is_there}
                texts[key] = ", ".join(str(rank) for rank in expected[g] if rank not in members)
            missing.append(texts[key])
        is_p2p = np.array([bool(route) for route in rows.routes], dtype=bool)[group]
        size = np.where(is_p2p, 2, self._reduce(np.maximum, rows.column("group_size")))
        expected_size = np.array([len(expected[g]) for g in group.tolist()], dtype=np.int64)
        nothing_missing = np.array([text == "" for text in missing], dtype=bool)
        complete = nothing_missing & (self._size >= np.maximum(size, 1))
        return {
            "group_size": np.where(size > 0, size, expected_size),
            "index_in_group": running_count(group),
            "num_ranks": self._size,
            "complete": complete,
            "missing_ranks": objects(missing),
        }

    def _times(self) -> dict[str, np.ndarray]:
        alone = self._size < 2
        first_row, last_row = self._index[self._offset], self._last_rows
        end_first, end_last = self._reduce(np.minimum, self._ends), self._reduce(np.maximum, self._ends)
        return {
            "ts_ns": self._start[first_row],
            "latency_us": self._reduce(np.minimum, self._rows.dur) / 1e3,
            "start_skew_us": np.where(alone, np.nan, (self.last_start - self._start[first_row]) / 1e3),
            "end_skew_us": np.where(alone, np.nan, (end_last - end_first) / 1e3),
            "straggler_rank": np.where(alone, -1, self._rows.rank[last_row]),
            "first_rank": np.where(alone, -1, self._rows.rank[first_row]),
        }

    def _bandwidth(
        self, num_bytes: np.ndarray, latency_us: np.ndarray, kinds: Sequence[str], sizes: np.ndarray
    ) -> dict[str, np.ndarray]:
        measurable = (num_bytes >= 0) & (latency_us > 0)
        algbw = np.full(self._num, np.nan)
        algbw[measurable] = num_bytes[measurable] / latency_us[measurable] / 1e3
        factor = np.array(
            [bus_factor(*pair) for pair in zip(kinds, sizes.tolist(), strict=True)], dtype=float
        )
        return {"algbw_gb_s": algbw, "busbw_gb_s": algbw * factor}

    def _reduce(self, operation: Any, values: np.ndarray) -> np.ndarray:
        if not self._num:
            return values[:0]
        reduced: np.ndarray = operation.reduceat(values[self._index], self._offset)
        return reduced
