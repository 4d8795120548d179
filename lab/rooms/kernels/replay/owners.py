"""owners"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from lab.rooms.kernels.replay.trace import Event, Op, TraceArgs

# Ops that no one can call alone, or that only wrap others: their parent is replayed in their place.
CLIMB = re.compile(r"aten::_(flash|efficient|cudnn)_attention_(forward|backward)\Z")


COLLECTIVES = re.compile(r"nccl|rccl|all_?reduce.*kernel", re.IGNORECASE)


def nest(ops: list[Op]) -> None:
    """Set each op's parent: the innermost one of its thread that contains it."""
    open_by_thread: dict[tuple[Any, Any], list[int]] = defaultdict(list)
    for place, op in enumerate(ops):
        stack = open_by_thread[(op.event.pid, op.event.tid)]
        end = op.event.ts + op.event.dur
        while stack and ops[stack[-1]].event.ts + ops[stack[-1]].event.dur < end - 1e-6:
            stack.pop()
        if stack:
            op.parent = stack[-1]
            ops[stack[-1]].children += 1
        stack.append(place)


def find_owners(
    ops: list[Op], gpu: Sequence[tuple[Event, TraceArgs]], runtime: dict[int, Event]
) -> dict[int, int]:
    """GPU event -> op, as places in both lists; launches that no op owns are absent."""
    by_id = {op.args.external_id: place for place, op in enumerate(ops) if op.args.external_id >= 0}
    threads: dict[tuple[Any, Any], list[int]] = defaultdict(list)
    for place, op in enumerate(ops):
        threads[(op.event.pid, op.event.tid)].append(place)
    found = {}
    for place, (_, args) in enumerate(gpu):
        owner = by_id.get(args.external_id, -1)
        if owner < 0 and args.correlation in runtime:
            owner = _around(ops, threads, runtime[args.correlation])
        if owner >= 0:
            found[place] = _climb(ops, owner)
    return found


def _around(ops: list[Op], threads: dict[tuple[Any, Any], list[int]], call: Event) -> int:
    """The innermost op of the call's thread that runs when the call begins, or -1."""
    places = threads.get((call.pid, call.tid), [])
    at = bisect_right(places, call.ts, key=lambda place: ops[place].event.ts) - 1
    place = places[at] if at >= 0 else -1
    while place >= 0 and ops[place].event.ts + ops[place].event.dur < call.ts:
        place = ops[place].parent
    return place


def _climb(ops: list[Op], place: int) -> int:
    """Up to an op that can be called by itself."""
    while ops[place].parent >= 0 and (
        CLIMB.match(ops[place].event.name) or "::" not in ops[place].event.name
    ):
        place = ops[place].parent
    return place


def gather(ops: list[Op], owners: dict[int, int]) -> dict[int, int]:
    """An op that launches takes in what the ops inside it launch: calling it launches all of them again."""
    launching, top = set(owners.values()), {}
    for owner in launching:
        best, place = owner, ops[owner].parent
        while place >= 0:
            best, place = (place if place in launching else best), ops[place].parent
        top[owner] = best
    return {launch: top[owner] for launch, owner in owners.items()}


def why_orphan(name: str, op: Op | None) -> str:
    if COLLECTIVES.search(name):
        return "a collective: replayed apart, by size"
    if op is None:
        return "no op owns it"
    return "" if "::" in op.event.name else f"launched by {op.event.name!r}, which is no registered op"
