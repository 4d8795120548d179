"""What kind of hang the dumps show: who is waited for, in which collective, and from which source line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from lab.core.words import first_few, ranks_text
from lab.recordings.flight.dumps import Dump, Entry

NOT_JOINED, MISMATCHED, STUCK_KERNEL, ORDER_DEADLOCK, NONE, UNKNOWN = (
    "not_joined",
    "mismatched",
    "stuck_kernel",
    "order_deadlock",
    "none",
    "unknown",
)
_MOST_RANKS = 1 << 16
_OTHERS = "nothing says how many ranks the job has, and others may stand elsewhere"
_COLLECTIVES = "torch/distributed/distributed_c10d.py"
_LIBRARY = ("site-packages/torch/", "dist-packages/torch/", "/torch/distributed/", "<frozen")


@dataclass(frozen=True)
class Verdict:
    """What the dumps show. kind: one of the words above; ranks: the culprits.

    group, seq and collective name the call that does not end; frame is the source line of the culprit's call
    (of the waiting ranks' call where the culprit never made it), "" without one.
    """

    kind: str
    ranks: tuple[int, ...]
    group: str
    seq: int
    collective: str
    frame: str
    text: str
    missing: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Stall:
    """One call of one group that does not end everywhere."""

    group: str
    seq: int
    entries: Mapping[int, Entry]
    absent: tuple[int, ...]
    waiting: tuple[int, ...]
    awaited: tuple[int, ...]
    states_known: bool


def verdict_of(dumps: Mapping[int, Dump], unreadable: Collection[int] = ()) -> Verdict:
    """The verdict over one set of dumps; missing dumps are evidence, not an error.

    unreadable: ranks whose dumps are there and cannot be read, so that their absence is no evidence. A dump
    whose collectives have no numbers is one too: nobody can tell which calls of the other ranks they are.
    """
    blind = {rank for rank, dump in dumps.items() if _is_unnumbered(dump)}
    unreadable = {*unreadable, *blind}
    missing = tuple(sorted({*_missing(dumps), *blind}))
    dumps = {rank: dump for rank, dump in dumps.items() if rank not in blind}
    if blind and not dumps:
        text = (
            f"the collectives of {ranks_text(missing)} have no numbers, so no call can be told from another"
        )
        return Verdict(UNKNOWN, (), "", -1, "", "", text, missing)
    if not any(dump.entries or dump.status for dump in dumps.values()):
        text = "the dumps hold no collective: the recorder was off (TORCH_FR_BUFFER_SIZE), or none was called"
        return Verdict(UNKNOWN, (), "", -1, "", "", text, missing)
    mismatch = _first_mismatch(dumps, missing)
    stalls = [stall for group in _group_names(dumps) if (stall := _stall(dumps, group, missing)) is not None]
    if mismatch is not None and (not stalls or any(_is_at(mismatch, stall) for stall in stalls)):
        return mismatch
    if not stalls:
        return _nothing(dumps, missing, unreadable)
    cycle = _cycle(stalls)
    if cycle:
        return _deadlock(stalls, cycle, missing)
    stalls.sort(key=lambda stall: min((entry.created_ns for entry in stall.entries.values()), default=0))
    waiting = {rank for stall in stalls if stall.awaited for rank in stall.waiting}
    roots = [stall for stall in stalls if not waiting.issuperset(stall.awaited)]
    return _of_stall(dumps, (roots or stalls)[0], missing, unreadable)


def _missing(dumps: Mapping[int, Dump]) -> tuple[int, ...]:
    """Ranks that some group names and that left no dump; without names (gloo), gaps in the numbers from 0."""
    named = {rank for dump in dumps.values() for ranks in dump.groups.values() for rank in ranks}
    if not named and 0 in dumps and max(dumps) < _MOST_RANKS:
        named = set(range(max(dumps)))
    return tuple(sorted(named - set(dumps)))


def _group_names(dumps: Mapping[int, Dump]) -> list[str]:
    names: dict[str, None] = {}
    for dump in dumps.values():
        names.update(dict.fromkeys(entry.group for entry in dump.entries))
        names.update(dict.fromkeys(name for name, (enqueued, _) in dump.status.items() if enqueued > 0))
    return list(names)


def _members(dumps: Mapping[int, Dump], group: str) -> set[int]:
    """The ranks of a group; where no dump names them (gloo), those that have used it.

    Of the first group, which all ranks are in, those are all dumps.
    """
    for dump in dumps.values():
        if dump.groups.get(group):
            return set(dump.groups[group])
    if group in ("0", "default_pg"):
        return set(dumps)
    used = {
        rank
        for rank, dump in dumps.items()
        if group in dump.status or any(entry.group == group for entry in dump.entries)
    }
    # A group that only one rank has used has a partner all the same; of two ranks it is clear which.
    return set(dumps) if len(used) == 1 and len(dumps) == 2 else used


def _by_seq(dump: Dump, group: str) -> dict[int, Entry]:
    return {entry.seq: entry for entry in dump.entries if entry.group == group and not entry.is_p2p}


def _is_done(dump: Dump, entry: Entry | None, group: str, seq: int) -> bool:
    if dump.status.get(group, (-1, -1))[1] >= seq:
        return True
    if entry is None:
        return False
    return entry.state == "completed" or (entry.backend != "nccl" and entry.retired)


def _stall(dumps: Mapping[int, Dump], group: str, missing: Sequence[int]) -> _Stall | None:
    """The lowest call of a group that some rank has entered and not every rank has left."""
    members = _members(dumps, group)
    here = {rank: _by_seq(dumps[rank], group) for rank in sorted(members) if rank in dumps}
    seqs = sorted({seq for entries in here.values() for seq in entries})
    for seq in seqs:
        entries = {rank: found[seq] for rank, found in here.items() if seq in found}
        done = {rank for rank in here if _is_done(dumps[rank], entries.get(rank), group, seq)}
        joined = {
            rank for rank in here if rank in entries or dumps[rank].status.get(group, (-1, -1))[0] >= seq
        }
        waiting = tuple(sorted(joined - done))
        if not waiting:
            continue
        absent = tuple(sorted((set(here) - joined - done) | (members & set(missing))))
        known = any(
            entry.state in ("started", "completed") for found in here.values() for entry in found.values()
        )
        started = {rank for rank in waiting if rank in entries and entries[rank].state == "started"}
        awaited = absent or tuple(sorted(set(waiting) - started if started and known else ()))
        if absent:
            still = waiting
        else:
            still = tuple(sorted(started)) if started else waiting
        return _Stall(group, seq, entries, absent, still, awaited, known)
    return None


def _is_at(mismatch: Verdict, stall: _Stall) -> bool:
    return mismatch.group == stall.group and mismatch.seq <= stall.seq


def _first_mismatch(dumps: Mapping[int, Dump], missing: tuple[int, ...]) -> Verdict | None:
    """The earliest call on which ranks disagree."""
    for group in _group_names(dumps):
        members = sorted(_members(dumps, group) & set(dumps))
        here = {rank: _by_seq(dumps[rank], group) for rank in members}
        for seq in sorted({seq for entries in here.values() for seq in entries}):
            calls = {rank: entries[seq] for rank, entries in here.items() if seq in entries}
            views = {rank: _agreed(entry) for rank, entry in calls.items()}
            if _differ(list(views.values())):
                return _mismatched(group, seq, calls, views, missing)
    return None


def _agreed(entry: Entry) -> tuple[object, ...]:
    """What every rank must have in common in this call."""
    kind = entry.name.lower().replace("_", "")
    sizes: tuple[tuple[int, ...], ...]
    if "alltoall" in kind:
        sizes = ()
    elif "reducescatter" in kind or "scatter" in kind:
        sizes = entry.output_sizes
    elif "gather" in kind:
        sizes = entry.input_sizes
    else:
        sizes = entry.input_sizes
    known = sizes if sizes and all(number >= 0 for shape in sizes for number in shape) else None
    return entry.name, entry.dtypes[:1], known


def _differ(views: Sequence[tuple[object, ...]]) -> bool:
    """Whether ranks disagree on the op, its type, or its sizes where they were recorded."""
    return len({view[:2] for view in views}) > 1 or len({view[2] for view in views} - {None}) > 1


def _mismatched(
    group: str,
    seq: int,
    calls: Mapping[int, Entry],
    views: Mapping[int, tuple[object, ...]],
    missing: tuple[int, ...],
) -> Verdict:
    counts = Counter(views.values())
    most = max(counts.values())
    majority = [view for view, count in counts.items() if count == most]
    culprits = [rank for rank, view in views.items() if len(majority) > 1 or view != majority[0]]
    parts = [
        f"rank {rank} calls {_call_words(calls[rank])}{_at(_source(calls[rank]))}" for rank in sorted(calls)
    ]
    first = calls[culprits[0]]
    return Verdict(
        MISMATCHED,
        tuple(sorted(culprits)),
        group,
        seq,
        first.name,
        _source(first),
        f"call {seq} of group {group} differs between ranks: {first_few(parts, 8, between='; ')}",
        missing,
    )


def _cycle(stalls: Sequence[_Stall]) -> tuple[int, ...]:
    """Ranks that wait for each other in different groups; () for none."""
    waits: dict[int, set[int]] = {}
    for stall in stalls:
        for rank in stall.waiting:
            waits.setdefault(rank, set()).update(set(stall.awaited) - {rank})
    for start in sorted(waits):
        seen: list[int] = []
        todo = [start]
        while todo:
            rank = todo.pop()
            for other in waits.get(rank, ()):
                if other == start:
                    return tuple(
                        sorted({start, *(one for one in seen if _reaches(waits, one, start))} | {rank})
                    )
                if other not in seen:
                    seen.append(other)
                    todo.append(other)
    return ()


def _reaches(waits: Mapping[int, set[int]], rank: int, target: int) -> bool:
    seen, todo = {rank}, [rank]
    while todo:
        for other in waits.get(todo.pop(), ()):
            if other == target:
                return True
            if other not in seen:
                seen.add(other)
                todo.append(other)
    return False


def _deadlock(stalls: Sequence[_Stall], cycle: tuple[int, ...], missing: tuple[int, ...]) -> Verdict:
    parts = []
    first: tuple[_Stall, Entry] | None = None
    for stall in stalls:
        for rank in stall.waiting:
            if rank in cycle and rank in stall.entries:
                entry = stall.entries[rank]
                first = first or (stall, entry)
                awaited = ranks_text([one for one in stall.awaited if one != rank])
                parts.append(
                    f"rank {rank} waits in group {stall.group}, call {stall.seq} ({entry.name}), "
                    f"for {awaited}{_at(_source(entry))}"
                )
    return Verdict(
        ORDER_DEADLOCK,
        cycle,
        first[0].group if first else "",
        first[0].seq if first else -1,
        first[1].name if first else "",
        _source(first[1]) if first else "",
        f"ranks enter the calls of different groups in different orders: {first_few(parts, 8, between='; ')}",
        missing,
    )


def _of_stall(
    dumps: Mapping[int, Dump], stall: _Stall, missing: tuple[int, ...], unreadable: Collection[int]
) -> Verdict:
    waiting = next((stall.entries[rank] for rank in stall.waiting if rank in stall.entries), None)
    name = waiting.name if waiting else ""
    call = f"call {stall.seq} of group {stall.group} ({name or 'unknown'})"

    def found(kind: str, ranks: tuple[int, ...], text: str, entry: Entry | None = waiting) -> Verdict:
        return Verdict(kind, ranks, stall.group, stall.seq, name, _source(entry), text, missing)

    if stall.absent:
        where = "; ".join(_whereabouts(dumps, stall, rank, unreadable) for rank in stall.absent[:8])
        verb = "waits" if len(stall.waiting) == 1 else "wait"
        here = f"{call}, in which {ranks_text(stall.waiting)} {verb}{_at(_source(waiting))}; {where}"
        known = tuple(rank for rank in stall.absent if rank in dumps)
        gone = tuple(rank for rank in stall.absent if rank not in (*dumps, *unreadable))
        if known:
            return found(NOT_JOINED, (*known, *gone), f"{ranks_text(known)} never entered {here}")
        if gone:
            return found(NOT_JOINED, gone, f"nothing shows {ranks_text(gone)} in {here}")
        return found(
            UNKNOWN, stall.absent, f"it is not known whether {ranks_text(stall.absent)} entered {here}"
        )
    if not stall.states_known:
        who = "all ranks" if _is_whole(dumps) else ranks_text(stall.waiting)
        text = f"{who} entered {call} and did not leave it; this backend records no states, so whether it "
        text += "was launched cannot be told"
        return found(UNKNOWN, (), text if _is_whole(dumps) else f"{text}; {_OTHERS}")
    if stall.awaited:
        culprit = stall.entries.get(stall.awaited[0])
        who, others = ranks_text(stall.awaited), ranks_text(stall.waiting)
        text = f"{who} scheduled {call} and never started it, {others} did: "
        text += f"an earlier kernel or a wait blocks its stream{_at(_source(culprit))}"
        return found(STUCK_KERNEL, stall.awaited, text, culprit)
    if {entry.state for entry in stall.entries.values()} == {"scheduled"}:
        text = f"every rank scheduled {call} and none started it: earlier work blocks the streams"
        return found(STUCK_KERNEL, stall.waiting, text)
    text = f"{ranks_text(stall.waiting)} started {call} and did not leave it: the network, a peer's GPU, "
    return found(STUCK_KERNEL, stall.waiting, f"{text}or kernels of another group that came first")


def _is_whole(dumps: Mapping[int, Dump]) -> bool:
    """Whether some dump names the ranks of its groups, so that none can be missing without a word."""
    return any(ranks for dump in dumps.values() for ranks in dump.groups.values())


def _is_unnumbered(dump: Dump) -> bool:
    return any(entry.seq < 0 and not entry.is_p2p for entry in dump.entries)


def _nothing(dumps: Mapping[int, Dump], missing: tuple[int, ...], unreadable: Collection[int]) -> Verdict:
    if missing:
        left = "left no dump that can be read" if {*missing} & {*unreadable} else "left no dump"
        text = f"what was dumped has ended; {ranks_text(missing)} {left}, so this is no all-clear"
        return Verdict(UNKNOWN, missing, "", -1, "", "", text, missing)
    if len(dumps) == 1 and not _is_whole(dumps):
        text = f"every recorded collective has ended on {ranks_text(tuple(dumps))}; {_OTHERS}"
        return Verdict(UNKNOWN, (), "", -1, "", "", text, missing)
    where = "every rank" if _is_whole(dumps) else f"{ranks_text(tuple(sorted(dumps)))}"
    return Verdict(NONE, (), "", -1, "", "", f"every recorded collective has ended on {where}", missing)


def _whereabouts(dumps: Mapping[int, Dump], stall: _Stall, rank: int, unreadable: Collection[int]) -> str:
    """Where a rank is that never came."""
    dump = dumps.get(rank)
    if dump is None and rank in unreadable:
        return f"the dump of rank {rank} cannot be read"
    if dump is None:
        return f"rank {rank} left no dump: it is dead, or was never asked"
    stack = f"; its host is at {line}{_in_unrecorded(dump)}" if (line := _stack_line(dump.stack)) else ""
    mine = _by_seq(dump, stall.group)
    last = max((seq for seq in mine if seq < stall.seq), default=None)
    if last is None:
        return f"rank {rank} recorded no call of this group{stack}"
    return f"rank {rank} last entered call {last} ({mine[last].name}){_at(_source(mine[last]))}{stack}"


def _in_unrecorded(dump: Dump) -> str:
    """Whether the host waits in a collective that the dump does not have.

    NCCL builds a group's communicator in the group's first call, which is recorded only after that: groups
    whose first calls come in different orders on two ranks stand like this.
    """
    frames = [line for line in dump.stack.splitlines() if line.strip().startswith("File ") or ".py:" in line]
    if not frames or _COLLECTIVES not in frames[0] or any(not entry.retired for entry in dump.entries):
        return ""
    return (
        ", inside a collective that is not in its dump: perhaps the first call of another group, which waits "
        "for all ranks before it is recorded; look for groups that ranks use in different orders"
    )


def _stack_line(stack: str) -> str:
    """The innermost line of the user's own code in a Python stack as faulthandler or py-spy writes it."""
    lines = [line.strip() for line in stack.splitlines()]
    frames = [line for line in lines if line.startswith("File ") or ".py:" in line]
    own = [line for line in frames if not any(part in line for part in (*_LIBRARY, "/threading.py"))]
    chosen = (own or frames)[:1]
    return "".join(char if char.isprintable() else "?" for char in chosen[0][:200]) if chosen else ""


def _source(entry: Entry | None) -> str:
    """The innermost frame outside torch; "" for no entry."""
    if entry is None:
        return ""
    own = [frame for frame in entry.frames if not any(part in frame for part in _LIBRARY)]
    return (own or list(entry.frames) or [""])[0]


def _at(source: str) -> str:
    return f" at {source}" if source else ""


def _call_words(entry: Entry) -> str:
    sizes = ", ".join(str(list(shape)) for shape in entry.input_sizes[:2])
    return f"{entry.name} of {entry.dtypes[0] if entry.dtypes else '?'} {sizes}"
