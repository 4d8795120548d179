// Best segmentations and exact draws in CUDA C, float64: what decode.cpp computes, a block of threads for each sequence.
//
// The pass is max-plus, and goes through time in blocks of N frames. What segments begun two blocks before or earlier bring
// into a block is found while the one before it is walked through: that one's frames are known, and of its messages nothing
// is needed. All threads then add what the block before brings, and the first CP threads, a label each, walk through N frames
// one after the other, a barrier among them at each. Sums only add: a score of -inf, or a large one, spoils no other segment.
// Ties go to the smaller duration, then the smaller label.
//
// Every (t, c) keeps its best duration, row t - 1, found by the pass; and every (s, c) the label before it, row s - 1, found by
// all multiprocessors after the pass. Walks back go through tiles of these rows in shared memory. Nothing waits for the host.
//
// What a step waits for is what the kernels take their time for, so values are loaded several at once, before the first is used
// or anything is stored that the compiler could take for the same memory.
//
// Given by the compiler's command line: REAL (the scores' type), CP (labels, padded to 32, 64 or 128), USED (labels, padded to a
// multiple of 8), THREADS (a multiple of CP, at least twice as many), N (a multiple of 4 and of THREADS / CP), TILE (rows of a
// walk's tile, an even number), APART (threads of a draw: a warp).

typedef long long i64;
typedef unsigned long long u64;
#define SLICES (THREADS / CP)
#define EACH (N / SLICES)
#define HELD (CP <= 64 ? CP : 1) /* transitions of a label that its thread holds: more than 64 take too many registers */
#define AT_ONCE (USED <= 32 ? USED : USED % 16 ? 8 : 16) /* values of other labels at once: beside transitions there is no room */
#define RUN 4
#define ROWS 2                      /* frames in a tile of draws */
#define AT_A_TIME 8                 /* values that a thread copies or looks at before it waits for the next */
#define PIECE (USED < 8 ? USED : 8) /* weights that are added up before the next are loaded */
#define EXACT 1.0e-9
#define LARGE 1.0e6 /* beside larger scores others lose digits */
#define NONE (-1)
#define INSIDE static __device__ __forceinline__
#ifndef LABELS_SYNC // a barrier of the first CP threads alone: of one warp it costs next to nothing
#if CP == 32
#define LABELS_SYNC() __syncwarp()
#define LOADED_SYNC() __syncwarp() /* else the compiler loads one value, waits, uses it and loads the next */
#else
#define LABELS_SYNC() asm volatile("bar.sync 1, %0;" ::"n"(CP) : "memory")
#endif
#endif
#ifndef LOADED_SYNC
#define LOADED_SYNC()
#endif
#ifndef DRAW_SYNC // among the threads of a draw
#define DRAW_SYNC() __syncwarp()
#define DRAW_VOTE(yes) __ballot_sync(~0u, yes)
#define FIRST_BIT(bits) (__ffs(bits) - 1)
#endif

INSIDE int smaller(int a, int b) { return a < b ? a : b; }
INSIDE int higher(int a, int b) { return a > b ? a : b; }
INSIDE double infinity() { return __longlong_as_double(0x7ff0000000000000LL); }
INSIDE int length_of(const i64* lengths, int b, int frames) {
    const i64 given = lengths[b];
    return given < 0 ? 0 : given > frames ? frames : (int)given;
}

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
    const double* __restrict__ table; // durations of this label: k in row k - 1, -inf where there is none
};

// What blocks `nearest` to `farthest` before q bring into each frame of q, up to the end of the block before; `between` are
// the frames of the blocks after `nearest`.
INSIDE void far_part(const Place& at, const double* gathered, const double* product, int q, int nearest, int farthest,
                     double between, Best (&found)[N]) {
    for (int delta = nearest; delta <= farthest; ++delta) {
        const i64 p = q - delta;
        const double* table = at.table + (delta - 1) * N * CP;
        double rows[N], steps[2 * N];
#pragma unroll
        for (int x = 1; x < 2 * N; ++x) steps[x] = table[x * CP];
#pragma unroll
        for (int m = 0; m < N; ++m) rows[m] = gathered[(p * N + m) * CP + at.c] + between;
#pragma unroll
        for (int x = 1; x < 2 * N; ++x) { // durations in ascending order for each frame
#pragma unroll
            for (int i = 0; i < N; ++i) {
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
#pragma unroll
    for (int i = 0; i < N; ++i) {
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
#pragma unroll
    for (int i = 0; i < N; ++i) {
        parts[(part * N + i) * CP + at.c] = found[i].value;
        parts_after[(part * N + i) * CP + at.c] = found[i].after;
    }
}

INSIDE double larger(double a, double b) { return a > b ? a : b; }

// The best that any label sent over its transition to this one.
INSIDE double received(const Place& at, const double* sent, const double (&across)[HELD], const double* transition) {
    double tops[4];
#pragma unroll (HELD == CP ? USED / AT_ONCE : 1)
    for (int begin = 0; begin < USED; begin += AT_ONCE) {
        double from[AT_ONCE];
#pragma unroll
        for (int a = 0; a < AT_ONCE; ++a) from[a] = sent[begin + a];
        LOADED_SYNC();
#pragma unroll
        for (int a = 0; a < AT_ONCE; ++a) {
            const double step = HELD == CP ? across[(begin + a) % HELD] : transition[(begin + a) * CP + at.c];
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
#pragma unroll
    for (int j = 0; j < N; ++j) {
        coming[j].value = pending[j * CP + c];
        coming[j].after = pending_after[j * CP + c];
    }
#pragma unroll 1
    for (int begin = 0; begin < N * CP; begin += 4 * CP) {
#pragma unroll
        for (int i = 0; i < 4; ++i) { // a segment that starts here is shorter than all before: it wins ties
            const int own = begin + i * CP + c;
            const double frame = line[own], before = message, one = before + near[0];
            const bool single = one >= coming[0].value;
            pending[own] = (single ? one : coming[0].value) + frame;
            pending_after[own] = single ? 1 : coming[0].after;
            newest[own] = before;
            LABELS_SYNC();
            message = received(at, pending + begin + i * CP, across, transition);
#pragma unroll
            for (int j = 1; j < N; ++j) { // meanwhile
                const double value = before + near[j];
                const bool better = value >= coming[j].value;
                coming[j - 1].value = (better ? value : coming[j].value) + frame;
                coming[j - 1].after = better ? j + 1 : coming[j].after;
            }
        }
    }
    double rest = 0, frames[N], before[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
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
#pragma unroll
    for (int r = 0; r < EACH; ++r) {
        const int i = at.slice * EACH + r, f = q * N + i;
        if (!at.there || f >= at.length) continue;
        kept.alpha[(i64)f * at.labels + at.c] = pending[i * CP + at.c];
        kept.lasts[(i64)f * at.labels + at.c] = pending_after[i * CP + at.c];
    }
}

// What the block before q and the parts found meanwhile bring into this thread's frames of q.
INSIDE void join_parts(const Place& at, int q, const double* newest, const double* parts, const int* parts_after,
                       double* pending, int* pending_after) {
#pragma unroll
    for (int r = 0; r < EACH; ++r) {
        const int i = at.slice * EACH + r;
        Best best = {-infinity(), 0};
        if (q > 0) {
            double steps[N], rows[N];
#pragma unroll
            for (int m = 0; m < N; ++m) {
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
#pragma unroll
            for (int part = 0; part < SLICES - 1; ++part) {
                values[part] = parts[(part * N + i) * CP + at.c];
                afters[part] = parts_after[(part * N + i) * CP + at.c];
            }
            LOADED_SYNC();
#pragma unroll
            for (int part = 0; part < SLICES - 1; ++part) look_at(best, values[part], afters[part]);
        }
        pending[i * CP + at.c] = best.value;
        pending_after[i * CP + at.c] = best.after;
    }
}

// Long before they are wanted, and behind all other loads, as who waits for one waits for all before.
INSIDE void read_scores(const Place& at, const REAL* score, int q, REAL (&coming)[EACH]) {
#pragma unroll
    for (int r = 0; r < EACH; ++r) {
        const int f = q * N + at.slice * EACH + r;
        coming[r] = at.there && f < at.length ? score[(i64)f * at.labels + at.c] : 0;
    }
}

INSIDE bool is_large(double value) { return !(value >= -LARGE && value <= LARGE); } // NaN is

// The model in float64 from parameters that are `doubles` or as the scores, CP columns each and -inf where nothing is: rows of
// transitions from each label, then where a sequence starts and ends, then durations. Programs beyond those take THREADS frames
// of all sequences each. `odd` is 1 for each program that saw a NaN or +inf, or a frame whose largest score is large; grid
// (ceil(ROWS * CP / THREADS) + ceil(B * T / THREADS)).
extern "C" __global__ void __launch_bounds__(THREADS) prepare(
    const void* __restrict__ transition, const void* __restrict__ duration, const void* __restrict__ start,
    const void* __restrict__ end, const REAL* __restrict__ score, const i64* __restrict__ lengths, double* __restrict__ model,
    int* __restrict__ odd, int doubles, int batch, int frames, int labels, int longest, int rows, int programs) {
    __shared__ int any;
    if (threadIdx.x == 0) any = 0;
    __syncthreads();
    if ((int)blockIdx.x >= programs) {
        const i64 row = (i64)((int)blockIdx.x - programs) * THREADS + threadIdx.x;
        if (row < (i64)batch * frames && row % frames < length_of(lengths, (int)(row / frames), frames)) {
            double top = -infinity();
            bool nan = false;
            for (int c = 0; c < labels; ++c) {
                const double one = score[row * labels + c];
                nan |= one != one;
                top = larger(one, top);
            }
            if (nan || is_large(top)) any = 1;
        }
    } else {
        const int i = blockIdx.x * THREADS + threadIdx.x, row = i / CP, c = i % CP, k = row - CP - 2;
        const void* from = row < CP ? transition : row == CP ? start : row == CP + 1 ? end : duration;
        const bool there = c < labels && (row < CP ? row < labels : k < longest);
        const i64 at = (i64)(row < CP ? row : k < 0 ? 0 : k) * labels + c;
        const double one =
            row >= rows || !there ? -infinity() : doubles ? ((const double*)from)[at] : (double)((const REAL*)from)[at];
        if (row < rows) model[(i64)row * CP + c] = one;
        if (!(one < infinity())) any = 1;
    }
    __syncthreads();
    if (threadIdx.x == 0) odd[blockIdx.x] = any;
}

// The pass of one sequence; grid (B). `model` is what `prepare` made. alpha (B, T, labels) of boundary t in row t - 1. -> the
// best score and its last label, -1 where nothing is feasible.
extern "C" __global__ void __launch_bounds__(THREADS) best_messages(
    const REAL* __restrict__ score, const double* __restrict__ model, const i64* __restrict__ lengths, double* gathered,
    double* product, int* __restrict__ lasts, double* __restrict__ alpha, double* __restrict__ best_score,
    int* __restrict__ last_label, int frames, int labels, int longest, int blocks) {
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
#pragma unroll
    for (int a = 0; a < HELD; ++a) across[a] = model[a * CP + c];
#pragma unroll
    for (int i = 0; i < N; ++i) near[i] = at.table[i * CP];
    read_scores(at, score + own, 0, coming);
    for (int q = 0; q < used; ++q) {
#pragma unroll
        for (int r = 0; r < EACH; ++r) line[(at.slice * EACH + r) * CP + c] = coming[r];
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

// The label before a segment of c that starts at boundary s, for all of them, row s - 1; and where it is wanted gamma of each
// boundary s, row s; grid (ceil(T / (RUN * SLICES)), B).
extern "C" __global__ void __launch_bounds__(THREADS) best_labels(
    const double* __restrict__ model, const double* __restrict__ alpha, const i64* __restrict__ lengths,
    int* __restrict__ from, double* __restrict__ gamma, int frames, int labels, int keep) {
    const int b = blockIdx.y, c = threadIdx.x % CP, first = (blockIdx.x * SLICES + (int)threadIdx.x / CP) * RUN;
    const int count = smaller(RUN, length_of(lengths, b, frames) - first);
    if (c >= labels || count <= 0) return;
    const i64 row = ((i64)b * frames + first) * labels;
    Best best[RUN];
#pragma unroll
    for (int r = 0; r < RUN; ++r) {
        best[r].value = -infinity();
        best[r].after = 0;
    }
#pragma unroll 4
    for (int a = 0; a < labels; ++a) {
        const double step = model[a * CP + c];
#pragma unroll
        for (int r = 0; r < RUN; ++r)
            look_at(best[r], alpha[row + (i64)(r < count ? r : 0) * labels + a] + step, a);
    }
#pragma unroll
    for (int r = 0; r < RUN; ++r)
        if (r < count) {
            from[row + (i64)r * labels + c] = best[r].after;
            if (keep && first + r + 1 < frames) gamma[row + (i64)(r + 1) * labels + c] = best[r].value;
        }
    if (keep && first == 0) gamma[row + c] = model[CP * CP + c];
}

// One sequence as walks back see it: alpha of boundary t in row t - 1, gamma of boundary s in row s.
struct Walked {
    const REAL* score;
    const double *model, *alpha, *gamma;
    const int *lasts, *from;
    int labels, longest, length;
};

// A path from its end: nodes are labels and durations (less 1) in turn. `boundary` is each node's, `behind` what lies behind
// it is worth. `other` is the best other choice at the node, `value` what that is worth with all that lies before it, -inf where
// there is none. `worth` is that of the whole segmentation, -inf once it was taken; `step` is what the choice itself is worth.
struct Path {
    int *chosen, *boundary, *other;
    double *worth, *behind, *value, *step;
};

INSIDE double label_step(const Walked& q, int label, int next) {
    return q.model[next < 0 ? (CP + 1) * CP + label : label * CP + next];
}
INSIDE double duration_of(const Walked& q, int label, int k) { return q.model[(i64)(CP + 1 + k) * CP + label]; }
INSIDE double duration_step(const Walked& q, int t, int label, int k) {
    double content = 0;
    for (int u = t - 1; u >= t - k; --u) content += (double)q.score[(i64)u * q.labels + label];
    return content + duration_of(q, label, k);
}
INSIDE double step_of(const Walked& q, const Path& path, int node) {
    return node % 2 ? duration_step(q, path.boundary[node], path.chosen[node - 1], path.chosen[node] + 1)
                    : label_step(q, path.chosen[node], node ? path.chosen[node - 2] : NONE);
}

INSIDE double worth_of(double behind, double value) { return value > -infinity() ? behind + value : -infinity(); }

// By all threads, several loads before the first store: the compiler knows nothing of different paths.
template <typename Value> INSIDE void copy(const Value* from, Value* to, int begin, int stop, int moved) {
    for (int at = begin + threadIdx.x; at < stop; at += AT_A_TIME * THREADS) {
        Value values[AT_A_TIME];
#pragma unroll
        for (int i = 0; i < AT_A_TIME; ++i) values[i] = from[smaller(at + i * THREADS, stop - 1) - moved];
#pragma unroll
        for (int i = 0; i < AT_A_TIME; ++i)
            if (at + i * THREADS < stop) to[at + i * THREADS] = values[i];
    }
}

// The best choices from boundary t on, where a segment of `label` ends; nodes from `nodes` on, by all threads. -> the number
// of nodes. Where `parent` has nodes it ends behind the first segment that parent has, too, after its node `begin` of boundary
// `origin`: `met` is that segment's first node there. What lies before a segment depends on nothing else.
INSIDE int follow(const Walked& q, const Path& path, int nodes, int t, int label, const Path& parent, int parent_nodes,
                  int begin, int origin, int& met) {
    __shared__ int follows[TILE * CP], lasts[TILE * CP], passed[TILE], walked[2];
    __shared__ unsigned char before[TILE * CP]; // the label before a state's segment; `follows` is the state before, in the tile
    met = NONE;
    while (t > 0 && met < 0) {
        const int low = higher(0, t - (parent_nodes ? (TILE + 3) / 4 : TILE));
        const int states = (t - low) * q.labels;
        for (int i = threadIdx.x; i < states; i += AT_A_TIME * THREADS) {
            int k[AT_A_TIME], label_before[AT_A_TIME];
#pragma unroll
            for (int j = 0; j < AT_A_TIME; ++j) // at least 1: a walk ends, whatever it walks through
                k[j] = higher(1, q.lasts[(i64)low * q.labels + smaller(i + j * THREADS, states - 1)]);
#pragma unroll
            for (int j = 0; j < AT_A_TIME; ++j) {
                const int state = smaller(i + j * THREADS, states - 1), s = higher(1, low + state / q.labels + 1 - k[j]);
                label_before[j] = q.from[(i64)(s - 1) * q.labels + state % q.labels];
            }
#pragma unroll
            for (int j = 0; j < AT_A_TIME; ++j) {
                const int state = i + j * THREADS, row = state / q.labels;
                if (state >= states) continue;
                lasts[state] = k[j];
                before[state] = (unsigned char)label_before[j];
                follows[state] = row >= k[j] ? (row - k[j]) * q.labels + label_before[j] : NONE;
            }
        }
        if (parent_nodes) __syncthreads(); // a mark comes behind what it marks
        const int nodes_there = smaller(parent_nodes, begin + 2 + 2 * (origin - low)); // each segment has a frame
        for (int node = begin + 1 + (begin + 1) % 2 + 2 * (int)threadIdx.x; node < nodes_there; node += 2 * THREADS) {
            const int row = parent.boundary[node] - 1 - low;
            if (row >= 0 && row < t - low) follows[row * q.labels + parent.chosen[node]] = NONE - 1 - node;
        }
        __syncthreads(); // the tile is there for the walk
        if (threadIdx.x == 0) {
            int count = 0, state = (t - 1 - low) * q.labels + label;
            for (; state >= 0; state = follows[state]) passed[count++] = state;
            walked[0] = count;
            walked[1] = state;
        }
        __syncthreads();
        const int count = walked[0], last = passed[count - 1];
        for (int i = threadIdx.x; i < count; i += THREADS) {
            const int state = passed[i], node = nodes + 2 * i;
            path.chosen[node] = state % q.labels;
            path.chosen[node + 1] = lasts[state] - 1;
            path.boundary[node] = path.boundary[node + 1] = low + 1 + state / q.labels;
        }
        met = walked[1] < NONE ? NONE - 1 - walked[1] : NONE;
        t = low + 1 + last / q.labels - lasts[last];
        label = before[last];
        nodes += 2 * count;
        __syncthreads(); // the tile is free
    }
    return nodes;
}

// What lies behind each node from `first` on, by all threads, from their steps; what lies behind `first` itself is there. And
// the worth of their other choices.
INSIDE void sum_steps(const Path& path, int first, int nodes) {
    __shared__ double sums[2 * THREADS];
    const int each = (nodes - 1 - first + THREADS - 1) / THREADS, begin = first + (int)threadIdx.x * each;
    const int stop = smaller(nodes - 1, begin + each);
    double sum = 0;
#pragma unroll 8
    for (int i = begin; i < stop; ++i) sum += path.step[i];
    sums[threadIdx.x] = sum;
    int turn = 0;
    for (int step = 1; step < THREADS; step *= 2, turn ^= THREADS) {
        __syncthreads();
        double joined = sums[turn + threadIdx.x];
        if ((int)threadIdx.x >= step) joined += sums[turn + threadIdx.x - step];
        sums[(turn ^ THREADS) + threadIdx.x] = joined;
    }
    __syncthreads();
    const double origin = path.behind[first], before = origin + (threadIdx.x ? sums[turn + threadIdx.x - 1] : 0);
    if (threadIdx.x == 0) path.worth[first] = worth_of(origin, path.value[first]);
    sum = 0;
    for (int i = begin; i < stop; i += AT_A_TIME) {
        double steps[AT_A_TIME], values[AT_A_TIME];
#pragma unroll
        for (int j = 0; j < AT_A_TIME; ++j) {
            steps[j] = path.step[smaller(i + j, stop - 1)];
            values[j] = path.value[smaller(i + j, stop - 1) + 1];
        }
#pragma unroll
        for (int j = 0; j < AT_A_TIME; ++j) {
            sum += steps[j];
            if (i + j >= stop) continue;
            path.behind[i + j + 1] = sum + before;
            path.worth[i + j + 1] = worth_of(sum + before, values[j]);
        }
    }
    __syncthreads(); // the nodes are there for all, the sums are free again
}

// What a choice of a node is worth, all that lies before it included. Durations come in ascending order: `content` are the
// frames of those before.
INSIDE double choice_worth(const Walked& q, bool label, int t, int around, int choice, double& content) {
    if (label) return q.alpha[(i64)(t - 1) * q.labels + choice] + label_step(q, choice, around);
    const i64 at = (i64)(t - 1 - choice) * q.labels + around;
    content += (double)q.score[at];
    return q.gamma[at] + (content + duration_of(q, around, choice + 1));
}

// The best other choice at a node, a thread's work: any but `chosen`, or where there is a `root` what comes after `chosen` in
// the order of worth, and is not `root`.
INSIDE void find_other(const Walked& q, const Path& path, int node, int root) {
    const int t = path.boundary[node], chosen = path.chosen[node];
    const bool label = node % 2 == 0;
    const int around = label ? (node ? path.chosen[node - 2] : NONE) : path.chosen[node - 1];
    const int count = label ? q.labels : smaller(q.longest, t);
    double own = infinity(), content = 0;
#pragma unroll 4
    for (int i = 0; i <= (root < 0 ? -1 : chosen); ++i) own = choice_worth(q, label, t, around, i, content);
    Best best = {-infinity(), NONE};
    content = 0;
#pragma unroll 8
    for (int i = 0; i < count; ++i) {
        const double value = choice_worth(q, label, t, around, i, content);
        const bool behind = i != chosen && i != root && (value < own || (value == own && i > chosen));
        look_at(best, behind ? value : -infinity(), i);
    }
    path.other[node] = best.after;
    path.value[node] = best.after < 0 ? -infinity() : best.value;
}

struct Deviation {
    int path, node;
    double worth;
};

// The paths of a sequence, 2 T nodes each. `begin` is the first node of each that its parent does not have.
struct Paths {
    Path first;
    i64 nodes;
    const int *begin, *parent;
};
INSIDE Path path_at(const Paths& of, int n) {
    const i64 at = of.nodes * n;
    const Path found = {of.first.chosen + at, of.first.boundary + at, of.first.other + at, of.first.worth + at,
                        of.first.behind + at, of.first.value + at, of.first.step + at};
    return found;
}

// Up to where two paths are the same: the later one is no parent of the other.
INSIDE int common_nodes(const Paths& of, int a, int b) {
    int found = 1 << 30;
    while (a != b) {
        int& later = a > b ? a : b;
        found = smaller(found, of.begin[later]);
        later = of.parent[later];
    }
    return found;
}

// Of two with the same worth: the smaller choice where they differ first.
INSIDE bool comes_first(const Paths& of, const Deviation& a, const Deviation& b) {
    const Path p = path_at(of, a.path), q = path_at(of, b.path);
    const int last = smaller(a.node, b.node);
    for (int node = smaller(common_nodes(of, a.path, b.path), last); node <= last; ++node) {
        const int x = node == a.node ? p.other[node] : p.chosen[node], y = node == b.node ? q.other[node] : q.chosen[node];
        if (x != y) return x < y;
    }
    return a.node > b.node;
}

INSIDE bool is_better(const Paths& of, const Deviation& a, const Deviation& b) {
    return a.worth > b.worth || (a.worth == b.worth && a.worth > -infinity() && comes_first(of, a, b));
}

// The segments (end, label) of a path, and how many.
INSIDE void put_down(const Path& path, int nodes, int* segments, int* size) {
    for (int i = threadIdx.x; i < nodes / 2; i += AT_A_TIME * THREADS) {
        int ends[AT_A_TIME], labels[AT_A_TIME];
#pragma unroll
        for (int j = 0; j < AT_A_TIME; ++j) {
            const int node = 2 * smaller(i + j * THREADS, nodes / 2 - 1);
            ends[j] = path.boundary[node];
            labels[j] = path.chosen[node];
        }
#pragma unroll
        for (int j = 0; j < AT_A_TIME; ++j) {
            if (i + j * THREADS >= nodes / 2) continue;
            segments[2 * (i + j * THREADS)] = ends[j];
            segments[2 * (i + j * THREADS) + 1] = labels[j];
        }
    }
    if (threadIdx.x == 0) *size = nodes / 2;
}

// What the search for the `count` best segmentations is about; of a sequence.
struct Search {
    Walked q;
    Paths paths;
    i64 number; // of its first path
};
INSIDE Search search_of(const REAL* score, const double* model, const i64* lengths, const int* lasts, const int* from,
                        const double* alpha, const double* gamma, int* chosen, int* boundary, int* other, double* worth,
                        double* behind, double* value, double* step, const int* first, const int* parents, int b, int frames,
                        int labels, int longest, int count) {
    const i64 at = (i64)b * frames * labels, number = (i64)b * count, nodes = number * 2 * frames;
    const Search found = {{score + at, model, alpha + at, gamma + at, lasts + at, from + at, labels, longest,
                           length_of(lengths, b, frames)},
                          {{chosen + nodes, boundary + nodes, other + nodes, worth + nodes, behind + nodes, value + nodes,
                            step + nodes},
                           (i64)2 * frames,
                           first + number,
                           parents + number},
                          number};
    return found;
}

// The best segmentation; grid (B). Arrays of nodes are (B, count, 2 T). -> score (B, count), -inf where there is none, segments
// (end, label) from the last one on, (B, count, T, 2), and how many (B, count).
extern "C" __global__ void __launch_bounds__(THREADS) best_path(
    const REAL* __restrict__ score, const double* __restrict__ model, const i64* __restrict__ lengths,
    const int* __restrict__ lasts, const int* __restrict__ from, const double* __restrict__ alpha,
    const double* __restrict__ gamma, int* chosen, int* boundary, int* other, double* worth, double* behind, double* value,
    double* step, const double* __restrict__ best_score, const int* __restrict__ last_label, int* first, int* roots,
    int* parents, int* used, double* __restrict__ scores, int* __restrict__ segments, int* __restrict__ sizes, int frames,
    int labels, int longest, int count) {
    const Search all = search_of(score, model, lengths, lasts, from, alpha, gamma, chosen, boundary, other, worth, behind, value,
                                 step, first, parents, blockIdx.x, frames, labels, longest, count);
    const Path path = path_at(all.paths, 0);
    int met;
    const int last = last_label[blockIdx.x];
    const int nodes = last < 0 ? 0 : follow(all.q, path, 0, all.q.length, last, path, 0, 0, 0, met);
    for (int n = threadIdx.x; n < count; n += THREADS) {
        scores[all.number + n] = n == 0 ? best_score[blockIdx.x] : -infinity();
        sizes[all.number + n] = 0;
    }
    if (threadIdx.x == 0) {
        first[all.number] = 0;
        roots[all.number] = parents[all.number] = NONE;
        used[all.number] = nodes;
    }
    __syncthreads(); // the path is there for all
    put_down(path, nodes, segments + all.number * frames * 2, sizes + all.number);
}

// The steps of the best path and the best other choice at each of its nodes; grid (ceil(T / THREADS), 2, B): labels, then
// durations.
extern "C" __global__ void __launch_bounds__(THREADS) other_choices(
    const REAL* __restrict__ score, const double* __restrict__ model, const i64* __restrict__ lengths,
    const int* __restrict__ lasts, const int* __restrict__ from, const double* __restrict__ alpha,
    const double* __restrict__ gamma, int* chosen, int* boundary, int* other, double* worth, double* behind, double* value,
    double* step, const int* __restrict__ first, const int* __restrict__ parents, const int* __restrict__ used, int frames,
    int labels, int longest, int count) {
    const Search all = search_of(score, model, lengths, lasts, from, alpha, gamma, chosen, boundary, other, worth, behind, value,
                                 step, first, parents, blockIdx.z, frames, labels, longest, count);
    const Path path = path_at(all.paths, 0);
    const int node = 2 * (blockIdx.x * THREADS + (int)threadIdx.x) + blockIdx.y;
    if (node >= used[all.number]) return;
    find_other(all.q, path, node, NONE);
    path.step[node] = step_of(all.q, path, node);
}

// The best deviation from all paths so far, by all threads.
INSIDE Deviation best_deviation(const Search& all, int n, const int* used) {
    __shared__ Deviation found[THREADS];
    Deviation own = {NONE, 0, -infinity()};
    for (int p = 0; p < n; ++p) {
        const double* worth = path_at(all.paths, p).worth;
        const int stop = used[p];
        for (int node = all.paths.begin[p] + threadIdx.x; node < stop; node += AT_A_TIME * THREADS) {
            double worths[AT_A_TIME];
#pragma unroll
            for (int i = 0; i < AT_A_TIME; ++i) worths[i] = worth[smaller(node + i * THREADS, stop - 1)];
#pragma unroll 1
            for (int i = 0; i < AT_A_TIME && node + i * THREADS < stop; ++i) {
                const Deviation one = {p, node + i * THREADS, worths[0]};
                if (is_better(all.paths, one, own)) own = one;
#pragma unroll
                for (int j = 1; j < AT_A_TIME; ++j) worths[j - 1] = worths[j];
            }
        }
    }
    found[threadIdx.x] = own;
    __syncthreads();
    for (int step = THREADS / 2; step > 0; step /= 2) {
        if (threadIdx.x < step && is_better(all.paths, found[threadIdx.x + step], found[threadIdx.x]))
            found[threadIdx.x] = found[threadIdx.x + step];
        __syncthreads();
    }
    return found[0];
}

// The further segmentations of a sequence, by Lawler's way: the best of all other choices at all nodes of the paths so far leads
// to the next, which is new only up to where it meets the path that it left; grid (B).
extern "C" __global__ void __launch_bounds__(THREADS) further_paths(
    const REAL* __restrict__ score, const double* __restrict__ model, const i64* __restrict__ lengths,
    const int* __restrict__ lasts, const int* __restrict__ from, const double* __restrict__ alpha,
    const double* __restrict__ gamma, int* chosen, int* boundary, int* other, double* worth, double* behind, double* value,
    double* step, int* first, int* roots, int* parents, int* used, double* __restrict__ scores, int* __restrict__ segments,
    int* __restrict__ sizes, int frames, int labels, int longest, int count) {
    const Search all = search_of(score, model, lengths, lasts, from, alpha, gamma, chosen, boundary, other, worth, behind, value,
                                 step, first, parents, blockIdx.x, frames, labels, longest, count);
    const i64 number = all.number;
    if (used[number] == 0) return;
    if (threadIdx.x == 0) path_at(all.paths, 0).behind[0] = 0;
    __syncthreads(); // what lies behind the first node is there
    sum_steps(path_at(all.paths, 0), 0, used[number]);
    for (int n = 1; n < count; ++n) {
        const Deviation best = best_deviation(all, n, used + number);
        if (best.path < 0) return;
        const Path path = path_at(all.paths, n), parent = path_at(all.paths, best.path);
        const int begin = best.node, parent_nodes = used[number + best.path], origin = parent.boundary[begin];
        const int root = begin == first[number + best.path] && roots[number + best.path] >= 0 ? roots[number + best.path]
                                                                                             : parent.chosen[begin];
        const int chosen_there = parent.other[begin];
        copy(parent.chosen, path.chosen, 0, begin, 0);
        copy(parent.boundary, path.boundary, 0, begin + 1, 0);
        copy(parent.behind, path.behind, 0, begin + 1, 0);
        if (threadIdx.x == 0) path.chosen[begin] = chosen_there;
        int t = origin, label = chosen_there, next = begin, met;
        if (begin % 2) {
            t -= 1 + chosen_there;
            label = t > 0 ? all.q.from[(i64)(t - 1) * labels + parent.chosen[begin - 1]] : 0;
            next = begin + 1;
        }
        __syncthreads(); // all have read the parent, and the new path's first nodes are there
        const int own = follow(all.q, path, next, t, label, parent, parent_nodes, begin, origin, met);
        const int moved = met < 0 ? 0 : own - met - 2, nodes = met < 0 ? own : parent_nodes + moved;
        const int stop = met < 0 ? own : own - 1; // the nodes behind it are the parent's
        copy(parent.chosen, path.chosen, stop, nodes, moved);
        copy(parent.boundary, path.boundary, stop, nodes, moved);
        copy(parent.other, path.other, stop, nodes, moved);
        copy(parent.value, path.value, stop, nodes, moved);
        copy(parent.step, path.step, stop, nodes, moved);
        if (threadIdx.x == 0) {
            scores[number + n] = best.worth;
            parent.worth[begin] = -infinity();
            first[number + n] = begin;
            roots[number + n] = root;
            parents[number + n] = best.path;
            used[number + n] = nodes;
        }
        __syncthreads(); // the path is there for all
        put_down(path, nodes, segments + (number + n) * frames * 2, sizes + number + n);
        if (n + 1 == count) return;
        for (int kind = 0; kind < 2; ++kind) // the threads of a warp then do the same
            for (int node = begin + (begin + kind) % 2 + 2 * (int)threadIdx.x; node < stop; node += 2 * THREADS) {
                find_other(all.q, path, node, node == begin ? root : NONE);
                path.step[node] = step_of(all.q, path, node);
            }
        __syncthreads(); // the values are there
        sum_steps(path, begin, nodes);
    }
}

// 64 well mixed bits (the finaliser of SplitMix64).
INSIDE u64 mixed(u64 x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}
#define GOLDEN 0x9e3779b97f4a7c15ULL

// What one sequence's draws depend on beside the seed: its scores and length; by all threads. `odd` where a score is NaN or
// +inf.
INSIDE u64 content_of(const REAL* score, int length, int labels, bool& odd) {
    __shared__ u64 sums[THREADS];
    __shared__ int any;
    if (threadIdx.x == 0) any = 0;
    __syncthreads();
    u64 sum = 0;
#pragma unroll 8
    for (i64 i = threadIdx.x; i < (i64)length * labels; i += THREADS) {
        const double one = score[i];
        if (!(one < infinity())) any = 1;
        sum += mixed((u64)__double_as_longlong(one + 0.0) + GOLDEN * (u64)(i + 1)); // -0.0 becomes 0.0
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    odd = any;
    sum = mixed((u64)length);
    for (int i = 0; i < THREADS; ++i) sum += sums[i];
    return sum;
}

INSIDE double power_of_two(int exponent) {
    const int raw = exponent < -1023 ? 0 : exponent > 1023 ? 2046 : exponent + 1023;
    return __longlong_as_double((i64)raw << 52);
}

// Whether weights that were all added up are their message.
INSIDE bool is_whole(double sum, double whole) {
    return fabs(sum - whole) <= EXACT * whole && whole > 0 && whole < infinity();
}

// What `messages` of semicrf.cu left of a sequence from the left, in float64: tables with CP columns, `onward` by the label
// that follows; rows of messages by frame.
struct Drawn {
    const double *onward, *table, *last, *source, *arrived;
    const int* exponent;
    const REAL *score, *tops;
    int labels, longest, length;
};

INSIDE Drawn drawn_of(const REAL* score, const REAL* tops, const double* onward, const double* table, const double* last,
                      const double* source, const double* arrived, const int* exponent, int b, int frames, int labels,
                      int longest, int stride, int table_first, int length) {
    const i64 row = (i64)b * frames, left = (i64)b * stride;
    const Drawn found = {onward + CP * CP, table + (i64)table_first * CP, last, source + left * CP, arrived + left * CP,
                         exponent + left, score + row * labels, tops + row, labels, longest, length};
    return found;
}

// The weight of frame f in segments of a label, from the messages before it to those after.
INSIDE double frame_weight(const Drawn& q, int f, int label) {
    const int step = q.exponent[f] - (f > 0 ? q.exponent[f - 1] : 0);
    return exp((double)q.score[(i64)f * q.labels + label] - (double)q.tops[f]) * power_of_two(-step);
}
INSIDE const double* steps_to(const Drawn& q, int next) { return next < 0 ? q.last : q.onward + next * CP; }

// Frames `low` to `high` as draws walk back through them, in shared memory, (ROWS, CP) each. `sums` (ROWS, CP, CP + 1), where
// there is room for them: of the weights of the labels up to each one, before a segment of each label.
struct Tile {
    double *arrived, *source, *weight, *sums;
    int low, high;
};

// A draw on its way back, by APART threads that all know it. It looks for the label that ends at boundary t, or, once it has it,
// for the duration: `tried` were not long enough, `content` and `sum` are their frames and weights, and `last` the longest with a
// weight. `whole` is the message that the weights are parts of; `reached` that before the segment of duration `last`.
struct Draw {
    u64 state;
    int t, next, label, tried, last, size, lane;
    double whole, target, sum, content, reached;
    bool exact;
};

// Random numbers in [0, 1), two for each segment, from that of `own.size` on; each of the draw's threads finds one.
INSIDE void fill(const Draw& own, double* uniforms) {
    DRAW_SYNC(); // all have read the ones before
    const u64 number = mixed(own.state + GOLDEN * (u64)(2 * own.size + own.lane + 1));
    uniforms[own.lane] = (double)(number >> 11) * 1.1102230246251565e-16;
    DRAW_SYNC(); // all are there
}

// The first label whose sum is above the target, or else the last with a weight; and the sum of all weights.
INSIDE int label_above(const Drawn& q, const double* weight, const double* step, double target, double& sum) {
    int found = NONE, last = NONE;
    sum = 0;
#pragma unroll 8
    for (int a = 0; a < q.labels; ++a) {
        const double one = weight[a] * step[a];
        sum += one;
        last = one > 0 ? a : last;
        found = found < 0 && sum > target ? a : found;
    }
    return found < 0 ? last : found;
}

INSIDE void draw_label(const Drawn& q, const Tile& tile, const double* uniforms, Draw& own) {
    const double *weight = tile.arrived + (own.t - 1 - tile.low) * CP, *step = steps_to(q, own.next);
    if (own.next < 0) {
        own.whole = 0;
        for (int a = 0; a < q.labels; ++a) own.whole += weight[a] * step[a];
    }
    double sum;
    own.label = label_above(q, weight, step, uniforms[0] * own.whole, sum);
    own.exact = own.label >= 0 && is_whole(sum, own.whole);
    own.whole = own.exact ? weight[own.label] : 0;
    own.target = uniforms[1] * own.whole;
    own.tried = own.last = 0;
    own.sum = own.reached = 0;
    own.content = 1;
}

// -> whether the duration is found; `exact` is false where there is none.
INSIDE bool draw_duration(const Drawn& q, const Tile& tile, Draw& own) {
    const int reach = smaller(q.longest, own.t);
    const double* table = q.table + (i64)own.tried * CP + own.label;
    int at = (own.t - 1 - own.tried - tile.low) * CP + own.label; // in the tile: there is one to try
    bool found;
    do {
        own.content *= tile.weight[at];
        const double message = tile.source[at], one = message * (own.content * *table);
        own.sum += one;
        ++own.tried;
        own.last = one > 0 ? own.tried : own.last;
        own.reached = one > 0 ? message : own.reached;
        found = own.sum > own.target;
        at -= CP;
        table += CP;
    } while (!found && own.tried < reach && at >= 0);
    if (found || own.tried < reach) return found;
    // All were added up, and rounding kept the sum from the target. Rows above the tile are gone: rarer still, and lost.
    own.exact = own.last > 0 && is_whole(own.sum, own.whole) && own.t - own.last <= tile.high;
    return own.exact;
}

INSIDE void move_on(Draw& own, int* segments, int label, int duration, double reached) {
    if (own.lane == 0) {
        segments[2 * own.size] = own.t;
        segments[2 * own.size + 1] = label;
    }
    ++own.size;
    own.t -= duration;
    own.next = label;
    own.whole = reached;
    own.label = NONE;
}

// A segment of one frame, if the draw has one next: the same without a branch, a lane for each label. -> whether it has.
INSIDE bool draw_single(const Drawn& q, const Tile& tile, const double* uniforms, int* segments, Draw& own) {
    const int row = (own.t - 1 - tile.low) * CP;
    const double* sums = tile.sums + (row + own.next) * (CP + 1);
    const double sum = sums[CP - 1];
    const unsigned above = DRAW_VOTE(sums[own.lane] > uniforms[0] * own.whole);
    const int label = above ? FIRST_BIT(above) : 0;
    const double message = tile.source[row + label], one = message * (tile.weight[row + label] * q.table[label]);
    if (!above | !is_whole(sum, own.whole) | !(one > uniforms[1] * tile.arrived[row + label])) return false;
    move_on(own, segments, label, 1, message);
    return true;
}

INSIDE void walk_tile(const Drawn& q, const Tile& tile, double* uniforms, int* segments, Draw& own) {
    while (own.exact && own.t > tile.low) {
        if (own.label < 0) {
            const int pair = 2 * own.size % APART;
            if (pair == 0) fill(own, uniforms);
            if (CP == APART && own.next >= 0 && draw_single(q, tile, uniforms + pair, segments, own)) continue;
            draw_label(q, tile, uniforms + pair, own);
        }
        if (!own.exact || !draw_duration(q, tile, own)) break; // lost, or to go on in the next tile
        move_on(own, segments, own.label, own.last, own.reached);
    }
}

// What a thread brings along for a tile, as it is in memory, for nobody to wait for it: messages, or a frame's score, top and
// powers of two.
struct Load {
    double first, second;
    int power, before;
};
#define LOADERS (THREADS / 4)                          /* threads for messages, and as many for weights */
#define LOADS ((ROWS * CP + LOADERS - 1) / LOADERS)
INSIDE Load load_of(const Drawn& q, bool messages, int f, int high, int c) {
    Load found = {0, 0, 0, 0};
    if (f >= high) return found;
    if (messages) {
        found.first = q.arrived[(i64)f * CP + c];
        found.second = q.source[(i64)f * CP + c];
    } else if (c < q.labels) {
        found.first = (double)q.score[(i64)f * q.labels + c];
        found.second = (double)q.tops[f];
        found.power = q.exponent[f];
        found.before = f > 0 ? q.exponent[f - 1] : 0;
    }
    return found;
}

// The sums of a row before segments of label c, of which all CP are to be there.
INSIDE void add_up(const Tile& tile, const double* __restrict__ onward, int row, int c) {
    const double* arrived = tile.arrived + row * CP;
    double sum = 0, *sums = tile.sums + (row * CP + c) * (CP + 1);
#pragma unroll
    for (int begin = 0; begin < USED; begin += PIECE) {
        double from[PIECE], step[PIECE];
#pragma unroll
        for (int a = 0; a < PIECE; ++a) {
            from[a] = arrived[begin + a];
            step[a] = onward[(begin + a) * CP + c];
        }
        DRAW_SYNC(); // else the compiler loads each only behind the store before it
#pragma unroll
        for (int a = 0; a < PIECE; ++a) {
            sum += from[a] * step[a];
            sums[begin + a] = sum;
        }
    }
#pragma unroll
    for (int a = USED; a < CP; ++a) sums[a] = sum;
}

INSIDE Tile tile_at(double (*rows)[ROWS * CP], double* sums, int i, int length) {
    const int high = length - i * ROWS, at = i & 1;
    const Tile found = {rows[3 * at], rows[3 * at + 1], rows[3 * at + 2],
                        sums + (CP == APART ? at * ROWS * CP * (CP + 1) : 0), higher(0, high - ROWS), high};
    return found;
}

// Draws, a walker of APART threads each in half of the threads, while the others prepare the tile after; grid
// (ceil(samples * APART * 2 / THREADS), B). `stride` rows of messages for each sequence.
// `flagged` (B, samples) is 1 where weights do not add up to their message or a score is odd, 2 where nothing is feasible.
extern "C" __global__ void __launch_bounds__(THREADS) draws(
    const REAL* __restrict__ score, const REAL* __restrict__ tops, const double* __restrict__ onward,
    const double* __restrict__ table, const double* __restrict__ last, const i64* __restrict__ lengths,
    const double* __restrict__ source, const double* __restrict__ arrived, const int* __restrict__ exponent,
    const double* __restrict__ z_value, u64 seed, int* __restrict__ segments,
    int* __restrict__ sizes, int* __restrict__ flagged, int frames, int labels, int longest, int samples, int stride,
    int table_first) {
    __shared__ double rows[6][ROWS * CP], sums[CP == APART ? 2 * ROWS * CP * (CP + 1) : 1], uniforms[THREADS / 2];
    const int b = blockIdx.y, n = blockIdx.x * (THREADS / 2 / APART) + (int)threadIdx.x / APART;
    const bool walks = threadIdx.x < THREADS / 2, here = walks && n < samples;
    const int length = length_of(lengths, b, frames), loader = (int)threadIdx.x % LOADERS;
    const bool messages = threadIdx.x < THREADS / 2 + LOADERS;
    const i64 number = (i64)b * samples + n;
    const double z = z_value[2 * b];
    const bool feasible = z > 0 && z < infinity();
    const Drawn q = drawn_of(score, tops, onward, table, last, source, arrived, exponent, b, frames, labels, longest, stride,
                             table_first, length);
    Draw own = {0, length, NONE, NONE, 0, 0, 0, (int)threadIdx.x % APART, 0, 0, 0, 0, 0, feasible};
    bool odd;
    own.state = mixed(mixed(mixed(seed + GOLDEN) ^ content_of(q.score, length, labels, odd)) + (u64)n * GOLDEN);
    const int tiles = feasible ? (length + ROWS - 1) / ROWS : 0;
    Load loads[LOADS];
    for (int i = -2; i < tiles; ++i) { // tile i is walked through, i + 1 prepared, i + 2 loaded
        if (walks) {
            if (here && i >= 0)
                walk_tile(q, tile_at(rows, sums, i, length), uniforms + threadIdx.x / APART * APART,
                          segments + number * frames * 2, own);
        } else {
            const Tile tile = tile_at(rows, sums, i + 1, length), after = tile_at(rows, sums, i + 2, length);
            const bool next = i >= -1 && i + 1 < tiles;
#pragma unroll
            for (int j = 0; j < LOADS; ++j) {
                const int at = loader + j * LOADERS;
                if (at >= ROWS * CP) continue;
                if (next && messages) {
                    tile.arrived[at] = loads[j].first;
                    tile.source[at] = loads[j].second;
                } else if (next) {
                    tile.weight[at] =
                        exp(loads[j].first - loads[j].second) * power_of_two(loads[j].before - loads[j].power);
                }
                loads[j] = load_of(q, messages, after.low + at / CP, after.high, at % CP);
            }
            if (CP == APART && next && messages) {
                DRAW_SYNC(); // a row's messages are there for its threads
                for (int at = loader; at < ROWS * CP; at += LOADERS) add_up(tile, onward, at / CP, at % CP);
            }
        }
        __syncthreads(); // the tile is there, the one before it free
    }
    if (!here || own.lane) return;
    sizes[number] = own.exact ? own.size : 0;
    flagged[number] = odd ? 1 : own.exact ? 0 : z == 0 ? 2 : 1;
}

INSIDE bool has_odd(const double* values, i64 count) {
    bool odd = false;
    for (i64 i = threadIdx.x; i < count; i += THREADS) odd |= !(values[i] < infinity());
    return odd;
}

// Whether all weights at the segments of a sequence's first draw add up to their messages, and no parameter is NaN or +inf: a
// thread for each segment; grid (ceil(T / THREADS), B).
extern "C" __global__ void __launch_bounds__(THREADS) check_draws(
    const REAL* __restrict__ score, const REAL* __restrict__ tops, const double* __restrict__ onward,
    const double* __restrict__ table, const double* __restrict__ last, const i64* __restrict__ lengths,
    const double* __restrict__ source, const double* __restrict__ arrived, const int* __restrict__ exponent,
    const double* __restrict__ transition, const double* __restrict__ duration, const double* __restrict__ start,
    const double* __restrict__ end, const int* __restrict__ segments, const int* __restrict__ sizes,
    int* __restrict__ flagged, int frames, int labels, int longest, int samples, int stride, int table_first) {
    const int b = blockIdx.y, i = blockIdx.x * THREADS + threadIdx.x;
    const i64 number = (i64)b * samples;
    if (blockIdx.x == 0 && (has_odd(transition, labels * labels) | has_odd(duration, (i64)longest * labels) |
                            has_odd(start, labels) | has_odd(end, labels)))
        flagged[number] = 1;
    if (i >= sizes[number]) return;
    const Drawn q = drawn_of(score, tops, onward, table, last, source, arrived, exponent, b, frames, labels, longest, stride,
                             table_first, length_of(lengths, b, frames));
    const int* segment = segments + (number * frames + i) * 2;
    const int t = segment[0], label = segment[1], reach = smaller(longest, t);
    double content = 1, sum = 0;
#pragma unroll 4
    for (int k = 1; k <= reach; ++k) {
        content *= frame_weight(q, t - k, label);
        sum += q.source[(i64)(t - k) * CP + label] * (content * q.table[(i64)(k - 1) * CP + label]);
    }
    if (!is_whole(sum, q.arrived[(i64)(t - 1) * CP + label])) flagged[number] = 1;
}
