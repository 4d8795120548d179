"""What is in doubt: ranks with unequal counts, launches without an op."""

from __future__ import annotations

from lab.core.words import plural
from lab.rooms.kernels.catalogue.rank import RankData
from lab.rooms.kernels.catalogue.unique import ranks_text
from lab.rooms.kernels.schema import Launch, Signatures

MARKED = ("prefill", "decode")


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


def stand_ins(ranks: list[RankData]) -> list[str]:
    """A sentence for each rank whose launches are operators of the CPU though it used a GPU."""
    lost = [one for one in ranks if not one.on_gpu and any(lack.axis == "gpu" for lack in one.lacks)]
    return [
        f"{one.path.name}: no GPU row was recorded: operators on the CPU stand in for its launches, and "
        "their times are the CPU's"
        for one in lost
    ]


def launches_without_op(launches: list[Launch], ranks: list[RankData]) -> list[str]:
    """A sentence with their number and share of time, for replayed ones and for others, if there are any."""
    graphs = {rank.rank: rank.replayed.inside for rank in ranks if rank.replayed is not None and rank.on_gpu}
    orphans: dict[bool, list[float]] = {True: [], False: []}
    for one in launches:
        if one.op_id < 0:
            orphans[one.rank in graphs and bool(graphs[one.rank][one.row])].append(one.dur_us)
    total_us = sum(one.dur_us for one in launches) or 1.0
    whole = plural(len(launches), "launch")
    why = {
        True: "graphs replayed them: give their capture, or an eager trace of the same model, with --capture",
        False: "their ops began outside the recording, or were not recorded",
    }
    return [
        f"{len(us)} of {whole} ({100 * sum(us) / total_us:.1f} % of the time) have no op: {why[of_graph]}"
        for of_graph, us in orphans.items()
        if us
    ]
