// Best segmentations and exact draws in CUDA C, float64: what decode.cpp computes, a block of threads for each sequence.
//
// The pass is max-plus. A thread has a label c and a slice of the boundaries s: those that leave its slice's number when
// divided by SLICES. It alone reads and writes their histories (gamma[s] less the sum of the frames before s), so they
// need no barrier, in shared memory or, for long durations, in global memory. Threads exchange what they found through
// shared memory, with a barrier between every store and its loads. Ties go to the smaller duration, then the smaller label.
//
// Every (t, c) keeps its best duration and every (s, c) the label before it, in row t - 1 (s - 1). Walks back go through
// tiles of these rows in shared memory. Nothing waits for the host.
//
// Given by the compiler's command line: REAL (the scores' type), CP (labels, padded to 32, 64 or 128), THREADS (a multiple of
// CP), WINDOW (histories of a label that fit into shared memory, a multiple of THREADS / CP), TILE (rows of a walk's tile).

typedef long long i64;
typedef unsigned long long u64;
#define SLICES (THREADS / CP)
#define ROWS (CP / SLICES)
#define LARGE 1.0e6 /* a sum that holds more would lose digits of what comes after */
#define REBASED 64
#define EXACT 1.0e-9
#define NONE (-1)
#define INSIDE static __device__ __forceinline__

INSIDE int smaller(int a, int b) { return a < b ? a : b; }
INSIDE int higher(int a, int b) { return a > b ? a : b; }
INSIDE double infinity() { return __longlong_as_double(0x7ff0000000000000LL); }
INSIDE int length_of(const i64* lengths, int b, int frames) {
    const i64 given = lengths[b];
    return given < 0 ? 0 : given > frames ? frames : (int)given;
}

// The pass of one sequence; grid (B). Tables are (labels, labels), (K, labels), (labels,). `far` has `rows` x CP histories
// for each sequence where they do not fit into shared memory. alpha and gamma (B, T, labels) are kept where wanted: alpha of
// boundary t in row t - 1, gamma of boundary s in row s. -> the best score and its last label, -1 where nothing is feasible.
extern "C" __global__ void __launch_bounds__(THREADS) best_messages(
    const REAL* __restrict__ score, const double* __restrict__ transition, const double* __restrict__ duration,
    const double* __restrict__ start, const double* __restrict__ end, const i64* __restrict__ lengths,
    double* far, int* __restrict__ lasts, int* __restrict__ from, double* __restrict__ alpha,
    double* __restrict__ gamma, double* __restrict__ best_score, int* __restrict__ last_label,
    int frames, int labels, int longest, int rows, int keep) {
    __shared__ double near[WINDOW * CP], lines[THREADS], ended[THREADS], crossed[THREADS], arrived[CP];
    __shared__ int ended_after[THREADS], crossed_from[THREADS];
    const int b = blockIdx.x, c = threadIdx.x % CP, slice = threadIdx.x / CP;
    const bool there = c < labels;
    const int length = length_of(lengths, b, frames);
    const i64 row = (i64)b * frames * labels + c;
    const double none = -infinity();
    double* history = (rows > WINDOW ? far + (i64)b * rows * CP : near) + c;
    double across[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const int source = slice * ROWS + r;
        across[r] = there && source < labels ? transition[source * labels + c] : none;
    }
    double message = there ? start[c] : none; // gamma of boundary f; every slice has it
    double passed = 0;                        // the sum of the frames since it began anew
    double coming = there && slice < length ? (double)score[row + (i64)slice * labels] : 0;
    for (int f = 0; f < length; ++f) {
        if (f % SLICES == 0) { // each slice reads a frame of the next group, long before it is wanted
            const int ahead = f + SLICES + slice;
            lines[threadIdx.x] = coming;
            coming = there && ahead < length ? (double)score[row + (i64)ahead * labels] : 0;
            __syncthreads();
        }
        const double x = lines[f % SLICES * CP + c];
        if (keep && slice == 0 && there) gamma[row + (i64)f * labels] = message;
        const int newest = f - (f - slice + SLICES) % SLICES; // this slice's; below 0 where it has none yet
        const int oldest = higher(0, f + 1 - longest);
        if (newest == f) history[(f % rows) * CP] = message - passed;
        passed += x;
        if (!(fabs(x) <= LARGE) || f % REBASED == REBASED - 1) {
            for (int s = newest; s >= oldest; s -= SLICES) history[(s % rows) * CP] += passed;
            passed = 0;
        }
        double best = none;
        int after = 0, slot = newest >= 0 ? newest % rows : 0;
#pragma unroll 4
        for (int s = newest; s >= oldest; s -= SLICES) {
            const double value = there ? history[slot * CP] + duration[(i64)(f - s) * labels + c] : none;
            if (value > best) {
                best = value;
                after = f + 1 - s;
            }
            slot -= SLICES;
            if (slot < 0) slot += rows;
        }
        ended[threadIdx.x] = best;
        ended_after[threadIdx.x] = after;
        __syncthreads();
        if (slice == 0) {
#pragma unroll
            for (int other = 1; other < SLICES; ++other) {
                const double value = ended[other * CP + c];
                const int k = ended_after[other * CP + c];
                if (value > best || (value == best && k < after)) {
                    best = value;
                    after = k;
                }
            }
            best += passed;
            arrived[c] = best;
            if (there) {
                lasts[row + (i64)f * labels] = after;
                if (keep) alpha[row + (i64)f * labels] = best;
            }
        }
        __syncthreads();
        double crossing = none;
        int before = 0;
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const double value = arrived[slice * ROWS + r] + across[r];
            if (value > crossing) {
                crossing = value;
                before = slice * ROWS + r;
            }
        }
        crossed[threadIdx.x] = crossing;
        crossed_from[threadIdx.x] = before;
        __syncthreads();
        message = none;
        before = 0;
#pragma unroll
        for (int other = 0; other < SLICES; ++other) {
            const double value = crossed[other * CP + c];
            if (value > message) {
                message = value;
                before = crossed_from[other * CP + c];
            }
        }
        if (slice == 0 && there) from[row + (i64)f * labels] = before;
    }
    if (threadIdx.x) return;
    double top = none;
    int label = NONE;
    for (int a = 0; a < labels && length > 0; ++a)
        if (arrived[a] + end[a] > top) {
            top = arrived[a] + end[a];
            label = a;
        }
    best_score[b] = top;
    last_label[b] = label;
}

// One sequence as walks back see it: alpha of boundary t in row t - 1, gamma of boundary s in row s.
struct Walked {
    const REAL* score;
    const double *transition, *duration, *end, *alpha, *gamma;
    const int *lasts, *from;
    int labels, longest, length;
};

// A path from its end: nodes are labels and durations (less 1) in turn. `boundary` is each node's, `behind` what lies behind
// it is worth. `worth` is that of the best segmentation with another choice at the node, -inf where there is none or it was
// taken; `other` is that choice.
struct Path {
    int *chosen, *boundary, *other;
    double *worth, *behind;
};

INSIDE double label_step(const Walked& q, int label, int next) {
    return next < 0 ? q.end[label] : q.transition[label * q.labels + next];
}
INSIDE double duration_step(const Walked& q, int t, int label, int k) {
    double content = 0;
    for (int u = t - 1; u >= t - k; --u) content += (double)q.score[(i64)u * q.labels + label];
    return content + q.duration[(i64)(k - 1) * q.labels + label];
}

// The best choices from boundary t on, `next` after it (-1 at the end), or from the duration of label `next` where `inside`;
// by all threads. -> the number of nodes.
INSIDE int follow(const Walked& q, const Path& path, int nodes, int t, int next, int last, bool inside) {
    __shared__ int lasts[TILE * CP], from[TILE * CP], reached[3];
    while (t > 0) {
        const int low = higher(0, t - TILE);
        for (int i = threadIdx.x; i < (t - low) * q.labels; i += THREADS) {
            lasts[i] = q.lasts[(i64)low * q.labels + i];
            from[i] = q.from[(i64)low * q.labels + i];
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            while (t > low) {
                const int at = (t - 1 - low) * q.labels;
                if (!inside) {
                    next = next < 0 ? last : from[at + next];
                    path.chosen[nodes] = next;
                    path.boundary[nodes++] = t;
                }
                inside = false;
                const int k = higher(1, lasts[at + next]); // a walk ends, whatever it walks through
                path.chosen[nodes] = k - 1;
                path.boundary[nodes++] = t;
                t -= k;
            }
            reached[0] = t;
            reached[1] = next;
            reached[2] = nodes;
        }
        __syncthreads();
        t = reached[0];
        next = reached[1];
        nodes = reached[2];
        inside = false;
    }
    return nodes;
}

// What lies behind each node from `first` on, by all threads; what lies behind `first` itself is there.
INSIDE void sum_steps(const Walked& q, const Path& path, int first, int nodes) {
    __shared__ double steps[THREADS];
    double sum = path.behind[first]; // thread 0's counts
    for (int begin = first; begin + 1 < nodes; begin += THREADS) {
        const int i = begin + threadIdx.x, count = smaller(THREADS, nodes - 1 - begin);
        if (i + 1 < nodes)
            steps[threadIdx.x] = i % 2 ? duration_step(q, path.boundary[i], path.chosen[i - 1], path.chosen[i] + 1)
                                       : label_step(q, path.chosen[i], i ? path.chosen[i - 2] : NONE);
        __syncthreads();
        for (int j = 0; threadIdx.x == 0 && j < count; ++j) steps[j] = sum += steps[j];
        __syncthreads();
        if (i + 1 < nodes) path.behind[i + 1] = steps[threadIdx.x];
        __syncthreads();
    }
}

// The best other choice at a node, a thread's work: any but `chosen`, or where there is a `root` what comes after `chosen` in
// the order of worth, and is not `root`.
INSIDE void find_other(const Walked& q, const Path& path, int node, int root) {
    const int t = path.boundary[node], chosen = path.chosen[node];
    const bool label = node % 2 == 0;
    const int around = label ? (node ? path.chosen[node - 2] : NONE) : path.chosen[node - 1];
    const int count = label ? q.labels : smaller(q.longest, t);
    double best = -infinity(), own = -infinity();
    int found = NONE;
    for (int turn = root >= 0 ? 0 : 1; turn < 2; ++turn) { // the first finds what the choice itself is worth
        double content = 0;
        for (int i = 0; i < count; ++i) {
            double value;
            if (label) value = q.alpha[(i64)(t - 1) * q.labels + i] + label_step(q, i, around);
            else {
                const i64 at = (i64)(t - 1 - i) * q.labels + around;
                content += (double)q.score[at];
                value = q.gamma[at] + (content + q.duration[(i64)i * q.labels + around]);
            }
            if (turn == 0) own = i == chosen ? value : own;
            else {
                const bool behind = root < 0 ? i != chosen : value < own || (value == own && i > chosen);
                if (behind && i != root && value > best) {
                    best = value;
                    found = i;
                }
            }
        }
    }
    path.other[node] = found;
    path.worth[node] = found < 0 ? -infinity() : path.behind[node] + best;
}

struct Deviation {
    int path, node;
    double worth;
};

// The paths of a sequence, 2 T nodes each.
struct Paths {
    Path first;
    i64 nodes;
};
INSIDE Path path_at(const Paths& of, int n) {
    const i64 at = of.nodes * n;
    const Path found = {of.first.chosen + at, of.first.boundary + at, of.first.other + at, of.first.worth + at,
                        of.first.behind + at};
    return found;
}

// Of two with the same worth: the smaller choice where they differ first.
INSIDE bool comes_first(const Paths& of, const Deviation& a, const Deviation& b) {
    const Path p = path_at(of, a.path), q = path_at(of, b.path);
    for (int node = 0; node <= smaller(a.node, b.node); ++node) {
        const int x = node == a.node ? p.other[node] : p.chosen[node], y = node == b.node ? q.other[node] : q.chosen[node];
        if (x != y) return x < y;
    }
    return a.node > b.node;
}

INSIDE bool is_better(const Paths& of, const Deviation& a, const Deviation& b) {
    return a.worth > b.worth || (a.worth == b.worth && a.worth > -infinity() && comes_first(of, a, b));
}

// The `count` best segmentations of a sequence, by Lawler's way: the best of all other choices at all nodes of the paths so
// far leads to the next; grid (B). Arrays of nodes are (B, count, 2 T). -> score (B, count), -inf where there is none, segments
// (end, label) from the last one on, (B, count, T, 2), and how many (B, count).
extern "C" __global__ void __launch_bounds__(THREADS) best_paths(
    const REAL* __restrict__ score, const double* __restrict__ transition, const double* __restrict__ duration,
    const double* __restrict__ end, const i64* __restrict__ lengths, const int* __restrict__ lasts,
    const int* __restrict__ from, const double* __restrict__ alpha, const double* __restrict__ gamma,
    const double* __restrict__ best_score, const int* __restrict__ last_label, int* chosen, int* boundary, int* other,
    double* worth, double* behind, int* first, int* roots, int* used, double* __restrict__ scores,
    int* __restrict__ segments, int* __restrict__ sizes, int frames, int labels, int longest, int count) {
    __shared__ Deviation found[THREADS];
    const int b = blockIdx.x;
    const i64 at = (i64)b * frames * labels, number = (i64)b * count;
    const Walked q = {score + at, transition, duration, end, alpha + at, gamma + at, lasts + at, from + at,
                      labels, longest, length_of(lengths, b, frames)};
    const i64 nodes_before = number * 2 * frames;
    const Paths paths = {{chosen + nodes_before, boundary + nodes_before, other + nodes_before, worth + nodes_before,
                          behind + nodes_before}, (i64)2 * frames};
    int last = last_label[b];
    int n = 0;
    for (; n < count && last >= 0; ++n) {
        const Path path = path_at(paths, n);
        int nodes = 0, begin = 0, root = NONE;
        if (n == 0) {
            nodes = follow(q, path, 0, q.length, NONE, last, false);
            if (threadIdx.x == 0) {
                scores[number] = best_score[b];
                if (count > 1) path.behind[0] = 0;
            }
        } else {
            Deviation own = {NONE, 0, -infinity()};
            for (int p = 0; p < n; ++p) {
                const Path seen = path_at(paths, p);
                for (int node = first[number + p] + threadIdx.x; node < used[number + p]; node += THREADS) {
                    const Deviation one = {p, node, seen.worth[node]};
                    if (is_better(paths, one, own)) own = one;
                }
            }
            found[threadIdx.x] = own;
            __syncthreads();
            for (int step = THREADS / 2; step > 0; step /= 2) {
                if (threadIdx.x < step && is_better(paths, found[threadIdx.x + step], found[threadIdx.x]))
                    found[threadIdx.x] = found[threadIdx.x + step];
                __syncthreads();
            }
            const Deviation best = found[0];
            if (best.path < 0) break;
            const Path parent = path_at(paths, best.path);
            begin = best.node;
            root = begin == first[number + best.path] && roots[number + best.path] >= 0 ? roots[number + best.path]
                                                                                         : parent.chosen[begin];
            for (int node = threadIdx.x; node <= begin; node += THREADS) {
                path.chosen[node] = node < begin ? parent.chosen[node] : parent.other[node];
                path.boundary[node] = parent.boundary[node];
                path.behind[node] = parent.behind[node];
            }
            __syncthreads(); // all have read the parent, and the new path's first nodes are there
            const int t = path.boundary[begin], label = begin % 2 ? path.chosen[begin - 1] : path.chosen[begin];
            const int left = begin % 2 ? t - 1 - path.chosen[begin] : t;
            nodes = follow(q, path, begin + 1, left, label, NONE, begin % 2 == 0);
            if (threadIdx.x == 0) {
                scores[number + n] = best.worth;
                parent.worth[begin] = -infinity();
            }
        }
        __syncthreads(); // the path is there for all
        for (int i = threadIdx.x; i < nodes / 2; i += THREADS) {
            int* to = segments + ((number + n) * frames + i) * 2;
            to[0] = path.boundary[2 * i];
            to[1] = path.chosen[2 * i];
        }
        if (threadIdx.x == 0) {
            sizes[number + n] = nodes / 2;
            first[number + n] = begin;
            roots[number + n] = root;
            used[number + n] = nodes;
        }
        if (n + 1 < count) {
            sum_steps(q, path, begin, nodes);
            for (int node = begin + threadIdx.x; node < nodes; node += THREADS)
                find_other(q, path, node, node == begin ? root : NONE);
        }
        __syncthreads(); // what the search for the next one loads
    }
    for (n += threadIdx.x; n < count; n += THREADS) {
        scores[number + n] = -infinity();
        sizes[number + n] = 0;
    }
}

// 64 well mixed bits (the finaliser of SplitMix64).
INSIDE u64 mixed(u64 x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}
#define GOLDEN 0x9e3779b97f4a7c15ULL

// What one sequence's draws depend on beside the seed: its scores and length; by all 32 threads.
INSIDE u64 content_of(const REAL* score, int length, int labels) {
    __shared__ u64 sums[32];
    u64 sum = 0;
    for (i64 i = threadIdx.x; i < (i64)length * labels; i += 32)
        sum += mixed((u64)__double_as_longlong((double)score[i] + 0.0) + GOLDEN * (u64)(i + 1)); // -0.0 becomes 0.0
    sums[threadIdx.x] = sum;
    __syncthreads();
    sum = mixed((u64)length);
    for (int i = 0; i < 32; ++i) sum += sums[i];
    return sum;
}

INSIDE double random_of(u64& state) { // in [0, 1)
    state += GOLDEN;
    return (double)(mixed(state) >> 11) * 1.1102230246251565e-16;
}

INSIDE double power_of_two(int exponent) {
    const int raw = exponent < -1023 ? 0 : exponent > 1023 ? 2046 : exponent + 1023;
    return __longlong_as_double((i64)raw << 52);
}

// A search through weights for the one that a random number falls on, 32 at a time: every thread adds them up in order.
struct Search {
    double target, sum;
    int found, last;
};
INSIDE void look_through(Search& of, const double* weights, int begin) {
    for (int i = 0; i < 32; ++i) {
        of.sum += weights[i];
        if (weights[i] > 0) of.last = begin + i;
        if (of.found < 0 && of.sum > of.target) of.found = begin + i;
    }
}
// Whether the search is over, and right: where all weights were added up, they must be the message.
INSIDE bool is_exact(const Search& of, double whole, bool complete) {
    return !complete || (fabs(of.sum - whole) <= EXACT * whole && whole > 0 && whole < infinity());
}

// A draw, by 32 threads; grid (samples, B). From what `messages` of semicrf.cu left of the direction from the left, float64:
// `stride` rows for each sequence, and the model's tables with CP columns. `flagged` (B, samples) is 1 where weights do not add
// up to their message, 2 where nothing is feasible; the first draw adds up all of them.
extern "C" __global__ void __launch_bounds__(32) draws(
    const REAL* __restrict__ score, const REAL* __restrict__ tops, const double* __restrict__ onward,
    const double* __restrict__ table, const double* __restrict__ last, const i64* __restrict__ lengths,
    const double* __restrict__ source, const double* __restrict__ arrived, const int* __restrict__ exponent,
    const double* __restrict__ z_value, const u64* __restrict__ seed, int* __restrict__ segments,
    int* __restrict__ sizes, int* __restrict__ flagged, int frames, int labels, int longest, int samples, int stride,
    int table_first) {
    __shared__ double factors[2 * 32], weights[2 * 32];
    const int n = blockIdx.x, b = blockIdx.y, lane = threadIdx.x;
    const int length = length_of(lengths, b, frames);
    const i64 row = (i64)b * frames, left = (i64)b * stride, number = (i64)b * samples + n;
    const REAL* own = score + row * labels;
    const double z = z_value[2 * b];
    if (!(z > 0 && z < infinity())) {
        if (lane == 0) {
            sizes[number] = 0;
            flagged[number] = z == 0 ? 2 : 1;
        }
        return;
    }
    u64 state = mixed(mixed(mixed(*seed + GOLDEN) ^ content_of(own, length, labels)) + (u64)n * GOLDEN);
    const bool all = n == 0;
    bool exact = true;
    int t = length, next = NONE, size = 0, turn = 0;
    while (t > 0 && exact) {
        double whole = next < 0 ? 0 : source[(left + t) * CP + next];
        if (next < 0)
            for (int a = 0; a < labels; ++a) whole += arrived[(left + t - 1) * CP + a] * last[a];
        Search search = {random_of(state) * whole, 0, NONE, NONE};
        int begin = 0;
        for (; begin < labels && (all || search.found < 0); begin += 32, turn ^= 32) {
            const int a = begin + lane;
            const double step = a >= labels ? 0 : next < 0 ? last[a] : onward[a * CP + next];
            weights[turn + lane] = a < labels ? arrived[(left + t - 1) * CP + a] * step : 0;
            __syncthreads(); // the other half is free: all have passed the barrier before its last loads
            look_through(search, weights + turn, begin);
        }
        exact = is_exact(search, whole, all || search.found < 0);
        const int label = search.found < 0 ? search.last : search.found;
        if (!exact || label < 0) {
            exact = false;
            break;
        }
        whole = arrived[(left + t - 1) * CP + label];
        const Search fresh = {random_of(state) * whole, 0, NONE, NONE};
        search = fresh;
        const int reach = smaller(longest, t);
        double content = 1;
        for (begin = 0; begin < reach && (all || search.found < 0); begin += 32, turn ^= 32) {
            const int f = t - 1 - begin - lane;
            const bool there = begin + lane < reach;
            double factor = 0;
            if (there) {
                const int step = exponent[left + f] - (f > 0 ? exponent[left + f - 1] : 0);
                factor = exp((double)own[(i64)f * labels + label] - (double)tops[row + f]) * power_of_two(-step);
            }
            factors[turn + lane] = factor;
            __syncthreads();
            double before = content;
            for (int i = 0; i < 32; ++i) {
                content *= factors[turn + i];
                if (i == lane) before = content;
            }
            const double lasting = there ? before * table[(i64)(table_first + begin + lane) * CP + label] : 0;
            weights[turn + lane] = there ? source[(left + f) * CP + label] * lasting : 0;
            __syncthreads();
            look_through(search, weights + turn, begin);
        }
        exact = is_exact(search, whole, all || search.found < 0);
        const int k = 1 + (search.found < 0 ? search.last : search.found);
        if (!exact || k < 1) {
            exact = false;
            break;
        }
        if (lane == 0) {
            segments[(number * frames + size) * 2] = t;
            segments[(number * frames + size) * 2 + 1] = label;
        }
        ++size;
        t -= k;
        next = label;
    }
    if (lane == 0) {
        sizes[number] = exact ? size : 0;
        flagged[number] = !exact;
    }
}
