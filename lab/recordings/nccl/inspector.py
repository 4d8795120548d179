"""NCCL Inspector: one object per operation and rank; ranks are paired by communicator and number."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from lab.core.words import plural
from lab.recordings.communication import kind_in
from lab.recordings.nccl.evidence import Evidence, number, part, text, whole
from lab.recordings.ranks.stragglers import over_the_others
from lab.stats import robust

KNOWN_FORMAT = "v4.0"
Call = tuple[str, int]  # communicator, number


def is_inspector(document: Any) -> bool:
    return bool(part(document, "header")) and bool(
        part(document, "coll_perf") or part(document, "p2p_perf") or part(document, "metadata")
    )


def inspector_evidence(found: Sequence[tuple[Path, Any]]) -> Evidence:
    """One row per call. Its execution includes waiting, so the least over ranks is the transfer.

    Numbers with gaps are normal (a ring of 1024 calls, none below 8192 bytes); ranks are those of the
    communicator.
    """
    done = Evidence("NCCL Inspector")
    calls: dict[Call, dict[int, tuple[float, str, int]]] = {}
    sizes: dict[str, int] = {}
    odd: Counter[str] = Counter()
    for path, document in found:
        if isinstance(document, dict) and document.get("cut"):
            done.missing.append(f"{path.name}: the file is cut")
            continue
        _take(document, calls, sizes, odd)
    for words, count in odd.items():
        done.missing.append(f"{plural(count, 'operation')} {words}")
    for communicator, size in sizes.items():
        ranks = {rank for (name, _), mine in calls.items() if name == communicator for rank in mine}
        if len(ranks) < size:
            first = list(islice((rank for rank in range(size) if rank not in ranks), 8))
            more = size - len(ranks) - len(first)
            names = ", ".join(map(str, first)) + (f" and {more} more" if more > 0 else "")
            done.missing.append(f"communicator {communicator}: no file of rank {names}")
    done.rows = [_row(call, mine, sizes.get(call[0], -1)) for call, mine in sorted(calls.items())]
    whole_calls = [row for row in done.rows if row["complete"]]
    done.sentences.append(
        f"{plural(len(done.rows), 'call')}, {len(whole_calls)} of them recorded by every rank of "
        f"{plural(len(sizes), 'communicator')}"
    )
    for row in whole_calls:
        key = row["kind"], row["bytes"], row["ranks"]
        done.speeds[key] = min(row["transfer_us"], done.speeds.get(key, math.inf))
    for communicator, size in sizes.items():
        _late(done, communicator, size, calls)
    return done


def _take(
    document: Any,
    calls: dict[Call, dict[int, tuple[float, str, int]]],
    sizes: dict[str, int],
    odd: Counter[str],
) -> None:
    header, perf = part(document, "header"), part(document, "coll_perf")
    version = part(document, "metadata").get("inspector_output_format_version", KNOWN_FORMAT)
    if version != KNOWN_FORMAT:
        odd[f"of format {text(version)}, read as {KNOWN_FORMAT}"] += 1
    if not perf:
        if part(document, "p2p_perf"):
            odd["are sends or receives, whose partners do not share a number: left out"] += 1
        return
    communicator, rank = text(header.get("id", "?")), whole(header.get("rank"))
    exec_us, serial = number(perf.get("coll_exec_time_us")), whole(perf.get("coll_sn"))
    if rank < 0 or serial < 0 or not exec_us >= 0:
        odd["without rank, number or time: left out"] += 1
        return
    if perf.get("coll_timing_source", "kernel_gpu") != "kernel_gpu":
        odd["timed on the host, which is no transfer: left out"] += 1
        return
    sizes[communicator] = max(sizes.get(communicator, -1), whole(header.get("n_ranks")))
    name = text(perf.get("coll", ""))
    mine = calls.setdefault((communicator, serial), {})
    if rank in mine:
        odd["are there twice for one rank: the first counts"] += 1
        return
    mine[rank] = exec_us, kind_in(name) or name, whole(perf.get("coll_msg_size_bytes"))


def _row(call: Call, mine: Mapping[int, tuple[float, str, int]], size: int) -> dict[str, Any]:
    times = {rank: one[0] for rank, one in mine.items()}
    last = min(times, key=lambda rank: (times[rank], rank))
    _, kind, num_bytes = mine[last]
    return {
        "communicator": call[0],
        "number": call[1],
        "kind": kind,
        "bytes": num_bytes,
        "ranks": size,
        "complete": len(mine) == size,
        "transfer_us": times[last],
        "longest_us": max(times.values()),
        "last_rank": last if len(mine) == size and size > 1 else -1,
    }


def _late(
    done: Evidence, communicator: str, size: int, calls: Mapping[Call, Mapping[int, tuple[float, str, int]]]
) -> None:
    """Ranks that others wait for: they spend less time in collectives, by the rule of all of lab."""
    mine = [found for (name, _), found in calls.items() if name == communicator and len(found) == size]
    if size < 3 or not mine:
        return
    ranks = range(size)
    total_us = np.array([sum(found[rank][0] for found in mine) for rank in ranks])
    lead_ns = over_the_others((-1e3 * total_us).tolist(), robust.median(total_us) * 1e3)
    for rank, ns in zip(ranks, lead_ns, strict=True):
        if ns:
            done.late_ranks.append((rank, ns / 1e6))
            done.sentences.append(
                f"rank {rank} of communicator {communicator} comes late: the others spend {ns / 1e6:.1f} ms "
                f"more in {plural(len(mine), 'call')}, waiting for it"
            )
