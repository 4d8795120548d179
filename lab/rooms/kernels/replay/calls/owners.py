"""Which call is replayed for a launch, and why some launches are not replayed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lab.recordings.compiled import is_inductor
from lab.recordings.names import kernel_class
from lab.rooms.kernels.replay.calls.recording import Op

COLLECTIVE = "a collective: it needs the other ranks, and a replay is one process"


def gather(ops: Sequence[Op], owners: Mapping[int, int]) -> dict[int, int]:
    """Each launch goes to the outermost op that launches: calling it calls its inner ops too."""
    launching, outermost = set(owners.values()), {}
    for owner in launching:
        best, above = owner, ops[owner].parent
        while above >= 0:
            callable_ = above in launching and "::" in ops[above].name
            best, above = (above if callable_ else best), ops[above].parent
        outermost[owner] = best
    return {launch: outermost[owner] for launch, owner in owners.items()}


def why_orphan(name: str, op: Op | None) -> str:
    """Why a launch cannot be replayed through its op; "" if it can."""
    if kernel_class(name) == "comm":
        return COLLECTIVE
    if op is None:
        return "no op owns it"
    return (
        ""
        if "::" in op.name or is_inductor(op.name)
        else f"launched by {op.name!r}, which is no registered op"
    )
