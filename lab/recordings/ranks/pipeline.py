"""Pipelines seen in who sends to whom: stages, schedule, and the bubbles of each stage.

A pipeline is a chain of ranks of which one alone begins a step by sending; with a way from the last back to
the first it is interleaved. Exchanges in which every rank begins alike (rings of context parallelism,
all-to-all by pairs) are none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lab.recordings.names import kernel_class
from lab.recordings.ranks.account import WAIT, Account
from lab.recordings.ranks.common import launched_in
from lab.recordings.ranks.work import COMP
from lab.stats.intervals import overlap

GPIPE, ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE = "GPipe", "1F1B", "interleaved", "zero-bubble"
FORWARD, BACKWARD = "F", "B"


@dataclass(frozen=True)
class Bubbles:
    """How long one stage waits in a step, ns: before its first backward, between, after its last forward."""

    step: int
    stage: int
    rank: int
    step_ns: int
    compute_ns: int
    warm_up_ns: int
    steady_ns: int
    cool_down_ns: int

    @property
    def ns(self) -> int:
        return self.warm_up_ns + self.steady_ns + self.cool_down_ns


@dataclass(frozen=True)
class Pipeline:
    """Ranks by stage, how many microbatches pass, and the schedule, "" where it is none that is known."""

    ranks: tuple[int, ...]
    num_microbatches: int
    schedule: str
    bubbles: tuple[Bubbles, ...]


class _Message(NamedTuple):
    """One end of a send or receive on one rank. row: its operation; kind: FORWARD or BACKWARD."""

    row: int
    is_send: bool
    peer: int
    kind: str = ""


def pipelines_of(account: Account) -> list[Pipeline]:
    """The pipelines that every whole step shows; none where a step shows another."""
    together = account.together
    by_step = {
        step: chains
        for step in together.steps
        if step != together.cut_step and (chains := _chains(account, step))
    }
    if not by_step:
        return []
    # Stages that change from step to step are another pattern of exchanges, and no pipeline.
    example = next(iter(by_step.values()))
    if any([ranks for ranks, _ in chains] != [ranks for ranks, _ in example] for chains in by_step.values()):
        return []
    pipelines = []
    for ranks, is_ring in example:
        letters: dict[int, str] = {}
        bubbles: list[Bubbles] = []
        late_gemms = False
        for step in by_step:
            for stage, rank in enumerate(ranks):
                messages = _with_kinds(ranks, stage, _messages(account, rank, step))
                letters[stage] = _letters(stage, len(ranks), messages)
                bubbles.append(_bubbles(account, step, ranks, stage, messages))
                late_gemms |= stage > 0 and _has_late_gemms(account, step, rank, messages)
        num_microbatches = max(text.count(FORWARD) for text in letters.values())
        schedule = _schedule(list(letters.values()), is_ring=is_ring, late_gemms=late_gemms)
        pipelines.append(Pipeline(tuple(ranks), num_microbatches, schedule, tuple(bubbles)))
    return pipelines


def _messages(account: Account, rank: int, step: int) -> list[_Message]:
    """The paired sends and receives that a rank launches in a step, in order."""
    together = account.together
    index = account.ranks.index(rank)
    instances = together.pairs.instances
    legs = together.pairs.legs.where(instances.rank[together.pairs.legs.instance] == rank)
    ends: dict[int, list[tuple[bool, int]]] = {}
    columns = (instances.row[legs.instance], legs.source, legs.target)
    for row, source, target in zip(*(values.tolist() for values in columns), strict=True):
        ends.setdefault(row, []).append((source == rank, target if source == rank else source))
    return [
        _Message(row, is_send, peer)
        for row in launched_in(together, index, step).tolist()
        # One kernel of a batch sends what the pass before it made and receives for the pass after it.
        for is_send, peer in sorted(ends.get(row, ()), key=lambda end: (not end[0], end[1]))
        if peer in account.ranks
    ]


def _chains(account: Account, step: int) -> list[tuple[list[int], bool]]:
    """Ranks by stage of each pipeline in a step, and whether its last stage sends on to the first."""
    messages = {rank: of_rank for rank in account.ranks if (of_rank := _messages(account, rank, step))}
    starters = [
        rank for rank, of_rank in messages.items() if of_rank[0].is_send and not _receives_at_once(of_rank)
    ]
    chains = []
    for rank in starters:
        ranks, is_ring = [rank], False
        while True:
            forward = next((m.peer for m in messages[ranks[-1]] if m.is_send and m.peer not in ranks), None)
            if forward is None or forward not in messages or forward in starters:
                break
            ranks.append(forward)
        if len(ranks) > 2:
            is_ring = any(m.is_send and m.peer == rank for m in messages[ranks[-1]])
        neighbours = all(
            abs(ranks.index(m.peer) - stage) in (1, len(ranks) - 1 if is_ring else 1)
            for stage, member in enumerate(ranks)
            for m in messages[member]
            if m.peer in ranks
        )
        if len(ranks) > 1 and neighbours:
            chains.append((ranks, is_ring))
    return chains


def _receives_at_once(messages: Sequence[_Message]) -> bool:
    """Whether the first kernel also receives: then no stage comes before another."""
    return any(m.row == messages[0].row and not m.is_send for m in messages)


def _with_kinds(ranks: Sequence[int], stage: int, messages: Sequence[_Message]) -> list[_Message]:
    """The messages with their kinds: activations go up by one stage, gradients down."""
    with_kinds = []
    for message in messages:
        peer_stage = ranks.index(message.peer) if message.peer in ranks else stage
        up = (peer_stage - stage) % len(ranks) == 1 if len(ranks) > 2 else peer_stage > stage
        with_kinds.append(message._replace(kind=FORWARD if up == message.is_send else BACKWARD))
    return with_kinds


def _letters(stage: int, num_stages: int, messages: Sequence[_Message]) -> str:
    """The passes of a stage in order, each told by what it receives, or sends where it receives nothing."""
    by_sends = {FORWARD: stage == 0, BACKWARD: stage == num_stages - 1}
    by_sends |= {m.kind: False for m in messages if not m.is_send}
    return "".join(m.kind for m in messages if m.is_send == by_sends[m.kind])


def _schedule(letters: Sequence[str], *, is_ring: bool, late_gemms: bool) -> str:
    if is_ring:
        return INTERLEAVED
    if late_gemms:
        return ZERO_BUBBLE
    # GPipe runs all forwards first: on no stage does a forward follow a backward.
    if all("BF" not in text for text in letters):
        return GPIPE
    return ONE_F_ONE_B if "FF" not in letters[-1].lstrip(FORWARD) and "BB" not in letters[-1] else ""


def _bubbles(
    account: Account, step: int, ranks: Sequence[int], stage: int, messages: Sequence[_Message]
) -> Bubbles:
    rank = ranks[stage]
    index = account.ranks.index(rank)
    work, segments = account.together.works[index], account.segments[index]
    begin, end = account.together.window(index, step) or (0, 0)
    starts = [int(work.start[m.row]) for m in messages if m.kind == BACKWARD]
    forward_ends = [
        int((work.start if m.is_send else work.end)[m.row]) for m in messages if m.kind == FORWARD
    ]
    first_backward, last_forward = min(starts, default=end), max(forward_ends, default=begin)
    edges = sorted((min(max(first_backward, begin), end), min(max(last_forward, begin), end)))
    phases = np.array([[begin, edges[0]], [edges[0], edges[1]], [edges[1], end]], dtype=np.int64)
    is_wait = segments.label == WAIT
    waits = np.stack([segments.begin[is_wait], segments.end[is_wait]], axis=1)
    row = account.row(step, rank)
    assert row is not None
    compute_ns = row.parts["compute_ns"] + row.parts["contention_ns"]
    return Bubbles(step, stage, rank, end - begin, compute_ns, *overlap(phases, waits).tolist())


def _has_late_gemms(account: Account, step: int, rank: int, messages: Sequence[_Message]) -> bool:
    """Whether matrix products run after the last gradient was sent: those of weights, held back."""
    work = account.work(rank)
    sends = [m.row for m in messages if m.is_send]
    if not sends:
        return False
    launched = launched_in(account.together, account.ranks.index(rank), step)
    later = launched[np.searchsorted(work.call_begin[launched], work.call_begin[sends[-1]], side="right") :]
    kernels = later[work.kind[later] == COMP]
    names = [work.keys[key] for key in {*work.key[kernels].tolist()}]
    return any(kernel_class(kernel, op) == "gemm" for op, _, _, kernel, _ in names)
