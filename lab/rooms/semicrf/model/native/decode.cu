// Best segmentations and exact draws in CUDA C, float64: what decode.cpp computes, a block of threads for each sequence.
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
// Given beside what device.h says: REAL (the scores' type), TILE (rows of a walk's tile), APART (threads that a walk of a draw has
// to itself: a warp), DRAWS (for which a thread chooses at once).

#define EACH (N / SLICES)
#define HELD (CP <= 64 ? CP : 1) /* transitions of a label that its thread holds: more than 64 take too many registers */
#define AT_ONCE (USED <= 32 ? USED : USED % 16 ? 8 : 16) /* values of other labels at once: beside transitions there is no room */
#define RUN 4
#define LANES_AHEAD 4               /* choices that a lane loads before it waits */
#define REACH (RUN * SLICES)        /* boundaries that a block of threads joins the steps of */
#define AT_A_TIME 8                 /* values that a thread copies or looks at before it waits for the next */
#define PIECE (USED < 8 ? USED : 8) /* weights that are added up before the next are loaded */
#define AHEAD 4                     /* the same of durations */
#define OUT (TILE * USED)           /* of a tile of a draw's states */
#define EXACT 1.0e-9
#define LARGE 1.0e6 /* beside larger scores others lose digits */
#define FAR 1.0e9   /* FAR of terms.py: what all starts or ends pay beyond it is taken out */
#define NONE (-1)
#if CP == 32 && defined(__CUDACC__)
#define LOADED_SYNC() __syncwarp() /* else the compiler loads one value, waits, uses it and loads the next */
#else
#define LOADED_SYNC()
#endif
#ifndef APART_SYNC // among APART threads
#define APART_SYNC() __syncwarp()
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

INSIDE bool is_large(double value) { return !(value >= -LARGE && value <= LARGE); } // NaN is

// The model in float64 from parameters that are `doubles` or as the scores, CP columns each and -inf where nothing is: rows of
// transitions from each label, then where a sequence starts and ends, then durations. Programs beyond those take THREADS frames
// of all sequences each. `odd` is 1 for each program that saw a NaN or +inf, a frame whose largest score is large, or starts or
// ends that are all far; grid (ceil(ROWS * CP / THREADS) + ceil(B * T / THREADS)).
KERNEL(THREADS) prepare(
    In<void> transition, In<void> duration, In<void> start, In<void> end, In<REAL> score, In<i64> lengths, Out<double> model,
    Out<int> odd, int doubles, int batch, int frames, int labels, int longest, int rows, int programs) {
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
        if ((row == CP || row == CP + 1) && c == 0) {
            double top = -infinity();
            for (int label = 0; label < labels; ++label)
                top = larger(doubles ? ((const double*)from)[label] : (double)((const REAL*)from)[label], top);
            if (fabs(top) > FAR && fabs(top) < infinity()) any = 1;
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) odd[blockIdx.x] = any;
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

// The steps back from segments of c that start at boundary s, for all of them, row s - 1; those that leave the REACH boundaries of
// the block of threads, and how many steps each of them is; and where more than one path is wanted gamma of each boundary s, row s;
// `ends` is cleared for them; grid (ceil(T / REACH), B).
KERNEL(THREADS) best_labels(
    In<double> model, In<double> alpha, In<i64> lengths, In<int> lasts, Out<int> steps, Out<int> exits, Out<u8> hops,
    Out<double> gamma, Out<u8> ends, int frames, int labels, int paths) {
    __shared__ int ahead[RUN * THREADS];
    __shared__ u8 passes[RUN * THREADS];
    const int b = blockIdx.y, c = threadIdx.x % CP, near = (int)threadIdx.x / CP * RUN, first = blockIdx.x * REACH + near;
    const int count = c < labels ? smaller(RUN, length_of(lengths, b, frames) - first) : 0;
    const bool keep = paths > 1;
    const i64 row = ((i64)b * frames + first) * labels;
    for (int i = threadIdx.x; i < paths * REACH; i += THREADS) {
        const int f = blockIdx.x * REACH + i % REACH;
        if (f < frames) ends[((i64)b * paths + i / REACH) * frames + f] = 0;
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
    int step[RUN], passed[RUN];
    UNROLLED(r, 0, RUN) { // a duration is at least 1: a walk ends, whatever it walks through
        const int k = r < count ? higher(1, lasts[row + (i64)r * labels + best[r].after]) : 1;
        step[r] = k * CP + best[r].after;
        passed[r] = 1;
    }
    UNROLLED(r, 0, RUN)
        if (r < count) {
            steps[row + (i64)r * labels + c] = step[r];
            if (keep && first + r + 1 < frames) gamma[row + (i64)(r + 1) * labels + c] = best[r].value;
        }
    if (keep && first == 0 && c < labels) gamma[row + c] = model[CP * CP + c];
    for (int joined = 1; joined < REACH; joined *= 2) {
        UNROLLED(r, 0, RUN) {
            ahead[(near + r) * CP + c] = step[r];
            passes[(near + r) * CP + c] = (u8)passed[r];
        }
        __syncthreads(); // all steps are there
        UNROLLED(r, 0, RUN) {
            const int label = step[r] % CP, to = (near + r - step[r] / CP) * CP + label;
            if (to < 0) continue;
            step[r] += ahead[to] - label;
            passed[r] += passes[to];
        }
        __syncthreads(); // all have read the steps
    }
    UNROLLED(r, 0, RUN)
        if (r < count) {
            exits[row + (i64)r * labels + c] = step[r];
            if (keep) hops[row + (i64)r * labels + c] = (u8)passed[r];
        }
}

// A path from its end: nodes are labels and durations (less 1) in turn. `boundary` is each node's, `behind` what lies behind
// it is worth. `other` is the best other choice at the node, `value` what that is worth with all that lies before it, -inf where
// there is none. `worth` is that of the whole segmentation, -inf once it was taken; `step` is what the choice itself is worth.
struct Path {
    int *chosen, *boundary, *other;
    double *worth, *behind, *value, *step;
};

// What the search for the best segmentations of a sequence is about: alpha of boundary t in row t - 1, gamma of boundary s in row
// s; and the paths, `nodes` each, of which `first` is the best. `begin` is the first node of each that its parent does not have.
struct Search {
    const REAL* score;
    const double *model, *alpha, *gamma;
    const int *lasts, *steps, *begin, *parent;
    Path first;
    i64 number, nodes; // `number` paths are of other sequences
    int labels, longest, length;
};
INSIDE Search search_of(const REAL* score, const double* model, const i64* lengths, const int* lasts, const int* steps,
                        const double* alpha, const double* gamma, int* chosen, int* boundary, int* other, double* worth,
                        double* behind, double* value, double* step, const int* first, const int* parents, int b, int frames,
                        int labels, int longest, int count) {
    const i64 at = (i64)b * frames * labels, number = (i64)b * count, nodes = number * 2 * frames;
    const Path best = {chosen + nodes, boundary + nodes, other + nodes, worth + nodes, behind + nodes, value + nodes, step + nodes};
    const Search found = {score + at, model, alpha + at, gamma + at, lasts + at, steps + at, first + number, parents + number, best,
                          number, (i64)2 * frames, labels, longest, length_of(lengths, b, frames)};
    return found;
}
INSIDE Path path_at(const Search& q, int n) {
    const i64 at = q.nodes * n;
    const Path found = {q.first.chosen + at, q.first.boundary + at, q.first.other + at, q.first.worth + at,
                        q.first.behind + at, q.first.value + at, q.first.step + at};
    return found;
}

INSIDE double label_step(const Search& q, int label, int next) {
    return q.model[next < 0 ? (CP + 1) * CP + label : label * CP + next];
}
INSIDE double duration_of(const Search& q, int label, int k) { return q.model[(i64)(CP + 1 + k) * CP + label]; }
INSIDE double worth_of(double behind, double value) { return value > -infinity() ? behind + value : -infinity(); }

// By all threads, several loads before the first store: the compiler knows nothing of different paths.
template <typename Value> INSIDE void copy(const Value* from, Value* to, int begin, int stop, int moved) {
    for (int at = begin + threadIdx.x; at < stop; at += AT_A_TIME * THREADS) {
        Value values[AT_A_TIME];
        UNROLLED(i, 0, AT_A_TIME) values[i] = from[smaller(at + i * THREADS, stop - 1) - moved];
        UNROLLED(i, 0, AT_A_TIME)
            if (at + i * THREADS < stop) to[at + i * THREADS] = values[i];
    }
}

INSIDE void put_segment(const Path& path, int node, int end, int step) {
    path.chosen[node] = step % CP;
    path.chosen[node + 1] = step / CP - 1;
    path.boundary[node] = path.boundary[node + 1] = end;
}

// The best choices before boundary s, where a segment of c starts; nodes from `nodes` on, by all threads. -> the number of nodes.
// It ends behind the first segment that `parent` has, too, after its node `begin` of boundary `origin`: `met` is that segment's
// first node there. What lies before a segment depends on nothing else.
INSIDE int follow(const Search& q, const Path& path, int nodes, int s, int c, const Path& parent, int parent_nodes, int begin,
                  int origin, int& met) {
    __shared__ int tile[TILE * CP], marks[TILE], mark_labels[TILE], ends[TILE], passed[TILE], walked[4];
    met = NONE;
    while (s > 0 && met < 0) {
        const int low = higher(0, s - TILE), states = (s - low) * q.labels;
        for (int i = threadIdx.x; i < TILE; i += THREADS) marks[i] = NONE;
        copy(q.steps + (i64)low * q.labels, tile, 0, states, 0);
        __syncthreads(); // a mark comes behind what it marks
        const int nodes_there = smaller(parent_nodes, begin + 2 + 2 * (origin - low)); // each segment has a frame
        for (int node = begin + 1 + (begin + 1) % 2 + 2 * (int)threadIdx.x; node < nodes_there; node += 2 * THREADS) {
            const int row = parent.boundary[node] - 1 - low;
            if (row < 0 || row >= s - low) continue;
            marks[row] = node;
            mark_labels[row] = parent.chosen[node];
        }
        __syncthreads(); // the tile is there for the walk
        if (threadIdx.x == 0) {
            int count = 0;
            while (s > low && met < 0) {
                const int row = s - 1 - low, step = tile[row * q.labels + c];
                ends[count] = s;
                passed[count++] = step;
                c = step % CP;
                s -= step / CP;
                if (marks[row] >= 0 && mark_labels[row] == c) met = marks[row];
            }
            const int left[4] = {count, met, s, c};
            for (int i = 0; i < 4; ++i) walked[i] = left[i];
        }
        __syncthreads();
        for (int i = threadIdx.x; i < walked[0]; i += THREADS) put_segment(path, nodes + 2 * i, ends[i], passed[i]);
        nodes += 2 * walked[0];
        met = walked[1];
        s = walked[2];
        c = walked[3];
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
        UNROLLED(j, 0, AT_A_TIME) {
            steps[j] = path.step[smaller(i + j, stop - 1)];
            values[j] = path.value[smaller(i + j, stop - 1) + 1];
        }
        UNROLLED(j, 0, AT_A_TIME) {
            sum += steps[j];
            if (i + j >= stop) continue;
            path.behind[i + j + 1] = sum + before;
            path.worth[i + j + 1] = worth_of(sum + before, values[j]);
        }
    }
    __syncthreads(); // the nodes are there for all, the sums are free again
}

INSIDE void put_other(const Path& path, int node, const Best& best, double step) {
    path.other[node] = best.after;
    path.value[node] = best.value;
    path.step[node] = step;
}

// Whether a choice comes after the chosen one, which is worth `own`, in the order of worth.
INSIDE bool comes_after(double value, int choice, double own, int chosen) {
    return choice != chosen && (value < own || (value == own && choice > chosen));
}

// The best other choice at a node, by APART threads: any but `chosen`, or where there is a `root` what comes after `chosen`, which
// is worth `own`, in the order of worth, and is not `root`. And what the choice itself is worth. Durations come in ascending
// order, their frames added up one after the other.
INSIDE void find_other(const Search& q, const Path& path, int node, int root, double own) {
    __shared__ double values[THREADS], taken[THREADS / APART];
    __shared__ int choices[THREADS];
    const int t = path.boundary[node], chosen = path.chosen[node], at = threadIdx.x, lane = at % APART;
    const bool label = node % 2 == 0;
    const int around = label ? (node ? path.chosen[node - 2] : NONE) : path.chosen[node - 1];
    const int count = label ? q.labels : smaller(q.longest, t);
    Best best = {-infinity(), NONE};
    double content = 0;
    for (int begin = 0; begin < count; begin += LANES_AHEAD * APART) {
        double before[LANES_AHEAD], frames[LANES_AHEAD], steps[LANES_AHEAD];
        UNROLLED(j, 0, LANES_AHEAD) {
            const int i = smaller(begin + j * APART + lane, count - 1), s = t - 1 - i;
            before[j] = label ? q.alpha[(i64)(t - 1) * q.labels + i] : q.gamma[(i64)s * q.labels + around];
            frames[j] = label ? 0 : (double)q.score[(i64)s * q.labels + around];
            steps[j] = label ? label_step(q, i, around) : duration_of(q, around, i + 1);
        }
        UNROLLED(j, 0, LANES_AHEAD) {
            const int i = begin + j * APART + lane;
            if (i - lane >= count) break;
            double step = steps[j];
            if (!label) {
                values[at] = frames[j];
                APART_SYNC(); // the frames are there
                double sum = content;
#pragma unroll 8
                for (int n = 0; n < APART; ++n) {
                    sum += values[at - lane + n];
                    if (n == lane) step = sum + steps[j];
                }
                content = sum;
                APART_SYNC(); // all have read the frames
            }
            const double value = before[j] + step;
            const bool behind = i < count && i != root && comes_after(value, i, own, chosen);
            look_at(best, behind ? value : -infinity(), i);
            if (i == chosen) taken[at / APART] = step;
        }
    }
    for (int apart = APART / 2; apart > 0; apart /= 2) {
        values[at] = best.value;
        choices[at] = best.after;
        APART_SYNC(); // what all have is there
        const int other = lane < apart ? at + apart : at;
        const bool better = values[other] > best.value || (values[other] == best.value && choices[other] < best.after);
        best.after = better ? choices[other] : best.after;
        best.value = better ? values[other] : best.value;
        APART_SYNC(); // all have read it
    }
    if (lane == 0) put_other(path, node, best, taken[at / APART]);
    APART_SYNC(); // the shared values are free again
}

struct Deviation {
    int path, node;
    double worth;
};

// Up to where two paths are the same: the later one is no parent of the other.
INSIDE int common_nodes(const Search& q, int a, int b) {
    int found = 1 << 30;
    while (a != b) {
        int& later = a > b ? a : b;
        found = smaller(found, q.begin[later]);
        later = q.parent[later];
    }
    return found;
}

// Of two with the same worth: the smaller choice where they differ first.
INSIDE bool comes_first(const Search& q, const Deviation& a, const Deviation& b) {
    const Path x = path_at(q, a.path), y = path_at(q, b.path);
    const int last = smaller(a.node, b.node);
    for (int node = smaller(common_nodes(q, a.path, b.path), last); node <= last; ++node) {
        const int one = node == a.node ? x.other[node] : x.chosen[node], two = node == b.node ? y.other[node] : y.chosen[node];
        if (one != two) return one < two;
    }
    return a.node > b.node;
}

INSIDE bool is_better(const Search& q, const Deviation& a, const Deviation& b) {
    return a.worth > b.worth || (a.worth == b.worth && a.worth > -infinity() && comes_first(q, a, b));
}

// Where the segments of a path end, by all threads: as its parent's behind its node `begin` and before boundary `met`.
INSIDE void put_down(const Path& path, const u8* from, u8* to, int length, int begin, int nodes, int met) {
    copy(from, to, 0, met, 0);
    copy(from, to, path.boundary[begin] - begin % 2, length, 0);
    for (int node = begin + begin % 2 + 2 * (int)threadIdx.x; node < nodes; node += 2 * THREADS)
        to[path.boundary[node] - 1] = (u8)(path.chosen[node] + 1);
}

// The best segmentation; grid (B). -> score (B, count), -inf where there is none, and `ends` (B, count, T): label + 1 where a
// segment ends with that frame, else 0 as before; with more than one also its nodes, in arrays (B, count, 2 T). One thread goes from run to
// run of REACH boundaries, then each has a run to walk through.
KERNEL(THREADS) best_path(
    In<i64> lengths, In<int> lasts, In<int> steps, In<int> exits, In<u8> hops, In<double> best_score, In<int> last_label,
    Out<int> chosen, Out<int> boundary, Out<int> first, Out<int> roots, Out<int> parents, Out<int> used, Out<double> scores,
    Out<u8> ends, int frames, int labels, int count) {
    __shared__ int starts[THREADS], before[THREADS], segments[THREADS], runs;
    const int b = blockIdx.x, last = last_label[b], length = length_of(lengths, b, frames), at = threadIdx.x;
    const i64 states = (i64)b * frames * labels, number = (i64)b * count;
    const Path path = {chosen + number * 2 * frames, boundary + number * 2 * frames};
    ends += number * frames;
    for (int n = at; n < count; n += THREADS) scores[number + n] = n == 0 ? best_score[b] : -infinity();
    int s = 0, c = last, segment = 0, found;
    if (last >= 0) { // the last segment, from no step
        const int k = higher(1, lasts[states + (i64)(length - 1) * labels + last]);
        s = length - k;
        segment = 1;
        if (at == 0) ends[length - 1] = (u8)(last + 1);
        if (at == 0 && count > 1) put_segment(path, 0, length, k * CP + last);
    }
    do {
        if (at == 0) {
            for (found = 0; found < THREADS && s > 0; ++found) {
                const i64 state = states + (i64)(s - 1) * labels + c;
                const int exit = exits[state], passed = count > 1 ? hops[state] : 0;
                starts[found] = s;
                before[found] = c;
                segments[found] = segment;
                segment += passed;
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
            for (int n = segments[at]; t > low; ++n) {
                const int step = steps[states + (i64)(t - 1) * labels + label];
                label = step % CP;
                ends[t - 1] = (u8)(label + 1);
                if (count > 1) put_segment(path, 2 * n, t, step);
                t -= step / CP;
            }
        }
        __syncthreads(); // runs are walked through
    } while (found == THREADS);
    if (at == 0 && count > 1) {
        first[number] = 0;
        roots[number] = parents[number] = NONE;
        used[number] = 2 * segment;
    }
}

// What a choice of a node is worth, all that lies before it included. Durations come in ascending order: `content` are the
// frames of those before.
INSIDE double choice_worth(const Search& q, bool label, int t, int around, int choice, double& content) {
    if (label) return q.alpha[(i64)(t - 1) * q.labels + choice] + label_step(q, choice, around);
    const i64 at = (i64)(t - 1 - choice) * q.labels + around;
    content += (double)q.score[at];
    return q.gamma[at] + (content + duration_of(q, around, choice + 1));
}

// The steps of the best path and the best other choice at each of its nodes, a thread each; grid (ceil(T / THREADS), 2, B): labels,
// then durations.
KERNEL(THREADS) other_choices(
    In<REAL> score, In<double> model, In<i64> lengths, In<int> lasts, In<int> steps, In<double> alpha, In<double> gamma,
    int* chosen, int* boundary, int* other, double* worth, double* behind, double* value, double* step, In<int> first,
    In<int> parents, In<int> used, int frames, int labels, int longest, int count) {
    const Search q = search_of(score, model, lengths, lasts, steps, alpha, gamma, chosen, boundary, other, worth, behind, value,
                                 step, first, parents, blockIdx.z, frames, labels, longest, count);
    const Path path = path_at(q, 0);
    const int node = 2 * (blockIdx.x * THREADS + (int)threadIdx.x) + blockIdx.y;
    if (node >= used[q.number]) return;
    const bool label = node % 2 == 0;
    const int t = path.boundary[node], own = path.chosen[node], choices = label ? labels : smaller(longest, t);
    const int around = label ? (node ? path.chosen[node - 2] : NONE) : path.chosen[node - 1];
    Best best = {-infinity(), NONE};
    double content = 0;
#pragma unroll 8
    for (int i = 0; i < choices; ++i) {
        const double one = choice_worth(q, label, t, around, i, content);
        look_at(best, comes_after(one, i, infinity(), own) ? one : -infinity(), i);
    }
    content = 0;
    for (int i = 0; !label && i <= own; ++i) content += (double)q.score[(i64)(t - 1 - i) * labels + around];
    put_other(path, node, best, label ? label_step(q, own, around) : content + duration_of(q, around, own + 1));
}

// The best deviation from all paths so far, by all threads.
INSIDE Deviation best_deviation(const Search& q, int n, const int* used) {
    __shared__ Deviation found[THREADS];
    Deviation own = {NONE, 0, -infinity()};
    for (int p = 0; p < n; ++p) {
        const double* worth = path_at(q, p).worth;
        const int stop = used[p];
        for (int node = q.begin[p] + threadIdx.x; node < stop; node += AT_A_TIME * THREADS) {
            double worths[AT_A_TIME];
            UNROLLED(i, 0, AT_A_TIME) worths[i] = worth[smaller(node + i * THREADS, stop - 1)];
#pragma unroll 1
            for (int i = 0; i < AT_A_TIME && node + i * THREADS < stop; ++i) {
                const Deviation one = {p, node + i * THREADS, worths[0]};
                if (is_better(q, one, own)) own = one;
                UNROLLED(j, 1, AT_A_TIME) worths[j - 1] = worths[j];
            }
        }
    }
    found[threadIdx.x] = own;
    __syncthreads();
    for (int step = THREADS / 2; step > 0; step /= 2) {
        if (threadIdx.x < step && is_better(q, found[threadIdx.x + step], found[threadIdx.x]))
            found[threadIdx.x] = found[threadIdx.x + step];
        __syncthreads();
    }
    return found[0];
}

// The further segmentations of a sequence, by Lawler's way: the best of all other choices at all nodes of the paths so far leads
// to the next, which is new only up to where it meets the path that it left; grid (B).
KERNEL(THREADS) further_paths(
    In<REAL> score, In<double> model, In<i64> lengths, In<int> lasts, In<int> steps, In<double> alpha, In<double> gamma,
    int* chosen, int* boundary, int* other, double* worth, double* behind, double* value, double* step, int* first, int* roots,
    int* parents, int* used, Out<double> scores, u8* ends, int frames, int labels, int longest, int count) {
    const Search q = search_of(score, model, lengths, lasts, steps, alpha, gamma, chosen, boundary, other, worth, behind, value,
                                 step, first, parents, blockIdx.x, frames, labels, longest, count);
    const i64 number = q.number;
    if (used[number] == 0) return;
    if (threadIdx.x == 0) path_at(q, 0).behind[0] = 0;
    __syncthreads(); // what lies behind the first node is there
    sum_steps(path_at(q, 0), 0, used[number]);
    for (int n = 1; n < count; ++n) {
        const Deviation best = best_deviation(q, n, used + number);
        if (best.path < 0) return;
        const Path path = path_at(q, n), parent = path_at(q, best.path);
        const int begin = best.node, parent_nodes = used[number + best.path], origin = parent.boundary[begin];
        const int root = begin == first[number + best.path] && roots[number + best.path] >= 0 ? roots[number + best.path]
                                                                                             : parent.chosen[begin];
        const int chosen_there = parent.other[begin];
        const double own_there = parent.value[begin];
        const bool cuts = begin % 2; // else the label there is another one
        const int label = cuts ? parent.chosen[begin - 1] : chosen_there;
        const int k = cuts ? 1 + chosen_there : higher(1, q.lasts[(i64)(origin - 1) * labels + label]);
        copy(parent.chosen, path.chosen, 0, begin, 0);
        copy(parent.boundary, path.boundary, 0, begin, 0);
        copy(parent.behind, path.behind, 0, begin + 1, 0);
        __syncthreads(); // the new path's first nodes are there
        if (threadIdx.x == 0) put_segment(path, begin - begin % 2, origin, k * CP + label);
        int met;
        const int next = begin - begin % 2 + 2, own = follow(q, path, next, origin - k, label, parent, parent_nodes, begin,
                                                             origin, met);
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
        put_down(path, ends + (number + best.path) * frames, ends + (number + n) * frames, q.length, begin, own,
                 met < 0 ? 0 : parent.boundary[met]);
        if (n + 1 == count) return;
        for (int node = begin + (int)threadIdx.x / APART; node < stop; node += THREADS / APART)
            find_other(q, path, node, node == begin ? root : NONE, node == begin ? own_there : infinity());
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

// ROUND sums over all threads, once in a kernel; and the sum of them.
INSIDE const u64* sums_of_block(u64 own) {
    __shared__ u64 sums[THREADS];
    sums[threadIdx.x] = own;
    __syncthreads();
    if (threadIdx.x < ROUND) {
        for (int i = threadIdx.x + ROUND; i < THREADS; i += ROUND) own += sums[i];
        sums[threadIdx.x] = own;
    }
    __syncthreads();
    return sums;
}
INSIDE u64 total_of(const u64* sums) {
    u64 total = 0;
    for (int i = 0; i < ROUND; ++i) total += sums[i];
    return total;
}

INSIDE bool has_odd(const REAL* values, i64 count) {
    bool odd = false;
#pragma unroll 4
    for (i64 i = threadIdx.x; i < count; i += THREADS) odd |= !(values[i] < infinity());
    return odd;
}

// A frame in segments of a label: its weight, from the message before it to the one after, and the message before it.
struct __align__(16) Frame {
    double weight, message;
};

// That of all frames and labels, (B, T, CP). `contents` (B, programs) add up to what a sequence's draws depend on beside the
// seed: its scores and length. `odd` (B, programs) is 1 where a score, or any parameter, is NaN or +inf; grid (programs, B),
// RUN * SLICES frames each.
KERNEL(THREADS) weigh_frames(
    In<REAL> score, In<double> tops, In<i64> lengths, In<double> source, In<int> exponent, In<REAL> transition, In<REAL> duration,
    In<REAL> start, In<REAL> end, Out<Frame> weighed, Out<u64> contents, Out<int> odd, int frames, int labels, int longest,
    int stride) {
    __shared__ int any;
    const int b = blockIdx.y, c = threadIdx.x % CP, first = (blockIdx.x * SLICES + (int)threadIdx.x / CP) * RUN;
    const int length = length_of(lengths, b, frames), count = c < labels ? smaller(RUN, length - first) : 0;
    const i64 row = (i64)b * frames + first, left = (i64)b * stride + first, place = (i64)b * gridDim.x + blockIdx.x;
    if (threadIdx.x == 0) any = 0;
    __syncthreads();
    bool bad = blockIdx.x == 0 && (has_odd(transition, labels * labels) | has_odd(duration, (i64)longest * labels) |
                                   has_odd(start, labels) | has_odd(end, labels));
    double scores[RUN], largest[RUN], messages[RUN];
    int power[RUN + 1];
    if (count > 0) power[0] = first > 0 ? exponent[left - 1] : 0;
    UNROLLED(r, 0, RUN) {
        if (r >= count) continue;
        scores[r] = score[(row + r) * labels + c];
        largest[r] = tops[row + r];
        messages[r] = source[(left + r) * CP + c];
        power[r + 1] = exponent[left + r];
    }
    u64 sum = blockIdx.x || threadIdx.x ? 0 : mixed((u64)length);
    UNROLLED(r, 0, RUN) {
        if (r >= count) continue;
        bad |= !(scores[r] < infinity());
        const Frame found = {exp(scores[r] - largest[r]) * power_of_two_64(power[r] - power[r + 1]), messages[r]};
        weighed[(row + r) * CP + c] = found;
        const u64 number = (u64)(first + r) * (u64)labels + (u64)(c + 1);
        sum += mixed((u64)__double_as_longlong(scores[r] + 0.0) + GOLDEN * number); // -0.0 becomes 0.0
    }
    if (bad) any = 1;
    const u64* sums = sums_of_block(sum);
    if (threadIdx.x) return;
    contents[place] = total_of(sums);
    odd[place] = any;
}

// Whether weights that were all added up are their message.
INSIDE bool is_whole(double sum, double whole) {
    return fabs(sum - whole) <= EXACT * whole && whole > 0 && whole < infinity();
}

// A sequence, and a thread block's boundaries behind frames from `begin` on: the messages there are in `rows`. `took` are the
// durations drawn for their labels.
struct Drawn {
    const Frame* frames;
    const double *table, *rows, *uniforms;
    int* took;
    int labels, longest, length, begin;
};

// A search among the durations of a segment for COUNT draws: the sum of the weights of all up to one, and the longest whose sum
// is not above each target. Sums only grow: what was found stays.
template <int COUNT> struct Durations {
    double targets[COUNT], most, content, sum;
    int found[COUNT];
};
template <int COUNT> INSIDE void look_at_duration(Durations<COUNT>& search, const Frame& frame, double step, int k) {
    search.content *= frame.weight;
    search.sum += frame.message * (search.content * step);
    UNROLLED(s, 0, COUNT) search.found[s] = search.sum > search.targets[s] ? search.found[s] : k;
}

// The durations of a segment of `label` that ends behind the block's frame `row`; 0 where weights are not their message.
template <int COUNT> INSIDE void choose_durations(const Drawn& q, int row, int label) {
    const int f = q.begin + row, reach = smaller(q.longest, f + 1);
    const double whole = q.rows[row * CP + label], *uniforms = q.uniforms + row * 2 * DRAWS, *step = q.table + label;
    const Frame* frame = q.frames + (i64)f * CP + label;
    Durations<COUNT> search;
    search.content = whole > 0 && whole < infinity();
    search.most = search.sum = 0;
    UNROLLED(s, 0, COUNT) {
        search.targets[s] = uniforms[2 * s + 1] * whole;
        search.most = larger(search.targets[s], search.most);
        search.found[s] = 0;
    }
    int tried = 0;
#pragma unroll 1
    for (; tried + AHEAD <= reach && !(search.sum > search.most) && search.content > 0; tried += AHEAD) {
        Frame passed[AHEAD];
        double steps[AHEAD];
        UNROLLED(j, 0, AHEAD) {
            passed[j] = frame[-j * CP];
            steps[j] = step[j * CP];
        }
        UNROLLED(j, 0, AHEAD) look_at_duration(search, passed[j], steps[j], tried + j + 1);
        frame -= AHEAD * CP;
        step += AHEAD * CP;
    }
#pragma unroll 1
    for (; tried < reach && !(search.sum > search.most) && search.content > 0; ++tried, frame -= CP, step += CP)
        look_at_duration(search, *frame, *step, tried + 1);
    int last = 0; // if all were added up, and rounding kept the sum from a target: the last with a weight
    if (!(search.sum > search.most) && is_whole(search.sum, whole)) {
        double content = 1;
#pragma unroll 1
        for (int k = 0; k < reach; ++k) {
            const Frame one = q.frames[(i64)(f - k) * CP + label];
            content *= one.weight;
            last = one.message * (content * q.table[(i64)k * CP + label]) > 0 ? k + 1 : last;
        }
    }
    UNROLLED(s, 0, COUNT)
        q.took[(row * CP + label) * DRAWS + s] = search.sum > search.targets[s] ? search.found[s] + 1 : last;
}

// The label before a segment of c that starts behind the block's frame `row`, or before the end, where `whole` is not known; for
// COUNT draws. What comes of each is duration * CP + label, or NONE where weights are not their message.
template <int COUNT> INSIDE void choose_labels(const Drawn& q, int row, double whole, const double (&across)[HELD],
                                               const double* steps, int apart, int (&to)[COUNT]) {
    const double *from = q.rows + row * CP, *uniforms = q.uniforms + row * 2 * DRAWS;
    double targets[COUNT], most = 0, sum = 0;
    int found[COUNT], last = USED - 1;
#pragma unroll 1
    for (int a = 0; apart == 1 && a < USED; ++a) whole += from[a] * steps[a];
    UNROLLED(s, 0, COUNT) {
        targets[s] = uniforms[2 * s] * whole;
        most = larger(targets[s], most);
        found[s] = 0;
    }
#pragma unroll (HELD > 1 ? USED / PIECE : 1)
    for (int begin = 0; begin < USED; begin += PIECE) {
        UNROLLED(a, 0, PIECE) {
            sum += from[begin + a] * (HELD > 1 ? across[(begin + a) % HELD] : steps[(begin + a) * apart]);
            UNROLLED(s, 0, COUNT) found[s] = sum > targets[s] ? found[s] : begin + a + 1;
        }
    }
    const bool exact = is_whole(sum, whole);
#pragma unroll 1 // rounding kept the sum from a target: the last with a weight
    if (!(sum > most))
        while (last > 0 && !(from[last] * steps[last * apart] > 0)) --last;
    UNROLLED(s, 0, COUNT) {
        const int label = smaller(found[s], last), k = exact ? q.took[(row * CP + label) * DRAWS + s] : 0;
        to[s] = k > 0 ? k * CP + label : NONE;
    }
}

// Both, for the thread block's boundaries; `follows` of the first draw's first row.
template <int COUNT> INSIDE void choose(const Drawn& q, const double* onward, const double* ends, int* follows, i64 draw,
                                        int count, int frames) {
    const int c = threadIdx.x % CP, first = (int)threadIdx.x / CP * RUN;
    const int rows = c < q.labels ? smaller(RUN, q.length - q.begin - first) : 0;
    double across[HELD];
#pragma unroll 1
    for (int r = 0; r < rows; ++r) choose_durations<COUNT>(q, first + r, c);
#pragma unroll
    for (int a = 0; a < HELD && a < USED; ++a) across[a] = onward[a * CP + c];
    const Frame* next = q.frames + (i64)(q.begin + first + 1) * CP + c;
    double coming = rows > 0 && q.begin + first + 1 < q.length ? next->message : 0;
    __syncthreads(); // durations are there for all labels
#pragma unroll 1
    for (int r = 0; r < rows; ++r) {
        const int f = q.begin + first + r, closes = f + 1 == q.length;
        const double whole = coming;
        next += CP;
        if (r + 1 < rows && f + 2 < q.length) coming = next->message;
        if (closes) { // nothing follows, and no boundary after this one needs the transitions
#pragma unroll
            for (int a = 0; a < HELD && a < USED; ++a) across[a] = ends[a];
        }
        int to[COUNT];
        choose_labels<COUNT>(q, first + r, closes ? 0 : whole, across, closes ? ends : onward + c, closes ? 1 : CP, to);
        const int row = TILE - 1 - (frames - 1 - f) % TILE;
        UNROLLED(s, 0, COUNT) {
            const int k = to[s] / CP, inside = to[s] >= 0 && k <= row && k <= f;
            if (s >= count) continue;
            follows[s * draw + (i64)f * USED + c] = inside ? (row - k) * USED + to[s] % CP : to[s] < 0 ? NONE : -2 - to[s];
        }
    }
}

// What each of DRAWS draws does wherever it comes by: follows (B, group, T, USED) is, before a segment of each label that starts
// at boundary t, row t - 1 (in the last one before the end, whatever the label), where the segment before it leads: to a state of
// the same tile, -2 less duration * CP + label where it leaves the tile, or NONE. A random number belongs to its draw and boundary,
// and a draw comes by a boundary once at most. Grid (programs, B, draws / DRAWS).
KERNEL(THREADS, 2) draw_choices(
    In<double> onward, In<double> table, In<double> last, In<i64> lengths, In<double> arrived, In<Frame> weighed,
    In<u64> contents, u64 seed, Out<int> follows, int frames, int labels, int longest, int first, int group, int stride,
    int table_first) {
    __shared__ double uniforms[2 * DRAWS * RUN * SLICES], rows[RUN * THREADS];
    __shared__ int took[DRAWS * RUN * THREADS];
    const int b = blockIdx.y, begin = blockIdx.x * RUN * SLICES, length = length_of(lengths, b, frames);
    const int own = blockIdx.z * DRAWS, count = smaller(DRAWS, group - own), numbers = 2 * RUN * SLICES * count;
    if (begin >= length) return;
    const int c = threadIdx.x % CP, slice = (int)threadIdx.x / CP;
    const i64 draw = (i64)frames * USED;
    const double* message = arrived + ((i64)b * stride + begin) * CP;
    const Drawn q = {weighed + (i64)b * frames * CP, table + (i64)table_first * CP, rows, uniforms, took, labels, longest, length,
                     begin};
    double values[RUN];
    UNROLLED(r, 0, RUN) {
        const int row = slice * RUN + r;
        values[r] = begin + row < length ? message[row * CP + c] : 0;
    }
    u64 content = 0;
    for (int i = threadIdx.x; i < gridDim.x; i += THREADS) content += contents[(i64)b * gridDim.x + i];
    UNROLLED(r, 0, RUN) rows[(slice * RUN + r) * CP + c] = values[r];
    const u64* sums = sums_of_block(content);
    if (threadIdx.x < numbers) {
        const u64 state = mixed(mixed(seed + GOLDEN) ^ total_of(sums));
        for (int i = threadIdx.x; i < numbers; i += THREADS) {
            const int s = i / (2 * RUN * SLICES), row = i / 2 % (RUN * SLICES);
            const u64 number = (u64)(2 * (begin + row + 1) + i % 2);
            const u64 bits = mixed(mixed(state + (u64)(first + own + s) * GOLDEN) + GOLDEN * number);
            uniforms[(row * DRAWS + s) * 2 + i % 2] = (double)(bits >> 11) * 1.1102230246251565e-16; // in [0, 1)
        }
    }
    follows += ((i64)b * group + own) * draw;
    __syncthreads(); // the random numbers are there
    if (count == 1)
        choose<1>(q, onward, last, follows, draw, count, frames);
    else
        choose<DRAWS>(q, onward, last, follows, draw, count, frames);
}

// The walk through a tile of states, by one thread, till it leaves to OUT, which leads to itself. `follows` of the tile. -> whether
// t and the label after it are those that it came to.
INSIDE bool walk_tile(const int* tile, const int* follows, u8* ends, int low, int& t, int& label) {
    unsigned before = (t - 1 - low) * USED + label, state = tile[before], last = before;
    while (state != OUT) {
        UNROLLED(i, 0, AT_A_TIME) {
            const unsigned next = tile[state]; // meanwhile the segment between the two is put down
            ends[before / USED] = (u8)(state % USED + 1);
            last = state == OUT ? last : state;
            before = state;
            state = next;
        }
    }
    const int left = follows[(int)last], found = -2 - left;
    label = found % CP;
    ends[last / USED] = (u8)(label + 1);
    t = low + 1 + (int)(last / USED) - found / CP;
    return left != NONE;
}

struct __align__(16) Four {
    unsigned states[4];
};

// The walks back, by a thread each, while others bring the next tile and take the one before away; grid (group, B). `ends`
// (B, samples, T) is label + 1 where a segment ends with that frame, else 0. `flagged` (B, samples) is 1 where weights that a
// draw met do not add up to their message or a number is odd, 2 where nothing is feasible.
KERNEL(THREADS) draws(
    In<int> follows, In<i64> lengths, In<double> z_value, In<int> odd, Out<u8> ends, Out<int> flagged, int frames, int samples,
    int first, int programs) {
    __shared__ __align__(16) int tiles[2 * (OUT + 4)];
    __shared__ u8 found[2 * (TILE + 1)];
    __shared__ int any;
    const int b = blockIdx.y, loader = (int)threadIdx.x - APART, loaders = THREADS - APART, last = (frames + TILE - 1) / TILE;
    const int length = length_of(lengths, b, frames);
    const i64 number = (i64)b * samples + first + blockIdx.x;
    const double z = z_value[2 * b];
    int t = length, label = 0;
    bool exact = z > 0 && z < infinity();
    follows += ((i64)b * gridDim.x + blockIdx.x) * frames * USED;
    ends += number * frames;
    if (threadIdx.x == 0) {
        any = 0;
        tiles[OUT] = tiles[OUT + 4 + OUT] = OUT;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < programs; i += THREADS)
        if (odd[(i64)b * programs + i]) any = 1;
    for (int i = -1; i <= last; ++i) { // tile i, the frames from `low` on, is walked through, i + 1 loaded, i - 1 put down
        const int high = frames - i * TILE, low = high - TILE, other = (i + 1) & 1, next = higher(0, low - TILE);
        if (threadIdx.x == 0 && exact && i >= 0 && t > higher(0, low))
            exact = walk_tile(tiles + (i & 1) * (OUT + 4), follows + (i64)low * USED, found + (i & 1) * (TILE + 1), low, t, label);
        if (loader >= 0) {
            for (int r = loader; r < TILE; r += loaders) {
                if (i > 0 && high + r >= 0) ends[high + r] = found[other * (TILE + 1) + r];
                found[other * (TILE + 1) + r] = 0;
            }
            const Four* from = (const Four*)(follows + (i64)next * USED);
            Four* to = (Four*)(tiles + other * (OUT + 4) + (next - (low - TILE)) * USED);
#pragma unroll 2
            for (int j = loader; j < (smaller(low, length) - next) * (USED / 4); j += loaders) {
                Four four = from[j];
                UNROLLED(e, 0, 4) four.states[e] = four.states[e] < OUT ? four.states[e] : OUT;
                to[j] = four;
            }
        }
        __syncthreads(); // the next tile is there, the one before it free
    }
    if (threadIdx.x == 0) flagged[number] = any ? 1 : exact ? 0 : z == 0 ? 2 : 1;
}

// Whether all weights at the segments of a sequence's first draw add up to their messages: a thread for each boundary; grid
// (ceil(T / THREADS), B).
KERNEL(THREADS, 1) check_draws(
    In<double> table, In<i64> lengths, In<double> arrived, In<Frame> weighed, In<u8> ends, Out<int> flagged, int frames,
    int longest, int samples, int stride, int table_first) {
    const int b = blockIdx.y, f = blockIdx.x * THREADS + threadIdx.x, reach = smaller(longest, f + 1);
    const i64 number = (i64)b * samples;
    if (f >= length_of(lengths, b, frames) || !ends[number * frames + f]) return;
    const int label = ends[number * frames + f] - 1;
    const Frame* frame = weighed + ((i64)b * frames + f) * CP + label;
    const double* step = table + (i64)table_first * CP + label;
    double content = 1, sum = 0;
#pragma unroll 8
    for (int k = 0; k < reach; ++k, frame -= CP, step += CP) {
        content *= frame->weight;
        sum += frame->message * (content * *step);
    }
    if (!is_whole(sum, arrived[((i64)b * stride + f) * CP + label])) flagged[number] = 1;
}
