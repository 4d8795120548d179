"""The collectives of a set of ranks, from their traces' tables of collectives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lab.core.words import plural
from lab.recordings.pairing.clocks import Clock, clocks_of
from lab.recordings.pairing.match import match_calls
from lab.recordings.pairing.rows import UNNAMED, CallRows, Match
from lab.recordings.pairing.summary import CallSummary
from lab.recordings.tables import Table


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
    call, confidence = _in_order_of_time(call, confidence, start)
    table = CallSummary(rows, call, start)
    collectives = table.collectives(confidence)
    all_in = table.all_in()
    straggler = np.append(collectives.straggler_rank, -1)[call] if len(confidence) else call
    blocks = np.append(collectives.blocks.astype(bool), False)[call] if len(confidence) else call >= 0
    awaited = np.where(rows.p2p | blocks, straggler, -1)
    awaited = np.where((awaited >= 0) & (all_in <= start), rows.rank, awaited)
    wait = np.where(call >= 0, (all_in - start) / 1e3, np.nan)
    # Of the rows of one kernel the one that all the others are in before stands for it.
    order = np.lexsort((call < 0, -all_in, rows.source))
    of_kernel = order[np.searchsorted(rows.source[order], np.arange(_num_kernels(rows)))]
    named = np.full(_num_kernels(rows), np.iinfo(np.int64).max)
    np.minimum.at(named, rows.source[call >= 0], call[call >= 0])
    instances = {
        "rank": rows.rank[of_kernel],
        "collective_id": np.where(named == np.iinfo(np.int64).max, -1, named),
        **rows.kernels,
        "ts_ns": start[of_kernel],
        "all_in_ns": all_in[of_kernel],
        "awaited": awaited[of_kernel],
        "wait_us": wait[of_kernel],
    }
    is_leg = np.flatnonzero(rows.p2p & (call >= 0))
    routes = np.array([route or UNNAMED for route in rows.routes], dtype=np.int64).reshape(-1, 2)
    legs = {
        "instance": rows.source[is_leg],
        "collective_id": call[is_leg],
        "source": routes[rows.group[is_leg], 0],
        "target": routes[rows.group[is_leg], 1],
        "waits": ~rows.buffered[is_leg],
    }
    return Pairs(
        ranks=rows.ranks,
        collectives=collectives,
        instances=Table(instances),
        legs=Table(legs),
        offsets_ns={clock.rank: round(clock.offset_ns) if clock.corrected else 0 for clock in clocks},
        problems=tuple(_problems_of(rows, call, collectives, clocks)),
        clocks=clocks,
    )


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
