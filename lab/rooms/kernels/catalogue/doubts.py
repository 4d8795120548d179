"""What is in doubt: ranks with unequal counts, launches without an op."""

from __future__ import annotations

from lab.core.words import plural
from lab.rooms.kernels.catalogue.rank import RankData
from lab.rooms.kernels.catalogue.unique import ranks_text
from lab.rooms.kernels.schema import Launch, Signatures

MARKED = ("prefill", "decode")
GRAPH_LAUNCHES = ("cudaGraphLaunch", "hipGraphLaunch")


def uneven_ranks(found: Signatures) -> list[str]:
    """One sentence if ranks launched the same thing unequally often; tensor parallel ranks never do."""
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
        f"{len(odd):,} of {plural(len(found.signatures), 'distinct launch')} with different counts "
        f"on different ranks: {worst}"
    ]


def launches_without_op(launches: list[Launch], ranks: list[RankData]) -> list[str]:
    """One sentence with their number and share of time, if there are any."""
    orphans = [one.dur_us for one in launches if one.op_id < 0]
    if not orphans:
        return []
    share = 100 * sum(orphans) / (sum(one.dur_us for one in launches) or 1.0)
    graphs = any(name in rank.trace.strings for rank in ranks for name in GRAPH_LAUNCHES)
    why = "CUDA graphs hide them" if graphs else "their ops began outside the recording, or were not recorded"
    whole = plural(len(launches), "launch")
    return [f"{len(orphans)} of {whole} ({share:.1f} % of the time) have no op: {why}"]
