"""The critical path over ranks: from the last end back, always to what held the start."""

from __future__ import annotations

from dataclasses import dataclass

from lab.recordings.ranks.common import UNKNOWN
from lab.recordings.ranks.replay import Outcome, Step

ENTERED, BEFORE, HOST_TIME = "entered late", "work of the step before", "host"
COMPUTE, TRANSFER, COPY, GAP = "compute", "transfer", "copy", "gap"


@dataclass(frozen=True)
class Piece:
    """A piece of the path: whose time, of which kind, from when to when (ns since the step's begin).

    key is the operation's key on its rank, -1 for the host. Pieces tile the step from begin to end.
    """

    rank: int
    kind: str
    begin_ns: float
    end_ns: float
    key: int = -1

    @property
    def ns(self) -> float:
        return self.end_ns - self.begin_ns


def critical_path(step: Step, outcome: Outcome, kinds: dict[int, list[str]]) -> list[Piece]:
    """Pieces in order of time; kinds[rank][place] is compute, transfer or copy for each operation."""
    rank = max(outcome.end, key=lambda played: max(outcome.end[played]))
    ends = outcome.end[rank]
    place = max(range(len(ends)), key=ends.__getitem__)
    origin = step.begin
    pieces: list[Piece] = []
    until = ends[place]
    while True:
        played = step.ranks[rank]
        if (
            rank,
            place,
        ) in outcome.latest_of:  # data moves from the last arrival on; before it counts that rank
            last_rank, last_place = outcome.latest_of[rank, place]
            start_ns = outcome.start[last_rank][last_place]
            pieces.append(Piece(rank, TRANSFER, start_ns - origin, until - origin, int(played.key[place])))
            rank, place, played = last_rank, last_place, step.ranks[last_rank]
        else:
            start_ns = outcome.start[rank][place]
            pieces.append(
                Piece(rank, kinds[rank][place], start_ns - origin, until - origin, int(played.key[place]))
            )
        by_host, previous = outcome.held_by[rank][place]
        if by_host and previous == UNKNOWN:
            break
        until = outcome.end[rank][previous]  # of a host that waited: what it waited for
        pieces.append(Piece(rank, HOST_TIME if by_host else GAP, until - origin, start_ns - origin))
        place = previous
    played = step.ranks[rank]
    pieces.append(Piece(rank, HOST_TIME, played.begin - origin, start_ns - origin))
    if played.begin > origin:
        pieces.append(Piece(rank, BEFORE if step.spills else ENTERED, 0.0, played.begin - origin))
    return [piece for piece in reversed(pieces) if piece.ns > 0]


def shares(path: list[Piece]) -> list[tuple[int, str, float]]:
    """(rank, kind, ns) summed, largest first."""
    sums: dict[tuple[int, str], float] = {}
    for piece in path:
        sums[piece.rank, piece.kind] = sums.get((piece.rank, piece.kind), 0.0) + piece.ns
    return sorted(((rank, kind, ns) for (rank, kind), ns in sums.items()), key=lambda share: -share[2])
