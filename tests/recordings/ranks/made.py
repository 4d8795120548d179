"""Jobs played forward by plain loops, so that each effect is consistent over ranks and of known size."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from lab.recordings.ranks import RankWork
from lab.recordings.ranks.work import COMM, COMP, COPY
from tests.recordings.pairing.made import call as call_row
from tests.recordings.pairing.made import table

MS, US = 1_000_000, 1_000
ORIGIN = 1_700_000_000_000_000_000
LAYERS = 6
GEMM_US, BESIDE_US, TRANSFER_US, LAUNCH_US = 900, 250, 400, 40


@dataclass
class Job:
    """A job of `ranks` ranks that runs `steps` steps; every change is by rank, in ms or as a factor.

    late: (rank, step) -> ms that the host stops before a layer. extra: rank -> more GEMMs a step of
    GEMM_US each. slower: rank -> factor on its GEMMs. leaves_late: rank or (rank, layer) -> us. copies:
    rank -> ms copied at the end of the step. clock: rank -> ms added to its times; drift: rank -> ppm.
    dropped: (rank, number of the collective). gap_ms: pause between steps, for long recordings.
    late_layer: where a late host stops. entered: rank -> ms later that it enters the first step. tail:
    (rank, step) -> ms that its host stays in the step after the GPUs have ended it. collective: what
    all calls are. layer_ms: what every host takes before each layer. waits_after: a layer after which
    every host waits for its GPU. stalls: (rank, step) -> ms that a GEMM starts late for no recorded
    reason, its GPU idle.
    """

    ranks: int = 8
    steps: int = 3
    late: dict[tuple[int, int], float] = field(default_factory=dict)
    extra: dict[int, int] = field(default_factory=dict)
    slower: dict[int, float] = field(default_factory=dict)
    leaves_late: dict[int | tuple[int, int], float] = field(default_factory=dict)
    copies: dict[int, float] = field(default_factory=dict)
    clock: dict[int, float] = field(default_factory=dict)
    drift: dict[int, float] = field(default_factory=dict)
    dropped: set[tuple[int, int]] = field(default_factory=set)
    gap_ms: float = 0.0
    link: float = 1.0
    late_layer: int = 2
    entered: dict[int, float] = field(default_factory=dict)
    tail: dict[tuple[int, int], float] = field(default_factory=dict)
    collective: str = "allreduce"
    layer_ms: float = 0.0
    waits_after: int = -1
    stalls: dict[tuple[int, int], float] = field(default_factory=dict)
    seed: int = 1

    def play(self) -> dict[int, RankWork]:
        random = np.random.default_rng(self.seed)
        lanes = [_Rank(rank, int(self.entered.get(rank, 0.0) * MS)) for rank in range(self.ranks)]
        for step in range(self.steps):
            for lane in lanes:
                lane.open_step(self.gap_ms)
            for layer in range(LAYERS):
                for lane in lanes:
                    self._compute(lane, step, layer, random)
                ready = [lane.launch(28, after=lane.last) for lane in lanes]
                end = max(ready) + (TRANSFER_US * self.link + random.integers(0, 8)) * US
                for lane, start in zip(lanes, ready, strict=True):
                    late_us = self.leaves_late.get((lane.rank, layer), self.leaves_late.get(lane.rank, 0))
                    leaves = end + int(late_us * US) + int(random.integers(0, 3)) * US
                    lane.run("collective", COMM, 28, start, leaves)
                    begin = lane.launch(7)
                    lane.run("beside", COMP, 7, begin, begin + BESIDE_US * US)
                    lane.next_after = leaves
                    if layer == self.waits_after:
                        lane.wait()
            for lane in lanes:
                lane.close_step(self.copies.get(lane.rank, 0.0), self.tail.get((lane.rank, step), 0.0))
        return {lane.rank: self._work(lane) for lane in lanes}

    def _compute(self, lane: _Rank, step: int, layer: int, random: np.random.Generator) -> None:
        lane.host += int(self.layer_ms * MS)
        if layer == self.late_layer and (lane.rank, step) in self.late:
            lane.host += int(self.late[lane.rank, step] * MS)
        count = 1 + (self.extra.get(lane.rank, 0) if layer == 3 else 0)
        for _ in range(count):
            start = lane.launch(7, after=lane.next_after)
            start += int(self.stalls.get((lane.rank, step), 0.0) * MS) if layer == 1 else 0
            length = GEMM_US * self.slower.get(lane.rank, 1.0) * US + int(random.integers(0, 5)) * US
            lane.run("gemm", COMP, 7, start, start + int(length))

    def _work(self, lane: _Rank) -> RankWork:
        wanted, number = [], 0
        for row in lane.rows:
            if row[0] == "collective":
                number += 1
                if (lane.rank, number - 1) in self.dropped:
                    continue
            wanted.append(row)

        def clocked(ts: np.ndarray) -> np.ndarray:
            ppm = self.drift.get(lane.rank, 0.0)
            shift = self.clock.get(lane.rank, 0.0) * MS
            return ORIGIN + ts + np.rint(shift + ppm * 1e-6 * ts).astype(np.int64)

        names = [row[0] for row in wanted]
        columns = np.array([row[1:] for row in wanted], dtype=np.int64)
        kind, stream, start, end, call = columns.T
        known = ("gemm", "beside", "collective", "copy")
        key = np.array([known.index(name) for name in names])
        steps = np.array(lane.steps, dtype=np.int64)
        of_call = np.flatnonzero(kind == COMM)
        calls = of_call.tolist(), clocked(start)[of_call].tolist(), clocked(end)[of_call].tolist()
        kernel = "ncclDevKernel_AllReduce" if self.collective == "allreduce" else "ncclDevKernel_SendRecv"
        what = {"collective": self.collective, "kernel": kernel, "group_size": self.ranks}
        what["pg_ranks"] = str(list(range(self.ranks)))
        return RankWork(
            rank=lane.rank,
            device="gpu",
            host="",
            start=clocked(start),
            end=clocked(end),
            kind=kind.astype(np.int8),
            stream=stream,
            call_begin=clocked(call - LAUNCH_US * US // 4),
            call_end=clocked(call),
            key=key,
            keys=tuple((f"aten::{name}", "", "", f"{name}_kernel", "1,1,1") for name in known),
            steps=np.column_stack([steps[:, 0], clocked(steps[:, 1]), clocked(steps[:, 2])]),
            blocking_calls=clocked(np.array(lane.blocked, dtype=np.int64).reshape(-1, 2)),
            calls=np.column_stack([clocked(call - LAUNCH_US * US // 4), clocked(call)]),
            host_ops=np.empty((0, 2), dtype=np.int64),
            collectives=table(
                [
                    call_row(n, 0, 0, row=row, ts_ns=begin, dur_ns=stop - begin, **what)
                    for n, (row, begin, stop) in enumerate(zip(*calls, strict=True))
                ]
            ),
        )


class _Rank:
    """One rank while it is played: its host's time, the ends of its streams, and its rows."""

    def __init__(self, rank: int, begin: int) -> None:
        self.rank = rank
        self.host = begin
        self.ends = {7: 0, 28: 0}
        self.last = self.next_after = 0
        self.rows: list[tuple[str, int, int, int, int, int]] = []
        self.steps: list[tuple[int, int, int]] = []
        self.blocked: list[tuple[int, int]] = []
        self._call = 0

    def open_step(self, gap_ms: float) -> None:
        self.host += int(gap_ms * MS)
        self._begin = self.host

    def launch(self, stream: int, after: int = 0) -> int:
        """The start of the next operation on a stream: after its launch, its stream, and `after`."""
        self.host += LAUNCH_US * US
        self._call = self.host
        return max(self.host + 2 * US, self.ends[stream] + US, after + US if after else 0)

    def run(self, name: str, kind: int, stream: int, start: int, end: int) -> None:
        self.rows.append((name, kind, stream, start, end, self._call))
        self.ends[stream] = end
        if stream == 7 and name == "gemm":
            self.last = end

    def wait(self) -> None:
        """The host waits for all that it launched."""
        begin, self.host = self.host + US, max(self.host, *self.ends.values()) + 10 * US
        self.blocked.append((begin, self.host))

    def close_step(self, copy_ms: float, tail_ms: float) -> None:
        if copy_ms:
            start = self.launch(7)
            self.run("copy", COPY, 7, start, start + int(copy_ms * MS))
        self.host = max(self.host, *self.ends.values()) + 20 * US + int(tail_ms * MS)
        self.steps.append((5 + len(self.steps), self._begin, self.host))
