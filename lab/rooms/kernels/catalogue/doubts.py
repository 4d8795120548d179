"""What is in doubt: ranks with unequal counts, launches without an op."""

from __future__ import annotations

from lab.core.words import plural
from lab.rooms.kernels.catalogue.rank import RankData
from lab.rooms.kernels.catalogue.unique import ranks_text
from lab.rooms.kernels.schema import Launch, Signatures

MARKED = ("prefill", "decode")


def uneven_ranks(signatures: Signatures) -> list[str]:
    """One sentence if ranks launched the same thing unequally often; tensor parallel ranks never do."""
    if len(signatures.ranks) < 2:
        return []
    odd = [
        signature
        for signature in signatures.signatures
        if signature.phase in MARKED
        and (
            len(signature.count_by_rank) != len(signatures.ranks)
            or len(set(signature.count_by_rank.values())) > 1
        )
    ]
    if not odd:
        return []
    worst = ", ".join(f"{signature.kernel} ({ranks_text(signature.count_by_rank)})" for signature in odd[:3])
    return [
        f"{len(odd):,} of {plural(len(signatures.signatures), 'distinct launch')} with different counts "
        f"on different ranks: {worst}"
    ]


def stand_ins(ranks: list[RankData]) -> list[str]:
    """A sentence for each rank whose launches are operators of the CPU though it used a GPU."""
    lost = [rank for rank in ranks if not rank.on_gpu and any(lack.axis == "gpu" for lack in rank.lacks)]
    return [
        f"{rank.path.name}: no GPU row was recorded: operators on the CPU stand in for its launches, and "
        "their times are the CPU's"
        for rank in lost
    ]


def launches_without_op(launches: list[Launch], ranks: list[RankData]) -> list[str]:
    """A sentence with their number and share of time, for replayed ones and for others, if there are any."""
    graphs = {rank.rank: rank.replayed.inside for rank in ranks if rank.replayed is not None and rank.on_gpu}
    orphans: dict[bool, list[float]] = {True: [], False: []}
    for launch in launches:
        if launch.op_id < 0:
            orphans[launch.rank in graphs and bool(graphs[launch.rank][launch.row])].append(launch.dur_us)
    total_us = sum(launch.dur_us for launch in launches) or 1.0
    all_launches = plural(len(launches), "launch")
    reasons = {
        True: "graphs replayed them: give their capture, or an eager trace of the same model, with --capture",
        False: "their ops began outside the recording, or were not recorded",
    }
    return [
        f"{len(us)} of {all_launches} ({100 * sum(us) / total_us:.1f} % of the time) have no op: {reason}"
        for of_graph, reason in reasons.items()
        if (us := orphans[of_graph])
    ]
