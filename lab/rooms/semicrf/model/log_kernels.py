"""The log domain in Triton: what `log_domain.py` computes, for a GPU, with transitions (C, C) or (K, C, C).

float64 throughout, real -inf, no epsilon, no clamp. Two kernels go through time, one program for a sequence;
whatever does not depend on the frame before or after is computed for all frames side by side:

- `messages`, from the left: log Z, alpha, gamma and the frames' scores with all shifts applied;
- `maxima`, side by side: for each (t, c) the largest term of alpha[t, c] and the sum of all in its units;
- `masses`, from the right: the mass that ends at (t, c) goes to the durations by shares that sum to 1, and the
  mass that starts at (s, c) to the labels before it likewise: no NaN and no count above 1, however large the scores;
- `durations`, side by side: the counts of durations, and of transitions where they depend on them.

A share is exp(term - largest), so a term must come out to the same bits wherever it is computed: `maxima`, `masses`
and `durations` all add a segment's frames from its last to its first. `messages` adds them from its first, in
the order of time. No sum spans more than one segment.

A pass keeps a row for each of the last K boundaries: ring[r], one of ROWS a tile. Row r serves boundary n where
n % ring_rows = r, and its segment grows by a frame each step. Rows go through global memory: a barrier stands
between any load and the next store and between any store and the next load.
No atomics; partial sums of fixed shape are added in a fixed order; nothing that shapes a sum depends on T or B.
"""

# Triton's language is no typed Python.
# mypy: ignore-errors
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from lab.rooms.semicrf.model.ledger import mass
from lab.rooms.semicrf.model.problem import Posteriors, Problem

TILE_FRAMES = 32
"""Frames in a tile of the kernels that take all frames side by side."""
TILE_ROWS = 32
"""Rows of the ring in a tile, at most."""
PARTIAL_BYTES = 1 << 28
"""Memory for partial sums of counts; more of them are added up in several launches, to the same bits."""

UNROLL = tl.constexpr(8)
"""Labels whose loads are in flight together; a power of two up to 16, which the padded labels are a multiple of."""
TINY = tl.constexpr(2.0**-900)
"""Terms lost to underflow add up to less than 2^-1000 in units where the sum is that."""


@triton.jit
def finite_or_zero(value):
    return tl.where(tl.abs(value) < float("inf"), value, 0.0)


@triton.jit
def joined(top, total, value):
    """One more term: the largest so far, and the sum of all in its units. One exp; any -inf, and NaN, as they are."""
    apart = tl.where(value == top, 0.0, tl.abs(value - top))  # two -inf are not apart
    less = tl.exp(-apart)
    total = tl.where(value > top, total * less + 1.0, total + less)
    return tl.maximum(top, value), total


@triton.jit
def shares(value, axis: tl.constexpr):
    """softmax; all zero where all entries are -inf."""
    top = tl.max(value, axis, keep_dims=True)
    part = tl.exp(value - tl.where(top == float("-inf"), 0.0, top))
    total = tl.sum(part, axis, keep_dims=True)
    return part / tl.where(total == 0, 1.0, total)


@triton.jit
def logsumexp(value, axis: tl.constexpr):
    top = tl.max(value, axis)
    safe = tl.where(top == float("-inf"), 0.0, top)
    return tl.log(tl.sum(tl.exp(value - tl.expand_dims(safe, axis)), axis)) + safe


@triton.jit
def summed(before, onward, labels, ROWS: tl.constexpr, CP: tl.constexpr):
    """Sum of before[row, c'] * onward[row, c', c] over c', (ROWS, CP).

    `before` (ROWS,) points to rows of numbers, `onward` (ROWS, CP) to the first of rows CP apart.
    """
    total = tl.zeros([ROWS, CP], tl.float64)
    for first in range(0, labels, UNROLL):  # labels beyond the last one add zero
        for c in tl.static_range(UNROLL):
            total += tl.load(before + first + c)[:, None] * tl.load(onward + (first + c) * CP)
    return total


@triton.jit
def multiplied(before, onward, ROWS: tl.constexpr, CP: tl.constexpr, PART: tl.constexpr):
    """The same where all rows share one onward (CP, CP): a matrix product, PART labels at a time."""
    cols = tl.arange(0, CP)
    part = tl.arange(0, PART)
    total = tl.zeros([ROWS, CP], tl.float64)
    for first in range(0, CP, PART):
        left = tl.load(before[:, None] + first + part[None, :])
        right = tl.load(onward + (first + part)[:, None] * CP + cols[None, :])
        total = tl.dot(left, right, total, out_dtype=tl.float64)
    return total


@triton.jit
def entering(before, onward, labels, ROWS: tl.constexpr, CP: tl.constexpr):
    """Terms alpha[s, c'] + transition[k-1, c', c] over c', as (largest, sum in its units), (ROWS, CP)."""
    top = tl.full([ROWS, CP], float("-inf"), tl.float64)
    total = tl.zeros([ROWS, CP], tl.float64)
    for c in range(labels):
        top, total = joined(top, total, tl.load(before + c)[:, None] + tl.load(onward + c * CP))
    return top, total


@triton.jit
def any_of(tile):
    return tl.max(tl.max(tile.to(tl.int32), 1), 0) > 0


@triton.jit
def settled(sums, height, there, before, onward, labels, ROWS: tl.constexpr, CP: tl.constexpr):
    """log(sums) + height: what comes in, where exponentials under the two maxima did for the terms.

    Where the sum is so small that underflow may count (or NaN), the terms themselves. Also: where that was.
    """
    value = tl.log(sums) + height
    lost = there & (height > float("-inf")) & ~(sums >= TINY)
    if any_of(lost):
        top, total = entering(before, onward, labels, ROWS, CP)
        value = tl.where(lost, top + tl.log(total), value)
    return value, lost


@triton.jit
def weight_of(value, top, there):
    """exp(value - top) where it is there, else zero."""
    return tl.exp(tl.where(there, value - tl.where(top == float("-inf"), 0.0, top), float("-inf")))


@triton.jit
def length_of(lengths, b, frames):
    return tl.minimum(tl.maximum(tl.load(lengths + b).to(tl.int32), 0), frames)


@triton.jit
def usable_length(lengths, log_z, b, frames):
    """0 for a sequence that nothing fits, or with NaN: its counts are zero."""
    usable = tl.abs(tl.load(log_z + b)) < float("inf")
    return tl.where(usable, length_of(lengths, b, frames), 0)


@triton.jit(
    do_not_specialize=["frames", "labels", "longest", "ring_rows"],
    do_not_specialize_on_alignment=["score"],
)
def messages(
    score, lengths, transition, weight, turned, entry, duration, start, end,
    alpha, gamma, lifted, peak, frame, log_z, ring, frames, labels, longest, ring_rows,
    ROWS: tl.constexpr, CP: tl.constexpr, BY_DURATION: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """The pass from the left. alpha (B, T+1, CP) is kept where something reads it; gamma, frame (B, T, CP) with KEEP.

    A row of the ring is what came in at its boundary and the frames since; where that depends on the
    duration, the frames alone, and each boundary leaves alpha, its maximum `peak` and `lifted`, exp(alpha - peak).
    Messages are shifted by their maximum each frame.
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
    lifted += b * (frames + 1) * CP
    peak += b * (frames + 1)
    frame += b * frames * CP
    begin = tl.load(start + cols)
    arrived = tl.full([CP], float("-inf"), tl.float64)
    source = begin
    offset = tl.full([], 0.0, tl.float64)
    if KEEP or BY_DURATION:
        tl.store(alpha + cols, arrived)
    if BY_DURATION:
        tl.store(lifted + cols, tl.zeros([CP], tl.float64))
        tl.store(peak, float("-inf"))
    tl.debug_barrier()
    for t in range(length):
        scores = tl.load(score + t * labels + cols, mask=live, other=float("-inf")).to(tl.float64)
        top = finite_or_zero(tl.max(scores, 0))
        shift = finite_or_zero(tl.max(source, 0))
        scores = (scores - top) - shift
        offset += shift + top
        if KEEP:
            tl.store(frame + t * CP + cols, scores)
            if not BY_DURATION:
                tl.store(gamma + t * CP + cols, source)
        most = tl.full([ROWS, CP], float("-inf"), tl.float64)
        total = tl.zeros([ROWS, CP], tl.float64)
        for first in range(0, tl.minimum(ring_rows, t + 1), ROWS):
            row = first + rows
            newest = t % ring_rows
            age = tl.where(
                row > newest, newest - row + ring_rows, newest - row
            )  # a segment of age + 1 frames
            there = (age <= t) & (age < longest)
            at = ring + row[:, None] * CP + cols[None, :]
            content = tl.load(at, mask=(there & (age > 0))[:, None], other=0.0)
            if not BY_DURATION:
                content = tl.where((age == 0)[:, None], source[None, :], content)
            content += scores[None, :]
            k = tl.minimum(age, longest - 1)
            bias = tl.load(duration + k[:, None] * CP + cols[None, :])
            term = content + bias
            if BY_DURATION:
                s = tl.maximum(t - age, 0)
                onward = k[:, None] * CP * CP + cols[None, :]
                sums = summed(lifted + s * CP, weight + onward, labels, ROWS, CP)
                height = tl.load(peak + s)[:, None] + tl.load(entry + k[:, None] * CP + cols[None, :])
                value, _ = settled(
                    sums, height, there[:, None], alpha + s * CP, transition + onward, labels, ROWS, CP
                )
                term = (tl.where((age == t)[:, None], begin[None, :], value) + content) + bias
            most, total = joined(most, total, tl.where(there[:, None], term, float("-inf")))
            tl.debug_barrier()
            tl.store(at, content)
            tl.debug_barrier()
        arrived = tl.max(most, 0)
        safe = tl.where(arrived == float("-inf"), 0.0, arrived)
        arrived = tl.log(tl.sum(total * tl.exp(most - safe[None, :]), 0)) + safe
        if KEEP or BY_DURATION:
            tl.store(alpha + (t + 1) * CP + cols, arrived)
        if BY_DURATION:
            source = arrived
            most_arrived = tl.max(arrived, 0)
            tl.store(peak + t + 1, most_arrived)
            raised = tl.exp(arrived - tl.where(most_arrived == float("-inf"), 0.0, most_arrived))
            tl.store(lifted + (t + 1) * CP + cols, raised)
        else:
            wide = tl.arange(0, CP)
            onward = tl.load(transition + wide[:, None] * CP + cols[None, :])
            source = logsumexp(arrived[:, None] + onward, 0)
        tl.debug_barrier()
    tl.store(log_z + b, logsumexp(arrived + tl.load(end + cols), 0) + offset)


@triton.jit
def source_rows(
    transition, weight, entry, start, alpha, gamma, lifted, peak, s, k, there, labels,
    ROWS: tl.constexpr, CP: tl.constexpr, PART: tl.constexpr, BY_DURATION: tl.constexpr,
):  # fmt: skip
    """What comes in at boundaries s (ROWS,) for segments of k frames: the value, the sums it is of, and where they were lost."""
    cols = tl.arange(0, CP)
    if BY_DURATION:
        onward = (k - 1) * CP * CP
        sums = multiplied(lifted + s * CP, weight + onward, ROWS, CP, PART)
        height = tl.load(peak + s)[:, None] + tl.load(entry + (k - 1) * CP + cols)[None, :]
        value, lost = settled(
            sums,
            height,
            there[:, None],
            alpha + s * CP,
            transition + onward + cols[None, :],
            labels,
            ROWS,
            CP,
        )
        value = tl.where((s == 0)[:, None], tl.load(start + cols)[None, :], value)
    else:
        value = tl.load(gamma + s[:, None] * CP + cols[None, :])
        sums = value
        lost = value != value
    return value, sums, lost


@triton.jit(do_not_specialize=["frames", "labels", "longest"])
def maxima(
    lengths, transition, weight, turned, entry, duration, start, end,
    alpha, gamma, lifted, peak, frame, log_z, largest, inverse,
    frames, labels, longest,
    ROWS: tl.constexpr, CP: tl.constexpr, PART: tl.constexpr, BY_DURATION: tl.constexpr,
):  # fmt: skip
    """For boundaries t > 0: the largest term of alpha[t, c], and 1 / (the sum of all in its units); 0, 0 if none."""
    b = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, CP)
    tile = tl.program_id(1)
    t = tile * ROWS + tl.arange(0, ROWS) + 1
    length = usable_length(lengths, log_z, b, frames)
    alpha += b * (frames + 1) * CP
    gamma += b * frames * CP
    lifted += b * (frames + 1) * CP
    peak += b * (frames + 1)
    frame += b * frames * CP
    most = tl.full([ROWS, CP], float("-inf"), tl.float64)
    total = tl.zeros([ROWS, CP], tl.float64)
    content = tl.zeros([ROWS, CP], tl.float64)
    reach = tl.minimum(tile * ROWS + ROWS, length)
    for k in range(1, tl.where(tile * ROWS < length, tl.minimum(longest, reach), 0) + 1):
        there = (k <= t) & (t <= length)
        s = tl.where(there, t - k, 0)
        content += tl.load(frame + s[:, None] * CP + cols[None, :])
        value, _, _ = source_rows(
            transition, weight, entry, start, alpha, gamma, lifted, peak, s, k, there, labels,
            ROWS, CP, PART, BY_DURATION,
        )  # fmt: skip
        term = (value + content) + tl.load(duration + (k - 1) * CP + cols)[None, :]
        most, total = joined(most, total, tl.where(there[:, None], term, float("-inf")))
    some = most > float("-inf")
    at = (b * (frames + 1) + t)[:, None] * CP + cols[None, :]
    mask = (t <= frames)[:, None] & (cols < CP)[None, :]
    tl.store(largest + at, tl.where(some, most, 0.0), mask=mask)
    tl.store(inverse + at, tl.where(some, 1.0 / tl.where(some, total, 1.0), 0.0), mask=mask)


@triton.jit(do_not_specialize=["frames", "labels", "longest", "ring_rows"])
def masses(
    lengths, transition, weight, turned, entry, duration, start, end,
    alpha, gamma, lifted, peak, frame, log_z, largest, inverse, ready, ring, spread,
    label_out, starts_out, ends_out, crossed, frames, labels, longest, ring_rows,
    ROWS: tl.constexpr, CP: tl.constexpr, BY_DURATION: tl.constexpr,
):  # fmt: skip
    """The pass from the right: label, starts, ends (B, T, C) and, where no duration matters, crossed (B, C, C).

    A row of the ring is the frames from boundary s to its end t. `ready` (B, T+1, CP) is the mass that ends at t
    over the sum of its terms, for a share's numerator to meet; `spread` is a tile of the mass that crosses.
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
    lifted += b * (frames + 1) * CP
    peak += b * (frames + 1)
    spread += b * ROWS * CP
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
        leaving = tl.zeros([CP], tl.float64)
        gone = tl.zeros([ROWS, CP], tl.float64)
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
            if BY_DURATION:
                before = alpha + (s + k * 0) * CP
                onward = (k - 1)[:, None] * CP * CP + cols[None, :]
                sums = summed(lifted + (s + k * 0) * CP, weight + onward, labels, ROWS, CP)
                height = tl.load(peak + s) + tl.load(entry + (k - 1)[:, None] * CP + cols[None, :])
                value, lost = settled(
                    sums, height, there[:, None], before, transition + onward, labels, ROWS, CP
                )
                value = tl.where(s == 0, tl.load(start + cols)[None, :], value)
            else:
                value = tl.load(gamma + s * CP + cols)[None, :]
            term = (value + content) + tl.load(duration + (k - 1)[:, None] * CP + cols[None, :])
            part = tl.exp(tl.where(there[:, None], term - tl.load(largest + here), float("-inf")))
            split = part * tl.load(ready + here)
            starting += split
            tl.debug_barrier()
            tl.store(at, content)
            if BY_DURATION:
                by_sums = tl.where(lost, 0.0, split / tl.where(sums == 0, 1.0, sums))
                tl.store(spread + rows[:, None] * CP + cols[None, :], by_sums)
            tl.debug_barrier()
            if BY_DURATION:
                gone += summed(spread + rows * CP, turned + onward, labels, ROWS, CP)
                if any_of(lost):
                    top, total = entering(before, transition + onward, labels, ROWS, CP)
                    crossing = tl.where(lost, split / total, 0.0)
                    for c in range(labels):
                        value = tl.load(alpha + s * CP + c) + tl.load(transition + onward + c * CP)
                        share = weight_of(value, top, lost)
                        leaving += tl.where(cols == c, tl.sum(tl.sum(share * crossing, 1), 0), 0.0)
        starts = tl.sum(starting, 0)
        if BY_DURATION:
            leaving += tl.sum(gone, 0) * tl.load(lifted + s * CP + cols)
        else:
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
    if not BY_DURATION:
        both = (wide < labels)[:, None] & (cols < labels)[None, :]
        tl.store(crossed + b * labels * labels + wide[:, None] * labels + cols[None, :], transfer, mask=both)


@triton.jit(do_not_specialize=["frames", "labels", "longest", "chunk", "chunks"])
def durations(
    lengths, transition, weight, turned, entry, duration, start, end,
    alpha, gamma, lifted, peak, frame, log_z, largest, ready, partial,
    frames, labels, longest, chunk, chunks,
    ROWS: tl.constexpr, CP: tl.constexpr, PART: tl.constexpr, BY_DURATION: tl.constexpr,
):  # fmt: skip
    """Counts over the segments that end in one tile of frames, (B, chunks, K, X, CP): row 0 of X those of duration k.

    `partial` comes as zeros, `chunk` is its first tile. Where transitions depend on the duration, rows 1 to C are
    those of the transitions from each label; else X is 1.
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
    lifted += b * (frames + 1) * CP
    peak += b * (frames + 1)
    frame += b * frames * CP
    depth = 1
    if BY_DURATION:
        depth = labels + 1
    to = partial + (b * chunks + tl.program_id(1)) * longest * depth * CP + cols
    here = tl.where(t <= length, t, 0)[:, None] * CP + cols[None, :]
    mass = tl.load(ready + here)
    most = tl.load(largest + here)
    content = tl.zeros([ROWS, CP], tl.float64)
    reach = tl.minimum(tile * ROWS + ROWS, length)
    for k in range(1, tl.where(tile * ROWS < length, tl.minimum(longest, reach), 0) + 1):
        there = (k <= t) & (t <= length)
        s = tl.where(there, t - k, 0)
        content += tl.load(frame + s[:, None] * CP + cols[None, :])
        value, sums, lost = source_rows(
            transition, weight, entry, start, alpha, gamma, lifted, peak, s, k, there, labels,
            ROWS, CP, PART, BY_DURATION,
        )  # fmt: skip
        term = (value + content) + tl.load(duration + (k - 1) * CP + cols)[None, :]
        split = tl.exp(tl.where(there[:, None], term - most, float("-inf"))) * mass
        split = tl.where(there[:, None], split, 0.0)
        tl.store(to + (k - 1) * depth * CP, tl.sum(split, 0))
        tl.debug_barrier()
        if BY_DURATION:
            onward = (k - 1) * CP * CP
            by_sums = tl.where(lost, 0.0, split / tl.where(sums == 0, 1.0, sums))
            for first in range(0, CP, PART):
                c = first + tl.arange(0, PART)
                before = tl.load(lifted + s[None, :] * CP + c[:, None])
                crossed = tl.dot(before, by_sums, out_dtype=tl.float64)
                crossed *= tl.load(weight + onward + c[:, None] * CP + cols[None, :])
                at = to[None, :] + ((k - 1) * depth + 1 + c[:, None]) * CP
                tl.store(at, crossed, mask=(c < labels)[:, None] & (cols < CP)[None, :])
                tl.debug_barrier()
            if any_of(lost):
                top, total = entering(alpha + s * CP, transition + onward + cols[None, :], labels, ROWS, CP)
                crossing = tl.where(lost, split / total, 0.0)
                for c in range(labels):
                    into = tl.load(transition + onward + c * CP + cols)[None, :]
                    share = weight_of(tl.load(alpha + s * CP + c)[:, None] + into, top, lost)
                    row = to + ((k - 1) * depth + 1 + c) * CP
                    known = tl.load(row)
                    tl.debug_barrier()
                    tl.store(row, known + tl.sum(share * crossing, 0))
                    tl.debug_barrier()


@triton.jit(do_not_specialize=["size", "chunks"])
def add_chunks(partial, total, size, chunks, BLOCK: tl.constexpr):
    """total (B, size) += the chunks of partial (B, chunks, size), one after the other."""
    b = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    sums = tl.load(total + b * size + at, mask=mask)
    tl.debug_barrier()  # each element is one lane's own; the lint knows arguments, not lanes
    for chunk in range(chunks):
        sums += tl.load(partial + (b * chunks + chunk) * size + at, mask=mask)
    tl.store(total + b * size + at, sums, mask=mask)


@dataclass
class LogState:
    """What the pass from the left leaves on the device: the model's tables, and the messages if they were kept."""

    problem: Problem
    model: dict[str, Tensor]
    kept: dict[str, Tensor]

    @property
    def log_z_B(self) -> Tensor:
        return self.kept["log_z"]


@dataclass(frozen=True)
class Shape:
    """Sizes of tiles and numbers of warps, by K and C alone, so that bits are, too: about 4 numbers of a tile a lane.

    `wide`: padded labels. `rows`, `ring`, `warps`: of the passes. `frames`, `frame_warps`: of the kernels beside them.
    """

    wide: int
    rows: int
    ring: int
    warps: int
    frames: int
    frame_warps: int

    @classmethod
    def of(cls, problem: Problem) -> Shape:
        _, _, longest, labels = problem.shape
        wide = max(16, int(triton.next_power_of_2(labels)))
        rows = min(TILE_ROWS if wide <= 64 else TILE_ROWS // 2, int(triton.next_power_of_2(longest)))
        frames = TILE_FRAMES if wide <= 32 else TILE_FRAMES // 2
        warps = (min(16, max(4, size * wide // 128)) for size in (rows, frames))
        ring = triton.cdiv(longest, rows) * rows
        return cls(wide, rows, ring, next(warps), frames, next(warps))

    def beside(self) -> dict[str, Any]:
        """Options of the kernels that take all frames side by side."""
        return {
            "ROWS": self.frames, "CP": self.wide, "PART": min(self.wide, 32),
            "num_warps": self.frame_warps, "num_stages": 1,
        }  # fmt: skip


def tables(problem: Problem, wide: int) -> dict[str, Tensor]:
    """The model in float64 with forbidden labels up to `wide`.

    Where transitions depend on the duration, also `entry`, their maximum over the label before, `weight`, their
    exponentials below it, and `turned`, weight with both labels changed about.
    """
    more = wide - problem.shape[3]

    def padded(value: Tensor, sides: tuple[int, ...]) -> Tensor:
        return torch.nn.functional.pad(value.detach().double(), sides, value=-float("inf")).contiguous()

    transition = padded(problem.transition, (0, more, 0, more))
    weight = turned = entry = transition
    if problem.by_duration:
        entry = transition.amax(1)
        weight = (
            transition - torch.where(torch.isneginf(entry), torch.zeros_like(entry), entry)[:, None]
        ).exp()
        turned = weight.transpose(1, 2).contiguous()
    return {
        "transition": transition,
        "weight": weight,
        "turned": turned,
        "entry": entry,
        "duration": padded(problem.duration_KC, (0, more)),
        "start": padded(problem.start_C, (0, more)),
        "end": padded(problem.end_C, (0, more)),
    }


def forward(problem: Problem, keep: bool = True) -> LogState:
    """log Z (B,), and with `keep` the messages that `counts` needs. A NaN within a sequence makes its log Z NaN."""
    batch, frames, longest, labels = problem.shape
    shape, by_duration = Shape.of(problem), problem.by_duration
    model = tables(problem, shape.wide)

    def empty(*size: int, kept: bool = True) -> Tensor:
        return torch.empty(size if kept else 1, dtype=torch.float64, device=problem.score_BTC.device)

    kept = {
        "alpha": empty(batch, frames + 1, shape.wide, kept=keep or by_duration),
        "gamma": empty(batch, frames, shape.wide, kept=keep and not by_duration),
        "lifted": empty(batch, frames + 1, shape.wide, kept=by_duration),
        "peak": empty(batch, frames + 1, kept=by_duration),
        "frame": empty(batch, frames, shape.wide, kept=keep),
        "log_z": empty(batch),
    }
    messages[(batch,)](
        problem.score_BTC.detach().contiguous(), problem.lengths_B, *model.values(), *kept.values(),
        empty(batch, shape.ring, shape.wide), frames, labels, longest, shape.ring,
        ROWS=shape.rows, CP=shape.wide, BY_DURATION=by_duration, KEEP=keep, num_warps=shape.warps,
    )  # fmt: skip
    return LogState(problem, model, kept)


def posteriors(problem: Problem) -> Posteriors:
    """All expected counts, float64. An infeasible or NaN sequence has counts of zero."""
    return counts(forward(problem))


def counts(state: LogState) -> Posteriors:
    """The pass from the right, and with it every expected count."""
    problem, by_duration = state.problem, state.problem.by_duration
    batch, frames, longest, labels = problem.shape
    shape = Shape.of(problem)
    given = (problem.lengths_B, *state.model.values(), *state.kept.values())
    largest = torch.empty_like(state.kept["alpha"])
    inverse, ready = torch.empty_like(largest), torch.empty_like(largest)
    maxima[(batch, triton.cdiv(frames, shape.frames))](
        *given, largest, inverse, frames, labels, longest, BY_DURATION=by_duration, **shape.beside()
    )
    label_BTC = torch.zeros(batch, frames, labels, dtype=torch.float64, device=largest.device)
    starts_BTC, ends_BTC = torch.zeros_like(label_BTC), torch.zeros_like(label_BTC)
    crossed = label_BTC.new_zeros(batch, labels, labels)
    masses[(batch,)](
        *given, largest, inverse, ready, label_BTC.new_empty(batch, shape.ring, shape.wide),
        label_BTC.new_empty(batch, shape.rows, shape.wide), label_BTC, starts_BTC, ends_BTC, crossed,
        frames, labels, longest, shape.ring,
        ROWS=shape.rows, CP=shape.wide, BY_DURATION=by_duration, num_warps=shape.warps,
    )  # fmt: skip
    by_length = added_durations(state, largest, ready)
    if by_duration:
        crossed = by_length[:, :, 1:, :labels]
    duration_BKC = by_length[:, :, 0, :labels].contiguous()
    checked = mass(label_BTC, problem.lengths_B, state.log_z_B)
    return Posteriors(state.log_z_B, label_BTC, starts_BTC, ends_BTC, duration_BKC, crossed, *checked)


def added_durations(state: LogState, largest: Tensor, ready: Tensor) -> Tensor:
    """The sums of `durations` over all tiles of frames: (B, K, 1, CP), or (B, K, 1 + C, CP)."""
    problem, shape = state.problem, Shape.of(state.problem)
    batch, frames, longest, labels = problem.shape
    depth = 1 + labels if problem.by_duration else 1
    total = torch.zeros(batch, longest, depth, shape.wide, dtype=torch.float64, device=ready.device)
    size, tiles = total[0].numel(), triton.cdiv(frames, shape.frames)
    most = max(1, min(tiles, PARTIAL_BYTES // (8 * batch * size)))
    for first in range(0, tiles, most):
        chunks = min(most, tiles - first)
        partial = total.new_zeros(batch, chunks, size)
        durations[(batch, chunks)](
            problem.lengths_B, *state.model.values(), *state.kept.values(), largest, ready, partial,
            frames, labels, longest, first, chunks,
            BY_DURATION=problem.by_duration, **shape.beside(),
        )  # fmt: skip
        add_chunks[(batch, triton.cdiv(size, 1024))](partial, total, size, chunks, BLOCK=1024)
    return total
