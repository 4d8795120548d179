"""Triton kernels of the linear-domain semi-CRF: messages from both ends, then every expected count.

One warp holds one direction of one sequence (label = lane), so within a pass no barrier is waited for and no
result depends on a number of warps. Time goes in blocks of N frames:

- far: what segments begun before the block bring into each of its N frames, a Toeplitz product of earlier
  blocks with the duration table. Rows of earlier blocks are stored with their frames up to their block's end
  multiplied in (`gathered`), and each block's whole product is kept (`product`): no sum or product ever spans
  more than one segment.
- near: the N sequential steps in registers; a step costs C^2 and at most N more terms.

Weights and messages are linear. Each second frame the power of two of the largest message moves into an integer
exponent: exact, and off the critical path because it looks one frame back. What underflow may have lost is
bounded per label (`lost`); a message below that bound times a margin flags the sequence, and the caller does
it again in the log domain. The pass from the right is the same code on reversed frames, beside the first pass.

Rows: lane = 2 b + direction. Direction 1 counts frames from the padded end, so that blocks of both directions
meet at the same boundaries; before its `origin` all messages are zero.
Counts never use atomics: partial sums of fixed shape are added in a fixed order.
"""

from __future__ import annotations

import triton
import triton.language as tl


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


@triton.jit
def finite_or_zero(value):
    return tl.where(tl.abs(value) < float("inf"), value, 0.0)


@triton.jit
def prepare(
    transition, duration, start, end,
    onward, table, first, last, slack, shift,
    labels, longest, rows,
    N: tl.constexpr, CP: tl.constexpr, ROWS: tl.constexpr, SATURATE: tl.constexpr, MARGIN: tl.constexpr,
):  # fmt: skip
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
            scores = tl.where(scores > float("-inf"), 1.0, 0.0)
            begin = tl.where(begin > float("-inf"), 1.0, 0.0)
            finish = tl.where(finish > float("-inf"), 1.0, 0.0)
        else:
            scores = tl.exp(scores - top)
            begin = tl.exp(begin - top)
            finish = tl.exp(finish - end_top)
        kind = onward.dtype.element_ty
        tl.store(onward + wide[:, None] * CP + wide[None, :], scores.to(kind))
        tl.store(onward + CP * CP + wide[None, :] * CP + wide[:, None], scores.to(kind))
        tl.store(first + wide, begin.to(kind))
        tl.store(last + wide, finish.to(kind))
        tl.store(shift, end_top)


@triton.jit
def far_part(
    gathered, product, table, q, far_blocks, cols, N: tl.constexpr, CP: tl.constexpr, DTYPE: tl.constexpr
):
    """What the blocks before q bring into each of its frames, up to the content of block q itself."""
    pending = ()
    for _ in tl.static_range(N):
        pending = pending + (tl.zeros([CP], DTYPE),)
    between = tl.full([CP], 1.0, DTYPE)
    for delta in range(1, tl.minimum(q, far_blocks) + 1):
        p = q - delta
        rows = ()
        for m in tl.static_range(N):
            rows = rows + (tl.load(gathered + (p * N + m) * CP + cols),)
        steps = ()
        for d in tl.static_range(2 * N - 1):
            steps = steps + (tl.load(table + (delta * N + d + 1) * CP + cols),)
        updated = ()
        for i in tl.static_range(N):
            part = rows[0] * steps[i + N - 1]
            for m in tl.static_range(1, N):
                part += rows[m] * steps[i + N - 1 - m]
            updated = updated + (pending[i] + between * part,)
        pending = updated
        between *= tl.load(product + p * CP + cols)
    return pending


@triton.jit
def messages(
    score, onward, table, first, last, slack, shift, lengths,
    gathered, product, source, arrived, exponent, z_value, z_power, log_z, flags, count,
    frames, labels, far_blocks, blocks, slacks,
    N: tl.constexpr, CP: tl.constexpr, SP: tl.constexpr, DTYPE: tl.constexpr,
    KEEP: tl.constexpr, SATURATE: tl.constexpr, TINY: tl.constexpr,
):  # fmt: skip
    """One direction of one sequence: log Z, flags, and with KEEP the messages of every boundary.

    flags: 1 something may have been lost, 2 some message is exactly zero. With SATURATE, weights are 0 and 1
    and messages are capped at 1: `count` then is the number of messages that can be reached at all.
    """
    b = tl.program_id(0).to(tl.int64)
    direction = tl.program_id(1)
    cols = tl.arange(0, CP)
    length = tl.minimum(tl.maximum(tl.load(lengths + b).to(tl.int32), 0), frames)
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
    near = ()
    for d in tl.static_range(1, N + 1):
        near = near + (tl.load(table + (d + N - 1) * CP + cols),)

    gamma = tl.where(origin == 0, entry, 0.0)
    previous = tl.max(gamma, 0)
    lost = tl.full([CP], TINY, DTYPE)
    power = tl.full([], 0, tl.int32)
    tops = tl.full([], 0.0, tl.float64)
    bad = tl.zeros([CP], tl.int32)
    nonzero = tl.zeros([CP], tl.int32)
    final = tl.zeros([CP], DTYPE)
    final_power = tl.full([], 0, tl.int32)
    final_lost = tl.full([], TINY, DTYPE)
    coming = ()
    for i in tl.static_range(N):
        u = tl.where(direction == 0, i, padded - 1 - i)
        known = cols < tl.where((u >= 0) & (u < length), labels, 0)
        coming = coming + (tl.load(score + u * labels + cols, mask=known, other=float("-inf")).to(DTYPE),)

    for q in range(used):
        scores = coming
        coming = ()
        for i in tl.static_range(N):
            f = (q + 1) * N + i
            u = tl.where(direction == 0, f, padded - 1 - f)
            known = cols < tl.where((u >= 0) & (u < length), labels, 0)
            coming = coming + (tl.load(score + u * labels + cols, mask=known, other=float("-inf")).to(DTYPE),)
        pending = far_part(gathered, product, table, q, far_blocks, cols, N, CP, DTYPE)
        sources = ()
        weights = ()
        for i in tl.static_range(N):
            f = q * N + i
            u = tl.where(direction == 0, f, padded - 1 - f)
            top = finite_or_zero(tl.max(scores[i], 0))  # frames outside are -inf: weight zero
            if SATURATE:
                w = tl.where(scores[i] == float("-inf"), 0.0, 1.0).to(DTYPE)
            else:
                w = tl.exp(scores[i] - top)
            tops += tl.where(u < length, top, 0.0).to(tl.float64)
            if i % 2 == 0 and not SATURATE:
                step = exponent_of(previous)
                w *= power_of_two(-step, DTYPE)
                power += step
            lost = tl.maximum(lost * w, TINY)
            sources = sources + (gamma,)
            weights = weights + (w,)
            moved = ()
            for j in tl.static_range(N):
                if j < i:
                    moved = moved + (pending[j],)
                else:
                    moved = moved + ((pending[j] + gamma * near[j - i]) * w,)
            pending = moved
            alpha = pending[i]
            if SATURATE:
                alpha = tl.minimum(alpha, 1.0)
            if i % 2 == 1:
                previous = tl.max(gamma, 0)
            most_lost = tl.max(lost, 0)
            ends = f + 1 == stop
            final = tl.where(ends, alpha, final)
            final_power = tl.where(ends, power, final_power)
            final_lost = tl.where(ends, most_lost, final_lost)
            gamma = tl.sum(alpha[:, None] * onward_CC, 0)
            gamma = tl.where(f + 1 < stop, gamma, 0.0) + tl.where(f + 1 == origin, entry, 0.0)
            inside = cols < tl.where((f + 1 > origin) & (f + 1 < stop), labels, 0)
            wrong = (gamma != 0) & ~((gamma >= most_lost * margin) & (gamma < float("inf")))
            bad |= (inside & wrong).to(tl.int32)
            nonzero += (inside & (gamma > 0)).to(tl.int32)
            if KEEP:
                tl.store(arrived + f * CP + cols, alpha)
                tl.store(source + f * CP + cols, sources[i])
                tl.store(exponent + f, power)
        suffix = tl.full([CP], 1.0, DTYPE)
        for back in tl.static_range(N):
            suffix *= weights[N - 1 - back]
            tl.store(gathered + (q * N + N - 1 - back) * CP + cols, sources[N - 1 - back] * suffix)
        tl.store(product + q * CP + cols, suffix)
        tl.debug_barrier()  # the next block's far part loads what other lanes have stored

    leave = tl.load(tl.where(direction == 0, last, first) + cols)
    z = tl.sum(final * leave, 0)
    found = tl.sum(nonzero, 0) + (z > 0).to(tl.int32)
    wrong = (z != 0) & ~((z >= final_lost * margin) & (z < float("inf")))
    flag = tl.max(bad, 0) | wrong.to(tl.int32)
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
    return tl.where(usable, 1.0 / tl.where(usable, z, 1.0), 0.0), tl.load(z_power + 2 * b)


@triton.jit
def boundary_counts(
    source, arrived, exponent, z_value, z_power, b, f, padded, length, blocks, cols,
    N: tl.constexpr, CP: tl.constexpr,
):  # fmt: skip
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


@triton.jit
def label_totals(
    source, arrived, exponent, z_value, z_power, lengths, totals,
    frames, blocks, chunks, N: tl.constexpr, CP: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """Per chunk of F frames: starts minus ends, (B, chunks, CP) float64."""
    b = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    cols = tl.arange(0, CP)
    length = tl.minimum(tl.maximum(tl.load(lengths + b).to(tl.int32), 0), frames)
    padded = tl.cdiv(length, N) * N
    f = chunk * F + tl.arange(0, F)
    starts, ends = boundary_counts(
        source, arrived, exponent, z_value, z_power, b, f, padded, length, blocks, cols, N, CP
    )
    tl.store(totals + (b * chunks + chunk) * CP + cols, tl.sum(starts - ends, 0))


@triton.jit
def label_counts(
    source, arrived, exponent, z_value, z_power, lengths, totals,
    label_out, starts_out, ends_out,
    frames, labels, blocks, chunks,
    N: tl.constexpr, CP: tl.constexpr, F: tl.constexpr, ALL: tl.constexpr,
):  # fmt: skip
    """label (B, T, C): the running sum of starts less the ends before it, carried in float64."""
    b = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    cols = tl.arange(0, CP)
    length = tl.minimum(tl.maximum(tl.load(lengths + b).to(tl.int32), 0), frames)
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
    at = (b * frames + f)[:, None] * labels + cols[None, :]
    mask = (f < frames)[:, None] & (cols < labels)[None, :]
    tl.store(label_out + at, covered.to(label_out.dtype.element_ty), mask=mask)
    if ALL:
        tl.store(starts_out + at, starts.to(starts_out.dtype.element_ty), mask=mask)
        tl.store(ends_out + at, ends.to(ends_out.dtype.element_ty), mask=mask)


@triton.jit
def far_durations(
    gathered, product, exponent, z_value, z_power, lengths, partial,
    frames, blocks, chunks, far_blocks,
    N: tl.constexpr, CP: tl.constexpr, DTYPE: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Counts of durations whose ends lie `delta` blocks apart, over P blocks: (B, chunks, 1+far, 2N, CP)."""
    b = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    delta = tl.program_id(2) + 1
    cols = tl.arange(0, CP)
    length = tl.minimum(tl.maximum(tl.load(lengths + b).to(tl.int32), 0), frames)
    used = tl.cdiv(length, N)
    inverse, z_exponent = inverse_of(z_value, z_power, b)
    left = 2 * b * blocks
    right = left + blocks
    counts = ()
    for _ in tl.static_range(2 * N - 1):
        counts = counts + (tl.zeros([CP], DTYPE),)
    for p in range(chunk * P, tl.minimum((chunk + 1) * P, used - delta)):
        q = p + delta
        between = tl.full([CP], 1.0, DTYPE)
        for r in range(p + 1, q):
            between *= tl.load(product + (left + r) * CP + cols)
        forward = tl.load(exponent + left * N + q * N - 1)
        backward = tl.load(exponent + right * N + (used - q) * N - 1)
        scale = power_of_two(forward + backward - z_exponent, tl.float64) * inverse
        between = narrowed(between.to(tl.float64) * scale, DTYPE)
        rows = ()
        for m in tl.static_range(N):
            rows = rows + (tl.load(gathered + ((left + p) * N + m) * CP + cols) * between,)
        heads = ()
        for i in tl.static_range(N):
            heads = heads + (tl.load(gathered + ((right + used - 1 - q) * N + N - 1 - i) * CP + cols),)
        updated = ()
        for d in tl.static_range(2 * N - 1):
            total = counts[d]
            for m in tl.static_range(N):
                if m + d >= N - 1 and m + d <= 2 * N - 2:
                    total += rows[m] * heads[m + d - (N - 1)]
            updated = updated + (total,)
        counts = updated
    to = partial + ((b * chunks + chunk) * (far_blocks + 1) + delta) * 2 * N * CP + cols
    for d in tl.static_range(2 * N - 1):
        tl.store(to + d * CP, counts[d])


@triton.jit
def near_durations(
    score, source, exponent, z_value, z_power, lengths, partial,
    frames, labels, blocks, chunks, far_blocks,
    N: tl.constexpr, CP: tl.constexpr, DTYPE: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Counts of durations that start and end in one block, over P blocks, into delta 0 of the partial sums."""
    b = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    cols = tl.arange(0, CP)
    length = tl.minimum(tl.maximum(tl.load(lengths + b).to(tl.int32), 0), frames)
    used = tl.cdiv(length, N)
    padded = used * N
    inverse, z_exponent = inverse_of(z_value, z_power, b)
    left = 2 * b * blocks * N
    right = left + blocks * N
    score += b * frames * labels
    counts = ()
    for _ in tl.static_range(N):
        counts = counts + (tl.zeros([CP], DTYPE),)
    for q in range(chunk * P, tl.minimum((chunk + 1) * P, used)):
        open_rows = ()
        before = tl.full([], 0, tl.int64) + q * N - 1
        power = tl.load(exponent + left + before, mask=before >= 0, other=0)
        for i in tl.static_range(N):
            f = q * N + i
            known = cols < tl.where(f < length, labels, 0)
            x = tl.load(score + f * labels + cols, mask=known, other=float("-inf")).to(DTYPE)
            top = finite_or_zero(tl.max(x, 0))
            after = tl.load(exponent + left + f)
            w = tl.exp(x - top) * power_of_two(power - after, DTYPE)
            power = after
            g = padded - 1 - f
            back = tl.load(exponent + right + g - 1, mask=g > 0, other=0)
            scale = power_of_two(after + back - z_exponent, tl.float64) * inverse
            beta = narrowed(tl.load(source + (right + g) * CP + cols).to(tl.float64) * scale, DTYPE)
            open_rows = open_rows + (tl.load(source + (left + f) * CP + cols),)
            moved = ()
            summed = ()
            for m in tl.static_range(i + 1):
                moved = moved + (open_rows[m] * w,)
            for k in tl.static_range(N):
                if k <= i:
                    summed = summed + (counts[k] + moved[i - k] * beta,)
                else:
                    summed = summed + (counts[k],)
            open_rows = moved
            counts = summed
    to = partial + (b * chunks + chunk) * (far_blocks + 1) * 2 * N * CP + cols
    for k in tl.static_range(N):
        tl.store(to + (k + N - 1) * CP, counts[k])


@triton.jit
def sum_durations(
    partial, table, out, labels, longest, chunks, far_blocks, N: tl.constexpr, CP: tl.constexpr,
):  # fmt: skip
    """Duration counts (B, K, C) float64 from the partial sums of both block distances that hold duration k."""
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


@triton.jit
def transitions(
    arrived, exponent, z_value, z_power, lengths, partial,
    frames, blocks, chunks, N: tl.constexpr, CP: tl.constexpr, DTYPE: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """Sum over F boundaries of alpha[s, c'] eta[s, c] / z: (B, chunks, CP, CP)."""
    b = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    cols = tl.arange(0, CP)
    wide = tl.arange(0, CP)
    length = tl.minimum(tl.maximum(tl.load(lengths + b).to(tl.int32), 0), frames)
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


@triton.jit
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
