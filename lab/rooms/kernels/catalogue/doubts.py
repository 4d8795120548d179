"""doubts"""

from __future__ import annotations

from lab.rooms.kernels.catalogue.rank import RankData
from lab.rooms.kernels.catalogue.unique import ranks_text
from lab.rooms.kernels.schema import (
    Launch,
    Signatures,
)

MARKED = ("prefill", "decode")


def uneven(found: Signatures) -> list[str]:
    """Ranks that launched different numbers of the same thing, in a sentence; they should not under tensor parallel."""
    if len(found.ranks) < 2:
        return []
    odd = [
        one
        for one in found.signatures
        if one.phase in MARKED
        and (len(one.count_by_rank) != len(found.ranks) or len(set(one.count_by_rank.values())) > 1)
    ]
    if not odd:
        return []
    worst = ", ".join(f"{one.kernel} ({ranks_text(one.count_by_rank)})" for one in odd[:3])
    return [
        f"{len(odd)} of {len(found.signatures)} distinct launches are not equally many on all ranks: {worst}"
    ]


def owners_missing(launches: list[Launch], ranks: list[RankData]) -> list[str]:
    """How many launches have no op, in launches and in time: graphs hide theirs, and so does what began before."""
    orphans = [one.dur_us for one in launches if one.op_id < 0]
    if not orphans:
        return []
    share = 100 * sum(orphans) / (sum(one.dur_us for one in launches) or 1.0)
    graphs = any(
        "cudaGraphLaunch" in rank.trace.strings or "hipGraphLaunch" in rank.trace.strings for rank in ranks
    )
    why = "CUDA graphs hide them" if graphs else "their ops began outside the recording, or were not recorded"
    return [f"{len(orphans)} of {len(launches)} launches ({share:.1f} % of the time) have no op: {why}"]
