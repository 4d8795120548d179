// The best segmentation in CUDA C, float64: what decode.cpp computes, a block of threads for each sequence.
//
// The pass is max-plus, and goes through time in blocks of N frames. What segments begun two blocks before or earlier bring
// into a block is found while the one before it is walked through: that one's frames are known, and of its messages nothing
// is needed. All threads then add what the block before brings, and the first CP threads, a label each, walk through N frames
// one after the other, a barrier among them at each. Sums only add: a score of -inf, or a large one, spoils no other segment.
// Ties go to the smaller duration, then the smaller label.
//
// Every (t, c) keeps its best duration, row t - 1, found by the pass. All multiprocessors then find the step back from each
// (s, c), where a segment of c starts, row s - 1: the segment before it, as duration * CP + label. Steps join to one that leaves
// a run of REACH boundaries, so that a walk back goes from run to run, and then through all of them at once. Nothing waits for
// the host.
//
// What a step waits for is what the kernels take their time for, so values are loaded several at once, before the first is used
// or anything is stored that the compiler could take for the same memory.
//
// Given beside what device.h says: REAL (the scores' type).

#define EACH (N / SLICES)
#define HELD (CP <= 64 ? CP : 1) /* transitions of a label that its thread holds: more than 64 take too many registers */
#define AT_ONCE (USED <= 32 ? USED : USED % 16 ? 8 : 16) /* values of other labels at once: beside transitions there is no room */
#define RUN 4
#define REACH (RUN * SLICES)        /* boundaries that a block of threads joins the steps of */
#define NONE (-1)
#if CP == 32 && defined(__CUDACC__)
#define LOADED_SYNC() __syncwarp() /* else the compiler loads one value, waits, uses it and loads the next */
#else
#define LOADED_SYNC()
#endif

// The best value so far, and the duration that has it; `after` is longer than what was seen before.
struct Best {
    double value;
    int after;
};
INSIDE void look_at(Best& best, double value, int after) {
    const bool better = value > best.value;
    best.value = better ? value : best.value;
    best.after = better ? after : best.after;
}

// What a thread of the pass knows of its place and of the model.
struct Place {
    int c, slice, labels, longest, length;
    bool there; // whether the label is one
    In<double> table; // durations of this label: k in row k - 1, -inf where there is none
};

// What blocks `nearest` to `farthest` before q bring into each frame of q, up to the end of the block before; `between` are
// the frames of the blocks after `nearest`.
INSIDE void far_part(const Place& at, const double* gathered, const double* product, int q, int nearest, int farthest,
                     double between, Best (&found)[N]) {
    for (int delta = nearest; delta <= farthest; ++delta) {
        const i64 p = q - delta;
        const double* table = at.table + (delta - 1) * N * CP;
        double rows[N], steps[2 * N];
        UNROLLED(x, 1, 2 * N) steps[x] = table[x * CP];
        UNROLLED(m, 0, N) rows[m] = gathered[(p * N + m) * CP + at.c] + between;
        UNROLLED(x, 1, 2 * N) { // durations in ascending order for each frame
            UNROLLED(i, 0, N) {
                const int m = i + N - x;
                if (m >= 0 && m < N) look_at(found[i], rows[m] + steps[x], (delta - 1) * N + x + 1);
            }
        }
        between += product[p * CP + at.c];
    }
}

// What blocks from the second before q on bring into q, by all slices but the first, a part each, nearer blocks in lower ones;
// `latest` are the frames of the block before q. The farthest part, often the shortest, goes to the slice that shares its
// scheduler with the first one.
INSIDE void before_block(const Place& at, const double* gathered, const double* product, const double* latest, int q,
                         double* parts, int* parts_after) {
    const int part = at.slice < SLICES / 2 ? at.slice - 1 : at.slice > SLICES / 2 ? at.slice - 2 : SLICES - 2;
    const int reach = (at.longest - 2) / N + 1, each = (reach - 1 + SLICES - 2) / (SLICES - 1); // by K alone
    const int nearest = 2 + part * each, farthest = smaller(smaller(nearest + each - 1, reach), q);
    Best found[N];
    UNROLLED(i, 0, N) {
        found[i].value = -infinity();
        found[i].after = 0;
    }
    if (nearest <= farthest) {
        double between = 0;
#pragma unroll
        for (int i = N - 1; i >= 0; --i) between += latest[i * CP + at.c];
#pragma unroll 4
        for (int passed = 2; passed < nearest; ++passed) between += product[(i64)(q - passed) * CP + at.c];
        far_part(at, gathered, product, q, nearest, farthest, between, found);
    }
    UNROLLED(i, 0, N) {
        parts[(part * N + i) * CP + at.c] = found[i].value;
        parts_after[(part * N + i) * CP + at.c] = found[i].after;
    }
}

// The best that any label sent over its transition to this one.
INSIDE double received(const Place& at, const double* sent, const double (&across)[HELD], const double* transition) {
    double tops[4];
#pragma unroll (HELD > 1 ? USED / AT_ONCE : 1)
    for (int begin = 0; begin < USED; begin += AT_ONCE) {
        double from[AT_ONCE];
        UNROLLED(a, 0, AT_ONCE) from[a] = sent[begin + a];
        LOADED_SYNC();
        UNROLLED(a, 0, AT_ONCE) {
            const double step = HELD > 1 ? across[(begin + a) % HELD] : transition[(begin + a) * CP + at.c];
            tops[a % 4] = begin + a < 4 ? from[a] + step : larger(from[a] + step, tops[a % 4]);
        }
    }
    return larger(larger(tops[0], tops[1]), larger(tops[2], tops[3]));
}

// Where the pass of a sequence leaves what it finds; `gathered` are the messages before each frame and the rest of their
// block's frames, `product` each block's frames.
struct Kept {
    double *gathered, *product, *alpha;
    int* lasts;
};

// N frames one after the other, by the first CP threads; `pending` is what earlier blocks bring into each, and becomes alpha.
// `newest` takes the messages, and at the end what the next block needs of them. What comes into the frames after the next one
// moves up by one at each frame: few steps are unrolled, and stay in the nearest cache.
INSIDE void near_steps(const Place& at, int q, double& message, double* pending, int* pending_after, const double (&near)[N],
                       const double (&across)[HELD], const double* transition, const double* line, double* newest,
                       const Kept& kept) {
    const int c = at.c;
    Best coming[N];
    UNROLLED(j, 0, N) {
        coming[j].value = pending[j * CP + c];
        coming[j].after = pending_after[j * CP + c];
    }
#pragma unroll 1
    for (int begin = 0; begin < N * CP; begin += 4 * CP) {
        UNROLLED(i, 0, 4) { // a segment that starts here is shorter than all before: it wins ties
            const int own = begin + i * CP + c;
            const double frame = line[own], before = message, one = before + near[0];
            const bool single = one >= coming[0].value;
            pending[own] = (single ? one : coming[0].value) + frame;
            pending_after[own] = single ? 1 : coming[0].after;
            newest[own] = before;
            LABELS_SYNC();
            message = received(at, pending + begin + i * CP, across, transition);
            UNROLLED(j, 1, N) { // meanwhile
                const double value = before + near[j];
                const bool better = value >= coming[j].value;
                coming[j - 1].value = (better ? value : coming[j].value) + frame;
                coming[j - 1].after = better ? j + 1 : coming[j].after;
            }
        }
    }
    double rest = 0, frames[N], before[N];
    UNROLLED(i, 0, N) {
        frames[i] = line[i * CP + c];
        before[i] = newest[i * CP + c];
    }
#pragma unroll
    for (int i = N - 1; i >= 0; --i) {
        rest += frames[i];
        const double value = before[i] + rest;
        newest[i * CP + c] = value;
        kept.gathered[((i64)q * N + i) * CP + c] = value;
    }
    kept.product[(i64)q * CP + c] = rest;
}

// What the steps of block q left of this thread's frames.
INSIDE void keep_steps(const Place& at, int q, const double* pending, const int* pending_after, const Kept& kept) {
    UNROLLED(r, 0, EACH) {
        const int i = at.slice * EACH + r, f = q * N + i;
        if (!at.there || f >= at.length) continue;
        kept.alpha[(i64)f * at.labels + at.c] = pending[i * CP + at.c];
        kept.lasts[(i64)f * at.labels + at.c] = pending_after[i * CP + at.c];
    }
}

// What the block before q and the parts found meanwhile bring into this thread's frames of q.
INSIDE void join_parts(const Place& at, int q, const double* newest, const double* parts, const int* parts_after,
                       double* pending, int* pending_after) {
    UNROLLED(r, 0, EACH) {
        const int i = at.slice * EACH + r;
        Best best = {-infinity(), 0};
        if (q > 0) {
            double steps[N], rows[N];
            UNROLLED(m, 0, N) {
                steps[m] = at.table[(i + N - m) * CP];
                rows[m] = newest[m * CP + at.c];
            }
            LOADED_SYNC();
#pragma unroll
            for (int m = N - 1; m >= 0; --m) look_at(best, rows[m] + steps[m], i + 1 + N - m);
        }
        if (q > 1) {
            double values[SLICES];
            int afters[SLICES];
            UNROLLED(part, 0, SLICES - 1) {
                values[part] = parts[(part * N + i) * CP + at.c];
                afters[part] = parts_after[(part * N + i) * CP + at.c];
            }
            LOADED_SYNC();
            UNROLLED(part, 0, SLICES - 1) look_at(best, values[part], afters[part]);
        }
        pending[i * CP + at.c] = best.value;
        pending_after[i * CP + at.c] = best.after;
    }
}

// Long before they are wanted, and behind all other loads, as who waits for one waits for all before.
INSIDE void read_scores(const Place& at, const REAL* score, int q, REAL (&coming)[EACH]) {
    UNROLLED(r, 0, EACH) {
        const int f = q * N + at.slice * EACH + r;
        coming[r] = at.there && f < at.length ? score[(i64)f * at.labels + at.c] : 0;
    }
}

// The model in float64 from parameters that are `doubles` or as the scores, CP columns each and -inf where nothing is: rows of
// transitions from each label, then where a sequence starts and ends, then durations; grid (ceil(ROWS * CP / THREADS)).
KERNEL(THREADS) prepare(
    In<void> transition, In<void> duration, In<void> start, In<void> end, Out<double> model, int doubles, int labels, int longest,
    int rows) {
    const int i = blockIdx.x * THREADS + threadIdx.x, row = i / CP, c = i % CP, k = row - CP - 2;
    if (row >= rows) return;
    const void* from = row < CP ? transition : row == CP ? start : row == CP + 1 ? end : duration;
    const bool there = c < labels && (row < CP ? row < labels : k < longest);
    const i64 at = (i64)(row < CP ? row : k < 0 ? 0 : k) * labels + c;
    model[(i64)row * CP + c] = !there ? -infinity() : doubles ? ((const double*)from)[at] : (double)((const REAL*)from)[at];
}

// The pass of one sequence; grid (B). `model` is what `prepare` made. alpha (B, T, labels) of boundary t in row t - 1. -> the
// best score and its last label, -1 where nothing is feasible.
KERNEL(THREADS) best_messages(
    In<REAL> score, In<double> model, In<i64> lengths, double* gathered, double* product, Out<int> lasts, Out<double> alpha,
    Out<double> best_score, Out<int> last_label, int frames, int labels, int longest, int blocks) {
    __shared__ __align__(16) double pending[N * CP];
    __shared__ double newest[N * CP], line[N * CP], parts[(SLICES - 1) * N * CP];
    __shared__ int pending_after[N * CP], parts_after[(SLICES - 1) * N * CP];
    const int b = blockIdx.x, c = threadIdx.x % CP, length = length_of(lengths, b, frames), used = (length + N - 1) / N;
    const double *start = model + CP * CP, *end = start + CP;
    const Place at = {c, (int)threadIdx.x / CP, labels, longest, length, c < labels, end + CP + c};
    const i64 own = (i64)b * frames * labels;
    const Kept kept = {gathered + (i64)b * blocks * N * CP, product + (i64)b * blocks * CP, alpha + own, lasts + own};
    double across[HELD], near[N], message = start[c]; // the one before the next frame
    REAL coming[EACH];
    UNROLLED(a, 0, HELD) across[a] = model[a * CP + c];
    UNROLLED(i, 0, N) near[i] = at.table[i * CP];
    read_scores(at, score + own, 0, coming);
    for (int q = 0; q < used; ++q) {
        UNROLLED(r, 0, EACH) line[(at.slice * EACH + r) * CP + c] = coming[r];
        if (q > 0) keep_steps(at, q - 1, pending, pending_after, kept);
        join_parts(at, q, newest, parts, parts_after, pending, pending_after);
        read_scores(at, score + own, q + 1, coming);
        __syncthreads();
        if (at.slice == 0)
            near_steps(at, q, message, pending, pending_after, near, across, model, line, newest, kept);
        else if (q + 1 < used && q > 0)
            before_block(at, kept.gathered, kept.product, line, q + 1, parts, parts_after);
        __syncthreads(); // the next block reads what was found, and the shared rows are free again
    }
    if (used > 0) keep_steps(at, used - 1, pending, pending_after, kept);
    if (at.slice == 0) newest[c] = length > 0 ? pending[(length - 1) % N * CP + c] + end[c] : -infinity();
    __syncthreads();
    if (threadIdx.x) return;
    double top = -infinity();
    int label = NONE;
    for (int a = 0; a < labels; ++a)
        if (newest[a] > top) {
            top = newest[a];
            label = a;
        }
    best_score[b] = top;
    last_label[b] = label;
}

// The steps back from segments of c that start at boundary s, for all of them, row s - 1, and those that leave the REACH boundaries
// of the block of threads; `ends` is cleared; grid (ceil(T / REACH), B).
KERNEL(THREADS) best_labels(
    In<double> model, In<double> alpha, In<i64> lengths, In<int> lasts, Out<int> steps, Out<int> exits, Out<u8> ends, int frames,
    int labels) {
    __shared__ int ahead[RUN * THREADS];
    const int b = blockIdx.y, c = threadIdx.x % CP, near = (int)threadIdx.x / CP * RUN, first = blockIdx.x * REACH + near;
    const int count = c < labels ? smaller(RUN, length_of(lengths, b, frames) - first) : 0;
    const i64 row = ((i64)b * frames + first) * labels;
    for (int i = threadIdx.x; i < REACH; i += THREADS) {
        const int f = blockIdx.x * REACH + i;
        if (f < frames) ends[(i64)b * frames + f] = 0;
    }
    Best best[RUN];
    UNROLLED(r, 0, RUN) {
        best[r].value = -infinity();
        best[r].after = 0;
    }
#pragma unroll 4
    for (int a = 0; count > 0 && a < labels; ++a) {
        const double step = model[a * CP + c];
        UNROLLED(r, 0, RUN)
            look_at(best[r], alpha[row + (i64)(r < count ? r : 0) * labels + a] + step, a);
    }
    int step[RUN];
    UNROLLED(r, 0, RUN) { // a duration is at least 1: a walk ends, whatever it walks through
        const int k = r < count ? higher(1, lasts[row + (i64)r * labels + best[r].after]) : 1;
        step[r] = k * CP + best[r].after;
    }
    UNROLLED(r, 0, RUN)
        if (r < count) steps[row + (i64)r * labels + c] = step[r];
    for (int joined = 1; joined < REACH; joined *= 2) {
        UNROLLED(r, 0, RUN) ahead[(near + r) * CP + c] = step[r];
        __syncthreads(); // all steps are there
        UNROLLED(r, 0, RUN) {
            const int label = step[r] % CP, to = (near + r - step[r] / CP) * CP + label;
            if (to < 0) continue;
            step[r] += ahead[to] - label;
        }
        __syncthreads(); // all have read the steps
    }
    UNROLLED(r, 0, RUN)
        if (r < count) exits[row + (i64)r * labels + c] = step[r];
}

// The best segmentation; grid (B). -> `ends` (B, T): label + 1 where a segment ends with that frame, else 0 as before. One thread
// goes from run to run of REACH boundaries, then each has a run to walk through.
KERNEL(THREADS) best_path(
    In<i64> lengths, In<int> lasts, In<int> steps, In<int> exits, In<int> last_label, Out<u8> ends, int frames, int labels) {
    __shared__ int starts[THREADS], before[THREADS], runs;
    const int b = blockIdx.x, last = last_label[b], length = length_of(lengths, b, frames), at = threadIdx.x;
    const i64 states = (i64)b * frames * labels;
    ends += (i64)b * frames;
    int s = 0, c = last, found;
    if (last >= 0) { // the last segment, from no step
        s = length - higher(1, lasts[states + (i64)(length - 1) * labels + last]);
        if (at == 0) ends[length - 1] = (u8)(last + 1);
    }
    do {
        if (at == 0) {
            for (found = 0; found < THREADS && s > 0; ++found) {
                const int exit = exits[states + (i64)(s - 1) * labels + c];
                starts[found] = s;
                before[found] = c;
                c = exit % CP;
                s -= exit / CP;
            }
            runs = found;
        }
        __syncthreads(); // where runs begin is there
        found = runs;
        if (at < found) {
            int t = starts[at], label = before[at];
            const int low = (t - 1) / REACH * REACH;
            while (t > low) {
                const int step = steps[states + (i64)(t - 1) * labels + label];
                label = step % CP;
                ends[t - 1] = (u8)(label + 1);
                t -= step / CP;
            }
        }
        __syncthreads(); // runs are walked through
    } while (found == THREADS);
}
