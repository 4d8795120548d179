"""Triton kernels of the linear-domain semi-CRF: messages from both ends, then every expected count.

One warp holds one direction of one sequence (label = lane), so a pass has no barrier to wait for and no
result depends on a number of warps. Time goes in blocks of N frames:

- far: what segments begun before the block contribute to each of its N frames, a Toeplitz product of earlier
  blocks with the duration table. Rows of earlier blocks are stored with their frames up to their block's end
  multiplied in (`gathered`), and each block's whole product is kept (`product`): no sum or product ever spans
  more than one segment.
- near: the N sequential steps in registers; a step costs C^2 and at most N more terms.

Weights and messages are linear. Every second frame the power of two of the largest message moves into an
integer exponent: exact, and off the critical path because it looks one frame back. What underflow may have
lost is bounded per label (`lost`). A message below that bound times a margin flags the sequence, and the
caller recomputes it in the log domain. The pass from the right is the same code on reversed frames, beside
the first pass.

Rows: lane = 2 b + direction. Direction 1 counts frames from the padded end, so that blocks of both directions
meet at the same boundaries; before its `origin` all messages are zero. Counts never use atomics: partial sums
of fixed shape are added in a fixed order.
"""

# Triton's language is not typed Python, has no star in a tuple, and compares types from the left:
# mypy: ignore-errors
# ruff: noqa: RUF005, SIM102, SIM300
from __future__ import annotations

import triton
import triton.language as tl

from lab.rooms.semicrf.model.triton.log_terms import finite_or_zero, length_of


@triton.jit
def exponent_of(value):
    """floor(log2(value)) as int32 for a normal positive value; 0 for zero, denormals, inf and NaN."""
    if value.dtype == tl.float64:
        raw = ((value.to(tl.int64, bitcast=True) >> 52) & 2047).to(tl.int32)
        return tl.where((raw == 0) | (raw == 2047), 0, raw - 1023)
    else:
        raw = (value.to(tl.int32, bitcast=True) >> 23) & 255
        return tl.where((raw == 0) | (raw == 255), 0, raw - 127)


@triton.jit
def power_of_two(exponent, DTYPE: tl.constexpr):
    """2^exponent; 0 or the largest power where the type has none."""
    if DTYPE == tl.float64:
        raw = tl.minimum(tl.maximum(exponent + 1023, 0), 2046)
        return (raw.to(tl.int64) << 52).to(tl.float64, bitcast=True)
    else:
        raw = tl.minimum(tl.maximum(exponent + 127, 0), 254)
        return (raw << 23).to(tl.float32, bitcast=True)


@triton.jit(
    do_not_specialize=["labels", "longest", "rows"],
    do_not_specialize_on_alignment=[
        "transition",
        "duration",
        "start",
        "end",
        "onward",
        "table",
        "first",
        "last",
        "slack",
        "shift",
    ],
)
def prepare(
    transition,
    duration,
    start,
    end,
    onward,
    table,
    first,
    last,
    slack,
    shift,
    labels,
    longest,
    rows,
    N: tl.constexpr,
    CP: tl.constexpr,
    ROWS: tl.constexpr,
    SATURATE: tl.constexpr,
    MARGIN: tl.constexpr,
):
    """The weights of the model, padded to CP labels, once per call.

    The largest transition moves from E into D (every segment pays one of each, the first its start), the
    largest end score into `shift`. Program 0 writes E, its transpose, start, end; each writes ROWS of D.
    Row d + N - 1 of `table` is duration d, zero outside 1..K. `slack` is the margin times the largest D.
    """
    block = tl.program_id(0)
    wide = tl.arange(0, CP)
    live = wide < labels
    square = wide[:, None] * labels + wide[None, :]
    both = live[:, None] & live[None, :]
    scores = tl.load(transition + square, mask=both, other=float("-inf")).to(tl.float64)
    top = finite_or_zero(tl.max(scores))
    row = block * ROWS + tl.arange(0, ROWS)
    d = row - (N - 1)
    there = ((d >= 1) & (d <= longest))[:, None] & live[None, :]
    bias = tl.load(duration + (d[:, None] - 1) * labels + wide[None, :], mask=there, other=float("-inf"))
    bias = bias.to(tl.float64)
    values = tl.where(bias > float("-inf"), 1.0, 0.0) if SATURATE else tl.exp(bias + top)
    to = table + row[:, None] * CP + wide[None, :]
    tl.store(to, values.to(table.dtype.element_ty), mask=(row < rows)[:, None] & (wide < CP)[None, :])
    tl.store(slack + block, (tl.maximum(tl.max(values), 1.0) * MARGIN).to(slack.dtype.element_ty))
    if block == 0:
        begin = tl.load(start + wide, mask=live, other=float("-inf")).to(tl.float64)
        finish = tl.load(end + wide, mask=live, other=float("-inf")).to(tl.float64)
        end_top = finite_or_zero(tl.max(finish))
        if SATURATE:
            across = tl.where(scores > float("-inf"), 1.0, 0.0).to(tl.float64)
            enter = tl.where(begin > float("-inf"), 1.0, 0.0).to(tl.float64)
            leave = tl.where(finish > float("-inf"), 1.0, 0.0).to(tl.float64)
        else:
            across = tl.exp(scores - top)
            enter = tl.exp(begin - top)
            leave = tl.exp(finish - end_top)
        kind = onward.dtype.element_ty
        tl.store(onward + wide[:, None] * CP + wide[None, :], across.to(kind))
        tl.store(onward + CP * CP + wide[None, :] * CP + wide[:, None], across.to(kind))
        tl.store(first + wide, enter.to(kind))
        tl.store(last + wide, leave.to(kind))
        tl.store(shift, end_top)


@triton.jit
def row_of(tile, index: tl.constexpr):
    """Row `index` of a (rows, CP) tile that lies in one lane's registers: the compiler keeps just that
    register.

    Rows come as tiles because the compiler's time grows with the square of the number of loads and stores.
    """
    rows = tl.arange(0, tile.shape[0])
    return tl.sum(tl.where((rows == index)[:, None], tile, -0.0), 0)


@triton.jit
def with_row(tile, index: tl.constexpr, row):
    """The tile with its row `index` replaced."""
    rows = tl.arange(0, tile.shape[0])
    return tl.where((rows == index)[:, None], row[None, :], tile)


@triton.jit
def load_tile(pointer, first_row, ROWS: tl.constexpr, CP: tl.constexpr):
    """(ROWS, CP) from row `first_row` of a table with CP columns."""
    rows = first_row + tl.arange(0, ROWS)
    return tl.load(pointer + rows[:, None] * CP + tl.arange(0, CP)[None, :])


@triton.jit
def store_tile(pointer, first_row, tile, CP: tl.constexpr):
    rows = first_row + tl.arange(0, tile.shape[0])
    tl.store(pointer + rows[:, None] * CP + tl.arange(0, CP)[None, :], tile)


@triton.jit
def load_scores(
    score, block, direction, padded, length, labels, N: tl.constexpr, CP: tl.constexpr, DTYPE: tl.constexpr
):
    """Scores (N, CP) of a block of frames in the direction's order; -inf outside sequence and labels."""
    f = block * N + tl.arange(0, N)
    u = tl.where(direction == 0, f, padded - 1 - f)
    limit = tl.where((u >= 0) & (u < length), labels, 0)
    cols = tl.arange(0, CP)[None, :]
    at = score + u[:, None] * labels + cols
    return tl.load(at, mask=cols < limit[:, None], other=float("-inf")).to(DTYPE)


@triton.jit
def far_part(
    gathered, product, table, q, nearest, farthest, N: tl.constexpr, CP: tl.constexpr, DTYPE: tl.constexpr
):
    """What the blocks q - nearest down to q - farthest bring into each frame of q, and their product.

    (N, CP), up to the end of block q - nearest, and (CP,).
    """
    cols = tl.arange(0, CP)
    pending = tl.zeros([N, CP], DTYPE)
    between = tl.full([CP], 1.0, DTYPE)
    for delta in range(nearest, farthest + 1):
        p = q - delta
        rows = load_tile(gathered, p * N, N, CP)
        low = load_tile(table, delta * N, N, CP)
        high = load_tile(table, delta * N + N, N, CP)
        steps = ()
        for d in tl.static_range(N):
            steps = steps + (row_of(low, d),)
        for d in tl.static_range(N):
            steps = steps + (row_of(high, d),)
        sums = tl.zeros([N, CP], DTYPE)
        for i in tl.static_range(N):
            part = row_of(rows, 0) * steps[i + N]
            for m in tl.static_range(1, N):
                part += row_of(rows, m) * steps[i + N - m]
            sums = with_row(sums, i, part)
        pending += between[None, :] * sums
        between *= tl.load(product + p * CP + cols)
    return pending, between


@triton.jit(
    do_not_specialize=["frames", "far_blocks", "blocks", "begin", "parts"],
    do_not_specialize_on_alignment=["table", "lengths", "gathered", "product", "partial", "betweens"],
)
def outside_parts(
    table,
    lengths,
    gathered,
    product,
    partial,
    betweens,
    frames,
    far_blocks,
    blocks,
    begin,
    parts,
    N: tl.constexpr,
    CP: tl.constexpr,
    STAGE: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """What the `part`-th STAGE blocks before block `begin` bring into block begin + i, up to their own end.

    partial (lanes, parts, STAGE, N, CP), betweens (lanes, parts, CP); grid (B, directions, STAGE * parts).
    """
    b = tl.program_id(0).to(tl.int64)
    lane = b * tl.num_programs(1) + tl.program_id(1)
    i = tl.program_id(2) % STAGE
    part = tl.program_id(2) // STAGE
    length = length_of(lengths, b, frames)
    q = begin + i
    if q < tl.cdiv(length, N):
        nearest = i + 1 + part * STAGE
        farthest = tl.minimum(tl.minimum(nearest + STAGE - 1, far_blocks), q)
        sums, between = far_part(
            gathered + lane * blocks * N * CP,
            product + lane * blocks * CP,
            table,
            q,
            nearest,
            farthest,
            N,
            CP,
            DTYPE,
        )
        store_tile(partial, ((lane * parts + part) * STAGE + i) * N, sums, CP)
        if i == 0:  # the only one whose reach is never cut short within a part that others need
            tl.store(betweens + (lane * parts + part) * CP + tl.arange(0, CP), between)


@triton.jit(do_not_specialize=["parts"], do_not_specialize_on_alignment=["partial", "betweens", "outside"])
def outside_sums(
    partial,
    betweens,
    outside,
    parts,
    N: tl.constexpr,
    CP: tl.constexpr,
    STAGE: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """Sum of all parts up to the boundary before the stage: outside (lanes, STAGE, N, CP); grid (lanes,
    STAGE).
    """
    lane = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1)
    total = tl.zeros([N, CP], DTYPE)
    for back in range(parts):
        at = lane * parts + parts - 1 - back
        total *= tl.load(betweens + at * CP + tl.arange(0, CP))[None, :]
        total += load_tile(partial, (at * STAGE + i) * N, N, CP)
    store_tile(outside, (lane * STAGE + i) * N, total, CP)


@triton.jit(
    do_not_specialize=["frames", "labels", "far_blocks", "blocks", "slacks", "begin", "most"],
    do_not_specialize_on_alignment=[
        "score",
        "onward",
        "table",
        "first",
        "last",
        "slack",
        "shift",
        "lengths",
        "gathered",
        "product",
        "source",
        "arrived",
        "exponent",
        "z_value",
        "z_power",
        "log_z",
        "flags",
        "count",
        "outside",
        "carried",
        "carried_int",
        "carried_tops",
    ],
)
def messages(
    score,
    onward,
    table,
    first,
    last,
    slack,
    shift,
    lengths,
    gathered,
    product,
    source,
    arrived,
    exponent,
    z_value,
    z_power,
    log_z,
    flags,
    count,
    outside,
    carried,
    carried_int,
    carried_tops,
    frames,
    labels,
    far_blocks,
    blocks,
    slacks,
    begin,
    most,
    N: tl.constexpr,
    CP: tl.constexpr,
    SP: tl.constexpr,
    STAGE: tl.constexpr,
    DTYPE: tl.constexpr,
    KEEP: tl.constexpr,
    SATURATE: tl.constexpr,
    TINY: tl.constexpr,
):
    """One direction of one sequence: log Z, flags, and with KEEP the messages of every boundary.

    flags: 1 something may have been lost, 2 some message is exactly zero. With SATURATE, weights are 0 and 1
    and messages are capped at 1: `count` then is the number of messages that can be reached at all. Blocks
    `begin` to begin + most; with STAGE (blocks in a stage, else 0) what earlier stages bring is in `outside`
    (lanes, STAGE, N, CP), and registers go from launch to launch by `carried` (lanes, 4, CP), `carried_int`
    (lanes, 4, CP) and `carried_tops` (lanes,). What the last launch of a sequence leaves is its result.
    """
    b = tl.program_id(0).to(tl.int64)
    direction = tl.program_id(1)
    cols = tl.arange(0, CP)
    length = length_of(lengths, b, frames)
    used = tl.cdiv(length, N)
    padded = used * N
    origin = tl.where(direction == 0, 0, padded - length)
    stop = tl.where(direction == 0, length, padded)
    lane = b * tl.num_programs(1) + direction
    gathered += lane * blocks * N * CP
    product += lane * blocks * CP
    source += lane * blocks * N * CP
    arrived += lane * blocks * N * CP
    exponent += lane * blocks * N
    score += b * frames * labels
    wide = tl.arange(0, CP)
    onward_CC = tl.load(onward + direction * CP * CP + wide[:, None] * CP + cols[None, :])
    entry = tl.load(tl.where(direction == 0, first, last) + cols)
    held = tl.arange(0, SP)
    margin = tl.max(tl.load(slack + held, mask=held < slacks, other=0.0), 0)
    near = load_tile(table, N, N, CP)  # row d - 1: duration d

    gamma = tl.where(origin == 0, entry, 0.0)
    previous = tl.max(gamma, 0)
    lost = tl.full([CP], TINY, DTYPE)
    power = tl.full([], 0, tl.int32)
    tops = tl.full([], 0.0, tl.float64)
    bad = tl.zeros([CP], tl.int32)
    nonzero = tl.zeros([CP], tl.int32)
    final = tl.zeros([CP], DTYPE)
    final_power = tl.full([], 0, tl.int32)
    most_lost = tl.full([], TINY, DTYPE)  # over labels; between two looks only its growth by rescaling counts
    final_lost = tl.full([], TINY, DTYPE)
    steps = tl.arange(0, N)
    if STAGE:
        if (begin >= used) & (begin > 0):
            return  # this one ended in an earlier stage
        carried += lane * 4 * CP
        carried_int += lane * 4 * CP
        outside += lane * STAGE * N * CP
        if begin > 0:
            gamma = tl.load(carried + cols)
            lost = tl.load(carried + CP + cols)
            final = tl.load(carried + 2 * CP + cols)
            previous = tl.load(carried + 3 * CP)
            most_lost = tl.load(carried + 3 * CP + 1)
            final_lost = tl.load(carried + 3 * CP + 2)
            bad = tl.load(carried_int + cols)
            nonzero = tl.load(carried_int + CP + cols)
            power = tl.load(carried_int + 2 * CP)
            final_power = tl.load(carried_int + 2 * CP + 1)
            tops = tl.load(carried_tops + lane)
            tl.debug_barrier()  # the other warps have read before one writes for the next stage
    coming = load_scores(score, begin, direction, padded, length, labels, N, CP, DTYPE)

    for q in range(begin, tl.minimum(used, begin + most)):
        scores = coming
        coming = load_scores(score, q + 1, direction, padded, length, labels, N, CP, DTYPE)
        top = finite_or_zero(tl.max(scores, 1))
        if SATURATE:
            frames_w = tl.where(scores == float("-inf"), 0.0, 1.0).to(DTYPE)
        else:
            frames_w = tl.exp(scores - top[:, None])
        tops += tl.sum(top.to(tl.float64), 0)
        farthest = tl.minimum(q - begin if STAGE else q, far_blocks)
        far, since = far_part(gathered, product, table, q, 1, farthest, N, CP, DTYPE)
        if STAGE:
            if begin > 0:
                far += since[None, :] * load_tile(outside, (q - begin) * N, N, CP)
        pending = ()
        for i in tl.static_range(N):
            pending = pending + (row_of(far, i),)
        sources = ()
        weights = ()
        alphas = tl.zeros([N, CP], DTYPE)
        gammas = tl.zeros([N, CP], DTYPE)
        powers = tl.zeros([N], tl.int32)
        for i in tl.static_range(N):
            f = q * N + i
            w = row_of(frames_w, i)
            if i % 2 == 0 and not SATURATE:
                step = exponent_of(previous)
                back = power_of_two(-step, DTYPE)
                w *= back
                power += step
                most_lost *= tl.maximum(back, 1.0)
            lost = tl.maximum(lost * w, TINY)
            if i % 4 == 3:
                most_lost = tl.max(lost, 0)
            sources = sources + (gamma,)
            weights = weights + (w,)
            moved = ()
            for j in tl.static_range(N):
                if j < i:
                    moved = moved + (pending[j],)
                else:
                    moved = moved + ((pending[j] + gamma * row_of(near, j - i)) * w,)
            pending = moved
            alpha = pending[i]
            if SATURATE:
                alpha = tl.minimum(alpha, 1.0)
            if i % 2 == 1:
                previous = tl.max(gamma, 0)
            ends = f + 1 == stop
            final = tl.where(ends, alpha, final)
            final_power = tl.where(ends, power, final_power)
            final_lost = tl.where(ends, most_lost, final_lost)
            if KEEP:
                alphas = with_row(alphas, i, alpha)
                gammas = with_row(gammas, i, gamma)
                powers = tl.where(steps == i, power, powers)
            gamma = tl.sum(alpha[:, None] * onward_CC, 0)
            gamma = tl.where(f + 1 < stop, gamma, 0.0) + tl.where(f + 1 == origin, entry, 0.0)
            inside = cols < tl.where((f + 1 > origin) & (f + 1 < stop), labels, 0)
            wrong = (gamma != 0) & ~((gamma >= most_lost * margin) & (gamma < float("inf")))
            bad |= (inside & wrong).to(tl.int32)
            nonzero += (inside & (gamma > 0)).to(tl.int32)
        suffix = tl.full([CP], 1.0, DTYPE)
        whole = tl.zeros([N, CP], DTYPE)
        for back in tl.static_range(N):
            suffix *= weights[N - 1 - back]
            whole = with_row(whole, N - 1 - back, sources[N - 1 - back] * suffix)
        store_tile(gathered, q * N, whole, CP)
        tl.store(product + q * CP + cols, suffix)
        if KEEP:
            store_tile(arrived, q * N, alphas, CP)
            store_tile(source, q * N, gammas, CP)
            tl.store(exponent + q * N + steps, powers)
        tl.debug_barrier()  # the next block's far part loads what other lanes have stored

    if STAGE:
        tl.store(carried + cols, gamma)
        tl.store(carried + CP + cols, lost)
        tl.store(carried + 2 * CP + cols, final)
        tl.store(carried + 3 * CP, previous)
        tl.store(carried + 3 * CP + 1, most_lost)
        tl.store(carried + 3 * CP + 2, final_lost)
        tl.store(carried_int + cols, bad)
        tl.store(carried_int + CP + cols, nonzero)
        tl.store(carried_int + 2 * CP, power)
        tl.store(carried_int + 2 * CP + 1, final_power)
        tl.store(carried_tops + lane, tops)
    leave = tl.load(tl.where(direction == 0, last, first) + cols)
    z = tl.sum(final * leave, 0)
    found = tl.sum(nonzero, 0) + (z > 0).to(tl.int32)
    wrong = (z != 0) & ~((z >= final_lost * margin) & (z < float("inf")))
    flag = tl.max(bad, 0) | wrong.to(tl.int32)
    flag |= tl.where(margin < float("inf"), 0, 1)  # a weight beyond the type, which may meet a zero
    flag |= tl.where(found < (length - 1) * labels + 1, 2, 0)
    tl.store(z_value + lane, z)
    tl.store(z_power + lane, final_power)
    offset = final_power.to(tl.float64) * 0.6931471805599453 + tops + tl.load(shift)
    tl.store(log_z + lane, tl.log(z.to(tl.float64)) + offset)
    tl.store(flags + lane, flag)
    tl.store(count + lane, found)


@triton.jit
def narrowed(value, DTYPE: tl.constexpr):
    """float64 to the working type, held below overflow: what it then meets is zero, or lost and flagged."""
    if DTYPE == tl.float64:
        return tl.minimum(value, 1.0e300)
    else:
        return tl.minimum(value, 1.0e38).to(tl.float32)


@triton.jit
def count_of(left, right, total, inverse):
    """left * right * 2^total / z for (F, CP) messages; the power is split, for half of it never overflows."""
    half = total // 2
    first = left.to(tl.float64) * power_of_two(half, tl.float64)[:, None]
    return first * (right.to(tl.float64) * power_of_two(total - half, tl.float64)[:, None]) * inverse


@triton.jit
def inverse_of(z_value, z_power, b):
    """1 / z and the exponent of z of sequence b, from the pass from the left; 0 where nothing is feasible."""
    z = tl.load(z_value + 2 * b).to(tl.float64)
    usable = (z > 0) & (z < float("inf"))
    # Its own power of two joins the others: in a product with theirs it would underflow.
    own = exponent_of(z)
    scaled = tl.where(usable, z * power_of_two(-own, tl.float64), 1.0)
    return tl.where(usable, 1.0 / scaled, 0.0), tl.load(z_power + 2 * b) + own


@triton.jit
def boundary_counts(
    source,
    arrived,
    exponent,
    z_value,
    z_power,
    b,
    f,
    padded,
    length,
    blocks,
    cols,
    N: tl.constexpr,
    CP: tl.constexpr,
):
    """For frames f (F,): the mass (F, CP) of segments that start with the frame, and that end with it."""
    inverse, power = inverse_of(z_value, z_power, b)
    left = 2 * b * blocks * N
    right = left + blocks * N
    there = f < length
    g = padded - 1 - f
    power_before = tl.load(exponent + left + f - 1, mask=there & (f > 0), other=0)
    power_after = tl.load(exponent + left + f, mask=there, other=0)
    back_before = tl.load(exponent + right + g - 1, mask=there & (g > 0), other=0)
    back_after = tl.load(exponent + right + g, mask=there, other=0)
    mask = there[:, None] & (cols < CP)[None, :]
    at = (left + f)[:, None] * CP + cols[None, :]
    back = (right + g)[:, None] * CP + cols[None, :]
    gamma = tl.load(source + at, mask=mask, other=0.0)
    alpha = tl.load(arrived + at, mask=mask, other=0.0)
    beta = tl.load(source + back, mask=mask, other=0.0)
    eta = tl.load(arrived + back, mask=mask, other=0.0)
    starts = count_of(gamma, eta, power_before + back_after - power, inverse)
    ends = count_of(alpha, beta, power_after + back_before - power, inverse)
    return starts, ends


@triton.jit(
    do_not_specialize=["frames", "blocks", "chunks"],
    do_not_specialize_on_alignment=[
        "source",
        "arrived",
        "exponent",
        "z_value",
        "z_power",
        "lengths",
        "totals",
    ],
)
def label_totals(
    source,
    arrived,
    exponent,
    z_value,
    z_power,
    lengths,
    totals,
    frames,
    blocks,
    chunks,
    N: tl.constexpr,
    CP: tl.constexpr,
    F: tl.constexpr,
):
    """Per chunk of F frames: starts minus ends, (B, chunks, CP) float64."""
    b = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    cols = tl.arange(0, CP)
    length = length_of(lengths, b, frames)
    padded = tl.cdiv(length, N) * N
    f = chunk * F + tl.arange(0, F)
    starts, ends = boundary_counts(
        source, arrived, exponent, z_value, z_power, b, f, padded, length, blocks, cols, N, CP
    )
    tl.store(totals + (b * chunks + chunk) * CP + cols, tl.sum(starts - ends, 0))


@triton.jit(
    do_not_specialize=["frames", "labels", "blocks", "chunks"],
    do_not_specialize_on_alignment=[
        "source",
        "arrived",
        "exponent",
        "z_value",
        "z_power",
        "lengths",
        "totals",
        "label_out",
        "starts_out",
        "ends_out",
        "mass_error",
        "mass_frame",
    ],
)
def label_counts(
    source,
    arrived,
    exponent,
    z_value,
    z_power,
    lengths,
    totals,
    label_out,
    starts_out,
    ends_out,
    mass_error,
    mass_frame,
    frames,
    labels,
    blocks,
    chunks,
    N: tl.constexpr,
    CP: tl.constexpr,
    F: tl.constexpr,
    ALL: tl.constexpr,
    ROUNDING: tl.constexpr,
):
    """label (B, T, C): the running sum of starts less the ends before it, carried in float64.

    The ledger: each frame's mass must be 1. Its worst error over the chunk (NaN as inf) and the first frame
    that has it go to mass_error (B, chunks) float64 and mass_frame. A mass off by rounding alone is what Z
    is, seen from there: the frame's counts are divided by it. One that is off by more stays, for everybody to
    see.
    """
    b = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    cols = tl.arange(0, CP)
    length = length_of(lengths, b, frames)
    padded = tl.cdiv(length, N) * N
    carried = tl.zeros([CP], tl.float64)
    for before in range(chunk):
        carried += tl.load(totals + (b * chunks + before) * CP + cols)
    f = chunk * F + tl.arange(0, F)
    starts, ends = boundary_counts(
        source, arrived, exponent, z_value, z_power, b, f, padded, length, blocks, cols, N, CP
    )
    covered = carried[None, :] + tl.cumsum(starts - ends, 0) + ends
    covered = tl.where((f < length)[:, None], covered, 0.0)
    mass = tl.sum(covered, 1)
    error = tl.where(mass == mass, tl.abs(mass - 1.0), float("inf"))
    inverse, _ = inverse_of(z_value, z_power, b)
    error = tl.where(tl.where(f < length, inverse, 0.0) > 0, error, 0.0)
    worst = tl.max(error, 0)
    tl.store(mass_error + b * chunks + chunk, worst)
    tl.store(mass_frame + b * chunks + chunk, tl.min(tl.where(error == worst, f, frames), 0))
    covered /= tl.where(error < ROUNDING, tl.where(error > 0, mass, 1.0), 1.0)[:, None]
    at = (b * frames + f)[:, None] * labels + cols[None, :]
    mask = (f < frames)[:, None] & (cols < labels)[None, :]
    tl.store(label_out + at, covered.to(label_out.dtype.element_ty), mask=mask)
    if ALL:
        tl.store(starts_out + at, starts.to(starts_out.dtype.element_ty), mask=mask)
        tl.store(ends_out + at, ends.to(ends_out.dtype.element_ty), mask=mask)


@triton.jit(
    do_not_specialize=["frames", "blocks", "chunks", "far_blocks", "P"],
    do_not_specialize_on_alignment=[
        "gathered",
        "product",
        "exponent",
        "z_value",
        "z_power",
        "lengths",
        "partial",
    ],
)
def far_durations(
    gathered,
    product,
    exponent,
    z_value,
    z_power,
    lengths,
    partial,
    frames,
    blocks,
    chunks,
    far_blocks,
    P,
    N: tl.constexpr,
    CP: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """Counts of durations whose ends lie `delta` blocks apart, over P blocks: (B, chunks, 1+far, 2N, CP)."""
    b = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    delta = tl.program_id(2) + 1
    cols = tl.arange(0, CP)
    length = length_of(lengths, b, frames)
    used = tl.cdiv(length, N)
    inverse, z_exponent = inverse_of(z_value, z_power, b)
    left = 2 * b * blocks
    right = left + blocks
    low = tl.zeros([N, CP], DTYPE)
    high = tl.zeros([N, CP], DTYPE)
    for p in range(chunk * P, tl.minimum((chunk + 1) * P, used - delta)):
        q = p + delta
        between = tl.full([CP], 1.0, DTYPE)
        for r in range(p + 1, q):
            between *= tl.load(product + (left + r) * CP + cols)
        forward = tl.load(exponent + left * N + q * N - 1)
        backward = tl.load(exponent + right * N + (used - q) * N - 1)
        scale = power_of_two(forward + backward - z_exponent, tl.float64) * inverse
        rows = load_tile(gathered, (left + p) * N, N, CP)
        rows *= narrowed(between.to(tl.float64) * scale, DTYPE)[None, :]
        heads = load_tile(
            gathered, (right + used - 1 - q) * N, N, CP
        )  # the last row ends with the first frame
        for d in tl.static_range(2 * N - 1):
            total = tl.zeros([CP], DTYPE)
            for m in tl.static_range(N):
                if m + d >= N - 1 and m + d <= 2 * N - 2:
                    total += row_of(rows, m) * row_of(heads, N - 1 - (m + d - (N - 1)))
            if d < N:
                low = with_row(low, d, row_of(low, d) + total)
            else:
                high = with_row(high, d - N, row_of(high, d - N) + total)
    to = ((b * chunks + chunk) * (far_blocks + 1) + delta) * 2 * N
    store_tile(partial, to, low, CP)
    store_tile(partial, to + N, high, CP)


@triton.jit(
    do_not_specialize=["frames", "labels", "blocks", "chunks", "far_blocks", "P"],
    do_not_specialize_on_alignment=[
        "score",
        "source",
        "exponent",
        "z_value",
        "z_power",
        "lengths",
        "partial",
    ],
)
def near_durations(
    score,
    source,
    exponent,
    z_value,
    z_power,
    lengths,
    partial,
    frames,
    labels,
    blocks,
    chunks,
    far_blocks,
    P,
    N: tl.constexpr,
    CP: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """Counts of durations within one block, over P blocks, into delta 0 of the partial sums."""
    b = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    cols = tl.arange(0, CP)
    length = length_of(lengths, b, frames)
    used = tl.cdiv(length, N)
    padded = used * N
    inverse, z_exponent = inverse_of(z_value, z_power, b)
    left = 2 * b * blocks * N
    right = left + blocks * N
    score += b * frames * labels
    counts = tl.zeros([N, CP], DTYPE)
    steps = tl.arange(0, N)
    for q in range(chunk * P, tl.minimum((chunk + 1) * P, used)):
        scores = load_scores(score, q, 0, padded, length, labels, N, CP, DTYPE)
        after = tl.load(exponent + left + q * N + steps)
        f = q * N + steps
        before = tl.load(exponent + left + f - 1, mask=f > 0, other=0)
        g = padded - 1 - f
        back = tl.load(exponent + right + g - 1, mask=g > 0, other=0)
        weights = tl.exp(scores - finite_or_zero(tl.max(scores, 1))[:, None])
        weights *= power_of_two(before - after, DTYPE)[:, None]
        scale = power_of_two(after + back - z_exponent, tl.float64) * inverse
        betas = tl.load(source + (right + g)[:, None] * CP + cols[None, :]).to(tl.float64)
        betas = narrowed(betas * scale[:, None], DTYPE)
        gammas = load_tile(source, left + q * N, N, CP)
        open_rows = ()
        for i in tl.static_range(N):
            w = row_of(weights, i)
            beta = row_of(betas, i)
            open_rows = open_rows + (row_of(gammas, i),)
            moved = ()
            for m in tl.static_range(i + 1):
                moved = moved + (open_rows[m] * w,)
            open_rows = moved
            for k in tl.static_range(i + 1):
                counts = with_row(counts, k, row_of(counts, k) + moved[i - k] * beta)
    store_tile(partial, (b * chunks + chunk) * (far_blocks + 1) * 2 * N + N - 1, counts, CP)


@triton.jit(
    do_not_specialize=["labels", "longest", "chunks", "far_blocks"],
    do_not_specialize_on_alignment=["partial", "table", "out"],
)
def sum_durations(
    partial,
    table,
    out,
    labels,
    longest,
    chunks,
    far_blocks,
    N: tl.constexpr,
    CP: tl.constexpr,
):
    """Duration counts (B, K, C) float64 from the partial sums of both block distances with duration k."""
    b = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) + 1
    cols = tl.arange(0, CP)
    high = (k - 2 + N) // N
    d = (k - 2 + N) % N
    total = tl.zeros([CP], tl.float64)
    for chunk in range(chunks):
        at = (b * chunks + chunk) * (far_blocks + 1)
        up = cols < tl.where(high <= far_blocks, labels, 0)
        total += tl.load(partial + ((at + high) * 2 * N + d) * CP + cols, mask=up, other=0.0)
        low = cols < tl.where((high > 0) & (d < N - 1), labels, 0)
        total += tl.load(partial + ((at + high - 1) * 2 * N + d + N) * CP + cols, mask=low, other=0.0)
    weight = tl.load(table + (k + N - 1) * CP + cols).to(tl.float64)
    tl.store(out + (b * longest + k - 1) * labels + cols, total * weight, mask=cols < labels)


@triton.jit(
    do_not_specialize=["frames", "blocks", "chunks"],
    do_not_specialize_on_alignment=["arrived", "exponent", "z_value", "z_power", "lengths", "partial"],
)
def transitions(
    arrived,
    exponent,
    z_value,
    z_power,
    lengths,
    partial,
    frames,
    blocks,
    chunks,
    N: tl.constexpr,
    CP: tl.constexpr,
    DTYPE: tl.constexpr,
    F: tl.constexpr,
):
    """Sum over F boundaries of alpha[s, c'] eta[s, c] / z: (B, chunks, CP, CP)."""
    b = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    cols = tl.arange(0, CP)
    wide = tl.arange(0, CP)
    length = length_of(lengths, b, frames)
    padded = tl.cdiv(length, N) * N
    inverse, z_exponent = inverse_of(z_value, z_power, b)
    left = 2 * b * blocks * N
    right = left + blocks * N
    total = tl.zeros([CP, CP], DTYPE)
    for s in range(tl.maximum(chunk * F, 1), tl.minimum((chunk + 1) * F, length)):
        g = padded - 1 - s
        scale = power_of_two(
            tl.load(exponent + left + s - 1) + tl.load(exponent + right + g) - z_exponent, tl.float64
        )
        eta = tl.load(arrived + (right + g) * CP + cols).to(tl.float64) * (scale * inverse)
        alpha = tl.load(arrived + (left + s - 1) * CP + wide)
        total += alpha[:, None] * narrowed(eta, DTYPE)[None, :]
    to = partial + (b * chunks + chunk) * CP * CP + wide[:, None] * CP + cols[None, :]
    tl.store(to, total)


@triton.jit(
    do_not_specialize=["labels", "chunks"], do_not_specialize_on_alignment=["partial", "onward", "out"]
)
def sum_transitions(partial, onward, out, labels, chunks, CP: tl.constexpr):
    """Transition counts (B, C, C) float64 from the chunks' sums."""
    b = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1)
    cols = tl.arange(0, CP)
    total = tl.zeros([CP], tl.float64)
    for chunk in range(chunks):
        total += tl.load(partial + ((b * chunks + chunk) * CP + row) * CP + cols)
    weight = tl.load(onward + row * CP + cols).to(tl.float64)
    tl.store(out + (b * labels + row) * labels + cols, total * weight, mask=cols < labels)


@triton.jit
def whole_row_of(tile, index: tl.constexpr):
    """`row_of` for integers."""
    rows = tl.arange(0, tile.shape[0])
    return tl.sum(tl.where((rows == index)[:, None], tile, 0), 0)


@triton.jit
def far_best(gathered, product, table, q, nearest, farthest, N: tl.constexpr, CP: tl.constexpr):
    """`far_part` with max for sum.

    Returns the best score into each frame of block q, its duration (0: none), and the sum of the blocks'
    scores.
    """
    cols = tl.arange(0, CP)
    best = tl.full([N, CP], float("-inf"), tl.float64)
    taken = tl.zeros([N, CP], tl.int32)
    between = tl.zeros([CP], tl.float64)
    for delta in range(nearest, farthest + 1):
        p = q - delta
        rows = load_tile(gathered, p * N, N, CP)
        low = load_tile(table, delta * N, N, CP)
        high = load_tile(table, delta * N + N, N, CP)
        for i in tl.static_range(N):
            found = row_of(best, i)
            duration = whole_row_of(taken, i)
            for back in tl.static_range(N):  # short segments first: they win ties
                at = i + 1 + back
                bias = row_of(low, at) if at < N else row_of(high, at - N)
                coming = row_of(rows, N - 1 - back) + between + bias
                better = coming > found
                found = tl.where(better, coming, found)
                duration = tl.where(better, delta * N + i + back + 2 - N, duration)
            best = with_row(best, i, found)
            taken = with_row(taken, i, duration)
        between += tl.load(product + p * CP + cols)
    return best, taken, between


@triton.jit(
    do_not_specialize=["frames", "far_blocks", "blocks", "begin", "parts"],
    do_not_specialize_on_alignment=[
        "table",
        "lengths",
        "gathered",
        "product",
        "partial",
        "partial_taken",
        "betweens",
    ],
)
def outside_bests(
    table,
    lengths,
    gathered,
    product,
    partial,
    partial_taken,
    betweens,
    frames,
    far_blocks,
    blocks,
    begin,
    parts,
    N: tl.constexpr,
    CP: tl.constexpr,
    STAGE: tl.constexpr,
):
    """`outside_parts` with max for sum; grid (B, STAGE * parts)."""
    b = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) % STAGE
    part = tl.program_id(1) // STAGE
    length = length_of(lengths, b, frames)
    q = begin + i
    if q < tl.cdiv(length, N):
        nearest = i + 1 + part * STAGE
        farthest = tl.minimum(tl.minimum(nearest + STAGE - 1, far_blocks), q)
        best, taken, between = far_best(
            gathered + b * blocks * N * CP, product + b * blocks * CP, table, q, nearest, farthest, N, CP
        )
        store_tile(partial, ((b * parts + part) * STAGE + i) * N, best, CP)
        store_tile(partial_taken, ((b * parts + part) * STAGE + i) * N, taken, CP)
        if i == 0:
            tl.store(betweens + (b * parts + part) * CP + tl.arange(0, CP), between)


@triton.jit(
    do_not_specialize=["parts"],
    do_not_specialize_on_alignment=["partial", "partial_taken", "betweens", "outside", "outside_taken"],
)
def outside_best_of(
    partial,
    partial_taken,
    betweens,
    outside,
    outside_taken,
    parts,
    N: tl.constexpr,
    CP: tl.constexpr,
    STAGE: tl.constexpr,
):
    """The best of all parts, the nearest where they are equal; grid (B, STAGE)."""
    b = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1)
    best = tl.full([N, CP], float("-inf"), tl.float64)
    taken = tl.zeros([N, CP], tl.int32)
    between = tl.zeros([CP], tl.float64)
    for part in range(parts):
        at = b * parts + part
        coming = between[None, :] + load_tile(partial, (at * STAGE + i) * N, N, CP)
        better = coming > best
        best = tl.where(better, coming, best)
        taken = tl.where(better, load_tile(partial_taken, (at * STAGE + i) * N, N, CP), taken)
        between += tl.load(betweens + at * CP + tl.arange(0, CP))
    store_tile(outside, (b * STAGE + i) * N, best, CP)
    store_tile(outside_taken, (b * STAGE + i) * N, taken, CP)


@triton.jit(
    do_not_specialize=["frames", "labels", "far_blocks", "blocks", "begin", "most"],
    do_not_specialize_on_alignment=[
        "score",
        "onward",
        "table",
        "first",
        "lengths",
        "gathered",
        "product",
        "arrived",
        "durations",
        "outside",
        "outside_taken",
        "carried",
    ],
)
def best_messages(
    score,
    onward,
    table,
    first,
    lengths,
    gathered,
    product,
    arrived,
    durations,
    outside,
    outside_taken,
    carried,
    frames,
    labels,
    far_blocks,
    blocks,
    begin,
    most,
    N: tl.constexpr,
    CP: tl.constexpr,
    STAGE: tl.constexpr,
):
    """Viterbi's pass from the left in float64 logs: the best score of a segment of c that ends with each
    frame.

    It also keeps that segment's duration, the shortest of equal ones. The label before is found in the
    backtrace. Stages as in `messages`.
    """
    b = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, CP)
    length = length_of(lengths, b, frames)
    used = tl.cdiv(length, N)
    gathered += b * blocks * N * CP
    product += b * blocks * CP
    arrived += b * blocks * N * CP
    durations += b * blocks * N * CP
    score += b * frames * labels
    onward_CC = load_tile(onward, 0, CP, CP)
    near = load_tile(table, N, N, CP)
    gamma = tl.load(first + cols)
    if STAGE:
        if begin > 0:
            gamma = tl.load(carried + b * CP + cols)
            tl.debug_barrier()  # the other warps have read before one writes for the next stage
        outside += b * STAGE * N * CP
        outside_taken += b * STAGE * N * CP
    for q in range(begin, tl.minimum(used, begin + most)):
        scores = load_scores(score, q, 0, used * N, length, labels, N, CP, tl.float64)
        farthest = tl.minimum(q - begin if STAGE else q, far_blocks)
        best, taken, since = far_best(gathered, product, table, q, 1, farthest, N, CP)
        if STAGE:
            if begin > 0:
                coming = since[None, :] + load_tile(outside, (q - begin) * N, N, CP)
                better = coming > best
                best = tl.where(better, coming, best)
                taken = tl.where(better, load_tile(outside_taken, (q - begin) * N, N, CP), taken)
        pending = ()
        lasting = ()
        for i in tl.static_range(N):
            pending = pending + (row_of(best, i),)
            lasting = lasting + (whole_row_of(taken, i),)
        sources = ()
        for i in tl.static_range(N):
            x = row_of(scores, i)
            sources = sources + (gamma,)
            moved = ()
            lasted = ()
            for j in tl.static_range(N):
                if j < i:
                    moved = moved + (pending[j],)
                    lasted = lasted + (lasting[j],)
                else:
                    coming = gamma + row_of(near, j - i)
                    better = coming >= pending[j]
                    moved = moved + (tl.where(better, coming, pending[j]) + x,)
                    lasted = lasted + (tl.where(better, j - i + 1, lasting[j]),)
            pending = moved
            lasting = lasted
            gamma = tl.max(pending[i][:, None] + onward_CC, 0)
        alphas = tl.zeros([N, CP], tl.float64)
        ends = tl.zeros([N, CP], tl.int32)
        whole = tl.zeros([N, CP], tl.float64)
        suffix = tl.zeros([CP], tl.float64)
        for back in tl.static_range(N):
            suffix += row_of(scores, N - 1 - back)
            whole = with_row(whole, N - 1 - back, sources[N - 1 - back] + suffix)
            alphas = with_row(alphas, back, pending[back])
            ends = with_row(ends, back, lasting[back])
        store_tile(gathered, q * N, whole, CP)
        store_tile(arrived, q * N, alphas, CP)
        store_tile(durations, q * N, ends, CP)
        tl.store(product + q * CP + cols, suffix)
        tl.debug_barrier()  # the next block's far part loads what other lanes have stored
    if STAGE:
        tl.store(carried + b * CP + cols, gamma)


@triton.jit(
    do_not_specialize=["frames", "blocks"],
    do_not_specialize_on_alignment=[
        "onward",
        "last",
        "lengths",
        "arrived",
        "durations",
        "segments",
        "count",
        "score",
    ],
)
def best_paths(
    onward,
    last,
    lengths,
    arrived,
    durations,
    segments,
    count,
    score,
    frames,
    blocks,
    N: tl.constexpr,
    CP: tl.constexpr,
):
    """The backtrace through `best_messages`.

    Writes segments (B, frames, 3) as (start, end, label), the last one first, their count (B,) and the best
    score (B,). Of equal labels the smallest; no segments where the score is not finite.
    """
    b = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, CP)
    length = length_of(lengths, b, frames)
    arrived += b * blocks * N * CP
    durations += b * blocks * N * CP
    segments += b * frames * 3
    value = tl.load(
        arrived + (length - 1) * CP + cols, mask=cols < tl.where(length > 0, CP, 0), other=float("-inf")
    )
    value += tl.load(last + cols)
    best = tl.max(value, 0)
    label = tl.min(tl.where(value == best, cols, CP), 0)
    t = tl.where(tl.abs(best) < float("inf"), length, 0)
    found = tl.full([], 0, tl.int32)
    while t > 0:
        begin = t - tl.maximum(tl.load(durations + (t - 1) * CP + label), 1)
        tl.store(segments + found * 3, begin)
        tl.store(segments + found * 3 + 1, t)
        tl.store(segments + found * 3 + 2, label)
        found += 1
        inside = cols < tl.where(begin > 0, CP, 0)
        value = tl.load(arrived + (begin - 1) * CP + cols, mask=inside, other=0.0)
        value += tl.load(onward + cols * CP + label)
        label = tl.min(tl.where(value == tl.max(value, 0), cols, CP), 0)
        t = begin
        tl.debug_barrier()  # stores never meet, but the race lint knows arguments, not addresses
    tl.store(count + b, found)
    tl.store(score + b, best)
