// The linear-domain semi-CRF on a GPU, in CUDA C.
//
// One block of THREADS threads holds one direction of one sequence. Time goes in blocks of N frames: what segments
// begun before the block bring into each of its frames is a Toeplitz product with the duration table, which all
// threads share (label c, and a slice of the block distances); then N steps run one after the other, by the first CP
// threads, a label each. A step costs one barrier, C multiply-adds for the transition and at most N for segments
// begun within the block. Sums have a fixed order that depends on K and on frames counted from the sequence's own
// end, never on the batch or on padding. No atomics.
//
// Weights and messages are linear. Each second frame the power of two of the largest message moves into an integer
// exponent. `lost` bounds what underflow may have lost of a label; a message below that times a margin flags the
// sequence, and the caller does it again in the log domain.
//
// Lane = directions * b + direction. Direction 1 counts frames from the padded end, so that blocks of both directions
// meet at the same boundaries. Tables have CP columns. `gathered` holds the messages before each frame with their
// block's remaining frames multiplied in, `product` each block's whole product, `source` and `arrived` the messages
// before and after each frame (gamma and alpha; beta and eta from the right) in units of 2^exponent.
//
// Long durations go in stages of STAGE blocks: what blocks before a stage bring into it is summed by all
// multiprocessors between the launches, instead of by the one block of threads that walks through time.
//
// Defined ahead of this text (cuda.py): CP (labels, padded to 32, 64 or 128), USED (labels, padded to a multiple of 8), THREADS (a
// multiple of CP, at least twice as many), N (frames in a block, a multiple of 4 and of THREADS / CP), REAL (float or double), DOUBLE
// (whether it is double), GIVEN (the inputs' type), TILE (frames in a tile of counts), STAGE (blocks in a stage), PARTS (into which
// the blocks before one are divided, a multiple of THREADS / CP: sums are grouped by it, and so do not depend on the number of
// threads).

typedef long long i64;
typedef unsigned long long u64;
typedef unsigned char u8;
template <typename Value> using In = const Value* __restrict__;
template <typename Value> using Out = Value* __restrict__;
#define KERNEL(...) extern "C" __global__ void __launch_bounds__(__VA_ARGS__)
#define INSIDE static __device__ __forceinline__
#define UNROLLED(i, begin, stop) _Pragma("unroll") for (int i = begin; i < (stop); ++i)
constexpr int SLICES = THREADS / CP; // no macro: nvcc expands none in a pragma
#define ROUND 16 /* threads that are left by the first of two rounds over a block */
#ifndef LABELS_SYNC // a barrier of the first CP threads alone: of one warp it costs next to nothing
#if CP == 32
#define LABELS_SYNC() __syncwarp()
#else
#define LABELS_SYNC() asm volatile("bar.sync 1, %0;" ::"n"(CP) : "memory")
#endif
#endif

INSIDE int smaller(int a, int b) { return a < b ? a : b; }
INSIDE int higher(int a, int b) { return a > b ? a : b; }
INSIDE double larger(double a, double b) { return a > b ? a : b; } // fmax is no instruction of double, and minds NaN
INSIDE double infinity() { return __longlong_as_double(0x7ff0000000000000LL); }

// 2^exponent; 0 or the largest power where the type has none.
INSIDE double power_of_two_64(int exponent) {
    const int raw = exponent < -1023 ? 0 : exponent > 1023 ? 2046 : exponent + 1023;
    return __longlong_as_double((i64)raw << 52);
}

INSIDE int length_of(const i64* lengths, int b, int frames) {
    const i64 given = lengths[b];
    return given < 0 ? 0 : given > frames ? frames : (int)given;
}

#define ROWS (CP / SLICES)
#if DOUBLE
#define TINY 2.2250738585072014e-308 /* 2^-1022: below it digits are lost */
#define LEAST 4.9406564584124654e-324
#define MARGIN 1.2089258196146292e24 /* 2^80 */
#define LARGEST 1.7976931348623157e308
#else
#define TINY 1.17549435e-38f /* 2^-126 */
#define LEAST 1.4e-45f
#define MARGIN 68719476736.0f /* 2^36 */
#define LARGEST 3.40282347e38f
#endif
#define LN2 0.6931471805599453
#define HIGH 8 /* a message above 2^this loses more than the margin covers where its weight is below TINY */
#define WILD 1e9 /* a larger score leaves its neighbours too few digits: the log domain sorts them apart */
#define LIMIT 1e12 /* a score at or below -LIMIT forbids (problem.py has the same number) */
#define ROUNDING 9.765625e-4 /* 2^-10: a frame's mass off by less is rounding, and is divided out */
#define HELD (CP < 64 ? USED : 1) /* values of other labels in registers at once; beside more transitions there is no room */
#define AT_ONCE 4 /* steps without a branch between them */
#define AHEAD (DOUBLE && CP > 64 ? 1 : 2) /* blocks of weights that find room in 48 KB */

template <typename Number> INSIDE bool is_finite(Number value) { return value - value == 0; }
INSIDE bool forbidden(REAL score) { return score <= (REAL)-LIMIT; }
INSIDE float larger(float a, float b) { return fmaxf(a, b); }
// The larger of an error and a possible one; NaN is infinitely wrong.
INSIDE double worse(double error, double other) { return other == other ? (other > error ? other : error) : infinity(); }
// 0, though the compiler cannot know.
INSIDE double nothing_of(double value) { return __longlong_as_double(__double_as_longlong(value) & (i64)threadIdx.y); }
INSIDE float nothing_of(float value) { return __int_as_float(__float_as_int(value) & (int)threadIdx.y); }

// floor(log2(value)) for a normal positive value; 0 for zero, denormals, inf and NaN.
INSIDE int exponent_of(double value) {
    const int raw = (int)((__double_as_longlong(value) >> 52) & 2047);
    return raw == 0 || raw == 2047 ? 0 : raw - 1023;
}
INSIDE int exponent_of(float value) {
    const int raw = (__float_as_int(value) >> 23) & 255;
    return raw == 0 || raw == 255 ? 0 : raw - 127;
}

INSIDE REAL power_of_two(int exponent) {
#if DOUBLE
    return power_of_two_64(exponent);
#else
    const int raw = exponent < -127 ? 0 : exponent > 127 ? 254 : exponent + 127;
    return __int_as_float(raw << 23);
#endif
}

struct Sequence {
    int length, used, padded;
};

INSIDE Sequence sequence_of(const i64* lengths, int b, int frames) {
    const int length = length_of(lengths, b, frames), used = (length + N - 1) / N;
    const Sequence found = {length, used, used * N};
    return found;
}

// The largest over a block's threads, in two short rounds instead of one long one.
INSIDE double top_of_block(double own, double* shared) {
    __syncthreads(); // the shared row may still be read
    shared[threadIdx.x] = own;
    __syncthreads();
    if (threadIdx.x < ROUND)
        for (int i = threadIdx.x + ROUND; i < THREADS; i += ROUND) own = fmax(own, shared[i]);
    __syncthreads();
    if (threadIdx.x < ROUND) shared[threadIdx.x] = own;
    __syncthreads();
    for (int i = 0; i < ROUND && i < THREADS; ++i) own = fmax(own, shared[i]);
    return own;
}
INSIDE double or_zero(double value) { return is_finite(value) && value > (REAL)-LIMIT ? value : 0; }

// exp(score - top), or whether the score is allowed; `rounded` where it is too small, though nothing forbids it.
INSIDE REAL weight_of(REAL score, double top, int saturate, int& rounded) {
    const REAL weight = saturate ? (REAL)!forbidden(score) : (REAL)exp((double)score - top);
    rounded |= !(weight >= TINY) && !forbidden(score);
    return weight;
}

// Rows of the duration table from `begin` on; the largest of this thread's weights and 1.
INSIDE REAL table_rows(const GIVEN* duration, REAL* table, double top, int begin, int labels, int longest, int rows,
                       int rows_each, int saturate, int& rounded) {
    REAL largest = 1;
    for (int i = threadIdx.x; i < rows_each * CP; i += THREADS) {
        const int row = begin + i / CP, c = i % CP, d = row - (N - 1);
        if (row >= rows) break;
        const bool there = d >= 1 && d <= longest && c < labels;
        const REAL weight = there ? weight_of(duration[(i64)(d - 1) * labels + c], -top, saturate, rounded) : 0;
        table[(i64)row * CP + c] = weight;
        largest = larger(largest, weight);
    }
    return largest;
}

INSIDE void frame_top(In<GIVEN> score, Out<REAL> tops, i64 begin, i64 all_frames, int labels) {
    const i64 row = begin + threadIdx.x;
    if (row >= all_frames) return;
    REAL top = (REAL)score[row * labels];
    for (int c = 1; c < labels; ++c) top = larger((REAL)score[row * labels + c], top);
    tops[row] = is_finite(top) ? top : 0;
}

// The weights of the model, padded to CP labels. The largest transition moves from E into D (every segment pays one of
// each, the first its start), the largest end score into `shift`. Row d + N - 1 of `table` is duration d, zero outside
// 1..K. `slack` is the margin times the largest D, a value for each block of `rows_each` rows, negative where a weight that nothing
// forbids is below TINY. `onward` is E, then its
// transpose. Programs beyond those for the table each take THREADS frames of all sequences, and write the largest score of
// each over labels, 0 where it is not finite: every segmentation pays it alike.
KERNEL(THREADS) prepare(
    const GIVEN* transition, const GIVEN* duration, const GIVEN* start, const GIVEN* end, REAL* onward, REAL* table, REAL* first,
    REAL* last, REAL* slack, double* shift, In<GIVEN> score, Out<REAL> tops, int labels, int longest, int rows, int rows_each,
    int saturate, int programs, int all_frames) {
    __shared__ double shared[THREADS];
    if (blockIdx.x >= programs) return frame_top(score, tops, (i64)(blockIdx.x - programs) * THREADS, all_frames, labels);
    double top = -infinity(), end_top = -infinity();
    int rounded = 0;
    for (int i = threadIdx.x; i < labels * labels; i += THREADS) top = fmax(top, (double)transition[i]);
    for (int c = threadIdx.x; c < labels; c += THREADS) end_top = fmax(end_top, (double)end[c]);
    top = or_zero(top_of_block(top, shared));
    const double largest = top_of_block(
        table_rows(duration, table, top, blockIdx.x * rows_each, labels, longest, rows, rows_each, saturate, rounded), shared);
    if (blockIdx.x == 0) end_top = or_zero(top_of_block(end_top, shared));
    for (int i = threadIdx.x; blockIdx.x == 0 && i < CP * CP; i += THREADS) {
        const int from = i / CP, to = i % CP;
        const bool there = from < labels && to < labels;
        const REAL weight = there ? weight_of(transition[from * labels + to], top, saturate, rounded) : 0;
        onward[from * CP + to] = weight;
        onward[CP * CP + to * CP + from] = weight;
    }
    for (int c = threadIdx.x; blockIdx.x == 0 && c < CP; c += THREADS) {
        first[c] = c < labels ? weight_of(start[c], top, saturate, rounded) : 0;
        last[c] = c < labels ? weight_of(end[c], end_top, saturate, rounded) : 0;
    }
    const bool any_rounded = top_of_block(rounded, shared) > 0;
    if (threadIdx.x) return;
    slack[blockIdx.x] = (REAL)largest * MARGIN * (any_rounded ? -1 : 1);
    if (blockIdx.x == 0) *shift = end_top;
}

// What a thread of `messages` knows of its place; frames origin to stop of the direction are the sequence's.
struct Place {
    int c, slice, labels, direction, length, padded, origin, stop;
    const GIVEN* score; // of the sequence, (frames, labels)
    const REAL* tops;
};

// A frame's score of this label in the direction's order, less the frame's top; -inf outside the sequence and the labels.
INSIDE REAL score_at(const Place& at, int f) {
    const int u = at.direction ? at.padded - 1 - f : f;
    const bool there = u >= 0 && u < at.length && at.c < at.labels;
    const REAL score = there ? at.score[(i64)u * at.labels + at.c] : (REAL)-infinity();
    const REAL left = there ? score - at.tops[u] : score;
    return forbidden(score) ? (REAL)-infinity() : forbidden(left) ? (REAL)-WILD : left; // a zero that nothing forbids
}

// The weights of a block's frames, (N, CP), by all slices but the first: where there is room for two blocks' weights, these are
// found while the first one walks through the block before.
INSIDE void frame_weights(const Place& at, int q, int saturate, REAL* weight) {
#pragma unroll (SLICES > 4 ? 1 : 4)
    for (int i = at.slice - 1; i >= 0 && i < N; i += SLICES - 1) {
        const REAL left = score_at(at, q * N + i), w = saturate ? 1 : (REAL)exp(left);
        weight[i * CP + at.c] = forbidden(left) ? 0 : w == 0 ? LEAST : w; // only what is forbidden is zero
    }
}

// What blocks `nearest` to `farthest` before q bring into each frame of q. `between` is the product of the blocks before q from
// some on up to `passed`, and becomes that up to `farthest`.
INSIDE void far_part(const REAL* gathered, const REAL* product, In<REAL> table, int c, int q, int nearest,
                     int farthest, int& passed, REAL& between, REAL (&sums)[N]) {
    UNROLLED(i, 0, N) sums[i] = 0;
    for (int delta = nearest; delta <= farthest; ++delta) {
        const i64 p = q - delta;
        REAL rows[N];
        UNROLLED(m, 0, N) rows[m] = gathered[(p * N + m) * CP + c]; // not to wait for after the products
#pragma unroll 8
        for (; passed < delta; ++passed) between *= product[(i64)(q - passed) * CP + c];
        UNROLLED(m, 0, N) rows[m] *= between;
        UNROLLED(x, 1, 2 * N) {
            const REAL step = table[((i64)delta * N + x) * CP + c];
            UNROLLED(i, 0, N) {
                const int m = i + N - x; // the duration is p's distance and i + 1 - m: row delta * N + x
                if (m >= 0 && m < N) sums[i] += rows[m] * step;
            }
        }
    }
}

// What `reach` blocks before q, the nearest of which is q - 1, bring into q, in PARTS parts: a slice of the threads takes
// each SLICES-th. The first part stays in the registers of slice 0.
INSIDE void before_block(const REAL* gathered, const REAL* product, In<REAL> table, int c, int slice, int q,
                         int reach, int there, REAL* parts, REAL (&sums)[N]) {
    const int each = (reach + PARTS - 1) / PARTS; // by K alone
    REAL between = 1;
    int passed = 1;
    for (int part = slice; part < PARTS; part += SLICES) {
        REAL found[N];
        const int nearest = 1 + part * each, farthest = smaller(smaller(part * each + each, reach), there);
        far_part(gathered, product, table, c, q, nearest, farthest, passed, between, found);
        UNROLLED(i, 0, N) {
            if (part) parts[((part - 1) * N + i) * CP + c] = found[i];
            else sums[i] = found[i];
        }
    }
}

// What blocks before a stage, which begins with block `begin`, bring into its block begin + i, up to their own end: part
// p is the p-th STAGE blocks before. partial (lanes, parts, STAGE, N, CP), betweens (lanes, parts, CP); grid (B,
// directions, STAGE * parts), a thread for each label.
KERNEL(CP) outside_parts(
    In<REAL> table, In<i64> lengths, In<REAL> gathered, In<REAL> product, Out<REAL> partial, Out<REAL> betweens, int frames,
    int blocks, int far_blocks, int begin, int parts) {
    const int b = blockIdx.x, i = blockIdx.z % STAGE, part = blockIdx.z / STAGE, c = threadIdx.x, q = begin + i;
    const i64 lane = (i64)b * gridDim.y + blockIdx.y;
    if (q >= sequence_of(lengths, b, frames).used) return;
    const int nearest = i + 1 + part * STAGE, farthest = smaller(smaller(nearest + STAGE - 1, far_blocks), q);
    const REAL* products = product + lane * blocks * CP;
    int passed = nearest;
    REAL between = 1, sums[N];
    far_part(gathered + lane * blocks * N * CP, products, table, c, q, nearest, farthest, passed, between, sums);
    for (; passed <= farthest; ++passed) between *= products[(i64)(q - passed) * CP + c];
    REAL* to = partial + (((lane * parts + part) * STAGE + i) * N) * CP + c;
    UNROLLED(m, 0, N) to[m * CP] = sums[m];
    if (i == 0) betweens[(lane * parts + part) * CP + c] = between; // the one whose part is whole where others need it
}

// All parts together, up to the boundary before the stage: outside (lanes, STAGE, N, CP); grid (B, directions, STAGE), a
// thread for each label.
KERNEL(CP) outside_sums(
    In<i64> lengths, In<REAL> partial, In<REAL> betweens, Out<REAL> outside, int frames, int begin, int parts) {
    const int i = blockIdx.z, c = threadIdx.x;
    const i64 lane = (i64)blockIdx.x * gridDim.y + blockIdx.y;
    if (begin + i >= sequence_of(lengths, blockIdx.x, frames).used) return;
    REAL sums[N];
    UNROLLED(m, 0, N) sums[m] = 0;
    for (int part = parts - 1; part >= 0; --part) {
        const REAL between = betweens[(lane * parts + part) * CP + c];
        const REAL* from = partial + (((lane * parts + part) * STAGE + i) * N) * CP + c;
        UNROLLED(m, 0, N) sums[m] = sums[m] * between + from[m * CP];
    }
    UNROLLED(m, 0, N) outside[((lane * STAGE + i) * N + m) * CP + c] = sums[m];
}

// What the first boundary of a direction brings, and by how much a message must exceed what may be lost.
struct Entry {
    REAL own, top, margin;
    int rounded, pairs; // whether a weight of the model is below TINY; half the frames for which messages wait
};

// A label's part of the messages, in registers; `carry` is the product of the stage's blocks so far.
struct Message {
    REAL gamma, lost, most_lost, previous, final_value, final_lost, carry;
    int power, final_power, bad, nonzero;
    int left, older, newer; // the largest powers of the last `pairs` of frames, or of up to as many before
};

// The sum over labels of what they sent times their weights to this one, in a fixed order. It begins with a zero made of the
// last value: else the compiler loads one, waits, multiplies it and loads the next.
INSIDE REAL received(const REAL* sent, const REAL (&across)[USED]) {
    REAL from[HELD];
    UNROLLED(c, 0, HELD) from[c] = sent[c];
    const REAL zero = nothing_of(from[HELD - 1]);
    REAL sums[4] = {zero, zero, zero, zero};
    UNROLLED(c, 0, USED) sums[c % 4] += (c < HELD ? from[c % HELD] : sent[c]) * across[c];
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

INSIDE REAL largest_of(const REAL* values) {
    REAL tops[4] = {0, 0, 0, 0};
    UNROLLED(c, 0, CP) tops[c % 4] = larger(tops[c % 4], values[c]);
    return larger(larger(tops[0], tops[1]), larger(tops[2], tops[3]));
}

struct Kept {
    REAL *gathered, *product, *source, *arrived;
    int* exponent;
};

// The largest over labels of what each has, none of which is negative; `row` is room for them. Of one warp it is an instruction.
#if CP == 32 && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
INSIDE unsigned top_of_warp(unsigned own) { return __reduce_max_sync(~0u, own); }
INSIDE REAL top_of_labels(REAL own, REAL*) {
#if DOUBLE
    const unsigned high = (unsigned)__double2hiint(own), top = top_of_warp(high);
    return __hiloint2double((int)top, (int)top_of_warp(high == top ? (unsigned)__double2loint(own) : 0));
#else
    return __uint_as_float(top_of_warp(__float_as_uint(own)));
#endif
}
#define TOP_BEFORE_SYNC(row, own)
#else
INSIDE REAL top_of_labels(REAL, REAL* row) { return largest_of(row); }
#define TOP_BEFORE_SYNC(row, own) row[at.c] = own
#endif
INSIDE REAL fused(REAL a, REAL b, REAL c) { return fma(a, b, c); }

// The frame's weight; every second one takes over the power of two of the largest message, as it was two frames back, which
// moves into the exponent. A weight that is then below TINY, or a weight of the model that is, loses as much of each
// message that meets it: a sequence where that is above 2^HIGH is marked. Those that wait may come from larger ones.
// Without a branch, as all of a step is: what nothing waits for is then done while something else is waited for.
INSIDE REAL rescaled(Message& m, REAL weight, const Entry& entry, bool moves, int allowed) {
    const int step = moves ? exponent_of(m.previous) & allowed : 0; // all bits are allowed, or none
    const REAL back = power_of_two(-step), scaled = weight * back;
    const int meets = higher(exponent_of(m.gamma), higher(m.older, m.newer) - m.power) + higher(-step, 0);
    const bool lossy = (weight > 0) & (scaled < TINY) | (entry.rounded != 0);
    m.bad |= lossy & (meets > HIGH);
    if (!moves) return weight;
    m.power += step;
    m.most_lost *= larger(back, 1);
    const bool older = m.left == 0;
    m.older = older ? m.newer : m.older;
    m.newer = higher(m.power, older ? m.power : m.newer);
    m.left = older ? entry.pairs - 1 : m.left - 1;
    return scaled;
}

// The boundary after frame f, before which gamma came: the first one enters, what lies outside is zero, the rest is
// looked at.
INSIDE void cross(Message& m, const Place& at, int f, const Entry& entry) {
    const bool enters = f + 1 == at.origin, inside = (f + 1 > at.origin) & (f + 1 < at.stop) & (at.c < at.labels);
    m.gamma = f + 1 >= at.stop ? 0 : m.gamma;
    m.gamma = enters ? m.gamma + entry.own : m.gamma;
    m.previous = enters ? entry.top : m.previous;
    const bool sound = (m.gamma >= m.most_lost * entry.margin) & (m.gamma <= LARGEST);
    m.bad |= inside & (m.gamma != 0) & !sound;
    m.nonzero += inside & (m.gamma > 0);
}

// N frames one after the other, by the first CP threads; `sums` is what earlier blocks bring into each. `coming` is what comes
// into the frames after the next one, and moves up by one at each frame: so few steps are unrolled, and the instructions stay in
// the nearest cache. `before` is room for the messages before the frames; the weights become what they are multiplied by.
INSIDE void near_steps(Message& m, const Place& at, int q, const Entry& entry, const REAL (&sums)[N], const REAL (&near)[N],
                       const REAL (&across)[USED], REAL* weight, REAL* before, REAL* sent, REAL* losses, const Kept& kept,
                       bool keep, bool saturate) {
    const int c = at.c;
    const i64 row = (i64)q * N * CP + c;
    REAL *arrived = kept.arrived + row, *source = kept.source + row, *gathered = kept.gathered + row;
    int* exponent = kept.exponent + (i64)q * N;
    const int allowed = saturate ? 0 : ~0;
    REAL coming[N - 1], pending = sums[0];
    UNROLLED(j, 1, N) coming[j - 1] = fused(m.gamma, near[j], sums[j]);
#pragma unroll 1
    for (int begin = 0; begin < N; begin += AT_ONCE) {
        UNROLLED(i, 0, AT_ONCE) {
            const int own = (begin + i) * CP + c, f = q * N + begin + i;
            const REAL w = rescaled(m, weight[own], entry, i % 2 == 0, allowed);
            REAL alpha = fused(m.gamma, near[0], pending) * w;
            alpha = saturate & (alpha > 1) ? 1 : alpha;
            m.bad |= (entry.rounded != 0) & (exponent_of(alpha) > HIGH); // the transitions meet it
            sent[(i & 1) * CP + c] = alpha; // two buffers: who is a step ahead writes the other one
            m.lost = larger(m.lost * w, TINY);
            if (i % 4 == 3) TOP_BEFORE_SYNC(losses, m.lost);
            weight[own] = w;
            before[own] = m.gamma;
            if (keep) {
                arrived[i * CP] = alpha;
                source[i * CP] = m.gamma;
                if (c == 0) exponent[i] = m.power;
            }
            const bool last = f + 1 == at.stop;
            m.final_value = last ? alpha : m.final_value;
            m.final_power = last ? m.power : m.final_power;
            m.final_lost = last ? m.most_lost : m.final_lost;
            LABELS_SYNC();
            m.gamma = received(sent + (i & 1) * CP, across);
            if (i % 2 == 0) m.previous = top_of_labels(alpha, sent + (i & 1) * CP);
            if (i % 4 == 3) m.most_lost = larger(top_of_labels(m.lost, losses), TINY);
            cross(m, at, f, entry);
            pending = coming[0] * w;
            UNROLLED(j, 1, N - 1) coming[j - 1] = fused(coming[j], w, m.gamma * near[j]);
        }
        arrived += AT_ONCE * CP;
        source += AT_ONCE * CP;
        exponent += AT_ONCE;
    }
    REAL suffix = 1;
#pragma unroll
    for (int i = N - 1; i >= 0; --i) {
        suffix *= weight[i * CP + c];
        gathered[i * CP] = before[i * CP + c] * suffix;
    }
    kept.product[(i64)q * CP + c] = suffix;
    m.carry *= suffix;
}

// The sum of the tops of a block's frames; `wild` where one of them is.
INSIDE double tops_of_block(const Place& at, int q, int& wild) {
    double sum = 0;
    for (int f = q * N; f < q * N + N; ++f) {
        const int u = at.direction ? at.padded - 1 - f : f;
        if (u < 0 || u >= at.length) continue;
        sum += at.tops[u];
        wild |= fabs((double)at.tops[u]) > WILD;
    }
    return sum;
}

// What a block of threads found of its sequence: z, and the flags of `messages`.
struct Results {
    double *z_value, *log_z;
    int *z_power, *flags, *count;
};

INSIDE void conclude(const Message& m, const Place& at, const Entry& entry, i64 lane, const double* ends, const int* bad,
                     const int* nonzero, double offset, int wild, const Results& to) {
    double z = 0;
    int found = 0, flag = (wild != 0) | !is_finite(entry.margin); // a weight beyond the type, which may meet a zero
    for (int i = 0; i < CP; ++i) {
        z += ends[i];
        found += nonzero[i];
        flag |= bad[i];
    }
    found += z > 0;
    if (z != 0 && !(z >= (double)(m.final_lost * entry.margin) && z <= (double)LARGEST)) flag |= 1;
    if (found < (at.length - 1) * at.labels + 1) flag |= 2;
    to.z_value[lane] = z;
    to.z_power[lane] = m.final_power;
    if (at.direction == 0) to.log_z[blockIdx.x] = log(z) + m.final_power * LN2 + offset;
    to.flags[lane] = flag;
    to.count[lane] = found;
}

// What a launch leaves to the next one where time goes in stages, per lane: 6 and 7 values of each
// label, the tops and whether one was wild.
struct Stages {
    REAL *outside, *reals;
    int* ints;
    double* tops;
};

INSIDE void put_down(const Message& m, const Stages& stages, i64 lane, int c) {
    REAL* reals = stages.reals + lane * 6 * CP + c;
    int* ints = stages.ints + lane * 7 * CP + c;
    const REAL values[6] = {m.gamma, m.lost, m.most_lost, m.previous, m.final_value, m.final_lost};
    const int others[7] = {m.power, m.final_power, m.bad, m.nonzero, m.left, m.older, m.newer};
    for (int i = 0; i < 6; ++i) reals[i * CP] = values[i];
    for (int i = 0; i < 7; ++i) ints[i * CP] = others[i];
}

INSIDE Message taken_up(const Stages& stages, i64 lane, int c) {
    const REAL* reals = stages.reals + lane * 6 * CP + c;
    const int* ints = stages.ints + lane * 7 * CP + c;
    const Message m = {reals[0], reals[CP], reals[2 * CP], reals[3 * CP], reals[4 * CP], reals[5 * CP], 1,
                       ints[0], ints[CP], ints[2 * CP], ints[3 * CP], ints[4 * CP], ints[5 * CP], ints[6 * CP]};
    return m;
}

// One direction of one sequence: log Z, flags, and with `keep` the messages of every boundary; grid (B, directions).
// flags: 1 something may have been lost, 2 some message is exactly zero. With `saturate`, weights are 0 and 1 and
// messages are capped at 1: `count` then is the number of messages that can be reached at all. With `staged` a launch
// takes the STAGE blocks from `begin` on, else all.
KERNEL(THREADS) messages(
    In<GIVEN> score, In<REAL> tops, In<REAL> onward, In<REAL> table, In<REAL> first, In<REAL> last, In<REAL> slack,
    In<double> shift, In<i64> lengths, REAL* gathered, REAL* product, REAL* source, REAL* arrived, int* exponent, double* z_value,
    int* z_power, double* log_z, int* flags, int* count, REAL* outside, REAL* stage_reals, int* stage_ints, double* stage_tops,
    int frames, int labels, int far_blocks, int blocks, int programs, int keep, int saturate, int staged, int begin) {
    __shared__ __align__(16) REAL sent[2 * CP];
    __shared__ __align__(16) REAL losses[CP];
    __shared__ REAL parts[(PARTS - 1) * N * CP], weights[AHEAD * N * CP];
    __shared__ double offset, ends[CP];
    __shared__ int bad[CP], nonzero[CP], wilds;
    const int b = blockIdx.x, direction = blockIdx.y, c = threadIdx.x % CP, slice = threadIdx.x / CP;
    const Sequence own = sequence_of(lengths, b, frames);
    const int until = staged ? smaller(begin + STAGE, own.used) : own.used;
    if (begin && begin >= own.used) return;
    const i64 lane = (i64)b * gridDim.y + direction, skip = keep ? lane * blocks * N : 0;
    const int origin = direction ? own.padded - own.length : 0, stop = origin + own.length;
    const Place at = {c, slice, labels, direction, own.length, own.padded, origin, stop,
                      score + (i64)b * frames * labels, tops + (i64)b * frames};
    const Kept kept = {gathered + lane * blocks * N * CP, product + lane * blocks * CP, source + skip * CP,
                       arrived + skip * CP, exponent + skip};
    const Stages stages = {outside + lane * STAGE * N * CP, stage_reals, stage_ints, stage_tops + 2 * lane};
    const REAL *enter = direction ? last : first, *leave = direction ? first : last;
    Entry entry = {enter[c], 0, 0, 0, (far_blocks + 1) * N / 2};
    for (int i = 0; i < CP; ++i) entry.top = larger(entry.top, enter[i]);
    for (int i = 0; i < programs; ++i) {
        entry.margin = larger(entry.margin, slack[i] < 0 ? -slack[i] : slack[i]);
        entry.rounded |= slack[i] < 0;
    }
    REAL across[USED], near[N];
    UNROLLED(i, 0, USED) across[i] = onward[direction * CP * CP + i * CP + c];
    UNROLLED(i, 0, N) near[i] = table[(N + i) * CP + c];
    Message m = {origin == 0 ? entry.own : 0, TINY, TINY, origin == 0 ? entry.top : 0, 0, TINY, 1, 0, 0, 0, 0, 0, -(1 << 30), -(1 << 30)};
    double passed = 0; // by the last thread, and so is `wild`
    int wild = 0;
    if (begin) {
        m = taken_up(stages, lane, c);
        passed = stages.tops[0];
        wild = stages.tops[1] != 0;
    }
    for (int q = begin; q < until; ++q) {
        REAL sums[N], *weight = weights + q % AHEAD * N * CP;
        if (AHEAD == 1 || q == begin) frame_weights(at, q, saturate, weight);
        before_block(kept.gathered, kept.product, table, c, slice, q, staged ? STAGE - 1 : far_blocks, q - begin, parts,
                     sums);
        __syncthreads();
        if (slice == 0) {
            UNROLLED(i, 0, N) {
                for (int part = 0; part < PARTS - 1; ++part) sums[i] += parts[(part * N + i) * CP + c];
                if (begin) sums[i] += stages.outside[((q - begin) * N + i) * CP + c] * m.carry;
            }
#define STEPS(keep, saturate) near_steps(m, at, q, entry, sums, near, across, weight, parts, sent, losses, kept, keep, saturate)
            if (CP > 32) STEPS(keep, saturate); // there a copy of the steps for each case would take too many registers
            else if (saturate) STEPS(false, true);
            else if (keep) STEPS(true, false);
            else STEPS(false, false);
        } else if (AHEAD > 1 && q + 1 < until) {
            frame_weights(at, q + 1, saturate, weights + (q + 1) % AHEAD * N * CP);
        }
        if (threadIdx.x == THREADS - 1) passed += tops_of_block(at, q, wild);
        __syncthreads(); // the next block's far part loads what was stored, and the shared rows are free again
    }
    if (until < own.used) {
        if (slice == 0) put_down(m, stages, lane, c);
        if (threadIdx.x == THREADS - 1) {
            stages.tops[0] = passed;
            stages.tops[1] = wild;
        }
        return;
    }
    if (threadIdx.x == THREADS - 1) {
        offset = passed;
        wilds = wild;
    }
    if (slice == 0) {
        ends[c] = (double)m.final_value * leave[c];
        bad[c] = m.bad;
        nonzero[c] = m.nonzero;
    }
    __syncthreads();
    const Results to = {z_value, log_z, z_power, flags, count};
    if (lengths[b] != own.length || own.length == 0 || fabs(*shift) > WILD) wilds = 1; // out of 1..T, or to be refused
    if (threadIdx.x == 0) conclude(m, at, entry, lane, ends, bad, nonzero, offset + *shift, wilds, to);
}

// What both passes left of one sequence, and 1 / z with its exponent, from the left; 0 where nothing is feasible.
struct Both {
    const REAL *source, *arrived;
    const int* exponent;
    i64 left, right;
    Sequence own;
    double inverse;
    int power;
};

INSIDE Both both_of(const REAL* source, const REAL* arrived, const int* exponent, const double* z_value,
                    const int* z_power, const i64* lengths, int b, int frames, int blocks) {
    const double z = z_value[2 * b];
    const int own = exponent_of(z); // joins the other powers of two: in a product with them it would underflow
    const i64 left = (i64)2 * b * blocks * N;
    const Both found = {source, arrived, exponent, left, left + (i64)blocks * N, sequence_of(lengths, b, frames),
                        z > 0 && is_finite(z) ? 1 / (z * power_of_two_64(-own)) : 0, z_power[2 * b] + own};
    return found;
}

// A power of two that belongs to a product of messages from both sides is split between them: where the product is no
// more than 1, neither then overflows, and neither loses what the other would bring back.
INSIDE int half(int total) { return total >> 5 << 4; } // it changes seldom from one frame to the next
INSIDE REAL half_of(int total) { return power_of_two(half(total)); }
INSIDE REAL other_half_of(int total) { return power_of_two(total - half(total)); }
INSIDE double times(double count, double weight) { return weight > 0 ? count * weight : 0; } // what is forbidden is 0
INSIDE REAL held(REAL value) { return value > LARGEST ? LARGEST : value; } // zero times it is zero, and not NaN

// value * 2^power, by two factors that go the same way: what lies between is no farther out than the result.
INSIDE REAL moved(REAL value, int power) {
    return held(held(value * power_of_two(power >> 1)) * power_of_two(power - (power >> 1)));
}

// left * right * 2^total / z.
INSIDE double count_of(REAL left, REAL right, int total, double inverse) {
    return (double)left * power_of_two_64(half(total)) * ((double)right * power_of_two_64(total - half(total))) * inverse;
}

// The mass of segments of c that start with frame f (f < length), and that end with it.
INSIDE void boundary_counts(const Both& of, int f, int c, double& starts, double& ends) {
    const int g = of.own.padded - 1 - f;
    const int power_before = f > 0 ? of.exponent[of.left + f - 1] : 0, power_after = of.exponent[of.left + f];
    const int back_before = g > 0 ? of.exponent[of.right + g - 1] : 0, back_after = of.exponent[of.right + g];
    const i64 at = (of.left + f) * CP + c, back = (of.right + g) * CP + c;
    starts = count_of(of.source[at], of.arrived[back], power_before + back_after - of.power, of.inverse);
    ends = count_of(of.arrived[at], of.source[back], power_after + back_before - of.power, of.inverse);
}

// Starts less ends of each tile of frames, (B, tiles, CP); grid (tiles, B), a thread for each label.
KERNEL(CP) label_totals(
    In<REAL> source, In<REAL> arrived, In<int> exponent, In<double> z_value, In<int> z_power, In<i64> lengths, Out<double> totals,
    int frames, int blocks) {
    const int tile = blockIdx.x, b = blockIdx.y, c = threadIdx.x;
    const Both of = both_of(source, arrived, exponent, z_value, z_power, lengths, b, frames, blocks);
    double total = 0;
#pragma unroll 4
    for (int f = tile * TILE; f < smaller((tile + 1) * TILE, of.own.length); ++f) {
        double starts, ends;
        boundary_counts(of, f, c, starts, ends);
        total += starts - ends;
    }
    totals[((i64)b * gridDim.x + tile) * CP + c] = total;
}

// What tiles before each one add up to; grid (B), a thread for each label.
KERNEL(CP) label_sums(In<double> totals, Out<double> before, int tiles) {
    const i64 at = (i64)blockIdx.x * tiles * CP + threadIdx.x;
    double sum = 0;
#pragma unroll 8
    for (int tile = 0; tile < tiles; ++tile) {
        before[at + (i64)tile * CP] = sum;
        sum += totals[at + (i64)tile * CP];
    }
}

// Labels (B, T, C): the running sum of starts less the ends before, carried in float64; starts and ends beside them.
// Each frame's mass must be 1: its worst error of a tile (NaN as inf) and the first frame that has it go to tile_error
// and tile_frame, (B, tiles); the worst of what a posterior is beyond 0 to 1 to tile_range. `begun` and `ended` are the
// tile's starts and ends, (B, tiles, CP). A mass that is off by rounding alone is what Z is, seen from there: the frame's counts are
// divided by it. One that is off by more stays, for everybody to see. Grid (tiles, B), a thread for each label.
KERNEL(CP) label_counts(
    In<GIVEN> score, In<REAL> source, In<REAL> arrived, In<int> exponent, In<double> z_value, In<int> z_power, In<i64> lengths, In<double> before,
    Out<REAL> label, Out<REAL> starts_out, Out<REAL> ends_out, Out<double> tile_error, Out<i64> tile_frame,
    Out<double> tile_range, Out<double> begun, Out<double> ended, int frames, int labels, int blocks) {
    __shared__ double covered[TILE * (CP + 1)], errors[TILE], scale[TILE], ranges[CP];
    const int tile = blockIdx.x, b = blockIdx.y, c = threadIdx.x, first = tile * TILE;
    const int shown = smaller(TILE, frames - first);
    const Both of = both_of(source, arrived, exponent, z_value, z_power, lengths, b, frames, blocks);
    const i64 out = ((i64)b * frames + first) * labels + c, place = (i64)b * gridDim.x + tile;
    double running = before[place * CP + c], begun_here = 0, ended_here = 0;
#pragma unroll 4
    for (int i = 0; i < shown; ++i) {
        double starts = 0, ends = 0;
        if (first + i < of.own.length) boundary_counts(of, first + i, c, starts, ends);
        covered[i * (CP + 1) + c] = first + i < of.own.length ? running + starts : 0;
        running += starts - ends;
        begun_here += (REAL)starts;
        ended_here += (REAL)ends;
        if (c < labels) {
            starts_out[out + (i64)i * labels] = (REAL)starts;
            ends_out[out + (i64)i * labels] = (REAL)ends;
        }
    }
    __syncthreads();
    for (int i = c; i < shown; i += CP) {
        double mass = 0;
        for (int other = 0; other < labels; ++other) mass += covered[i * (CP + 1) + other];
        const bool counted = first + i < of.own.length && of.inverse > 0;
        const double error = !counted ? 0 : mass == mass ? fabs(mass - 1) : infinity();
        errors[i] = error;
        scale[i] = error > 0 && error < ROUNDING ? mass : 1;
    }
    __syncthreads();
    double range = 0;
    if (c < labels)
        for (int i = 0; i < shown; ++i) {
            const REAL share = (REAL)(covered[i * (CP + 1) + c] / scale[i]);
            // Of a label that the frame forbids the sum may leave rounding.
            label[out + (i64)i * labels] = forbidden(score[out + (i64)i * labels]) ? 0 : share;
            range = worse(range, share > 1 ? share - 1 : -share);
        }
    ranges[c] = range;
    begun[place * CP + c] = begun_here;
    ended[place * CP + c] = ended_here;
    __syncthreads();
    if (c) return;
    int worst = 0;
    for (int i = 1; i < shown; ++i)
        if (errors[i] > errors[worst]) worst = i;
    for (int i = 1; i < CP; ++i) range = worse(range, ranges[i]);
    tile_error[place] = errors[worst];
    tile_frame[place] = first + worst;
    tile_range[place] = range;
}

// Counts of durations whose ends lie `delta` blocks apart, over `each` blocks; `partial` is (B, chunks, far, 2N, CP),
// row d of distance delta being duration delta * N + d - N + 2. Grid (chunks, B, far), a thread for each label.
KERNEL(CP) far_durations(
    In<REAL> gathered, In<REAL> product, In<int> exponent, In<double> z_value, In<int> z_power, In<i64> lengths, Out<REAL> apart,
    int frames, int blocks, int each) {
    const int chunk = blockIdx.x, b = blockIdx.y, delta = blockIdx.z + 1, c = threadIdx.x;
    const Both of = both_of(gathered, gathered, exponent, z_value, z_power, lengths, b, frames, blocks);
    const int used = of.own.used;
    REAL counts[2 * N];
    UNROLLED(d, 0, 2 * N) counts[d] = 0;
    for (int p = chunk * each; p < smaller((chunk + 1) * each, used - delta); ++p) {
        const int q = p + delta;
        REAL between = 1, rows[N];
        for (int r = p + 1; r < q; ++r) between *= product[(of.left / N + r) * CP + c];
        const int total = exponent[of.left + q * N - 1] + exponent[of.right + (used - q) * N - 1] - of.power;
        const REAL one = half_of(total), other = other_half_of(total) * of.inverse;
        between = held(between * one);
        UNROLLED(m, 0, N) rows[m] = held(gathered[(of.left + p * N + m) * CP + c] * between);
        UNROLLED(j, 0, N) { // the segment's last frame within block q
            const REAL head = gathered[(of.right + (used - 1 - q) * N + N - 1 - j) * CP + c] * other;
            UNROLLED(m, 0, N) counts[N - 1 + j - m] += rows[m] * head;
        }
    }
    REAL* to = apart + ((((i64)b * gridDim.x + chunk) * gridDim.z + blockIdx.z) * 2 * N) * CP + c;
    UNROLLED(d, 0, 2 * N) to[d * CP] = counts[d];
}

// Counts of durations that start and end in one block, over `each` blocks, (B, chunks, N, CP); grid (chunks, B), a thread
// for each label.
KERNEL(CP) near_durations(
    In<GIVEN> score, In<REAL> tops, In<REAL> source, In<int> exponent, In<double> z_value, In<int> z_power, In<i64> lengths,
    Out<REAL> near, int frames, int labels, int blocks, int each) {
    const int chunk = blockIdx.x, b = blockIdx.y, c = threadIdx.x;
    const Both of = both_of(source, source, exponent, z_value, z_power, lengths, b, frames, blocks);
    REAL counts[N];
    UNROLLED(k, 0, N) counts[k] = 0;
    for (int q = chunk * each; q < smaller((chunk + 1) * each, of.own.used); ++q) {
        REAL open[N];
        int had = 0; // the half of the power that `open` has
        UNROLLED(i, 0, N) {
            const int f = q * N + i, g = of.own.padded - 1 - f;
            const int before = f > 0 ? exponent[of.left + f - 1] : 0, after = exponent[of.left + f];
            const int back = g > 0 ? exponent[of.right + g - 1] : 0, total = after + back - of.power;
            REAL w = 0, beta = 0;
            if (f < of.own.length && c < labels) {
                const i64 row = (i64)b * frames + f;
                w = (REAL)exp(score[row * labels + c] - tops[row]);
                beta = (REAL)(source[(of.right + g) * CP + c] * other_half_of(total) * of.inverse);
            }
            // Into the units after this frame, and the power's half from this frame on: for all labels alike.
            const int move = before - after + half(total) - had;
            if (move) {
                UNROLLED(m, 0, i) open[m] = moved(open[m], move);
            }
            had = half(total);
            open[i] = moved(source[(of.left + f) * CP + c], before - after + had);
            UNROLLED(m, 0, i + 1) {
                open[m] = held(open[m] * w);
                counts[i - m] += open[m] * beta;
            }
        }
    }
    REAL* to = near + ((i64)b * gridDim.x + chunk) * N * CP + c;
    UNROLLED(k, 0, N) to[k * CP] = counts[k];
}

// Duration counts (B, K, C) from the partial sums: those within a block, and of both block distances that hold
// duration k; grid (K, B), a thread for each label.
KERNEL(CP) sum_durations(
    In<REAL> near, In<REAL> apart, In<REAL> table, Out<double> duration_out, int labels, int longest, int near_chunks, int chunks,
    int far_blocks) {
    const int k = blockIdx.x + 1, b = blockIdx.y, c = threadIdx.x;
    const int high = (k - 2 + N) / N, d = (k - 2 + N) % N;
    double total = 0;
    if (k <= N) {
#pragma unroll 8
        for (int chunk = 0; chunk < near_chunks; ++chunk)
            total += near[(((i64)b * near_chunks + chunk) * N + k - 1) * CP + c];
    }
    for (int chunk = 0; chunk < chunks; ++chunk) {
        const REAL* at = apart + ((i64)b * chunks + chunk) * far_blocks * 2 * N * CP + c;
        if (high > 0 && high <= far_blocks) total += at[((i64)(high - 1) * 2 * N + d) * CP];
        if (high > 1 && d < N - 1) total += at[((i64)(high - 2) * 2 * N + d + N) * CP];
    }
    const double weight = table[(i64)(k + N - 1) * CP + c];
    if (c < labels) duration_out[((i64)b * longest + k - 1) * labels + c] = times(total, weight);
}

// Sum over `each` boundaries s of alpha[s, from] eta[s, to] / z, (B, chunks, CP, CP); grid (chunks, B).
KERNEL(THREADS) transitions(
    In<REAL> arrived, In<int> exponent, In<double> z_value, In<int> z_power, In<i64> lengths, Out<REAL> crossed, int frames,
    int blocks, int each) {
    const int chunk = blockIdx.x, b = blockIdx.y, c = threadIdx.x % CP, slice = threadIdx.x / CP;
    __shared__ REAL alphas[8 * CP], etas[8 * CP];
    const Both of = both_of(arrived, arrived, exponent, z_value, z_power, lengths, b, frames, blocks);
    REAL sums[ROWS];
    UNROLLED(r, 0, ROWS) sums[r] = 0;
    const int stop = smaller((chunk + 1) * each, of.own.length);
    for (int begin = chunk * each; begin < stop; begin += 8) {
        for (int e = threadIdx.x; e < 8 * CP; e += THREADS) {
            const int s = begin + e / CP, g = of.own.padded - 1 - s, label = e % CP;
            const bool there = s >= 1 && s < stop; // the first segment pays no transition
            alphas[e] = etas[e] = 0;
            if (there) {
                const int total = exponent[of.left + s - 1] + exponent[of.right + g] - of.power;
                alphas[e] = arrived[(of.left + s - 1) * CP + label] * half_of(total);
                etas[e] = (REAL)(arrived[(of.right + g) * CP + label] * other_half_of(total) * of.inverse);
            }
        }
        __syncthreads();
        UNROLLED(i, 0, 8) {
            const REAL eta = etas[i * CP + c];
            UNROLLED(r, 0, ROWS) sums[r] += alphas[i * CP + slice * ROWS + r] * eta;
        }
        __syncthreads();
    }
    REAL* to = crossed + (((i64)b * gridDim.x + chunk) * CP + slice * ROWS) * CP + c;
    UNROLLED(r, 0, ROWS) to[r * CP] = sums[r];
}

// Transition counts (B, C, C) from the chunks' sums; grid (C, B), a thread for each label.
KERNEL(CP) sum_transitions(In<REAL> crossed, In<REAL> onward, Out<double> transition_out, int labels, int crossings) {
    const int row = blockIdx.x, b = blockIdx.y, c = threadIdx.x;
    double total = 0;
#pragma unroll 4
    for (int chunk = 0; chunk < crossings; ++chunk) total += crossed[(((i64)b * crossings + chunk) * CP + row) * CP + c];
    if (c < labels) transition_out[((i64)b * labels + row) * labels + c] = times(total, onward[row * CP + c]);
}

// The sum over slices of what each thread has for its label, to all threads of the label.
INSIDE double over_slices(double own, double* shared) {
    __syncthreads(); // the shared rows may still be read
    shared[threadIdx.x] = own;
    __syncthreads();
    double sum = 0;
    for (int slice = 0; slice < SLICES; ++slice) sum += shared[slice * CP + threadIdx.x % CP];
    return sum;
}

// The sum over labels of what all threads of a label have alike.
INSIDE double over_labels(double own, double* shared) {
    __syncthreads();
    if (threadIdx.x < CP) shared[threadIdx.x] = own;
    __syncthreads();
    double sum = 0;
    for (int c = 0; c < CP; ++c) sum += shared[c];
    return sum;
}

// What the counts of a sequence must add up to, as they are returned: mass_error and mass_frame, the worst of its tiles,
// and `imbalance`, the worst error of all identities; 0 where nothing is feasible. Grid (B).
KERNEL(THREADS) audit(
    In<double> tile_error, In<i64> tile_frame, In<double> tile_range, In<double> begun, In<double> ended, In<REAL> starts_out,
    In<REAL> ends_out, In<double> duration_out, In<double> transition_out, In<double> z_value, In<i64> lengths,
    Out<double> mass_error, Out<i64> mass_frame, Out<double> imbalance, int frames, int labels, int longest, int tiles) {
    __shared__ double shared[THREADS];
    const int b = blockIdx.x, c = threadIdx.x % CP, slice = threadIdx.x / CP;
    const int length = sequence_of(lengths, b, frames).length;
    double begun_all = 0, ended_all = 0, lasting = 0, covered = 0, into = 0, from = 0, error = 0, mass = 0, place = 0;
    for (int tile = slice; tile < tiles; tile += SLICES) {
        begun_all += begun[((i64)b * tiles + tile) * CP + c];
        ended_all += ended[((i64)b * tiles + tile) * CP + c];
    }
    for (int tile = threadIdx.x; tile < tiles; tile += THREADS) {
        const i64 at = (i64)b * tiles + tile;
        if (tile_error[at] > mass) place = (double)tile_frame[at];
        mass = worse(mass, tile_error[at]);
        error = worse(error, tile_range[at]);
    }
    for (int k = slice; c < labels && k < longest; k += SLICES) {
        const double count = duration_out[((i64)b * longest + k) * labels + c];
        lasting += count;
        covered += count * (k + 1);
    }
    for (int other = slice; c < labels && other < labels; other += SLICES) {
        into += transition_out[((i64)b * labels + other) * labels + c];
        from += transition_out[((i64)b * labels + c) * labels + other];
    }
    const bool there = c < labels && length > 0;
    const double began = there ? starts_out[(i64)b * frames * labels + c] : 0;
    const double last = there ? ends_out[((i64)b * frames + length - 1) * labels + c] : 0;
    begun_all = over_slices(begun_all, shared);
    ended_all = over_slices(ended_all, shared);
    const double size = fmax(begun_all, 1.0);
    error = worse(error, fabs(over_slices(lasting, shared) - begun_all) / size);
    error = worse(error, fabs(begun_all - ended_all) / size);
    error = worse(error, fabs(over_slices(into, shared) + began - begun_all) / size);
    error = worse(error, fabs(over_slices(from, shared) + last - ended_all) / size);
    covered = over_slices(covered, shared);
    error = worse(error, fabs(over_labels(covered, shared) / length - 1));
    error = worse(error, fabs(over_labels(began, shared) - 1));
    const double worst = top_of_block(mass, shared);
    const double frame = -top_of_block(mass == worst ? -place : -infinity(), shared);
    error = top_of_block(worse(error, worst), shared);
    if (threadIdx.x) return;
    const bool feasible = z_value[2 * b] > 0 && is_finite(z_value[2 * b]);
    mass_error[b] = feasible ? worst : 0;
    mass_frame[b] = feasible ? (i64)frame : 0;
    imbalance[b] = feasible ? error : 0;
}

// What a sequence's counts are multiplied by in a gradient: the loss's gradient by its log Z; 0 where nothing fits, and
// NaN where log Z is, unless the loss leaves the sequence out.
INSIDE double weight_of(double log_z, double by_log_z) {
    if (is_finite(log_z) || by_log_z == 0) return by_log_z;
    return log_z < 0 ? 0 : log_z - log_z;
}

// The gradient of a loss by the scores: labels times that weight. Grid (any, B).
KERNEL(THREADS) score_gradients(
    In<REAL> label, In<double> log_z, In<double> by_log_z, Out<REAL> by_score, i64 scores, int stride) {
    const int b = blockIdx.y;
    const REAL weight = (REAL)weight_of(log_z[b], by_log_z[b * stride]);
    for (i64 i = (i64)blockIdx.x * THREADS + threadIdx.x; i < scores; i += (i64)gridDim.x * THREADS)
        by_score[b * scores + i] = label[b * scores + i] * weight;
}

// And by what all sequences share: the sum over them of their counts times that weight, in their order. Grid
// (programs); indices go over durations, transitions, starts and ends.
KERNEL(THREADS) shared_gradients(
    In<double> duration_out, In<double> transition_out, In<REAL> starts_out, In<REAL> ends_out, In<i64> lengths, In<double> log_z,
    In<double> by_log_z, Out<REAL> by_duration, Out<REAL> by_transition, Out<REAL> by_start, Out<REAL> by_end, int batch,
    int frames, int labels, int longest, int stride) {
    __shared__ double weights[THREADS];
    __shared__ i64 lasts[THREADS];
    const i64 durations = (i64)longest * labels, transitions = (i64)labels * labels;
    const i64 i = (i64)blockIdx.x * THREADS + threadIdx.x, other = i - durations - transitions; // starts_out and ends_out, from 0
    const double* counts = i < durations ? duration_out + i : transition_out + (i - durations);
    const i64 step = i < durations ? durations : transitions;
    double sum = 0;
    for (int first = 0; first < batch; first += THREADS) {
        const int own = first + threadIdx.x, shown = smaller(THREADS, batch - first);
        __syncthreads(); // the shared rows may still be read
        if (own < batch) {
            weights[threadIdx.x] = weight_of(log_z[own], by_log_z[own * stride]);
            lasts[threadIdx.x] = (i64)own * frames + higher(1, sequence_of(lengths, own, frames).length) - 1;
        }
        __syncthreads();
        if (other < 0) {
#pragma unroll 16
            for (int b = 0; b < shown; ++b) {
                const double count = counts[(first + b) * step];
                if (weights[b] != 0) sum += count * weights[b];
            }
        } else if (other < 2 * labels) {
            for (int b = 0; b < shown; ++b) {
                const i64 row = other < labels ? (i64)(first + b) * frames : lasts[b];
                const double count = other < labels ? starts_out[row * labels + other] : ends_out[row * labels + other - labels];
                if (weights[b] != 0) sum += count * weights[b];
            }
        }
    }
    if (other >= 2 * labels) return;
    REAL* to = i < durations ? by_duration + i : other < 0 ? by_transition + (i - durations)
             : other < labels ? by_start + other : by_end + (other - labels);
    *to = (REAL)sum;
}

// The best segmentation of a sequence, in float64 and max-plus; grid (B). Parameters have CP columns, -inf where there is no label. A
// slot of `ring` (B, K, CP) belongs to the boundary that its segments end at, and to one thread, which adds each frame to it and lets
// a later start, a shorter segment, win ties; `spans` is its duration. alpha and lasts (B, T, labels) are what ends after each frame.
// -> the best score, -inf where nothing is feasible, and `ends` (B, T): label + 1 where a segment ends with that frame, else 0.
KERNEL(THREADS) best_path(
    In<GIVEN> score, In<double> steps, In<double> lasting, In<double> first_scores, In<double> last_scores, In<i64> lengths,
    double* ring, int* spans, double* alpha, int* lasts, Out<double> best_score, Out<u8> ends, int frames, int labels, int longest) {
    __shared__ double sent[2 * CP];
    const int b = blockIdx.x, c = threadIdx.x % CP, slice = threadIdx.x / CP, length = length_of(lengths, b, frames);
    const i64 own = (i64)b * frames, states = own * labels, waiting = (i64)b * longest * CP + c;
    double gamma = first_scores[c], across[HELD];
    UNROLLED(a, 0, HELD) across[a] = steps[a * CP + c];
    for (int f = threadIdx.x; f < frames; f += THREADS) ends[own + f] = 0;
    int nearest = slice % longest; // the duration that ends in this thread's first slot, 0 for K
    for (int t = 0; t < length; ++t) {
        const double frame = c < labels ? (double)score[states + (i64)t * labels + c] : -infinity();
        int d = nearest ? nearest : longest;
        for (int slot = slice; slot < longest; slot += SLICES) {
            const i64 at = waiting + (i64)slot * CP;
            const double begins = gamma + lasting[(i64)(d - 1) * CP + c], before = d == longest || t == 0 ? -infinity() : ring[at];
            const bool shorter = begins >= before;
            const double value = (shorter ? begins : before) + frame;
            ring[at] = value;
            if (shorter) spans[at] = d;
            if (d == 1) {
                sent[(t & 1) * CP + c] = value;
                if (c < labels) {
                    alpha[states + (i64)t * labels + c] = value;
                    lasts[states + (i64)t * labels + c] = spans[at];
                }
            }
            d += SLICES;
            if (d > longest) d -= longest;
        }
        nearest = (nearest ? nearest : longest) - 1;
        __syncthreads(); // two buffers: who is a step ahead writes the other one
        double tops[4] = {-infinity(), -infinity(), -infinity(), -infinity()};
        UNROLLED(a, 0, USED)
            tops[a % 4] = larger(sent[(t & 1) * CP + a] + (HELD > 1 ? across[a % HELD] : steps[a * CP + c]), tops[a % 4]);
        gamma = larger(larger(tops[0], tops[1]), larger(tops[2], tops[3]));
    }
    __syncthreads();
    if (threadIdx.x) return;
    int label = 0;
    double top = -infinity();
    for (int t = length; t > 0;) { // ties to the smaller label
        const int next = label;
        double best = -infinity();
#pragma unroll 8
        for (int a = 0; a < labels; ++a) {
            const double value = alpha[states + (i64)(t - 1) * labels + a] + (t == length ? last_scores[a] : steps[a * CP + next]);
            label = value > best ? a : label;
            best = value > best ? value : best;
        }
        if (t == length) top = best;
        if (!(best > -infinity())) break;
        ends[own + t - 1] = (u8)(label + 1);
        t -= higher(1, lasts[states + (i64)(t - 1) * labels + label]); // a walk ends, whatever it walks through
    }
    best_score[b] = top;
}

#ifdef __NVCC__ // the host's side: another compiler tries the kernels alone
#define NAMED(kernel) {#kernel, (const void*)kernel}
static const struct {
    const char* name;
    const void* kernel;
} named[] = {NAMED(prepare), NAMED(outside_parts), NAMED(outside_sums), NAMED(messages), NAMED(label_totals),
             NAMED(label_sums), NAMED(label_counts), NAMED(far_durations), NAMED(near_durations), NAMED(sum_durations),
             NAMED(transitions), NAMED(sum_transitions), NAMED(audit), NAMED(score_gradients), NAMED(shared_gradients),
             NAMED(best_path)};

// A kernel by its name, on a stream of the current device; -> CUDA's status.
extern "C" int launch(const char* name, int x, int y, int z, int threads, void** arguments, cudaStream_t stream) {
    for (const auto& one : named)
        if (!strcmp(one.name, name)) return cudaLaunchKernel(one.kernel, dim3(x, y, z), dim3(threads), arguments, 0, stream);
    return cudaErrorInvalidDeviceFunction;
}

extern "C" const char* words_of(int status) { return cudaGetErrorString((cudaError_t)status); }
#endif
