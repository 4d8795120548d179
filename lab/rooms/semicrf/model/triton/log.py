"""The log domain in Triton: what `log_domain.py` computes, for a GPU; `log_by_duration.py` is for (K, C, C).

float64 throughout, real -inf, no epsilon, no clamp. Two kernels go through time, one program per sequence;
whatever does not depend on the frame before or after is computed for all frames side by side:

- `messages`, from the left: log Z, alpha, gamma and the frames' scores with all shifts applied;
- `maxima`, side by side: for each (t, c) the largest term of alpha[t, c] and the sum of all in its units;
- `masses`, from the right: the mass that ends at (t, c) is split over the durations by shares that sum to 1,
  the mass that starts at (s, c) over the labels before it likewise. So there is no NaN and no count above 1,
  however large the scores;
- `durations`, side by side: the counts of durations.

A share is exp(term - largest), so a term must have the same bits wherever it is computed: `maxima`, `masses`
and `durations` all add a segment's frames from its last to its first. `messages` adds them from its first, in
the order of time. No sum spans more than one segment.

A pass keeps a row for each of the last K boundaries: ring[r], ROWS in a tile. Row r serves the boundaries n
with n % ring_rows = r, and its segment grows by a frame each step. Rows go through global memory: a barrier
stands between any load and the next store and between any store and the next load.

No atomics; partial sums of fixed shape are added in a fixed order; nothing that shapes a sum depends on T or
B.
"""

# Triton's language is not typed Python.
# mypy: ignore-errors
from __future__ import annotations

import torch
import triton
import triton.language as tl

from lab.rooms.semicrf.model.ledger import mass
from lab.rooms.semicrf.model.problem import Posteriors, Problem
from lab.rooms.semicrf.model.triton import log_by_duration
from lab.rooms.semicrf.model.triton.launch import launch
from lab.rooms.semicrf.model.triton.log_terms import (
    LogState,
    Shape,
    added,
    finite_or_zero,
    joined,
    length_of,
    logsumexp,
    padded,
    shares,
    usable_length,
)


@triton.jit(
    do_not_specialize=["frames", "labels", "longest", "ring_rows"],
    do_not_specialize_on_alignment=["score", "lengths"],
)
def messages(
    score,
    lengths,
    transition,
    duration,
    start,
    end,
    alpha,
    gamma,
    frame,
    log_z,
    ring,
    frames,
    labels,
    longest,
    ring_rows,
    ROWS: tl.constexpr,
    CP: tl.constexpr,
    KEEP: tl.constexpr,
):
    """The pass from the left: log Z, and with KEEP alpha (B, T+1, CP), gamma and the shifted frame (B, T,
    CP).

    A row of the ring is what came in at its boundary and the frames since. Messages are shifted by their
    maximum each frame.
    """
    b = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, CP)
    live = cols < labels
    rows = tl.arange(0, ROWS)
    length = length_of(lengths, b, frames)
    score += b * frames * labels
    ring += b * ring_rows * CP
    alpha += b * (frames + 1) * CP
    gamma += b * frames * CP
    frame += b * frames * CP
    source = tl.load(start + cols)
    arrived = tl.full([CP], float("-inf"), tl.float64)
    offset = tl.full([], 0.0, tl.float64)
    if KEEP:
        tl.store(alpha + cols, arrived)
    tl.debug_barrier()
    for t in range(length):
        scores = tl.load(score + t * labels + cols, mask=live, other=float("-inf")).to(tl.float64)
        top = finite_or_zero(tl.max(scores, 0))
        shift = finite_or_zero(tl.max(source, 0))
        scores = (scores - top) - shift
        offset += shift + top
        if KEEP:
            tl.store(frame + t * CP + cols, scores)
            tl.store(gamma + t * CP + cols, source)
        most = tl.full([ROWS, CP], float("-inf"), tl.float64)
        total = tl.zeros([ROWS, CP], tl.float64)
        for first in range(0, tl.minimum(ring_rows, t + 1), ROWS):
            row = first + rows
            newest = t % ring_rows
            # a segment of age + 1 frames
            age = tl.where(row > newest, newest - row + ring_rows, newest - row)
            there = (age <= t) & (age < longest)
            at = ring + row[:, None] * CP + cols[None, :]
            content = tl.load(at, mask=(there & (age > 0))[:, None], other=0.0)
            content = tl.where((age == 0)[:, None], source[None, :], content) + scores[None, :]
            k = tl.minimum(age, longest - 1)
            term = content + tl.load(duration + k[:, None] * CP + cols[None, :])
            most, total = joined(most, total, tl.where(there[:, None], term, float("-inf")))
            tl.debug_barrier()
            tl.store(at, content)
            tl.debug_barrier()
        arrived = tl.max(most, 0)
        safe = tl.where(arrived == float("-inf"), 0.0, arrived)
        arrived = tl.log(tl.sum(total * tl.exp(most - safe[None, :]), 0)) + safe
        if KEEP:
            tl.store(alpha + (t + 1) * CP + cols, arrived)
        wide = tl.arange(0, CP)
        onward = tl.load(transition + wide[:, None] * CP + cols[None, :])
        source = logsumexp(arrived[:, None] + onward, 0)
        tl.debug_barrier()
    tl.store(log_z + b, logsumexp(arrived + tl.load(end + cols), 0) + offset)


@triton.jit(do_not_specialize=["frames", "labels", "longest"], do_not_specialize_on_alignment=["lengths"])
def maxima(
    lengths,
    transition,
    duration,
    start,
    end,
    alpha,
    gamma,
    frame,
    log_z,
    largest,
    inverse,
    frames,
    labels,
    longest,
    ROWS: tl.constexpr,
    CP: tl.constexpr,
):
    """For boundaries t > 0: the largest term of alpha[t, c], and 1 / (the sum in its units); 0, 0 if none."""
    b = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, CP)
    tile = tl.program_id(1)
    t = tile * ROWS + tl.arange(0, ROWS) + 1
    length = usable_length(lengths, log_z, b, frames)
    alpha += b * (frames + 1) * CP
    gamma += b * frames * CP
    frame += b * frames * CP
    most = tl.full([ROWS, CP], float("-inf"), tl.float64)
    total = tl.zeros([ROWS, CP], tl.float64)
    content = tl.zeros([ROWS, CP], tl.float64)
    reach = tl.minimum(tile * ROWS + ROWS, length)
    for k in range(1, tl.where(tile * ROWS < length, tl.minimum(longest, reach), 0) + 1):
        there = (k <= t) & (t <= length)
        s = tl.where(there, t - k, 0)
        content += tl.load(frame + s[:, None] * CP + cols[None, :])
        value = tl.load(gamma + s[:, None] * CP + cols[None, :])
        term = (value + content) + tl.load(duration + (k - 1) * CP + cols)[None, :]
        most, total = joined(most, total, tl.where(there[:, None], term, float("-inf")))
    some = most > float("-inf")
    at = (b * (frames + 1) + t)[:, None] * CP + cols[None, :]
    mask = (t <= frames)[:, None] & (cols < CP)[None, :]
    tl.store(largest + at, tl.where(some, most, 0.0), mask=mask)
    tl.store(inverse + at, tl.where(some, 1.0 / tl.where(some, total, 1.0), 0.0), mask=mask)


@triton.jit(
    do_not_specialize=["frames", "labels", "longest", "ring_rows"], do_not_specialize_on_alignment=["lengths"]
)
def masses(
    lengths,
    transition,
    duration,
    start,
    end,
    alpha,
    gamma,
    frame,
    log_z,
    largest,
    inverse,
    ready,
    ring,
    label_out,
    starts_out,
    ends_out,
    crossed,
    frames,
    labels,
    longest,
    ring_rows,
    ROWS: tl.constexpr,
    CP: tl.constexpr,
):
    """The pass from the right: label, starts, ends (B, T, C) and crossed (B, C, C).

    A row of the ring is the frames from boundary s to its end t. `ready` (B, T+1, CP) is the mass that ends
    at t over the sum of its terms, for a share's numerator to meet.
    """
    b = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, CP)
    wide = tl.arange(0, CP)
    rows = tl.arange(0, ROWS)
    length = usable_length(lengths, log_z, b, frames)
    alpha += b * (frames + 1) * CP
    largest += b * (frames + 1) * CP
    inverse += b * (frames + 1) * CP
    ready += b * (frames + 1) * CP
    gamma += b * frames * CP
    frame += b * frames * CP
    ring += b * ring_rows * CP
    out = b * frames * labels
    last = length
    some = cols < tl.where(length > 0, labels, 0)
    ends = shares(tl.load(alpha + last * CP + cols) + tl.load(end + cols), 0)
    tl.store(ready + last * CP + cols, ends * tl.load(inverse + last * CP + cols))
    tl.store(ends_out + out + (last - 1) * labels + cols, ends, mask=some)
    covered = ends
    transfer = tl.zeros([CP, CP], tl.float64)
    tl.debug_barrier()
    for back in range(length):
        s = last - 1 - back
        scores = tl.load(frame + s * CP + cols)
        starting = tl.zeros([ROWS, CP], tl.float64)
        for first in range(0, tl.minimum(ring_rows, back + 1), ROWS):
            row = first + rows
            newest = back % ring_rows
            age = tl.where(row > newest, newest - row + ring_rows, newest - row)
            there = (age <= back) & (age < longest)
            at = ring + row[:, None] * CP + cols[None, :]
            content = tl.load(at, mask=(there & (age > 0))[:, None], other=0.0) + scores[None, :]
            k = tl.minimum(age, longest - 1) + 1
            t = tl.where(there, s + k, last)
            here = t[:, None] * CP + cols[None, :]
            value = tl.load(gamma + s * CP + cols)[None, :]
            term = (value + content) + tl.load(duration + (k - 1)[:, None] * CP + cols[None, :])
            part = tl.exp(tl.where(there[:, None], term - tl.load(largest + here), float("-inf")))
            split = part * tl.load(ready + here)
            starting += split
            tl.debug_barrier()
            tl.store(at, content)
            tl.debug_barrier()
        starts = tl.sum(starting, 0)
        before = tl.load(alpha + s * CP + wide)[:, None]
        onward = tl.load(transition + wide[:, None] * CP + cols[None, :])
        into = shares(before + onward, 0) * starts[None, :]
        transfer += into
        leaving = tl.sum(into, 1)
        inside = cols < labels
        tl.store(label_out + out + s * labels + cols, covered, mask=inside)
        tl.store(starts_out + out + s * labels + cols, starts, mask=inside)
        tl.store(ends_out + out + (s - 1) * labels + cols, leaving, mask=cols < tl.where(s > 0, labels, 0))
        tl.store(ready + s * CP + cols, leaving * tl.load(inverse + s * CP + cols))
        covered += leaving - starts
        tl.debug_barrier()
    both = (wide < labels)[:, None] & (cols < labels)[None, :]
    tl.store(crossed + b * labels * labels + wide[:, None] * labels + cols[None, :], transfer, mask=both)


@triton.jit(
    do_not_specialize=["frames", "labels", "longest", "chunk", "chunks"],
    do_not_specialize_on_alignment=["lengths"],
)
def durations(
    lengths,
    transition,
    duration,
    start,
    end,
    alpha,
    gamma,
    frame,
    log_z,
    largest,
    ready,
    partial,
    frames,
    labels,
    longest,
    chunk,
    chunks,
    ROWS: tl.constexpr,
    CP: tl.constexpr,
):
    """Counts over the segments that end in one tile of frames, (B, chunks, K, CP), `chunk` being the first
    tile.

    `partial` comes as zeros.
    """
    b = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, CP)
    tile = chunk + tl.program_id(1)
    t = tile * ROWS + tl.arange(0, ROWS) + 1
    length = usable_length(lengths, log_z, b, frames)
    alpha += b * (frames + 1) * CP
    largest += b * (frames + 1) * CP
    ready += b * (frames + 1) * CP
    gamma += b * frames * CP
    frame += b * frames * CP
    to = partial + (b * chunks + tl.program_id(1)) * longest * CP + cols
    here = tl.where(t <= length, t, 0)[:, None] * CP + cols[None, :]
    mass = tl.load(ready + here)
    most = tl.load(largest + here)
    content = tl.zeros([ROWS, CP], tl.float64)
    reach = tl.minimum(tile * ROWS + ROWS, length)
    for k in range(1, tl.where(tile * ROWS < length, tl.minimum(longest, reach), 0) + 1):
        there = (k <= t) & (t <= length)
        s = tl.where(there, t - k, 0)
        content += tl.load(frame + s[:, None] * CP + cols[None, :])
        value = tl.load(gamma + s[:, None] * CP + cols[None, :])
        term = (value + content) + tl.load(duration + (k - 1) * CP + cols)[None, :]
        split = tl.exp(tl.where(there[:, None], term - most, float("-inf"))) * mass
        split = tl.where(there[:, None], split, 0.0)
        tl.store(to + (k - 1) * CP, tl.sum(split, 0))
        tl.debug_barrier()


def forward(problem: Problem, keep: bool = True) -> LogState:
    """log Z (B,), and with `keep` the messages that `counts` needs.

    A NaN within a sequence makes its log Z NaN.
    """
    if problem.by_duration:
        return log_by_duration.forward(problem)
    batch, frames, longest, labels = problem.shape
    shape = Shape.of(problem)
    more, ring = shape.wide - labels, triton.cdiv(longest, shape.rows) * shape.rows
    model = {
        "transition": padded(problem.transition, more, rows=True),
        "duration": padded(problem.duration_KC, more),
        "start": padded(problem.start_C, more),
        "end": padded(problem.end_C, more),
    }
    new, kept_B = model["start"].new_empty, batch if keep else 1
    kept = {
        "alpha": new(kept_B, frames + 1, shape.wide),
        "gamma": new(kept_B, frames, shape.wide),
        "frame": new(kept_B, frames, shape.wide),
        "log_z": new(batch),
    }
    launch(
        messages,
        (batch,),
        problem.score_BTC.detach().contiguous(),
        problem.lengths_B,
        *model.values(),
        *kept.values(),
        new(batch, ring, shape.wide),
        frames,
        labels,
        longest,
        ring,
        ROWS=shape.rows,
        CP=shape.wide,
        KEEP=keep,
        num_warps=shape.warps,
    )
    return LogState(problem, model, kept)


def posteriors(problem: Problem) -> Posteriors:
    """All expected counts, float64. An infeasible or NaN sequence has counts of zero."""
    return counts(forward(problem))


def counts(state: LogState) -> Posteriors:
    """The pass from the right, and with it every expected count."""
    problem = state.problem
    if problem.by_duration:
        return log_by_duration.counts(state)
    batch, frames, longest, labels = problem.shape
    shape = Shape.of(problem)
    ring = triton.cdiv(longest, shape.rows) * shape.rows
    given = (problem.lengths_B, *state.model.values(), *state.kept.values())
    tiles = {"ROWS": shape.rows, "CP": shape.wide, "num_warps": shape.warps}
    largest = torch.empty_like(state.kept["alpha"])
    inverse, ready = torch.empty_like(largest), torch.empty_like(largest)
    launch(
        maxima,
        (batch, triton.cdiv(frames, shape.rows)),
        *given,
        largest,
        inverse,
        frames,
        labels,
        longest,
        **tiles,
    )
    label_BTC = largest.new_zeros(batch, frames, labels)
    starts_BTC, ends_BTC = torch.zeros_like(label_BTC), torch.zeros_like(label_BTC)
    crossed = largest.new_zeros(batch, labels, labels)
    launch(
        masses,
        (batch,),
        *given,
        largest,
        inverse,
        ready,
        largest.new_empty(batch, ring, shape.wide),
        label_BTC,
        starts_BTC,
        ends_BTC,
        crossed,
        frames,
        labels,
        longest,
        ring,
        **tiles,
    )
    found = added(durations, (*given, largest, ready), shape, problem, 1)
    duration_BKC = found[:, :, 0, :labels].contiguous()
    checked = mass(label_BTC, problem.lengths_B, state.log_z_B)
    return Posteriors(state.log_z_B, label_BTC, starts_BTC, ends_BTC, duration_BKC, crossed, *checked)
