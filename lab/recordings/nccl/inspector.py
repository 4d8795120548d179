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
LONGEST_US = 1e12  # of a call: eleven days
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
    unlike: set[Call] = set()
    for path, document in found:
        if isinstance(document, dict) and document.get("cut"):
            done.missing.append(f"{path.name}: the file is cut")
            continue
        if not isinstance(document, dict) or not part(document, "header"):
            odd["of another kind: left out"] += 1
            continue
        _take(document, calls, sizes, odd)
    for communicator, size in sizes.items():
        if size < 1:
            done.missing.append(f"communicator {communicator}: how many ranks it has is not said")
        ranks = {rank for (name, _), mine in calls.items() if name == communicator for rank in mine}
        if len(ranks) < size:
            first = list(islice((rank for rank in range(size) if rank not in ranks), 8))
            more = size - len(ranks) - len(first)
            names = ", ".join(map(str, first)) + (f" and {more} more" if more > 0 else "")
            done.missing.append(f"communicator {communicator}: no file of rank {names}")
    for call, mine in calls.items():
        if len({(kind, 0 if kind == "all_to_all" else size) for _, kind, size in mine.values()}) > 1:
            odd["are another collective or size on another rank: not paired"] += 1
            unlike.add(call)
    done.rows = [
        _row(call, mine, sizes.get(call[0], -1), call not in unlike) for call, mine in sorted(calls.items())
    ]
    whole_calls = [row for row in done.rows if row["complete"]]
    done.missing += [f"{plural(count, 'operation')} {words}" for words, count in odd.items()]
    if not whole_calls:
        done.missing.append("no call is recorded by every rank: nothing is known of transfers and waiting")
    done.sentences.append(
        f"{plural(len(done.rows), 'call')}, {len(whole_calls)} of them recorded by every rank of "
        f"{plural(len(sizes), 'communicator')}"
    )
    for row in whole_calls:
        key = row["kind"], row["bytes"], row["ranks"]
        if row["transfer_us"] > 0:
            done.speeds[key] = min(row["transfer_us"], done.speeds.get(key, math.inf))
    paired = {call: mine for call, mine in calls.items() if call not in unlike}
    for communicator, size in sizes.items():
        _late(done, communicator, size, paired)
    return done


def _take(
    document: Any,
    calls: dict[Call, dict[int, tuple[float, str, int]]],
    sizes: dict[str, int],
    odd: Counter[str],
) -> None:
    header, perf = part(document, "header"), part(document, "coll_perf")
    version = part(document, "metadata").get("inspector_output_format_version", "that is not said")
    if version != KNOWN_FORMAT:
        odd[f"of format {text(version)}, read as {KNOWN_FORMAT}"] += 1
    if not perf:
        if part(document, "p2p_perf"):
            odd["are sends or receives, whose partners do not share a number: left out"] += 1
        return
    communicator, rank = text(header.get("id", "?")), whole(header.get("rank"))
    exec_us, serial = number(perf.get("coll_exec_time_us")), whole(perf.get("coll_sn"))
    if rank < 0 or serial < 0 or not 0 <= exec_us < LONGEST_US:
        odd["without rank, number or time: left out"] += 1
        return
    n_ranks = whole(header.get("n_ranks"))
    if 0 < n_ranks <= rank:
        odd["of a rank that its communicator cannot have: left out"] += 1
        return
    if sizes.get(communicator, n_ranks) != n_ranks:
        odd["say another number of ranks of their communicator: left out"] += 1
        return
    if "coll_timing_source" not in perf:
        odd["do not say what timed them: taken as the GPU's time"] += 1
    if perf.get("coll_timing_source", "kernel_gpu") != "kernel_gpu":
        odd["timed on the host, which is no transfer: left out"] += 1
        return
    sizes[communicator] = n_ranks
    name = text(perf.get("coll", ""))
    mine = calls.setdefault((communicator, serial), {})
    if rank in mine:
        odd["are there twice for one rank: the first counts"] += 1
        return
    mine[rank] = exec_us, kind_in(name) or name, whole(perf.get("coll_msg_size_bytes"))


def _row(call: Call, mine: Mapping[int, tuple[float, str, int]], size: int, alike: bool) -> dict[str, Any]:
    times = {rank: one[0] for rank, one in mine.items()}
    last = min(times, key=lambda rank: (times[rank], rank))
    _, kind, num_bytes = mine[last]
    return {
        "communicator": call[0],
        "number": call[1],
        "kind": kind,
        "bytes": num_bytes,
        "ranks": size,
        "complete": alike and len(mine) == size,
        "transfer_us": times[last],
        "longest_us": max(times.values()),
        "last_rank": last if alike and len(mine) == size and size > 1 else -1,
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
