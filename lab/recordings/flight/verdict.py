"""What kind of hang the dumps show: who is waited for, in which call, and from which source line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter

from lab.core.words import first_few, printable, ranks_text
from lab.recordings.flight.dumps import BATCH, Dump, Entry

NOT_JOINED, MISMATCHED, STUCK_KERNEL = "not_joined", "mismatched", "stuck_kernel"
ORDER_DEADLOCK, NONE, UNKNOWN = "order_deadlock", "none", "unknown"
_MOST_RANKS = 1 << 16
_DEFAULT_GROUPS = ("0", "default_pg")  # which all ranks are in
_NOT_WHOLE = "nothing says how many ranks the job has, and others may stand elsewhere"
_COLLECTIVES = "torch/distributed/distributed_c10d.py"
_LIBRARY = ("site-packages/torch/", "dist-packages/torch/", "/torch/distributed/", "<frozen", "/threading.py")
_TRANSFER = re.compile(r"(send|recv) \d+(?:->|<-)(\d+)")  # as `recv 1<-0`: numbers within the group


@dataclass(frozen=True)
class Verdict:
    """What the dumps show. kind: a constant of this module; ranks: the culprits.

    group, seq and collective name the call that does not end; frame is the source line of the culprit's call
    (of the waiting ranks' call where the culprit never made it), "" without one.
    """

    kind: str
    ranks: tuple[int, ...]
    text: str
    group: str = ""
    seq: int = -1
    collective: str = ""
    frame: str = ""
    missing: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Stall:
    """A call that does not end everywhere: a collective of a group, or a send and its receive.

    `waiting` ranks are in it and wait for the `awaited` ones; `absent` ranks never entered it. partners_known
    is False for a batch of sends and receives.
    """

    group: str
    seq: int
    entries: Mapping[int, Entry]
    absent: tuple[int, ...]
    waiting: tuple[int, ...]
    awaited: tuple[int, ...]
    states_known: bool = True
    partners_known: bool = True

    @property
    def entry(self) -> Entry | None:
        """The call of the first rank that waits."""
        return next((self.entries[rank] for rank in self.waiting if rank in self.entries), None)

    @property
    def text(self) -> str:
        entry = self.entry
        if entry is not None and entry.is_p2p:
            return f"{entry.name} of group {self.group}"
        return f"call {self.seq} of group {self.group} ({entry.name if entry else 'unknown'})"


def verdict_of(dumps: Mapping[int, Dump], unreadable: Collection[int] = ()) -> Verdict:
    """Judge one set of dumps by who waits for whom; missing dumps are evidence, not an error.

    unreadable: ranks whose dumps are there and cannot be read, so that their absence proves nothing. A dump
    whose collectives have no numbers is one too: which calls of the other ranks they are cannot be told.
    """
    blind = {rank for rank, dump in dumps.items() if any(e.seq < 0 and not e.is_p2p for e in dump.entries)}
    unreadable = {*unreadable, *blind}
    missing = tuple(sorted({*_missing(dumps), *blind}))
    dumps = {rank: dump for rank, dump in dumps.items() if rank not in blind}
    if blind and not dumps:
        text = (
            f"the collectives of {ranks_text(missing)} have no numbers, so no call can be told from another"
        )
        return Verdict(UNKNOWN, (), text, missing=missing)
    return replace(_judged(dumps, missing, unreadable), missing=missing)


def _judged(dumps: Mapping[int, Dump], missing: tuple[int, ...], unreadable: Collection[int]) -> Verdict:
    if not any(dump.entries or dump.status for dump in dumps.values()):
        text = "the dumps hold no collective: the recorder was off (TORCH_FR_BUFFER_SIZE), or none was called"
        return Verdict(UNKNOWN, (), text)
    groups = _group_names(dumps)
    mismatch = next(filter(None, (_mismatch(dumps, group) for group in groups)), None)
    collectives = [_collective_stall(dumps, group, missing) for group in groups]
    stalls = [*filter(None, collectives), *_transfer_stalls(dumps)]
    # A mismatch at or before the call that stalls explains it; a later one may follow from it.
    if mismatch is not None and (
        not stalls or any((mismatch.group, True) == (s.group, mismatch.seq <= s.seq) for s in stalls)
    ):
        return mismatch
    if not stalls:
        return _no_stall(dumps, missing, unreadable)
    if cycle := _cycle(stalls):
        return _deadlock(stalls, cycle)
    victims = {rank for stall in stalls if stall.awaited for rank in stall.waiting}

    def order(stall: _Stall) -> tuple[bool, int]:
        """A rank whose dump shows that it waits for no other says more than a dump that is missing."""
        is_shown = any(rank in dumps and rank not in victims for rank in stall.absent)
        created_ns = min((entry.created_ns for entry in stall.entries.values()), default=0)
        return not is_shown, created_ns

    stalls.sort(key=order)
    # The root of a chain: its awaited ranks wait nowhere themselves, everyone before is a victim.
    roots = [stall for stall in stalls if not victims.issuperset(stall.awaited)]
    return _of_stall(dumps, (roots or stalls)[0], victims if roots else set(), unreadable)


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
    if named := next((dump.groups[group] for dump in dumps.values() if dump.groups.get(group)), None):
        return set(named)
    users = {
        rank
        for rank, dump in dumps.items()
        if group in dump.status or any(entry.group == group for entry in dump.entries)
    }
    # A group that only one rank has used has a partner all the same; of two ranks it is clear which.
    alone = len(users) == 1 and len(dumps) == 2
    return set(dumps) if group in _DEFAULT_GROUPS or alone else users


def _calls(dumps: Mapping[int, Dump], group: str) -> dict[int, dict[int, Entry]]:
    """The collectives of a group, lowest number first: each rank's entry by rank."""
    calls: dict[int, dict[int, Entry]] = {}
    for rank in sorted(_members(dumps, group) & dumps.keys()):
        for entry in dumps[rank].entries:
            if entry.group == group and not entry.is_p2p:
                calls.setdefault(entry.seq, {})[rank] = entry
    return dict(sorted(calls.items()))


def _has_ended(entry: Entry) -> bool:
    # gloo leaves all states at `scheduled`, so `retired` tells the end there; NCCL retires failed calls, too.
    return entry.state == "completed" or (entry.backend != "nccl" and entry.retired)


def _collective_stall(dumps: Mapping[int, Dump], group: str, missing: Sequence[int]) -> _Stall | None:
    """The lowest call of a group that some rank has entered and not every rank has left."""
    members = _members(dumps, group)
    status = {rank: dumps[rank].status.get(group, (-1, -1)) for rank in members & dumps.keys()}
    calls = _calls(dumps, group)
    states = {entry.state for entries in calls.values() for entry in entries.values()}
    states_known = not states.isdisjoint(("started", "completed"))
    for seq, entries in calls.items():
        left = {rank for rank, entry in entries.items() if _has_ended(entry)}
        left |= {rank for rank, (_, completed) in status.items() if completed >= seq}
        entered = entries.keys() | {rank for rank, (enqueued, _) in status.items() if enqueued >= seq}
        waiting = tuple(sorted(entered - left))
        if not waiting:
            continue
        absent = tuple(sorted((status.keys() - entered - left) | (members & set(missing))))
        started = tuple(rank for rank in waiting if rank in entries and entries[rank].state == "started")
        if absent or not started:
            return _Stall(group, seq, entries, absent, waiting, absent, states_known)
        # Who only scheduled what others started has a blocked stream: a culprit, not a victim.
        behind = tuple(rank for rank in waiting if rank not in started)
        return _Stall(group, seq, entries, (), started, behind, states_known)
    return None


def _transfer_stalls(dumps: Mapping[int, Dump]) -> Iterator[_Stall]:
    """Sends and receives that have not ended. Without its counterpart each waits for its peer.

    Those of one pair and direction meet in their order, so the first that is open on one rank meets the first
    that is open on the other.
    """
    pending: dict[tuple[str, int, int, str], Entry] = {}
    for rank, dump in dumps.items():
        entries = [entry for entry in dump.entries if entry.is_p2p and not _has_ended(entry)]
        if any(entry.state == "started" for entry in dump.entries) or any(
            entry.name == BATCH for entry in entries
        ):  # what is only scheduled stands behind another call, or belongs to the open batch
            entries = [entry for entry in entries if entry.state != "scheduled"]
        for entry in entries:
            peer = _peer(dumps, dump, entry)
            if peer is None:
                yield _Stall(entry.group, entry.seq, {rank: entry}, (), (rank,), (), partners_known=False)
            else:
                pending.setdefault((entry.group, rank, *peer), entry)
    for (group, rank, peer_rank, direction), entry in pending.items():
        counterpart = (group, peer_rank, rank, "recv" if direction == "send" else "send")
        if counterpart not in pending:
            yield _Stall(group, entry.seq, {rank: entry}, (peer_rank,), (rank,), (peer_rank,))
        elif direction == "send":
            sides = {rank: entry, peer_rank: pending[counterpart]}
            started = tuple(sorted(r for r, e in sides.items() if e.state == "started")) or tuple(
                sorted(sides)
            )
            behind = tuple(r for r in sides if r not in started)
            yield _Stall(group, entry.seq, sides, (), started, behind, entry.backend == "nccl")


def _peer(dumps: Mapping[int, Dump], dump: Dump, entry: Entry) -> tuple[int, str] | None:
    """The rank at the other end of a send or receive, and which of both it is; None where it is unknown."""
    match = _TRANSFER.fullmatch(entry.name)
    if match is None:
        return None
    number, ranks = int(match[2]), dump.groups.get(entry.group)
    if ranks is None and entry.group in _DEFAULT_GROUPS:
        ranks = tuple(range(max(dumps) + 1))
    return (ranks[number], match[1]) if ranks and number < len(ranks) else None


def _mismatch(dumps: Mapping[int, Dump], group: str) -> Verdict | None:
    """The earliest call of a group on which ranks disagree."""
    for seq, calls in _calls(dumps, group).items():
        signatures = {rank: _signature(entry) for rank, entry in calls.items()}
        sizes = {size for _, _, size in signatures.values()} - {None}
        if len({(name, dtypes) for name, dtypes, _ in signatures.values()}) > 1 or len(sizes) > 1:
            return _mismatched(group, seq, calls, signatures)
    return None


def _signature(entry: Entry) -> tuple[object, object, object]:
    """What every rank must have in common in this call: op, dtype, and sizes, None where not recorded."""
    kind = entry.name.lower().replace("_", "")
    # The input of a scatter is on its root alone.
    sizes = entry.output_sizes if "scatter" in kind else entry.input_sizes
    # Splits of an all-to-all differ between ranks by design.
    recorded = bool(sizes) and "alltoall" not in kind and all(n >= 0 for shape in sizes for n in shape)
    return entry.name, entry.dtypes[:1], sizes if recorded else None


def _mismatched(
    group: str,
    seq: int,
    calls: Mapping[int, Entry],
    signatures: Mapping[int, tuple[object, ...]],
) -> Verdict:
    counts = Counter(signatures.values())
    majority = [signature for signature, count in counts.items() if count == max(counts.values())]
    # Without one majority nothing says who is wrong, so all are named.
    culprits = [rank for rank, s in signatures.items() if len(majority) > 1 or s != majority[0]]
    parts = []
    for rank, call in sorted(calls.items()):
        sizes = ", ".join(str(list(shape)) for shape in call.input_sizes[:2])
        dtype = call.dtypes[0] if call.dtypes else "?"
        parts.append(f"rank {rank} calls {call.name} of {dtype} {sizes}{_at(call)}")
    call = calls[culprits[0]]
    text = f"call {seq} of group {group} differs between ranks: {first_few(parts, 8, between='; ')}"
    return Verdict(MISMATCHED, tuple(sorted(culprits)), text, group, seq, call.name, _source(call))


def _cycle(stalls: Sequence[_Stall]) -> tuple[int, ...]:
    """Ranks that wait for each other; () for none."""
    waits: dict[int, set[int]] = {}
    for stall in stalls:
        for rank in stall.waiting:
            waits.setdefault(rank, set()).update(set(stall.awaited) - {rank})

    try:
        TopologicalSorter(waits).prepare()
    except CycleError as error:
        return tuple(sorted({*error.args[1]}))
    return ()


def _deadlock(stalls: Sequence[_Stall], cycle: tuple[int, ...]) -> Verdict:
    calls = [
        (stall, rank, stall.entries[rank])
        for stall in stalls
        for rank in stall.waiting
        if rank in cycle and rank in stall.entries
    ]
    parts = [
        f"rank {rank} waits in group {stall.group}, "
        f"{entry.name if entry.is_p2p else f'call {stall.seq} ({entry.name})'}, "
        f"for {ranks_text([awaited for awaited in stall.awaited if awaited != rank])}{_at(entry)}"
        for stall, rank, entry in calls
    ]
    text = "ranks enter the calls of different groups in different orders"
    if any(entry.is_p2p for *_, entry in calls):
        text = "ranks wait for each other: they enter calls in different orders, or one left a call out"
    text = f"{text}: {first_few(parts, 8, between='; ')}"
    if not calls:
        return Verdict(ORDER_DEADLOCK, cycle, text)
    stall, _, entry = calls[0]
    return Verdict(ORDER_DEADLOCK, cycle, text, stall.group, stall.seq, entry.name, _source(entry))


def _of_stall(
    dumps: Mapping[int, Dump], stall: _Stall, victims: Collection[int], unreadable: Collection[int]
) -> Verdict:
    """Judge the stall at the root: who waits elsewhere (`victims`) is not a culprit."""
    call = stall.entry
    if stall.absent:
        absent = tuple(rank for rank in stall.absent if rank not in victims)
        kind, ranks, text = _never_entered(dumps, stall, absent, unreadable)
    else:
        kind, ranks, text = _never_left(stall, is_whole=_is_whole(dumps))
        if kind == STUCK_KERNEL and stall.awaited:
            call = stall.entries.get(stall.awaited[0])
    name = stall.entry.name if stall.entry else ""
    return Verdict(kind, ranks, text, stall.group, stall.seq, name, _source(call))


def _never_entered(
    dumps: Mapping[int, Dump], stall: _Stall, absent: tuple[int, ...], unreadable: Collection[int]
) -> tuple[str, tuple[int, ...], str]:
    """Kind, culprits and sentence for a call that some ranks are not in."""
    verb = "waits" if len(stall.waiting) == 1 else "wait"
    context = f"{stall.text}, in which {ranks_text(stall.waiting)} {verb}{_at(stall.entry)}; " + "; ".join(
        _whereabouts(dumps, stall, rank, unreadable) for rank in absent[:8]
    )
    if dumped := tuple(rank for rank in absent if rank in dumps):
        return NOT_JOINED, dumped, f"{ranks_text(dumped)} never entered {context}"
    gone = tuple(rank for rank in absent if rank not in unreadable)
    if not gone:
        return UNKNOWN, absent, f"it is not known whether {ranks_text(absent)} entered {context}"
    text = f"nothing shows {ranks_text(gone)} in {context}"
    idle = tuple(rank for rank, dump in dumps.items() if all(map(_has_ended, dump.entries)))
    if not idle:
        return NOT_JOINED, gone, text
    # A rank that waits nowhere may be as guilty as one without a dump.
    verb = "is" if len(idle) == 1 else "are"
    text += f"; {ranks_text(idle)}, with a dump, {verb} in no call either: who is to blame cannot be told"
    return UNKNOWN, (), text


def _never_left(stall: _Stall, *, is_whole: bool) -> tuple[str, tuple[int, ...], str]:
    """Kind, culprits and sentence for a call that every rank has entered."""
    waiting = ranks_text(stall.waiting)
    if not stall.partners_known:
        text = f"{waiting} did not leave sends and receives whose partners are not recorded{_at(stall.entry)}"
        return UNKNOWN, (), f"{text}: who is waited for cannot be told"
    if not stall.states_known:
        ranks = "all ranks" if is_whole and not (stall.entry and stall.entry.is_p2p) else waiting
        text = (
            f"{ranks} entered {stall.text} and did not leave it; this backend records no states, so whether"
        )
        limit = "" if is_whole else f"; {_NOT_WHOLE}"
        return UNKNOWN, (), f"{text} it was launched cannot be told{limit}"
    if stall.awaited:
        line = _at(stall.entries.get(stall.awaited[0]))
        text = f"{ranks_text(stall.awaited)} scheduled {stall.text} and never started it, {waiting} did"
        return STUCK_KERNEL, stall.awaited, f"{text}: an earlier kernel or a wait blocks its stream{line}"
    if {entry.state for entry in stall.entries.values()} == {"scheduled"}:
        text = f"every rank scheduled {stall.text} and none started it: earlier work blocks the streams"
        return STUCK_KERNEL, stall.waiting, text
    text = f"{waiting} started {stall.text} and did not leave it: the network, a peer's GPU, or kernels of"
    return STUCK_KERNEL, stall.waiting, f"{text} another group that came first"


def _is_whole(dumps: Mapping[int, Dump]) -> bool:
    """Whether some dump names the ranks of its groups, so that none can be missing without a word."""
    return any(ranks for dump in dumps.values() for ranks in dump.groups.values())


def _no_stall(dumps: Mapping[int, Dump], missing: tuple[int, ...], unreadable: Collection[int]) -> Verdict:
    if missing:
        left = "left no dump that can be read" if {*missing} & {*unreadable} else "left no dump"
        text = f"what was dumped has ended; {ranks_text(missing)} {left}, so this is not an all-clear"
        return Verdict(UNKNOWN, missing, text)
    ended = "every recorded collective has ended on"
    inside = [rank for rank, dump in sorted(dumps.items()) if _in_unrecorded(dump)]
    if inside:
        lines = first_few([f"rank {rank} at {_stack_line(dumps[rank].stack)}" for rank in inside])
        text = f"{ended} {ranks_text(sorted(dumps))}, but hosts wait in calls that are not in their dumps: "
        outside = sorted(dumps.keys() - set(inside))
        # Recorded work has ended, so a host outside torch.distributed is held by nothing but itself.
        if len(outside) == 1 and _is_whole(dumps) and (line := _stack_line(dumps[outside[0]].stack)):
            text += f"{lines}; rank {outside[0]} alone is in no call: its host is at {line}"
            return Verdict(NOT_JOINED, tuple(outside), text)
        return Verdict(UNKNOWN, (), f"{text}{lines}: who is waited for cannot be told")
    if _is_whole(dumps):
        return Verdict(NONE, (), f"{ended} every rank")
    text = f"{ended} {ranks_text(sorted(dumps))}"
    if len(dumps) == 1:
        return Verdict(UNKNOWN, (), f"{text}; {_NOT_WHOLE}")
    return Verdict(NONE, (), text)


def _whereabouts(dumps: Mapping[int, Dump], stall: _Stall, rank: int, unreadable: Collection[int]) -> str:
    """Say where a rank is that never came."""
    dump = dumps.get(rank)
    if dump is None and rank in unreadable:
        return f"the dump of rank {rank} cannot be read"
    if dump is None:
        return f"rank {rank} left no dump: it is dead, or was never asked"
    line = _stack_line(dump.stack)
    stack = f"; its host is at {line}{_in_unrecorded(dump)}" if line else ""
    is_p2p = any(entry.is_p2p for entry in stall.entries.values())
    earlier = [
        entry
        for entry in dump.entries
        if entry.group == stall.group and (is_p2p or (not entry.is_p2p and entry.seq < stall.seq))
    ]
    if not earlier:
        return f"rank {rank} recorded no call of this group{stack}"
    latest = max(earlier, key=lambda entry: entry.created_ns if is_p2p else entry.seq)
    text = latest.name if latest.is_p2p else f"call {latest.seq} ({latest.name})"
    return f"rank {rank} last entered {text}{_at(latest)}{stack}"


def _in_unrecorded(dump: Dump) -> str:
    """Say if the host waits in a collective that the dump does not have.

    NCCL builds a group's communicator in the group's first call, which is recorded only after that: groups
    whose first calls come in different orders on two ranks stand like this.
    """
    frames = _stack_frames(dump.stack)
    if not frames or _COLLECTIVES not in frames[0] or any(not entry.retired for entry in dump.entries):
        return ""
    return (
        ", inside a collective that is not in its dump: perhaps the first call of another group, which waits "
        "for all ranks before it is recorded; look for groups that ranks use in different orders"
    )


def _stack_frames(stack: str) -> list[str]:
    """The lines of a Python stack that name a source line, as faulthandler or py-spy writes it."""
    lines = [line.strip() for line in stack.splitlines()]
    return [line for line in lines if line.startswith("File ") or ".py:" in line]


def _stack_line(stack: str) -> str:
    """The innermost line of the user's own code in a Python stack."""
    return printable(_innermost(_stack_frames(stack))[:200])


def _source(entry: Entry | None) -> str:
    """The innermost frame outside torch; "" for no entry."""
    return _innermost(entry.frames if entry else ())


def _innermost(frames: Sequence[str]) -> str:
    users = [frame for frame in frames if not any(part in frame for part in _LIBRARY)]
    return [*users, *frames, ""][0]


def _at(entry: Entry | None) -> str:
    source = _source(entry)
    return f" at {source}" if source else ""
