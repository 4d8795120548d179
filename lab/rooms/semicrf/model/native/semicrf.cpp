// The semi-CRF on a CPU in the log domain, float64: messages from the left, every expected count, and the best segmentation.
//
// A plain C interface of pointers and sizes: no header of torch or Python, so one source serves every version of both. The recursion
// is that of log_domain.py, with labels side by side in vectors: each frame's scores are shifted by their largest, messages by
// theirs, a sum spans one segment at most, and -inf is itself. Counts are shares of what ends or starts, which sum to 1.
//
// A sequence is one task, and nothing in it is divided among threads or depends on its batch or padding: the same bits for any of
// them.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <new>
#include <thread>
#include <vector>

namespace {

// As wide as the processor's registers: compilers take wider vectors apart through memory, at a tenth of the speed.
#if defined(LAB_LANES)
constexpr int LANES = LAB_LANES;  // the tests try what other processors have
#elif defined(__AVX512F__)
constexpr int LANES = 8;
#elif defined(__AVX__)
constexpr int LANES = 4;
#else
constexpr int LANES = 2;
#endif
constexpr int PADDED = 8;
constexpr double INF = std::numeric_limits<double>::infinity();

typedef double V __attribute__((vector_size(LANES * sizeof(double))));
typedef decltype(V{} > V{}) M;  // lanes of -1 where true, of 0 where not

inline V all(double value) { return value - V{}; }
inline V pick(M mask, V yes, V no) { return (V)((mask & (M)yes) | (~mask & (M)no)); }
inline V larger(V a, V b) { return a > b ? a : b; }
inline V finite_or_zero(V a) { return pick(a > -INF, a, V{}); }

inline double largest(V a) {
    double top = a[0];
    for (int i = 1; i < LANES; ++i) top = a[i] > top ? a[i] : top;
    return top;
}

inline double largest_in(const V* row, int64_t nv) {  // 0 where all are -inf
    V top = all(-INF);
    for (int64_t v = 0; v < nv; ++v) top = larger(row[v], top);
    const double value = largest(top);
    return value > -INF ? value : 0.0;
}

// exp of what is at most a little above 0, within one unit in the last place: x = n ln 2 + r, Taylor's polynomial of r, and n into
// the exponent. What is below the normal numbers is zero: the exponent's bits are.
inline V exponential(V x) {
    constexpr double SHIFT = 0x1.8p52;  // adding it leaves the nearest integer in the low bits
    x = larger(x, all(-709.0));
    const V shifted = x * 1.4426950408889634 + SHIFT, n = shifted - SHIFT;
    const V r = x - n * 6.93147180369123816490e-01 - n * 1.90821492927058770002e-10;
    V sum = all(1.0 / 479001600.0);
    constexpr double terms[] = {39916800.0, 3628800.0, 362880.0, 40320.0, 5040.0, 720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0};
    for (double term : terms) sum = sum * r + 1.0 / term;
    return sum * (V)(((M)shifted + 1023) << 52);
}

using Vectors = std::unique_ptr<V[]>;

Vectors vectors(int64_t count) { return Vectors(new V[size_t(count)]); }  // not zeroed

// Rows of labels, such as one sequence's scores, (T, C).
struct Sequence {
    const double* from;
    int64_t length, labels;

    // Row t, with `padding` up to whole vectors.
    void read(int64_t t, int64_t wide, double padding, V* line) const {
        double* flat = reinterpret_cast<double*>(line);
        std::copy_n(from + t * labels, labels, flat);
        std::fill(flat + labels, flat + wide, padding);
    }
};

// What every function is given first, as Python lays it out: numbers of 64 bits and addresses of contiguous arrays.
struct Batch {
    int64_t batch, frames, longest, labels, threads;
    const double* score;     // (B, T, C)
    const int64_t* lengths;  // (B,)
    const double *transition, *duration, *start, *end;  // (C, C), (K, C), (C,), (C,)

    int64_t length(int64_t b) const { return std::min(std::max<int64_t>(lengths[b], 1), frames); }
    int64_t padded() const { return (labels + PADDED - 1) / PADDED * PADDED; }
    Sequence sequence(int64_t b) const { return {score + b * frames * labels, length(b), labels}; }
};

// `one(b, memory)` for every sequence, on up to x.threads threads; `memory` are a thread's `size` vectors, all that it needs.
template <class One>
void in_turns(const Batch& x, int64_t size, const One& one) {
    const int64_t threads = std::max<int64_t>(1, std::min(x.threads, x.batch));
    const Vectors memory = vectors(size * threads);
    std::atomic<int64_t> next{0};
    const auto work = [&](int64_t thread) {
        for (int64_t b = next++; b < x.batch; b = next++) one(b, memory.get() + thread * size);
    };
    std::vector<std::thread> others;
    others.reserve(size_t(threads - 1));
    try {
        for (int64_t thread = 1; thread < threads; ++thread) others.emplace_back(work, thread);
    } catch (const std::exception&) {
        // No more threads are to be had: those there are do all of it.
    }
    work(0);
    for (std::thread& other : others) other.join();
}

// 0, or 1 where there is not enough memory.
template <class Body>
int guarded(const Body& body) {
    try {
        body();
        return 0;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}

struct Sums {  // compensated: the shifts of 10^5 frames add up to 10^6
    double sum = 0.0, rest = 0.0;
    void add(double x) {
        double next = sum + x;
        rest += std::fabs(sum) >= std::fabs(x) ? (sum - next) + x : (x - next) + sum;
        sum = next;
    }
};

// All that is added beside the frames, padded to whole vectors of labels by forbidden ones.
struct Additions {
    int64_t nv;
    Vectors duration, transition, ends;  // (K, nv), (C, nv), (2, nv): of the first and the last label

    explicit Additions(const Batch& x)
        : nv(x.padded() / LANES), duration(vectors(x.longest * nv)), transition(vectors(x.labels * nv)), ends(vectors(2 * nv)) {
        pad(x.duration, x.longest, x.labels, duration.get());
        pad(x.transition, x.labels, x.labels, transition.get());
        pad(x.start, 1, x.labels, ends.get());
        pad(x.end, 1, x.labels, ends.get() + nv);
    }
    void pad(const double* from, int64_t rows, int64_t labels, V* to) const {
        const Sequence all_rows{from, rows, labels};
        for (int64_t row = 0; row < rows; ++row) all_rows.read(row, nv * LANES, -INF, to + row * nv);
    }
};

// Of one sequence, rows of nv vectors: T + 1 of alpha, T of gamma by the boundary that they leave, and T of the frames' scores with
// all shifts applied.
struct Rows {
    V *alpha, *gamma, *moved;
};

// Of a batch: each (B, T + 1, wide), in memory at multiples of 64 bytes; or null where only log Z is wanted.
struct Messages {
    double *alpha, *gamma, *moved;
    double* log_z;  // (B,)

    Rows rows(const Batch& x, int64_t b) const {
        const int64_t first = b * (x.frames + 1) * x.padded() / LANES;
        const auto of = [first](double* p) { return p ? reinterpret_cast<V*>(p) + first : nullptr; };
        return {of(alpha), of(gamma), of(moved)};
    }
};

inline V log_sum(const V* values, int64_t count, V top) {
    const V shift = finite_or_zero(top);
    V sum = V{};
    for (int64_t i = 0; i < count; ++i) sum += exponential(values[i] - shift);
    for (int i = 0; i < LANES; ++i) sum[i] = std::log(sum[i]);
    return sum + shift;
}

// Into `values` what each duration brings to boundary t, at one vector of labels; -> the largest.
V arrivals(const Additions& m, const Rows& of, int64_t t, int64_t reach, int64_t v, V* values) {
    V content = V{}, top = all(-INF);
    for (int64_t k = 0; k < reach; ++k) {
        content += of.moved[(t - 1 - k) * m.nv + v];
        values[k] = of.gamma[(t - 1 - k) * m.nv + v] + content + m.duration[k * m.nv + v];
        top = larger(values[k], top);
    }
    return top;
}

// Into `values` what each label sends to one vector of labels; -> the largest.
V crossings(const Batch& x, const Additions& m, const V* alpha, int64_t v, V* values) {
    const double* sent = reinterpret_cast<const double*>(alpha);
    V top = all(-INF);
    for (int64_t c = 0; c < x.labels; ++c) {
        values[c] = sent[c] + m.transition[c * m.nv + v];
        top = larger(values[c], top);
    }
    return top;
}

// `memory`: the values of one sum, and three rows per boundary where the messages are not kept.
void forward_one(const Batch& x, const Additions& m, const Messages& to, int64_t b, V* memory) {
    const Sequence s = x.sequence(b);
    const int64_t nv = m.nv, wide = nv * LANES, boundaries = x.frames + 1;
    V *values = memory, *rows = values + std::max(x.longest, x.labels);
    const Rows of = to.alpha ? to.rows(x, b) : Rows{rows, rows + boundaries * nv, rows + 2 * boundaries * nv};
    Sums shifts;
    std::copy_n(m.ends.get(), nv, of.gamma);
    for (int64_t t = 1; t <= s.length; ++t) {
        V *alpha = of.alpha + t * nv, *moved = of.moved + (t - 1) * nv;
        s.read(t - 1, wide, -INF, moved);
        const double top = largest_in(moved, nv);
        const int64_t reach = std::min(x.longest, t);
        for (int64_t v = 0; v < nv; ++v) {
            moved[v] -= top;
            const V most = arrivals(m, of, t, reach, v, values);
            alpha[v] = log_sum(values, reach, most);
        }
        const double shift = largest_in(alpha, nv);
        shifts.add(top);
        shifts.add(shift);
        for (int64_t v = 0; v < nv; ++v) {
            alpha[v] -= shift;
            moved[v] -= shift;
        }
        for (int64_t v = 0; v < nv && t < s.length; ++v) {
            const V most = crossings(x, m, alpha, v, values);
            of.gamma[t * nv + v] = log_sum(values, x.labels, most);
        }
    }
    const double* last = reinterpret_cast<const double*>(of.alpha + s.length * nv);
    double top = -INF, sum = 0.0;
    for (int64_t c = 0; c < x.labels; ++c) top = std::max(top, last[c] + x.end[c]);
    for (int64_t c = 0; c < x.labels && top > -INF; ++c) sum += std::exp(last[c] + x.end[c] - top);
    to.log_z[b] = top > -INF ? std::log(sum) + top + shifts.rest + shifts.sum : -INF;
}

// What ends with the last frame.
void last_shares(const Batch& x, const Additions& m, const V* alpha, V* ended) {
    double* share = reinterpret_cast<double*>(ended);
    double total = 0.0;
    V top = all(-INF);
    for (int64_t v = 0; v < m.nv; ++v) top = larger(alpha[v] + m.ends[m.nv + v], top);
    for (int64_t v = 0; v < m.nv; ++v) ended[v] = exponential(alpha[v] + m.ends[m.nv + v] - largest(top));
    for (int64_t c = 0; c < x.labels; ++c) total += share[c];
    for (int64_t v = 0; v < m.nv; ++v) ended[v] /= total;
}

// The values as parts of a whole that is shared out by them: exponentials that sum to `whole`, or to 0 where all are -inf.
void share_out(V* values, int64_t count, V top, V whole) {
    const V shift = finite_or_zero(top);
    V total = V{};
    for (int64_t i = 0; i < count; ++i) total += values[i] = exponential(values[i] - shift);
    const V each = whole / pick(total > 0.0, total, all(1.0));
    for (int64_t i = 0; i < count; ++i) values[i] *= each;
}

struct Counts {  // of a batch; label, starts, ends (B, T, C) in a row, duration (B, K, C), transition (B, C, C)
    double *label, *starts, *ends, *duration, *transition;
};

// `memory`: three rows per frame, one per duration and label, and the shares of one sum.
void backward_one(const Batch& x, const Additions& m, const Messages& from, const Counts& out, int64_t b, V* memory) {
    const Sequence s = x.sequence(b);
    const Rows kept = from.rows(x, b);
    const int64_t nv = m.nv, wide = nv * LANES, frames = x.frames;
    V *label = memory, *starts = label + frames * nv, *ends = starts + frames * nv;
    V *duration = ends + frames * nv, *crossed = duration + x.longest * nv, *shares = crossed + wide * nv;
    std::fill(memory, shares, V{});
    if (from.log_z[b] > -INF) {
        last_shares(x, m, kept.alpha + s.length * nv, ends + (s.length - 1) * nv);
        for (int64_t t = s.length; t > 0; --t) {
            V* ended = ends + (t - 1) * nv;
            for (int64_t v = 0; v < nv && t < s.length; ++v) {
                const V top = crossings(x, m, kept.alpha + t * nv, v, shares);
                share_out(shares, x.labels, top, starts[t * nv + v]);
                for (int64_t c = 0; c < x.labels; ++c) {
                    crossed[c * nv + v] += shares[c];
                    for (int i = 0; i < LANES; ++i) reinterpret_cast<double*>(ended)[c] += shares[c][i];
                }
            }
            const int64_t reach = std::min(x.longest, t);
            for (int64_t v = 0; v < nv; ++v) {
                const V top = arrivals(m, kept, t, reach, v, shares);
                share_out(shares, reach, top, ended[v]);
                V longer = V{};  // of the segments that cover a frame
                for (int64_t k = reach - 1; k >= 0; --k) {
                    duration[k * nv + v] += shares[k];
                    starts[(t - 1 - k) * nv + v] += shares[k];
                    label[(t - 1 - k) * nv + v] += longer += shares[k];
                }
            }
        }
    }
    const auto copied = [&](const V* rows, int64_t count, double* to) {
        const double* row = reinterpret_cast<const double*>(rows);
        for (int64_t i = 0; i < count; ++i) std::copy_n(row + i * wide, x.labels, to + (b * count + i) * x.labels);
    };
    copied(label, frames, out.label);
    copied(starts, frames, out.starts);
    copied(ends, frames, out.ends);
    copied(duration, x.longest, out.duration);
    copied(crossed, x.labels, out.transition);
}

struct Best {
    double* score;   // (B,), -inf where nothing is feasible
    int32_t* marks;  // (B, T): label + 1 where a segment ends with that frame, else 0 as before
};

// The best segmentation of one sequence: the best score up to each boundary, and what made it again on the way back. Of equals the
// smaller label wins, then the smaller duration, from the end. No sum spans more than one segment, so no score spoils another.
void best_one(const Batch& x, const Additions& m, const Best& to, int64_t b, V* memory) {
    const Sequence s = x.sequence(b);
    const int64_t labels = x.labels, length = s.length, nv = m.nv, wide = nv * LANES;
    V *frame_rows = memory, *gamma_rows = frame_rows + length * nv, *alpha_rows = gamma_rows + length * nv;
    for (int64_t t = 0; t < length; ++t) s.read(t, wide, -INF, frame_rows + t * nv);
    std::copy_n(m.ends.get(), nv, gamma_rows);
    for (int64_t t = 1; t <= length; ++t) {
        const int64_t reach = std::min(x.longest, t);
        V* ended = alpha_rows + t * nv;
        for (int64_t v = 0; v < nv; ++v) {
            V sum = V{}, best = all(-INF);
            for (int64_t k = 0; k < reach; ++k) {
                sum += frame_rows[(t - 1 - k) * nv + v];
                best = larger(gamma_rows[(t - 1 - k) * nv + v] + (sum + m.duration[k * nv + v]), best);
            }
            ended[v] = best;
        }
        if (t == length) break;
        const double* sent = reinterpret_cast<const double*>(ended);
        for (int64_t v = 0; v < nv; ++v) {
            V top = all(-INF);
            for (int64_t from = 0; from < labels; ++from) top = larger(sent[from] + m.transition[from * nv + v], top);
            gamma_rows[t * nv + v] = top;
        }
    }
    const auto *frames = reinterpret_cast<const double*>(frame_rows), *gamma = reinterpret_cast<const double*>(gamma_rows),
               *alpha = reinterpret_cast<const double*>(alpha_rows);
    const auto largest_of = [](int64_t count, const auto& value) {
        int64_t chosen = 0;
        double top = -INF;
        for (int64_t i = 0; i < count; ++i) {
            const double score = value(i);
            if (score > top) chosen = i, top = score;
        }
        return chosen;
    };
    const double* last = alpha + length * wide;
    int64_t label = largest_of(labels, [&](int64_t c) { return last[c] + x.end[c]; });
    to.score[b] = last[label] + x.end[label];
    if (!(to.score[b] > -INF)) return;
    for (int64_t t = length; t > 0;) {
        double sum = 0.0;
        to.marks[b * x.frames + t - 1] = int32_t(label + 1);
        t -= 1 + largest_of(std::min(x.longest, t), [&](int64_t k) {
            sum += frames[(t - 1 - k) * wide + label];
            return gamma[(t - 1 - k) * wide + label] + (sum + x.duration[k * labels + label]);
        });
        const double* ended = alpha + t * wide;
        if (t > 0) label = largest_of(labels, [&](int64_t from) { return ended[from] + x.transition[from * labels + label]; });
    }
}

}  // namespace

// Each returns 0, or 1 where there is not enough memory.
extern "C" {

int lab_semicrf_forward(const Batch* x, const Messages* to) {
    return guarded([&] {
        const Additions m(*x);
        const int64_t rows = to->alpha ? 0 : 3 * (x->frames + 1) * m.nv, size = std::max(x->longest, x->labels) + rows;
        in_turns(*x, size, [&](int64_t b, V* memory) { forward_one(*x, m, *to, b, memory); });
    });
}

int lab_semicrf_backward(const Batch* x, const Messages* from, const Counts* out) {
    return guarded([&] {
        const Additions m(*x);
        const int64_t size = (3 * x->frames + x->longest + m.nv * LANES) * m.nv + std::max(x->longest, x->labels);
        in_turns(*x, size, [&](int64_t b, V* memory) { backward_one(*x, m, *from, *out, b, memory); });
    });
}

int lab_semicrf_best(const Batch* x, const Best* to) {
    return guarded([&] {
        const Additions m(*x);
        in_turns(*x, (3 * x->frames + 1) * m.nv, [&](int64_t b, V* memory) { best_one(*x, m, *to, b, memory); });
    });
}
}
