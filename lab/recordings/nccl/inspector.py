"""NCCL Inspector: one object per operation and rank; ranks are paired by communicator and number."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from lab.core.words import plural
from lab.perfmodel.communication import kind_in
from lab.recordings.nccl.evidence import Document, Evidence, integer, number, part, text
from lab.recordings.ranks.stragglers import over_the_others
from lab.stats import robust

KNOWN_FORMAT = "v4.0"
LONGEST_US = 1e12  # of a call: eleven days


class _Execution(NamedTuple):
    """What one rank says of one call."""

    exec_us: float
    kind: str
    num_bytes: int


Call = tuple[str, int]  # communicator, number
Calls = dict[Call, dict[int, _Execution]]  # by rank


def is_inspector(document: Any) -> bool:
    return bool(part(document, "header")) and any(
        part(document, name) for name in ("coll_perf", "p2p_perf", "metadata")
    )


def inspector_evidence(documents: Sequence[Document]) -> Evidence:
    """One row per call. Its execution includes waiting, so the shortest over ranks is the transfer.

    Numbers with gaps are normal (a ring of 1024 calls, none below 8192 bytes); ranks are those of the
    communicator.
    """
    evidence = Evidence("NCCL Inspector")
    calls: Calls = {}
    sizes: dict[str, int] = {}
    odd: Counter[str] = Counter()
    for path, document in documents:
        if isinstance(document, dict) and document.get("cut"):
            evidence.missing.append(f"{path.name}: the file is cut")
        elif not part(document, "header"):
            odd["of another kind: left out"] += 1
        elif problem := _take(document, calls, sizes, odd):
            odd[problem] += 1
    for communicator, size in sizes.items():
        if size < 1:
            evidence.missing.append(f"communicator {communicator}: how many ranks it has is not said")
        ranks = {rank for (name, _), by_rank in calls.items() if name == communicator for rank in by_rank}
        if len(ranks) < size:
            absent = list(islice((rank for rank in range(size) if rank not in ranks), 8))
            num_hidden = size - len(ranks) - len(absent)
            names = ", ".join(map(str, absent)) + (f" and {num_hidden} more" if num_hidden > 0 else "")
            evidence.missing.append(f"communicator {communicator}: no file of rank {names}")
    paired = {call: by_rank for call, by_rank in calls.items() if _is_alike(by_rank)}
    if len(paired) < len(calls):
        odd["are another collective or size on another rank: not paired"] += len(calls) - len(paired)
    evidence.rows = [
        _row(call, by_rank, sizes.get(call[0], -1), call in paired) for call, by_rank in sorted(calls.items())
    ]
    complete = [row for row in evidence.rows if row["complete"]]
    evidence.missing += [f"{plural(count, 'operation')} {problem}" for problem, count in odd.items()]
    if not complete:
        evidence.missing.append(
            "no call is recorded by every rank: nothing is known of transfers and waiting"
        )
    evidence.sentences.append(
        f"{plural(len(evidence.rows), 'call')}, {len(complete)} of them recorded by every rank of "
        f"{plural(len(sizes), 'communicator')}"
    )
    for row in complete:
        key = row["kind"], row["bytes"], row["ranks"]
        if row["transfer_us"] > 0:
            evidence.speeds[key] = min(row["transfer_us"], evidence.speeds.get(key, math.inf))
    for communicator, size in sizes.items():
        of_all = [r for (name, _), r in paired.items() if name == communicator and len(r) == size]
        _name_late_ranks(evidence, communicator, size, of_all)
    return evidence


def _take(document: Any, calls: Calls, sizes: dict[str, int], odd: Counter[str]) -> str:
    """Add one operation to `calls`; returns why it was left out, "" if it was not."""
    header, perf = part(document, "header"), part(document, "coll_perf")
    version = part(document, "metadata").get("inspector_output_format_version", "that is not said")
    if version != KNOWN_FORMAT:
        odd[f"of format {text(version)}, read as {KNOWN_FORMAT}"] += 1
    if not perf:
        is_p2p = part(document, "p2p_perf")
        return "are sends or receives, whose partners do not share a number: left out" if is_p2p else ""
    communicator, rank = text(header.get("id", "?")), integer(header.get("rank"))
    exec_us, serial = number(perf.get("coll_exec_time_us")), integer(perf.get("coll_sn"))
    num_ranks = integer(header.get("n_ranks"))
    if rank < 0 or serial < 0 or not 0 <= exec_us < LONGEST_US:
        return "without rank, number or time: left out"
    if 0 < num_ranks <= rank:
        return "of a rank that its communicator cannot have: left out"
    if sizes.get(communicator, num_ranks) != num_ranks:
        return "say another number of ranks of their communicator: left out"
    if "coll_timing_source" not in perf:
        odd["do not say what timed them: taken as the GPU's time"] += 1
    elif perf["coll_timing_source"] != "kernel_gpu":
        return "timed on the host, which is no transfer: left out"
    sizes[communicator] = num_ranks
    by_rank = calls.setdefault((communicator, serial), {})
    if rank in by_rank:
        return "are there twice for one rank: the first counts"
    name = text(perf.get("coll", ""))
    by_rank[rank] = _Execution(exec_us, kind_in(name) or name, integer(perf.get("coll_msg_size_bytes")))
    return ""


def _is_alike(by_rank: Mapping[int, _Execution]) -> bool:
    """Whether all ranks say the same collective and size; ranks of an all-to-all have sizes of their own."""
    return len({(e.kind, 0 if e.kind == "all_to_all" else e.num_bytes) for e in by_rank.values()}) == 1


def _row(call: Call, by_rank: Mapping[int, _Execution], size: int, is_alike: bool) -> dict[str, Any]:
    last_rank = min(by_rank, key=lambda rank: (by_rank[rank].exec_us, rank))
    execution, complete = by_rank[last_rank], is_alike and len(by_rank) == size
    return {
        "communicator": call[0],
        "number": call[1],
        "kind": execution.kind,
        "bytes": execution.num_bytes,
        "ranks": size,
        "complete": complete,
        "transfer_us": execution.exec_us,
        "longest_us": max(e.exec_us for e in by_rank.values()),
        "last_rank": last_rank if complete and size > 1 else -1,
    }


def _name_late_ranks(
    evidence: Evidence, communicator: str, size: int, calls: Sequence[Mapping[int, _Execution]]
) -> None:
    """Ranks that others wait for: they spend less time in collectives, by the rule of all of lab."""
    if size < 3 or not calls:
        return
    total_us = np.array([sum(by_rank[rank].exec_us for by_rank in calls) for rank in range(size)])
    for rank, ns in enumerate(over_the_others((-1e3 * total_us).tolist(), robust.median(total_us) * 1e3)):
        if ns:
            evidence.late_ranks.append((rank, ns / 1e6))
            evidence.sentences.append(
                f"rank {rank} of communicator {communicator} comes late: the others spend {ns / 1e6:.1f} ms "
                f"more in {plural(len(calls), 'call')}, waiting for it"
            )
