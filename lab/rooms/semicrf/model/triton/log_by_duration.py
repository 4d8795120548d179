"""The log domain in Triton for transitions that depend on the duration (K, C, C): O(T K C^2), filling the
GPU.

What comes in at (s, k, c) is logsumexp over c' of alpha[s, c'] + transition[k-1, c', c]. It is computed as a
sum of products, exp(alpha - its maximum) times exp(transition - its maximum): for many s at once a matrix
product. Where such a sum is so small that underflow may matter, its terms are added one by one in logs.

Time goes in blocks of ROWS frames. Only what begins and ends within a block is sequential; contributions from
earlier blocks are summed before it, one program per PART durations of a sequence:

- from the left, `arriving` and then `block_messages`, which also shifts the next block's frames;
- `maxima`, all frames side by side: the largest term of alpha[t, c] and the sum of all in its units;
- from the right, `departing` and then `block_masses`;
- `durations`, all frames side by side: the counts of durations and transitions.

A share is exp(term - largest), so every kernel adds a segment's frames in the same order: those in the block
where it ends from the last to the first, then each block's, whole or from the first frame of the segment on
(`suffix`).
"""

# Triton's language is not typed Python.
# mypy: ignore-errors
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lab.rooms.semicrf.model.ledger import mass
from lab.rooms.semicrf.model.problem import Posteriors, Problem
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

PART = 16
"""Durations for one program of what comes from other blocks."""
UNROLL = tl.constexpr(8)
"""Labels whose loads are in flight together: a power of two up to 16 that divides the padded labels."""
TINY = tl.constexpr(2.0**-900)
"""Terms lost to underflow add up to less than 2^-1000 in units where the sum is that."""


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
def multiplied(before, onward, labels, ROWS: tl.constexpr, CP: tl.constexpr, WIDTH: tl.constexpr):
    """The same where all rows share one onward (CP, CP): a matrix product, WIDTH labels at a time.

    The loop's bound is no constant: two products in one piece of straight code share an unhappy layout, in
    which warps repeat each other's work.
    """
    cols = tl.arange(0, CP)
    part = tl.arange(0, WIDTH)
    total = tl.zeros([ROWS, CP], tl.float64)
    for first in range(0, labels, WIDTH):
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
def merged(top, total, other_top, other_total):
    """Two sums of terms as one: the larger of both largest, and the sum in its units."""
    higher = tl.maximum(top, other_top)
    safe = tl.where(higher == float("-inf"), 0.0, higher)
    return higher, total * tl.exp(top - safe) + other_total * tl.exp(other_top - safe)


@triton.jit
def grown(content, edge, s, t, frame, suffix, ROWS: tl.constexpr, CP: tl.constexpr):
    """Frames of segments from s to t (ROWS,), and those from the left edge of s's block once reached."""
    at = s[:, None] * CP + tl.arange(0, CP)[None, :]
    own = (s >= t // ROWS * ROWS)[:, None]
    content = tl.where(own, content + tl.load(frame + at), edge + tl.load(suffix + at))
    return content, tl.where((s % ROWS == 0)[:, None], content, edge)


@triton.jit
def incoming(
    transition,
    weight,
    entry,
    start,
    alpha,
    lifted,
    peak,
    s,
    k,
    there,
    labels,
    ROWS: tl.constexpr,
    CP: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """What comes in at boundaries s (ROWS,) for k frames: the value, its sum, and where that underflowed."""
    cols = tl.arange(0, CP)
    onward = (k - 1) * CP * CP
    sums = multiplied(lifted + s * CP, weight + onward, labels, ROWS, CP, WIDTH)
    height = tl.load(peak + s)[:, None] + tl.load(entry + (k - 1) * CP + cols)[None, :]
    terms = transition + onward + cols[None, :]
    value, lost = settled(sums, height, there[:, None], alpha + s * CP, terms, labels, ROWS, CP)
    return tl.where((s == 0)[:, None], tl.load(start + cols)[None, :], value), sums, lost


@triton.jit(
    do_not_specialize=["begin", "frames", "labels", "longest"], do_not_specialize_on_alignment=["lengths"]
)
def arriving(
    lengths,
    transition,
    weight,
    turned,
    entry,
    duration,
    start,
    end,
    alpha,
    lifted,
    peak,
    frame,
    suffix,
    log_z,
    far_most,
    far_total,
    begin,
    frames,
    labels,
    longest,
    ROWS: tl.constexpr,
    CP: tl.constexpr,
    WIDTH: tl.constexpr,
    PART: tl.constexpr,
):
    """Sums of terms of alpha[t, c] over the block's t: PART durations, segments begun by `begin`."""
    b = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    cols = tl.arange(0, CP)
    t = begin + 1 + tl.arange(0, ROWS)
    length = length_of(lengths, b, frames)
    alpha += b * (frames + 1) * CP
    lifted += b * (frames + 1) * CP
    peak += b * (frames + 1)
    frame += b * frames * CP
    suffix += b * frames * CP
    most = tl.full([ROWS, CP], float("-inf"), tl.float64)
    total = tl.zeros([ROWS, CP], tl.float64)
    content = tl.zeros([ROWS, CP], tl.float64)
    edge = tl.zeros([ROWS, CP], tl.float64)
    first = part * PART + 1
    last = tl.where(begin < length, tl.minimum(first + PART - 1, tl.minimum(longest, begin + ROWS)), 0)
    for k in range(1, tl.minimum(first, last + 1)):
        s = tl.where((k <= t) & (t <= length), t - k, 0)
        content, edge = grown(content, edge, s, t, frame, suffix, ROWS, CP)
    for k in range(first, last + 1):
        inside = (k <= t) & (t <= length)
        s = tl.where(inside, t - k, 0)
        content, edge = grown(content, edge, s, t, frame, suffix, ROWS, CP)
        there = inside & (s <= begin)
        value, _, _ = incoming(
            transition, weight, entry, start, alpha, lifted, peak, s, k, there, labels, ROWS, CP, WIDTH
        )
        term = (value + content) + tl.load(duration + (k - 1) * CP + cols)[None, :]
        most, total = joined(most, total, tl.where(there[:, None], term, float("-inf")))
    at = ((b * tl.num_programs(1) + part) * ROWS + tl.arange(0, ROWS))[:, None] * CP + cols[None, :]
    tl.store(far_most + at, most)
    tl.store(far_total + at, total)


@triton.jit
def join_parts(far_most, far_total, parts, ROWS: tl.constexpr, CP: tl.constexpr):
    """The sums of all parts as one, in the place of the first; none where there are no parts."""
    tile = tl.arange(0, ROWS)[:, None] * CP + tl.arange(0, CP)[None, :]
    top = tl.full([ROWS, CP], float("-inf"), tl.float64)
    total = tl.zeros([ROWS, CP], tl.float64)
    for part in range(parts):
        at = part * ROWS * CP + tile
        top, total = merged(top, total, tl.load(far_most + at), tl.load(far_total + at))
    tl.debug_barrier()
    tl.store(far_most + tile, top)
    tl.store(far_total + tile, total)
    tl.debug_barrier()


@triton.jit
def next_frames(score, frame, suffix, first, length, arrived, labels, ROWS: tl.constexpr, CP: tl.constexpr):
    """Frames from `first` on less their maxima, the first less `arrived`'s too; -> what was subtracted."""
    cols = tl.arange(0, CP)
    t = first + tl.arange(0, ROWS)
    inside = (t < length)[:, None]
    at = score + t[:, None] * labels + cols[None, :]
    scores = tl.load(at, mask=inside & (cols < labels)[None, :], other=float("-inf")).to(tl.float64)
    tops = finite_or_zero(tl.max(scores, 1))
    shift = tl.where(first < length, finite_or_zero(tl.max(arrived, 0)), 0.0)
    scores -= tops[:, None]
    scores = tl.where((t == first)[:, None], scores - shift, scores)
    to = t[:, None] * CP + cols[None, :]
    tl.store(frame + to, scores, mask=inside)
    tl.store(suffix + to, tl.cumsum(tl.where(inside, scores, 0.0), 0, reverse=True), mask=inside)
    return tl.sum(tops, 0) + shift


@triton.jit(
    do_not_specialize=["begin", "parts", "frames", "labels", "longest"],
    do_not_specialize_on_alignment=["score", "lengths"],
)
def block_messages(
    score,
    lengths,
    transition,
    weight,
    turned,
    entry,
    duration,
    start,
    end,
    alpha,
    lifted,
    peak,
    frame,
    suffix,
    log_z,
    far_most,
    far_total,
    offset,
    begin,
    parts,
    frames,
    labels,
    longest,
    ROWS: tl.constexpr,
    CP: tl.constexpr,
):
    """alpha (B, T+1, CP) of a block's boundaries, one after the other; with its maximum `peak` and exp(alpha
    - peak).

    Then the frames of the next block, less their maxima, its first one less that of alpha too: these are in
    `offset`. The first call has begin = -ROWS and no frames of its own.
    """
    b = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, CP)
    rows = tl.arange(0, ROWS)
    length = length_of(lengths, b, frames)
    score += b * frames * labels
    alpha += b * (frames + 1) * CP
    lifted += b * (frames + 1) * CP
    peak += b * (frames + 1)
    frame += b * frames * CP
    suffix += b * frames * CP
    far_most += b * parts * ROWS * CP
    far_total += b * parts * ROWS * CP
    shifted = tl.load(offset + b)
    arrived = tl.load(start + cols)
    if begin < 0:
        tl.store(alpha + cols, tl.full([CP], float("-inf"), tl.float64))
        tl.store(lifted + cols, tl.zeros([CP], tl.float64))
        tl.store(peak, float("-inf"))
        tl.store(log_z + b, float("-inf"))
    join_parts(far_most, far_total, tl.where((begin >= 0) & (begin < length), parts, 0), ROWS, CP)
    content = tl.zeros([ROWS, CP], tl.float64)
    for t in range(tl.maximum(begin, 0), tl.minimum(begin + ROWS, length)):
        newest = t - begin  # the row of a boundary is its distance from the block's
        content = tl.where((rows == newest)[:, None], 0.0, content) + tl.load(frame + t * CP + cols)[None, :]
        age = newest - rows
        there = (rows >= 1) & (age >= 0) & (age < longest)
        k = tl.where(there, age, 0)
        s = tl.where(there, begin + rows, 0)
        onward = k[:, None] * CP * CP + cols[None, :]
        sums = summed(lifted + s * CP, weight + onward, labels, ROWS, CP)
        height = tl.load(peak + s)[:, None] + tl.load(entry + k[:, None] * CP + cols[None, :])
        value, _ = settled(
            sums, height, there[:, None], alpha + s * CP, transition + onward, labels, ROWS, CP
        )
        term = (value + content) + tl.load(duration + k[:, None] * CP + cols[None, :])
        term = tl.where(there[:, None], term, float("-inf"))
        most = tl.max(term, 0)
        total = tl.sum(tl.exp(term - tl.where(most == float("-inf"), 0.0, most)[None, :]), 0)
        far_row = newest * CP + cols
        most, total = merged(most, total, tl.load(far_most + far_row), tl.load(far_total + far_row))
        arrived = tl.log(total) + most
        top = tl.max(arrived, 0)
        tl.debug_barrier()
        tl.store(alpha + (t + 1) * CP + cols, arrived)
        tl.store(peak + t + 1, top)
        tl.store(lifted + (t + 1) * CP + cols, tl.exp(arrived - tl.where(top == float("-inf"), 0.0, top)))
        tl.debug_barrier()
    if (begin >= 0) & (begin < length) & (length <= begin + ROWS):
        tl.store(log_z + b, logsumexp(arrived + tl.load(end + cols), 0) + shifted)
    moved = next_frames(score, frame, suffix, begin + ROWS, length, arrived, labels, ROWS, CP)
    tl.debug_barrier()
    tl.store(offset + b, shifted + moved)


@triton.jit(do_not_specialize=["frames", "labels", "longest"], do_not_specialize_on_alignment=["lengths"])
def maxima(
    lengths,
    transition,
    weight,
    turned,
    entry,
    duration,
    start,
    end,
    alpha,
    lifted,
    peak,
    frame,
    suffix,
    log_z,
    largest,
    inverse,
    frames,
    labels,
    longest,
    ROWS: tl.constexpr,
    CP: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """For boundaries t > 0: the largest term of alpha[t, c], and 1 / (the sum in its units); 0, 0 if none."""
    b = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, CP)
    tile = tl.program_id(1)
    t = tile * ROWS + tl.arange(0, ROWS) + 1
    length = usable_length(lengths, log_z, b, frames)
    alpha += b * (frames + 1) * CP
    lifted += b * (frames + 1) * CP
    peak += b * (frames + 1)
    frame += b * frames * CP
    suffix += b * frames * CP
    most = tl.full([ROWS, CP], float("-inf"), tl.float64)
    total = tl.zeros([ROWS, CP], tl.float64)
    content = tl.zeros([ROWS, CP], tl.float64)
    edge = tl.zeros([ROWS, CP], tl.float64)
    reach = tl.minimum(tile * ROWS + ROWS, length)
    for k in range(1, tl.where(tile * ROWS < length, tl.minimum(longest, reach), 0) + 1):
        there = (k <= t) & (t <= length)
        s = tl.where(there, t - k, 0)
        content, edge = grown(content, edge, s, t, frame, suffix, ROWS, CP)
        value, _, _ = incoming(
            transition, weight, entry, start, alpha, lifted, peak, s, k, there, labels, ROWS, CP, WIDTH
        )
        term = (value + content) + tl.load(duration + (k - 1) * CP + cols)[None, :]
        most, total = joined(most, total, tl.where(there[:, None], term, float("-inf")))
    some = most > float("-inf")
    at = (b * (frames + 1) + t)[:, None] * CP + cols[None, :]
    mask = (t <= frames)[:, None] & (cols < CP)[None, :]
    tl.store(largest + at, tl.where(some, most, 0.0), mask=mask)
    tl.store(inverse + at, tl.where(some, 1.0 / tl.where(some, total, 1.0), 0.0), mask=mask)


@triton.jit(do_not_specialize=["frames", "labels"], do_not_specialize_on_alignment=["lengths"])
def last_masses(
    lengths, end, alpha, log_z, inverse, ready, beyond, ends_out, covered, frames, labels, CP: tl.constexpr
):
    """The mass that ends with each sequence: `ready` (B, T+1, CP) is such a mass over the sum of its terms.

    `covered` (B, CP) is the mass on the frame before; `beyond` starts with no frame.
    """
    b = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, CP)
    length = usable_length(lengths, log_z, b, frames)
    at = (b * (frames + 1) + length) * CP + cols
    ends = shares(tl.load(alpha + at) + tl.load(end + cols), 0)
    some = tl.where(length > 0, labels, 0)
    tl.store(ready + at, ends * tl.load(inverse + at))
    tl.store(beyond + at, tl.zeros([CP], tl.float64))
    tl.store(ends_out + (b * frames + length - 1) * labels + cols, ends, mask=cols < some)
    tl.store(covered + b * CP + cols, ends)


@triton.jit(
    do_not_specialize=["begin", "frames", "labels", "longest"], do_not_specialize_on_alignment=["lengths"]
)
def departing(
    lengths,
    transition,
    weight,
    turned,
    entry,
    duration,
    start,
    end,
    alpha,
    lifted,
    peak,
    frame,
    suffix,
    log_z,
    largest,
    ready,
    beyond,
    spread,
    far_starts,
    far_leaving,
    begin,
    frames,
    labels,
    longest,
    ROWS: tl.constexpr,
    CP: tl.constexpr,
    WIDTH: tl.constexpr,
    PART: tl.constexpr,
):
    """Mass of segments that begin in the block and end beyond it, of PART durations: what starts, what leaves
    before.

    `beyond` (B, T+1, CP) is the frames from the block's right edge to t; `spread` a tile of scratch.
    """
    b = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    cols = tl.arange(0, CP)
    rows = tl.arange(0, ROWS)
    length = usable_length(lengths, log_z, b, frames)
    alpha += b * (frames + 1) * CP
    lifted += b * (frames + 1) * CP
    peak += b * (frames + 1)
    largest += b * (frames + 1) * CP
    ready += b * (frames + 1) * CP
    beyond += b * (frames + 1) * CP
    suffix += b * frames * CP
    lane = (b * tl.num_programs(1) + part) * ROWS
    own = spread + (lane + rows) * CP
    tile = (lane + rows)[:, None] * CP + cols[None, :]
    starting = tl.zeros([ROWS, CP], tl.float64)
    gone = tl.zeros([ROWS, CP], tl.float64)
    leaving = tl.zeros([ROWS, CP], tl.float64)
    first = part * PART + 1
    last = tl.where(begin + ROWS <= length, tl.minimum(first + PART - 1, longest), 0)
    s = tl.where(begin + rows < length, begin + rows, 0)
    within = tl.load(suffix + s[:, None] * CP + cols[None, :])
    for k in range(first, last + 1):
        there = (s + k >= begin + ROWS) & (s + k <= length)
        t = tl.where(there, s + k, length)
        at = t[:, None] * CP + cols[None, :]
        content = tl.load(beyond + at, mask=there[:, None], other=0.0) + within
        value, sums, lost = incoming(
            transition, weight, entry, start, alpha, lifted, peak, s, k, there, labels, ROWS, CP, WIDTH
        )
        term = (value + content) + tl.load(duration + (k - 1) * CP + cols)[None, :]
        split = tl.exp(tl.where(there[:, None], term - tl.load(largest + at), float("-inf"))) * tl.load(
            ready + at
        )
        starting += split
        onward = (k - 1) * CP * CP
        tl.debug_barrier()
        tl.store(spread + tile, tl.where(lost, 0.0, split / tl.where(sums == 0, 1.0, sums)))
        tl.debug_barrier()
        gone += multiplied(own, turned + onward, labels, ROWS, CP, WIDTH)
        if any_of(lost):
            top, total = entering(alpha + s * CP, transition + onward + cols[None, :], labels, ROWS, CP)
            crossing = tl.where(lost, split / total, 0.0)
            for c in range(labels):
                into = (
                    tl.load(alpha + s * CP + c)[:, None]
                    + tl.load(transition + onward + c * CP + cols)[None, :]
                )
                from_c = tl.sum(weight_of(into, top, lost) * crossing, 1)
                leaving += tl.where((cols == c)[None, :], from_c[:, None], 0.0)
    leaving += gone * tl.load(lifted + s[:, None] * CP + cols[None, :])
    tl.store(far_starts + tile, starting)
    tl.store(far_leaving + tile, leaving)


@triton.jit
def add_parts(far_starts, far_leaving, parts, ROWS: tl.constexpr, CP: tl.constexpr):
    """The masses of all parts as one, in the place of the first; zero where there are no parts."""
    tile = tl.arange(0, ROWS)[:, None] * CP + tl.arange(0, CP)[None, :]
    starts = tl.zeros([ROWS, CP], tl.float64)
    leaving = tl.zeros([ROWS, CP], tl.float64)
    for part in range(parts):
        starts += tl.load(far_starts + part * ROWS * CP + tile)
        leaving += tl.load(far_leaving + part * ROWS * CP + tile)
    tl.debug_barrier()
    tl.store(far_starts + tile, starts)
    tl.store(far_leaving + tile, leaving)
    tl.debug_barrier()


@triton.jit
def carry_on(beyond, suffix, content, begin, stop, last, ROWS: tl.constexpr, CP: tl.constexpr):
    """`beyond` from the block's left edge: the frames in it, and for later t up to `last` one block more."""
    cols = tl.arange(0, CP)
    rows = tl.arange(0, ROWS)
    at = (begin + rows)[:, None] * CP + cols[None, :]
    tl.store(beyond + at, tl.where((rows == 0)[:, None], 0.0, content), mask=(begin + rows <= stop)[:, None])
    whole = tl.load(suffix + begin * CP + cols)
    tl.debug_barrier()
    for first in range(begin + ROWS, last + 1, ROWS):
        at = (first + rows)[:, None] * CP + cols[None, :]
        mask = (first + rows <= last)[:, None]
        known = tl.load(beyond + at, mask=mask, other=0.0)
        tl.debug_barrier()
        tl.store(beyond + at, known + whole[None, :], mask=mask)
        tl.debug_barrier()


@triton.jit(
    do_not_specialize=["begin", "parts", "frames", "labels", "longest"],
    do_not_specialize_on_alignment=["lengths"],
)
def block_masses(
    lengths,
    transition,
    weight,
    turned,
    entry,
    duration,
    start,
    end,
    alpha,
    lifted,
    peak,
    frame,
    suffix,
    log_z,
    largest,
    inverse,
    ready,
    beyond,
    spread,
    far_starts,
    far_leaving,
    covered,
    label_out,
    starts_out,
    ends_out,
    begin,
    parts,
    frames,
    labels,
    longest,
    ROWS: tl.constexpr,
    CP: tl.constexpr,
):
    """A block's boundaries from last to first: label, starts, ends (B, T, C); `beyond` for the next block."""
    b = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, CP)
    rows = tl.arange(0, ROWS)
    length = usable_length(lengths, log_z, b, frames)
    alpha += b * (frames + 1) * CP
    lifted += b * (frames + 1) * CP
    peak += b * (frames + 1)
    largest += b * (frames + 1) * CP
    inverse += b * (frames + 1) * CP
    ready += b * (frames + 1) * CP
    beyond += b * (frames + 1) * CP
    frame += b * frames * CP
    suffix += b * frames * CP
    own = spread + (b * parts * ROWS + rows) * CP
    tile = spread + (b * parts * ROWS + rows)[:, None] * CP + cols[None, :]
    far_starts += b * parts * ROWS * CP
    far_leaving += b * parts * ROWS * CP
    out = b * frames * labels
    inside = cols < labels
    covering = tl.load(covered + b * CP + cols)
    add_parts(far_starts, far_leaving, tl.where(begin < length, parts, 0), ROWS, CP)
    content = tl.zeros([ROWS, CP], tl.float64)
    stop = tl.minimum(begin + ROWS, length)
    for back in range(stop - begin):
        s = stop - 1 - back
        content = (
            tl.where((rows == s + 1 - begin)[:, None], 0.0, content) + tl.load(frame + s * CP + cols)[None, :]
        )
        there = (begin + rows > s) & (begin + rows <= length) & (begin + rows - s <= longest)
        k = tl.where(there, begin + rows - s, 1)
        t = s + k
        at = t[:, None] * CP + cols[None, :]
        onward = (k - 1)[:, None] * CP * CP + cols[None, :]
        before = alpha + (s + k * 0) * CP
        sums = summed(lifted + (s + k * 0) * CP, weight + onward, labels, ROWS, CP)
        height = tl.load(peak + s) + tl.load(entry + (k - 1)[:, None] * CP + cols[None, :])
        value, lost = settled(sums, height, there[:, None], before, transition + onward, labels, ROWS, CP)
        value = tl.where(s == 0, tl.load(start + cols)[None, :], value)
        term = (value + content) + tl.load(duration + (k - 1)[:, None] * CP + cols[None, :])
        split = tl.exp(tl.where(there[:, None], term - tl.load(largest + at), float("-inf"))) * tl.load(
            ready + at
        )
        split = tl.where(there[:, None], split, 0.0)
        tl.debug_barrier()
        tl.store(tile, tl.where(lost, 0.0, split / tl.where(sums == 0, 1.0, sums)))
        tl.debug_barrier()
        gone = summed(own, turned + onward, labels, ROWS, CP)
        leaving = tl.sum(gone, 0) * tl.load(lifted + s * CP + cols)
        if any_of(lost):
            top, total = entering(before, transition + onward, labels, ROWS, CP)
            of_lost = tl.where(lost, split / total, 0.0)
            for c in range(labels):
                share = weight_of(
                    tl.load(before + c)[:, None] + tl.load(transition + onward + c * CP), top, lost
                )
                leaving += tl.where(cols == c, tl.sum(tl.sum(share * of_lost, 1), 0), 0.0)
        starts = tl.sum(split, 0)
        starts += tl.load(far_starts + (s - begin) * CP + cols)
        leaving += tl.load(far_leaving + (s - begin) * CP + cols)
        tl.debug_barrier()
        tl.store(label_out + out + s * labels + cols, covering, mask=inside)
        tl.store(starts_out + out + s * labels + cols, starts, mask=inside)
        tl.store(ends_out + out + (s - 1) * labels + cols, leaving, mask=cols < tl.where(s > 0, labels, 0))
        tl.store(ready + s * CP + cols, leaving * tl.load(inverse + s * CP + cols))
        covering += leaving - starts
        tl.debug_barrier()
    tl.debug_barrier()
    tl.store(covered + b * CP + cols, covering)
    tl.debug_barrier()
    carry_on(beyond, suffix, content, begin, stop, tl.minimum(begin + longest - 1, length), ROWS, CP)


@triton.jit(
    do_not_specialize=["frames", "labels", "longest", "chunk", "chunks"],
    do_not_specialize_on_alignment=["lengths"],
)
def durations(
    lengths,
    transition,
    weight,
    turned,
    entry,
    duration,
    start,
    end,
    alpha,
    lifted,
    peak,
    frame,
    suffix,
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
    WIDTH: tl.constexpr,
):
    """Counts over the segments that end in one tile of frames, (B, chunks, K, 1 + C, CP), `chunk` being the
    first tile.

    Of each duration k row 0 counts its segments, rows 1 to C the transitions from each label. `partial` comes
    as zeros.
    """
    b = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, CP)
    tile = chunk + tl.program_id(1)
    t = tile * ROWS + tl.arange(0, ROWS) + 1
    length = usable_length(lengths, log_z, b, frames)
    alpha += b * (frames + 1) * CP
    lifted += b * (frames + 1) * CP
    peak += b * (frames + 1)
    largest += b * (frames + 1) * CP
    ready += b * (frames + 1) * CP
    frame += b * frames * CP
    suffix += b * frames * CP
    to = partial + (b * chunks + tl.program_id(1)) * longest * (labels + 1) * CP + cols
    here = tl.where(t <= length, t, 0)[:, None] * CP + cols[None, :]
    mass = tl.load(ready + here)
    most = tl.load(largest + here)
    content = tl.zeros([ROWS, CP], tl.float64)
    edge = tl.zeros([ROWS, CP], tl.float64)
    reach = tl.minimum(tile * ROWS + ROWS, length)
    for k in range(1, tl.where(tile * ROWS < length, tl.minimum(longest, reach), 0) + 1):
        there = (k <= t) & (t <= length)
        s = tl.where(there, t - k, 0)
        content, edge = grown(content, edge, s, t, frame, suffix, ROWS, CP)
        value, sums, lost = incoming(
            transition, weight, entry, start, alpha, lifted, peak, s, k, there, labels, ROWS, CP, WIDTH
        )
        term = (value + content) + tl.load(duration + (k - 1) * CP + cols)[None, :]
        split = tl.exp(tl.where(there[:, None], term - most, float("-inf"))) * mass
        split = tl.where(there[:, None], split, 0.0)
        of_k = to + (k - 1) * (labels + 1) * CP
        tl.store(of_k, tl.sum(split, 0))
        onward = (k - 1) * CP * CP
        by_sums = tl.where(lost, 0.0, split / tl.where(sums == 0, 1.0, sums))
        for first in range(0, labels, WIDTH):
            c = first + tl.arange(0, WIDTH)
            before = tl.load(lifted + s[None, :] * CP + c[:, None])
            crossed = tl.dot(before, by_sums, out_dtype=tl.float64)
            crossed *= tl.load(weight + onward + c[:, None] * CP + cols[None, :])
            tl.debug_barrier()
            tl.store(
                of_k[None, :] + (1 + c[:, None]) * CP,
                crossed,
                mask=(c < labels)[:, None] & (cols < CP)[None, :],
            )
        tl.debug_barrier()
        if any_of(lost):
            top, total = entering(alpha + s * CP, transition + onward + cols[None, :], labels, ROWS, CP)
            crossing = tl.where(lost, split / total, 0.0)
            for c in range(labels):
                into = (
                    tl.load(alpha + s * CP + c)[:, None]
                    + tl.load(transition + onward + c * CP + cols)[None, :]
                )
                known = tl.load(of_k + (1 + c) * CP)
                tl.debug_barrier()
                tl.store(of_k + (1 + c) * CP, known + tl.sum(weight_of(into, top, lost) * crossing, 0))
                tl.debug_barrier()


def tables(problem: Problem, wide: int) -> dict[str, Tensor]:
    """The model in float64 with forbidden labels up to `wide`.

    `entry` (K, CP) is the largest transition over the label before, `weight` the exponentials below it,
    `turned` those with both labels changed about.
    """
    more = wide - problem.shape[3]
    transition = padded(problem.transition, more, rows=True)
    entry = transition.amax(1)
    below = transition - torch.where(torch.isneginf(entry), torch.zeros_like(entry), entry)[:, None]
    return {
        "transition": transition,
        "weight": below.exp(),
        "turned": below.exp().transpose(1, 2).contiguous(),
        "entry": entry,
        "duration": padded(problem.duration_KC, more),
        "start": padded(problem.start_C, more),
        "end": padded(problem.end_C, more),
    }


def forward(problem: Problem) -> LogState:
    """log Z (B,) and the messages; two launches a block."""
    batch, frames, longest, labels = problem.shape
    shape, parts = Shape.of(problem), triton.cdiv(longest, PART)
    model = tables(problem, shape.wide)
    new = model["start"].new_empty
    kept = {
        "alpha": new(batch, frames + 1, shape.wide),
        "lifted": new(batch, frames + 1, shape.wide),
        "peak": new(batch, frames + 1),
        "frame": new(batch, frames, shape.wide),
        "suffix": new(batch, frames, shape.wide),
        "log_z": new(batch),
    }
    far = [new(batch, parts, shape.rows, shape.wide) for _ in range(2)]
    offset, score_BTC = model["start"].new_zeros(batch), problem.score_BTC.detach().contiguous()
    given = (problem.lengths_B, *model.values(), *kept.values())
    tiles = {"ROWS": shape.rows, "CP": shape.wide, "num_warps": shape.warps}
    for begin in range(-shape.rows, frames, shape.rows):
        if begin >= 0:
            launch(
                arriving,
                (batch, parts),
                *given,
                *far,
                begin,
                frames,
                labels,
                longest,
                WIDTH=min(shape.wide, 32),
                PART=PART,
                num_stages=1,
                **tiles,
            )
        launch(
            block_messages,
            (batch,),
            score_BTC,
            *given,
            *far,
            offset,
            begin,
            parts,
            frames,
            labels,
            longest,
            **tiles,
        )
    return LogState(problem, model, kept)


def counts(state: LogState) -> Posteriors:
    """The pass from the right, and with it every expected count; two launches a block."""
    problem, model, kept = state.problem, state.model, state.kept
    batch, frames, longest, labels = problem.shape
    shape, parts = Shape.of(problem), triton.cdiv(longest, PART)
    width = {"WIDTH": min(shape.wide, 32), "num_stages": 1}
    tiles = {"ROWS": shape.rows, "CP": shape.wide, "num_warps": shape.warps}
    given = (problem.lengths_B, *model.values(), *kept.values())
    largest = torch.empty_like(kept["alpha"])
    inverse, ready, beyond = (torch.empty_like(largest) for _ in range(3))
    launch(
        maxima,
        (batch, triton.cdiv(frames, shape.rows)),
        *given,
        largest,
        inverse,
        frames,
        labels,
        longest,
        **width,
        **tiles,
    )
    label_BTC = largest.new_zeros(batch, frames, labels)
    starts_BTC, ends_BTC = torch.zeros_like(label_BTC), torch.zeros_like(label_BTC)
    covered = largest.new_empty(batch, shape.wide)
    launch(
        last_masses,
        (batch,),
        problem.lengths_B,
        model["end"],
        kept["alpha"],
        kept["log_z"],
        inverse,
        ready,
        beyond,
        ends_BTC,
        covered,
        frames,
        labels,
        CP=shape.wide,
        num_warps=1,
    )
    scratch = [largest.new_empty(batch, parts, shape.rows, shape.wide) for _ in range(3)]
    for begin in reversed(range(0, frames, shape.rows)):
        launch(
            departing,
            (batch, parts),
            *given,
            largest,
            ready,
            beyond,
            *scratch,
            begin,
            frames,
            labels,
            longest,
            PART=PART,
            **width,
            **tiles,
        )
        launch(
            block_masses,
            (batch,),
            *given,
            largest,
            inverse,
            ready,
            beyond,
            *scratch,
            covered,
            label_BTC,
            starts_BTC,
            ends_BTC,
            begin,
            parts,
            frames,
            labels,
            longest,
            **tiles,
        )
    found = added(durations, (*given, largest, ready), shape, problem, 1 + labels, **width)
    duration_BKC, crossed = found[:, :, 0, :labels].contiguous(), found[:, :, 1:, :labels]
    checked = mass(label_BTC, problem.lengths_B, state.log_z_B)
    return Posteriors(state.log_z_B, label_BTC, starts_BTC, ends_BTC, duration_BKC, crossed, *checked)
