"""Jobs of pipeline x data x tensor parallelism that hang, as flight recorders see them.

Each rank makes its calls in order; its GPU runs them one after the other, so one call of a stuck rank has
started and those that its host launched ahead are scheduled. A collective ends when all members are in it, a
send or receive when its partner is.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

T0_NS = 1_795_326_239_000_000_000
DEAD, SWAPPED, SIZES, GONE, INNOCENT_GONE, NO_SEND = (
    *("dead", "swapped order", "sizes", "dead without a dump", "dead beside a lost dump", "no send"),
)
KINDS = (DEAD, SWAPPED, SIZES, GONE, INNOCENT_GONE, NO_SEND)


@dataclass
class Call:
    """peer: of a send or receive, its partner; -1 for a collective."""

    group: str
    name: str
    peer: int = -1
    size: int = 512


@dataclass
class Hang:
    """One hanging job: its calls by rank, and what is wrong with it. culprit: the rank that is to blame."""

    kind: str
    groups: dict[str, tuple[str, tuple[int, ...]]]
    calls: dict[int, list[Call]]
    culprit: int
    stops_at: dict[int, int] = field(default_factory=dict)
    lost: tuple[int, ...] = ()
    ahead: int = 4

    @property
    def ranks(self) -> range:
        return range(len(self.calls))


def draw(seed: int) -> Hang:
    """A job of 2 to 16 ranks with one fault."""
    random = Random(seed)
    stages, copies, parts = random.choice([(2, 2, 1), (2, 1, 2), (4, 1, 1), (2, 2, 2), (3, 2, 1), (2, 2, 4)])
    groups, calls = _job(stages, copies, parts, steps=2, batches=random.randint(2, 3))
    kind = KINDS[seed % len(KINDS)]
    culprit = random.choice(range(len(calls)))
    hang = Hang(kind, groups, calls, culprit, ahead=random.choice([0, 3, 8]))
    program = calls[culprit]
    place = random.randrange(len(program) // 3, len(program))
    if kind in (DEAD, GONE, INNOCENT_GONE):
        hang.stops_at[culprit] = place
    if kind == GONE:
        hang.lost = (culprit,)
    if kind == INNOCENT_GONE:
        hang.lost = (random.choice([rank for rank in hang.ranks if rank != culprit]),)
    if kind == SIZES:
        where = [index for index, call in enumerate(program) if call.peer < 0 and index >= place // 2]
        call = program[where[0]]
        program[where[0]] = Call(call.group, call.name, size=call.size + 8)
    if kind == SWAPPED:
        pairs = [
            index
            for index in range(len(program) - 1)
            if program[index].group != program[index + 1].group
            and min(len(groups[program[index + n].group][1]) for n in (0, 1)) > 1
        ]
        index = min(pairs, key=lambda index: abs(index - place))
        program[index], program[index + 1] = program[index + 1], program[index]
    if kind == NO_SEND:
        sends = [(rank, n) for rank in hang.ranks for n, c in enumerate(calls[rank]) if c.name == "send"]
        hang.culprit, index = random.choice(sends)
        hang.stops_at[hang.culprit] = index
    return hang


def _job(
    stages: int, copies: int, parts: int, steps: int, batches: int
) -> tuple[dict[str, tuple[str, tuple[int, ...]]], dict[int, list[Call]]]:
    def rank(stage: int, copy: int, part: int) -> int:
        return (stage * copies + copy) * parts + part

    world = stages * copies * parts
    groups: dict[str, tuple[str, tuple[int, ...]]] = {"0": ("default_pg", tuple(range(world)))}
    of: dict[tuple[str, int], str] = {}

    def add(desc: str, ranks: Sequence[int]) -> None:
        name = str(len(groups))
        groups[name] = (desc, tuple(ranks))
        of.update({(desc, member): name for member in ranks})

    for stage in range(stages):
        for copy in range(copies):
            add("mesh_tp", [rank(stage, copy, part) for part in range(parts)])
        for part in range(parts):
            add("mesh_dp", [rank(stage, copy, part) for copy in range(copies)])
    for copy in range(copies):
        for part in range(parts):
            add("mesh_pp", [rank(stage, copy, part) for stage in range(stages)])
    calls: dict[int, list[Call]] = {}
    for stage in range(stages):
        for copy in range(copies):
            for part in range(parts):
                me = rank(stage, copy, part)
                calls[me] = []
                for _ in range(steps):
                    for ahead in [1] * batches + [-1] * batches:
                        source, target = stage - ahead, stage + ahead
                        pp = of["mesh_pp", me]
                        if 0 <= source < stages:
                            calls[me].append(Call(pp, "recv", rank(source, copy, part)))
                        if parts > 1:
                            calls[me].append(Call(of["mesh_tp", me], "all_reduce"))
                        if 0 <= target < stages:
                            calls[me].append(Call(pp, "send", rank(target, copy, part)))
                    if copies > 1:
                        calls[me].append(Call(of["mesh_dp", me], "all_reduce"))
                    calls[me].append(Call("0", "all_reduce", size=1))
    return groups, calls


def ended(hang: Hang) -> dict[int, int]:
    """How many calls of each rank have ended when nothing moves any more."""
    done = dict.fromkeys(hang.ranks, 0)
    moved = True
    while moved:
        moved = False
        for rank in hang.ranks:
            call = _at(hang, rank, done[rank])
            if call is None:
                continue
            if call.peer < 0:
                members = hang.groups[call.group][1]
                theirs = [_at(hang, member, done[member]) for member in members]
                counts = {_number(hang, member, done[member], call.group) for member in members}
                meets = all(c is not None and c.group == call.group and c.peer < 0 for c in theirs)
                if meets and len(counts) == 1 and len({c.size for c in theirs if c}) == 1:
                    for member in members:
                        done[member] += 1
                    moved = True
            else:
                partner = _at(hang, call.peer, done[call.peer])
                if (
                    partner
                    and (partner.peer, partner.group) == (rank, call.group)
                    and partner.name != call.name
                ):
                    done[rank] += 1
                    done[call.peer] += 1
                    moved = True
    return done


def _at(hang: Hang, rank: int, index: int) -> Call | None:
    """The call that a rank is in, None where it makes no more."""
    if index >= min(len(hang.calls[rank]), hang.stops_at.get(rank, 1 << 30)):
        return None
    return hang.calls[rank][index]


def _number(hang: Hang, rank: int, index: int, group: str) -> int:
    return sum(call.group == group and call.peer < 0 for call in hang.calls[rank][:index])


def write_dumps(hang: Hang, folder: Path) -> bool:
    """One dump per rank; False where the job did not hang."""
    done = ended(hang)
    if all(done[rank] == len(hang.calls[rank]) for rank in hang.ranks):
        return False
    folder.mkdir(parents=True, exist_ok=True)
    for rank in hang.ranks:
        if rank in hang.lost:
            continue
        launched = min(done[rank] + 1 + hang.ahead, hang.stops_at.get(rank, 1 << 30), len(hang.calls[rank]))
        entries = []
        seq: Counter[tuple[str, bool]] = Counter()
        for index, call in enumerate(hang.calls[rank][:launched]):
            state = "completed" if index < done[rank] else "started" if index == done[rank] else "scheduled"
            seq[call.group, call.peer >= 0] += 1
            entries.append(_entry(hang, rank, call, seq, state, index))
        config = {
            name: {"name": name, "desc": desc, "ranks": str(list(ranks))}
            for name, (desc, ranks) in hang.groups.items()
            if rank in ranks
        }
        status = {name: _status(entries, name) for name in config}
        document = {"version": "2.10", "pg_config": config, "pg_status": status, "entries": entries}
        (folder / f"rank_{rank}.json").write_text(json.dumps(document))
    return True


def _entry(
    hang: Hang, rank: int, call: Call, seq: Counter[tuple[str, bool]], state: str, index: int
) -> dict[str, Any]:
    desc, ranks = hang.groups[call.group]
    name, is_p2p = call.name, call.peer >= 0
    if is_p2p:
        arrow = "->" if call.name == "send" else "<-"
        name = f"{call.name} {ranks.index(rank)}{arrow}{ranks.index(call.peer)}"
    return {
        "process_group": [call.group, desc],
        "collective_seq_id": seq[call.group, False],
        "p2p_seq_id": seq[call.group, True],
        "profiling_name": f"nccl:{name}",
        "input_sizes": [[call.size]],
        "output_sizes": [[call.size]],
        "input_dtypes": ["Float"],
        "state": state,
        "retired": state == "completed",
        "time_created_ns": T0_NS + 1_000_000 * index + 1000 * rank,
        "is_p2p": is_p2p,
        "frames": [{"name": "train", "filename": "app/train.py", "line": 20 + index}],
    }


def _status(entries: Sequence[dict[str, Any]], group: str) -> dict[str, int]:
    own = [row for row in entries if row["process_group"][0] == group and not row["is_p2p"]]

    def last(rows: Sequence[dict[str, Any]]) -> int:
        return max((int(row["collective_seq_id"]) for row in rows), default=-1)

    return {
        "last_enqueued_collective": last(own),
        "last_started_collective": last([row for row in own if row["state"] != "scheduled"]),
        "last_completed_collective": last([row for row in own if row["retired"]]),
    }
