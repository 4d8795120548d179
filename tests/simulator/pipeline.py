"""Pipelines of ranks, simulated: sends and receives meet, and what each rank waits for is known.

Hosts launch ahead; a stream runs in order; a send and its receive start moving data when both are there. A
buffered send ends on its own and leaves its data for a receive that comes later.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tests.simulator.program import SEND, START_NS

US = 1_000
LAUNCH_NS, CALL_NS, GAP_NS = 4 * US, 10 * US, 1 * US
COMPUTE, MESSAGE_STREAM = 7, 30
GEMM = "nvjet_tst_256x128_64x4_1x2_h_bz_coopA_TNT"
Order = Callable[[int, int, int], str]


def gpipe(stage: int, stages: int, batches: int) -> str:
    """F and B of a stage in order: all forwards, then all backwards."""
    return "F" * batches + "B" * batches


def one_f_one_b(stage: int, stages: int, batches: int) -> str:
    """As many forwards as stages follow, then one of each in turn, then the rest backwards."""
    ahead = min(stages - 1 - stage, batches)
    return "F" * ahead + "FB" * (batches - ahead) + "B" * ahead


@dataclass
class Item:
    """A kernel. legs: (1 for a send, partner) of each call in it; meets: the messages it takes part in."""

    name: str
    stream: int
    dur_ns: int
    launch_ns: int
    after: list[int]
    legs: tuple[tuple[int, int], ...] = ()
    meets: tuple[tuple[int, int, int], ...] = ()
    start_ns: int = -1
    all_in_ns: int = -1
    end_ns: int = -1


@dataclass
class Stage:
    """One rank while it is built and played."""

    rank: int
    host_ns: int
    items: list[Item] = field(default_factory=list)
    steps: list[tuple[int, int, int]] = field(default_factory=list)
    last: dict[int, int] = field(default_factory=dict)
    held_by: dict[int, list[int]] = field(default_factory=dict)
    turn: Counter[tuple[int, int]] = field(default_factory=Counter)

    def launch(self, name: str, stream: int, dur_ns: int, **more: Any) -> None:
        after = self.held_by.pop(stream, []) + ([self.last[stream]] if stream in self.last else [])
        self.items.append(Item(name, stream, dur_ns, self.host_ns, after, **more))
        self.last[stream] = len(self.items) - 1
        self.host_ns += CALL_NS

    def hold(self, stream: int, by: int) -> None:
        """The stream's next kernel waits for what was last launched on the other."""
        if by in self.last:
            self.held_by.setdefault(stream, []).append(self.last[by])

    def exchange(self, *legs: tuple[int, int], dur_ns: int, stream: int) -> None:
        """One kernel of these sends (1, partner) and receives (0, partner)."""
        self.hold(stream, COMPUTE)
        meets = []
        for sends, peer in legs:
            route = (self.rank, peer) if sends else (peer, self.rank)
            meets.append((*route, self.turn[route]))
            self.turn[route] += 1
        self.launch(SEND, stream, dur_ns, legs=legs, meets=tuple(meets))


@dataclass(frozen=True)
class Pipeline:
    """A job of `stages` ranks. slow: factor on a stage's kernels; late_us: (stage, step) -> its host stops.

    buffered: sends end on their own. skipped: stage -> its first kernels that the recording lacks.
    clock_us: stage -> how far its clock is ahead.
    """

    stages: int = 4
    batches: int = 6
    steps: int = 3
    order: Order = one_f_one_b
    slow: dict[int, float] = field(default_factory=dict)
    late_us: dict[tuple[int, int], float] = field(default_factory=dict)
    buffered: bool = False
    skipped: dict[int, int] = field(default_factory=dict)
    clock_us: dict[int, float] = field(default_factory=dict)
    forward_us: float = 800
    transfer_us: float = 60
    between_us: float = 3000
    chunks: int = 1
    seed: int = 0

    def play(self) -> list[Stage]:
        random = np.random.default_rng(self.seed)
        lanes = [Stage(rank, int(random.integers(0, 30)) * US) for rank in range(self.stages)]
        for lane in lanes:
            for step in range(self.steps):
                begin = lane.host_ns
                lane.host_ns += int(self.late_us.get((lane.rank, step), 0) * US)
                for kind in self.order(lane.rank, self.stages, self.batches):
                    for chunk in range(self.chunks):
                        self._pass(lane, kind, chunk, random)
                lane.launch("multi_tensor_apply", COMPUTE, 300 * US)
                lane.steps.append((step + 5, begin, lane.host_ns))
                lane.host_ns += int(self.between_us * US)
        meet(lanes, buffered=self.buffered)
        return lanes

    def _pass(self, lane: Stage, kind: str, chunk: int, random: np.random.Generator) -> None:
        ahead = 1 if kind == "F" else -1
        ring = self.chunks > 1
        first = lane.rank == (0 if kind == "F" else self.stages - 1) and chunk == 0
        last = lane.rank == (self.stages - 1 if kind == "F" else 0) and chunk == self.chunks - 1
        source, target = ((lane.rank - ahead) % self.stages, (lane.rank + ahead) % self.stages)
        move_ns = int(self.transfer_us * US)
        lanes = MESSAGE_STREAM + 4 * (kind == "B")
        if not first and (ring or 0 <= lane.rank - ahead < self.stages):
            lane.exchange((0, source), dur_ns=move_ns, stream=lanes)
            lane.hold(COMPUTE, lanes)
        factor = self.slow.get(lane.rank, 1.0) * (1 if kind == "F" else 2) * random.normal(1, 0.01)
        lane.launch(GEMM, COMPUTE, int(self.forward_us * US * factor))
        if not last and (ring or 0 <= lane.rank + ahead < self.stages):
            lane.exchange((1, target), dur_ns=move_ns, stream=lanes + 1)


def ring(ranks: int, rounds: int, *, slow: dict[int, float], seed: int = 0) -> list[Stage]:
    """Context parallelism: in each round every rank computes, then sends on and receives in one kernel."""
    random = np.random.default_rng(seed)
    lanes = [Stage(rank, int(random.integers(0, 30)) * US) for rank in range(ranks)]
    for lane in lanes:
        for step in range(3):
            begin = lane.host_ns
            for _ in range(rounds):
                legs = (1, (lane.rank + 1) % ranks), (0, (lane.rank - 1) % ranks)
                lane.exchange(*legs, dur_ns=60 * US, stream=MESSAGE_STREAM)
                factor = slow.get(lane.rank, 1.0) * random.normal(1, 0.01)
                lane.launch(GEMM, COMPUTE, int(500 * US * factor))
                lane.hold(COMPUTE, MESSAGE_STREAM)
            lane.steps.append((step + 5, begin, lane.host_ns))
            lane.host_ns += 500 * US
    meet(lanes, buffered=False)
    return lanes


def meet(lanes: list[Stage], *, buffered: bool) -> None:
    """Start and end of every kernel, again and again until nothing moves."""
    entered: dict[tuple[int, int, int], list[Item]] = {}
    for lane in lanes:
        for item in lane.items:
            for message in item.meets:
                entered.setdefault(message, []).append(item)
    moved = True
    while moved:
        moved = False
        for lane in lanes:
            for item in lane.items:
                ends = [lane.items[index].end_ns for index in item.after]
                if item.start_ns < 0 and all(end >= 0 for end in ends):
                    item.start_ns = max([item.launch_ns + 2 * LAUNCH_NS, *(end + GAP_NS for end in ends)])
                    moved = True
                if item.start_ns >= 0 and item.end_ns < 0:
                    waits = [] if buffered and all(sends for sends, _ in item.legs) else item.meets
                    partners = [partner for message in waits for partner in entered[message]]
                    if all(partner.start_ns >= 0 for partner in partners):
                        item.all_in_ns = max([item.start_ns, *(partner.start_ns for partner in partners)])
                        item.end_ns = item.all_in_ns + item.dur_ns
                        moved = True
    assert all(item.end_ns >= 0 for lane in lanes for item in lane.items), "the pipeline hangs"


def parts_ns(stage: Stage) -> dict[str, int]:
    """What a rank computes, moves and waits in all, each instant once: by the edges of its kernels."""
    edges = sorted({t for item in stage.items for t in (item.start_ns, item.all_in_ns, item.end_ns)})
    parts = {"compute": 0, "transfer": 0, "wait": 0}
    for begin, end in pairwise(edges):
        running = [item for item in stage.items if item.start_ns <= begin and item.end_ns >= end]
        if any(not item.legs for item in running):
            parts["compute"] += end - begin
        elif any(item.all_in_ns <= begin for item in running):
            parts["transfer"] += end - begin
        elif running:
            parts["wait"] += end - begin
    return parts


def step_ends_ns(lanes: list[Stage]) -> list[int]:
    """When the last kernel of each step ends over all ranks."""
    return [
        max(i.end_ns for lane in lanes for i in lane.items if i.launch_ns < lane.steps[number][2])
        for number in range(len(lanes[0].steps))
    ]


def write_pipeline(
    lanes: list[Stage],
    folder: Path,
    *,
    skipped: dict[int, int] | None = None,
    clock_us: dict[int, float] | None = None,
) -> Path:
    """One Kineto trace per rank; kernels of several calls have no metadata, as of batch_isend_irecv."""
    folder.mkdir(parents=True, exist_ok=True)
    for lane in lanes:
        shift_us = (clock_us or {}).get(lane.rank, 0.0)
        events = list(_events(lane, len(lanes), (skipped or {}).get(lane.rank, 0)))
        for event in events:
            event["ts"] = event["ts"] / US + shift_us
            event["dur"] = event["dur"] / US
        document = {
            "schemaVersion": 1,
            "baseTimeNanoseconds": START_NS,
            "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132}],
            "distributedInfo": {"rank": lane.rank, "world_size": len(lanes), "backend": "nccl"},
            "traceEvents": events,
        }
        (folder / f"rank{lane.rank}.json").write_text(json.dumps(document))
    return folder


def _events(lane: Stage, world: int, skipped: int) -> Iterator[dict[str, Any]]:
    def slice_of(cat: str, name: str, tid: int, start_ns: int, dur_ns: int, **args: Any) -> dict[str, Any]:
        pid = 0 if cat == "kernel" else 4000
        return {
            "ph": "X",
            "cat": cat,
            "name": name,
            "pid": pid,
            "tid": tid,
            "ts": start_ns,
            "dur": dur_ns,
            "args": args,
        }

    for number, begin_ns, end_ns in lane.steps:
        yield slice_of("user_annotation", f"ProfilerStep#{number}", 4000, begin_ns, end_ns - begin_ns)
    for index, item in enumerate(lane.items):
        corr = 100 + 10 * index
        about = {
            "correlation": corr,
            "device": 0,
            "stream": item.stream,
            "grid": [16, 1, 1],
            "block": [64, 1, 1],
        }
        if index >= skipped:
            names = [_call(lane.rank, world, leg) for leg in item.legs]
            op = "aten::mm" if item.name == GEMM else "aten::_fused_adamw_"
            for number, call in enumerate(names):  # of several, none launches anything itself
                ts, dur = (
                    (item.launch_ns, 8 * US)
                    if len(names) == 1
                    else (item.launch_ns - 900 + 200 * number, 100)
                )
                yield slice_of(
                    "cpu_op", "record_param_comms", 4000, ts, dur, **{"External id": corr + number}, **call
                )
            if not names:
                yield slice_of("cpu_op", op, 4000, item.launch_ns, 8 * US, **{"External id": corr})
            launch = {"correlation": corr} | ({} if len(names) > 1 else {"External id": corr})
            yield slice_of(
                "cuda_runtime", "cudaLaunchKernel", 4000, item.launch_ns + US, LAUNCH_NS - US, **launch
            )
            about |= names[0] if len(names) == 1 else {}
            about |= {} if len(names) > 1 else {"External id": corr}
        yield slice_of("kernel", item.name, item.stream, item.start_ns, item.end_ns - item.start_ns, **about)


def _call(rank: int, world: int, leg: tuple[int, int]) -> dict[str, Any]:
    sends, peer = leg
    return {
        "Collective name": "send" if sends else "recv",
        "In msg nelems": 4096,
        "Out msg nelems": 4096,
        "Group size": world,
        "dtype": "BFloat16",
        "Process Group Name": "0",
        "Process Group Description": "default_pg",
        "Process Group Ranks": str(list(range(world))),
        "Dst Rank" if sends else "Src Rank": peer,
    }
