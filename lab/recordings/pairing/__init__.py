"""Collectives of many ranks, matched: which rank was late, how long others waited, how fast the links were.

By process group and sequence number where the recording has them; otherwise by order, if every rank
recorded the same calls, whatever the clocks say; otherwise by the best common order of calls that can have
met on a common clock (Needleman and Wunsch, 1970, with agreement of the ends as the score), so that a lost
collective costs one row and shifts no other. The clocks are a result of the pairing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lab.core.words import plural
from lab.recordings.pairing.clocks import Clock, clocks_of
from lab.recordings.pairing.match import match_calls
from lab.recordings.pairing.rows import UNNAMED, CallRows, bus_factor, running_count
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
    awaited (that one's rank, -1 where it cannot be told), p2p (a send or receive), wait_us until then, and
    ts_ns corrected by offsets_ns. legs: of every paired send and receive its instance and collective_id, the
    ranks that it goes from and to, and whether it waits (a send that NCCL buffered does not).
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
    call, confidence = match_calls(rows)
    clocks = clocks_of(rows, call, hosts=hosts)
    start = np.array(rows.start, dtype=np.int64)
    for index, clock in enumerate(clocks):
        of_rank = rows.rank_index == index
        start[of_rank] -= clock.error_ns(start[of_rank])
    # Numbers of calls are columns of tables, so they count over all groups, by time.
    earliest = np.full(len(confidence), np.iinfo(np.int64).max)
    np.minimum.at(earliest, call[call >= 0], start[call >= 0])
    order = np.argsort(earliest, kind="stable")
    call = np.append(np.argsort(order), -1)[call]
    collectives = _collectives(rows, call, start, [confidence[i] for i in order])
    return Pairs(
        ranks=rows.ranks,
        collectives=collectives,
        instances=_instances(rows, call, start, collectives),
        legs=_legs(rows, call),
        offsets_ns={clock.rank: round(clock.offset_ns) if clock.corrected else 0 for clock in clocks},
        problems=tuple(_problems_of(rows, call, collectives, clocks)),
        clocks=clocks,
    )


def _collectives(rows: CallRows, call: np.ndarray, start: np.ndarray, confidence: Sequence[str]) -> Table:
    """One row per call from the rows that belong to it."""
    num_calls = len(confidence)
    order, from_last = (
        by_call[call[by_call] >= 0]
        for by_call in (np.lexsort((rows.rank, key, call)) for key in (start, -start))
    )
    offset = np.searchsorted(call[order], np.arange(num_calls))
    size = np.diff(np.append(offset, len(order)))
    # The rows that started first and last in each call; the lowest rank among equals.
    lead, latest = order[offset], from_last[offset]

    def reduced(operation: np.ufunc, values: np.ndarray) -> np.ndarray:
        result: np.ndarray = operation.reduceat(values[order], offset)
        return result

    kinds, group = rows.kinds[lead], rows.group[lead]
    members = [{*rows.members_of(number)} for number in range(len(rows.groups))]
    absent = _absent_ranks(members, group, rows.rank[order], offset, size)
    is_p2p = np.array([bool(route) for route in rows.routes], dtype=bool)[group]
    named_size = np.where(is_p2p, 2, reduced(np.maximum, rows.column("group_size")))
    num_members = np.array([*map(len, members)], dtype=np.int64)[group]
    group_size = np.where(named_size > 0, named_size, num_members)
    num_bytes = reduced(np.maximum, rows.column("msg_bytes"))
    latency_us = reduced(np.minimum, rows.dur) / 1e3
    ends, alone = start + rows.dur, size < 2
    num_sharing = np.where(group_size > 0, group_size, size)

    def skew_us(skew_ns: np.ndarray) -> np.ndarray:
        return np.where(alone, np.nan, skew_ns / 1e3)

    return Table(
        {
            "collective_id": np.arange(num_calls),
            **{name: rows.column(name)[lead] for name in ("pg_name", "pg_desc", "pg_ranks", "collective")},
            "kind": kinds,
            "blocks": rows.blocking[lead],
            "dtype": rows.column("dtype")[lead],
            **{name: reduced(np.maximum, rows.column(name)) for name in ("in_nelems", "out_nelems")},
            "msg_bytes": num_bytes,
            "group_size": group_size,
            "index_in_group": running_count(group),
            "num_ranks": size,
            "complete": np.array([not ranks for ranks in absent], dtype=bool)
            & (size >= np.maximum(named_size, 1)),
            "missing_ranks": objects([", ".join(map(str, ranks)) for ranks in absent]),
            "ts_ns": start[lead],
            "latency_us": latency_us,
            "start_skew_us": skew_us(start[latest] - start[lead]),
            "end_skew_us": skew_us(reduced(np.maximum, ends) - reduced(np.minimum, ends)),
            "straggler_rank": np.where(alone, -1, rows.rank[latest]),
            "first_rank": np.where(alone, -1, rows.rank[lead]),
            **_bandwidths(kinds, num_bytes, latency_us, num_sharing),
            **{name: rows.column(name)[lead] for name in ("stream", "step")},
            "confidence": objects(confidence),
        }
    )


def _absent_ranks(
    members: Sequence[set[int]], group: np.ndarray, rank: np.ndarray, offset: np.ndarray, size: np.ndarray
) -> list[list[int]]:
    """The members of each call's group that are not among the ranks at its offset: they did not record it."""
    ranks, spans = rank.tolist(), zip(offset.tolist(), (offset + size).tolist(), strict=True)
    return [
        sorted(members[number].difference(ranks[low:high]))
        for number, (low, high) in zip(group.tolist(), spans, strict=True)
    ]


def _bandwidths(
    kinds: np.ndarray, num_bytes: np.ndarray, latency_us: np.ndarray, num_ranks: np.ndarray
) -> dict[str, np.ndarray]:
    """GB/s of the algorithm and of the bus of each call, NaN where size or time is unknown."""
    algbw = np.full(len(kinds), np.nan)
    measurable = (num_bytes >= 0) & (latency_us > 0)
    algbw[measurable] = num_bytes[measurable] / latency_us[measurable] / 1e3
    factors = [bus_factor(*pair) for pair in zip(kinds, num_ranks.tolist(), strict=True)]
    return {"algbw_gb_s": algbw, "busbw_gb_s": algbw * np.array(factors, dtype=float)}


def _instances(rows: CallRows, call: np.ndarray, start: np.ndarray, collectives: Table) -> Table:
    """One row per kernel of every rank, with its call, and whom it waits for until when."""
    is_paired, kernels = call >= 0, np.arange(rows.num_kernels)
    last_start = np.full(len(collectives) + 1, np.iinfo(np.int64).min)
    np.maximum.at(last_start, call[is_paired], start[is_paired])
    # Its own start where it is unknown when the last that a row waits for had come.
    all_in = np.where(is_paired & ~rows.buffered, last_start[call], start)
    straggler = np.append(collectives.straggler_rank, -1)[call]
    blocks = np.append(collectives.blocks.astype(bool), False)[call]
    awaited = np.where(rows.p2p | blocks, straggler, -1)
    awaited = np.where((awaited >= 0) & (all_in <= start), rows.rank, awaited)
    wait = np.where(is_paired, (all_in - start) / 1e3, np.nan)
    # Of the rows of one kernel the one that all the others are in before stands for it.
    order = np.lexsort((~is_paired, -all_in, rows.source))
    of_kernel = order[np.searchsorted(rows.source[order], kernels)]
    unnamed = len(collectives)
    number = np.full(len(kernels), unnamed)
    np.minimum.at(number, rows.source[is_paired], call[is_paired])
    columns = {
        "rank": rows.rank[of_kernel],
        "collective_id": np.where(number == unnamed, -1, number),
        **rows.kernels,
        "ts_ns": start[of_kernel],
        "all_in_ns": all_in[of_kernel],
        "awaited": awaited[of_kernel],
        "p2p": rows.p2p[of_kernel],
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
